//! A home on disk: `threads/YYYY/MM/DD/<id>.jsonl` with a `.lease` beside each, `blobs/`, `images/`, `commit/`, `index/checkpoints/`.
//!
//! Several programs may use one home at the same time. What is written here is 0600, folders are 0700.

mod forks;
mod history;
mod images;
mod rewrite;
mod segment;
mod verify;
mod writer;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use outpost_thread::{Checkpoint, Entry, Fact, Ordinal, ThreadId};
use outpost_wire::SharedError;
use outpost_wire::calendar::UtcTime;

use crate::adoption::AdoptionKey;
use crate::blob::{BlobError, Blobs, Digest};
use crate::commit::{self, CommitConfig, CommitLog, Dead, JournalPiece};
use crate::index::{Index, IndexConfig};
use crate::lease::{ClaimError, ClaimMode, Lease, LeaseFile, LeaseHolder, Record};
use crate::list::{ListPage, ListQuery};
use crate::store::{
    AppendError, Appended, Clock, DeleteError, Durability, ForkRequest, ForkStoreError, Need, Page, PageRequest, ReadError, Redactor,
    ThreadHead,
};
use crate::summary::ThreadSummary;

use crate::verify::{Repair, VerifyReport};

pub use history::LocalHistory;
use segment::SegmentLineage;
use writer::JournalWriter;

/// How long a program that was killed may seem to live on.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// Everything that a home needs to be told.
#[derive(Clone)]
pub struct LocalConfig {
    pub home: PathBuf,
    /// A name for this start of the program that no other start has.
    pub instance: String,
    pub host: String,
    pub clock: Clock,
    pub durability: Durability,
    pub commit: CommitConfig,
    /// How long a holder on another machine is believed without a sign of life, in milliseconds.
    pub lease_ms: u64,
    pub redactor: Option<Arc<dyn Redactor>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the home at {path}: {why}")]
    Home {
        path: String,
        #[source]
        why: io::Error,
    },
    #[error("cannot replay the commit logs below {path}: {why}")]
    Replay {
        path: String,
        #[source]
        why: io::Error,
    },
}

/// A home on disk.
#[derive(Clone)]
pub struct LocalStore(Arc<LocalHome>);

pub(crate) struct LocalHome {
    config: LocalConfig,
    blobs: Blobs,
    writers: Mutex<HashMap<ThreadId, Arc<Mutex<JournalWriter>>>>,
    places: Mutex<Places>,
    /// Made with the first lease, so that merely reading leaves no trace.
    log: OnceLock<CommitLog>,
    making_log: Mutex<()>,
    is_full: AtomicBool,
    /// Started by the first list, or when a caller asks to keep it up to date.
    index: OnceLock<Index>,
    /// A sync failed: what the disk has is not known any more.
    is_broken: AtomicBool,
}

/// Where threads are that cannot be found by their id alone.
#[derive(Default)]
struct Places {
    known: HashMap<ThreadId, PathBuf>,
    /// The whole home was looked through once; what was made here since is known as well.
    is_whole: bool,
}

impl LocalStore {
    /// The key by which programs of this home claim each other's commands.
    pub(crate) async fn adoption_key(&self) -> Result<AdoptionKey, SharedError> {
        let home = self.0.config.home.clone();
        tokio::task::spawn_blocking(move || AdoptionKey::of_home(&home)).await.map_err(SharedError::new)?
    }

    /// Opens a home, after writing into the journals what programs that ended badly left in their commit logs.
    pub fn open(config: LocalConfig) -> Result<Self, OpenError> {
        let shown = config.home.display().to_string();
        make_folder(&config.home).map_err(|why| OpenError::Home { path: shown.clone(), why })?;
        let home = LocalHome {
            blobs: Blobs::new(config.home.join("blobs")),
            config,
            writers: Mutex::default(),
            places: Mutex::default(),
            log: OnceLock::new(),
            index: OnceLock::new(),
            making_log: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        home.replay().map_err(|why| OpenError::Replay { path: shown, why })?;
        Ok(Self(Arc::new(home)))
    }

    pub async fn create(&self, thread: ThreadId) -> Result<Lease, ClaimError> {
        self.0.create(thread)
    }

    pub async fn claim(&self, thread: ThreadId, mode: ClaimMode) -> Result<Lease, ClaimError> {
        let home = self.0.clone();
        blocking(move || home.claim(thread, mode)).await
    }

    pub async fn holder(&self, thread: ThreadId) -> Result<Option<LeaseHolder>, ClaimError> {
        let home = self.0.clone();
        blocking(move || home.holder(thread)).await
    }

    pub async fn release(&self, lease: Lease) {
        self.0.release(&lease);
    }

    /// Syncs everything and removes the commit log.
    pub async fn close(&self) {
        if let Some(log) = self.0.log.get() {
            log.close().await;
        }
    }

    pub async fn append(&self, lease: &Lease, entries: Vec<Entry>, need: Need) -> Result<Appended, AppendError> {
        self.0.append(lease, entries, need).await
    }

    pub async fn head(&self, thread: ThreadId) -> Result<ThreadHead, ReadError> {
        let home = self.0.clone();
        blocking(move || home.head(thread)).await
    }

    pub async fn page(&self, thread: ThreadId, request: PageRequest) -> Result<Page, ReadError> {
        let home = self.0.clone();
        blocking(move || home.page(thread, request)).await
    }

    pub async fn history(&self, thread: ThreadId, after: Ordinal) -> Result<LocalHistory, ReadError> {
        let home = self.0.clone();
        blocking(move || LocalHistory::new(home, thread, after)).await
    }

    pub async fn entries(&self, thread: ThreadId, wanted: Vec<Ordinal>) -> Result<Vec<Entry>, ReadError> {
        let home = self.0.clone();
        blocking(move || home.pick(thread, &wanted)).await
    }

    pub async fn fork(&self, request: ForkRequest) -> Result<Lease, ForkStoreError> {
        let home = self.0.clone();
        blocking(move || home.fork(request)).await
    }

    pub async fn delete(&self, thread: ThreadId, mode: ClaimMode) -> Result<(), DeleteError> {
        let home = self.0.clone();
        blocking(move || home.delete(thread, mode)).await
    }

    pub async fn threads(&self) -> Result<Vec<ThreadId>, ReadError> {
        let home = self.0.clone();
        blocking(move || Ok(home.journals()?.into_iter().map(|(thread, _)| thread).collect())).await
    }

    /// The index of this home, which is kept up to date from now on. It is ready a moment later; asking it waits for that.
    pub fn index(&self) -> io::Result<&Index> {
        self.0.index()
    }

    pub async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        Ok(self.index()?.list(query).await?)
    }

    pub async fn mentions(&self, threads: &[ThreadId], search: &str) -> Result<HashMap<ThreadId, Entry>, ReadError> {
        let places = self.index()?.mentions(threads.to_vec(), search.to_owned()).await?;
        let home = self.0.clone();
        // A journal that cannot be read now has nothing to show of itself.
        let read = move |(thread, ordinal)| Some((thread, home.pick(thread, &[ordinal]).ok()?.pop()?));
        blocking(move || Ok(places.into_iter().filter_map(read).collect())).await
    }

    pub async fn summary(&self, thread: ThreadId) -> Result<Option<ThreadSummary>, ReadError> {
        Ok(self.index()?.summary(thread).await?)
    }

    pub async fn put_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), ReadError> {
        self.0.put_checkpoint(checkpoint)
    }

    pub async fn checkpoint(&self, thread: ThreadId) -> Option<Checkpoint> {
        let home = self.0.clone();
        blocking(move || home.checkpoint(thread)).await
    }

    pub async fn put_blob(&self, content: Vec<u8>) -> Result<Digest, AppendError> {
        let home = self.0.clone();
        blocking(move || home.blobs.put(&content).map_err(|error| home.failed(error))).await
    }

    pub async fn blob(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let blobs = self.0.blobs.clone();
        blocking(move || blobs.get(digest)).await
    }

    pub async fn save_image(&self, thread: ThreadId, extension: &'static str, content: Vec<u8>) -> io::Result<PathBuf> {
        let home = self.0.clone();
        blocking(move || home.save_image(thread, extension, &content)).await
    }

    pub async fn known_last(&self, thread: ThreadId) -> Option<Ordinal> {
        let home = self.0.clone();
        blocking(move || home.known_last(thread)).await
    }

    pub async fn indexed_last(&self, thread: ThreadId) -> Option<Ordinal> {
        self.index().ok()?.high_ordinal(thread).await.ok()?
    }

    pub async fn verify(&self, thread: ThreadId, known: Option<Ordinal>) -> Result<VerifyReport, ReadError> {
        let home = self.0.clone();
        // Read first: another program may be writing meanwhile.
        let known = known.max(self.known_last(thread).await);
        blocking(move || home.verify(thread, known)).await
    }

    pub async fn repair(&self, thread: ThreadId, mode: ClaimMode) -> Result<Repair, DeleteError> {
        let home = self.0.clone();
        blocking(move || {
            let repaired = home.repair(thread, mode);
            if let (Ok(_), Some(index), Some(path)) = (&repaired, home.index.get(), home.find(thread)) {
                index.anew(thread, &path);
            }
            repaired
        })
        .await
    }

    /// The journal of a thread, if it has one.
    pub fn journal(&self, thread: ThreadId) -> Option<PathBuf> {
        self.0.find(thread)
    }

    /// All journals, with their threads.
    pub fn journals(&self) -> io::Result<Vec<(ThreadId, PathBuf)>> {
        self.0.journals()
    }
}

/// Runs what waits for a disk where waiting is allowed.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Makes a folder and its parents, accessible only to the owner.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl LocalHome {
    pub(crate) fn now(&self) -> u64 {
        (self.config.clock)()
    }

    fn threads(&self) -> PathBuf {
        self.config.home.join("threads")
    }

    fn commits(&self) -> PathBuf {
        self.config.home.join("commit")
    }

    /// Where the journal of a thread belongs: by the day that its id tells, or else by the day on which it was created.
    fn place(&self, thread: ThreadId, created: u64) -> PathBuf {
        let told = thread.uuid().get_timestamp().map(|time| {
            let (seconds, nanos) = time.to_unix();
            seconds.saturating_mul(1000) + u64::from(nanos) / 1_000_000
        });
        let UtcTime { year, month, day, .. } = UtcTime::of(told.unwrap_or(created));
        self.threads().join(format!("{year:04}/{month:02}/{day:02}/{thread}.jsonl"))
    }

    /// The journal of a thread, if it has one.
    pub(crate) fn find(&self, thread: ThreadId) -> Option<PathBuf> {
        if thread.uuid().get_timestamp().is_some() {
            let path = self.place(thread, 0);
            if crate::index::is_journal(&path) {
                return Some(path);
            }
        }
        if let Some(path) = self.known_place(thread) {
            return Some(path);
        }
        // It was put there by hand or by another program, or its id tells no time.
        let journals = self.journals().ok()?;
        let mut places = lock(&self.places);
        places.is_whole = true;
        places.known.extend(journals.into_iter().filter(|(id, path)| *path != self.place(*id, 0)));
        places.known.get(&thread).cloned()
    }

    fn known_place(&self, thread: ThreadId) -> Option<PathBuf> {
        lock(&self.places).known.get(&thread).filter(|path| path.exists()).cloned()
    }

    /// A journal was made here.
    fn placed(&self, thread: ThreadId, path: &Path) {
        if thread.uuid().get_timestamp().is_none() {
            lock(&self.places).known.insert(thread, path.to_owned());
        }
    }

    pub(crate) fn journals(&self) -> io::Result<Vec<(ThreadId, PathBuf)>> {
        let mut found = Vec::new();
        let mut folders = vec![self.threads()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else if let Some(thread) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".jsonl")?.parse().ok())
                    && crate::index::is_journal(&entry.path())
                {
                    found.push((thread, entry.path()));
                }
            }
        }
        Ok(found)
    }

    fn lease_path(journal: &Path) -> PathBuf {
        journal.with_extension("lease")
    }

    fn me(&self) -> LeaseHolder {
        let now = self.now();
        LeaseHolder {
            instance: self.config.instance.clone(),
            host: self.config.host.clone(),
            pid: std::process::id(),
            since: now,
            renewed: now,
            node: None,
            address: None,
        }
    }

    /// Whether a holder is still there, as far as can be known from here.
    fn is_alive(&self, holder: &LeaseHolder) -> bool {
        if holder.instance == self.config.instance {
            return true;
        }
        if holder.host == self.config.host {
            return commit::is_alive(&self.commits(), &holder.instance);
        }
        self.now().saturating_sub(holder.renewed) < self.config.lease_ms
    }

    fn index(&self) -> io::Result<&Index> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let _making = lock(&self.making_log);
        if self.index.get().is_none() {
            let _ = self.index.set(Index::start(IndexConfig::of_home(&self.config.home))?);
        }
        self.index.get().ok_or_else(|| io::Error::other("the index could not be kept"))
    }

    /// A journal was written.
    fn noted(&self, thread: ThreadId, path: &Path) {
        if let Some(index) = self.index.get() {
            index.touched(thread, path);
        }
    }

    fn log(&self) -> io::Result<&CommitLog> {
        if let Some(log) = self.log.get() {
            return Ok(log);
        }
        let _making = lock(&self.making_log);
        if self.log.get().is_none() {
            let made = CommitLog::create(&self.commits(), &self.config.instance, self.config.commit)?;
            let _ = self.log.set(made);
        }
        self.log.get().ok_or_else(|| io::Error::other("the commit log could not be kept"))
    }

    fn create(&self, thread: ThreadId) -> Result<Lease, ClaimError> {
        if self.find_exactly(thread).is_some() {
            return Err(ClaimError::Exists(thread));
        }
        let mut writers = lock(&self.writers);
        if writers.contains_key(&thread) {
            return Err(ClaimError::Exists(thread));
        }
        writers.insert(thread, Arc::new(Mutex::new(JournalWriter::unmaterialized(thread))));
        Ok(Lease { thread, epoch: writer::FIRST_EPOCH })
    }

    /// Without a search of the whole home: for an id that was just made there is nothing to find elsewhere. An id that tells no time
    /// comes from another program, thousands of them at once; for these the home is looked through once. What a third program makes
    /// meanwhile is found when the journal gets its name.
    fn find_exactly(&self, thread: ThreadId) -> Option<PathBuf> {
        if thread.uuid().get_timestamp().is_some() {
            return Some(self.place(thread, 0)).filter(|path| path.exists());
        }
        let is_whole = lock(&self.places).is_whole;
        if is_whole { self.known_place(thread) } else { self.find(thread) }
    }

    fn claim(&self, thread: ThreadId, mode: ClaimMode) -> Result<Lease, ClaimError> {
        let held_here = lock(&self.writers).get(&thread).cloned();
        if let (Some(_), ClaimMode::IfFree) = (&held_here, mode) {
            let holder = self.me();
            return Err(ClaimError::Held { thread, holder: Box::new(holder), age_ms: 0 });
        }
        let path = self.find(thread).ok_or(ClaimError::NotFound(thread))?;
        let file = LeaseFile::open(&Self::lease_path(&path))?;
        if mode != ClaimMode::TakeOver {
            self.await_last_breath(&file)?;
        }
        self.log()?;
        let writer = {
            let locked = file.lock()?;
            // A number that cannot have been used yet, if the file does not tell.
            let record = locked.read()?.unwrap_or_else(|| Record { epoch: self.now(), ..Record::default() });
            if let Some(holder) = record.holder.filter(|holder| mode != ClaimMode::TakeOver && self.is_alive(holder)) {
                let age_ms = self.now().saturating_sub(holder.since);
                return Err(ClaimError::Held { thread, holder: Box::new(holder), age_ms });
            }
            let epoch = record.epoch + 1;
            let writer = JournalWriter::open(thread, &path, epoch, record.edition).map_err(|why| ClaimError::Journal { thread, why })?;
            locked.write(&Record { epoch, holder: Some(self.me()), edition: record.edition })?;
            writer
        };
        let lease = Lease { thread, epoch: writer.epoch() };
        lock(&self.writers).insert(thread, Arc::new(Mutex::new(writer.with_lease(file))));
        Ok(lease)
    }

    /// A program that was killed while it started another one leaves a copy of itself for a moment, which still has its log
    /// open. Only that is waited for: where the process cannot be seen, it may also live in another container.
    fn await_last_breath(&self, lease: &LeaseFile) -> Result<(), ClaimError> {
        let since = Instant::now();
        while since.elapsed() < LAST_BREATH {
            let holder = lease.lock()?.read()?.and_then(|record| record.holder);
            let is_gone =
                |holder: &LeaseHolder| holder.host == self.config.host && !Path::new("/proc").join(holder.pid.to_string()).exists();
            if !holder.is_some_and(|holder| is_gone(&holder) && self.is_alive(&holder)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn holder(&self, thread: ThreadId) -> Result<Option<LeaseHolder>, ClaimError> {
        if lock(&self.writers).contains_key(&thread) {
            return Ok(Some(self.me()));
        }
        let path = self.find(thread).ok_or(ClaimError::NotFound(thread))?;
        let lease = Self::lease_path(&path);
        // Looking at a thread must not make a file for it.
        if !lease.exists() {
            return Ok(None);
        }
        let record = LeaseFile::open(&lease)?.lock()?.read()?;
        Ok(record.and_then(|record| record.holder).filter(|holder| self.is_alive(holder)))
    }

    fn release(&self, lease: &Lease) {
        let writer = {
            let mut writers = lock(&self.writers);
            let is_newest = writers.get(&lease.thread).is_some_and(|writer| lock(writer).epoch() == lease.epoch);
            if is_newest { writers.remove(&lease.thread) } else { None }
        };
        if let Some(writer) = writer
            && let Err(error) = lock(&writer).give_back()
        {
            tracing::warn!(thread = %lease.thread, %error, "the lease could not be given back");
        }
    }

    async fn append(&self, lease: &Lease, entries: Vec<Entry>, need: Need) -> Result<Appended, AppendError> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(AppendError::NotDurable("an earlier sync failed".into()));
        }
        self.check_space()?;
        let lost = || AppendError::LeaseLost { thread: lease.thread, holder: "another holder".into() };
        let writer = lock(&self.writers).get(&lease.thread).cloned().ok_or_else(lost)?;
        let waits = self.config.durability.waits_for(need);
        let (appended, commit) = {
            let mut writer = lock(&writer);
            if writer.epoch() != lease.epoch {
                return Err(lost());
            }
            let done = writer.append(self, entries, waits)?;
            if let Some(path) = writer.path() {
                self.noted(lease.thread, path);
            }
            done
        };
        let Some(commit) = commit else { return Ok(appended) };
        match commit.await {
            Ok(Ok(())) => {
                lock(&writer).committed(appended.last);
                Ok(Appended { durable: appended.last, ..appended })
            }
            Ok(Err(why)) => {
                // After a failed sync the content of the disk is unknown. Going on would be guessing.
                self.is_broken.store(true, Ordering::Relaxed);
                Err(AppendError::NotDurable(why))
            }
            Err(_) => Err(AppendError::NotDurable("the commit log is closed".into())),
        }
    }

    /// Once the disk was full nothing is tried until there is some room again.
    fn check_space(&self) -> Result<(), AppendError> {
        const ROOM: u64 = 4 << 20;
        if !self.is_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let space = rustix::fs::statvfs(&self.config.home).map_err(io::Error::from)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < ROOM.min(space.f_blocks.saturating_mul(space.f_frsize) / 16) {
            return Err(self.no_space());
        }
        self.is_full.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn failed(&self, error: io::Error) -> AppendError {
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            self.is_full.store(true, Ordering::Relaxed);
            return self.no_space();
        }
        AppendError::Io(error)
    }

    fn no_space(&self) -> AppendError {
        AppendError::NoSpace { place: self.config.home.clone() }
    }

    fn head(&self, thread: ThreadId) -> Result<ThreadHead, ReadError> {
        if let Some(writer) = lock(&self.writers).get(&thread).cloned()
            && let Some(head) = lock(&writer).unmaterialized_head(thread)
        {
            return Ok(head);
        }
        let mut head = SegmentLineage::open(self, thread)?.head(self)?;
        if let Some(writer) = lock(&self.writers).get(&thread) {
            head.durable = lock(writer).durable();
        }
        Ok(head)
    }

    fn checkpoint_path(&self, thread: ThreadId) -> PathBuf {
        let name = thread.to_string();
        // The end of an id is random, its beginning is a time: this spreads them.
        self.config.home.join("index/checkpoints").join(&name[name.len() - 2..]).join(format!("{name}.json"))
    }

    fn put_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), ReadError> {
        let path = self.checkpoint_path(checkpoint.thread.id);
        let folder = path.parent().unwrap_or(&self.config.home);
        make_folder(folder)?;
        let bytes = checkpoint.encode().map_err(io::Error::other)?;
        let aside = path.with_extension(format!("{}.new", self.config.instance));
        let written = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|file| file.write_all_at(&bytes, 0))
            .and_then(|()| fs::rename(&aside, &path));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        Ok(written?)
    }

    fn checkpoint(&self, thread: ThreadId) -> Option<Checkpoint> {
        let checkpoint = Checkpoint::decode(&fs::read(self.checkpoint_path(thread)).ok()?).ok()?;
        let lineage = SegmentLineage::open(self, thread).ok()?;
        (checkpoint.thread.id == thread && lineage.bears_out(checkpoint.ordinal, &checkpoint.sum)).then_some(checkpoint)
    }

    /// The highest ordinal that anything but the journal itself knows of.
    pub(crate) fn known_last(&self, thread: ThreadId) -> Option<Ordinal> {
        let checkpoint = fs::read(self.checkpoint_path(thread)).ok().and_then(|bytes| Checkpoint::decode(&bytes).ok());
        checkpoint.filter(|checkpoint| checkpoint.thread.id == thread).map(|checkpoint| checkpoint.ordinal)
    }

    fn replay(&self) -> io::Result<()> {
        let replayed = commit::replay(&self.commits(), |dead, pieces| self.restore(dead, &pieces))?;
        if replayed > 0 {
            tracing::info!(journals = replayed, "commit logs of earlier starts were replayed");
        }
        Ok(())
    }

    /// Writes into a journal what it should hold.
    fn restore(&self, dead: &Dead, pieces: &[JournalPiece]) -> io::Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let path = self.config.home.join(&first.path);
        let journal = match File::options().read(true).write(true).open(&path) {
            Ok(journal) => journal,
            // Its folder was synced before anything was told as durable, so it was removed since.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let lease = LeaseFile::open(&Self::lease_path(&path))?;
        let locked = lease.lock()?;
        let record = locked.read()?.unwrap_or_default();
        if record.holder.as_ref().is_some_and(|holder| !dead.has(&holder.instance) && self.is_alive(holder)) {
            // It has written there since, so no power was cut and nothing is missing.
            return Ok(());
        }
        let mut changed = 0_u64;
        for piece in pieces.iter().filter(|piece| piece.edition == record.edition) {
            let mut present = vec![0; piece.bytes.len()];
            if journal.read_exact_at(&mut present, piece.offset).is_err() || present != piece.bytes {
                journal.write_all_at(&piece.bytes, piece.offset)?;
                changed += piece.bytes.len() as u64;
            }
        }
        if changed > 0 {
            tracing::warn!(thread = %first.thread, bytes = changed, "a journal had lost what was durable; it was restored from the commit log");
        }
        journal.sync_data()
    }

    fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.config.home).unwrap_or(path).to_string_lossy().into_owned()
    }
}

/// A poisoned lock only says that another task panicked; what it guards is changed in one piece.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread comes to be on disk with this entry. What only describes it can wait.
pub(crate) fn materializes(entry: &Entry) -> bool {
    !matches!(entry.fact, Fact::ThreadCreated(_) | Fact::MetadataChanged(_) | Fact::SettingsChanged(_) | Fact::SelectionChanged(_))
}
