//! Copies of files and trees from one environment to another, or within one.
//!
//! What is copied is first written under a name of its own beside its destination and put in place by a rename: a program that
//! looks there sees the old thing or the new one, whole. Bytes stream through in bounded memory; a connection that is lost
//! on either side is waited for. Where either side is, even this machine, makes no difference here.

mod exclude;
mod packs;
mod tree;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_wire::exec::attributes::{Attributes, FileKind};
use outpost_wire::exec::files::{WriteFile, WriteFileParams};
use outpost_wire::exec::packs::{Sync, SyncParams};
use outpost_wire::{Escaped, PathUri, fault};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::blocks::{BLOCK, BlockFile, BlockReadError};
use crate::environment::{Environment, EnvironmentError, Repeat};
use crate::pace::{self, Pace};
use crate::state::ConnectionState;

pub use self::exclude::{ExcludePattern, PatternError};

/// Blocks in memory at once, over all files of a transfer.
const ROOM: usize = pace::MOST + pace::MOST / 2;
/// How long to try to remove what an unfinished transfer leaves.
const CLEANING: Duration = Duration::from_secs(5);

/// A path somewhere.
#[derive(Clone)]
pub struct Location {
    pub environment: Environment,
    pub path: PathUri,
}

/// How far a transfer is; read while it runs.
#[derive(Debug, Default)]
pub struct TransferProgress {
    total: AtomicU64,
    done: AtomicU64,
}

impl TransferProgress {
    /// Of something of which the size is known.
    pub fn of(total: u64) -> Self {
        Self { total: AtomicU64::new(total), done: AtomicU64::new(0) }
    }

    pub fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that are there, and bytes that will be.
    pub fn bytes(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSummary {
    pub files: u64,
    pub bytes: u64,
    /// Where it is now.
    pub path: PathUri,
    /// Pipes, sockets and devices that were left out.
    pub skipped: Vec<PathUri>,
    /// What was removed at the destination.
    pub removed: Vec<PathUri>,
    /// What would be written, if nothing was to be changed.
    pub planned: Vec<PathUri>,
}

#[derive(Debug, Error)]
pub enum TransferError {
    #[error("cannot read {path} on {name}")]
    Source { name: String, path: String, source: EnvironmentError },
    #[error("cannot write {path} on {name}")]
    Destination { name: String, path: String, source: EnvironmentError },
    #[error("{path} on {name} is a directory; copy it with -r")]
    Directory { name: String, path: String },
    #[error("{path} on {name} is neither a file nor a directory")]
    Special { name: String, path: String },
    #[error("{path} on {name} is a directory and cannot be replaced by a file")]
    WouldReplaceDirectory { name: String, path: String },
    #[error("{path} on {name} is not a directory and cannot be replaced by one")]
    WouldReplaceFile { name: String, path: String },
    #[error("{path} on {name} is not a directory")]
    NoDirectory { name: String, path: String },
    #[error("{path} on {name} has changed while it was copied")]
    Changed { name: String, path: String },
    #[error("{path} would be copied into itself")]
    IntoItself { path: String },
    #[error("the executor of {name} cannot tell permissions and links (capability fileAttributes); it needs a newer outpost")]
    Unable { name: String },
    #[error("the executor of {name} cannot sync a copy (capability filePacks); it needs a newer outpost, or copy without --sync")]
    CannotSync { name: String },
}

/// What is wanted of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransferOptions {
    /// Directories with everything in them.
    pub recursive: bool,
    /// A file goes into the destination, which must be a directory.
    pub into_directory: bool,
    /// What is left out of a directory, and what is in it.
    pub exclude: Vec<ExcludePattern>,
    /// What is in a directory at the destination and not in the source is removed, unless it is left out.
    pub delete: bool,
    /// Nothing is changed; the summary says what would be.
    pub dry_run: bool,
    /// The copy is over when it survives a power cut.
    pub sync: bool,
}

/// One copy.
pub struct Transfer {
    source: Location,
    destination: Location,
    options: TransferOptions,
    /// Random; makes unique names.
    tag: String,
    names: AtomicU64,
    room: Arc<Semaphore>,
    progress: Arc<TransferProgress>,
    /// Of the way from the source, and of that to the destination.
    reading: Pace,
    writing: Pace,
    /// Unfinished things at the destination.
    parts: Mutex<BTreeSet<PathUri>>,
}

/// How things come to their place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placing {
    /// One by one, each replacing what was there.
    Each,
    /// All at once with the directory they lie in, which is not visible yet.
    Together,
}

impl Transfer {
    pub fn new(source: Location, destination: Location, options: TransferOptions, tag: String) -> Self {
        Self {
            source,
            destination,
            options,
            tag,
            names: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(ROOM)),
            progress: Arc::default(),
            reading: Pace::new(BLOCK),
            writing: Pace::new(BLOCK),
            parts: Mutex::default(),
        }
    }

    pub fn progress(&self) -> Arc<TransferProgress> {
        self.progress.clone()
    }

    /// Copies. A caller that cancels it, or gets an error, calls [`Self::clean_up`].
    pub async fn run(&self) -> Result<TransferSummary, TransferError> {
        let source = self.source.environment.info().await.map_err(|error| self.unread(&self.source.path, error))?;
        let destination = self.destination.environment.info().await.map_err(|error| self.unwritten(&self.destination.path, error))?;
        for (info, location) in [(source, &self.source), (destination, &self.destination)] {
            if !info.capabilities.file_attributes {
                return Err(TransferError::Unable { name: location.environment.name().to_owned() });
            }
        }
        let (root, attributes) = self.find_source().await?;
        let target = self.find_target(attributes.kind).await?;
        let mut summary = TransferSummary { files: 0, bytes: 0, path: target.clone(), skipped: vec![], removed: vec![], planned: vec![] };
        match attributes.kind {
            FileKind::Directory if !self.options.recursive => {
                return Err(self.source.refuse(|name, path| TransferError::Directory { name, path }));
            }
            FileKind::Directory => self.copy_tree(&root, attributes, &target, &mut summary).await?,
            FileKind::File => {
                self.progress.total.store(attributes.size, Ordering::Relaxed);
                if self.options.dry_run {
                    summary.planned.push(target);
                    return Ok(summary);
                }
                self.copy_file(&root, &attributes, &target, Placing::Each).await?;
                self.sync(&target).await?;
                summary.files = 1;
            }
            _ => return Err(self.source.refuse(|name, path| TransferError::Special { name, path })),
        }
        summary.bytes = self.progress.bytes().0;
        Ok(summary)
    }

    /// Removes what is unfinished at the destination, and tells what could not be removed.
    pub async fn clean_up(&self) -> Vec<String> {
        let parts = std::mem::take(&mut *self.lock());
        let mut left = Vec::new();
        for part in parts {
            // A connection is not made only to clean up.
            let connected = matches!(*self.destination.environment.watch().borrow(), ConnectionState::Ready(_));
            let removed =
                connected && matches!(timeout(CLEANING, self.destination.environment.files().remove(part.clone())).await, Ok(Ok(())));
            if !removed {
                left.push(show(&part));
            }
        }
        left
    }

    /// What to copy. A link that was named is followed; links inside a tree stay links.
    async fn find_source(&self) -> Result<(PathUri, Attributes), TransferError> {
        let Location { environment, path } = &self.source;
        let failed = |error| self.unread(path, error);
        let attributes = environment.files().attributes(path.clone()).await.map_err(failed)?;
        if attributes.kind != FileKind::Symlink {
            return Ok((path.clone(), attributes));
        }
        let path = environment.files().canonicalize(path.clone()).await.map_err(failed)?;
        let attributes = environment.files().attributes(path.clone()).await.map_err(failed)?;
        Ok((path, attributes))
    }

    /// Where to: into a directory that is there, or exactly there.
    async fn find_target(&self, kind: FileKind) -> Result<PathUri, TransferError> {
        let (mut target, mut there) = self.resolve_target(self.destination.path.clone()).await?;
        if self.options.into_directory && there != Some(FileKind::Directory) && kind == FileKind::File {
            return Err(self.destination.refuse(|name, path| TransferError::NoDirectory { name, path }));
        }
        if let (Some(FileKind::Directory), Some((_, name))) = (there, self.source.path.split()) {
            (target, there) = self.resolve_target(target.child(&name)).await?;
        }
        let refuse = |error: fn(String, String) -> TransferError| Err(error(self.destination.environment.name().to_owned(), show(&target)));
        match (there, kind) {
            (Some(FileKind::Directory), FileKind::File) => return refuse(|name, path| TransferError::WouldReplaceDirectory { name, path }),
            (Some(FileKind::File), FileKind::Directory) => return refuse(|name, path| TransferError::WouldReplaceFile { name, path }),
            // A rename would put a plain file in the place of a device.
            (Some(FileKind::Other), _) => return refuse(|name, path| TransferError::Special { name, path }),
            _ => {}
        }
        if self.is_one_machine().await && target.is_within(&self.source.path) && kind == FileKind::Directory {
            return Err(TransferError::IntoItself { path: show(&self.source.path) });
        }
        Ok(target)
    }

    /// Where a path of the destination leads and what is there. What a link leads to is replaced, not the link, unless it
    /// leads nowhere.
    async fn resolve_target(&self, path: PathUri) -> Result<(PathUri, Option<FileKind>), TransferError> {
        let files = self.destination.environment.files();
        let found = |found: Result<Attributes, EnvironmentError>| match found {
            Ok(attributes) => Ok(Some(attributes.kind)),
            Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => Ok(None),
            Err(error) => Err(self.unwritten(&self.destination.path, error)),
        };
        let there = found(files.attributes(path.clone()).await)?;
        if there != Some(FileKind::Symlink) {
            return Ok((path, there));
        }
        match files.canonicalize(path.clone()).await {
            Ok(path) => {
                let there = found(files.attributes(path.clone()).await)?;
                Ok((path, there))
            }
            Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => Ok((path, None)),
            Err(error) => Err(self.unwritten(&path, error)),
        }
    }

    async fn is_one_machine(&self) -> bool {
        let (source, destination) = (self.source.environment.info().await, self.destination.environment.info().await);
        matches!((source, destination), (Ok(one), Ok(other)) if one.executor_id.is_some() && one.executor_id == other.executor_id)
    }

    async fn copy_link(&self, target: &Escaped, to: &PathUri, placing: Placing) -> Result<(), TransferError> {
        let files = self.destination.environment.files();
        let path = self.begin(to, placing);
        loop {
            match files.create_link(path.clone(), target.clone()).await {
                Ok(()) => break,
                Err(EnvironmentError::Unknown { .. }) => match files.attributes(path.clone()).await {
                    Ok(attributes) if attributes.link_target.as_ref() == Some(target) => break,
                    _ => {}
                },
                Err(error) => return Err(self.unwritten(to, error)),
            }
        }
        self.finish(&path, to, placing).await
    }

    /// A file that fits into one message each way. It is written under another name, and put in its place by the same flight: `fs/writeFile`
    /// follows a link that has the name of the file, and the source must not choose where that leads.
    async fn copy_small(&self, from: &PathUri, attributes: &Attributes, to: &PathUri) -> Result<(), TransferError> {
        let bytes = self.source.environment.files().read(from.clone()).await.map_err(|error| self.unread(from, error))?;
        let length = bytes.len() as u64;
        let path = self.begin(to, Placing::Each);
        let (data_base64, mode) = (bytes.into(), Some(attributes.mode));
        let params = WriteFileParams { path: path.clone(), data_base64, follow_symlinks: None, sync: None, mode, sandbox: None };
        let there = &self.destination.environment;
        let files = there.files();
        // File calls of one connection take effect in the order in which they were sent.
        let placed = tokio::join!(biased; there.call::<WriteFile>(&params, Repeat::Never), files.rename(path.clone(), to.clone()));
        match placed {
            (Ok(_), Ok(())) => {
                self.lock().remove(&path);
                self.progress.add(length);
                Ok(())
            }
            (Err(EnvironmentError::Unknown { .. }), _) | (_, Err(EnvironmentError::Unknown { .. })) => {
                self.copy_small_again(params, to, length).await
            }
            // The two may have been parted by a connection that was lost before either was sent.
            (Ok(_), Err(EnvironmentError::Fault(fault))) if fault.code == fault::NOT_FOUND => {
                self.copy_small_again(params, to, length).await
            }
            (Err(error), _) | (Ok(_), Err(error)) => Err(self.unwritten(to, error)),
        }
    }

    /// After a lost connection, one after the other and each time under another name: what was sent before may still take effect, and a file
    /// that may only be read cannot be written once more.
    async fn copy_small_again(&self, mut params: WriteFileParams, to: &PathUri, length: u64) -> Result<(), TransferError> {
        let there = &self.destination.environment;
        loop {
            let before = std::mem::replace(&mut params.path, self.begin(to, Placing::Each));
            let written = there.call::<WriteFile>(&params, Repeat::Never).await;
            there.files().remove(before.clone()).await.map_err(|error| self.unwritten(to, error))?;
            self.lock().remove(&before);
            match written {
                Ok(_) => break,
                Err(EnvironmentError::Unknown { .. }) => {}
                Err(error) => return Err(self.unwritten(to, error)),
            }
        }
        self.progress.add(length);
        self.put_in_place(&params.path, to).await
    }

    async fn copy_file(&self, from: &PathUri, attributes: &Attributes, to: &PathUri, placing: Placing) -> Result<(), TransferError> {
        let path = self.begin(to, placing);
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let (reading, writing) = (format!("{}-{number}r", self.tag), format!("{}-{number}w", self.tag));
        let source = BlockFile { environment: &self.source.environment, path: from, handle: &reading, pace: &self.reading };
        let destination = BlockFile { environment: &self.destination.environment, path: &path, handle: &writing, pace: &self.writing };
        let (sender, blocks) = mpsc::channel(pace::MOST);
        let count = |bytes: usize| {
            self.progress.add(bytes as u64);
        };
        let (read, written) = tokio::join!(source.read(attributes, &self.room, sender), destination.write(blocks, count));
        match read {
            Err(BlockReadError::Environment(error)) => return Err(self.unread(from, error)),
            Err(BlockReadError::Changed) => {
                return Err(TransferError::Changed { name: self.source.environment.name().to_owned(), path: show(from) });
            }
            Ok(()) => {}
        }
        let settled = async {
            written?;
            self.destination.environment.files().set_mode(path.clone(), attributes.mode).await
        };
        settled.await.map_err(|error| self.unwritten(to, error))?;
        self.finish(&path, to, placing).await
    }

    /// The name under which something is written before it is in its place.
    fn begin(&self, to: &PathUri, placing: Placing) -> PathUri {
        match placing {
            Placing::Together => to.clone(),
            Placing::Each => {
                let part = self.part_beside(to);
                self.lock().insert(part.clone());
                part
            }
        }
    }

    async fn finish(&self, path: &PathUri, to: &PathUri, placing: Placing) -> Result<(), TransferError> {
        match placing {
            Placing::Together => Ok(()),
            Placing::Each => self.put_in_place(path, to).await,
        }
    }

    async fn put_in_place(&self, part: &PathUri, to: &PathUri) -> Result<(), TransferError> {
        let files = self.destination.environment.files();
        loop {
            match files.rename(part.clone(), to.clone()).await {
                Ok(()) => break,
                // It has been renamed if it is not there any more.
                Err(EnvironmentError::Unknown { .. }) => match files.attributes(part.clone()).await {
                    Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => break,
                    Err(error) => return Err(self.unwritten(to, error)),
                    Ok(_) => {}
                },
                Err(error) => return Err(self.unwritten(to, error)),
            }
        }
        self.lock().remove(part);
        Ok(())
    }

    /// Once for everything that was copied.
    async fn sync(&self, path: &PathUri) -> Result<(), TransferError> {
        if !self.options.sync {
            return Ok(());
        }
        let there = &self.destination.environment;
        if !there.info().await.is_ok_and(|info| info.capabilities.file_packs) {
            return Err(TransferError::CannotSync { name: there.name().to_owned() });
        }
        let params = SyncParams { path: path.clone(), sandbox: None };
        there.call::<Sync>(&params, Repeat::Harmless).await.map(drop).map_err(|error| self.unwritten(path, error))
    }

    fn unread(&self, path: &PathUri, source: EnvironmentError) -> TransferError {
        TransferError::Source { name: self.source.environment.name().to_owned(), path: show(path), source }
    }

    fn unwritten(&self, path: &PathUri, source: EnvironmentError) -> TransferError {
        TransferError::Destination { name: self.destination.environment.name().to_owned(), path: show(path), source }
    }

    fn part_beside(&self, path: &PathUri) -> PathUri {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        let name = Escaped(format!(".outpost-{}-{number}.part", self.tag).into_bytes());
        path.split().map_or_else(|| path.child(&name), |(parent, _)| parent.child(&name))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathUri>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Location {
    fn refuse(&self, error: fn(String, String) -> TransferError) -> TransferError {
        error(self.environment.name().to_owned(), show(&self.path))
    }
}

/// As people write it.
fn show(path: &PathUri) -> String {
    path.to_native().map_or_else(|_| path.to_string(), |path| path.display().to_string())
}
