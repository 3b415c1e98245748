//! Journals of every released format open for ever, and today's is written exactly as its fixture says. After a wanted change
//! of an unreleased format, `OUTPOST_WRITE_FIXTURES=1` writes the fixture anew; its diff is the review.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outpost_store::{Need, Store, open};
use outpost_thread::{
    AgentClosed, AgentSpawned, ApprovalAnswered, ApprovalAsked, ApprovalDetail, ApprovalKind, CallDetail, CallFinished, CallOutcome,
    CallReport, CallRequest, CallStarted, CompactReason, ContextCompacted, DamageNoted, DamagedRange, Decision, Entry, Fact, GrantScope,
    InputOrigin, InputReceived, InterruptReason, Kept, Marker, MetadataChanged, ModelAnswered, ModelAsked, NextAction, Parent,
    PermissionsGranted, QueueChanged, Raw, Recorded, SelectionChanged, Settings, SettingsChanged, StepCaptured, StepEnvironment,
    ThreadCreated, ThreadId, TokenTotals, TurnFinished, TurnKind, TurnSettingsChanged, TurnStarted, TurnStatus, TurnsReverted, WakeEnded,
    WakeSet,
};
use serde_json::json;
use support::{entries, id, local};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/journals").join(name)
}

fn raw(value: serde_json::Value) -> Raw {
    Raw::from(value)
}

/// A fact of every kind, with every member.
fn facts() -> Vec<Fact> {
    let selection =
        || serde_json::from_value(json!([{"environmentId": "worker", "cwd": "file:///srv/work", "workspaceRoots": []}])).unwrap();
    let roots = || {
        let root = json!([{"id": "skills", "location": {"type": "environment", "environmentId": "worker", "path": "file:///srv/skills"}}]);
        serde_json::from_value(root).unwrap()
    };
    let tokens = TokenTotals { input: 10, cached_input: 4, cache_write_input: 1, output: 5, reasoning_output: 2, total: 15 };
    vec![
        ThreadCreated {
            thread: id(1),
            session: Some("session".into()),
            source: Some(raw(json!("exec"))),
            thread_source: Some("user".into()),
            originator: Some("fixture".into()),
            program_version: Some("0.1.0".into()),
            by: Some("ada".into()),
            parent: Some(Parent {
                thread: id(7),
                depth: 1,
                path: Some("/root/a".into()),
                nickname: Some("Ada".into()),
                role: Some("worker".into()),
            }),
            instructions: Some(raw(json!({"base": "Be brief."}))),
            dynamic_tools: vec![raw(json!({"type": "function", "name": "lookup"}))],
            settings: Settings {
                model: Some("m".into()),
                model_provider: Some("p".into()),
                reasoning_effort: Some("low".into()),
                approval_policy: Some(raw(json!("on-request"))),
                sandbox: Some(raw(json!({"type": "readOnly"}))),
                cwd: Some("/work".into()),
                compact_at: Some(1000),
                other: BTreeMap::from([("personality".into(), json!("calm"))]),
            },
            selection: Some(selection()),
            capability_roots: roots(),
            git: Some(raw(json!({"branch": "main"}))),
            name: Some("first".into()),
            imported: Some(raw(json!({"from": "rollout"}))),
            forked_from: None,
        }
        .into(),
        MetadataChanged {
            name: Some(Some("second".into())),
            archived: Some(false),
            git: Some(None),
            labels: BTreeMap::from([("colour".into(), json!("red"))]),
        }
        .into(),
        SettingsChanged { settings: Settings { model: Some("n".into()), ..Settings::default() } }.into(),
        SelectionChanged { selection: Some(selection()), capability_roots: Some(roots()) }.into(),
        InputReceived {
            input: "i1".into(),
            turn: None,
            origin: InputOrigin::User,
            client_key: Some("key".into()),
            by: None,
            content: vec![raw(json!({"type": "text", "text": "Grüße"}))],
            items: vec![raw(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Grüße"}]}))],
        }
        .into(),
        TurnStarted {
            turn: "t1".into(),
            inputs: vec!["i1".into()],
            kind: TurnKind::Review,
            selection: Some(selection()),
            output_schema: Some(raw(json!({"type": "object"}))),
            root_turn: Some("t0".into()),
            parent_turn: Some("t0".into()),
        }
        .into(),
        TurnSettingsChanged { turn: "t1".into(), settings: Settings { model: Some("o".into()), ..Settings::default() } }.into(),
        StepCaptured {
            turn: "t1".into(),
            step: 0,
            environments: vec![StepEnvironment {
                id: serde_json::from_value(json!("worker")).unwrap(),
                state: "ready".into(),
                generation: Some(3),
                executor: Some("e1".into()),
                cwd: None,
                host: None,
            }],
            items: vec![raw(json!({"type": "message", "role": "user", "content": "<environment_context/>"}))],
            detail: Some(raw(json!({"tools": 3}))),
        }
        .into(),
        ModelAsked { turn: "t1".into(), step: 0, model: Some("n".into()), provider: Some("p".into()) }.into(),
        ModelAnswered {
            turn: "t1".into(),
            step: 0,
            items: vec![raw(json!({"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": "{}"}))],
            calls: vec![CallRequest { call: "c1".into(), tool: "exec_command".into(), item: 0 }],
            complete: true,
            goes_on: true,
            usage: Some(tokens),
            response: Some("r1".into()),
        }
        .into(),
        ApprovalAsked {
            turn: "t1".into(),
            approval: "a1".into(),
            call: Some("c1".into()),
            environment: Some(serde_json::from_value(json!("worker")).unwrap()),
            kind: ApprovalKind::Command,
            detail: Some(raw(json!({"command": ["true"]})).into()),
        }
        .into(),
        ApprovalAnswered {
            approval: "a1".into(),
            decision: Decision::ApprovedForThread,
            detail: Some(raw(json!({"by": "user"}))),
            by: None,
        }
        .into(),
        CallStarted {
            turn: "t1".into(),
            call: "c1".into(),
            tool: "exec_command".into(),
            environment: Some(serde_json::from_value(json!("worker")).unwrap()),
            process: Some("p1".into()),
            repeatable: true,
            adoption_key: None,
            executor: Some("e1".into()),
            detail: Some(raw(json!({"command": "true"})).into()),
        }
        .into(),
        CallFinished {
            turn: "t1".into(),
            call: "c1".into(),
            outcome: CallOutcome::Lost,
            items: vec![raw(json!({"type": "function_call_output", "call_id": "c1", "output": "lost"}))],
            detail: Some(raw(json!({"exitCode": null})).into()),
        }
        .into(),
        AgentSpawned {
            child: id(2),
            turn: Some("t1".into()),
            call: Some("c1".into()),
            path: Some("/root/b".into()),
            nickname: Some("Bea".into()),
            role: Some("reader".into()),
        }
        .into(),
        WakeSet {
            session: 9000,
            call: "c1".into(),
            environment: serde_json::from_value(json!("worker")).unwrap(),
            process: "p1".into(),
            adoption_key: Some("0123456789ab".into()),
            executor: Some("e1".into()),
        }
        .into(),
        WakeEnded { session: 9000 }.into(),
        AgentClosed { child: id(2), reason: Some("done".into()) }.into(),
        ContextCompacted {
            turn: Some("t1".into()),
            reason: CompactReason::Full,
            kept: vec![Kept::Entry(5), Kept::Item(raw(json!({"type": "message", "role": "user", "content": "<summary/>"})))],
            tokens: 7,
            context_generation: 1,
        }
        .into(),
        TurnFinished {
            turn: Some("t1".into()),
            status: TurnStatus::Interrupted,
            reason: Some(InterruptReason::Shutdown),
            error: Some(raw(json!({"message": "stopped"}))),
            marker: Marker::Developer,
        }
        .into(),
        TurnsReverted { before: "t1".into(), through: 4 }.into(),
        QueueChanged { queue: vec!["i9".into()] }.into(),
        DamageNoted { damage: vec![DamagedRange { from: 3, to: 3, what: "altered".into() }], through: None, continued: false }.into(),
        Fact::Unknown { kind: "fromTheFuture".into(), data: raw(json!({"x": [1, null]})) },
        PermissionsGranted {
            turn: "t1".into(),
            call: Some("c1".into()),
            environment: serde_json::from_value(json!("worker")).unwrap(),
            executor: Some("e1".into()),
            generation: None,
            scope: GrantScope::Thread,
            permissions: raw(json!({"network": true, "files": {"file:///data": "write"}})),
        }
        .into(),
    ]
}

#[tokio::test]
async fn todays_journals_are_written_as_the_fixture_says() {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let lease = store.create(id(1)).await.unwrap();
    store.append(&lease, entries(1, facts()), Need::Stored).await.unwrap();
    let Store::Local(local) = &store else { panic!() };
    let written = std::fs::read_to_string(local.journal(id(1)).unwrap()).unwrap();
    if std::env::var_os("OUTPOST_WRITE_FIXTURES").is_some() {
        std::fs::write(fixture("v1.jsonl"), &written).unwrap();
    }
    let expected = std::fs::read_to_string(fixture("v1.jsonl")).unwrap();
    for (line, expected) in written.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(written, expected);
    let known: BTreeSet<_> = facts().iter().map(|fact| fact.kind().to_owned()).collect();
    let missing: Vec<_> = Fact::KINDS.iter().filter(|kind| !known.contains(**kind) && **kind != "threadForked").collect();
    assert!(missing.is_empty(), "kinds that the fixture does not have: {missing:?}");
}

#[tokio::test]
async fn journals_of_every_version_open() {
    for version in ["v1.jsonl"] {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("threads/2025/11/15");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(fixture(version), folder.join(format!("{}.jsonl", id(1)))).unwrap();
        let store = local(home.path(), "reader");
        assert!(store.verify(id(1), None).await.unwrap().is_whole(), "{version}");
        let read: Vec<Entry> = store.history(id(1), 0).await.unwrap().rest().await.unwrap().entries;
        assert_eq!(read, entries(1, facts()), "{version}");
        let opened = open(&store, id(1)).await.unwrap();
        assert_eq!((opened.unfit.as_slice(), opened.damage.as_slice()), (&[][..], &[][..]), "{version}");
        assert_eq!(opened.thread.next(), NextAction::Idle, "{version}");
        assert_eq!(opened.thread.metadata.name.as_deref(), Some("second"), "{version}");
    }
}

/// Threads that version 0.1.0 recorded: commands, patches, MCP calls, pictures, plans, agents, questions and a fork.
#[tokio::test]
async fn threads_of_0_1_0_open_and_their_calls_are_understood() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("threads/2026/11/17");
    std::fs::create_dir_all(&folder).unwrap();
    let mut threads: Vec<ThreadId> = Vec::new();
    for file in std::fs::read_dir(fixture("0.1.0")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        threads.push(file.path().file_stem().unwrap().to_str().unwrap().parse().unwrap());
    }
    let store = local(home.path(), "reader");
    let (mut calls, mut questions, mut reports) = (BTreeSet::new(), BTreeSet::new(), 0);
    for thread in threads {
        assert!(store.verify(thread, None).await.unwrap().is_whole(), "{thread}");
        let opened = open(&store, thread).await.unwrap();
        assert_eq!((opened.unfit.as_slice(), opened.damage.as_slice()), (&[][..], &[][..]), "{thread}");
        assert_eq!(opened.thread.next(), NextAction::Idle, "{thread}");
        for entry in store.history(thread, 0).await.unwrap().rest().await.unwrap().entries {
            match entry.fact {
                Fact::CallStarted(started) => {
                    let Some(detail) = started.detail else { continue };
                    // The loop writes what it has read as it was written, but for members that this version added.
                    let (CallDetail::CommandExecution(_) | CallDetail::Unknown(_)) = detail.read() else {
                        let again: serde_json::Value = Recorded::from(detail.read()).raw().read().unwrap();
                        let mut before: serde_json::Value = detail.raw().read().unwrap();
                        if before["type"] == "collabAgentToolCall" {
                            before["receivers"] = json!([]);
                        }
                        assert_eq!(again, before);
                        calls.insert(before["type"].as_str().unwrap().to_owned());
                        continue;
                    };
                    let command = started.process.is_some().then(|| detail.read());
                    let Some(CallDetail::CommandExecution(command)) = command else { panic!("{detail:?}") };
                    assert!(!command.command.is_empty() && command.cwd == "/tmp/fx/work", "{command:?}");
                    calls.insert("commandExecution".to_owned());
                }
                Fact::CallFinished(finished) if finished.outcome == CallOutcome::Failed => {
                    assert!(finished.report().error_text().is_some_and(|error| !error.is_empty()), "{finished:?}");
                }
                Fact::CallFinished(finished) => reports += usize::from(finished.report() != CallReport::default()),
                Fact::ApprovalAsked(asked) => {
                    assert_ne!(asked.question(), ApprovalDetail::default());
                    questions.insert(asked.kind.as_str().to_owned());
                }
                _ => {}
            }
        }
    }
    let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<String>>();
    let expected =
        of(&["collabAgentToolCall", "commandExecution", "fileChange", "imageView", "mcpToolCall", "plan", "terminalInteraction"]);
    assert_eq!(calls, expected);
    assert_eq!(questions, of(&["command", "dynamicTool", "permissions", "userInput"]));
    // Commands, a patch, answers of servers and of clients; all but the last command stand in the fork, too.
    assert_eq!(reports, 9 + 8);
}
