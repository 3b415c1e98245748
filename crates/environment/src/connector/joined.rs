//! Executors that dial in: their links wait here until one is needed.
//!
//! Such an executor always has one link more out than is in use. A connecting environment takes one that waits, and the executor
//! dials the next. A link that waits is read, so that its heartbeats are answered and its end is noticed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::StreamExt;
use outpost_rpc::{Close, Link};
use tokio::sync::{Notify, oneshot};

/// An executor never needs to have so many waiting; more of them are an error of its own.
const MOST_WAITING: usize = 8;

/// Where links wait until they are taken, in the order in which they came.
#[derive(Default)]
pub(super) struct LinkQueue {
    waiting: Mutex<VecDeque<Waiting>>,
    came: Notify,
    /// An executor has dialled in, now or in a previous run of this program.
    is_known: AtomicBool,
}

/// A link that its own task reads until it is claimed.
struct Waiting {
    claim: oneshot::Sender<()>,
    link: oneshot::Receiver<Link>,
}

impl Waiting {
    fn new(mut link: Link) -> Self {
        let (claim, claimed) = oneshot::channel();
        let (give, given) = oneshot::channel();
        let sink = link.tx.clone();
        tokio::spawn(async move {
            tokio::select! {
                // First come, first served; a link that ended meanwhile is not handed out.
                biased;
                frame = link.rx.next() => {
                    let spoke = matches!(frame, Some(Ok(_)));
                    let (code, why) = if spoke { (Close::PROTOCOL, "an executor speaks only when it is asked") } else { (Close::NORMAL, "") };
                    // Others may hold the sink, and must not keep the socket open.
                    link.tx.close(Close::new(code, why));
                }
                claimed = claimed => if claimed.is_ok() {
                    let _ = give.send(link);
                },
                () = sink.closed() => {}
            }
        });
        Self { claim, link: given }
    }

    fn is_there(&self) -> bool {
        !self.claim.is_closed()
    }

    /// Nothing if it ended meanwhile.
    async fn take(self) -> Option<Link> {
        self.claim.send(()).ok()?;
        self.link.await.ok()
    }
}

impl LinkQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a link and takes it.
    pub(super) async fn take(&self) -> Link {
        loop {
            self.filled().await;
            let first = self.lock().pop_front();
            if let Some(first) = first
                && let Some(link) = first.take().await
            {
                return link;
            }
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    fn count(&self) -> usize {
        let mut waiting = self.lock();
        waiting.retain(Waiting::is_there);
        waiting.len()
    }

    /// Waits until a link is free.
    pub(super) async fn filled(&self) {
        loop {
            let mut came = std::pin::pin!(self.came.notified());
            came.as_mut().enable();
            if self.count() > 0 {
                return;
            }
            came.await;
        }
    }
}

/// Where links are handed in. It does not keep the environment alive.
#[derive(Clone)]
pub struct JoinedLinks(Weak<LinkQueue>);

/// The link was not taken; it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefused {
    #[error("the environment that this executor joins is gone")]
    Gone,
    #[error("{MOST_WAITING} links of this executor wait already")]
    Crowded,
}

impl JoinedLinks {
    pub(super) fn new(slot: &Arc<LinkQueue>) -> Self {
        Self(Arc::downgrade(slot))
    }

    /// Hands in a link to an executor, for the next caller that needs one.
    pub fn hand_in(&self, link: Link) -> Result<(), LinkRefused> {
        let refused = |link: Link, refusal: LinkRefused| {
            link.tx.close(Close::new(Close::NORMAL, refusal.to_string()));
            Err(refusal)
        };
        let Some(slot) = self.0.upgrade() else { return refused(link, LinkRefused::Gone) };
        if slot.count() >= MOST_WAITING {
            return refused(link, LinkRefused::Crowded);
        }
        slot.is_known.store(true, Ordering::Relaxed);
        slot.lock().push_back(Waiting::new(link));
        slot.came.notify_waiters();
        Ok(())
    }

    /// Notes that its executor has dialled in before.
    pub fn know(&self) {
        if let Some(slot) = self.0.upgrade() {
            slot.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an executor has ever dialled in.
    pub fn is_known(&self) -> bool {
        self.0.upgrade().is_some_and(|slot| slot.is_known())
    }

    /// How many links wait to be taken.
    pub fn waiting(&self) -> usize {
        self.0.upgrade().map_or(0, |slot| slot.count())
    }

    /// Waits for a link and takes it for a caller other than the environment. Never ends once the environment is gone.
    pub async fn take(&self) -> Link {
        match self.0.upgrade() {
            Some(slot) => slot.take().await,
            None => std::future::pending().await,
        }
    }
}
