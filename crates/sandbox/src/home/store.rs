//! Where the layers are kept: a directory for each workspace, with a slot for each session that uses it at the same time.
//!
//! A slot is one session's as long as its lock is held. Sessions one after the other use the same slot and find what the last one left.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use crate::tree::{directories, remove_tree};

/// The file that says which workspace a directory is for.
const OWNER: &str = "workspace";
const LOCK: &str = "lock";
/// So many sessions have a layer of one workspace at the same time; further ones have theirs in memory.
const SLOTS: usize = 16;

/// All layers of a home of ours.
#[derive(Debug, Clone)]
pub struct Layers(PathBuf);

/// The layers of one workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerInfo {
    pub workspace: PathBuf,
    pub bytes: u64,
    /// Whether a session uses it now.
    pub is_in_use: bool,
    /// When a session last began to use it.
    pub used: Option<SystemTime>,
}

/// One session's layer of a workspace.
#[derive(Debug)]
pub struct Slot {
    path: PathBuf,
    _lock: File,
}

impl Slot {
    /// Holds `upper` and `work`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes on the disk.
    pub fn size(&self) -> u64 {
        size(&self.path)
    }

    /// Forgets what was written. No cell may have it mounted.
    pub fn empty(&self) -> io::Result<()> {
        ["upper", "work"].iter().try_for_each(|name| remove_tree(&self.path.join(name)))?;
        fill(&self.path)
    }
}

impl Layers {
    pub fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// A layer of a workspace that no other session uses.
    pub fn take(&self, workspace: &Path) -> io::Result<Slot> {
        let directory = self.directory(workspace)?;
        for number in 0..SLOTS {
            let path = directory.join(number.to_string());
            make(&path)?;
            let Some(lock) = lock(&path)? else { continue };
            // It says when it was last used.
            lock.set_modified(SystemTime::now())?;
            fill(&path)?;
            return Ok(Slot { path: path.canonicalize()?, _lock: lock });
        }
        Err(io::Error::other(format!("{SLOTS} sessions use the layer of {} already", workspace.display())))
    }

    /// The directory of a workspace, made if need be. Its name is a number; the file in it says whose it is.
    fn directory(&self, workspace: &Path) -> io::Result<PathBuf> {
        make(&self.0)?;
        let number = fingerprint(workspace);
        for more in 0_u64.. {
            let path = self.0.join(format!("{:016x}", number.wrapping_add(more)));
            make(&path)?;
            let owner = path.join(OWNER);
            match File::options().write(true).create_new(true).mode(0o600).open(&owner) {
                Ok(mut file) => {
                    io::Write::write_all(&mut file, workspace.as_os_str().as_bytes())?;
                    return Ok(path);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let known = fs::read(&owner)?;
                    // Half of a name is what a kill left of it.
                    if known == workspace.as_os_str().as_bytes() {
                        return Ok(path);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// What is kept, by workspace.
    pub fn list(&self) -> io::Result<Vec<LayerInfo>> {
        let mut found = Vec::new();
        for directory in directories(&self.0)? {
            let Ok(workspace) = fs::read(directory.join(OWNER)) else { continue };
            let slots = directories(&directory)?;
            let used = slots.iter().filter_map(|slot| fs::metadata(slot.join(LOCK)).and_then(|lock| lock.modified()).ok()).max();
            let is_in_use = slots.iter().any(|slot| is_locked(slot));
            let workspace = PathBuf::from(OsStr::from_bytes(&workspace));
            found.push(LayerInfo { workspace, bytes: size(&directory), is_in_use, used });
        }
        found.sort_by(|a, b| a.workspace.cmp(&b.workspace));
        Ok(found)
    }

    /// Removes the layers of a workspace. Those that a session uses stay; returns how many.
    pub fn clear(&self, workspace: &Path) -> io::Result<usize> {
        let mut busy = 0;
        for directory in directories(&self.0)? {
            if !fs::read(directory.join(OWNER)).is_ok_and(|known| known == workspace.as_os_str().as_bytes()) {
                continue;
            }
            for slot in directories(&directory)? {
                match lock(&slot)? {
                    Some(_held) => remove_tree(&slot)?,
                    None => busy += 1,
                }
            }
            if busy == 0 {
                fs::remove_file(directory.join(OWNER))?;
                let _ = fs::remove_dir(&directory);
            }
        }
        Ok(busy)
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn fill(slot: &Path) -> io::Result<()> {
    for (name, mode) in [("upper", 0o755), ("work", 0o700)] {
        let path = slot.join(name);
        match DirBuilder::new().mode(mode).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The lock of a slot, unless another process holds it.
fn lock(slot: &Path) -> io::Result<Option<File>> {
    let path = slot.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // A program that removed the slot meanwhile removed this file, too.
    let is_current = fs::metadata(&path).is_ok_and(|known| file.metadata().is_ok_and(|own| own.ino() == known.ino()));
    Ok(is_current.then_some(file))
}

fn is_locked(slot: &Path) -> bool {
    File::open(slot.join(LOCK)).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// FNV-1a: two workspaces of one number are told apart by their names.
fn fingerprint(path: &Path) -> u64 {
    path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a tree takes on the disk. What cannot be read counts as nothing.
pub(crate) fn size(path: &Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sessions_one_after_the_other_share_a_layer() {
        let directory = tempfile::tempdir().unwrap();
        let layers = Layers::new(directory.path().join("layers"));
        assert!(layers.list().unwrap().is_empty());
        let (a, b) = (Path::new("/w/a"), Path::new("/w/b"));
        let first = layers.take(a).unwrap();
        fs::write(first.path().join("upper/x"), [0; 1 << 16]).unwrap();
        let beside = layers.take(a).unwrap();
        assert_ne!(first.path(), beside.path());
        assert!(!layers.take(b).unwrap().path().join("upper/x").exists());
        let kept = first.path().to_owned();
        drop(first);
        let again = layers.take(a).unwrap();
        assert!(again.path() == kept && again.path().join("upper/x").exists());
        let listed = layers.list().unwrap();
        let told: Vec<_> = listed.iter().map(|layer| (layer.workspace.as_path(), layer.is_in_use, layer.bytes >= 1 << 16)).collect();
        assert_eq!(told, [(a, true, true), (b, false, false)]);
        assert_eq!(layers.clear(a).unwrap(), 2, "both are in use");
        assert!(again.path().join("upper/x").exists());
        again.empty().unwrap();
        assert!(again.path().join("upper").is_dir() && !again.path().join("upper/x").exists());
        drop((again, beside));
        assert_eq!(layers.clear(a).unwrap(), 0);
        assert_eq!(layers.list().unwrap().len(), 1);
    }

    #[test]
    fn what_was_closed_inside_can_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let layers = Layers::new(directory.path().join("layers"));
        let slot = layers.take(Path::new("/w")).unwrap();
        let closed = slot.path().join("upper/a/b");
        fs::create_dir_all(&closed).unwrap();
        fs::write(closed.join("x"), "").unwrap();
        for path in [&closed, closed.parent().unwrap()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
        drop(slot);
        assert_eq!(layers.clear(Path::new("/w")).unwrap(), 0);
        assert!(layers.list().unwrap().is_empty());
    }
}
