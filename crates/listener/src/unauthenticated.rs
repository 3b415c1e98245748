//! Those who have connected but not yet shown who they are: how many there may be, how long they may take, and what a
//! wrong answer costs.
//!
//! This room knows addresses and time. It must not know what a credential is.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What connections are held to.
#[derive(Debug, Clone, Copy)]
pub struct UnauthenticatedLimits {
    /// So many are talked to at once.
    pub count: usize,
    /// How long a connection may take to authenticate.
    pub patience: Duration,
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

impl Default for UnauthenticatedLimits {
    fn default() -> Self {
        Self {
            count: 256,
            patience: Duration::from_secs(10),
            free_failures: 5,
            first_delay: Duration::from_millis(100),
            longest_delay: Duration::from_secs(5),
            forgiven_after: Duration::from_secs(60),
            addresses: 1024,
        }
    }
}

/// All unauthenticated connections, oldest first.
pub struct UnauthenticatedConnections {
    limits: UnauthenticatedLimits,
    inside: Mutex<VecDeque<Arc<UnauthenticatedConnection>>>,
}

struct UnauthenticatedConnection {
    since: Instant,
    gone: CancellationToken,
    /// Where it came from; nothing if that says nothing about who it is.
    address: Option<IpAddr>,
    has_spoken: AtomicBool,
}

/// A connection's place; given back when it is dropped.
pub struct UnauthenticatedSlot {
    connections: Arc<UnauthenticatedConnections>,
    connection: Arc<UnauthenticatedConnection>,
}

impl UnauthenticatedConnections {
    pub fn new(limits: UnauthenticatedLimits) -> Arc<Self> {
        Arc::new(Self { limits, inside: Mutex::default() })
    }

    fn inside(&self) -> MutexGuard<'_, VecDeque<Arc<UnauthenticatedConnection>>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection at once. If all slots are taken, evicts one of the address that holds most of them.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> UnauthenticatedSlot {
        let mut inside = self.inside();
        if inside.len() >= self.limits.count {
            let address = address.map(network);
            // A flooding address evicts its own connections; only for other addresses are all of them examined.
            let is_own = |first: &Arc<UnauthenticatedConnection>| {
                address.is_some() && first.address == address && !first.has_spoken.load(Ordering::Relaxed)
            };
            let victim = if inside.front().is_some_and(is_own) { 0 } else { victim(&inside) };
            inside.remove(victim).into_iter().for_each(|connection| connection.gone.cancel());
        }
        let (since, gone) = (Instant::now(), CancellationToken::new());
        let connection =
            Arc::new(UnauthenticatedConnection { since, gone, address: address.map(network), has_spoken: AtomicBool::new(false) });
        inside.push_back(connection.clone());
        UnauthenticatedSlot { connections: self.clone(), connection }
    }
}

/// Who has to go: the first to come of those who say nothing from where most of those come. If all have said something, the same
/// among all.
fn victim(inside: &VecDeque<Arc<UnauthenticatedConnection>>) -> usize {
    let is_silent = |connection: &&Arc<UnauthenticatedConnection>| !connection.has_spoken.load(Ordering::Relaxed);
    let any_silent = inside.iter().any(|connection| is_silent(&connection));
    let counts = |connection: &&Arc<UnauthenticatedConnection>| !any_silent || is_silent(connection);
    let mut crowds: HashMap<IpAddr, usize> = HashMap::new();
    for address in inside.iter().filter(counts).filter_map(|connection| connection.address) {
        *crowds.entry(address).or_default() += 1;
    }
    // Two from one place are no crowd.
    let crowd = crowds.into_iter().filter(|(_, count)| *count > 1).max_by_key(|(_, count)| *count).map(|(address, _)| address);
    let is_of_crowd = |connection: &&Arc<UnauthenticatedConnection>| crowd.is_none() || connection.address == crowd;
    inside.iter().position(|connection| counts(&connection) && is_of_crowd(&connection)).unwrap_or(0)
}

impl UnauthenticatedSlot {
    /// A new slot for a connection that was evicted although it had sent data that was not read yet.
    pub fn again(&self) -> Self {
        let slot = self.connections.admit(self.connection.address);
        slot.speaks();
        slot
    }

    /// It has said something; those who have not go before it.
    pub fn speaks(&self) {
        self.connection.has_spoken.store(true, Ordering::Relaxed);
    }

    /// Ends when the connection has taken too long, or has to make room.
    pub async fn over(&self) {
        tokio::select! {
            () = self.connection.gone.cancelled() => {}
            () = sleep_until(self.connection.since + self.connections.limits.patience) => {}
        }
    }
}

impl Drop for UnauthenticatedSlot {
    fn drop(&mut self) {
        self.connections.inside().retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

/// From which addresses wrong credentials came.
pub struct Failures {
    limits: UnauthenticatedLimits,
    records: Mutex<HashMap<IpAddr, Record>>,
}

struct Record {
    count: u32,
    last: Instant,
}

impl Failures {
    pub fn new(limits: UnauthenticatedLimits) -> Self {
        Self { limits, records: Mutex::default() }
    }

    /// Notes a failure, and says how long its answer is to be held back.
    ///
    /// Only failed attempts are delayed. A client with the right credential gets in at once, also from an address that others
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

/// Addresses that count as one: a host with an IPv6 address usually has a whole /64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> UnauthenticatedLimits {
        UnauthenticatedLimits { count: 2, addresses: 2, ..UnauthenticatedLimits::default() }
    }

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn is_gone(slot: &UnauthenticatedSlot) -> bool {
        slot.connection.gone.is_cancelled()
    }

    #[tokio::test]
    async fn who_is_silent_and_one_of_a_crowd_gives_way() {
        let connections = UnauthenticatedConnections::new(UnauthenticatedLimits { count: 4, ..limits() });
        let other = connections.admit(from(2));
        let crowd: Vec<UnauthenticatedSlot> = (0..3).map(|_| connections.admit(from(1))).collect();
        crowd[0].speaks();
        let next = connections.admit(from(1));
        assert!(is_gone(&crowd[1]), "the first of the crowd that says nothing");
        assert!(!is_gone(&other) && !is_gone(&crowd[0]) && !is_gone(&crowd[2]) && !is_gone(&next));
        // It is told, long before its time would have been over.
        assert!(tokio::time::timeout(limits().patience / 2, crowd[1].over()).await.is_ok());
        assert_eq!(connections.inside().len(), 4);
        let back = crowd[1].again();
        assert!(!is_gone(&back) && is_gone(&crowd[2]), "who had spoken after all comes back");
        drop((crowd, back));
        assert_eq!(connections.inside().len(), 2, "a place that was taken is not given back twice");
    }

    /// Behind a balancer all clients have the same address.
    #[tokio::test]
    async fn those_of_whom_nothing_is_known_are_no_crowd() {
        let connections = UnauthenticatedConnections::new(limits());
        let (first, second) = (connections.admit(None), connections.admit(None));
        let third = connections.admit(None);
        assert!(is_gone(&first) && !is_gone(&second) && !is_gone(&third));
        second.speaks();
        third.speaks();
        let _fourth = connections.admit(None);
        assert!(is_gone(&second), "one of them is evicted");
    }

    #[tokio::test]
    async fn every_slot_expires() {
        let connections = UnauthenticatedConnections::new(UnauthenticatedLimits { patience: Duration::from_millis(10), ..limits() });
        connections.admit(None).over().await;
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
