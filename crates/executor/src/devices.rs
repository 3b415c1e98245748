//! Devices that a request wants its sandbox to show besides the harmless ones: by kind, or by path, as far as this machine has them.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

const DEV: &str = "/dev";
/// Names that would undo what a sandbox promises: memory and log of the kernel, and terminals of others.
const NEVER: [&str; 9] = ["mem", "kmem", "port", "kmsg", "console", "ptmx", "pts", "tty", "vcs"];

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum DeviceError {
    #[error("`{0}` is not a device that can be shown; name \"nvidia\", \"dri\" or a path below /dev")]
    Name(String),
    #[error("{} is never shown in a sandbox: it would give more than a device", .0.display())]
    Never(PathBuf),
    #[error("{} is not a character device", .0.display())]
    Kind(PathBuf),
}

/// The nodes that these names mean here, in order, each once. What this machine does not have is left out.
pub(crate) fn find(names: &[String]) -> Result<Vec<PathBuf>, DeviceError> {
    find_below(Path::new(DEV), names)
}

fn find_below(dev: &Path, names: &[String]) -> Result<Vec<PathBuf>, DeviceError> {
    let mut found = Vec::new();
    for name in names {
        match name.as_str() {
            "nvidia" => {
                found.extend(nodes(dev, "nvidia"));
                found.extend(nodes(&dev.join("nvidia-caps"), ""));
            }
            "dri" => found.extend(nodes(&dev.join("dri"), "")),
            path => found.extend(node(dev, path)?),
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Character devices in a directory whose names begin like this.
fn nodes(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_meant = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(prefix) && entry.file_type().is_ok_and(|kind| kind.is_char_device())
    };
    entries.filter(is_meant).map(|entry| entry.path()).collect()
}

/// One device by its path, if it is there.
fn node(dev: &Path, name: &str) -> Result<Option<PathBuf>, DeviceError> {
    let wrong = || DeviceError::Name(name.to_owned());
    let below = Path::new(name).strip_prefix(DEV).map_err(|_| wrong())?;
    let mut parts = below.components();
    let first = match parts.next() {
        Some(Component::Normal(first)) if parts.all(|part| matches!(part, Component::Normal(_))) => first.to_string_lossy(),
        _ => return Err(wrong()),
    };
    let is_forbidden = NEVER.iter().any(|never| first == *never || (matches!(*never, "tty" | "vcs") && first.starts_with(never)));
    if is_forbidden {
        return Err(DeviceError::Never(PathBuf::from(name)));
    }
    let path = dev.join(below);
    // A link could be led elsewhere later; what it leads to has a path of its own.
    match fs::symlink_metadata(&path) {
        Err(_) => Ok(None),
        Ok(metadata) if metadata.file_type().is_char_device() => Ok(Some(path)),
        Ok(_) => Err(DeviceError::Kind(PathBuf::from(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_paths_are_resolved_and_nothing_dangerous_is() {
        let names = |names: &[&str]| find(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["/dev/null", "/dev/zero", "/dev/null"]).unwrap(), [Path::new("/dev/null"), Path::new("/dev/zero")]);
        assert_eq!(names(&["/dev/no-such-device"]).unwrap(), Vec::<PathBuf>::new());
        for wrong in ["gpu", "null", "/etc/passwd", "/dev", "/dev/../etc/passwd", ""] {
            assert_eq!(names(&[wrong]), Err(DeviceError::Name(wrong.into())), "{wrong}");
        }
        for never in ["/dev/mem", "/dev/kmsg", "/dev/tty1", "/dev/ttyS0", "/dev/pts/0", "/dev/ptmx", "/dev/vcs1"] {
            assert_eq!(names(&[never]), Err(DeviceError::Never(never.into())), "{never}");
        }
        assert_eq!(names(&["/dev/shm"]), Err(DeviceError::Kind("/dev/shm".into())));
        let empty = tempfile::tempdir().unwrap();
        std::fs::write(empty.path().join("nvidia0"), "").unwrap();
        assert_eq!(find_below(empty.path(), &["nvidia".into(), "dri".into()]).unwrap(), Vec::<PathBuf>::new());
    }
}
