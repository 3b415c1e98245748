//! File streams: blocks in any order, requests of one handle in order, handles that end with their connection.

use std::fs;

use outpost_testkit::client::{base64, decode};
use outpost_testkit::{Client, over_every_link, over_links};
use serde_json::{Value, json};

async fn read(client: &mut Client, handle: &str, offset: u64, len: usize) -> (Vec<u8>, bool) {
    let block = client.result("fs/readBlock", json!({"handleId": handle, "offset": offset, "len": len})).await;
    (decode(&block["chunk"]), block["eof"].as_bool().unwrap())
}

fn open(handle: &str, path: String) -> Value {
    json!({"handleId": handle, "path": path})
}

fn replace(handle: &str, path: String) -> Value {
    json!({"handleId": handle, "path": path, "mode": "replace"})
}

fn write(handle: &str, offset: u64, bytes: &[u8]) -> Value {
    json!({"handleId": handle, "offset": offset, "chunk": base64(bytes)})
}

over_every_link! {
    async fn blocks_are_read_anywhere(bench: Bench) {
        fs::write(bench.path("f"), "0123456789").unwrap();
        let mut client = bench.client().await;
        assert_eq!(client.result("fs/open", open("h", bench.uri("f"))).await, json!({"handleId": "h"}));
        assert_eq!(read(&mut client, "h", 0, 4).await, (b"0123".to_vec(), false));
        // An exact last block does not know that it is the last.
        assert_eq!(read(&mut client, "h", 8, 2).await, (b"89".to_vec(), false));
        assert_eq!(read(&mut client, "h", 8, 4).await, (b"89".to_vec(), true));
        assert_eq!(read(&mut client, "h", 99, 4).await, (vec![], true));
        for len in [0, 1_048_577] {
            let refused = client.error("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": len})).await;
            assert_eq!(refused, (-32600, "file read block length must be between 1 and 1048576".into()));
        }
        fs::rename(bench.path("f"), bench.path("g")).unwrap();
        fs::write(bench.path("f"), "other").unwrap();
        assert_eq!(read(&mut client, "h", 0, 1_048_576).await, (b"0123456789".to_vec(), true));
        for _ in 0..2 {
            assert_eq!(client.result("fs/close", json!({"handleId": "h"})).await, json!({}));
        }
        let closed = client.error("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 1})).await;
        assert_eq!(closed, (-32004, "unknown file handle `h`".into()));
    }

    async fn a_replaced_file_is_written_in_place(bench: Bench) {
        fs::write(bench.path("f"), "old content").unwrap();
        let mut client = bench.client().await;
        client.result("fs/open", replace("w", bench.uri("f"))).await;
        assert_eq!(fs::read(bench.path("f")).unwrap(), b"");
        client.result("fs/writeBlock", write("w", 5, b"xyz")).await;
        client.result("fs/writeBlock", write("w", 0, b"abc")).await;
        assert_eq!(fs::read(bench.path("f")).unwrap(), b"abc\0\0xyz");
        let largest = vec![7; 1 << 20];
        client.result("fs/writeBlock", write("w", 8, &largest)).await;
        for bytes in [vec![], vec![7; (1 << 20) + 1]] {
            let refused = client.error("fs/writeBlock", write("w", 0, &bytes)).await;
            assert_eq!(refused, (-32600, "file write block length must be between 1 and 1048576".into()));
        }
        client.result("fs/close", json!({"handleId": "w"})).await;
        assert_eq!(fs::metadata(bench.path("f")).unwrap().len(), 8 + (1 << 20));
        client.result("fs/open", replace("new", bench.uri("created"))).await;
        assert_eq!(fs::read(bench.path("created")).unwrap(), b"");
    }

    async fn requests_that_do_not_wait_for_answers_keep_their_order(bench: Bench) {
        let mut client = bench.client().await;
        client.request("fs/open", replace("w", bench.uri("f")));
        for round in 0..200_u64 {
            client.request("fs/writeBlock", write("w", round % 3, &[round as u8; 4]));
        }
        client.request("fs/close", json!({"handleId": "w"}));
        client.request("fs/open", open("w", bench.uri("f")));
        assert_eq!(read(&mut client, "w", 0, 10).await, (vec![198, 199, 199, 199, 199, 197], true));
    }
}

over_links! { [Memory, WebSocket]
    async fn a_failure_closes_the_handle(bench: Bench) {
        fs::write(bench.path("f"), "x").unwrap();
        let mut client = bench.client().await;
        client.result("fs/open", open("r", bench.uri("f"))).await;
        client.result("fs/open", replace("w", bench.uri("g"))).await;
        let bad = (-32603, "Bad file descriptor (os error 9)".to_owned());
        assert_eq!(client.error("fs/writeBlock", write("r", 0, b"x")).await, bad);
        assert_eq!(client.error("fs/readBlock", json!({"handleId": "w", "offset": 0, "len": 1})).await, bad);
        for handle in ["r", "w"] {
            let gone = client.error("fs/readBlock", json!({"handleId": handle, "offset": 0, "len": 1})).await;
            assert_eq!(gone, (-32004, format!("unknown file handle `{handle}`")));
        }
        assert_eq!(fs::read(bench.path("f")).unwrap(), b"x");
    }

    async fn what_is_no_file_is_refused_at_once(bench: Bench) {
        let pipe = bench.path("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut client = bench.client().await;
        let uris = [bench.uri(""), bench.uri("pipe"), "file:///dev/null".into()];
        for uri in uris {
            for mode in ["read", "replace"] {
                let (code, message) = client.error("fs/open", json!({"handleId": "h", "path": uri, "mode": mode})).await;
                assert_eq!(code, -32600, "{message}");
                assert!(message.ends_with("is not a file"), "{message}");
            }
        }
        assert_eq!(client.error("fs/open", open("h", bench.uri("nope"))).await.0, -32004);
        assert_eq!(client.error("fs/open", replace("h", bench.uri("no/such"))).await.0, -32004);
        // A failed open leaves nothing behind, not even for requests that were already on their way.
        client.request("fs/open", open("h", bench.uri("nope")));
        assert_eq!(client.error("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 1})).await.0, -32004);
    }

    async fn handles_are_few_and_end_with_the_connection(bench: Bench) {
        fs::write(bench.path("f"), "x").unwrap();
        let mut client = bench.client().await;
        let long = client.error("fs/open", open(&"h".repeat(33), bench.uri("f"))).await;
        assert_eq!(long, (-32600, "file handle ID must not exceed 32 bytes".into()));
        for n in 0..128 {
            client.result("fs/open", open(&format!("h{n}"), bench.uri("f"))).await;
        }
        let twice = client.error("fs/open", open("h0", bench.uri("f"))).await;
        assert_eq!(twice, (-32600, "file handle `h0` already exists".into()));
        let many = client.error("fs/open", open("h128", bench.uri("f"))).await;
        assert_eq!(many, (-32600, "at most 128 file handles may be open per connection".into()));
        client.result("fs/close", json!({"handleId": "h7"})).await;
        client.result("fs/open", open("h128", bench.uri("f"))).await;
        let mut other = bench.client().await;
        assert_eq!(other.error("fs/readBlock", json!({"handleId": "h1", "offset": 0, "len": 1})).await.0, -32004);
    }

    async fn a_confined_stream_is_refused(bench: Bench) {
        fs::write(bench.path("f"), "x").unwrap();
        let mut client = bench.client().await;
        let confined = json!({"permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": []},
            "network": "restricted"}, "windowsSandboxLevel": "disabled"});
        let path = bench.uri("f");
        let of_stream = client.error("fs/open", json!({"handleId": "h", "path": path, "sandbox": confined})).await;
        let of_file = client.error("fs/readFile", json!({"path": path, "sandbox": confined})).await;
        assert_eq!(of_stream, of_file);
        let open = json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"});
        client.result("fs/open", json!({"handleId": "h", "path": path, "sandbox": open})).await;
    }
}
