//! Open files of one connection, read and written block by block.
//!
//! Requests about one id take effect in the order in which they came, opening and closing included: each takes its place
//! in the queue of that id before it first waits. Ids do not wait for each other.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outpost_wire::Fault;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use tokio::sync::Mutex as Queue;

use crate::fault;

const MAX_HANDLES: usize = 128;
const MAX_ID: usize = 32;
pub(crate) const MAX_BLOCK: usize = 1 << 20;

/// The handles of one connection, by the ids that the client chose.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, Handle>>);

/// The holder of the lock has the file to itself; the others wait in the order in which they came. There is no file
/// before it is open and after it is closed; such a handle is there only for those who wait.
type Handle = Arc<Queue<Option<File>>>;

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `opened` opens the file, where it may take its time.
    pub(crate) async fn open(&self, id: &str, opened: impl FnOnce() -> Result<File, Fault> + Send + 'static) -> Result<(), Fault> {
        let place = self.reserve(id)?;
        let exists = fault::handle_exists(id);
        let open = move |file: &mut Option<File>| {
            if file.is_some() {
                return Err(exists);
            }
            *file = Some(opened()?);
            Ok(())
        };
        place.work(open).await
    }

    /// Up to `len` bytes; fewer only at the end of the file.
    pub(crate) async fn read(&self, id: &str, offset: u64, len: usize) -> Result<Vec<u8>, Fault> {
        check_length("read", len)?;
        self.with_file(id, move |file| read_at(file, offset, len)).await
    }

    pub(crate) async fn write(&self, id: &str, offset: u64, chunk: Bytes) -> Result<(), Fault> {
        check_length("write", chunk.len())?;
        self.with_file(id, move |file| file.write_all_at(&chunk, offset)).await
    }

    /// Waits for what was asked of the handle before. An unknown handle is as good as closed.
    pub(crate) async fn close(&self, id: &str) {
        if let Some(place) = self.find(id) {
            place.handle.lock().await.take();
        }
    }

    /// Does something with the file when it is this request's turn. A failure closes the handle: what happened to the
    /// file is not known any more.
    async fn with_file<T, W>(&self, id: &str, work: W) -> Result<T, Fault>
    where
        T: Send + 'static,
        W: FnOnce(&File) -> io::Result<T> + Send + 'static,
    {
        let unknown = fault::unknown_handle(id);
        let Some(place) = self.find(id) else { return Err(unknown) };
        let done = place.work(move |slot| {
            let file = slot.as_ref().ok_or(unknown)?;
            work(file).map_err(|error| {
                *slot = None;
                fault::file(error)
            })
        });
        done.await
    }

    fn find(&self, id: &str) -> Option<Place<'_>> {
        let handle = self.lock().get(id).cloned()?;
        Some(Place { streams: self, id: id.to_owned(), handle })
    }

    /// The handle of an id, which is made if there is none.
    fn reserve(&self, id: &str) -> Result<Place<'_>, Fault> {
        if id.len() > MAX_ID {
            return Err(fault::handle_id_too_long(MAX_ID));
        }
        let mut handles = self.lock();
        if !handles.contains_key(id) && handles.len() >= MAX_HANDLES {
            return Err(fault::too_many_handles(MAX_HANDLES));
        }
        let handle = handles.entry(id.to_owned()).or_default().clone();
        Ok(Place { streams: self, id: id.to_owned(), handle })
    }
}

/// A request's place at a handle. The last one to leave a handle without a file frees its id.
struct Place<'a> {
    streams: &'a Streams,
    id: String,
    handle: Handle,
}

impl Place<'_> {
    /// Works on a thread where it may take its time. The turn goes along to it: a request that is dropped meanwhile must
    /// not let the next one start before the system call is over.
    async fn work<T, W>(&self, work: W) -> Result<T, Fault>
    where
        T: Send + 'static,
        W: FnOnce(&mut Option<File>) -> Result<T, Fault> + Send + 'static,
    {
        let mut turn = self.handle.clone().lock_owned().await;
        let done = tokio::task::spawn_blocking(move || work(&mut turn));
        done.await.map_err(Fault::internal)?
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut handles = self.streams.lock();
        // Given back under the lock, so that of two who leave at once the second sees itself as the last.
        drop(std::mem::take(&mut self.handle));
        let is_free = |handle: &Handle| Arc::strong_count(handle) == 1 && handle.try_lock().is_ok_and(|file| file.is_none());
        if handles.get(&self.id).is_some_and(is_free) {
            handles.remove(&self.id);
        }
    }
}

fn check_length(direction: &str, len: usize) -> Result<(), Fault> {
    if (1..=MAX_BLOCK).contains(&len) { Ok(()) } else { Err(fault::block_length(direction, MAX_BLOCK)) }
}

fn read_at(file: &File, mut offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(len);
    while data.len() < len {
        match pread(file, spare_capacity(&mut data), offset) {
            Ok(0) => break,
            Ok(count) => offset += count as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    data.truncate(len);
    Ok(data)
}
