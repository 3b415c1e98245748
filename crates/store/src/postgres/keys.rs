//! The key that the nodes of one database share.

use outpost_wire::SharedError;

use super::{PostgresStore, told};
use crate::adoption::AdoptionKey;

const ADOPTION: &str = "adoption";

impl PostgresStore {
    /// The key by which nodes claim each other's commands, made by the first that asks.
    pub(crate) async fn adoption_key(&self) -> Result<AdoptionKey, SharedError> {
        let client = self.client().await?;
        let made = AdoptionKey::generate()?.text();
        let keep = "insert into outpost_keys (name, value) values ($1, $2) on conflict (name) do nothing";
        client.execute(keep, &[&ADOPTION, &made]).await.map_err(told)?;
        let row = client.query_one("select value from outpost_keys where name = $1", &[&ADOPTION]).await.map_err(told)?;
        AdoptionKey::parse(row.get(0))
            .ok_or_else(|| "the row `adoption` of outpost_keys holds no key; delete it, and a new one is made".into())
    }
}
