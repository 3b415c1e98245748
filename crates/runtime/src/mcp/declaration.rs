//! What a server is: read from `config.toml`, from a thread's own settings, from `.mcp.json` and from plugins. All of them
//! write the same thing, with the same words; what they may say differs by where they come from.

use std::collections::BTreeMap;
use std::time::Duration;

use outpost_mcp::HttpServer;
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use super::McpLimits;

/// Where a declaration comes from. It decides what it may say.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeclarationOrigin {
    /// The user's own configuration.
    Config,
    /// Given by the client when the thread was started.
    Thread,
    /// A `.mcp.json` that lies in the directory of an environment. Written by the project's authors, not by the user.
    Project { environment: EnvironmentId, directory: PathUri },
    /// A plugin in a capability root that was selected, or one that is installed on a machine.
    Plugin { root: String, environment: EnvironmentId, directory: PathUri },
    /// The configuration of the machine that an environment is on. Written by that machine's owner.
    Machine { environment: EnvironmentId },
}

impl DeclarationOrigin {
    /// The environment and the directory that it is bound to.
    fn place(&self) -> Option<(&EnvironmentId, &PathUri)> {
        match self {
            Self::Config | Self::Thread | Self::Machine { .. } => None,
            Self::Project { environment, directory } | Self::Plugin { environment, directory, .. } => Some((environment, directory)),
        }
    }

    /// In a few words, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Config => "config".into(),
            Self::Thread => "thread".into(),
            Self::Project { directory, .. } => format!("project {}", directory.to_syntax()),
            Self::Plugin { root, .. } => format!("plugin {root}"),
            Self::Machine { environment } => format!("environment {environment}"),
        }
    }
}

/// A server as it was declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDeclaration {
    pub name: String,
    pub origin: DeclarationOrigin,
    /// Where it runs, or where it is reached from.
    pub environment: EnvironmentId,
    pub transport: McpTransport,
    pub startup_timeout: Duration,
    pub tool_timeout: Duration,
    /// Only these tools are offered, if there is such a list.
    pub enabled_tools: Option<Vec<String>>,
    pub disabled_tools: Vec<String>,
    /// Without it a turn cannot be run.
    pub required: bool,
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum McpTransport {
    Stdio(Stdio),
    Http(HttpServer),
}

/// A process that speaks over its standard input and output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stdio {
    pub command: String,
    pub args: Vec<String>,
    /// Variables that it is given.
    pub env: BTreeMap<String, String>,
    /// Variables of the executor that it may see.
    pub env_vars: Vec<String>,
    pub cwd: Cwd,
}

/// Where a server is started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cwd {
    /// Where the thread works in that environment, or below that.
    Thread(Option<String>),
    Fixed(PathUri),
}

/// Why something is no declaration. The server that it is about is always named.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeclarationError {
    #[error("mcp_servers.{server}: {why}")]
    Malformed {
        server: String,
        #[source]
        why: SharedError,
    },
    #[error("`{0}` is not a name for an MCP server: it has 1 to 128 characters, none of them blank or a control character")]
    Name(String),
    #[error("mcp_servers.{server}: it needs either `command` (a program) or `url` (streamable HTTP)")]
    NoTransport { server: String },
    #[error("mcp_servers.{server}: `{one}` and `{other}` exclude each other")]
    Both { server: String, one: &'static str, other: &'static str },
    #[error("mcp_servers.{server}: the transport `{transport}` is not spoken; use `command`, or `url` with streamable HTTP")]
    Transport { server: String, transport: String },
    #[error("mcp_servers.{server}: `{url}` is not an http or https address")]
    Url { server: String, url: String },
    #[error("mcp_servers.{server}: `{key}` may not be set by a {origin}: {why}")]
    NotAllowed { server: String, key: &'static str, origin: &'static str, why: &'static str },
    #[error("mcp_servers.{server}: the directory `{cwd}` leaves `{directory}`")]
    Outside { server: String, cwd: String, directory: String },
    #[error(
        "mcp_servers.{server}: `{text}` holds `${{…}}`, which is not replaced; name the variable in `env_vars` or `bearer_token_env_var`"
    )]
    Placeholder { server: String, text: String },
    #[error(
        "mcp_servers.{server}: the value of {} was given by a client and is not kept in the thread; resume the thread with `mcp_servers` \
         that holds it, or name variables of the executor in `env_vars`, `env_http_headers` or `bearer_token_env_var`",
        .keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and of ")
    )]
    Withheld { server: String, keys: Vec<String> },
}

impl DeclarationError {
    /// The server that it is about.
    pub fn server(&self) -> &str {
        match self {
            Self::Name(server)
            | Self::Malformed { server, .. }
            | Self::NoTransport { server }
            | Self::Both { server, .. }
            | Self::Transport { server, .. }
            | Self::Url { server, .. }
            | Self::NotAllowed { server, .. }
            | Self::Outside { server, .. }
            | Self::Placeholder { server, .. }
            | Self::Withheld { server, .. } => server,
        }
    }
}

/// As it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    env_vars: Vec<WrittenVariable>,
    cwd: Option<String>,
    url: Option<String>,
    bearer_token_env_var: Option<String>,
    #[serde(alias = "headers")]
    http_headers: BTreeMap<String, String>,
    env_http_headers: BTreeMap<String, String>,
    environment_id: Option<String>,
    startup_timeout_sec: Option<f64>,
    tool_timeout_sec: Option<f64>,
    enabled_tools: Option<Vec<String>>,
    disabled_tools: Vec<String>,
    required: bool,
    enabled: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WrittenVariable {
    Name(String),
    Sourced { name: String, source: String },
}

pub(super) const KNOWN: [&str; 19] = [
    "type",
    "command",
    "args",
    "env",
    "env_vars",
    "cwd",
    "url",
    "bearer_token_env_var",
    "http_headers",
    "headers",
    "env_http_headers",
    "environment_id",
    "startup_timeout_sec",
    "tool_timeout_sec",
    "enabled_tools",
    "disabled_tools",
    "required",
    "enabled",
    "description",
];

/// How plugins name their own directory.
const PLUGIN_DIRECTORY: [&str; 2] = ["${PLUGIN_ROOT}", "${CLAUDE_PLUGIN_ROOT}"];

/// Reads an object like `.mcp.json`: the servers by name, below `mcpServers` or at the top. One that is wrong does not
/// spoil the others.
pub fn declarations(object: &Map<String, Value>, origin: &DeclarationOrigin, limits: &McpLimits) -> super::Declared {
    let servers = match object.get("mcpServers").or_else(|| object.get("mcp_servers")) {
        Some(Value::Object(servers)) => servers,
        _ => object,
    };
    servers.iter().map(|(name, value)| (name.clone(), declaration(name, value, origin, limits))).collect()
}

/// Reads one server.
pub fn declaration(
    name: &str,
    value: &Value,
    origin: &DeclarationOrigin,
    limits: &McpLimits,
) -> Result<ServerDeclaration, DeclarationError> {
    let length = name.chars().count();
    if length == 0 || length > 128 || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(DeclarationError::Name(name.to_owned()));
    }
    let server = || name.to_owned();
    let malformed = |why: SharedError| DeclarationError::Malformed { server: server(), why };
    let value = origin.expanded(value);
    let written = Written::deserialize(&value).map_err(|error| malformed(SharedError::new(error)))?;
    let environment = match (origin, written.environment_id.as_deref()) {
        (DeclarationOrigin::Machine { environment }, None | Some("local")) => environment.clone(),
        (DeclarationOrigin::Machine { .. }, Some(_)) => {
            return Err(origin.forbids(name, "environment_id", "a machine declares what is on it, and nothing elsewhere"));
        }
        (DeclarationOrigin::Project { .. } | DeclarationOrigin::Plugin { .. }, Some(_)) => {
            return Err(origin.forbids(name, "environment_id", "it runs where it lies"));
        }
        (DeclarationOrigin::Project { environment, .. } | DeclarationOrigin::Plugin { environment, .. }, None) => environment.clone(),
        (_, Some(id)) => {
            EnvironmentId::parse(id).map_err(|error| malformed(SharedError::worded(format!("environment_id: {error}"), error)))?
        }
        (_, None) => EnvironmentId::local(),
    };
    let seconds = |key: &str, value: Option<f64>, usual: Duration| match value {
        None => Ok(usual),
        Some(seconds) => match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() && seconds <= 86_400.0 => Ok(time),
            _ => Err(malformed(format!("`{key}` is a number of seconds above 0 and at most 86400, not {seconds}").into())),
        },
    };
    let startup_timeout = seconds("startup_timeout_sec", written.startup_timeout_sec, limits.startup_timeout)?;
    let tool_timeout = seconds("tool_timeout_sec", written.tool_timeout_sec, limits.tool_timeout)?;
    if written.required && origin.place().is_some() {
        return Err(origin.forbids(name, "required", "only the user decides what a turn cannot do without"));
    }
    let (enabled_tools, disabled_tools) = (written.enabled_tools.clone(), written.disabled_tools.clone());
    // What another machine cannot do without is no reason to stop a turn here.
    let required = written.required && !matches!(origin, DeclarationOrigin::Machine { .. });
    let enabled = written.enabled.unwrap_or(true);
    let transport = origin.transport(name, written)?;
    Ok(ServerDeclaration {
        name: server(),
        origin: origin.clone(),
        environment,
        transport,
        startup_timeout,
        tool_timeout,
        enabled_tools,
        disabled_tools,
        required,
        enabled,
    })
}

impl DeclarationOrigin {
    fn kind(&self) -> &'static str {
        match self {
            Self::Config => "configuration",
            Self::Thread => "thread",
            Self::Project { .. } => "project",
            Self::Plugin { .. } => "plugin",
            Self::Machine { .. } => "machine",
        }
    }

    fn forbids(&self, server: &str, key: &'static str, why: &'static str) -> DeclarationError {
        DeclarationError::NotAllowed { server: server.to_owned(), key, origin: self.kind(), why }
    }

    /// A plugin may name its own directory.
    fn expanded(&self, value: &Value) -> Value {
        let Self::Plugin { directory, .. } = self else { return value.clone() };
        let directory = directory.to_syntax();
        replaced(value, &|text| PLUGIN_DIRECTORY.iter().fold(text.to_owned(), |text, name| text.replace(name, &directory)))
    }

    fn transport(&self, name: &str, written: Written) -> Result<McpTransport, DeclarationError> {
        let server = || name.to_owned();
        match written.kind.as_deref() {
            None | Some("stdio" | "http" | "streamable-http" | "streamable_http" | "streamableHttp") => {}
            Some(other) => return Err(DeclarationError::Transport { server: server(), transport: other.to_owned() }),
        }
        let has_headers = !written.http_headers.is_empty() || !written.env_http_headers.is_empty();
        match (&written.command, &written.url) {
            (None, None) => Err(DeclarationError::NoTransport { server: server() }),
            (Some(_), Some(_)) => Err(DeclarationError::Both { server: server(), one: "command", other: "url" }),
            (Some(_), None) if written.bearer_token_env_var.is_some() => {
                Err(DeclarationError::Both { server: server(), one: "command", other: "bearer_token_env_var" })
            }
            (Some(_), None) if has_headers => Err(DeclarationError::Both { server: server(), one: "command", other: "http_headers" }),
            (Some(command), None) => {
                let command = command.clone();
                Ok(McpTransport::Stdio(self.stdio(name, command, written)?))
            }
            (None, Some(_)) if !written.args.is_empty() => Err(DeclarationError::Both { server: server(), one: "url", other: "args" }),
            (None, Some(url)) => {
                let url = url.clone();
                Ok(McpTransport::Http(self.http(name, url, written)?))
            }
        }
    }

    fn stdio(&self, name: &str, command: String, written: Written) -> Result<Stdio, DeclarationError> {
        let server = || name.to_owned();
        let malformed = |why: SharedError| DeclarationError::Malformed { server: server(), why };
        if command.trim().is_empty() {
            return Err(malformed("`command` is empty".into()));
        }
        let texts = [&command].into_iter().chain(&written.args).chain(written.env.values());
        self.check_texts(name, texts.map(String::as_str))?;
        let mut env_vars = Vec::new();
        for variable in written.env_vars {
            let (variable, source) = match variable {
                WrittenVariable::Name(variable) => (variable, None),
                WrittenVariable::Sourced { name, source } => (name, Some(source)),
            };
            match source.as_deref() {
                None | Some("remote") => {}
                // A variable of this machine would travel to another one.
                Some("local") => {
                    let why = "variables are read where the server runs; use `env`, or set it there";
                    return Err(self.forbids(name, "env_vars with source = \"local\"", why));
                }
                Some(other) => return Err(malformed(format!("env_vars: the source `{other}` is not known").into())),
            }
            if !is_variable(&variable) {
                return Err(malformed(format!("env_vars: `{variable}` is not a variable name").into()));
            }
            env_vars.push(variable);
        }
        if !env_vars.is_empty() && matches!(self, Self::Project { .. }) {
            return Err(self.forbids(
                name,
                "env_vars",
                "variables of a machine are its owner's to give away; declare the server in config.toml",
            ));
        }
        if let Some(variable) = written.env.keys().find(|variable| !is_variable(variable)) {
            return Err(malformed(format!("env: `{variable}` is not a variable name").into()));
        }
        let cwd = match self.place() {
            Some((_, directory)) => Cwd::Fixed(inside(name, directory, written.cwd.as_deref())?),
            None => match written.cwd {
                Some(cwd) if cwd.starts_with('~') => {
                    return Err(malformed(format!("cwd: `{cwd}` must be absolute, or relative to where the thread works").into()));
                }
                Some(cwd) => PathUri::from_syntax(&cwd).map_or_else(|_| Cwd::Thread(Some(cwd)), Cwd::Fixed),
                None => Cwd::Thread(None),
            },
        };
        Ok(Stdio { command, args: written.args, env: written.env, env_vars, cwd })
    }

    fn http(&self, name: &str, url: String, written: Written) -> Result<HttpServer, DeclarationError> {
        let server = || name.to_owned();
        let malformed = |why: SharedError| DeclarationError::Malformed { server: server(), why };
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) || url.parse::<http::Uri>().is_err() {
            return Err(DeclarationError::Url { server: server(), url });
        }
        self.check_texts(name, [url.as_str()].into_iter().chain(written.http_headers.values().map(String::as_str)))?;
        for header in written.http_headers.keys().chain(written.env_http_headers.keys()) {
            let known = http::HeaderName::from_bytes(header.as_bytes())
                .map_err(|_| malformed(format!("`{header}` is not a header name").into()))?;
            if ["accept", "content-type", "mcp-session-id", "mcp-protocol-version", "last-event-id"].contains(&known.as_str()) {
                return Err(malformed(format!("the header `{header}` belongs to the protocol").into()));
            }
        }
        for variable in written.env_http_headers.values().chain(&written.bearer_token_env_var) {
            if !is_variable(variable) {
                return Err(malformed(format!("`{variable}` is not a variable name").into()));
            }
        }
        let why = "a variable of a machine would be sent to an address that its owner did not choose";
        if !written.env_http_headers.is_empty() && self.place().is_some() {
            return Err(self.forbids(name, "env_http_headers", why));
        }
        if written.bearer_token_env_var.is_some() && matches!(self, Self::Project { .. }) {
            return Err(self.forbids(name, "bearer_token_env_var", why));
        }
        Ok(HttpServer {
            url,
            bearer_token_env_var: written.bearer_token_env_var,
            headers: written.http_headers,
            env_headers: written.env_http_headers,
        })
    }

    /// Other programs replace `${…}` by variables of their machine. What looks like that would not mean what it says.
    fn check_texts<'a>(&self, name: &str, mut texts: impl Iterator<Item = &'a str>) -> Result<(), DeclarationError> {
        match texts.find(|text| text.contains("${")) {
            Some(text) if self.place().is_some() => Err(DeclarationError::Placeholder { server: name.to_owned(), text: text.to_owned() }),
            _ => Ok(()),
        }
    }
}

/// A directory that must not leave another one.
fn inside(server: &str, directory: &PathUri, cwd: Option<&str>) -> Result<PathUri, DeclarationError> {
    let Some(cwd) = cwd.filter(|cwd| !cwd.is_empty()) else { return Ok(directory.clone()) };
    let whole = PathUri::from_syntax(cwd).unwrap_or_else(|_| directory.join(cwd));
    let climbs = cwd.split(['/', '\\']).any(|part| part == "..");
    if !climbs && whole.is_within(directory) {
        return Ok(whole);
    }
    Err(DeclarationError::Outside { server: server.to_owned(), cwd: cwd.to_owned(), directory: directory.to_syntax() })
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !name.chars().any(char::is_whitespace)
}

fn replaced(value: &Value, replace: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(replace(text)),
        Value::Array(values) => values.iter().map(|value| replaced(value, replace)).collect(),
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), replaced(value, replace))).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
#[path = "declaration/tests.rs"]
mod tests;
