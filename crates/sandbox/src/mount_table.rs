//! What is mounted where, as the kernel tells it, and under which other names something can be found because of that.
//!
//! A directory that is mounted a second time (`mount --bind`) is the same directory under two names, and no link leads from one to the
//! other: only the table of mounts knows it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mounts that this process sees.
#[derive(Debug, Default)]
pub struct MountTable(Vec<MountEntry>);

#[derive(Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the file system.
    device: Vec<u8>,
    /// What of the file system is shown.
    root: PathBuf,
    /// Where it is shown.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
}

/// Another name of something.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherName {
    pub path: PathBuf,
    /// Where the mount is that gives this name.
    pub point: PathBuf,
}

impl MountTable {
    /// Empty where there is no process table.
    pub fn read() -> Self {
        Self::parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    pub fn parse(mountinfo: &[u8]) -> Self {
        Self(mountinfo.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &MountEntry> {
        self.0.iter()
    }

    /// Every other name of what is at a path, and where a part of it is shown: resolved paths. What another mount covers at the path counts as well:
    /// under the other name it is not covered.
    pub fn other_names(&self, spelled: &Path) -> Vec<OtherName> {
        let mut names = Vec::new();
        for holder in self.0.iter().filter(|mount| spelled.starts_with(&mount.point)) {
            let Ok(inside) = spelled.strip_prefix(&holder.point) else { continue };
            let place = joined(&holder.root, inside);
            for mount in self.0.iter().filter(|mount| mount.device == holder.device && !std::ptr::eq(*mount, holder)) {
                let path = match place.strip_prefix(&mount.root) {
                    Ok(rest) => joined(&mount.point, rest),
                    // Only something below it is shown there.
                    Err(_) if mount.root.starts_with(&place) => mount.point.clone(),
                    Err(_) => continue,
                };
                // What another mount covers is not found under that name, and what lies below the path itself has no other one.
                let is_seen = self.holder(&path).is_some_and(|top| std::ptr::eq(top, mount)) && !path.starts_with(spelled);
                let name = OtherName { path, point: mount.point.clone() };
                if is_seen && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// The mount that a path lies in: of several at one place the last one covers the others.
    fn holder(&self, path: &Path) -> Option<&MountEntry> {
        self.0.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.as_os_str().len())
    }
}

impl MountEntry {
    /// The fields before the type are variable in number and end in `-`.
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        let path = |index: usize| fields.get(index).map(|field| PathBuf::from(unescape(field)));
        let kind = String::from_utf8_lossy(fields.get(separator + 1)?).into_owned();
        Some(Self { device: fields.get(2)?.to_vec(), root: path(3)?, point: path(4)?, kind })
    }
}

/// A path with nothing added is itself, without a slash at its end.
fn joined(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) }
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &MountTable, path: &str) -> Vec<String> {
        table.other_names(Path::new(path)).iter().map(|name| name.path.display().to_string()).collect()
    }

    #[test]
    fn what_is_mounted_twice_has_two_names() {
        let table = MountTable::parse(
            b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 8:1 /vault /work/the\\040bound rw - ext4 /dev/sda1 rw\n\
            41 22 8:1 /vault/inner /work/inner rw shared:2 master:3 - ext4 /dev/sda1 rw\n\
            42 22 0:42 / /tmp rw - tmpfs tmpfs rw\n",
        );
        assert_eq!(names(&table, "/vault"), ["/work/the bound", "/work/inner"]);
        assert_eq!(names(&table, "/vault/key"), ["/work/the bound/key"]);
        assert_eq!(names(&table, "/vault/inner/key"), ["/work/the bound/inner/key", "/work/inner/key"]);
        assert_eq!(names(&table, "/work/inner/key"), ["/vault/inner/key", "/work/the bound/inner/key"]);
        assert_eq!(names(&table, "/vaults/key"), [""; 0]);
        // Another file system has its own paths.
        assert_eq!(names(&table, "/tmp/vault"), [""; 0]);
    }

    #[test]
    fn what_is_covered_is_not_named() {
        let table = MountTable::parse(
            b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 8:1 /vault /bound rw - ext4 /dev/sda1 rw\n\
            41 40 0:42 / /bound rw - tmpfs tmpfs rw\n",
        );
        assert_eq!(names(&table, "/vault/key"), [""; 0]);
        // Shown inside of itself it is denied there anyway.
        let table = MountTable::parse(b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 8:1 /vault /vault/self rw - ext4 /dev/sda1 rw\n");
        assert_eq!(names(&table, "/vault"), [""; 0]);
        assert!(MountTable::parse(b"nonsense\n").other_names(Path::new("/")).is_empty());
        // What is covered at its own path is seen under the other name.
        let table = MountTable::parse(
            b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 8:1 /harmless /vault/key rw - ext4 /dev/sda1 rw\n\
            41 22 8:1 /vault /bound rw - ext4 /dev/sda1 rw\n",
        );
        assert_eq!(names(&table, "/vault/key"), ["/bound/key", "/harmless"]);
    }
}
