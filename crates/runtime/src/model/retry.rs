//! Whether a failed request is made again, and when.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::{ModelError, Provider};

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// A provider that asks for more patience than this gets none: the user is told instead.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// The attempts of one step.
pub(super) struct Tries {
    requests: Count,
    streams: Count,
    seed: u64,
}

struct Count {
    made: u32,
    most: u32,
}

/// Another attempt.
#[derive(Debug, PartialEq)]
pub(super) struct Again {
    pub attempt: u32,
    pub of: u32,
    pub wait: Duration,
}

impl Tries {
    /// The salt makes the waits of this step unlike those of others.
    pub(super) fn new(provider: &Provider, salt: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        Self {
            requests: Count { made: 0, most: provider.request_max_retries.min(100) },
            streams: Count { made: 0, most: provider.stream_max_retries.min(100) },
            seed: hasher.finish(),
        }
    }

    /// What to do about a failure; nothing if it would only fail again.
    pub(super) fn after(&mut self, error: &ModelError) -> Option<Again> {
        let (count, asked) = match error {
            ModelError::Unreachable { .. } => (&mut self.requests, None),
            ModelError::Busy { retry_after_ms, .. } => (&mut self.requests, retry_after_ms.map(Duration::from_millis)),
            ModelError::Cut { .. } | ModelError::Silent { .. } => (&mut self.streams, None),
            ModelError::Provider(_)
            | ModelError::Refused { .. }
            | ModelError::ThoughtsRefused { .. }
            | ModelError::ContextExceeded { .. }
            | ModelError::Nonsense { .. }
            | ModelError::NotAStream { .. } => {
                return None;
            }
        };
        if count.made >= count.most || asked.is_some_and(|asked| asked > LONGEST_ASKED) {
            return None;
        }
        let doubled = FIRST.saturating_mul(1 << count.made.min(16)).min(LONGEST);
        count.made += 1;
        // A few steps of a linear congruence are random enough to spread clients.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (self.seed >> 33) as f64 / f64::from(u32::MAX);
        let wait = asked.unwrap_or(doubled).mul_f64(1.0 + share.clamp(0.0, 1.0) / 10.0);
        Some(Again { attempt: count.made, of: count.most, wait })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::built_in;

    fn busy(retry_after_ms: Option<u64>) -> ModelError {
        ModelError::Busy { provider: "x".into(), status: 429, message: String::new(), retry_after_ms }
    }

    #[test]
    fn requests_and_streams_are_counted_apart() {
        let mut tries = Tries::new(&built_in()["openai"], "a");
        let cut = ModelError::Cut { provider: "x".into(), reason: "".into() };
        let waits: Vec<_> = std::iter::from_fn(|| tries.after(&busy(None))).collect();
        assert_eq!(waits.iter().map(|again| (again.attempt, again.of)).collect::<Vec<_>>(), [(1, 4), (2, 4), (3, 4), (4, 4)]);
        assert!(waits.windows(2).all(|pair| pair[1].wait > pair[0].wait));
        assert_eq!(std::iter::from_fn(|| tries.after(&cut)).count(), 5);
    }

    #[test]
    fn a_wait_that_is_asked_for_is_kept_unless_it_is_endless() {
        let mut tries = Tries::new(&built_in()["openai"], "a");
        let again = tries.after(&busy(Some(1500))).unwrap();
        assert!(again.wait >= Duration::from_millis(1500) && again.wait <= Duration::from_millis(1650));
        assert_eq!(tries.after(&busy(Some(3_600_000))), None);
    }

    #[test]
    fn what_would_fail_again_is_not_tried_again() {
        let mut tries = Tries::new(&built_in()["openai"], "a");
        let refused = ModelError::Refused { provider: "x".into(), status: 400, message: String::new() };
        assert_eq!(tries.after(&refused), None);
        assert_eq!(tries.after(&ModelError::ContextExceeded { message: String::new() }), None);
    }
}
