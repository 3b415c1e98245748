//! Small files that go many in one message: from the source into memory, and from there to the destination.

use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::exec::attributes::Attributes;
use outpost_wire::exec::packs::{PackPlacing, PackedBytes, PackedFile, ReadPack, ReadPackParams, WritePack, WritePackParams};

use super::{Placing, Transfer, TransferError};
use crate::environment::{EnvironmentError, Repeat};
use crate::pace::Pace;

/// A pack is full with so many files, or so many bytes.
const FILES: usize = 512;
const BYTES: u64 = 1 << 20;
/// Packs that are under way at once.
const PACKS: usize = 24;

/// A file that is copied whole.
pub(super) struct SmallFile {
    pub from: PathUri,
    pub to: PathUri,
    pub attributes: Attributes,
}

impl Transfer {
    pub(super) async fn copy_packs(&self, files: Vec<SmallFile>, placing: Placing) -> Result<(), TransferError> {
        let copies = packs(files).into_iter().map(|pack| async move {
            match self.copy_pack(&pack, placing).await {
                Ok(bytes) => {
                    self.progress.add(bytes);
                    Ok(())
                }
                // One of them is not what it was, or cannot be written: each by itself says which, and why.
                Err(EnvironmentError::Fault(_) | EnvironmentError::Nonsense { .. }) => self.copy_each(pack).await,
                Err(error) => match pack.first() {
                    Some(first) => Err(self.unwritten(&first.to, error)),
                    None => Ok(()),
                },
            }
        });
        stream::iter(copies).buffer_unordered(PACKS).try_collect::<()>().await
    }

    /// Copies files, and tells how many bytes those were.
    async fn copy_pack(&self, pack: &[SmallFile], placing: Placing) -> Result<u64, EnvironmentError> {
        let (sizes, raw) = self.read_pack(pack).await?;
        let files = pack.iter().zip(&sizes);
        let files = files.map(|(file, size)| PackedFile { path: file.to.clone(), size: *size, mode: file.attributes.mode }).collect();
        let length = raw.len() as u64;
        let placing = match placing {
            Placing::Each => PackPlacing::Replace,
            Placing::Together => PackPlacing::Part,
        };
        let bytes = pack_for(&self.writing, raw).await;
        let params = WritePackParams { files, placing, bytes, sandbox: None };
        let (departure, wire) = (self.writing.depart(Instant::now()), params.bytes.data.0.len());
        self.destination.environment.call::<WritePack>(&params, Repeat::Harmless).await?;
        self.writing.arrive(departure, wire, Instant::now());
        Ok(length)
    }

    async fn read_pack(&self, pack: &[SmallFile]) -> Result<(Vec<u64>, Bytes), EnvironmentError> {
        let here = &self.source.environment;
        let nonsense = |reason: SharedError| EnvironmentError::Nonsense {
            name: here.name().to_owned(),
            reason: SharedError::worded(format!("fs/readPack: {reason}"), reason),
        };
        let params = ReadPackParams {
            paths: pack.iter().map(|file| file.from.clone()).collect(),
            compression: self.reading.compression(),
            sandbox: None,
        };
        let departure = self.reading.depart(Instant::now());
        let answer = here.call::<ReadPack>(&params, Repeat::Harmless).await?;
        self.reading.arrive(departure, answer.bytes.data.0.len(), Instant::now());
        let length = answer.sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size)).filter(|sum| *sum <= BYTES);
        // Memory is taken for as many bytes as the answer announces.
        let Some(length) = length.filter(|_| answer.sizes.len() == pack.len()).and_then(|sum| usize::try_from(sum).ok()) else {
            return Err(nonsense(format!("its sizes are not those of {} files with at most {BYTES} bytes in all", pack.len()).into()));
        };
        if answer.bytes.compression.is_some() && params.compression.is_none() {
            return Err(nonsense("its bytes are compressed, which was not asked for".into()));
        }
        let raw = answer.bytes.unpack(length).map_err(|error| nonsense(SharedError::new(error)))?;
        if self.reading.is_trial() {
            self.reading.compress(raw.clone()).await;
        }
        Ok((answer.sizes, raw))
    }
}

/// Compressed where that is worth it.
async fn pack_for(pace: &Pace, raw: Bytes) -> PackedBytes {
    let compression = pace.compression();
    if compression.is_none() && pace.is_trial() {
        pace.compress(raw.clone()).await;
    }
    let compression = pace.compression();
    let given = raw.clone();
    let packed = tokio::task::spawn_blocking(move || PackedBytes::pack(given, compression)).await;
    packed.unwrap_or_else(|_| PackedBytes::pack(raw, None))
}

/// In their order, so that files of one directory come together.
fn packs(files: Vec<SmallFile>) -> Vec<Vec<SmallFile>> {
    let (mut packs, mut bytes) = (Vec::<Vec<SmallFile>>::new(), 0);
    for file in files {
        match packs.last_mut().filter(|pack| pack.len() < FILES && bytes + file.attributes.size <= BYTES) {
            Some(pack) => {
                bytes += file.attributes.size;
                pack.push(file);
            }
            None => {
                bytes = file.attributes.size;
                packs.push(vec![file]);
            }
        }
    }
    packs
}
