//! What is told of a thread, from entries written by hand.

use std::sync::Arc;

use bytes::Bytes;
use outpost_runtime::RuntimeConfig;
use outpost_runtime::live::{ThreadActivity, ThreadEvent};
use outpost_runtime::model::ModelProgress;
use outpost_thread::{
    ApprovalAnswered, ApprovalAsked, ApprovalKind, CallFinished, CallOutcome, CallRequest, CallStarted, DamageNoted, DamagedRange,
    Decision, Entry, Fact, InputOrigin, InputReceived, Marker, ModelAnswered, ModelAsked, Raw, Settings, SettingsChanged, StepCaptured,
    Thread, ThreadCreated, ThreadId, TokenTotals, TurnFinished, TurnStarted, TurnStatus,
};
use outpost_wire::app::event::Notice;
use outpost_wire::app::item::{Item, WorkStatus};
use outpost_wire::app::thread::ThreadStatus;
use outpost_wire::app::turn::TurnStatus as Shown;
use serde_json::{Value, json};

use super::{ClientMessage, Defaults, Projector, Turns};

fn id() -> ThreadId {
    "00000000-0000-7000-8000-000000000001".parse().unwrap()
}

fn defaults() -> Arc<Defaults> {
    Arc::new(Defaults { config: RuntimeConfig::default(), cwd: "/work".into(), version: "1".into() })
}

fn entries(facts: Vec<Fact>) -> Vec<Entry> {
    (1..).zip(facts).map(|(ordinal, fact)| Entry { ordinal, at: ordinal * 1000, fact }).collect()
}

fn said(input: &str, turn: Option<&str>) -> Fact {
    InputReceived {
        input: input.into(),
        turn: turn.map(Into::into),
        origin: InputOrigin::User,
        client_key: None,
        by: None,
        content: vec![Raw::from(json!({"type": "text", "text": input}))],
        items: vec![],
    }
    .into()
}

fn step(turn: &str, step: u32) -> [Fact; 2] {
    let captured = StepCaptured { turn: turn.into(), step, environments: vec![], items: vec![], detail: None };
    [captured.into(), ModelAsked { turn: turn.into(), step, model: None, provider: None }.into()]
}

fn answered(turn: &str, step: u32, items: Vec<Value>, calls: &[&str]) -> Fact {
    let calls = calls.iter().enumerate().map(|(item, call)| CallRequest { call: (*call).into(), tool: "exec_command".into(), item });
    ModelAnswered {
        turn: turn.into(),
        step,
        calls: calls.collect(),
        items: items.into_iter().map(Raw::from).collect(),
        complete: true,
        goes_on: false,
        usage: Some(TokenTotals { input: 2, output: 1, total: 3, ..TokenTotals::default() }),
        response: None,
    }
    .into()
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "exec_command", "arguments": "{}"})
}

fn command(call: &str) -> Raw {
    Raw::from(json!({"type": "commandExecution", "command": call, "cwd": "/w", "environmentId": "box", "source": "agent"}))
}

fn started(turn: &str, call: &str) -> Fact {
    CallStarted {
        turn: turn.into(),
        call: call.into(),
        tool: "exec_command".into(),
        environment: None,
        process: Some(call.into()),
        repeatable: false,
        adoption_key: None,
        executor: None,
        detail: Some(command(call).into()),
    }
    .into()
}

fn finished(turn: &str, call: &str, outcome: CallOutcome, detail: Value) -> Fact {
    CallFinished { turn: turn.into(), call: call.into(), outcome, items: vec![], detail: Some(Raw::from(detail).into()) }.into()
}

fn over(turn: &str, status: TurnStatus, error: Option<Value>) -> Fact {
    TurnFinished { turn: Some(turn.into()), status, reason: None, error: error.map(Raw::from), marker: Marker::Off }.into()
}

/// A thread in which everything happens that a client can see.
fn script() -> Vec<Entry> {
    let mut facts: Vec<Fact> = vec![ThreadCreated::new(id()).into(), said("one", None)];
    facts.push(TurnStarted::new("turn-1".into(), vec!["one".into()]).into());
    facts.extend(step("turn-1", 0));
    facts.push(answered("turn-1", 0, vec![call("a"), call("b"), call("c")], &["a", "b", "c"]));
    facts.push(started("turn-1", "a"));
    let asked = ApprovalAsked {
        turn: "turn-1".into(),
        approval: "q".into(),
        call: Some("b".into()),
        environment: None,
        kind: ApprovalKind::Command,
        detail: Some(Raw::from(json!({"command": "b", "cwd": "/w", "environmentId": "box", "reason": "why not"})).into()),
    };
    facts.push(asked.into());
    // It could not even begin: it is not shown.
    facts.push(finished("turn-1", "c", CallOutcome::Failed, json!({"error": "no such tool"})));
    facts.push(finished("turn-1", "a", CallOutcome::Completed, json!({"exitCode": 3, "aggregatedOutput": "out", "durationMs": 7})));
    facts.push(said("more", Some("turn-1")));
    facts.push(ApprovalAnswered { approval: "q".into(), decision: Decision::Denied, detail: None, by: None }.into());
    facts.push(finished("turn-1", "b", CallOutcome::Declined, json!({})));
    facts.extend(step("turn-1", 1));
    facts.push(said("later", None));
    facts.push(answered("turn-1", 1, vec![json!({"type": "reasoning", "id": "r", "summary": [{"text": "hm"}]}), message("done")], &[]));
    facts.push(over("turn-1", TurnStatus::Completed, None));
    facts.push(SettingsChanged { settings: Settings { model: Some("other".into()), ..Settings::default() } }.into());
    facts.push(TurnStarted::new("turn-2".into(), vec!["later".into()]).into());
    facts.extend(step("turn-2", 0));
    facts.push(over("turn-2", TurnStatus::Failed, Some(json!({"message": "no", "kind": "busy", "httpStatus": 429}))));
    entries(facts)
}

/// What is told, in a few words.
fn words(told: &ClientMessage) -> String {
    match told {
        ClientMessage::Notice(Notice::ItemStarted(notice)) => format!("started {}", notice.item.id()),
        ClientMessage::Notice(Notice::ItemCompleted(notice)) => format!("completed {}", notice.item.id()),
        ClientMessage::Notice(notice) => notice.method().to_owned(),
        ClientMessage::Ask(ask) => format!("ask {}", ask.approval),
        ClientMessage::Resolved(approval) => format!("resolved {approval}"),
        ClientMessage::Reverted(turn) => format!("reverted {turn}"),
    }
}

fn ordinal(told: &ClientMessage) -> Option<u64> {
    let ClientMessage::Notice(notice) = told else { return None };
    let frame: Value = serde_json::from_slice(&notice.frame(0)).unwrap();
    frame["params"]["ordinal"].as_u64()
}

#[test]
fn everything_is_told_once_in_order_and_its_last_word_names_its_place() {
    let mut projector = Projector::new(id(), defaults());
    let mut told = Vec::new();
    for entry in &script() {
        let now = projector.entry(entry);
        assert!(now.iter().rev().skip(1).all(|earlier| ordinal(earlier).is_none()));
        assert!(now.iter().filter_map(ordinal).all(|ordinal| ordinal == entry.ordinal));
        told.extend(now);
        assert!(projector.entry(entry).is_empty(), "told twice");
    }
    let told: Vec<String> = told.iter().map(words).collect();
    assert_eq!(
        told,
        [
            "thread/status/changed",
            "turn/started",
            "started one",
            "completed one",
            "thread/tokenUsage/updated",
            "started a",
            "started b",
            "ask q",
            "completed a",
            "started more",
            "completed more",
            "resolved q",
            "completed b",
            "thread/queue/changed",
            "started r.turn-1.1",
            "completed r.turn-1.1",
            "started m.turn-1.1",
            "completed m.turn-1.1",
            "thread/tokenUsage/updated",
            "thread/status/changed",
            "turn/completed",
            "thread/settings/updated",
            "thread/status/changed",
            "turn/started",
            "thread/queue/changed",
            "started later",
            "completed later",
            "error",
            "thread/status/changed",
            "turn/completed",
        ]
    );
}

#[test]
fn turns_are_what_was_told_of_them() {
    let mut projector = Projector::new(id(), defaults());
    let mut turns = Turns::default();
    script().iter().for_each(|entry| turns.take(projector.entry(entry)));
    let turns = turns.into_turns();
    assert_eq!(turns.iter().map(|turn| turn.status).collect::<Vec<_>>(), [Shown::Completed, Shown::Failed]);
    let ids: Vec<&str> = turns[0].items.iter().map(|item| item.id()).collect();
    assert_eq!(ids, ["one", "a", "b", "more", "r.turn-1.1", "m.turn-1.1"]);
    let statuses: Vec<WorkStatus> = turns[0]
        .items
        .iter()
        .filter_map(|item| match &item.item {
            Item::CommandExecution { status, .. } => Some(*status),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [WorkStatus::Failed, WorkStatus::Declined]);
    let error = turns[1].error.as_ref().unwrap();
    assert_eq!(error.codex_error_info, Some(json!({"responseTooManyFailedAttempts": {"httpStatusCode": 429}})));
    assert_eq!((turns[0].started_at, turns[0].completed_at, turns[0].duration_ms), (Some(3), Some(18), Some(15_000)));
}

/// A client that subscribes at any point receives from there on exactly what a client receives that was there from the beginning.
#[test]
fn beginning_anywhere_is_like_having_been_there() {
    let script = script();
    for cut in 1..script.len() {
        let mut state = Thread::begin(&script[0]).unwrap();
        let mut whole = Projector::new(id(), defaults());
        whole.entry(&script[0]);
        for entry in &script[1..cut] {
            state.apply(entry).unwrap();
            whole.entry(entry);
        }
        let (since, waiting) = Projector::needs(&state);
        let needed = |entry: &&Entry| since.is_some_and(|since| entry.ordinal >= since) || waiting.contains(&entry.ordinal);
        let recent: Vec<Entry> = script[..cut].iter().filter(needed).cloned().collect();
        let mut late = Projector::at(&state, &recent, defaults());
        let status = if state.turn.is_some() { ThreadStatus::Active { active_flags: vec![] } } else { ThreadStatus::Idle };
        whole.knows_status(status.clone());
        late.knows_status(status);
        assert_eq!(late.open_questions(), whole.open_questions(), "cut at {cut}");
        for entry in &script[cut..] {
            assert_eq!(late.entry(entry), whole.entry(entry), "entry {} after a cut at {cut}", entry.ordinal);
        }
    }
}

#[test]
fn what_is_said_on_the_way_is_told_once_and_not_after_the_fact() {
    let script = script();
    let mut projector = Projector::new(id(), defaults());
    script[..15].iter().for_each(|entry| drop(projector.entry(entry)));
    let progress = |step: u32, progress: ModelProgress| ThreadEvent::Progress { turn: "turn-1".into(), step, progress };
    let delta = |text: &str| ModelProgress::TextDelta { item_id: "m".into(), delta: text.into() };
    let begun = ModelProgress::ItemStarted { item: json!({"type": "message", "id": "m", "role": "assistant", "content": []}) };
    let told = |projector: &mut Projector, event: &ThreadEvent| projector.event(event).iter().map(words).collect::<Vec<_>>();
    assert_eq!(told(&mut projector, &progress(1, begun)), ["started m.turn-1.1"]);
    assert_eq!(told(&mut projector, &progress(1, delta("do"))), ["item/agentMessage/delta"]);
    script[15..17].iter().for_each(|entry| drop(projector.entry(entry)));
    assert!(projector.event(&progress(1, delta("ne"))).is_empty(), "the answer is known already");
    // A client that subscribes in the middle of an answer is told that it began.
    let mut late = Projector::new(id(), defaults());
    script[..15].iter().for_each(|entry| drop(late.entry(entry)));
    assert_eq!(told(&mut late, &progress(1, delta("ne"))), ["started m.turn-1.1", "item/agentMessage/delta"]);
    // What an attempt told that failed is void, and the next one begins anew.
    let failed = ModelProgress::Retrying { attempt: 1, of: 2, reason: "cut".into() };
    assert_eq!(told(&mut late, &progress(1, failed)), ["error"]);
    assert_eq!(told(&mut late, &progress(1, delta("done"))), ["started m.turn-1.1", "item/agentMessage/delta"]);
}

#[test]
fn output_is_text_however_it_is_cut() {
    let script = script();
    let mut projector = Projector::new(id(), defaults());
    script[..7].iter().for_each(|entry| drop(projector.entry(entry)));
    let text = "aß€😀z".as_bytes();
    let mut heard = String::new();
    for byte in text.iter().chain(b"\xff!") {
        for told in projector.event(&ThreadEvent::Output { call: "a".into(), bytes: Bytes::copy_from_slice(&[*byte]) }) {
            let ClientMessage::Notice(Notice::CommandOutputDelta(delta)) = told else { panic!("{told:?}") };
            assert!(!delta.delta.is_empty());
            heard.push_str(&delta.delta);
        }
    }
    assert_eq!(heard, "aß€😀z\u{fffd}!");
    assert!(projector.event(&ThreadEvent::Output { call: "unknown".into(), bytes: Bytes::from_static(b"x") }).is_empty());
}

#[test]
fn how_a_thread_stands_is_told_when_it_changes() {
    let mut projector = Projector::new(id(), defaults());
    projector.knows_status(ThreadStatus::Idle);
    assert!(projector.event(&ThreadEvent::Status(ThreadActivity::Idle)).is_empty());
    let waits = ThreadActivity::Active { waits_for_approval: true, waits_for_input: false };
    assert_eq!(projector.event(&ThreadEvent::Status(waits.clone())).len(), 1);
    assert!(projector.event(&ThreadEvent::Status(waits)).is_empty());
}

fn ended(turn: &str) -> Fact {
    TurnFinished { turn: Some(turn.into()), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off }.into()
}

/// Whatever is lost, an item stands in its place, and every turn that something is left of is shown.
#[test]
fn what_is_missing_is_shown_where_it_stood() {
    let message = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let mut facts: Vec<Fact> = vec![ThreadCreated::new(id()).into()];
    for turn in ["one", "two", "three"] {
        facts.extend([said(turn, None), TurnStarted::new(turn.into(), vec![turn.into()]).into()]);
        facts.extend(step(turn, 0));
        facts.extend([answered(turn, 0, vec![message(turn)], &[]), ended(turn)]);
    }
    let whole = entries(facts);
    let lost = |from: u64, to: u64| {
        let range = DamagedRange { from, to, what: "altered".into() };
        let note = Entry { ordinal: from, at: from * 1000, fact: DamageNoted::in_place_of(range).into() };
        let mut left: Vec<Entry> = whole.iter().filter(|entry| !(from..=to).contains(&entry.ordinal)).cloned().collect();
        left.insert(from as usize - 1, note);
        let mut turns = Turns::default();
        let mut projector = Projector::new(id(), defaults());
        left.iter().for_each(|entry| turns.take(projector.entry(entry)));
        let shown = |turn: &outpost_wire::app::turn::Turn| {
            let texts: Vec<String> = turn
                .items
                .iter()
                .map(|item| match &item.item {
                    Item::UserMessage { .. } => "user".to_owned(),
                    Item::AgentMessage { damage: Some(damage), .. } => format!("{}-{}", damage.from, damage.to),
                    Item::AgentMessage { text, .. } => text.clone(),
                    other => format!("{other:?}"),
                })
                .collect();
            format!("{}:{:?}:{}", turn.id, turn.status, texts.join(","))
        };
        turns.into_turns().iter().map(shown).collect::<Vec<_>>().join(" ")
    };
    // Entries 2 to 7 are the first turn, 8 to 13 the second, 14 to 19 the third.
    let (one, three) = ("one:Completed:user,one", "three:Completed:user,three");
    assert_eq!(lost(12, 12), format!("{one} two:Completed:user,12-12 {three}"), "an answer");
    assert_eq!(lost(13, 13), format!("{one} two:Interrupted:user,two,13-13 {three}"), "an end");
    assert_eq!(lost(9, 9), format!("{one} missing_9:Failed:user,9-9 two:Completed:two {three}"), "a beginning");
    assert_eq!(lost(8, 13), format!("{one} missing_8:Failed:8-13 {three}"), "a turn");
    assert_eq!(lost(12, 15), format!("{one} two:Interrupted:user,12-15 three:Completed:three"), "an end and a beginning");
}
