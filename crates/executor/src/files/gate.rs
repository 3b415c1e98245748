//! The one gate for all file calls: which process makes them, and what a refusal says.
//!
//! Calls without confinement are made here, by the executor. All others are made by a worker inside the sandbox of the
//! session, where the system itself holds them. What is looked up here beforehand only makes refusals clear: it names the
//! rule, and it also refuses what inside the sandbox would merely seem not to be there.
//!
//! Methods that are `async` are over at once as a rule. They hold their thread for no longer than that when they are made inside a
//! sandbox, and for as long as the system takes when they are not. The others block.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use outpost_sandbox::policy::{PathAccess, PathRefusal, PathRules, Policy};
use outpost_wire::exec::attributes::{Attributes, NamedAttributes};
use outpost_wire::exec::discovery::DiscoveredRoot;
use outpost_wire::exec::files::{DirectoryEntry, FileMetadata};
use outpost_wire::exec::streams::OpenMode;
use outpost_wire::exec::walk::{WalkOptions, WalkResponse};
use outpost_wire::{Escaped, Fault, PathUri};
use rustix::io::Errno;

use super::redo::{self, Redo};
use super::replaced::ReplacedFiles;
use super::worker::{Done, WorkerCall, WorkerReply};
use super::{LinkPolicy, OpenFile, RemoveOptions, WriteOptions};
use crate::blocking::blocking;
use crate::discovery::{self, DiscoveryQuery};
use crate::executor::ExecutorShared;
use crate::session::ExecutorSession;
use crate::{attributes, fault, files, walk};

const TEMPORARY: &str = "/tmp";

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct FileGate {
    inside: Option<Inside>,
    redo: Option<Redo>,
    replaced: ReplacedFiles,
}

#[derive(Clone)]
struct Inside {
    session: Arc<ExecutorSession>,
    policy: Policy,
    rules: Arc<PathRules>,
}

/// Whether the last name of a path is followed if it is a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Followed,
    AsItIs,
}

impl FileGate {
    pub(crate) fn new(session: Arc<ExecutorSession>, policy: Policy, executor: &ExecutorShared) -> Self {
        let inside = policy.rules().cloned().map(|rules| Inside { session, policy, rules });
        Self { inside, redo: executor.redo.clone(), replaced: executor.replaced.clone() }
    }

    /// Whether calls through it are made inside a sandbox.
    pub(crate) fn is_confined(&self) -> bool {
        self.inside.is_some()
    }

    /// Opens a file that is to be read as a whole.
    pub(crate) async fn open_whole(&self, path: &Path, follow: LinkPolicy) -> Result<OpenFile, Fault> {
        let (file, size) = self.open_regular(path, follow).await?;
        OpenFile::new(file, size)
    }

    async fn open_regular(&self, path: &Path, follow: LinkPolicy) -> Result<(File, u64), Fault> {
        let Some(inside) = &self.inside else { return files::open_regular(path, follow) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.quick_call(WorkerCall::Open { path: path.into(), follow }, Bytes::new(), path).await? {
            // Code that took the worker over could hand out anything, and a pipe would be waited for.
            (WorkerReply::Opened { .. }, Some(file)) => match file.metadata() {
                Ok(metadata) if metadata.is_file() => Ok((file, metadata.len())),
                _ => Err(garbled()),
            },
            _ => Err(garbled()),
        }
    }

    /// Opens a file for a stream.
    pub(crate) async fn open_stream(&self, path: &Path, mode: OpenMode) -> Result<File, Fault> {
        let follow = LinkPolicy::Links;
        match (mode, &self.inside) {
            (OpenMode::Read, _) => Ok(self.open_regular(path, follow).await?.0),
            (OpenMode::Replace, None) => files::open_replaced(path, follow),
            (OpenMode::Replace, Some(inside)) => {
                inside.check(path, PathAccess::Write, Last::Followed)?;
                inside.quick_call(WorkerCall::OpenReplaced { path: path.into(), follow }, Bytes::new(), path).await?.1.ok_or_else(garbled)
            }
        }
    }

    pub(crate) async fn write(&self, path: &Path, data: &Bytes, options: &WriteOptions) -> Result<(), Fault> {
        let Some(inside) = &self.inside else {
            if let Some((old, size)) = files::write(path, data, options, self.redo.as_ref())? {
                self.replaced.close(old, size);
            }
            return Ok(());
        };
        inside.check(path, PathAccess::Write, Last::Followed)?;
        let sync = options.sync;
        let call = WorkerCall::Write { path: path.into(), follow: options.follow, sync };
        let WorkerReply::InPlace(identity) = inside.quick_call(call, data.clone(), path).await?.0 else { return Ok(()) };
        // The client that asked for it may be gone before it is over, and the copy must not be.
        let (inside, redo, path, data) = (inside.clone(), self.redo.clone(), path.to_owned(), data.clone());
        blocking(move || {
            // The copy is kept out here: inside, no process reaches the home.
            let _copy = redo::keep(redo.as_ref(), &identity, &data, sync).map_err(fault::file)?;
            inside.call(&WorkerCall::Rewrite { identity, sync }, &data, &path).map(drop)
        })
        .await
    }

    pub(crate) async fn create_directory(&self, path: &Path, recursive: bool, follow: LinkPolicy) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return files::create_directory(path, recursive, follow) };
        // One that is there need not be writable to be found there.
        if !(recursive && path.is_dir()) {
            inside.check(path, PathAccess::Write, Last::Followed)?;
        }
        inside.quick_call(WorkerCall::CreateDirectory { path: path.into(), recursive, follow }, Bytes::new(), path).await.map(drop)
    }

    pub(crate) async fn metadata(&self, path: &Path, follow: LinkPolicy) -> Result<FileMetadata, Fault> {
        let Some(inside) = &self.inside else { return files::metadata(path, follow) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.quick_call(WorkerCall::Metadata { path: path.into(), follow }, Bytes::new(), path).await?.0 {
            WorkerReply::Metadata(metadata) => Ok(metadata),
            _ => Err(garbled()),
        }
    }

    pub(crate) async fn canonicalize(&self, path: &Path) -> Result<PathUri, Fault> {
        let Some(inside) = &self.inside else { return PathUri::from_native(&files::canonicalize(path)?).map_err(fault::path) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.quick_call(WorkerCall::Canonicalize { path: path.into() }, Bytes::new(), path).await?.0 {
            WorkerReply::Path(path) => Ok(path),
            _ => Err(garbled()),
        }
    }

    pub(crate) fn read_directory(&self, path: &Path) -> Result<Vec<DirectoryEntry>, Fault> {
        let Some(inside) = &self.inside else { return files::read_directory(path) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.call(&WorkerCall::ReadDirectory { path: path.into() }, &[], path)?.0 {
            WorkerReply::Entries(entries) => Ok(entries),
            _ => Err(garbled()),
        }
    }

    pub(crate) fn remove(&self, path: &Path, options: &RemoveOptions) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return files::remove(path, options) };
        inside.check(path, PathAccess::Write, Last::AsItIs)?;
        let RemoveOptions { recursive, force, follow } = *options;
        inside.call(&WorkerCall::Remove { path: path.into(), recursive, force, follow }, &[], path).map(drop)
    }

    pub(crate) fn copy(&self, source: &Path, destination: &Path, recursive: bool) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return files::copy(source, destination, recursive) };
        inside.check(source, PathAccess::Read, Last::AsItIs)?;
        inside.check(destination, PathAccess::Write, Last::Followed)?;
        inside.call(&WorkerCall::Copy { source: source.into(), destination: destination.into(), recursive }, &[], destination).map(drop)
    }

    pub(crate) async fn rename(&self, source: &Path, destination: &Path) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return files::rename(source, destination) };
        inside.check(source, PathAccess::Write, Last::AsItIs)?;
        inside.check(destination, PathAccess::Write, Last::AsItIs)?;
        inside
            .quick_call(WorkerCall::Rename { source: source.into(), destination: destination.into() }, Bytes::new(), destination)
            .await
            .map(drop)
    }

    pub(crate) fn walk(&self, path: &Path, options: &WalkOptions) -> Result<WalkResponse, Fault> {
        let Some(inside) = &self.inside else { return walk::walk(path, options) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.call(&WorkerCall::Walk { path: path.into(), options: options.clone() }, &[], path)?.0 {
            WorkerReply::Tree(tree) => Ok(tree),
            _ => Err(garbled()),
        }
    }

    /// What a name is, and not what it leads to if it is a link.
    pub(crate) async fn attributes(&self, path: &Path) -> Result<Attributes, Fault> {
        let Some(inside) = &self.inside else { return attributes::get(path) };
        inside.check(path, PathAccess::Read, Last::AsItIs)?;
        match inside.quick_call(WorkerCall::Attributes { path: path.into() }, Bytes::new(), path).await?.0 {
            WorkerReply::Attributes(attributes) => Ok(attributes),
            _ => Err(garbled()),
        }
    }

    pub(crate) fn list_attributes(&self, path: &Path) -> Result<Vec<NamedAttributes>, Fault> {
        let Some(inside) = &self.inside else { return attributes::list(path) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.call(&WorkerCall::ListAttributes { path: path.into() }, &[], path)?.0 {
            WorkerReply::ListedAttributes(entries) => Ok(entries),
            _ => Err(garbled()),
        }
    }

    pub(crate) async fn set_mode(&self, path: &Path, mode: u32) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return attributes::set_mode(path, mode) };
        inside.check(path, PathAccess::Write, Last::AsItIs)?;
        inside.quick_call(WorkerCall::SetMode { path: path.into(), mode }, Bytes::new(), path).await.map(drop)
    }

    pub(crate) async fn create_link(&self, path: &Path, target: &Escaped) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return attributes::create_link(path, target) };
        inside.check(path, PathAccess::Write, Last::AsItIs)?;
        inside.quick_call(WorkerCall::CreateLink { path: path.into(), target: target.clone() }, Bytes::new(), path).await.map(drop)
    }

    /// Looks at a capability root.
    pub(crate) fn discover(&self, path: &Path, extended: bool) -> Result<DiscoveredRoot, Fault> {
        let Some(inside) = &self.inside else { return discovery::discover(path, &DiscoveryQuery { extended, may_read: &|_| Ok(()) }) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        match inside.call(&WorkerCall::Discover { path: path.into(), extended }, &[], path)?.0 {
            WorkerReply::Discovered(found) => Ok(*found),
            _ => Err(garbled()),
        }
    }

    /// Whether a sandbox has something of its own at a path, which is not seen from here.
    pub(crate) fn is_layered(&self, path: &Path) -> bool {
        let Some(inside) = &self.inside else { return false };
        let in_home = inside.rules.home().is_some_and(|view| path.starts_with(&view.home) && !path.starts_with(&view.workspace));
        in_home || path.starts_with(TEMPORARY) && inside.is_private(path)
    }

    /// Watching is done out here and tells names only; where anything below is denied, not even those are told.
    pub(crate) fn check_watch(&self, path: &Path) -> Result<(), Fault> {
        let Some(inside) = &self.inside else { return Ok(()) };
        inside.check(path, PathAccess::Read, Last::Followed)?;
        let real = inside.resolve(path, Last::Followed).unwrap_or_else(|| path.to_owned());
        let denied = inside.rules.below(&real).find(|rule| rule.access == PathAccess::Deny).map(ToString::to_string);
        let hidden = inside.rules.home().and_then(|view| view.secrets().find(|secret| secret.starts_with(&real)));
        let denied = denied.or_else(|| hidden.map(|path| format!("{} is a store of credentials and not seen", path.display())));
        match denied.or_else(|| inside.rules.globs().first().map(|glob| format!("paths like {glob} are denied"))) {
            Some(rule) => Err(fault::refused(&PathRefusal { path: real, wanted: PathAccess::Read, rule }, PathAccess::Deny)),
            None => Ok(()),
        }
    }
}

impl Inside {
    /// Blocks.
    fn call(&self, call: &WorkerCall, data: &[u8], path: &Path) -> Result<Done, Fault> {
        self.session.call(&self.policy, call, data).map_err(|fault| self.explain(fault, path))
    }

    /// The same, for a call that is over at once if nothing is wrong.
    async fn quick_call(&self, call: WorkerCall, data: Bytes, path: &Path) -> Result<Done, Fault> {
        self.session.quick_call(&self.policy, call, data).await.map_err(|fault| self.explain(fault, path))
    }

    /// Says by which rule the system refused, if it did.
    fn explain(&self, mut fault: Fault, path: &Path) -> Fault {
        let refusals = [Errno::PERM, Errno::ACCESS, Errno::ROFS].map(Errno::raw_os_error);
        if fault.os_error().is_some_and(|error| refusals.contains(&error)) {
            let real = self.resolve(path, Last::Followed).unwrap_or_else(|| path.to_owned());
            fault.message = format!("{}: {}: {}", fault.message, real.display(), self.rules.access(&real).reason);
        }
        fault
    }

    /// Refuses what the rules do not allow. The system decides in the end; this knows why.
    fn check(&self, path: &Path, wanted: PathAccess, last: Last) -> Result<(), Fault> {
        let Some(real) = self.resolve(path, last) else { return Ok(()) };
        let allowed = if wanted == PathAccess::Write { self.rules.may_write(&real) } else { self.rules.may_read(&real) };
        allowed.map_err(|refusal| fault::refused(&refusal, self.rules.access(&real).access))
    }

    /// Where a path leads, as far as it exists; nothing if that cannot be seen from here.
    fn resolve(&self, path: &Path, last: Last) -> Option<PathBuf> {
        // The sandbox has a directory of its own there.
        if path.starts_with(TEMPORARY) && self.is_private(path) {
            return Some(path.to_owned());
        }
        let (mut existing, mut missing) = (path, Vec::new());
        if last == Last::AsItIs {
            missing.push(path.file_name()?);
            existing = path.parent()?;
        }
        loop {
            match existing.canonicalize() {
                Ok(known) => return Some(missing.iter().rev().fold(known, |path, name| path.join(name))),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) && !existing.is_symlink() => {
                    missing.push(existing.file_name()?);
                    existing = existing.parent()?;
                }
                Err(_) => return None,
            }
        }
    }

    /// Whether the innermost rule around a path below `/tmp` is not one for a directory in there.
    fn is_private(&self, path: &Path) -> bool {
        let innermost = self.rules.iter().filter(|rule| path.starts_with(&rule.path)).max_by_key(|rule| rule.path.as_os_str().len());
        innermost.is_some_and(|rule| Path::new(TEMPORARY).starts_with(&rule.path))
    }
}

fn garbled() -> Fault {
    Fault::internal("the process that makes file calls inside the sandbox gave an answer that makes no sense")
}
