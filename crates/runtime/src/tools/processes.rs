//! The commands of a thread that run or ran, across calls and turns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{ProcessEvent, RemoteProcess};
use outpost_thread::{CallId, ThreadId};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::output::{HeadTail, Shown};
use crate::feed::Feed;
use crate::live::Event;

/// At most so many commands of one thread are kept alive between calls; beyond that the one that was longest untouched goes.
const MOST: usize = 64;

/// How long output is waited for after a command has exited: something it left behind may hold its output open.
const TAIL: Duration = Duration::from_millis(250);

pub struct Processes {
    thread: ThreadId,
    feed: Arc<Feed<Event>>,
    kept: Mutex<HashMap<u64, Arc<Running>>>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    /// Nobody knows.
    Lost(String),
}

/// A command that was started or found again.
pub struct Running {
    pub process: Arc<RemoteProcess>,
    pub call: CallId,
    started: Instant,
    touched: Mutex<Instant>,
    /// Output that no call has shown yet.
    fresh: Arc<Mutex<HeadTail>>,
    end: watch::Receiver<Option<End>>,
    _reader: AbortOnDropHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processes {
    pub fn new(thread: ThreadId, feed: Arc<Feed<Event>>) -> Self {
        Self { thread, feed, kept: Mutex::default() }
    }

    /// The name of a call's process: the same call has the same name after every restart.
    pub fn name(&self, call: &CallId) -> String {
        format!("{}/{}", self.thread, call.as_str())
    }

    /// Reads a command's output from now on.
    pub fn follow(&self, call: CallId, process: RemoteProcess) -> Arc<Running> {
        let process = Arc::new(process);
        let fresh = Arc::new(Mutex::new(HeadTail::default()));
        let (sender, end) = watch::channel(None);
        let (reading, filling, feed, named) = (process.clone(), fresh.clone(), self.feed.clone(), call.clone());
        let reader = tokio::spawn(async move {
            let ended = read(&reading, &filling, &sender, |bytes| {
                let weight = bytes.len();
                feed.publish(Event::Output { call: named.clone(), bytes }, weight);
            })
            .await;
            let exit_code = if let End::Exited(code) = &ended { Some(*code) } else { None };
            sender.send_replace(Some(ended));
            feed.publish(Event::ProcessEnded { call: named, exit_code }, 64);
        });
        let now = Instant::now();
        let reader = AbortOnDropHandle::new(reader);
        Arc::new(Running { process, call, started: now, touched: Mutex::new(now), fresh, end, _reader: reader })
    }

    /// Keeps a command that outlives its call. Returns one that had to go for it.
    pub fn keep(&self, session: u64, running: Arc<Running>) -> Option<Arc<Running>> {
        let mut kept = lock(&self.kept);
        kept.insert(session, running);
        if kept.len() <= MOST {
            return None;
        }
        let ended = |running: &Arc<Running>| running.end.borrow().is_some();
        let oldest = kept.iter().filter(|(own, _)| **own != session).min_by_key(|(_, running)| (!ended(running), *lock(&running.touched)));
        let oldest = oldest.map(|(session, _)| *session)?;
        kept.remove(&oldest)
    }

    pub fn get(&self, session: u64) -> Option<Arc<Running>> {
        lock(&self.kept).get(&session).cloned()
    }

    pub fn forget(&self, session: u64) {
        lock(&self.kept).remove(&session);
    }

    /// Whether a command still runs behind a session id.
    pub fn has_running(&self) -> bool {
        lock(&self.kept).values().any(|running| running.end().is_none())
    }

    /// Ends everything that is still running.
    pub async fn terminate_all(&self) {
        let all: Vec<Arc<Running>> = lock(&self.kept).drain().map(|(_, running)| running).collect();
        for running in all.iter().filter(|running| running.end().is_none()) {
            let _ = tokio::time::timeout(Duration::from_secs(2), running.process.terminate()).await;
        }
    }
}

/// Reads until there is nothing more to read.
async fn read(process: &RemoteProcess, fresh: &Mutex<HeadTail>, told: &watch::Sender<Option<End>>, publish: impl Fn(Bytes)) -> End {
    let mut code = None;
    loop {
        let event = match code {
            None => process.next().await,
            // Daemons that a command left behind may hold its output; nobody waits for them.
            Some(code) => match tokio::time::timeout(TAIL, process.next()).await {
                Ok(event) => event,
                Err(_) => {
                    told.send_replace(Some(End::Exited(code)));
                    process.next().await
                }
            },
        };
        match event {
            Some(ProcessEvent::Output { bytes, .. }) => {
                lock(fresh).push(&bytes);
                publish(bytes);
            }
            Some(ProcessEvent::Gap { bytes }) => lock(fresh).lose(bytes.unwrap_or(1)),
            Some(ProcessEvent::Exited { code: exit, .. }) => code = Some(exit),
            Some(ProcessEvent::Lost { reason }) => return End::Lost(reason),
            Some(ProcessEvent::Closed) | None => {
                return code.map_or_else(|| End::Lost("it ended without an exit code".into()), End::Exited);
            }
        }
    }
}

impl Running {
    pub fn end(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    pub fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until it ends, but not longer than this.
    pub async fn wait(&self, up_to: Duration) -> Option<End> {
        *lock(&self.touched) = Instant::now();
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(up_to, end.wait_for(Option::is_some)).await;
        ended.ok().and_then(Result::ok).and_then(|end| end.clone())
    }

    /// Takes the output that was not shown yet.
    pub fn take(&self, budget_tokens: usize) -> Shown {
        std::mem::take(&mut *lock(&self.fresh)).show(budget_tokens)
    }

    pub fn has_output(&self) -> bool {
        !lock(&self.fresh).is_empty()
    }
}
