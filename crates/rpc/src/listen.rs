//! Listening for websockets on TCP or on a unix socket.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::door::{Door, DoorRules, Ends, Visitor};
use crate::link::ws::Socket;
use crate::link::{Link, unix};

/// So many may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    Ws(SocketAddr),
    Unix(PathBuf),
    Stdio,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ListenAddrError {
    #[error("unsupported listen URL `{0}`; use ws://IP:PORT, unix://PATH or stdio")]
    Scheme(String),
    #[error("invalid listen URL `{0}`; after ws:// an IP address and a port are needed, such as ws://127.0.0.1:0")]
    Address(String),
    #[error("invalid listen URL `{0}`; after unix:// an absolute path is needed")]
    Path(String),
}

impl FromStr for ListenAddr {
    type Err = ListenAddrError;

    fn from_str(text: &str) -> Result<Self, ListenAddrError> {
        if matches!(text, "stdio" | "stdio://") {
            return Ok(Self::Stdio);
        }
        if let Some(address) = text.strip_prefix("ws://") {
            return address.parse().map(Self::Ws).map_err(|_| ListenAddrError::Address(text.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(ListenAddrError::Path(text.to_owned())) };
        }
        Err(ListenAddrError::Scheme(text.to_owned()))
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ws(address) => write!(f, "ws://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Stdio => f.write_str("stdio"),
        }
    }
}

/// A bound socket.
pub struct Listener {
    socket: Bound,
    address: ListenAddr,
    tls: Option<TlsAcceptor>,
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn ws(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = ListenAddr::Ws(socket.local_addr()?);
        Ok(Self { socket: Bound::Tcp(socket), address, tls: None })
    }

    /// Binds a unix socket that only its owner can open. A socket file that nobody listens on is replaced.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        if let Ok(metadata) = std::fs::symlink_metadata(path) {
            if !metadata.file_type().is_socket() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
            }
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
            }
            std::fs::remove_file(path)?;
        }
        Ok(Self { socket: Bound::Unix(bind_private(path)?), address: ListenAddr::Unix(path.to_owned()), tls: None })
    }

    /// Where it really listens; a port 0 has become a real one.
    pub fn address(&self) -> &ListenAddr {
        &self.address
    }

    /// Serves for ever. Every upgraded connection is handed on as a link.
    pub async fn serve(self, rules: impl Into<DoorRules>, on_link: impl Fn(Link) + Send + Sync + 'static) -> Infallible {
        self.serve_door(Door::new(rules.into(), on_link)).await
    }

    /// Every connection speaks TLS from now on.
    pub fn with_tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(TlsAcceptor::from(config));
        self
    }

    /// Serves for ever what is behind the door.
    pub async fn serve_door(self, door: Arc<Door>) -> Infallible {
        loop {
            match self.accept().await {
                Ok(visitor) => {
                    // Those who come now wait with the system until there is room for one more stranger.
                    let slot = door.admit().await;
                    let (door, tls) = (door.clone(), self.tls.clone());
                    tokio::spawn(async move {
                        let uncovered = async {
                            match tls {
                                None => Ok(visitor),
                                Some(tls) => uncover(&tls, visitor).await,
                            }
                        };
                        let visitor = tokio::select! {
                            visitor = uncovered => visitor,
                            () = slot.over() => Err(io::ErrorKind::TimedOut.into()),
                        };
                        match visitor {
                            Ok(visitor) => door.welcome(visitor, slot).await,
                            Err(error) => tracing::debug!(%error, "a connection came to nothing"),
                        }
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!(%error, "a connection was refused");
                }
                Err(error) => {
                    // A full descriptor table, most likely; whoever waits is served when there is room again.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<Visitor> {
        match &self.socket {
            Bound::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                // Without this every small answer waits for the acknowledgement of the one before.
                stream.set_nodelay(true)?;
                let ends = Ends { theirs: address.ip(), ours: stream.local_addr()?.ip() };
                Ok(Visitor { name: format!("exec-server websocket {address}"), stream: Socket::Tcp(stream), ends: Some(ends) })
            }
            Bound::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                unix::check_client(&stream)?;
                Ok(Visitor { name: "exec-server unix socket".into(), stream: Socket::Unix(stream), ends: None })
            }
        }
    }
}

/// Takes TLS off a connection. What is inside goes through a pair of sockets, so that the rest of this room sees one of
/// the two kinds that it knows, and can be read and written without waiting.
async fn uncover(tls: &TlsAcceptor, visitor: Visitor) -> io::Result<Visitor> {
    let Socket::Tcp(stream) = visitor.stream else { return Ok(visitor) };
    let mut outside = tls.accept(stream).await?;
    let (inside, mut between) = UnixStream::pair()?;
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut outside, &mut between).await });
    Ok(Visitor { stream: Socket::Unix(inside), ..visitor })
}

/// The file gets its mode from the socket, so that there is no moment at which somebody else could open it.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(StdUnixListener::from(socket))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenAddr::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_urls_are_checked() {
        assert_eq!("ws://127.0.0.1:0".parse(), Ok(ListenAddr::Ws(([127, 0, 0, 1], 0).into())));
        assert!(matches!("ws://[::1]:80".parse(), Ok(ListenAddr::Ws(address)) if address.is_ipv6()));
        assert_eq!("stdio".parse(), Ok(ListenAddr::Stdio));
        assert_eq!("stdio://".parse(), Ok(ListenAddr::Stdio));
        assert_eq!("unix:///run/x".parse(), Ok(ListenAddr::Unix("/run/x".into())));
        assert!(matches!("ws://localhost:0".parse::<ListenAddr>(), Err(ListenAddrError::Address(_))));
        assert!(matches!("unix://x".parse::<ListenAddr>(), Err(ListenAddrError::Path(_))));
        assert!(matches!("http://127.0.0.1:0".parse::<ListenAddr>(), Err(ListenAddrError::Scheme(_))));
    }
}
