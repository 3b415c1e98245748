//! `config.toml`: what is in it, and what it means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use outpost_runtime::config::Budgets;
use outpost_runtime::model::Provider;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use serde::Deserialize;
use toml::{Table, Value};

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
    pub approval_policy: Option<ApprovalPolicy>,
    pub sandbox_mode: Option<String>,
    pub sandbox_workspace_write: WorkspaceWrite,
    pub store: Option<String>,
    pub durability: Option<Durability>,
    pub budgets: Budgets,
    /// MCP servers by name, as they are written.
    pub mcp_servers: Option<serde_json::Value>,
    #[serde(skip)]
    from: From,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    Effect,
    Turn,
    Stored,
}

/// Keys that belong to other parts of the program or to other programs that share the file.
const KNOWN: [&str; 14] = [
    "model",
    "model_provider",
    "model_providers",
    "model_context_windows",
    "model_context_window",
    "approval_policy",
    "sandbox_mode",
    "sandbox_workspace_write",
    "store",
    "durability",
    "budgets",
    "mcp_servers",
    "limits",
    "serve",
];

impl Config {
    /// Reads the file, if there is one, and puts `key=value` over it.
    pub fn load(file: Option<&Path>, overrides: &[String]) -> anyhow::Result<Self> {
        let mut table = match file.map(std::fs::read_to_string) {
            Some(Ok(text)) => text.parse::<Table>().with_context(|| format!("{}", file.unwrap_or(Path::new("")).display()))?,
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} cannot be read", file.unwrap_or(Path::new("")).display()));
            }
            _ => Table::new(),
        };
        for setting in overrides {
            put(&mut table, setting)?;
        }
        for key in table.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
            tracing::warn!(key, "config.toml: this key is not known and has no effect");
        }
        let mut config: Self = Value::Table(table).try_into().context("config.toml")?;
        config.from = From { file: file.map(Path::to_path_buf), overrides: overrides.to_vec() };
        Ok(config)
    }

    /// The same file as it is now, with the same settings over it.
    pub fn read_again(&self) -> anyhow::Result<Self> {
        Self::load(self.from.file.as_deref(), &self.from.overrides)
    }

    /// The sandbox of threads that choose none.
    pub fn sandbox(&self) -> anyhow::Result<SandboxMode> {
        let name = self.sandbox_mode.as_deref().unwrap_or("workspace-write");
        let Some(mode) = SandboxMode::named(name) else {
            bail!("sandbox_mode is one of read-only, workspace-write and danger-full-access, not `{name}`");
        };
        let own = &self.sandbox_workspace_write;
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

/// Sets `a.b.c=value`. A value that is no TOML is a text.
fn put(table: &mut Table, setting: &str) -> anyhow::Result<()> {
    let Some((path, text)) = setting.split_once('=') else { bail!("`{setting}`: a setting is written key=value") };
    let text = text.trim();
    let parsed = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    let value = parsed.unwrap_or_else(|| Value::String(text.to_owned()));
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().filter(|key| !key.is_empty()).with_context(|| format!("`{setting}`: a setting needs a key"))?;
    let mut place = table;
    for key in keys {
        let entry = place.entry(key).or_insert_with(|| Value::Table(Table::new()));
        match entry.as_table_mut() {
            Some(inner) => place = inner,
            None => bail!("`{setting}`: `{key}` is not a table"),
        }
    }
    place.insert(last.to_owned(), value);
    Ok(())
}
