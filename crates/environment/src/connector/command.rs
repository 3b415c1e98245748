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
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

use super::{Line, Pulse};

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
    pub complaints: Complaints,
}

/// Where a command's standard error goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Complaints {
    /// To the log, and the last of it into the message when the command fails.
    #[default]
    Logged,
    /// To our own, for somebody who sits before it.
    Shown,
}

impl CommandLine {
    /// A line for the shell, as somebody would type it; its complaints are shown.
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

/// What a child must not find in its environment unless it is named.
fn is_withheld(name: &OsStr) -> bool {
    let own = ["OUTPOST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "OUTPOST_HIDDEN_VARIABLES"];
    own.iter().any(|own| name == *own) || secret_names::is_secret(name)
}

pub async fn start(line: &CommandLine) -> Result<Line, LinkError> {
    let mut command = Command::new(&line.program);
    command.args(&line.args).stdin(Stdio::piped()).stdout(Stdio::piped());
    // In a group of its own: an interrupt typed here is for the command that runs there, not for the way to it.
    command.process_group(0).kill_on_drop(true);
    for (name, _) in std::env::vars_os() {
        if is_withheld(&name) {
            command.env_remove(&name);
        }
    }
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
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LinkError::Protocol("the command has no standard input or output".into()));
    };
    let complaint = Complaint::default();
    let complaining = child.stderr.take().map(|stderr| match is_shown {
        true => tokio::spawn(show_complaints(stderr)),
        false => tokio::spawn(complaint.clone().collect(stderr, line.to_string())),
    });
    let pulse = Pulse::default();
    let mut output = BufReader::with_capacity(32 << 10, Listening { stream: output, pulse: pulse.clone() });
    if let Some(mark) = &line.begins_after {
        skip_noise(&mut output, mark, &mut child, &complaint).await?;
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
    Ok(Line { link, pulse: Some(pulse) })
}

/// Reads up to and including the line that says where the executor begins.
async fn skip_noise<R: AsyncRead + Unpin>(
    output: &mut BufReader<R>,
    mark: &str,
    child: &mut Child,
    complaint: &Complaint,
) -> Result<(), LinkError> {
    let mut read = 0;
    loop {
        let mut text = Vec::new();
        let length = (&mut *output).take(NOISE).read_until(b'\n', &mut text).await?;
        read += length as u64;
        if text.trim_ascii_end() == mark.as_bytes() {
            return Ok(());
        }
        if length == 0 {
            let status = tokio::time::timeout(PATIENCE, child.wait()).await;
            let how = match status {
                Ok(Ok(status)) => status.to_string(),
                _ => "its output ended".into(),
            };
            return Err(LinkError::Io(io::Error::other(complaint.attach(format!("the command ended: {how}")))));
        }
        if read > NOISE {
            return Err(LinkError::Protocol(format!("the command printed {read} bytes and no executor")));
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
