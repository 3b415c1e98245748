//! From a store to a state: the checkpoint, if there is one, and the entries after it. And to what the model sees, which is
//! made from the last compaction on, when a turn needs it.

use std::collections::HashMap;

use outpost_thread::{Checkpoint, Context, DamageNoted, DamagedRange, Entry, Fact, FoldError, Ordinal, Thread, ThreadCreated, ThreadId};
use tokio::task::JoinSet;

use crate::damage::{Damage, DamageKind};
use crate::lease::Lease;
use crate::store::{AppendError, Appended, Batch, Need, ReadError, Store};

/// So many journals are read at the same time.
const AT_ONCE: usize = 4;

/// A thread, folded.
#[derive(Debug)]
pub struct Opened {
    pub thread: Thread,
    /// Found while reading what came after the checkpoint. What is damaged before it is found by `verify`.
    pub damage: Vec<Damage>,
    /// Entries that did not fit to what was read before them. This happens only behind damage.
    pub unfit: Vec<FoldError>,
    /// Damage that the thread itself tells of.
    noted: Vec<DamagedRange>,
    /// How many entries had to be read.
    pub folded: u64,
}

/// The state of a thread after its last entry.
pub async fn open(store: &Store, id: ThreadId) -> Result<Opened, ReadError> {
    fold(store, id, checkpoint(store, id).await).await
}

/// The same for a fork, from the state of its parent at the place of the cut: nothing that they share is read.
pub async fn open_fork(store: &Store, id: ThreadId, parent: Thread) -> Result<Opened, ReadError> {
    fold(store, id, Some(parent)).await
}

/// The newest state that was kept of a thread, or of the prefix that it shares with an ancestor.
async fn checkpoint(store: &Store, id: ThreadId) -> Option<Thread> {
    let (mut thread, mut limit) = (id, Ordinal::MAX);
    loop {
        if let Some(checkpoint) = store.checkpoint(thread).await.filter(|checkpoint| checkpoint.ordinal <= limit) {
            return Some(checkpoint.thread);
        }
        let Some(Entry { fact: Fact::ThreadForked(fork), .. }) = store.head(thread).await.ok()?.first else { return None };
        // Ordinals only become smaller on the way up, so that there is an end.
        if fork.base.ordinal >= limit {
            return None;
        }
        (thread, limit) = (fork.base.thread, fork.base.ordinal);
    }
}

async fn fold(store: &Store, id: ThreadId, state: Option<Thread>) -> Result<Opened, ReadError> {
    // Read first: another program may be writing meanwhile.
    let known = store.known_last(id).await;
    let mut fold = Fold::new(id, state);
    let mut history = store.history(id, fold.last()).await?;
    while let Some(batch) = history.next().await? {
        fold.take(batch);
    }
    fold.finish(known)
}

/// The states of many threads after their last entries. Those that are gone or cannot be read are left out; a database that does not
/// answer is the only error.
pub async fn open_many(store: &Store, ids: &[ThreadId]) -> Result<HashMap<ThreadId, Opened>, ReadError> {
    let Store::Postgres(store) = store else {
        return Ok(open_each(store, ids).await);
    };
    let mut histories = store.histories(ids).await?;
    let begin = |(id, checkpoint): (ThreadId, Option<Checkpoint>)| (id, Fold::new(id, checkpoint.map(|checkpoint| checkpoint.thread)));
    let mut folds: HashMap<ThreadId, Fold> = histories.take_checkpoints().into_iter().map(begin).collect();
    while let Some(batches) = histories.next().await? {
        for (id, batch) in batches {
            if let Some(fold) = folds.get_mut(&id) {
                fold.take(batch);
            }
        }
    }
    Ok(folds.into_iter().filter_map(|(id, fold)| Some((id, fold.finish(None).ok()?))).collect())
}

async fn open_each(store: &Store, ids: &[ThreadId]) -> HashMap<ThreadId, Opened> {
    let mut opened = HashMap::new();
    for ids in ids.chunks(AT_ONCE) {
        let mut opening = JoinSet::new();
        for id in ids.iter().copied() {
            let store = store.clone();
            opening.spawn(async move { Some((id, open(&store, id).await.ok()?)) });
        }
        opened.extend(opening.join_all().await.into_iter().flatten());
    }
    opened
}

/// A thread while its entries are read.
struct Fold {
    id: ThreadId,
    state: Option<Thread>,
    damage: Vec<Damage>,
    unfit: Vec<FoldError>,
    noted: Vec<DamagedRange>,
    folded: u64,
}

impl Fold {
    /// From a state that was kept, if there is one.
    fn new(id: ThreadId, state: Option<Thread>) -> Self {
        let noted = state.iter().flat_map(|thread| thread.damage.iter().cloned()).collect();
        Self { id, state, damage: Vec::new(), unfit: Vec::new(), noted, folded: 0 }
    }

    /// The entries after this one are still to be read.
    fn last(&self) -> Ordinal {
        self.state.as_ref().map_or(0, |thread| thread.last)
    }

    fn take(&mut self, batch: Batch) {
        let Self { id, state, unfit, noted, folded, .. } = self;
        let mut ranges = batch.damage.iter().filter(|damage| damage.from <= damage.to).peekable();
        for entry in &batch.entries {
            while let Some(range) = ranges.next_if(|range| range.to < entry.ordinal) {
                skip(state, *id, range.range());
            }
            *folded += 1;
            if let Fact::DamageNoted(fact) = &entry.fact {
                noted.extend(fact.damage.iter().cloned());
            }
            match state {
                None if entry.ordinal > 1 => unfit.push(FoldError::NotCreated { kind: entry.fact.kind().to_owned() }),
                None if matches!(entry.fact, Fact::DamageNoted(_)) => {
                    // The beginning was given up by a repair, which noted the whole range.
                    noted.iter().for_each(|range| skip(state, *id, range.clone()));
                }
                None => match Thread::begin(entry) {
                    Ok(thread) => *state = Some(thread),
                    Err(error) => unfit.push(error),
                },
                Some(thread) => {
                    if let Err(error) = thread.apply(entry) {
                        if let FoldError::Order { last, found } = error
                            && found > last
                        {
                            thread.skip(DamagedRange { from: last + 1, to: found - 1, what: "missing".to_owned() });
                            let _ = thread.apply(entry);
                        }
                        unfit.push(error);
                    }
                }
            }
        }
        for range in ranges {
            skip(state, *id, range.range());
        }
        self.damage.extend(batch.damage);
    }

    /// `known` is the highest ordinal that another reader has seen.
    fn finish(self, known: Option<Ordinal>) -> Result<Opened, ReadError> {
        let Self { id, state, mut damage, unfit, noted, folded } = self;
        let thread = state.ok_or(ReadError::NotFound(id))?;
        if let Some(known) = known.filter(|known| *known > thread.last) {
            damage.push(Damage { from: thread.last + 1, to: known, offset: 0, bytes: 0, what: DamageKind::CutOff });
        }
        Ok(Opened { thread, damage, unfit, noted, folded })
    }
}

/// Facts that are written by code that is no thread's driver.
pub struct FactsAside {
    /// The last entry that the thread has.
    pub last: Ordinal,
    /// When they became true, in milliseconds since 1970.
    pub at: u64,
    pub facts: Vec<Fact>,
    pub need: Need,
}

/// The one way in which something is written outside a thread's driver, by the code that holds its lease meanwhile.
pub async fn append_aside(store: &Store, lease: &Lease, aside: FactsAside) -> Result<Appended, AppendError> {
    let FactsAside { last, at, facts, need } = aside;
    let entries = (last + 1..).zip(facts).map(|(ordinal, fact)| Entry { ordinal, at, fact }).collect();
    store.append(lease, entries, need).await
}

/// Keeps the state aside, so that opening the thread stays quick. Not while a turn runs, and not if another program wrote meanwhile:
/// the next one is as good.
pub async fn keep_checkpoint(store: &Store, thread: &Thread) -> Result<(), ReadError> {
    let head = store.head(thread.id).await?;
    if head.last != thread.last {
        return Ok(());
    }
    match Checkpoint::of(thread, head.sum) {
        Ok(checkpoint) => store.put_checkpoint(&checkpoint).await,
        Err(_) => Ok(()),
    }
}

/// What the model sees of a thread.
pub async fn context(store: &Store, thread: &Thread) -> Result<Context, ReadError> {
    context_with(store, thread, |_| {}).await
}

/// Like [`open`], and passes each entry that is read to the caller.
pub async fn context_with(store: &Store, thread: &Thread, mut visit: impl FnMut(&Entry)) -> Result<Context, ReadError> {
    let mut context = Context::new();
    let mut after = 0;
    if thread.compacted_ordinal > 0 {
        let found = store.entries(thread.id, vec![thread.compacted_ordinal]).await?;
        // If the compaction itself is damaged, everything that is left is shown instead.
        if let Some(Entry { ordinal, fact: Fact::ContextCompacted(compaction), .. }) = found.first() {
            let mut needed = Context::needs(compaction);
            needed.extend(&thread.waited_then);
            context = Context::begin(compaction, *ordinal, &store.entries(thread.id, needed).await?);
            after = *ordinal;
        }
    }
    let mut history = store.history(thread.id, after).await?;
    while let Some(batch) = history.next().await? {
        // Another program may be writing: only what the state knows of belongs to it.
        for entry in batch.with_gaps().iter().filter(|entry| entry.ordinal <= thread.last) {
            context.apply(entry);
            visit(entry);
        }
    }
    Ok(context)
}

/// Those of the ranges that are not told of yet.
pub fn unnoted<'a>(
    noted: impl IntoIterator<Item = &'a DamagedRange> + Clone,
    found: impl Iterator<Item = DamagedRange>,
) -> Vec<DamagedRange> {
    let is_known = |range: &DamagedRange| noted.clone().into_iter().any(|known| known.from <= range.from && range.to <= known.to);
    found.filter(|range| !is_known(range)).collect()
}

/// Goes on behind what cannot be read. A thread whose beginning is gone is one about which nothing else is known.
fn skip(state: &mut Option<Thread>, id: ThreadId, range: DamagedRange) {
    if state.is_none() && range.from == 1 {
        *state = Thread::begin(&Entry { ordinal: 1, at: 0, fact: ThreadCreated::new(id).into() }).ok();
    }
    if let Some(thread) = state.as_mut().filter(|_| range.from <= range.to) {
        thread.skip(range);
    }
}

impl Opened {
    /// The entry that must be written before going on: damage that is not recorded yet.
    pub fn unnoted(&self) -> Option<DamageNoted> {
        let found = self.damage.iter().filter(|damage| damage.loses_entries()).map(Damage::range);
        let damage = unnoted(&self.noted, found);
        if damage.is_empty() { None } else { Some(DamageNoted { damage, through: None, continued: false }) }
    }
}
