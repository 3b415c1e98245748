//! Tokens that were handed out to others: kept as digests, so that they can be revoked. Those of a home on its own are files of it; those of
//! nodes that share a store are records of the store, and count on all of them.

mod files;
mod records;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost_store::{RecordChanges, SharedRecords, SharedRecordsError};
use outpost_wire::EnvironmentId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::people::ClientIdentity;

use files::TokenFiles;
use records::TokenRecords;

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

impl TokenPurpose {
    /// The executor that may join by it.
    pub fn executor(self) -> Option<EnvironmentId> {
        match self {
            Self::Executor { id } => Some(id),
            Self::Client | Self::Metrics => None,
        }
    }
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
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{path} is not a token of ours: {why}", path = .path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        why: serde_json::Error,
    },
    #[error("the record of token {digest} is none of ours: {why}")]
    DamagedRecord {
        digest: String,
        #[source]
        why: serde_json::Error,
    },
    #[error(transparent)]
    Store(#[from] SharedRecordsError),
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

/// All tokens of one home, or of all nodes of a store. Cheap to clone.
#[derive(Clone)]
pub struct TokenStore(Kept);

#[derive(Clone)]
enum Kept {
    Files(TokenFiles),
    Records(TokenRecords),
}

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Says when tokens may have changed.
pub struct TokenChanges(Option<RecordChanges>);

impl TokenChanges {
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(changes) => drop(changes.wait().await),
            None => tokio::time::sleep(LOOK).await,
        }
    }
}

pub fn digest(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The one digest that begins with this name.
fn one_of(digests: Vec<String>, name: &str) -> Result<String, TokenError> {
    let name = name.trim();
    let fits = |digest: &String| name.len() >= SHORTEST_NAME && digest.starts_with(name);
    let mut found = digests.into_iter().filter(fits);
    match (found.next(), found.next()) {
        (None, _) => Err(TokenError::Unknown(name.to_owned())),
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(TokenError::Ambiguous(name.to_owned())),
    }
}

impl TokenStore {
    /// In the directory that also holds the listeners' own.
    pub fn new(directory: &Path) -> Self {
        Self(Kept::Files(TokenFiles::new(directory)))
    }

    /// Shared by all nodes of a store. What this home has in files counts once it is taken in.
    pub fn shared(records: SharedRecords, directory: &Path) -> Self {
        Self(Kept::Records(TokenRecords { records, files: TokenFiles::new(directory) }))
    }

    /// Takes in what this home has in files beside a store; how many tokens that were.
    pub async fn import(&self) -> Result<usize, TokenError> {
        match &self.0 {
            Kept::Files(_) => Ok(0),
            Kept::Records(records) => records.import().await,
        }
    }

    /// Stores a token. The caller shows the secret to the user, once.
    pub async fn issue(&self, secret: &str, scope: TokenPurpose, note: Option<String>, now: u64) -> Result<Issued, TokenError> {
        self.issue_to(secret, scope, note, None, now).await
    }

    /// The same for a person.
    pub async fn issue_to(
        &self,
        secret: &str,
        scope: TokenPurpose,
        note: Option<String>,
        person: Option<ClientIdentity>,
        now: u64,
    ) -> Result<Issued, TokenError> {
        let token = Issued { digest: digest(secret), scope, created_at: now, note, person };
        match &self.0 {
            Kept::Files(files) => files.issue(&token)?,
            Kept::Records(records) => records.issue(&token).await?,
        }
        Ok(token)
    }

    /// All tokens, the oldest first. A record of a store that cannot be read as one is left out.
    pub async fn list(&self) -> Result<Vec<Issued>, TokenError> {
        match &self.0 {
            Kept::Files(files) => files.list(),
            Kept::Records(records) => records.list().await,
        }
    }

    /// The token with this secret. One that cannot be read as a token is none.
    pub async fn find(&self, secret: &str) -> Result<Option<Issued>, TokenError> {
        self.read(&digest(secret)).await
    }

    /// Who has a token: without a name, a client that may do everything. Nothing if the token is gone, or cannot be read as one.
    pub async fn person(&self, digest: &str) -> Result<Option<ClientIdentity>, TokenError> {
        Ok(self.read(digest).await?.map(|token| token.person.unwrap_or_default()))
    }

    async fn read(&self, digest: &str) -> Result<Option<Issued>, TokenError> {
        let read = match &self.0 {
            Kept::Files(files) => files.read(digest),
            Kept::Records(records) => records.read(digest).await,
        };
        match read {
            // The store may answer the next time.
            Err(error @ TokenError::Store(_)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a token cannot be read, so it is not accepted");
                Ok(None)
            }
            read => read,
        }
    }

    /// Whether a token that was shown earlier is still good. One that cannot be looked at for a moment is.
    pub async fn is_good(&self, digest: &str) -> bool {
        match &self.0 {
            Kept::Files(files) => files.is_there(digest),
            Kept::Records(records) => records.is_there(digest).await,
        }
    }

    /// Takes a token back, by its name. An executor's id is free again when none of its tokens is left. Nothing for a record of a store
    /// that cannot be read as a token, which is gone as well.
    pub async fn revoke(&self, name: &str) -> Result<Option<Issued>, TokenError> {
        match &self.0 {
            Kept::Files(files) => files.revoke(name).map(Some),
            Kept::Records(records) => records.revoke(name).await,
        }
    }

    /// Notes which install an executor's id belongs to: the first that comes with it.
    pub async fn bind(&self, id: &EnvironmentId, identity: &str) -> Result<(), BindError> {
        match &self.0 {
            Kept::Files(files) => files.bind(id, identity),
            Kept::Records(records) => records.bind(id, identity).await,
        }
    }

    /// The install that an executor's id belongs to.
    pub async fn bound_to(&self, id: &EnvironmentId) -> Result<Option<String>, TokenError> {
        match &self.0 {
            Kept::Files(files) => files.bound_to(id),
            Kept::Records(records) => records.bound_to(id).await,
        }
    }

    /// Hears that tokens changed: those of files once a second, those of a store when it says so.
    pub fn changes(&self) -> TokenChanges {
        match &self.0 {
            Kept::Files(_) => TokenChanges(None),
            Kept::Records(TokenRecords { records, .. }) => TokenChanges(Some(records.changes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn executor(id: &str) -> TokenPurpose {
        TokenPurpose::Executor { id: id.parse().unwrap() }
    }

    /// The same promises, in files and in records.
    async fn both(home: &Path) -> [TokenStore; 2] {
        [TokenStore::new(&home.join("files")), TokenStore::shared(SharedRecords::memory(), &home.join("none"))]
    }

    /// What a server of this home has, and how many tokens it brought in.
    async fn imported(records: &SharedRecords, home: &Path) -> (TokenStore, usize) {
        let tokens = TokenStore::shared(records.clone(), home);
        let count = tokens.import().await.unwrap();
        (tokens, count)
    }

    #[tokio::test]
    async fn a_token_is_found_by_its_secret_until_it_is_revoked() {
        let home = tempfile::tempdir().unwrap();
        for tokens in both(home.path()).await {
            assert!(tokens.list().await.unwrap().is_empty() && tokens.find("s").await.unwrap().is_none());
            let issued = tokens.issue("s", TokenPurpose::Client, Some("laptop".into()), 7).await.unwrap();
            assert_eq!(tokens.find("s").await.unwrap(), Some(issued.clone()));
            assert_eq!(tokens.find("t").await.unwrap(), None);
            assert_eq!(tokens.list().await.unwrap(), vec![issued.clone()]);
            assert_eq!(tokens.person(&issued.digest).await.unwrap(), Some(ClientIdentity::default()));
            assert!(matches!(tokens.revoke("00").await, Err(TokenError::Unknown(_))));
            assert!(tokens.is_good(&issued.digest).await);
            assert_eq!(tokens.revoke(issued.name()).await.unwrap(), Some(issued.clone()));
            assert!(!tokens.is_good(&issued.digest).await && tokens.find("s").await.unwrap().is_none());
            assert!(tokens.list().await.unwrap().is_empty());
            assert!(matches!(tokens.revoke(issued.name()).await, Err(TokenError::Unknown(_))));
            assert_eq!(tokens.person(&issued.digest).await.unwrap(), None, "a token that is gone is not one without a person");
        }
    }

    #[tokio::test]
    async fn a_file_is_closed_to_others_and_holds_no_secret() {
        let home = tempfile::tempdir().unwrap();
        let issued = TokenStore::new(home.path()).issue("s", TokenPurpose::Client, None, 7).await.unwrap();
        let file = home.path().join("issued").join(&issued.digest);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(file).unwrap().contains("\"s\""));
    }

    #[tokio::test]
    async fn an_id_belongs_to_the_first_install_until_its_last_token_is_gone() {
        let home = tempfile::tempdir().unwrap();
        for tokens in both(home.path()).await {
            let id = "gpu".parse().unwrap();
            let one = tokens.issue("1", executor("gpu"), None, 1).await.unwrap();
            let two = tokens.issue("2", executor("gpu"), None, 2).await.unwrap();
            tokens.bind(&id, "install-a").await.unwrap();
            tokens.bind(&id, "install-a").await.unwrap();
            assert!(matches!(tokens.bind(&id, "install-b").await, Err(BindError::Other { bound, .. }) if bound == "install-a"));
            tokens.revoke(one.name()).await.unwrap();
            assert!(tokens.bind(&id, "install-b").await.is_err());
            tokens.revoke(two.name()).await.unwrap();
            tokens.bind(&id, "install-b").await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_not_accepted() {
        let home = tempfile::tempdir().unwrap();
        let tokens = TokenStore::new(home.path());
        let issued = tokens.issue("s", executor("gpu"), None, 1).await.unwrap();
        fs::write(home.path().join("issued").join(&issued.digest), "{}").unwrap();
        assert!(tokens.find("s").await.unwrap().is_none() && tokens.person(&issued.digest).await.unwrap().is_none());
        assert!(matches!(tokens.list().await, Err(TokenError::Damaged { .. })));
        let records = SharedRecords::memory();
        records.put_new("token", &issued.digest, "{}").await.unwrap();
        let tokens = TokenStore::shared(records, &home.path().join("none"));
        assert!(tokens.find("s").await.unwrap().is_none());
        // It is in the way of no other.
        let other = tokens.issue("t", executor("box"), None, 1).await.unwrap();
        tokens.bind(&"box".parse().unwrap(), "install-a").await.unwrap();
        assert_eq!(tokens.list().await.unwrap(), vec![other.clone()]);
        assert_eq!(tokens.revoke(other.name()).await.unwrap(), Some(other));
        assert_eq!(tokens.bound_to(&"box".parse().unwrap()).await.unwrap(), None);
        // It can be taken back all the same.
        assert!(tokens.is_good(&issued.digest).await, "what is open by it stays until then");
        assert_eq!(tokens.revoke(issued.name()).await.unwrap(), None);
        assert!(!tokens.is_good(&issued.digest).await);
        assert!(matches!(tokens.revoke(issued.name()).await, Err(TokenError::Unknown(_))));
    }

    /// A home that leaves its store has what it had before, without what was revoked meanwhile, here or elsewhere.
    #[tokio::test]
    async fn a_revoked_token_does_not_come_back_with_its_file() {
        let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (files, records) = (TokenStore::new(home.path()), SharedRecords::memory());
        let mut issued = Vec::new();
        for secret in ["here", "elsewhere", "kept"] {
            issued.push(files.issue(secret, TokenPurpose::Client, None, 1).await.unwrap());
        }
        let (tokens, _) = imported(&records, home.path()).await;
        tokens.revoke(issued[0].name()).await.unwrap();
        assert!(files.find("here").await.unwrap().is_none());
        let (other, _) = imported(&records, elsewhere.path()).await;
        other.revoke(issued[1].name()).await.unwrap();
        let (again, count) = imported(&records, home.path()).await;
        assert!(count == 0 && again.find("elsewhere").await.unwrap().is_none());
        assert!(files.find("elsewhere").await.unwrap().is_none() && files.find("kept").await.unwrap().is_some());
    }

    /// A node that still has the file of a token that was revoked elsewhere does not bring it back.
    #[tokio::test]
    async fn files_of_a_home_are_taken_in_once() {
        let home = tempfile::tempdir().unwrap();
        let (files, records, id) = (TokenStore::new(home.path()), SharedRecords::memory(), "gpu".parse().unwrap());
        let issued = files.issue("s", executor("gpu"), None, 1).await.unwrap();
        files.bind(&id, "install-a").await.unwrap();
        let (tokens, count) = imported(&records, home.path()).await;
        assert_eq!((count, tokens.find("s").await.unwrap()), (1, Some(issued.clone())));
        assert_eq!(tokens.bound_to(&id).await.unwrap().as_deref(), Some("install-a"));
        tokens.revoke(issued.name()).await.unwrap();
        let (again, count) = imported(&records, home.path()).await;
        assert_eq!((count, again.find("s").await.unwrap(), again.bound_to(&id).await.unwrap()), (0, None, None));
        files.issue("t", TokenPurpose::Metrics, None, 2).await.unwrap();
        let (later, count) = imported(&records, home.path()).await;
        assert!(count == 1 && later.find("t").await.unwrap().is_some());
    }

    /// A home that had an executor once does not take its id back from the next one.
    #[tokio::test]
    async fn an_id_that_was_given_away_is_not_bound_again_by_a_file() {
        let (home, elsewhere, id) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), "gpu".parse().unwrap());
        let (files, records) = (TokenStore::new(home.path()), SharedRecords::memory());
        let issued = files.issue("s", executor("gpu"), None, 1).await.unwrap();
        files.bind(&id, "install-a").await.unwrap();
        imported(&records, home.path()).await;
        let (other, _) = imported(&records, elsewhere.path()).await;
        other.revoke(issued.name()).await.unwrap();
        other.issue("t", executor("gpu"), None, 2).await.unwrap();
        let (again, _) = imported(&records, home.path()).await;
        assert_eq!(again.bound_to(&id).await.unwrap(), None);
        assert!(!home.path().join("bound/gpu").exists(), "it went with its token");
        // What an earlier program left there.
        fs::write(home.path().join("bound/gpu"), "install-a\n").unwrap();
        let (again, _) = imported(&records, home.path()).await;
        assert_eq!(again.bound_to(&id).await.unwrap(), None);
        // Revoking at home leaves nothing behind, either.
        let here = files.issue("u", executor("box"), None, 3).await.unwrap();
        files.bind(&"box".parse().unwrap(), "install-a").await.unwrap();
        let (tokens, _) = imported(&records, home.path()).await;
        tokens.revoke(here.name()).await.unwrap();
        assert!(!home.path().join("bound/box").exists());
    }

    #[tokio::test]
    async fn the_first_token_of_an_id_finds_it_free() {
        let (home, records, id) = (tempfile::tempdir().unwrap(), SharedRecords::memory(), "gpu".parse().unwrap());
        for tokens in [TokenStore::new(home.path()), TokenStore::shared(records, &home.path().join("none"))] {
            // What a program left that ended in between.
            tokens.bind(&id, "install-a").await.unwrap();
            tokens.issue("1", executor("gpu"), None, 1).await.unwrap();
            assert_eq!(tokens.bound_to(&id).await.unwrap(), None);
            tokens.bind(&id, "install-b").await.unwrap();
            tokens.issue("2", executor("gpu"), None, 2).await.unwrap();
            assert_eq!(tokens.bound_to(&id).await.unwrap().as_deref(), Some("install-b"), "the second takes nothing away");
        }
    }

    /// A mark is kept where a file could bring the token back: of those from files, and of those that do not say where they are from.
    #[tokio::test]
    async fn a_revoked_token_of_the_store_leaves_nothing_behind() {
        let (home, records) = (tempfile::tempdir().unwrap(), SharedRecords::memory());
        let of_file = TokenStore::new(home.path()).issue("file", TokenPurpose::Client, None, 1).await.unwrap();
        let (tokens, _) = imported(&records, home.path()).await;
        let of_store = tokens.issue("store", TokenPurpose::Client, None, 2).await.unwrap();
        let of_before = digest("before");
        records.put_new("token", &of_before, r#"{"scope":{"kind":"client"},"createdAt":3}"#).await.unwrap();
        assert_eq!(tokens.list().await.unwrap().len(), 3);
        for name in [&of_file.digest, &of_store.digest, &of_before] {
            tokens.revoke(name).await.unwrap().unwrap();
            assert!(!tokens.is_good(name).await);
        }
        let mut left: Vec<String> = records.all("token").await.unwrap().into_iter().map(|record| record.key).collect();
        left.sort();
        let mut marked = [of_file.digest, of_before];
        marked.sort();
        assert_eq!(left, marked);
    }

    /// Only a server takes files in; what is revoked before is not taken in later.
    #[tokio::test]
    async fn a_token_that_was_not_taken_in_yet_can_be_revoked() {
        let (home, copy, records) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), SharedRecords::memory());
        let issued = TokenStore::new(home.path()).issue("s", TokenPurpose::Client, None, 1).await.unwrap();
        TokenStore::new(copy.path()).issue("s", TokenPurpose::Client, None, 1).await.unwrap();
        let tokens = TokenStore::shared(records.clone(), home.path());
        assert!(tokens.list().await.unwrap().is_empty() && tokens.find("s").await.unwrap().is_none());
        assert_eq!(tokens.revoke(issued.name()).await.unwrap(), Some(issued));
        for place in [home.path(), copy.path()] {
            let (after, count) = imported(&records, place).await;
            assert!(count == 0 && after.find("s").await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn a_change_of_records_is_told() {
        let records = SharedRecords::memory();
        let tokens = TokenStore::shared(records, Path::new("/nonexistent"));
        let mut changes = tokens.changes();
        let issued = tokens.issue("s", TokenPurpose::Client, None, 1).await.unwrap();
        changes.next().await;
        tokens.revoke(issued.name()).await.unwrap();
        changes.next().await;
    }
}
