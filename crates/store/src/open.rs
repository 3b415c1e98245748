//! From a store to a state: the checkpoint, if there is one, and the entries after it.

use outpost_thread::{DamagedRange, FoldError, Thread, ThreadId};

use crate::damage::Damage;
use crate::store::{ReadError, Store};

/// A thread, folded.
#[derive(Debug)]
pub struct Opened {
    pub thread: Thread,
    /// Found while reading what came after the checkpoint. What is damaged before it is found by `verify`.
    pub damage: Vec<Damage>,
    /// Entries that did not fit to what was read before them. This happens only behind damage.
    pub unfit: Vec<FoldError>,
    /// How many entries had to be read.
    pub folded: u64,
}

/// The state of a thread after its last entry.
pub async fn open(store: &Store, id: ThreadId) -> Result<Opened, ReadError> {
    let mut state = store.checkpoint(id).await.map(|checkpoint| checkpoint.thread);
    let after = state.as_ref().map_or(0, |thread| thread.last);
    let mut history = store.history(id, after).await?;
    let (mut damage, mut unfit, mut folded) = (Vec::new(), Vec::new(), 0);
    while let Some(batch) = history.next().await? {
        let mut ranges = batch.damage.iter().filter(|damage| damage.from <= damage.to).peekable();
        for entry in &batch.entries {
            while let Some(range) = ranges.next_if(|range| range.to < entry.seq) {
                skip(&mut state, range.range());
            }
            folded += 1;
            match &mut state {
                None => match Thread::begin(entry) {
                    Ok(thread) => state = Some(thread),
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
            skip(&mut state, range.range());
        }
        damage.extend(batch.damage);
    }
    let thread = state.ok_or(ReadError::NotFound(id))?;
    Ok(Opened { thread, damage, unfit, folded })
}

fn skip(state: &mut Option<Thread>, range: DamagedRange) {
    if let Some(thread) = state
        && range.to > thread.last
    {
        thread.skip(range);
    }
}
