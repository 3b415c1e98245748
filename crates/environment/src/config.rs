//! `environments.toml`: what may stand in it, and what is wrong with what does.
//!
//! One wrong entry is disabled and stays visible; the others work. A wrong default, a wrong top level or wrong syntax is
//! fatal: a typing error must not lead to another machine.

pub mod edit;
mod entry;
mod merge;
mod text;
mod watch;

use std::path::{Path, PathBuf};

use outpost_wire::{EnvironmentId, SharedError};
use thiserror::Error;
use toml::de::{DeTable, DeValue};

use crate::definition::Definition;
use crate::provider::{ConfigurationSnapshot, ConfiguredEnvironment, DefaultChoice, Nameless, StartChoice};

pub use entry::span;
pub use merge::{MergeMode, MergedDefinitions, merge};
pub use watch::{ConfigWatch, WatchError};

use text::{Text, Value};

/// Why the whole file cannot be used.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EnvironmentsFileError {
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        reason: SharedError,
    },
    #[error("{}:{line}: {what}", path.display())]
    Wrong { path: PathBuf, line: usize, what: String },
}

/// Reads the file. That there is none is no error.
pub fn read(path: &Path) -> Result<Option<ConfigurationSnapshot>, EnvironmentsFileError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, path).map(Some),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(EnvironmentsFileError::Unreadable { path: path.to_owned(), reason: SharedError::new(error) }),
    }
}

/// What the text of such a file means. Relative paths in it begin where the file is.
pub fn parse(text: &str, path: &Path) -> Result<ConfigurationSnapshot, EnvironmentsFileError> {
    let text = Text { text, path };
    let table = DeTable::parse(text.text).map_err(|error| text.fatal(error.span().unwrap_or_default(), error.message()))?;
    let mut snapshot = ConfigurationSnapshot { include_local: true, ..ConfigurationSnapshot::default() };
    let mut default = None;
    let mut found: Vec<Found> = Vec::new();
    for (key, value) in table.get_ref() {
        let wrong = |what: &str| text.fatal(value.span(), what);
        match key.get_ref().as_ref() {
            "include_local" => {
                snapshot.include_local = value.get_ref().as_bool().ok_or_else(|| wrong("`include_local` is true or false"))?
            }
            "default" => {
                let chosen = value.get_ref().as_str().ok_or_else(|| wrong("`default` is a text"))?;
                default = Some((chosen.trim().to_owned(), value.span()));
            }
            "start" => {
                snapshot.start = match value.get_ref().as_str() {
                    Some("default") => StartChoice::Default,
                    Some("all") => StartChoice::All,
                    _ => return Err(wrong("`start` is \"default\" or \"all\"")),
                }
            }
            "environments" => {
                let DeValue::Array(entries) = value.get_ref() else { return Err(wrong("`environments` is a list: use [[environments]]")) };
                found = entries.iter().map(|entry| find(&text, entry)).collect();
            }
            other => {
                let known = "there are `default`, `start`, `include_local` and `[[environments]]`";
                return Err(text.fatal(key.span(), &format!("unknown key `{other}`; {known}")));
            }
        }
    }
    for index in 0..found.len() {
        let Some(id) = &found[index].id else {
            if let Err(what) = &found[index].definition {
                snapshot.nameless.push(Nameless { line: found[index].line, reason: what.clone() });
            }
            continue;
        };
        if found[..index].iter().any(|earlier| earlier.id.as_ref() == Some(id)) {
            continue;
        }
        // Which of the two is meant is unknown, so neither is used.
        let definition = match found[index + 1..].iter().find(|later| later.id.as_ref() == Some(id)) {
            Some(later) => Err(text.at(found[index].line, &format!("duplicate environment id `{id}`, again in line {}", later.line))),
            None => found[index].definition.clone(),
        };
        snapshot.entries.push(ConfiguredEnvironment { id: id.clone(), definition });
    }
    if let Some((chosen, span)) = default {
        snapshot.default = choose(&chosen).map_err(|what| text.fatal(span.clone(), &what))?;
        snapshot.check().map_err(|error| text.fatal(span, &error.to_string()))?;
    }
    Ok(snapshot)
}

fn choose(text: &str) -> Result<DefaultChoice, String> {
    if text.is_empty() {
        return Err("`default` is empty; use an id, or \"none\" for no environment".into());
    }
    if text.eq_ignore_ascii_case("none") {
        return Ok(DefaultChoice::Disabled);
    }
    EnvironmentId::parse(text).map(DefaultChoice::Id).map_err(|error| format!("`default`: {error}"))
}

/// One `[[environments]]`, right or wrong.
struct Found {
    id: Option<EnvironmentId>,
    line: usize,
    definition: Result<Definition, String>,
}

fn find(text: &Text<'_>, entry: &Value<'_>) -> Found {
    let line = text.line(entry.span().start);
    let DeValue::Table(table) = entry.get_ref() else {
        return Found { id: None, line, definition: Err(text.at(line, "an environment is a table: use [[environments]]")) };
    };
    let name = table.iter().find(|(key, _)| key.get_ref().as_ref() == "id").map(|(_, value)| value);
    let id = match name {
        None => Err(text.at(line, "an environment without `id`")),
        Some(value) => match value.get_ref().as_str() {
            None => Err(text.at(text.line(value.span().start), "`id` is a text")),
            Some(id) => EnvironmentId::parse_own(id).map_err(|error| text.at(text.line(value.span().start), &error.to_string())),
        },
    };
    match id {
        Err(what) => Found { id: None, line, definition: Err(what) },
        Ok(id) => {
            let definition = entry::define(text, table, line).map_err(|(at, what)| text.at(at, &format!("environment `{id}`: {what}")));
            Found { id: Some(id), line, definition }
        }
    }
}

#[cfg(test)]
mod tests;
