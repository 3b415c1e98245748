//! Those who have connected but not yet shown who they are: how many there may be, how long they may take, and what a
//! wrong answer costs.
//!
//! This room knows addresses and time. It must not know what a credential is.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What strangers are held to.
#[derive(Debug, Clone, Copy)]
pub struct StrangerLimits {
    /// So many are talked to at once.
    pub count: usize,
    /// How long anybody may take from connecting to being let in.
    pub patience: Duration,
    /// When there is no room, whoever has been there for so long makes room for the next one.
    pub quiet: Duration,
    /// So many wrong credentials from one address are answered at once.
    pub free_failures: u32,
    /// How long the first answer after those takes; it doubles with every further one.
    pub first_delay: Duration,
    pub longest_delay: Duration,
    /// An address from which nothing wrong came for so long has a clean record.
    pub forgiven_after: Duration,
    /// So many addresses are remembered.
    pub addresses: usize,
}

impl Default for StrangerLimits {
    fn default() -> Self {
        Self {
            count: 64,
            patience: Duration::from_secs(10),
            quiet: Duration::from_millis(250),
            free_failures: 5,
            first_delay: Duration::from_millis(100),
            longest_delay: Duration::from_secs(5),
            forgiven_after: Duration::from_secs(60),
            addresses: 1024,
        }
    }
}

/// Everybody who is being asked who they are, in the order in which they came.
pub struct Strangers {
    limits: StrangerLimits,
    inside: Mutex<VecDeque<Arc<Stranger>>>,
    /// Somebody left.
    left: Notify,
}

struct Stranger {
    since: Instant,
    gone: CancellationToken,
}

/// A stranger's place; given back when it is dropped.
pub struct Slot {
    strangers: Arc<Strangers>,
    stranger: Arc<Stranger>,
}

impl Strangers {
    pub fn new(limits: StrangerLimits) -> Arc<Self> {
        Arc::new(Self { limits, inside: Mutex::default(), left: Notify::new() })
    }

    fn inside(&self) -> MutexGuard<'_, VecDeque<Arc<Stranger>>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. A crowd that says nothing does not keep others out: whoever came first gives way, but not
    /// before there was time for an honest answer.
    pub async fn admit(self: &Arc<Self>) -> Slot {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            match self.place() {
                Ok(slot) => return slot,
                Err(until) => {
                    tokio::select! {
                        () = left => {}
                        () = sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// A place, or when there will be one at the latest.
    fn place(self: &Arc<Self>) -> Result<Slot, Instant> {
        let mut inside = self.inside();
        if inside.len() >= self.limits.count
            && let Some(first) = inside.front()
        {
            let until = first.since + self.limits.quiet;
            if Instant::now() < until {
                return Err(until);
            }
            first.gone.cancel();
            inside.pop_front();
        }
        let stranger = Arc::new(Stranger { since: Instant::now(), gone: CancellationToken::new() });
        inside.push_back(stranger.clone());
        Ok(Slot { strangers: self.clone(), stranger })
    }
}

impl Slot {
    /// Ends when the stranger has taken too long, or has to make room.
    pub async fn over(&self) {
        tokio::select! {
            () = self.stranger.gone.cancelled() => {}
            () = sleep_until(self.stranger.since + self.strangers.limits.patience) => {}
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.strangers.inside().retain(|other| !Arc::ptr_eq(other, &self.stranger));
        self.strangers.left.notify_one();
    }
}

/// From which addresses wrong credentials came.
pub struct Failures {
    limits: StrangerLimits,
    records: Mutex<HashMap<IpAddr, Record>>,
}

struct Record {
    count: u32,
    last: Instant,
}

impl Failures {
    pub fn new(limits: StrangerLimits) -> Self {
        Self { limits, records: Mutex::default() }
    }

    /// Notes a failure, and says how long its answer is to be held back.
    ///
    /// Only wrong answers wait. Somebody with the right credential gets in at once, also from an address that others
    /// misuse; guessing is hopeless because of what a token holds, not because of this delay.
    pub fn note(&self, address: IpAddr, now: Instant) -> Duration {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let address = network(address);
        if !records.contains_key(&address) && records.len() >= self.limits.addresses {
            let stalest = records.iter().min_by_key(|(_, record)| record.last).map(|(address, _)| *address);
            stalest.map(|stalest| records.remove(&stalest));
        }
        let record = records.entry(address).or_insert(Record { count: 0, last: now });
        if now.duration_since(record.last) >= self.limits.forgiven_after {
            record.count = 0;
        }
        record.count = record.count.saturating_add(1);
        record.last = now;
        self.delay(record.count)
    }

    fn delay(&self, count: u32) -> Duration {
        match count.checked_sub(self.limits.free_failures + 1) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
                self.limits.first_delay.saturating_mul(factor).min(self.limits.longest_delay)
            }
        }
    }
}

/// One household: whoever has an IPv6 address usually has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> StrangerLimits {
        StrangerLimits { count: 2, addresses: 2, ..StrangerLimits::default() }
    }

    #[tokio::test]
    async fn who_came_first_gives_way_but_not_at_once() {
        let strangers = Strangers::new(limits());
        let (first, second) = (strangers.admit().await, strangers.admit().await);
        let began = Instant::now();
        let _third = strangers.admit().await;
        assert!(began.elapsed() >= limits().quiet - Duration::from_millis(20));
        // It is told, long before its time would have been over.
        assert!(tokio::time::timeout(limits().patience / 2, first.over()).await.is_ok() && strangers.inside().len() == 2);
        drop(first);
        assert_eq!(strangers.inside().len(), 2, "a place that was taken is not given back twice");
        drop(second);
        assert_eq!(strangers.inside().len(), 1);
        let _fourth = strangers.admit().await;
        assert_eq!(strangers.inside().len(), 2);
    }

    #[tokio::test]
    async fn nobody_stays_for_ever() {
        let strangers = Strangers::new(StrangerLimits { patience: Duration::from_millis(10), ..limits() });
        strangers.admit().await.over().await;
    }

    #[test]
    fn the_delay_grows_and_is_forgiven() {
        let (failures, now) = (Failures::new(limits()), Instant::now());
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let delays: Vec<_> = (0..14).map(|_| failures.note(one, now).as_millis()).collect();
        assert_eq!(delays, [0, 0, 0, 0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(failures.note(other, now), Duration::ZERO);
        assert_eq!(failures.note(one, now + limits().forgiven_after), Duration::ZERO);
    }

    #[test]
    fn the_table_is_bounded() {
        let failures = Failures::new(limits());
        for byte in 0..=255 {
            failures.note(IpAddr::from([10, 0, 0, byte]), Instant::now());
        }
        assert_eq!(failures.records.lock().unwrap().len(), 2);
        let neighbours = ["2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1"].map(|text| network(text.parse().unwrap()));
        assert!(neighbours[0] == neighbours[1] && neighbours[0] != neighbours[2]);
    }
}
