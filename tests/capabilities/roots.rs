//! The life of a root: durable intent, and what each step makes of it.

use outpost_runtime::ForkThread;
use outpost_runtime::live::NewInput;
use outpost_testkit::model::Reply;
use outpost_thread::{Entry, Fact, ForkPoint, InterruptReason, Marker, SelectionChanged, ThreadId};
use outpost_wire::intent::CapabilityRoot;
use serde_json::{Value, json};

use crate::harness::{next_fact, settled, turn};
use crate::stage::{Machine, Stage, about_skills, id, put, put_skill, uri};

fn root(machine: &Machine, name: &str) -> CapabilityRoot {
    CapabilityRoot::new(name, id("box"), uri(machine.path(name)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s79_a_skill_in_a_root_is_listed_and_read() {
    let machine = Machine::new();
    put_skill(machine.path("tools"), "deploy");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![root(&machine, "tools")]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- deploy: how to deploy (skill://tools/deploy/SKILL.md, environment `box`)"), "{told}");
    assert_eq!(stage.told(&thread, "again").await, None);
    let asked = stage.turn(&thread, "please use $deploy.").await;
    assert!(asked.contains("<path>skill://tools/deploy/SKILL.md</path>") && asked.contains("The body of deploy."), "{asked}");
}

/// Not ready, ready, lost, back, changed, resumed, and a folder that is made later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s79_the_life_of_a_root() {
    let (desk, machine) = (Machine::new(), Machine::off());
    put_skill(machine.path("tools"), "deploy");
    let stage = Stage::new(&[("desk", &desk), ("box", &machine)]).await;
    let roots = vec![root(&machine, "tools"), root(&machine, "later")];
    let thread = stage.thread(&["desk"], roots.clone()).await;
    let report = |id: &'static str| {
        let (runtime, thread) = (stage.runtime.clone(), thread.id());
        async move { runtime.why(thread).await.unwrap().roots.into_iter().find(|report| report.id == id).unwrap() }
    };

    // Not ready: hidden, with the reason for the model, for clients and for whoever asks.
    let told = stage.told(&thread, "one").await.unwrap();
    assert!(
        told.contains("Capability root `tools` cannot be used now: environment `box` is failed.") && !told.contains("deploy"),
        "{told}"
    );
    let detail = last_detail(&stage, thread.id()).await;
    assert_eq!((&detail["roots"][0]["id"], &detail["roots"][0]["available"]), (&json!("tools"), &json!(false)));
    assert!(detail["roots"][0]["reason"].as_str().unwrap().starts_with("environment `box` is failed: "), "{detail}");

    // Ready: shown. The other root is not there yet, which is its own affair.
    machine.on();
    stage.ready("box").await;
    let told = stage.told(&thread, "two").await.unwrap();
    assert!(told.contains("- deploy: how to deploy (skill://tools/deploy/SKILL.md") && told.contains("`tools` is not left out"), "{told}");
    let why = report("later").await;
    assert!(!why.available && why.reason.unwrap().contains("No such file or directory"));
    assert_eq!(report("tools").await.skills, 1);
    let bundles = stage.runtime.capability_bundles();

    // Lost: hidden, with the reason.
    machine.kill();
    stage.lost("box").await;
    let told = stage.told(&thread, "three").await.unwrap();
    assert!(told.contains("Not available any more:\n- deploy") && told.contains("`tools` cannot be used now: environment `box`"), "{told}");

    // Back, as the same executor: shown without being told anew what the root holds.
    machine.on();
    stage.ready("box").await;
    let told = stage.told(&thread, "four").await.unwrap();
    assert!(told.contains("Available skills:\n- deploy"), "{told}");
    stage.replace("box", &machine).await;
    assert_eq!(stage.told(&thread, "five").await, None);
    assert_eq!(stage.runtime.capability_bundles(), bundles);

    // Made later: found.
    put_skill(machine.path("later"), "roll-back");
    let told = stage.told(&thread, "six").await.unwrap();
    assert!(told.contains("New or changed skills:\n- roll-back") && !told.contains("- deploy"), "{told}");

    // The intent was never edited; resumed elsewhere, the model is neither told again nor left without.
    assert_eq!(thread.snapshot().await.unwrap().capability_roots, roots);
    stage.runtime.unload(thread.id(), InterruptReason::Shutdown).await;
    let other = stage.restarted();
    other.registry().info(&id("box")).await.unwrap();
    let resumed = other.resume(thread.id()).await.unwrap();
    assert_eq!(resumed.snapshot().await.unwrap().capability_roots, roots);
    assert_eq!(stage.told(&resumed, "seven").await, None);
    put_skill(machine.path("later"), "third");
    let told = stage.told(&resumed, "eight").await.unwrap();
    assert!(told.contains("New or changed skills:\n- third") && !told.contains("roll-back"), "{told}");
}

/// What the last step that had news left behind for clients.
async fn last_detail(stage: &Stage, id: ThreadId) -> Value {
    let entries = stage.runtime.store().history(id, 0).await.unwrap().rest().await.unwrap().entries;
    let detail = |entry: &Entry| if let Fact::StepCaptured(step) = &entry.fact { step.detail.clone() } else { None };
    entries.iter().rev().find_map(detail).unwrap().read().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_that_cannot_be_meant_are_refused() {
    let machine = Machine::new();
    let stage = Stage::new(&[("box", &machine)]).await;
    let refused = async |roots: Vec<CapabilityRoot>| match stage.runtime.start(stage.start(&["box"], roots)).await {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let good = root(&machine, "tools");
    assert_eq!(
        refused(vec![CapabilityRoot::new(" ", id("box"), uri("/x"))]).await,
        "a capability root in environment `box` has a blank id"
    );
    assert_eq!(refused(vec![good.clone(), good.clone()]).await, "duplicate capability root id `tools`");
    let unknown = CapabilityRoot::new("r", id("nowhere"), uri("/x"));
    let text = "capability root `r` is in environment `nowhere`, which does not exist; add the environment first, or name another";
    assert_eq!(refused(vec![unknown.clone()]).await, text);
    // The same when they are changed later; what is known already stays, whatever became of its environment.
    let thread = stage.thread(&["box"], vec![good.clone()]).await;
    let change = |roots: Vec<CapabilityRoot>| vec![SelectionChanged { selection: None, capability_roots: Some(roots) }.into()];
    assert_eq!(thread.change(change(vec![unknown])).await.unwrap_err().to_string(), text);
    stage.runtime.registry().remove(&id("box")).unwrap();
    put_skill(machine.path("tools"), "deploy");
    thread.change(change(vec![good.clone()])).await.unwrap();
    let why = stage.runtime.why(thread.id()).await.unwrap();
    assert_eq!(why.roots[0].reason.as_deref(), Some("environment `box` is missing: no such environment is configured"));
    assert_eq!(thread.snapshot().await.unwrap().capability_roots, [good]);
}

/// Changed later as a new fact; forks and agents inherit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s43_roots_are_changed_inherited_and_kept() {
    let machine = Machine::new();
    put_skill(machine.path("tools"), "deploy");
    put_skill(machine.path("more"), "extra");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![root(&machine, "tools")]).await;
    assert!(stage.told(&thread, "one").await.unwrap().contains("- deploy:"));
    let roots = vec![root(&machine, "more")];
    thread.change(vec![SelectionChanged { selection: None, capability_roots: Some(roots.clone()) }.into()]).await.unwrap();
    let told = stage.told(&thread, "two").await.unwrap();
    assert!(told.contains("- extra:") && told.contains("Not available any more:\n- deploy"), "{told}");
    let fork = stage.runtime.fork(ForkThread::new(thread.id(), ForkPoint::Interrupted(Marker::Off))).await.unwrap();
    assert_eq!(fork.snapshot().await.unwrap().capability_roots, roots);
    assert_eq!(stage.told(&fork, "three").await, None);
    for fork_context in [false, true] {
        stage.model.push(Reply::call("s", "spawn_agent", &json!({"message": "help", "fork_context": fork_context})));
        turn(&thread, "four").await;
        // All of them talk to the same model.
        for agent in thread.snapshot().await.unwrap().agents.into_keys() {
            let agent = stage.runtime.resume(agent).await.unwrap();
            settled(&agent).await;
            assert_eq!(agent.snapshot().await.unwrap().capability_roots, roots);
        }
        settled(&thread).await;
    }
    assert_eq!(thread.snapshot().await.unwrap().agents.len(), 2);
}

/// Available between two steps of one turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s79_a_root_that_becomes_ready_is_shown_in_the_next_step() {
    let (desk, machine) = (Machine::new(), Machine::off());
    put_skill(machine.path("tools"), "deploy");
    let stage = Stage::new(&[("desk", &desk), ("box", &machine)]).await;
    let thread = stage.thread(&["desk"], vec![root(&machine, "tools")]).await;
    let flag = desk.path("flag").display().to_string();
    let wait = format!("while [ ! -e {flag} ]; do sleep 0.02; done");
    stage.model.push(Reply::call("w", "exec_command", &json!({"cmd": wait, "yield_time_ms": 30000})));
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    machine.on();
    stage.ready("box").await;
    put(&flag, "");
    settled(&thread).await;
    let requests = stage.model.requests();
    assert!(!about_skills(&requests[0].body).concat().contains("- deploy:"));
    assert!(about_skills(&requests[1].body).last().unwrap().contains("- deploy:"), "{:?}", about_skills(&requests[1].body));
}
