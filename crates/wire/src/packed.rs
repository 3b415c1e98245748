//! Bytes made smaller for their way, and checked when they arrive.

use bytes::Bytes;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::exec::packs::{Compression, PackedBytes};

/// The fastest level that finds most of what there is to find: bytes wait for it.
const LEVEL: i32 = 1;

/// Why packed bytes are not what was sent.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum UnpackError {
    #[error("the bytes cannot be decompressed into at most {0} bytes; send them again, or without `compression`")]
    Compressed(usize),
    #[error("{actual} bytes arrived and {expected} were announced; send them again")]
    Length { expected: usize, actual: usize },
    #[error("the bytes do not have the digest that was announced; send them again")]
    Digest,
}

/// The compressed bytes, unless they are no smaller.
pub fn compress(raw: &[u8]) -> Option<Vec<u8>> {
    let packed = zstd::bulk::compress(raw, LEVEL).ok()?;
    (packed.len() < raw.len()).then_some(packed)
}

/// At most so many bytes: what claims to be small must not fill the memory.
pub fn expand(bytes: &Bytes, compression: Option<Compression>, most: usize) -> Result<Bytes, UnpackError> {
    match compression {
        None if bytes.len() > most => Err(UnpackError::Length { expected: most, actual: bytes.len() }),
        None => Ok(bytes.clone()),
        Some(Compression::Zstd) => zstd::bulk::decompress(bytes, most).map(Bytes::from).map_err(|_| UnpackError::Compressed(most)),
    }
}

impl PackedBytes {
    pub fn pack(raw: Bytes, compression: Option<Compression>) -> Self {
        let digest = digest(&raw);
        match compression.and_then(|_| compress(&raw)) {
            Some(packed) => Self { data: packed.into(), compression, digest },
            None => Self { data: raw.into(), compression: None, digest },
        }
    }

    /// The bytes as they were packed, of which there must be exactly so many.
    pub fn unpack(&self, length: usize) -> Result<Bytes, UnpackError> {
        let raw = expand(&self.data.0, self.compression, length)?;
        if raw.len() != length {
            return Err(UnpackError::Length { expected: length, actual: raw.len() });
        }
        if digest(&raw) != self.digest {
            return Err(UnpackError::Digest);
        }
        Ok(raw)
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        for raw in [&b""[..], b"x", &[7; 100_000]] {
            for compression in [None, Some(Compression::Zstd)] {
                let packed = PackedBytes::pack(Bytes::copy_from_slice(raw), compression);
                assert_eq!(packed.unpack(raw.len()).unwrap(), raw);
                assert!(packed.data.0.len() <= raw.len());
            }
        }
        assert!(PackedBytes::pack(vec![7; 100_000].into(), Some(Compression::Zstd)).data.0.len() < 1000);
    }

    #[test]
    fn what_is_not_smaller_is_not_compressed() {
        let raw: Vec<u8> = (0..4096_u64).flat_map(|number| xxh3_64(&number.to_le_bytes()).to_le_bytes()).collect();
        assert_eq!(PackedBytes::pack(raw.into(), Some(Compression::Zstd)).compression, None);
    }

    #[test]
    fn what_was_changed_on_the_way_is_refused() {
        let packed = PackedBytes::pack(vec![7; 1000].into(), Some(Compression::Zstd));
        assert_eq!(packed.unpack(999), Err(UnpackError::Compressed(999)));
        assert_eq!(packed.unpack(1001), Err(UnpackError::Length { expected: 1001, actual: 1000 }));
        let other = PackedBytes { data: vec![8; 1000].into(), compression: None, digest: packed.digest };
        assert_eq!(other.unpack(1000), Err(UnpackError::Digest));
        let bomb = Bytes::from(compress(&vec![0; 64 << 20]).unwrap());
        assert_eq!(expand(&bomb, Some(Compression::Zstd), 1 << 20), Err(UnpackError::Compressed(1 << 20)));
    }
}
