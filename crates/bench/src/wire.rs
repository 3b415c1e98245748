//! The load generator's end of the wire: a blocking websocket that looks into messages without parsing them, so that the
//! server is what is measured. It knows the protocol's shapes and nothing of what is measured.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use anyhow::{bail, ensure};
use memchr::{memchr, memmem};
use serde_json::json;

/// A server that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The members that matter stand so near to the front of a message.
const FRONT: usize = 256;

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Whatever the mask, the server must take it off again.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x3c, 0xa5];

pub(crate) struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// Up to here the inbox is seen, and up to there it is filled.
    seen: usize,
    filled: usize,
    /// The message that was received last.
    message: Range<usize>,
    next: u64,
    pub session: String,
}

/// What the last message says, as far as it matters.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    Output { process: &'a [u8], seq: u64, length: usize },
    Exited,
    Closed { process: &'a [u8] },
    Answer { id: u64, text: &'a [u8], refused: bool },
}

/// A process to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start<'a> {
    pub argv: &'a [&'a str],
    pub terminal: bool,
    pub input: bool,
}

impl<'a> Start<'a> {
    pub(crate) fn plain(argv: &'a [&'a str]) -> Self {
        Self { argv, terminal: false, input: false }
    }
}

impl Wire {
    /// Connects, upgrades and greets with these parameters.
    pub(crate) fn connect(address: &str, greeting: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let key = "AAAAAAAAAAAAAAAAAAAAAA==";
        write!(
            stream,
            "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
        )?;
        let mut wire = Self { stream, inbox: vec![0; 256 << 10], seen: 0, filled: 0, message: 0..0, next: 0, session: String::new() };
        let end = loop {
            wire.fill(1024)?;
            if let Some(end) = memmem::find(&wire.inbox[..wire.filled], b"\r\n\r\n") {
                break end;
            }
        };
        ensure!(wire.inbox.starts_with(b"HTTP/1.1 101"), "the upgrade was refused");
        wire.seen = end + 4;
        let answer = wire.call("initialize", greeting)?;
        wire.session = member(answer, "sessionId").map(|text| String::from_utf8_lossy(quoted(text)).into_owned()).unwrap_or_default();
        wire.send(br#"{"method":"initialized","params":{}}"#)?;
        Ok(wire)
    }

    /// Sends one text message.
    pub(crate) fn send(&mut self, text: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(&frame(TEXT, text))?)
    }

    /// Another handle that only sends whole frames, for a second thread.
    pub(crate) fn sender(&self) -> anyhow::Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn request(&mut self, method: &str, params: &str) -> anyhow::Result<u64> {
        self.next += 1;
        let id = self.next;
        self.send(request(id, method, params).as_bytes())?;
        Ok(id)
    }

    /// Waits for the answer of a request, which must not be a refusal. Whatever else comes is dropped.
    pub(crate) fn answer(&mut self, wanted: u64) -> anyhow::Result<&[u8]> {
        loop {
            match self.receive()? {
                Message::Answer { id, refused: false, .. } if id == wanted => break,
                Message::Answer { id, text, .. } if id == wanted => {
                    bail!("refused: {}", String::from_utf8_lossy(&text[..text.len().min(FRONT)]))
                }
                _ => {}
            }
        }
        Ok(&self.inbox[self.message.clone()])
    }

    pub(crate) fn call(&mut self, method: &str, params: &str) -> anyhow::Result<&[u8]> {
        let id = self.request(method, params)?;
        self.answer(id)
    }

    /// A name that no process of this connection has.
    pub(crate) fn name(&self) -> String {
        format!("p{}", self.next)
    }

    /// Asks for a process without waiting for the answer; returns its name.
    pub(crate) fn start(&mut self, start: Start<'_>) -> anyhow::Result<String> {
        let process = self.name();
        let params = json!({
            "processId": process, "argv": start.argv, "cwd": "file:///tmp", "env": {"PATH": "/usr/bin:/bin"},
            "tty": start.terminal, "pipeStdin": start.input,
        });
        self.request("process/start", &params.to_string())?;
        Ok(process)
    }

    /// Waits until a process is closed; returns how many bytes came from it.
    pub(crate) fn closed(&mut self, wanted: &str) -> anyhow::Result<usize> {
        let mut bytes = 0;
        loop {
            match self.receive()? {
                Message::Output { process, length, .. } if process == wanted.as_bytes() => bytes += length,
                Message::Closed { process } if process == wanted.as_bytes() => return Ok(bytes),
                Message::Answer { refused: true, text, .. } => bail!("refused: {}", String::from_utf8_lossy(text)),
                _ => {}
            }
        }
    }

    /// The next message.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Message<'_>> {
        loop {
            let ready = &self.inbox[self.seen..self.filled];
            match head(ready) {
                Some((opcode, payload)) if payload.end <= ready.len() => {
                    let payload = self.seen + payload.start..self.seen + payload.end;
                    self.seen = payload.end;
                    match opcode {
                        TEXT => {
                            self.message = payload;
                            break;
                        }
                        PING => {
                            let pong = frame(PONG, &self.inbox[payload]);
                            self.stream.write_all(&pong)?;
                        }
                        CLOSE => bail!("closed: {}", String::from_utf8_lossy(&self.inbox[payload])),
                        PONG => {}
                        _ => bail!("a frame of kind {opcode}"),
                    }
                }
                Some((_, payload)) => self.fill(payload.end)?,
                None => self.fill(16)?,
            }
        }
        look(&self.inbox[self.message.clone()])
    }

    /// Reads more, with room for so many bytes from the first unseen one on.
    fn fill(&mut self, needed: usize) -> anyhow::Result<()> {
        if self.inbox.len() - self.seen < needed || self.seen == self.filled {
            self.inbox.copy_within(self.seen..self.filled, 0);
            self.filled -= self.seen;
            self.seen = 0;
            if self.inbox.len() < needed {
                self.inbox.resize(needed, 0);
            }
        }
        match self.stream.read(&mut self.inbox[self.filled..])? {
            0 => bail!("the server hung up"),
            count => self.filled += count,
        }
        Ok(())
    }
}

pub(crate) fn request(id: u64, method: &str, params: &str) -> String {
    format!("{{\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}")
}

/// A masked frame of a client.
pub(crate) fn text_frame(text: &[u8]) -> Vec<u8> {
    frame(TEXT, text)
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 14);
    bytes.push(0x80 | opcode);
    match payload.len() {
        short @ ..=125 => bytes.push(0x80 | short as u8),
        medium @ ..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&MASK);
    let from = bytes.len();
    bytes.extend_from_slice(payload);
    for block in bytes[from..].chunks_mut(4) {
        block.iter_mut().zip(MASK).for_each(|(byte, mask)| *byte ^= mask);
    }
    bytes
}

/// The kind of a server's frame and where its payload is, once its head is there.
fn head(bytes: &[u8]) -> Option<(u8, Range<usize>)> {
    let (&first, &second) = (bytes.first()?, bytes.get(1)?);
    let (size, length) = match second {
        126 => (4, u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)),
        short => (2, u64::from(short)),
    };
    // Without its last bit this is a fragment, which none of the servers sends; it shows as an unknown kind.
    Some((first ^ 0x80, size..size + usize::try_from(length).ok()?))
}

fn look(text: &[u8]) -> anyhow::Result<Message<'_>> {
    let front = &text[..text.len().min(FRONT)];
    let Some(method) = text.strip_prefix(b"{\"method\":") else {
        // The peer puts the id of a refusal last.
        let refused = front.starts_with(b"{\"error\":") || memmem::find(front, b",\"error\":").is_some();
        let id =
            if front.starts_with(b"{\"error\":") { memmem::rfind(text, b"\"id\":").map(|at| &text[at + 5..]) } else { member(front, "id") };
        return match id {
            Some(id) => Ok(Message::Answer { id: number(id), text, refused }),
            None => bail!("neither an answer nor a notification: {}", String::from_utf8_lossy(front)),
        };
    };
    let process = member(front, "processId").map(quoted).unwrap_or_default();
    match quoted(method) {
        b"process/output" => {
            let seq = member(front, "seq").map(number).unwrap_or_default();
            Ok(Message::Output { process, seq, length: pieces(text).map(|piece| piece.length).sum() })
        }
        b"process/exited" => Ok(Message::Exited),
        b"process/closed" => Ok(Message::Closed { process }),
        other => bail!("unknown notification {}", String::from_utf8_lossy(other)),
    }
}

/// A piece of output inside a message.
pub(crate) struct Piece {
    pub seq: u64,
    /// In bytes, found without decoding them.
    pub length: usize,
}

/// Every piece of output in a notification or an answer of `process/read`.
pub(crate) fn pieces(mut text: &[u8]) -> impl Iterator<Item = Piece> {
    std::iter::from_fn(move || {
        let chunk = memmem::find(text, b"\"chunk\":\"")?;
        let seq = memmem::rfind(&text[..chunk], b"\"seq\":").map(|at| number(&text[at + 6..])).unwrap_or_default();
        let base64 = &text[chunk + 9..];
        let end = memchr(b'"', base64)?;
        let padding = base64[..end].iter().rev().take_while(|&&byte| byte == b'=').count();
        text = &base64[end..];
        Some(Piece { seq, length: end / 4 * 3 - padding })
    })
}

/// What follows the first member of this name.
pub(crate) fn member<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let name = format!("\"{name}\":");
    memmem::find(text, name.as_bytes()).map(|at| &text[at + name.len()..])
}

pub(crate) fn number(text: &[u8]) -> u64 {
    text.iter().take_while(|byte| byte.is_ascii_digit()).fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}

/// The inside of a string that starts here and has no escapes.
fn quoted(text: &[u8]) -> &[u8] {
    let inside = text.strip_prefix(b"\"").unwrap_or_default();
    &inside[..memchr(b'"', inside).unwrap_or(inside.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_measured_without_decoding() {
        let text = br#"{"method":"process/output","params":{"processId":"p1","seq":7,"stream":"stdout","chunk":"aGk="}}"#;
        assert!(matches!(look(text).unwrap(), Message::Output { process: b"p1", seq: 7, length: 2 }));
        let read = br#"{"id":3,"result":{"chunks":[{"seq":1,"stream":"stdout","chunk":"YWJj"},{"seq":4,"stream":"pty","chunk":"YQ=="}],"nextSeq":5}}"#;
        let all: Vec<_> = pieces(read).map(|piece| (piece.seq, piece.length)).collect();
        assert_eq!(all, [(1, 3), (4, 1)]);
    }

    #[test]
    fn a_refusal_is_found_whichever_way_round_it_is() {
        for text in [r#"{"id":12,"error":{"code":-1,"message":"no"}}"#, r#"{"error":{"code":-1,"message":"no"},"id":12}"#] {
            assert!(matches!(look(text.as_bytes()).unwrap(), Message::Answer { id: 12, refused: true, .. }), "{text}");
        }
        assert!(matches!(look(br#"{"id":12,"result":{}}"#).unwrap(), Message::Answer { id: 12, refused: false, .. }));
    }

    #[test]
    fn heads_of_all_sizes_are_read() {
        for length in [0, 125, 126, 0xffff, 0x1_0000] {
            let mut bytes = frame(TEXT, &vec![0; length]);
            // A server's frame is the same without the mask.
            bytes[1] &= 0x7f;
            let (opcode, payload) = head(&bytes).unwrap();
            assert_eq!((opcode, payload.len(), payload.end + 4), (TEXT, length, bytes.len()));
        }
        assert!(head(&[0x81, 126, 0]).is_none());
    }
}
