//! The state of a thread: everything that must be known to go on, and none of the history.
//!
//! The fold is written so that it never needs to look back: whatever a later fact may ask about is kept, and whatever no
//! later fact can ask about is not. What the model has seen is not here; see `context.rs`.

use std::collections::{BTreeMap, VecDeque};

use outpost_wire::intent::{CapabilityRoot, Selection};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{Approval, Call, CallState};
use crate::entry::{AgentSpawned, DamagedRange, Entry, Fact, MetadataChanged};
use crate::fork::ThreadForked;
use crate::grant::{GrantScope, PermissionsGranted};
use crate::id::{InputId, Ordinal, ThreadId, TurnId};
use crate::input::{InputOrigin, QueuedInput};
use crate::raw::Raw;
use crate::turn::{Turn, TurnStatus};
use crate::usage::ThreadUsage;
use crate::wake::WakeSet;

/// How many client keys are remembered: a retry comes soon or never.
const KEYS: usize = 256;
/// How many damaged ranges are kept in detail.
const DAMAGE: usize = 64;

/// A thread came to be. Journals without a member read as if it were empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadCreated {
    pub thread: ThreadId,
    /// Shared by a root thread and all its sub-agents; the thread's own id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who started it: `"cli"`, `"exec"`, `{"subAgent":…}`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub originator: Option<String>,
    /// The person whose client started it, where clients have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Of the program that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_version: Option<String>,
    /// The edge of a sub-agent to the agent that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dynamic_tools: Vec<Raw>,
    #[serde(default)]
    pub settings: Settings,
    /// None leaves the choice to the defaults of the program that runs it; an empty one is a choice, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capability_roots: Vec<CapabilityRoot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it came from, if it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Raw>,
    /// The thread that it was forked from elsewhere: it shares nothing with that one here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ThreadId>,
}

impl ThreadCreated {
    /// A thread about which nothing else is known.
    pub fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            session: None,
            source: None,
            thread_source: None,
            originator: None,
            by: None,
            program_version: None,
            parent: None,
            instructions: None,
            dynamic_tools: Vec::new(),
            settings: Settings::default(),
            selection: None,
            capability_roots: Vec::new(),
            git: None,
            name: None,
            imported: None,
            forked_from: None,
        }
    }
}

/// The agent that made a sub-agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub thread: ThreadId,
    #[serde(default)]
    pub depth: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nickname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// How turns are run. In a change, members that are absent stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_provider: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_policy: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Raw>,
    /// The directory that the client speaks of; where commands run is the selection's business.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The context is compacted when it holds this many tokens, and in any case before it fills the window of the model that is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compact_at: Option<u64>,
    /// Settings that only the loop understands, by name; `null` in a change removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, Value>,
}

impl Settings {
    /// Puts a change over it.
    pub fn apply(&mut self, change: &Self) {
        fn set<T: Clone>(mine: &mut Option<T>, theirs: &Option<T>) {
            if theirs.is_some() {
                mine.clone_from(theirs);
            }
        }
        set(&mut self.model, &change.model);
        set(&mut self.model_provider, &change.model_provider);
        set(&mut self.reasoning_effort, &change.reasoning_effort);
        set(&mut self.approval_policy, &change.approval_policy);
        set(&mut self.sandbox, &change.sandbox);
        set(&mut self.cwd, &change.cwd);
        set(&mut self.compact_at, &change.compact_at);
        merge(&mut self.other, &change.other);
    }
}

fn merge(mine: &mut BTreeMap<String, Value>, change: &BTreeMap<String, Value>) {
    for (key, value) in change {
        match value {
            Value::Null => drop(mine.remove(key)),
            value => drop(mine.insert(key.clone(), value.clone())),
        }
    }
}

/// What is told about a thread but does not change how it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadMetadata {
    pub session: Option<String>,
    pub source: Option<Raw>,
    pub thread_source: Option<String>,
    pub originator: Option<String>,
    pub program_version: Option<String>,
    pub forked_from: Option<ThreadId>,
    pub parent: Option<Parent>,
    pub git: Option<Raw>,
    pub name: Option<String>,
    pub archived: bool,
    pub imported: Option<Raw>,
    pub labels: BTreeMap<String, Value>,
    /// The first words of the user.
    pub preview: Option<String>,
}

/// A sub-agent of this thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    pub spawned: AgentSpawned,
    pub open: bool,
}

/// An input that came with a client's key, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keyed {
    pub key: String,
    pub input: InputId,
    pub turn: Option<TurnId>,
}

/// An entry that does not fit. [`FoldError::Order`] and [`FoldError::NotCreated`] leave the state as it was. After
/// [`FoldError::Unfit`] the entry counts as read: it happens behind damage, and everything else is still good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    #[error("entry {found} cannot follow entry {last}")]
    Order { last: Ordinal, found: Ordinal },
    #[error("the first entry of a thread must say how it came to be, not `{kind}`")]
    NotCreated { kind: String },
    #[error("entry {ordinal} (`{kind}`) does not fit: {why}")]
    Unfit { ordinal: Ordinal, kind: String, why: &'static str },
}

/// The state of a thread after its last entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Thread {
    pub id: ThreadId,
    pub created_at: u64,
    /// The last entry that was folded.
    pub last: Ordinal,
    pub last_at: u64,
    pub metadata: ThreadMetadata,
    pub instructions: Option<Raw>,
    pub dynamic_tools: Vec<Raw>,
    pub settings: Settings,
    /// The sticky selection. A turn may have its own, see [`Thread::effective_selection`].
    pub selection: Option<Selection>,
    pub capability_roots: Vec<CapabilityRoot>,
    /// The machine that `local` is in this thread, where nodes on several machines share it: that of the first step since it was selected.
    #[serde(default)]
    pub local_host: Option<String>,
    pub turn: Option<Turn>,
    /// Inputs that steer the running turn and that no step has taken up yet.
    pub steering: Vec<QueuedInput>,
    /// Inputs that wait for a turn of their own.
    pub queued: VecDeque<QueuedInput>,
    pub keys: VecDeque<Keyed>,
    pub agents: BTreeMap<ThreadId, Agent>,
    /// Commands that run, and whose end begins a turn.
    #[serde(default)]
    pub wakes: Vec<WakeSet>,
    /// So many turns in a row were begun by nothing but the ends of such commands.
    #[serde(default)]
    pub woken: u64,
    /// What holds as long as the thread; what holds for the running turn stands there. See [`Thread::granted`].
    #[serde(default)]
    pub grants: Vec<PermissionsGranted>,
    pub usage: ThreadUsage,
    /// The last compaction, or 0.
    #[serde(rename = "compactedSeq")]
    pub compacted_ordinal: Ordinal,
    /// Inputs that were received before it and taken up after it, or still wait.
    pub waited_then: Vec<Ordinal>,
    #[serde(rename = "window")]
    pub context_generation: u32,
    /// Finished turns.
    pub turns: u64,
    pub user_messages: u64,
    /// A history that was given without turns ends with a user message and nothing that ends it.
    pub history_is_open: bool,
    /// How often turns were taken out of the history; they are still counted above.
    #[serde(default)]
    pub reverted: u64,
    pub damage: VecDeque<DamagedRange>,
    /// Some of it was found since the thread last went on in spite of it.
    #[serde(default)]
    pub damage_is_new: bool,
    /// Kinds of entries that this program does not know, and how many of each.
    pub unknown: BTreeMap<String, u64>,
}

impl Thread {
    /// The state after the first entry, which must be a `threadCreated`.
    pub fn begin(entry: &Entry) -> Result<Self, FoldError> {
        let Fact::ThreadCreated(created) = &entry.fact else {
            return Err(FoldError::NotCreated { kind: entry.fact.kind().to_owned() });
        };
        let metadata = ThreadMetadata {
            session: created.session.clone(),
            source: created.source.clone(),
            thread_source: created.thread_source.clone(),
            originator: created.originator.clone(),
            program_version: created.program_version.clone(),
            parent: created.parent.clone(),
            git: created.git.clone(),
            name: created.name.clone(),
            imported: created.imported.clone(),
            forked_from: created.forked_from,
            ..ThreadMetadata::default()
        };
        Ok(Self {
            id: created.thread,
            created_at: entry.at,
            last: entry.ordinal,
            last_at: entry.at,
            metadata,
            instructions: created.instructions.clone(),
            dynamic_tools: created.dynamic_tools.clone(),
            settings: created.settings.clone(),
            selection: created.selection.clone(),
            capability_roots: created.capability_roots.clone(),
            local_host: None,
            turn: None,
            steering: Vec::new(),
            queued: VecDeque::new(),
            keys: VecDeque::new(),
            agents: BTreeMap::new(),
            wakes: Vec::new(),
            woken: 0,
            grants: Vec::new(),
            usage: ThreadUsage::default(),
            compacted_ordinal: 0,
            waited_then: Vec::new(),
            context_generation: 0,
            turns: 0,
            user_messages: 0,
            history_is_open: false,
            reverted: 0,
            damage: VecDeque::new(),
            damage_is_new: false,
            unknown: BTreeMap::new(),
        })
    }

    /// The selection that holds now: the running turn's own, or the thread's.
    pub fn effective_selection(&self) -> Option<&Selection> {
        self.turn.as_ref().and_then(|turn| turn.selection.as_ref()).or(self.selection.as_ref())
    }

    /// What was granted and still holds: for the thread, and for the running turn.
    pub fn granted(&self) -> impl Iterator<Item = &PermissionsGranted> {
        self.grants.iter().chain(self.turn.iter().flat_map(|turn| &turn.grants))
    }

    /// The settings that hold now: those of the thread, with what the running turn has of its own over them.
    pub fn effective_settings(&self) -> Settings {
        let mut settings = self.settings.clone();
        if let Some(turn) = &self.turn {
            settings.apply(&turn.settings);
        }
        settings
    }

    /// From where on the journal must be read to make the model's [`crate::Context`]: the last compaction, or the beginning.
    pub fn context_start(&self) -> Ordinal {
        self.compacted_ordinal.max(1)
    }

    /// What became of the input that came with this key.
    pub fn keyed(&self, key: &str) -> Option<&Keyed> {
        self.keys.iter().rev().find(|keyed| keyed.key == key)
    }

    /// Entries up to `range.to` cannot be read. Whatever they said is not known; the next entry may follow them.
    pub fn skip(&mut self, range: DamagedRange) {
        self.last = self.last.max(range.to);
        self.note(range);
        self.lose();
    }

    /// Something happened here that is not known. Whether a message was taken up or a call was made may be among it, so nothing
    /// of what was under way is begun again by itself.
    fn lose(&mut self) {
        self.queued.clear();
        self.steering.clear();
        self.wakes.clear();
        if let Some(turn) = &mut self.turn {
            turn.calls.retain(|call| call.state == CallState::Started);
            turn.approvals.clear();
            turn.stopped = true;
        }
    }

    fn note(&mut self, range: DamagedRange) {
        if !self.damage.contains(&range) {
            if self.damage.len() == DAMAGE {
                self.damage.pop_front();
            }
            self.damage.push_back(range);
            self.damage_is_new = true;
        }
    }

    /// Folds the next entry in.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), FoldError> {
        if entry.ordinal != self.last + 1 {
            return Err(FoldError::Order { last: self.last, found: entry.ordinal });
        }
        self.last = entry.ordinal;
        self.last_at = entry.at;
        self.fold(entry).map_err(|why| FoldError::Unfit { ordinal: entry.ordinal, kind: entry.fact.kind().to_owned(), why })
    }

    fn fold(&mut self, entry: &Entry) -> Result<(), &'static str> {
        match &entry.fact {
            Fact::ThreadCreated(_) => return Err("the thread exists already"),
            Fact::ThreadForked(fork) => self.forked(fork, entry.at),
            Fact::MetadataChanged(change) => self.describe(change),
            Fact::SettingsChanged(change) => self.settings.apply(&change.settings),
            Fact::SelectionChanged(change) => {
                if let Some(selection) = &change.selection {
                    self.selection = Some(selection.clone());
                    self.local_host = None;
                }
                if let Some(roots) = &change.capability_roots {
                    self.capability_roots.clone_from(roots);
                }
            }
            Fact::InputReceived(input) => self.received(input, entry.ordinal),
            Fact::QueueChanged(change) => self.requeue(&change.queue),
            Fact::TurnStarted(fact) => {
                if let Some(open) = &self.turn {
                    // The end of the one before is among what was lost.
                    if !self.damage.iter().any(|range| range.to > open.started_ordinal) {
                        return Err("another turn is running");
                    }
                    self.turns += 1;
                }
                let mut begun_by = self.queued.iter().filter(|input| fact.inputs.contains(&input.id)).peekable();
                let is_woken = begun_by.peek().is_some() && begun_by.all(QueuedInput::is_wake);
                self.woken = if is_woken { self.woken + 1 } else { 0 };
                self.queued.retain(|input| !fact.inputs.contains(&input.id));
                for keyed in self.keys.iter_mut().filter(|keyed| fact.inputs.contains(&keyed.input)) {
                    keyed.turn = Some(fact.turn.clone());
                }
                self.history_is_open = false;
                self.turn = Some(Turn::new(fact, entry.ordinal, entry.at, self.usage.total.total));
            }
            Fact::TurnSettingsChanged(fact) => running(&mut self.turn, &fact.turn)?.settings.apply(&fact.settings),
            Fact::StepCaptured(fact) => {
                let turn = running(&mut self.turn, &fact.turn)?;
                turn.step = Some(fact.step);
                turn.step_ordinal = entry.ordinal;
                (turn.asked, turn.answered, turn.follow_up) = (false, false, false);
                // What was asked for in an earlier step is over, or this step would not have been captured.
                turn.calls.retain(|call| call.state != CallState::Finished);
                self.steering.clear();
                self.usage.added(&fact.items);
                if self.local_host.is_none() {
                    self.local_host = fact.environments.iter().find_map(|environment| environment.host.clone());
                }
            }
            Fact::ModelAsked(fact) => running(&mut self.turn, &fact.turn)?.asked = true,
            Fact::ModelAnswered(fact) => {
                let turn = running(&mut self.turn, &fact.turn)?;
                turn.calls.extend(fact.calls.iter().map(|request| Call {
                    id: request.call.clone(),
                    tool: request.tool.clone(),
                    state: CallState::Requested,
                    asked_ordinal: entry.ordinal,
                    item: request.item,
                    started: None,
                }));
                turn.follow_up |= fact.goes_on || !fact.calls.is_empty();
                turn.answered |= fact.complete;
                match fact.usage {
                    Some(tokens) => self.usage.answered(tokens),
                    None => self.usage.added(&fact.items),
                }
            }
            Fact::ApprovalAsked(fact) => {
                let turn = running(&mut self.turn, &fact.turn)?;
                if let Some(call) = turn.calls.iter_mut().find(|call| Some(&call.id) == fact.call.as_ref()) {
                    call.state = CallState::Waiting;
                }
                turn.approvals.push(Approval {
                    id: fact.approval.clone(),
                    call: fact.call.clone(),
                    asked_ordinal: entry.ordinal,
                    asked: (**fact).clone(),
                });
            }
            Fact::ApprovalAnswered(fact) => {
                let turn = self.turn.as_mut().ok_or("no turn is running")?;
                let at = turn.approvals.iter().position(|approval| approval.id == fact.approval).ok_or("no such approval was asked for")?;
                let approval = turn.approvals.remove(at);
                if let Some(call) = turn.calls.iter_mut().find(|call| Some(&call.id) == approval.call.as_ref()) {
                    call.state = CallState::Answered(fact.decision);
                }
                turn.stopped |= fact.decision == crate::call::Decision::Aborted;
            }
            Fact::PermissionsGranted(fact) => match fact.scope {
                GrantScope::Turn => running(&mut self.turn, &fact.turn)?.grants.push((**fact).clone()),
                GrantScope::Thread => self.grants.push((**fact).clone()),
            },
            Fact::CallStarted(fact) => {
                let turn = running(&mut self.turn, &fact.turn)?;
                match turn.calls.iter_mut().find(|call| call.id == fact.call) {
                    Some(call) => {
                        call.state = CallState::Started;
                        call.started = Some((**fact).clone());
                    }
                    // A command of the user's, or one whose request is lost behind damage.
                    None => turn.calls.push(Call {
                        id: fact.call.clone(),
                        tool: fact.tool.clone(),
                        state: CallState::Started,
                        asked_ordinal: entry.ordinal,
                        item: 0,
                        started: Some((**fact).clone()),
                    }),
                }
            }
            Fact::CallFinished(fact) => {
                self.usage.added(&fact.items);
                // A process may outlive its turn; its end is a fact, but no call waits for it.
                if let Some(turn) = self.turn.as_mut().filter(|turn| turn.id == fact.turn) {
                    let call = turn.calls.iter_mut().find(|call| call.id == fact.call).ok_or("no such call was asked for")?;
                    call.state = CallState::Finished;
                    call.started = None;
                    turn.approvals.retain(|approval| approval.call.as_ref() != Some(&fact.call));
                }
            }
            Fact::WakeSet(fact) => {
                self.wakes.retain(|wake| wake.session != fact.session);
                self.wakes.push((**fact).clone());
            }
            Fact::WakeEnded(fact) => self.wakes.retain(|wake| wake.session != fact.session),
            Fact::AgentSpawned(fact) => {
                self.agents.insert(fact.child, Agent { spawned: (**fact).clone(), open: true });
            }
            Fact::AgentClosed(fact) => self.agents.get_mut(&fact.child).ok_or("there is no such agent")?.open = false,
            Fact::ContextCompacted(fact) => {
                self.compacted_ordinal = entry.ordinal;
                self.waited_then = self.steering.iter().chain(&self.queued).map(|input| input.ordinal).collect();
                self.context_generation = fact.context_generation.max(self.context_generation + 1);
                self.usage.compacted(fact.tokens);
                if let Some(turn) = &mut self.turn {
                    turn.compacted_before = Some(turn.next_step());
                }
            }
            Fact::TurnsReverted(_) => {
                if self.turn.is_some() {
                    return Err("a turn is running");
                }
                self.reverted += 1;
            }
            Fact::TurnFinished(fact) => self.finished(fact.turn.as_ref(), fact.status)?,
            Fact::DamageNoted(fact) => {
                for range in &fact.damage {
                    self.note(range.clone());
                }
                if fact.here(entry.ordinal).next().is_some() {
                    self.lose();
                }
                self.damage_is_new &= !fact.continued;
                self.last = self.last.max(fact.through.unwrap_or(0));
            }
            Fact::Unknown { kind, .. } => *self.unknown.entry(kind.clone()).or_default() += 1,
        }
        Ok(())
    }

    fn describe(&mut self, change: &MetadataChanged) {
        if let Some(name) = &change.name {
            self.metadata.name.clone_from(name);
        }
        if let Some(archived) = change.archived {
            self.metadata.archived = archived;
        }
        if let Some(git) = &change.git {
            self.metadata.git.clone_from(git);
        }
        merge(&mut self.metadata.labels, &change.labels);
    }

    fn received(&mut self, fact: &crate::input::InputReceived, ordinal: Ordinal) {
        let items = crate::context::input_items(fact);
        self.usage.added(&items);
        if fact.origin == InputOrigin::History {
            let messages = items.iter().filter(|item| crate::context::is_user_message(item)).count() as u64;
            self.user_messages += messages;
            if messages > 0 && self.turn.is_none() {
                self.history_is_open = true;
            }
        } else if fact.origin == InputOrigin::User {
            self.user_messages += 1;
        }
        if self.metadata.preview.is_none() && fact.origin != InputOrigin::Agent {
            self.metadata.preview = items.iter().find_map(crate::context::preview);
        }
        if fact.origin == InputOrigin::History {
            return;
        }
        if let Some(key) = &fact.client_key {
            if self.keys.len() == KEYS {
                self.keys.pop_front();
            }
            self.keys.push_back(Keyed { key: key.clone(), input: fact.input.clone(), turn: fact.turn.clone() });
        }
        let input = QueuedInput { id: fact.input.clone(), ordinal, client_key: fact.client_key.clone(), origin: fact.origin };
        match &self.turn {
            Some(turn) if Some(&turn.id) == fact.turn.as_ref() => {
                // Someone sees what the turn does.
                self.woken = 0;
                self.steering.push(input);
            }
            _ => self.queued.push_back(input),
        }
    }

    /// What is not named any more was never said.
    fn requeue(&mut self, order: &[InputId]) {
        let mut waiting = std::mem::take(&mut self.queued);
        for id in order {
            if let Some(at) = waiting.iter().position(|input| input.id == *id) {
                self.queued.extend(waiting.remove(at));
            }
        }
        // Neither is its key known any more: said again, it is said for the first time.
        self.keys.retain(|keyed| waiting.iter().all(|input| input.id != keyed.input));
        let taken_back = waiting.iter().filter(|input| input.origin == InputOrigin::User).count() as u64;
        self.user_messages = self.user_messages.saturating_sub(taken_back);
    }

    fn finished(&mut self, id: Option<&TurnId>, status: TurnStatus) -> Result<(), &'static str> {
        let Some(id) = id else {
            self.history_is_open = false;
            return Ok(());
        };
        running(&mut self.turn, id)?;
        self.turn = None;
        self.turns += 1;
        // What came too late for a turn that went well starts the next one. After any other end it stays in the history.
        let late = std::mem::take(&mut self.steering);
        if status == TurnStatus::Completed {
            self.queued.extend(late);
        }
        Ok(())
    }

    /// This is a new thread with the past of another: what runs or waits there does not run or wait here.
    fn forked(&mut self, fork: &ThreadForked, at: u64) {
        self.id = fork.thread;
        self.created_at = at;
        self.metadata.forked_from = Some(fork.parent);
        self.metadata.thread_source.clone_from(&fork.thread_source);
        self.metadata.parent.clone_from(&fork.spawned_by);
        self.metadata.archived = false;
        self.metadata.name.clone_from(&fork.name);
        if fork.session.is_some() || fork.spawned_by.is_none() {
            self.metadata.session.clone_from(&fork.session);
        }
        if fork.source.is_some() {
            self.metadata.source.clone_from(&fork.source);
        }
        if fork.originator.is_some() {
            self.metadata.originator.clone_from(&fork.originator);
        }
        if let Some(instructions) = &fork.instructions {
            self.instructions = Some(instructions.clone());
        }
        if let Some(tools) = &fork.dynamic_tools {
            self.dynamic_tools.clone_from(tools);
        }
        self.settings.apply(&fork.settings);
        if let Some(selection) = &fork.selection {
            self.selection = Some(selection.clone());
        }
        if let Some(roots) = &fork.capability_roots {
            self.capability_roots.clone_from(roots);
        }
        self.queued.clear();
        self.steering.clear();
        self.keys.clear();
        self.agents.clear();
        self.wakes.clear();
        self.woken = 0;
        // Permissions were granted to the other thread.
        self.grants.clear();
        if let Some(turn) = &mut self.turn {
            turn.grants.clear();
            turn.calls.clear();
            turn.approvals.clear();
            turn.stopped = true;
        }
    }
}

fn running<'a>(turn: &'a mut Option<Turn>, id: &TurnId) -> Result<&'a mut Turn, &'static str> {
    let turn = turn.as_mut().ok_or("no turn is running")?;
    if turn.id == *id { Ok(turn) } else { Err("it belongs to a turn that is not running") }
}
