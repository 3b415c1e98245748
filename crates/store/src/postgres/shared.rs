//! What the nodes of a store share beside threads: definitions of environments, tokens, and who has which executor. Small records with
//! a kind and a key, whose content is the business of the code that keeps them here.

use super::{PostgresStore, told};

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
    pub async fn shared(&self, kind: &str) -> Result<Vec<SharedRecord>, String> {
        let client = self.client().await?;
        let rows = client.query("select key, content from outpost_shared where kind = $1 order by key", &[&kind]).await;
        let record = |row: &tokio_postgres::Row| SharedRecord { key: row.get(0), content: row.get(1) };
        Ok(rows.map_err(|error| told(&error))?.iter().map(record).collect())
    }

    pub async fn shared_one(&self, kind: &str, key: &str) -> Result<Option<String>, String> {
        let client = self.client().await?;
        let row = client.query_opt("select content from outpost_shared where kind = $1 and key = $2", &[&kind, &key]).await;
        Ok(row.map_err(|error| told(&error))?.map(|row| row.get(0)))
    }

    pub async fn put_shared(&self, kind: &str, key: &str, content: &str) -> Result<(), String> {
        self.client().await?.execute(PUT, &[&kind, &key, &content]).await.map(drop).map_err(|error| told(&error))
    }

    /// Puts a record where there is none; false if there is one, which stays as it is.
    pub async fn put_new_shared(&self, kind: &str, key: &str, content: &str) -> Result<bool, String> {
        let put = self.client().await?.execute(PUT_NEW, &[&kind, &key, &content]).await;
        put.map(|count| count == 1).map_err(|error| told(&error))
    }

    /// True if it was there.
    pub async fn remove_shared(&self, kind: &str, key: &str) -> Result<bool, String> {
        let removed = self.client().await?.execute("delete from outpost_shared where kind = $1 and key = $2", &[&kind, &key]).await;
        removed.map(|count| count == 1).map_err(|error| told(&error))
    }
}
