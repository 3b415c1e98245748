//! Copies of whole directories.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, TryStreamExt, stream};
use outpost_wire::exec::attributes::{Attributes, FileKind};
use outpost_wire::{Escaped, PathUri, fault};
use tokio::sync::Semaphore;

use super::packs::SmallFile;
use super::{Placing, Transfer, TransferError, TransferSummary, show};
use crate::environment::EnvironmentError;

/// Large files that are copied at once.
const FILES: usize = 16;
/// A file up to this is copied whole. So many of these are under way at once, and so many kilobytes of them.
const SMALL: u64 = 64 << 10;
const SMALL_FILES: usize = 4096;
const SMALL_ROOM: u32 = 16 << 10;
/// Directories that are listed at once.
const LISTS: usize = 64;

/// Which end is listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListedSide {
    Source,
    Destination,
}

/// Something to copy: where to from the root, and what it is.
struct Item {
    names: Vec<Escaped>,
    attributes: Attributes,
}

impl Transfer {
    pub(super) async fn copy_tree(
        &self,
        root: &PathUri,
        top: Attributes,
        target: &PathUri,
        summary: &mut TransferSummary,
    ) -> Result<(), TransferError> {
        // All of it is listed first: what is written meanwhile is not copied again, and the whole size is known.
        let items = self.list(ListedSide::Source, root, top, &mut summary.skipped).await?;
        summary.files = items.iter().filter(|item| item.attributes.kind != FileKind::Directory).count() as u64;
        self.progress.total.store(items.iter().map(|item| item.size()).sum(), Ordering::Relaxed);
        let files = self.destination.environment.files();
        let there = match files.attributes(target.clone()).await {
            Ok(attributes) => Some(attributes),
            Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => None,
            Err(error) => return Err(self.unwritten(target, error)),
        };
        let is_new = there.is_none();
        if let Some(there) = there.filter(|_| self.options.delete) {
            summary.removed = self.surplus(&items, target, there).await?;
        }
        if self.options.dry_run {
            let files = items.iter().filter(|item| item.attributes.kind != FileKind::Directory);
            summary.planned = files.map(|item| item.below(target)).collect();
            return Ok(());
        }
        let (base, placing) = if is_new { (self.part_beside(target), Placing::Together) } else { (target.clone(), Placing::Each) };
        if is_new {
            self.lock().insert(base.clone());
        }
        let (directories, others): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|item| item.attributes.kind == FileKind::Directory);
        self.make_directories(&directories, &base).await?;
        let (source, destination) = (self.source.environment.info().await, self.destination.environment.info().await);
        let (takes_modes, takes_packs) = destination.map_or((false, false), |there| {
            (there.capabilities.write_mode, there.capabilities.file_packs && source.is_ok_and(|here| here.capabilities.file_packs))
        });
        let is_small = |item: &&&Item| takes_modes && item.attributes.kind == FileKind::File && item.attributes.size <= SMALL;
        let (small, large): (Vec<&&Item>, Vec<&&Item>) = others.iter().partition(is_small);
        let small: Vec<SmallFile> = small
            .into_iter()
            .map(|item| SmallFile { from: item.below(root), to: item.below(&base), attributes: item.attributes.clone() })
            .collect();
        let copy_small = async { if takes_packs { self.copy_packs(small, placing).await } else { self.copy_each(small).await } };
        let copy_large = large.into_iter().map(|item| async {
            let (from, to) = (item.below(root), item.below(&base));
            match (&item.attributes.kind, &item.attributes.link_target) {
                (FileKind::Symlink, Some(target)) => self.copy_link(target, &to, placing).await,
                _ => self.copy_file(&from, &item.attributes, &to, placing).await,
            }
        });
        let copy_large = stream::iter(copy_large).buffer_unordered(FILES).try_collect::<()>();
        futures_util::future::try_join(copy_small, copy_large).await?;
        // A directory that may not be written to is closed last, the innermost first.
        for directory in directories.iter().rev().filter(|item| item.attributes.mode & 0o700 != 0o700) {
            let path = directory.below(&base);
            files.set_mode(path.clone(), directory.attributes.mode).await.map_err(|error| self.unwritten(&path, error))?;
        }
        // Only when everything is there: a copy that fails removes nothing.
        let removals =
            summary.removed.iter().map(|path| async { files.remove(path.clone()).await.map_err(|error| self.unwritten(path, error)) });
        stream::iter(removals).buffer_unordered(SMALL_FILES).try_collect::<()>().await?;
        if is_new {
            self.put_in_place(&base, target).await?;
        }
        self.sync(target).await
    }

    /// Small files, each with calls of its own that are all on their way at once.
    pub(super) async fn copy_each(&self, files: Vec<SmallFile>) -> Result<(), TransferError> {
        let room = Semaphore::new(SMALL_ROOM as usize);
        let room = &room;
        let copies = files.into_iter().map(|file| async move {
            let weight = u32::try_from(file.attributes.size >> 10).unwrap_or(SMALL_ROOM).clamp(1, SMALL_ROOM);
            let _room = room.acquire_many(weight).await;
            self.copy_small(&file.from, &file.attributes, &file.to).await
        });
        stream::iter(copies).buffer_unordered(SMALL_FILES).try_collect::<()>().await
    }

    /// What is at the destination and not in the source. Of a directory that is not, only its own name is told.
    async fn surplus(&self, items: &[Item], target: &PathUri, there: Attributes) -> Result<Vec<PathUri>, TransferError> {
        let wanted: HashSet<&[Escaped]> = items.iter().map(|item| &item.names[..]).collect();
        let found = self.list(ListedSide::Destination, target, there, &mut Vec::new()).await?;
        let is_surplus = |names: &[Escaped]| !wanted.contains(names);
        let top = |item: &&Item| match item.names.split_last() {
            Some((_, above)) => is_surplus(&item.names) && !is_surplus(above),
            None => false,
        };
        Ok(found.iter().filter(top).map(|item| item.below(target)).collect())
    }

    /// Everything below a directory, except what is left out.
    async fn list(
        &self,
        side: ListedSide,
        root: &PathUri,
        top: Attributes,
        skipped: &mut Vec<PathUri>,
    ) -> Result<Vec<Item>, TransferError> {
        let (environment, failed): (_, fn(&Self, &PathUri, EnvironmentError) -> TransferError) = match side {
            ListedSide::Source => (&self.source.environment, Self::unread),
            ListedSide::Destination => (&self.destination.environment, Self::unwritten),
        };
        let mut items = vec![Item { names: Vec::new(), attributes: top }];
        let mut next = 0;
        // All directories of one depth are asked for at once.
        while next < items.len() {
            let depth = next..items.len();
            next = items.len();
            let directories: Vec<Vec<Escaped>> =
                items[depth].iter().filter(|item| item.attributes.kind == FileKind::Directory).map(|item| item.names.clone()).collect();
            let lists = directories.into_iter().map(|names| async {
                let path = names.iter().fold(root.clone(), |path, name| path.child(name));
                let entries = environment.files().list_attributes(path.clone()).await;
                (names, entries.map_err(|error| failed(self, &path, error)), path)
            });
            let mut lists = std::pin::pin!(stream::iter(lists).buffered(LISTS));
            while let Some((names, entries, path)) = lists.next().await {
                let nonsense = |reason: String| {
                    let reason = format!("it lists {reason} in {}", show(&path));
                    failed(self, &path, EnvironmentError::Nonsense { name: environment.name().to_owned(), reason: reason.into() })
                };
                let mut seen = HashSet::new();
                for entry in entries? {
                    if !is_name(&entry.name.0) {
                        return Err(nonsense(format!("{:?} as a name", entry.name)));
                    }
                    // What is first a link and then a file would be written where the link leads.
                    if !seen.insert(entry.name.clone()) {
                        return Err(nonsense(format!("{:?} twice", entry.name)));
                    }
                    let child = path.child(&entry.name);
                    let mut names = names.clone();
                    names.push(entry.name);
                    let bytes = || names.iter().map(|name| &name.0[..]);
                    if self.options.exclude.iter().any(|pattern| pattern.excludes(bytes())) {
                        continue;
                    }
                    if side == ListedSide::Source && entry.attributes.kind == FileKind::Other {
                        skipped.push(child);
                        continue;
                    }
                    items.push(Item { names, attributes: entry.attributes });
                }
            }
        }
        Ok(items)
    }

    /// All at once: each is made with its parents, and gets its permissions when all are there.
    async fn make_directories(&self, directories: &[&Item], base: &PathUri) -> Result<(), TransferError> {
        let files = self.destination.environment.files();
        let paths: Vec<(PathUri, u32)> = directories.iter().map(|item| (item.below(base), item.attributes.mode | 0o700)).collect();
        let looks = paths.iter().map(|(path, _)| async {
            match files.attributes(path.clone()).await {
                Ok(attributes) if attributes.kind == FileKind::Directory => Ok(true),
                // A link is not followed: an earlier copy may have brought it, and its source chose where it leads.
                Ok(_) => {
                    let name = self.destination.environment.name().to_owned();
                    Err(TransferError::WouldReplaceFile { name, path: show(path) })
                }
                Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => Ok(false),
                Err(error) => Err(self.unwritten(path, error)),
            }
        });
        let there: Vec<bool> = stream::iter(looks).buffered(SMALL_FILES).try_collect().await?;
        // An existing directory keeps its permissions.
        let new: Vec<&(PathUri, u32)> = paths.iter().zip(there).filter(|(_, is_there)| !is_there).map(|(path, _)| path).collect();
        let made =
            new.iter().map(|(path, _)| async { files.create_directory(path.clone()).await.map_err(|error| self.unwritten(path, error)) });
        stream::iter(made).buffered(SMALL_FILES).try_collect::<()>().await?;
        let settled =
            new.iter().map(|(path, mode)| async { files.set_mode(path.clone(), *mode).await.map_err(|error| self.unwritten(path, error)) });
        stream::iter(settled).buffered(SMALL_FILES).try_collect().await
    }
}

impl Item {
    fn below(&self, root: &PathUri) -> PathUri {
        self.names.iter().fold(root.clone(), |path, name| path.child(name))
    }

    /// Bytes that will be copied for it.
    fn size(&self) -> u64 {
        if self.attributes.kind == FileKind::File { self.attributes.size } else { 0 }
    }
}

/// Whether this is the name of something in a directory. The source must not choose where things are put.
fn is_name(bytes: &[u8]) -> bool {
    !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for fine in [&b"a"[..], b"...", b" ", b"\xff", b"a\\b", b"..a"] {
            assert!(is_name(fine), "{fine:?}");
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"../x", b"/etc", b"a\0"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
