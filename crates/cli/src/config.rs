//! `config.toml`: what is in it, and what it means.

pub(crate) mod home;
pub(crate) mod limits;
pub(crate) mod reference;
pub(crate) mod serve;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use outpost_executor::{GitMode, HttpTarget};
use outpost_runtime::agents::AgentLimits;
use outpost_runtime::config::Budgets;
use outpost_runtime::model::{ModelOverrides, Provider};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::skills::choice::SkillChoice;
use outpost_sandbox::Level;
use serde::{Deserialize, Deserializer, de};
use toml::{Table, Value};

use home::HomeTable;
use limits::LimitTable;
use serve::ServeTable;

use crate::home::Home;

/// Everything that a user can set. Keys that are not known are told and ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
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
pub(crate) struct WorkspaceWrite {
    pub writable_roots: Vec<String>,
    pub network_access: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SkillTable {
    pub config: Vec<SkillChoice>,
}

/// What hears of turns: a command and its arguments, or an address.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "`notify` is a command as a list of words, or a table with `url` and a secret")]
pub(crate) enum NotifySetting {
    Command(Vec<String>),
    Webhook(WebhookTable),
}

impl Default for NotifySetting {
    fn default() -> Self {
        Self::Command(Vec::new())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct WebhookTable {
    #[serde(default)]
    pub url: String,
    /// The variable that holds the secret with which messages are signed.
    #[serde(default)]
    pub secret_env: Option<String>,
    /// The file that holds it.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
}

/// A server whose threads and environments are worked with instead of those of this home.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClientTable {
    pub server: Option<String>,
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilitySetting {
    Effect,
    Turn,
    Stored,
}

/// The variables that hold keys to providers of models. A configuration that cannot be read names none; code that needs it
/// says what is wrong with it.
pub(crate) fn key_variables(overrides: &[String]) -> Vec<String> {
    let file = Home::from_environment().map(|home| home.config());
    let Ok(config) = Config::read(file.as_deref(), overrides) else { return Vec::new() };
    let signing = match config.notify {
        NotifySetting::Webhook(WebhookTable { secret_env, .. }) => secret_env,
        NotifySetting::Command(_) => None,
    };
    let named = |provider: Provider| provider.env_key.into_iter().chain(provider.env_http_headers.into_values());
    config.model_providers.into_values().flat_map(named).chain(signing).collect()
}

impl Config {
    /// Reads the file, if there is one, puts `key=value` over it, and tells which keys have no effect.
    pub(crate) fn load(file: Option<&Path>, overrides: &[String]) -> anyhow::Result<Self> {
        let config = Self::read(file, overrides)?;
        for key in reference::unknown(&config.written) {
            let given = overrides.iter().find(|setting| sets(setting, &key));
            let place = given.map_or_else(|| "config.toml".to_owned(), |setting| format!("-c {setting}"));
            crate::out::say(&format!("{place}: `{key}` is not known and has no effect; docs/configuration.md lists every key"));
        }
        Ok(config)
    }

    /// The same, for those who tell it in another way, or have told it already.
    pub(crate) fn read(file: Option<&Path>, overrides: &[String]) -> anyhow::Result<Self> {
        let mut table = match file.map(std::fs::read_to_string) {
            Some(Ok(text)) => text.parse::<Table>().map_err(|error| wrong_line(file.unwrap_or(Path::new("")), &text, &error))?,
            // A home that cannot be used is reported by the code that needs it.
            Some(Err(error)) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(error).with_context(|| format!("{} cannot be read", file.unwrap_or(Path::new("")).display()));
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

    /// The same file as it is now, with the same settings over it.
    pub(crate) fn read_again(&self) -> anyhow::Result<Self> {
        Self::read(self.from.file.as_deref(), &self.from.overrides)
    }

    /// Whether a text would do as the file.
    pub(crate) fn check(text: &str) -> Result<(), String> {
        let table = text.parse::<Table>().map_err(|error| error.to_string())?;
        Value::Table(table).try_into::<Self>().map_err(|error| error.to_string())?.sandbox().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// What others may see of it: everything but what may be a secret.
    pub(crate) fn shown(&self) -> serde_json::Value {
        let mut shown = serde_json::to_value(&self.written).unwrap_or_default();
        outpost_server::hide_secrets(&mut shown);
        shown
    }

    /// Whether a key, with dots, has an effect.
    pub(crate) fn is_key(key: &str) -> bool {
        reference::is_known(key)
    }

    /// All keys.
    pub(crate) fn keys() -> Vec<String> {
        reference::KEYS.iter().map(|key| key.name.to_owned()).collect()
    }

    /// Keys of a file that have no effect.
    pub(crate) fn unknown_keys(file: &Path) -> Vec<String> {
        let table = std::fs::read_to_string(file).ok().and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
        reference::unknown(&table)
    }

    /// The sandbox of threads that choose none.
    pub(crate) fn sandbox(&self) -> anyhow::Result<SandboxMode> {
        self.sandbox_named(self.sandbox_mode.as_deref().unwrap_or("workspace-write"))
    }

    /// A sandbox by its short name, with what is configured for it.
    pub(crate) fn sandbox_named(&self, name: &str) -> anyhow::Result<SandboxMode> {
        let Some(mode) = SandboxMode::named(name) else {
            bail!("sandbox_mode is one of read-only, workspace-write and danger-full-access, not `{name}`");
        };
        let own = &self.sandbox_workspace_write;
        if let Some(root) = own.writable_roots.iter().find(|root| !Path::new(root).is_absolute()) {
            bail!("sandbox_workspace_write.writable_roots: `{root}` is no absolute path; `~` and relative paths are not understood there");
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
pub(crate) fn wrong_line(file: &Path, text: &str, error: &toml::de::Error) -> anyhow::Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    anyhow!("{}:{}: {}", file.display(), before.matches('\n').count() + 1, error.message())
}

/// In one line, with the key and the file or variable that set it.
fn wrong_value(file: Option<&Path>, overrides: &[String], error: &toml::de::Error) -> anyhow::Error {
    let shown = error.to_string();
    let key = shown.lines().find_map(|line| line.strip_prefix("in `")).map_or("", |key| key.trim_end_matches('`'));
    let by_hand = overrides.iter().rev().find(|setting| sets(setting, key));
    let place = match (by_hand, file) {
        (Some(setting), _) => format!("-c {setting}"),
        (None, Some(file)) => file.display().to_string(),
        (None, None) => "config.toml".to_owned(),
    };
    anyhow!("{place}: `{key}`: {}; docs/configuration.md shows an example of every key", error.message())
}

/// Whether a setting is about this key, about something below it, or about a table that holds it.
fn sets(setting: &str, key: &str) -> bool {
    let own = setting.split('=').next().unwrap_or_default().trim();
    let is_below = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    own == key || is_below(own, key) || is_below(key, own)
}

/// Sets `a.b.c=value`. Values that are not valid TOML are treated as strings.
fn put(table: &mut Table, setting: &str) -> anyhow::Result<()> {
    let Some((path, text)) = setting.split_once('=') else { bail!("`{setting}`: a setting is written key=value") };
    let mut keys = keys(path.trim());
    let last = keys.pop().filter(|_| keys.iter().all(|key| !key.is_empty())).filter(|key| !key.is_empty());
    let last = last.with_context(|| format!("`{setting}`: a setting needs a key"))?;
    let mut place = table;
    for key in keys {
        let entry = place.entry(&key).or_insert_with(|| Value::Table(Table::new()));
        match entry.as_table_mut() {
            Some(inner) => place = inner,
            None => bail!("`{setting}`: `{key}` is not a table"),
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
