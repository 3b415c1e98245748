//! The program under test, open to a test that looks at it in `/proc`.
//!
//! The program closes itself to its own user on purpose: its memory, variables and open files may hold secrets. Root sees them
//! all the same, and so does the creator of the user namespace that it runs in, which an ordinary user may do.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// A command that runs this program, whose process can be looked at. Its process id is the program's own.
pub fn readable(program: &Path) -> Command {
    let words = readable_words(program);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The same as words.
pub fn readable_words(program: &Path) -> Vec<OsString> {
    let program = program.as_os_str().to_owned();
    if rustix::process::geteuid().is_root() {
        return vec![program];
    }
    // Only as root of the namespace do the files in /proc belong to us.
    ["unshare", "--user", "--map-root-user", "--"].into_iter().map(OsString::from).chain([program]).collect()
}
