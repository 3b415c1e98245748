//! File calls inside a sandbox: the worker that makes them, and the executor's end of it.
//!
//! A worker is forked inside the sandbox that the session's commands of the same policy run in, so the system holds it to
//! exactly what they are held to, whatever links and renames happen meanwhile. It lives as long as somebody may call it,
//! and makes one call at a time. Files that are opened are handed out as descriptors.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outpost_sandbox::policy::{Glob, Policy};
use outpost_sandbox::{Channel, LaunchError, Message, Owner, Worker};
use outpost_wire::exec::discovery::DiscoveredRoot;
use outpost_wire::exec::files::{DirectoryEntry, Metadata};
use outpost_wire::exec::walk::{WalkOptions, WalkResponse};
use outpost_wire::{Fault, PathUri};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::atomic::{self, Identity, Written};
use super::{Follow, RemoveOptions, WriteOptions, native_path};
use crate::discovery::{self, Look};
use crate::{fault, files, walk};

/// How many workers of one policy wait for the next call.
const SPARE: usize = 2;

/// As long as handing a call to another thread would take, several times over; a worker that is well answers sooner.
const AT_ONCE: Duration = Duration::from_millis(1);

/// How long a worker may take for its answer. Whatever runs in the same sandbox can stop it, and a file system may hang.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPatience {
    /// For a call about one name.
    pub one: Duration,
    /// For a call that moves the bytes of files or goes through a tree.
    pub many: Duration,
}

impl Default for WorkerPatience {
    fn default() -> Self {
        Self { one: Duration::from_secs(30), many: Duration::from_secs(600) }
    }
}

impl WorkerPatience {
    fn with(self, call: &Call) -> Duration {
        match call {
            Call::Hello { .. }
            | Call::Open { .. }
            | Call::OpenReplaced { .. }
            | Call::CreateDirectory { .. }
            | Call::Metadata { .. }
            | Call::Canonicalize { .. }
            | Call::Rename { .. } => self.one,
            Call::Write { .. }
            | Call::Rewrite { .. }
            | Call::ReadDirectory { .. }
            | Call::Remove { .. }
            | Call::Copy { .. }
            | Call::Walk { .. }
            | Call::Discover { .. } => self.many,
        }
    }
}

/// A call as it goes to a worker. Bytes to be written follow it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Call {
    /// The first message: what is denied by pattern, which the system cannot hold for files that come later.
    Hello {
        patterns: Vec<String>,
    },
    Open {
        path: Native,
        follow: Follow,
    },
    OpenReplaced {
        path: Native,
        follow: Follow,
    },
    Write {
        path: Native,
        follow: Follow,
        sync: bool,
    },
    Rewrite {
        identity: Identity,
        sync: bool,
    },
    CreateDirectory {
        path: Native,
        recursive: bool,
        follow: Follow,
    },
    Metadata {
        path: Native,
        follow: Follow,
    },
    Canonicalize {
        path: Native,
    },
    ReadDirectory {
        path: Native,
    },
    Remove {
        path: Native,
        recursive: bool,
        force: bool,
        follow: Follow,
    },
    Copy {
        source: Native,
        destination: Native,
        recursive: bool,
    },
    Rename {
        source: Native,
        destination: Native,
    },
    Walk {
        path: Native,
        options: WalkOptions,
    },
    Discover {
        path: Native,
        extended: bool,
    },
}

/// A path of this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Native(#[serde(with = "native_path")] pub PathBuf);

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// The file comes with it.
    Opened {
        size: u64,
    },
    InPlace(Identity),
    Metadata(Metadata),
    Path(PathUri),
    Entries(Vec<DirectoryEntry>),
    Tree(WalkResponse),
    Discovered(Box<DiscoveredRoot>),
}

/// Serves calls until the other end is gone. Runs inside the sandbox.
pub fn serve(channel: Channel) {
    let mut patterns = Vec::new();
    while let Ok(Some(message)) = channel.receive() {
        let Some((call, data)) = decode(&message.bytes) else { return };
        let done = match call {
            Call::Hello { patterns: texts } => {
                patterns = texts.into_iter().filter_map(|text| Glob::new(text).ok()).collect();
                continue;
            }
            call => perform(call, data, &patterns),
        };
        let (answer, file) = match done {
            Ok((answer, file)) => (Ok(answer), file),
            Err(fault) => (Err(fault), None),
        };
        let Ok(bytes) = serde_json::to_vec(&answer) else { return };
        let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if channel.send(&bytes, &descriptors).is_err() {
            return;
        }
    }
}

fn perform(call: Call, data: &[u8], patterns: &[Glob]) -> Result<(Answer, Option<File>), Fault> {
    let answer = match call {
        Call::Hello { .. } => Answer::Done,
        Call::Open { path, follow } => {
            let (file, size) = files::open_regular(&path.0, follow)?;
            refuse_patterns(&file, patterns)?;
            return Ok((Answer::Opened { size }, Some(file)));
        }
        Call::OpenReplaced { path, follow } => {
            let file = files::open_replaced(&path.0, follow)?;
            return Ok((Answer::Opened { size: 0 }, Some(file)));
        }
        Call::Write { path, follow, sync } => match atomic::write(&path.0, data, &WriteOptions { follow, sync })? {
            Written::Done => Answer::Done,
            Written::InPlace(identity) => Answer::InPlace(identity),
        },
        Call::Rewrite { identity, sync } => done(atomic::rewrite(&identity, data, sync).map_err(fault::file))?,
        Call::CreateDirectory { path, recursive, follow } => done(files::create_directory(&path.0, recursive, follow))?,
        Call::Metadata { path, follow } => Answer::Metadata(files::metadata(&path.0, follow)?),
        Call::Canonicalize { path } => Answer::Path(PathUri::from_native(&files::canonicalize(&path.0)?).map_err(fault::path)?),
        Call::ReadDirectory { path } => Answer::Entries(files::read_directory(&path.0)?),
        Call::Remove { path, recursive, force, follow } => done(files::remove(&path.0, &RemoveOptions { recursive, force, follow }))?,
        Call::Copy { source, destination, recursive } => done(files::copy(&source.0, &destination.0, recursive))?,
        Call::Rename { source, destination } => done(files::rename(&source.0, &destination.0))?,
        Call::Walk { path, options } => Answer::Tree(walk::walk(&path.0, &options)?),
        Call::Discover { path, extended } => {
            let may_read = |file: &File| refuse_patterns(file, patterns);
            Answer::Discovered(Box::new(discovery::discover(&path.0, &Look { extended, may_read: &may_read })?))
        }
    };
    Ok((answer, None))
}

fn done(result: Result<(), Fault>) -> Result<Answer, Fault> {
    result.map(|()| Answer::Done)
}

/// Looks at the file that was really opened: by whatever way it was found, it has one name now.
fn refuse_patterns(file: &File, patterns: &[Glob]) -> Result<(), Fault> {
    if patterns.is_empty() {
        return Ok(());
    }
    let number = std::os::fd::AsRawFd::as_raw_fd(file);
    let name = std::fs::read_link(format!("/proc/self/fd/{number}")).map_err(fault::file)?;
    match patterns.iter().find(|pattern| pattern.holds(&name)) {
        Some(_) => Err(fault::file(Errno::ACCESS.into())),
        None => Ok(()),
    }
}

/// The length of the call, the call, the data.
fn encode(call: &Call, data: &[u8]) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(call)?;
    Ok([&(head.len() as u64).to_le_bytes()[..], &head, data].concat())
}

fn decode(bytes: &[u8]) -> Option<(Call, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (head, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((serde_json::from_slice(head).ok()?, data))
}

/// The workers of one session, by policy.
pub struct Workers {
    spare: Mutex<HashMap<Policy, Vec<Worker>>>,
    patience: WorkerPatience,
}

impl Workers {
    pub fn new(patience: WorkerPatience) -> Self {
        Self { spare: Mutex::default(), patience }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Policy, Vec<Worker>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call inside the sandbox of a policy. Blocks, and not only for as long as the call takes: the first one of a
    /// policy makes its sandbox, and whatever runs in there can stop the worker.
    pub fn call(&self, owner: &Owner, policy: &Policy, call: &Call, data: &[u8]) -> Result<Done, Fault> {
        let message = encode(call, data).map_err(fault::file)?;
        let patience = self.patience.with(call);
        if let Some(worker) = self.take_spare(policy)
            && let Ok(()) = hand_over(&worker, &message)
        {
            let answer = wait_for(&worker, patience);
            return self.finish(policy, worker, answer);
        }
        let worker = start(owner, policy).map_err(|error| fault::launch(&error))?;
        let answer = hand_over(&worker, &message).and_then(|()| wait_for(&worker, patience));
        self.finish(policy, worker, answer)
    }

    /// Begins a call that is over at once if nothing is wrong, and waits for no longer than that takes.
    pub fn begin(&self, policy: &Policy, call: &Call, data: &[u8]) -> Result<Begun, Fault> {
        let message = encode(call, data).map_err(fault::file)?;
        let Some(worker) = self.take_spare(policy) else { return Ok(Begun::NotYet) };
        if hand_over(&worker, &message).is_err() {
            return Ok(Begun::NotYet);
        }
        match wait_for(&worker, AT_ONCE) {
            Err(Lost::Silent(_)) => Ok(Begun::Waiting(worker, self.patience.with(call))),
            answer => self.finish(policy, worker, answer).map(Begun::Done),
        }
    }

    /// Waits for the answer to a call that was begun. Blocks.
    pub fn end_call(&self, policy: &Policy, worker: Worker, patience: Duration) -> Result<Done, Fault> {
        let answer = wait_for(&worker, patience);
        self.finish(policy, worker, answer)
    }

    /// Somebody who waits for work; one that was killed meanwhile is found out when it gets some.
    fn take_spare(&self, policy: &Policy) -> Option<Worker> {
        self.lock().get_mut(policy).and_then(Vec::pop)
    }

    fn finish(&self, policy: &Policy, worker: Worker, answer: Result<Message, Lost>) -> Result<Done, Fault> {
        let message = match answer {
            Ok(message) => message,
            Err(Lost::Gone) => return Err(gone()),
            Err(Lost::Silent(patience)) => {
                worker.kill();
                return Err(silent(patience));
            }
        };
        let mut workers = self.lock();
        let spare = workers.entry(policy.clone()).or_default();
        if spare.len() < SPARE {
            spare.push(worker);
        }
        drop(workers);
        let answer: Result<Answer, Fault> = serde_json::from_slice(&message.bytes).map_err(|error| Fault::internal(error.to_string()))?;
        Ok((answer?, message.descriptors.into_iter().next().map(File::from)))
    }

    /// Lets all of them go.
    pub fn end(&self) {
        self.lock().clear();
    }
}

/// What a call gives back: the answer, and the file that came with it.
pub type Done = (Answer, Option<File>);

/// How far a call got at once.
pub enum Begun {
    Done(Done),
    /// The worker has it and needs longer; so long it may take.
    Waiting(Worker, Duration),
    /// There was nobody who could have made it, and nothing was done.
    NotYet,
}

/// Why there is no answer.
enum Lost {
    Gone,
    /// It is there and said nothing for so long.
    Silent(Duration),
}

fn hand_over(worker: &Worker, message: &[u8]) -> Result<(), Lost> {
    worker.channel().send(message, &[]).map_err(|_| Lost::Gone)
}

fn wait_for(worker: &Worker, patience: Duration) -> Result<Message, Lost> {
    let channel = worker.channel();
    let deadline = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(channel, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Err(Lost::Silent(patience)),
            Ok(_) => return channel.receive().ok().flatten().ok_or(Lost::Gone),
            Err(Errno::INTR) => {}
            Err(_) => return Err(Lost::Gone),
        }
    }
}

fn start(owner: &Owner, policy: &Policy) -> Result<Worker, LaunchError> {
    let worker = owner.worker(policy)?;
    let patterns: Vec<_> = policy.rules().map(|rules| rules.globs().iter().map(ToString::to_string).collect()).unwrap_or_default();
    if !patterns.is_empty() {
        worker.channel().send(&encode(&Call::Hello { patterns }, &[])?, &[])?;
    }
    Ok(worker)
}

fn gone() -> Fault {
    Fault::internal("the process that makes file calls inside the sandbox was killed; whether the call was made is not known")
}

fn silent(patience: Duration) -> Fault {
    Fault::internal(format!(
        "the process that makes file calls inside the sandbox gave no answer within {patience:?} and was killed; whether the call was made is not known"
    ))
}

impl From<&Path> for Native {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}
