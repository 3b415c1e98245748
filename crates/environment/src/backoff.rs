//! How long to wait before the next attempt.

use std::time::Duration;

/// Doubles from a tenth of a second to five seconds; each wait is shortened by up to a half, so that many clients of one
/// executor do not come back in step.
pub struct Backoff {
    next: Duration,
    seed: u64,
}

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    pub fn new(seed: u64) -> Self {
        Self { next: FIRST, seed }
    }

    pub fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        // A few steps of a linear congruence are random enough to spread clients.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (self.seed >> 33) as f64 / f64::from(u32::MAX);
        whole.mul_f64(1.0 - share.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_stay_bounded_and_differ() {
        let mut backoff = Backoff::new(7);
        let waits: Vec<Duration> = (0..20).map(|_| backoff.wait()).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST / 2);
        assert!(waits.iter().all(|wait| *wait <= LONGEST));
        assert!(waits[15..].iter().all(|wait| *wait >= LONGEST / 2));
        assert_ne!(Backoff::new(1).wait(), Backoff::new(u64::MAX / 3).wait());
    }
}
