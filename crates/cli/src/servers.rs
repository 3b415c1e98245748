//! The MCP servers of `config.toml` and what is required of all servers, read anew on each request, and watched for changes.

use std::path::{Path, PathBuf};

use outpost_config::Config;
use outpost_environment::config::ConfigWatch;
use outpost_runtime::mcp::{Configured, LayerSource, Requirements, ServerLayer};
use outpost_wire::SharedError;
use tokio::sync::watch;

use crate::home::Home;
use crate::out::with_causes;

use crate::lock::FILE as REQUIREMENTS;

/// Where the runtime has its servers from.
pub(crate) fn source(home: &Home, config: &Config) -> LayerSource {
    let (config, required) = (config.clone(), [PathBuf::from(REQUIREMENTS), home.requirements()]);
    let files: Vec<PathBuf> = [home.config()].into_iter().chain(required.clone()).collect();
    let servers = move || {
        let now = config.read_again().map_err(|error| {
            let error = anyhow::Error::from(error);
            SharedError::worded(with_causes(&error), error)
        })?;
        ServerLayer::of(now.mcp_servers.as_ref()).map_err(|error| SharedError::worded(format!("config.toml: {error}"), error))
    };
    let read = move |_: Option<&str>| Configured { servers: servers(), requirements: requirements(&required) };
    LayerSource::new(read).with_changes(move || follow(files.clone()))
}

/// What is required of every server of this home.
pub(crate) fn required(home: &Home) -> Requirements {
    requirements(&[PathBuf::from(REQUIREMENTS), home.requirements()])
}

/// A file that is not there requires nothing; one that cannot be read lets nothing through.
fn requirements(files: &[PathBuf]) -> Requirements {
    let mut requirements = Requirements::default();
    for file in files {
        let name = file.display().to_string();
        match read(file) {
            Ok(table) => requirements.add(name, table.get("mcp_servers")),
            Err(why) => requirements.add_unreadable(name, why),
        }
    }
    requirements
}

fn read(file: &Path) -> Result<serde_json::Value, String> {
    match std::fs::read_to_string(file) {
        Ok(text) => toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.matches('\n').count() + 1);
            format!("line {line}: {}", error.message())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(error) => Err(error.to_string()),
    }
}

/// Counts the changes of these files for as long as there is a listener.
fn follow(files: Vec<PathBuf>) -> Option<watch::Receiver<u64>> {
    let unheard = |error: &outpost_environment::config::WatchError| tracing::warn!(%error, "changes are noticed only by the next request");
    let mut watch = ConfigWatch::of_all(files).inspect_err(unheard).ok()?;
    let (sender, receiver) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                is_heard = watch.changed() => if !is_heard { return },
                () = sender.closed() => return,
            }
            sender.send_modify(|count| *count += 1);
        }
    });
    Some(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_from_all_files_and_none_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        assert_eq!(requirements(&[file("none")]), Requirements::default());
        std::fs::write(file("other"), "allowed_approval_policies = [\"never\"]\n").unwrap();
        assert_eq!(requirements(&[file("other")]), Requirements::default());
        std::fs::write(file("broken"), "mcp_servers = {").unwrap();
        assert_ne!(requirements(&[file("none"), file("broken")]), Requirements::default());
    }
}
