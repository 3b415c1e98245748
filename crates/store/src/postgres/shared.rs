//! What the nodes of a store share beside threads: definitions of environments, tokens, and who has which executor. Small records with
//! a kind and a key, whose content is the business of the code that keeps them here.

use std::sync::Arc;

use outpost_wire::SharedError;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::listen::{Heard, listen};
use super::{PostgresStore, told};
use crate::records::RecordChanges;

const CHANNEL: &str = "outpost_shared";
/// The note that a thread was taken from a program that lives.
const TAKEOVER: &str = "takeover";
/// Rare, since a user decides it.
pub(super) const TELL_TAKEOVER: &str = "select pg_notify('outpost_shared', 'takeover')";

/// A record, and what it is called among its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRecord {
    pub key: String,
    pub content: String,
}

const PUT: &str = "insert into outpost_shared (kind, key, content) values ($1, $2, $3)
    on conflict (kind, key) do update set content = $3, changed = now()";
const PUT_NEW: &str = "insert into outpost_shared (kind, key, content) values ($1, $2, $3) on conflict (kind, key) do nothing";

impl PostgresStore {
    /// All records of a kind, by their keys.
    pub async fn shared(&self, kind: &str) -> Result<Vec<SharedRecord>, SharedError> {
        let client = self.client().await?;
        let rows = client.query("select key, content from outpost_shared where kind = $1 order by key", &[&kind]).await;
        let record = |row: &tokio_postgres::Row| SharedRecord { key: row.get(0), content: row.get(1) };
        Ok(rows.map_err(told)?.iter().map(record).collect())
    }

    pub async fn shared_one(&self, kind: &str, key: &str) -> Result<Option<String>, SharedError> {
        let client = self.client().await?;
        let row = client.query_opt("select content from outpost_shared where kind = $1 and key = $2", &[&kind, &key]).await;
        Ok(row.map_err(told)?.map(|row| row.get(0)))
    }

    pub async fn put_shared(&self, kind: &str, key: &str, content: &str) -> Result<(), SharedError> {
        self.client().await?.execute(PUT, &[&kind, &key, &content]).await.map(drop).map_err(told)
    }

    /// Puts a record where there is none; false if there is one, which stays as it is.
    pub async fn put_new_shared(&self, kind: &str, key: &str, content: &str) -> Result<bool, SharedError> {
        let put = self.client().await?.execute(PUT_NEW, &[&kind, &key, &content]).await;
        put.map(|count| count == 1).map_err(told)
    }

    /// Puts a record in the place of exactly this one; false if it is another one by now.
    pub async fn exchange_shared(&self, kind: &str, key: &str, before: &str, after: &str) -> Result<bool, SharedError> {
        let text = "update outpost_shared set content = $4, changed = now() where kind = $1 and key = $2 and content = $3";
        let put = self.client().await?.execute(text, &[&kind, &key, &before, &after]).await;
        put.map(|count| count == 1).map_err(told)
    }

    /// True if it was there.
    pub async fn remove_shared(&self, kind: &str, key: &str) -> Result<bool, SharedError> {
        let removed = self.client().await?.execute("delete from outpost_shared where kind = $1 and key = $2", &[&kind, &key]).await;
        removed.map(|count| count == 1).map_err(told)
    }

    /// Hears changes of the records that nodes follow. All followers of a program share one connection, made with the first of them.
    pub(crate) fn shared_changes(&self) -> RecordChanges {
        let (changed, _) = self.0.shared_changes.get_or_init(|| {
            let changed = Arc::new(watch::Sender::new(0));
            let (told, takeovers) = (changed.clone(), self.0.takeovers.clone());
            let listening = listen(self.0.address.clone(), CHANNEL, None, move |heard| match heard {
                Heard::Note(kind) if kind == TAKEOVER => takeovers.notify_one(),
                Heard::Note(_) => told.send_modify(|count| *count += 1),
                // It may have been either.
                Heard::Gap => {
                    takeovers.notify_one();
                    told.send_modify(|count| *count += 1);
                }
            });
            (changed, AbortOnDropHandle::new(tokio::spawn(listening)))
        });
        RecordChanges::of(changed)
    }
}
