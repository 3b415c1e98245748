//! What makes appends durable: one pre-written log per program, shared by all its threads.
//!
//! Syncing many journals one after another is slow, and an append to a file costs two flushes of the disk. So the bytes that
//! must be durable are also written here, into blocks that were written before (one flush), and all callers that wait at that
//! moment shares the flush. When the log is full, the journals themselves are synced and the log starts over. After a power
//! cut the next start writes what the logs hold into the journals again; see [`replay`].
//!
//! A program holds the lock of its log for as long as it lives. That is also how others learn that it is gone.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use outpost_thread::{Ordinal, ThreadId};
use outpost_wire::SharedError;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: u32 = u32::from_le_bytes(*b"OPCL");
/// A frame begins at a multiple of this, so that a durable one is never written again.
const BLOCK: usize = 4096;
/// Journals that are kept open because they are in the log.
const MOST_DIRTY: usize = 64;
const FRAME_HEAD: usize = 4 + 8 + 4 + 8;

/// How large the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitConfig {
    /// Written at first.
    pub initial: usize,
    /// Grows up to this; then the journals are synced.
    pub limit: usize,
    /// More than this at once is synced in its own journal instead.
    pub largest: usize,
}

impl Default for CommitConfig {
    fn default() -> Self {
        Self { initial: 256 << 10, limit: 8 << 20, largest: 256 << 10 }
    }
}

/// Bytes of a journal that must be durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalPiece {
    pub thread: ThreadId,
    pub epoch: u64,
    /// Of the journal.
    pub edition: u64,
    /// Where in the journal.
    pub offset: u64,
    pub last: Ordinal,
    /// Of the journal, below the home.
    pub path: String,
    pub bytes: Vec<u8>,
}

/// The journal of a piece, and what else must be synced.
pub(crate) struct PieceSource {
    pub journal: Arc<File>,
    pub extent: Extent,
    pub folders: Vec<PathBuf>,
}

/// What of a journal must be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The bytes of the piece; the rest is durable already.
    Bytes,
    /// All of it.
    Journal,
}

struct Request {
    piece: JournalPiece,
    extent: Extent,
    /// Folders that do not durably name the journal yet.
    folders: Vec<PathBuf>,
    journal: Arc<File>,
    done: oneshot::Sender<Result<(), SharedError>>,
}

enum Message {
    Commit(Request),
    /// The journal was synced by other means, or is gone.
    Forget(ThreadId),
    /// The program ends.
    Close(oneshot::Sender<()>),
}

/// Handle of this program's log, held by every appender.
pub(crate) struct CommitLog {
    queue: Option<Sender<Message>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl CommitLog {
    /// Makes the log of this start, locked, with nothing in it.
    pub(crate) fn create(folder: &Path, instance: &str, config: CommitConfig) -> io::Result<Self> {
        crate::local::make_folder(folder)?;
        let path = log_path(folder, instance);
        let file = {
            let _looking = lock_folder(folder)?;
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file
        };
        let (queue, requests) = channel();
        let log = Log { path, file, config, generation: 1, position: 0, written: 0, dirty: HashMap::new(), folder_is_synced: false };
        let thread = std::thread::Builder::new().name("commit".into()).spawn(move || log.run(&requests))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Makes a piece durable. The answer comes when it is.
    pub(crate) fn commit(&self, piece: JournalPiece, source: PieceSource) -> oneshot::Receiver<Result<(), SharedError>> {
        let (done, answer) = oneshot::channel();
        let PieceSource { journal, extent, folders } = source;
        self.send(Message::Commit(Request { piece, extent, folders, journal, done }));
        answer
    }

    pub(crate) fn forget(&self, thread: ThreadId) {
        self.send(Message::Forget(thread));
    }

    /// Syncs all journals and removes the log. Nothing can be made durable through it any more.
    pub(crate) async fn close(&self) {
        let (closed, wait) = oneshot::channel();
        self.send(Message::Close(closed));
        let _ = wait.await;
    }

    fn send(&self, message: Message) {
        if let Some(queue) = &self.queue {
            // If the other side is gone, so is the answer, and its caller gets an error.
            let _ = queue.send(message);
        }
    }
}

impl Drop for CommitLog {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn log_path(folder: &Path, instance: &str) -> PathBuf {
    folder.join(format!("{instance}.log"))
}

/// Held while a program lists the logs or makes one.
fn lock_folder(folder: &Path) -> io::Result<File> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(folder.join("lock"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Whether the program with this log still lives.
pub(crate) fn is_alive(folder: &Path, instance: &str) -> bool {
    let Ok(file) = File::open(log_path(folder, instance)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

struct Log {
    path: PathBuf,
    file: File,
    config: CommitConfig,
    generation: u64,
    /// Where the next frame goes.
    position: usize,
    /// How much of the file was written before.
    written: usize,
    /// Journals that have bytes in the log.
    dirty: HashMap<ThreadId, Arc<File>>,
    folder_is_synced: bool,
}

impl Log {
    fn run(mut self, requests: &Receiver<Message>) {
        let mut closed = None;
        while closed.is_none()
            && let Ok(first) = requests.recv()
        {
            let mut commits = Vec::new();
            for message in std::iter::once(first).chain(requests.try_iter()) {
                match message {
                    Message::Commit(request) => commits.push(request),
                    Message::Forget(thread) => drop(self.dirty.remove(&thread)),
                    Message::Close(tell) => closed = Some(tell),
                }
            }
            self.commit(commits);
        }
        if self.sync_journals().is_ok() {
            let _ = fs::remove_file(&self.path);
        }
        let _ = closed.map(|tell| tell.send(()));
    }

    fn commit(&mut self, requests: Vec<Request>) {
        // A piece whose journal is not there is taken for that of a removed thread: the name comes first.
        let folders: HashSet<&PathBuf> = requests.iter().flat_map(|request| &request.folders).collect();
        if let Err(error) = folders.into_iter().try_for_each(|folder| File::open(folder)?.sync_all()) {
            let why = SharedError::new(error);
            return requests.into_iter().for_each(|request| drop(request.done.send(Err(why.clone()))));
        }
        let (whole, small): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| request.extent == Extent::Journal);
        if !whole.is_empty() {
            let result = sync_all(whole.iter().map(|request| &request.journal)).map_err(SharedError::new);
            for request in whole {
                let _ = request.done.send(result.clone());
            }
        }
        let mut rest = small.into_iter().peekable();
        while rest.peek().is_some() {
            // As many as fit into an empty log go into one frame.
            let mut size = FRAME_HEAD;
            let mut group = Vec::new();
            while let Some(request) = rest.next_if(|request| group.is_empty() || size + request.piece.size() <= self.config.limit) {
                size += request.piece.size();
                group.push(request);
            }
            let result = self.write(&group).map_err(SharedError::new);
            for request in group {
                let _ = request.done.send(result.clone());
            }
        }
    }

    fn write(&mut self, group: &[Request]) -> io::Result<()> {
        let size = FRAME_HEAD + group.iter().map(|request| request.piece.size()).sum::<usize>();
        let length = size.next_multiple_of(BLOCK);
        if self.dirty.len() > MOST_DIRTY {
            self.start_over()?;
        }
        if self.make_room(length).is_err() {
            // No room for a log: the journals themselves must do.
            return sync_all(group.iter().map(|request| &request.journal));
        }
        let mut frame = encode(self.generation, group.iter().map(|request| &request.piece));
        frame.resize(length, 0);
        self.file.write_all_at(&frame, self.position as u64)?;
        self.file.sync_data()?;
        self.position += length;
        for request in group {
            self.dirty.entry(request.piece.thread).or_insert_with(|| request.journal.clone());
        }
        Ok(())
    }

    /// Sees to it that a frame of this length fits into blocks that were written before.
    fn make_room(&mut self, length: usize) -> io::Result<()> {
        while self.position + length > self.written {
            if self.position + length > self.config.limit.max(length) && self.position > 0 {
                self.start_over()?;
                continue;
            }
            let target = (self.written * 2).clamp(self.config.initial, self.config.limit).max(self.position + length);
            let zeroes = vec![0; (target - self.written).min(1 << 20)];
            let mut at = self.written;
            while at < target {
                let count = zeroes.len().min(target - at);
                if let Err(error) = self.file.write_all_at(&zeroes[..count], at as u64) {
                    // A full disk: what was there before can still be used, from its beginning.
                    if self.position > 0 && length <= self.written {
                        self.start_over()?;
                        return Ok(());
                    }
                    return Err(error);
                }
                at += count;
            }
            self.file.sync_all()?;
            if !self.folder_is_synced {
                if let Some(folder) = self.path.parent() {
                    File::open(folder)?.sync_all()?;
                }
                self.folder_is_synced = true;
            }
            self.written = target;
        }
        Ok(())
    }

    /// The journals are synced, and the log has nothing to say any more.
    fn start_over(&mut self) -> io::Result<()> {
        self.sync_journals()?;
        self.generation += 1;
        self.position = 0;
        Ok(())
    }

    fn sync_journals(&mut self) -> io::Result<()> {
        sync_all(self.dirty.values())?;
        self.dirty.clear();
        Ok(())
    }
}

/// A few at a time: the disk can flush several files with one flush of its own.
fn sync_all<'a>(files: impl Iterator<Item = &'a Arc<File>>) -> io::Result<()> {
    const AT_ONCE: usize = 8;
    let files: Vec<_> = files.collect();
    if let [only] = files.as_slice() {
        return only.sync_data();
    }
    let share = files.len().div_ceil(AT_ONCE).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = files.chunks(share).map(|files| scope.spawn(|| files.iter().try_for_each(|file| file.sync_data()))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker failed"))))
    })
}

impl JournalPiece {
    fn size(&self) -> usize {
        16 + 8 + 8 + 8 + 8 + 2 + self.path.len() + 4 + self.bytes.len()
    }
}

fn encode<'a>(generation: u64, pieces: impl Iterator<Item = &'a JournalPiece>) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEAD];
    for piece in pieces {
        frame.extend_from_slice(piece.thread.uuid().as_bytes());
        frame.extend_from_slice(&piece.epoch.to_le_bytes());
        frame.extend_from_slice(&piece.edition.to_le_bytes());
        frame.extend_from_slice(&piece.offset.to_le_bytes());
        frame.extend_from_slice(&piece.last.to_le_bytes());
        frame.extend_from_slice(&(piece.path.len() as u16).to_le_bytes());
        frame.extend_from_slice(piece.path.as_bytes());
        frame.extend_from_slice(&(piece.bytes.len() as u32).to_le_bytes());
        frame.extend_from_slice(&piece.bytes);
    }
    let payload = (frame.len() - FRAME_HEAD) as u32;
    let sum = xxh3_64_with_seed(&frame[FRAME_HEAD..], generation);
    frame[..4].copy_from_slice(&MAGIC.to_le_bytes());
    frame[4..12].copy_from_slice(&generation.to_le_bytes());
    frame[12..16].copy_from_slice(&payload.to_le_bytes());
    frame[16..24].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// Reads numbers and bytes off the front of a slice.
struct Scan<'a>(&'a [u8]);

impl<'a> Scan<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn piece(&mut self) -> Option<JournalPiece> {
        let thread = ThreadId::new(Uuid::from_bytes(self.array()?));
        let epoch = u64::from_le_bytes(self.array()?);
        let edition = u64::from_le_bytes(self.array()?);
        let offset = u64::from_le_bytes(self.array()?);
        let last = u64::from_le_bytes(self.array()?);
        let length = u16::from_le_bytes(self.array()?);
        let path = std::str::from_utf8(self.take(length.into())?).ok()?.to_owned();
        let length = u32::from_le_bytes(self.array()?);
        Some(JournalPiece { thread, epoch, edition, offset, last, path, bytes: self.take(length as usize)?.to_vec() })
    }
}

/// The pieces in a log that was left behind, in the order in which they were written. What follows the last whole frame was
/// never told as durable.
pub(crate) fn decode(log: &[u8]) -> Vec<JournalPiece> {
    let mut pieces = Vec::new();
    let mut position = 0;
    let mut generation = None;
    while let Some(rest) = log.get(position..) {
        let mut scan = Scan(rest);
        let (Some(magic), Some(number), Some(length), Some(sum)) = (scan.array(), scan.array(), scan.array(), scan.array()) else { break };
        let number = u64::from_le_bytes(number);
        if u32::from_le_bytes(magic) != MAGIC || *generation.get_or_insert(number) != number {
            break;
        }
        let length = u32::from_le_bytes(length) as usize;
        let Some(payload) = scan.take(length) else { break };
        if xxh3_64_with_seed(payload, number) != u64::from_le_bytes(sum) {
            break;
        }
        let mut scan = Scan(payload);
        while let Some(piece) = scan.piece() {
            pieces.push(piece);
        }
        position += (FRAME_HEAD + length).next_multiple_of(BLOCK);
    }
    pieces
}

/// The programs whose logs are being replayed. Their logs are locked meanwhile, so that other programs do not replay them too.
pub(crate) struct Dead(HashSet<String>);

impl Dead {
    pub(crate) fn has(&self, instance: &str) -> bool {
        self.0.contains(instance)
    }
}

/// Writes what dead programs left in their logs into the journals again, and removes the logs. `write` does one journal: its
/// pieces come in the order of their epochs.
pub(crate) fn replay(folder: &Path, mut write: impl FnMut(&Dead, Vec<JournalPiece>) -> io::Result<()>) -> io::Result<usize> {
    if !folder.exists() {
        return Ok(0);
    }
    let _looking = lock_folder(folder)?;
    let mut logs = Vec::new();
    let mut dead = Dead(HashSet::new());
    for found in fs::read_dir(folder)?.flatten() {
        let path = found.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let file = File::open(&path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            dead.0.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
            logs.push((path, file));
        }
    }
    let mut journals: HashMap<ThreadId, Vec<JournalPiece>> = HashMap::new();
    for (path, _) in &logs {
        for piece in decode(&fs::read(path)?) {
            journals.entry(piece.thread).or_default().push(piece);
        }
    }
    let count = journals.len();
    for mut pieces in journals.into_values() {
        // Within one holder's time the order of the log is the order of the journal.
        pieces.sort_by_key(|piece| (piece.epoch, piece.offset));
        write(&dead, pieces)?;
    }
    for (path, _) in &logs {
        fs::remove_file(path)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(thread: u128, offset: u64, bytes: &[u8]) -> JournalPiece {
        let thread = ThreadId::new(Uuid::from_u128(thread));
        JournalPiece { thread, epoch: 3, edition: 0, offset, last: offset, path: "threads/x.jsonl".into(), bytes: bytes.to_vec() }
    }

    #[test]
    fn a_log_reads_back_up_to_its_last_whole_frame() {
        let frames = [vec![piece(1, 0, b"one"), piece(2, 5, b"two")], vec![piece(1, 3, &[7; 5000])], vec![piece(3, 0, b"three")]];
        let mut log = Vec::new();
        for frame in &frames {
            log.extend(encode(9, frame.iter()));
            log.resize(log.len().next_multiple_of(BLOCK), 0);
        }
        let all: Vec<_> = frames.iter().flatten().cloned().collect();
        assert_eq!(decode(&log), all);
        // Zeroes behind it, or frames of the time before, are not its own.
        let mut longer = log.clone();
        longer.extend(encode(8, frames[0].iter()));
        assert_eq!(decode(&longer), all);
        // Whatever is torn off or flipped in the last frame takes only that frame.
        let last = log.len() - BLOCK;
        for at in [last, last + 4, last + 20, last + 30] {
            let mut spoiled = log.clone();
            spoiled[at] ^= 1;
            assert_eq!(decode(&spoiled), all[..3], "{at}");
            assert_eq!(decode(&log[..at]), all[..3], "{at}");
        }
        assert_eq!(decode(&[]), []);
    }
}
