//! A process in an environment as a reader and a writer of lines, and what it said besides.
//!
//! Whatever a server does wrong on its standard output is found here, where the bytes are seen first: too long a line,
//! too much that is no message, too many messages at once, a hole in the output.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{OutputTail, ProcessEvent, RemoteProcess};
use outpost_wire::exec::process::{Stream, WriteStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::McpLimits;

/// How much may wait between the process and the reader of its messages.
const BETWEEN: usize = 64 << 10;
/// So much of what a server said besides its messages is kept.
const TAIL: usize = 1 << 10;
/// How long a server may take to end by itself once its input has ended.
const GOOD_BYE: Duration = Duration::from_millis(500);

/// A server's process.
pub(crate) struct StdioServer {
    process: Arc<RemoteProcess>,
    shared: Arc<Shared>,
    end: watch::Receiver<Option<String>>,
    _pumps: [AbortOnDropHandle<()>; 2],
}

struct Shared {
    tail: Mutex<OutputTail>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { tail: Mutex::new(OutputTail::new(TAIL)) }
    }
}

impl Shared {
    fn tail(&self) -> MutexGuard<'_, OutputTail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, bytes: &[u8]) {
        self.tail().push(bytes);
    }
}

impl StdioServer {
    /// Follows a process. The streams returned with it are for the protocol's client.
    pub(crate) fn follow(process: RemoteProcess, limits: &McpLimits) -> (Self, ReadHalf<DuplexStream>, WriteHalf<DuplexStream>) {
        let process = Arc::new(process);
        let shared = Arc::new(Shared::default());
        let (told, end) = watch::channel(None);
        let (ours, theirs) = tokio::io::duplex(BETWEEN);
        let (from_client, to_client) = tokio::io::split(ours);
        let (reader, writer) = tokio::io::split(theirs);
        let out = tokio::spawn(output(process.clone(), shared.clone(), to_client, told, limits.clone()));
        let input = tokio::spawn(input(process.clone(), from_client));
        let pumps = [AbortOnDropHandle::new(out), AbortOnDropHandle::new(input)];
        (Self { process, shared, end, _pumps: pumps }, reader, writer)
    }

    /// Why it ended, if it has.
    pub(crate) fn end(&self) -> Option<String> {
        self.end.borrow().clone()
    }

    /// Why it ended, as soon as that is known; not longer than this.
    pub(crate) async fn end_within(&self, time: Duration) -> Option<String> {
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(time, end.wait_for(Option::is_some)).await;
        ended.ok().and_then(Result::ok).and_then(|end| end.clone())
    }

    /// The last that it said besides its messages, as part of a sentence; nothing if it was silent.
    pub(crate) fn said(&self) -> String {
        let bytes = self.shared.tail().bytes().to_vec();
        let text = String::from_utf8_lossy(&bytes);
        match text.trim() {
            "" => String::new(),
            said => format!("; it said: {said}"),
        }
    }

    /// Ends it: its input ends first, so that it can go by itself.
    pub(crate) async fn close(&self) {
        if self.end().is_some() {
            return;
        }
        let polite = async {
            if self.process.close_stdin().await.is_ok() {
                self.end_within(GOOD_BYE).await;
            }
        };
        let _ = tokio::time::timeout(GOOD_BYE * 2, polite).await;
        // Also if it seems to have ended: something that it started may be left.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.process.terminate()).await;
    }
}

/// What a server writes, looked at before it is believed.
struct Watch {
    limits: McpLimits,
    /// Of the line that is being read.
    length: usize,
    first: Option<u8>,
    rubbish: usize,
    second: Instant,
    messages: usize,
}

impl Watch {
    fn new(limits: McpLimits) -> Self {
        Self { limits, length: 0, first: None, rubbish: 0, second: Instant::now(), messages: 0 }
    }

    /// Looks at more output; an error is the end of the server.
    fn look(&mut self, bytes: &[u8], tail: &Shared) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (line, after) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
            rest = after;
            self.length += line.len();
            if self.first.is_none() {
                self.first = line.iter().copied().find(|byte| !byte.is_ascii_whitespace());
            }
            let is_rubbish = self.first.is_some_and(|first| first != b'{' && first != b'[');
            if is_rubbish {
                tail.keep(line);
                self.rubbish += line.len();
                if self.rubbish > self.limits.rubbish {
                    return Err(format!("it wrote more than {} bytes to its standard output that are no messages", self.limits.rubbish));
                }
            }
            if self.length > self.limits.message {
                return Err(format!("it wrote a line of more than {} bytes", self.limits.message));
            }
            if end.is_some() {
                if !is_rubbish {
                    self.count()?;
                }
                (self.length, self.first) = (0, None);
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), String> {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.messages) = (Instant::now(), 0);
        }
        self.messages += 1;
        if self.messages > self.limits.messages {
            return Err(format!("it wrote more than {} messages in a second", self.limits.messages));
        }
        Ok(())
    }
}

async fn output(
    process: Arc<RemoteProcess>,
    shared: Arc<Shared>,
    mut to: WriteHalf<DuplexStream>,
    told: watch::Sender<Option<String>>,
    limits: McpLimits,
) {
    let mut watch = Watch::new(limits);
    let mut code = None;
    let end = loop {
        match process.next().await {
            Some(ProcessEvent::Output { stream: Stream::Stderr, bytes }) => shared.keep(&bytes),
            Some(ProcessEvent::Output { bytes, .. }) => {
                if let Err(why) = watch.look(&bytes, &shared) {
                    break why;
                }
                if to.write_all(&bytes).await.is_err() {
                    break "its reader is gone".to_owned();
                }
            }
            Some(ProcessEvent::Gap { .. }) => break "a part of its output was lost".to_owned(),
            Some(ProcessEvent::Exited { code: exit, .. }) => code = Some(exit),
            Some(ProcessEvent::Lost { reason }) => break format!("its outcome is unknown ({reason})"),
            Some(ProcessEvent::Closed) | None => {
                break code.map_or_else(|| "it ended".to_owned(), |code| format!("it ended with exit code {code}"));
            }
        }
    };
    told.send_replace(Some(end));
    let _ = to.shutdown().await;
    if code.is_none() {
        let ending = async {
            let _ = process.terminate().await;
            tokio::time::sleep(GOOD_BYE).await;
        };
        // What it still writes is read and thrown away: it would block all others in its environment.
        let rest = async {
            while let Some(event) = process.next().await {
                if matches!(event, ProcessEvent::Closed | ProcessEvent::Lost { .. }) {
                    return;
                }
            }
        };
        let ended = async { tokio::join!(ending, rest) };
        let _ = tokio::time::timeout(Duration::from_secs(10), ended).await;
    }
}

async fn input(process: Arc<RemoteProcess>, mut from: ReadHalf<DuplexStream>) {
    let mut buffer = vec![0; BETWEEN];
    while let Ok(length) = from.read(&mut buffer).await {
        if length == 0 {
            break;
        }
        match process.write(Bytes::copy_from_slice(&buffer[..length])).await {
            Ok(WriteStatus::Accepted) => {}
            _ => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> McpLimits {
        McpLimits { message: 100, rubbish: 50, messages: 5, ..McpLimits::default() }
    }

    #[tokio::test]
    async fn messages_pass_and_a_little_rubbish_does() {
        let (mut watch, tail) = (Watch::new(limits()), Shared::default());
        for piece in ["Hello", " there\n", "{\"a\":", "1}\n", "  [1]\n"] {
            watch.look(piece.as_bytes(), &tail).unwrap();
        }
        assert_eq!(watch.rubbish, "Hello there\n".len());
        assert_eq!(tail.tail().bytes(), b"Hello there\n");
    }

    #[tokio::test]
    async fn what_is_too_much_is_named() {
        let tail = Shared::default();
        let look = |bytes: &[u8]| Watch::new(limits()).look(bytes, &tail).unwrap_err();
        assert!(look(&[b'x'; 60]).contains("no messages"));
        assert!(look(&[&b"{"[..], &[b'1'; 100]].concat()).contains("a line of more than 100"));
        assert!(look(&b"{}\n".repeat(6)).contains("messages in a second"));
    }

    #[test]
    fn only_the_end_is_kept() {
        let shared = Shared::default();
        for n in 0..2000 {
            shared.keep(format!("line {n}\n").as_bytes());
        }
        assert_eq!(shared.tail().bytes().len(), TAIL);
        assert!(shared.tail().bytes().ends_with(b"line 1999\n"));
        shared.keep(&[b'y'; 3 * TAIL]);
        assert_eq!(shared.tail().bytes().len(), TAIL);
    }
}
