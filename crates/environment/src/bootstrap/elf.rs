//! As much of a program's file as tells where it can run.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;

/// A program that is to be copied.
#[derive(Debug, Clone)]
pub struct Binary {
    pub bytes: Bytes,
    /// As `uname -m` calls it.
    pub machine: &'static str,
    pub linkage: Linkage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    Static,
    /// The newest of the C library that it asks for.
    Glibc(Version),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum BinaryError {
    #[error("it is not a program for Linux on a 64-bit machine")]
    NotElf,
    #[error("it is for a machine that is not known here (number {0})")]
    Machine(u16),
}

const LITTLE_64: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const INTERPRETER: u32 = 3;

impl Binary {
    pub fn parse(bytes: Bytes) -> Result<Self, BinaryError> {
        if !bytes.starts_with(&LITTLE_64) {
            return Err(BinaryError::NotElf);
        }
        let machine = match half(&bytes, 18).ok_or(BinaryError::NotElf)? {
            62 => "x86_64",
            183 => "aarch64",
            243 => "riscv64",
            other => return Err(BinaryError::Machine(other)),
        };
        let linkage =
            if has_interpreter(&bytes).ok_or(BinaryError::NotElf)? { Linkage::Glibc(newest_glibc(&bytes)) } else { Linkage::Static };
        Ok(Self { bytes, machine, linkage })
    }
}

/// Whether another program has to load it.
fn has_interpreter(bytes: &[u8]) -> Option<bool> {
    let start = usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (usize::from(half(bytes, 54)?), usize::from(half(bytes, 56)?));
    for index in 0..count {
        let at = start.checked_add(index * size)?;
        let kind = u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == INTERPRETER {
            return Some(true);
        }
    }
    Some(false)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The names of versions lie in the file as text.
fn newest_glibc(bytes: &[u8]) -> Version {
    const NAME: &[u8] = b"GLIBC_";
    let found = memchr::memmem::find_iter(bytes, NAME).filter_map(|at| {
        let text: String = bytes[at + NAME.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit() || **byte == b'.')
            .map(|byte| char::from(*byte))
            .collect();
        Version::parse(&text)
    });
    found.max().unwrap_or(Version(2, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_is_understood() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let binary = Binary::parse(bytes.into()).unwrap();
        assert_eq!(binary.machine, std::env::consts::ARCH);
        if cfg!(target_env = "gnu") {
            assert!(matches!(binary.linkage, Linkage::Glibc(version) if version > Version(2, 16)), "{:?}", binary.linkage);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [&b""[..], b"#!/bin/sh\n", &LITTLE_64] {
            assert_eq!(Binary::parse(Bytes::copy_from_slice(bytes)).unwrap_err(), BinaryError::NotElf);
        }
        let mut other = vec![0; 64];
        other[..6].copy_from_slice(&LITTLE_64);
        other[18] = 8;
        assert_eq!(Binary::parse(other.clone().into()).unwrap_err(), BinaryError::Machine(8));
        other[18] = 62;
        assert_eq!(Binary::parse(other.clone().into()).unwrap().linkage, Linkage::Static);
        // Headers that lie beyond the end.
        other[39] = 0x7f;
        other[56] = 1;
        assert_eq!(Binary::parse(other.into()).unwrap_err(), BinaryError::NotElf);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(Version::parse("2.9") < Version::parse("2.36"));
        assert_eq!(Version::parse("2.2.5"), Some(Version(2, 2)));
        assert_eq!(newest_glibc(b"..GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0"), Version(2, 34));
    }
}
