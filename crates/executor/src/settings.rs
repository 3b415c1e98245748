//! What the configuration of this machine says about chosen keys. Only keys that are no secrets are told.

use std::path::{Path, PathBuf};

use outpost_wire::exec::discovery::{ConfigLayer, ConfigLayers, ReadConfigParams, ReadConfigResponse};
use outpost_wire::{Fault, PathUri};
use toml::{Table, Value};

use crate::config::ExecutorConfig;
use crate::fault;

/// What others may know. Everything else of the file is for the program that it configures: it may hold keys and passwords.
const TOLD: [&str; 6] = ["mcp_servers", "model", "model_provider", "approval_policy", "sandbox_mode", "sandbox_workspace_write"];
/// What the administrator of this machine requires of all executors on it; the same name in our home holds for this executor besides.
const REQUIREMENTS: &str = "/etc/outpost/requirements.toml";
const OWN_REQUIREMENTS: &str = "requirements.toml";

/// Reads the layers of the configuration, the lowest first. It blocks.
pub(crate) fn read(config: &ExecutorConfig, params: &ReadConfigParams) -> Result<ReadConfigResponse, Fault> {
    if params.config_paths.is_empty() && params.requirements_paths.is_empty() {
        return Err(fault::no_config_paths());
    }
    if params.config_paths.iter().chain(&params.requirements_paths).any(Vec::is_empty) {
        return Err(fault::empty_config_path());
    }
    let uri = |path: &Path| PathUri::from_native(path).ok();
    let home = config.home.as_deref();
    let user = home.map(|home| home.join("config.toml"));
    let own = home.map(|home| home.join(OWN_REQUIREMENTS));
    let mut requirements = layers("system", Some(Path::new(REQUIREMENTS)), &params.requirements_paths)?;
    requirements.layers.extend(layers("user", own.as_deref(), &params.requirements_paths)?.layers);
    Ok(ReadConfigResponse {
        user_home_dir: config.user_home().and_then(|home| uri(&home)),
        codex_home_dir: home.and_then(uri),
        hostname: Some(rustix::system::uname().nodename().to_string_lossy().into_owned()),
        config: layers("user", user.as_deref(), &params.config_paths)?,
        requirements,
    })
}

/// The files that are read.
pub(crate) fn files(config: &ExecutorConfig) -> Vec<PathBuf> {
    let own = config.home.iter().flat_map(|home| [home.join("config.toml"), home.join(OWN_REQUIREMENTS)]);
    own.chain([PathBuf::from(REQUIREMENTS)]).collect()
}

/// One file as layers: none if it is not there or says nothing about these keys.
fn layers(kind: &str, file: Option<&Path>, paths: &[Vec<String>]) -> Result<ConfigLayers, Fault> {
    let nothing = Ok(ConfigLayers::default());
    let (Some(file), false) = (file, paths.is_empty()) else { return nothing };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return nothing,
        Err(error) => return Err(fault::config_unreadable(file, &error)),
    };
    let whole: Table = text.parse().map_err(|error: toml::de::Error| fault::config_unreadable(file, &place(&text, &error)))?;
    let mut chosen = Table::new();
    for path in paths.iter().filter(|path| path.first().is_some_and(|key| TOLD.contains(&key.as_str()))) {
        choose(&whole, path, &mut chosen);
    }
    let (Some(directory), false) = (file.parent(), chosen.is_empty()) else { return nothing };
    let base_dir = PathUri::from_native(directory).map_err(fault::path)?;
    let toml = toml::to_string(&chosen).map_err(|error| fault::config_unreadable(file, &error))?;
    let layer = ConfigLayer { source: format!("{kind} ({})", file.display()), base_dir, toml };
    Ok(ConfigLayers { layers: vec![layer], cloud_insertion_index: 0 })
}

/// Where in a text something is wrong, and what.
fn place(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1);
    format!("line {line}, column {column}: {}", error.message())
}

/// Copies what is at a path, and the tables on the way to it. A path that leads into a value stops there.
fn choose(from: &Table, path: &[String], into: &mut Table) {
    let Some((key, rest)) = path.split_first() else { return };
    match (from.get(key), rest) {
        (None, _) => {}
        (Some(Value::Table(inner)), [_, ..]) => {
            if let Value::Table(place) = into.entry(key.clone()).or_insert_with(|| Value::Table(Table::new())) {
                choose(inner, rest, place);
            }
        }
        (Some(value), _) => drop(into.insert(key.clone(), value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, paths: &[&[&str]]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let paths: Vec<Vec<String>> = paths.iter().map(|path| path.iter().map(|&key| key.to_owned()).collect()).collect();
        let layers = layers("user", Some(&file), &paths).unwrap();
        layers.layers.into_iter().map(|layer| layer.toml).collect()
    }

    #[test]
    fn only_what_was_asked_for_is_told() {
        let text = "model = \"m\"\n[mcp_servers.h]\nurl = \"u\"\ncommand = \"c\"\n[mcp_servers.i]\nurl = \"v\"\n";
        assert_eq!(told(text, &[&["model"], &["mcp_servers", "h", "url"]]), "model = \"m\"\n\n[mcp_servers.h]\nurl = \"u\"\n");
        assert_eq!(told(text, &[&["model", "deeper"]]), "model = \"m\"\n");
        assert_eq!(told(text, &[&["nothing"]]), "");
    }

    #[test]
    fn keys_that_may_hold_secrets_are_not_told() {
        let text = "store = \"postgres://u:p@h/d\"\n[model_providers.x]\nhttp_headers = { a = \"secret\" }\n";
        assert_eq!(told(text, &[&["store"], &["model_providers"]]), "");
    }
}
