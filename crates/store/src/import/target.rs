//! A thread that is written fact by fact, while its file is still being read. What is here already is compared on the way and not
//! read as a whole.

use std::collections::VecDeque;

use outpost_thread::{Entry, Fact, Ordinal, ThreadId};

use super::scribe::Dated;
use super::{ImportError, ImportOutcome};
use crate::lease::{ClaimError, ClaimMode, Lease};
use crate::open::{keep_checkpoint, open};
use crate::store::{HistoryReader, Need, Store};

/// Entries in one append.
const BATCH: usize = 512;
/// A thread with more entries than this is kept ready to be opened.
const LONG: u64 = 1000;

pub(super) struct Target<'a> {
    store: &'a Store,
    thread: ThreadId,
    state: State,
}

enum State {
    Writing(Writing),
    /// It was here already, and is the same so far.
    Comparing(Known),
    Diverged,
}

struct Writing {
    lease: Lease,
    next: Ordinal,
    /// Facts that were taken so far.
    facts: u64,
    /// Those of the last piece are written when it is known whether more come: the last ones must be durable.
    held: Vec<Dated>,
    is_new: bool,
}

/// The entries of the thread that is here, one after another.
struct Known {
    history: HistoryReader,
    read: VecDeque<Entry>,
    last: Ordinal,
}

impl Known {
    /// The next one that says something about the conversation. Names and marks are no difference: they may be changed here, too.
    async fn next(&mut self) -> Result<Option<Entry>, ImportError> {
        loop {
            while let Some(entry) = self.read.pop_front() {
                self.last = entry.end();
                if !is_mark(&entry.fact) {
                    return Ok(Some(entry));
                }
            }
            match self.history.next().await? {
                Some(batch) => self.read.extend(batch.entries),
                None => return Ok(None),
            }
        }
    }
}

impl<'a> Target<'a> {
    pub(super) async fn begin(store: &'a Store, thread: ThreadId) -> Result<Self, ImportError> {
        let state = match store.create(thread).await {
            Ok(lease) => State::Writing(Writing { lease, next: 1, facts: 0, held: Vec::new(), is_new: true }),
            Err(ClaimError::Exists(_)) => {
                State::Comparing(Known { history: store.history(thread, 0).await?, read: VecDeque::new(), last: 0 })
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { store, thread, state })
    }

    /// Writes facts, or compares them with what is here and writes only what is more than that.
    pub(super) async fn take(&mut self, facts: Vec<Dated>) -> Result<(), ImportError> {
        let mut facts = facts.into_iter();
        if let State::Comparing(known) = &mut self.state {
            let mut more = None;
            for dated in facts.by_ref().filter(|dated| !is_mark(&dated.fact)) {
                match known.next().await? {
                    Some(entry) if dated.at == entry.at && dated.fact == entry.fact => {}
                    // Also if a turn was under way when it was imported: its end here cannot be taken back.
                    Some(_) => {
                        self.state = State::Diverged;
                        return Ok(());
                    }
                    None => {
                        more = Some((dated, known.last + 1));
                        break;
                    }
                }
            }
            let Some((first, next)) = more else { return Ok(()) };
            let lease = self.store.claim(self.thread, ClaimMode::IfFree).await?;
            self.state = State::Writing(Writing { lease, next, facts: 1, held: vec![first], is_new: false });
        }
        let State::Writing(writing) = &mut self.state else { return Ok(()) };
        // There is more, so that what was held back is not the last of it.
        if facts.len() > 0 && !writing.held.is_empty() {
            writing.append(self.store, Need::Stored).await?;
        }
        for dated in facts {
            writing.facts += 1;
            writing.held.push(dated);
            if writing.held.len() > BATCH {
                let last = writing.held.pop();
                writing.append(self.store, Need::Stored).await?;
                writing.held.extend(last);
            }
        }
        Ok(())
    }

    /// All facts were taken: what is written is durable from now on, so that the original may be deleted.
    pub(super) async fn finish(mut self) -> Result<ImportOutcome, ImportError> {
        match self.state {
            State::Diverged => Ok(ImportOutcome::Diverged),
            State::Comparing(mut known) => {
                Ok(if known.next().await?.is_some() { ImportOutcome::Diverged } else { ImportOutcome::Unchanged })
            }
            State::Writing(ref mut writing) => {
                let written = writing.end(self.store).await;
                let (added, is_new) = (writing.facts, writing.is_new);
                self.give_up().await;
                written.map(|()| if is_new { ImportOutcome::Created } else { ImportOutcome::Continued { added } })
            }
        }
    }

    /// Gives the thread back as it is.
    pub(super) async fn give_up(self) {
        if let State::Writing(writing) = self.state {
            self.store.release(writing.lease).await;
        }
    }
}

impl Writing {
    async fn end(&mut self, store: &Store) -> Result<(), ImportError> {
        self.append(store, Need::Durable).await?;
        if self.facts > LONG {
            let opened = open(store, self.lease.thread).await?;
            if opened.damage.is_empty() && opened.unfit.is_empty() {
                keep_checkpoint(store, &opened.thread).await?;
            }
        }
        Ok(())
    }

    async fn append(&mut self, store: &Store, need: Need) -> Result<(), ImportError> {
        let mut entries = Vec::with_capacity(self.held.len());
        for dated in self.held.drain(..) {
            let entry = Entry { ordinal: self.next, at: dated.at, fact: dated.fact };
            // A repaired thread has one entry for all that are gone; the others keep their ordinals.
            self.next = entry.end() + 1;
            entries.push(entry);
        }
        store.append(&self.lease, entries, need).await?;
        Ok(())
    }
}

const fn is_mark(fact: &Fact) -> bool {
    matches!(fact, Fact::MetadataChanged(_))
}
