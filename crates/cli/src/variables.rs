//! The variables that this program was started with, and how those that look like secrets are kept out of sight.
//!
//! The environment of a process can be read by others for as long as it lives: by its own user, and by root whatever it
//! does. So a server starts itself once more without its secrets and gets them through a socket instead. Nothing on the
//! way is written to a disk or shown in a list of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use outpost_runtime::secrets::Secrets;
use outpost_wire::secret_names;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::stdio::{dup2_stdin, stdin};

/// Tells a program that was started once more where its secrets are.
const MARK: &str = "OUTPOST_HIDDEN_VARIABLES";
/// So many bytes of secrets pass in one message.
const MOST: usize = 128 << 10;
/// A shorter value is in other variables by chance.
const SHORTEST_KEY: usize = 8;

/// All variables, seen or hidden.
#[derive(Clone)]
pub struct VisibleVariables {
    all: BTreeMap<OsString, OsString>,
    /// Names of those that hold keys to providers of models, as the configuration says, and of copies of them.
    keys: BTreeSet<OsString>,
    /// Whether the secrets among them are out of sight.
    are_hidden: bool,
    /// How many files this process could have open when it was started.
    open_files: Option<u64>,
}

impl VisibleVariables {
    /// Those of this process. Must be called before anything reads standard input.
    pub fn of_this_process() -> Self {
        let mut all: BTreeMap<_, _> = std::env::vars_os().collect();
        let hidden = all.remove(OsStr::new(MARK)).and_then(|_| receive());
        let are_hidden = hidden.is_some();
        all.extend(hidden.into_iter().flatten());
        let open_files = getrlimit(Resource::Nofile).current;
        Self { all, keys: BTreeSet::new(), are_hidden, open_files }
    }

    /// Learns which variables hold keys to providers of models, whatever they are called.
    pub fn with_keys(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let named: BTreeSet<OsString> = names.into_iter().map(OsString::from).filter(|name| self.all.contains_key(name)).collect();
        let values: Vec<&OsString> = named.iter().filter_map(|name| self.all.get(name)).filter(|key| key.len() >= SHORTEST_KEY).collect();
        let copies = self.all.iter().filter(|(_, value)| values.contains(value)).map(|(name, _)| name.clone());
        self.keys = copies.chain(named.iter().cloned()).collect();
        self
    }

    /// Whether any of them holds such a key under a name that does not say so.
    pub fn have_unmarked_keys(&self) -> bool {
        self.keys.iter().any(|name| !secret_names::is_secret(name))
    }

    /// What an executor of this process may hand on to commands: neither keys to providers nor copies of them.
    pub fn for_commands(&self) -> BTreeMap<OsString, OsString> {
        self.all.iter().filter(|(name, _)| !self.keys.contains(*name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// How many files this process could have open when it was started, which holds for what it starts.
    pub fn open_files(&self) -> Option<u64> {
        self.open_files
    }

    /// A server has a file open for every client, thread and process: it takes as many as the system gives it. What is usual for
    /// programs that cannot count further stays what it was for those that are started here.
    pub fn take_open_files(&self) -> io::Result<()> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current == limit.maximum {
            return Ok(());
        }
        Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.all.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Those of another program of this user, as it sent them: what its commands may have.
    pub fn of_caller(block: &[u8], open_files: Option<u64>) -> Self {
        let pair = |pair: &[u8]| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(pair[..at].to_vec()), OsString::from_vec(pair[at + 1..].to_vec())))
        };
        Self { all: block.split(|byte| *byte == 0).filter_map(pair).collect(), keys: BTreeSet::new(), are_hidden: true, open_files }
    }

    /// What commands may have, in the form in which it is sent to another program of this user.
    pub fn block_for_commands(&self) -> Vec<u8> {
        let pairs = self.for_commands();
        pairs.iter().flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()).collect()
    }

    /// All of them, for another process of this program, which hides its own.
    pub fn every(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.all.iter()
    }

    /// Those that need not be kept out of sight.
    pub fn in_sight(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.all.iter().filter(|(name, _)| !self.is_secret(name))
    }

    /// Those whose names say that they are secrets, and keys to providers.
    pub fn secrets(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.all.iter().filter(|(name, _)| self.is_secret(name))
    }

    fn is_secret(&self, name: &OsString) -> bool {
        secret_names::is_secret(name) || self.keys.contains(name)
    }

    /// What must never be written down.
    pub fn register(&self, secrets: &Secrets) {
        self.secrets().for_each(|(_, value)| secrets.register(value.as_bytes()));
    }

    /// Takes secrets out of the environment of this process by starting it once more. Returns only if there are none, or
    /// if it cannot be done.
    pub fn hide(&self) -> io::Result<()> {
        if self.are_hidden || self.secrets().next().is_none() {
            return Ok(());
        }
        let message: Vec<u8> = self.secrets().flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()).collect();
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| "outpost".into());
        let error = Command::new(own_program())
            .arg0(name)
            .args(arguments)
            .env_clear()
            .envs(self.all.iter().filter(|(name, _)| !self.is_secret(name)))
            .env(MARK, "1")
            .stdin(Stdio::from(send(&message)?))
            .exec();
        Err(error)
    }
}

/// By its path, so that it keeps its name in lists of processes; also if its file was replaced meanwhile.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// A socket from which the message and our standard input can be received.
fn send(message: &[u8]) -> io::Result<OwnedFd> {
    if message.len() > MOST {
        return Err(io::Error::other(format!("they are longer than {MOST} bytes")));
    }
    let input = fcntl_dupfd_cloexec(stdin(), 3)
        .or_else(|_| rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()))?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (mut space, inputs) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [std::os::fd::AsFd::as_fd(&input)]);
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&inputs));
    sendmsg(&ours, &[IoSlice::new(message)], &mut ancillary, SendFlags::empty())?;
    Ok(theirs)
}

/// What was sent, with our standard input put back into its place. Nothing if standard input is not such a socket.
fn receive() -> Option<Vec<(OsString, OsString)>> {
    let mut message = vec![0; MOST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stdin(), &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT).ok()?;
    let input = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    dup2_stdin(input?).ok()?;
    let pairs = message[..received.bytes].split(|byte| *byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(pair[..at].to_vec()), OsString::from_vec(pair[at + 1..].to_vec())))
    });
    Some(pairs.collect())
}
