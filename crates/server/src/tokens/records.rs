//! Tokens of all nodes of a store: one record each. One that is revoked leaves a record behind, so that a node that still has its file
//! does not bring it back.

use outpost_store::{SharedRecord, SharedRecords};
use outpost_wire::EnvironmentId;
use serde_json::Value;

use super::files::TokenFiles;
use super::{BindError, Issued, TokenError, TokenPurpose, one_of};

const TOKEN: &str = "token";
/// Which install an executor's id belongs to.
const BOUND: &str = "bound";
const REVOKED: &str = "{\"revoked\":true}";

#[derive(Clone)]
pub(super) struct TokenRecords {
    pub records: SharedRecords,
    /// What this home had before.
    pub files: TokenFiles,
}

/// Nothing for a token that is revoked.
fn read(digest: &str, content: &str) -> Result<Option<Issued>, TokenError> {
    let damaged = |error: serde_json::Error| TokenError::DamagedRecord { digest: digest.to_owned(), why: error };
    let value: Value = serde_json::from_str(content).map_err(damaged)?;
    if value["revoked"] == true {
        return Ok(None);
    }
    let token: Issued = serde_json::from_value(value).map_err(damaged)?;
    Ok(Some(Issued { digest: digest.to_owned(), ..token }))
}

fn is_revoked(record: &SharedRecord) -> bool {
    matches!(read(&record.key, &record.content), Ok(None))
}

impl TokenRecords {
    /// Takes in what this home has in files; what is known, or was revoked, stays as it is.
    pub(super) async fn import(&self) -> Result<usize, TokenError> {
        let known = self.records.all(TOKEN).await?;
        let mut count = 0;
        for token in self.files.readable()? {
            match known.iter().find(|record| record.key == token.digest) {
                None => count += usize::from(self.keep(&token).await?),
                Some(record) if is_revoked(record) => self.forget_file(&token.digest),
                Some(_) => {}
            }
        }
        let bound: Vec<String> = self.records.all(BOUND).await?.into_iter().map(|record| record.key).collect();
        // An id whose last token was revoked is free.
        let ids: Vec<EnvironmentId> = self.readable().await?.into_iter().filter_map(|token| token.scope.executor()).collect();
        for (id, identity) in self.files.all_bound()? {
            if ids.contains(&id) && !bound.iter().any(|known| known == id.as_str()) {
                self.records.put_new(BOUND, id.as_str(), &identity).await?;
            }
        }
        Ok(count)
    }

    /// False if there is one with this digest.
    pub(super) async fn keep(&self, token: &Issued) -> Result<bool, TokenError> {
        let damaged = |error: serde_json::Error| TokenError::DamagedRecord { digest: token.digest.clone(), why: error };
        let text = serde_json::to_string(token).map_err(damaged)?;
        Ok(self.records.put_new(TOKEN, &token.digest, &text).await?)
    }

    pub(super) async fn list(&self) -> Result<Vec<Issued>, TokenError> {
        let all = self.records.all(TOKEN).await?;
        let mut all: Vec<Issued> =
            all.iter().filter_map(|record| read(&record.key, &record.content).transpose()).collect::<Result<_, _>>()?;
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

    pub(super) async fn revoke(&self, name: &str) -> Result<Issued, TokenError> {
        // By the keys: a record that cannot be read is in the way of no other.
        let standing = self.records.all(TOKEN).await?.into_iter().filter(|record| !is_revoked(record));
        let digest = one_of(standing.map(|record| record.key).collect(), name)?;
        let unknown = || TokenError::Unknown(name.to_owned());
        let content = self.records.get(TOKEN, &digest).await?.ok_or_else(unknown)?;
        let token = read(&digest, &content)?.ok_or_else(unknown)?;
        if !self.records.exchange(TOKEN, &digest, &content, REVOKED).await? {
            return Err(unknown());
        }
        self.forget_file(&digest);
        if let TokenPurpose::Executor { id } = &token.scope
            && !self.readable().await?.iter().any(|other| other.scope == token.scope)
        {
            self.records.remove(BOUND, id.as_str()).await?;
        }
        Ok(token)
    }

    /// Those that can be read.
    async fn readable(&self) -> Result<Vec<Issued>, TokenError> {
        let all = self.records.all(TOKEN).await?;
        Ok(all.iter().filter_map(|record| read(&record.key, &record.content).ok().flatten()).collect())
    }

    /// A token that is revoked is not to come back when this home has a store of its own again.
    fn forget_file(&self, digest: &str) {
        if let Err(error) = self.files.forget(digest) {
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
