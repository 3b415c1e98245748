//! A model that says what it was told to say, for real clients to talk to.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

/// Serves the Responses API: one scripted item per request, then the message `done`.
pub struct ScriptedModel {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl ScriptedModel {
    /// Each call is a tool's name and its arguments.
    pub async fn start(calls: Vec<(&str, Value)>) -> Self {
        let items = calls.into_iter().enumerate().map(|(n, (name, arguments))| {
            json!({"type": "function_call", "call_id": format!("call-{n}"), "name": name, "arguments": arguments.to_string()})
        });
        let script = Arc::new(Mutex::new(items.collect::<VecDeque<_>>()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(answer(stream, script.clone()));
            }
        });
        Self { address, task }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(stream: TcpStream, script: Arc<Mutex<VecDeque<Value>>>) -> Option<()> {
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
    let is_response = head.split_whitespace().nth(1).is_some_and(|path| path.ends_with("/responses"));
    let reply = if is_response {
        events(script.lock().await.pop_front())
    } else {
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into()
    };
    stream.get_mut().write_all(reply.as_bytes()).await.ok()
}

fn events(item: Option<Value>) -> String {
    let item =
        item.unwrap_or_else(|| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}));
    let usage =
        json!({"input_tokens": 1, "input_tokens_details": null, "output_tokens": 1, "output_tokens_details": null, "total_tokens": 2});
    let events = [
        json!({"type": "response.created", "response": {"id": "r"}}),
        json!({"type": "response.output_item.done", "item": item}),
        json!({"type": "response.completed", "response": {"id": "r", "usage": usage}}),
    ];
    let body: String = events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}
