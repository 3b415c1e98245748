//! The client's side of a websocket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt, stream};
use outpost_wire::SharedError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use crate::link::{Close, FrameDrain, FrameSource, HandshakeGate, Link, LinkError, Liveness, MAX_MESSAGE, queue};

/// So much is written in one go.
const BATCH: usize = 32 << 10;

/// When to ask whether the other side is still there.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    pub ping_every: Duration,
    /// The link ends when nothing at all was heard for so long.
    pub give_up_after: Duration,
}

impl KeepAlive {
    pub const DEFAULT: Self = Self { ping_every: Duration::from_secs(10), give_up_after: Duration::from_secs(30) };
}

#[derive(Clone)]
pub struct ClientOptions {
    pub bearer: Option<String>,
    pub keep_alive: KeepAlive,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { bearer: None, keep_alive: KeepAlive::DEFAULT }
    }
}

/// Connects to `ws://HOST:PORT[/PATH]`.
pub async fn connect(url: &str, options: &ClientOptions) -> Result<Link, LinkError> {
    let rest = url.strip_prefix("ws://").ok_or_else(|| LinkError::Protocol(format!("`{url}` is not a ws:// URL").into()))?;
    let authority = rest.split('/').next().unwrap_or_default();
    let address = if authority.rsplit(']').next().is_some_and(|after| after.contains(':')) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let stream = TcpStream::connect(&address).await?;
    stream.set_nodelay(true)?;
    handshake(stream, url, format!("websocket {address}"), options).await
}

/// The client's side of the upgrade, over any stream.
pub async fn handshake<S>(stream: S, url: &str, name: String, options: &ClientOptions) -> Result<Link, LinkError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut request = url.into_client_request().map_err(refused)?;
    if let Some(token) = &options.bearer {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| LinkError::Protocol("the token holds characters that no header may hold".into()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    let config =
        WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE)).read_buffer_size(128 << 10);
    let heard = Arc::new(Heard::new());
    let stream = Listening { stream, heard: heard.clone() };
    let (socket, _) = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await.map_err(refused)?;
    let (sink, source) = socket.split();
    let events = source.map(|message| match message {
        Ok(Message::Text(text)) => Ok(Event::Frame(text.into())),
        Ok(Message::Binary(bytes)) => Ok(Event::Frame(bytes)),
        Ok(Message::Close(frame)) => Ok(Event::Closed(frame.map(|frame| Close::new(frame.code.into(), frame.reason.as_str())))),
        Ok(_) => Ok(Event::Heartbeat),
        Err(error) => Err(broken(error)),
    });
    let sink = sink.with(|out: Out| async move {
        Ok::<_, tungstenite::Error>(match out {
            Out::Frame(frame) => Utf8Bytes::try_from(frame.clone()).map_or(Message::Binary(frame), Message::Text),
            Out::Ping => Message::Ping(Bytes::new()),
            Out::Close(close) => Message::Close(Some(CloseFrame { code: CloseCode::from(close.code), reason: close.reason.into() })),
        })
    });
    Ok(assemble(Box::pin(sink), Box::pin(events), name, heard, options.keep_alive))
}

fn refused(error: tungstenite::Error) -> LinkError {
    match error {
        tungstenite::Error::Http(response) => {
            let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let hint = if body.is_empty() { String::new() } else { format!(" ({body})") };
            let reason = format!("the server refused the connection: {}{hint}", response.status());
            LinkError::Refused { status: response.status().as_u16(), reason }
        }
        other => broken(other),
    }
}

fn broken(error: tungstenite::Error) -> LinkError {
    match error {
        tungstenite::Error::Io(error) => LinkError::Io(error),
        // The stream ended in the middle; that is the network's doing, not the other side's.
        tungstenite::Error::Protocol(ProtocolError::HandshakeIncomplete | ProtocolError::ResetWithoutClosingHandshake) => {
            LinkError::Io(io::ErrorKind::ConnectionReset.into())
        }
        other => LinkError::Protocol(SharedError::new(other)),
    }
}

enum Event {
    Frame(Bytes),
    Heartbeat,
    Closed(Option<Close>),
}

enum Out {
    Frame(Bytes),
    Ping,
    Close(Close),
}

type Events = Pin<Box<dyn Stream<Item = Result<Event, LinkError>> + Send>>;

fn assemble<S>(sink: S, events: Events, name: String, heard: Arc<Heard>, keep_alive: KeepAlive) -> Link
where
    S: Sink<Out> + Send + Unpin + 'static,
{
    let (tx, drain) = queue();
    let writer_heard = heard.clone();
    drain.spawn_writer(|drain| write(sink, drain, writer_heard, keep_alive));
    let gate = HandshakeGate::default();
    gate.open();
    Link { tx, rx: read(events, heard, keep_alive), name, gate, liveness: Liveness::EVIDENT }
}

/// When something was last heard, in milliseconds since the link was made.
struct Heard {
    since: Instant,
    at: AtomicU64,
}

impl Heard {
    fn new() -> Self {
        Self { since: Instant::now(), at: AtomicU64::new(0) }
    }
    fn note(&self) {
        self.at.store(u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    fn silence(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.at.load(Ordering::Relaxed)))
    }
}

/// A stream that remembers when something came: a large message takes its time, and nothing else can come meanwhile.
struct Listening<S> {
    stream: S,
    heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.note();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn read(events: Events, heard: Arc<Heard>, keep_alive: KeepAlive) -> FrameSource {
    Box::pin(stream::unfold(Some((events, heard)), move |state| async move {
        let (mut events, heard) = state?;
        loop {
            let limit = keep_alive.give_up_after;
            let left = limit.saturating_sub(heard.silence());
            let event = match tokio::time::timeout(left, events.next()).await {
                Ok(event) => event,
                Err(_) if heard.silence() >= limit => return Some((Err(LinkError::Silent(limit)), None)),
                Err(_) => continue,
            };
            match event? {
                Ok(Event::Frame(frame)) => return Some((Ok(frame), Some((events, heard)))),
                Ok(Event::Heartbeat) => {}
                Ok(Event::Closed(None)) => return None,
                Ok(Event::Closed(Some(close))) => return Some((Err(LinkError::Closed(close)), None)),
                Err(error) => return Some((Err(error), None)),
            }
        }
    }))
}

async fn write<S: Sink<Out> + Unpin>(mut sink: S, mut drain: FrameDrain, heard: Arc<Heard>, keep_alive: KeepAlive) {
    let mut ping = interval(keep_alive.ping_every);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.reset();
    loop {
        tokio::select! {
            frame = drain.next() => {
                let Some(frame) = frame else { break };
                let mut bytes = 0;
                let mut next = Some(frame);
                // Everything that is queued goes out in one go; a lone frame goes out at once.
                while let Some(frame) = next {
                    bytes += frame.len();
                    if sink.feed(Out::Frame(frame)).await.is_err() {
                        return;
                    }
                    next = if bytes < BATCH { drain.try_next() } else { None };
                }
                if sink.flush().await.is_err() {
                    return;
                }
                drain.written(bytes);
            }
            _ = ping.tick() => {
                if heard.silence() >= keep_alive.ping_every / 2 && sink.send(Out::Ping).await.is_err() {
                    return;
                }
            }
        }
    }
    let close = drain.close_reason().unwrap_or_else(|| Close::new(Close::NORMAL, ""));
    if sink.send(Out::Close(close)).await.is_ok() {
        let _ = sink.close().await;
    }
}
