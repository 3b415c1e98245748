//! Clients that send nonsense, nothing at all, or everything at once: each is told so, and nobody else notices.

use std::time::Duration;

use outpost_testkit::app::{AppServer, notice, thread, turn};
use outpost_testkit::model::Reply;
use outpost_testkit::raw::{frame, header};
use outpost_testkit::{Client, RawSocket};
use serde_json::{Map, Value, json};

use super::OUTPOST;

/// What the protocol says about itself.
struct Book(Value);

impl Book {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../../schema/app.json")).unwrap())
    }

    /// A schema behind its references, and all the shapes that it allows.
    fn shapes<'a>(&'a self, schema: &'a Value, out: &mut Vec<&'a Value>) {
        if let Some(name) = schema["$ref"].as_str() {
            return self.shapes(&self.0["$defs"][name.trim_start_matches("#/$defs/")], out);
        }
        let alternatives = ["anyOf", "oneOf"].iter().filter_map(|word| schema[*word].as_array()).flatten();
        let before = out.len();
        alternatives.for_each(|one| self.shapes(one, out));
        if out.len() == before || schema.get("type").is_some() {
            out.push(schema);
        }
    }

    fn allows(&self, schema: &Value, word: &str) -> bool {
        let mut shapes = Vec::new();
        self.shapes(schema, &mut shapes);
        shapes.iter().any(|shape| match &shape["type"] {
            Value::String(one) => one == word,
            Value::Array(many) => many.iter().any(|one| one == word),
            // A fixed word is a text; what says nothing allows everything.
            _ => shape.get("enum").is_none() && shape.get("const").is_none() || word == "string",
        })
    }

    /// Something that the schema does not allow, if there is such a thing.
    fn wrong(&self, schema: &Value) -> Option<Value> {
        let candidates = [("object", json!({"no": ["such"]})), ("array", json!([[7]])), ("string", json!("x")), ("boolean", json!(true))];
        candidates.into_iter().find(|(word, _)| !self.allows(schema, word)).map(|(_, value)| value)
    }

    fn object<'a>(&'a self, schema: &'a Value) -> Option<&'a Value> {
        let mut shapes = Vec::new();
        self.shapes(schema, &mut shapes);
        shapes.into_iter().find(|shape| shape["properties"].is_object())
    }

    /// Something that can be read, so that only what is made wrong is wrong.
    fn right(&self, schema: &Value, depth: usize) -> Value {
        let mut shapes = Vec::new();
        self.shapes(schema, &mut shapes);
        let shape = shapes[0];
        if let Some(word) = shape.get("const").or_else(|| shape["enum"].get(0)) {
            return word.clone();
        }
        let kind = shape["type"].as_str().or_else(|| shape["type"][0].as_str());
        match kind {
            Some("object") if depth < 6 => {
                let required = shape["required"].as_array().cloned().unwrap_or_default();
                let members = required.iter().map(|name| {
                    let name = name.as_str().unwrap();
                    (name.to_owned(), self.right(&shape["properties"][name], depth + 1))
                });
                Value::Object(members.collect())
            }
            Some("array") => json!([]),
            Some("string") => json!("/nowhere"),
            Some("boolean") => json!(false),
            Some("integer" | "number") => json!(1),
            _ => Value::Object(Map::new()),
        }
    }
}

async fn is_refused(client: &mut Client, method: &str, params: Value, what: &str) {
    let shown = params.to_string();
    let answer = client.call(method, params).await;
    assert_eq!(answer["error"]["code"], -32600, "{method} with a wrong {what}: {shown} -> {answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("Invalid request: "), "{method} with a wrong {what}: {shown} -> {message}");
}

/// Every member of every method once with something that it cannot be.
#[tokio::test]
async fn wrong_types_are_refused_by_every_method() {
    let book = Book::read();
    let app = AppServer::start(OUTPOST, vec![Reply::message("still there")]).await;
    let mut client = app.client().await;
    let mut tried = 0;
    for (method, about) in book.0["methods"].as_object().unwrap() {
        let Some(shape) = book.object(&about["params"]) else { continue };
        if method == "initialize" {
            continue;
        }
        for nonsense in [json!("text"), json!(5), json!(true)] {
            is_refused(&mut client, method, nonsense, "kind of parameters").await;
        }
        let right = book.right(&about["params"], 0);
        for (name, member) in shape["properties"].as_object().unwrap() {
            let Some(wrong) = book.wrong(member) else { continue };
            let mut params = right.clone();
            params[name] = wrong;
            is_refused(&mut client, method, params, name).await;
            tried += 1;
        }
        for name in shape["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap();
            let mut params = right.clone();
            params.as_object_mut().unwrap().remove(name);
            is_refused(&mut client, method, params, &format!("absence of {name}")).await;
        }
    }
    assert!(tried > 200, "only {tried} members were tried");
    let id = thread(&mut client, json!({})).await;
    assert_eq!(turn(&mut client, &id, "are you there?").await["status"], "completed");
}

#[tokio::test]
async fn broken_frames_end_only_their_own_connection() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("fine")]).await;
    let address = app.url().trim_start_matches("ws://").to_owned();
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    // Not even HTTP.
    let mut nonsense = RawSocket::connect(&address).await;
    nonsense.write(b"\x16\x03\x01 what is this\r\n\r\n\0\0\0").await;
    // A frame that never comes to its end.
    let mut half = RawSocket::websocket(&address).await;
    half.write(&header(0x81, 1000)).await;
    half.write(b"{\"id\":1,").await;
    // One that announces more than anybody may send.
    let mut giant = RawSocket::websocket(&address).await;
    giant.write(&header(0x81, 1 << 40)).await;
    let end = giant.ended().await;
    assert!(matches!(end, Some(1002 | 1009)), "{end:?}");
    // Reserved bits, a frame that continues nothing, a kind that there is not.
    for bytes in [frame(0xf1, b"x"), frame(0x80, b"lost"), frame(0x83, b"?")] {
        let mut odd = RawSocket::websocket(&address).await;
        odd.write(&bytes).await;
        assert!(odd.ended().await.is_none_or(|code| (1002..1010).contains(&code)));
    }
    // Text that is none is a message that nobody can read, and the next one counts.
    let mut mute = RawSocket::websocket(&address).await;
    mute.write(&frame(0x81, b"{\"id\":1,\"method\":\"\xff\xfe\"}")).await;
    mute.write(&frame(0x81, b"{\"id\":2,\"method\":\"thread/list\",\"params\":{}}")).await;
    let (_, answer) = mute.receive().await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap()["error"]["message"], "Not initialized");
    // JSON that is deep, long, doubled or cut off is no reason to go.
    let mut strange = app.client().await;
    strange.send_text("[".repeat(100_000));
    strange.send_text(format!("{{\"id\":1,\"method\":\"thread/start\",\"params\":{}{}}}", "[".repeat(5000), "]".repeat(5000)));
    strange.send_text("{\"id\":2,\"method\":\"thread/list\",\"params\":{\"limit\":1,\"limit\":1}}");
    strange.send_text("{\"id\":3,\"method\":\"thread/list\",\"params\":{}");
    strange.send_text(format!("{{\"id\":4,\"method\":\"{}\",\"params\":{{}}}}", "x".repeat(1 << 20)));
    strange.send_text("{\"id\":5,\"method\":\"thread/list\",\"params\":{\"limit\":-1}}");
    strange.send_text("{\"id\":6,\"method\":\"thread/list\",\"params\":{\"limit\":1e99}}");
    assert!(strange.result("thread/list", json!({})).await["data"].is_array());
    assert_eq!(turn(&mut client, &id, "hi").await["status"], "completed");
    drop((half, nonsense));
}

#[tokio::test]
async fn whoever_connects_and_says_nothing_is_in_nobodys_way() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("fine")]).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(app.connect().await);
    }
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    assert_eq!(turn(&mut client, &id, "hi").await["status"], "completed");
    for client in &mut silent {
        assert!(client.quiet(Duration::from_millis(1)).await.is_empty(), "nobody is told anything before the handshake");
    }
    let (_, message) = silent[0].error("thread/list", json!({})).await;
    assert_eq!(message, "Not initialized");
}

/// Fifty clients start threads, resume one of them all at once, fork it, and rename it.
#[tokio::test]
async fn fifty_clients_at_once_on_one_thread() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("hello")]).await;
    let mut first = app.client().await;
    let id = thread(&mut first, json!({})).await;
    turn(&mut first, &id, "hi").await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(app.client().await);
    }
    let work = clients.into_iter().enumerate().map(|(number, mut client)| {
        let id = id.clone();
        async move {
            let own = thread(&mut client, json!({})).await;
            let resumed = client.result("thread/resume", json!({"threadId": id})).await;
            assert_eq!(resumed["thread"]["turns"][0]["items"][0]["content"][0]["text"], "hi");
            let kept = number % 2 == 0;
            let forked = client.result("thread/fork", json!({"threadId": id, "ephemeral": !kept})).await;
            assert_eq!(forked["thread"]["forkedFromId"], id);
            client.result("thread/name/set", json!({"threadId": id, "name": format!("name {number}")})).await;
            (client, own, forked["thread"]["id"].as_str().unwrap().to_owned())
        }
    });
    let done = futures_util::future::join_all(work).await;
    let mut ids: Vec<String> = done.iter().flat_map(|(_, own, fork)| [own.clone(), fork.clone()]).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 100, "everybody has threads of their own");
    let loaded = first.result("thread/loaded/list", json!({})).await;
    assert_eq!(loaded["data"].as_array().unwrap().len(), 101);
    let listed = first.result("thread/list", json!({"limit": 100})).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 26, "the thread and the forks that are kept; the others hold nothing yet");
    assert!(first.result("thread/verify", json!({"threadId": id})).await["whole"].as_bool().unwrap());
    app.model.push(Reply::message("to all"));
    turn(&mut first, &id, "and now?").await;
    for (mut client, ..) in done {
        let last = loop {
            let told = notice(&mut client, "turn/completed").await;
            if told["threadId"] == id {
                break told;
            }
        };
        assert_eq!(last["turn"]["items"][0]["text"], "to all");
    }
}
