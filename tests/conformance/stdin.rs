//! Standard input of a process: written once, in order, and ended on request.

use std::time::Duration;

use outpost_executor::InputLimits;
use outpost_testkit::bench::with;
use outpost_testkit::client::base64;
use outpost_testkit::{Bench, Client, LinkKind, Setup, over_every_link};
use serde_json::{Value, json};

use crate::support::OUTPOST;

async fn write(client: &mut Client, process: &str, text: &str, id: &str) -> Value {
    client.result("process/write", json!({"processId": process, "chunk": base64(text), "writeId": id})).await
}

async fn end(client: &mut Client, process: &str) -> Value {
    client.result("process/closeStdin", json!({"processId": process})).await
}

fn accepted() -> Value {
    json!({"status": "accepted"})
}

fn closed() -> Value {
    json!({"status": "stdinClosed"})
}

over_every_link! {
    async fn what_is_written_arrives(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "exec cat"), json!({"pipeStdin": true}))).await;
        assert_eq!(write(&mut client, "p", "one ", "1").await, accepted());
        assert_eq!(write(&mut client, "p", "", "nothing").await, accepted());
        assert_eq!(write(&mut client, "p", "two", "2").await, accepted());
        assert_eq!(end(&mut client, "p").await, accepted());
        assert_eq!(end(&mut client, "p").await, closed());
        assert_eq!(client.outcome("p").await, (0, b"one two".to_vec()));
    }

    async fn a_write_id_is_written_once(bench: Bench) {
        let mut client = bench.client().await;
        for id in ["p", "q"] {
            client.start(with(bench.shell(id, "exec cat"), json!({"pipeStdin": true}))).await;
            for (text, write_id) in [("first;", "a"), ("again;", "a"), ("second;", "b"), ("again;", "b"), ("again;", "a"), ("third;", " a")]
            {
                assert_eq!(write(&mut client, id, text, write_id).await, accepted());
            }
            assert_eq!(end(&mut client, id).await, accepted());
            assert_eq!(client.outcome(id).await, (0, b"first;second;third;".to_vec()));
        }
    }

    async fn a_write_that_was_accepted_stays_accepted_when_the_process_is_over(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "read x"), json!({"pipeStdin": true}))).await;
        assert_eq!(write(&mut client, "p", "x\n", "w").await, accepted());
        client.outcome("p").await;
        assert_eq!(write(&mut client, "p", "x\n", "w").await, accepted());
    }

    async fn a_write_id_sent_twice_before_the_first_answer_is_written_once(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "exec cat"), json!({"pipeStdin": true}))).await;
        let same = json!({"processId": "p", "chunk": base64("x"), "writeId": "w"});
        let ids: Vec<_> = (0..50).map(|_| client.request("process/write", same.clone())).collect();
        for id in ids {
            assert_eq!(client.answer(id).await["result"], accepted());
        }
        end(&mut client, "p").await;
        assert_eq!(client.outcome("p").await, (0, b"x".to_vec()));
    }

    async fn parameters_of_a_write_are_checked(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "exec cat"), json!({"pipeStdin": true}))).await;
        for (params, message) in [
            (json!({"processId": "p", "chunk": "eA=="}), "missing field `writeId`"),
            (json!({"processId": "p", "chunk": "eA==", "writeId": ""}), "writeId must not be empty"),
            (json!({"processId": "p", "chunk": "eA==", "writeId": null}), "invalid type: null, expected a string"),
            (json!({"processId": "p", "writeId": "w"}), "missing field `chunk`"),
            (json!({"processId": "p", "chunk": "***", "writeId": "w"}), "Invalid symbol 42, offset 0."),
            (json!({"processId": "p", "chunk": "eA", "writeId": "w"}), "Invalid padding"),
            (json!({"processId": "p", "chunk": "eA-_", "writeId": "w"}), "Invalid symbol 45, offset 2."),
        ] {
            assert_eq!(client.error("process/write", params).await, (-32602, message.into()));
        }
        assert_eq!(write(&mut client, "p", "x", "w").await, accepted(), "what was refused is not remembered");
        end(&mut client, "p").await;
        assert_eq!(client.outcome("p").await, (0, b"x".to_vec()));
    }

    async fn without_a_pipe_input_is_at_its_end(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "cat; echo end; exec sleep 60")).await;
        client.until(|message| message["method"] == "process/output").await;
        assert_eq!(write(&mut client, "p", "x", "w").await, closed());
        assert_eq!(end(&mut client, "p").await, closed());
        client.result("process/terminate", json!({"processId": "p"})).await;
        assert_eq!(client.outcome("p").await, (137, Vec::new()));
    }

    async fn nobody_is_written_to(bench: Bench) {
        let mut client = bench.client().await;
        assert_eq!(write(&mut client, "none", "x", "w").await, json!({"status": "unknownProcess"}));
        assert_eq!(end(&mut client, "none").await, json!({"status": "unknownProcess"}));
    }

    async fn a_process_that_is_over_takes_no_input(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "exit 1"), json!({"pipeStdin": true}))).await;
        client.outcome("p").await;
        let refused = client.error("process/write", json!({"processId": "p", "chunk": "eA==", "writeId": "w"})).await;
        assert_eq!(refused, (-32603, "failed to write to process stdin".into()));
    }

    async fn input_that_was_ended_takes_no_more(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "cat; exec sleep 60"), json!({"pipeStdin": true}))).await;
        assert_eq!(end(&mut client, "p").await, accepted());
        assert_eq!(write(&mut client, "p", "x", "w").await, closed());
        client.result("process/terminate", json!({"processId": "p"})).await;
    }

    async fn a_terminal_takes_input_and_its_end(bench: Bench) {
        let mut client = bench.client().await;
        client.start(with(bench.shell("p", "stty -echo; echo ready; exec cat"), json!({"tty": true}))).await;
        client.until(|message| message["method"] == "process/output").await;
        assert_eq!(write(&mut client, "p", "line\n", "1").await, accepted());
        assert_eq!(write(&mut client, "p", "line\n", "1").await, accepted());
        assert_eq!(end(&mut client, "p").await, accepted());
        assert_eq!(client.outcome("p").await, (0, b"line\r\n".to_vec()));
    }

    async fn a_terminal_turns_a_control_character_into_a_signal(bench: Bench) {
        let mut client = bench.client().await;
        client
            .start(with(
                bench.shell("p", "stty -echo; trap 'echo bye; exit 8' INT; echo ready; while :; do sleep 0.05; done"),
                json!({"tty": true}),
            ))
            .await;
        client.until(|message| message["method"] == "process/output").await;
        assert_eq!(write(&mut client, "p", "\u{3}", "1").await, accepted());
        assert_eq!(client.outcome("p").await, (8, b"bye\r\n".to_vec()));
    }
}

/// Larger than a pipe, and as much as waits for a session in [`crowded`].
const MUCH: usize = 200 << 10;

/// An executor that keeps little for processes that do not read, and one of those, for which there is all that it keeps.
async fn crowded(patience: Duration) -> (Bench, Client, String) {
    let setup = Setup { input: InputLimits { room: MUCH, patience }, ..Setup::default() };
    let bench = Bench::with_setup(LinkKind::Memory, OUTPOST, &setup);
    let mut client = bench.connect().await;
    let session = client.hello().await;
    for (id, script) in [("deaf", "exec sleep 600"), ("other", "exec wc -c"), ("small", "exec cat")] {
        client.start(with(bench.shell(id, script), json!({"pipeStdin": true}))).await;
    }
    assert_eq!(write(&mut client, "deaf", &much(), "w").await, accepted());
    (bench, client, session)
}

fn much() -> String {
    "x".repeat(MUCH)
}

fn request(client: &mut Client, process: &str) -> i64 {
    client.request("process/write", json!({"processId": process, "chunk": base64(much()), "writeId": "w"}))
}

/// Nothing is answered for a while.
async fn waits(client: &mut Client) {
    assert_eq!(client.quiet(Duration::from_millis(200)).await, Vec::<Value>::new());
}

const FOR_EVER: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_waits_while_too_much_is_unread() {
    let (_bench, mut client, _) = crowded(FOR_EVER).await;
    let waiting = request(&mut client, "other");
    waits(&mut client).await;
    // What is typed gets through, and the end of the input keeps its place behind the write.
    assert_eq!(write(&mut client, "small", "typed", "1").await, accepted());
    let end_of_other = client.request("process/closeStdin", json!({"processId": "other"}));
    waits(&mut client).await;
    client.result("process/terminate", json!({"processId": "deaf"})).await;
    assert_eq!(client.answer(waiting).await["result"], accepted());
    assert_eq!(client.answer(end_of_other).await["result"], accepted());
    assert_eq!(client.outcome("other").await, (0, format!("{MUCH}\n").into_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_ends_with_its_process() {
    let (_bench, mut client, _) = crowded(FOR_EVER).await;
    let waiting = request(&mut client, "other");
    waits(&mut client).await;
    client.result("process/terminate", json!({"processId": "other"})).await;
    assert_eq!(client.answer(waiting).await["error"]["message"], "failed to write to process stdin");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_is_not_made_when_its_connection_is_lost() {
    let (bench, mut client, session) = crowded(FOR_EVER).await;
    request(&mut client, "other");
    waits(&mut client).await;
    client.close();
    let mut client = bench.connect().await;
    client.resume(&session).await;
    client.result("process/terminate", json!({"processId": "deaf"})).await;
    // Made again, it is made once.
    assert_eq!(write(&mut client, "other", &much(), "w").await, accepted());
    assert_eq!(write(&mut client, "other", &much(), "w").await, accepted());
    assert_eq!(end(&mut client, "other").await, accepted());
    assert_eq!(client.outcome("other").await, (0, format!("{MUCH}\n").into_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_does_not_wait_for_ever() {
    let (_bench, mut client, _) = crowded(Duration::from_millis(50)).await;
    let (_, why) = client.error("process/write", json!({"processId": "other", "chunk": base64(much()), "writeId": "w"})).await;
    assert!(why.starts_with("nothing of this write was taken: "), "{why}");
    assert_eq!(write(&mut client, "other", "12345", "v").await, accepted());
    assert_eq!(end(&mut client, "other").await, accepted());
    assert_eq!(client.outcome("other").await, (0, b"5\n".to_vec()));
}
