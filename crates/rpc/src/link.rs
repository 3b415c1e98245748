//! A link carries frames both ways; every transport is a function that returns one.
//!
//! Outbound frames go into a queue that counts bytes, not messages: a small answer is never refused because a large one
//! waits, and whoever produces bulk asks for room first. Inbound frames are pulled, so a peer that does not read holds
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
use thiserror::Error;
use tokio::sync::Notify;

/// The largest message that any link carries.
pub const MAX_MESSAGE: usize = 64 << 20;

/// A close that the other side does not take is not waited for.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// Two directions of frames.
pub struct Link {
    pub tx: FrameSink,
    pub rx: FrameSource,
    /// What the other end is, for messages to people: `websocket 127.0.0.1:7`, `stdio`, `memory`.
    pub name: String,
    pub gate: Gate,
}

/// Inbound frames. The end of the stream is a clean end of the link.
pub type FrameSource = Pin<Box<dyn Stream<Item = Result<Bytes, LinkError>> + Send>>;

#[derive(Debug, Error)]
pub enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(String),
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
    pub const PROTOCOL: u16 = 1002;
    /// A newer connection resumed the session; whoever gets this must not resume it in turn.
    pub const TAKEN_OVER: u16 = 4001;

    pub fn new(code: u16, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

/// Holds a stranger to a few bytes until somebody vouches for them.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The outbound half of a link. When the last one goes, the link is closed.
pub struct FrameSink(Arc<Queue>);

/// What a transport drains.
pub struct FrameDrain(Arc<Queue>);

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
    frames: VecDeque<Bytes>,
    /// Queued, plus handed to the transport and not yet written.
    bytes: usize,
    sinks: usize,
    close: Option<Close>,
    drain_gone: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Nothing in here can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sink and the drain behind it.
pub fn queue() -> (FrameSink, FrameDrain) {
    let queue = Arc::new(Queue::default());
    queue.lock().sinks = 1;
    (FrameSink(queue.clone()), FrameDrain(queue))
}

impl FrameSink {
    /// Queues a frame at once. False if nobody will ever take it.
    pub fn send(&self, frame: impl Into<Bytes>) -> bool {
        let frame = frame.into();
        let mut state = self.0.lock();
        if state.drain_gone || state.close.is_some() {
            return false;
        }
        state.bytes += frame.len();
        state.frames.push_back(frame);
        drop(state);
        self.0.filled.notify_one();
        true
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
        let state = self.0.lock();
        state.drain_gone || state.close.is_some()
    }

    /// Why this side closed the link, if it did.
    pub fn close_reason(&self) -> Option<Close> {
        self.0.lock().close.clone()
    }

    /// Waits until at most `limit` bytes are queued, or the link is closed.
    pub async fn room(&self, limit: usize) {
        Self::wait(&self.0, |state| state.bytes <= limit || state.drain_gone || state.close.is_some()).await;
    }

    /// Waits until either side has closed the link.
    pub async fn closed(&self) {
        Self::wait(&self.0, |state| state.drain_gone || state.close.is_some()).await;
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
}

impl FrameDrain {
    /// The next frame; nothing once the sink was closed and everything queued before was taken.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.try_next() {
                return Some(frame);
            }
            {
                let state = self.0.lock();
                if state.close.is_some() || state.sinks == 0 {
                    return None;
                }
            }
            // A permit is kept when nobody waits, so nothing that happens in between is missed.
            self.0.filled.notified().await;
        }
    }

    pub fn try_next(&mut self) -> Option<Bytes> {
        self.0.lock().frames.pop_front()
    }

    /// Tells the senders that so many bytes have left.
    pub fn written(&mut self, bytes: usize) {
        let mut state = self.0.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        drop(state);
        self.0.drained.notify_waiters();
    }

    pub fn close_reason(&self) -> Option<Close> {
        self.0.lock().close.clone()
    }

    /// Runs a transport's writer, but not much longer than the link is open: a socket that takes nothing any more must
    /// not keep its writer for ever.
    async fn while_open(queue: Arc<Queue>, writer: impl Future<Output = ()>) {
        let given_up = async {
            FrameSink::wait(&queue, |state| state.close.is_some()).await;
            tokio::time::sleep(CLOSE_PATIENCE).await;
        };
        tokio::select! {
            () = writer => {}
            () = given_up => {}
        }
    }

    /// Spawns the task that takes frames from here to the wire.
    fn spawn_writer<F: Future<Output = ()> + Send + 'static>(self, writer: impl FnOnce(Self) -> F) {
        let queue = self.0.clone();
        tokio::spawn(Self::while_open(queue, writer(self)));
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
        state.frames.clear();
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
