//! A world that answers always the same: a model, tools and users that were told what to do. It performs steps as a loop
//! would, so that a thread can be cut anywhere and gone on with.

use std::collections::{BTreeMap, BTreeSet};

use outpost_thread::{
    ApprovalAnswered, ApprovalAsked, ApprovalKind, Call, CallFinished, CallOutcome, CallRequest, CallStarted, CallState, Context,
    ContextCompacted, Decision, Entry, Fact, InputOrigin, InputReceived, Kept, Marker, ModelAnswered, ModelAsked, NextAction, Raw,
    Settings, StepCaptured, Thread, ThreadCreated, ThreadId, TokenTotals, TurnFinished, TurnStarted, TurnStatus,
};
use serde_json::json;
use uuid::Uuid;

/// What one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptedCall {
    Runs,
    IsAsked(Decision),
}

/// What happens in one turn: the calls of each step, until a step has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScriptedTurn {
    pub steps: Vec<Vec<ScriptedCall>>,
    /// The user says something more while this step runs.
    pub steered_at: Option<usize>,
}

/// A whole thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Script {
    pub turns: Vec<ScriptedTurn>,
    pub compact_at: Option<u64>,
}

/// What is outside of the thread, and survives its crashes: processes, and what was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct World {
    /// How often each call had its effect.
    pub effects: BTreeMap<String, u32>,
    /// What the users have said already.
    pub said: BTreeSet<String>,
}

/// A thread that is being run, with its journal.
pub(crate) struct Run {
    pub script: Script,
    pub world: World,
    pub journal: Vec<Entry>,
    pub thread: Thread,
    pub context: Context,
}

pub(crate) fn message(role: &str, text: &str) -> Raw {
    Raw::from(json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}))
}

pub(crate) fn input(id: &str, turn: Option<&str>) -> Fact {
    InputReceived {
        input: id.into(),
        turn: turn.map(Into::into),
        origin: InputOrigin::User,
        client_key: Some(format!("key of {id}")),
        by: None,
        content: vec![Raw::from(json!({"type": "text", "text": format!("text of {id}")}))],
        items: Vec::new(),
    }
    .into()
}

pub(crate) fn turn_started(turn: &str, inputs: &[&str]) -> Fact {
    TurnStarted::new(turn.into(), inputs.iter().map(|id| (*id).into()).collect()).into()
}

pub(crate) fn turn_finished(turn: Option<&str>, status: TurnStatus) -> Fact {
    TurnFinished { turn: turn.map(Into::into), status, reason: None, error: None, marker: Marker::Off }.into()
}

pub(crate) fn id() -> ThreadId {
    ThreadId::new(Uuid::from_u128(1))
}

impl Run {
    /// A thread that was just created.
    pub(crate) fn new(script: Script) -> Self {
        let settings = Settings { compact_at: script.compact_at, ..Settings::default() };
        let first = Entry { ordinal: 1, at: 1, fact: ThreadCreated { settings, ..ThreadCreated::new(id()) }.into() };
        Self::from_journal(script, World::default(), vec![first])
    }

    /// What a program does that finds this journal: fold, nothing else.
    pub(crate) fn from_journal(script: Script, world: World, journal: Vec<Entry>) -> Self {
        let mut thread = Thread::begin(&journal[0]).unwrap();
        let mut context = Context::new();
        for entry in &journal[1..] {
            thread.apply(entry).unwrap();
            context.apply(entry);
        }
        Self { script, world, journal, thread, context }
    }

    fn append(&mut self, fact: impl Into<Fact>) {
        let ordinal = self.thread.last + 1;
        let entry = Entry { ordinal, at: ordinal, fact: fact.into() };
        self.thread.apply(&entry).unwrap_or_else(|error| panic!("{error} after {:#?}", self.journal.last()));
        self.context.apply(&entry);
        self.journal.push(entry);
    }

    /// Goes on until nothing is left to do.
    pub(crate) fn finish(&mut self) {
        for _ in 0..10_000 {
            if !self.perform() {
                return;
            }
        }
        panic!("it never ends: {:?}", self.thread.next());
    }

    /// The number of the turn, which is part of its name.
    fn scripted(&self, turn: &str) -> &ScriptedTurn {
        &self.script.turns[turn.strip_prefix("turn-").unwrap().parse::<usize>().unwrap()]
    }

    fn perform(&mut self) -> bool {
        match self.thread.next() {
            NextAction::Idle => {
                // The user says the next thing, if there is one that was not said yet. Saying and starting are one write.
                let next =
                    (0..self.script.turns.len()).map(|number| format!("input-{number}")).find(|name| !self.world.said.contains(name));
                let Some(name) = next else { return false };
                self.append(input(&name, None));
                self.world.said.insert(name);
            }
            NextAction::StartTurn { inputs } => {
                // Named after its input, so that the same input always starts the same turn.
                let first = inputs[0].id.as_str().strip_prefix("input-").map_or_else(|| "0".to_owned(), str::to_owned);
                let ids: Vec<&str> = inputs.iter().map(|input| input.id.as_str()).collect();
                self.append(turn_started(&format!("turn-{first}"), &ids));
            }
            NextAction::AskModel { turn, step } => {
                self.append(StepCaptured {
                    turn: turn.clone(),
                    step,
                    environments: Vec::new(),
                    items: if step == 0 { vec![message("user", "<environment_context>here</environment_context>")] } else { Vec::new() },
                    detail: None,
                });
                self.append(ModelAsked { turn: turn.clone(), step, model: None, provider: None });
                self.answer(turn.as_str(), step);
            }
            NextAction::Decide { turn, calls } => calls.iter().for_each(|call| self.decide(turn.as_str(), call)),
            NextAction::RunCalls { turn, calls } => calls.iter().for_each(|call| self.run(turn.as_str(), call)),
            NextAction::ReattachCalls { turn, calls, .. } => {
                for call in calls {
                    // The process outlived its program: it is found by its id and not started again.
                    self.world.effects.entry(call.id.to_string()).or_insert(1);
                    self.end(turn.as_str(), &call, CallOutcome::Completed);
                }
            }
            NextAction::AwaitAnswer { approvals, .. } => {
                for approval in approvals {
                    let call = approval.call.unwrap();
                    let decision = match self.scripted_call(call.as_str()) {
                        ScriptedCall::IsAsked(decision) => decision,
                        ScriptedCall::Runs => Decision::Approved,
                    };
                    self.append(ApprovalAnswered { approval: approval.id, decision, detail: None, by: None });
                }
            }
            NextAction::Compact { turn, reason } => {
                let kept = vec![Kept::Entry(2), Kept::Item(message("user", "<summary>what was said before</summary>"))];
                self.append(ContextCompacted { turn: Some(turn), reason, kept, tokens: 1, context_generation: 0 });
            }
            NextAction::FinishTurn { turn, status } => self.append(turn_finished(Some(turn.as_str()), status)),
        }
        true
    }

    fn answer(&mut self, turn: &str, step: u32) {
        let scripted = self.scripted(turn).clone();
        let calls = scripted.steps.get(step as usize).cloned().unwrap_or_default();
        if scripted.steered_at == Some(step as usize) {
            let name = format!("steering of {turn}");
            if self.world.said.insert(name.clone()) {
                self.append(input(&name, Some(turn)));
            }
        }
        // Each call is told as soon as it is known; the answer ends with a message.
        for number in 0..calls.len() {
            let call = format!("{turn}/{step}/{number}");
            // After a crash in the middle of an answer, the model says what it had not said yet.
            let is_known = self.journal.iter().any(
                |entry| matches!(&entry.fact, Fact::ModelAnswered(answer) if answer.calls.iter().any(|known| known.call.as_str() == call)),
            );
            if is_known {
                continue;
            }
            let item = Raw::from(json!({"type": "function_call", "call_id": call, "name": "exec_command", "arguments": "{}"}));
            self.append(ModelAnswered {
                turn: turn.into(),
                step,
                items: vec![item],
                calls: vec![CallRequest { call: call.as_str().into(), tool: "exec_command".into(), item: 0 }],
                complete: false,
                goes_on: false,
                usage: None,
                response: None,
            });
        }
        self.append(ModelAnswered {
            turn: turn.into(),
            step,
            items: vec![message("assistant", &format!("answer {turn}/{step}"))],
            calls: Vec::new(),
            complete: true,
            goes_on: !calls.is_empty(),
            usage: Some(TokenTotals { input: 10, output: 10, total: 20 * (u64::from(step) + 1), ..TokenTotals::default() }),
            response: None,
        });
    }

    fn scripted_call(&self, call: &str) -> ScriptedCall {
        let parts: Vec<&str> = call.split('/').collect();
        self.scripted(parts[0]).steps[parts[1].parse::<usize>().unwrap()][parts[2].parse::<usize>().unwrap()]
    }

    fn decide(&mut self, turn: &str, call: &Call) {
        match (call.state, self.scripted_call(call.id.as_str())) {
            (CallState::Requested, ScriptedCall::IsAsked(_)) => self.append(ApprovalAsked {
                turn: turn.into(),
                approval: format!("may {}", call.id).into(),
                call: Some(call.id.clone()),
                environment: None,
                kind: ApprovalKind::Command,
                detail: None,
            }),
            (CallState::Answered(_), _) => self.end(turn, call, CallOutcome::Declined),
            _ => self.run(turn, call),
        }
    }

    fn run(&mut self, turn: &str, call: &Call) {
        self.append(CallStarted {
            turn: turn.into(),
            call: call.id.clone(),
            tool: call.tool.clone(),
            environment: None,
            process: Some(format!("process of {}", call.id)),
            repeatable: false,
            adoption_key: None,
            executor: None,
            detail: None,
        });
        *self.world.effects.entry(call.id.to_string()).or_default() += 1;
        self.end(turn, call, CallOutcome::Completed);
    }

    fn end(&mut self, turn: &str, call: &Call, outcome: CallOutcome) {
        let output = Raw::from(json!({"type": "function_call_output", "call_id": call.id, "output": format!("{outcome:?}")}));
        self.append(CallFinished { turn: turn.into(), call: call.id.clone(), outcome, items: vec![output], detail: None });
    }
}
