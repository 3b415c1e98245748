//! The system's notices about files, read where they are needed: what a program did before it ended is known when its end is told.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;

use super::footprint::Footprint;

/// Of a folder itself. What is written to the files in it is not asked for: it would be told of every one of them.
const FOLDER: WatchFlags = WatchFlags::ATTRIB.union(WatchFlags::MOVE_SELF).union(WatchFlags::DELETE_SELF);
/// Of a file itself.
const FILE: WatchFlags = FOLDER.union(WatchFlags::MODIFY);
/// Of names in a folder.
const NAMES: WatchFlags =
    FOLDER.union(WatchFlags::CREATE).union(WatchFlags::DELETE).union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
/// Of everything in a folder.
const EVERYTHING: WatchFlags = NAMES.union(WatchFlags::MODIFY).union(WatchFlags::ATTRIB);

pub(super) struct Notices {
    descriptor: OwnedFd,
    interests: HashMap<i32, Interest>,
}

/// Who wants to know of one file or folder.
#[derive(Default)]
struct Interest {
    whole: HashSet<u64>,
    names: HashMap<OsString, HashSet<u64>>,
}

impl Interest {
    fn all(&self) -> impl Iterator<Item = u64> {
        self.whole.iter().chain(self.names.values().flatten()).copied()
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.names.is_empty()
    }

    fn leave(&mut self, id: u64) {
        self.whole.remove(&id);
        self.names.retain(|_, ids| {
            ids.remove(&id);
            !ids.is_empty()
        });
    }
}

/// Who is concerned by what happened.
pub(super) enum Concerned {
    Some(BTreeSet<u64>),
    /// Notices were lost.
    All,
}

impl Notices {
    pub(super) fn new() -> io::Result<Self> {
        let descriptor = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { descriptor, interests: HashMap::new() })
    }

    /// A second handle, to wait with.
    pub(super) fn waiter(&self) -> io::Result<Receiver> {
        // It is read like a pipe.
        Receiver::from_owned_fd_unchecked(self.descriptor.try_clone()?)
    }

    /// Watches all of it, or nothing.
    pub(super) fn watch(&mut self, id: u64, footprint: &Footprint) -> io::Result<Vec<i32>> {
        let mut watches = Vec::new();
        let wanted = footprint.selves.iter().map(|path| (path, if path.is_dir() { FOLDER } else { FILE }));
        let wanted = wanted.chain(footprint.folders.iter().map(|path| (path, EVERYTHING)));
        let wanted = wanted.chain(footprint.names.keys().map(|path| (path, NAMES)));
        for (path, flags) in wanted {
            match self.add(path, flags) {
                Ok(watch) => {
                    let interest = self.interests.entry(watch).or_default();
                    if flags == NAMES {
                        for name in footprint.names.get(path).into_iter().flatten() {
                            interest.names.entry(name.clone()).or_default().insert(id);
                        }
                    } else if flags == FOLDER {
                        // Whatever happens to a folder itself is told without a name.
                        interest.names.entry(OsString::new()).or_default().insert(id);
                    } else {
                        interest.whole.insert(id);
                    }
                    watches.push(watch);
                }
                // The second look at what is there finds out.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // A folder on the way that may only be passed through. What the answer itself is about must be watched.
                Err(Errno::ACCESS) if footprint.leads_through(path) => {}
                Err(error) => {
                    self.forget(id, &watches);
                    return Err(error.into());
                }
            }
        }
        Ok(watches)
    }

    fn add(&self, path: &Path, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(&self.descriptor, path, flags | WatchFlags::MASK_ADD | WatchFlags::DONT_FOLLOW)
    }

    pub(super) fn forget(&mut self, id: u64, watches: &[i32]) {
        for watch in watches {
            let Some(interest) = self.interests.get_mut(watch) else { continue };
            interest.leave(id);
            if interest.is_empty() {
                self.interests.remove(watch);
                // It may be gone already, with what it watched.
                let _ = inotify::remove_watch(&self.descriptor, *watch);
            }
        }
    }

    /// Takes all notices that there are.
    pub(super) fn take(&mut self) -> Concerned {
        let mut concerned = BTreeSet::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.descriptor, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Concerned::Some(concerned),
                Err(_) => return Concerned::All,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return Concerned::All;
            }
            let Some(interest) = self.interests.get(&event.wd()) else { continue };
            match event.file_name().map(|name| OsStr::from_bytes(name.to_bytes())).filter(|name| !name.is_empty()) {
                Some(name) => concerned.extend(interest.whole.iter().chain(interest.names.get(name).into_iter().flatten())),
                None => concerned.extend(interest.all()),
            }
            if event.events().contains(ReadFlags::IGNORED) {
                self.interests.remove(&event.wd());
            }
        }
    }
}
