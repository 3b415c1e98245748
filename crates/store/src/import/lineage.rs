//! The lines of a thread in order, its ancestors' first: a fork by reference stands on a prefix of another rollout.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::file::{self, BadLine};
use super::line::{RolloutBase, RolloutHead, RolloutLine};
use super::rollouts::RolloutCatalog;

#[derive(Debug, thiserror::Error)]
pub enum LineageError {
    #[error("{path}: {error}")]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{path} holds no rollout: its first line is not a session_meta")]
    NotARollout { path: PathBuf },
    #[error("{path} continues rollout {rollout}, which is not there; put that file beside it")]
    AncestorMissing { path: PathBuf, rollout: String },
    #[error("{path} continues itself")]
    Cycle { path: PathBuf },
}

/// Files in the order in which their lines are read, each with the ordinal before which to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RolloutLineage {
    pub head: RolloutHead,
    segments: Vec<(PathBuf, Option<u64>)>,
}

impl RolloutLineage {
    pub(super) fn trace(path: &Path, shelf: &RolloutCatalog) -> Result<Self, LineageError> {
        let own = head(path)?;
        let mut segments = vec![(path.to_owned(), None)];
        let mut seen = HashSet::from([path.to_owned()]);
        let mut base: Option<RolloutBase> = own.base.clone();
        while let Some(RolloutBase { rollout, end_ordinal_exclusive }) = base {
            let child = segments.last().map(|(path, _)| path.clone()).unwrap_or_default();
            let Some(ancestor) = shelf.rollout(&rollout) else { return Err(LineageError::AncestorMissing { path: child, rollout }) };
            if !seen.insert(ancestor.to_owned()) {
                return Err(LineageError::Cycle { path: child });
            }
            segments.push((ancestor.to_owned(), Some(end_ordinal_exclusive)));
            base = head(ancestor)?.base;
        }
        segments.reverse();
        Ok(Self { head: own, segments })
    }

    /// The thread's own head comes first, then the lines of its ancestors, then its own.
    pub(super) fn read(&self, mut line: impl FnMut(&RolloutLine), mut bad: impl FnMut(BadLine)) -> Result<(), LineageError> {
        if self.segments.len() > 1
            && let Some((path, _)) = self.segments.last()
            && let Some(own) = first(lines(path)?)
        {
            line(&own);
        }
        for (path, end) in &self.segments {
            let mut lines = lines(path)?;
            while let Some(next) = lines.next_as::<RolloutLine>() {
                match next {
                    Ok(next) if end.is_some_and(|end| next.ordinal.is_some_and(|ordinal| ordinal >= end)) => break,
                    Ok(next) => line(&next),
                    Err(unreadable) => bad(unreadable),
                }
            }
        }
        Ok(())
    }
}

fn lines(path: &Path) -> Result<file::RolloutLines, LineageError> {
    file::open(path).map_err(|error| LineageError::Io { path: path.to_owned(), error })
}

fn first(mut lines: file::RolloutLines) -> Option<RolloutLine> {
    std::iter::from_fn(|| lines.next_as::<RolloutLine>()).find_map(Result::ok)
}

/// The head is the first line that can be read.
fn head(path: &Path) -> Result<RolloutHead, LineageError> {
    first(lines(path)?).as_ref().and_then(RolloutHead::of).ok_or_else(|| LineageError::NotARollout { path: path.to_owned() })
}
