//! A log of events in memory, and any number of readers who each have their own place in it.
//!
//! Writers never wait. The log keeps the last events up to a number and a weight; a reader who falls behind that is
//! told how many events it missed, and can read what was durable among them from the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How much a feed remembers.
#[derive(Debug, Clone, Copy)]
pub struct FeedLimits {
    pub events: usize,
    pub weight: usize,
}

impl Default for FeedLimits {
    fn default() -> Self {
        Self { events: 1024, weight: 1 << 20 }
    }
}

/// The writing side. Readers outlive it; they then read what is left and see the end.
pub struct ThreadFeed<E>(Arc<Shared<E>>);

struct Shared<E> {
    log: Mutex<Log<E>>,
    news: Notify,
    readers: AtomicUsize,
    mark: AtomicU64,
    /// The last reader has gone.
    left: Notify,
}

struct Log<E> {
    events: VecDeque<(E, usize)>,
    /// The number of the first event that is kept.
    first: u64,
    weight: usize,
    limits: FeedLimits,
    ended: bool,
}

/// One reader.
pub struct FeedReader<E> {
    shared: Arc<Shared<E>>,
    next: u64,
}

/// What a reader reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read<E> {
    Event(E),
    /// So many events were missed because they were not read in time.
    Missed(u64),
    End,
}

impl<E: Clone> ThreadFeed<E> {
    pub fn new(limits: FeedLimits) -> Self {
        let log = Log { events: VecDeque::new(), first: 0, weight: 0, limits, ended: false };
        Self(Arc::new(Shared {
            log: Mutex::new(log),
            news: Notify::new(),
            readers: AtomicUsize::new(0),
            mark: AtomicU64::new(0),
            left: Notify::new(),
        }))
    }

    /// Adds an event; its weight is about how many bytes it takes. Returns its number.
    pub fn publish(&self, event: E, weight: usize) -> u64 {
        let mut log = self.0.lock();
        log.events.push_back((event, weight));
        log.weight += weight;
        while log.events.len() > 1 && (log.events.len() > log.limits.events || log.weight > log.limits.weight) {
            let dropped = log.events.pop_front().map_or(0, |(_, weight)| weight);
            log.weight -= dropped;
            log.first += 1;
        }
        let number = log.first + log.events.len() as u64 - 1;
        drop(log);
        self.0.news.notify_waiters();
        number
    }

    /// A reader of everything that comes from now on.
    pub fn subscribe(&self) -> FeedReader<E> {
        let log = self.0.lock();
        let next = log.first + log.events.len() as u64;
        drop(log);
        self.cursor(next)
    }

    /// A reader of everything that is still remembered and of what comes.
    pub fn replay(&self) -> FeedReader<E> {
        let next = self.0.lock().first;
        self.cursor(next)
    }

    /// A reader that goes on at a number, be it forgotten or yet to come.
    pub fn replay_from(&self, number: u64) -> FeedReader<E> {
        self.cursor(number)
    }
}

impl<E> ThreadFeed<E> {
    fn cursor(&self, next: u64) -> FeedReader<E> {
        self.0.readers.fetch_add(1, Ordering::AcqRel);
        FeedReader { shared: self.0.clone(), next }
    }

    /// Marks how far what is durable has come. Set after the event that it is about is published.
    pub fn set_mark(&self, mark: u64) {
        self.0.mark.store(mark, Ordering::Release);
    }

    pub fn mark(&self) -> u64 {
        self.0.mark.load(Ordering::Acquire)
    }

    /// Whether it has readers.
    pub fn has_readers(&self) -> bool {
        self.0.readers.load(Ordering::Acquire) > 0
    }

    /// Waits until it has no readers.
    pub async fn left(&self) {
        loop {
            let left = self.0.left.notified();
            if !self.has_readers() {
                return;
            }
            left.await;
        }
    }

    /// Nothing comes after this.
    pub fn end(&self) {
        self.0.lock().ended = true;
        self.0.news.notify_waiters();
    }
}

impl<E> Drop for ThreadFeed<E> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<E> Drop for FeedReader<E> {
    fn drop(&mut self) {
        if self.shared.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.left.notify_waiters();
        }
    }
}

impl<E> Shared<E> {
    fn lock(&self) -> MutexGuard<'_, Log<E>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone> FeedReader<E> {
    /// The number of the event that it reads next.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The next event, as soon as there is one.
    pub async fn next(&mut self) -> Read<E> {
        let shared = self.shared.clone();
        loop {
            // Registered before looking, so that nothing is missed in between.
            let news = shared.news.notified();
            if let Some(read) = self.try_next() {
                return read;
            }
            news.await;
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<Read<E>> {
        let log = self.shared.lock();
        if self.next < log.first {
            let missed = log.first - self.next;
            self.next = log.first;
            return Some(Read::Missed(missed));
        }
        match log.events.get(usize::try_from(self.next - log.first).unwrap_or(usize::MAX)) {
            Some((event, _)) => {
                self.next += 1;
                Some(Read::Event(event.clone()))
            }
            None => log.ended.then_some(Read::End),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(cursor: &mut FeedReader<u32>) -> Vec<Read<u32>> {
        std::iter::from_fn(|| cursor.try_next()).take(100).collect()
    }

    #[test]
    fn every_reader_has_its_own_place() {
        let feed = ThreadFeed::new(FeedLimits::default());
        let mut early = feed.subscribe();
        assert_eq!((feed.publish(1, 1), feed.publish(2, 1)), (0, 1));
        let mut late = feed.subscribe();
        feed.publish(3, 1);
        assert_eq!(drain(&mut early), [Read::Event(1), Read::Event(2), Read::Event(3)]);
        assert_eq!(drain(&mut late), [Read::Event(3)]);
        assert_eq!(drain(&mut feed.replay()), [Read::Event(1), Read::Event(2), Read::Event(3)]);
        let mut rest = feed.replay_from(2);
        assert_eq!((drain(&mut rest), rest.position()), (vec![Read::Event(3)], 3));
    }

    #[test]
    fn a_slow_reader_is_told_and_delays_no_other() {
        let feed = ThreadFeed::new(FeedLimits { events: 3, weight: 1000 });
        let mut slow = feed.subscribe();
        for n in 0..10 {
            feed.publish(n, 1);
        }
        assert_eq!(drain(&mut slow), [Read::Missed(7), Read::Event(7), Read::Event(8), Read::Event(9)]);
        let heavy = ThreadFeed::new(FeedLimits { events: 100, weight: 10 });
        let mut slow = heavy.subscribe();
        for n in 0..4 {
            heavy.publish(n, 6);
        }
        assert_eq!(drain(&mut slow), [Read::Missed(3), Read::Event(3)]);
    }

    #[tokio::test]
    async fn a_reader_waits_and_sees_the_end() {
        let feed = ThreadFeed::new(FeedLimits::default());
        let mut cursor = feed.subscribe();
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            loop {
                match cursor.next().await {
                    Read::End => return all,
                    read => all.push(read),
                }
            }
        });
        tokio::task::yield_now().await;
        feed.publish(1, 1);
        tokio::task::yield_now().await;
        feed.publish(2, 1);
        drop(feed);
        assert_eq!(reading.await.unwrap(), [Read::Event(1), Read::Event(2)]);
    }
}
