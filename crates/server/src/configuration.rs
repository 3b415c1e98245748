//! `config.toml`, read and written for clients. What is written counts from the next start of the program on.
//!
//! The order of the file, its comments, and unknown keys stay as they are.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use outpost_store::Digest;
use outpost_wire::SharedError;
use outpost_wire::secret_names::hide_secrets;
use serde_json::{Map, Value};
use thiserror::Error;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Key, Table, TableLike, TomlError};

use crate::server::Facts;

pub(crate) struct UserConfiguration {
    file: PathBuf,
    check: fn(&str) -> Result<(), SharedError>,
    /// What stands over the file.
    over: Value,
    /// Held while the file is changed.
    writing: Mutex<()>,
}

/// The file as it is now.
#[derive(Debug)]
pub(crate) struct FileLayer {
    pub config: Value,
    pub version: String,
}

/// A change of one key.
#[derive(Debug)]
pub(crate) struct Edit {
    pub key_path: String,
    /// `null` takes it away.
    pub value: Value,
    pub merges: bool,
}

#[derive(Debug, Error)]
pub enum ConfigEditError {
    #[error("`{path}` is not a key: {why}")]
    Key {
        path: String,
        #[source]
        why: SharedError,
    },
    #[error("`{0}` is not a table, so nothing can be put into it")]
    NotATable(String),
    #[error("the value of `{0}` cannot be written: TOML has neither `null` inside of values nor numbers as large as this")]
    Value(String),
    #[error("config.toml would not be valid: {0}")]
    Invalid(#[source] SharedError),
    #[error("config.toml was changed meanwhile: it is `{found}` now, not `{expected}`")]
    Version { expected: String, found: String },
    #[error("config.toml cannot be read as TOML: {0}")]
    Unreadable(#[from] TomlError),
    #[error("config.toml: {0}")]
    Io(#[from] io::Error),
}

impl ConfigEditError {
    /// Whether the machine is to blame and not the client.
    pub(crate) fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::Io(_))
    }
}

impl UserConfiguration {
    pub(crate) fn new(facts: &Facts) -> Self {
        let file = facts.home.join("config.toml");
        let written = read(&file).ok().and_then(|text| text.parse::<DocumentMut>().ok()).map(|document| table_json(document.as_table()));
        let over = difference(&facts.config, &written.unwrap_or_default());
        Self { file, check: facts.check_config, over, writing: Mutex::default() }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What was put over the file when the program was started.
    pub(crate) fn over(&self) -> &Value {
        &self.over
    }

    /// The same for one key.
    pub(crate) fn over_at(&self, key_path: &str) -> Option<&Value> {
        let keys = Key::parse(key_path).ok()?;
        keys.iter().try_fold(&self.over, |value, key| value.get(key.get()))
    }

    /// The file as others may see it.
    pub(crate) fn written(&self) -> Result<FileLayer, ConfigEditError> {
        let text = read(&self.file)?;
        let document = text.parse::<DocumentMut>().map_err(ConfigEditError::Unreadable)?;
        let mut config = table_json(document.as_table());
        hide_secrets(&mut config);
        Ok(FileLayer { config, version: version(&text) })
    }

    /// Changes the file, all edits or none, and tells its new version.
    pub(crate) fn write(&self, edits: &[Edit], expected: Option<&str>) -> Result<String, ConfigEditError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = read(&self.file)?;
        let found = version(&before);
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(ConfigEditError::Version { expected: expected.to_owned(), found });
        }
        let mut document = before.parse::<DocumentMut>().map_err(ConfigEditError::Unreadable)?;
        for edit in edits {
            apply(document.as_table_mut(), edit)?;
        }
        let after = document.to_string();
        (self.check)(&after).map_err(ConfigEditError::Invalid)?;
        if after != before {
            replace(&self.file, &after)?;
        }
        Ok(version(&after))
    }
}

/// Changes one key of a configuration file for a user at this machine; `null` takes it away. The rest of the file stays as it is.
pub fn change_key(file: &Path, key_path: &str, value: Value, check: fn(&str) -> Result<(), SharedError>) -> Result<(), ConfigEditError> {
    let configuration = UserConfiguration { file: file.to_owned(), check, over: Value::Null, writing: Mutex::default() };
    configuration.write(&[Edit { key_path: key_path.to_owned(), value, merges: false }], None).map(|_| ())
}

fn version(text: &str) -> String {
    format!("sha256:{}", Digest::of(text.as_bytes()))
}

/// A file that is not there says nothing.
fn read(file: &Path) -> io::Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

/// Puts a new file in the place of the old one, which others see whole at any moment. A link stays a link.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let real = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let aside = real.with_extension(format!("toml.{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&aside).and_then(|mut new| {
        new.write_all(text.as_bytes())?;
        if let Ok(old) = fs::metadata(&real) {
            new.set_permissions(old.permissions())?;
        }
        new.sync_all()
    });
    let moved = written.and_then(|()| fs::rename(&aside, &real));
    if moved.is_err() {
        let _ = fs::remove_file(&aside);
    }
    moved
}

fn apply(table: &mut Table, edit: &Edit) -> Result<(), ConfigEditError> {
    let wrong = |why: SharedError| ConfigEditError::Key { path: edit.key_path.clone(), why };
    let mut keys = Key::parse(&edit.key_path).map_err(|error| wrong(SharedError::worded(error.to_string().trim(), error)))?;
    let last = keys.pop().ok_or_else(|| wrong("it is empty".into()))?;
    let mut place: &mut dyn TableLike = table;
    for key in &keys {
        if edit.value.is_null() && !place.contains_key(key.get()) {
            return Ok(());
        }
        let inner = place.entry_format(key).or_insert_with(|| {
            let mut inner = Table::new();
            inner.set_implicit(true);
            Item::Table(inner)
        });
        place = inner.as_table_like_mut().ok_or_else(|| ConfigEditError::NotATable(key.get().to_owned()))?;
    }
    put(place, &last, edit)
}

fn put(place: &mut dyn TableLike, key: &Key, edit: &Edit) -> Result<(), ConfigEditError> {
    if edit.value.is_null() {
        place.remove(key.get());
        return Ok(());
    }
    if let (true, Value::Object(members)) = (edit.merges, &edit.value)
        && let Some(inner) = place.get_mut(key.get()).and_then(Item::as_table_like_mut)
    {
        for (name, value) in members {
            let part = Edit { key_path: edit.key_path.clone(), value: value.clone(), merges: true };
            put(inner, &Key::new(name), &part)?;
        }
        return Ok(());
    }
    let mut item = item(&edit.value).ok_or_else(|| ConfigEditError::Value(edit.key_path.clone()))?;
    match place.get_mut(key.get()) {
        Some(old) => {
            // What stands behind a value, such as a comment, stays there.
            if let (Some(old), Some(new)) = (old.as_value(), item.as_value_mut()) {
                *new.decor_mut() = old.decor().clone();
            }
            *old = item;
        }
        None => {
            place.entry_format(key).or_insert(item);
        }
    }
    Ok(())
}

fn item(value: &Value) -> Option<Item> {
    match value {
        Value::Object(members) => {
            let mut table = Table::new();
            for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                table.insert(name, item(value)?);
            }
            Some(Item::Table(table))
        }
        other => plain(other).map(Item::Value),
    }
}

fn plain(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None if number.is_f64() => number.as_f64()?.into(),
            None => return None,
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(values) => {
            let mut array = Array::new();
            for value in values {
                array.push(plain(value)?);
            }
            array.into()
        }
        Value::Object(members) => {
            let mut table = InlineTable::new();
            for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                table.insert(name, plain(value)?);
            }
            table.into()
        }
    })
}

fn table_json(table: &dyn TableLike) -> Value {
    Value::Object(table.iter().filter_map(|(key, item)| Some((key.to_owned(), item_json(item)?))).collect())
}

fn item_json(item: &Item) -> Option<Value> {
    match item {
        Item::None => None,
        Item::Value(value) => Some(value_json(value)),
        Item::Table(table) => Some(table_json(table)),
        Item::ArrayOfTables(tables) => Some(Value::Array(tables.iter().map(|table| table_json(table)).collect())),
    }
}

fn value_json(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::from(text.value().as_str()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(flag) => Value::from(*flag.value()),
        toml_edit::Value::Datetime(time) => Value::from(time.value().to_string()),
        toml_edit::Value::Array(values) => Value::Array(values.iter().map(value_json).collect()),
        toml_edit::Value::InlineTable(table) => table_json(table),
    }
}

/// What `one` has otherwise than `other`.
fn difference(one: &Value, other: &Value) -> Value {
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return one.clone() };
    let mut out = Map::new();
    for (name, value) in one {
        match other.get(name) {
            Some(same) if same == value => {}
            Some(old) if old.is_object() && value.is_object() => {
                let inner = difference(value, old);
                if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
                    out.insert(name.clone(), inner);
                }
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

/// Puts one configuration over another.
pub(crate) fn lay_over(below: &mut Value, above: &Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (name, value) in above {
                lay_over(below.entry(name).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above.clone(),
    }
}

/// Every value that is no table, by its key with dots.
pub(crate) fn leaves(value: &Value) -> Vec<String> {
    fn walk(prefix: &str, value: &Value, out: &mut Vec<String>) {
        let Some(members) = value.as_object() else {
            out.push(prefix.to_owned());
            return;
        };
        for (name, value) in members {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            walk(&path, value, out);
        }
    }
    let mut out = Vec::new();
    walk("", value, &mut out);
    out.retain(|path| !path.is_empty());
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(text: &str) -> (tempfile::TempDir, UserConfiguration) {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("config.toml");
        fs::write(&file, text).unwrap();
        let check = |text: &str| if text.contains("bad") { Err("it is bad".into()) } else { Ok(()) };
        (home, UserConfiguration { file, check, over: Value::Null, writing: Mutex::default() })
    }

    fn edit(key_path: &str, value: Value) -> Edit {
        Edit { key_path: key_path.into(), value, merges: true }
    }

    #[test]
    fn what_people_wrote_stays() {
        let (_home, configuration) = configuration("# mine\nmodel = \"a\" # the best\nodd = 1\n\n[budgets]\n# few\nturn_tokens = 5\n");
        let edits = [
            edit("model", json!("b")),
            edit("budgets", json!({"thread_tokens": 9})),
            edit("projects.\"/a.b\".trust_level", json!("trusted")),
            edit("nothing.here", Value::Null),
        ];
        configuration.write(&edits, None).unwrap();
        assert_eq!(
            fs::read_to_string(configuration.file()).unwrap(),
            "# mine\nmodel = \"b\" # the best\nodd = 1\n\n[budgets]\n# few\nturn_tokens = 5\nthread_tokens = 9\n\n\
             [projects.\"/a.b\"]\ntrust_level = \"trusted\"\n"
        );
        let replaced = Edit { key_path: "budgets".into(), value: json!({"tree_tokens": 1}), merges: false };
        configuration.write(&[replaced, edit("projects", Value::Null), edit("model", Value::Null)], None).unwrap();
        assert_eq!(configuration.written().unwrap().config, json!({"odd": 1, "budgets": {"tree_tokens": 1}}));
    }

    #[test]
    fn nothing_is_written_that_would_not_be_read() {
        let (_home, configuration) = configuration("model = \"a\"\n");
        let version = configuration.written().unwrap().version;
        let refused = |edits: &[Edit], expected| configuration.write(edits, expected).unwrap_err();
        assert!(matches!(refused(&[edit("model", json!("bad"))], None), ConfigEditError::Invalid(_)));
        assert!(matches!(refused(&[edit("model.name", json!(1))], None), ConfigEditError::NotATable(_)));
        assert!(matches!(refused(&[edit("a..b", json!(1))], None), ConfigEditError::Key { .. }));
        assert!(matches!(refused(&[edit("a", json!([null]))], None), ConfigEditError::Value(_)));
        assert!(matches!(refused(&[edit("a", json!(1))], Some("sha256:0")), ConfigEditError::Version { .. }));
        assert_eq!(configuration.written().unwrap().version, version);
        assert_ne!(configuration.write(&[edit("a", json!(1))], Some(&version)).unwrap(), version);
    }

    #[test]
    fn what_stands_over_the_file_is_told_apart() {
        let (file, all) = (json!({"a": 1, "t": {"x": 1, "y": 2}}), json!({"a": 1, "b": 2, "t": {"x": 5, "y": 2}}));
        let over = difference(&all, &file);
        assert_eq!(over, json!({"b": 2, "t": {"x": 5}}));
        let mut again = file;
        lay_over(&mut again, &over);
        assert_eq!(again, all);
        assert_eq!(leaves(&over), ["b", "t.x"]);
    }
}
