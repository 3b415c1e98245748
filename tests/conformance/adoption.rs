//! Processes that go from the session of one client into that of another.

use std::time::{Duration, Instant};

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::{Bench, Client, LinkKind, Setup, over_links};
use serde_json::{Value, json};

use crate::support::{OUTPOST, Pipe, with_arguments};

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const ADOPTED_SINCE: i64 = -32012;
const NOT_ADOPTABLE: i64 = -32013;

fn owned(start: Value, epoch: u64) -> Value {
    with(start, json!({"adoption": {"secret": SECRET, "epoch": epoch}}))
}

fn claim(secret: &str, epoch: u64) -> Value {
    json!({"processId": "p", "secret": secret, "epoch": epoch})
}

/// A client that hears of processes that leave it.
async fn client(bench: &Bench) -> (Client, String) {
    let mut client = bench.connect().await;
    let session = client.greet(json!({"clientName": "test", "extensions": ["processMoves", "outputGaps"]})).await;
    (client, session)
}

/// Everything that a process wrote, read from its beginning until it is closed; every number once.
async fn whole(client: &mut Client) -> (i64, Vec<u8>) {
    let (mut output, mut after) = (Vec::new(), 0);
    loop {
        let read = client.result("process/read", json!({"processId": "p", "afterSeq": after, "waitMs": 20_000})).await;
        for chunk in read["chunks"].as_array().unwrap() {
            let seq = chunk["seq"].as_u64().unwrap();
            assert!(seq > after, "{read}");
            after = seq;
            output.extend(decode(&chunk["chunk"]));
        }
        if read["closed"] == true && read["chunks"].as_array().unwrap().is_empty() {
            return (read["exitCode"].as_i64().unwrap(), output);
        }
    }
}

async fn pid(client: &mut Client) -> u32 {
    let list = client.result("process/list", json!(null)).await;
    list["processes"][0]["pid"].as_u64().unwrap().try_into().unwrap()
}

over_links! { [Memory, Unix, WebSocket]
    async fn a_process_moves_with_all_of_its_output(bench: Bench) {
        let go = Pipe::new(&bench, "go");
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        old.start(owned(bench.shell("p", "echo before; read x < go; echo after; exit 7"), 1)).await;
        old.until(|message| message["method"] == "process/output").await;
        let adopted = new.result("process/adopt", claim(SECRET, 2)).await;
        assert_eq!(adopted, json!({"nextSeq": 2, "exited": false, "closed": false}));
        go.go();
        assert_eq!(whole(&mut new).await, (7, b"before\nafter\n".to_vec()));
        let moved = old.until(|message| message["method"] == "process/moved").await;
        assert_eq!(moved["params"], json!({"processId": "p"}));
        assert_eq!(old.heard("process/exited"), Vec::<Value>::new(), "it is told to its owner only");
    }

    async fn only_the_right_secret_finds_a_process(bench: Bench) {
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        old.start(owned(bench.shell("p", "sleep 60"), 1)).await;
        let wrong = new.error("process/adopt", claim(OTHER, 2)).await;
        let unknown = new.error("process/adopt", with(claim(SECRET, 2), json!({"processId": "q"}))).await;
        assert_eq!((wrong.0, unknown.0), (NOT_ADOPTABLE, NOT_ADOPTABLE));
        assert_eq!(wrong.1.replace("process p", ""), unknown.1.replace("process q", ""), "a client that guesses learns nothing");
        // It is where it was.
        assert_eq!(old.read("p", 0).await["exited"], false);
        let short = old.error("process/start", with(bench.shell("s", "true"), json!({"adoption": {"secret": "short", "epoch": 1}}))).await;
        assert_eq!(short, (-32602, "the adoption secret is too short: it must have at least 32 bytes".into()));
        // One that was started without a secret is for no other session.
        old.start(bench.shell("plain", "sleep 60")).await;
        let plain = new.error("process/adopt", with(claim(SECRET, 9), json!({"processId": "plain"}))).await;
        assert_eq!(plain.0, NOT_ADOPTABLE);
    }

    async fn an_epoch_that_is_not_newer_is_refused(bench: Bench) {
        let ((mut old, _), (mut new, _), (mut third, _)) = (client(&bench).await, client(&bench).await, client(&bench).await);
        old.start(owned(bench.shell("p", "sleep 60"), 5)).await;
        for epoch in [4, 5] {
            assert_eq!(new.error("process/adopt", claim(SECRET, epoch)).await.0, ADOPTED_SINCE);
        }
        new.result("process/adopt", claim(SECRET, 6)).await;
        // An answer that was lost is asked for again.
        new.result("process/adopt", claim(SECRET, 6)).await;
        assert_eq!(third.error("process/adopt", claim(SECRET, 6)).await.0, ADOPTED_SINCE);
        assert_eq!(old.error("process/adopt", claim(SECRET, 5)).await.0, ADOPTED_SINCE, "a program that only slept");
        third.result("process/adopt", claim(SECRET, 7)).await;
        assert_eq!(new.error("process/adopt", claim(SECRET, 6)).await.0, ADOPTED_SINCE);
    }

    async fn the_old_owner_can_do_nothing_with_it(bench: Bench) {
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        let script = "trap 'echo signalled' USR1; while read line; do echo \"got $line\"; done; echo end";
        old.start(owned(with(bench.shell("p", script), json!({"pipeStdin": true})), 1)).await;
        let poll = old.request("process/read", json!({"processId": "p", "afterSeq": 0, "waitMs": 20_000}));
        new.result("process/adopt", claim(SECRET, 2)).await;
        let of_it = json!({"processId": "p"});
        let write = |text: &str, id: &str| json!({"processId": "p", "chunk": base64(text), "writeId": id});
        assert_eq!(old.result("process/write", write("old\n", "1")).await, json!({"status": "unknownProcess"}));
        assert_eq!(old.result("process/closeStdin", of_it.clone()).await, json!({"status": "unknownProcess"}));
        assert_eq!(old.result("process/terminate", of_it.clone()).await, json!({"running": false}));
        old.result("process/signal", with(of_it.clone(), json!({"signal": "usr1"}))).await;
        assert_eq!(old.error("process/read", of_it.clone()).await, (-32600, "unknown process id p".into()));
        assert_eq!(old.result("process/list", json!(null)).await, json!({"processes": []}));
        assert_eq!(new.result("process/write", write("new\n", "1")).await, json!({"status": "accepted"}));
        new.until(|message| message["method"] == "process/output").await;
        // A poll that was out when it left gets nothing of what it wrote since.
        assert_eq!(old.answer(poll).await["error"]["message"], "unknown process id p");
        new.result("process/closeStdin", of_it).await;
        assert_eq!(whole(&mut new).await, (0, b"got new\nend\n".to_vec()));
    }

    async fn the_end_of_the_old_session_leaves_it_and_that_of_the_new_one_ends_it(bench: Bench) {
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        old.start(bench.shell("own", "sleep 60")).await;
        let own = pid(&mut old).await;
        old.start(owned(bench.shell("p", "echo on; sleep 60"), 1)).await;
        new.result("process/adopt", claim(SECRET, 2)).await;
        let moved = pid(&mut new).await;
        old.result("session/end", json!({})).await;
        old.closed().await;
        eventually("what was left in the old session is gone", || !is_alive(own)).await;
        assert!(is_alive(moved), "what another session has lives on");
        assert_eq!(new.read("p", 0).await["exited"], false);
        new.result("session/end", json!({})).await;
        new.closed().await;
        eventually("it is gone with the new session", || !is_alive(moved)).await;
    }

    // Its starter was stopped before the start was sent, and another node was told that nothing runs.
    async fn a_start_that_comes_after_a_newer_claim_is_refused(bench: Bench) {
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        assert_eq!(new.error("process/adopt", claim(SECRET, 2)).await.0, NOT_ADOPTABLE);
        // An answer that was lost is asked for again, and is the same.
        assert_eq!(new.error("process/adopt", claim(SECRET, 2)).await.0, NOT_ADOPTABLE);
        assert_eq!(old.error("process/adopt", claim(SECRET, 1)).await.0, ADOPTED_SINCE);
        let late = old.error("process/start", owned(bench.shell("p", "touch ran"), 1)).await;
        assert_eq!(late, (ADOPTED_SINCE, "process p was claimed under a newer lease than that of this client".into()));
        assert!(!bench.path("ran").exists());
        // The claimant itself may start it.
        new.start(owned(bench.shell("p", "touch ran"), 2)).await;
        assert_eq!(new.outcome("p").await.0, 0);
    }

    async fn one_that_has_ended_is_adopted_with_its_result(bench: Bench) {
        let ((mut old, _), (mut new, _)) = (client(&bench).await, client(&bench).await);
        old.start(owned(bench.shell("p", "echo done; exit 3"), 1)).await;
        old.outcome("p").await;
        let adopted = new.result("process/adopt", claim(SECRET, 2)).await;
        assert_eq!((&adopted["exited"], &adopted["closed"]), (&json!(true), &json!(true)));
        assert_eq!(whole(&mut new).await, (3, b"done\n".to_vec()));
    }
}

/// A program that was started anew has the session of its previous run and knows nothing of what ran in it: that it is there does not mean
/// that the result of a command was taken, for which the next owner of its thread may still come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_kept_for_another_session_while_a_program_that_does_not_ask_for_it_is_there() {
    const KEPT: Duration = Duration::from_millis(200);
    let setup = Setup { closed_retention: Some(KEPT), ..Setup::default() };
    let bench = Bench::with_setup(LinkKind::Memory, OUTPOST, &setup);
    let go = Pipe::new(&bench, "go");
    let ((mut old, session), (mut new, _)) = (client(&bench).await, client(&bench).await);
    old.start(owned(bench.shell("p", "read x < go; echo done; touch over; exit 3"), 1)).await;
    old.start(owned(bench.shell("taken", "true"), 1)).await;
    old.close();
    go.go();
    let mut again = bench.connect().await;
    again.greet(json!({"clientName": "test", "resumeSessionId": session})).await;
    let over = bench.path("over");
    eventually("it has ended", || over.exists()).await;
    // What is asked for goes as soon as ever, and only then has the time passed for the other, too.
    again.result("process/read", json!({"processId": "taken", "afterSeq": 0, "waitMs": 20_000})).await;
    let since = Instant::now();
    while again.call("process/read", json!({"processId": "taken", "afterSeq": 0})).await.get("error").is_none() {
        assert!(since.elapsed() < KEPT * 100, "it is kept for ever");
        tokio::time::sleep(KEPT / 4).await;
    }
    tokio::time::sleep(KEPT * 2).await;
    new.result("process/adopt", claim(SECRET, 2)).await;
    assert_eq!(whole(&mut new).await, (3, b"done\n".to_vec()));
}

/// A sandbox belongs to the session that made it, and stays until the last process in it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sandbox_of_an_adopted_process_outlives_the_session_that_made_it() {
    let bench = with_arguments(&["--grace", "1", "--grace-running", "1"]);
    let go = Pipe::new(&bench, "go");
    let ((mut old, session), (mut new, _)) = (client(&bench).await, client(&bench).await);
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    let entries = json!([special("root", "read"), special("project_roots", "write"), special("slash_tmp", "write")]);
    let sandbox = json!({
        "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": entries}, "network": "restricted"},
        "cwd": bench.uri(""), "workspaceRoots": [bench.uri("")], "windowsSandboxLevel": "disabled",
    });
    let script = "echo kept > /tmp/adopted; echo on; read x < go; cat /tmp/adopted; echo more >> written; cat written; exit 4";
    old.start(owned(with(bench.shell("p", script), json!({"sandbox": sandbox})), 1)).await;
    old.until(|message| message["method"] == "process/output").await;
    new.result("process/adopt", claim(SECRET, 2)).await;
    old.close();
    // The old session expires.
    let mut gone = false;
    for _ in 0..200 {
        let mut again = bench.connect().await;
        let answer = again.call("initialize", json!({"clientName": "test", "resumeSessionId": session})).await;
        if answer["error"]["message"].as_str().is_some_and(|text| text.starts_with("unknown session id")) {
            gone = true;
            break;
        }
        again.close();
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    }
    assert!(gone, "the old session does not expire");
    go.go();
    assert_eq!(whole(&mut new).await, (4, b"on\nkept\nmore\n".to_vec()));
}
