//! From what a user writes to what is connected to. Passwords and threads leave this machine only encrypted, unless the user
//! says `sslmode=disable`; no mode falls back to plain text by itself.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outpost_wire::SharedError;
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::tls::Encryption;
use super::{PostgresError, unreached};

/// After so long without a sign of life the other end of a connection is taken for gone.
const SILENCE: Duration = Duration::from_secs(10);

/// A database, and how to talk to it. The machine's certificates are read when the first connection needs them.
#[derive(Clone)]
pub(super) struct Address {
    pub config: Config,
    pub encryption: Encryption,
}

impl Address {
    pub(super) fn parse(url: &str, trust: fn() -> RootCertStore) -> Result<Self, PostgresError> {
        let (plain, wishes) = Wishes::take_from(url)?;
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| PostgresError::Url(unreached(error)))?;
        let mode = wishes.mode.unwrap_or_else(|| if stays_here(&config) { SslMode::Disable } else { SslMode::Require });
        config.ssl_mode(mode);
        if config.get_application_name().is_none() {
            config.application_name("outpost");
        }
        // A server whose machine went away says nothing: without these the kernel believes in it for hours.
        config.keepalives(true).keepalives_idle(SILENCE).keepalives_interval(SILENCE / 5).keepalives_retries(3);
        config.tcp_user_timeout(config.get_tcp_user_timeout().copied().unwrap_or(SILENCE));
        config.connect_timeout(config.get_connect_timeout().copied().unwrap_or(SILENCE));
        Ok(Self { config, encryption: Encryption::new(wishes.roots.map(Arc::from), trust) })
    }
}

/// What an address says about encryption. The library knows fewer words for it.
#[derive(Default)]
struct Wishes {
    mode: Option<SslMode>,
    roots: Option<PathBuf>,
}

impl Wishes {
    fn take_from(url: &str) -> Result<(String, Self), PostgresError> {
        let mut wishes = Self::default();
        let Some((front, query)) = url.split_once('?') else { return Ok((url.to_owned(), wishes)) };
        let mut rest = Vec::new();
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("sslmode", mode)) => wishes.mode = Some(mode_named(mode)?),
                Some(("sslrootcert", path)) => {
                    let path = percent_decode_str(path).decode_utf8().map_err(|error| PostgresError::Url(SharedError::new(error)))?;
                    wishes.roots = Some(PathBuf::from(path.as_ref()));
                }
                _ => rest.push(pair),
            }
        }
        let plain = if rest.is_empty() { front.to_owned() } else { format!("{front}?{}", rest.join("&")) };
        Ok((plain, wishes))
    }
}

/// With encryption the server's certificate is verified, too.
fn mode_named(mode: &str) -> Result<SslMode, PostgresError> {
    match mode {
        "disable" => Ok(SslMode::Disable),
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => Err(PostgresError::Mode(mode.to_owned())),
    }
}

/// The connection does not leave this machine.
fn stays_here(config: &Config) -> bool {
    let named = config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
    });
    named && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        Address::parse(url, RootCertStore::empty).unwrap_or_else(|error| panic!("{url}: {error}")).config.get_ssl_mode()
    }

    #[test]
    fn what_leaves_the_machine_is_encrypted_unless_the_address_says_otherwise() {
        for here in
            ["postgres://me@%2Frun%2Fpostgresql/db", "postgres://me@localhost/db", "postgres://me@[::1]/db", "postgres://me@127.0.0.1/db"]
        {
            assert_eq!(mode(here), SslMode::Disable, "{here}");
        }
        assert_eq!(mode("postgres://me@db.example/db"), SslMode::Require);
        assert_eq!(mode("postgres://me@localhost,db.example/db"), SslMode::Require);
        assert_eq!(mode("postgres://me@localhost/db?hostaddr=10.0.0.1"), SslMode::Require);
        assert_eq!(mode("postgres://me@db.example/db?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgres://me@localhost/db?sslmode=verify-full&connect_timeout=3"), SslMode::Require);
    }

    #[test]
    fn a_mode_that_may_fall_back_is_refused() {
        for mode in ["prefer", "allow", "", "Require"] {
            let error = Address::parse(&format!("postgres://me@db.example/db?sslmode={mode}"), RootCertStore::empty).err().unwrap();
            assert!(error.to_string().contains("sslmode=require or sslmode=disable"), "{error}");
        }
    }

    #[test]
    fn the_rest_of_an_address_is_kept() {
        let url = "postgres://me@db.example/db?sslrootcert=%2Fetc%2Fa%20b.pem&application_name=x&sslmode=require";
        let (plain, wishes) = Wishes::take_from(url).unwrap();
        assert_eq!(plain, "postgres://me@db.example/db?application_name=x");
        assert_eq!(wishes.roots, Some(PathBuf::from("/etc/a b.pem")));
    }
}
