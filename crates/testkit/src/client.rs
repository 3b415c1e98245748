//! A client that speaks the wire by hand, so that tests see exactly what goes over it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use outpost_rpc::{FrameSource, Link, LinkError};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Long enough for a busy machine; no test waits for it unless something is wrong.
/// Longer than anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Client {
    sink: outpost_rpc::FrameSink,
    source: FrameSource,
    next_id: i64,
    /// Messages that came while another one was waited for.
    inbox: Vec<Value>,
}

impl Client {
    pub fn new(link: Link) -> Self {
        Self { sink: link.tx, source: link.rx, next_id: 0, inbox: Vec::new() }
    }

    pub fn send(&self, message: &Value) {
        self.send_text(message.to_string());
    }

    /// Sends anything, be it a message or not.
    pub fn send_text(&self, text: impl Into<String>) {
        self.send_bytes(text.into().into_bytes());
    }

    pub fn send_bytes(&self, bytes: Vec<u8>) {
        assert!(self.sink.send(Bytes::from(bytes)), "the link is closed");
    }

    /// Waits until everything that was sent has left, without reading anything.
    pub async fn flushed(&self) {
        timeout(PATIENCE, self.sink.room(0)).await.expect("the other side does not take what is sent");
    }

    /// The next message, or how the link ended.
    pub async fn receive(&mut self) -> Result<Value, Option<LinkError>> {
        match timeout(PATIENCE, self.source.next()).await.expect("nothing came in time") {
            Some(Ok(frame)) => Ok(serde_json::from_slice(&frame).expect("the other side sent something that is not JSON")),
            Some(Err(error)) => Err(Some(error)),
            None => Err(None),
        }
    }

    /// Waits until the other side ends the link.
    pub async fn closed(&mut self) -> Option<LinkError> {
        loop {
            if let Err(end) = self.receive().await {
                return end;
            }
        }
    }

    /// Sends a request without waiting for its answer.
    pub fn request(&mut self, method: &str, params: Value) -> i64 {
        self.next_id += 1;
        self.send(&json!({"id": self.next_id, "method": method, "params": params}));
        self.next_id
    }

    pub fn notify(&self, method: &str, params: Value) {
        self.send(&json!({"method": method, "params": params}));
    }

    /// The whole answer to a request, whatever else comes before it.
    pub async fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.until(|message| message.get("method").is_none() && message["id"] == id).await
    }

    /// The next answer, whichever request it is for.
    pub async fn next_answer(&mut self) -> Value {
        self.until(|message| message.get("method").is_none()).await
    }

    /// Calls a method and returns the whole answer.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer(id).await
    }

    /// Calls a method that must work.
    pub async fn result(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.call(method, params).await;
        assert!(answer.get("error").is_none(), "{method} was refused: {answer}");
        answer["result"].take()
    }

    /// Calls a method that must be refused; returns code and message.
    pub async fn error(&mut self, method: &str, params: Value) -> (i64, String) {
        let answer = self.call(method, params).await;
        let error = &answer["error"];
        assert!(error.is_object(), "{method} was not refused: {answer}");
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    /// The first message that fits, kept or new. The others are kept.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.inbox.iter().position(&fits) {
            return self.inbox.remove(index);
        }
        loop {
            let message = self.receive().await.unwrap_or_else(|end| panic!("the link ended while waiting: {end:?}"));
            if fits(&message) {
                return message;
            }
            self.inbox.push(message);
        }
    }

    /// Everything that comes until nothing has come for so long.
    pub async fn quiet(&mut self, silence: Duration) -> Vec<Value> {
        let mut messages = std::mem::take(&mut self.inbox);
        while let Ok(Some(Ok(frame))) = timeout(silence, self.source.next()).await {
            messages.push(serde_json::from_slice(&frame).unwrap());
        }
        messages
    }

    /// The parameters of all notifications of a method that have come so far.
    pub fn heard(&mut self, method: &str) -> Vec<Value> {
        let (heard, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.inbox).into_iter().partition(|message| message["method"] == method);
        self.inbox = others;
        heard.into_iter().map(|mut message| message["params"].take()).collect()
    }

    /// The handshake; returns the session's id.
    pub async fn hello(&mut self) -> String {
        self.greet(json!({"clientName": "test"})).await
    }

    pub async fn resume(&mut self, session: &str) -> String {
        self.greet(json!({"clientName": "test", "resumeSessionId": session})).await
    }

    pub async fn greet(&mut self, params: Value) -> String {
        let answer = self.result("initialize", params).await;
        self.notify("initialized", json!({}));
        answer["sessionId"].as_str().unwrap().to_owned()
    }

    /// Waits until a process is closed and returns every event of it, in the order of their numbers.
    pub async fn events(&mut self, process: &str) -> Vec<Value> {
        let closed = self.until(|message| message["method"] == "process/closed" && message["params"]["processId"] == process).await;
        let of_it = |message: &Value| {
            message["method"].as_str().is_some_and(|m| m.starts_with("process/")) && message["params"]["processId"] == process
        };
        let (mut mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.inbox).into_iter().partition(of_it);
        self.inbox = others;
        mine.push(closed);
        mine.sort_by_key(|message| message["params"]["seq"].as_u64());
        mine
    }

    /// Waits until a process is closed; returns its exit code and everything that it wrote, all streams together.
    pub async fn outcome(&mut self, process: &str) -> (i64, Vec<u8>) {
        let mut output = Vec::new();
        let mut code = None;
        for event in self.events(process).await {
            match event["method"].as_str().unwrap() {
                "process/output" => output.extend(decode(&event["params"]["chunk"])),
                "process/exited" => code = event["params"]["exitCode"].as_i64(),
                _ => {}
            }
        }
        (code.expect("closed without an exit"), output)
    }

    /// Starts a process that must start.
    pub async fn start(&mut self, params: Value) -> Value {
        self.result("process/start", params).await
    }

    /// Reads the whole log of a process.
    pub async fn read(&mut self, process: &str, after: u64) -> Value {
        self.result("process/read", json!({"processId": process, "afterSeq": after})).await
    }

    /// Ends the link.
    pub fn close(self) {
        self.sink.close(outpost_rpc::Close::new(outpost_rpc::Close::NORMAL, ""));
    }
}

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    outpost_wire::base64::encode(bytes.as_ref())
}

/// The bytes of a base64 member.
pub fn decode(text: &Value) -> Vec<u8> {
    outpost_wire::base64::decode(text.as_str().expect("base64 text")).unwrap()
}
