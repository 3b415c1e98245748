//! Executors that listen: websockets and unix sockets.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use outpost_rpc::link::{unix, ws};
use outpost_rpc::{Link, LinkError};
use outpost_wire::SharedError;
use thiserror::Error;

use super::tls::Tls;

/// Where an executor listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorAddress {
    WebSocket(String),
    Unix(PathBuf),
}

/// What is shown to a websocket. It is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Token {
    #[default]
    None,
    Bearer(String),
    /// Read anew for every connection, so that it can be changed while we run.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bearer(_) => f.write_str("Bearer(…)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum TargetError {
    #[error("the address is empty")]
    Empty,
    #[error("`{0}` is not an executor's address; use ws://HOST:PORT, wss://HOST or unix:///PATH")]
    Scheme(String),
    #[error("`{0}` names no host and port")]
    Host(String),
    #[error("`{0}` is not a URL: {1}")]
    Malformed(String, #[source] SharedError),
    #[error("`{0}` names no absolute path")]
    Path(String),
    #[error("a token would cross the network in the clear to `{0}`; use wss:// or a loopback address")]
    ClearToken(String),
}

impl FromStr for ExecutorAddress {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        if let Some(rest) = text.strip_prefix("ws://").or_else(|| text.strip_prefix("wss://")) {
            let authority = rest.split(['/', '?']).next().unwrap_or_default();
            let has_host = !authority.is_empty() && !authority.starts_with(':') && !authority.contains(char::is_whitespace);
            if !has_host {
                return Err(TargetError::Host(text.to_owned()));
            }
            let uri: ::http::Uri =
                text.parse().map_err(|error: ::http::uri::InvalidUri| TargetError::Malformed(text.to_owned(), SharedError::new(error)))?;
            // The library takes a port that is none for a part of nothing.
            let port = authority.rsplit_once(']').map_or(authority, |(_, after)| after).rsplit_once(':').map(|(_, port)| port);
            if uri.host().is_none_or(str::is_empty) || port.is_some_and(|port| port.parse::<u16>().is_err()) {
                return Err(TargetError::Host(text.to_owned()));
            }
            return Ok(Self::WebSocket(text.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(TargetError::Path(text.to_owned())) };
        }
        Err(TargetError::Scheme(text.to_owned()))
    }
}

impl ExecutorAddress {
    /// A token must not cross a network in the clear.
    pub fn check_token(&self, token: &Token) -> Result<(), TargetError> {
        let Self::WebSocket(url) = self else { return Ok(()) };
        if *token == Token::None || url.starts_with("wss://") || is_loopback(url) {
            return Ok(());
        }
        Err(TargetError::ClearToken(url.clone()))
    }
}

fn is_loopback(url: &str) -> bool {
    let Ok(uri) = url.parse::<::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for ExecutorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket(url) => f.write_str(url),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

pub(super) async fn connect(target: &ExecutorAddress, token: &Token, tls: &Tls) -> Result<Link, LinkError> {
    match target {
        ExecutorAddress::WebSocket(url) => {
            let bearer = match token {
                Token::None => None,
                Token::Bearer(token) => Some(token.clone()),
                Token::File(path) => Some(read_token(path).await?),
            };
            let options = ws::ClientOptions { bearer, ..ws::ClientOptions::default() };
            if url.starts_with("wss://") { tls.connect(url, &options).await } else { ws::connect(url, &options).await }
        }
        ExecutorAddress::Unix(path) => unix::connect(path, &ws::ClientOptions::default()).await,
    }
}

async fn read_token(path: &PathBuf) -> Result<String, LinkError> {
    let refused = |why: Box<dyn std::error::Error + Send + Sync>| {
        LinkError::Credentials(SharedError::worded(format!("the token file {} cannot be used: {why}", path.display()), why))
    };
    let text = tokio::fs::read_to_string(path).await.map_err(|error| refused(error.into()))?;
    match text.trim() {
        "" => Err(refused("it is empty".into())),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for fine in ["ws://box:7000", " wss://box/path ", "ws://[::1]:80/x", "ws://box"] {
            assert!(matches!(fine.parse(), Ok(ExecutorAddress::WebSocket(_))), "{fine}");
        }
        assert!(matches!("unix:///run/x".parse(), Ok(ExecutorAddress::Unix(_))));
        assert!(matches!(" ".parse::<ExecutorAddress>(), Err(TargetError::Empty)));
        assert!(matches!("http://box".parse::<ExecutorAddress>(), Err(TargetError::Scheme(_))));
        assert!(matches!("ws://".parse::<ExecutorAddress>(), Err(TargetError::Host(_))));
        assert!(matches!("ws://:80".parse::<ExecutorAddress>(), Err(TargetError::Host(_))));
        assert!(matches!("ws://box:port".parse::<ExecutorAddress>(), Err(TargetError::Host(_) | TargetError::Malformed(..))));
        assert!(matches!("ws://bo x/".parse::<ExecutorAddress>(), Err(TargetError::Host(_))));
        assert!(matches!("ws://box/<>".parse::<ExecutorAddress>(), Err(TargetError::Malformed(..))));
        assert!(matches!("unix://x".parse::<ExecutorAddress>(), Err(TargetError::Path(_))));
    }

    #[test]
    fn tokens_stay_off_open_networks_and_out_of_sight() {
        let token = Token::Bearer("secret".into());
        for fine in ["ws://127.0.0.1:7", "ws://localhost:7", "ws://[::1]:7", "wss://box", "unix:///x"] {
            assert_eq!(fine.parse::<ExecutorAddress>().unwrap().check_token(&token), Ok(()), "{fine}");
        }
        let open: ExecutorAddress = "ws://box:7".parse().unwrap();
        assert!(open.check_token(&token).is_err());
        assert_eq!(open.check_token(&Token::None), Ok(()));
        assert!(!format!("{token:?}").contains("secret"));
    }
}
