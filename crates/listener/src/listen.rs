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

use outpost_rpc::link::ws::Socket;
use outpost_rpc::link::{Link, unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::access::{ConnectionAddresses, ListenerAccess, Visitor, WebsocketAccess};

/// How long a peer may take to close after the service ended the connection.
const FAREWELL: Duration = Duration::from_secs(2);
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

    /// Binds a unix socket that only its owner can open. A socket file without a listener is replaced.
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
    pub async fn serve(self, rules: impl Into<WebsocketAccess>, on_link: impl Fn(Link) + Send + Sync + 'static) -> Infallible {
        self.serve_door(ListenerAccess::new(rules.into(), on_link)).await
    }

    /// Every connection speaks TLS from now on.
    pub fn with_tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(TlsAcceptor::from(config));
        self
    }

    /// Serves for ever what is behind the door.
    pub async fn serve_door(self, door: Arc<ListenerAccess>) -> Infallible {
        loop {
            match self.accept().await {
                Ok(visitor) => {
                    let slot = door.admit(visitor.ends);
                    let (door, tls) = (door.clone(), self.tls.clone());
                    tokio::spawn(async move {
                        // A silent peer costs a socket and nothing else.
                        let spoke = tokio::select! {
                            biased;
                            spoke = visitor.stream.spoken() => spoke.is_ok(),
                            () = slot.over() => false,
                        };
                        let slot = match spoke {
                            true => slot,
                            false if visitor.stream.has_said_something() => slot.again(),
                            false => return tracing::debug!("a connection that said nothing made room"),
                        };
                        slot.speaks();
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
                    // A full descriptor table, most likely; waiting connections are accepted when there is room again.
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
                let ends = ConnectionAddresses { theirs: address.ip(), ours: stream.local_addr()?.ip() };
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
    let outside = tls.accept(stream).await?;
    let (inside, between) = UnixStream::pair()?;
    tokio::spawn(relay(outside, between, FAREWELL));
    Ok(Visitor { stream: Socket::Unix(inside), ..visitor })
}

/// Copies both ways until it is over. Once the service has ended, the peer has this long to read the rest and
/// to close; waiting for its close frame would keep a socket for each peer that never sends one.
async fn relay(outside: impl AsyncRead + AsyncWrite, between: UnixStream, farewell: Duration) {
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let (mut from_inside, mut to_inside) = between.into_split();
    let inward = async {
        let copied = tokio::io::copy(&mut from_outside, &mut to_inside).await;
        let _ = to_inside.shutdown().await;
        copied
    };
    let outward = async {
        tell(&mut from_inside, &mut to_outside, farewell).await?;
        tokio::time::timeout(farewell, to_outside.shutdown()).await?
    };
    let (mut inward, mut outward) = (std::pin::pin!(inward), std::pin::pin!(outward));
    tokio::select! {
        told = &mut outward => {
            if told.is_ok() {
                let _ = tokio::time::timeout(farewell, inward).await;
            }
        }
        // It may have said all that it has to say and still listen.
        heard = &mut inward => {
            if heard.is_ok() {
                let _ = outward.await;
            }
        }
    }
}

/// Copies what the inside says. A peer that does not read blocks it for as long as the service runs.
async fn tell(inside: &mut OwnedReadHalf, outside: &mut (impl AsyncWrite + Unpin), farewell: Duration) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = inside.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let mut writing = std::pin::pin!(outside.write(rest));
            let written = loop {
                match tokio::time::timeout(farewell, &mut writing).await {
                    Ok(written) => break written?,
                    Err(_) if is_gone(inside) => return Err(io::ErrorKind::TimedOut.into()),
                    Err(_) => {}
                }
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        outside.flush().await?;
    }
}

/// Whether the other end of a pair is closed, also while there is something left to be read of it.
fn is_gone(inside: &OwnedReadHalf) -> bool {
    let mut events = [PollFd::new(inside.as_ref(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut events, Some(&now)).is_ok() && events[0].revents().contains(PollFlags::HUP)
}

/// The file gets its mode from the socket, so that other users cannot open it at any moment.
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
    /// Both short enough for a test and long enough to see that no answer is cut short.
    const SHORT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_peer_that_never_closes_is_dropped() {
        let (mut stranger, outside) = tokio::io::duplex(1 << 10);
        let (mut inside, between) = UnixStream::pair().unwrap();
        let relaying = tokio::spawn(relay(outside, between, SHORT));
        inside.write_all(b"the last word").await.unwrap();
        drop(inside);
        // The stranger neither reads nor leaves meanwhile.
        tokio::time::timeout(SHORT * 100, relaying).await.unwrap().unwrap();
        let mut heard = String::new();
        stranger.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "the last word");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_dropped_after_the_service_ended() {
        let (_stranger, outside) = tokio::io::duplex(16);
        let (mut inside, between) = UnixStream::pair().unwrap();
        let mut relaying = tokio::spawn(relay(outside, between, SHORT));
        inside.write_all(&[b'x'; 64 << 10]).await.unwrap();
        assert!(tokio::time::timeout(SHORT * 3, &mut relaying).await.is_err(), "it was cut off while the inside was there");
        drop(inside);
        tokio::time::timeout(SHORT * 100, relaying).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_closed_its_side_still_gets_an_answer() {
        let (mut stranger, outside) = tokio::io::duplex(1 << 10);
        let (mut inside, between) = UnixStream::pair().unwrap();
        tokio::spawn(relay(outside, between, SHORT));
        stranger.write_all(b"question").await.unwrap();
        stranger.shutdown().await.unwrap();
        let mut heard = String::new();
        inside.read_to_string(&mut heard).await.unwrap();
        tokio::time::sleep(SHORT * 3).await;
        inside.write_all(b"answer").await.unwrap();
        drop(inside);
        let mut answer = String::new();
        stranger.read_to_string(&mut answer).await.unwrap();
        assert_eq!((heard.as_str(), answer.as_str()), ("question", "answer"));
    }
}
