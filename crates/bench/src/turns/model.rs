//! A model that answers at once, in a process of its own, so that its costs are not counted.
//!
//! It says one sentence. If the newest thing in the conversation is the user's wish for a tool, it asks for `true` first. Requests of
//! ours are held to the rules of the real API, as in the tests; after they were answered, so that judging them is in no figure.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use memchr::memmem;
use outpost_testkit::strict::{Known, Wire, check};
use serde_json::{Value, json};

/// The hidden verb.
pub(crate) const VERB: &str = "__model";

/// What the user says to have a tool used.
pub(crate) const WANTS_TOOL: &str = "please run it";

/// Below this path requests are judged.
const STRICT: &str = "/strict/";
/// Where the result of the trials is asked for.
const VERDICT: &str = "/verdict";
/// Of requests larger than this, with a history of thousands of turns, only some are judged.
const LARGE: usize = 1 << 20;
const SOME: usize = 32;

/// What the real API would have refused first.
type Verdict = Arc<Mutex<Option<String>>>;

/// The newest messages and everything behind them are within so many bytes.
const NEWEST: usize = 64 << 10;

/// Serves until its parent is gone.
#[expect(clippy::print_stdout, reason = "its parent waits for the port")]
pub(crate) fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    std::thread::spawn(|| {
        // Ends with its owner.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let verdict = Verdict::default();
    for stream in listener.incoming().flatten() {
        let verdict = verdict.clone();
        std::thread::spawn(move || answer_all(stream, &verdict));
    }
    Ok(())
}

fn answer_all(stream: TcpStream, verdict: &Verdict) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 20, stream.try_clone()?);
    let mut writer = stream;
    let mut body = Vec::new();
    for number in 0_usize.. {
        let mut length = 0;
        let mut path = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap_or("/").to_owned();
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
        if path == VERDICT {
            let found = verdict.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
            write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{found}", found.len())?;
            continue;
        }
        write!(writer, "{head}\r\ncontent-length: {}\r\n\r\n{events}", events.len())?;
        // A program also asks a server what it is and how much its model holds: that is no part of this API.
        if path.starts_with(STRICT)
            && path.ends_with("/responses")
            && (length <= LARGE || number % SOME == 0)
            && let Err(violation) = check(Wire::Responses, &body, &Known::default())
        {
            verdict.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| violation.to_string());
        }
    }
    Ok(())
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
pub(crate) struct ModelProcess {
    child: Child,
    pub port: u16,
}

impl ModelProcess {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut child =
            Command::new(std::env::current_exe()?).arg(VERB).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("no model")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        Ok(Self { child, port: line.trim().parse()? })
    }

    pub(crate) fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// The same model for a program whose requests are judged.
    pub(crate) fn strict_url(&self) -> String {
        format!("http://127.0.0.1:{}{STRICT}v1", self.port)
    }

    /// Fails if the real API would have refused a request: its figures would be those of a program that does not work.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(stream, "GET {VERDICT} HTTP/1.1\r\nhost: x\r\n\r\n")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let found = answer.split_once("\r\n\r\n").map_or("", |(_, found)| found);
        ensure!(found.is_empty(), "the real API refuses a request of the bench: {found}");
        Ok(())
    }
}

impl Drop for ModelProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends so many bytes and takes the answer, with nothing around it.
pub(super) struct BarePost {
    stream: TcpStream,
    request: Vec<u8>,
}

impl BarePost {
    pub(super) fn new(port: u16, length: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut request = format!("POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        request.resize(request.len() + length, b'x');
        Ok(Self { stream, request })
    }

    pub(super) fn send(&mut self) -> anyhow::Result<()> {
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
