//! Files that sandboxes need on the machine, and that must not be left behind: what they see as `/tmp`, and placeholders.
//!
//! A path that has to stay read-only before it exists is held by mounting on an empty directory that is made there for as
//! long as a sandbox needs it. Where programs would read it as a file, at the top of a home, it is a file without effect. Each
//! is written down first, so that the next start removes what a killed executor left.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, flock, mkdirat, openat, openat2, unlinkat};
use rustix::io::Errno;

use crate::policy::STARTUP_FILES;
use crate::tree::remove_tree;

/// The files of one executor.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: PathBuf,
    /// Held as long as we run: a directory whose lock is free has no owner.
    _lock: File,
    state: Mutex<State>,
    /// Executors that are gone left placeholders that could not be removed yet.
    has_left_some: AtomicBool,
}

#[derive(Debug)]
struct State {
    journal: File,
    /// How many need each placeholder.
    placeholders: HashMap<PathBuf, usize>,
}

impl Scratch {
    /// Below a directory that is ours alone. Cleans up after executors that are gone.
    pub(crate) fn open(parent: &Path, instance: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let (_turn, has_left_some) = clean_up_below(parent)?;
        let directory = parent.join(instance);
        DirBuilder::new().mode(0o700).create(&directory)?;
        // Half of one would never be cleaned up.
        let scratch = Self::fill(&directory).inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        scratch.has_left_some.store(has_left_some, Ordering::Relaxed);
        Ok(scratch)
    }

    /// Removes what executors that are gone left behind. What cannot be removed now is tried again with the first sandbox.
    pub(crate) fn clean_up(parent: &Path) {
        let _ = clean_up_below(parent);
    }

    fn fill(directory: &Path) -> io::Result<Self> {
        let make = |name: &str| File::options().create_new(true).append(true).mode(0o600).open(directory.join(name));
        let lock = make("lock")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let state = State { journal: make("placeholders")?, placeholders: HashMap::new() };
        Ok(Self { directory: directory.to_owned(), _lock: lock, state: Mutex::new(state), has_left_some: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A `/tmp` for one owner; removed with [`Self::remove_temporary`].
    pub(crate) fn temporary(&self, owner: u64) -> io::Result<PathBuf> {
        let path = self.directory.join(format!("tmp-{owner}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => fs::set_permissions(&path, Permissions::from_mode(0o1777))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        path.canonicalize()
    }

    /// Where a layer over the home is put together for an owner; to be made, and removed, by its user.
    pub(crate) fn frame(&self, owner: u64, number: usize) -> PathBuf {
        self.directory.join(format!("home-{owner}-{number}"))
    }

    pub(crate) fn remove_temporary(&self, owner: u64) {
        let _ = remove_tree(&self.directory.join(format!("tmp-{owner}")));
    }

    /// Makes sure that there is something at a path. Returns what was made for it, or is already there for another sandbox. `home`
    /// is where shells and tools look for their files.
    pub(crate) fn hold_place(&self, path: &Path, home: Option<&Path>) -> io::Result<Vec<PathBuf>> {
        let mut state = self.lock();
        let missing: Vec<_> = path.ancestors().take_while(|ancestor| ancestor.symlink_metadata().is_err()).map(Path::to_owned).collect();
        let mut held = Vec::new();
        if missing.is_empty()
            && let Some(count) = state.placeholders.get_mut(path)
        {
            *count += 1;
            held.push(path.to_owned());
        }
        for place in missing.into_iter().rev() {
            // Every byte of it, and an end that no path holds.
            state.journal.write_all(&[place.as_os_str().as_bytes(), b"\0"].concat())?;
            match make_placeholder(&place, home) {
                Ok(()) => {}
                // Another process was quicker: then it is its own.
                Err(Errno::EXIST) => continue,
                Err(error) => {
                    let (error, place) = (io::Error::from(error), place.display());
                    let text = format!(
                        "sandboxed code must not make {place}, and no placeholder can be put there: {error}; work in a directory that you may write, or in the sandbox `read-only`"
                    );
                    return Err(io::Error::new(error.kind(), text));
                }
            }
            state.placeholders.insert(place.clone(), 1);
            held.push(place);
        }
        Ok(held)
    }

    /// Whether something is what an executor puts where nothing is. Nothing is lost when it goes.
    pub(crate) fn looks_like_placeholder(path: &Path) -> bool {
        let Ok(metadata) = path.symlink_metadata() else { return false };
        if metadata.is_dir() {
            return fs::read_dir(path).is_ok_and(|mut names| names.next().is_none());
        }
        is_startup_placeholder(path, &metadata)
    }

    pub(crate) fn is_placeholder(&self, path: &Path) -> bool {
        self.lock().placeholders.contains_key(path)
    }

    pub(crate) fn release_places(&self, places: &[PathBuf]) {
        let mut state = self.lock();
        for place in places.iter().rev() {
            let Some(count) = state.placeholders.get_mut(place) else { continue };
            *count = count.saturating_sub(1);
            // One that something is mounted on stays ours, and is tried again at the end.
            if *count == 0 && remove_placeholder(place) == Removal::Settled {
                state.placeholders.remove(place);
            }
        }
        drop(state);
        self.clean_up_again();
    }

    /// Tries once more what executors that are gone could not remove.
    fn clean_up_again(&self) {
        if self.has_left_some.load(Ordering::Relaxed)
            && let Some(Ok((_turn, has_left_some))) = self.directory.parent().map(clean_up_below)
        {
            self.has_left_some.store(has_left_some, Ordering::Relaxed);
        }
    }
}

impl Scratch {
    /// Takes away everything. Nothing can be kept here any more.
    pub(crate) fn leave(&self) {
        // Inner ones first.
        let mut places: Vec<_> = self.lock().placeholders.drain().map(|(place, _)| place).collect();
        places.sort();
        settle(&self.directory, places.into_iter().rev());
        self.clean_up_again();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.leave();
    }
}

/// An empty directory, which no version control shows, owned by the owner of the directory that it is in. In a home a start-up file
/// is a file, because shells and git fail on a directory.
fn make_placeholder(path: &Path, home: Option<&Path>) -> Result<(), Errno> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let parent = openat2(CWD, above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let text = startup_text(path).filter(|_| home == Some(above));
    let made = match text {
        Some(text) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&parent, name, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
            rustix::io::write(&file, text.as_bytes()).map(drop)
        }
        None => {
            return mkdirat(&parent, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH)
                .and_then(|()| give_to_owner(&parent, name, AtFlags::REMOVEDIR));
        }
    };
    made.and_then(|()| give_to_owner(&parent, name, AtFlags::empty()))
}

/// Takes away what cannot be given to the owner of the directory that it is in.
fn give_to_owner(parent: &OwnedFd, name: &OsStr, removal: AtFlags) -> Result<(), Errno> {
    let owner = rustix::fs::fstat(parent)?;
    let chown = chownat(parent, name, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)), AtFlags::SYMLINK_NOFOLLOW);
    if let Err(error) = chown
        && rustix::process::geteuid().is_root()
    {
        let _ = unlinkat(parent, name, removal);
        return Err(error);
    }
    Ok(())
}

/// What a placeholder for a start-up file says. Bash reads only the first of three that is there, so that each refers to the next;
/// all of them are there as long as one of them is a placeholder. Tcsh reads `.cshrc` only if there is no `.tcshrc`.
fn startup_text(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str().filter(|name| STARTUP_FILES.contains(name))?;
    Some(match name {
        ".bash_profile" => "if [ -r ~/.bash_login ]; then . ~/.bash_login; fi\n",
        ".bash_login" => "if [ -r ~/.profile ]; then . ~/.profile; fi\n",
        ".tcshrc" => "if ( -r ~/.cshrc ) source ~/.cshrc\n",
        _ => "",
    })
}

/// What became of a placeholder that is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It is gone, or another program uses it.
    Settled,
    /// A program outside has mounted something on it.
    Busy,
}

/// Only if it is still as it was made: otherwise another program uses it.
fn remove_placeholder(place: &Path) -> Removal {
    let is_file = place.symlink_metadata().is_ok_and(|metadata| is_startup_placeholder(place, &metadata));
    let removed = if is_file { fs::remove_file(place) } else { fs::remove_dir(place) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Removal::Busy,
        _ => Removal::Settled,
    }
}

/// Removes placeholders, and the directory that knows of them unless some are busy: then it goes on to know of those.
fn settle(directory: &Path, places: impl Iterator<Item = PathBuf>) -> Removal {
    let busy: Vec<PathBuf> = places.filter(|place| remove_placeholder(place) == Removal::Busy).collect();
    if busy.is_empty() {
        let _ = remove_tree(directory);
        return Removal::Settled;
    }
    let list: Vec<u8> = busy.iter().rev().flat_map(|place| [place.as_os_str().as_bytes(), b"\0"].concat()).collect();
    let _ = fs::write(directory.join("placeholders"), list);
    for other in fs::read_dir(directory).into_iter().flatten().flatten() {
        if other.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = remove_tree(&other.path());
        }
    }
    Removal::Busy
}

/// Whether a file says what a placeholder for a start-up file says, and nothing else.
fn is_startup_placeholder(path: &Path, metadata: &fs::Metadata) -> bool {
    let text = startup_text(path).filter(|text| metadata.is_file() && metadata.len() == text.len() as u64);
    text.is_some_and(|text| fs::read(path).is_ok_and(|found| found == text.as_bytes()))
}

/// One after the other: a directory that is just being made is not locked yet, and looks as if it had no owner. The turn lasts as
/// long as the first part of what is returned; the second says whether something is left for another time.
fn clean_up_below(parent: &Path) -> io::Result<(File, bool)> {
    let turn = File::open(parent)?;
    flock(&turn, FlockOperation::LockExclusive)?;
    let mut has_left_some = false;
    for entry in fs::read_dir(parent)?.flatten() {
        has_left_some |= clean_up_after(&entry.path()) == Removal::Busy;
    }
    Ok((turn, has_left_some))
}

fn clean_up_after(directory: &Path) -> Removal {
    let Ok(lock) = File::options().read(true).open(directory.join("lock")) else { return Removal::Settled };
    let is_ours = lock.metadata().is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
    if !is_ours || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Removal::Settled;
    }
    let places = fs::read(directory.join("placeholders")).unwrap_or_default();
    // Version 0.1.0 ended each with a line break.
    let end = if places.contains(&0) { b'\0' } else { b'\n' };
    let places = places.split(|byte| *byte == end).filter(|place| !place.is_empty());
    settle(directory, places.rev().map(|place| PathBuf::from(OsStr::from_bytes(place))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let work = root.join("work");
        fs::create_dir(&work).unwrap();
        let scratch = Scratch::open(&root.join("cells"), "a").unwrap();
        let first = scratch.hold_place(&work.join(".git"), None).unwrap();
        let second = scratch.hold_place(&work.join(".git"), None).unwrap();
        assert_eq!((first.len(), second.len()), (1, 1));
        scratch.release_places(&first);
        assert!(work.join(".git").is_dir());
        scratch.release_places(&second);
        assert!(!work.join(".git").exists());
        fs::create_dir(work.join(".git")).unwrap();
        assert!(scratch.hold_place(&work.join(".git"), None).unwrap().is_empty());
        let used = scratch.hold_place(&work.join(".codex"), None).unwrap();
        fs::write(work.join(".codex/file"), "").unwrap();
        scratch.release_places(&used);
        assert!(work.join(".codex/file").exists());
    }

    #[test]
    fn the_next_start_cleans_up() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let scratch = Scratch::open(&root.join("cells"), "a").unwrap();
        scratch.hold_place(&root.join(".git"), None).unwrap();
        scratch.temporary(1).unwrap();
        // As after a kill: nothing is tidied, and the lock is free.
        flock(&scratch._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(scratch);
        let next = Scratch::open(&root.join("cells"), "b").unwrap();
        assert!(!root.join(".git").exists() && !root.join("cells/a").exists() && root.join("cells/b").exists());
        drop(next);
        assert!(!root.join("cells/b").exists());
    }

    #[test]
    fn the_next_start_cleans_up_whatever_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let names = [&b"a\nb"[..], b"\xff\xfe", b" x ", b"plain"].map(|name| root.join(OsStr::from_bytes(name)));
        let scratch = Scratch::open(&root.join("cells"), "a").unwrap();
        for name in &names {
            fs::create_dir(name).unwrap();
            scratch.hold_place(&name.join(".git"), None).unwrap();
        }
        flock(&scratch._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(scratch);
        Scratch::clean_up(&root.join("cells"));
        for name in &names {
            assert!(name.exists() && !name.join(".git").exists(), "{name:?}");
        }
        assert!(!root.join("cells/a").exists());
    }

    #[test]
    fn in_a_home_startup_files_are_files() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let home = root.join("home");
        fs::create_dir(&home).unwrap();
        let scratch = Scratch::open(&root.join("cells"), "a").unwrap();
        let hold = |name: &str| scratch.hold_place(&home.join(name), Some(&home)).unwrap();
        let held = [".git", ".gitconfig", ".bash_profile", ".bashrc"].map(hold);
        assert!(home.join(".git").is_dir());
        assert_eq!(fs::read_to_string(home.join(".gitconfig")).unwrap(), "");
        assert_eq!(fs::read_to_string(home.join(".bash_profile")).unwrap(), startup_text(&home.join(".bash_profile")).unwrap());
        // Another program began to use it meanwhile.
        fs::write(home.join(".bashrc"), "alias ll='ls -l'\n").unwrap();
        held.iter().for_each(|places| scratch.release_places(places));
        let left: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".bashrc"]);
        // Anywhere else nothing reads them, and version control would show files.
        scratch.hold_place(&root.join(".gitconfig"), Some(&home)).unwrap();
        assert!(root.join(".gitconfig").is_dir());
    }

    #[test]
    fn those_who_start_at_the_same_time_leave_each_other_alone() {
        let directory = tempfile::tempdir().unwrap();
        let cells = directory.path().join("cells");
        let open = &|name: String| Scratch::open(&cells, &name).unwrap();
        let all: Vec<Scratch> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..16).map(|number| scope.spawn(move || open(number.to_string()))).collect();
            started.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(all.iter().all(|one| one.directory.join("lock").exists()));
    }
}
