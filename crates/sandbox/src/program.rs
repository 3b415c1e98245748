//! Finding a program the way the child would.
//!
//! Done here, before the launch, for two reasons: the standard library only starts children the quick way when it need
//! not search the child's `PATH` itself, and a program or directory that does not exist is told as such.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

/// Where the C library looks when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

pub(crate) fn find(program: &OsStr, path: Option<&OsStr>, cwd: &Path) -> io::Result<PathBuf> {
    if !cwd.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    if program.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if program.as_bytes().contains(&b'/') {
        check(&cwd.join(program))?;
        return Ok(PathBuf::from(program));
    }
    let mut refusal = Errno::NOENT;
    for directory in path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes().split(|byte| *byte == b':') {
        // An empty entry means the working directory, as for the shell.
        let candidate = cwd.join(OsStr::from_bytes(directory)).join(program);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Errno::ACCESS) => refusal = Errno::ACCESS,
            Err(_) => {}
        }
    }
    Err(refusal.into())
}

fn check(candidate: &Path) -> Result<(), Errno> {
    access(candidate, Access::EXISTS)?;
    if candidate.is_dir() {
        return Err(Errno::ACCESS);
    }
    access(candidate, Access::EXEC_OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(program: &str, path: Option<&str>, cwd: &str) -> Option<i32> {
        find(OsStr::new(program), path.map(OsStr::new), Path::new(cwd)).unwrap_err().raw_os_error()
    }

    #[test]
    fn the_childs_own_path_counts() {
        assert_eq!(find(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin")), Path::new("/")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(OsStr::new("sh"), None, Path::new("/")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(OsStr::new("sh"), Some(OsStr::new("")), Path::new("/bin")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(OsStr::new("bin/sh"), None, Path::new("/")).unwrap(), Path::new("bin/sh"));
        assert_eq!(error("sh", Some("/nowhere"), "/"), Some(Errno::NOENT.raw_os_error()));
    }

    #[test]
    fn refusals_are_those_of_the_system() {
        assert_eq!(error("/no/such", None, "/"), Some(Errno::NOENT.raw_os_error()));
        assert_eq!(error("", None, "/"), Some(Errno::NOENT.raw_os_error()));
        assert_eq!(error("/bin", None, "/"), Some(Errno::ACCESS.raw_os_error()));
        assert_eq!(error("/etc/passwd", None, "/"), Some(Errno::ACCESS.raw_os_error()));
        assert_eq!(error("/bin/sh", None, "/missing"), Some(Errno::NOENT.raw_os_error()));
        assert_eq!(error("/bin/sh", None, "/etc/passwd"), Some(Errno::NOTDIR.raw_os_error()));
    }
}
