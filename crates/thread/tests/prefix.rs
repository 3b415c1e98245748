//! The property on which everything stands: a thread may be cut after any entry, and folding what is left and going on ends
//! as if nothing had happened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod script;

use outpost_thread::{Checkpoint, Context, Decision, Fact, Thread};
use proptest::prelude::*;
use script::{Run, Script, ScriptedCall, ScriptedTurn};

fn call() -> impl Strategy<Value = ScriptedCall> {
    prop_oneof![
        3 => Just(ScriptedCall::Runs),
        1 => Just(ScriptedCall::IsAsked(Decision::Approved)),
        1 => Just(ScriptedCall::IsAsked(Decision::Denied)),
        1 => Just(ScriptedCall::IsAsked(Decision::Aborted)),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let turn = (proptest::collection::vec(proptest::collection::vec(call(), 1..4), 0..3), proptest::option::of(0..3_usize)).prop_map(
        |(mut steps, steered_at)| {
            // A user who stops the turn has nothing else to answer: what else is open then depends on the moment.
            let stop = ScriptedCall::IsAsked(Decision::Aborted);
            steps.iter_mut().filter(|step| step.contains(&stop)).for_each(|step| *step = vec![stop]);
            ScriptedTurn { steps, steered_at }
        },
    );
    (proptest::collection::vec(turn, 1..4), proptest::option::of(15..60_u64)).prop_map(|(turns, compact_at)| Script { turns, compact_at })
}

/// What must be the same however often the program was killed.
#[derive(Debug, PartialEq)]
struct Outcome {
    turns: u64,
    messages: u64,
    ends: Vec<(String, String)>,
    calls: Vec<(String, String)>,
    effects: std::collections::BTreeMap<String, u32>,
    texts: Vec<String>,
}

fn outcome(run: &Run) -> Outcome {
    let facts = || run.journal.iter().map(|entry| &entry.fact);
    let mut texts: Vec<String> = run.context.items().iter().map(|item| item.get().to_owned()).collect();
    // Asking again tells the model about its environments again.
    texts.retain(|text| !text.contains("<environment_context>"));
    // An answer that was cut off goes on after the results of its calls, which is another order of the same things.
    texts.sort();
    Outcome {
        turns: run.thread.turns,
        messages: run.thread.user_messages,
        ends: facts()
            .filter_map(|fact| {
                if let Fact::TurnFinished(end) = fact { Some((format!("{:?}", end.turn), format!("{:?}", end.status))) } else { None }
            })
            .collect(),
        calls: {
            let mut calls: Vec<_> = facts()
                .filter_map(|fact| {
                    if let Fact::CallFinished(end) = fact { Some((end.call.to_string(), format!("{:?}", end.outcome))) } else { None }
                })
                .collect();
            calls.sort();
            calls
        },
        effects: run.world.effects.clone(),
        texts,
    }
}

fn stops(script: &Script) -> bool {
    script.turns.iter().flat_map(|turn| turn.steps.iter().flatten()).any(|call| *call == ScriptedCall::IsAsked(Decision::Aborted))
}

/// What the world knows at the moment of a cut: effects come after `callStarted`, words after they were received.
fn world_at(run: &Run, cut: usize) -> script::World {
    let mut world = script::World::default();
    for entry in &run.journal[..cut] {
        match &entry.fact {
            Fact::CallStarted(start) => drop(world.effects.insert(start.call.to_string(), 1)),
            Fact::InputReceived(input) => drop(world.said.insert(input.input.to_string())),
            _ => {}
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_thread_ends_like_an_uncut_one(script in script()) {
        let mut whole = Run::new(script.clone());
        whole.finish();
        let expected = outcome(&whole);
        prop_assert!(expected.effects.values().all(|count| *count == 1), "{expected:?}");
        for cut in 1..=whole.journal.len() {
            let mut again = Run::from_journal(script.clone(), world_at(&whole, cut), whole.journal[..cut].to_vec());
            let is_mid_answer = again.thread.turn.as_ref().is_some_and(|turn| !turn.answered && !turn.calls.is_empty());
            if is_mid_answer && stops(&script) {
                // The user may now stop the turn before the model has said the rest.
                continue;
            }
            // Asking again takes up what was said meanwhile, so that one answer less may be needed.
            let is_asked_again = again.thread.turn.as_ref().is_some_and(|turn| !turn.answered) && !again.thread.steering.is_empty();
            again.finish();
            let (mut found, mut expected) = (outcome(&again), outcome(&whole));
            if is_asked_again || is_mid_answer && script.compact_at.is_some() {
                // Results that came before the rest of the answer are counted by the model and not estimated, so that the
                // context may be made smaller at another step.
                (found.texts, expected.texts) = (Vec::new(), Vec::new());
            }
            prop_assert_eq!(&found, &expected, "cut after entry {}: {:?}", cut, whole.journal[cut - 1].fact.kind());
        }
    }

    #[test]
    fn a_checkpoint_is_as_good_as_the_whole_journal(script in script()) {
        let mut whole = Run::new(script);
        whole.finish();
        let mut thread = Thread::begin(&whole.journal[0]).unwrap();
        for entry in &whole.journal[1..] {
            thread.apply(entry).unwrap();
            if let Ok(checkpoint) = Checkpoint::of(&thread, "sum".into()) {
                let back = Checkpoint::decode(&checkpoint.encode().unwrap()).unwrap();
                prop_assert_eq!(&back.thread, &thread);
                thread = back.thread;
            }
        }
        prop_assert_eq!(&thread, &whole.thread);
    }

    #[test]
    fn the_context_can_be_made_from_the_last_compaction(script in script()) {
        let mut whole = Run::new(script);
        whole.finish();
        let start = whole.thread.context_start();
        let first = &whole.journal[start as usize - 1];
        let mut context = match &first.fact {
            Fact::ContextCompacted(compaction) => {
                let needed = Context::needs(compaction).into_iter().chain(whole.thread.waited_then.iter().copied());
                let older: Vec<_> = needed.map(|ordinal| whole.journal[ordinal as usize - 1].clone()).collect();
                Context::begin(compaction, first.ordinal, &older)
            }
            _ => Context::new(),
        };
        for entry in &whole.journal[start as usize..] {
            context.apply(entry);
        }
        prop_assert_eq!(context.items(), whole.context.items());
    }
}
