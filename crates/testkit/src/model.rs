//! A model that says what it was told to say, for real clients to talk to. It takes only what the real API of its wire takes: what
//! that would refuse is refused in the same words, and the test fails.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::strict::{Known, Violation, Wire, check};

/// What the model does with one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers with these items, in the words of the wire that was asked on.
    Items(Vec<Value>),
    /// Answers with this text, a word at a time.
    Streamed(String),
    /// Sends these chunks, as Chat Completions does, and then the last word.
    Chunks(Vec<Value>),
    /// Sends these events, as the Anthropic API does.
    Events(Vec<Value>),
    /// Answers with this body under a good status, whatever it is.
    Body { headers: Vec<(&'static str, String)>, body: Vec<u8> },
    /// Refuses.
    Status { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// Begins a good answer, sends this and hangs up.
    Cut(String),
    /// Begins a good answer, sends this and then nothing more.
    Silent(String),
    /// Begins a good answer whose first line never ends.
    Endless,
    /// Thinks until there is this file. Clients that begin to listen when their request is answered lose what comes in the same moment.
    Once(PathBuf, Box<Reply>),
    /// Thinks for so long.
    Later(Duration, Box<Reply>),
}

impl Reply {
    pub fn message(text: &str) -> Self {
        Self::Items(vec![message(text)])
    }

    pub fn streamed(text: &str) -> Self {
        Self::Streamed(text.into())
    }

    pub fn call(id: &str, name: &str, arguments: &Value) -> Self {
        Self::Items(vec![call(id, name, arguments)])
    }

    pub fn status(status: u16, body: &str) -> Self {
        Self::Status { status, headers: vec![], body: body.into() }
    }
}

/// An item of the Responses API that says something.
pub fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

/// One pixel, as a PNG in base64.
pub const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// An item of the Responses API with a picture that the model made, with all that the provider says of it.
pub fn image(id: &str) -> Value {
    json!({
        "type": "image_generation_call", "id": id, "status": "completed", "action": "generate", "background": "opaque", "output_format": "png",
        "quality": "low", "size": "1024x1024", "revised_prompt": "a single pixel", "result": PIXEL,
    })
}

/// An item of the Responses API that calls a tool.
pub fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string()})
}

/// Serves one reply per request, in order, and the message `done` when there is none left.
pub struct ScriptedModel {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Script {
    replies: VecDeque<Reply>,
    /// For requests that contain a text.
    special: Vec<(String, Reply)>,
    /// Answers by what it is asked.
    voice: Option<Voice>,
    requests: Vec<Request>,
    /// Documents of the server's own, by path.
    pages: Vec<(String, Value)>,
    /// What was refused and not looked at yet.
    violations: Vec<Violation>,
    known: Known,
    /// The client is a program of others.
    takes_everything: bool,
}

impl Script {
    /// What a model says, it takes back.
    fn says(&mut self, items: &[Value]) {
        for item in items {
            self.known.kinds.extend(item["type"].as_str().map(str::to_owned));
            self.known.plain_thoughts |= item["type"] == "reasoning" && !item["encrypted_content"].is_string();
            if item["format"] == "anthropic" {
                let thought = item["content"][0]["text"].as_str().unwrap_or_default().to_owned();
                self.known.thoughts.push((thought, item["encrypted_content"].as_str().unwrap_or_default().to_owned()));
            }
        }
    }
}

/// What a model says to a request; nothing if the script says it.
pub type Voice = Arc<dyn Fn(&Value) -> Option<Reply> + Send + Sync>;

/// What the model was asked.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub head: String,
    pub body: Value,
}

impl ScriptedModel {
    /// Each call is a tool's name and its arguments.
    pub async fn start(calls: Vec<(&str, Value)>) -> Self {
        let replies = calls.iter().enumerate().map(|(n, (name, arguments))| Reply::call(&format!("call-{n}"), name, arguments));
        Self::with(replies.collect::<Vec<_>>()).await
    }

    pub async fn with(replies: impl Into<VecDeque<Reply>>) -> Self {
        let script = Arc::new(Mutex::new(Script { replies: replies.into(), ..Script::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = script.clone();
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(answer(stream, serving.clone()));
            }
        });
        Self { address, script, task }
    }

    /// Takes whatever it is asked: for programs of others, which speak parts of the API that we do not, and which are not ours to judge.
    pub fn for_strangers(self) -> Self {
        self.script.lock().unwrap().takes_everything = true;
        self
    }

    /// Answers by what it is asked, and keeps nothing of that: a node that asks again after another one was killed gets the same answer.
    pub fn speaking(self, voice: Voice) -> Self {
        self.script.lock().unwrap().voice = Some(voice);
        self
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Adds a reply to the end of the script.
    pub fn push(&self, reply: Reply) {
        self.script.lock().unwrap().replies.push_back(reply);
    }

    /// Answers with this document at a path that is no part of a wire.
    pub fn page(&self, path: &str, document: Value) {
        self.script.lock().unwrap().pages.push((path.into(), document));
    }

    /// A reply to the first request that contains this text, for scripts with several voices. The first that fits counts.
    pub fn push_for(&self, text: &str, reply: Reply) {
        self.script.lock().unwrap().special.push((text.into(), reply));
    }

    /// What was refused so far, for tests that want it so. What is not taken fails the test in the end.
    pub fn take_violations(&self) -> Vec<Violation> {
        std::mem::take(&mut self.script.lock().unwrap().violations)
    }

    /// The requests for answers so far, those that were refused among them.
    pub fn requests(&self) -> Vec<Request> {
        self.script.lock().unwrap().requests.clone()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.task.abort();
        let violations = self.script.lock().map(|mut script| std::mem::take(&mut script.violations)).unwrap_or_default();
        if !violations.is_empty() && !std::thread::panicking() {
            let told: Vec<String> = violations.iter().map(|violation| format!("- {violation}")).collect();
            panic!("the real API would have refused {} requests:\n{}", told.len(), told.join("\n"));
        }
    }
}

async fn answer(stream: TcpStream, script: Arc<Mutex<Script>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").and_then(|n| n.trim().parse().ok()));
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let path = head.split_whitespace().nth(1)?.to_owned();
    let stream = stream.get_mut();
    let page = script.lock().unwrap().pages.iter().find(|(known, _)| *known == path).map(|(_, document)| document.to_string());
    if let Some(page) = page {
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", page.len());
        return stream.write_all(format!("{head}{page}").as_bytes()).await.ok();
    }
    let Some(wire) = wire_of(path.split('?').next().unwrap_or_default()) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.ok();
    };
    let reply = {
        let mut script = script.lock().unwrap();
        let text = String::from_utf8_lossy(&body);
        let refused = check(wire, &body, &script.known).err();
        let refused = refused.filter(|_| !script.takes_everything);
        if script.voice.is_none() {
            let value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            script.requests.push(Request { path, head, body: value });
        }
        if let Some(violation) = refused {
            let reply = Reply::status(400, &violation.body(wire).to_string());
            script.violations.push(violation);
            reply
        } else {
            let special = script.special.iter().position(|(wanted, _)| text.contains(wanted.as_str()));
            let special = special.map(|at| script.special.remove(at).1);
            let voice = script.voice.clone().filter(|_| special.is_none());
            let voiced = voice.and_then(|voice| voice(&serde_json::from_slice(&body).unwrap_or(Value::Null)));
            let reply = special.or(voiced).or_else(|| script.replies.pop_front());
            let reply = reply.unwrap_or_else(|| Reply::message("done"));
            if let Reply::Items(items) = &reply {
                script.says(items);
            }
            reply
        }
    };
    send(stream, wire, reply).await
}

/// The wire that a path belongs to.
fn wire_of(path: &str) -> Option<Wire> {
    let wires = [("/responses", Wire::Responses), ("/chat/completions", Wire::Chat), ("/v1/messages", Wire::Anthropic)];
    wires.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, wire)| wire)
}

async fn send(stream: &mut TcpStream, wire: Wire, reply: Reply) -> Option<()> {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";
    let whole = |body: String| format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len());
    // A body of unknown length, so that only its own end says whether it is whole.
    let open = |body: String| format!("{HEAD}\r\n{body}");
    let text = match reply {
        Reply::Items(items) => whole(match wire {
            Wire::Responses => response_events(&items),
            Wire::Chat => chunks(&chat_chunks(&items)),
            Wire::Anthropic => named(&anthropic_events(&items)),
        }),
        Reply::Streamed(text) => whole(match wire {
            Wire::Responses => events(&streamed_events(&text)),
            Wire::Chat => chunks(&chat_chunks(&[message(&text)])),
            Wire::Anthropic => named(&anthropic_events(&[message(&text)])),
        }),
        Reply::Chunks(list) => whole(chunks(&list)),
        Reply::Events(list) => whole(named(&list)),
        Reply::Body { headers, body } => {
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.ok()?;
            return stream.write_all(&body).await.ok();
        }
        Reply::Status { status, headers, body } => {
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("HTTP/1.1 {status} No\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        }
        Reply::Cut(body) => open(body),
        Reply::Silent(body) => {
            stream.write_all(open(body).as_bytes()).await.ok()?;
            return std::future::pending().await;
        }
        Reply::Once(file, reply) => {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            return Box::pin(send(stream, wire, *reply)).await;
        }
        Reply::Later(pause, reply) => {
            tokio::time::sleep(pause).await;
            return Box::pin(send(stream, wire, *reply)).await;
        }
        Reply::Endless => {
            stream.write_all(open("data: ".into()).as_bytes()).await.ok()?;
            loop {
                stream.write_all(&[b'x'; 1024]).await.ok()?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    stream.write_all(text.as_bytes()).await.ok()
}

/// The events of one whole answer.
pub fn response_events(items: &[Value]) -> String {
    let done = items.iter().map(|item| json!({"type": "response.output_item.done", "item": item}));
    events(&done.collect::<Vec<_>>())
}

/// A message that comes in words.
fn streamed_events(text: &str) -> Vec<Value> {
    // Clients tell messages apart by their ids.
    let mut whole = message(text);
    whole["id"] = format!("msg-{}", text.replace(' ', "-")).into();
    let id = &whole["id"];
    let begun = json!({"type": "response.output_item.added", "item": {"type": "message", "id": id, "role": "assistant", "content": []}});
    let words = text.split_inclusive(' ').map(|word| json!({"type": "response.output_text.delta", "item_id": id, "delta": word}));
    let done = json!({"type": "response.output_item.done", "item": whole});
    std::iter::once(begun).chain(words).chain([done]).collect()
}

/// What is streamed, between the beginning and the end of an answer.
fn events(streamed: &[Value]) -> String {
    let usage =
        json!({"input_tokens": 1, "input_tokens_details": null, "output_tokens": 1, "output_tokens_details": null, "total_tokens": 2});
    let created = json!({"type": "response.created", "response": {"id": "r"}});
    let completed = json!({"type": "response.completed", "response": {"id": "r", "usage": usage}});
    let all = std::iter::once(&created).chain(streamed).chain([&completed]);
    named(&all.cloned().collect::<Vec<_>>())
}

/// Events with their names in front.
fn named(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", kind(event))).collect()
}

/// Chunks of Chat Completions, and the last word.
fn chunks(chunks: &[Value]) -> String {
    let chunks: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    format!("{chunks}data: [DONE]\n\n")
}

/// Items as Chat Completions streams them. What it has no words for is left out.
fn chat_chunks(items: &[Value]) -> Vec<Value> {
    let mut chunks = Vec::new();
    let mut calls = 0;
    for item in items {
        let delta = match item["type"].as_str().unwrap_or_default() {
            "message" => json!({"content": item["content"][0]["text"]}),
            "image_generation_call" => {
                let url = format!("data:image/png;base64,{}", item["result"].as_str().unwrap_or_default());
                json!({"images": [{"type": "image_url", "image_url": {"url": url}}]})
            }
            "reasoning" if item["content"].is_array() => json!({"reasoning_content": item["content"][0]["text"]}),
            "function_call" => {
                let function = json!({"name": item["name"], "arguments": item["arguments"]});
                calls += 1;
                json!({"tool_calls": [{"index": calls - 1, "id": item["call_id"], "type": "function", "function": function}]})
            }
            _ => continue,
        };
        chunks.push(json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}));
    }
    let reason = if calls > 0 { "tool_calls" } else { "stop" };
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    chunks.push(json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}));
    chunks
}

/// Items as the Anthropic API streams them: each a block, in pieces. What it has no words for is left out.
fn anthropic_events(items: &[Value]) -> Vec<Value> {
    let usage = json!({"input_tokens": 1, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1});
    let start = json!({"id": "msg", "type": "message", "role": "assistant", "content": [], "usage": usage});
    let mut events = vec![json!({"type": "message_start", "message": start}), json!({"type": "ping"})];
    let is_block = |item: &&Value| match item["type"].as_str().unwrap_or_default() {
        "message" | "function_call" => true,
        "reasoning" => item["format"] == "anthropic",
        _ => false,
    };
    let mut reason = "end_turn";
    for (index, item) in items.iter().filter(is_block).enumerate() {
        let (block, deltas) = match item["type"].as_str().unwrap_or_default() {
            "message" => {
                let text = item["content"][0]["text"].as_str().unwrap_or_default();
                let words = text.split_inclusive(' ').map(|word| json!({"type": "text_delta", "text": word}));
                (json!({"type": "text", "text": ""}), words.collect())
            }
            "reasoning" => {
                let thought = json!({"type": "thinking_delta", "thinking": item["content"][0]["text"]});
                let signature = json!({"type": "signature_delta", "signature": item["encrypted_content"]});
                (json!({"type": "thinking", "thinking": "", "signature": ""}), vec![thought, signature])
            }
            _ => {
                reason = "tool_use";
                let input = json!({"type": "input_json_delta", "partial_json": item["arguments"]});
                (json!({"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": {}}), vec![input])
            }
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        events.extend(deltas.into_iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap()
}
