//! Whatever happens to a thread, its history is one that the real APIs take: after every stop, kill, cut, compaction, import and
//! change of the provider. The judge is the same that the scripted model has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use outpost_runtime::model::{ModelHistory, ModelProvider, Prompt, WireApi};
use outpost_store::{MemoryStore, Rollouts, Store};
use outpost_testkit::model::PIXEL;
use outpost_testkit::strict::{Known, Wire, check_value};
use outpost_thread::{
    CallFinished, CallOutcome, CallRequest, CompactReason, Context, ContextCompacted, Entry, Fact, InputOrigin, InputReceived,
    InterruptReason, Kept, Marker, ModelAnswered, ModelAsked, Raw, StepCaptured, Thread, ThreadCreated, ThreadForked, ThreadId,
    TurnFinished, TurnStarted, TurnStatus, closing,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

/// Who is asked: on which wire, and how it gives its thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    /// Responses, with sealed thoughts.
    Cloud,
    /// Responses, with thoughts in plain words.
    Workshop,
    /// Chat.
    Home,
    /// Anthropic, with signed thoughts.
    Abbey,
}

const ALL: [Provider; 4] = [Provider::Cloud, Provider::Workshop, Provider::Home, Provider::Abbey];

/// A thought of that wire, and its signature.
const SIGNED: (&str, &str) = ("hm", "signed");

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Self::Cloud => "openai",
            Self::Workshop => "workshop",
            Self::Home => "home",
            Self::Abbey => "abbey",
        }
    }

    fn accepts(self, items: &[Raw]) -> Result<(), String> {
        let mut items = items.to_vec();
        items.push(message("user", "what now?"));
        // Thinking has rules of its own on the wire that signs it.
        let prompt = Prompt { effort: Some("high".into()), ..Prompt::plain("m", "be brief", ModelHistory::new(items)) };
        let (api, wire) = match self {
            Self::Cloud | Self::Workshop => (WireApi::Responses, Wire::Responses),
            Self::Home => (WireApi::Chat, Wire::Chat),
            Self::Abbey => (WireApi::Anthropic, Wire::Anthropic),
        };
        let body = ModelProvider::body(api, &prompt).unwrap().unwrap();
        let thoughts = vec![(SIGNED.0.to_owned(), SIGNED.1.to_owned())];
        let known = Known { plain_thoughts: self == Self::Workshop, thoughts, ..Known::default() };
        check_value(wire, &body, &known).map_err(|violation| format!("{} refuses: {violation}\n{body:#}", self.name()))
    }
}

/// A piece of an answer, or of a history that somebody gives.
#[derive(Debug, Clone)]
enum Said {
    Words,
    Thought,
    Call(usize, CallKind),
    /// Only in a given history.
    Output(usize, CallKind),
    User,
    Hologram,
    /// A picture that the model made.
    Image,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Function,
    /// With parameters that are no JSON, and a name that is none.
    Bad,
    Custom,
    Shell,
}

#[derive(Debug, Clone)]
enum Happening {
    Input,
    Steering,
    Step(Provider),
    Answer(Vec<Said>),
    /// Which call, what is told of it, and how.
    CallEnds(usize, Ending),
    TurnEnds(TurnStatus),
    /// What is kept, by place.
    Compaction(Vec<bool>),
    /// To the state after this part of the journal.
    Revert(u8),
    Fork(u8),
    /// The last entries were not stored.
    Kill(u8),
    Given(Vec<Said>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Output,
    /// As journals of earlier versions have it.
    Nothing,
    OutputAndMessage,
    WrongType,
    Twice,
}

/// Few, so that they meet; one is empty and one is too long.
const IDS: [&str; 5] = ["a", "b", "c", "", "an-id-that-is-far-too-long-for-any-of-the-wires-that-we-know-of-and-so-must-be-cut"];

fn message(role: &str, text: &str) -> Raw {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    Raw::from(json!({"type": "message", "id": format!("0198-{text}"), "role": role, "content": [{"type": kind, "text": text}]}))
}

/// Providers give no name twice.
fn image_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("ig_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn item(said: &Said, provider: Option<Provider>) -> Raw {
    let value = match said {
        Said::Words => return message("assistant", "words"),
        Said::User => return message("user", "steering"),
        Said::Image => match provider {
            Some(Provider::Cloud | Provider::Workshop) => json!({"type": "image_generation_call", "id": image_id(), "status": "completed",
                "size": "1024x1024", "revised_prompt": "x", "result": PIXEL, "saved_path": "/x.png"}),
            _ => json!({"type": "image_generation_call", "status": "completed", "result": PIXEL}),
        },
        Said::Hologram => json!({"type": "hologram", "id": "h"}),
        Said::Thought => match provider {
            Some(Provider::Cloud) | None => json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}),
            Some(Provider::Abbey) => json!({"type": "reasoning", "id": "y", "format": "anthropic", "summary": [],
                "content": [{"type": "reasoning_text", "text": SIGNED.0}], "encrypted_content": SIGNED.1}),
            Some(_) => json!({"type": "reasoning", "id": "x", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
        },
        Said::Call(at, kind) => {
            let id = IDS[*at % IDS.len()];
            match kind {
                CallKind::Function => {
                    json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "exec_command", "arguments": "{}"})
                }
                CallKind::Bad => json!({"type": "function_call", "call_id": id, "name": "run it", "arguments": "{bad"}),
                CallKind::Custom => json!({"type": "custom_tool_call", "call_id": id, "name": "apply_patch", "input": "x"}),
                CallKind::Shell => {
                    json!({"type": "local_shell_call", "call_id": id, "status": "completed", "action": {"type": "exec", "command": []}})
                }
            }
        }
        Said::Output(at, kind) => output(IDS[*at % IDS.len()], *kind),
    };
    Raw::from(value)
}

fn output(id: &str, kind: CallKind) -> Value {
    let kind = if kind == CallKind::Custom { "custom_tool_call_output" } else { "function_call_output" };
    json!({"type": kind, "call_id": id, "output": "done"})
}

/// A thread in memory, as a driver runs one.
struct Run {
    journal: Vec<Entry>,
    thread: Thread,
    context: Context,
    provider: Option<Provider>,
    count: u32,
}

impl Run {
    fn new() -> Self {
        let first = Entry { ordinal: 1, at: 0, fact: ThreadCreated::new(ThreadId::new(Uuid::from_u128(1))).into() };
        let thread = Thread::begin(&first).unwrap();
        Self { journal: vec![first], thread, context: Context::new(), provider: None, count: 0 }
    }

    fn append(&mut self, fact: impl Into<Fact>) {
        let entry = Entry { ordinal: self.thread.last + 1, at: 0, fact: fact.into() };
        // What does not fit behind damage counts as read.
        let _ = self.thread.apply(&entry);
        self.context.apply(&entry);
        self.journal.push(entry);
    }

    fn fresh(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{what}-{}", self.count)
    }

    /// What a program does that opens this journal.
    fn reopened(&self) -> (Thread, Context) {
        let mut thread = Thread::begin(&self.journal[0]).unwrap();
        for entry in &self.journal[1..] {
            let _ = thread.apply(entry);
        }
        let start = thread.context_start() as usize;
        let mut context = match &self.journal[start - 1].fact {
            Fact::ContextCompacted(compaction) => {
                let needed = Context::needs(compaction).into_iter().chain(thread.waited_then.iter().copied());
                let older: Vec<_> = needed.map(|ordinal| self.journal[ordinal as usize - 1].clone()).collect();
                Context::begin(compaction, start as u64, &older)
            }
            _ => Context::new(),
        };
        for entry in &self.journal[start..] {
            context.apply(entry);
        }
        (thread, context)
    }

    fn reopen(&mut self) {
        (self.thread, self.context) = self.reopened();
        // Whoever was asked in what was lost does not answer any more.
        let asked = |entry: &Entry| if let Fact::ModelAsked(asked) = &entry.fact { asked.provider.clone() } else { None };
        let asked = self.journal.iter().rev().find_map(asked);
        self.provider = ALL.into_iter().find(|provider| Some(provider.name()) == asked.as_deref());
    }

    /// A place in the journal, by a part of 256.
    fn place(&self, part: u8) -> usize {
        (self.journal.len() * usize::from(part) / 256).max(1)
    }

    fn input(&mut self, items: Vec<Raw>, origin: InputOrigin, steers: bool) -> outpost_thread::InputId {
        let id = outpost_thread::InputId::from(self.fresh("input"));
        let turn = self.thread.turn.as_ref().filter(|_| steers).map(|turn| turn.id.clone());
        self.append(InputReceived { input: id.clone(), turn, origin, client_key: None, by: None, content: vec![], items });
        id
    }

    fn happen(&mut self, happening: &Happening) {
        let turn = self.thread.turn.as_ref().map(|turn| turn.id.clone());
        match (happening, turn) {
            (Happening::Input, running) => {
                let input = self.input(vec![message("user", "do it")], InputOrigin::User, false);
                if running.is_none() {
                    let turn = self.fresh("turn");
                    self.append(TurnStarted::new(turn.into(), vec![input]));
                }
            }
            (Happening::Steering, Some(_)) => drop(self.input(vec![message("user", "rather this")], InputOrigin::User, true)),
            (Happening::Step(provider), Some(turn)) => {
                let step = self.thread.turn.as_ref().unwrap().next_step();
                let items = vec![message("user", "<environment_context>here</environment_context>")];
                let detail = Some(Raw::from(json!({})));
                self.append(StepCaptured { turn: turn.clone(), step, environments: vec![], items, detail });
                self.append(ModelAsked { turn, step, model: None, provider: Some(provider.name().into()) });
                self.provider = Some(*provider);
                provider.accepts(self.context.items()).unwrap();
            }
            (Happening::Answer(said), Some(turn)) => {
                let items: Vec<Raw> = said.iter().map(|said| item(said, self.provider)).collect();
                // As the driver reads them: what cannot be told apart gets another id.
                let mut calls: Vec<CallRequest> = Vec::new();
                let mut kept = Vec::new();
                for (index, raw) in items.into_iter().enumerate() {
                    let value: Value = raw.read().unwrap();
                    let kind = value["type"].as_str().unwrap();
                    if !matches!(kind, "function_call" | "custom_tool_call") {
                        kept.push(raw);
                        continue;
                    }
                    let id = value["call_id"].as_str().unwrap();
                    let taken = self.thread.turn.iter().flat_map(|turn| &turn.calls).any(|call| call.id.as_str() == id);
                    let is_taken = taken || id.is_empty() || calls.iter().any(|call| call.call.as_str() == id);
                    let id = if is_taken { self.fresh("call") } else { id.to_owned() };
                    let mut value = value;
                    value["call_id"] = id.as_str().into();
                    calls.push(CallRequest { call: id.into(), tool: "x".into(), item: index });
                    kept.push(Raw::from(value));
                }
                let step = self.thread.turn.as_ref().unwrap().next_step();
                self.append(ModelAnswered { turn, step, items: kept, calls, complete: true, goes_on: false, usage: None, response: None });
            }
            (Happening::CallEnds(which, ending), Some(turn)) => {
                let calls = &self.thread.turn.as_ref().unwrap().calls;
                let Some(call) = calls.get(which % calls.len().max(1)).map(|call| call.id.clone()) else { return };
                let good = Raw::from(output(call.as_str(), CallKind::Function));
                let items = match ending {
                    Ending::Output => vec![good],
                    Ending::Nothing => vec![],
                    Ending::OutputAndMessage => vec![good, message("user", "<note>see</note>")],
                    Ending::WrongType => vec![Raw::from(output(call.as_str(), CallKind::Custom))],
                    Ending::Twice => vec![good.clone(), good],
                };
                let outcome = if *ending == Ending::Nothing { CallOutcome::Aborted } else { CallOutcome::Completed };
                self.append(CallFinished { turn, call, outcome, items, detail: None });
            }
            (Happening::TurnEnds(status), Some(turn)) => {
                let reason = (*status == TurnStatus::Interrupted).then_some(InterruptReason::User);
                self.append(TurnFinished { turn: Some(turn), status: *status, reason, error: None, marker: Marker::User });
            }
            (Happening::Compaction(keeps), running) => {
                // Somebody else's program may have kept anything.
                let items: Vec<Raw> = self.context.items().to_vec();
                let kept = items.into_iter().zip(keeps.iter().cycle()).filter(|(_, keep)| **keep).map(|(item, _)| Kept::Item(item));
                let kept = kept.chain([Kept::Item(message("user", "<context_summary>so far</context_summary>"))]).collect();
                self.append(ContextCompacted { turn: running, reason: CompactReason::Full, kept, tokens: 1, context_generation: 0 });
            }
            (Happening::Revert(part), None) => {
                let before = Self { journal: self.journal[..self.place(*part)].to_vec(), ..Self::new() };
                let kept = before.reopened().1.kept(&self.journal);
                self.append(ContextCompacted { turn: None, reason: CompactReason::Reverted, kept, tokens: 1, context_generation: 0 });
                // What is kept stands in entries that the context may hold no longer.
                self.reopen();
            }
            (Happening::Fork(part), _) => {
                self.journal.truncate(self.place(*part));
                self.reopen();
                let (id, child) = (self.thread.id, ThreadId::new(Uuid::from_u128(u128::from(self.thread.last) << 8 | 2)));
                let running = self.thread.turn.as_ref().map(|turn| turn.id.clone());
                self.append(ThreadForked::new(child, id));
                if running.is_some() {
                    self.append(closing(running, Marker::User));
                }
            }
            (Happening::Kill(part), _) => {
                let lost = usize::from(*part) % 4;
                self.journal.truncate(self.journal.len().saturating_sub(lost).max(1));
                self.reopen();
            }
            (Happening::Given(said), _) => {
                drop(self.input(said.iter().map(|said| item(said, None)).collect(), InputOrigin::History, false));
            }
            (_, _) => {}
        }
    }

    fn judge(&self) {
        for provider in ALL {
            provider.accepts(&self.context.whole_for(provider.name())).unwrap();
        }
        let (thread, context) = self.reopened();
        assert_eq!(thread, self.thread);
        assert_eq!(context.items(), self.context.items(), "a thread that was opened again is the same");
    }
}

fn call_kind() -> impl Strategy<Value = CallKind> {
    prop_oneof![4 => Just(CallKind::Function), 1 => Just(CallKind::Bad), 1 => Just(CallKind::Custom)]
}

fn said() -> impl Strategy<Value = Vec<Said>> {
    let piece = prop_oneof![
        2 => Just(Said::Words),
        1 => Just(Said::Thought),
        1 => Just(Said::Image),
        4 => (0..IDS.len(), call_kind()).prop_map(|(id, kind)| Said::Call(id, kind)),
    ];
    proptest::collection::vec(piece, 0..4)
}

fn given() -> impl Strategy<Value = Vec<Said>> {
    let kind = || prop_oneof![3 => call_kind(), 1 => Just(CallKind::Shell)];
    let piece = prop_oneof![
        2 => Just(Said::Words),
        2 => Just(Said::User),
        1 => Just(Said::Thought),
        1 => Just(Said::Image),
        1 => Just(Said::Hologram),
        4 => (0..IDS.len(), kind()).prop_map(|(id, kind)| Said::Call(id, kind)),
        4 => (0..IDS.len(), kind()).prop_map(|(id, kind)| Said::Output(id, kind)),
    ];
    proptest::collection::vec(piece, 0..8)
}

fn happening() -> impl Strategy<Value = Happening> {
    let ending = prop_oneof![
        4 => Just(Ending::Output),
        2 => Just(Ending::Nothing),
        1 => Just(Ending::OutputAndMessage),
        1 => Just(Ending::WrongType),
        1 => Just(Ending::Twice)
    ];
    let status = prop_oneof![Just(TurnStatus::Completed), Just(TurnStatus::Interrupted), Just(TurnStatus::Failed)];
    prop_oneof![
        4 => Just(Happening::Input),
        2 => Just(Happening::Steering),
        5 => prop_oneof![Just(Provider::Cloud), Just(Provider::Workshop), Just(Provider::Home), Just(Provider::Abbey)].prop_map(Happening::Step),
        6 => said().prop_map(Happening::Answer),
        6 => (0..4_usize, ending).prop_map(|(which, ending)| Happening::CallEnds(which, ending)),
        3 => status.prop_map(Happening::TurnEnds),
        1 => proptest::collection::vec(any::<bool>(), 1..5).prop_map(Happening::Compaction),
        1 => any::<u8>().prop_map(Happening::Revert),
        1 => any::<u8>().prop_map(Happening::Fork),
        1 => any::<u8>().prop_map(Happening::Kill),
        1 => given().prop_map(Happening::Given),
    ]
}

/// A line of a rollout.
fn line(kind: &str, payload: &Value) -> String {
    json!({"timestamp": "2026-01-02T03:04:05.678Z", "type": kind, "payload": payload}).to_string()
}

/// A rollout as it may have been left behind: calls without outputs, outputs without calls, no turns, no end.
fn rollout(id: Uuid, pieces: &[(Said, bool)]) -> String {
    let mut lines = vec![line(
        "session_meta",
        &json!({"id": id.to_string(), "timestamp": "2026-01-02T03:04:05.678Z", "cwd": "/work", "originator": "t",
        "cli_version": "0", "source": "exec", "model_provider": "openai"}),
    )];
    for (said, begins_turn) in pieces {
        if *begins_turn {
            lines.push(line("event_msg", &json!({"type": "turn_started", "turn_id": format!("t{}", lines.len())})));
        }
        lines.push(line("response_item", &item(said, None).read().unwrap()));
    }
    lines.join("\n") + "\n"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_history_is_accepted(happenings in proptest::collection::vec(happening(), 1..40)) {
        let mut run = Run::new();
        for happening in &happenings {
            run.happen(happening);
            run.judge();
        }
        // A thread that takes up its work again is asked with all that it holds.
        run.happen(&Happening::Input);
        run.happen(&Happening::Step(Provider::Cloud));
        run.happen(&Happening::Step(Provider::Home));
        run.happen(&Happening::Step(Provider::Abbey));
        run.judge();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_imported_the_history_is_accepted(pieces in proptest::collection::vec((given(), any::<bool>()), 1..5)) {
        let pieces: Vec<(Said, bool)> =
            pieces.into_iter().flat_map(|(said, begins)| said.into_iter().enumerate().map(move |(n, said)| (said, begins && n == 0))).collect();
        // A rollout without a word of the user's is none.
        let pieces: Vec<(Said, bool)> = std::iter::once((Said::User, false)).chain(pieces).collect();
        let id = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("rollout-2026-01-02T03-04-05-{id}.jsonl"));
        std::fs::File::create(&path).unwrap().write_all(rollout(id, &pieces).as_bytes()).unwrap();
        let context = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let store = Store::Memory(MemoryStore::new(std::sync::Arc::new(|| 1), None));
            let found = Rollouts::find(&path).unwrap();
            for rollout in &found.found {
                found.import(rollout, &store).await.unwrap();
            }
            let thread = ThreadId::new(id);
            let opened = outpost_store::open(&store, thread).await.unwrap();
            outpost_store::context(&store, &opened.thread).await.unwrap()
        });
        for provider in ALL {
            let items = context.whole_for(provider.name());
            prop_assert!(provider.accepts(&items).is_ok(), "{}", provider.accepts(&items).unwrap_err());
        }
    }
}
