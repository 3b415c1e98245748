//! Where forks are cut: every row of the tables, one test each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use outpost_thread::{
    Context, Cut, Entry, Fact, ForkError, ForkPoint, InputOrigin, InputReceived, Marker, MetadataChanged, ModelAnswered, Outline, Raw,
    Settings, StepCaptured, Thread, ThreadCreated, ThreadForked, ThreadId, TurnId, TurnStatus, closing,
};
use script::{Run, Script, ScriptedCall, ScriptedTurn, id, input, message, turn_finished, turn_started};
use uuid::Uuid;

fn journal(facts: Vec<Fact>) -> Vec<Entry> {
    let created = ThreadCreated { thread_source: Some("user".into()), ..ThreadCreated::new(id()) };
    std::iter::once(created.into()).chain(facts).zip(1..).map(|(fact, ordinal)| Entry { ordinal, at: ordinal, fact }).collect()
}

fn outline(journal: &[Entry]) -> Outline {
    let mut outline = Outline::default();
    journal.iter().for_each(|entry| outline.apply(entry));
    outline
}

fn cut(journal: &[Entry], point: impl Into<ForkPoint>) -> Cut {
    outline(journal).cut(&point.into()).unwrap()
}

fn answered(turn: &str) -> Vec<Fact> {
    let step = StepCaptured { turn: turn.into(), step: 0, environments: Vec::new(), items: Vec::new(), detail: None };
    let answer = ModelAnswered {
        turn: turn.into(),
        step: 0,
        items: vec![message("assistant", &format!("answer of {turn}"))],
        calls: Vec::new(),
        complete: true,
        goes_on: false,
        usage: None,
        response: None,
    };
    vec![step.into(), answer.into()]
}

/// Entries 2 to 6 are the first turn, 7 to 11 the second, and so on.
fn turns(count: usize) -> Vec<Fact> {
    (0..count)
        .flat_map(|number| {
            let (input_id, turn) = (format!("input-{number}"), format!("turn-{number}"));
            let mut facts = vec![input(&input_id, None), turn_started(&turn, &[&input_id])];
            facts.extend(answered(&turn));
            facts.push(turn_finished(Some(&turn), TurnStatus::Completed));
            facts
        })
        .collect()
}

/// An item of a history that was given without turns.
fn given(role: &str, text: &str) -> Fact {
    InputReceived {
        input: text.into(),
        turn: None,
        origin: InputOrigin::History,
        client_key: None,
        by: None,
        content: Vec::new(),
        items: vec![message(role, text)],
    }
    .into()
}

fn child() -> ThreadId {
    ThreadId::new(Uuid::from_u128(2))
}

/// The fork as it would be read.
fn forked(journal: &[Entry], cut: &Cut, forked: ThreadForked) -> (Thread, Context) {
    let own = std::iter::once(Fact::from(forked)).chain(cut.close.clone().map(Fact::from));
    let own = own.zip(cut.ordinal + 1..).map(|(fact, ordinal)| Entry { ordinal, at: 1000 + ordinal, fact });
    let entries: Vec<Entry> = journal[..cut.ordinal as usize].iter().cloned().chain(own).collect();
    let mut thread = Thread::begin(&entries[0]).unwrap();
    let mut context = Context::new();
    for entry in &entries[1..] {
        thread.apply(entry).unwrap();
        context.apply(entry);
    }
    (thread, context)
}

fn plain(journal: &[Entry], cut: &Cut) -> (Thread, Context) {
    forked(journal, cut, ThreadForked::new(child(), id()))
}

fn at(ordinal: u64) -> Cut {
    Cut { ordinal, close: None }
}

#[test]
fn a_cut_lies_strictly_before_the_message() {
    let journal = journal(turns(3));
    assert_eq!(cut(&journal, 0_u64), at(1), "n = 0 removes everything from the first message on");
    assert_eq!(cut(&journal, 1_u64), at(6));
    assert_eq!(cut(&journal, 2_u64), at(11));
    let (thread, context) = plain(&journal, &at(1));
    assert_eq!((thread.turns, thread.user_messages, context.items().len()), (0, 0, 0), "an empty history is a new one");
    let (thread, context) = plain(&journal, &at(11));
    assert_eq!((thread.turns, thread.user_messages, context.items().len()), (2, 2, 4));
    assert_eq!(thread.next(), outpost_thread::NextAction::Idle);
}

#[test]
fn beyond_the_last_message_everything_is_kept_at_a_boundary() {
    let journal = journal(turns(3));
    for n in [3, 17, u64::MAX] {
        assert_eq!(cut(&journal, n), at(16), "{n}");
    }
}

#[test]
fn beyond_the_last_message_an_unfinished_turn_is_dropped() {
    let mut facts = turns(2);
    facts.extend([input("input-2", None), turn_started("turn-2", &["input-2"])]);
    let journal = journal(facts);
    for n in [3, u64::MAX] {
        assert_eq!(cut(&journal, n), at(11), "{n}");
    }
    // A message of that turn still counts.
    assert_eq!(cut(&journal, 2_u64), at(11));
}

#[test]
fn a_turn_that_started_before_its_message_is_dropped_with_it() {
    let mut facts = turns(1);
    facts.extend([turn_started("turn-1", &[]), input("late", Some("turn-1"))]);
    let journal = journal(facts);
    assert_eq!(cut(&journal, u64::MAX), at(6));
    // Before the message itself, its turn has begun already: it is closed.
    assert_eq!(cut(&journal, 1_u64), Cut { ordinal: 7, close: Some(closing(Some("turn-1".into()), Marker::Off)) });
}

#[test]
fn a_queued_message_is_cut_where_its_turn_begins() {
    let mut facts = vec![input("one", None), turn_started("turn-0", &["one"]), input("two", None)];
    facts.extend(answered("turn-0"));
    facts.extend([turn_finished(Some("turn-0"), TurnStatus::Completed), turn_started("turn-1", &["two"])]);
    let journal = journal(facts);
    let cut = cut(&journal, 1_u64);
    assert_eq!(cut, at(7), "not in the middle of the first turn");
    let (thread, context) = plain(&journal, &cut);
    assert!(thread.queued.is_empty(), "what waited in the parent waits in the child");
    assert_eq!((thread.turns, context.items().len()), (1, 2));
}

#[test]
fn injected_messages_are_not_counted() {
    let journal = journal(vec![
        given("user", "<environment_context>…</environment_context>"),
        given("user", "first"),
        given("assistant", "answer"),
        given("user", "<turn_aborted>"),
        given("user", "second"),
    ]);
    assert_eq!(outline(&journal).user_messages(), 2);
    assert_eq!(cut(&journal, 0_u64), at(2));
    assert_eq!(cut(&journal, 1_u64), at(5));
}

#[test]
fn a_given_history_without_an_end_is_mid_turn() {
    let journal = journal(vec![given("user", "first"), given("assistant", "answer"), given("user", "second")]);
    assert_eq!(cut(&journal, u64::MAX), at(3), "cut before the last message");
    // No turn id is invented for it.
    let interrupted = cut(&journal, ForkPoint::Interrupted(Marker::User));
    assert_eq!(interrupted, Cut { ordinal: 4, close: Some(closing(None, Marker::User)) });
    let (thread, context) = plain(&journal, &interrupted);
    assert!(!thread.history_is_open);
    assert!(context.items().last().unwrap().get().contains("<turn_aborted>"));
}

#[test]
fn a_given_history_with_an_end_is_not() {
    let journal = journal(vec![given("user", "first"), turn_finished(None, TurnStatus::Completed)]);
    assert_eq!(cut(&journal, u64::MAX), at(3));
    assert_eq!(cut(&journal, ForkPoint::Interrupted(Marker::User)), at(3));
}

#[test]
fn a_history_without_messages_is_kept_whole() {
    let journal = journal(vec![given("assistant", "only this"), given("user", "<environment_context>")]);
    assert_eq!(cut(&journal, 0_u64), at(3));
    assert_eq!(cut(&journal, ForkPoint::Interrupted(Marker::User)), at(3));
}

#[test]
fn at_a_boundary_nothing_is_interrupted() {
    for status in [TurnStatus::Completed, TurnStatus::Failed, TurnStatus::Interrupted] {
        let mut facts = turns(1);
        facts.extend([input("x", None), turn_started("turn-1", &["x"]), turn_finished(Some("turn-1"), status)]);
        let journal = journal(facts);
        assert_eq!(cut(&journal, ForkPoint::Interrupted(Marker::User)), at(9), "{status:?}");
        assert_eq!(cut(&journal, u64::MAX), at(9), "{status:?}");
    }
    assert_eq!(cut(&journal(Vec::new()), ForkPoint::Interrupted(Marker::User)), at(1), "a new thread stays as it is");
    assert_eq!(Outline::default().cut(&ForkPoint::from(0)), Err(ForkError::Empty));
}

#[test]
fn mid_turn_the_turn_is_closed_with_its_own_id() {
    let mut facts = turns(1);
    facts.extend([input("x", None), turn_started("turn-1", &["x"])]);
    facts.extend(answered("turn-1"));
    let journal = journal(facts);
    for (marker, role) in [(Marker::Off, None), (Marker::User, Some("user")), (Marker::Developer, Some("developer"))] {
        let found = cut(&journal, ForkPoint::Interrupted(marker));
        assert_eq!(found, Cut { ordinal: 10, close: Some(closing(Some("turn-1".into()), marker)) });
        let (thread, context) = plain(&journal, &found);
        assert_eq!((thread.turn.as_ref(), thread.turns), (None, 2));
        let last = context.items().last().unwrap().get().to_owned();
        match role {
            None => assert!(last.contains("answer of turn-1"), "{last}"),
            Some(role) => {
                assert!(last.contains("\"<turn_aborted>"), "{last}");
                assert!(last.contains(&format!("\"role\":\"{role}\"")), "{last}");
            }
        }
        // The state alone knows the same.
        let mut source = Thread::begin(&journal[0]).unwrap();
        journal[1..].iter().for_each(|entry| source.apply(entry).unwrap());
        assert_eq!(source.cut_here(marker), found);
    }
}

#[test]
fn after_a_turn() {
    let mut facts = turns(2);
    facts.insert(5, MetadataChanged { name: Some(Some("between".into())), ..MetadataChanged::default() }.into());
    facts.extend([input("x", None), turn_started("turn-2", &["x"])]);
    let journal = journal(facts);
    let after = |turn: &str| outline(&journal).cut(&ForkPoint::AfterTurn(turn.into()));
    assert_eq!(after("turn-0"), Ok(at(7)), "what came between belongs to it");
    assert_eq!(after("turn-1"), Ok(at(12)));
    assert_eq!(after("turn-2"), Err(ForkError::Running("turn-2".into())));
    assert_eq!(after("rollout-3"), Err(ForkError::UnknownTurn(TurnId::from("rollout-3"))));
}

#[test]
fn before_a_turn() {
    let mut facts = turns(2);
    facts.extend([input("x", None), turn_started("turn-2", &["x"])]);
    let journal = journal(facts);
    let before = |turn: &str| outline(&journal).cut(&ForkPoint::BeforeTurn(turn.into()));
    assert_eq!(before("turn-0"), Ok(at(1)));
    assert_eq!(before("turn-1"), Ok(at(6)));
    assert_eq!(before("turn-2"), Ok(at(11)), "a running one is allowed");
    assert!(before("nothing").is_err());
}

#[test]
fn at_the_last_step_boundary() {
    let script = Script {
        turns: vec![ScriptedTurn { steps: vec![vec![ScriptedCall::Runs, ScriptedCall::Runs]], steered_at: None }],
        compact_at: None,
    };
    let mut run = Run::new(script);
    run.finish();
    let mut boundaries = Vec::new();
    for length in 1..=run.journal.len() {
        let found = cut(&run.journal[..length], ForkPoint::LastStep(Marker::User));
        let (thread, context) = plain(&run.journal[..length], &found);
        assert_eq!(thread.next(), outpost_thread::NextAction::Idle, "at {length}");
        let calls = context.items().iter().filter(|item| item.get().contains("\"function_call\"")).count();
        let results = context.items().iter().filter(|item| item.get().contains("\"function_call_output\"")).count();
        assert_eq!(calls, results, "at {length}");
        assert!(
            !context.items().iter().any(|item| item.get().contains("was stopped before it ended")),
            "at {length}: in the middle of a step"
        );
        boundaries.push(found.ordinal);
    }
    assert!(boundaries.is_sorted() && boundaries.last() == Some(&(run.journal.len() as u64)), "{boundaries:?}");
}

#[test]
fn a_fork_at_any_place_is_idle_and_whole() {
    let call = ScriptedCall::IsAsked(outpost_thread::Decision::Approved);
    let turn = ScriptedTurn { steps: vec![vec![ScriptedCall::Runs, call]], steered_at: Some(0) };
    let mut run = Run::new(Script { turns: vec![turn.clone(), turn], compact_at: Some(30) });
    run.finish();
    for length in 1..=run.journal.len() {
        let found = cut(&run.journal[..length], ForkPoint::Interrupted(Marker::User));
        let (thread, context) = plain(&run.journal[..length], &found);
        assert_eq!(thread.next(), outpost_thread::NextAction::Idle, "at {length}");
        for item in context.items() {
            let item: serde_json::Value = item.read().unwrap();
            if item["type"] == "function_call" {
                let results = context.items().iter().filter(|other| {
                    let other: serde_json::Value = other.read().unwrap();
                    other["type"] == "function_call_output" && other["call_id"] == item["call_id"]
                });
                assert_eq!(results.count(), 1, "at {length}: {item}");
            }
        }
    }
}

#[test]
fn a_fork_inherits_what_was_set_and_takes_what_it_is_given() {
    let mut facts = turns(2);
    let settings = Settings { model: Some("first".into()), cwd: Some("/work".into()), ..Settings::default() };
    facts.insert(0, outpost_thread::SettingsChanged { settings }.into());
    facts.insert(1, MetadataChanged { name: Some(Some("name".into())), ..MetadataChanged::default() }.into());
    let journal = journal(facts);
    let settings = Settings { model: Some("second".into()), ..Settings::default() };
    let given = ThreadForked { settings, thread_source: Some("feature".into()), ..ThreadForked::new(child(), id()) };
    // A truncated one, too.
    for point in [ForkPoint::from(0), ForkPoint::Interrupted(Marker::Off)] {
        let cut = cut(&journal, point);
        let (thread, _) = forked(&journal, &cut, given.clone());
        assert_eq!(thread.settings.model.as_deref(), Some("second"));
        assert_eq!(thread.settings.cwd.as_deref(), Some("/work"));
        assert_eq!((thread.id, thread.metadata.forked_from), (child(), Some(id())));
        assert_eq!(thread.metadata.thread_source.as_deref(), Some("feature"), "only the caller's value counts");
        let (thread, _) = plain(&journal, &cut);
        assert_eq!((thread.settings.model.as_deref(), thread.metadata.thread_source), (Some("first"), None));
    }
    let raw = Raw::of(&given).unwrap();
    assert_eq!(raw.read::<ThreadForked>().unwrap(), given);
}
