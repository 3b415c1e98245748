//! A model that answers at once, in a process of its own, so that its costs are not counted.
//!
//! It says one sentence. If the newest thing in the conversation is the user's wish for a tool, it asks for `true` first.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use memchr::memmem;
use serde_json::{Value, json};

/// The hidden verb.
pub const VERB: &str = "__model";

/// What the user says to have a tool used.
pub const WANTS_TOOL: &str = "please run it";

/// The newest messages and everything behind them are within so many bytes.
const NEWEST: usize = 64 << 10;

/// Serves until its parent is gone.
#[expect(clippy::print_stdout, reason = "its parent waits for the port")]
pub fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    std::thread::spawn(|| {
        // Ends with its owner.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer_all(stream));
    }
    Ok(())
}

fn answer_all(stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 20, stream.try_clone()?);
    let mut writer = stream;
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        // What was said last stands near the end; looking through all of a long history would be a cost of its own.
        let end = &body[length.saturating_sub(NEWEST)..];
        let wish = memmem::rfind(end, WANTS_TOOL.as_bytes());
        let wants_tool = wish.is_some_and(|at| memmem::find(&end[at..], b"function_call_output").is_none());
        let events = events(if wants_tool { &call } else { &message });
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream";
        write!(writer, "{head}\r\ncontent-length: {}\r\n\r\n{events}", events.len())?;
    }
}

fn message() -> Value {
    let text = "The test fails because the parser reads one token too many; the fix is in the loop that skips blanks.";
    json!({"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

fn call() -> Value {
    let name = format!("call-{}", std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos()));
    json!({"type": "function_call", "id": "f", "call_id": name, "name": "exec_command", "arguments": "{\"cmd\":\"true\",\"login\":false}"})
}

fn events(item: &dyn Fn() -> Value) -> String {
    let usage = json!({"input_tokens": 9, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 18});
    let item = item();
    let events = [
        json!({"type": "response.created", "response": {"id": "r"}}),
        json!({"type": "response.output_item.added", "item": item, "output_index": 0}),
        json!({"type": "response.output_item.done", "item": item, "output_index": 0}),
        json!({"type": "response.completed", "response": {"id": "r", "usage": usage}}),
    ];
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())).collect()
}

/// The process with the model. Goes when dropped.
pub struct ModelProcess {
    child: Child,
    pub port: u16,
}

impl ModelProcess {
    pub fn start() -> anyhow::Result<Self> {
        let mut child =
            Command::new(std::env::current_exe()?).arg(VERB).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("no model")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        Ok(Self { child, port: line.trim().parse()? })
    }

    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }
}

impl Drop for ModelProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends so many bytes and takes the answer, with nothing around it.
pub struct BarePost {
    stream: TcpStream,
    request: Vec<u8>,
}

impl BarePost {
    pub fn new(port: u16, length: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut request = format!("POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        request.resize(request.len() + length, b'x');
        Ok(Self { stream, request })
    }

    pub fn send(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.request)?;
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        while memmem::find(&got, b"\"response.completed\"").is_none() || !got.ends_with(b"\n\n") {
            let read = self.stream.read(&mut buffer)?;
            anyhow::ensure!(read > 0, "the model hung up");
            got.extend_from_slice(&buffer[..read]);
        }
        Ok(())
    }
}
