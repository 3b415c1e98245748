//! Counts the use of an environment, so that an unused one can be stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Counts calls: how many there were, and how many are under way.
#[derive(Debug, Default)]
pub(crate) struct CallCounter {
    begun: AtomicU64,
    under_way: AtomicUsize,
}

/// A call; it is over when this is dropped.
pub(crate) struct Used(Arc<CallCounter>);

impl CallCounter {
    pub(crate) fn begin(self: &Arc<Self>) -> Used {
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Used(self.clone())
    }

    /// Waits until there was no call for so long, and nothing else that `is_busy` knows of.
    pub(crate) async fn idle_for(&self, time: Duration, is_busy: impl Fn() -> bool) {
        let (mut seen, mut since) = (self.begun.load(Ordering::Acquire), Instant::now());
        loop {
            sleep_until((since + time).min(Instant::now() + time / 4)).await;
            let now = self.begun.load(Ordering::Acquire);
            if now != seen || self.under_way.load(Ordering::Acquire) > 0 || is_busy() {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= time {
                return;
            }
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_keep_it_from_being_idle() {
        let used = Arc::new(CallCounter::default());
        let short = Duration::from_millis(40);
        let call = used.begin();
        let waited = tokio::time::timeout(short * 5, used.idle_for(short, || false)).await;
        assert!(waited.is_err(), "a call is under way");
        drop(call);
        let busy = tokio::time::timeout(short * 5, used.idle_for(short, || true)).await;
        assert!(busy.is_err(), "something else runs");
        used.idle_for(short, || false).await;
    }
}
