//! Writes the facts of turns, steps and calls from what a rollout tells in its own order.
//!
//! A rollout names a turn before its input and never says where a step begins. Here an input stands before the turn that takes
//! it up, and every answer of the model belongs to a step. It must not know what lines look like.

use std::mem;

use outpost_thread::{
    CallDetail, CallFinished, CallId, CallOutcome, CallReport, CallRequest, CallStarted, Fact, InputId, InputOrigin, InputReceived,
    InterruptReason, ModelAnswered, ModelAsked, Raw, StepCaptured, TokenTotals, TurnFinished, TurnId, TurnKind, TurnStarted, TurnStatus,
};

/// A fact and the time of the line that it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dated {
    pub at: u64,
    pub fact: Fact,
}

/// How a call ended, and what clients were shown of it.
pub(super) struct Ending {
    pub outcome: CallOutcome,
    /// What is known of its beginning only now.
    pub begun: Option<CallDetail>,
    pub report: Option<CallReport>,
}

/// A call that the model asked for.
#[derive(Debug, Clone)]
pub(super) struct ImportedCall {
    pub call: CallId,
    pub tool: String,
    /// What clients are shown of it when it begins.
    pub begun: Option<CallDetail>,
}

#[derive(Default)]
pub(super) struct Scribe {
    pub facts: Vec<Dated>,
    /// Facts that were taken out of the front already.
    taken: usize,
    pub at: u64,
    pub model: Option<String>,
    pub provider: Option<String>,
    turn: Option<OpenTurn>,
    /// Model items that stand before the next step: context, instructions, reminders.
    before_step: Vec<Raw>,
    answer: Option<Answer>,
    inputs: u64,
    /// Where the facts of each turn begin, so that turns can be taken back.
    starts: Vec<usize>,
}

struct OpenTurn {
    id: TurnId,
    /// `turnStarted` waits for the input that a rollout names after it.
    is_written: bool,
    /// The rollout records neither its start nor its end: the next message of the user ends it.
    is_implied: bool,
    kind: TurnKind,
    step: u32,
    /// Calls that have not ended.
    calls: Vec<ImportedCall>,
}

#[derive(Default)]
struct Answer {
    items: Vec<Raw>,
    calls: Vec<CallRequest>,
    usage: Option<TokenTotals>,
}

impl Scribe {
    pub(super) fn fact(&mut self, fact: impl Into<Fact>) {
        self.facts.push(Dated { at: self.at, fact: fact.into() });
    }

    pub(super) fn turns(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Takes the facts that cannot change any more: all before the last answer, whose cost may still become known. Only for files
    /// that take no turn back.
    pub(super) fn settled(&mut self) -> Vec<Dated> {
        let open = self.facts.iter().rposition(|dated| matches!(dated.fact, Fact::ModelAnswered(_))).unwrap_or(self.facts.len());
        self.taken += open;
        let rest = self.facts.split_off(open);
        mem::replace(&mut self.facts, rest)
    }

    /// How many facts there were so far.
    const fn count(&self) -> usize {
        self.taken + self.facts.len()
    }

    pub(super) fn turn_id(&self) -> Option<&TurnId> {
        self.turn.as_ref().map(|turn| &turn.id)
    }

    /// A turn that was still open ended without a record of it.
    pub(super) fn begin_turn(&mut self, id: Option<&str>) {
        self.end_turn(TurnStatus::Completed, None);
        let is_implied = id.is_none();
        let id = id.map_or_else(|| TurnId::from(format!("rollout-{}", self.count())), TurnId::from);
        self.starts.push(self.count());
        self.turn = Some(OpenTurn { id, is_written: false, is_implied, kind: TurnKind::Regular, step: 0, calls: Vec::new() });
    }

    pub(super) fn end_turn(&mut self, status: TurnStatus, reason: Option<InterruptReason>) {
        self.close_answer();
        self.write_turn(Vec::new());
        let Some(turn) = self.turn.take() else { return };
        for asked in turn.calls {
            let call = asked.call.clone();
            self.fact(started(&turn.id, asked));
            self.fact(CallFinished { turn: turn.id.clone(), call, outcome: CallOutcome::Aborted, items: Vec::new(), detail: None });
        }
        let reason = reason.filter(|_| status == TurnStatus::Interrupted);
        self.fact(TurnFinished { turn: Some(turn.id), status, reason, error: None, marker: Default::default() });
    }

    /// Forgets the last `count` turns and everything that came with them.
    pub(super) fn roll_back(&mut self, count: u64) {
        self.end_turn(TurnStatus::Completed, None);
        let kept = self.starts.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        if let Some(start) = self.starts.get(kept) {
            self.facts.truncate(start.saturating_sub(self.taken));
            self.starts.truncate(kept);
        }
        self.before_step.clear();
    }

    /// A message of the user: it starts the turn, or steers the one that is under way.
    pub(super) fn input(&mut self, item: Raw, id: &str) {
        self.close_answer();
        if self.turn.as_ref().is_some_and(|turn| turn.is_implied && turn.is_written) {
            self.end_turn(TurnStatus::Completed, None);
        }
        self.inputs += 1;
        let input = if id.is_empty() { InputId::from(format!("input-{}", self.inputs)) } else { InputId::from(id) };
        let steers = self.turn.as_ref().filter(|turn| turn.is_written).map(|turn| turn.id.clone());
        let waits = steers.is_none();
        self.fact(InputReceived {
            input: input.clone(),
            turn: steers,
            origin: InputOrigin::User,
            client_key: None,
            by: None,
            content: Vec::new(),
            items: vec![item],
        });
        if waits {
            self.write_turn(vec![input]);
        }
    }

    /// Model items that belong to no message: they are shown to the model before its next step.
    pub(super) fn context(&mut self, item: Raw) {
        self.close_answer();
        self.before_step.push(item);
    }

    pub(super) fn said(&mut self, item: Raw, call: Option<ImportedCall>) {
        self.open_answer();
        let answer = self.answer.get_or_insert_default();
        if let Some(asked) = call {
            answer.calls.push(CallRequest { call: asked.call.clone(), tool: asked.tool.clone(), item: answer.items.len() });
            if let Some(turn) = &mut self.turn {
                turn.calls.push(asked);
            }
        }
        answer.items.push(item);
    }

    pub(super) fn returned(&mut self, item: Raw, call: CallId, ending: Ending) {
        self.close_answer();
        let Some(turn) = &mut self.turn else { return self.context(item) };
        let Some(at) = turn.calls.iter().position(|open| open.call == call) else { return self.context(item) };
        let mut asked = turn.calls.remove(at);
        asked.begun = ending.begun.or(asked.begun);
        let id = turn.id.clone();
        self.fact(started(&id, asked));
        self.fact(CallFinished { turn: id, call, outcome: ending.outcome, items: vec![item], detail: ending.report.map(Into::into) });
    }

    /// What the last answer cost, if that is not known yet.
    pub(super) fn used(&mut self, tokens: TokenTotals) {
        if let Some(answer) = &mut self.answer {
            answer.usage.get_or_insert(tokens);
            return;
        }
        let last = self.facts.iter_mut().rev().find_map(|dated| match &mut dated.fact {
            Fact::ModelAnswered(answer) => Some(answer),
            _ => None,
        });
        if let Some(answer) = last {
            answer.usage.get_or_insert(tokens);
        }
    }

    /// The context starts anew: a turn that does only this is one of its own kind.
    pub(super) fn compacting(&mut self) {
        self.close_answer();
        if let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_written) {
            turn.kind = TurnKind::Compact;
        }
        self.write_turn(Vec::new());
        self.before_step.clear();
    }

    fn write_turn(&mut self, inputs: Vec<InputId>) {
        if self.turn.is_none() && !inputs.is_empty() {
            // A rollout without turns: each message of the user begins one.
            let id = TurnId::from(format!("rollout-{}", self.count() - 1));
            self.starts.push(self.count() - 1);
            self.turn = Some(OpenTurn { id, is_written: false, is_implied: true, kind: TurnKind::Regular, step: 0, calls: Vec::new() });
        }
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_written) else { return };
        turn.is_written = true;
        let fact = TurnStarted {
            turn: turn.id.clone(),
            inputs,
            kind: turn.kind,
            selection: None,
            output_schema: None,
            root_turn: None,
            parent_turn: None,
        };
        self.fact(fact);
    }

    fn open_answer(&mut self) {
        if self.answer.is_some() {
            return;
        }
        if self.turn.is_none() {
            self.begin_turn(None);
        }
        self.write_turn(Vec::new());
        let Some(turn) = &mut self.turn else { return };
        let (id, step) = (turn.id.clone(), turn.step);
        turn.step += 1;
        let items = mem::take(&mut self.before_step);
        self.fact(StepCaptured { turn: id.clone(), step, environments: Vec::new(), items, detail: None });
        self.fact(ModelAsked { turn: id, step, model: self.model.clone(), provider: self.provider.clone() });
        self.answer = Some(Answer::default());
    }

    fn close_answer(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let Some(turn) = &self.turn else { return };
        let fact = ModelAnswered {
            turn: turn.id.clone(),
            step: turn.step.saturating_sub(1),
            items: answer.items,
            calls: answer.calls,
            complete: true,
            goes_on: false,
            usage: answer.usage,
            response: None,
        };
        self.fact(fact);
    }
}

fn started(turn: &TurnId, asked: ImportedCall) -> CallStarted {
    let ImportedCall { call, tool, begun } = asked;
    CallStarted {
        turn: turn.clone(),
        call,
        tool,
        environment: None,
        process: None,
        repeatable: false,
        adoption_key: None,
        executor: None,
        detail: begun.map(Into::into),
    }
}
