//! The commands of a thread that run or ran, across calls and turns.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{ProcessEvent, RemoteProcess};
use outpost_store::AdoptionKey;
use outpost_thread::{CallId, CallReport, CommandDetail, ThreadId};
use outpost_wire::exec::adoption::{AdoptionClaim, OwnerEpoch};
use outpost_wire::exec::environment::Limit;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::output::{HeadTail, ModelText, SHOWN_LATER_TOKENS};
use crate::denial::Around;
use crate::feed::ThreadFeed;
use crate::live::ThreadEvent;

/// At most so many commands of one thread are kept alive between calls; beyond that the one that was longest untouched goes.
const MOST: usize = 64;

/// How long output is waited for after a command has exited: something it left behind may hold its output open.
const TAIL: Duration = Duration::from_millis(250);

pub struct BackgroundProcesses {
    thread: ThreadId,
    feed: Arc<ThreadFeed<ThreadEvent>>,
    kept: Mutex<HashMap<u64, Arc<RunningCommand>>>,
    /// Every command that is being read, whether or not it outlives its call.
    followed: Mutex<Vec<Weak<RunningCommand>>>,
    /// Under which key and lease commands belong to this thread, once that is known.
    ownership: OnceLock<Ownership>,
}

/// By what a thread shows that a command is its own.
#[derive(Debug, Clone)]
pub struct Ownership {
    pub key: AdoptionKey,
    /// The number of the lease under which the thread is driven.
    pub epoch: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEnd {
    Exited {
        code: i32,
        /// The sandbox kept it from something.
        denied: bool,
        /// What ended it.
        limit: Option<Limit>,
        /// What else its executor has to say.
        notices: Vec<String>,
    },
    /// Unknown.
    Lost(String),
}

/// A command that was started or found again.
pub struct RunningCommand {
    pub process: Arc<RemoteProcess>,
    pub call: CallId,
    pub detail: CommandDetail,
    started: Instant,
    touched: Mutex<Instant>,
    /// Output that no call has shown yet.
    fresh: Arc<Mutex<HeadTail>>,
    /// So many bytes were shown, or left out, so far.
    taken: AtomicU64,
    end: watch::Receiver<Option<ProcessEnd>>,
    /// The sandbox that it runs in, if that is known here.
    around: Option<Box<Around>>,
    _reader: AbortOnDropHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BackgroundProcesses {
    pub fn new(thread: ThreadId, feed: Arc<ThreadFeed<ThreadEvent>>) -> Self {
        Self { thread, feed, kept: Mutex::default(), followed: Mutex::default(), ownership: OnceLock::new() }
    }

    /// The name of a call's process: the same call has the same name after every restart. The place in the journal is part of
    /// it, because some models use the ids of their calls again.
    pub fn name(&self, session: u64, call: &CallId) -> String {
        format!("{}/{session}/{}", self.thread, call.as_str())
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.ownership.get().is_some()
    }

    /// Commands belong to the thread from now on, and not only to the session of this program.
    pub(crate) fn own(&self, ownership: Ownership) {
        // The first lease is the only one of this life.
        let _ = self.ownership.set(ownership);
    }

    /// By what a process of this name is claimed. Nothing where no other program could claim it.
    pub(crate) fn claim(&self, process: &str) -> Option<AdoptionClaim> {
        let Ownership { key, epoch } = self.ownership.get()?;
        Some(AdoptionClaim { secret: key.secret(process), epoch: OwnerEpoch(*epoch) })
    }

    /// The key that claims are made with, by its id.
    pub(crate) fn key_id(&self) -> Option<String> {
        self.ownership.get().map(|ownership| ownership.key.id())
    }

    /// Whether a process with this name belongs to this thread.
    pub fn is_own(&self, process: &str) -> bool {
        process.split('/').next() == Some(self.thread.to_string().as_str())
    }

    /// Reads a command's output from its beginning.
    pub(crate) fn follow(
        &self,
        call: CallId,
        process: RemoteProcess,
        detail: CommandDetail,
        around: Option<Box<Around>>,
    ) -> Arc<RunningCommand> {
        self.follow_from(call, process, 0, (detail, around))
    }

    /// The same without the first bytes of it, which the model has seen.
    pub fn follow_after(&self, call: CallId, process: RemoteProcess, detail: CommandDetail, seen: u64) -> Arc<RunningCommand> {
        self.follow_from(call, process, seen, (detail, None))
    }

    fn follow_from(
        &self,
        call: CallId,
        process: RemoteProcess,
        seen: u64,
        (detail, around): (CommandDetail, Option<Box<Around>>),
    ) -> Arc<RunningCommand> {
        let process = Arc::new(process);
        let fresh = Arc::new(Mutex::new(HeadTail::default()));
        let (sender, end) = watch::channel(None);
        let (reading, filling, feed, named) = (process.clone(), fresh.clone(), self.feed.clone(), call.clone());
        let reader = tokio::spawn(async move {
            let publish = |bytes: Bytes| {
                let weight = bytes.len();
                feed.publish(ThreadEvent::Output { call: named.clone(), bytes }, weight);
            };
            let ended = Reader { process: &reading, fresh: &filling, told: &sender, seen }.read(publish).await;
            let exit_code = if let ProcessEnd::Exited { code, .. } = &ended { Some(*code) } else { None };
            sender.send_replace(Some(ended));
            feed.publish(ThreadEvent::ProcessEnded { call: named, exit_code }, 64);
        });
        let now = Instant::now();
        let reader = AbortOnDropHandle::new(reader);
        let taken = AtomicU64::new(seen);
        let running = Arc::new(RunningCommand {
            process,
            call,
            detail,
            started: now,
            touched: Mutex::new(now),
            fresh,
            taken,
            end,
            around,
            _reader: reader,
        });
        let mut followed = lock(&self.followed);
        followed.retain(|one| one.strong_count() > 0);
        followed.push(Arc::downgrade(&running));
        running
    }

    /// What the command of a call has printed that no call has shown, while the command is still read.
    pub(crate) fn output_so_far(&self, call: &CallId) -> Option<CallReport> {
        let running = lock(&self.followed).iter().rev().filter_map(Weak::upgrade).find(|running| running.call == *call)?;
        let (text, total) = {
            let fresh = lock(&running.fresh);
            (fresh.show(SHOWN_LATER_TOKENS).text, fresh.total())
        };
        (total > 0).then(|| CallReport {
            duration_ms: u64::try_from(running.since_start().as_millis()).ok(),
            aggregated_output: Some(text),
            output_bytes: Some(running.taken() + total),
            ..CallReport::default()
        })
    }

    /// Keeps a command that outlives its call. Returns one that had to go for it.
    pub fn keep(&self, session: u64, running: Arc<RunningCommand>) -> Option<Arc<RunningCommand>> {
        let mut kept = lock(&self.kept);
        kept.insert(session, running);
        if kept.len() <= MOST {
            return None;
        }
        let ended = |running: &Arc<RunningCommand>| running.end.borrow().is_some();
        let oldest = kept.iter().filter(|(own, _)| **own != session).min_by_key(|(_, running)| (!ended(running), *lock(&running.touched)));
        let oldest = oldest.map(|(session, _)| *session)?;
        kept.remove(&oldest)
    }

    pub fn get(&self, session: u64) -> Option<Arc<RunningCommand>> {
        lock(&self.kept).get(&session).cloned()
    }

    pub fn forget(&self, session: u64) {
        lock(&self.kept).remove(&session);
    }

    /// Those that still run, by their session ids.
    pub fn running(&self) -> Vec<(u64, Arc<RunningCommand>)> {
        let kept = lock(&self.kept);
        let mut running: Vec<_> = kept.iter().filter(|(_, one)| one.end().is_none()).map(|(id, one)| (*id, one.clone())).collect();
        running.sort_by_key(|(session, _)| *session);
        running
    }

    /// Whether a command still runs behind a session id.
    pub fn has_running(&self) -> bool {
        lock(&self.kept).values().any(|running| running.end().is_none())
    }

    /// Ends everything that is still running.
    pub async fn terminate_all(&self) {
        let all: Vec<Arc<RunningCommand>> = lock(&self.kept).drain().map(|(_, running)| running).collect();
        for running in all.iter().filter(|running| running.end().is_none()) {
            let _ = tokio::time::timeout(Duration::from_secs(2), running.process.terminate()).await;
        }
    }
}

/// Reads one command.
struct Reader<'a> {
    process: &'a RemoteProcess,
    fresh: &'a Mutex<HeadTail>,
    told: &'a watch::Sender<Option<ProcessEnd>>,
    /// So many of the next bytes have been seen.
    seen: u64,
}

impl Reader<'_> {
    /// Reads until there is nothing more to read.
    async fn read(mut self, publish: impl Fn(Bytes)) -> ProcessEnd {
        let mut exit = None;
        loop {
            let event = match &exit {
                None => self.process.next().await,
                // Daemons that a command left behind may hold its output; they are not waited for.
                Some(end) => match tokio::time::timeout(TAIL, self.process.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.told.send_replace(Some(ProcessEnd::clone(end)));
                        self.process.next().await
                    }
                },
            };
            match event {
                Some(ProcessEvent::Output { bytes, .. }) => {
                    let known = self.skip(bytes.len() as u64);
                    let news = bytes.slice(usize::try_from(known).unwrap_or(usize::MAX).min(bytes.len())..);
                    if !news.is_empty() {
                        lock(self.fresh).push(&news);
                        publish(news);
                    }
                }
                Some(ProcessEvent::Gap { bytes: Some(bytes) }) => {
                    let known = self.skip(bytes);
                    lock(self.fresh).lose(bytes - known);
                }
                Some(ProcessEvent::Gap { bytes: None }) => lock(self.fresh).lose(1),
                Some(ProcessEvent::Exited { code, denied, limit, notices }) => {
                    exit = Some(ProcessEnd::Exited { code, denied, limit, notices })
                }
                Some(ProcessEvent::Lost { reason }) => return ProcessEnd::Lost(reason),
                Some(ProcessEvent::Closed) | None => {
                    return exit.unwrap_or_else(|| ProcessEnd::Lost("it ended without an exit code".into()));
                }
            }
        }
    }

    /// How many of the next so many bytes have been seen already.
    fn skip(&mut self, bytes: u64) -> u64 {
        let known = self.seen.min(bytes);
        self.seen -= known;
        known
    }
}

impl RunningCommand {
    pub(crate) fn around(&self) -> Option<&Around> {
        self.around.as_deref()
    }

    pub fn end(&self) -> Option<ProcessEnd> {
        self.end.borrow().clone()
    }

    pub fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until it ends, but not longer than this.
    pub async fn wait(&self, up_to: Duration) -> Option<ProcessEnd> {
        *lock(&self.touched) = Instant::now();
        let mut end = self.end.clone();
        let ended = tokio::time::timeout(up_to, end.wait_for(Option::is_some)).await;
        ended.ok().and_then(Result::ok).and_then(|end| end.clone())
    }

    /// Takes the output that was not shown yet.
    pub fn take(&self, budget_tokens: usize) -> ModelText {
        let fresh = std::mem::take(&mut *lock(&self.fresh));
        self.taken.fetch_add(fresh.total(), Ordering::Relaxed);
        fresh.show(budget_tokens)
    }

    /// How much of its output was taken so far.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}
