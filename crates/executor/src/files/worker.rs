//! File calls inside a sandbox: the worker that makes them, and the executor's end of it.
//!
//! A worker is forked inside the sandbox that the session's commands of the same policy run in, so the system holds it to
//! exactly what they are held to, whatever links and renames happen meanwhile. It lives as long as a client may call it,
//! and makes one call at a time. Files that are opened are handed out as descriptors.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outpost_sandbox::policy::{Glob, NetworkRule, PathAccess, PathRule, PathRules, Policy, RuleOrigin};
use outpost_sandbox::stage::Quiet;
use outpost_sandbox::{Channel, ChannelMessage, LaunchError, ProcessScope, WorkerHandle};
use outpost_wire::exec::attributes::{Attributes, NamedAttributes};
use outpost_wire::exec::discovery::DiscoveredRoot;
use outpost_wire::exec::files::{DirectoryEntry, FileMetadata};
use outpost_wire::exec::walk::{WalkOptions, WalkResponse};
use outpost_wire::{Escaped, Fault, PathUri};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::atomic::{self, InPlaceFile, WriteOutcome};
use super::{LinkPolicy, RemoveOptions, WriteOptions, native_path};
use crate::discovery::{self, DiscoveryQuery};
use crate::{attributes, fault, files, walk};

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
    fn with(self, call: &WorkerCall) -> Duration {
        match call {
            WorkerCall::Hello { .. }
            | WorkerCall::Open { .. }
            | WorkerCall::OpenReplaced { .. }
            | WorkerCall::CreateDirectory { .. }
            | WorkerCall::Metadata { .. }
            | WorkerCall::Canonicalize { .. }
            | WorkerCall::Rename { .. }
            | WorkerCall::Attributes { .. }
            | WorkerCall::SetMode { .. }
            | WorkerCall::CreateLink { .. } => self.one,
            WorkerCall::Write { .. }
            | WorkerCall::Rewrite { .. }
            | WorkerCall::ReadDirectory { .. }
            | WorkerCall::Remove { .. }
            | WorkerCall::Copy { .. }
            | WorkerCall::Walk { .. }
            | WorkerCall::ListAttributes { .. }
            | WorkerCall::Discover { .. } => self.many,
        }
    }
}

/// A call as it goes to a worker. Bytes to be written follow it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerCall {
    /// The first message: what is denied by pattern, and what each path is allowed. What was opened is measured by that once more:
    /// what the system holds may just have been replaced.
    Hello {
        patterns: Vec<String>,
        rules: Vec<(Native, Allowed)>,
    },
    Open {
        path: Native,
        follow: LinkPolicy,
    },
    OpenReplaced {
        path: Native,
        follow: LinkPolicy,
    },
    Write {
        path: Native,
        follow: LinkPolicy,
        sync: bool,
    },
    Rewrite {
        identity: InPlaceFile,
        sync: bool,
    },
    CreateDirectory {
        path: Native,
        recursive: bool,
        follow: LinkPolicy,
    },
    Metadata {
        path: Native,
        follow: LinkPolicy,
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
        follow: LinkPolicy,
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
    Attributes {
        path: Native,
    },
    ListAttributes {
        path: Native,
    },
    SetMode {
        path: Native,
        mode: u32,
    },
    CreateLink {
        path: Native,
        target: Escaped,
    },
}

/// What may be done with a path, on its way to a worker.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Allowed {
    Nothing,
    Reading,
    Writing,
}

/// A path of this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Native(#[serde(with = "native_path")] pub PathBuf);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerReply {
    Done,
    /// The file comes with it.
    Opened {
        size: u64,
    },
    InPlace(InPlaceFile),
    Metadata(FileMetadata),
    Path(PathUri),
    Entries(Vec<DirectoryEntry>),
    Tree(WalkResponse),
    Discovered(Box<DiscoveredRoot>),
    Attributes(Attributes),
    ListedAttributes(Vec<NamedAttributes>),
    /// Nothing was done: what the sandbox holds may have changed.
    Doubtful,
}

/// Serves calls until the other end is gone. Runs inside the sandbox.
pub fn serve(channel: Channel, quiet: &Quiet) {
    let mut rules = None;
    while let Ok(Some(message)) = channel.receive() {
        let Some((call, trust, data)) = decode(&message.bytes) else { return };
        let done = match call {
            WorkerCall::Hello { patterns, rules: told } => {
                rules = Some(rules_of(patterns, told));
                continue;
            }
            _ if trust == Trust::Doubting && !quiet.is_quiet() => Ok((WorkerReply::Doubtful, None)),
            call => perform(call, data, rules.as_ref()),
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

fn rules_of(patterns: Vec<String>, told: Vec<(Native, Allowed)>) -> PathRules {
    let rule = |(Native(path), allowed)| {
        let access = match allowed {
            Allowed::Nothing => PathAccess::Deny,
            Allowed::Reading => PathAccess::Read,
            Allowed::Writing => PathAccess::Write,
        };
        PathRule { path, access, origin: RuleOrigin::Request }
    };
    let patterns = patterns.into_iter().filter_map(|text| Glob::new(text).ok()).collect();
    PathRules::new(told.into_iter().map(rule), patterns, NetworkRule::Restricted)
}

fn perform(call: WorkerCall, data: &[u8], rules: Option<&PathRules>) -> Result<(WorkerReply, Option<File>), Fault> {
    let answer = match call {
        WorkerCall::Hello { .. } => WorkerReply::Done,
        WorkerCall::Open { path, follow } => {
            let (file, size) = files::open_regular(&path.0, follow)?;
            measure(&file, None, PathAccess::Read, rules).map_err(fault::file)?;
            return Ok((WorkerReply::Opened { size }, Some(file)));
        }
        WorkerCall::OpenReplaced { path, follow } => {
            let may_write = |file: &File| measure(file, None, PathAccess::Write, rules);
            let file = files::open_replaced_if(&path.0, follow, &may_write)?;
            return Ok((WorkerReply::Opened { size: 0 }, Some(file)));
        }
        WorkerCall::Write { path, follow, sync } => {
            let may_write = |directory: BorrowedFd<'_>, name: &OsStr| measure(directory, Some(name), PathAccess::Write, rules);
            match atomic::write_if(&path.0, data, &WriteOptions { follow, sync, mode: None }, &may_write)? {
                WriteOutcome::Done(_) => WorkerReply::Done,
                WriteOutcome::InPlace(identity) => WorkerReply::InPlace(identity),
            }
        }
        WorkerCall::Rewrite { identity, sync } => done(atomic::rewrite(&identity, data, sync).map_err(fault::file))?,
        WorkerCall::CreateDirectory { path, recursive, follow } => done(files::create_directory(&path.0, recursive, follow))?,
        WorkerCall::Metadata { path, follow } => WorkerReply::Metadata(files::metadata(&path.0, follow)?),
        WorkerCall::Canonicalize { path } => WorkerReply::Path(PathUri::from_native(&files::canonicalize(&path.0)?).map_err(fault::path)?),
        WorkerCall::ReadDirectory { path } => WorkerReply::Entries(files::read_directory(&path.0)?),
        WorkerCall::Remove { path, recursive, force, follow } => done(files::remove(&path.0, &RemoveOptions { recursive, force, follow }))?,
        WorkerCall::Copy { source, destination, recursive } => done(files::copy(&source.0, &destination.0, recursive))?,
        WorkerCall::Rename { source, destination } => done(files::rename(&source.0, &destination.0))?,
        WorkerCall::Walk { path, options } => WorkerReply::Tree(walk::walk(&path.0, &options)?),
        WorkerCall::Attributes { path } => WorkerReply::Attributes(attributes::get(&path.0)?),
        WorkerCall::ListAttributes { path } => WorkerReply::ListedAttributes(attributes::list(&path.0)?),
        WorkerCall::SetMode { path, mode } => done(attributes::set_mode(&path.0, mode))?,
        WorkerCall::CreateLink { path, target } => done(attributes::create_link(&path.0, &target))?,
        WorkerCall::Discover { path, extended } => {
            let may_read = |file: &File| measure(file, None, PathAccess::Read, rules).map_err(fault::file);
            WorkerReply::Discovered(Box::new(discovery::discover(&path.0, &DiscoveryQuery { extended, may_read: &may_read })?))
        }
    };
    Ok((answer, None))
}

fn done(result: Result<(), Fault>) -> Result<WorkerReply, Fault> {
    result.map(|()| WorkerReply::Done)
}

/// Looks at what was really opened, or at a name in it: by whatever way it was found, it has one path now.
fn measure(opened: impl AsFd, name: Option<&OsStr>, wanted: PathAccess, rules: Option<&PathRules>) -> io::Result<()> {
    let Some(rules) = rules else { return Ok(()) };
    let number = opened.as_fd().as_raw_fd();
    let mut path = std::fs::read_link(format!("/proc/self/fd/{number}"))?;
    path.extend(name);
    // What every sandbox has of its own is not what the rules speak of.
    let is_own = path.starts_with("/dev") || path.starts_with("/proc");
    match rules.access(&path).access {
        allowed if allowed >= wanted || is_own => Ok(()),
        PathAccess::Read => Err(Errno::ROFS.into()),
        _ => Err(Errno::ACCESS.into()),
    }
}

/// Whether a call is made although what the sandbox holds may have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    Doubting = 0,
    /// A caller has just looked.
    Looked = 1,
}

/// How far it is trusted, the length of the call, the call, the data.
fn encode(call: &WorkerCall, trust: Trust, data: &[u8]) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(call)?;
    Ok([&[trust as u8][..], &(head.len() as u64).to_le_bytes()[..], &head, data].concat())
}

fn decode(bytes: &[u8]) -> Option<(WorkerCall, Trust, &[u8])> {
    let (trust, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (head, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let trust = if *trust == Trust::Looked as u8 { Trust::Looked } else { Trust::Doubting };
    Some((serde_json::from_slice(head).ok()?, trust, data))
}

/// The workers of one session, by policy.
pub(crate) struct Workers {
    spare: Mutex<HashMap<Policy, Vec<WorkerHandle>>>,
    patience: WorkerPatience,
}

impl Workers {
    pub(crate) fn new(patience: WorkerPatience) -> Self {
        Self { spare: Mutex::default(), patience }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Policy, Vec<WorkerHandle>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call inside the sandbox of a policy. Blocks, and not only for as long as the call takes: the first one of a
    /// policy makes its sandbox, and whatever runs in there can stop the worker.
    pub(crate) fn call(&self, owner: &ProcessScope, policy: &Policy, call: &WorkerCall, data: &[u8]) -> Result<Done, Fault> {
        let done = self.try_call(owner, policy, call, Trust::Doubting, data)?;
        if !matches!(done.0, WorkerReply::Doubtful) {
            return Ok(done);
        }
        owner.verify(policy).map_err(|error| fault::launch(&error))?;
        self.try_call(owner, policy, call, Trust::Looked, data)
    }

    fn try_call(&self, owner: &ProcessScope, policy: &Policy, call: &WorkerCall, trust: Trust, data: &[u8]) -> Result<Done, Fault> {
        let message = encode(call, trust, data).map_err(fault::file)?;
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
    pub(crate) fn begin(&self, policy: &Policy, call: &WorkerCall, data: &[u8]) -> Result<CallProgress, Fault> {
        let message = encode(call, Trust::Doubting, data).map_err(fault::file)?;
        let Some(worker) = self.take_spare(policy) else { return Ok(CallProgress::NotYet) };
        if hand_over(&worker, &message).is_err() {
            return Ok(CallProgress::NotYet);
        }
        match wait_for(&worker, AT_ONCE) {
            Err(Lost::Silent(_)) => Ok(CallProgress::Waiting(worker, self.patience.with(call))),
            answer => match self.finish(policy, worker, answer)? {
                (WorkerReply::Doubtful, _) => Ok(CallProgress::NotYet),
                done => Ok(CallProgress::Done(done)),
            },
        }
    }

    /// Waits for the answer to a call that was begun. Blocks.
    pub(crate) fn end_call(&self, policy: &Policy, worker: WorkerHandle, patience: Duration) -> Result<Done, Fault> {
        let answer = wait_for(&worker, patience);
        self.finish(policy, worker, answer)
    }

    /// A worker that waits for work; one that was killed meanwhile is found out when it gets some.
    fn take_spare(&self, policy: &Policy) -> Option<WorkerHandle> {
        let mut spare = self.lock();
        let spare = spare.get_mut(policy)?;
        std::iter::from_fn(|| spare.pop()).find(WorkerHandle::engage)
    }

    fn finish(&self, policy: &Policy, worker: WorkerHandle, answer: Result<ChannelMessage, Lost>) -> Result<Done, Fault> {
        let message = match answer {
            Ok(message) => message,
            Err(Lost::Gone) => return Err(gone()),
            Err(Lost::Silent(patience)) => {
                worker.kill();
                return Err(silent(patience));
            }
        };
        worker.rest();
        let mut workers = self.lock();
        if !workers.contains_key(policy) {
            // Those of sandboxes that were let go do not come back.
            workers.retain(|_, spare| {
                spare.retain(WorkerHandle::is_current);
                !spare.is_empty()
            });
        }
        let spare = workers.entry(policy.clone()).or_default();
        if spare.len() < SPARE {
            spare.push(worker);
        }
        drop(workers);
        let answer: Result<WorkerReply, Fault> = serde_json::from_slice(&message.bytes).map_err(Fault::internal)?;
        Ok((answer?, message.descriptors.into_iter().next().map(File::from)))
    }

    /// Lets all of them go.
    pub(crate) fn end(&self) {
        self.lock().clear();
    }
}

/// What a call gives back: the answer, and the file that came with it.
pub(crate) type Done = (WorkerReply, Option<File>);

/// How far a call got at once.
pub(crate) enum CallProgress {
    Done(Done),
    /// The worker has it and needs longer; so long it may take.
    Waiting(WorkerHandle, Duration),
    /// No worker could be had for it, and nothing was done.
    NotYet,
}

/// Why there is no answer.
enum Lost {
    Gone,
    /// It is there and said nothing for so long.
    Silent(Duration),
}

fn hand_over(worker: &WorkerHandle, message: &[u8]) -> Result<(), Lost> {
    worker.channel().send(message, &[]).map_err(|_| Lost::Gone)
}

fn wait_for(worker: &WorkerHandle, patience: Duration) -> Result<ChannelMessage, Lost> {
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

fn start(owner: &ProcessScope, policy: &Policy) -> Result<WorkerHandle, LaunchError> {
    let worker = owner.worker(policy)?;
    if let Some(rules) = policy.rules() {
        let patterns = rules.globs().iter().map(ToString::to_string).collect();
        let told = |rule: &PathRule| {
            let allowed = match rule.access {
                PathAccess::Deny => Allowed::Nothing,
                PathAccess::Read => Allowed::Reading,
                PathAccess::Write => Allowed::Writing,
            };
            (Native(rule.path.clone()), allowed)
        };
        let hello = WorkerCall::Hello { patterns, rules: rules.iter().map(told).collect() };
        worker.channel().send(&encode(&hello, Trust::Looked, &[])?, &[])?;
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
