//! Sessions: what outlives a connection, who gets it back, and when it is over.

use std::process::Stdio;
use std::time::Duration;

use outpost_rpc::LinkError;
use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::{Bench, Client, ExecutorProcess, RawSocket, over_every_link, over_links};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::{OUTPOST, Pipe, with_arguments};

/// The number of a process's leader on this machine.
async fn pid(client: &mut Client, process: &str) -> u32 {
    let list = client.result("process/list", json!(null)).await;
    let rows = list["processes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["processId"] == process).unwrap();
    row["pid"].as_u64().unwrap().try_into().unwrap()
}

async fn resume(bench: &Bench, session: &str) -> Client {
    let mut client = bench.connect().await;
    assert_eq!(client.resume(session).await, session);
    client
}

over_every_link! {
    async fn process_ids_belong_to_their_session(bench: Bench) {
        let (mut one, mut two) = (bench.client().await, bench.client().await);
        one.start(bench.shell("p", "echo one")).await;
        two.start(bench.shell("p", "echo two; exit 2")).await;
        assert_eq!(one.outcome("p").await, (0, b"one\n".to_vec()));
        assert_eq!(two.outcome("p").await, (2, b"two\n".to_vec()));
        let mut three = bench.client().await;
        assert_eq!(three.error("process/read", json!({"processId": "p"})).await, (-32600, "unknown process id p".into()));
        assert_eq!(three.result("process/list", json!(null)).await, json!({"processes": []}));
    }

    async fn every_connection_gets_a_session_of_its_own(bench: Bench) {
        let (mut one, mut two) = (bench.connect().await, bench.connect().await);
        assert_ne!(one.hello().await, two.hello().await);
    }

    async fn the_end_of_a_session_needs_one(bench: Bench) {
        let mut client = bench.connect().await;
        let refused = client.error("session/end", json!({})).await;
        assert_eq!(refused, (-32600, "client must call initialize before using session methods".into()));
    }
}

over_links! { [Memory, Unix, WebSocket]
    async fn the_end_of_a_session_kills_everything_in_it(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "sleep 60 & echo started; wait")).await;
        client.until(|message| message["method"] == "process/output").await;
        let pid = pid(&mut client, "p").await;
        assert_eq!(client.result("session/end", json!({})).await, json!({}));
        client.closed().await;
        eventually("the process is gone", || !is_alive(pid)).await;
    }

    async fn a_process_lives_on_without_a_connection_and_is_read_afterwards(bench: Bench) {
        let (away, back) = (Pipe::new(&bench, "away"), Pipe::new(&bench, "back"));
        let mut client = bench.connect().await;
        let session = client.hello().await;
        client.start(bench.shell("p", "echo one; read x < away; echo two; touch done; read x < back; echo three; exit 3")).await;
        client.until(|message| message["method"] == "process/output").await;
        client.close();
        away.go();
        let done = bench.path("done");
        eventually("the script got on", || done.exists()).await;

        let mut client = resume(&bench, &session).await;
        let mut missed = client.result("process/read", json!({"processId": "p", "afterSeq": 1, "waitMs": 20_000})).await;
        assert_eq!(missed["chunks"], json!([{"seq": 2, "stream": "stdout", "chunk": "dHdvCg=="}]));
        assert_eq!((missed["nextSeq"].take(), missed["exited"].take()), (json!(3), json!(false)));
        back.go();
        let told: Vec<_> = client.events("p").await.iter().map(|event| event["params"]["seq"].as_u64().unwrap()).collect();
        // What came while nobody was there is read, not pushed.
        assert!(told.ends_with(&[3, 4, 5]) && !told.contains(&1), "{told:?}");
        let last = client.read("p", 0).await;
        assert_eq!((&last["exitCode"], &last["closed"], &last["nextSeq"]), (&json!(3), &json!(true), &json!(6)));
    }

    async fn a_process_that_ends_while_nobody_is_there_is_told_on_return(bench: Bench) {
        let away = Pipe::new(&bench, "away");
        let mut client = bench.connect().await;
        let session = client.hello().await;
        client.start(bench.shell("p", "read x < away; echo out; echo err >&2; exit 9")).await;
        client.close();
        away.go();
        let mut client = resume(&bench, &session).await;
        let mut after = 0;
        let mut chunks = 0;
        let end = loop {
            let read = client.result("process/read", json!({"processId": "p", "afterSeq": after, "waitMs": 20_000})).await;
            chunks += read["chunks"].as_array().unwrap().len();
            after = read["nextSeq"].as_u64().unwrap() - 1;
            if read["closed"] == true {
                break read;
            }
        };
        assert_eq!((chunks, &end["exitCode"], after), (2, &json!(9), 4));
    }

    async fn a_disconnect_in_the_middle_of_a_poll_only_detaches(bench: Bench) {
        let mut client = bench.connect().await;
        let session = client.hello().await;
        client.start(bench.shell("p", "exec sleep 60")).await;
        let pid = pid(&mut client, "p").await;
        client.request("process/read", json!({"processId": "p", "waitMs": 60_000}));
        client.result("environment/status", json!(null)).await;
        client.close();
        let mut client = resume(&bench, &session).await;
        assert_eq!(client.read("p", 0).await["exited"], false);
        assert!(is_alive(pid));
        assert_eq!(client.result("process/terminate", json!({"processId": "p"})).await, json!({"running": true}));
    }

    async fn a_violation_detaches_as_well(bench: Bench) {
        let mut client = bench.connect().await;
        let session = client.hello().await;
        client.start(bench.shell("p", "exec sleep 60")).await;
        client.notify("no/such", json!({}));
        client.closed().await;
        let mut client = resume(&bench, &session).await;
        assert_eq!(client.read("p", 0).await["exited"], false);
    }

    async fn write_ids_are_remembered_over_a_reconnect(bench: Bench) {
        let mut client = bench.connect().await;
        let session = client.hello().await;
        let mut start = bench.shell("p", "exec cat");
        start["pipeStdin"] = json!(true);
        client.start(start.clone()).await;
        let write = json!({"processId": "p", "chunk": "b25jZQo=", "writeId": "w"});
        assert_eq!(client.result("process/write", write.clone()).await, json!({"status": "accepted"}));
        client.close();
        let mut client = resume(&bench, &session).await;
        assert_eq!(client.result("process/write", write).await, json!({"status": "accepted"}));
        assert_eq!(client.start(start).await["processId"], "p");
        client.result("process/closeStdin", json!({"processId": "p"})).await;
        while client.result("process/read", json!({"processId": "p", "afterSeq": 1, "waitMs": 20_000})).await["closed"] != true {}
        let read = client.read("p", 0).await;
        assert_eq!(read["chunks"], json!([{"seq": 1, "stream": "stdout", "chunk": "b25jZQo="}]));
    }

    async fn a_session_that_was_ended_cannot_be_resumed(bench: Bench) {
        let mut client = bench.connect().await;
        let session = client.hello().await;
        client.result("session/end", json!(null)).await;
        client.closed().await;
        let mut client = bench.connect().await;
        let refused = client.error("initialize", json!({"clientName": "test", "resumeSessionId": session})).await;
        assert_eq!(refused, (-32600, format!("unknown session id {session}")));
    }

    async fn whoever_lost_the_session_loses_its_polls_and_the_newer_one_keeps_its_own(bench: Bench) {
        let pipe = Pipe::new(&bench, "pipe");
        let mut first = bench.connect().await;
        let session = first.hello().await;
        first.start(bench.shell("p", "read x < pipe; echo $x")).await;
        let polls = [(); 3].map(|()| first.request("process/read", json!({"processId": "p", "waitMs": 60_000})));
        // Once this is answered, the polls before it were taken.
        first.result("environment/status", json!(null)).await;
        let mut second = resume(&bench, &session).await;
        for poll in polls {
            let refused = first.answer(poll).await;
            assert_eq!(refused["error"], json!({"code": -32600, "message": "session has been resumed by another connection"}));
        }
        first.closed().await;
        let mut third = resume(&bench, &session).await;
        second.closed().await;
        pipe.go();
        assert_eq!(third.outcome("p").await, (0, b"go\n".to_vec()));
    }
}

over_links! { [Unix, WebSocket]
    async fn whoever_lost_the_session_is_told_by_a_code_of_its_own(bench: Bench) {
        let mut first = bench.connect().await;
        let session = first.hello().await;
        let _second = resume(&bench, &session).await;
        match first.closed().await {
            Some(LinkError::Closed(close)) => {
                assert_eq!((close.code, close.reason.as_str()), (4001, "session has been resumed by another connection"));
            }
            other => panic!("ended in another way: {other:?}"),
        }
    }

    async fn the_end_of_a_session_closes_the_connection_in_the_normal_way(bench: Bench) {
        let mut client = bench.client().await;
        client.result("session/end", json!({})).await;
        match client.closed().await {
            Some(LinkError::Closed(close)) => assert_eq!(close.code, 1000),
            other => panic!("ended in another way: {other:?}"),
        }
    }
}

over_links! { [Stdio]
    async fn the_end_of_a_session_is_answered_before_standard_output_ends(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "exec sleep 60")).await;
        let pid = pid(&mut client, "p").await;
        assert_eq!(client.result("session/end", json!({})).await, json!({}));
        client.closed().await;
        eventually("the process is gone", || !is_alive(pid)).await;
    }
}

over_links! { [WebSocket]
    async fn a_connection_that_is_cut_without_a_word_only_detaches(bench: Bench) {
        let mut socket = RawSocket::websocket(bench.address()).await;
        let session = socket.hello().await;
        let mut start = bench.shell("p", "exec sleep 60");
        start["processId"] = json!("p");
        assert_eq!(socket.call(&json!({"id": 1, "method": "process/start", "params": start})).await["id"], 1);
        socket.cut();
        let mut client = resume(&bench, &session).await;
        assert_eq!(client.result("process/terminate", json!({"processId": "p"})).await, json!({"running": true}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_comes_back_for_ends_with_its_processes() {
    let bench = with_arguments(&["--grace", "1"]);
    let mut client = bench.connect().await;
    let hello = client.result("initialize", json!({"clientName": "test"})).await;
    assert_eq!(hello["graceMs"], 1000);
    client.notify("initialized", json!(null));
    client.start(bench.shell("p", "exec sleep 60")).await;
    let pid = pid(&mut client, "p").await;
    client.close();
    eventually("the process was killed", || !is_alive(pid)).await;
    let mut client = bench.connect().await;
    let session = hello["sessionId"].as_str().unwrap();
    let refused = client.error("initialize", json!({"clientName": "test", "resumeSessionId": session})).await;
    assert_eq!(refused, (-32600, format!("unknown session id {session}")));
}

/// The end of a command that no client has heard of is kept beyond the grace, and its output; a session that owes nothing ends with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_which_a_command_runs_outlives_the_grace() {
    let bench = with_arguments(&["--grace", "1", "--grace-running", "600"]);
    let mut idle = bench.connect().await;
    let owes_nothing = idle.hello().await;
    let mut client = bench.connect().await;
    let session = client.hello().await;
    client.start(bench.shell("p", "while [ ! -e go ]; do sleep 0.01; done; echo done")).await;
    client.close();
    idle.close();
    // It was left at the same time, and is over when the grace is.
    loop {
        let mut asking = bench.connect().await;
        let params = json!({"clientName": "test", "resumeSessionId": owes_nothing});
        let answer = asking.call("initialize", params).await;
        if answer.get("error").is_some() {
            break;
        }
        asking.notify("initialized", json!(null));
        asking.close();
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    std::fs::write(bench.path("go"), "").unwrap();
    let mut client = resume(&bench, &session).await;
    // It may have ended before this client came: what is over is read, not pushed again.
    while client.result("process/read", json!({"processId": "p", "afterSeq": 1, "waitMs": 20_000})).await["closed"] != true {}
    let ended = client.read("p", 0).await;
    assert_eq!((&ended["exitCode"], &ended["chunks"][0]["chunk"]), (&json!(0), &json!("ZG9uZQo=")), "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_attached_does_not_expire() {
    let bench = with_arguments(&["--grace", "1"]);
    let mut client = bench.connect().await;
    let session = client.hello().await;
    client.start(bench.shell("p", "sleep 3; echo done")).await;
    client.close();
    let mut client = resume(&bench, &session).await;
    assert_eq!(client.outcome("p").await, (0, b"done\n".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_standard_input_kills_everything_and_is_a_success() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut executor = tokio::process::Command::new(OUTPOST)
        .args(["executor", "--listen", "stdio"])
        .env("OUTPOST_HOME", home.path())
        .current_dir(work.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = executor.stdin.take().unwrap();
    let mut output = BufReader::new(executor.stdout.take().unwrap()).lines();
    let start =
        json!({"processId": "p", "argv": ["/bin/sh", "-c", "sleep 60 & echo $!; wait"], "cwd": "file:///", "env": {}, "tty": false});
    for message in [
        json!({"id": 1, "method": "initialize", "params": {"clientName": "test"}}),
        json!({"method": "initialized"}),
        json!({"id": 2, "method": "process/start", "params": start}),
        json!({"id": 3, "method": "process/list"}),
    ] {
        input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
    let (mut leader, mut grandchild) = (None, None);
    while leader.is_none() || grandchild.is_none() {
        let message: Value = serde_json::from_str(&output.next_line().await.unwrap().unwrap()).unwrap();
        if message["id"] == 3 {
            leader = message["result"]["processes"][0]["pid"].as_u64();
        }
        if message["method"] == "process/output" {
            let text = outpost_testkit::client::decode(&message["params"]["chunk"]);
            grandchild = String::from_utf8(text).unwrap().trim().parse::<u64>().ok();
        }
    }
    drop(input);
    assert_eq!(executor.wait().await.unwrap().code(), Some(0));
    for pid in [leader, grandchild] {
        let pid = u32::try_from(pid.unwrap()).unwrap();
        eventually("the process was killed", || !is_alive(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_is_asked_to_stop_takes_its_processes_along() {
    let mut executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--no-auth"]);
    let mut socket = RawSocket::websocket(executor.address()).await;
    socket.hello().await;
    let start = json!({"processId": "p", "argv": ["/bin/sleep", "60"], "cwd": "file:///", "env": {}, "tty": false});
    socket.call(&json!({"id": 1, "method": "process/start", "params": start})).await;
    let list = socket.call(&json!({"id": 2, "method": "process/list"})).await;
    let pid = u32::try_from(list["result"]["processes"][0]["pid"].as_u64().unwrap()).unwrap();
    assert!(is_alive(pid));
    assert_eq!(executor.stop(), Some(0));
    assert!(!is_alive(pid));
}
