//! Content by digest: what is too large for a line.
//!
//! A blob is named by the SHA-256 of its bytes, so that writing it twice is writing it once and reading it checks it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use outpost_wire::SharedError;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest: it must be 64 hex digits")]
pub struct NotADigest(String);

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let not = || NotADigest(text.to_owned());
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(not());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).map_err(|_| not())?;
        }
        Ok(Self(bytes))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("there is no blob {0}")]
    NotFound(Digest),
    #[error("blob {0} is not what was written")]
    Altered(Digest),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the database: {0}")]
    Database(#[source] SharedError),
}

/// The folder of blobs of a home.
#[derive(Debug, Clone)]
pub struct Blobs(PathBuf);

impl Blobs {
    pub fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.0.join(&name[..2]).join(name)
    }

    /// Writes it, durably: a line that names it may be durable a moment later.
    pub fn put(&self, content: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(content);
        let path = self.path(digest);
        if fs::metadata(&path).is_ok_and(|meta| meta.len() == content.len() as u64) {
            return Ok(digest);
        }
        let folder = path.parent().unwrap_or(&self.0);
        crate::local::make_folder(folder)?;
        let aside = folder.join(format!(".{digest}.{}", std::process::id()));
        let written = write_aside(&aside, content).and_then(|()| fs::rename(&aside, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&aside);
            return Err(error);
        }
        File::open(folder)?.sync_all()?;
        File::open(&self.0)?.sync_all()?;
        Ok(digest)
    }

    pub fn get(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let content = match fs::read(self.path(digest)) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BlobError::NotFound(digest)),
            Err(error) => return Err(error.into()),
        };
        if Digest::of(&content) == digest { Ok(content) } else { Err(BlobError::Altered(digest)) }
    }
}

fn write_aside(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_found_by_its_digest_and_checked() {
        let directory = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(directory.path().join("blobs"));
        let digest = blobs.put(b"content").unwrap();
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert_eq!(blobs.put(b"content").unwrap(), digest);
        assert_eq!(blobs.get(digest).unwrap(), b"content");
        fs::write(blobs.path(digest), b"c0ntent").unwrap();
        assert!(matches!(blobs.get(digest), Err(BlobError::Altered(_))));
        fs::remove_file(blobs.path(digest)).unwrap();
        assert!(matches!(blobs.get(digest), Err(BlobError::NotFound(_))));
        assert!("xyz".parse::<Digest>().is_err());
    }
}
