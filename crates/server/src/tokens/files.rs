//! Tokens of one home: one small file each. Nothing is kept in memory: a token that is gone from the disk is worth nothing at once.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outpost_wire::EnvironmentId;

use super::{BindError, Issued, TokenError, TokenPurpose, one_of};

/// Where they are.
#[derive(Debug, Clone)]
pub(super) struct TokenFiles {
    issued: PathBuf,
    bound: PathBuf,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> TokenError {
    let path = path.to_owned();
    move |error| TokenError::Io { path, error }
}

impl TokenFiles {
    pub(super) fn new(directory: &Path) -> Self {
        Self { issued: directory.join("issued"), bound: directory.join("bound") }
    }

    fn keep(&self, token: &Issued) -> Result<(), TokenError> {
        let text = serde_json::to_string(token).map_err(|error| at(&self.issued)(error.into()))?;
        write_private(&self.issued, &token.digest, &text)
    }

    /// All tokens, the oldest first.
    pub(super) fn list(&self) -> Result<Vec<Issued>, TokenError> {
        let mut all = Vec::new();
        for digest in names(&self.issued)? {
            all.extend(self.read(&digest)?);
        }
        all.sort_by(|a, b| (a.created_at, &a.digest).cmp(&(b.created_at, &b.digest)));
        Ok(all)
    }

    /// Those that can be read; the others are named in the log.
    pub(super) fn readable(&self) -> Result<Vec<Issued>, TokenError> {
        let read = |digest: String| self.read(&digest).inspect_err(|error| tracing::warn!(%error, "a token is left out")).ok()?;
        Ok(names(&self.issued)?.into_iter().filter_map(read).collect())
    }

    pub(super) fn is_there(&self, digest: &str) -> bool {
        self.issued.join(digest).try_exists().unwrap_or(true)
    }

    pub(super) fn read(&self, digest: &str) -> Result<Option<Issued>, TokenError> {
        let path = self.issued.join(digest);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        match serde_json::from_str::<Issued>(&text) {
            Ok(token) => Ok(Some(Issued { digest: digest.to_owned(), ..token })),
            Err(error) => Err(TokenError::Damaged { path, why: error }),
        }
    }

    /// Removes a token. One that is not there is gone already.
    pub(super) fn forget(&self, digest: &str) -> Result<(), TokenError> {
        let path = self.issued.join(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Stores a token that is new. What an earlier executor left of an id does not count for its first one.
    pub(super) fn issue(&self, token: &Issued) -> Result<(), TokenError> {
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.readable()?.iter().any(|other| other.scope == token.scope)
        {
            self.unbind(id)?;
        }
        self.keep(token)
    }

    /// Takes a token back, by its name. An executor's id is free again when none of its tokens is left.
    pub(super) fn revoke(&self, name: &str) -> Result<Issued, TokenError> {
        let digest = one_of(names(&self.issued)?, name)?;
        let token = self.read(&digest)?.ok_or_else(|| TokenError::Unknown(name.to_owned()))?;
        self.forget(&digest)?;
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.list()?.iter().any(|other| other.scope == token.scope)
        {
            self.unbind(id)?;
        }
        Ok(token)
    }

    /// Notes which install an executor's id belongs to: the first that comes with it.
    pub(super) fn bind(&self, id: &EnvironmentId, identity: &str) -> Result<(), BindError> {
        loop {
            match self.bound_to(id)? {
                Some(bound) if bound == identity => return Ok(()),
                Some(bound) => return Err(BindError::Other { id: id.clone(), bound }),
                None => write_private(&self.bound, id.as_str(), identity)?,
            }
        }
    }

    /// The install that an executor's id belongs to.
    pub(super) fn bound_to(&self, id: &EnvironmentId) -> Result<Option<String>, TokenError> {
        let path = self.bound.join(id.as_str());
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
            // What a power cut may leave of a file that was just made.
            Ok(_) => fs::remove_file(&path).map(|()| None).map_err(at(&path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    pub(super) fn unbind(&self, id: &EnvironmentId) -> Result<(), TokenError> {
        let path = self.bound.join(id.as_str());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
            _ => Ok(()),
        }
    }

    /// All executors' ids that belong to an install, with it.
    pub(super) fn all_bound(&self) -> Result<Vec<(EnvironmentId, String)>, TokenError> {
        let ids = names(&self.bound)?.into_iter().filter_map(|name| EnvironmentId::parse_own(&name).ok());
        ids.filter_map(|id| self.bound_to(&id).map(|bound| Some((id, bound?))).transpose()).collect()
    }
}

/// The names of the files there; none if the directory was never made. Files that are being written begin with a dot.
fn names(directory: &Path) -> Result<Vec<String>, TokenError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(directory)(error)),
    };
    let all: Result<Vec<String>, io::Error> = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect();
    Ok(all.map_err(at(directory))?.into_iter().filter(|name| !name.starts_with('.')).collect())
}

/// Makes a file that only its owner can read, whole or not at all. One that is there stays as it is.
fn write_private(directory: &Path, name: &str, text: &str) -> Result<(), TokenError> {
    let aside = directory.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let _ = fs::remove_file(&aside);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        writeln!(file, "{text}")?;
        file.sync_all()?;
        let linked = fs::hard_link(&aside, directory.join(name));
        fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    write().map_err(at(&directory.join(name)))
}
