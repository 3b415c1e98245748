//! What can be written into `config.toml`: the one list from which unknown keys are told and the page about them is made.

use std::fmt::Write;

use toml::{Table, Value};

/// A key, as people read about it.
pub(crate) struct ConfigKey {
    /// With dots; `NAME` stands for a name of the user's.
    pub name: &'static str,
    /// A value in TOML.
    pub example: &'static str,
    /// What holds without it.
    pub default: &'static str,
    pub what: &'static str,
}

const fn key(name: &'static str, example: &'static str, default: &'static str, what: &'static str) -> ConfigKey {
    ConfigKey { name, example, default, what }
}

pub(crate) const KEYS: &[ConfigKey] = &[
    key(
        "model",
        r#""gpt-5""#,
        "the provider's own",
        "The model of threads that choose none. `openai`: `gpt-5`, `anthropic`: `claude-sonnet-4-5`, `ollama`: `qwen3`; a provider of your own has none, so name one.",
    ),
    key(
        "model_provider",
        r#""ollama""#,
        "`openai` or `anthropic`, whose key is set first, else `offline`",
        "`openai`, `anthropic`, `ollama`, `offline`, or a table of `model_providers`.",
    ),
    key("model_providers.NAME.name", r#""The box""#, "empty", "The provider's name, for people."),
    key("model_providers.NAME.base_url", r#""http://10.0.0.7:8000/v1""#, "required", "Where its API is."),
    key(
        "model_providers.NAME.wire_api",
        r#""chat""#,
        "`responses`",
        "`responses` (OpenAI Responses), `chat` (Chat Completions), `anthropic` (Anthropic Messages) or `offline`.",
    ),
    key("model_providers.NAME.env_key", r#""BOX_KEY""#, "no key is sent", "The variable that holds the key."),
    key("model_providers.NAME.http_headers", r#"{ x-team = "a" }"#, "none", "More headers."),
    key("model_providers.NAME.env_http_headers", r#"{ x-secret = "BOX_SECRET" }"#, "none", "Headers whose values are in variables."),
    key("model_providers.NAME.query_params", r#"{ version = "2" }"#, "none", "What is added to its address."),
    key("model_providers.NAME.request_max_retries", "4", "`4`", "How often a request that failed in passing is made again."),
    key("model_providers.NAME.stream_max_retries", "5", "`5`", "The same for an answer that broke off."),
    key(
        "model_providers.NAME.stream_idle_timeout_ms",
        "300000",
        "`300000`",
        "Silence for so long, or a line that does not end in it, is a failure.",
    ),
    key(
        "model_providers.NAME.quirks",
        r#"["text_calls"]"#,
        "none",
        "In what the server differs from its wire: `text_calls`, `bearer_key`, `no_parallel_calls`, `no_stream_options`, `no_cache_control`, `echo_reasoning`. See [models.md](models.md#quirks).",
    ),
    key(
        "models.NAME.context_window",
        "32768",
        "the built-in table's",
        "The context window of a model, in tokens. See [models.md](models.md#the-table-of-models).",
    ),
    key("models.NAME.max_output_tokens", "8192", "the built-in table's", "The most tokens of one answer, on the wire that must be told."),
    key("models.NAME.vision", "false", "the built-in table's", "Whether the model is shown images."),
    key(
        "models.NAME.image_generation",
        "true",
        "`false`",
        "Whether the model is asked to make images, too ([models.md](models.md#images)).",
    ),
    key("models.NAME.parallel_calls", "false", "the built-in table's", "Whether one answer may hold several calls."),
    key("models.NAME.efforts", r#"["low", "high"]"#, "the built-in table's", "The levels of effort that it has."),
    key(
        "models.NAME.thinking",
        r#""adaptive""#,
        "the built-in table's",
        "How the Anthropic wire asks it to think: `none`, `budget` (a number of tokens) or `adaptive` (a level).",
    ),
    key(
        "models.NAME.price",
        "{ input = 2.0, cached_input = 0.2, cache_write = 2.5, output = 10.0 }",
        "the built-in list's",
        "Dollars for a million tokens; `cached_input` and `cache_write` may be left out. `/status` of `outpost chat` shows what a thread has cost.",
    ),
    key("model_context_window", "200000", "the table's, or `128000`", "The context window of all models, in tokens."),
    key("model_context_windows.NAME", "32768", "`model_context_window`", "The context window of one model."),
    key(
        "service_tier",
        r#""flex""#,
        "the provider's own",
        "How soon and at which price the provider answers: the word of its API, sent on all three wires.",
    ),
    key("model_reasoning_effort", r#""high""#, "the model's own", "How long a model that reasons may do so."),
    key("openai_base_url", r#""https://gateway.example.org/v1""#, "OpenAI's own", "Where the built-in provider `openai` is."),
    key(
        "approval_policy",
        r#""on-request""#,
        "`on-request`; `never` for `outpost exec`",
        "When you are asked: `untrusted`, `on-request` or `never`. See [agent.md](agent.md#what-may-run).",
    ),
    key(
        "sandbox_mode",
        r#""workspace-write""#,
        "`workspace-write`",
        "`read-only`, `workspace-write` or `danger-full-access`. See [sandbox.md](sandbox.md).",
    ),
    key(
        "sandbox_minimum",
        r#""mounts""#,
        "`landlock`: a sandbox that holds most, and tells what it does not, is not switched off as one that refuses everything is",
        "The lowest level of a sandbox in which this machine runs anything: `landlock`, `mounts` or `full`. See [sandbox.md](sandbox.md#levels).",
    ),
    key(
        "sandbox_home.directories",
        r#"[".mytool", "~/work/cache"]"#,
        "caches and settings of well-known tools",
        "More directories of the home that commands in a sandbox may write: into a layer of the workspace, never into the home. See [sandbox.md](sandbox.md#the-home).",
    ),
    key("sandbox_home.read_only", r#"[".cargo"]"#, "none", "Directories of the home that are not written into the layer."),
    key(
        "sandbox_home.hide",
        r#"[".config/mytool/token"]"#,
        "well-known keys and tokens",
        "More files and directories of the home that commands in a sandbox do not see.",
    ),
    key(
        "sandbox_home.show",
        r#"[".kube"]"#,
        "none",
        "Files and directories of the home that are seen as they are, although they hold keys or tokens.",
    ),
    key(
        "git",
        r#""read-only""#,
        "`commit`: where the sandbox has mounts of its own, commands work in a private copy of `.git`, and what they commit is carried over",
        "What sandboxed commands may do with repositories of this machine: `commit`, `read-only` or `full` (unprotected). See [sandbox.md](sandbox.md#git).",
    ),
    key("sandbox_workspace_write.writable_roots", r#"["/srv/cache"]"#, "none", "What may be written besides the workspace and `/tmp`."),
    key("sandbox_workspace_write.network_access", "true", "`false`", "Whether commands may use the network."),
    key("mcp_servers.NAME.command", r#""node""#, "`url` instead", "The program of an MCP server. See [mcp.md](mcp.md)."),
    key("mcp_servers.NAME.args", r#"["server.js"]"#, "none", "Its arguments."),
    key("mcp_servers.NAME.env", r#"{ LEVEL = "3" }"#, "none", "Variables that it is given."),
    key("mcp_servers.NAME.env_vars", r#"["FILES_TOKEN"]"#, "none", "Variables of the machine where it runs that it may see."),
    key("mcp_servers.NAME.cwd", r#""tools""#, "where the thread works", "Where it starts: absolute, or below where the thread works."),
    key(
        "mcp_servers.NAME.url",
        r#""https://tickets.example.org/mcp""#,
        "`command` instead",
        "The address of a server that speaks streamable HTTP.",
    ),
    key(
        "mcp_servers.NAME.bearer_token_env_var",
        r#""TICKETS_TOKEN""#,
        "no token is sent",
        "The variable of the executor that holds the token.",
    ),
    key("mcp_servers.NAME.http_headers", r#"{ x-team = "a" }"#, "none", "More headers."),
    key("mcp_servers.NAME.env_http_headers", r#"{ x-key = "TEAM_KEY" }"#, "none", "Headers whose values are in variables of the executor."),
    key("mcp_servers.NAME.environment_id", r#""box""#, "`local`", "The environment where it runs, or from which it is reached."),
    key("mcp_servers.NAME.startup_timeout_sec", "10", "`30`", "How long it may take to start."),
    key("mcp_servers.NAME.tool_timeout_sec", "60", "`300`", "How long a call may take."),
    key("mcp_servers.NAME.enabled_tools", r#"["read"]"#, "all", "Only these tools are offered."),
    key("mcp_servers.NAME.disabled_tools", r#"["write"]"#, "none", "These tools are not."),
    key("mcp_servers.NAME.required", "true", "`false`", "Whether no turn is run without it."),
    key("mcp_servers.NAME.enabled", "false", "`true`", "Whether it is used at all."),
    key(
        "skills.config",
        r#"[{ name = "release-notes", enabled = false }]"#,
        "none",
        "Skills that are not wanted, by `name`, or by the `path` of their file on this machine. See [skills.md](skills.md).",
    ),
    key(
        "notify",
        r#"["notify-send", "outpost"]"#,
        "nothing is started",
        "A command of yours that is started when a turn ends, fails or, where it can be answered, asks: by the program that drives the thread, be it `exec`, `chat`, `serve`, `app-server` or the process in the background. A JSON object with `type`, `thread_id` and `message` is its last argument. See [exec.md](exec.md#notifications).",
    ),
    key(
        "notify.url",
        r#""https://chat.example.org/hooks/outpost""#,
        "none",
        "In the place of a command: the same JSON object is posted here, signed with HMAC-SHA256. `notify` is then a table.",
    ),
    key("notify.secret_env", r#""OUTPOST_HOOK_SECRET""#, "none", "The variable that holds the secret for the signature."),
    key("notify.secret_file", r#""/home/me/.outpost/hook.secret""#, "none", "The file that holds it, if no variable does."),
    key(
        "client.server",
        r#""wss://hub.example.org""#,
        "this home",
        "The running `outpost serve` whose threads and environments `env list`, `exec`, `chat` and `thread` work with; `--server URL` says it for one call, `-c client.server=` turns it off.",
    ),
    key(
        "client.token_file",
        r#""/home/me/.outpost/tokens/hub""#,
        "`OUTPOST_TOKEN`",
        "The file that holds the token for it, which `outpost token create --client` made there.",
    ),
    key(
        "client.patience",
        "60",
        "600",
        "How long a lost connection to it is tried to get back, in seconds; then the program ends, and the thread goes on there.",
    ),
    key(
        "store",
        r#""postgres://outpost@db.example.org/outpost""#,
        "`local`",
        "Where threads are: `local`, `memory` or an address of Postgres. See [postgres.md](postgres.md).",
    ),
    key("postgres.connections", "16", "`8`", "How many connections to the database a program has at most."),
    key(
        "postgres.lease_seconds",
        "10",
        "`6`",
        "After so long without a sign of life a program's threads are free; the same on every node.",
    ),
    key(
        "postgres.statement_seconds",
        "30",
        "`10`",
        "How long the database may work on one statement. A connection that is silent for two seconds longer is closed.",
    ),
    key(
        "durability",
        r#""effect""#,
        "`effect`",
        "`effect` syncs before what must not run twice and before a turn is told as completed, `turn` only the latter, `stored` never.",
    ),
    key("budgets.turn_tokens", "200000", "`50000000`", "What one turn may use, in tokens. Of all budgets: `0` means no limit."),
    key("budgets.turn_steps", "100", "`500`", "How often the model may be asked in one turn."),
    key("budgets.thread_tokens", "2000000", "no limit", "What a thread may use."),
    key("budgets.tree_tokens", "5000000", "no limit", "What a thread and all its agents may use."),
    key("budgets.turn_seconds", "3600", "no limit", "How long a turn may take."),
    key("budgets.woken_turns", "10", "`50`", "How many turns in a row ends of commands (`wake`) may begin, without a word of yours."),
    key("agents.max_threads", "3", "`6`", "Agents of one thread, with theirs, that may work at the same time."),
    key("agents.max_depth", "2", "`1`", "How deep agents may make agents: with `1` only the thread itself makes some."),
    key(
        "limits.processes",
        "512",
        "`2048`, or half of what the machine allows",
        "Processes and threads of a session on this machine. Of all limits: a number, with `K`, `M`, `G` or `T` for bytes, or `\"none\"`; \
         `--limit` of `outpost executor` counts before them. See [sandbox.md](sandbox.md#limits).",
    ),
    key("limits.memory", r#""8G""#, "half of the machine", "Memory of a session."),
    key("limits.open_files", "1024", "`65536`", "Open files of one process."),
    key("limits.file_size", r#""1G""#, "`\"32G\"`", "The size of one file."),
    key("limits.free_space", r#""2G""#, "`\"256M\"`", "What stays free where a session writes."),
    key(
        "limits.home_layer",
        r#""2G""#,
        "`\"8G\"`",
        "A workspace's [layer over the home](sandbox.md#the-home). One that is larger is emptied.",
    ),
    key("limits.cpu_seconds", "600", "no limit", "Processor time of one process."),
    key(
        "limits.required",
        "true",
        "`false`",
        "Whether nothing is started where no control group holds the limits of processes and memory for a session as a whole.",
    ),
    key(
        "http_allow",
        r#"["loopback", "10.0.0.0/8"]"#,
        "none",
        "What MCP servers behind HTTP, and other requests of the executor of this home, may be at besides public addresses; `--http-allow` of `outpost executor` counts before it. See [executor.md](executor.md#what-httprequest-reaches).",
    ),
    key(
        "serve.listen",
        r#""ws://10.0.0.5:7000""#,
        "`ws://127.0.0.1:7633`",
        "Where `outpost serve` listens. Its flags count before this table. See [serve.md](serve.md).",
    ),
    key(
        "serve.tls_cert",
        r#""tls/chain.pem""#,
        "no TLS",
        "Its certificate and those that lead to one that clients trust; relative to the home.",
    ),
    key("serve.tls_key", r#""tls/key.pem""#, "no TLS", "The key of the certificate."),
    key("serve.behind_proxy", "true", "`false`", "Whether a proxy in front of it speaks TLS."),
    key(
        "serve.advertise",
        r#""wss://node-a.example.org""#,
        "where it listens, if that is loopback",
        "Where other servers of the same database reach this one. See [cluster.md](cluster.md).",
    ),
    key("serve.node", r#""node-a""#, "the host's name", "What it is called among them."),
    key("serve.allow_host", r#"["hub.example.org"]"#, "none", "Names by which it may be called, besides its address."),
    key("serve.allow_origin", r#"["https://example.org"]"#, "none", "Origins whose pages may connect."),
];

/// Whether a key, with dots, has an effect, or one below it has.
pub(crate) fn is_known(key: &str) -> bool {
    let path: Vec<&str> = key.split('.').collect();
    let is_below = (1..path.len()).any(|length| matches!(standing(&path[..length]), Standing::Key));
    path.first() == Some(&"mcp_servers") || is_below || !matches!(standing(&path), Standing::Unknown)
}

/// The keys of a file that have no effect, with dots.
pub(crate) fn unknown(table: &Table) -> Vec<String> {
    let mut unknown = Vec::new();
    collect(table, &mut Vec::new(), &mut unknown);
    unknown
}

fn collect<'a>(table: &'a Table, path: &mut Vec<&'a str>, unknown: &mut Vec<String>) {
    for (name, value) in table {
        path.push(name);
        // What is in a server's own table is reported by the code that reads it.
        if path.first() != Some(&"mcp_servers") {
            match (standing(path), value) {
                (Standing::Key, _) => below(path, value, unknown),
                (Standing::Table, Value::Table(inner)) => collect(inner, path, unknown),
                (Standing::Table, _) => {} // A wrong type is an error of its own.
                (Standing::Unknown, _) => unknown.push(path.join(".")),
            }
        }
        path.pop();
    }
}

/// The keys of values that are tables themselves, or lists of them.
const BELOW: [(&str, &[&str]); 3] = [
    ("approval_policy", &["granular"]),
    ("approval_policy.granular", &["sandbox_approval", "rules", "mcp_elicitations", "request_permissions", "skill_approval"]),
    ("skills.config", &["name", "path", "enabled"]),
];

/// What is not known below a key.
fn below(path: &[&str], value: &Value, unknown: &mut Vec<String>) {
    let name = path.join(".");
    let Some((_, known)) = BELOW.iter().find(|(key, _)| *key == name) else { return };
    let tables = match value {
        Value::Table(table) => vec![table],
        Value::Array(items) => items.iter().filter_map(Value::as_table).collect(),
        _ => vec![],
    };
    for (key, inner) in tables.into_iter().flatten() {
        if known.contains(&key.as_str()) {
            below(&[path, &[key.as_str()]].concat(), inner, unknown);
        } else {
            unknown.push(format!("{name}.{key}"));
        }
    }
}

enum Standing {
    Key,
    /// There are keys below it.
    Table,
    Unknown,
}

fn standing(path: &[&str]) -> Standing {
    let begins = |key: &&ConfigKey| {
        let mut parts = key.name.split('.');
        path.iter().all(|name| parts.next().is_some_and(|part| part == "NAME" || part == *name))
    };
    let found: Vec<usize> = KEYS.iter().filter(begins).map(|key| key.name.split('.').count()).collect();
    match found.as_slice() {
        [] => Standing::Unknown,
        lengths if lengths.contains(&path.len()) => Standing::Key,
        _ => Standing::Table,
    }
}

/// The page about all keys.
pub fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         A whole `config.toml` for a model of your own, with a sandbox that may use the network:\n\n\
         ```toml\n\
         model_provider = \"box\"\n\
         model = \"qwen3-coder\"\n\
         approval_policy = \"on-request\"\n\n\
         [model_providers.box]\n\
         base_url = \"http://10.0.0.7:8000/v1\"\n\
         wire_api = \"chat\"\n\
         env_key = \"BOX_KEY\"\n\n\
         [sandbox_workspace_write]\n\
         network_access = true\n\
         ```\n\n\
         `config.toml` lies in the home (`OUTPOST_HOME`, by default `~/.outpost`). `-c KEY=VALUE` on the command line is put over it, with the same keys. `outpost config show`, `get KEY`, `set KEY VALUE` and `path` \
         read and change it; what else is in the file stays as it is. A \
         key that is not known is told and has no effect; a value that makes no sense is an error that names it.\n\n\
         Environments have a file of their own, [environments.toml](environments.md#environmentstoml), and so have rules about commands, \
         [rules.toml](agent.md#what-may-run). What an administrator requires is in [requirements.toml](mcp.md#what-an-administrator-requires).\n\n\
         This page is made by `cargo xtask docs`.\n\n\
         | key | example | without it | what it is |\n|---|---|---|---|\n",
    );
    for ConfigKey { name, example, default, what } in KEYS {
        let _ = writeln!(page, "| `{name}` | `{example}` | {default} | {what} |");
    }
    page.push_str(
        "\n## Variables\n\n\
         | variable | what it is |\n|---|---|\n\
         | `OUTPOST_HOME` | the home |\n\
         | `OUTPOST_EXEC_SERVER_URL` | the one environment, by its address; `none` switches all of them off for agents, whatever files and clients say. `run`, `shell` and `cp` \
         without `-e` still work on this machine: they act as you |\n\
         | `CODEX_EXEC_SERVER_URL` | the same, where `OUTPOST_EXEC_SERVER_URL` says nothing |\n\
         | `OUTPOST_TOKEN` | the token for an address that is given on the command line |\n\
         | `OUTPOST_LOG` | what is logged, in the syntax of `RUST_LOG` |\n\
         | `SSL_CERT_FILE` | certificates of authorities that are trusted instead of the machine's own |\n\
         | `NO_COLOR` | no colours |\n\
         | `OPENAI_API_KEY`, `CODEX_API_KEY` | the key of the built-in provider `openai` |\n\
         | `ANTHROPIC_API_KEY`, `ANTHROPIC_AUTH_TOKEN` | the key of the built-in provider `anthropic`, or the token that goes into `Authorization` in its place |\n\
         | `ANTHROPIC_BASE_URL` | where that provider is |\n\
         | `OPENAI_BASE_URL` | where that provider is; `openai_base_url` counts before it |\n\
         | `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies for requests to models |\n\n\
         Commands of agents find `OUTPOST_THREAD_ID`, `OUTPOST_ENVIRONMENT_ID`, `OUTPOST_AGENT=1`, `NO_COLOR=1`, `TERM=dumb`, `PAGER=cat` and `GIT_PAGER=cat`, and the executor's own \
         variables except those that look like secrets, `OUTPOST_*` and the keys of model providers.\n\n\
         ## Questions one by one\n\n\
         `approval_policy = { granular = { … } }` is `on-request` with kinds of questions switched off; what would be asked is refused then. Each is `true` unless you say otherwise.\n\n\
         | key of `granular` | the question |\n|---|---|\n\
         | `sandbox_approval` | may a command leave the sandbox, or have more than it |\n\
         | `rules` | a rule of rules.toml asks for it |\n\
         | `mcp_elicitations` | an MCP server asks something |\n\
         | `request_permissions` | the model asks for a path or the network |\n\
         | `skill_approval` | taken for the sake of other clients, without effect: skills ask nothing |\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::{self, Deserializer, Visitor};

    use super::*;
    use crate::Config;

    /// Reads nothing, but learns which keys would be read.
    struct Fields<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom("only a struct has fields"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            Err(de::Error::custom("read"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
            tuple_struct map enum identifier ignored_any
        }
    }

    #[test]
    fn every_key_that_is_read_is_on_the_page() {
        let mut fields: &[&str] = &[];
        assert!(Config::deserialize(Fields(&mut fields)).is_err());
        assert!(fields.len() > 10);
        let missing: Vec<_> = fields.iter().filter(|field| matches!(standing(&[*field]), Standing::Unknown)).collect();
        assert!(missing.is_empty(), "{missing:?} can be written into config.toml, but the page does not say so");
        let idle: Vec<_> = KEYS.iter().map(|key| key.name).filter(|name| !fields.contains(&name.split('.').next().unwrap())).collect();
        assert!(idle.is_empty(), "{idle:?} are on the page, but no code reads them");
    }

    #[test]
    fn keys_without_effect_are_found_at_every_depth() {
        let text = "modle = 1\n[limits]\nmemroy = \"1G\"\nmemory = 5\n[model_providers.box]\nbase_url = \"x\"\nwire = 1\nhttp_headers = { a = \"b\" }\n\
                    [serve.tls]\nkey = 1\n[mcp_servers.x]\nanything = 1\n[model_context_windows]\n\"qwen3:8b\" = 1";
        assert_eq!(unknown(&text.parse().unwrap()), ["limits.memroy", "model_providers.box.wire", "modle", "serve.tls"]);
    }

    #[test]
    fn keys_without_effect_are_found_below_values_that_are_tables() {
        let text = "approval_policy = { granular = { rules = false, rulez = true }, other = 1 }\n\
                    [[skills.config]]\nname = \"a\"\nenabled = false\n[[skills.config]]\nname = \"b\"\nenable = false";
        let found = unknown(&text.parse().unwrap());
        assert_eq!(found, ["approval_policy.granular.rulez", "approval_policy.other", "skills.config.enable"]);
    }

    #[test]
    fn every_example_is_valid() {
        for key in KEYS {
            Config::read(None, &[format!("{}={}", key.name, key.example)]).unwrap_or_else(|error| panic!("{}: {error:#}", key.name));
        }
    }
}
