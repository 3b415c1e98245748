//! The operator's ceiling: a small file that says what no request can exceed.
//!
//! ```toml
//! network = "restricted"        # or "enabled"; restricted if it is left out
//! read = ["/"]
//! write = ["/srv/work", "/tmp"]
//! deny = ["/srv/work/secret", "/srv/**/*.pem"]
//! devices = ["dri"]
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_sandbox::policy::{NetworkRule, PathAccess, PathRule, PathRules, Policy, RuleOrigin};
use serde::Deserialize;
use thiserror::Error;

use crate::devices;
use crate::policy::{PolicyError, follow, globs as meant_by};

#[derive(Debug, Error)]
pub enum CeilingError {
    #[error("the ceiling is not understood: {0}")]
    Text(#[from] toml::de::Error),
    #[error("the ceiling names {}, which is not an absolute path without `.` and `..`", .0.display())]
    Relative(PathBuf),
    #[error("the ceiling: {0}")]
    Unusable(#[from] PolicyError),
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
    /// Devices that sandboxes may show besides the harmless ones.
    #[serde(default)]
    devices: Vec<String>,
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
    let mut links = Vec::new();
    for (paths, access) in [(&file.read, PathAccess::Read), (&file.write, PathAccess::Write), (&file.deny, PathAccess::Deny)] {
        for path in paths {
            check(path)?;
            let text = path.to_string_lossy();
            if access == PathAccess::Deny && text.contains(['*', '?', '[']) {
                globs.extend(meant_by(Path::new("/"), &text, &mut |path| {
                    let led = follow(path)?;
                    links.push((led.links, access));
                    Ok(vec![led.real])
                })?);
            } else {
                let led = follow(path)?;
                rules.push(PathRule { path: led.real, access, origin: RuleOrigin::Ceiling });
                if access != PathAccess::Write {
                    links.push((led.links, access));
                }
            }
        }
    }
    let network = match file.network {
        FileNetwork::Restricted => NetworkRule::Restricted,
        FileNetwork::Enabled => NetworkRule::Enabled,
    };
    let devices = devices::find(&file.devices).map_err(PolicyError::from)?;
    let rules = PathRules::new(rules, globs, network).with_devices(devices);
    let rules = links.into_iter().fold(rules, |rules, (links, access)| rules.led_by(links, access));
    Ok(Policy::Confined(Arc::new(rules)))
}

fn check(path: &Path) -> Result<(), CeilingError> {
    use std::path::Component::{Normal, RootDir};
    let is_plain = path.is_absolute() && path.components().all(|part| matches!(part, RootDir | Normal(_)));
    if is_plain { Ok(()) } else { Err(CeilingError::Relative(path.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_rules() {
        let policy = parse("read = ['/']\nwrite = ['/srv/none']\ndeny = ['/srv/none/secret', '/**/*.pem']").unwrap();
        let rules = policy.rules().unwrap();
        assert_eq!(rules.access(Path::new("/srv/none/x")).access, PathAccess::Write);
        assert_eq!(rules.access(Path::new("/srv/none/secret/x")).access, PathAccess::Deny);
        assert_eq!(rules.access(Path::new("/etc/x.pem")).access, PathAccess::Deny);
        assert_eq!(rules.network, NetworkRule::Restricted);
    }

    #[test]
    fn what_lies_behind_a_link_is_held_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (real, odd) = (root.join("real"), root.join("[id]"));
        std::fs::create_dir(&real).unwrap();
        std::fs::create_dir(&odd).unwrap();
        std::os::unix::fs::symlink(&real, root.join("link")).unwrap();
        let text = format!("read = ['/']\ndeny = ['{0}/link/**/*.env', '{0}/link/later/secret', '{0}/[id]/*.key']", root.display());
        let policy = parse(&text).unwrap();
        let access = |path: PathBuf| policy.rules().unwrap().access(&path).access;
        assert_eq!([access(real.join("a/b.env")), access(real.join("later/secret/x"))], [PathAccess::Deny, PathAccess::Deny]);
        assert_eq!([access(odd.join("a.key")), access(root.join("i/a.key"))], [PathAccess::Deny, PathAccess::Deny]);
        assert_eq!(access(real.join("later/x")), PathAccess::Read);
        std::os::unix::fs::symlink("/nowhere/at/all", root.join("broken")).unwrap();
        assert!(parse(&format!("deny = ['{}/broken']", root.display())).unwrap_err().to_string().contains("broken"));
    }

    #[test]
    fn mistakes_are_told() {
        assert!(parse("reed = ['/']").unwrap_err().to_string().contains("reed"));
        assert!(matches!(parse("read = ['x']"), Err(CeilingError::Relative(_))));
        assert!(matches!(parse("read = ['/a/../b']"), Err(CeilingError::Relative(_))));
        assert!(parse("network = 'some'").is_err());
    }
}
