//! The life of a root: durable intent, and what each step makes of it.

use outpost_thread::{Entry, Fact, InterruptReason, ThreadId};
use outpost_wire::intent::CapabilityRoot;
use serde_json::{Value, json};

use crate::stage::{Machine, Stage, id, put_skill, uri};

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
