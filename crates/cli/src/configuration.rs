//! `config.toml` of the home of this process, and telling what is wrong with it. What may stand there: the crate `config`.

use std::path::Path;

use outpost_config::{Config, ConfigError};

use crate::home::Home;
use crate::out::say;

/// Reads the file, if there is one, puts `key=value` over it, and tells which keys have no effect.
pub(crate) fn load(file: Option<&Path>, overrides: &[String]) -> Result<Config, ConfigError> {
    let config = Config::read(file, overrides)?;
    for unknown in config.unknown() {
        say(&format!("{}: `{}` is not known and has no effect; docs/configuration.md lists every key", unknown.place, unknown.key));
    }
    Ok(config)
}

/// The variables that hold keys to providers of models. A configuration that cannot be read names none; code that needs it
/// says what is wrong with it.
pub(crate) fn key_variables(overrides: &[String]) -> Vec<String> {
    let file = Home::from_environment().map(|home| home.config());
    Config::read(file.as_deref(), overrides).map(Config::key_variables).unwrap_or_default()
}
