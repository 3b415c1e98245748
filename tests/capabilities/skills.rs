//! Which skills a model is told of, and how they are read.

use outpost_runtime::live::NewInput;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{Fact, Raw, TurnStatus};
use outpost_wire::intent::CapabilityRoot;
use serde_json::json;

use crate::harness::{settled, turn};
use crate::stage::{Machine, Stage, id, put, put_skill, uri};

/// The same name, and the same path below their roots, on two machines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_the_same_name_in_two_environments_is_told_apart() {
    let (one, two) = (Machine::new(), Machine::new());
    put_skill(one.path("tools"), "deploy");
    put(two.path("tools/deploy/SKILL.md"), "---\nname: deploy\ndescription: elsewhere\n---\nThe body of the second.\n");
    put(two.path("tools/deploy/notes/more.md"), "More of the second.");
    let stage = Stage::new(&[("one", &one), ("two", &two)]).await;
    let root = |name: &str, machine: &Machine| CapabilityRoot::new(format!("tools-{name}"), id(name), uri(machine.path("tools")));
    let thread = stage.thread(&["one", "two"], vec![root("one", &one), root("two", &two)]).await;
    let address = "skill://tools-two/deploy/SKILL.md";
    stage.model.push(Reply::Items(vec![
        call("a", "read_skill", &json!({"skill": "deploy"})),
        call("b", "read_skill", &json!({"skill": address})),
        call("c", "read_skill", &json!({"skill": address, "file": "notes/more.md"})),
        call("d", "read_skill", &json!({"skill": address, "file": "../../secret"})),
        call("e", "read_skill", &json!({"skill": address, "file": "/etc/passwd"})),
    ]));
    let asked = stage.turn(&thread, "hello").await;
    for text in [
        "several skills are called `deploy`; say which: skill://tools-one/deploy/SKILL.md, skill://tools-two/deploy/SKILL.md",
        "The body of the second.",
        "More of the second.",
        "`../../secret` is not a path inside the folder of the skill",
        "`/etc/passwd` is not a path inside the folder of the skill",
    ] {
        assert!(asked.contains(text), "{text}: {asked}");
    }
    // Named by the user, both are told.
    let asked = stage.turn(&thread, "now $deploy").await;
    assert!(asked.contains("The body of deploy.") && asked.contains("<path>skill://tools-one/deploy/SKILL.md</path>"), "{asked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_a_named_skill_is_told_once_as_long_as_it_is_the_same() {
    let machine = Machine::new();
    put_skill(machine.path("tools"), "deploy");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("tools", id("box"), uri(machine.path("tools")))]).await;
    let count = |asked: &str, text: &str| asked.matches(text).count();
    let content =
        vec![Raw::from(json!({"type": "text", "text": "please"})), Raw::from(json!({"type": "skill", "name": "deploy", "path": "x"}))];
    thread.input(NewInput { content, ..NewInput::default() }).await.unwrap();
    settled(&thread).await;
    let asked = stage.turn(&thread, "again $deploy").await;
    assert_eq!(count(&asked, "The body of deploy."), 1, "{asked}");
    put(machine.path("tools/deploy/SKILL.md"), "---\nname: deploy\ndescription: how to deploy\n---\nAnother body.\n");
    let asked = stage.turn(&thread, "and $deploy once more").await;
    assert_eq!((count(&asked, "The body of deploy."), count(&asked, "Another body.")), (1, 1), "{asked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_a_skill_may_wait_to_be_named() {
    let machine = Machine::new();
    put_skill(machine.path("tools"), "quiet");
    put(machine.path("tools/quiet/agents/openai.yaml"), "policy:\n  allow_implicit_invocation: false\n");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("tools", id("box"), uri(machine.path("tools")))]).await;
    assert_eq!(stage.told(&thread, "hello").await, None);
    assert!(stage.turn(&thread, "use $quiet").await.contains("The body of quiet."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_the_list_keeps_to_its_budget() {
    let machine = Machine::new();
    for number in 0..400 {
        let text = format!("---\nname: skill-{number:03}\ndescription: {}\n---\n", "long ".repeat(60));
        put(machine.path(&format!("tools/{number:03}/SKILL.md")), text);
    }
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("tools", id("box"), uri(machine.path("tools")))]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.len() < 9000 && told.contains("- skill-000:") && told.contains("more that do not fit here"), "{} {told}", told.len());
    assert_eq!(stage.told(&thread, "again").await, None);
    assert!(stage.turn(&thread, "use $skill-399").await.contains("<name>skill-399</name>"));
}

/// `.agents/skills` from the working directory up to the top of the repository, and no further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_projects_bring_skills_along() {
    let machine = Machine::new();
    put_skill(machine.path(".agents/skills"), "outside");
    put_skill(machine.path("repo/.agents/skills"), "shared");
    put_skill(machine.path("repo/part/deep/.agents/skills"), "own");
    put(machine.path("repo/.git/HEAD"), "ref: refs/heads/main\n");
    // As a sandbox leaves it where no repository may be made.
    std::fs::create_dir_all(machine.path("repo/part/deep/.git")).unwrap();
    let stage = Stage::new(&[("box", &machine)]).await;
    let mut start = stage.start(&["box"], vec![]);
    start.created.selection = start.created.selection.map(|selection| selection.with_primary_cwd(uri(machine.path("repo/part/deep"))));
    let thread = stage.runtime.start(start).await.unwrap();
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- own:") && told.contains("- shared:") && !told.contains("- outside:"), "{told}");
}

/// What is installed on the machine of an environment, in the home of its executor and of its user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_other_machines_have_skills_of_their_own() {
    let machine = Machine::new();
    put_skill(machine.home("skills"), "house");
    put_skill(machine.path("user/.agents/skills"), "users");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- house:") && told.contains("- users:"), "{told}");
    assert!(stage.turn(&thread, "$house").await.contains("The body of house."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s81_a_required_skill_that_is_missing_ends_the_turn_before_the_model_is_asked() {
    let machine = Machine::new();
    let stage = Stage::new(&[("box", &machine)]).await;
    stage.runtime.require_skills(id("box"), vec!["deploy".into()]);
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("tools", id("box"), uri(machine.path("tools")))]).await;
    turn(&thread, "hello").await;
    assert_eq!(stage.model.requests().len(), 0);
    let entries = stage.runtime.store().history(thread.id(), 0).await.unwrap().rest().await.unwrap().entries;
    let end = entries.iter().find_map(|entry| if let Fact::TurnFinished(end) = &entry.fact { Some(end.clone()) } else { None }).unwrap();
    assert_eq!(end.status, TurnStatus::Failed);
    assert!(end.error.unwrap().get().contains("environment `box` must have the skill `deploy` and does not"));
    put_skill(machine.path("tools"), "deploy");
    turn(&thread, "again").await;
    assert_eq!(stage.model.requests().len(), 1);
}
