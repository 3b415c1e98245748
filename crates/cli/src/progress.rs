//! A line that shows how far a copy, an import or an install is.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost_environment::TransferProgress;
use rustix::termios::tcgetwinsize;
use tokio_util::task::AbortOnDropHandle;

const EVERY: Duration = Duration::from_millis(100);
const CLEAR: &str = "\r\x1b[K";

/// Drawn on standard error while it lives; gone without a trace when dropped.
pub(crate) struct ProgressBar {
    _task: AbortOnDropHandle<()>,
}

impl ProgressBar {
    /// Nothing without a terminal, or where the user wants nothing to be drawn anew.
    pub(crate) fn start(progress: Arc<TransferProgress>, label: String) -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_plain = std::env::var_os("OUTPOST_PLAIN").is_some_and(|value| !value.is_empty());
        if !std::io::stderr().is_terminal() || is_dumb || is_plain {
            return None;
        }
        let label = crate::frame::word(&label);
        let task = tokio::spawn(async move {
            let start = Instant::now();
            loop {
                draw(&progress, &label, start.elapsed());
                tokio::time::sleep(EVERY).await;
            }
        });
        Some(Self { _task: AbortOnDropHandle::new(task) })
    }
}

impl ProgressBar {
    /// Says something else meanwhile, in a line of its own.
    pub(crate) fn aside<T>(&self, say: impl FnOnce() -> T) -> T {
        let mut out = std::io::stderr().lock();
        let _ = write!(out, "{CLEAR}").and_then(|()| out.flush());
        say()
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        let _ = write!(std::io::stderr(), "{CLEAR}");
    }
}

fn draw(progress: &TransferProgress, label: &str, elapsed: Duration) {
    let (done, total) = progress.bytes();
    let columns = tcgetwinsize(std::io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20));
    let line = line(done, total, elapsed, label, columns - 1);
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "{CLEAR}{line}").and_then(|()| out.flush());
}

/// As much of it as fits, the most telling first.
fn line(done: u64, total: u64, elapsed: Duration, label: &str, columns: usize) -> String {
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let percent = (done.min(total) * 100).checked_div(total).unwrap_or(0);
    let left = match rate {
        0 => "--:--".to_owned(),
        rate => clock(total.saturating_sub(done) / rate),
    };
    let figures = format!("{percent:>3}% {:>9} {:>9}/s {left}", size(done), size(rate));
    let bar_width = 20;
    let mut text = figures.clone();
    if columns >= figures.len() + bar_width + 3 {
        let filled = usize::try_from(percent).unwrap_or_default() * bar_width / 100;
        text = format!("[{}{}] {figures}", "#".repeat(filled), " ".repeat(bar_width - filled));
    }
    if columns > text.len() + 8 {
        let room = columns - text.len() - 1;
        let label: String = label.chars().take(room).collect();
        text = format!("{label} {text}");
    }
    text.chars().take(columns).collect()
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

fn clock(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes:02}:{seconds:02}"),
        (hours @ 1..100, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => "--:--".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_tells_the_share_the_rate_and_what_remains() {
        let half = line(50 * MIB, 100 * MIB, Duration::from_secs(10), "big", 79);
        assert_eq!(half, "big [##########          ]  50%  50.0 MiB   5.0 MiB/s 00:10");
        let hours = line(MIB, 100 * 1024 * MIB, Duration::from_secs(10), "big", 79);
        assert!(hours.ends_with(" 102.4 KiB/s --:--"), "{hours}");
        let begun = line(0, 100 * MIB, Duration::ZERO, "big", 79);
        assert!(begun.contains("  0%") && begun.ends_with("--:--"), "{begun}");
        assert!(line(MIB, MIB, Duration::from_secs(1), "big", 79).ends_with(" 100%   1.0 MiB   1.0 MiB/s 00:00"));
        assert_eq!((clock(61), clock(3661), size(1023)), ("01:01".into(), "1:01:01".into(), "1023 B".into()));
    }

    #[test]
    fn it_fits_the_screen_and_the_figures_go_last() {
        for columns in 5..120 {
            let drawn = line(50 * MIB, 100 * MIB, Duration::from_secs(10), "a-name-that-is-longer-than-most-screens-are-wide", columns);
            assert!(drawn.chars().count() <= columns, "{columns}: {drawn}");
            assert_eq!(drawn.contains("5.0 MiB/s 00:10"), columns >= 32, "{columns}: {drawn}");
        }
    }
}
