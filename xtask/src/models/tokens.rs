//! How many tokens the first request of a task has, as llama.cpp counts them: what every request repeats, and a small model reads badly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::task::{Setting, Task};

/// So many there may be with one environment.
pub(super) const CEILING: usize = 1200;

/// The tokens of the first request, with the template of the model that a server has.
pub(super) fn of_first_request(task: &Task, setting: &Setting<'_>, runs: &Path) -> anyhow::Result<usize> {
    let request = first_request(task, setting, runs)?;
    let rendered = post(setting.address, "/apply-template", &request)?;
    let prompt = rendered["prompt"].as_str().context("llama.cpp renders no prompt")?;
    let counted = post(setting.address, "/tokenize", &json!({"content": prompt, "add_special": true, "parse_special": true}))?;
    Ok(counted["tokens"].as_array().context("llama.cpp counts no tokens")?.len())
}

/// What the program sends first, to a provider that refuses it.
fn first_request(task: &Task, setting: &Setting<'_>, runs: &Path) -> anyhow::Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let seen: Arc<Mutex<Option<Value>>> = Arc::default();
    let kept = seen.clone();
    // It ends with this program.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Ok(Some(body)) = refuse(stream) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(body);
            }
        }
    });
    task.run(&Setting { address: &address, ..*setting }, runs)?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    seen.context("the program asked for nothing")
}

/// The body of a request for an answer; everything is answered with a refusal.
fn refuse(stream: TcpStream) -> anyhow::Result<Option<Value>> {
    let mut reader = BufReader::new(stream);
    let (path, body) = read(&mut reader)?;
    let is_asked = path.split_whitespace().nth(1).is_some_and(|path| path.ends_with("/chat/completions"));
    let told = r#"{"error":{"message":"this was all that was wanted"}}"#;
    write!(reader.get_mut(), "HTTP/1.1 400 No\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{told}", told.len())?;
    Ok(if is_asked { serde_json::from_slice(&body).ok() } else { None })
}

/// The first line of a message, and its body.
fn read(reader: &mut BufReader<TcpStream>) -> anyhow::Result<(String, Vec<u8>)> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((first, body))
}

/// What a server on this machine answers.
fn post(address: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let host = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host)?;
    let body = body.to_string();
    // The older version of HTTP, in which the answer comes in one piece.
    let head = format!("POST {path} HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes())?;
    let (status, answer) = read(&mut BufReader::new(stream))?;
    ensure!(status.contains(" 200 "), "{path}: {}: {}", status.trim(), String::from_utf8_lossy(&answer));
    Ok(serde_json::from_slice(&answer)?)
}
