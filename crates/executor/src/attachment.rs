//! A connection that a session pushes to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use outpost_rpc::{Close, Peer};
use outpost_sandbox::{self as sandbox, Loss};
use outpost_wire::PathUri;
use outpost_wire::exec::adoption::{Moved, MovedParams, PROCESS_MOVES};
use outpost_wire::exec::policy::{Held, LossOutcome, SandboxLoss, SandboxLossParams};
use outpost_wire::exec::process::{Closed, ClosedParams, Exited, ExitedParams, Output, OutputParams, OutputPiece};
use outpost_wire::exec::session::{OUTPUT_GAPS, SANDBOX_LOSSES};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::follow::Follows;
use crate::output::OutputEvent;
use crate::process::Process;

/// Nothing is pushed while more than this waits to be sent: the rest is in the logs, where it costs no memory.
const PUSH_ROOM: usize = 256 << 10;

/// What a client understands besides what every client does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extensions {
    /// `{seq, gapBytes}` for output that was lost.
    pub gaps: bool,
    /// `sandbox/loss`.
    pub losses: bool,
    /// `process/moved`.
    pub moves: bool,
}

impl Extensions {
    pub(crate) fn of(asked: Option<&[String]>) -> Self {
        let has = |name: &str| asked.is_some_and(|asked| asked.iter().any(|asked| asked == name));
        Self { gaps: has(OUTPUT_GAPS), losses: has(SANDBOX_LOSSES), moves: has(PROCESS_MOVES) }
    }
}

pub(crate) struct SessionAttachment {
    peer: Peer,
    understands: Extensions,
    /// Processes that have more to tell than there was room for.
    lagging: Mutex<VecDeque<Arc<Process>>>,
    lagged: Notify,
    /// Another connection resumed the session.
    revoked: CancellationToken,
    /// What the client need not ask for again.
    follows: Weak<Follows>,
}

impl SessionAttachment {
    pub(crate) fn new(peer: Peer, understands: Extensions, follows: Weak<Follows>) -> Arc<Self> {
        let (lagging, lagged, revoked) = (Mutex::default(), Notify::new(), CancellationToken::new());
        let attachment = Arc::new(Self { peer, understands, lagging, lagged, revoked, follows });
        tokio::spawn(attachment.clone().catch_up());
        attachment
    }

    pub(crate) fn with_gaps(&self) -> bool {
        self.understands.gaps
    }

    /// Something that a sandbox held was taken away.
    pub(crate) fn tell_loss(&self, loss: &Loss) {
        let Ok(path) = PathUri::from_native(&loss.path) else { return };
        if !self.understands.losses || !self.has_room() {
            return;
        }
        let held = match loss.held {
            sandbox::HoldMechanism::Denied => Held::Denied,
            sandbox::HoldMechanism::ReadOnly => Held::ReadOnly,
            sandbox::HoldMechanism::Directory => Held::Directory,
            sandbox::HoldMechanism::Link => Held::Link,
            sandbox::HoldMechanism::Root => Held::Root,
        };
        let outcome = match loss.outcome {
            sandbox::OrderOutcome::Restored => LossOutcome::Restored,
            sandbox::OrderOutcome::Missing => LossOutcome::Missing,
            sandbox::OrderOutcome::Open => LossOutcome::Open,
            sandbox::OrderOutcome::Made => LossOutcome::Made,
        };
        self.peer.notify::<SandboxLoss>(&SandboxLossParams { path, held, outcome });
    }

    /// A process of the session went to another one.
    pub(crate) fn tell_moved(&self, process_id: &str) {
        if self.understands.moves {
            self.peer.notify::<Moved>(&MovedParams { process_id: process_id.to_owned() });
        }
    }

    /// Tells which followed answers no longer stand.
    pub(crate) async fn settle_follows(&self) {
        if let Some(follows) = self.follows.upgrade() {
            follows.settle().await;
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.peer.sink().queued() < PUSH_ROOM
    }

    pub(crate) fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    /// Ends the connection because the session went to another one.
    pub(crate) fn revoke(&self) {
        self.revoked.cancel();
        self.peer.retire(Close::new(Close::TAKEN_OVER, "session has been resumed by another connection"));
    }

    /// Ends the connection because the executor ends, after everything that was said on it.
    pub(crate) async fn take_leave(&self) {
        let sink = self.peer.sink();
        sink.flushed().await;
        self.peer.retire(Close::new(Close::GOING_AWAY, "the executor ends"));
        sink.flushed().await;
    }

    /// Whether the client was heard of after that time: its socket may be open and the client gone.
    pub(crate) fn was_there_after(&self, time: Instant) -> bool {
        self.peer.liveness().is_later_than(time)
    }

    pub(crate) fn lags(&self, process: Arc<Process>) {
        let mut lagging = self.lagging.lock().unwrap_or_else(PoisonError::into_inner);
        if !lagging.iter().any(|other| Arc::ptr_eq(other, &process)) {
            lagging.push_back(process);
        }
        drop(lagging);
        self.lagged.notify_one();
    }

    pub(crate) fn tell(&self, process_id: &str, event: OutputEvent) {
        let process_id = process_id.to_owned();
        match event {
            OutputEvent::Output { seq, stream, bytes } => {
                let piece = OutputPiece::Chunk { seq, stream, chunk: bytes.into() };
                self.peer.notify::<Output>(&OutputParams { process_id, piece });
            }
            OutputEvent::Gap { seq, bytes } if self.understands.gaps => {
                let piece = OutputPiece::Gap { seq, gap_bytes: bytes };
                self.peer.notify::<Output>(&OutputParams { process_id, piece });
            }
            // Other clients find out by the numbers.
            OutputEvent::Gap { .. } => {}
            OutputEvent::Exited { seq, code, note } => {
                self.peer.notify::<Exited>(&ExitedParams {
                    process_id,
                    seq,
                    exit_code: code,
                    sandbox_denied: Some(note.denied),
                    limit: note.limit,
                    notices: note.notices,
                });
            }
            OutputEvent::Closed { seq } => {
                self.peer.notify::<Closed>(&ClosedParams { process_id, seq });
            }
        }
    }

    /// Goes on pushing whenever there is room again, one process after the other.
    async fn catch_up(self: Arc<Self>) {
        self.push_while_open().await;
        // They hold us as we hold them.
        self.lagging.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn push_while_open(&self) {
        let sink = self.peer.sink().clone();
        loop {
            tokio::select! {
                () = sink.closed() => return,
                () = self.lagged.notified() => {}
            }
            loop {
                sink.room(PUSH_ROOM / 2).await;
                if sink.is_closed() {
                    return;
                }
                let next = self.lagging.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some(process) = next else { break };
                process.pump();
            }
        }
    }
}
