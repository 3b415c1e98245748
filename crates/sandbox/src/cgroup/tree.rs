//! The files of control groups: those of the kernel, or others that behave like them.

use std::fmt::Debug;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, getxattr};

/// A tree of control groups. Groups are directories; their files are there as soon as they are.
pub trait CgroupTree: Debug + Send + Sync {
    fn read(&self, file: &Path) -> io::Result<String>;
    /// Writes at once, into a file that is there.
    fn write(&self, file: &Path, text: &str) -> io::Result<()>;
    fn make(&self, group: &Path) -> io::Result<()>;
    fn remove(&self, group: &Path) -> io::Result<()>;
    /// The groups directly below.
    fn below(&self, group: &Path) -> Vec<PathBuf>;
    fn may_write(&self, file: &Path) -> bool;
    /// Whether systemd has marked a group as left to its unit.
    fn is_delegated(&self, group: &Path) -> bool;
}

/// What the kernel shows.
#[derive(Debug)]
pub(crate) struct Kernel;

impl CgroupTree for Kernel {
    fn read(&self, file: &Path) -> io::Result<String> {
        fs::read_to_string(file)
    }

    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        fs::File::options().write(true).open(file)?.write_all(text.as_bytes())
    }

    fn make(&self, group: &Path) -> io::Result<()> {
        fs::create_dir(group)
    }

    fn remove(&self, group: &Path) -> io::Result<()> {
        fs::remove_dir(group)
    }

    fn below(&self, group: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(group).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
    }

    fn may_write(&self, file: &Path) -> bool {
        access(file, Access::WRITE_OK).is_ok()
    }

    fn is_delegated(&self, group: &Path) -> bool {
        let marked = |name: &str| {
            let mut value = [0_u8; 8];
            getxattr(group, name, &mut value[..]).is_ok_and(|length| value.get(..length) == Some(b"1"))
        };
        // The manager of the system marks with the first, those of users with the second.
        marked("trusted.delegate") || marked("user.delegate")
    }
}
