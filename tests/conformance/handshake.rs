//! The handshake: what is refused before it, and what it tells.

use outpost_testkit::{over_every_link, over_links};
use serde_json::json;

over_every_link! {
    async fn initialize_tells_session_and_environment(bench: Bench) {
        let mut client = bench.connect().await;
        let answer = client.result("initialize", json!({"clientName": "test", "future": 1, "resumeSessionId": null})).await;
        client.notify("initialized", json!(null));
        assert_eq!(answer["graceMs"], 600_000);
        let mut asked = client.result("environment/info", json!({})).await;
        // What sandboxes and limits hold is tried first, and only for a client that asks.
        let tried = ["sandbox", "limits"].map(|name| asked.as_object_mut().unwrap().remove(name));
        assert!(tried.iter().all(|tried| tried.as_ref().is_some_and(|rows| !rows.as_array().unwrap().is_empty())), "{tried:?}");
        assert_eq!(answer["environmentInfo"], asked);
    }

    async fn methods_wait_for_the_handshake(bench: Bench) {
        let mut client = bench.connect().await;
        let before = client.error("environment/status", json!(null)).await;
        assert_eq!(before, (-32600, "client must call initialize before using environment status methods".into()));
        client.result("initialize", json!({"clientName": "test"})).await;
        let between = client.error("process/read", json!({"processId": "x"})).await;
        assert_eq!(between, (-32600, "client must send initialized before using exec methods".into()));
        client.notify("initialized", json!({}));
        assert_eq!(client.result("environment/status", json!(null)).await, json!({"status": "ready"}));
    }

    async fn a_failed_initialize_may_be_retried(bench: Bench) {
        let mut client = bench.connect().await;
        assert_eq!(client.error("initialize", json!({})).await, (-32602, "missing field `clientName`".into()));
        let unknown = client.error("initialize", json!({"clientName": "test", "resumeSessionId": "nope"})).await;
        assert_eq!(unknown, (-32600, "unknown session id nope".into()));
        client.hello().await;
        let again = client.error("initialize", json!({"clientName": "test"})).await;
        assert_eq!(again, (-32600, "initialize may only be sent once per connection".into()));
    }
}

over_links! { [Memory, Unix, WebSocket]
    async fn a_newer_connection_takes_the_session_over(bench: Bench) {
        let mut first = bench.connect().await;
        let session = first.hello().await;
        first.start(bench.shell("p", "echo one; sleep 60")).await;
        let poll = first.request("process/read", json!({"processId": "p", "afterSeq": 50, "waitMs": 20_000}));
        // Once this is answered, the poll before it was taken.
        first.result("environment/status", json!(null)).await;
        let mut second = bench.connect().await;
        assert_eq!(second.resume(&session).await, session);
        let refused = first.answer(poll).await;
        assert_eq!(refused["error"]["message"], "session has been resumed by another connection");
        first.closed().await;
        let read = second.result("process/read", json!({"processId": "p", "waitMs": 20_000})).await;
        assert_eq!(read["chunks"][0]["seq"], 1);
    }
}
