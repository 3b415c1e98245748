//! The lines of one rollout file, plain or compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::line::Line;

/// No line of a sane rollout is longer; more is damage, and is named as such.
const MAX_LINE: u64 = 256 << 20;

/// A line that could not be read; its number starts at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    pub path: PathBuf,
    pub number: u64,
    pub reason: String,
}

/// Reads line after line; what is no line of a rollout comes as the second kind.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    number: u64,
    ended: bool,
}

pub fn open(path: &Path) -> io::Result<Lines> {
    let file = File::open(path)?;
    let reader: Box<dyn BufRead + Send> = if path.extension().is_some_and(|extension| extension == "zst") {
        Box::new(BufReader::new(zstd::Decoder::new(file)?))
    } else {
        Box::new(BufReader::with_capacity(1 << 16, file))
    };
    Ok(Lines { path: path.to_owned(), reader, number: 0, ended: false })
}

impl Iterator for Lines {
    type Item = Result<Line, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        while !self.ended {
            bytes.clear();
            self.number += 1;
            match self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes) {
                Ok(0) => self.ended = true,
                Ok(_) if bytes.trim_ascii().is_empty() => {}
                Ok(_) => return Some(serde_json::from_slice(&bytes).map_err(|error| self.bad(error.to_string()))),
                Err(error) => {
                    self.ended = true;
                    return Some(Err(self.bad(error.to_string())));
                }
            }
        }
        None
    }
}

impl Lines {
    fn bad(&self, reason: String) -> BadLine {
        BadLine { path: self.path.clone(), number: self.number, reason }
    }
}
