//! Agents that make agents: how many there may be, what becomes of them with their maker, and after a restart.

use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::{CallOutcome, Fact, InterruptReason, ThreadId, TurnStatus};
use serde_json::json;

use crate::harness::{Harness, Setup, next_fact, settled, turn};

/// A harness in which so many agents may work at once.
async fn with_most(most: usize, depth: u32) -> Harness {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
    (setup.config.agents.most, setup.config.agents.depth) = (most, depth);
    Harness::new(setup).await
}

fn spawn(id: &str, message: &str) -> Reply {
    Reply::call(id, "spawn_agent", &json!({"message": message}))
}

/// A command that waits for a file, and one that takes the place of a turn's end.
fn waits_for(file: &str) -> Reply {
    let command = format!("echo $$ > {file}.pid; while [ ! -e {file} ]; do sleep 0.01; done");
    Reply::call("slow", "exec_command", &json!({"cmd": command, "login": false, "yield_time_ms": 30000}))
}

async fn newest_agent(harness: &Harness, maker: ThreadId) -> ThreadId {
    let spawned = |entry: outpost_thread::Entry| if let Fact::AgentSpawned(spawned) = entry.fact { Some(spawned.child) } else { None };
    harness.entries(maker).await.into_iter().filter_map(spawned).last().unwrap()
}

/// A permit is held by whoever works, and given back with the end of the work.
#[tokio::test]
async fn only_so_many_work_at_once() {
    let harness = with_most(1, 1).await;
    let thread = harness.start(&[0]).await;
    harness.model.push_for("\"text\":\"first job\"", waits_for("go"));
    harness.model.push_for("\"text\":\"begin\"", spawn("a", "first job"));
    turn(&thread, "begin").await;
    let first = newest_agent(&harness, thread.id()).await;
    harness.model.push_for("\"text\":\"another\"", spawn("b", "second job"));
    turn(&thread, "another").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[1].0 == CallOutcome::Failed && outputs[1].1.contains("1 agents are at work already"), "{outputs:?}");
    std::fs::write(harness.work(0).join("go"), "").unwrap();
    settled(&harness.runtime.get(first).unwrap()).await;
    // The first is done and was not closed; its place is free all the same.
    harness.model.push_for("\"text\":\"once more\"", spawn("c", "third job"));
    turn(&thread, "once more").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[2].0, CallOutcome::Completed, "{outputs:?}");
}

/// Whoever is closed takes everybody below along, and what they run.
#[tokio::test]
async fn a_tree_is_listed_and_ended_as_one() {
    let harness = with_most(4, 2).await;
    let root = harness.start(&[0]).await;
    harness.model.push_for("\"text\":\"grandchild job\"", waits_for("never"));
    harness.model.push_for("\"text\":\"child job\"", spawn("g", "grandchild job"));
    harness.model.push_for("\"text\":\"begin\"", spawn("c", "child job"));
    turn(&root, "begin").await;
    let child = newest_agent(&harness, root.id()).await;
    settled(&harness.runtime.get(child).unwrap()).await;
    let grandchild = newest_agent(&harness, child).await;
    let pid = harness.work(0).join("never.pid");
    while std::fs::read_to_string(&pid).map_or(true, |pid| pid.trim().is_empty()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(harness.runtime.subtree(root.id()).await.unwrap(), [root.id(), child, grandchild]);
    harness.model.push_for("\"text\":\"end it\"", Reply::call("x", "close_agent", &json!({"target": child.to_string()})));
    turn(&root, "end it").await;
    assert_eq!(harness.runtime.loaded(), [root.id()]);
    let end = harness.turn_ends(grandchild).await.remove(0);
    assert_eq!((end.status, end.reason), (TurnStatus::Interrupted, Some(InterruptReason::Replaced)));
    assert!(!root.snapshot().await.unwrap().agents[&child].open);
    // They are still listed, and all that they did is still there.
    assert_eq!(harness.runtime.subtree(root.id()).await.unwrap(), [root.id(), child, grandchild]);
    let ended = harness.runtime.unload_tree(root.id(), InterruptReason::Shutdown).await.unwrap();
    assert_eq!(ended, [root.id(), child, grandchild]);
    assert!(harness.runtime.loaded().is_empty());
}

/// An agent that is written to is loaded again, and works where it worked before.
#[tokio::test]
async fn an_agent_is_resumed_when_somebody_needs_it() {
    let harness = with_most(2, 1).await;
    let root = harness.start(&[0]).await;
    harness.model.push_for("\"text\":\"begin\"", spawn("c", "child job"));
    turn(&root, "begin").await;
    let child = newest_agent(&harness, root.id()).await;
    settled(&harness.runtime.get(child).unwrap()).await;
    harness.runtime.unload(child, InterruptReason::Shutdown).await;
    harness.model.push_for("\"text\":\"more work\"", Reply::call("e", "exec_command", &json!({"cmd": "echo again > again"})));
    let send = json!({"target": child.to_string(), "message": "more work"});
    harness.model.push_for("\"text\":\"tell it\"", Reply::call("s", "send_input", &send));
    let mut feed = root.subscribe();
    turn(&root, "tell it").await;
    next_fact(&mut feed, |fact| matches!(fact, Fact::TurnFinished(_)).then_some(())).await;
    settled(&harness.runtime.get(child).unwrap()).await;
    assert!(harness.work(0).join("again").exists());
}

/// A thread chooses no shell of its own: each environment has one. An agent works in its maker's environments, so it has the same
/// shells, is told of the same, and `login` means the same; also if it begins with its maker's context.
#[tokio::test]
async fn an_agent_has_the_shells_of_its_maker() {
    for fork_context in [false, true] {
        let mut setup = Setup::new(&[LinkKind::Memory, LinkKind::Memory], vec![]);
        setup.config.agents.most = 2;
        let harness = Harness::new(setup).await;
        for name in ["maker", "agent"] {
            for environment in ["one", "two"] {
                let command = format!("echo $0 $- > {name}; shopt -q login_shell 2> /dev/null && echo login >> {name}");
                let call =
                    Reply::call(&format!("{name}-{environment}"), "exec_command", &json!({"cmd": command, "environment_id": environment}));
                harness.model.push_for(&format!("\"text\":\"{name} job\""), call);
            }
        }
        let root = harness.start(&[0, 1]).await;
        turn(&root, "maker job").await;
        let make = Reply::call("s", "spawn_agent", &json!({"message": "agent job", "fork_context": fork_context}));
        harness.model.push_for("\"text\":\"make one\"", make);
        turn(&root, "make one").await;
        let agent = newest_agent(&harness, root.id()).await;
        settled(&harness.runtime.get(agent).unwrap()).await;
        for place in [0, 1] {
            let ran = |name: &str| std::fs::read_to_string(harness.work(place).join(name)).unwrap();
            assert_eq!(ran("agent"), ran("maker"));
        }
        let told = |said: &str| {
            let request = harness
                .model
                .requests()
                .into_iter()
                .find(|request| request.body.to_string().contains(&format!("\"text\":\"{said}\"")))
                .unwrap();
            let text = request.body.to_string();
            text.split("<shell>").skip(1).filter_map(|rest| rest.split("</shell>").next().map(str::to_owned)).take(2).collect::<Vec<_>>()
        };
        assert_eq!((told("agent job"), told("maker job").len()), (told("maker job"), 2));
    }
}
