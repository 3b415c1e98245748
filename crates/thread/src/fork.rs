//! Forks: where a new thread leaves an old one.
//!
//! A fork does not copy. Its first entry names the thread whose prefix it continues and the last ordinal that it shares;
//! its own entries go on counting from there. What was running at that place in the parent is closed in the child.

use outpost_wire::intent::{CapabilityRoot, Selection};
use serde::{Deserialize, Serialize};

use crate::context::{input_items, is_user_message};
use crate::entry::{Entry, Fact};
use crate::id::{InputId, Ordinal, ThreadId, TurnId};
use crate::input::InputOrigin;
use crate::raw::Raw;
use crate::state::{Parent, Settings, Thread};
use crate::turn::{InterruptReason, Marker, TurnFinished, TurnStatus};

/// This thread continues another. Metadata, settings, selection, roots, instructions and tools are those of the parent at
/// the place of the cut, unless they are given here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadForked {
    pub thread: ThreadId,
    /// The thread that was forked, even if the shared entries are those of its own parent.
    pub parent: ThreadId,
    /// Whose entries are shared, and up to which.
    pub base: ForkBase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub originator: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_version: Option<String>,
    /// The agent that made it, if it is a sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<Parent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_tools: Option<Vec<Raw>>,
    #[serde(default)]
    pub settings: Settings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability_roots: Option<Vec<CapabilityRoot>>,
}

impl ThreadForked {
    /// A fork that changes nothing. Who stores it fills in the base.
    pub fn new(thread: ThreadId, parent: ThreadId) -> Self {
        Self {
            thread,
            parent,
            base: ForkBase { thread: parent, ordinal: 0, sum: String::new() },
            session: None,
            source: None,
            thread_source: None,
            originator: None,
            program_version: None,
            spawned_by: None,
            name: None,
            instructions: None,
            dynamic_tools: None,
            settings: Settings::default(),
            selection: None,
            capability_roots: None,
        }
    }
}

/// A prefix of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkBase {
    pub thread: ThreadId,
    /// The last entry that belongs to it.
    pub ordinal: Ordinal,
    /// The checksum of that entry's line, by which a prefix that was changed is noticed. Empty where a store has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sum: String,
}

/// Where a client wants to fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForkPoint {
    /// Everything, as if the running turn, if there is one, had been interrupted now.
    Interrupted(Marker),
    /// Strictly before user message `n`, counted from 0. Beyond the last: everything but an unfinished turn.
    BeforeUserMessage(u64),
    /// After this turn and everything that belongs to it.
    AfterTurn(TurnId),
    /// Before this turn and its input.
    BeforeTurn(TurnId),
    /// The last place at which no step was under way. For the next one, wait until the running step is over.
    LastStep(Marker),
}

/// A plain number is the user message before which to cut.
impl From<u64> for ForkPoint {
    fn from(n: u64) -> Self {
        Self::BeforeUserMessage(n)
    }
}

/// The answer: the last shared entry, and what the child writes after its first entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    pub ordinal: Ordinal,
    pub close: Option<TurnFinished>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    #[error("the thread has no turn `{0}`")]
    UnknownTurn(TurnId),
    #[error("turn `{0}` is still running: fork before it, or wait for its end")]
    Running(TurnId),
    #[error("nothing is known of the thread yet")]
    Empty,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TurnSpan {
    id: TurnId,
    /// The first entry that belongs to it: its input, if that came while nothing was running.
    begin: Ordinal,
    started: Ordinal,
    end: Option<Ordinal>,
}

/// What a cut needs to know of the entries: where user messages and turns stand. Fold the whole thread into it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    last: Ordinal,
    /// For each user message the last entry before it, or before the turn that took it up.
    messages: Vec<Ordinal>,
    turns: Vec<TurnSpan>,
    /// Inputs that wait for a turn: where they stand, and whether a turn was running when they came.
    waiting: Vec<Waiting>,
    history_is_open: bool,
    /// The last place at which no step was under way.
    boundary: Ordinal,
    open_calls: Vec<crate::id::CallId>,
    step_is_over: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    input: InputId,
    ordinal: Ordinal,
    came_during_turn: bool,
    message: Option<usize>,
}

impl Outline {
    pub fn apply(&mut self, entry: &Entry) {
        let running = self.turns.last().filter(|turn| turn.end.is_none()).map(|turn| turn.id.clone());
        match &entry.fact {
            Fact::InputReceived(input) if input.origin == InputOrigin::History => {
                let messages = input_items(input).iter().filter(|item| is_user_message(item)).count();
                self.messages.extend(std::iter::repeat_n(entry.ordinal - 1, messages));
                self.history_is_open |= messages > 0 && running.is_none();
            }
            Fact::InputReceived(input) => {
                let message = (input.origin == InputOrigin::User).then(|| {
                    self.messages.push(entry.ordinal - 1);
                    self.messages.len() - 1
                });
                if running.is_none() || input.turn != running {
                    let came_during_turn = running.is_some();
                    self.waiting.push(Waiting { input: input.input.clone(), ordinal: entry.ordinal, came_during_turn, message });
                }
            }
            Fact::QueueChanged(change) => {
                let gone = self.waiting.extract_if(.., |waiting| !change.queue.contains(&waiting.input));
                for index in gone.filter_map(|waiting| waiting.message).collect::<std::collections::BTreeSet<_>>().into_iter().rev() {
                    self.messages.remove(index);
                    for later in self.waiting.iter_mut().filter_map(|waiting| waiting.message.as_mut()).filter(|later| **later > index) {
                        *later -= 1;
                    }
                }
            }
            Fact::TurnStarted(turn) => {
                let mut begin = entry.ordinal;
                for waiting in self.waiting.extract_if(.., |waiting| turn.inputs.contains(&waiting.input)) {
                    if !waiting.came_during_turn {
                        begin = begin.min(waiting.ordinal);
                    } else if let Some(at) = waiting.message.and_then(|index| self.messages.get_mut(index)) {
                        // It stands in the middle of another turn; what it started begins here.
                        *at = entry.ordinal - 1;
                    }
                }
                self.turns.push(TurnSpan { id: turn.turn.clone(), begin, started: entry.ordinal, end: None });
                self.history_is_open = false;
                self.step_is_over = true;
                self.open_calls.clear();
            }
            Fact::StepCaptured(_) => {
                if self.step_is_over && self.open_calls.is_empty() {
                    self.boundary = entry.ordinal - 1;
                }
                self.step_is_over = false;
                self.open_calls.clear();
            }
            Fact::ModelAnswered(answer) => {
                self.open_calls.extend(answer.calls.iter().map(|call| call.call.clone()));
                self.step_is_over |= answer.complete;
            }
            Fact::CallFinished(call) => self.open_calls.retain(|open| *open != call.call),
            Fact::TurnFinished(end) => match &end.turn {
                None => self.history_is_open = false,
                Some(id) => {
                    if let Some(turn) = self.turns.iter_mut().rev().find(|turn| turn.id == *id) {
                        turn.end = Some(entry.ordinal);
                    }
                    self.step_is_over = true;
                    self.open_calls.clear();
                }
            },
            Fact::TurnsReverted(revert) => {
                self.turns.retain(|turn| turn.begin <= revert.through);
                let gone = self.messages.iter().filter(|before| **before >= revert.through).count();
                self.messages.truncate(self.messages.len() - gone);
                for waiting in &mut self.waiting {
                    waiting.message = waiting.message.filter(|index| *index < self.messages.len());
                }
                self.step_is_over = true;
                self.open_calls.clear();
            }
            Fact::ThreadForked(_) => {
                // What waited in the parent does not wait here.
                self.waiting.clear();
                self.step_is_over = true;
                self.open_calls.clear();
            }
            Fact::ThreadCreated(_)
            | Fact::MetadataChanged(_)
            | Fact::SettingsChanged(_)
            | Fact::TurnSettingsChanged(_)
            | Fact::SelectionChanged(_)
            | Fact::ModelAsked(_)
            | Fact::ApprovalAsked(_)
            | Fact::ApprovalAnswered(_)
            | Fact::PermissionsGranted(_)
            | Fact::CallStarted(_)
            | Fact::WakeSet(_)
            | Fact::WakeEnded(_)
            | Fact::AgentSpawned(_)
            | Fact::AgentClosed(_)
            | Fact::ContextCompacted(_)
            | Fact::DamageNoted(_)
            | Fact::Unknown { .. } => {}
        }
        self.last = entry.ordinal;
        if self.step_is_over && self.open_calls.is_empty() {
            self.boundary = entry.ordinal;
        }
    }

    fn running(&self) -> Option<&TurnSpan> {
        self.turns.last().filter(|turn| turn.end.is_none())
    }

    /// How many user messages there are.
    pub fn user_messages(&self) -> usize {
        self.messages.len()
    }

    /// Where `point` is.
    pub fn cut(&self, point: &ForkPoint) -> Result<Cut, ForkError> {
        if self.last == 0 {
            return Err(ForkError::Empty);
        }
        let ordinal = match point {
            ForkPoint::Interrupted(marker) => return Ok(self.interrupted(self.last, *marker)),
            ForkPoint::LastStep(marker) => {
                let ordinal = if self.running().is_some() { self.boundary } else { self.last };
                return Ok(self.interrupted(ordinal, *marker));
            }
            ForkPoint::BeforeUserMessage(n) => self.before_message(*n),
            ForkPoint::AfterTurn(id) => {
                let at = self.find(id)?;
                if self.turns[at].end.is_none() {
                    return Err(ForkError::Running(id.clone()));
                }
                self.turns.get(at + 1).map_or(self.last, |next| next.begin - 1)
            }
            ForkPoint::BeforeTurn(id) => self.turns[self.find(id)?].begin - 1,
        };
        Ok(self.interrupted(ordinal, Marker::Off))
    }

    fn find(&self, id: &TurnId) -> Result<usize, ForkError> {
        self.turns.iter().position(|turn| turn.id == *id).ok_or_else(|| ForkError::UnknownTurn(id.clone()))
    }

    fn before_message(&self, n: u64) -> Ordinal {
        let message = usize::try_from(n).ok().and_then(|n| self.messages.get(n));
        match (message, self.running()) {
            (Some(before), _) => *before,
            (None, Some(turn)) => turn.begin - 1,
            (None, None) if self.history_is_open => self.messages.last().copied().unwrap_or(self.last),
            (None, None) => self.last,
        }
    }

    /// The cut at `ordinal`, with an end for what is open there.
    fn interrupted(&self, ordinal: Ordinal, marker: Marker) -> Cut {
        let around = self.turns.iter().rev().find(|turn| turn.started <= ordinal).filter(|turn| turn.end.is_none_or(|end| end > ordinal));
        let close = match around {
            Some(turn) => Some(closing(Some(turn.id.clone()), marker)),
            None if self.history_is_open && ordinal == self.last => Some(closing(None, marker)),
            None => None,
        };
        Cut { ordinal, close }
    }
}

/// The fact that ends what a fork cut through.
pub fn closing(turn: Option<TurnId>, marker: Marker) -> TurnFinished {
    TurnFinished { turn, status: TurnStatus::Interrupted, reason: Some(InterruptReason::Forked), error: None, marker }
}

impl Thread {
    /// The cut that needs no look back: everything, as if it had been interrupted now.
    pub fn cut_here(&self, marker: Marker) -> Cut {
        let close = match &self.turn {
            Some(turn) => Some(closing(Some(turn.id.clone()), marker)),
            None if self.history_is_open => Some(closing(None, marker)),
            None => None,
        };
        Cut { ordinal: self.last, close }
    }
}
