//! The way from the root to a path: every name on it, and the directory in which the system looks it up.
//!
//! Whether a path is there can only change when one of these names changes in its directory.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::statfs;
use rustix::io::Errno;

/// As many links as the system itself would follow.
pub(crate) const MAX_LINKS: usize = 40;

/// Filesystems on which things change without a notification: those that the kernel makes up, and those of other
/// machines. The numbers are those of statfs(2).
const UNTOLD: [u64; 17] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup 2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
    0x6969,      // nfs
    0x517b,      // smb
    0xff53_4d42, // cifs
    0xfe53_4d42, // smb 2
    0x6573_5546, // fuse
    0x0102_1997, // 9p
    0x00c3_6400, // ceph
    0x5346_414f, // afs
];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trail {
    /// Real directories, to be watched.
    pub directories: BTreeSet<PathBuf>,
    /// Real paths inside them: whatever happens to one of these matters.
    pub names: BTreeSet<PathBuf>,
}

/// What is at the end of a trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrailEnd {
    Present,
    Missing,
}

/// Whether a link at the end of the path is what is meant, or where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Meant,
    Followed,
}

impl Trail {
    /// Adds the way to a path, as far as there is one.
    pub(super) fn add(&mut self, path: &Path, last: LastLink) -> io::Result<TrailEnd> {
        let mut at = PathBuf::from("/");
        let mut ahead = names_from_root(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(name);
            self.directories.insert(at.clone());
            self.names.insert(next.clone());
            match fs::symlink_metadata(&next) {
                Ok(metadata) if metadata.is_symlink() && !(ahead.is_empty() && last == LastLink::Meant) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = fs::read_link(&next)?;
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    ahead.extend(names_from_root(&target));
                }
                Ok(metadata) if metadata.is_symlink() => {}
                Ok(_) => at = next,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    refuse_untold(&at)?;
                    return Ok(TrailEnd::Missing);
                }
                Err(error) => return Err(error),
            }
        }
        refuse_untold(&at)?;
        Ok(TrailEnd::Present)
    }
}

/// The names of a path, the first one last.
pub(crate) fn names_from_root(path: &Path) -> Vec<OsString> {
    let relevant = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(relevant).map(|component| component.as_os_str().to_owned()).collect()
}

fn refuse_untold(path: &Path) -> io::Result<()> {
    let kind = statfs(path)?.f_type;
    // The sign and the width of the number differ between machines.
    let kind = u64::from(kind as u32);
    if UNTOLD.contains(&kind) { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// Whether the system tells of all changes where a directory is.
pub(crate) fn tells_changes(directory: &Path) -> bool {
    refuse_untold(directory).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_name_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("real/sub")).unwrap();
        symlink("real", root.join("link")).unwrap();
        let mut trail = Trail::default();
        assert_eq!(trail.add(&root.join("link/sub/x/y"), LastLink::Meant).unwrap(), TrailEnd::Missing);
        for name in ["link", "real", "real/sub", "real/sub/x"] {
            assert!(trail.names.contains(&root.join(name)), "{name}");
        }
        assert!(!trail.names.contains(&root.join("real/sub/x/y")));
        assert!(trail.names.contains(&root) && trail.directories.contains(Path::new("/")));
        assert!(trail.directories.contains(&root.join("real/sub")) && !trail.directories.contains(&root.join("link")));
    }

    #[test]
    fn a_link_at_the_end_may_be_meant_or_followed() {
        let root = tempfile::tempdir().unwrap();
        symlink("nowhere", root.path().join("broken")).unwrap();
        symlink("circle", root.path().join("circle")).unwrap();
        let end = |name: &str, last| Trail::default().add(&root.path().join(name), last).ok();
        assert_eq!(end("broken", LastLink::Meant), Some(TrailEnd::Present));
        assert_eq!(end("broken", LastLink::Followed), Some(TrailEnd::Missing));
        assert_eq!(end("circle", LastLink::Followed), None);
    }

    #[test]
    fn where_nothing_is_told_there_is_no_trail() {
        assert!(Trail::default().add(Path::new("/proc/nope"), LastLink::Meant).is_err());
        assert!(Trail::default().add(Path::new("/proc/1"), LastLink::Followed).is_err());
        assert_eq!(Trail::default().add(Path::new("/"), LastLink::Followed).unwrap(), TrailEnd::Present);
    }
}
