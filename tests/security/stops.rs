//! Whoever makes file calls and starts programs inside a sandbox can be stopped by what runs there. That is felt by the session that the
//! sandbox belongs to, for a while, and by nobody else.

use std::time::Duration;

use outpost_executor::WorkerPatience;
use outpost_testkit::bench::with;
use outpost_testkit::{Bench, Client, LinkKind, Setup};
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::{FULL, denies};
use crate::support::{Ground, OUTPOST, Who, is_root, number};

/// As many as an executor has threads, and one more.
const VICTIMS: usize = 5;

/// A script that stops everybody of that name, again and again, and says so when it has.
fn stopping(name: &str) -> String {
    format!(
        "told=; while :; do for d in /proc/[0-9]*; do c=; read c 2>/dev/null < $d/comm; if [ \"$c\" = {name} ] && [ ${{d#/proc/}} != $PPID ]; then \
         kill -STOP ${{d#/proc/}}; [ $told ] || echo stopped; told=1; fi; done; sleep 0.02; done"
    )
}

/// A policy that means the same at every start: nothing that it names is made by the first one.
fn one_cell(ground: &Ground) -> Value {
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    ground.policy(json!([special("root", "read"), special("project_roots", "write")]))
}

/// Somebody else gets an answer while none of the victims has one.
async fn others_are_served(ground: &Ground, victims: &mut [Client]) {
    let mut other = ground.client().await;
    other.result("fs/getMetadata", json!({"path": "file:///"})).await;
    for victim in victims {
        assert!(victim.quiet(Duration::from_millis(1)).await.iter().all(|message| message.get("id").is_none()));
    }
}

async fn stop(client: &mut Client, start: Value) {
    let id = start["processId"].clone();
    client.start(start).await;
    client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == id).await;
}

as_root_and_user! {
    #[needs(FULL)]
    async fn a_stopped_worker_is_felt_by_nobody_else(who: Who) {
        let mut ground = Ground::new(who);
        let sandbox = one_cell(&ground);
        let stat = json!({"path": ground.uri(""), "sandbox": sandbox});
        let mut victims = Vec::new();
        for _ in 0..VICTIMS {
            let mut victim = ground.client().await;
            victim.result("fs/getMetadata", stat.clone()).await;
            stop(&mut victim, with(ground.shell(&number(), &stopping("outpost-worker")), json!({"sandbox": sandbox}))).await;
            victim.request("fs/getMetadata", stat.clone());
            victim.flushed().await;
            victims.push(victim);
        }
        others_are_served(&ground, &mut victims).await;
        // Also a signal is still heard.
        assert_eq!(ground.executor.stop(), Some(0));
    }

    #[needs(FULL)]
    async fn a_stopped_reaper_is_felt_by_nobody_else(who: Who) {
        let mut ground = Ground::new(who);
        let sandbox = one_cell(&ground);
        let shell = |script: &str| with(ground.shell(&number(), script), json!({"sandbox": sandbox}));
        let mut victims = Vec::new();
        for _ in 0..VICTIMS {
            let mut victim = ground.client().await;
            // Two at once leave two reapers without work.
            let both = [shell("read x"), shell("read x")].map(|start| with(start, json!({"pipeStdin": true})));
            for start in &both {
                victim.start(start.clone()).await;
            }
            for start in &both {
                victim.result("process/closeStdin", json!({"processId": start["processId"]})).await;
                victim.events(start["processId"].as_str().unwrap()).await;
            }
            stop(&mut victim, shell(&stopping("outpost-reaper"))).await;
            victim.request("process/start", shell("true"));
            victim.flushed().await;
            victims.push(victim);
        }
        others_are_served(&ground, &mut victims).await;
        assert_eq!(ground.executor.stop(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_says_nothing_is_given_up() {
    if denies(if is_root() { Who::Root } else { Who::User }, &[FULL]).await {
        return;
    }
    let patience = Duration::from_secs(4);
    let setup = Setup { worker_patience: WorkerPatience { one: patience, many: patience }, ..Setup::default() };
    let bench = Bench::with_setup(LinkKind::Memory, OUTPOST, &setup);
    let mut client = bench.client().await;
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
    let sandbox = json!({
        "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": [root]}, "network": "restricted"},
        "cwd": "file:///", "workspaceRoots": [], "windowsSandboxLevel": "disabled",
    });
    let inside = |id: &str, script: &str| with(bench.shell(id, script), json!({"sandbox": sandbox, "cwd": "file:///"}));
    for (method, params) in [
        ("fs/getMetadata", json!({})),
        ("fs/walk", json!({"options": {"maxDepth": 1, "maxDirectories": 9, "maxEntries": 99, "followDirectorySymlinks": false}})),
    ] {
        let params = with(params, json!({"path": "file:///usr", "sandbox": sandbox}));
        client.result(method, params.clone()).await;
        let id = number();
        stop(&mut client, inside(&id, &stopping("outpost-worker"))).await;
        let (_, why) = client.error(method, params.clone()).await;
        assert!(why.contains("gave no answer within 4s") && why.contains("whether the call was made is not known"), "{why}");
        client.result("process/terminate", json!({"processId": id})).await;
        client.events(&id).await;
        // The next one is made by somebody else, and the silent one is gone.
        client.result(method, params).await;
        let id = number();
        let gone = "while grep -l '^State:.*stopped' /proc/[0-9]*/status 2>/dev/null; do sleep 0.05; done";
        client.start(inside(&id, gone)).await;
        assert_eq!(client.outcome(&id).await.0, 0);
    }
}
