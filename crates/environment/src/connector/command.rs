//! Executors behind a command: ssh, docker exec, anything with a standard input and output.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use outpost_rpc::link::stdio;
use outpost_rpc::{Close, LinkError};
use outpost_wire::secret_names;
use outpost_wire::shown::{Form, Showing};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, prlimit};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

use super::{MonitoredLink, Pulse};
use crate::definition::{NO_PROGRAM, NO_SETUP};
use crate::foreign::ssh;
use crate::route::JOB_OVER_EXIT;

/// How long a command may take to end once its input has.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a command's last complaints are waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The most of a command's complaints that is kept for an error message.
const COMPLAINT: usize = 2 << 10;
/// The most that a far shell may print before the executor begins.
const NOISE: u64 = 1 << 20;

/// How a bridge says that another connection resumed the session: byte streams have no other way to tell.
pub const TAKEN_OVER_EXIT: u8 = 41;

/// A program and how it is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub program: String,
    pub args: Vec<String>,
    /// Added to our own variables, of which those that look like secrets are left out.
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
    /// A line after which the executor begins; what comes before it is the noise of a far shell.
    pub begins_after: Option<String>,
    /// Whether it is ssh, whose own messages tell that a login is needed.
    pub is_ssh: bool,
    /// Whether it leads into a batch job, and tells by its exit code that there is none any more.
    pub is_in_job: bool,
    pub complaints: Complaints,
    /// How many files it may have open, where that is less than this process may: some programs cannot count further.
    pub open_files: Option<u64>,
}

/// Where a command's standard error goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Complaints {
    /// To the log, and the last of it into the message when the command fails.
    #[default]
    Logged,
    /// To our own, for a user who sits before it.
    Shown,
}

impl CommandLine {
    /// A line for the shell, as a user would type it; its errors are shown.
    pub fn shell(command: impl Into<String>) -> Self {
        Self { program: "/bin/sh".into(), args: vec!["-c".into(), command.into()], complaints: Complaints::Shown, ..Self::default() }
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.program == "/bin/sh" && self.args.len() == 2 {
            return f.write_str(&self.args[1]);
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// Why a way through a shell does not lead to an executor, where that is known.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum NoExecutor {
    #[error("{said}")]
    NeedsLogin { said: String },
    #[error("there is no outpost there; `outpost env upgrade` brings it")]
    NoProgram,
    #[error("it was not set up yet")]
    NoSetup,
    /// It will never be there again.
    #[error("{said}")]
    Over { said: String },
}

impl NoExecutor {
    /// What a failed link says, if it is that.
    pub fn of(error: &LinkError) -> Option<&Self> {
        let LinkError::Io(error) = error else { return None };
        error.get_ref()?.downcast_ref()
    }

    /// What the end of a command before an executor began, and its last words, mean.
    fn told(line: &CommandLine, status: Option<ExitStatus>, said: &str) -> Option<Self> {
        let code = status.and_then(|status| status.code());
        if line.is_ssh && ssh::needs_login(code, said) {
            return Some(Self::NeedsLogin { said: said.to_owned() });
        }
        let is_over = line.is_in_job && code == Some(i32::from(JOB_OVER_EXIT));
        is_over.then(|| Self::Over { said: said.trim_start_matches("outpost: ").to_owned() })
    }
}

impl From<NoExecutor> for LinkError {
    fn from(why: NoExecutor) -> Self {
        Self::Io(io::Error::other(why))
    }
}

/// What a child must not find in its environment unless it is named.
fn is_withheld(name: &OsStr) -> bool {
    let own = ["OUTPOST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "OUTPOST_HIDDEN_VARIABLES"];
    own.iter().any(|own| name == *own) || secret_names::is_secret(name)
}

/// Takes our secrets out of what a command inherits: some ways hand their whole environment on to the other side.
pub(crate) fn withhold_secrets(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_withheld(&name) {
            command.env_remove(&name);
        }
    }
}

pub(super) async fn start(line: &CommandLine) -> Result<MonitoredLink, LinkError> {
    let mut command = Command::new(&line.program);
    command.args(&line.args).stdin(Stdio::piped()).stdout(Stdio::piped());
    // In a group of its own: an interrupt typed here is for the command that runs there, not for the way to it.
    command.process_group(0).kill_on_drop(true);
    withhold_secrets(&mut command);
    command.envs(&line.env);
    if let Some(cwd) = &line.cwd {
        command.current_dir(cwd);
    }
    // A terminal must not be reached past us.
    let is_shown = line.complaints == Complaints::Shown;
    if !is_shown || io::stderr().is_terminal() {
        command.stderr(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("cannot run `{}`: {error}", line.program)))?;
    limit_files(&child, line.open_files);
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LinkError::Protocol("the command has no standard input or output".into()));
    };
    let complaint = Complaint::default();
    let mut complaining = child.stderr.take().map(|stderr| match is_shown {
        true => tokio::spawn(show_complaints(stderr)),
        false => tokio::spawn(complaint.clone().collect(stderr, line.to_string())),
    });
    let pulse = Pulse::default();
    let mut output = BufReader::with_capacity(32 << 10, Listening { stream: output, pulse: pulse.clone() });
    if let Some(mark) = &line.begins_after {
        skip_noise(&mut output, mark, &mut child, Said { line, complaint: &complaint, complaining: complaining.as_mut() }).await?;
    }
    let mut link = stdio::link(output, input, format!("command `{line}`"));
    let sink = link.tx.clone();
    // Ends the command with the link; its own end shows as the end of its output.
    let ended = tokio::spawn(async move {
        let status = tokio::select! {
            () = sink.closed() => {
                // It gets the chance to leave by itself now that its input has ended.
                let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
                if ended.is_err() {
                    end_group(&child);
                }
                ended.ok().and_then(Result::ok)
            }
            status = child.wait() => status.ok(),
        };
        // Its last words are often the reason. What it left behind may hold its standard error open for longer.
        if let Some(complaining) = complaining {
            let _ = tokio::time::timeout(LAST_WORDS, complaining).await;
        }
        status
    });
    // Only the command itself knows why it ended.
    let frames = link.rx;
    link.rx = Box::pin(frames.chain(stream::once(ended_with(ended, complaint)).filter_map(std::future::ready)));
    Ok(MonitoredLink { link, pulse: Some(pulse) })
}

/// It runs already, but it is far from having as many files open.
fn limit_files(child: &Child, open_files: Option<u64>) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let (Some(open_files), Some(pid)) = (open_files, pid) {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = maximum.map_or(open_files, |most| open_files.min(most));
        // One that has ended by now needs no limit.
        let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum });
    }
}

/// What is known of a command besides its output.
struct Said<'a> {
    line: &'a CommandLine,
    complaint: &'a Complaint,
    complaining: Option<&'a mut JoinHandle<()>>,
}

/// Reads up to and including the line that says where the executor begins.
async fn skip_noise<R: AsyncRead + Unpin>(
    output: &mut BufReader<R>,
    mark: &str,
    child: &mut Child,
    said: Said<'_>,
) -> Result<(), LinkError> {
    let mut read = 0;
    loop {
        let mut text = Vec::new();
        let length = (&mut *output).take(NOISE).read_until(b'\n', &mut text).await?;
        read += length as u64;
        match text.trim_ascii_end() {
            found if found == mark.as_bytes() => return Ok(()),
            found if found == NO_PROGRAM.as_bytes() => return Err(NoExecutor::NoProgram.into()),
            found if found == NO_SETUP.as_bytes() => return Err(NoExecutor::NoSetup.into()),
            _ => {}
        }
        if length == 0 {
            let status = tokio::time::timeout(PATIENCE, child.wait()).await;
            let status = status.ok().and_then(Result::ok);
            let Said { line, complaint, complaining } = said;
            if let Some(complaining) = complaining {
                // What it said last may still be on its way.
                let _ = tokio::time::timeout(LAST_WORDS, complaining).await;
            }
            if let Some(why) = NoExecutor::told(line, status, &complaint.last()) {
                return Err(why.into());
            }
            let how = status.map_or_else(|| "its output ended".into(), |status| status.to_string());
            return Err(LinkError::Io(io::Error::other(complaint.attach(format!("the command ended: {how}")))));
        }
        if read > NOISE {
            return Err(LinkError::Protocol(format!("the command printed {read} bytes and no executor").into()));
        }
    }
}

/// The shell may have started others.
fn end_group(child: &Child) {
    if let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// What the end of the command means for the link, beyond that it is over.
async fn ended_with(ended: JoinHandle<Option<ExitStatus>>, complaint: Complaint) -> Option<Result<Bytes, LinkError>> {
    let status = tokio::time::timeout(PATIENCE, ended).await.ok()?.ok()??;
    if status.code() == Some(i32::from(TAKEN_OVER_EXIT)) {
        return Some(Err(LinkError::Closed(Close::new(Close::TAKEN_OVER, "session has been resumed by another connection"))));
    }
    (!status.success()).then(|| Err(LinkError::Io(io::Error::other(complaint.attach(format!("the command ended: {status}"))))))
}

/// Copies what a command complains about to our terminal, where it is seen and not obeyed.
async fn show_complaints(mut stderr: ChildStderr) {
    let (mut out, mut showing, mut buffer) = (tokio::io::stderr(), Showing::new(Form::Text), vec![0; 8 << 10]);
    loop {
        let mut shown = String::new();
        let read = stderr.read(&mut buffer).await.unwrap_or_default();
        match read {
            0 => showing.end(&mut shown),
            length => showing.bytes(&buffer[..length], &mut shown),
        }
        let written = out.write_all(shown.as_bytes()).await.is_ok() && out.flush().await.is_ok();
        if read == 0 || !written {
            return;
        }
    }
}

/// The last thing that a command complained about.
#[derive(Clone, Default)]
struct Complaint(Arc<Mutex<String>>);

impl Complaint {
    async fn collect(self, stderr: ChildStderr, command: String) {
        let mut lines = BufReader::new(stderr.take(u64::MAX)).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            let line = String::from_utf8_lossy(&line[..line.len().min(COMPLAINT)]).trim().to_owned();
            if !line.is_empty() {
                tracing::debug!(command, line, "a command complains");
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        }
    }

    fn last(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn attach(&self, reason: String) -> String {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_str() {
            "" => reason,
            complaint => format!("{reason} ({complaint})"),
        }
    }
}

/// A stream that counts what comes.
struct Listening<S> {
    stream: S,
    pulse: Pulse,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.pulse.add(buffer.filled().len() - before);
        polled
    }
}
