//! A thread as one file that needs nothing else: a journal with everything in it, shared past and large content included. It can
//! be imported again, here or elsewhere, and is checked line by line when it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use outpost_thread::{Entry, Ordinal, Raw, ThreadId};
use outpost_wire::SharedError;

use crate::damage::{Damage, DamageKind};
use crate::journal::{self, HeaderError, LineParts};
use crate::store::{ReadError, Store};

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub entries: u64,
    pub bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("the thread is damaged ({}); repair it first, then export what is whole", first(.0))]
    Damaged(Vec<Damage>),
    #[error("an entry of kind `{kind}` cannot be written: {why}")]
    Unwritable {
        kind: String,
        #[source]
        why: SharedError,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
}

fn first(damage: &[Damage]) -> String {
    damage.first().map(ToString::to_string).unwrap_or_default()
}

/// Writes a thread. A torn end was never acknowledged and is left out.
pub async fn export(store: &Store, thread: ThreadId, out: &mut impl Write) -> Result<Exported, ExportError> {
    let mut history = store.history(thread, 0).await?;
    let (mut bytes, mut sum) = journal::header(thread, None);
    let mut exported = Exported { entries: 0, bytes: 0 };
    while let Some(batch) = history.next().await? {
        // A repair cannot bring back content that was kept aside and is lost; what stands in its place is exported.
        let is_repairable = |damage: &&Damage| !damage.what.is_tail() && damage.what != DamageKind::Blob;
        let damage: Vec<Damage> = batch.damage.iter().filter(is_repairable).cloned().collect();
        if !damage.is_empty() {
            return Err(ExportError::Damaged(damage));
        }
        for entry in &batch.with_gaps() {
            let kind = entry.fact.kind();
            let data =
                entry.fact.data().map_err(|error| ExportError::Unwritable { kind: kind.to_owned(), why: SharedError::new(error) })?;
            sum = journal::write(&mut bytes, sum, LineParts { ordinal: entry.ordinal, at: entry.at, kind, data: data.get() });
            exported.entries += 1;
        }
        out.write_all(&bytes)?;
        exported.bytes += bytes.len() as u64;
        bytes.clear();
    }
    out.write_all(&bytes)?;
    exported.bytes += bytes.len() as u64;
    out.flush()?;
    Ok(exported)
}

#[derive(Debug, thiserror::Error)]
pub enum ExportFileError {
    #[error("{path}: {error}")]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{path}: {why}")]
    Header {
        path: PathBuf,
        #[source]
        why: HeaderError,
    },
    #[error("{path}: line {line} is not as it was written; export the thread again")]
    Damaged { path: PathBuf, line: u64 },
    #[error("{path} shares its past with thread {base}; copy what `outpost thread export` writes instead of the journal")]
    Shared { path: PathBuf, base: ThreadId },
}

/// Whether a file begins like a journal of ours.
pub fn is_export(path: &Path) -> bool {
    let mut line = Vec::new();
    let read = File::open(path).and_then(|file| BufReader::new(file).read_until(b'\n', &mut line));
    read.is_ok() && !matches!(journal::read_header(line.trim_ascii_end()), Err(HeaderError::NotOurs)) && line.starts_with(b"{\"format\":\"")
}

/// Reads what [`export`] wrote.
pub(crate) fn read_export(path: &Path) -> Result<(ThreadId, Vec<Entry>), ExportFileError> {
    let failed = |error| ExportFileError::Io { path: path.to_owned(), error };
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).map_err(failed)?;
    let header = journal::read_header(line.trim_ascii_end()).map_err(|why| ExportFileError::Header { path: path.to_owned(), why })?;
    if let Some(base) = header.base {
        return Err(ExportFileError::Shared { path: path.to_owned(), base: base.thread });
    }
    let (mut sum, mut expected, mut number, mut entries): (_, Ordinal, u64, Vec<Entry>) = (header.sum, 1, 1, Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok((header.thread, entries));
        }
        number += 1;
        let damaged = || ExportFileError::Damaged { path: path.to_owned(), line: number };
        let bytes = line.strip_suffix(b"\n").ok_or_else(damaged)?;
        let read = journal::read(bytes).filter(|read| read.ordinal == expected && read.follows(sum)).ok_or_else(damaged)?;
        // Content that was put aside is not in this file.
        if journal::as_blob(read.data).is_some() {
            return Err(damaged());
        }
        let data = Raw::parse(read.data).map_err(|_| damaged())?;
        let entry = journal::entry(header.version, &read, data);
        sum = read.sum;
        expected = entry.end() + 1;
        entries.push(entry);
    }
}
