//! Listening for websockets on TCP or on a unix socket.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::auth::Auth;
use crate::link::ws::{self, Socket};
use crate::link::{Link, unix};

/// How long a client may take to send its request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a request may be, in bytes.
const MAX_REQUEST: usize = 16 << 10;

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
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn ws(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = ListenAddr::Ws(socket.local_addr()?);
        Ok(Self { socket: Bound::Tcp(socket), address })
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
        Ok(Self { socket: Bound::Unix(socket), address: ListenAddr::Unix(path.to_owned()) })
    }

    /// Where it really listens; a port 0 has become a real one.
    pub fn address(&self) -> &ListenAddr {
        &self.address
    }

    /// Serves for ever. Every upgraded connection is handed on as a link.
    pub async fn serve(self, auth: Auth, on_link: impl Fn(Link) + Send + Sync + 'static) -> Infallible {
        let door = Arc::new(Door { auth, on_link: Box::new(on_link) });
        loop {
            match self.accept().await {
                Ok(visitor) => {
                    tokio::spawn(welcome(door.clone(), visitor));
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
                Ok(Visitor { name: format!("exec-server websocket {address}"), stream: Socket::Tcp(stream) })
            }
            Bound::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                unix::check_owner(&stream)?;
                Ok(Visitor { name: "exec-server unix socket".into(), stream: Socket::Unix(stream) })
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenAddr::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Door {
    auth: Auth,
    on_link: Box<dyn Fn(Link) + Send + Sync>,
}

/// Somebody who connected.
struct Visitor {
    name: String,
    stream: Socket,
}

async fn welcome(door: Arc<Door>, visitor: Visitor) {
    let Visitor { name, stream } = visitor;
    let served = match stream {
        Socket::Tcp(stream) => talk_http(stream, &door, &name, Socket::Tcp).await,
        Socket::Unix(stream) => talk_http(stream, &door, &name, Socket::Unix).await,
    };
    if let Err(error) = served {
        tracing::debug!(name, error, "a connection came to nothing");
    }
}

/// Answers HTTP requests until one of them is an upgrade, and then hands the stream on as a link.
async fn talk_http<S>(stream: S, door: &Arc<Door>, name: &str, socket: fn(S) -> Socket) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let upgrade: Arc<Mutex<Option<OnUpgrade>>> = Arc::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let answer = answer(&door.auth, &request);
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(&mut request);
            upgrade.lock().unwrap_or_else(PoisonError::into_inner).replace(upgraded);
        }
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
        .map_err(|error| error.to_string())?;
    let upgraded = upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(upgraded) = upgraded else { return Ok(()) };
    let upgraded = upgraded.await.map_err(|error| error.to_string())?;
    let parts = upgraded.downcast::<TokioIo<S>>().map_err(|_| "the stream was lost in the upgrade")?;
    (door.on_link)(ws::accept(socket(parts.io.into_inner()), parts.read_buf, name.to_owned()));
    Ok(())
}

fn answer(auth: &Auth, request: &Request<Incoming>) -> Response<String> {
    let plain = |status: StatusCode, text: &str| {
        let mut response = Response::new(text.to_owned());
        *response.status_mut() = status;
        response
    };
    // No page in a browser has any business here, whatever its origin.
    if request.headers().contains_key(header::ORIGIN) {
        return plain(StatusCode::FORBIDDEN, "");
    }
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/" | "/readyz" if !is_get => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
        "/readyz" => plain(StatusCode::OK, ""),
        "/" => {
            let credentials = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
            if let Err(refusal) = auth.check(credentials, SystemTime::now()) {
                return plain(StatusCode::UNAUTHORIZED, &refusal.to_string());
            }
            upgrade(request.headers()).unwrap_or_else(|why| plain(StatusCode::BAD_REQUEST, why))
        }
        _ => plain(StatusCode::NOT_FOUND, ""),
    }
}

/// The answer to a request for a websocket, or why it is none.
fn upgrade(headers: &HeaderMap) -> Result<Response<String>, &'static str> {
    let names = |name: HeaderName, wanted: &str| {
        let values = headers.get_all(name);
        let mut words = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        words.any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    if !names(header::CONNECTION, "upgrade") {
        return Err("Connection header did not include 'upgrade'");
    }
    if !names(header::UPGRADE, "websocket") {
        return Err("the Upgrade header does not ask for a websocket");
    }
    if !names(header::SEC_WEBSOCKET_VERSION, "13") {
        return Err("only version 13 of the websocket protocol is spoken here");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or("there is no Sec-WebSocket-Key header")?;
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| "the key cannot be used")?;
    let answers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    response.headers_mut().extend(answers);
    Ok(response)
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
