//! Hearing of changes near what a sandbox holds: the directories around it, and those in which a pattern could come to deny
//! something.
//!
//! An empty queue means that nothing has changed. A queue that overflowed says nothing any more, and everything is looked at.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::view::{access_at, is_made_here};
use crate::plan::Confinement;
use crate::policy::PathAccess;

/// So many directories are watched for patterns: inside of what sandboxed code may write, and elsewhere.
const MAX_WRITABLE: usize = 65_536;
const MAX_OTHER: usize = 8_192;
/// So much of the queue is read before something else gets its turn.
const MAX_READS: usize = 64;

/// What every process of a cell can ask: whether something may have changed since the guard last looked.
#[derive(Debug, Default)]
pub enum Quiet {
    /// Nothing is held here.
    #[default]
    Always,
    /// The kernel does not report changes here.
    Never,
    Heard {
        queue: OwnedFd,
        /// A pipe that holds something while the guard works on what it took out of the queue.
        busy: OwnedFd,
    },
}

impl Quiet {
    /// One system call. The pipe comes second: what was taken out of the queue before it was looked at is seen in the pipe.
    pub fn is_quiet(&self) -> bool {
        let (queue, busy) = match self {
            Self::Always => return true,
            Self::Never => return false,
            Self::Heard { queue, busy } => (queue, busy),
        };
        let mut events = [PollFd::new(queue, PollFlags::IN), PollFd::new(busy, PollFlags::IN)];
        poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

/// The guard's own end.
pub(super) struct Watch {
    queue: OwnedFd,
    busy: (OwnedFd, OwnedFd),
    directories: HashMap<i32, Watched>,
    /// Whether everything is watched in which sandboxed code could meet something new.
    is_complete: bool,
    /// Directories that are watched for patterns.
    counts: [usize; 2],
}

struct Watched {
    path: PathBuf,
    /// Names in it that something is held at, or below.
    names: HashSet<OsString>,
    /// A pattern could come to deny any name in it.
    for_patterns: bool,
}

/// What was heard.
#[derive(Default)]
pub(super) struct Heard {
    /// Something that is held may have lost it.
    pub is_touched: bool,
    /// Names were lost: everything has to be searched.
    pub is_overflown: bool,
    /// Names that are new where a pattern may mean them.
    pub new: Vec<PathBuf>,
    /// More is waiting.
    pub has_more: bool,
}

const CHANGES: WatchFlags = WatchFlags::CREATE.union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO).union(WatchFlags::DELETE);
const OWN: WatchFlags = WatchFlags::MOVE_SELF.union(WatchFlags::DELETE_SELF).union(WatchFlags::ONLYDIR).union(WatchFlags::MASK_ADD);

impl Watch {
    /// Begins as busy: nothing is quiet before [`Self::rest`]. The working directory becomes the list of our own handles,
    /// because what is watched is named by one of them.
    pub(super) fn open() -> io::Result<Self> {
        rustix::process::chdir("/proc/self/fd")?;
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let busy = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let watch = Self { queue, busy, directories: HashMap::new(), is_complete: true, counts: [0; 2] };
        watch.work();
        Ok(watch)
    }

    pub(super) fn quiet(&self) -> io::Result<Quiet> {
        Ok(Quiet::Heard { queue: self.queue.try_clone()?, busy: self.busy.0.try_clone()? })
    }

    pub(super) fn queue(&self) -> &OwnedFd {
        &self.queue
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Says that what was heard is being worked on.
    pub(super) fn work(&self) {
        let _ = rustix::io::write(&self.busy.1, &[1]);
    }

    /// Says that everything that was heard has been dealt with.
    pub(super) fn rest(&self) {
        let mut token = [0; 64];
        while rustix::io::read(&self.busy.0, &mut token).is_ok_and(|length| length == token.len()) {}
    }

    /// Watches what is around each place, as far as it exists. What cannot be watched is still looked at before every start.
    pub(super) fn around(&mut self, path: &Path) {
        let mut is_nearest = true;
        let mut name = path.file_name();
        for directory in path.ancestors().skip(1) {
            let flags = if is_nearest { CHANGES | OWN } else { OWN };
            if let Ok(number) = self.add(directory, flags) {
                let watched = self.watched(number, directory);
                watched.names.extend(name.map(ToOwned::to_owned));
                is_nearest = false;
            }
            name = directory.file_name();
        }
    }

    /// Watches a directory in which a pattern could come to deny something. Called before its names are read.
    pub(super) fn for_pattern(&mut self, directory: &Path, confinement: &Confinement) {
        let is_writable = access_at(&confinement.places, directory) == PathAccess::Write;
        if is_made_here(directory) && directory != Path::new("/") {
            return;
        }
        let (count, most) = if is_writable { (0, MAX_WRITABLE) } else { (1, MAX_OTHER) };
        let added = if self.counts[count] < most { self.add(directory, CHANGES | OWN) } else { Err(Errno::NOSPC) };
        match added {
            Ok(number) => {
                let watched = self.watched(number, directory);
                let is_new = !std::mem::replace(&mut watched.for_patterns, true);
                self.counts[count] += usize::from(is_new);
            }
            // It is gone, or closed as a whole.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
            Err(_) => self.is_complete &= !is_writable,
        }
    }

    fn watched(&mut self, number: i32, path: &Path) -> &mut Watched {
        let watched =
            self.directories.entry(number).or_insert_with(|| Watched { path: path.to_owned(), names: HashSet::new(), for_patterns: false });
        // It may have been moved here.
        if watched.path != path {
            watched.path = path.to_owned();
        }
        watched
    }

    /// No link is followed: what is watched is what is there.
    fn add(&self, directory: &Path, flags: WatchFlags) -> Result<i32, Errno> {
        let handle = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(CWD, directory, handle, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)?;
        inotify::add_watch(&self.queue, opened.as_raw_fd().to_string(), flags)
    }

    /// Takes what has come. Has to be between [`Self::work`] and [`Self::rest`].
    pub(super) fn hear(&mut self) -> Heard {
        let mut heard = Heard::default();
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        for _ in 0..MAX_READS {
            let mut reader = inotify::Reader::new(self.queue.as_fd(), &mut buffer);
            loop {
                let Ok(event) = reader.next() else { return heard };
                let flags = event.events();
                if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                    heard.is_overflown = true;
                    heard.is_touched = true;
                } else if flags.contains(ReadFlags::IGNORED) {
                    if let Some(gone) = self.directories.remove(&event.wd()) {
                        heard.is_touched |= !gone.names.is_empty();
                    }
                } else if let Some(directory) = self.directories.get(&event.wd()) {
                    let name = event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec()));
                    heard.is_touched |= match &name {
                        Some(name) => directory.names.contains(name),
                        None => !directory.names.is_empty(),
                    };
                    if let Some(name) = name
                        && directory.for_patterns
                        && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
                    {
                        heard.new.push(directory.path.join(name));
                    }
                }
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
        heard.has_more = true;
        heard
    }
}
