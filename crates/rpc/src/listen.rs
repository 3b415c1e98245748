//! Listening for websockets on TCP or on a unix socket.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::extract::connect_info::Connected;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::auth::Auth;
use crate::link::{Gate, Link, MAX_MESSAGE, ws};

/// How many bytes a client may send before it is admitted.
const STRANGER_BYTES: usize = 64 << 10;

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
    socket: Socket,
    address: ListenAddr,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn ws(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = ListenAddr::Ws(socket.local_addr()?);
        Ok(Self { socket: Socket::Tcp(socket), address })
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
        let socket = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { socket: Socket::Unix(socket), address: ListenAddr::Unix(path.to_owned()) })
    }

    /// Where it really listens; a port 0 has become a real one.
    pub fn address(&self) -> &ListenAddr {
        &self.address
    }

    /// Serves until `stop` is done. Every upgraded connection is handed on as a link.
    pub async fn serve(
        self,
        auth: Auth,
        on_link: impl Fn(Link) + Send + Sync + 'static,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let door = Arc::new(Door { auth, on_link: Box::new(on_link) });
        let router = axum::Router::new()
            .route("/", get(upgrade))
            .route("/readyz", get(|| async {}))
            .with_state(door)
            .layer(from_fn(refuse_browsers))
            .into_make_service_with_connect_info::<Visitor>();
        match self.socket {
            Socket::Tcp(socket) => axum::serve(Doorway(socket), router).with_graceful_shutdown(stop).await,
            Socket::Unix(socket) => {
                let served = axum::serve(Doorway(socket), router).with_graceful_shutdown(stop).await;
                if let ListenAddr::Unix(path) = &self.address {
                    let _ = std::fs::remove_file(path);
                }
                served
            }
        }
    }
}

struct Door {
    auth: Auth,
    on_link: Box<dyn Fn(Link) + Send + Sync>,
}

/// No page in a browser has any business here, whatever its origin.
async fn refuse_browsers(request: Request, next: Next) -> Response {
    if request.headers().contains_key(header::ORIGIN) {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(request).await
}

async fn upgrade(
    State(door): State<Arc<Door>>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let header = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if let Err(refusal) = door.auth.check(header, SystemTime::now()) {
        return (StatusCode::UNAUTHORIZED, refusal.to_string()).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    upgrade
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .read_buffer_size(ws::READ_BUFFER)
        .on_upgrade(move |socket| async move { (door.on_link)(ws::accept(socket, visitor.name, visitor.gate)) })
}

/// Who is at the door.
#[derive(Clone)]
struct Visitor {
    name: String,
    gate: Gate,
}

/// A listener whose connections are gated until somebody admits them.
struct Doorway<L>(L);

impl axum::serve::Listener for Doorway<TcpListener> {
    type Io = Gated<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The trait's own implementation sleeps out errors such as a full descriptor table.
        let (stream, address) = axum::serve::Listener::accept(&mut self.0).await;
        // Without this every small answer waits for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        (Gated::new(stream), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

impl axum::serve::Listener for Doorway<UnixListener> {
    type Io = Gated<UnixStream>;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = axum::serve::Listener::accept(&mut self.0).await;
        (Gated::new(stream), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

impl Connected<IncomingStream<'_, Doorway<TcpListener>>> for Visitor {
    fn connect_info(stream: IncomingStream<'_, Doorway<TcpListener>>) -> Self {
        Self { name: format!("exec-server websocket {}", stream.remote_addr()), gate: stream.io().gate.clone() }
    }
}

impl Connected<IncomingStream<'_, Doorway<UnixListener>>> for Visitor {
    fn connect_info(stream: IncomingStream<'_, Doorway<UnixListener>>) -> Self {
        Self { name: "exec-server unix socket".into(), gate: stream.io().gate.clone() }
    }
}

/// A stream from which little can be read before its gate is open.
struct Gated<S> {
    stream: S,
    gate: Gate,
    read: usize,
}

impl<S> Gated<S> {
    fn new(stream: S) -> Self {
        Self { stream, gate: Gate::default(), read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read >= STRANGER_BYTES && !self.gate.is_open() {
            return Poll::Ready(Err(io::Error::other("too much was sent before the handshake")));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.read = self.read.saturating_add(buffer.filled().len() - before);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
