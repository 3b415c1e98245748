//! `process/read`: cursors into the output of a process.

use outpost_testkit::bench::with;
use outpost_testkit::client::{base64, decode};
use outpost_testkit::{Bench, Client, over_every_link};
use serde_json::{Value, json};

use crate::support::Pipe;

/// A process that wrote `one`, `two` and `three` as three chunks, and is closed.
async fn three_chunks(bench: &Bench) -> Client {
    let mut client = bench.client().await;
    client.start(with(bench.shell("p", "exec cat"), json!({"pipeStdin": true}))).await;
    for (n, text) in ["one", "two", "three"].into_iter().enumerate() {
        client.result("process/write", json!({"processId": "p", "chunk": base64(text), "writeId": text})).await;
        client.result("process/read", json!({"processId": "p", "afterSeq": n, "waitMs": 30_000})).await;
    }
    client.result("process/closeStdin", json!({"processId": "p"})).await;
    client.events("p").await;
    client
}

fn piece(seq: u64, text: &str) -> Value {
    json!({"seq": seq, "stream": "stdout", "chunk": base64(text)})
}

over_every_link! {
    async fn a_read_tells_everything_at_once(bench: Bench) {
        let mut client = three_chunks(&bench).await;
        let whole = json!({
            "chunks": [piece(1, "one"), piece(2, "two"), piece(3, "three")], "nextSeq": 6, "exited": true, "exitCode": 0,
            "closed": true, "failure": null, "sandboxDenied": false,
        });
        assert_eq!(client.result("process/read", json!({"processId": "p"})).await, whole);
        let explicit = json!({"processId": "p", "afterSeq": null, "maxBytes": null, "waitMs": null});
        assert_eq!(client.result("process/read", explicit).await, whole, "reads are repeatable");
        let patient = json!({"processId": "p", "afterSeq": 5, "waitMs": 600_000});
        assert_eq!(client.result("process/read", patient).await, with(whole, json!({"chunks": []})), "nothing can come any more");
    }

    async fn a_read_goes_on_after_a_number(bench: Bench) {
        let mut client = three_chunks(&bench).await;
        for (after, chunks) in [
            (1, json!([piece(2, "two"), piece(3, "three")])),
            (2, json!([piece(3, "three")])),
            (3, json!([])),
            (5, json!([])),
            (1000, json!([])),
            (u64::from(u32::MAX), json!([])),
        ] {
            let read = client.read("p", after).await;
            assert_eq!((&read["chunks"], &read["nextSeq"]), (&chunks, &json!(6)), "after {after}");
        }
    }

    async fn the_highest_number_of_all_is_just_beyond_the_end(bench: Bench) {
        let mut client = three_chunks(&bench).await;
        let read = client.read("p", u64::MAX).await;
        assert_eq!((&read["chunks"], &read["nextSeq"], &read["closed"]), (&json!([]), &json!(6), &json!(true)));
    }

    async fn a_bounded_read_returns_at_least_one_chunk_and_says_where_it_ends(bench: Bench) {
        let mut client = three_chunks(&bench).await;
        for (after, bound, chunks, next) in [
            (0, 0, json!([piece(1, "one")]), 2),
            (0, 1, json!([piece(1, "one")]), 2),
            (0, 5, json!([piece(1, "one")]), 2),
            (0, 6, json!([piece(1, "one"), piece(2, "two")]), 3),
            (0, 10, json!([piece(1, "one"), piece(2, "two")]), 3),
            (0, 11, json!([piece(1, "one"), piece(2, "two"), piece(3, "three")]), 4),
            (0, 1_000_000, json!([piece(1, "one"), piece(2, "two"), piece(3, "three")]), 4),
            (2, 1, json!([piece(3, "three")]), 4),
            (3, 1, json!([]), 6),
            (9, 0, json!([]), 6),
        ] {
            let read = client.result("process/read", json!({"processId": "p", "afterSeq": after, "maxBytes": bound})).await;
            assert_eq!((&read["chunks"], &read["nextSeq"]), (&chunks, &json!(next)), "after {after}, at most {bound} bytes");
            assert_eq!((&read["exited"], &read["closed"]), (&json!(true), &json!(true)));
        }
    }

    async fn a_read_of_a_silent_process_ends_with_its_patience(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "exec sleep 60")).await;
        let nothing = json!({
            "chunks": [], "nextSeq": 1, "exited": false, "exitCode": null, "closed": false, "failure": null, "sandboxDenied": false,
        });
        for wait in [json!(null), json!(0), json!(1), json!(300)] {
            assert_eq!(client.result("process/read", json!({"processId": "p", "waitMs": wait})).await, nothing);
        }
        client.result("process/terminate", json!({"processId": "p"})).await;
    }

    async fn a_read_waits_for_output(bench: Bench) {
        let mut client = bench.client().await;
        let pipe = Pipe::new(&bench, "pipe");
        client.start(bench.shell("p", "read x < pipe; echo $x; exec sleep 60")).await;
        for wait in [60_000, u64::MAX] {
            let poll = client.request("process/read", json!({"processId": "p", "waitMs": wait}));
            if wait == 60_000 {
                client.flushed().await;
                pipe.go();
            }
            let read = &client.answer(poll).await["result"];
            assert_eq!((&read["chunks"], &read["nextSeq"], &read["exited"]), (&json!([piece(1, "go\n")]), &json!(2), &json!(false)));
        }
        client.result("process/terminate", json!({"processId": "p"})).await;
    }

    async fn an_exit_is_news_once(bench: Bench) {
        let mut client = bench.client().await;
        let pipe = Pipe::new(&bench, "pipe");
        // Somebody else holds the output, so that the exit comes long before the end.
        client.start(bench.shell("p", "(read x < pipe) & exit 6")).await;
        let news = client.result("process/read", json!({"processId": "p", "afterSeq": 0, "waitMs": 60_000})).await;
        assert_eq!(
            (&news["exited"], &news["exitCode"], &news["closed"], &news["nextSeq"]),
            (&json!(true), &json!(6), &json!(false), &json!(2))
        );
        let poll = client.request("process/read", json!({"processId": "p", "afterSeq": 1, "waitMs": 60_000}));
        client.flushed().await;
        pipe.go();
        let end = &client.answer(poll).await["result"];
        assert_eq!((&end["exitCode"], &end["closed"], &end["nextSeq"]), (&json!(6), &json!(true), &json!(3)));
    }

    async fn a_read_of_nobody_is_refused(bench: Bench) {
        let mut client = bench.client().await;
        assert_eq!(
            client.error("process/read", json!({"processId": "none", "waitMs": 60_000})).await,
            (-32600, "unknown process id none".into())
        );
        for params in [
            json!({"processId": "p", "afterSeq": -1}),
            json!({"processId": "p", "maxBytes": "1"}),
            json!({"processId": "p", "waitMs": 1.5}),
        ] {
            assert_eq!(client.error("process/read", params).await.0, -32602);
        }
    }

    async fn reads_and_notifications_tell_the_same(bench: Bench) {
        let mut client = bench.client().await;
        client.start(bench.shell("p", "i=0; while [ $i -lt 300 ]; do echo line $i; echo err $i >&2; i=$((i+1)); done")).await;
        let pushed: Vec<_> = client
            .events("p")
            .await
            .into_iter()
            .filter(|event| event["method"] == "process/output")
            .map(|mut event| {
                event["params"].as_object_mut().unwrap().remove("processId");
                event["params"].take()
            })
            .collect();
        assert_eq!(client.read("p", 0).await["chunks"], json!(pushed));
        let mut pieces = Vec::new();
        let mut after = 0;
        loop {
            let read = client.result("process/read", json!({"processId": "p", "afterSeq": after, "maxBytes": 100})).await;
            let chunks = read["chunks"].as_array().unwrap();
            if chunks.is_empty() {
                break;
            }
            pieces.extend(chunks.iter().cloned());
            after = read["nextSeq"].as_u64().unwrap() - 1;
        }
        assert_eq!(
            pieces.iter().map(|piece| decode(&piece["chunk"])).collect::<Vec<_>>().concat(),
            pushed.iter().map(|piece| decode(&piece["chunk"])).collect::<Vec<_>>().concat()
        );
    }
}
