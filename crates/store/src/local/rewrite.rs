//! Writes a journal anew: when a fork gets its own copy of what it shared, and when a damaged one is repaired.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use outpost_thread::{DamageNoted, Fact, ForkBase, Ordinal, ThreadId};

use super::LocalHome;
use super::segment::JournalSegment;
use crate::damage::Damage;
use crate::journal::{self, LineParts, Sum};
use crate::reader::{Forward, ReadOutcome};

impl LocalHome {
    /// Replaces the journal at `path` by one that has all whole lines of these segments, and a `damageNoted` in the place of
    /// those that are not. Tells what that was. The file is there whole or not at all. `base` is what lies before the first segment.
    pub(super) fn rewrite(
        &self,
        thread: ThreadId,
        path: &Path,
        segments: &[JournalSegment],
        base: Option<&ForkBase>,
    ) -> io::Result<Vec<Damage>> {
        let aside = path.with_extension(format!("{}.new", self.config.instance));
        let written = self.write_aside(thread, &aside, segments, base);
        let published = written.and_then(|(file, damage)| {
            file.sync_data()?;
            fs::rename(&aside, path)?;
            File::open(path.parent().unwrap_or(path))?.sync_all()?;
            self.noted(thread, path);
            Ok(damage)
        });
        if published.is_err() {
            let _ = fs::remove_file(&aside);
        }
        published
    }

    /// The same in a file beside it, which is not synced yet.
    pub(super) fn write_aside(
        &self,
        thread: ThreadId,
        aside: &Path,
        segments: &[JournalSegment],
        base: Option<&ForkBase>,
    ) -> io::Result<(File, Vec<Damage>)> {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(aside)?;
        let mut out = Output { file: BufWriter::with_capacity(1 << 20, file), line: Vec::new(), sum: Sum::default() };
        let (header, sum) = journal::header(thread, base);
        out.file.write_all(&header)?;
        out.sum = sum;
        let mut all = Vec::new();
        for segment in segments {
            let until = segment.until.unwrap_or(Ordinal::MAX);
            let mut forward = Forward::new(&segment.file, segment.start.place(), u64::MAX);
            loop {
                match forward.find_next()? {
                    ReadOutcome::End => break,
                    ReadOutcome::Damage(damage) if damage.from > until => break,
                    ReadOutcome::Damage(mut damage) => {
                        damage.to = damage.to.min(until);
                        if damage.from <= damage.to {
                            out.note(&damage, self.now())?;
                        }
                        all.push(damage);
                    }
                    ReadOutcome::Line { line, .. } if line.ordinal > until => break,
                    ReadOutcome::Line { line, .. } => out.write(line.parts())?,
                }
            }
        }
        let file = out.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((file, all))
    }
}

struct Output {
    file: BufWriter<File>,
    line: Vec<u8>,
    sum: Sum,
}

impl Output {
    fn write(&mut self, parts: LineParts<'_>) -> io::Result<()> {
        self.line.clear();
        self.sum = journal::write(&mut self.line, self.sum, parts);
        self.file.write_all(&self.line)
    }

    /// One line for all that are gone.
    fn note(&mut self, damage: &Damage, at: u64) -> io::Result<()> {
        let fact = Fact::from(DamageNoted::in_place_of(damage.range()));
        let data = fact.data().map_err(io::Error::other)?;
        self.write(LineParts { ordinal: damage.from, at, kind: fact.kind(), data: data.get() })
    }
}
