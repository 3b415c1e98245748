//! A command that a client runs itself: started, followed to its end, killed with its connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use outpost_environment::{Environment, EnvironmentError, ProcessEvent, ProcessStart, RemoteProcess};
use outpost_wire::Fault;
use outpost_wire::app::commands::{CommandExecOutputDelta, OutputStream, ProcessOutputDelta};
use outpost_wire::app::event::Notice;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{Stream, TerminalSize};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::ClientConnection;

/// What a command left behind may keep its output open for so long after its end.
const DRAIN: Duration = Duration::from_secs(2);
/// How long killing may take before it is left to the executor.
const KILL: Duration = Duration::from_secs(5);
/// A client that does not read holds up its command for so long; then its output piles up until the client is let go.
const PATIENCE: Duration = Duration::from_secs(5);
/// As `timeout` of the shell has it.
pub(crate) const TIMED_OUT: i32 = 124;

/// What is to run, and how it is followed.
pub(crate) struct JobRequest {
    pub environment: Environment,
    pub start: ProcessStart,
    pub sandbox: Option<SandboxContext>,
    pub size: Option<TerminalSize>,
    /// Told as it comes, under this name; kept for the end otherwise.
    pub streams: Option<JobLabel>,
    /// Of each stream.
    pub cap: Option<usize>,
    pub timeout: Option<Duration>,
}

/// How a client calls it.
#[derive(Debug, Clone)]
pub(crate) enum JobLabel {
    Command(String),
    Process(String),
}

impl JobLabel {
    fn delta(&self, stream: OutputStream, bytes: bytes::Bytes, cap_reached: bool) -> Notice {
        let delta_base64 = bytes.into();
        match self {
            Self::Command(process_id) => {
                CommandExecOutputDelta { process_id: process_id.clone(), stream, delta_base64, cap_reached }.into()
            }
            Self::Process(process_handle) => {
                ProcessOutputDelta { process_handle: process_handle.clone(), stream, delta_base64, cap_reached }.into()
            }
        }
    }
}

/// What later requests about a job find, also while it is being started.
pub(crate) struct JobHandle {
    pub has_input: bool,
    pub has_terminal: bool,
    /// Writers wait here, so that writes arrive in the order in which they came.
    pub input: Mutex<()>,
    process: watch::Receiver<Option<Arc<RemoteProcess>>>,
}

/// Where the process of a seat is put as soon as there is one.
pub(crate) struct Arrival(watch::Sender<Option<Arc<RemoteProcess>>>);

impl JobHandle {
    pub(crate) fn new(has_terminal: bool, streams_input: bool) -> (Arc<Self>, Arrival) {
        let (sender, process) = watch::channel(None);
        let has_input = has_terminal || streams_input;
        (Arc::new(Self { has_input, has_terminal, input: Mutex::default(), process }), Arrival(sender))
    }

    /// Waits for a process that is being started. Nothing if it is over.
    pub(crate) async fn process(&self) -> Option<Arc<RemoteProcess>> {
        self.process.clone().wait_for(Option::is_some).await.ok().and_then(|process| process.clone())
    }
}

/// One stream, as far as its cap lets it be seen.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    kept: Vec<u8>,
    seen: usize,
    pub is_cut: bool,
}

impl Capture {
    /// How much of a piece is still to be seen.
    fn admit(&mut self, bytes: bytes::Bytes, cap: Option<usize>) -> bytes::Bytes {
        let room = cap.map_or(usize::MAX, |cap| cap.saturating_sub(self.seen));
        self.is_cut |= bytes.len() > room;
        let shown = bytes.slice(..bytes.len().min(room));
        self.seen += shown.len();
        shown
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

/// How a job ended.
#[derive(Debug, Default)]
pub(crate) struct JobOutcome {
    pub exit_code: i32,
    pub stdout: Capture,
    pub stderr: Capture,
    /// Something that it left behind kept its output open and was ended, too.
    pub left_behind: bool,
}

/// A running process; dropping this kills it.
pub(crate) struct Job {
    process: Arc<RemoteProcess>,
    connection: Arc<ClientConnection>,
    streams: Option<JobLabel>,
    cap: Option<usize>,
    deadline: Option<Instant>,
    is_lagging: bool,
    _arrival: Arrival,
    is_over: bool,
}

impl Job {
    pub(crate) async fn start(connection: Arc<ClientConnection>, wanted: JobRequest, arrival: Arrival) -> Result<Self, EnvironmentError> {
        let JobRequest { environment, start, sandbox, size, streams, cap, timeout } = wanted;
        let (sender, started) = oneshot::channel();
        let name = environment.name().to_owned();
        // By itself, because a start whose caller is gone may still become a process.
        tokio::spawn(async move {
            let started = match size {
                Some(size) => environment.start_sized(start, sandbox, size).await,
                None => environment.start_within(start, sandbox).await,
            };
            if let Err(Ok(orphan)) = sender.send(started) {
                let _ = tokio::time::timeout(KILL, orphan.terminate()).await;
            }
        });
        let gone = |_| EnvironmentError::Gone { name, reason: "the start was given up".into() };
        let process = Arc::new(started.await.map_err(gone)??);
        arrival.0.send_replace(Some(process.clone()));
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        Ok(Self { process, connection, streams, cap, deadline, is_lagging: false, _arrival: arrival, is_over: false })
    }

    /// Follows it to its end.
    pub(crate) async fn end(mut self) -> Result<JobOutcome, Fault> {
        let mut ended = JobOutcome::default();
        let (mut code, mut is_late) = (None, false);
        loop {
            let deadline = self.deadline;
            let event = tokio::select! {
                event = self.process.next() => event,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if code.is_none() && !is_late {
                        is_late = true;
                        let _ = timeout(KILL, self.process.terminate()).await;
                        self.deadline = Some(Instant::now() + DRAIN);
                        continue;
                    }
                    ended.left_behind = true;
                    break;
                }
            };
            match event {
                Some(ProcessEvent::Output { stream: Stream::Stderr, bytes }) => {
                    self.take(OutputStream::Stderr, &mut ended.stderr, bytes).await;
                }
                Some(ProcessEvent::Output { bytes, .. }) => self.take(OutputStream::Stdout, &mut ended.stdout, bytes).await,
                // What is missing cannot be told apart from what was cut.
                Some(ProcessEvent::Gap { .. }) => ended.stdout.is_cut = true,
                Some(ProcessEvent::Exited { code: exit, .. }) => {
                    code = Some(exit);
                    self.deadline = Some(Instant::now() + DRAIN);
                }
                Some(ProcessEvent::Closed) | None => break,
                Some(ProcessEvent::Lost { reason }) => {
                    self.is_over = true;
                    return Err(Fault::internal(format!("the outcome of the command is unknown: {reason}")));
                }
            }
        }
        self.is_over = !ended.left_behind;
        ended.exit_code = if is_late { TIMED_OUT } else { code.unwrap_or(-1) };
        Ok(ended)
    }

    async fn take(&mut self, stream: OutputStream, capture: &mut Capture, bytes: bytes::Bytes) {
        let was_cut = capture.is_cut;
        let shown = capture.admit(bytes, self.cap);
        let Some(label) = &self.streams else {
            capture.kept.extend_from_slice(&shown);
            return;
        };
        if was_cut || (shown.is_empty() && !capture.is_cut) {
            return;
        }
        let notice = label.delta(stream, shown, capture.is_cut);
        self.make_room().await;
        self.connection.tell(&notice);
    }

    /// Waits for a client that reads slowly, but not for ever for one that does not read: others share the way to the machine.
    async fn make_room(&mut self) {
        let room = self.connection.outlet.room();
        self.is_lagging = if self.is_lagging { room.now_or_never().is_none() } else { tokio::time::timeout(PATIENCE, room).await.is_err() };
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let process = self.process.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = timeout(KILL, process.terminate()).await {
                    tracing::warn!(process = process.id(), %error, "a client's command could not be ended with its connection");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_once() {
        let mut capture = Capture::default();
        let piece = |text: &'static str| bytes::Bytes::from_static(text.as_bytes());
        assert_eq!(capture.admit(piece("ab"), Some(3)), piece("ab"));
        assert!(!capture.is_cut);
        assert_eq!(capture.admit(piece("c"), Some(3)), piece("c"));
        assert!(!capture.is_cut, "it fits exactly");
        assert_eq!(capture.admit(piece("d"), Some(3)), piece(""));
        assert!(capture.is_cut);
        assert_eq!(Capture::default().admit(piece("abcd"), None), piece("abcd"));
    }
}
