//! Times for people.

use outpost_wire::calendar::UtcTime;

/// So many of them, in words.
pub(super) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// How long ago, in one unit.
pub(crate) fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A time in UTC, to the second.
pub(super) fn utc(ms: u64) -> String {
    UtcTime::of(ms).to_string()
}
