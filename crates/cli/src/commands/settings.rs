//! `outpost mcp` and `outpost config`: what is in config.toml, and changing it without an editor.

use std::process::ExitCode;

use anyhow::{Context, bail};
use outpost_config::Config;
use serde_json::{Map, Value, json};

use super::{FAILED, complain};
use crate::ProcessContext;
use crate::home::Home;
use crate::out::{on_line, print, print_shown, say};
use crate::settings_args::{ConfigCommand, McpAddArguments, McpCommand};
use crate::topics::nearest;

pub(crate) fn mcp(command: McpCommand, own: &ProcessContext) -> ExitCode {
    let done = match command {
        McpCommand::List { json } => list(json, own),
        McpCommand::Add(arguments) => add(arguments, own),
        McpCommand::Remove { name } => remove(&name, own),
    };
    done.unwrap_or_else(|error| complain(&error, FAILED))
}

pub(crate) fn config(command: ConfigCommand, own: &ProcessContext) -> ExitCode {
    let done = match command {
        ConfigCommand::Show { json } => show(json, own),
        ConfigCommand::Get { key } => get(&key, own),
        ConfigCommand::Set { key, value, unset } => set(&key, value.filter(|_| !unset).as_deref()),
        ConfigCommand::Path => home().and_then(|home| print(&format!("{}\n", home.config().display())).map(|()| ExitCode::SUCCESS)),
    };
    done.unwrap_or_else(|error| complain(&error, FAILED))
}

fn home() -> anyhow::Result<Home> {
    Home::from_environment().context("settings need a home; set OUTPOST_HOME or HOME")
}

fn read(own: &ProcessContext) -> anyhow::Result<Config> {
    Ok(Config::read(Some(&home()?.config()), &own.settings)?)
}

/// Writes a key, or takes it away.
fn change(key: &str, value: Value) -> anyhow::Result<()> {
    let home = home()?;
    home.make()?;
    Ok(outpost_server::change_key(&home.config(), key, value, Config::check)?)
}

// ---------------------------------------------------------------- MCP servers

fn servers(own: &ProcessContext) -> anyhow::Result<Map<String, Value>> {
    Ok(read(own)?.mcp_servers.as_ref().and_then(Value::as_object).cloned().unwrap_or_default())
}

fn list(as_json: bool, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let servers = servers(own)?;
    let text = |server: &Value, key: &str| server[key].as_str().map(str::to_owned);
    let how = |server: &Value| {
        let words = server["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let command = server["command"].as_str().map(|command| std::iter::once(command).chain(words).collect::<Vec<_>>().join(" "));
        command.or_else(|| text(server, "url")).unwrap_or_else(|| "neither `command` nor `url` is set".to_owned())
    };
    let place = |server: &Value| text(server, "environment_id").unwrap_or_else(|| "local".to_owned());
    let is_on = |server: &Value| server["enabled"].as_bool().unwrap_or(true);
    if as_json {
        let rows: Vec<Value> = servers
            .iter()
            .map(|(name, server)| json!({"name": name, "environment": place(server), "runs": how(server), "enabled": is_on(server)}))
            .collect();
        print(&format!("{:#}\n", json!({"servers": rows})))?;
        return Ok(ExitCode::SUCCESS);
    }
    if servers.is_empty() {
        print("no MCP server in config.toml; `outpost mcp add NAME -- COMMAND` adds one\n")?;
    }
    let width = servers.keys().map(|name| name.chars().count()).max().unwrap_or_default();
    for (name, server) in &servers {
        let off = if is_on(server) { "" } else { "  (switched off)" };
        print_shown(&format!("{:width$}  {}  {}{off}\n", on_line(name), on_line(&place(server)), on_line(&how(server))))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What may be the name of a server, which is a part of the names of its tools.
fn server_name(name: &str) -> anyhow::Result<&str> {
    let is_fine = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
    if !is_fine {
        bail!("`{name}` is not a name for an MCP server: use letters, digits, `-` and `_`");
    }
    Ok(name)
}

fn add(arguments: McpAddArguments, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let name = server_name(&arguments.name)?;
    if servers(own)?.contains_key(name) {
        bail!("there is an MCP server `{name}` already; `outpost mcp remove {name}` forgets it");
    }
    let mut server = Map::new();
    if let Some((program, rest)) = arguments.command.split_first() {
        server.insert("command".into(), program.as_str().into());
        if !rest.is_empty() {
            server.insert("args".into(), json!(rest));
        }
    }
    let mut put = |key: &str, value: Option<String>| value.map(|value| server.insert(key.into(), value.into()));
    put("url", arguments.url);
    put("bearer_token_env_var", arguments.bearer_token_env_var);
    put("environment_id", arguments.environment);
    let mut variables = Map::new();
    for variable in &arguments.variables {
        let (name, value) =
            variable.split_once('=').filter(|(name, _)| !name.is_empty()).with_context(|| format!("`{variable}` is not NAME=VALUE"))?;
        variables.insert(name.to_owned(), value.into());
    }
    if !variables.is_empty() {
        server.insert("env".into(), variables.into());
    }
    change(&format!("mcp_servers.{name}"), server.into())?;
    say(&format!("`{name}` was added to config.toml; `outpost doctor` tries it"));
    Ok(ExitCode::SUCCESS)
}

fn remove(name: &str, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let servers = servers(own)?;
    if !servers.contains_key(name) {
        let meant = nearest(name, servers.keys().map(String::as_str)).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
        bail!("there is no MCP server `{name}` in config.toml; {meant}`outpost mcp list` shows those that are there");
    }
    change(&format!("mcp_servers.{}", server_name(name)?), Value::Null)?;
    say(&format!("`{name}` is forgotten"));
    Ok(ExitCode::SUCCESS)
}

// ---------------------------------------------------------------- settings

/// Without what is not set: TOML has no word for that.
fn set_values(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name, set_values(value))).collect(),
        ),
        other => other,
    }
}

fn as_toml(value: &Value) -> anyhow::Result<String> {
    match value {
        Value::Object(_) => Ok(toml::to_string_pretty(value)?),
        Value::String(text) => Ok(format!("{text}\n")),
        other => Ok(format!("{other}\n")),
    }
}

fn show(as_json: bool, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let shown = set_values(read(own)?.shown());
    let text = if as_json { format!("{shown:#}\n") } else { as_toml(&shown)? };
    print_shown(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn get(key: &str, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    let shown = set_values(read(own)?.shown());
    let found = key.split('.').try_fold(&shown, |value, part| value.get(part));
    let Some(found) = found else {
        known_key(key)?;
        say(&format!("`{key}` is not set"));
        return Ok(ExitCode::from(FAILED));
    };
    print_shown(&as_toml(found)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A key that has no effect is refused, with the one that was probably meant.
fn known_key(key: &str) -> anyhow::Result<()> {
    if Config::is_key(key) {
        return Ok(());
    }
    let keys = Config::keys();
    let meant = nearest(key, keys.iter().map(String::as_str)).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
    bail!("`{key}` is not a key of config.toml; {meant}`outpost help configuration` lists every key")
}

fn set(key: &str, value: Option<&str>) -> anyhow::Result<ExitCode> {
    known_key(key)?;
    let value = match value {
        None => Value::Null,
        // As for -c: what is no TOML is a string.
        Some(text) => match format!("value = {text}").parse::<toml::Table>() {
            Ok(mut table) => serde_json::to_value(table.remove("value"))?,
            Err(_) => text.into(),
        },
    };
    change(key, value)?;
    Ok(ExitCode::SUCCESS)
}
