//! Standard input of one process: every write exactly once, in order.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use outpost_sandbox::Input;
use outpost_wire::exec::process::WriteStatus;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// How many write ids are remembered.
const REMEMBERED: usize = 4096;
/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// Whoever holds the lock writes; the lock is fair, so writes keep their order, and a write that finds no room keeps
/// the lock until it is through, which is what makes the next one wait.
pub struct ProcessInput {
    writer: Arc<Mutex<Writer>>,
    is_terminal: bool,
    /// Whether there ever was an input.
    exists: bool,
    /// The process is over; nothing waits for its input any more.
    over: CancellationToken,
}

struct Writer {
    input: Option<Input>,
    /// Whether a client ended the input.
    is_closed: bool,
    known: KnownWrites,
}

/// The process does not take input any more.
pub struct Broken;

impl ProcessInput {
    pub fn new(input: Option<Input>, is_terminal: bool) -> Self {
        let exists = input.is_some();
        let writer = Writer { input, is_closed: false, known: KnownWrites::default() };
        Self { writer: Arc::new(Mutex::new(writer)), is_terminal, exists, over: CancellationToken::new() }
    }

    pub fn end(&self) {
        self.over.cancel();
    }

    /// Gives back what a process that is over could be written to with.
    pub async fn release(&self) {
        self.over.cancel();
        self.writer.lock().await.input = None;
    }

    /// Takes bytes to be written. Dropping this before it is done means that nothing was written.
    pub async fn write(&self, write_id: String, bytes: Bytes) -> Result<WriteStatus, Broken> {
        if !self.exists {
            return Ok(WriteStatus::StdinClosed);
        }
        // Once the process is over nobody holds the lock for long.
        let mut writer = self.writer.clone().lock_owned().await;
        if writer.known.contains(&write_id) {
            return Ok(WriteStatus::Accepted);
        }
        if writer.is_closed {
            return Ok(WriteStatus::StdinClosed);
        }
        let Some(input) = writer.input.as_ref().filter(|_| !self.over.is_cancelled()) else { return Err(Broken) };
        let written = input.try_write(&bytes).map_err(|_| Broken)?;
        writer.known.insert(write_id);
        if written < bytes.len() {
            let over = self.over.clone();
            // Accepted means queued: the rest goes on its own, and holds up later writes until it is through.
            tokio::spawn(async move {
                if let Some(input) = &writer.input {
                    let _ = over.run_until_cancelled(input.write_all(&bytes[written..])).await;
                }
            });
        }
        Ok(WriteStatus::Accepted)
    }

    /// Ends the input after everything that was written before.
    pub async fn close(&self) -> WriteStatus {
        let Some(mut writer) = self.over.run_until_cancelled(self.writer.lock()).await else { return WriteStatus::StdinClosed };
        if self.is_terminal {
            // A terminal cannot be half closed; this is how a person ends input there.
            let Some(input) = &writer.input else { return WriteStatus::StdinClosed };
            let _ = self.over.run_until_cancelled(input.write_all(END_OF_TRANSMISSION)).await;
            return WriteStatus::Accepted;
        }
        writer.is_closed = true;
        match writer.input.take() {
            Some(_) => WriteStatus::Accepted,
            None => WriteStatus::StdinClosed,
        }
    }
}

#[derive(Default)]
struct KnownWrites {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl KnownWrites {
    fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    fn insert(&mut self, id: String) {
        self.order.push_back(id.clone());
        self.ids.insert(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}
