//! Output that nobody reads at once: what is kept, and how its loss is told.

use std::fs;
use std::time::Duration;

use outpost_testkit::client::decode;
use outpost_testkit::executor::eventually;
use outpost_testkit::{Bench, Client, LinkKind, Setup, over_links};
use serde_json::{Value, json};

use crate::support::{OUTPOST, Pipe, with_arguments};

/// Bytes that repeat nowhere near.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Lets a process print bytes while nobody is connected; returns its session.
async fn print_alone(bench: &Bench, bytes: &[u8]) -> String {
    fs::write(bench.path("data"), bytes).unwrap();
    let away = Pipe::new(bench, "away");
    let mut client = bench.connect().await;
    let session = client.hello().await;
    client.start(bench.shell("p", "read x < away; cat data; touch done")).await;
    client.close();
    away.go();
    let done = bench.path("done");
    eventually("everything was printed", || done.exists()).await;
    session
}

async fn resume(bench: &Bench, session: &str, extensions: Value) -> Client {
    let mut client = bench.connect().await;
    client.greet(json!({"clientName": "test", "resumeSessionId": session, "extensions": extensions})).await;
    client
}

/// Everything that a process has to tell, read to its end.
async fn read_all(client: &mut Client, bound: Value) -> Vec<Value> {
    let mut pieces = Vec::new();
    let mut after = 0;
    loop {
        let read = client.result("process/read", json!({"processId": "p", "afterSeq": after, "maxBytes": bound, "waitMs": 30_000})).await;
        let chunks = read["chunks"].as_array().unwrap();
        let at_end = chunks.is_empty() && read["closed"] == true;
        pieces.extend(chunks.iter().cloned());
        after = read["nextSeq"].as_u64().unwrap() - 1;
        if at_end {
            return pieces;
        }
    }
}

fn numbers(pieces: &[Value]) -> Vec<u64> {
    pieces.iter().map(|piece| piece["seq"].as_u64().unwrap()).collect()
}

fn bytes(pieces: &[Value]) -> Vec<u8> {
    pieces.iter().filter(|piece| piece.get("chunk").is_some()).flat_map(|piece| decode(&piece["chunk"])).collect()
}

/// Whether these bytes are the end of those.
fn is_tail(tail: &[u8], whole: &[u8]) -> bool {
    whole.ends_with(tail)
}

over_links! { [Memory, Unix, WebSocket]
    async fn what_was_printed_while_nobody_was_there_is_all_there(bench: Bench) {
        let data = noise(3_000_000);
        let session = print_alone(&bench, &data).await;
        let mut client = resume(&bench, &session, json!(null)).await;
        for bound in [json!(null), json!(100_000)] {
            let pieces = read_all(&mut client, bound).await;
            assert!(bytes(&pieces) == data, "bytes were lost or changed");
            let numbers = numbers(&pieces);
            assert_eq!((numbers[0], numbers[numbers.len() - 1] - numbers[0] + 1), (1, numbers.len() as u64), "{numbers:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_did_not_fit_is_told_by_its_exact_size_to_whoever_asks() {
    let bench = with_arguments(&["--spool", "1048576"]);
    let data = noise(5_000_000);
    let session = print_alone(&bench, &data).await;
    let mut client = resume(&bench, &session, json!(["outputGaps", "future"])).await;
    for bound in [json!(null), json!(1)] {
        let pieces = read_all(&mut client, bound).await;
        let gap = pieces[0]["gapBytes"].as_u64().unwrap();
        assert_eq!(pieces[0].as_object().unwrap().len(), 2, "a gap has a number and a size: {}", pieces[0]);
        let kept = bytes(&pieces);
        assert_eq!(gap + kept.len() as u64, 5_000_000);
        assert!(is_tail(&kept, &data), "bytes were changed");
        assert!((1 << 20..=(1 << 20) + (256 << 10)).contains(&kept.len()), "{} bytes were kept", kept.len());
        let numbers = numbers(&pieces);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "one gap and no other: {numbers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_did_not_fit_is_a_jump_in_the_numbers_to_everybody_else() {
    let bench = with_arguments(&["--spool", "1048576"]);
    let data = noise(5_000_000);
    let session = print_alone(&bench, &data).await;
    let mut client = resume(&bench, &session, json!(null)).await;
    let pieces = read_all(&mut client, json!(null)).await;
    assert!(pieces.iter().all(|piece| piece.get("gapBytes").is_none()));
    let numbers = numbers(&pieces);
    assert!(numbers[0] > 1, "{numbers:?}");
    assert!(is_tail(&bytes(&pieces), &data) && bytes(&pieces).len() >= 1 << 20);
    // The same place is named to both kinds of client.
    let mut client = resume(&bench, &session, json!(["outputGaps"])).await;
    assert_eq!(read_all(&mut client, json!(null)).await[0]["seq"], numbers[0] - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_there_but_slow_loses_nothing() {
    let bench = with_arguments(&["--spool", "100000"]);
    // A size that chunks do not fill without a rest.
    let data = noise(1_000_000);
    fs::write(bench.path("data"), &data).unwrap();
    let mut client = bench.client().await;
    client.start(bench.shell("p", "for i in 1 2 3 4 5 6 7 8; do cat data; touch some; done")).await;
    let some = bench.path("some");
    eventually("much was printed", || some.exists()).await;
    let events = client.events("p").await;
    let seqs: Vec<_> = events.iter().map(|event| event["params"]["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    let printed: Vec<u8> =
        events.iter().filter(|event| event["method"] == "process/output").flat_map(|event| decode(&event["params"]["chunk"])).collect();
    assert!(printed == data.repeat(8), "bytes were lost or changed");
}

/// Each connection lives for half of the time for which an ended process is kept for a client that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_cut_again_and_again_does_not_keep_everything() {
    const KEPT: Duration = Duration::from_millis(1200);
    let setup = Setup { closed_retention: Some(KEPT), ..Setup::default() };
    let bench = Bench::with_setup(LinkKind::Memory, OUTPOST, &setup);
    let mut client = bench.connect().await;
    let session = client.hello().await;
    client.start(bench.shell("p", "echo done")).await;
    client.result("process/read", json!({"processId": "p", "afterSeq": 0, "waitMs": 30_000})).await;
    for _ in 0..40 {
        tokio::time::sleep(KEPT / 2).await;
        let listed = client.result("process/list", json!(null)).await;
        if listed["processes"] == json!([]) {
            return;
        }
        client.close();
        client = resume(&bench, &session, json!([])).await;
    }
    panic!("the process is still kept");
}

/// While no client is there, and right after one is there again, it is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_client_could_read_yet_is_kept() {
    // A busy machine needs its time to connect and to ask.
    const KEPT: Duration = Duration::from_secs(5);
    let setup = Setup { closed_retention: Some(KEPT), ..Setup::default() };
    let bench = Bench::with_setup(LinkKind::Memory, OUTPOST, &setup);
    let session = print_alone(&bench, b"text").await;
    tokio::time::sleep(KEPT + Duration::from_secs(2)).await;
    let mut client = resume(&bench, &session, json!([])).await;
    let read = client.result("process/read", json!({"processId": "p", "afterSeq": 0, "waitMs": 30_000})).await;
    assert!(read["chunks"].as_array().is_some_and(|chunks| !chunks.is_empty()), "{read}");
}
