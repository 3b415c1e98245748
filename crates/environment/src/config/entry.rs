//! One `[[environments]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::text::{Text, Value};
use crate::connector::{CommandLine, Token};
use crate::definition::Definition;
use crate::environment::ConnectPolicy;

/// What is wrong, and in which line.
type Wrong = (usize, String);

const KEYS: &str = "id, url, token_file, program, args, env, cwd, ssh, connect, connect_timeout_sec, initialize_timeout_sec, ceiling";

/// A year; beyond it a wait is not meant.
const LONGEST: f64 = 365.0 * 86_400.0;

/// The members of an entry, taken out one by one.
struct Members<'a, 'b> {
    text: &'a Text<'b>,
    line: usize,
    table: &'a DeTable<'b>,
}

impl<'a, 'b> Members<'a, 'b> {
    fn get(&self, name: &str) -> Option<&'a Value<'b>> {
        self.table.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(_, value)| value)
    }

    fn wrong<T>(&self, value: &Value<'_>, what: impl Into<String>) -> Result<T, Wrong> {
        Err((self.text.line(value.span().start), what.into()))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.get_ref().as_str() {
                Some(text) => Ok(Some(text)),
                None => self.wrong(value, format!("`{name}` is a text")),
            },
        }
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<String>>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Array(items) = value.get_ref() else { return self.wrong(value, format!("`{name}` is a list of texts")) };
        let texts: Option<Vec<String>> = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
        texts.map_or_else(|| self.wrong(value, format!("`{name}` is a list of texts")), |texts| Ok(Some(texts)))
    }

    fn map(&self, name: &str) -> Result<Option<BTreeMap<String, String>>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Table(table) = value.get_ref() else { return self.wrong(value, format!("`{name}` is a table of texts")) };
        let pairs = table.iter().map(|(key, value)| Some((key.get_ref().as_ref().to_owned(), value.get_ref().as_str()?.to_owned())));
        pairs.collect::<Option<_>>().map_or_else(|| self.wrong(value, format!("`{name}` is a table of texts")), |map| Ok(Some(map)))
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(number) => number.to_string().parse::<f64>().ok(),
            DeValue::Float(number) => number.to_string().parse::<f64>().ok(),
            _ => None,
        };
        match number {
            Some(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
            _ => self.wrong(value, format!("`{name}` is a number of seconds, from 0 to a year")),
        }
    }

    /// Keys that make sense only beside another one.
    fn only_with(&self, other: &str, names: &[&str]) -> Result<(), Wrong> {
        match names.iter().find_map(|name| Some((name, self.get(name)?))) {
            Some((name, value)) => self.wrong(value, format!("`{name}` needs `{other}`")),
            None => Ok(()),
        }
    }

    /// A path of this machine; a relative one begins where the file is.
    fn path(&self, name: &str) -> Result<Option<PathBuf>, Wrong> {
        let (Some(text), Some(value)) = (self.text(name)?, self.get(name)) else { return Ok(None) };
        if text.trim().is_empty() {
            return self.wrong(value, format!("`{name}` is empty"));
        }
        let path = Path::new(text);
        if path.is_absolute() {
            return Ok(Some(path.to_owned()));
        }
        match self.text.path.parent().filter(|base| base.is_absolute()) {
            Some(base) => Ok(Some(base.join(path))),
            None => self.wrong(value, format!("`{name}` is relative, and there is no directory that it could begin in")),
        }
    }
}

pub fn define(text: &Text<'_>, table: &DeTable<'_>, line: usize) -> Result<Definition, Wrong> {
    let members = Members { text, line, table };
    if let Some((key, _)) = table.iter().find(|(key, _)| !KEYS.split(", ").any(|known| known == key.get_ref().as_ref())) {
        return Err((text.line(key.span().start), format!("unknown key `{}`; there are {KEYS}", key.get_ref())));
    }
    let ways: Vec<&str> = ["url", "program", "ssh"].into_iter().filter(|name| members.get(name).is_some()).collect();
    let mut definition = match ways.as_slice() {
        ["url"] => url(&members)?,
        ["program"] => program(&members)?,
        ["ssh"] => ssh(&members)?,
        [] => return Err((line, "one of `url`, `program` and `ssh` is needed".into())),
        several => return Err((line, format!("only one of `{}` may be given", several.join("` and `")))),
    };
    if let Some(timeout) = members.seconds("connect_timeout_sec")? {
        definition.connect_timeout = timeout;
    }
    if let Some(timeout) = members.seconds("initialize_timeout_sec")? {
        definition.initialize_timeout = timeout;
    }
    if let (Some(text), Some(value)) = (members.text("connect")?, members.get("connect")) {
        definition.connect = match text {
            "eager" => ConnectPolicy::Eager,
            "lazy" => ConnectPolicy::Lazy,
            "manual" => ConnectPolicy::Manual,
            other => return members.wrong(value, format!("`connect` is \"eager\", \"lazy\" or \"manual\", not \"{other}\"")),
        };
    }
    if let (Some(text), Some(value)) = (members.text("ceiling")?, members.get("ceiling")) {
        definition = definition.with_ceiling(text).or_else(|error| members.wrong(value, format!("`ceiling`: {error}")))?;
    }
    Ok(definition)
}

fn url(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    members.only_with("program", &["env", "cwd"])?;
    members.only_with("program` or `ssh", &["args"])?;
    let Some(url) = members.text("url")? else { return Err((members.line, "`url` is missing".into())) };
    let token = members.path("token_file")?.map_or(Token::None, Token::File);
    let line = members.get("url").map_or(members.line, |value| members.text.line(value.span().start));
    Definition::url(url, token).map_err(|error| (line, format!("`url`: {error}")))
}

fn program(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    members.only_with("url", &["token_file", "connect_timeout_sec"])?;
    let Some(program) = members.text("program")? else { return Err((members.line, "`program` is missing".into())) };
    let line = CommandLine {
        program: program.to_owned(),
        args: members.texts("args")?.unwrap_or_default(),
        env: members.map("env")?.unwrap_or_default(),
        cwd: members.path("cwd")?,
        ..CommandLine::default()
    };
    let at = members.get("program").map_or(members.line, |value| members.text.line(value.span().start));
    Definition::program(line).map_err(|error| (at, format!("`program`: {error}")))
}

fn ssh(members: &Members<'_, '_>) -> Result<Definition, Wrong> {
    members.only_with("url", &["token_file"])?;
    members.only_with("program", &["env", "cwd"])?;
    let Some(destination) = members.text("ssh")? else { return Err((members.line, "`ssh` is missing".into())) };
    let at = members.get("ssh").map_or(members.line, |value| members.text.line(value.span().start));
    let args = members.texts("args")?.unwrap_or_default();
    Definition::ssh(destination, args).map_err(|error| (at, format!("`ssh`: {error}")))
}
