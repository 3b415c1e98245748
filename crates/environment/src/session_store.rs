//! Which sessions a previous run of this program had, so that the next one can take them up and with them what runs there.
//!
//! A session belongs to one program at a time. So each is remembered in a file that is locked while its program lives: what
//! is not locked was left behind by a program that ended without a word.

use std::collections::HashMap;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// So many programs may have sessions with one environment at the same time; one more remembers nothing.
const SLOTS: usize = 16;

/// Remembers sessions in a directory.
pub struct SessionMemory {
    directory: PathBuf,
    held: Mutex<HashMap<String, File>>,
}

impl fmt::Debug for SessionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionMemory({})", self.directory.display())
    }
}

impl SessionMemory {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that was left behind in an environment, if there is one. It is handed out once.
    pub fn recall(&self, environment: &str) -> Option<String> {
        let mut held = self.held();
        if held.contains_key(environment) {
            return None;
        }
        let (file, session) = self.slot(environment).inspect_err(|error| tracing::debug!(%error, "sessions are not remembered")).ok()??;
        held.insert(environment.to_owned(), file);
        session
    }

    /// Notes the session that is used now.
    pub fn remember(&self, environment: &str, session: &str) {
        if let Some(file) = self.held().get_mut(environment)
            && let Err(error) = write(file, session)
        {
            tracing::debug!(%error, environment, "a session is not remembered");
        }
    }

    /// Notes that the session is over.
    pub fn forget(&self, environment: &str) {
        self.remember(environment, "");
    }

    /// Removes what says nothing any more. For a program that ends.
    pub fn leave(&self) {
        for (environment, mut file) in self.held().drain() {
            let is_over = matches!(read(&mut file), Ok(None));
            let own = rustix::fs::fstat(&file).ok();
            let mut paths = (0..SLOTS).map(|number| self.directory.join(format!("{environment}.{number}")));
            let is_own = |path: &PathBuf| {
                let there = rustix::fs::stat(path).ok();
                own.zip(there).is_some_and(|(own, there)| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
            };
            if let Some(path) = paths.find(is_own).filter(|_| is_over) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// A free slot, preferably one with a session left in it.
    fn slot(&self, environment: &str) -> io::Result<Option<(File, Option<String>)>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut empty = None;
        for number in 0..SLOTS {
            let path = self.directory.join(format!("{environment}.{number}"));
            let is_new = !path.exists();
            if is_new && empty.is_some() {
                break;
            }
            let mut file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            match read(&mut file)? {
                Some(session) => return Ok(Some((file, Some(session)))),
                None => empty = empty.or(Some((file, None))),
            }
            if is_new {
                break;
            }
        }
        Ok(empty)
    }
}

fn read(file: &mut File) -> io::Result<Option<String>> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_left_to_the_next_program_and_to_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let program = || SessionMemory::new(directory.path().join("sessions"));
        let first = program();
        assert_eq!(first.recall("box"), None);
        first.remember("box", "s1");
        let second = program();
        assert_eq!(second.recall("box"), None, "the first program still has it");
        second.remember("box", "s2");
        drop(first);
        let third = program();
        assert_eq!(third.recall("box").as_deref(), Some("s1"));
        assert_eq!(third.recall("box"), None, "it was told already");
        third.forget("box");
        drop((second, third));
        let fourth = program();
        assert_eq!(fourth.recall("box").as_deref(), Some("s2"));
        assert_eq!(fourth.recall("other"), None);
        // The one that still has a session leaves it to the next program.
        fourth.remember("box", "s3");
        fourth.leave();
        let left: Vec<_> = std::fs::read_dir(directory.path().join("sessions")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name.to_string_lossy().starts_with("box.")), "{left:?}");
        let fifth = program();
        assert_eq!(fifth.recall("box").as_deref(), Some("s3"));
        fifth.forget("box");
        fifth.leave();
        drop(fourth);
        let sixth = program();
        assert_eq!(sixth.recall("box"), None);
    }
}
