//! One step, one handle: what a step found is read through what the step captured.

use std::time::Duration;

use outpost_runtime::RuntimeConfig;
use outpost_runtime::permissions::SandboxMode;
use outpost_testkit::model::Reply;
use outpost_wire::intent::CapabilityRoot;
use serde_json::json;

use crate::harness::settled;
use crate::stage::{Machine, Stage, config, id, put_skill, uri};

fn at(path: &str) -> Vec<CapabilityRoot> {
    vec![CapabilityRoot::new("tools", id("box"), uri(path))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s76_a_replaced_handle_is_not_used_by_the_step_that_captured_another() {
    let (one, two) = (Machine::new(), Machine::new());
    put_skill(one.path("tools"), "deploy");
    let path = one.path("tools").display().to_string();
    let stage = Stage::new(&[("box", &one)]).await;
    let thread = stage.thread(&["box"], at(&path)).await;
    let step = stage.runtime.why(thread.id()).await.unwrap();
    let told = stage.runtime.capability_bundles();
    stage.replace("box", &two).await;
    // The first executor is gone now. The file is not: were the new handle used, it could be read all the same.
    one.kill();
    let error = tokio::time::timeout(Duration::from_secs(1), step.skills[0].read(None)).await;
    assert!(!matches!(error, Ok(Ok(_))), "{error:?}");
    // The next step adopts the new handle; another executor means that nothing is known of it.
    let next = stage.runtime.why(thread.id()).await.unwrap();
    assert_eq!(next.skills[0].read(None).await.unwrap().trim_end().lines().last(), Some("The body of deploy."));
    assert!(stage.runtime.capability_bundles() > told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s77_an_executor_that_goes_away_between_discovery_and_use_is_told_to_the_model() {
    let machine = Machine::new();
    put_skill(machine.path("tools"), "deploy");
    put_skill(machine.path("tools"), "other");
    let desk = Machine::new();
    let config = RuntimeConfig { discovery_patience: Duration::from_secs(10), ..config() };
    let stage = Stage::with_config(&[("desk", &desk), ("box", &machine)], config).await;
    let thread = stage.thread(&["desk"], at(machine.path("tools").to_str().unwrap())).await;
    stage.told(&thread, "hello").await.unwrap();
    std::fs::remove_file(machine.path("tools/deploy/SKILL.md")).unwrap();
    stage.model.push(Reply::call("c", "read_skill", &json!({"skill": "deploy"})));
    let asked = stage.turn(&thread, "use deploy").await;
    assert!(asked.contains("there is no skill `deploy` in this step"), "{asked}");
    // It goes, and comes back only when nobody waits for it any more.
    let step = stage.runtime.why(thread.id()).await.unwrap();
    machine.kill();
    stage.lost("box").await;
    let error = step.skills.iter().find(|skill| skill.name == "other").unwrap().read(None).await.unwrap_err().to_string();
    assert!(error.contains("tools/other/SKILL.md cannot be read"), "{error}");
    machine.on();
    stage.ready("box").await;
    let step = stage.runtime.why(thread.id()).await.unwrap();
    assert!(step.skills[0].read(None).await.unwrap().contains("The body of other."));
    settled(&thread).await;
}

/// A root is looked at, and its skills are read, inside the sandbox of the thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_skills_are_read_inside_the_sandbox_of_used_and_of_unused_environments() {
    let (desk, machine) = (Machine::new(), Machine::new());
    put_skill(machine.path("tools"), "deploy");
    let stage = Stage::with_mode(&[("desk", &desk), ("box", &machine)], SandboxMode::ReadOnly { network_access: false }).await;
    for places in [&["box"][..], &["desk"]] {
        let thread = stage.thread(places, at(machine.path("tools").to_str().unwrap())).await;
        let asked = stage.turn(&thread, "use $deploy").await;
        assert!(asked.contains("The body of deploy."), "{places:?} {asked}");
    }
    // Our own files are out of reach of every sandbox, so such a root is left out, with the rule.
    put_skill(machine.home("tokens"), "secret");
    let thread = stage.thread(&["box"], at(machine.home("tokens").to_str().unwrap())).await;
    let why = stage.runtime.why(thread.id()).await.unwrap();
    assert!(why.skills.is_empty() && why.roots[0].reason.as_ref().unwrap().contains("the executor's own files"), "{:?}", why.roots);
}
