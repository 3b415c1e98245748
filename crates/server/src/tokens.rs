//! Tokens that were handed out to others: kept as digests, one small file each, so that they can be revoked.
//!
//! This room knows files. Nothing is kept in memory: a token that is gone from the disk is worth nothing at once.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outpost_wire::EnvironmentId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::people::ClientIdentity;

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum TokenPurpose {
    /// Everything that a client may do, which includes running commands.
    Client,
    /// Reading `/metrics`, and nothing else.
    Metrics,
    /// Joining as the executor with this id, and nothing else.
    Executor { id: EnvironmentId },
}

impl std::fmt::Display for TokenPurpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client => f.write_str("client"),
            Self::Metrics => f.write_str("metrics"),
            Self::Executor { id } => write!(f, "executor {id}"),
        }
    }
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// The digest of the secret, in hexadecimal. Its beginning is the token's name.
    #[serde(skip)]
    pub digest: String,
    pub scope: TokenPurpose,
    /// Milliseconds since 1970.
    pub created_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Who has it, where it is a client's; without it, a client that may do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<ClientIdentity>,
}

/// So many digits of the digest are shown as a token's name.
const NAME: usize = 12;
/// A name may be shortened, but not to something that fits by chance.
const SHORTEST_NAME: usize = 4;

impl Issued {
    pub fn name(&self) -> &str {
        self.digest.get(..NAME).unwrap_or(&self.digest)
    }
}

#[derive(Debug, Error)]
pub enum TokenError {
    #[error("{path}: {error}", path = .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is no token of ours: {why}", path = .path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("no token is called `{0}`; `outpost token list` shows them")]
    Unknown(String),
    #[error("`{0}` may be any of several tokens; write more of its name")]
    Ambiguous(String),
}

/// An id is taken by another install.
#[derive(Debug, Error)]
pub enum BindError {
    #[error(
        "the executor id `{id}` belongs to another install ({bound}); `outpost token revoke` of its token gives the id away, or join under another id"
    )]
    Other { id: EnvironmentId, bound: String },
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// All tokens of one home. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TokenStore {
    issued: PathBuf,
    bound: PathBuf,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> TokenError {
    let path = path.to_owned();
    move |error| TokenError::Io { path, error }
}

pub fn digest(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl TokenStore {
    /// In the directory that also holds the listeners' own.
    pub fn new(directory: &Path) -> Self {
        Self { issued: directory.join("issued"), bound: directory.join("bound") }
    }

    /// Stores a token. The caller shows the secret to the user, once.
    pub fn issue(&self, secret: &str, scope: TokenPurpose, note: Option<String>, now: u64) -> Result<Issued, TokenError> {
        self.issue_to(secret, scope, note, None, now)
    }

    /// The same for a person.
    pub fn issue_to(
        &self,
        secret: &str,
        scope: TokenPurpose,
        note: Option<String>,
        person: Option<ClientIdentity>,
        now: u64,
    ) -> Result<Issued, TokenError> {
        let token = Issued { digest: digest(secret), scope, created_at: now, note, person };
        let text = serde_json::to_string(&token).map_err(|error| at(&self.issued)(error.into()))?;
        write_private(&self.issued, &token.digest, &text)?;
        Ok(token)
    }

    /// All tokens, the oldest first.
    pub fn list(&self) -> Result<Vec<Issued>, TokenError> {
        let mut all = Vec::new();
        for digest in names(&self.issued)? {
            all.extend(self.read(&digest)?);
        }
        all.sort_by(|a, b| (a.created_at, &a.digest).cmp(&(b.created_at, &b.digest)));
        Ok(all)
    }

    /// The token with this secret.
    pub fn find(&self, secret: &str) -> Option<Issued> {
        let found = self.read(&digest(secret));
        found.inspect_err(|error| tracing::warn!(%error, "a token cannot be read, so it is not accepted")).ok()?
    }

    /// Who has a token: without a name, a client that may do everything. Nothing if the token is gone, or cannot be read.
    pub fn person(&self, digest: &str) -> Option<ClientIdentity> {
        let found = self.read(digest).inspect_err(|error| tracing::warn!(%error, "a token cannot be read, so it is not accepted"));
        found.ok()?.map(|token| token.person.unwrap_or_default())
    }

    /// Whether a token that was shown earlier is still good. One whose file cannot be looked at for a moment is.
    pub fn is_good(&self, digest: &str) -> bool {
        self.issued.join(digest).try_exists().unwrap_or(true)
    }

    fn read(&self, digest: &str) -> Result<Option<Issued>, TokenError> {
        let path = self.issued.join(digest);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        match serde_json::from_str::<Issued>(&text) {
            Ok(token) => Ok(Some(Issued { digest: digest.to_owned(), ..token })),
            Err(error) => Err(TokenError::Damaged { path, why: error.to_string() }),
        }
    }

    /// Takes a token back, by its name. An executor's id is free again when none of its tokens is left.
    pub fn revoke(&self, name: &str) -> Result<Issued, TokenError> {
        let name = name.trim();
        let fits = |digest: &String| name.len() >= SHORTEST_NAME && digest.starts_with(name);
        let found: Vec<String> = names(&self.issued)?.into_iter().filter(fits).collect();
        let digest = match found.as_slice() {
            [] => return Err(TokenError::Unknown(name.to_owned())),
            [one] => one,
            _ => return Err(TokenError::Ambiguous(name.to_owned())),
        };
        let token = self.read(digest)?.ok_or_else(|| TokenError::Unknown(name.to_owned()))?;
        let path = self.issued.join(digest);
        fs::remove_file(&path).map_err(at(&path))?;
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.list()?.iter().any(|other| other.scope == token.scope)
        {
            self.unbind(id)?;
        }
        Ok(token)
    }

    /// Notes which install an executor's id belongs to: the first that comes with it.
    pub fn bind(&self, id: &EnvironmentId, identity: &str) -> Result<(), BindError> {
        loop {
            match self.bound_to(id)? {
                Some(bound) if bound == identity => return Ok(()),
                Some(bound) => return Err(BindError::Other { id: id.clone(), bound }),
                None => write_private(&self.bound, id.as_str(), identity)?,
            }
        }
    }

    /// The install that an executor's id belongs to.
    pub fn bound_to(&self, id: &EnvironmentId) -> Result<Option<String>, TokenError> {
        let path = self.bound.join(id.as_str());
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
            // What a power cut may leave of a file that was just made.
            Ok(_) => fs::remove_file(&path).map(|()| None).map_err(at(&path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    fn unbind(&self, id: &EnvironmentId) -> Result<(), TokenError> {
        let path = self.bound.join(id.as_str());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
            _ => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn executor(id: &str) -> TokenPurpose {
        TokenPurpose::Executor { id: id.parse().unwrap() }
    }

    #[test]
    fn a_token_is_found_by_its_secret_until_it_is_revoked() {
        let home = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(home.path());
        assert!(tokens.list().unwrap().is_empty() && tokens.find("s").is_none());
        let issued = tokens.issue("s", TokenPurpose::Client, Some("laptop".into()), 7).unwrap();
        assert_eq!(tokens.find("s"), Some(issued.clone()));
        assert_eq!(tokens.find("t"), None);
        assert_eq!(tokens.list().unwrap(), vec![issued.clone()]);
        let file = home.path().join("issued").join(&issued.digest);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(file).unwrap().contains("\"s\""));
        assert_eq!(tokens.person(&issued.digest), Some(ClientIdentity::default()));
        assert!(matches!(tokens.revoke("00"), Err(TokenError::Unknown(_))));
        assert_eq!(tokens.revoke(issued.name()).unwrap(), issued);
        assert!(!tokens.is_good(&issued.digest) && tokens.find("s").is_none());
        assert_eq!(tokens.person(&issued.digest), None, "a token that is gone is not one without a person");
    }

    #[test]
    fn an_id_belongs_to_the_first_install_until_its_last_token_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let (tokens, id) = (TokenStore::new(home.path()), "gpu".parse().unwrap());
        let (one, two) = (tokens.issue("1", executor("gpu"), None, 1).unwrap(), tokens.issue("2", executor("gpu"), None, 2).unwrap());
        tokens.bind(&id, "install-a").unwrap();
        tokens.bind(&id, "install-a").unwrap();
        assert!(matches!(tokens.bind(&id, "install-b"), Err(BindError::Other { bound, .. }) if bound == "install-a"));
        tokens.revoke(one.name()).unwrap();
        assert!(tokens.bind(&id, "install-b").is_err());
        tokens.revoke(two.name()).unwrap();
        tokens.bind(&id, "install-b").unwrap();
    }

    #[test]
    fn what_is_no_token_is_not_accepted() {
        let home = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(home.path());
        let issued = tokens.issue("s", executor("gpu"), None, 1).unwrap();
        fs::write(home.path().join("issued").join(&issued.digest), "{}").unwrap();
        assert!(tokens.find("s").is_none() && tokens.person(&issued.digest).is_none());
        assert!(matches!(tokens.list(), Err(TokenError::Damaged { .. })));
    }
}
