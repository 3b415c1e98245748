//! Skills of the machine that runs the threads.

use std::time::Duration;

use outpost_runtime::RuntimeConfig;
use outpost_runtime::skills::host::{HostRoot, HostSkillScope};
use serde_json::json;

use crate::stage::{Machine, Stage, config, put, put_skill, uri};

fn with_host(machine: &Machine) -> RuntimeConfig {
    let root = |scope, name: &str| HostRoot { scope, path: uri(machine.path(name)) };
    RuntimeConfig { host_skills: vec![root(HostSkillScope::User, "home/skills"), root(HostSkillScope::Admin, "none")], ..config() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s51_host_skills_are_told_wherever_a_thread_works_and_are_seen_at_once() {
    let (host, machine) = (Machine::new(), Machine::new());
    put_skill(host.path("home/skills"), "house");
    let stage = Stage::with_config(&[("local", &host), ("box", &machine)], with_host(&host)).await;
    let thread = stage.thread(&["box"], vec![]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- house: how to house (skill://local@") && told.contains("environment `local`"), "{told}");
    assert!(stage.turn(&thread, "$house").await.contains("The body of house."));
    put_skill(host.path("home/skills"), "second");
    assert!(stage.told(&thread, "more").await.unwrap().contains("- second:"));
    put_skill(host.path("extra"), "third");
    stage.runtime.set_extra_skill_roots(vec![uri(host.path("extra"))]);
    assert!(stage.told(&thread, "more").await.unwrap().contains("- third:"));
    stage.runtime.set_extra_skill_roots(vec![]);
    assert!(stage.told(&thread, "less").await.unwrap().contains("Not available any more:\n- third"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s51_the_list_for_clients_has_the_shape_of_the_protocol() {
    let host = Machine::new();
    put_skill(host.path("home/skills"), "house");
    put(host.path("home/skills/bad/SKILL.md"), "nothing");
    put_skill(host.path("repo/.agents/skills"), "project");
    put(host.path("repo/.git/HEAD"), "ref: refs/heads/main\n");
    std::fs::create_dir_all(host.path("repo/deep")).unwrap();
    let stage = Stage::with_config(&[("local", &host)], with_host(&host)).await;
    let lists = stage.runtime.list_skills(&[uri(host.path("repo/deep"))]).await;
    let skill = |name: &str, path: &str, scope: &str| {
        json!({"name": name, "description": format!("how to {name}"), "shortDescription": null, "path": host.path(path), "scope": scope,
               "enabled": true, "pluginId": null})
    };
    let list = serde_json::to_value(&lists[0]).unwrap();
    assert_eq!(list["cwd"], json!(host.path("repo/deep")));
    let skills = [skill("project", "repo/.agents/skills/project/SKILL.md", "repo"), skill("house", "home/skills/house/SKILL.md", "user")];
    assert_eq!(list["skills"], json!(skills));
    assert_eq!((&list["errors"][0]["path"], list["errors"].as_array().unwrap().len()), (&json!(host.path("home/skills/bad/SKILL.md")), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_is_told_of_changes() {
    let host = Machine::new();
    put_skill(host.path("home/skills"), "house");
    told_of_changes(&host).await;
}

/// Where the folder comes to be is watched, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_listens_is_told_of_a_folder_that_is_made_later() {
    told_of_changes(&Machine::new()).await;
}

async fn told_of_changes(host: &Machine) {
    let stage = Stage::with_config(&[("local", host)], with_host(host)).await;
    let mut changes = stage.runtime.skill_changes();
    // It is told of what changes after its first look, whenever that is.
    let told = async {
        let mut number = 0;
        loop {
            number += 1;
            put_skill(host.path("home/skills"), &format!("new-{number}"));
            if tokio::time::timeout(Duration::from_secs(3), changes.changed()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), told).await.unwrap();
}
