//! A link carries frames both ways; every transport is a function that returns one.
//!
//! Outbound frames go into a queue that counts bytes, not messages: a small answer is never refused because a large one
//! waits, and producers of bulk output reserve room first. Inbound frames are pulled, so a peer that does not read holds
//! up its own socket and nothing else.

pub mod memory;
pub mod stdio;
pub mod unix;
pub mod ws;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use outpost_wire::SharedError;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The largest message that any link carries.
pub const MAX_MESSAGE: usize = 64 << 20;

/// A close that the other side does not take is not waited for.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// Heartbeats are not answered while more than this waits.
const INSERTED: usize = 64 << 10;

/// Two directions of frames.
pub struct Link {
    pub tx: FrameSink,
    pub rx: FrameSource,
    /// What the other end is, for messages to people: `websocket 127.0.0.1:7`, `stdio`, `memory`.
    pub name: String,
    pub gate: HandshakeGate,
    pub liveness: Liveness,
}

/// Inbound frames. The end of the stream is a clean end of the link.
pub type FrameSource = Pin<Box<dyn Stream<Item = Result<Bytes, LinkError>> + Send>>;

#[derive(Debug, Error)]
pub enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(#[source] SharedError),
    /// A server answered with a status of HTTP instead of a link.
    #[error("{reason}")]
    Refused { status: u16, reason: String },
    /// What is to be shown to the other side cannot be had here.
    #[error("{0}")]
    Credentials(#[source] SharedError),
    #[error("closed by the other side: {}", .0.reason)]
    Closed(Close),
    #[error("nothing was heard from the other side for {0:?}")]
    Silent(Duration),
}

/// Why a link is closed; websockets tell the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    pub code: u16,
    pub reason: String,
}

impl Close {
    pub const NORMAL: u16 = 1000;
    /// The other side ends.
    pub const GOING_AWAY: u16 = 1001;
    pub const PROTOCOL: u16 = 1002;
    /// A newer connection resumed the session; the receiver must not resume it in turn.
    pub const TAKEN_OVER: u16 = 4001;

    pub fn new(code: u16, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

/// Limits an unauthenticated peer to a few bytes until the handshake succeeds.
#[derive(Debug, Clone, Default)]
pub struct HandshakeGate(Arc<AtomicBool>);

impl HandshakeGate {
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// When something last came in, for links whose other end can be gone without a word.
#[derive(Debug, Clone)]
pub struct Liveness(Option<Arc<Mutex<Instant>>>);

impl Liveness {
    /// The end of such a link shows by itself.
    pub const EVIDENT: Self = Self(None);

    pub fn new() -> Self {
        Self(Some(Arc::new(Mutex::new(Instant::now()))))
    }

    pub fn note(&self) {
        if let Some(heard) = &self.0 {
            *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    /// Whether the other end was there after that time.
    pub fn is_later_than(&self, time: Instant) -> bool {
        self.0.as_ref().is_none_or(|heard| *heard.lock().unwrap_or_else(PoisonError::into_inner) > time)
    }
}

impl Default for Liveness {
    fn default() -> Self {
        Self::new()
    }
}

/// The outbound half of a link. When the last one goes, the link is closed.
pub struct FrameSink(Arc<Queue>);

/// What a transport drains.
pub struct FrameDrain(Arc<Queue>);

/// A transport's own way to put something between the frames; does not keep the link open.
pub(crate) struct Inserter(Arc<Queue>);

/// A transport that can take frames from whichever task has one, without waiting.
pub(crate) trait DirectWrite: Send + Sync {
    /// Writes from the front of the queue, of which `done` bytes are written already. Returns how many more were.
    fn try_write(&self, items: &VecDeque<OutboundItem>, done: usize) -> io::Result<usize>;
    /// How many bytes an item takes on the wire.
    fn size(&self, item: &OutboundItem) -> usize;
}

/// What waits to be written.
pub(crate) enum OutboundItem {
    Frame(Bytes),
    /// Bytes that are the transport's own, such as a heartbeat.
    Raw(Bytes),
}

impl OutboundItem {
    fn len(&self) -> usize {
        match self {
            Self::Frame(bytes) | Self::Raw(bytes) => bytes.len(),
        }
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    /// Something was queued, or the sink closed.
    filled: Notify,
    /// Something was written, or the drain is gone.
    drained: Notify,
}

#[derive(Default)]
struct QueueState {
    /// Goes with the drain, so that a leaked sink cannot keep a socket open.
    direct: Option<Box<dyn DirectWrite>>,
    items: VecDeque<OutboundItem>,
    /// How much of the first item a direct transport has written.
    done: usize,
    /// Queued, plus handed to the transport and not yet written.
    bytes: usize,
    sinks: usize,
    close: Option<Close>,
    drain_gone: bool,
}

impl QueueState {
    fn is_closed(&self) -> bool {
        self.drain_gone || self.close.is_some()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Nothing in here can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, state: &mut QueueState, item: OutboundItem) {
        state.bytes += item.len();
        state.items.push_back(item);
        // Whatever waits in front has found the transport unable to take more.
        if state.items.len() == 1 && self.flush(state).is_err() {
            state.drain_gone = true;
        }
    }

    /// Writes as much as a direct transport takes.
    fn flush(&self, state: &mut QueueState) -> io::Result<()> {
        let Some(direct) = &state.direct else { return Ok(()) };
        while !state.items.is_empty() {
            let mut written = match direct.try_write(&state.items, state.done) {
                Ok(written) => state.done + written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            while let Some(item) = state.items.front()
                && written >= direct.size(item)
            {
                written -= direct.size(item);
                state.bytes -= item.len();
                state.items.pop_front();
            }
            state.done = written;
        }
        Ok(())
    }
}

/// A sink and the drain behind it.
pub fn queue() -> (FrameSink, FrameDrain) {
    let queue = Arc::new(Queue::default());
    queue.lock().sinks = 1;
    (FrameSink(queue.clone()), FrameDrain(queue))
}

/// The same, for a transport that frames are written to directly.
pub(crate) fn queue_with(direct: Box<dyn DirectWrite>) -> (FrameSink, FrameDrain) {
    let (sink, drain) = queue();
    sink.0.lock().direct = Some(direct);
    (sink, drain)
}

impl FrameSink {
    /// Queues a frame, or writes it at once where that is possible. False if the link is closed.
    pub fn send(&self, frame: impl Into<Bytes>) -> bool {
        let mut state = self.0.lock();
        if state.is_closed() {
            return false;
        }
        self.0.push(&mut state, OutboundItem::Frame(frame.into()));
        let (waits, gone) = (!state.items.is_empty(), state.drain_gone);
        drop(state);
        if waits {
            self.0.filled.notify_one();
        }
        if gone {
            self.0.drained.notify_waiters();
        }
        !gone
    }

    /// Lets the transport write what is queued and then end the link.
    pub fn close(&self, close: Close) {
        let mut state = self.0.lock();
        if state.close.is_none() {
            state.close = Some(close);
        }
        drop(state);
        self.0.filled.notify_one();
        self.0.drained.notify_waiters();
    }

    /// Bytes that are queued or being written.
    pub fn queued(&self) -> usize {
        self.0.lock().bytes
    }

    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed()
    }

    /// Why this side closed the link, if it did.
    pub fn close_reason(&self) -> Option<Close> {
        self.0.lock().close.clone()
    }

    /// Waits until at most `limit` bytes are queued, or the link is closed.
    pub async fn room(&self, limit: usize) {
        Self::wait(&self.0, |state| state.bytes <= limit || state.is_closed()).await;
    }

    /// Waits until either side has closed the link.
    pub async fn closed(&self) {
        Self::wait(&self.0, QueueState::is_closed).await;
    }

    /// Waits until everything was written, or cannot be any more. Does not wait for ever.
    pub async fn flushed(&self) {
        let written = Self::wait(&self.0, |state| state.bytes == 0 || state.drain_gone);
        let _ = tokio::time::timeout(CLOSE_PATIENCE, written).await;
    }

    async fn wait(queue: &Queue, done: impl Fn(&QueueState) -> bool) {
        loop {
            let mut notified = std::pin::pin!(queue.drained.notified());
            notified.as_mut().enable();
            if done(&queue.lock()) {
                return;
            }
            notified.await;
        }
    }

    pub(crate) fn inserter(&self) -> Inserter {
        Inserter(self.0.clone())
    }
}

impl Inserter {
    /// Puts bytes between the frames, unless so much waits already that they would only pile up.
    pub(crate) fn insert(&self, bytes: Bytes) {
        let mut state = self.0.lock();
        if state.drain_gone || state.bytes > INSERTED {
            return;
        }
        self.0.push(&mut state, OutboundItem::Raw(bytes));
        drop(state);
        self.0.filled.notify_one();
    }
}

impl FrameDrain {
    /// The next frame; nothing once the sink was closed and everything queued before was taken.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.try_next() {
                return Some(frame);
            }
            if self.is_over() {
                return None;
            }
            // A permit is kept while no task waits, so nothing that happens in between is missed.
            self.0.filled.notified().await;
        }
    }

    fn is_over(&self) -> bool {
        let state = self.0.lock();
        state.close.is_some() || state.sinks == 0
    }

    pub fn try_next(&mut self) -> Option<Bytes> {
        match self.0.lock().items.pop_front()? {
            OutboundItem::Frame(bytes) | OutboundItem::Raw(bytes) => Some(bytes),
        }
    }

    /// Tells the senders that so many bytes have left.
    pub fn written(&mut self, bytes: usize) {
        let mut state = self.0.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        drop(state);
        self.0.drained.notify_waiters();
    }

    /// Waits until a direct transport has something that it could not take at once. False once the link is closed and
    /// everything was taken.
    pub(crate) async fn stuck(&mut self) -> bool {
        loop {
            if self.is_stuck() {
                return true;
            }
            if self.is_over() {
                return false;
            }
            self.0.filled.notified().await;
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        !self.0.lock().items.is_empty()
    }

    /// Goes on where the transport could not take more.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        let resumed = self.0.flush(&mut self.0.lock());
        self.0.drained.notify_waiters();
        resumed
    }

    pub(crate) fn inserter(&self) -> Inserter {
        Inserter(self.0.clone())
    }

    pub fn close_reason(&self) -> Option<Close> {
        self.0.lock().close.clone()
    }

    /// Spawns the task that takes frames from here to the wire. It does not live much longer than the link is open: a
    /// socket that takes nothing any more must not keep its writer for ever.
    fn spawn_writer<F: Future<Output = ()> + Send + 'static>(self, writer: impl FnOnce(Self) -> F) {
        let queue = self.0.clone();
        let writer = writer(self);
        tokio::spawn(async move {
            let given_up = async {
                FrameSink::wait(&queue, |state| state.close.is_some()).await;
                tokio::time::sleep(CLOSE_PATIENCE).await;
            };
            tokio::select! {
                () = writer => {}
                () = given_up => {}
            }
        });
    }
}

impl Clone for FrameSink {
    fn clone(&self) -> Self {
        self.0.lock().sinks += 1;
        Self(self.0.clone())
    }
}

impl Drop for FrameSink {
    fn drop(&mut self) {
        self.0.lock().sinks -= 1;
        self.0.filled.notify_one();
    }
}

impl Drop for FrameDrain {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.drain_gone = true;
        state.direct = None;
        state.items.clear();
        state.bytes = 0;
        drop(state);
        self.0.drained.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_count_until_they_are_written() {
        let (sink, mut drain) = queue();
        assert!(sink.send(vec![0; 10]) && sink.send(vec![0; 5]));
        let frame = drain.next().await.unwrap();
        assert_eq!(sink.queued(), 15);
        drain.written(frame.len());
        sink.room(5).await;
        assert_eq!(sink.queued(), 5);
    }

    #[tokio::test]
    async fn a_closed_sink_is_drained_first() {
        let (sink, mut drain) = queue();
        sink.send(vec![1]);
        sink.close(Close::new(4001, "newer"));
        assert!(!sink.send(vec![2]));
        assert_eq!(drain.next().await.unwrap(), vec![1]);
        assert!(drain.next().await.is_none());
        assert_eq!(drain.close_reason().unwrap().code, 4001);
    }

    #[tokio::test]
    async fn either_end_notices_that_the_other_is_gone() {
        let (sink, drain) = queue();
        sink.send(vec![0; 100]);
        let waiting = tokio::spawn({
            let sink = sink.clone();
            async move { sink.room(0).await }
        });
        tokio::task::yield_now().await;
        drop(drain);
        waiting.await.unwrap();
        assert!(!sink.send(vec![1]));
        let (sink, mut drain) = queue();
        let waiting = tokio::spawn(async move { drain.next().await });
        tokio::task::yield_now().await;
        drop(sink);
        assert!(waiting.await.unwrap().is_none());
    }
}
