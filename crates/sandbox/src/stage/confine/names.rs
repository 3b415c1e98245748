//! A name for the sandbox's user, where it has a number of its own: many programs (ssh, git, `id`, everything that asks for the
//! user's home) fail for a user whom the user table does not hold.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::masks::{QUIET, RDONLY, clone, limit};
use super::view::{pin, tmpfs};
use super::{ConfineRefused, During};
use crate::plan::SandboxUser;

const NAMES: [&str; 2] = ["sandbox", "outpost-sandbox"];
const TABLES: [&str; 2] = ["/etc/passwd", "/etc/group"];
/// A table that is larger than this comes from somewhere else, and is left as it is.
const MOST: u64 = 4 << 20;

/// The number that the user has inside and no table knows.
fn number(identity: SandboxUser) -> Option<u32> {
    match identity {
        SandboxUser::Mapped { id } | SandboxUser::Owner { uid: 0, id, .. } => Some(id),
        SandboxUser::Own | SandboxUser::Named { .. } | SandboxUser::Owner { .. } => None,
    }
}

/// Copies of the tables with a line for the sandbox's user, each with the path that it belongs at. They are made at `place`,
/// which is covered for that time. A machine without such tables gets none. `own` is the home that the executor's user works with, if the
/// sandbox shows one.
pub(super) fn tables(identity: SandboxUser, own: Option<&Path>, place: &Path) -> Result<Vec<(PathBuf, OwnedFd)>, ConfineRefused> {
    let Some(id) = number(identity) else { return Ok(Vec::new()) };
    let is_plain = |path: &&str| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() < MOST);
    let read = |path| Some((path, fs::read(path).ok()?));
    let tables: Vec<(&str, Vec<u8>)> = TABLES.into_iter().filter(is_plain).filter_map(read).collect();
    let Some((_, users)) = tables.iter().find(|(path, _)| *path == TABLES[0]) else { return Ok(Vec::new()) };
    let Some(name) = NAMES.into_iter().find(|name| tables.iter().all(|(_, table)| entry(table, name).is_none())) else {
        return Ok(Vec::new());
    };
    // Tools look for their settings where the executor's user has them; some ask the table only, whatever `HOME` says (the JVM).
    let [home, shell] = [5, 6].map(|field| entry(users, "root").and_then(|fields| fields.get(field).copied()).unwrap_or(b"/"));
    let home = own.map(|own| own.as_os_str().as_bytes()).filter(|own| fits(own)).unwrap_or(home);
    let lines = [
        [format!("{name}:x:{id}:{id}:sandboxed commands:").as_bytes(), home, b":", shell, b"\n"].concat(),
        format!("{name}:x:{id}:\n").into_bytes(),
    ];
    tmpfs(place, "mode=0755,size=16m")?;
    let mut made = Vec::new();
    for (path, mut table) in tables {
        if !table.is_empty() && !table.ends_with(b"\n") {
            table.push(b'\n');
        }
        table.extend_from_slice(&lines[usize::from(path == TABLES[1])]);
        let file = place.join(Path::new(path).file_name().unwrap_or(OsStr::from_bytes(b"table")));
        fs::write(&file, &table).during(path)?;
        let copy = clone(&pin(&file)?, false).during(path)?;
        limit(&copy, false, RDONLY | QUIET).during(path)?;
        made.push((PathBuf::from(path), copy));
    }
    unmount(place, UnmountFlags::DETACH).map_err(std::io::Error::from).during(place.display())?;
    Ok(made)
}

/// Whether a line of the table can hold it.
fn fits(path: &[u8]) -> bool {
    !path.iter().any(|byte| *byte == b':' || byte.is_ascii_control())
}

/// The fields of a user's or a group's line.
fn entry<'a>(table: &'a [u8], name: &str) -> Option<Vec<&'a [u8]>> {
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>());
    lines.find(|fields| fields.first() == Some(&name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::{entry, fits};

    #[test]
    fn a_line_is_found_by_its_whole_name() {
        let table = b"rooty:x:9:9::/nowhere:/bin/false\nroot:x:0:0:root:/root:/bin/bash\n+nis\n";
        assert_eq!(entry(table, "root").and_then(|fields| fields.get(5).copied()), Some(&b"/root"[..]));
        assert_eq!(entry(table, "sandbox"), None);
        assert!(fits(b"/home/a b") && !fits(b"/a:b") && !fits(b"/a\nroot2:x:0:0::/:/bin/sh"));
    }
}
