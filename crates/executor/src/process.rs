//! One process: a task that owns the child, a log that all others read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Child, ChildEnd, ChildTerminal, Exit, Output, ProcessTree, Signal, TerminalSize};
use outpost_wire::exec::adoption::AdoptResponse;
use outpost_wire::exec::process::{
    OutputPiece, PortConnection, ProcessMetadata, ProcessSummary, ReadResponse, StartParams, Stream, WriteStatus,
};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::attachment::SessionAttachment;
use crate::denial::DenialWatch;
use crate::git::RepositoryInUse;
use crate::info;
use crate::input::{ProcessInput, WriteError};
use crate::journal::FateLog;
use crate::output::{ExitNote, MAX_CHUNKS, OutputEvent, OutputLog};
use crate::retained::OutputHolder;
use crate::session::ExecutorSession;

/// A client that polls, and has not yet got to where pushes are, counts as a reader for so long after its last poll.
const POLLING: Duration = Duration::from_secs(60);
/// Room for one more read from the child. Chunks are moved to the spool and dropped from it as a whole, so each of the
/// two may hold up to a chunk less than it could.
const ONE_READ: u64 = 3 * (64 << 10);
/// After a kill, output that is already on its way is still taken for so long.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// And after the end of a confined process, before its end is told.
const TRAILING: Duration = Duration::from_millis(20);
/// The most that one answer carries: it has to fit a message, as base64.
const MAX_ANSWER: usize = 40 << 20;

pub(crate) struct Process {
    id: String,
    /// Of the parameters that it was started with: a repeated start is recognised by them.
    fingerprint: String,
    /// The session that has it now. Locked after the state.
    holder: Mutex<Holder>,
    fates: FateLog,
    argv: Vec<String>,
    metadata: Option<ProcessMetadata>,
    is_terminal: bool,
    /// Nothing is pushed: its client reads, and it waits for its client.
    is_pulled: bool,
    /// Of one that other sessions may adopt: the connection that started it, adopted it or read it last.
    asked_by: Mutex<Option<Weak<SessionAttachment>>>,
    policy: Policy,
    since: Instant,
    kin: ProcessTree,
    /// Given back when the process is closed.
    terminal: Mutex<Option<ChildTerminal>>,
    input: ProcessInput,
    state: Mutex<State>,
    /// Something was appended.
    changed: Notify,
    /// A reader got on, or there is none any more.
    drained: Notify,
    kill: CancellationToken,
}

struct State {
    log: OutputLog,
    /// Of a confined process: whether its output speaks of a refusal.
    denial: Option<DenialWatch>,
    notices: Vec<String>,
    /// Who is pushed to, and how far that got. Of a process that is pulled: the last number that was told in answer to a read, and the
    /// bytes that its client is known to have.
    target: Option<Arc<SessionAttachment>>,
    pushed: Cursor,
    /// How far a client that polls has got, and when it last did.
    polled: Option<(u64, Instant)>,
    /// The session that started it, once it has gone to another one: its sandbox is there, and stays until the process is closed.
    origin: Option<Arc<ExecutorSession>>,
}

/// Whose a process is.
struct Holder {
    session_id: String,
    session: Weak<ExecutorSession>,
}

/// A place in the log: the last number that was told, and the output bytes up to there.
#[derive(Clone, Copy)]
struct Cursor {
    seq: u64,
    bytes: u64,
}

/// What a read asks for.
pub(crate) struct ReadRequest {
    pub after_seq: u64,
    pub max_bytes: Option<usize>,
    pub wait: Duration,
    pub with_gaps: bool,
}

/// What is known of a child besides how it was asked for.
pub(crate) struct Adoption {
    pub fingerprint: String,
    pub policy: Policy,
    /// Its sandbox has no network.
    pub is_offline: bool,
    /// What there is to say about it besides its output.
    pub notices: Vec<String>,
    /// The repositories that it may change.
    pub in_use: RepositoryInUse,
}

/// The same for equal parameters, also in a later start.
pub(crate) fn fingerprint(params: &StartParams) -> String {
    // Who else may have it makes no other process of it, and the secret is not to be written down in any form.
    let bare = (params.adoption.is_some() || params.connect.is_some()).then(|| {
        let connect = params.connect.as_ref().map(|connect| PortConnection { beside: Vec::new(), ..connect.clone() });
        StartParams { adoption: None, connect, ..params.clone() }
    });
    let text = serde_json::to_vec(bare.as_ref().unwrap_or(params)).unwrap_or_default();
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl OutputHolder for Process {
    fn held(&self) -> (usize, u64) {
        self.lock().log.held()
    }

    fn is_told(&self) -> bool {
        Self::is_told(self)
    }

    fn move_to_disk(&self) {
        self.lock().log.move_to_disk();
    }

    fn give_up(&self) {
        self.lock().log.give_up();
    }
}

impl Process {
    /// Takes over a child that was just started.
    pub(crate) fn adopt(child: Child, params: StartParams, adoption: Adoption, session: &Arc<ExecutorSession>) -> Arc<Self> {
        let Adoption { fingerprint, policy, is_offline, notices, in_use } = adoption;
        let is_confined = policy != Policy::Open;
        let config = session.config();
        let Child { kin, input, output, errors, terminal, end } = child;
        let process = Arc::new(Self {
            fingerprint,
            holder: Mutex::new(Holder { session_id: session.id().to_owned(), session: Arc::downgrade(session) }),
            fates: session.fates().clone(),
            id: params.process_id,
            argv: params.argv,
            metadata: params.metadata,
            is_terminal: params.tty,
            is_pulled: params.connect.as_ref().is_some_and(|connect| connect.pull),
            asked_by: Mutex::new(params.adoption.as_ref().map(|_| Weak::new())),
            policy,
            since: Instant::now(),
            kin,
            terminal: Mutex::new(terminal),
            input: ProcessInput::new(input, params.tty, session.input_room().clone()),
            state: Mutex::new(State {
                log: OutputLog::new(config.output, config.spool_directory.as_deref()),
                denial: is_confined.then(|| DenialWatch::new(is_offline)),
                notices,
                target: None,
                pushed: Cursor { seq: 0, bytes: 0 },
                polled: None,
                origin: None,
            }),
            changed: Notify::new(),
            drained: Notify::new(),
            kill: CancellationToken::new(),
        });
        let streams = Streams { first: if params.tty { Stream::Pty } else { Stream::Stdout }, output, errors };
        tokio::spawn(process.clone().run(streams, end, in_use, Arc::downgrade(session)));
        process
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that has it now.
    pub(crate) fn session(&self) -> Weak<ExecutorSession> {
        self.holder().session.clone()
    }

    /// Whether another session than that one has it now.
    pub(crate) fn has_left(&self, session: &Arc<ExecutorSession>) -> bool {
        !std::ptr::eq(self.holder().session.as_ptr(), Arc::as_ptr(session))
    }

    /// Notes the session whose sandbox it runs in, because it goes to another one. False if that is known, or it runs no more.
    pub(crate) fn leave_home(&self, origin: &Arc<ExecutorSession>) -> bool {
        let mut state = self.lock();
        let leaves = state.origin.is_none() && !state.log.is_closed() && !self.has_left(origin);
        if leaves {
            state.origin = Some(origin.clone());
        }
        leaves
    }

    /// Goes to another session, with all that is kept of its output. A client that reads it from the beginning loses nothing from now on.
    pub(crate) fn move_to(self: &Arc<Self>, session: &Arc<ExecutorSession>, target: Option<Arc<SessionAttachment>>) {
        let mut state = self.lock();
        let mut holder = self.holder();
        self.fates.note(|journal| journal.forgotten(&holder.session_id, &self.id));
        *holder = Holder { session_id: session.id().to_owned(), session: Arc::downgrade(session) };
        self.fates.note(|journal| {
            journal.started(&holder.session_id, &self.id, &self.fingerprint);
            if let Some(code) = state.log.exit_code() {
                journal.exited(&holder.session_id, &self.id, code, state.log.next_seq());
            }
        });
        drop(holder);
        state.polled = target.as_ref().map(|_| (0, Instant::now()));
        state.pushed = match self.is_pulled {
            true => Cursor { seq: 0, bytes: 0 },
            false => Cursor { seq: state.log.next_seq() - 1, bytes: state.log.total() },
        };
        state.target = target;
        drop(state);
        self.drained.notify_one();
    }

    /// What a client is told that takes it over.
    pub(crate) fn standing(&self) -> AdoptResponse {
        let state = self.lock();
        AdoptResponse { next_seq: state.log.next_seq(), exited: state.log.exit_code().is_some(), closed: state.log.is_closed() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes from now on to another connection, or to none. What was told before is not told again.
    pub(crate) fn push_to(self: &Arc<Self>, target: Option<Arc<SessionAttachment>>) {
        let mut state = self.lock();
        // A client that comes back reads on from somewhere before what was pushed last.
        state.polled = target.as_ref().map(|_| (state.pushed.bytes, Instant::now()));
        if target.is_some() && !self.is_pulled {
            state.pushed = Cursor { seq: state.log.next_seq() - 1, bytes: state.log.total() };
        }
        state.target = target;
        drop(state);
        self.drained.notify_one();
    }

    /// Pushes from the very beginning; for a process that was just started.
    pub(crate) fn push_all_to(self: &Arc<Self>, target: Option<Arc<SessionAttachment>>) {
        let mut state = self.lock();
        state.target = target;
        self.push(&mut state);
    }

    /// Sends events as long as the other side takes them.
    pub(crate) fn pump(self: &Arc<Self>) {
        let mut state = self.lock();
        self.push(&mut state);
        drop(state);
        self.drained.notify_one();
    }

    fn push(self: &Arc<Self>, state: &mut State) {
        let Some(target) = state.target.clone().filter(|_| !self.is_pulled) else { return };
        while state.pushed.seq + 1 < state.log.next_seq() {
            if !target.has_room() {
                target.lags(self.clone());
                return;
            }
            let Some(event) = state.log.after(state.pushed.seq) else { return };
            state.pushed.seq = event.seq();
            state.pushed.bytes += match &event {
                OutputEvent::Output { bytes, .. } => bytes.len() as u64,
                OutputEvent::Gap { bytes, .. } => *bytes,
                OutputEvent::Exited { .. } | OutputEvent::Closed { .. } => 0,
            };
            target.tell(&self.id, event);
        }
    }

    /// Whether the child has to wait because a reader that is there would otherwise lose output.
    fn is_held(&self) -> bool {
        let state = self.lock();
        let room = state.log.capacity().saturating_sub(ONE_READ);
        let total = state.log.total();
        let behind = |bytes: u64| total.saturating_sub(bytes) > room;
        let polls = state.polled.is_some_and(|(bytes, when)| when.elapsed() < POLLING && behind(bytes));
        let is_many = state.log.next_seq() - state.pushed.seq > MAX_CHUNKS as u64 / 2;
        if self.is_pulled {
            // Also while its client is away: no other client reads it.
            return behind(state.pushed.bytes) || is_many;
        }
        state.target.is_some() && (behind(state.pushed.bytes) || is_many || polls)
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut OutputLog)) {
        let mut state = self.lock();
        change(&mut state.log);
        self.push(&mut state);
        drop(state);
        self.changed.notify_waiters();
    }

    async fn run(self: Arc<Self>, streams: Streams, mut end: ChildEnd, in_use: RepositoryInUse, session: Weak<ExecutorSession>) {
        self.stream_until_closed(streams, &mut end, &session).await;
        // Its output may be kept for long; its sandbox need not be.
        drop((end, in_use));
        self.input.release().await;
        drop(self.terminal.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.change(|log| {
            // That it was closed goes without saying; that more output came after the exit does not.
            if !log.exit_was_last() {
                self.fates.note(|journal| journal.closed(&self.holder().session_id, &self.id, log.next_seq()));
            }
            log.close();
        });
        let origin = self.lock().origin.take();
        if let Some(origin) = origin {
            origin.take_back();
        }
        if let Some(session) = self.session().upgrade() {
            session.retained().add(Arc::downgrade(&self));
        }
        ExecutorSession::forget_later(&self).await;
    }

    async fn stream_until_closed(self: &Arc<Self>, streams: Streams, end: &mut ChildEnd, session: &Weak<ExecutorSession>) {
        let (mut output_open, mut errors_open, mut exited) = (true, streams.errors.is_some(), false);
        while output_open || errors_open || !exited {
            let held = self.is_held();
            tokio::select! {
                biased;
                () = self.kill.cancelled() => {
                    self.kin.kill();
                    if !exited {
                        let exit = end.wait_for_kill().await;
                        self.carry_over(session).await;
                        self.settle_follows().await;
                        self.record_exit(exit);
                    }
                    self.take_last_words(&streams, LAST_WORDS).await;
                    return;
                }
                open = self.take(&streams.output, streams.first), if output_open && !held => output_open = open,
                open = self.take_errors(&streams), if errors_open && !held => errors_open = open,
                exit = end.wait(), if !exited => {
                    if self.policy != Policy::Open {
                        // What it said last tells whether it was refused something.
                        self.take_last_words(&streams, TRAILING).await;
                        self.carry_over(session).await;
                    }
                    self.settle_follows().await;
                    self.record_exit(exit);
                    exited = true;
                }
                () = self.drained.notified(), if held => {}
                // A client that stopped polling does not say so.
                () = sleep(POLLING), if held => {}
            }
        }
    }

    /// What it changed of what the client knows is told before its end is.
    async fn settle_follows(&self) {
        let target = self.lock().target.clone();
        if let Some(target) = target {
            target.settle_follows().await;
        }
    }

    /// What it committed is there before its end is told.
    async fn carry_over(&self, session: &Weak<ExecutorSession>) {
        let Some(session) = session.upgrade().filter(|_| self.policy != Policy::Open) else { return };
        let notices = session.after_command(&self.policy, self.since.elapsed()).await;
        self.lock().notices.extend(notices);
    }

    /// Takes what the child wrote. False at the end.
    async fn take(self: &Arc<Self>, output: &Output, stream: Stream) -> bool {
        let Some(bytes) = output.read().await else { return false };
        if let Some(denial) = &mut self.lock().denial {
            denial.see(stream, &bytes);
        }
        self.change(|log| log.append(stream, bytes));
        true
    }

    async fn take_errors(self: &Arc<Self>, streams: &Streams) -> bool {
        match &streams.errors {
            Some(errors) => self.take(errors, Stream::Stderr).await,
            None => false,
        }
    }

    fn record_exit(self: &Arc<Self>, exit: Exit) {
        let code = match exit {
            Exit::Code(code) => code,
            // What the wire says of terminals.
            Exit::Signal(_) if self.is_terminal => 1,
            Exit::Signal(signal) => 128 + signal,
            Exit::Lost => -1,
        };
        self.input.end();
        let denied = self.lock().denial.as_ref().is_some_and(|denial| denial.is_likely(code));
        let notices = std::mem::take(&mut self.lock().notices);
        let note = ExitNote { denied, limit: self.kin.limit_reached(exit).map(info::limit), notices };
        self.change(|log| {
            log.note_exit(note);
            log.exit(code);
            // No client is told before this returns.
            self.fates.note(|journal| journal.exited(&self.holder().session_id, &self.id, code, log.next_seq()));
        });
    }

    /// Takes what a killed child had already written; a process outside its group may hold the pipes for ever.
    async fn take_last_words(self: &Arc<Self>, streams: &Streams, time: Duration) {
        let deadline = Instant::now() + time;
        // Looked at here as well: a read that is ready is taken before its time limit is.
        let may_go_on = || !self.is_held() && Instant::now() < deadline;
        while may_go_on() && timeout_at(deadline, self.take(&streams.output, streams.first)).await == Ok(true) {}
        while may_go_on() && timeout_at(deadline, self.take_errors(streams)).await == Ok(true) {}
    }

    /// Kills the process and everything that came of it, also what outlived it. False if the process itself had ended already.
    pub(crate) fn terminate(&self) -> bool {
        // Looked at before: a kill may be over before the next look.
        let (running, closed) = {
            let state = self.lock();
            (state.log.exit_code().is_none(), state.log.is_closed())
        };
        self.kin.kill();
        if !closed || self.is_pulled {
            self.kill.cancel();
        }
        running
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.kin.signal(signal);
    }

    /// Nothing if it has no terminal.
    pub(crate) fn resize(&self, size: TerminalSize) -> Option<std::io::Result<()>> {
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        match terminal.as_ref() {
            Some(terminal) => Some(terminal.resize(size)),
            None if self.is_terminal => Some(Ok(())),
            None => None,
        }
    }

    pub(crate) async fn write(&self, write_id: String, bytes: Bytes) -> Result<WriteStatus, WriteError> {
        self.input.write(write_id, bytes).await
    }

    pub(crate) async fn close_input(&self) -> WriteStatus {
        self.input.close().await
    }

    /// Whether everything was pushed to the attached connection. The rest of what is pulled is not asked for once its end is.
    pub(crate) fn note_asked_by(&self, attachment: &Arc<SessionAttachment>) {
        if let Some(asked_by) = self.asked_by.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            *asked_by = Arc::downgrade(attachment);
        }
    }

    /// Whether another session may come for it while the client that is there has shown no interest: that may be a program that was started
    /// anew, and has the session without the thread.
    pub(crate) fn waits_for_another_than(&self, attachment: &Arc<SessionAttachment>) -> bool {
        let asked_by = self.asked_by.lock().unwrap_or_else(PoisonError::into_inner);
        asked_by.as_ref().is_some_and(|asked_by| !std::ptr::eq(asked_by.as_ptr(), Arc::as_ptr(attachment)))
    }

    pub(crate) fn is_told(&self) -> bool {
        let state = self.lock();
        (self.is_pulled && self.kill.is_cancelled()) || state.pushed.seq + 1 == state.log.next_seq()
    }

    /// Waits until everything was pushed to the attached connection, if there is one.
    pub(crate) async fn told(&self) {
        while !self.is_pulled && !self.is_told() && self.lock().target.is_some() {
            sleep(TRAILING).await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().log.is_closed()
    }

    /// Waits until the process is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed() {
                return;
            }
            changed.await;
        }
    }

    /// Reads what comes after a number; waits for something to come if nothing is there.
    pub(crate) async fn read(self: &Arc<Self>, request: &ReadRequest) -> ReadResponse {
        let deadline = Instant::now() + request.wait;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (answer, is_worth_telling) = self.read_now(request);
            if is_worth_telling || request.wait.is_zero() || timeout_at(deadline, changed).await.is_err() {
                return answer;
            }
        }
    }

    /// What there is now, and whether it is worth waking a reader.
    pub(crate) fn read_now(self: &Arc<Self>, request: &ReadRequest) -> (ReadResponse, bool) {
        let mut state = self.lock();
        let limit = request.max_bytes.unwrap_or(MAX_ANSWER).min(MAX_ANSWER);
        let mut chunks = Vec::new();
        let mut bytes = 0;
        let (mut seq, mut last_told, mut cut, mut exit_is_news) = (request.after_seq, None, false, false);
        while let Some(event) = state.log.after(seq) {
            match &event {
                OutputEvent::Output { seq, stream, bytes: chunk } => {
                    if !chunks.is_empty() && bytes + chunk.len() > limit {
                        cut = true;
                        break;
                    }
                    bytes += chunk.len();
                    chunks.push(OutputPiece::Chunk { seq: *seq, stream: *stream, chunk: chunk.clone().into() });
                    last_told = Some(*seq);
                }
                OutputEvent::Gap { seq, bytes } => {
                    if request.with_gaps {
                        chunks.push(OutputPiece::Gap { seq: *seq, gap_bytes: *bytes });
                        last_told = Some(*seq);
                    }
                }
                OutputEvent::Exited { .. } => exit_is_news = true,
                OutputEvent::Closed { .. } => {}
            }
            seq = event.seq();
        }
        // A client that reads in bounded pieces is told where its piece ends.
        let bounded = request.max_bytes.is_some() || cut;
        let next_seq = match last_told {
            Some(last) if bounded => last + 1,
            _ => state.log.next_seq(),
        };
        let place = state.log.total() - state.log.bytes_after(seq);
        if self.is_pulled {
            let known = state.log.total() - state.log.bytes_after(request.after_seq);
            state.pushed = Cursor { seq: state.pushed.seq.max(seq), bytes: state.pushed.bytes.max(known) };
        } else {
            state.polled = (place < state.pushed.bytes).then(|| (place, Instant::now()));
        }
        let exit_code = state.log.exit_code();
        let answer = ReadResponse {
            next_seq,
            exited: exit_code.is_some(),
            exit_code,
            closed: state.log.is_closed(),
            failure: None,
            sandbox_denied: state.log.exit_note().denied,
            limit: state.log.exit_note().limit.clone(),
            notices: state.log.exit_note().notices.clone(),
            chunks,
        };
        drop(state);
        self.drained.notify_one();
        let is_worth_telling = !answer.chunks.is_empty() || answer.closed || exit_is_news;
        (answer, is_worth_telling)
    }

    pub(crate) fn summary(&self) -> ProcessSummary {
        let state = self.lock();
        ProcessSummary {
            process_id: self.id.clone(),
            argv: self.argv.clone(),
            metadata: self.metadata.clone(),
            pid: Some(self.kin.leader()),
            tty: self.is_terminal,
            next_seq: state.log.next_seq(),
            exited: state.log.exit_code().is_some(),
            exit_code: state.log.exit_code(),
            closed: state.log.is_closed(),
        }
    }
}

/// What the child writes to.
struct Streams {
    first: Stream,
    output: Output,
    errors: Option<Output>,
}
