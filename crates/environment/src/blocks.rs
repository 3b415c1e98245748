//! Files that are read and written block by block and outlive the connection.
//!
//! An open file belongs to a connection. When that is lost, the file is opened again and the work goes on after the last
//! block that is known to be done: blocks carry their offset, so one that was done already comes to the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use outpost_wire::SharedError;
use outpost_wire::exec::attributes::Attributes;
use outpost_wire::exec::streams::{
    Close, CloseParams, Open, OpenMode, OpenParams, ReadBlock, ReadBlockParams, WriteBlock, WriteBlockParams,
};
use outpost_wire::fault::NOT_FOUND;
use outpost_wire::{PathUri, packed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::environment::{Environment, EnvironmentError};
use crate::pace::Pace;
use crate::state::Connected;

/// Large enough for full speed, small enough for many in memory.
pub(crate) const BLOCK: usize = 512 << 10;

/// A piece of a file. While it is held it counts against the memory that a transfer may use.
#[derive(Clone)]
pub(crate) struct Block {
    offset: u64,
    bytes: Bytes,
    _room: Arc<OwnedSemaphorePermit>,
}

/// A file in an environment, and how open handles of it are named.
pub(crate) struct BlockFile<'a> {
    pub environment: &'a Environment,
    pub path: &'a PathUri,
    /// Unlike that of any other file that is open on this environment.
    pub handle: &'a str,
    /// What is known of the way there.
    pub pace: &'a Pace,
}

/// What went wrong with a file that is read.
pub(crate) enum BlockReadError {
    Environment(EnvironmentError),
    /// After a lost connection another file was found in its place.
    Changed,
}

impl From<EnvironmentError> for BlockReadError {
    fn from(error: EnvironmentError) -> Self {
        Self::Environment(error)
    }
}

impl BlockFile<'_> {
    /// Sends the whole file, in order. Ends early, without an error, if the receiver is gone.
    pub(crate) async fn read(&self, known: &Attributes, room: &Arc<Semaphore>, out: mpsc::Sender<Block>) -> Result<(), BlockReadError> {
        let mut offset = 0;
        loop {
            let connected = self.environment.shared().ready().await?;
            let read = self.read_on(&connected, known, &mut offset, room, &out).await;
            match read {
                Err(BlockReadError::Environment(EnvironmentError::Unknown { .. })) => continue,
                Err(BlockReadError::Environment(EnvironmentError::Fault(_)) | BlockReadError::Changed) | Ok(()) => {
                    self.close(&connected).await
                }
                Err(_) => {}
            }
            return read;
        }
    }

    async fn read_on(
        &self,
        connected: &Arc<Connected>,
        known: &Attributes,
        offset: &mut u64,
        room: &Arc<Semaphore>,
        out: &mpsc::Sender<Block>,
    ) -> Result<(), BlockReadError> {
        self.open(connected, OpenMode::Read).await?;
        if *offset > 0 {
            let now = self.environment.files().attributes(self.path.clone()).await?;
            if (now.inode, now.size, now.modified_at_ms) != (known.inode, known.size, known.modified_at_ms) {
                return Err(BlockReadError::Changed);
            }
        }
        let mut asked = *offset;
        let mut coming = FuturesOrdered::new();
        loop {
            // Beyond the size that is known only one block is asked for at a time.
            while coming.is_empty() || (coming.len() < self.pace.window() && asked < known.size) {
                let permit =
                    if coming.is_empty() { room.clone().acquire_owned().await.ok() } else { room.clone().try_acquire_owned().ok() };
                // Waiting here for memory that our own blocks hold would be waiting for ever.
                let Some(permit) = permit else { break };
                coming.push_back(self.read_block(connected, asked, permit));
                asked += BLOCK as u64;
            }
            let Some(read) = coming.next().await else { return Ok(()) };
            let (block, is_last) = read?;
            *offset += block.bytes.len() as u64;
            if (!block.bytes.is_empty() && out.send(block).await.is_err()) || is_last {
                return Ok(());
            }
        }
    }

    async fn read_block(
        &self,
        connected: &Arc<Connected>,
        offset: u64,
        room: OwnedSemaphorePermit,
    ) -> Result<(Block, bool), EnvironmentError> {
        let compression = if takes_packs(connected) { self.pace.compression() } else { None };
        let params = ReadBlockParams { handle_id: self.handle.to_owned(), offset, len: BLOCK, compression };
        let departure = self.pace.depart(Instant::now());
        let answer = self.environment.shared().call_on::<ReadBlock>(connected, &params).await?;
        self.pace.arrive(departure, answer.chunk.0.len(), Instant::now());
        let nonsense = |error: packed::UnpackError| EnvironmentError::Nonsense {
            name: self.environment.name().to_owned(),
            reason: SharedError::worded(format!("fs/readBlock: {error}"), error),
        };
        let bytes = packed::expand(&answer.chunk.0, answer.compression, BLOCK).map_err(nonsense)?;
        // What the other side would make of it is tried here.
        if takes_packs(connected) && self.pace.is_trial() {
            self.pace.compress(bytes.clone()).await;
        }
        Ok((Block { offset, bytes, _room: Arc::new(room) }, answer.eof))
    }

    /// Writes blocks as they come, until there are no more. `written` is told how many bytes are known to be there.
    pub(crate) async fn write(&self, mut blocks: mpsc::Receiver<Block>, written: impl Fn(usize)) -> Result<u64, EnvironmentError> {
        let mut unknown: VecDeque<Block> = VecDeque::new();
        let (mut more, mut size) = (true, 0);
        'connection: loop {
            let connected = self.environment.shared().ready().await?;
            match self.open(&connected, OpenMode::Replace).await {
                Err(EnvironmentError::Unknown { .. }) => continue,
                other => other?,
            }
            let mut going: FuturesOrdered<_> = unknown.iter().cloned().map(|block| self.write_block(&connected, block)).collect();
            loop {
                tokio::select! {
                    done = going.next(), if !going.is_empty() => match done {
                        Some(Ok(length)) => {
                            unknown.pop_front();
                            size += length as u64;
                            written(length);
                        }
                        Some(Err(EnvironmentError::Unknown { .. })) => continue 'connection,
                        Some(Err(error)) => {
                            let beside: Vec<_> = going.collect().await;
                            self.close(&connected).await;
                            return Err(cause(error, beside));
                        }
                        None => {}
                    },
                    block = blocks.recv(), if more && going.len() < self.pace.window() => match block {
                        Some(block) => {
                            unknown.push_back(block.clone());
                            going.push_back(self.write_block(&connected, block));
                        }
                        None => more = false,
                    },
                    else => {
                        self.close(&connected).await;
                        return Ok(size);
                    }
                }
            }
        }
    }

    async fn write_block(&self, connected: &Arc<Connected>, block: Block) -> Result<usize, EnvironmentError> {
        let length = block.bytes.len();
        let is_squeezed = takes_packs(connected) && (self.pace.compression().is_some() || self.pace.is_trial());
        let (chunk, compression) = if is_squeezed { self.pace.compress(block.bytes).await } else { (block.bytes, None) };
        let (departure, wire) = (self.pace.depart(Instant::now()), chunk.len());
        let params = WriteBlockParams { handle_id: self.handle.to_owned(), offset: block.offset, chunk: chunk.into(), compression };
        self.environment.shared().call_bulk_on::<WriteBlock>(connected, &params).await?;
        self.pace.arrive(departure, wire, Instant::now());
        Ok(length)
    }

    async fn open(&self, connected: &Arc<Connected>, mode: OpenMode) -> Result<(), EnvironmentError> {
        let part = (mode == OpenMode::Replace).then_some(true);
        let params = OpenParams { handle_id: self.handle.to_owned(), path: self.path.clone(), mode, part, sandbox: None };
        self.environment.shared().call_on::<Open>(connected, &params).await?;
        Ok(())
    }

    /// A handle that cannot be closed goes with its connection.
    async fn close(&self, connected: &Arc<Connected>) {
        let params = CloseParams { handle_id: self.handle.to_owned() };
        let _ = self.environment.shared().call_on::<Close>(connected, &params).await;
    }
}

/// Blocks may arrive in another order than they were sent in. The first that fails closes the handle, and the others hear only that there is
/// none: what is told is why.
fn cause(error: EnvironmentError, beside: Vec<Result<usize, EnvironmentError>>) -> EnvironmentError {
    let says_why = |error: &EnvironmentError| matches!(error, EnvironmentError::Fault(fault) if fault.code != NOT_FOUND);
    if says_why(&error) {
        return error;
    }
    beside.into_iter().filter_map(Result::err).find(says_why).unwrap_or(error)
}

fn takes_packs(connected: &Connected) -> bool {
    connected.info.capabilities.file_packs
}

#[cfg(test)]
mod tests {
    use outpost_wire::Fault;

    use super::*;

    #[test]
    fn of_blocks_that_fail_together_the_one_that_says_why_is_told() {
        let unknown = || EnvironmentError::Fault(Fault::not_found("unknown file handle `h`"));
        let full = || EnvironmentError::Fault(Fault::internal("No space left on device"));
        for (error, beside, told) in [
            (unknown(), vec![Err(unknown()), Err(full())], "No space"),
            (full(), vec![Err(unknown())], "No space"),
            (unknown(), vec![Ok(1)], "unknown file handle"),
        ] {
            let told_error = cause(error, beside).to_string();
            assert!(told_error.contains(told), "{told_error}");
        }
    }
}
