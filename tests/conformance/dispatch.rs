//! Which request waits for which.

use std::time::Duration;

use outpost_testkit::bench::with;
use outpost_testkit::client::base64;
use outpost_testkit::{Bench, LinkKind, Setup, over_every_link, over_links};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::{OUTPOST, Pipe, with_arguments};

const LONG: u64 = 60_000;

over_every_link! {
    async fn a_long_poll_does_not_delay_a_stat(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "sleep 60")).await;
        let poll = client.request("process/read", json!({"processId": "p", "waitMs": LONG}));
        let stat = client.request("fs/getMetadata", json!({"path": bench.uri("")}));
        let first = client.next_answer().await;
        assert_eq!((&first["id"], &first["result"]["isDirectory"]), (&json!(stat), &json!(true)));
        client.result("process/terminate", json!({"processId": "p"})).await;
        assert_eq!(client.answer(poll).await["result"]["exitCode"], 137);
    }

    async fn polls_of_many_processes_wait_beside_each_other(bench: Bench) {
        let mut client = bench.client().await;
        let names: Vec<_> = (0..20).map(|n| format!("p{n}")).collect();
        for name in &names {
            client.start(with(bench.shell(name, "cat"), json!({"pipeStdin": true}))).await;
        }
        let polls: Vec<_> = names.iter().map(|name| client.request("process/read", json!({"processId": name, "waitMs": LONG}))).collect();
        for (name, poll) in names.iter().zip(polls).rev() {
            client.result("process/write", json!({"processId": name, "chunk": base64(name), "writeId": "w"})).await;
            let answer = client.answer(poll).await;
            assert_eq!(answer["result"]["chunks"][0]["chunk"], base64(name), "{answer}");
        }
    }

    async fn ten_thousand_requests_may_be_sent_before_the_first_answer_is_read(bench: Bench) {
        let mut client = bench.client().await;
        let ids: Vec<_> = (0..10_000).map(|_| client.request("process/terminate", json!({"processId": "nobody"}))).collect();
        client.flushed().await;
        for id in ids {
            assert_eq!(client.next_answer().await, json!({"id": id, "result": {"running": false}}));
        }
    }

    async fn a_write_to_a_process_that_never_reads_holds_up_nobody(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("deaf", "exec sleep 60"), json!({"pipeStdin": true}))).await;
        let megabyte = base64(vec![b'x'; 1 << 20]);
        let first = client.result("process/write", json!({"processId": "deaf", "chunk": megabyte, "writeId": "1"})).await;
        assert_eq!(first, json!({"status": "accepted"}));
        let second = client.request("process/write", json!({"processId": "deaf", "chunk": megabyte, "writeId": "2"}));
        let stat = client.request("fs/getMetadata", json!({"path": bench.uri("")}));
        assert_eq!(client.next_answer().await["id"], stat);
        client.start(bench.shell("other", "echo alive")).await;
        assert_eq!(client.outcome("other").await, (0, b"alive\n".to_vec()));
        assert_eq!(client.result("process/terminate", json!({"processId": "deaf"})).await, json!({"running": true}));
        let refused = client.answer(second).await;
        assert_eq!(refused["error"], json!({"code": -32603, "message": "failed to write to process stdin"}));
    }

    async fn writes_that_are_sent_together_arrive_in_order(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("cat", "sleep 0.2; exec cat"), json!({"pipeStdin": true}))).await;
        let mut sent = Vec::new();
        for n in 0..200_u32 {
            let piece = format!("{n};").repeat(400);
            client.request("process/write", json!({"processId": "cat", "chunk": base64(&piece), "writeId": n.to_string()}));
            sent.extend_from_slice(piece.as_bytes());
        }
        assert_eq!(client.result("process/closeStdin", json!({"processId": "cat"})).await, json!({"status": "accepted"}));
        assert!(client.outcome("cat").await == (0, sent), "bytes were lost or out of order");
    }

    async fn file_calls_that_are_sent_together_take_effect_in_order(bench: Bench) {
        let mut client = bench.client().await;
        let mut pairs = Vec::new();
        for n in 0..100 {
            let (directory, file) = (bench.uri(&format!("d{n}")), bench.uri(&format!("d{n}/file")));
            client.request("fs/createDirectory", json!({"path": directory}));
            let write = client.request("fs/writeFile", json!({"path": file, "dataBase64": base64(format!("{n}"))}));
            pairs.push((write, client.request("fs/readFile", json!({"path": file}))));
        }
        for (n, (write, read)) in pairs.into_iter().enumerate() {
            assert_eq!(client.answer(write).await["result"], json!({}), "{n}");
            assert_eq!(client.answer(read).await["result"]["dataBase64"], base64(format!("{n}")));
        }
    }

    async fn what_is_sent_together_with_the_handshake_is_served_in_order(bench: Bench) {
        let mut client = bench.connect().await;
        let early = client.request("environment/status", json!(null));
        let hello = client.request("initialize", json!({"clientName": "test"}));
        let between = client.request("environment/status", json!(null));
        client.notify("initialized", json!(null));
        let late = client.request("environment/status", json!(null));
        for (id, code) in [(early, json!(-32600)), (hello, json!(null)), (between, json!(-32600)), (late, json!(null))] {
            let answer = client.next_answer().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &code), "{answer}");
        }
    }
}

over_links! { [Memory, Unix, WebSocket]
    async fn output_flows_while_a_poll_of_another_process_waits(bench: Bench) {
        let mut client = bench.client().await;
        let pipe = Pipe::new(&bench, "pipe");
        client.start(bench.shell("silent", "exec sleep 60")).await;
        client.start(bench.shell("loud", "read x < pipe; echo $x")).await;
        let poll = client.request("process/read", json!({"processId": "silent", "waitMs": LONG}));
        client.flushed().await;
        pipe.go();
        assert_eq!(client.outcome("loud").await, (0, b"go\n".to_vec()));
        client.result("process/terminate", json!({"processId": "silent"})).await;
        assert_eq!(client.answer(poll).await["result"]["exited"], true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_request_at_a_time_a_poll_delays_everything_but_notifications() {
    let bench = with_arguments(&["--concurrent-requests", "1"]);
    let mut client = bench.client().await;
    let (loud, silent) = (Pipe::new(&bench, "loud"), Pipe::new(&bench, "silent"));
    client.start(bench.shell("silent", "read x < silent")).await;
    client.start(bench.shell("loud", "read x < loud; echo $x")).await;
    let poll = client.request("process/read", json!({"processId": "silent", "waitMs": LONG}));
    let stat = client.request("fs/getMetadata", json!({"path": bench.uri("")}));
    let status = client.request("environment/status", json!(null));
    let terminate = client.request("process/terminate", json!({"processId": "nobody"}));
    client.flushed().await;
    loud.go();
    assert_eq!(client.outcome("loud").await, (0, b"go\n".to_vec()));
    silent.go();
    for id in [poll, stat, status, terminate] {
        assert_eq!(client.next_answer().await["id"], id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_request_at_a_time_effects_come_in_the_order_of_the_requests() {
    let bench = with_arguments(&["--concurrent-requests", "1"]);
    let mut client = bench.client().await;
    let mut reads = Vec::new();
    for n in 0..100 {
        client.request("fs/writeFile", json!({"path": bench.uri("file"), "dataBase64": base64(format!("{n}"))}));
        reads.push(client.request("fs/readFile", json!({"path": bench.uri("file")})));
    }
    for (n, read) in reads.into_iter().enumerate() {
        assert_eq!(client.answer(read).await["result"]["dataBase64"], base64(format!("{n}")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_two_lanes_control_requests_pass_ordinary_ones_that_wait() {
    let bench = with_arguments(&["--concurrent-requests", "2"]);
    let mut client = bench.client().await;
    client.start(bench.shell("p", "exec sleep 60")).await;
    let polls = [(); 2].map(|()| client.request("process/read", json!({"processId": "p", "waitMs": LONG})));
    let stat = client.request("fs/getMetadata", json!({"path": bench.uri("")}));
    for (method, params) in [
        ("environment/info", json!(null)),
        ("environment/status", json!(null)),
        ("process/signal", json!({"processId": "nobody", "signal": "interrupt"})),
        ("process/terminate", json!({"processId": "nobody"})),
    ] {
        let control = client.request(method, params);
        assert_eq!(client.next_answer().await["id"], control, "{method}");
    }
    let terminate = client.request("process/terminate", json!({"processId": "p"}));
    let mut answered = Vec::new();
    while answered.len() < 4 {
        answered.push(client.next_answer().await["id"].as_i64().unwrap());
    }
    let place = |id: i64| answered.iter().position(|other| *other == id).unwrap();
    assert!(polls.iter().any(|poll| place(*poll) < place(stat)), "the stat did not wait for a permit: {answered:?}");
    assert!(answered.contains(&terminate));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_lanes_one_poll_leaves_room_for_another_request() {
    let bench = with_arguments(&["--concurrent-requests", "2"]);
    let mut client = bench.client().await;
    client.start(bench.shell("p", "exec sleep 60")).await;
    client.request("process/read", json!({"processId": "p", "waitMs": LONG}));
    let stats = [(); 5].map(|()| client.request("fs/getMetadata", json!({"path": bench.uri("")})));
    for stat in stats {
        assert_eq!(client.next_answer().await["id"], stat);
    }
}

/// The reaper below a process. Its parent is a cell, whose parent is the zygote.
fn reaper_below(pid: u32) -> Option<Pid> {
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let is_reaper = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "outpost-reaper");
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut reapers = processes.filter(is_reaper).filter(|reaper| parent(*reaper).and_then(parent).and_then(parent) == Some(pid));
    Pid::from_raw(reapers.next()?.cast_signed())
}

/// Each start waited for its reaper's answer before the next one was looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_wait_for_their_reapers_beside_each_other_and_the_rest_waits_for_them() {
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { readable: true, ..Setup::default() });
    let mut client = bench.client().await;
    client.start(bench.start("first", &["/bin/true"])).await;
    assert_eq!(client.outcome("first").await.0, 0);
    // The next start is given to the reaper that has nothing to do, which cannot answer now.
    let reaper = reaper_below(bench.process().unwrap().pid()).expect("a reaper without work");
    kill_process(reaper, Signal::STOP).unwrap();
    let held = client.request("process/start", with(bench.start("held", &["/bin/cat"]), json!({"pipeStdin": true})));
    let other = client.request("process/start", bench.start("other", &["/bin/true"]));
    let write = client.request("process/write", json!({"processId": "held", "chunk": base64("text"), "writeId": "w"}));
    let close = client.request("process/closeStdin", json!({"processId": "held"}));
    let first = client.next_answer().await;
    assert_eq!((&first["id"], &first["result"]["processId"]), (&json!(other), &json!("other")));
    kill_process(reaper, Signal::CONT).unwrap();
    assert_eq!(client.answer(held).await["result"]["processId"], "held");
    assert_eq!(client.answer(write).await["result"], json!({"status": "accepted"}), "it did not wait for the start");
    assert_eq!(client.answer(close).await["result"], json!({"status": "accepted"}));
    assert_eq!(client.outcome("held").await, (0, b"text".to_vec()));
}

/// A client that starts something and leaves at once says so behind the start: nothing of it may run on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_session_is_not_lost_behind_a_start_when_the_connection_closes() {
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { readable: true, ..Setup::default() });
    let mut client = bench.connect().await;
    let session = client.hello().await;
    client.start(bench.start("first", &["/bin/true"])).await;
    assert_eq!(client.outcome("first").await.0, 0);
    let reaper = reaper_below(bench.process().unwrap().pid()).expect("a reaper without work");
    kill_process(reaper, Signal::STOP).unwrap();
    client.request("process/start", bench.start("held", &["/bin/sleep", "1000"]));
    client.request("session/end", json!({}));
    // Both are on their way before the connection ends.
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(100)).await;
    kill_process(reaper, Signal::CONT).unwrap();
    let mut told = json!(null);
    for _ in 0..600 {
        let mut next = bench.connect().await;
        let resumed = next.request("initialize", json!({"clientName": "test", "resumeSessionId": session}));
        told = next.answer(resumed).await;
        if told["error"]["message"] == format!("unknown session id {session}") {
            return;
        }
        drop(next);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the session lives on with its command: {told}");
}
