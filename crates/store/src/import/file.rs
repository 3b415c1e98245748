//! The lines of a file of another program, plain or compressed, within limits: its content is not trusted.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use memchr::memchr;
use outpost_wire::SharedError;
use serde::de::DeserializeOwned;

/// The longest line that is read: more than any model takes in one message. A longer one is named and left out.
const LINE: usize = 32 << 20;
/// Values in one line. Each takes far more memory than it has characters.
const VALUES: usize = 500_000;
/// Everything in one file, decompressed.
const FILE: u64 = 1 << 30;
/// How many times as long as the file its content may be, beyond what is short in any case.
const RATIO: u64 = 400;
const SHORT: u64 = 64 << 20;

/// A line that could not be read; its number starts at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    pub path: PathBuf,
    pub number: u64,
    pub reason: SharedError,
}

/// Reads line after line; what is no line that was expected comes as the second kind.
pub(super) struct RolloutLines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    number: u64,
    ended: bool,
    /// Bytes that may still be read.
    left: u64,
}

pub(super) fn open(path: &Path) -> io::Result<RolloutLines> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    let is_packed = path.extension().is_some_and(|extension| extension == "zst");
    let left = if is_packed { length.saturating_mul(RATIO).clamp(SHORT, FILE) } else { FILE };
    let reader: Box<dyn BufRead + Send> =
        if is_packed { Box::new(BufReader::new(zstd::Decoder::new(file)?)) } else { Box::new(BufReader::with_capacity(1 << 16, file)) };
    Ok(RolloutLines { path: path.to_owned(), reader, number: 0, ended: false, left })
}

/// A pipe or a device would never end, or never begin.
fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}

impl RolloutLines {
    /// The next line that is not empty.
    pub(super) fn next_as<T: DeserializeOwned>(&mut self) -> Option<Result<T, BadLine>> {
        let mut bytes = Vec::new();
        while !self.ended {
            bytes.clear();
            self.number += 1;
            match self.line(&mut bytes) {
                Ok(Some(_)) if bytes.trim_ascii().is_empty() => {}
                Ok(Some(length)) if length > LINE => {
                    return Some(Err(self.bad(format!("the line is longer than {} MiB", LINE >> 20).into())));
                }
                Ok(Some(_)) if has_too_many_values(&bytes) => {
                    return Some(Err(self.bad(format!("the line holds more than {VALUES} values").into())));
                }
                Ok(Some(_)) => return Some(serde_json::from_slice(&bytes).map_err(|error| self.bad(SharedError::new(error)))),
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(self.bad(SharedError::new(error))));
                }
            }
        }
        None
    }

    /// Reads up to a line end; what is beyond the longest line is counted and not kept. Nothing at the end of the file.
    fn line(&mut self, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let mut length = 0;
        loop {
            let piece = self.reader.fill_buf()?;
            if piece.is_empty() {
                return Ok((length > 0).then_some(length));
            }
            let end = memchr(b'\n', piece);
            let taken = end.map_or(piece.len(), |end| end + 1);
            if taken as u64 > self.left {
                return Err(io::Error::other("the file holds more than may be imported; what comes after this is left out"));
            }
            self.left -= taken as u64;
            length += taken;
            if length <= LINE {
                bytes.extend_from_slice(&piece[..taken]);
            } else if !bytes.is_empty() {
                *bytes = b"-".to_vec();
            }
            self.reader.consume(taken);
            if end.is_some() {
                return Ok(Some(length));
            }
        }
    }

    /// Bytes that may still be read: what was read is the difference to before.
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    fn bad(&self, reason: SharedError) -> BadLine {
        BadLine { path: self.path.clone(), number: self.number, reason }
    }
}

/// Counts what stands between values, outside of texts.
fn has_too_many_values(line: &[u8]) -> bool {
    let (mut values, mut is_text, mut is_escaped) = (0, false, false);
    for byte in line {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => values += 1,
            _ => {}
        }
    }
    values > VALUES
}

/// The beginning of a file, for a look at what it is.
pub(super) fn first_line(path: &Path) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(open_regular(path)?.take(1 << 20)).read_until(b'\n', &mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::Value;

    use super::*;

    fn read(path: &Path) -> Vec<Result<Value, String>> {
        let mut lines = open(path).unwrap();
        std::iter::from_fn(|| lines.next_as::<Value>()).map(|line| line.map_err(|bad| format!("{}: {}", bad.number, bad.reason))).collect()
    }

    #[test]
    fn a_line_that_is_too_long_or_holds_too_much_is_named_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{\"a\":1}\n\"").unwrap();
        file.write_all(&vec![b'x'; LINE + 5]).unwrap();
        file.write_all(b"\"\n[").unwrap();
        file.write_all("0,".repeat(VALUES + 1).as_bytes()).unwrap();
        file.write_all(b"0]\n\"").unwrap();
        file.write_all("0,".repeat(VALUES + 1).as_bytes()).unwrap();
        file.write_all(b"\"\n{\"b\":2}").unwrap();
        let lines = read(&path);
        assert_eq!(lines.len(), 5);
        assert!(lines[0].is_ok() && lines[3].is_ok() && lines[4].is_ok(), "a text may hold what it wants");
        assert_eq!(lines[1], Err("2: the line is longer than 32 MiB".into()));
        assert_eq!(lines[2], Err(format!("3: the line holds more than {VALUES} values")));
    }

    /// A thousand bytes that become gigabytes.
    #[test]
    fn a_file_that_grows_without_end_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl.zst");
        let mut packed = zstd::Encoder::new(File::create(&path).unwrap(), 19).unwrap();
        let line = format!("\"{}\"\n", "x".repeat(1 << 20));
        for _ in 0..100 {
            packed.write_all(line.as_bytes()).unwrap();
        }
        packed.finish().unwrap();
        let lines = read(&path);
        assert!(lines.len() <= 66, "{}", lines.len());
        assert!(lines.last().unwrap().as_ref().is_err_and(|why| why.contains("more than may be imported")), "{:?}", lines.last());
        let pipe = folder.path().join("pipe.jsonl");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(open(&pipe).is_err(), "a pipe is refused, not waited for");
    }
}
