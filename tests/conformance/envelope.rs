//! The envelope: what is a message, what is not, and what ends a link.

use outpost_rpc::LinkError;
use outpost_testkit::raw::{BINARY, TEXT, frame};
use outpost_testkit::{Client, RawSocket, over_every_link, over_links};
use serde_json::{Value, json};

const READY: &str = r#"{"status":"ready"}"#;

fn ready() -> Value {
    serde_json::from_str(READY).unwrap()
}

/// Sends a frame that is no message, and checks that it is told so and that nothing else happened.
async fn is_malformed(client: &mut Client, text: &str) -> String {
    client.send_text(text);
    let answer = client.next_answer().await;
    let shown: String = text.chars().take(80).collect();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(-1), &json!(-32600)), "{shown}: {answer}");
    assert_eq!(client.result("environment/status", json!(null)).await, ready(), "{shown}");
    answer["error"]["message"].as_str().unwrap().to_owned()
}

/// A status request with a member that is none of the envelope's.
fn with_extra(extra: &str) -> String {
    format!(r#"{{"id":"extra","method":"environment/status","extra":{extra}}}"#)
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn zeros(count: usize) -> String {
    let mut list = String::from("[0");
    for _ in 1..count {
        list.push_str(",0");
    }
    list.push(']');
    list
}

over_every_link! {
    async fn an_id_is_a_string_or_a_signed_integer_and_comes_back_as_it_was(bench: Bench) {
        let mut client = bench.client().await;
        for id in [json!("x"), json!(""), json!("1"), json!(0), json!(-1), json!(i64::MAX), json!(i64::MIN)] {
            client.send(&json!({"id": id, "method": "environment/status"}));
            assert_eq!(client.next_answer().await, json!({"id": id, "result": {"status": "ready"}}));
        }
    }

    async fn any_other_id_is_malformed(bench: Bench) {
        let mut client = bench.client().await;
        for id in ["null", "1.5", "1.0", "1e3", "true", "[]", "{}", "9223372036854775808", "-9223372036854775809"] {
            is_malformed(&mut client, &format!(r#"{{"id":{id},"method":"environment/status"}}"#)).await;
        }
    }

    async fn what_is_no_message_is_told_and_the_link_lives_on(bench: Bench) {
        let mut client = bench.client().await;
        let message = is_malformed(&mut client, "garbage").await;
        assert!(message.starts_with("failed to parse ") && message.contains(" JSON-RPC message from "), "{message}");
        for text in [
            "1",
            "null",
            "\"text\"",
            "[]",
            r#"[{"id":1,"method":"environment/status"}]"#,
            "{}",
            "{",
            "}",
            r#"{"id":1}"#,
            r#"{"params":{}}"#,
            r#"{"result":{}}"#,
            r#"{"id":1,"method":null}"#,
            r#"{"id":1,"method":7}"#,
            r#"{"method":{}}"#,
            r#"{"id":1,"error":{}}"#,
            r#"{"id":1,"error":{"code":"x","message":"m"}}"#,
            r#"{"id":1,"error":{"code":1}}"#,
            r#"{"id":1,"error":null}"#,
            r#"{"id":null,"result":1}"#,
            r#"{"id":1,"method":"environment/status"} x"#,
            r#"{"id":1,"method":"environment/status",}"#,
            r#"{"id":1 "method":"environment/status"}"#,
            r#"{id:1,"method":"environment/status"}"#,
            "{\"id\":1,\"method\":\"environment\tstatus\"}",
            r#"{"id":01,"method":"environment/status"}"#,
            r#"{"id":1,"method":"environment/status","params":NaN}"#,
            r#"{"id":1,"method":"\ud800"}"#,
        ] {
            is_malformed(&mut client, text).await;
        }
    }

    async fn a_key_stands_once_in_an_object(bench: Bench) {
        let mut client = bench.client().await;
        for text in [
            r#"{"id":1,"id":2,"method":"environment/status"}"#.to_owned(),
            r#"{"id":1,"method":"environment/status","\u0069d":1}"#.to_owned(),
            r#"{"id":1,"method":"environment/status","params":{"a":1,"a":1}}"#.to_owned(),
            with_extra(r#"[[{"x":{"k":1,"j":2,"k":3}}]]"#),
            with_extra(r#"{"":1,"":2}"#),
        ] {
            let message = is_malformed(&mut client, &text).await;
            assert!(message.contains("duplicate JSON object key `"), "{message}");
        }
        client.send_text(with_extra(r#"[{"k":1},{"k":{"k":1}},{"K":1,"k":1}]"#));
        assert_eq!(client.answer("extra").await["result"], ready());
    }

    async fn a_message_has_so_many_values_and_no_more(bench: Bench) {
        let mut client = bench.client().await;
        // The object, its two strings and the list count as well.
        client.send_text(with_extra(&zeros(262_144 - 4)));
        assert_eq!(client.answer("extra").await["result"], ready());
        let message = is_malformed(&mut client, &with_extra(&zeros(262_144 - 3))).await;
        assert!(message.contains("exceeds the limit of 262144 JSON values"), "{message}");
    }

    async fn a_message_is_so_deep_and_no_deeper(bench: Bench) {
        let mut client = bench.client().await;
        client.send_text(with_extra(&nested(127)));
        assert_eq!(client.answer("extra").await["result"], ready());
        let message = is_malformed(&mut client, &with_extra(&nested(128))).await;
        assert!(message.contains("recursion limit exceeded"), "{message}");
    }

    async fn members_that_nobody_knows_are_ignored(bench: Bench) {
        let mut client = bench.client().await;
        client.send(&json!({"jsonrpc": "1.0", "id": 5, "method": "environment/status", "trace": {"traceparent": "00-aa"}, "x": []}));
        assert_eq!(client.next_answer().await, json!({"id": 5, "result": {"status": "ready"}}));
        client.send(&json!({"id": 6, "method": "environment/status", "trace": null}));
        assert_eq!(client.next_answer().await, json!({"id": 6, "result": {"status": "ready"}}));
        let unknown = client.error("process/read", json!({"processId": "p", "future": {"a": 1}})).await;
        assert_eq!(unknown, (-32600, "unknown process id p".into()));
    }

    async fn a_method_without_parameters_takes_three_spellings_of_none(bench: Bench) {
        let mut client = bench.client().await;
        client.send_text(r#"{"id":1,"method":"environment/status"}"#);
        assert_eq!(client.answer(1).await["result"], ready());
        for none in [json!(null), json!({})] {
            assert_eq!(client.result("environment/status", none.clone()).await, ready());
            assert!(client.result("environment/info", none).await["shell"].is_object());
        }
        for some in [json!([]), json!({"x": 1}), json!(0), json!("")] {
            for method in ["environment/status", "environment/info"] {
                assert_eq!(client.error(method, some.clone()).await.0, -32602, "{method} {some}");
            }
        }
    }

    async fn parameters_that_do_not_decode_are_refused_under_their_own_id(bench: Bench) {
        let mut client = bench.client().await;
        for (method, params, message) in [
            ("process/read", json!(null), "invalid type: null, expected struct ReadParams"),
            ("process/read", json!({}), "missing field `processId`"),
            ("process/read", json!({"processId": 1}), "invalid type: integer `1`, expected a string"),
            ("process/terminate", json!({"processId": null}), "invalid type: null, expected a string"),
            ("process/signal", json!({"processId": "p", "signal": "stop"}), "unknown variant `stop`"),
            ("fs/readFile", json!({}), "missing field `path`"),
            ("fs/copy", json!({"sourcePath": "file:///a", "destinationPath": "file:///b"}), "missing field `recursive`"),
        ] {
            let refused = client.error(method, params).await;
            assert!(refused.0 == -32602 && refused.1.starts_with(message), "{method}: {refused:?}");
        }
    }

    async fn a_method_that_nobody_knows_is_told_even_before_the_handshake(bench: Bench) {
        let mut client = bench.connect().await;
        client.send(&json!({"id": "q", "method": "no/such", "params": {}}));
        let message = "exec-server stub does not implement `no/such` yet";
        assert_eq!(client.next_answer().await, json!({"id": "q", "error": {"code": -32601, "message": message}}));
    }

    async fn a_notification_that_nobody_knows_ends_the_link(bench: Bench) {
        let mut client = bench.client().await;
        client.notify("process/terminate", json!({"processId": "p"}));
        client.closed().await;
    }

    async fn an_answer_that_nobody_asked_for_ends_the_link(bench: Bench) {
        for answer in
            [json!({"id": 1, "result": {}}), json!({"id": "x", "result": null}), json!({"id": 1, "error": {"code": 1, "message": ""}})]
        {
            let mut client = bench.client().await;
            client.send(&answer);
            client.closed().await;
        }
    }

    async fn initialized_must_not_come_first_but_may_come_twice(bench: Bench) {
        let mut client = bench.connect().await;
        client.notify("initialized", json!({}));
        client.closed().await;
        let mut client = bench.client().await;
        client.notify("initialized", json!([1, 2]));
        assert_eq!(client.result("environment/status", json!(null)).await, ready());
    }
}

over_links! { [Unix, WebSocket]
    async fn a_violation_is_told_in_the_close_frame(bench: Bench) {
        let mut client = bench.client().await;
        client.notify("no/such", json!({}));
        match client.closed().await {
            Some(LinkError::Closed(close)) => assert_eq!((close.code, close.reason.as_str()), (1002, "unknown notification `no/such`")),
            other => panic!("ended in another way: {other:?}"),
        }
    }

    async fn an_empty_frame_is_malformed(bench: Bench) {
        let mut client = bench.client().await;
        is_malformed(&mut client, "").await;
        is_malformed(&mut client, "  ").await;
    }
}

over_links! { [WebSocket]
    async fn binary_frames_hold_messages_as_well(bench: Bench) {
        let mut socket = RawSocket::websocket(bench.address()).await;
        socket.send(BINARY, br#"{"id":1,"method":"initialize","params":{"clientName":"raw"}}"#).await;
        assert!(socket.message().await["result"]["sessionId"].is_string());
        socket.send(BINARY, br#"{"method":"initialized"}"#).await;
        socket.send(BINARY, br#"{"id":2,"method":"environment/status"}"#).await;
        assert_eq!(socket.message().await, json!({"id": 2, "result": {"status": "ready"}}));
        socket.send(BINARY, b"\xff\xfe{").await;
        let answer = socket.message().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(-1), &json!(-32600)));
        assert_eq!(socket.call(&json!({"id": 3, "method": "environment/status"})).await["id"], 3);
    }

    async fn a_message_may_come_in_fragments(bench: Bench) {
        let mut socket = RawSocket::websocket(bench.address()).await;
        socket.hello().await;
        let text = br#"{"id":2,"method":"environment/status"}"#;
        socket.write(&frame(TEXT, &text[..5])).await;
        // A ping may come between two fragments.
        socket.write(&frame(0x89, b"ping")).await;
        socket.write(&frame(0, &text[5..9])).await;
        socket.write(&frame(0x80, &text[9..])).await;
        assert_eq!(socket.receive().await, Some((10, b"ping".to_vec())));
        assert_eq!(socket.message().await, json!({"id": 2, "result": {"status": "ready"}}));
    }

    async fn a_malformed_message_is_told_with_the_websocket_it_came_from(bench: Bench) {
        let mut client = bench.client().await;
        let message = is_malformed(&mut client, "garbage").await;
        assert!(message.starts_with("failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:"), "{message}");
    }
}

over_links! { [Stdio]
    async fn blank_lines_are_skipped_and_lines_may_end_in_two_characters(bench: Bench) {
        let mut client = bench.client().await;
        let text = format!("\n\r\n\n{}\r", json!({"id": "crlf", "method": "environment/status"}));
        client.send_text(text);
        assert_eq!(client.next_answer().await, json!({"id": "crlf", "result": {"status": "ready"}}));
        client.send_text("\r");
        assert_eq!(client.result("environment/status", json!(null)).await, ready());
    }

    async fn a_malformed_line_is_told_as_such(bench: Bench) {
        let mut client = bench.client().await;
        let message = is_malformed(&mut client, "garbage").await;
        assert!(message.starts_with("failed to parse JSON-RPC message from exec-server stdio: "), "{message}");
        client.send_bytes(b"\xff\xfe".to_vec());
        assert_eq!(client.next_answer().await["id"], -1);
        assert_eq!(client.result("environment/status", json!(null)).await, ready());
    }
}
