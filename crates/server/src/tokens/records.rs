//! Tokens of all nodes of a store: one record each. One that came from a file leaves a record behind when it is revoked, so that a node
//! that still has the file does not bring it back.

use outpost_store::{SharedRecord, SharedRecords};
use outpost_wire::EnvironmentId;
use serde_json::Value;

use super::files::TokenFiles;
use super::{BindError, Issued, TokenError, TokenPurpose, one_of};

const TOKEN: &str = "token";
/// Which install an executor's id belongs to.
const BOUND: &str = "bound";
const REVOKED: &str = "{\"revoked\":true}";
/// The member of a record that says where its token was made. Records of the first version that shared tokens have none: theirs may be from files.
const ORIGIN: &str = "origin";

#[derive(Clone)]
pub(super) struct TokenRecords {
    pub records: SharedRecords,
    /// What this home had before.
    pub files: TokenFiles,
}

/// Where a token was made.
#[derive(Clone, Copy)]
enum TokenOrigin {
    /// In a file of a home, which may still be there.
    File,
    /// In the store, and nowhere else.
    Store,
}

impl TokenOrigin {
    fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Store => "store",
        }
    }
}

fn damaged(digest: &str) -> impl FnOnce(serde_json::Error) -> TokenError {
    move |error| TokenError::DamagedRecord { digest: digest.to_owned(), why: error }
}

/// Nothing for a token that is revoked.
fn read(digest: &str, content: &str) -> Result<Option<Issued>, TokenError> {
    let value: Value = serde_json::from_str(content).map_err(damaged(digest))?;
    if value["revoked"] == true {
        return Ok(None);
    }
    let token: Issued = serde_json::from_value(value).map_err(damaged(digest))?;
    Ok(Some(Issued { digest: digest.to_owned(), ..token }))
}

fn is_revoked(record: &SharedRecord) -> bool {
    matches!(read(&record.key, &record.content), Ok(None))
}

/// Whether no home can have the token of a record in a file.
fn is_of_store(content: &str) -> bool {
    serde_json::from_str::<Value>(content).is_ok_and(|value| value[ORIGIN] == TokenOrigin::Store.word())
}

impl TokenRecords {
    /// Takes in what this home has in files; what is known, or was revoked, stays as it is.
    pub(super) async fn import(&self) -> Result<usize, TokenError> {
        let known = self.records.all(TOKEN).await?;
        let mut count = 0;
        // An id may have been given away since: only a token of this home that is still good brings its executor with it.
        let mut own = Vec::new();
        for token in self.files.readable()? {
            let is_good = match known.iter().find(|record| record.key == token.digest) {
                None => {
                    let is_new = self.keep(&token, TokenOrigin::File).await?;
                    count += usize::from(is_new);
                    is_new
                }
                Some(record) if is_revoked(record) => {
                    self.forget_file(&token);
                    false
                }
                Some(record) => read(&record.key, &record.content).is_ok(),
            };
            own.extend(token.scope.executor().filter(|_| is_good));
        }
        let bound: Vec<String> = self.records.all(BOUND).await?.into_iter().map(|record| record.key).collect();
        for (id, identity) in self.files.all_bound()? {
            if own.contains(&id) && !bound.iter().any(|known| known == id.as_str()) {
                self.records.put_new(BOUND, id.as_str(), &identity).await?;
            }
        }
        Ok(count)
    }

    /// Stores a token that is new. What an earlier executor left of an id does not count for its first one.
    pub(super) async fn issue(&self, token: &Issued) -> Result<(), TokenError> {
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.readable().await?.iter().any(|other| other.scope == token.scope)
        {
            self.records.remove(BOUND, id.as_str()).await?;
        }
        self.keep(token, TokenOrigin::Store).await.map(drop)
    }

    /// False if there is one with this digest.
    async fn keep(&self, token: &Issued, origin: TokenOrigin) -> Result<bool, TokenError> {
        let mut content = serde_json::to_value(token).map_err(damaged(&token.digest))?;
        content[ORIGIN] = origin.word().into();
        Ok(self.records.put_new(TOKEN, &token.digest, &content.to_string()).await?)
    }

    /// Those that can be read, the oldest first; the others are named in the log.
    pub(super) async fn list(&self) -> Result<Vec<Issued>, TokenError> {
        let all = self.records.all(TOKEN).await?;
        let read = |record: &SharedRecord| {
            let token = read(&record.key, &record.content);
            token.inspect_err(|error| tracing::warn!(%error, "a token is left out; `outpost token revoke` removes it")).ok()?
        };
        let mut all: Vec<Issued> = all.iter().filter_map(read).collect();
        all.sort_by(|a, b| (a.created_at, &a.digest).cmp(&(b.created_at, &b.digest)));
        Ok(all)
    }

    pub(super) async fn read(&self, digest: &str) -> Result<Option<Issued>, TokenError> {
        match self.records.get(TOKEN, digest).await? {
            Some(content) => read(digest, &content),
            None => Ok(None),
        }
    }

    /// One that is damaged is not accepted again, but its connections stay until it is revoked, as with files.
    pub(super) async fn is_there(&self, digest: &str) -> bool {
        match self.records.get(TOKEN, digest).await {
            Ok(Some(content)) => read(digest, &content).map_or(true, |token| token.is_some()),
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(%error, "whether a token is still good is not known now");
                true
            }
        }
    }

    /// Nothing for one that cannot be read as a token: it is gone as well.
    pub(super) async fn revoke(&self, name: &str) -> Result<Option<Issued>, TokenError> {
        // By the keys: a record that cannot be read is in the way of no other.
        let standing = self.records.all(TOKEN).await?.into_iter().filter(|record| !is_revoked(record));
        let digest = match one_of(standing.map(|record| record.key).collect(), name) {
            Err(TokenError::Unknown(_)) => return self.revoke_file(name).await.map(Some),
            digest => digest?,
        };
        let unknown = || TokenError::Unknown(name.to_owned());
        let content = self.records.get(TOKEN, &digest).await?.ok_or_else(unknown)?;
        let token = match read(&digest, &content) {
            Ok(token) => Some(token.ok_or_else(unknown)?),
            Err(error) => {
                tracing::warn!(%error, "what is revoked cannot be read");
                None
            }
        };
        let is_gone = match is_of_store(&content) {
            true => self.records.remove(TOKEN, &digest).await?,
            false => self.records.exchange(TOKEN, &digest, &content, REVOKED).await?,
        };
        if !is_gone {
            return Err(unknown());
        }
        let Some(token) = token else { return Ok(None) };
        self.forget_file(&token);
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.readable().await?.iter().any(|other| other.scope == token.scope)
        {
            self.records.remove(BOUND, id.as_str()).await?;
        }
        Ok(Some(token))
    }

    /// One that was not brought in yet is not to be later, from here or from a copy of this home.
    async fn revoke_file(&self, name: &str) -> Result<Issued, TokenError> {
        let token = self.files.revoke(name)?;
        self.records.put_new(TOKEN, &token.digest, REVOKED).await?;
        Ok(token)
    }

    /// Those that can be read.
    async fn readable(&self) -> Result<Vec<Issued>, TokenError> {
        let all = self.records.all(TOKEN).await?;
        Ok(all.iter().filter_map(|record| read(&record.key, &record.content).ok().flatten()).collect())
    }

    /// A token that is revoked is not to come back when this home has a store of its own again, and neither is the executor that it was for.
    fn forget_file(&self, token: &Issued) {
        let forget = || {
            self.files.forget(&token.digest)?;
            match &token.scope {
                TokenPurpose::Executor { id } if !self.files.readable()?.iter().any(|other| other.scope == token.scope) => {
                    self.files.unbind(id)
                }
                _ => Ok(()),
            }
        };
        if let Err(error) = forget() {
            tracing::warn!(%error, "the file of a revoked token cannot be removed");
        }
    }

    pub(super) async fn bind(&self, id: &EnvironmentId, identity: &str) -> Result<(), BindError> {
        loop {
            match self.bound_to(id).await? {
                Some(bound) if bound == identity => return Ok(()),
                Some(bound) => return Err(BindError::Other { id: id.clone(), bound }),
                None => drop(self.records.put_new(BOUND, id.as_str(), identity).await.map_err(TokenError::from)?),
            }
        }
    }

    pub(super) async fn bound_to(&self, id: &EnvironmentId) -> Result<Option<String>, TokenError> {
        Ok(self.records.get(BOUND, id.as_str()).await?)
    }
}
