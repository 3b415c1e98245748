//! `config.toml`: every key, how it is read with `-c KEY=VALUE` over it, and what it means to the crates that it configures.
//!
//! It must not know arguments, terminals, or where the file is.

mod home;
pub mod limits;
mod reference;
mod serve;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use outpost_executor::{GitMode, HttpTarget};
use outpost_runtime::agents::AgentLimits;
use outpost_runtime::config::Budgets;
use outpost_runtime::model::{ModelOverrides, Provider};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::skills::choice::SkillChoice;
use outpost_sandbox::Level;
use outpost_wire::SharedError;
use outpost_wire::secret_names::hide_secrets;
use serde::{Deserialize, Deserializer, de};
use thiserror::Error;
use toml::{Table, Value};

pub use self::home::HomeTable;
use self::limits::LimitTable;
pub use self::reference::page;
pub use self::serve::ServeTable;

/// Everything that a user can set. Keys that are not known are told and ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub model: Option<String>,
    pub model_provider: Option<String>,
    pub model_providers: BTreeMap<String, Provider>,
    /// Context windows by model, in tokens.
    pub model_context_windows: BTreeMap<String, u64>,
    pub model_context_window: Option<u64>,
    /// What is known of models, in the place of the built-in table.
    pub models: BTreeMap<String, ModelOverrides>,
    pub model_reasoning_effort: Option<String>,
    pub service_tier: Option<String>,
    /// Where the built-in provider `openai` is.
    pub openai_base_url: Option<String>,
    pub approval_policy: Option<ApprovalPolicy>,
    pub sandbox_mode: Option<String>,
    pub sandbox_workspace_write: WorkspaceWrite,
    /// Sandboxes that hold less are refused on this machine.
    #[serde(deserialize_with = "level")]
    pub sandbox_minimum: Level,
    pub sandbox_home: HomeTable,
    /// What sandboxed code may do with the repositories of this machine.
    #[serde(deserialize_with = "git")]
    pub git: GitMode,
    pub store: Option<String>,
    /// A command or a webhook that hears when a turn ends, fails or asks.
    pub notify: NotifySetting,
    pub durability: Option<DurabilitySetting>,
    pub budgets: Budgets,
    pub agents: AgentLimits,
    pub limits: LimitTable,
    /// What HTTP requests of the executor of this home may reach besides public addresses.
    #[serde(deserialize_with = "targets")]
    pub http_allow: Vec<HttpTarget>,
    pub serve: ServeTable,
    /// How a store in Postgres is used.
    pub postgres: PostgresTable,
    pub client: ClientTable,
    pub skills: SkillTable,
    /// Everything, as it was written, for those who want to see it.
    #[serde(skip)]
    written: Table,
    /// MCP servers by name, as they are written.
    pub mcp_servers: Option<serde_json::Value>,
    #[serde(skip)]
    from: From,
}

fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Level, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

fn git<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GitMode, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// As `--http-allow` takes them.
fn targets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<HttpTarget>, D::Error> {
    Vec::<String>::deserialize(deserializer)?.iter().map(|target| target.parse().map_err(de::Error::custom)).collect()
}

/// Where a configuration came from, so that it can be read again.
#[derive(Debug, Clone, Default)]
struct From {
    file: Option<PathBuf>,
    overrides: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WorkspaceWrite {
    pub writable_roots: Vec<String>,
    pub network_access: bool,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct PostgresTable {
    pub connections: Option<NonZeroUsize>,
    pub lease_seconds: Option<NonZeroU32>,
    pub statement_seconds: Option<NonZeroU32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SkillTable {
    pub config: Vec<SkillChoice>,
}

/// What hears of turns: a command and its arguments, or an address.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "`notify` is a command as a list of words, or a table with `url` and a secret")]
pub enum NotifySetting {
    Command(Vec<String>),
    Webhook(WebhookTable),
}

impl Default for NotifySetting {
    fn default() -> Self {
        Self::Command(Vec::new())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct WebhookTable {
    pub url: String,
    /// The variable that holds the secret with which messages are signed.
    pub secret_env: Option<String>,
    /// The file that holds it.
    pub secret_file: Option<PathBuf>,
}

/// A server whose threads and environments are worked with instead of those of this home.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ClientTable {
    pub server: Option<String>,
    pub token_file: Option<PathBuf>,
    /// Seconds.
    pub patience: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilitySetting {
    Effect,
    Turn,
    Stored,
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("{} cannot be read", file.display())]
    Unreadable {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}:{line}: {message}", file.display())]
    Line { file: PathBuf, line: usize, message: String },
    /// The place is the file, or the setting that was given by hand.
    #[error("{place}: `{key}`: {message}; docs/configuration.md shows an example of every key")]
    Value { place: String, key: String, message: String },
    #[error("`{0}`: a setting is written key=value")]
    NoSetting(String),
    #[error("`{0}`: a setting needs a key")]
    NoKey(String),
    #[error("`{setting}`: `{key}` is not a table")]
    NoTable { setting: String, key: String },
    #[error("sandbox_mode is one of read-only, workspace-write and danger-full-access, not `{0}`")]
    SandboxMode(String),
    #[error("sandbox_workspace_write.writable_roots: `{0}` is not an absolute path; `~` and relative paths are not understood there")]
    RelativeRoot(String),
}

/// A key that is set and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// With dots.
    pub key: String,
    /// The file, or the setting that was given by hand.
    pub place: String,
}

impl Config {
    /// Reads the file, if there is one, and puts `key=value` over it.
    pub fn read(file: Option<&Path>, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut table = match file.map(std::fs::read_to_string) {
            Some(Ok(text)) => text.parse::<Table>().map_err(|error| wrong_line(file.unwrap_or(Path::new("")), &text, &error))?,
            // A home that cannot be used is reported by the code that needs it.
            Some(Err(error)) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(ConfigError::Unreadable { file: file.unwrap_or(Path::new("")).to_path_buf(), source: error });
            }
            _ => Table::new(),
        };
        for setting in overrides {
            put(&mut table, setting)?;
        }
        let mut config: Self = Value::Table(table.clone()).try_into().map_err(|error| wrong_value(file, overrides, &error))?;
        config.written = table;
        config.from = From { file: file.map(Path::to_path_buf), overrides: overrides.to_vec() };
        Ok(config)
    }

    /// What is set and has no effect.
    pub fn unknown(&self) -> Vec<UnknownKey> {
        let told = |key: String| {
            let given = self.from.overrides.iter().find(|setting| sets(setting, &key));
            UnknownKey { place: given.map_or_else(|| "config.toml".to_owned(), |setting| format!("-c {setting}")), key }
        };
        reference::unknown(&self.written).into_iter().map(told).collect()
    }

    /// The variables that hold keys to providers of models and the secret of a webhook.
    pub fn key_variables(self) -> Vec<String> {
        let signing = match self.notify {
            NotifySetting::Webhook(WebhookTable { secret_env, .. }) => secret_env,
            NotifySetting::Command(_) => None,
        };
        let named = |provider: Provider| provider.env_key.into_iter().chain(provider.env_http_headers.into_values());
        self.model_providers.into_values().flat_map(named).chain(signing).collect()
    }

    /// The same file as it is now, with the same settings over it.
    pub fn read_again(&self) -> Result<Self, ConfigError> {
        Self::read(self.from.file.as_deref(), &self.from.overrides)
    }

    /// Whether a text would do as the file.
    pub fn check(text: &str) -> Result<(), SharedError> {
        let table = text.parse::<Table>().map_err(SharedError::new)?;
        Value::Table(table).try_into::<Self>().map_err(SharedError::new)?.sandbox().map_err(SharedError::new)?;
        Ok(())
    }

    /// What others may see of it: everything but what may be a secret.
    pub fn shown(&self) -> serde_json::Value {
        let mut shown = serde_json::to_value(&self.written).unwrap_or_default();
        hide_secrets(&mut shown);
        shown
    }

    /// Whether a key, with dots, has an effect.
    pub fn is_key(key: &str) -> bool {
        reference::is_known(key)
    }

    /// All keys.
    pub fn keys() -> Vec<String> {
        reference::KEYS.iter().map(|key| key.name.to_owned()).collect()
    }

    /// Keys of a file that have no effect.
    pub fn unknown_keys(file: &Path) -> Vec<String> {
        let table = std::fs::read_to_string(file).ok().and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
        reference::unknown(&table)
    }

    /// The sandbox of threads that choose none.
    pub fn sandbox(&self) -> Result<SandboxMode, ConfigError> {
        self.sandbox_named(self.sandbox_mode.as_deref().unwrap_or("workspace-write"))
    }

    /// A sandbox by its short name, with what is configured for it.
    pub fn sandbox_named(&self, name: &str) -> Result<SandboxMode, ConfigError> {
        let Some(mode) = SandboxMode::named(name) else {
            return Err(ConfigError::SandboxMode(name.to_owned()));
        };
        let own = &self.sandbox_workspace_write;
        if let Some(root) = own.writable_roots.iter().find(|root| !Path::new(root).is_absolute()) {
            return Err(ConfigError::RelativeRoot(root.clone()));
        }
        Ok(match mode {
            SandboxMode::WorkspaceWrite { exclude_tmpdir_env_var, exclude_slash_tmp, .. } => SandboxMode::WorkspaceWrite {
                writable_roots: own.writable_roots.clone(),
                network_access: own.network_access,
                exclude_tmpdir_env_var,
                exclude_slash_tmp,
            },
            other => other,
        })
    }
}

/// In one line, with its number.
pub fn wrong_line(file: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    ConfigError::Line { file: file.to_path_buf(), line: before.matches('\n').count() + 1, message: error.message().to_owned() }
}

/// In one line, with the key and the file or variable that set it.
fn wrong_value(file: Option<&Path>, overrides: &[String], error: &toml::de::Error) -> ConfigError {
    let shown = error.to_string();
    let key = shown.lines().find_map(|line| line.strip_prefix("in `")).map_or("", |key| key.trim_end_matches('`'));
    let by_hand = overrides.iter().rev().find(|setting| sets(setting, key));
    let place = match (by_hand, file) {
        (Some(setting), _) => format!("-c {setting}"),
        (None, Some(file)) => file.display().to_string(),
        (None, None) => "config.toml".to_owned(),
    };
    ConfigError::Value { place, key: key.to_owned(), message: error.message().to_owned() }
}

/// Whether a setting is about this key, about something below it, or about a table that holds it.
fn sets(setting: &str, key: &str) -> bool {
    let own = setting.split('=').next().unwrap_or_default().trim();
    let is_below = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    own == key || is_below(own, key) || is_below(key, own)
}

/// Sets `a.b.c=value`. Values that are not valid TOML are treated as strings.
fn put(table: &mut Table, setting: &str) -> Result<(), ConfigError> {
    let (path, text) = setting.split_once('=').ok_or_else(|| ConfigError::NoSetting(setting.to_owned()))?;
    let mut keys = keys(path.trim());
    let last = keys.pop().filter(|_| keys.iter().all(|key| !key.is_empty())).filter(|key| !key.is_empty());
    let last = last.ok_or_else(|| ConfigError::NoKey(setting.to_owned()))?;
    let mut place = table;
    for key in keys {
        let entry = place.entry(&key).or_insert_with(|| Value::Table(Table::new()));
        match entry.as_table_mut() {
            Some(inner) => place = inner,
            None => return Err(ConfigError::NoTable { setting: setting.to_owned(), key }),
        }
    }
    place.insert(last, value(text.trim()));
    Ok(())
}

/// The parts of a dotted key. They may be quoted as in TOML; what is no TOML is simply split.
fn keys(path: &str) -> Vec<String> {
    let plain = || path.split('.').map(|key| key.trim().to_owned()).collect();
    let Some(mut table) = alone(&format!("{path} = 0")) else { return plain() };
    let mut keys = Vec::new();
    while let Some((key, value)) = table.into_iter().next() {
        keys.push(key);
        table = if let Value::Table(inner) = value { inner } else { Table::new() };
    }
    keys
}

fn value(text: &str) -> Value {
    let parsed = alone(&format!("value = {text}")).and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A document that sets exactly one key.
fn alone(document: &str) -> Option<Table> {
    document.parse::<Table>().ok().filter(|table| table.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(settings: &[&str]) -> Table {
        let mut table = "model = \"a\"\n[budgets]\nturn_tokens = 1\nthread_tokens = 2".parse().unwrap();
        settings.iter().for_each(|setting| put(&mut table, setting).unwrap());
        table
    }

    #[test]
    fn a_setting_is_toml_or_else_a_text() {
        let cases: [(&str, Value); 8] = [
            ("x=5", Value::Integer(5)),
            ("x = true", Value::Boolean(true)),
            ("x=\"on-request\"", Value::String("on-request".into())),
            ("x=on-request", Value::String("on-request".into())),
            ("x=a=b", Value::String("a=b".into())),
            ("x=", Value::String(String::new())),
            ("x=[1, \"b\"]", Value::Array(vec![Value::Integer(1), Value::String("b".into())])),
            ("x=1\ny=2", Value::String("1\ny=2".into())),
        ];
        for (setting, value) in cases {
            assert_eq!(set(&[setting])["x"], value, "{setting}");
        }
    }

    #[test]
    fn dotted_keys_reach_into_tables_and_leave_the_rest() {
        let table = set(&["budgets.turn_tokens=9", "model_providers.\"a.b\".base_url=http://x", "serve.my key=1", "model=b", "model=c"]);
        assert_eq!(table["budgets"]["turn_tokens"], Value::Integer(9));
        assert_eq!(table["budgets"]["thread_tokens"], Value::Integer(2));
        assert_eq!(table["model_providers"]["a.b"]["base_url"], Value::String("http://x".into()));
        assert_eq!(table["serve"]["my key"], Value::Integer(1));
        assert_eq!(table["model"], Value::String("c".into()));
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        let told = |text: &str, settings: &[&str]| {
            std::fs::write(&file, text).unwrap();
            let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
            format!("{:#}", Config::read(Some(&file), &settings).unwrap_err())
        };
        for (text, place, what) in [
            ("model = \"a\"\n[limits", "config.toml:2: ", "unclosed table"),
            ("approval_policy = \"always\"", "config.toml: `approval_policy`: ", "untrusted, on-request and never"),
            ("[budgets]\nturn_tokens = \"many\"", "config.toml: `budgets.turn_tokens`: ", "expected u64"),
            ("[serve]\nlisten = \"localhost:80\"", "config.toml: `serve.listen`: ", "use ws://IP:PORT"),
        ] {
            let error = told(text, &[]);
            assert!(error.contains(place) && error.contains(what) && error.lines().count() == 1, "{error}");
        }
        assert!(told("", &["limits.memory=8 GB"]).starts_with("-c limits.memory=8 GB: `limits.memory`: "));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for setting in ["model", "=5", ".x=5", "x.=5", "model.name=5"] {
            assert!(put(&mut set(&[]), setting).is_err(), "{setting}");
        }
    }
}
