//! Threads to measure: plain turns, as a short conversation has them, and turns with large outputs.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use outpost_store::{CommitConfig, Durability, Lease, LocalConfig, LocalStore, Need, Store};
use outpost_thread::{
    CallFinished, CallOutcome, CallRequest, CallStarted, Checkpoint, Entry, Fact, InputOrigin, InputReceived, Marker, ModelAnswered,
    ModelAsked, Ordinal, Raw, Settings, StepCaptured, ThreadCreated, ThreadId, TokenTotals, TurnFinished, TurnId, TurnStarted, TurnStatus,
};
use serde_json::{Value, json};
use uuid::Uuid;

pub(super) fn open(home: &Path) -> anyhow::Result<Store> {
    open_with(home, Durability::Effect)
}

pub(crate) fn open_with(home: &Path, durability: Durability) -> anyhow::Result<Store> {
    let config = LocalConfig {
        home: home.to_owned(),
        instance: Uuid::new_v4().to_string(),
        host: "bench".into(),
        clock: Arc::new(now),
        durability,
        commit: CommitConfig::default(),
        lease_ms: 30_000,
        redactor: None,
    };
    Ok(Store::Local(LocalStore::open(config)?))
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0))
}

/// A thread that is being written.
pub(crate) struct Made {
    pub lease: Lease,
    pub last: Ordinal,
    turns: u64,
}

impl Made {
    pub(crate) async fn new(store: &Store) -> anyhow::Result<Self> {
        let thread = ThreadId::new(Uuid::now_v7());
        let lease = store.create(thread).await?;
        let settings = Settings { cwd: Some("/home/user/project".into()), model: Some("model".into()), ..Settings::default() };
        let created = ThreadCreated { source: Some(Raw::from(json!("cli"))), settings, ..ThreadCreated::new(thread) };
        let mut made = Self { lease, last: 0, turns: 0 };
        made.append(store, vec![created.into()], Need::Stored).await?;
        Ok(made)
    }

    pub(crate) async fn append(&mut self, store: &Store, facts: Vec<Fact>, need: Need) -> anyhow::Result<()> {
        let at = now();
        let entries: Vec<Entry> = facts.into_iter().zip(self.last + 1..).map(|(fact, ordinal)| Entry { ordinal, at, fact }).collect();
        self.last += entries.len() as Ordinal;
        store.append(&self.lease, entries, need).await?;
        Ok(())
    }

    /// As a loop writes it: the input, the step, the answer, the end.
    pub(crate) async fn plain_turn(&mut self, store: &Store) -> anyhow::Result<()> {
        let mut facts = self.plain_facts();
        let end = facts.split_off(facts.len() - 2);
        let answer = facts.split_off(2);
        self.append(store, facts, Need::Stored).await?;
        self.append(store, answer, Need::Stored).await?;
        self.append(store, end, Need::BeforeCompleted).await
    }

    /// Many turns at once.
    pub(crate) async fn plain_turns(&mut self, store: &Store, count: u64) -> anyhow::Result<()> {
        let mut facts = Vec::new();
        for _ in 0..count {
            facts.extend(self.plain_facts());
            if facts.len() > 3000 {
                self.append(store, std::mem::take(&mut facts), Need::Stored).await?;
            }
        }
        self.append(store, facts, Need::Stored).await
    }

    fn plain_facts(&mut self) -> Vec<Fact> {
        self.turns += 1;
        let turn = TurnId::from(Uuid::now_v7().to_string());
        let text = format!("question {} about the parser and why the test of line {} fails", self.turns, self.turns * 7);
        let answer = format!(
            "The test fails because the parser of step {} reads one token too many; the fix is in the loop that skips blanks.",
            self.turns
        );
        let usage = TokenTotals { input: 1200, output: 64, total: 1264, ..TokenTotals::default() };
        let mut facts = begin(&turn, &text);
        facts.push(answered(&turn, vec![message(&answer)], Vec::new(), usage));
        facts.push(finished(turn));
        facts
    }

    /// A turn with a call that puts out so many bytes.
    pub(crate) async fn large_turn(&mut self, store: &Store, output: &str) -> anyhow::Result<()> {
        self.turns += 1;
        let turn = TurnId::from(Uuid::now_v7().to_string());
        let call = outpost_thread::CallId::from(format!("call-{}", self.turns));
        let item = json!({"type": "function_call", "call_id": call, "name": "shell", "arguments": "{\"cmd\":\"make\"}"});
        let result = json!({"type": "function_call_output", "call_id": call, "output": output});
        let mut facts = begin(&turn, "build it");
        let request = CallRequest { call: call.clone(), tool: "shell".into(), item: 0 };
        facts.push(answered(&turn, vec![Raw::from(item)], vec![request], TokenTotals::default()));
        let started = CallStarted {
            turn: turn.clone(),
            call: call.clone(),
            tool: "shell".into(),
            environment: None,
            process: None,
            repeatable: false,
            adoption_key: None,
            executor: None,
            detail: None,
        };
        facts.push(started.into());
        facts.push(
            CallFinished { turn: turn.clone(), call, outcome: CallOutcome::Completed, items: vec![Raw::from(result)], detail: None }.into(),
        );
        facts.push(finished(turn));
        self.append(store, facts, Need::Stored).await
    }

    /// What a loop leaves at the end of a turn, so that the thread opens without being read.
    pub(crate) async fn checkpoint(&self, store: &Store) -> anyhow::Result<()> {
        let opened = outpost_store::open(store, self.lease.thread).await?;
        let head = store.head(self.lease.thread).await?;
        store.put_checkpoint(&Checkpoint::of(&opened.thread, head.sum)?).await?;
        Ok(())
    }
}

fn begin(turn: &TurnId, text: &str) -> Vec<Fact> {
    let input = outpost_thread::InputId::from(Uuid::now_v7().to_string());
    vec![
        InputReceived {
            input: input.clone(),
            turn: None,
            origin: InputOrigin::User,
            client_key: None,
            by: None,
            content: vec![Raw::from(json!({"type": "text", "text": text}))],
            items: Vec::new(),
        }
        .into(),
        TurnStarted::new(turn.clone(), vec![input]).into(),
        StepCaptured { turn: turn.clone(), step: 0, environments: Vec::new(), items: Vec::new(), detail: None }.into(),
        ModelAsked { turn: turn.clone(), step: 0, model: Some("model".into()), provider: None }.into(),
    ]
}

fn answered(turn: &TurnId, items: Vec<Raw>, calls: Vec<CallRequest>, usage: TokenTotals) -> Fact {
    ModelAnswered { turn: turn.clone(), step: 0, items, calls, complete: true, goes_on: false, usage: Some(usage), response: None }.into()
}

fn message(text: &str) -> Raw {
    let value: Value = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    Raw::from(value)
}

fn finished(turn: TurnId) -> Fact {
    TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off }.into()
}
