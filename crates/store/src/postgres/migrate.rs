//! Brings a database to the version that this program knows. Migrations are numbered files; what was applied is remembered with
//! its sum, so that a changed file is noticed.

use tokio_postgres::{Client, Transaction};
use xxhash_rust::xxh3::xxh3_64;

use super::{PostgresError, told};

const MIGRATIONS: &[&str] = &[
    include_str!("1.sql"),
    include_str!("2.sql"),
    include_str!("3.sql"),
    include_str!("4.sql"),
    include_str!("5.sql"),
    include_str!("6.sql"),
];
/// The version of the tables that this program makes.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;
/// The oldest version whose programs may write tables of this one: a migration leaves the version before it working, so that nodes can be
/// upgraded one after another.
const OLDEST: i64 = 1;
/// Two programs that start at once take turns.
const LOCK: i64 = 0x6f75_7470_6f73_7401;

pub(super) async fn migrate(client: &mut Client) -> Result<(), PostgresError> {
    let failed = |error: tokio_postgres::Error| PostgresError::Migration(told(error));
    let transaction = client.transaction().await.map_err(failed)?;
    // Others may be migrating, and tables may be large.
    transaction.batch_execute("set local statement_timeout = 0").await.map_err(failed)?;
    transaction.execute("select pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let table = "create table if not exists outpost_migrations (version bigint primary key, sum text not null, applied timestamptz not null default now())";
    transaction.batch_execute(table).await.map_err(failed)?;
    let applied = transaction.query("select version, sum from outpost_migrations order by version", &[]).await.map_err(failed)?;
    for row in &applied {
        let (version, sum): (i64, String) = (row.get(0), row.get(1));
        match usize::try_from(version).ok().and_then(|version| MIGRATIONS.get(version.checked_sub(1)?)) {
            None => may_use(&transaction, version).await?,
            Some(text) if self::sum(text) != sum => {
                return Err(PostgresError::Migration(format!("migration {version} was applied with another content").into()));
            }
            Some(_) => {}
        }
    }
    for (version, text) in (1_i64..).zip(MIGRATIONS).skip(applied.len()) {
        transaction.batch_execute(text).await.map_err(failed)?;
        let insert = "insert into outpost_migrations (version, sum) values ($1, $2)";
        transaction.execute(insert, &[&version, &sum(text)]).await.map_err(failed)?;
    }
    if applied.len() < MIGRATIONS.len() {
        transaction.execute("select outpost_require($1, $2)", &[&KNOWN, &OLDEST]).await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)
}

/// Whether tables of a newer version say that this program may use them.
async fn may_use(transaction: &Transaction<'_>, version: i64) -> Result<(), PostgresError> {
    let failed = |error: tokio_postgres::Error| PostgresError::Migration(told(error));
    let oldest: i64 = transaction.query_one("select coalesce(max(oldest), 1) from outpost_migrations", &[]).await.map_err(failed)?.get(0);
    if oldest <= KNOWN { Ok(()) } else { Err(PostgresError::Newer { version, known: KNOWN }) }
}

fn sum(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}
