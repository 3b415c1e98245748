//! What the sandbox of another machine does not hold, read off the verdict card that its executor sends.

use std::fmt;

use outpost_sandbox::LEVEL;
use outpost_wire::exec::environment::EnvironmentInfo;

/// Promises that do not hold there; at least one.
pub(crate) struct Shortfall<'a> {
    /// The level that holds there; none where sandboxed commands are refused.
    pub level: Option<&'a str>,
    pub missing: Vec<&'a str>,
    /// Why it is not more, and what would raise it.
    pub reason: Option<&'a str>,
}

impl<'a> Shortfall<'a> {
    pub(crate) fn of(info: &'a EnvironmentInfo) -> Option<Self> {
        let missing: Vec<&str> = info.sandbox.iter().filter(|row| !row.holds).map(|row| row.promise.as_str()).collect();
        let level = info.sandbox.iter().find(|row| row.promise == LEVEL && row.holds);
        (!missing.is_empty()).then(|| Self {
            level: level.map(|row| row.mechanism.as_str()),
            missing,
            reason: level.and_then(|row| row.reason.as_deref()),
        })
    }
}

impl fmt::Display for Shortfall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "has the level `{level}`; it does not hold: {}", self.missing.join("; "))?,
            None => write!(f, "refuses commands; it does not hold: {}", self.missing.join("; "))?,
        }
        self.reason.map_or(Ok(()), |reason| write!(f, "; {reason}"))
    }
}
