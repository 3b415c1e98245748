//! A deliberately bare server of the same wire: one thread per connection and per process, no sessions, no retention, no
//! limits. It shows what the wire itself costs on this machine, and must never learn anything cleverer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, bail};
use base64_simd::STANDARD as BASE64;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, WebSocket, accept_with_config};

/// The hidden verb that runs it.
pub(crate) const VERB: &str = "__floor";

const PIECE: usize = 64 << 10;

/// Prints its URL and serves until it is killed.
#[expect(clippy::print_stdout, reason = "its parent reads the URL")]
pub(crate) fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("ws://{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        thread::Builder::new().stack_size(256 << 10).spawn(move || converse(stream))?;
    }
    Ok(())
}

/// Shared by the connection's thread and those of its processes.
#[derive(Clone)]
struct Outbox(Arc<Mutex<WebSocket<TcpStream>>>);

impl Outbox {
    fn send(&self, text: String) -> anyhow::Result<()> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).send(Message::Text(text.into()))?)
    }
}

struct Connection {
    outbox: Outbox,
    processes: HashMap<String, Process>,
}

struct Process {
    group: Pid,
    input: Option<File>,
}

fn converse(stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let limits = WebSocketConfig::default().max_message_size(Some(256 << 20)).max_frame_size(Some(256 << 20));
    let writer = WebSocket::from_raw_socket(stream.try_clone()?, Role::Server, Some(limits));
    let mut reader = accept_with_config(stream, Some(limits)).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut connection = Connection { outbox: Outbox(Arc::new(Mutex::new(writer))), processes: HashMap::new() };
    loop {
        let Message::Text(text) = reader.read()? else { continue };
        let message: Value = serde_json::from_str(&text)?;
        let id = &message["id"];
        if id.is_null() {
            continue;
        }
        let method = message["method"].as_str().unwrap_or_default();
        let mut answer = format!("{{\"id\":{id},\"result\":");
        match connection.answer(method, &message["params"], &mut answer) {
            Ok(()) => answer.push('}'),
            Err(error) => answer = json!({"id": id, "error": {"code": -32603, "message": error.to_string()}}).to_string(),
        }
        connection.outbox.send(answer)?;
    }
}

impl Connection {
    /// Appends the result. What a process says may overtake the answer to its start, which no scenario minds.
    fn answer(&mut self, method: &str, params: &Value, out: &mut String) -> anyhow::Result<()> {
        match method {
            "initialize" => out.push_str(r#"{"sessionId":"floor"}"#),
            "process/start" => out.push_str(&self.start(params)?),
            "process/write" => {
                let chunk = BASE64.decode_to_vec(text(params, "chunk")?)?;
                let process = self.processes.get_mut(text(params, "processId")?).context("unknown process")?;
                process.input.as_mut().context("no input")?.write_all(&chunk)?;
                out.push_str(r#"{"status":"accepted"}"#);
            }
            "process/terminate" => {
                let process = self.processes.remove(text(params, "processId")?);
                let running = process.is_some_and(|process| kill_process_group(process.group, Signal::KILL).is_ok());
                write!(out, "{{\"running\":{running}}}")?;
            }
            "fs/readFile" => {
                let data = std::fs::read(path(params)?)?;
                out.reserve(data.len() / 3 * 4 + 64);
                out.push_str("{\"dataBase64\":\"");
                BASE64.encode_append(&data, out);
                out.push_str("\"}");
            }
            "fs/writeFile" => {
                std::fs::write(path(params)?, BASE64.decode_to_vec(text(params, "dataBase64")?)?)?;
                out.push_str("{}");
            }
            "fs/getMetadata" => {
                let data = std::fs::metadata(path(params)?)?;
                let (directory, file, size) = (data.is_dir(), data.is_file(), data.len());
                write!(out, "{{\"isDirectory\":{directory},\"isFile\":{file},\"isSymlink\":false,\"size\":{size},")?;
                out.push_str("\"createdAtMs\":0,\"modifiedAtMs\":0}");
            }
            "fs/readDirectory" => {
                out.push_str("{\"entries\":[");
                for (index, entry) in std::fs::read_dir(path(params)?)?.enumerate() {
                    let entry = entry?;
                    let (kind, name) = (entry.file_type()?, serde_json::to_string(&entry.file_name().to_string_lossy())?);
                    let (comma, directory, file) = (if index == 0 { "" } else { "," }, kind.is_dir(), kind.is_file());
                    write!(out, "{comma}{{\"fileName\":{name},\"isDirectory\":{directory},\"isFile\":{file}}}")?;
                }
                out.push_str("]}");
            }
            _ => bail!("the floor has no {method}"),
        }
        Ok(())
    }

    fn start(&mut self, params: &Value) -> anyhow::Result<String> {
        let name = text(params, "processId")?.to_owned();
        let argv: Vec<&str> = params["argv"].as_array().context("argv")?.iter().filter_map(Value::as_str).collect();
        let mut command = Command::new(argv.first().context("empty argv")?);
        command.args(&argv[1..]).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/tmp").process_group(0);
        let (child, input, outputs) = if params["tty"] == true { on_terminal(command)? } else { on_pipes(command, params)? };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        self.processes.insert(name.clone(), Process { group, input });
        let result = json!({"processId": name, "sandboxType": "none"}).to_string();
        let outbox = self.outbox.clone();
        thread::Builder::new().stack_size(128 << 10).spawn(move || follow(&name, child, outputs, &outbox))?;
        Ok(result)
    }
}

type Spawned = (Child, Option<File>, Vec<(File, &'static str)>);

fn on_pipes(mut command: Command, params: &Value) -> anyhow::Result<Spawned> {
    let input = if params["pipeStdin"] == true { Stdio::piped() } else { Stdio::null() };
    let mut child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let input = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let out = File::from(OwnedFd::from(child.stdout.take().context("no stdout")?));
    let err = File::from(OwnedFd::from(child.stderr.take().context("no stderr")?));
    Ok((child, input, vec![(out, "stdout"), (err, "stderr")]))
}

fn on_terminal(mut command: Command) -> anyhow::Result<Spawned> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new())?, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let child = command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs).spawn()?;
    let ours = File::from(ours);
    Ok((child, Some(ours.try_clone()?), vec![(ours, "pty")]))
}

/// Pushes one message per read, one stream after the other: the children of the scenarios leave stderr alone.
fn follow(name: &str, mut child: Child, outputs: Vec<(File, &'static str)>, outbox: &Outbox) -> anyhow::Result<()> {
    let mut seq = 0;
    let mut buffer = vec![0; PIECE];
    for (mut output, stream) in outputs {
        // A terminal ends with an error.
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            seq += 1;
            let mut message = String::with_capacity(count / 3 * 4 + 160);
            write!(
                message,
                "{{\"method\":\"process/output\",\"params\":{{\"processId\":\"{name}\",\"seq\":{seq},\"stream\":\"{stream}\",\"chunk\":\""
            )?;
            BASE64.encode_append(&buffer[..count], &mut message);
            message.push_str("\"}}");
            outbox.send(message)?;
        }
    }
    let code = child.wait()?.code().unwrap_or(-1);
    let exited = json!({"processId": name, "seq": seq + 1, "exitCode": code, "sandboxDenied": false});
    outbox.send(format!("{{\"method\":\"process/exited\",\"params\":{exited}}}"))?;
    outbox.send(format!("{{\"method\":\"process/closed\",\"params\":{{\"processId\":\"{name}\",\"seq\":{}}}}}", seq + 2))
}

fn text<'a>(params: &'a Value, name: &'static str) -> anyhow::Result<&'a str> {
    params[name].as_str().context(name)
}

/// The scenarios use no path that needs escapes.
fn path(params: &Value) -> anyhow::Result<PathBuf> {
    Ok(text(params, "path")?.trim_start_matches("file://").into())
}
