//! Stores to test and facts to put into them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_store::{
    CommitConfig, Durability, LINE_LIMIT, Lease, LocalConfig, LocalStore, MemoryStore, Need, PostgresConfig, PostgresStore, Redactor, Store,
};
use outpost_thread::{
    Entry, Fact, InputOrigin, InputReceived, ModelAnswered, ModelAsked, Ordinal, Raw, StepCaptured, ThreadCreated, ThreadId, TokenTotals,
    TurnFinished, TurnId, TurnStarted, TurnStatus,
};
use serde_json::json;
use uuid::Uuid;

/// A store and, if it has one, its home.
pub(crate) struct Place {
    pub store: Store,
    pub home: Option<tempfile::TempDir>,
}

struct Stars;

impl Redactor for Stars {
    fn redact(&self, text: &str) -> Option<String> {
        text.contains("s3cr\\et").then(|| text.replace("s3cr\\et", "***"))
    }
}

/// A home, as a program with this name would open it.
pub(crate) fn config(home: &Path, instance: &str) -> LocalConfig {
    LocalConfig {
        home: home.to_owned(),
        instance: instance.to_owned(),
        host: "here".into(),
        clock: Arc::new(|| 1_763_247_600_000),
        durability: Durability::Effect,
        commit: CommitConfig::default(),
        lease_ms: 30_000,
        redactor: Some(Arc::new(Stars)),
    }
}

pub(crate) fn local(home: &Path, instance: &str) -> Store {
    Store::Local(LocalStore::open(config(home, instance)).unwrap())
}

/// A database, as a program with this name would open it.
pub(crate) async fn postgres(url: &str, instance: &str) -> Store {
    let config = PostgresConfig { redactor: Some(Arc::new(Stars)), ..PostgresConfig::new(url, instance, "here") };
    Store::Postgres(PostgresStore::open(config).await.unwrap())
}

impl Place {
    pub(crate) fn local() -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { store: local(home.path(), "one"), home: Some(home) }
    }

    pub(crate) async fn postgres() -> Self {
        let database = outpost_testkit::postgres::Database::create();
        Self { store: postgres(database.url(), "one").await, home: None }
    }

    pub(crate) fn memory() -> Self {
        Self { store: Store::Memory(MemoryStore::new(Arc::new(|| 0), Some(Arc::new(Stars)))), home: None }
    }

    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        match &self.store {
            Store::Local(store) => store.journals().unwrap().into_iter().map(|(_, path)| path).collect(),
            Store::Memory(_) | Store::Postgres(_) => Vec::new(),
        }
    }

    pub(crate) fn assert_no_journals(&self) {
        assert_eq!(self.journals(), [] as [PathBuf; 0]);
    }

    pub(crate) fn assert_lines_are_short(&self) {
        for journal in self.journals() {
            let bytes = std::fs::read(journal).unwrap();
            assert!(bytes.split(|byte| *byte == b'\n').all(|line| line.len() < LINE_LIMIT));
        }
    }
}

/// A thread id that tells a day, like those that are made.
pub(crate) fn id(number: u64) -> ThreadId {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&1_763_247_600_000_u64.to_be_bytes()[2..]);
    bytes[6] = 0x70;
    bytes[8] = 0x80;
    bytes[8..].copy_from_slice(&(number | 1 << 63).to_be_bytes());
    ThreadId::new(Uuid::from_bytes(bytes))
}

pub(crate) fn created(thread: u64) -> Fact {
    ThreadCreated::new(id(thread)).into()
}

pub(crate) fn input(text: &str, turn: Option<&str>) -> Fact {
    InputReceived {
        input: text.chars().take(20).collect::<String>().into(),
        turn: turn.map(TurnId::from),
        origin: InputOrigin::User,
        client_key: None,
        by: None,
        content: vec![Raw::from(json!({"type": "text", "text": text}))],
        items: Vec::new(),
    }
    .into()
}

/// A turn in which the model answers at once: six entries.
pub(crate) fn plain_turn(number: u64) -> Vec<Fact> {
    let turn = TurnId(format!("turn-{number}"));
    let text = format!("message {number}");
    vec![
        input(&text, None),
        TurnStarted::new(turn.clone(), vec![text.chars().take(20).collect::<String>().into()]).into(),
        StepCaptured { turn: turn.clone(), step: 0, environments: Vec::new(), items: Vec::new(), detail: None }.into(),
        ModelAsked { turn: turn.clone(), step: 0, model: Some("scripted".into()), provider: None }.into(),
        ModelAnswered {
            turn: turn.clone(),
            step: 0,
            items: vec![Raw::from(
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": format!("answer {number}")}]}),
            )],
            calls: Vec::new(),
            complete: true,
            goes_on: false,
            usage: Some(TokenTotals { input: 10, output: 5, total: 15, ..TokenTotals::default() }),
            response: None,
        }
        .into(),
        TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: outpost_thread::Marker::Off }
            .into(),
    ]
}

pub(crate) fn entries(first: Ordinal, facts: Vec<Fact>) -> Vec<Entry> {
    facts.into_iter().zip(first..).map(|(fact, ordinal)| Entry { ordinal, at: 1_763_247_600_000 + ordinal, fact }).collect()
}

/// A thread with a first message, and what was written of it.
pub(crate) async fn start(store: &Store, thread: u64) -> (Lease, Vec<Entry>) {
    let lease = store.create(id(thread)).await.unwrap();
    let mut written = entries(1, vec![created(thread)]);
    written.extend(entries(2, plain_turn(100)));
    store.append(&lease, written.clone(), Need::BeforeCompleted).await.unwrap();
    (lease, written)
}
