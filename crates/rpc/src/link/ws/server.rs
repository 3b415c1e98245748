//! The server's side of a websocket, after the upgrade.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use outpost_wire::SharedError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{MissedTickBehavior, interval};

use super::codec::{self, FrameDecoder, FrameHead, Incoming};
use crate::link::{
    Close, DirectWrite, FrameDrain, FrameSource, HandshakeGate, Inserter, Link, LinkError, Liveness, MAX_MESSAGE, OutboundItem, queue_with,
};

/// A client that is too busy to read is not a client that is gone, so it is pinged but not required to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How many bytes a client may send before it is admitted.
const STRANGER_BYTES: usize = 64 << 10;

/// A stream that was upgraded.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Waits until the other side has said something, or has gone. Not every system that calls a stream readable means that.
    pub async fn spoken(&self) -> io::Result<()> {
        loop {
            self.readable().await?;
            let look = || if self.has_said_something() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) };
            let looked = match self {
                Self::Tcp(stream) => stream.try_io(Interest::READABLE, look),
                Self::Unix(stream) => stream.try_io(Interest::READABLE, look),
            };
            match looked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Whether something of the other side's is there to be read, even if no reader was notified yet.
    pub fn has_said_something(&self) -> bool {
        let descriptor = match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        };
        let mut events = [PollFd::new(&descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut events, Some(&now)).is_ok() && events[0].revents().contains(PollFlags::IN)
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(parts),
            Self::Unix(stream) => stream.try_write_vectored(parts),
        }
    }
}

/// Makes a link of an upgraded stream. `early` are bytes that came together with the upgrade.
pub fn accept(socket: Socket, early: Bytes, name: String) -> Link {
    let socket = Arc::new(socket);
    let (tx, drain) = queue_with(Box::new(Writer(socket.clone())));
    let (gate, liveness) = (HandshakeGate::default(), Liveness::new());
    let writing = socket.clone();
    drain.spawn_writer(|drain| write(drain, writing));
    let reader = Reader {
        socket,
        decoder: FrameDecoder::new(early),
        read: 0,
        gate: gate.clone(),
        inserter: tx.inserter(),
        liveness: liveness.clone(),
    };
    Link { tx, rx: reader.into_source(), name, gate, liveness }
}

/// Writes frames from whichever task has one, as long as the socket takes them.
struct Writer(Arc<Socket>);

/// So many frames go out with one system call.
const GATHERED: usize = 16;

impl DirectWrite for Writer {
    fn try_write(&self, items: &VecDeque<OutboundItem>, done: usize) -> io::Result<usize> {
        let heads: [FrameHead; GATHERED] = std::array::from_fn(|index| items.get(index).map_or(FrameHead::NONE, head));
        let mut parts = [IoSlice::new(&[]); 2 * GATHERED];
        for (index, (head, item)) in heads.iter().zip(items).enumerate() {
            let body = match item {
                OutboundItem::Frame(bytes) | OutboundItem::Raw(bytes) => bytes,
            };
            parts[2 * index] = IoSlice::new(head.as_slice());
            parts[2 * index + 1] = IoSlice::new(body);
        }
        let mut rest = &mut parts[..2 * items.len().min(GATHERED)];
        IoSlice::advance_slices(&mut rest, done);
        self.0.try_write(rest)
    }

    fn size(&self, item: &OutboundItem) -> usize {
        match item {
            OutboundItem::Frame(bytes) => head(item).as_slice().len() + bytes.len(),
            OutboundItem::Raw(bytes) => bytes.len(),
        }
    }
}

fn head(item: &OutboundItem) -> FrameHead {
    match item {
        OutboundItem::Frame(bytes) => FrameHead::text(bytes.len()),
        OutboundItem::Raw(_) => FrameHead::NONE,
    }
}

/// Writes what did not go out at once, pings, and says good-bye.
async fn write(mut drain: FrameDrain, socket: Arc<Socket>) {
    let mut ping = interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.reset();
    loop {
        tokio::select! {
            waiting = drain.stuck() => {
                if !waiting {
                    break;
                }
                if socket.writable().await.is_err() || drain.resume().is_err() {
                    return;
                }
            }
            _ = ping.tick() => drain.inserter().insert(codec::ping()),
        }
    }
    drain.inserter().insert(codec::close(&drain.close_reason().unwrap_or_else(|| Close::new(Close::NORMAL, ""))));
    while drain.is_stuck() {
        if socket.writable().await.is_err() || drain.resume().is_err() {
            return;
        }
    }
}

struct Reader {
    socket: Arc<Socket>,
    decoder: FrameDecoder,
    read: usize,
    gate: HandshakeGate,
    inserter: Inserter,
    liveness: Liveness,
}

impl Reader {
    fn into_source(self) -> FrameSource {
        Box::pin(stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(frame)) => Some((Ok(frame), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        }))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, LinkError> {
        loop {
            let limit = if self.gate.is_open() { MAX_MESSAGE } else { STRANGER_BYTES };
            match self.decoder.next(limit).map_err(|error| LinkError::Protocol(SharedError::new(error)))? {
                Some(Incoming::Message(message)) => return Ok(Some(message)),
                Some(Incoming::Ping(payload)) => self.inserter.insert(codec::pong(&payload)),
                Some(Incoming::Pong) => {}
                Some(Incoming::Close(None)) => return Ok(None),
                Some(Incoming::Close(Some(close))) => return Err(LinkError::Closed(close)),
                None => {
                    if self.fill().await? == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, LinkError> {
        if self.read >= STRANGER_BYTES && !self.gate.is_open() {
            return Err(LinkError::Protocol(format!("more than {STRANGER_BYTES} bytes were sent before the handshake").into()));
        }
        loop {
            self.socket.readable().await?;
            match self.socket.try_read(self.decoder.room()) {
                Ok(length) => {
                    self.liveness.note();
                    self.read = self.read.saturating_add(length);
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
