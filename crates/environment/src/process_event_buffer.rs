//! What is known here of one process's output: every event once, in order, whatever the link does.
//!
//! Events come in twice over: pushed by the executor as they happen, and read from its log after a lost link. Both go
//! through one door that looks at their numbers only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outpost_wire::exec::environment::Limit;
use outpost_wire::exec::process::{OutputPiece, ReadResponse, Stream};
use tokio::sync::Notify;

/// What a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    Output {
        stream: Stream,
        bytes: Bytes,
    },
    /// Output that the executor could not keep; how much, if it says so.
    Gap {
        bytes: Option<u64>,
    },
    Exited {
        code: i32,
        /// The sandbox kept it from something, as far as its executor can tell.
        denied: bool,
        /// What it ran into, if that ended it and its executor can tell.
        limit: Option<Limit>,
        /// What else its executor has to say, a line each.
        notices: Vec<String>,
    },
    /// Nothing comes after this.
    Closed,
    /// Its fate is unknown.
    Lost {
        reason: String,
    },
}

/// Early events are kept up to here; beyond, they are read again later.
const STASH_EVENTS: usize = 256;
const STASH_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct ProcessEventBuffer {
    state: Mutex<State>,
    filled: Notify,
}

struct State {
    /// The number that comes next.
    expected: u64,
    stash: BTreeMap<u64, Pushed>,
    stash_bytes: usize,
    /// The highest number that was seen and not kept.
    missed: u64,
    queue: VecDeque<ProcessEvent>,
    exited: bool,
    over: bool,
    attended: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            expected: 1,
            stash: BTreeMap::new(),
            stash_bytes: 0,
            missed: 0,
            queue: VecDeque::new(),
            exited: false,
            over: false,
            attended: false,
        }
    }
}

/// A numbered event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pushed {
    Piece(OutputPiece),
    Exited { code: i32, denied: bool, limit: Option<Limit>, notices: Vec<String> },
    Closed,
}

impl Pushed {
    fn bytes(&self) -> usize {
        match self {
            Self::Piece(OutputPiece::Chunk { chunk, .. }) => chunk.0.len(),
            _ => 0,
        }
    }
}

/// What a push did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PushResult {
    /// Output bytes that now wait for the reader.
    pub bytes: usize,
    /// Something before this is missing and will not come by itself.
    pub is_behind: bool,
}

impl ProcessEventBuffer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last number that was taken in.
    pub(crate) fn last_seq(&self) -> u64 {
        self.lock().expected - 1
    }

    /// A reader is there from now on. Returns the bytes of output that already wait; what came before could not be read, so
    /// it must not have held up the link either.
    pub(crate) fn attend(&self) -> usize {
        let mut state = self.lock();
        state.attended = true;
        state.unread()
    }

    /// Takes an event that the executor pushed.
    pub(crate) fn push(&self, seq: u64, event: Pushed) -> PushResult {
        let mut state = self.lock();
        let mut taken = PushResult { bytes: 0, is_behind: false };
        // A gap has the number of its end; whatever it covers has been waited for until now.
        let is_next = seq == state.expected || (matches!(event, Pushed::Piece(OutputPiece::Gap { .. })) && seq >= state.expected);
        if is_next {
            taken.bytes += state.take(seq, event);
            taken.bytes += state.take_stashed();
        } else if seq > state.expected {
            let full = state.stash.len() >= STASH_EVENTS || state.stash_bytes + event.bytes() > STASH_BYTES;
            if full {
                state.missed = state.missed.max(seq);
                taken.is_behind = true;
            } else {
                // After the close nothing is pushed: what is missing before it stays missing.
                taken.is_behind = event == Pushed::Closed;
                state.stash_bytes += event.bytes();
                state.stash.insert(seq, event);
            }
        }
        if !state.attended {
            taken.bytes = 0;
        }
        drop(state);
        self.filled.notify_one();
        taken
    }

    /// Takes a piece of the executor's log that begins after [`Inbox::last_seq`]. True if there is more to read.
    pub(crate) fn catch_up(&self, answer: ReadResponse) -> (usize, bool) {
        if let Some(failure) = answer.failure {
            self.lose(failure);
            return (0, false);
        }
        let mut state = self.lock();
        let mut bytes = 0;
        let is_last = answer.chunks.is_empty();
        for piece in answer.chunks {
            // What was pushed early may be what comes next, and must then not be taken from the log again.
            bytes += state.take_stashed();
            let seq = piece.seq();
            if seq < state.expected {
                continue;
            }
            if let OutputPiece::Chunk { .. } = piece {
                let exit = |code| Pushed::Exited {
                    code,
                    denied: answer.sandbox_denied,
                    limit: answer.limit.clone(),
                    notices: answer.notices.clone(),
                };
                state.account_for_missing(seq, answer.exit_code.map(exit));
            }
            bytes += state.take(seq, Pushed::Piece(piece));
        }
        bytes += state.take_stashed();
        if is_last {
            // Only the exit and the close can be missing now; neither is told as a piece.
            let end = answer.next_seq;
            let known = u64::from(answer.exited && !state.exited) + u64::from(answer.closed && !state.over);
            if answer.exited && state.expected + known < end {
                state.expected = end - known;
                state.queue.push_back(ProcessEvent::Gap { bytes: None });
            }
            if answer.exited && !state.exited && state.expected < end {
                let seq = state.expected;
                let code = answer.exit_code.unwrap_or(-1);
                state.take(seq, Pushed::Exited { code, denied: answer.sandbox_denied, limit: answer.limit, notices: answer.notices });
            }
            if answer.closed && !state.over {
                state.take(end.saturating_sub(1), Pushed::Closed);
            }
            bytes += state.take_stashed();
        }
        let more = !state.over && (!is_last || state.missed >= state.expected);
        if !state.attended {
            bytes = 0;
        }
        drop(state);
        self.filled.notify_one();
        (bytes, more)
    }

    /// Gives the process up. False if its end was known already.
    pub(crate) fn lose(&self, reason: String) -> bool {
        let mut state = self.lock();
        let is_lost = !state.over;
        if is_lost {
            state.over = true;
            state.queue.push_back(ProcessEvent::Lost { reason });
        }
        drop(state);
        self.filled.notify_one();
        is_lost
    }

    /// Drops what was not read and returns how many bytes of output that was.
    pub(crate) fn discard(&self) -> usize {
        let mut state = self.lock();
        state.over = true;
        // What came before there was a reader was never counted.
        let unread = if state.attended { state.unread() } else { 0 };
        state.queue.clear();
        unread
    }

    /// The next event; nothing after the last one.
    pub(crate) async fn next(&self) -> Option<ProcessEvent> {
        loop {
            if let Some(next) = self.ready() {
                return next;
            }
            self.filled.notified().await;
        }
    }

    /// The same without waiting: nothing if something may still come.
    pub(crate) fn ready(&self) -> Option<Option<ProcessEvent>> {
        let mut state = self.lock();
        let next = state.queue.pop_front();
        (next.is_some() || state.over).then_some(next)
    }
}

impl State {
    fn unread(&self) -> usize {
        self.queue.iter().map(|event| if let ProcessEvent::Output { bytes, .. } = event { bytes.len() } else { 0 }).sum()
    }

    fn take(&mut self, seq: u64, event: Pushed) -> usize {
        if self.over {
            return 0;
        }
        self.expected = self.expected.max(seq + 1);
        let bytes = event.bytes();
        match event {
            Pushed::Piece(OutputPiece::Chunk { stream, chunk, .. }) => {
                self.queue.push_back(ProcessEvent::Output { stream, bytes: chunk.0 })
            }
            Pushed::Piece(OutputPiece::Gap { gap_bytes, .. }) => self.queue.push_back(ProcessEvent::Gap { bytes: Some(gap_bytes) }),
            Pushed::Exited { code, denied, limit, notices } => {
                if !self.exited {
                    self.exited = true;
                    self.queue.push_back(ProcessEvent::Exited { code, denied, limit, notices });
                }
            }
            Pushed::Closed => {
                self.over = true;
                self.queue.push_back(ProcessEvent::Closed);
            }
        }
        bytes
    }

    fn take_stashed(&mut self) -> usize {
        let mut bytes = 0;
        while let Some((seq, _)) = self.stash.first_key_value() {
            let seq = *seq;
            if seq > self.expected {
                break;
            }
            let Some(event) = self.stash.remove(&seq) else { break };
            self.stash_bytes -= event.bytes();
            if seq == self.expected {
                bytes += self.take(seq, event);
            }
        }
        bytes
    }

    /// Accounts for the numbers before `seq` that the log did not tell: one of them may be the exit, which is no piece;
    /// the others are output that a foreign executor dropped without a word.
    fn account_for_missing(&mut self, seq: u64, exit: Option<Pushed>) {
        let mut missing = seq - self.expected;
        if missing > 0
            && !self.exited
            && let Some(exit) = exit
        {
            let at = self.expected;
            self.take(at, exit);
            missing -= 1;
        }
        if missing > 0 {
            self.expected = seq;
            self.queue.push_back(ProcessEvent::Gap { bytes: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(seq: u64, text: &str) -> Pushed {
        Pushed::Piece(OutputPiece::Chunk { seq, stream: Stream::Stdout, chunk: Bytes::copy_from_slice(text.as_bytes()).into() })
    }
    fn piece(seq: u64, text: &str) -> OutputPiece {
        match chunk(seq, text) {
            Pushed::Piece(piece) => piece,
            _ => unreachable!(),
        }
    }
    fn output(text: &str) -> ProcessEvent {
        ProcessEvent::Output { stream: Stream::Stdout, bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }
    fn answer(chunks: Vec<OutputPiece>, next_seq: u64, exit_code: Option<i32>, closed: bool) -> ReadResponse {
        ReadResponse {
            chunks,
            next_seq,
            exited: exit_code.is_some(),
            exit_code,
            closed,
            failure: None,
            sandbox_denied: false,
            limit: None,
            notices: Vec::new(),
        }
    }
    fn attended() -> ProcessEventBuffer {
        let inbox = ProcessEventBuffer::default();
        assert_eq!(inbox.attend(), 0);
        inbox
    }
    fn drain(inbox: &ProcessEventBuffer) -> Vec<ProcessEvent> {
        inbox.lock().queue.drain(..).collect()
    }

    #[test]
    fn early_events_wait_and_late_ones_are_dropped() {
        let inbox = attended();
        assert_eq!(
            inbox.push(2, Pushed::Exited { code: 3, denied: false, limit: None, notices: Vec::new() }),
            PushResult { bytes: 0, is_behind: false }
        );
        assert!(drain(&inbox).is_empty());
        assert_eq!(inbox.push(1, chunk(1, "one")).bytes, 3);
        inbox.push(1, chunk(1, "one"));
        inbox.push(3, Pushed::Closed);
        assert_eq!(
            drain(&inbox),
            [output("one"), ProcessEvent::Exited { code: 3, denied: false, limit: None, notices: Vec::new() }, ProcessEvent::Closed]
        );
    }

    #[test]
    fn what_is_missing_before_the_close_must_be_read() {
        let inbox = attended();
        assert!(!inbox.push(2, chunk(2, "two")).is_behind, "it may still come");
        assert!(inbox.push(4, Pushed::Closed).is_behind);
        let whole = attended();
        whole.push(1, Pushed::Exited { code: 0, denied: false, limit: None, notices: Vec::new() });
        assert!(!whole.push(2, Pushed::Closed).is_behind);
    }

    #[test]
    fn output_counts_as_unread_once_there_is_a_reader() {
        let inbox = ProcessEventBuffer::default();
        assert_eq!(inbox.push(1, chunk(1, "one")).bytes, 0);
        assert_eq!(inbox.attend(), 3);
        assert_eq!(inbox.push(2, chunk(2, "two!")).bytes, 4);
        assert_eq!(inbox.discard(), 7);
    }

    #[test]
    fn what_the_log_tells_joins_what_was_pushed() {
        let inbox = attended();
        inbox.push(1, chunk(1, "a"));
        inbox.push(4, chunk(4, "d"));
        assert_eq!(inbox.catch_up(answer(vec![piece(2, "b"), piece(3, "c")], 4, None, false)), (3, true));
        assert_eq!(inbox.catch_up(answer(vec![], 5, None, false)), (0, false));
        inbox.push(5, chunk(5, "e"));
        assert_eq!(drain(&inbox), ["a", "b", "c", "d", "e"].map(output));
    }

    #[test]
    fn what_was_pushed_early_is_not_taken_from_the_log_again() {
        let inbox = attended();
        inbox.push(2, chunk(2, "b"));
        inbox.push(3, chunk(3, "c"));
        inbox.catch_up(answer(vec![piece(1, "a"), piece(2, "b"), piece(3, "c"), piece(4, "d")], 5, None, false));
        assert_eq!(drain(&inbox), ["a", "b", "c", "d"].map(output));
    }

    #[test]
    fn the_exit_is_found_between_pieces_and_at_the_end() {
        let inbox = ProcessEventBuffer::default();
        inbox.catch_up(answer(vec![piece(1, "a"), piece(3, "late")], 4, Some(7), false));
        inbox.catch_up(answer(vec![], 5, Some(7), true));
        assert_eq!(
            drain(&inbox),
            [
                output("a"),
                ProcessEvent::Exited { code: 7, denied: false, limit: None, notices: Vec::new() },
                output("late"),
                ProcessEvent::Closed
            ]
        );
        let inbox = ProcessEventBuffer::default();
        inbox.catch_up(ReadResponse { sandbox_denied: true, ..answer(vec![], 3, Some(1), true) });
        assert_eq!(drain(&inbox), [ProcessEvent::Exited { code: 1, denied: true, limit: None, notices: Vec::new() }, ProcessEvent::Closed]);
        let inbox = ProcessEventBuffer::default();
        inbox.catch_up(answer(vec![], 3, Some(0), true));
        assert_eq!(
            drain(&inbox),
            [ProcessEvent::Exited { code: 0, denied: false, limit: None, notices: Vec::new() }, ProcessEvent::Closed]
        );
        assert!(inbox.lock().over);
    }

    #[test]
    fn loss_is_told_with_its_size_where_that_is_known() {
        let inbox = ProcessEventBuffer::default();
        inbox.push(9, Pushed::Piece(OutputPiece::Gap { seq: 9, gap_bytes: 100 }));
        inbox.push(10, chunk(10, "x"));
        assert_eq!(drain(&inbox), [ProcessEvent::Gap { bytes: Some(100) }, output("x")]);
        inbox.catch_up(answer(vec![piece(14, "y")], 15, None, false));
        assert_eq!(drain(&inbox), [ProcessEvent::Gap { bytes: None }, output("y")]);
    }

    #[test]
    fn a_log_that_is_gone_leaves_the_exit_and_a_gap() {
        let inbox = attended();
        inbox.push(1, chunk(1, "a"));
        inbox.catch_up(answer(vec![], 9, Some(3), true));
        assert_eq!(
            drain(&inbox),
            [
                output("a"),
                ProcessEvent::Gap { bytes: None },
                ProcessEvent::Exited { code: 3, denied: false, limit: None, notices: Vec::new() },
                ProcessEvent::Closed
            ]
        );
        let inbox = attended();
        inbox.catch_up(ReadResponse { failure: Some("gone".into()), ..answer(vec![], 9, Some(-1), true) });
        assert_eq!(drain(&inbox), [ProcessEvent::Lost { reason: "gone".into() }]);
    }

    #[test]
    fn a_stash_that_is_full_asks_for_a_read() {
        let inbox = ProcessEventBuffer::default();
        let big = "x".repeat(STASH_BYTES);
        assert!(!inbox.push(2, chunk(2, &big)).is_behind);
        assert!(inbox.push(3, chunk(3, "y")).is_behind);
        let (_, more) = inbox.catch_up(answer(vec![piece(1, "a")], 2, None, false));
        assert!(more);
        let (_, more) = inbox.catch_up(answer(vec![], 3, None, false));
        assert!(more, "number 3 was seen and thrown away");
        inbox.catch_up(answer(vec![piece(3, "y")], 4, None, false));
        assert!(!inbox.catch_up(answer(vec![], 4, None, false)).1);
        assert_eq!(drain(&inbox).len(), 3);
    }
}
