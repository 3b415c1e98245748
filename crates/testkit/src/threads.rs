//! Threads of any size, made quickly: for tests and figures that need ten thousand turns or a gigabyte.

use std::path::Path;
use std::sync::Arc;

use outpost_store::{CommitConfig, Durability, Lease, LocalConfig, LocalStore, Need, Store};
use outpost_thread::{
    Entry, Fact, InputOrigin, InputReceived, Marker, ModelAnswered, ModelAsked, Raw, StepCaptured, ThreadCreated, ThreadId, TokenTotals,
    TurnFinished, TurnId, TurnStarted, TurnStatus,
};
use serde_json::json;

/// What to make.
#[derive(Debug, Clone, Copy)]
pub struct BigThread {
    pub thread: ThreadId,
    pub turns: u64,
    /// Bytes of each answer.
    pub text: usize,
    /// Milliseconds since 1970.
    pub at: u64,
}

/// A turn in which the model answers at once, as the loop would write it.
pub fn plain_turn(number: u64, text: &str) -> Vec<Fact> {
    let turn = TurnId(format!("turn-{number}"));
    let input = format!("input-{number}");
    let message = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    vec![
        InputReceived {
            input: input.as_str().into(),
            turn: None,
            origin: InputOrigin::User,
            client_key: None,
            by: None,
            content: vec![Raw::from(json!({"type": "text", "text": format!("question {number}")}))],
            items: Vec::new(),
        }
        .into(),
        TurnStarted::new(turn.clone(), vec![input.into()]).into(),
        StepCaptured { turn: turn.clone(), step: 0, environments: Vec::new(), items: Vec::new(), detail: None }.into(),
        ModelAsked { turn: turn.clone(), step: 0, model: Some("scripted".into()), provider: Some("testkit".into()) }.into(),
        ModelAnswered {
            turn: turn.clone(),
            step: 0,
            items: vec![Raw::from(message)],
            calls: Vec::new(),
            complete: true,
            goes_on: false,
            usage: Some(TokenTotals { input: 100, output: 20, total: 120, ..TokenTotals::default() }),
            response: None,
        }
        .into(),
        TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off }.into(),
    ]
}

/// Writes it. The lease comes back, so that the test can go on.
pub async fn make(store: &Store, big: BigThread) -> Lease {
    const AT_ONCE: u64 = 256 << 10;
    let text: String = "The quick brown fox jumps over the lazy dog. ".chars().cycle().take(big.text).collect();
    let per_batch = (AT_ONCE / (big.text as u64 + 1024)).max(1);
    let lease = store.create(big.thread).await.unwrap();
    let mut entries = vec![Entry { ordinal: 1, at: big.at, fact: ThreadCreated::new(big.thread).into() }];
    let mut next = 2;
    for turn in 0..big.turns {
        for fact in plain_turn(turn, &text) {
            entries.push(Entry { ordinal: next, at: big.at + next, fact });
            next += 1;
        }
        if turn % per_batch == per_batch - 1 || turn + 1 == big.turns {
            store.append(&lease, std::mem::take(&mut entries), Need::Stored).await.unwrap();
        }
    }
    lease
}

/// Many threads in a home, each with one turn: the first one says `question 0`. Milliseconds since 1970 tell when.
pub async fn make_many(home: &Path, count: u64, at: u64) {
    let config = LocalConfig {
        home: home.to_owned(),
        instance: "maker".into(),
        host: "here".into(),
        clock: Arc::new(move || at),
        durability: Durability::Stored,
        commit: CommitConfig::default(),
        lease_ms: 30_000,
        redactor: None,
    };
    let store = Store::Local(LocalStore::open(config).unwrap());
    // Several at a time: each waits for the disk.
    const AT_ONCE: u64 = 32;
    for first in (0..count).step_by(AT_ONCE as usize) {
        let mut making = tokio::task::JoinSet::new();
        for number in first..count.min(first + AT_ONCE) {
            let store = store.clone();
            making.spawn(async move {
                let thread: ThreadId = format!("01928f2e-4c1d-7a33-9c55-{number:012}").parse().unwrap();
                let facts = std::iter::once(ThreadCreated::new(thread).into()).chain(plain_turn(number, "an answer"));
                let entries = (1..).zip(facts).map(|(ordinal, fact)| Entry { ordinal, at: at + number, fact }).collect();
                let lease = store.create(thread).await.unwrap();
                store.append(&lease, entries, Need::Stored).await.unwrap();
                store.release(lease).await;
            });
        }
        making.join_all().await;
    }
}
