//! The home of the executor's user in a sandbox: which of its directories are written into a layer of the workspace, which files hold
//! keys and tokens, and where the layers are kept.
//!
//! This room knows names of tools and the formats of their settings. It must not know how the view of a sandbox is built.

mod defaults;
mod scrub;
mod store;

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use defaults::{DIRECTORIES, HIDDEN, MIXED};
pub use scrub::{public_files, read_without_secrets, without_secrets};
pub(crate) use store::size;
pub use store::{LayerInfo, Layers, Slot};

use crate::policy::trace;

/// So long is what was found in the home taken for current: it is asked for with every policy.
const CURRENT: Duration = Duration::from_secs(10);
/// What a sandbox has of its own, or what no home lies in.
const ELSEWHERE: [&str; 6] = ["/tmp", "/run", "/dev", "/proc", "/sys", "/etc"];

/// Names below a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeSettings {
    /// What is written into a layer.
    pub directories: Vec<PathBuf>,
    /// What is not shown.
    pub hidden: Vec<PathBuf>,
    /// What is shown without its secrets.
    pub mixed: Vec<PathBuf>,
}

impl Default for HomeSettings {
    fn default() -> Self {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        Self { directories: paths(DIRECTORIES), hidden: paths(HIDDEN), mixed: paths(MIXED) }
    }
}

impl HomeSettings {
    /// Takes names out of what is hidden or shown without secrets: these, and everything below them.
    pub fn show(&mut self, path: &Path) {
        self.hidden.retain(|hidden| !hidden.starts_with(path));
        self.mixed.retain(|mixed| !mixed.starts_with(path));
    }
}

/// A name below a home as it may be written into a configuration: with `~/` before it or without, never leading out.
pub fn name(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text.strip_prefix("~/").unwrap_or(text));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().next().is_some();
    if is_plain { Ok(path.to_owned()) } else { Err(format!("`{text}` is not a path below the home, such as `.cache` or `~/.config/tool`")) }
}

/// A home as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHome {
    /// Resolved.
    pub home: PathBuf,
    /// Relative to the home, without links.
    pub directories: Vec<PathBuf>,
    pub hidden: Vec<PathBuf>,
    pub mixed: Vec<PathBuf>,
    /// What is hidden and lies behind a link that leads out of the home: absolute.
    pub outside: Vec<PathBuf>,
}

/// A home that is looked at again and again.
#[derive(Debug)]
pub struct SandboxHome {
    path: PathBuf,
    settings: HomeSettings,
    known: Mutex<Option<(Instant, Option<Arc<KnownHome>>)>>,
}

impl SandboxHome {
    pub fn new(path: PathBuf, settings: HomeSettings) -> Self {
        Self { path, settings, known: Mutex::default() }
    }

    /// Nothing if there is no home, or none that a layer could be put over.
    pub fn known(&self) -> Option<Arc<KnownHome>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, found)) = &*known
            && since.elapsed() < CURRENT
        {
            return found.clone();
        }
        let found = find(&self.path, &self.settings).map(Arc::new);
        *known = Some((Instant::now(), found.clone()));
        found
    }
}

fn find(path: &Path, settings: &HomeSettings) -> Option<KnownHome> {
    let home = path.canonicalize().ok().filter(|home| home.is_dir())?;
    let is_elsewhere = ELSEWHERE.iter().any(|top| home.starts_with(top));
    if is_elsewhere || home.parent().is_none() {
        return None;
    }
    let mut outside = Vec::new();
    let mut inside = |paths: &[PathBuf], is_secret: bool| {
        let mut found = Vec::new();
        for path in paths {
            let real = trace(&home.join(path)).map_or_else(|_| home.join(path), |led| led.real);
            match real.strip_prefix(&home) {
                Ok(inner) if !inner.as_os_str().is_empty() => found.push(inner.to_owned()),
                // A directory that is the home itself, or is somewhere else, cannot be written.
                _ if is_secret && real.exists() => outside.push(real),
                _ => {}
            }
        }
        found.sort();
        found.dedup();
        found
    };
    let directories = inside(&settings.directories, false);
    let hidden = inside(&settings.hidden, true);
    let mixed = inside(&settings.mixed, true);
    Some(KnownHome { directories, hidden, mixed, outside, home })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_in_a_home_are_followed() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let root = directory.path().canonicalize().unwrap();
        let home = root.join("home");
        fs::create_dir_all(home.join("dotfiles/config")).unwrap();
        fs::create_dir(root.join("keys")).unwrap();
        symlink("dotfiles/config", home.join(".config")).unwrap();
        symlink(root.join("keys"), home.join(".ssh")).unwrap();
        symlink("/var", home.join(".cache")).unwrap();
        let settings = HomeSettings {
            directories: [".config", ".cache", ".npm"].map(PathBuf::from).to_vec(),
            hidden: [".ssh", ".config/gh"].map(PathBuf::from).to_vec(),
            mixed: vec![".npmrc".into()],
        };
        let known = SandboxHome::new(home.clone(), settings).known().unwrap();
        assert_eq!(known.directories, [".npm", "dotfiles/config"].map(PathBuf::from));
        assert_eq!(known.hidden, [PathBuf::from("dotfiles/config/gh")]);
        assert_eq!((known.mixed.clone(), known.outside.clone()), (vec![".npmrc".into()], vec![root.join("keys")]));
        for none in ["/", "/tmp", "/nonexistent", "/etc/passwd"] {
            assert!(SandboxHome::new(none.into(), HomeSettings::default()).known().is_none(), "{none}");
        }
    }

    #[test]
    fn names_stay_below_the_home() {
        assert_eq!(name("~/.config/x").unwrap(), PathBuf::from(".config/x"));
        for wrong in ["/etc", "..", "a/../b", "", "~"] {
            assert!(name(wrong).is_err() || wrong == "~", "{wrong}");
        }
        let mut settings = HomeSettings::default();
        settings.show(Path::new(".aws"));
        assert!(!settings.hidden.contains(&".aws".into()) && settings.hidden.contains(&".ssh".into()));
    }
}
