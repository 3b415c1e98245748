//! How much is taken, from whom, and that nobody else suffers for it.

use std::sync::Arc;
use std::time::Duration;

use outpost_testkit::executor::eventually;
use outpost_testkit::raw::{BINARY, TEXT, frame, header};
use outpost_testkit::{Bench, RawSocket, over_every_link, over_links};
use serde_json::{Value, json};

use crate::support::{Pipe, with_arguments};

const MIB: usize = 1 << 20;
/// Room for the allocator's habits; what it must catch are the gigabytes that the frames below declare.
const GROWTH: u64 = 96 << 20;

/// A status request of exactly so many bytes.
fn padded(length: usize) -> String {
    let bare = r#"{"id":"padded","method":"environment/status","extra":""}"#.len();
    format!(r#"{{"id":"padded","method":"environment/status","extra":"{}"}}"#, "x".repeat(length - bare))
}

over_every_link! {
    async fn a_message_of_forty_megabytes_is_taken(bench: Bench) {
        let mut client = bench.client().await;
        client.send_text(padded(40 * MIB));
        assert_eq!(client.answer("padded").await["result"], json!({"status": "ready"}));
    }
}

over_links! { [Memory, WebSocket]
    async fn a_file_of_thirty_megabytes_goes_both_ways(bench: Bench) {
        let mut client = bench.client().await;
        let data = "bW1t".repeat(10 * MIB);
        client.result("fs/writeFile", json!({"path": bench.uri("big"), "dataBase64": data})).await;
        assert_eq!(std::fs::metadata(bench.path("big")).unwrap().len(), 30 << 20);
        let read = client.result("fs/readFile", json!({"path": bench.uri("big")})).await;
        assert!(read["dataBase64"] == data);
    }
}

over_links! { [Stdio, Unix, WebSocket]
    async fn a_message_of_sixty_five_megabytes_ends_the_link(bench: Bench) {
        let mut client = bench.client().await;
        client.send_text(padded(65 * MIB));
        client.closed().await;
        let mut other = bench.client().await;
        assert_eq!(other.result("environment/status", json!(null)).await, json!({"status": "ready"}));
    }

    async fn the_largest_message_is_sixty_four_megabytes(bench: Bench) {
        let mut client = bench.client().await;
        client.send_text(padded(64 * MIB));
        assert_eq!(client.answer("padded").await["result"], json!({"status": "ready"}));
        client.send_text(padded(64 * MIB + 1));
        client.closed().await;
    }
}

over_links! { [Unix, WebSocket]
    async fn a_stranger_may_send_sixty_four_kilobytes(bench: Bench) {
        let mut client = bench.connect().await;
        client.send(&json!({"id": 1, "method": "initialize", "params": {"clientName": "x".repeat(50_000)}}));
        assert!(client.answer(1).await["result"]["sessionId"].is_string());
        let mut client = bench.connect().await;
        client.send(&json!({"id": 1, "method": "initialize", "params": {"clientName": "x".repeat(100_000)}}));
        client.closed().await;
    }

    async fn what_a_stranger_sends_is_added_up(bench: Bench) {
        let mut client = bench.connect().await;
        for _ in 0..3000 {
            client.request("environment/status", json!(null));
        }
        client.closed().await;
        let mut other = bench.client().await;
        assert_eq!(other.result("environment/status", json!(null)).await, json!({"status": "ready"}));
    }

    async fn whoever_introduces_themselves_may_go_on_at_once(bench: Bench) {
        let mut client = bench.connect().await;
        let hello = client.request("initialize", json!({"clientName": "test"}));
        client.notify("initialized", json!(null));
        client.send_text(padded(MIB));
        assert!(client.answer(hello).await["result"]["sessionId"].is_string());
        assert_eq!(client.answer("padded").await["result"], json!({"status": "ready"}));
    }
}

over_links! { [WebSocket]
    async fn one_frame_or_many_make_no_difference(bench: Bench) {
        let mut socket = RawSocket::websocket(bench.address()).await;
        socket.hello().await;
        let text = padded(40 * MIB);
        socket.send(TEXT, text.as_bytes()).await;
        assert_eq!(socket.message().await["id"], "padded");
        let mut pieces = text.as_bytes().chunks(MIB).peekable();
        let mut first = TEXT;
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() { 0x80 } else { 0 };
            socket.write(&frame(first | last, piece)).await;
            first = 0;
        }
        assert_eq!(socket.message().await["id"], "padded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_answer_would_be_too_large_for_a_message_is_refused() {
    let bench = with_arguments(&[]);
    let mut client = bench.client().await;
    std::fs::File::create(bench.path("big")).unwrap().set_len(49 << 20).unwrap();
    let (code, message) = client.error("fs/readFile", json!({"path": bench.uri("big")})).await;
    assert!(code == -32600 || code == -32603, "{code} {message}");
    assert_eq!(client.result("environment/status", json!(null)).await, json!({"status": "ready"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_do_not_pile_up() {
    let bench = with_arguments(&[]);
    let mut client = bench.client().await;
    std::fs::write(bench.path("file"), vec![0; 4 * MIB]).unwrap();
    let before = bench.process().unwrap().peak_memory();
    let reads: Vec<_> = (0..60).map(|_| client.request("fs/readFile", json!({"path": bench.uri("file")}))).collect();
    for read in reads {
        assert!(client.answer(read).await["result"]["dataBase64"].is_string());
    }
    let peak = bench.process().unwrap().peak_memory();
    assert!(peak < before + GROWTH, "memory grew from {before} to {peak} bytes");
}

/// An executor under attack, and a client that must not notice.
struct Siege {
    bench: Bench,
    bystander: outpost_testkit::Client,
    before: u64,
}

impl Siege {
    async fn begin() -> Self {
        let bench = with_arguments(&[]);
        let mut bystander = bench.client().await;
        bystander.result("environment/info", json!(null)).await;
        let before = bench.process().unwrap().memory();
        Self { bench, bystander, before }
    }

    async fn connect(&self) -> RawSocket {
        RawSocket::connect(self.bench.address()).await
    }

    /// A connection through both handshakes.
    async fn client(&self) -> RawSocket {
        let mut socket = RawSocket::websocket(self.bench.address()).await;
        socket.hello().await;
        socket
    }

    /// Sends bytes after the handshakes; the connection must end.
    async fn is_fatal(&mut self, what: &str, bytes: &[u8]) {
        let mut socket = self.client().await;
        socket.write(bytes).await;
        socket.ended().await;
        self.holds(what).await;
    }

    /// Sends a message; it must be refused and the connection go on.
    async fn is_refused(&mut self, what: &str, opcode: u8, message: &[u8]) {
        let mut socket = self.client().await;
        socket.send(opcode, message).await;
        let answer = socket.message().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(-1), &json!(-32600)), "{what}");
        assert_eq!(socket.call(&json!({"id": 7, "method": "environment/status"})).await["id"], 7, "{what}");
        self.holds(what).await;
    }

    async fn holds(&mut self, what: &str) {
        assert_eq!(self.bystander.result("environment/status", json!(null)).await, json!({"status": "ready"}), "{what}");
        let memory = self.bench.process().unwrap().memory();
        assert!(memory < self.before + GROWTH, "{what}: memory grew from {} to {memory} bytes", self.before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_request_end_their_connection_only() {
    let mut siege = Siege::begin().await;
    let noise: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [&noise[..], b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", &[0; 100_000]] {
        let mut socket = siege.connect().await;
        socket.write(bytes).await;
        socket.ended().await;
        siege.holds("no request").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_break_the_rules_end_their_connection_only() {
    let mut siege = Siege::begin().await;
    let status = br#"{"id":1,"method":"environment/status"}"#;
    let unmasked = [&[0x81, u8::try_from(status.len()).unwrap()], &status[..]].concat();
    for (what, bytes) in [
        ("a frame of 2^40 bytes", header(0x81, 1 << 40)),
        ("a frame of 2^63 bytes", header(0x81, 1 << 63)),
        ("a frame of 65 MiB", header(0x82, 65 << 20)),
        ("an unmasked frame", unmasked),
        ("reserved bit 1", frame(0xc1, status)),
        ("reserved bit 2", frame(0xa1, status)),
        ("reserved bit 3", frame(0x91, status)),
        ("a reserved opcode", frame(0x83, status)),
        ("a reserved control opcode", frame(0x8b, b"")),
        ("a ping in fragments", frame(0x09, b"")),
        ("a ping of 200 bytes", frame(0x89, &[0; 200])),
        ("a continuation of nothing", frame(0x80, status)),
        ("a message inside a message", [frame(0x01, b"{"), frame(0x81, status)].concat()),
    ] {
        siege.is_fatal(what, &bytes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_break_the_rules_are_refused() {
    let mut siege = Siege::begin().await;
    let elements = format!("[{}0]", "0,".repeat(1_500_000));
    let keys = (0..300_000).map(|n| format!("\"{n}\":0,")).collect::<String>();
    for (what, message) in [
        ("100,000 nested arrays", "[".repeat(100_000)),
        ("100,000 nested objects", "{\"a\":".repeat(100_000)),
        ("100,000 nested arrays that end", format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))),
        ("a list of 1.5 million", elements.clone()),
        ("parameters of 1.5 million", format!(r#"{{"id":1,"method":"environment/status","params":{elements}}}"#)),
        ("300,000 keys", format!("{{{keys}\"end\":0}}")),
        ("a string without an end", format!("\"{}", "x".repeat(10 * MIB))),
        ("10 MiB of quotes", "\"".repeat(10 * MIB)),
    ] {
        siege.is_refused(what, TEXT, message.as_bytes()).await;
    }
    siege.is_refused("text that is not UTF-8", TEXT, b"\xff\xfe").await;
    siege.is_refused("bytes that are not UTF-8", BINARY, b"{\"id\":1,\"method\":\"\xff\xfe\"}").await;
    siege.is_refused("a megabyte of noise", BINARY, &vec![0x9f; MIB]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_bad_messages_are_refused_one_by_one() {
    let mut siege = Siege::begin().await;
    let mut socket = siege.client().await;
    let bad = frame(0x81, b"not a message").repeat(10_000);
    socket.write(&bad).await;
    for _ in 0..10_000 {
        assert_eq!(socket.message().await["id"], -1);
    }
    assert_eq!(socket.call(&json!({"id": 7, "method": "environment/status"})).await["id"], 7);
    siege.holds("10,000 bad messages").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_without_an_end_are_cut_off() {
    let mut siege = Siege::begin().await;
    let mut socket = siege.client().await;
    socket.write(&frame(0x01, b"\"")).await;
    let piece = frame(0x00, &vec![b'x'; MIB]);
    for _ in 0..70 {
        socket.write(&piece).await;
    }
    socket.ended().await;
    siege.holds("endless fragments").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_and_never_listens_is_not_served_without_end() {
    let mut siege = Siege::begin().await;
    let mut socket = siege.client().await;
    let request = frame(0x81, br#"{"id":1,"method":"environment/info"}"#).repeat(1000);
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    // Two hundred thousand answers of about a kilobyte, which nobody takes.
    let flood = tokio::spawn(async move {
        for _ in 0..200 {
            socket.write(&request).await;
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    outpost_testkit::executor::eventually("something was sent", || sent.load(std::sync::atomic::Ordering::SeqCst) >= 3).await;
    for _ in 0..200 {
        siege.holds("a deaf client").await;
    }
    flood.abort();
    let _: Result<(), _> = flood.await;
    siege.holds("a deaf client that left").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_pings_are_answered_or_ignored() {
    let mut siege = Siege::begin().await;
    let mut socket = siege.client().await;
    for _ in 0..50 {
        socket.write(&frame(0x89, b"ping").repeat(1000)).await;
    }
    let answer: Value = socket.call(&json!({"id": 7, "method": "environment/status"})).await;
    assert_eq!(answer["id"], 7);
    siege.holds("50,000 pings").await;
}

/// So many reads that each would be answered with the same output.
const READERS: usize = 2000;
const OUTPUT: usize = 60_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_reads_of_the_same_output_take_little_memory() {
    let bench = with_arguments(&[]);
    let pipe = Pipe::new(&bench, "pipe");
    let mut client = bench.client().await;
    let script = format!("read x < pipe; head -c {OUTPUT} /dev/zero; echo > done; sleep 600");
    client.start(bench.shell("p", &script)).await;
    let ids: Vec<i64> = (0..READERS)
        .map(|_| client.request("process/read", json!({"processId": "p", "afterSeq": 0, "waitMs": 600_000, "maxBytes": OUTPUT})))
        .collect();
    client.flushed().await;
    let before = bench.process().unwrap().peak_memory();
    pipe.go();
    eventually("it has said it", || bench.path("done").exists()).await;
    // Nobody reads the answers yet.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in ids {
        let answer = client.answer(id).await;
        assert!(!answer["result"]["chunks"].as_array().unwrap().is_empty());
    }
    let grown = bench.process().unwrap().peak_memory() - before;
    assert!(grown < GROWTH, "grew by {grown}");
}

/// The first version kept the output of every one of them: 1.3 GiB for 5,000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_output_of_ended_processes_takes_bounded_memory() {
    const PROCESSES: usize = 400;
    let bench = with_arguments(&[]);
    let mut client = bench.client().await;
    let before = bench.process().unwrap().memory();
    for number in 0..PROCESSES {
        let id = format!("p{number}");
        client.start(bench.shell(&id, "head -c 262144 /dev/zero")).await;
        assert_eq!(client.outcome(&id).await.1.len(), 262_144);
    }
    let grown = bench.process().unwrap().memory().saturating_sub(before);
    // 32 MiB of output, and what the allocator keeps; all of it would be 100 MiB.
    assert!(grown < 64 << 20, "grew by {grown} bytes");
    // On disk by now; those before it were given up.
    let older = client.read(&format!("p{}", PROCESSES - 200), 0).await;
    assert!(older["chunks"].as_array().is_some_and(|chunks| !chunks.is_empty()), "it is still there: {older}");
}
