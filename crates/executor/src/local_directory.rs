//! A directory of this machine for sockets and locks, for homes that are on a network.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// File systems on which sockets and locks reach beyond this machine, or do not work at all, by the numbers of statfs(2).
const REMOTE: [u64; 12] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2
    0x0102_1997, // 9P
    0x6573_5546, // FUSE: sshfs and many cluster file systems
    0x00c3_6400, // Ceph
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x5346_414f, // AFS
    0x7375_7245, // Coda
];

/// Whether a path is, or would be, on a file system of other machines.
pub fn is_remote(path: &Path) -> bool {
    let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "the type of this number differs between architectures")]
    rustix::fs::statfs(existing).is_ok_and(|found| REMOTE.contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// Where directories for this user may be: what the session manager made, or one below the temporary directory.
#[derive(Debug, Clone)]
pub struct LocalDirectories {
    /// `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    /// Where session managers make such directories, with the number of the user.
    pub usual: PathBuf,
    pub temporary: PathBuf,
}

impl LocalDirectories {
    pub fn of_this_user(runtime: Option<PathBuf>) -> Self {
        let user = geteuid().as_raw();
        Self {
            runtime: runtime.filter(|path| path.is_absolute()),
            usual: format!("/run/user/{user}").into(),
            temporary: format!("/tmp/outpost-{user}").into(),
        }
    }

    /// The directory that [`Self::choose`] would give, if it is there already.
    pub fn find(&self) -> Option<PathBuf> {
        let usable = |path: &&PathBuf| check(path).is_ok() && !is_remote(path);
        let first = self.runtime.iter().chain([&self.usual]).find(usable).map(|path| path.join("outpost"));
        Some(first.unwrap_or_else(|| self.temporary.clone())).filter(|path| check(path).is_ok())
    }

    /// A directory that is this user's alone, made if need be. Another user may have made one of that name below a temporary
    /// directory, where every user can: then it is not used.
    pub fn choose(&self) -> io::Result<PathBuf> {
        for path in self.runtime.iter().chain([&self.usual]) {
            if check(path).is_ok() && !is_remote(path) {
                let own = path.join("outpost");
                make(&own)?;
                return Ok(own);
            }
        }
        make(&self.temporary)?;
        Ok(self.temporary.clone())
    }
}

/// Makes a directory for this user alone, or sees that it is one.
pub fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(io::Error::new(error.kind(), format!("cannot make {}: {error}", path.display())))
        }
        _ => check(path),
    }
}

fn check(path: &Path) -> io::Result<()> {
    // Not what a link leads to: that could change at any time.
    let found = fs::symlink_metadata(path)?;
    let problem = if !found.is_dir() {
        "is not a directory"
    } else if found.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "is open to other users"
    } else {
        return Ok(());
    };
    let advice = "remove it, or set XDG_RUNTIME_DIR to a directory of mode 0700 that is yours";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {problem}; {advice}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn directories(base: &Path) -> LocalDirectories {
        LocalDirectories { runtime: Some(base.join("runtime")), usual: base.join("usual"), temporary: base.join("temporary") }
    }

    #[test]
    fn the_first_that_is_private_is_used() {
        let base = tempfile::tempdir().unwrap();
        let directories = directories(base.path());
        assert_eq!(directories.choose().unwrap(), base.path().join("temporary"));
        assert_eq!(fs::metadata(base.path().join("temporary")).unwrap().mode() & 0o777, 0o700);
        make(&base.path().join("usual")).unwrap();
        assert_eq!(directories.choose().unwrap(), base.path().join("usual/outpost"));
        make(&base.path().join("runtime")).unwrap();
        assert_eq!(directories.choose().unwrap(), base.path().join("runtime/outpost"));
        fs::set_permissions(base.path().join("runtime"), PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(directories.choose().unwrap(), base.path().join("usual/outpost"), "others could put something there");
    }

    #[test]
    fn what_another_user_could_have_put_there_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let directories = directories(base.path());
        make(&base.path().join("mine")).unwrap();
        symlink(base.path().join("mine"), base.path().join("temporary")).unwrap();
        let refused = directories.choose().unwrap_err().to_string();
        assert!(refused.contains("is not a directory") && refused.contains("XDG_RUNTIME_DIR"), "{refused}");
        fs::remove_file(base.path().join("temporary")).unwrap();
        DirBuilder::new().mode(0o700).create(base.path().join("temporary")).unwrap();
        fs::set_permissions(base.path().join("temporary"), PermissionsExt::from_mode(0o770)).unwrap();
        assert!(directories.choose().unwrap_err().to_string().contains("open to other users"));
    }

    #[test]
    fn a_disk_of_this_machine_is_not_remote() {
        assert!(!is_remote(Path::new("/proc/self/no/such/path")));
    }
}
