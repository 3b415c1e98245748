//! Standard input of one process: every write exactly once, in order.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outpost_sandbox::ChildInput;
use outpost_wire::exec::process::WriteStatus;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How many write ids are remembered.
const REMEMBERED: usize = 4096;
/// As much as a pipe usually holds.
const SMALL: usize = 64 << 10;
/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// The holder of the lock writes; the lock is fair, so writes keep their order, and a write that finds no room keeps
/// the lock until it is through, which is what makes the next one wait.
pub(crate) struct ProcessInput {
    writer: Arc<Mutex<Writer>>,
    is_terminal: bool,
    /// Whether there ever was an input.
    exists: bool,
    /// The process is over; nothing waits for its input any more.
    over: CancellationToken,
    room: InputRoom,
}

struct Writer {
    input: Option<ChildInput>,
    /// Whether a client ended the input.
    is_closed: bool,
    known: KnownWrites,
}

/// Why bytes were not taken.
pub(crate) enum WriteError {
    /// The process does not take input any more.
    Broken,
    /// Too much that was taken before has not been read, and that did not change in time.
    NoRoom { limit: usize },
}

/// Bounds of what waits for processes that do not read.
#[derive(Debug, Clone, Copy)]
pub struct InputLimits {
    /// So many bytes of a session.
    pub room: usize,
    /// How long a write waits for room.
    pub patience: Duration,
}

impl Default for InputLimits {
    fn default() -> Self {
        Self { room: 32 << 20, patience: Duration::from_secs(30) }
    }
}

/// The room for what one session has written and its processes have not read. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InputRoom {
    limits: InputLimits,
    bytes: Arc<Semaphore>,
}

impl InputRoom {
    pub(crate) fn new(limits: InputLimits) -> Self {
        Self { limits, bytes: Arc::new(Semaphore::new(limits.room.min(Semaphore::MAX_PERMITS))) }
    }

    /// Waits for room. What fits a pipe needs none: of each process one such write waits at most, and a process that does not read
    /// must not keep the others from being typed to. What is larger than all the room needs all of it.
    async fn take(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, WriteError> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let wanted = u32::try_from(bytes.min(self.limits.room)).unwrap_or(u32::MAX);
        match timeout(self.limits.patience, self.bytes.clone().acquire_many_owned(wanted)).await {
            Ok(room) => Ok(room.ok()),
            Err(_) => Err(WriteError::NoRoom { limit: self.limits.room }),
        }
    }
}

impl ProcessInput {
    pub(crate) fn new(input: Option<ChildInput>, is_terminal: bool, room: InputRoom) -> Self {
        let exists = input.is_some();
        let writer = Writer { input, is_closed: false, known: KnownWrites::default() };
        Self { writer: Arc::new(Mutex::new(writer)), is_terminal, exists, over: CancellationToken::new(), room }
    }

    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Gives back what a process that is over could be written to with.
    pub(crate) async fn release(&self) {
        self.over.cancel();
        self.writer.lock().await.input = None;
    }

    /// Takes bytes to be written. Dropping this before it is done means that nothing was written.
    pub(crate) async fn write(&self, write_id: String, bytes: Bytes) -> Result<WriteStatus, WriteError> {
        if !self.exists {
            return Ok(WriteStatus::StdinClosed);
        }
        // Once the process is over no write holds the lock for long.
        let mut writer = self.writer.clone().lock_owned().await;
        if writer.known.contains(&write_id) {
            return Ok(WriteStatus::Accepted);
        }
        if writer.is_closed {
            return Ok(WriteStatus::StdinClosed);
        }
        // Before the first byte: a write that is given up here has written nothing. Later writes to this process wait behind it.
        let Some(room) = self.over.run_until_cancelled(self.room.take(bytes.len())).await else { return Err(WriteError::Broken) };
        let room = room?;
        let Some(input) = writer.input.as_ref().filter(|_| !self.over.is_cancelled()) else { return Err(WriteError::Broken) };
        let written = input.try_write(&bytes).map_err(|_| WriteError::Broken)?;
        writer.known.insert(write_id);
        if written < bytes.len() {
            let over = self.over.clone();
            // Accepted means queued: the rest goes on its own, and holds up later writes until it is through.
            tokio::spawn(async move {
                let _room = room;
                if let Some(input) = &writer.input {
                    let _ = over.run_until_cancelled(input.write_all(&bytes[written..])).await;
                }
            });
        }
        Ok(WriteStatus::Accepted)
    }

    /// Ends the input after everything that was written before.
    pub(crate) async fn close(&self) -> WriteStatus {
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
