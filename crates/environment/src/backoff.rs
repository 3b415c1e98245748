//! How long to wait before the next attempt.

use std::time::Duration;

/// The bounds of a growing wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    pub first: Duration,
    pub longest: Duration,
}

/// Doubles from the first to the longest; each wait is shortened by up to a half, so that many clients of one executor do
/// not come back in step.
pub struct Backoff {
    bounds: Waits,
    next: Duration,
    seed: u64,
}

impl Backoff {
    pub fn new(bounds: Waits, seed: u64) -> Self {
        Self { bounds, next: bounds.first, seed }
    }

    /// As if nothing had been waited for yet.
    pub fn reset(&mut self) {
        self.next = self.bounds.first;
    }

    pub fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.bounds.longest);
        // A few steps of a linear congruence are random enough to spread clients.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (self.seed >> 33) as f64 / f64::from(u32::MAX);
        whole.mul_f64(1.0 - share.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Waits = Waits { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

    #[test]
    fn waits_grow_stay_bounded_and_differ() {
        let mut backoff = Backoff::new(BOUNDS, 7);
        let waits: Vec<Duration> = (0..20).map(|_| backoff.wait()).collect();
        assert!(waits[0] <= BOUNDS.first && waits[0] >= BOUNDS.first / 2);
        assert!(waits.iter().all(|wait| *wait <= BOUNDS.longest));
        assert!(waits[15..].iter().all(|wait| *wait >= BOUNDS.longest / 2));
        assert_ne!(Backoff::new(BOUNDS, 1).wait(), Backoff::new(BOUNDS, u64::MAX / 3).wait());
        backoff.reset();
        assert!(backoff.wait() <= BOUNDS.first);
    }
}
