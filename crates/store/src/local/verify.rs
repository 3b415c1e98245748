//! Checking a thread on disk, and putting right what can be put right.

use std::fs;

use outpost_thread::{Ordinal, ThreadId};

use super::LocalHome;
use super::segment::{JournalSegment, SegmentLineage, entry};
use crate::damage::{Damage, DamageKind};
use crate::journal::{Sum, as_blob};
use crate::lease::{ClaimError, ClaimMode, LeaseFile, Record};
use crate::reader::{Forward, ReadOutcome};
use crate::store::{AppendError, DeleteError, ReadError};
use crate::verify::{Repair, VerifyReport};

impl LocalHome {
    /// Reads every byte. `known` is the highest ordinal that another reader, such as the index, has seen.
    pub(super) fn verify(&self, thread: ThreadId, known: Option<Ordinal>) -> Result<VerifyReport, ReadError> {
        let lineage = SegmentLineage::open(self, thread)?;
        let mut verdict = VerifyReport { thread, entries: 0, last: 0, bytes: 0, damage: Vec::new(), given_up: 0 };
        for (index, segment) in lineage.segments().iter().enumerate() {
            self.check(segment, &mut verdict)?;
            let base = lineage.segments().get(index + 1).and_then(|next| next.start.base.as_ref());
            if let Some(base) = base.filter(|base| !base.sum.is_empty()) {
                let place = segment.locate(base.ordinal + 1)?;
                // The line counts, and not what it follows: that was written anew if the thread got a copy of its own past.
                let is_other = |sum: Sum| base.sum.parse().map_or(true, |named| !sum.is_of_same_line(named));
                if place.last == base.ordinal && place.sum.is_some_and(is_other) {
                    let damage = Damage { from: 1, to: 0, offset: place.offset, bytes: 0, what: DamageKind::Unchained };
                    verdict.damage.push((segment.thread, damage));
                }
            }
        }
        if let Some(known) = known.filter(|known| *known > verdict.last) {
            let damage = Damage { from: verdict.last + 1, to: known, offset: verdict.bytes, bytes: 0, what: DamageKind::CutOff };
            verdict.damage.push((thread, damage));
        }
        Ok(verdict)
    }

    fn check(&self, segment: &JournalSegment, verdict: &mut VerifyReport) -> Result<(), ReadError> {
        let until = segment.until.unwrap_or(Ordinal::MAX);
        let mut forward = Forward::new(&segment.file, segment.start.place(), u64::MAX);
        let mut last = segment.start.first - 1;
        loop {
            match forward.find_next()? {
                ReadOutcome::End => break,
                ReadOutcome::Damage(damage) if damage.from > until => break,
                ReadOutcome::Damage(mut damage) => {
                    damage.to = damage.to.min(until);
                    last = last.max(damage.to);
                    verdict.damage.push((segment.thread, damage));
                }
                ReadOutcome::Line { line, .. } if line.ordinal > until => break,
                ReadOutcome::Line { line, offset } => {
                    last = line.ordinal;
                    verdict.entries += 1;
                    // A line that has its sum is what was written; only what it refers to may be gone.
                    let checked =
                        if as_blob(line.data).is_some() { entry(&self.blobs, segment.start.version, &line).map(drop) } else { Ok(()) };
                    if let Err(what) = checked {
                        verdict.damage.push((segment.thread, Damage { from: line.ordinal, to: line.ordinal, offset, bytes: 0, what }));
                    }
                }
            }
            let through = forward.place().last;
            if through > last {
                verdict.given_up += through - last + 1;
                last = through;
            }
        }
        // A first line that is altered was found on the way; one that is not there at all was not.
        let has_header = |(thread, damage): &(ThreadId, Damage)| *thread == segment.thread && damage.what == DamageKind::Header;
        if segment.start.sum.is_none() && !verdict.damage.iter().any(has_header) {
            verdict.damage.push((segment.thread, Damage { from: 1, to: 0, offset: 0, bytes: 0, what: DamageKind::Header }));
        }
        if last < until && segment.until.is_some() {
            let offset = forward.place().offset;
            verdict.damage.push((segment.thread, Damage { from: last + 1, to: until, offset, bytes: 0, what: DamageKind::CutOff }));
            last = until;
        }
        verdict.last = last;
        verdict.bytes += segment.length()?;
        Ok(())
    }

    /// Writes a damaged journal anew with everything that is whole, and a note in the place of what is not. The file as it
    /// was stays beside it. Damage in what a fork shares is repaired in the thread that has it.
    pub(super) fn repair(&self, thread: ThreadId, mode: ClaimMode) -> Result<Repair, DeleteError> {
        let lease = self.claim(thread, mode)?;
        let result = self.repair_claimed(thread);
        self.release(&lease);
        result
    }

    fn repair_claimed(&self, thread: ThreadId) -> Result<Repair, DeleteError> {
        let path = self.find(thread).ok_or(ClaimError::NotFound(thread))?;
        let lineage = SegmentLineage::open(self, thread)?;
        let Some(own) = lineage.segments().last() else { return Err(ReadError::NotFound(thread).into()) };
        let mut verdict = VerifyReport { thread, entries: 0, last: 0, bytes: 0, damage: Vec::new(), given_up: 0 };
        self.check(own, &mut verdict)?;
        // A blob that is missing cannot be made up for by writing the line again.
        if verdict.damage.iter().all(|(_, damage)| damage.what == DamageKind::Blob) {
            return Ok(Repair { damage: verdict.damage.into_iter().map(|(_, damage)| damage).collect(), kept: None });
        }
        let failed = |error| DeleteError::Append(self.failed(error));
        let kept = path.with_extension(format!("damaged-{}", self.now()));
        fs::copy(&path, &kept).map_err(failed)?;
        let lease = LeaseFile::open(&Self::lease_path(&path)).map_err(failed)?;
        let locked = lease.lock().map_err(failed)?;
        let base = own.start.base.clone();
        let damage = self.rewrite(thread, &path, std::slice::from_ref(own), base.as_ref()).map_err(failed)?;
        let record = locked.read().map_err(failed)?.unwrap_or_default();
        locked
            .write_durably(&Record { edition: record.edition + 1, ..record })
            .map_err(|error| DeleteError::Append(AppendError::Io(error)))?;
        Ok(Repair { damage, kept: Some(kept) })
    }
}
