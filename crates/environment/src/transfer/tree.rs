//! Copies of whole directories.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt, TryStreamExt, stream};
use outpost_wire::exec::attributes::{Attributes, FileKind};
use outpost_wire::{Escaped, PathUri, fault};

use super::{Placing, Transfer, TransferError, TransferSummary, show};
use crate::environment::EnvironmentError;

/// Files that are copied at once; small ones are mostly waiting for answers.
const FILES: usize = 16;

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
        let items = self.list(root, top, &mut summary.skipped).await?;
        summary.files = items.iter().filter(|item| item.attributes.kind != FileKind::Directory).count() as u64;
        self.progress.total.store(items.iter().map(|item| item.size()).sum(), Ordering::Relaxed);
        let files = self.destination.environment.files();
        let is_new = match files.attributes(target.clone()).await {
            Ok(_) => false,
            Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => true,
            Err(error) => return Err(self.unwritten(target, error)),
        };
        let (base, placing) = if is_new { (self.part_beside(target), Placing::Together) } else { (target.clone(), Placing::Each) };
        if is_new {
            self.lock().insert(base.clone());
        }
        let (directories, others): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|item| item.attributes.kind == FileKind::Directory);
        // Parents come before what lies in them.
        for directory in &directories {
            self.make_directory(&directory.below(&base), directory.attributes.mode | 0o700).await?;
        }
        let copies = others.iter().map(|item| async {
            let (from, to) = (item.below(root), item.below(&base));
            match (&item.attributes.kind, &item.attributes.link_target) {
                (FileKind::Symlink, Some(target)) => self.copy_link(target, &to, placing).await,
                _ => self.copy_file(&from, &item.attributes, &to, placing).await,
            }
        });
        stream::iter(copies).buffer_unordered(FILES).try_collect::<()>().await?;
        // A directory that may not be written to is closed last, the innermost first.
        for directory in directories.iter().rev().filter(|item| item.attributes.mode & 0o700 != 0o700) {
            let path = directory.below(&base);
            files.set_mode(path.clone(), directory.attributes.mode).await.map_err(|error| self.unwritten(&path, error))?;
        }
        if is_new {
            self.put_in_place(&base, target).await?;
        }
        Ok(())
    }

    async fn list(&self, root: &PathUri, top: Attributes, skipped: &mut Vec<PathUri>) -> Result<Vec<Item>, TransferError> {
        let mut items = vec![Item { names: Vec::new(), attributes: top }];
        let mut next = 0;
        while let Some(item) = items.get(next) {
            next += 1;
            if item.attributes.kind != FileKind::Directory {
                continue;
            }
            let (path, names) = (item.below(root), item.names.clone());
            let entries = self.source.environment.files().list_attributes(path.clone()).await;
            for entry in entries.map_err(|error| self.unread(&path, error))? {
                if !is_name(&entry.name.0) {
                    let reason = format!("it lists {:?} as a name in {}", entry.name, show(&path));
                    let source = EnvironmentError::Nonsense { name: self.source.environment.name().to_owned(), reason };
                    return Err(self.unread(&path, source));
                }
                if entry.attributes.kind == FileKind::Other {
                    skipped.push(path.child(&entry.name));
                    continue;
                }
                let mut names = names.clone();
                names.push(entry.name);
                items.push(Item { names, attributes: entry.attributes });
            }
        }
        Ok(items)
    }

    async fn make_directory(&self, path: &PathUri, mode: u32) -> Result<(), TransferError> {
        let files = self.destination.environment.files();
        let made = async {
            let is_there = match files.attributes(path.clone()).await {
                Ok(attributes) => attributes.kind == FileKind::Directory,
                Err(EnvironmentError::Fault(fault)) if fault.code == fault::NOT_FOUND => false,
                Err(error) => return Err(error),
            };
            // An existing directory keeps its permissions.
            if is_there {
                return Ok(());
            }
            files.create_directory(path.clone()).await?;
            files.set_mode(path.clone(), mode).await
        };
        made.await.map_err(|error| self.unwritten(path, error))
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
