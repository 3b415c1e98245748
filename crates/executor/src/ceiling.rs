//! The operator's ceiling: a small file that says what no request can exceed.
//!
//! ```toml
//! network = "restricted"        # or "enabled"; restricted if it is left out
//! read = ["/"]
//! write = ["/srv/work", "/tmp"]
//! deny = ["/srv/work/secret", "/srv/**/*.pem"]
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_sandbox::policy::{Access, Glob, GlobError, Network, Origin, Policy, Rule, Rules};
use serde::Deserialize;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CeilingError {
    #[error("the ceiling is not understood: {0}")]
    Text(#[from] toml::de::Error),
    #[error("the ceiling names {}, which is not an absolute path without `.` and `..`", .0.display())]
    Relative(PathBuf),
    #[error("the ceiling names {path}, which cannot be resolved: {error}", path = .path.display())]
    Unresolved { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Pattern(#[from] GlobError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    network: FileNetwork,
    #[serde(default)]
    read: Vec<PathBuf>,
    #[serde(default)]
    write: Vec<PathBuf>,
    #[serde(default)]
    deny: Vec<PathBuf>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum FileNetwork {
    #[default]
    Restricted,
    Enabled,
}

/// Reads a ceiling from the text of its file.
pub fn parse(text: &str) -> Result<Policy, CeilingError> {
    let file: File = toml::from_str(text)?;
    let mut rules = Vec::new();
    let mut globs = Vec::new();
    for (paths, access) in [(&file.read, Access::Read), (&file.write, Access::Write), (&file.deny, Access::Deny)] {
        for path in paths {
            let text = path.to_string_lossy();
            if access == Access::Deny && text.contains(['*', '?', '[']) {
                globs.push(Glob::new(text)?);
            } else {
                rules.push(Rule { path: checked(path)?, access, origin: Origin::Ceiling });
            }
        }
    }
    let network = match file.network {
        FileNetwork::Restricted => Network::Restricted,
        FileNetwork::Enabled => Network::Enabled,
    };
    Ok(Policy::Confined(Arc::new(Rules::new(rules, globs, network))))
}

fn checked(path: &Path) -> Result<PathBuf, CeilingError> {
    use std::path::Component::{Normal, RootDir};
    if !path.is_absolute() || !path.components().all(|part| matches!(part, RootDir | Normal(_))) {
        return Err(CeilingError::Relative(path.to_owned()));
    }
    match path.canonicalize() {
        Ok(path) => Ok(path),
        // What is not there yet cannot be a link yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(CeilingError::Unresolved { path: path.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_rules() {
        let policy = parse("read = ['/']\nwrite = ['/srv/none']\ndeny = ['/srv/none/secret', '/**/*.pem']").unwrap();
        let rules = policy.rules().unwrap();
        assert_eq!(rules.access(Path::new("/srv/none/x")).access, Access::Write);
        assert_eq!(rules.access(Path::new("/srv/none/secret/x")).access, Access::Deny);
        assert_eq!(rules.access(Path::new("/etc/x.pem")).access, Access::Deny);
        assert_eq!(rules.network, Network::Restricted);
    }

    #[test]
    fn mistakes_are_told() {
        assert!(parse("reed = ['/']").unwrap_err().to_string().contains("reed"));
        assert!(matches!(parse("read = ['x']"), Err(CeilingError::Relative(_))));
        assert!(matches!(parse("read = ['/a/../b']"), Err(CeilingError::Relative(_))));
        assert!(parse("network = 'some'").is_err());
    }
}
