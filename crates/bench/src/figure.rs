//! One line per figure: what was measured, what it should reach, and whether it does.

use std::fmt::Write;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One line of the table.
pub(crate) struct Figure {
    pub what: String,
    pub value: String,
    pub reach: &'static str,
    /// Whether the reach is met; none if it is only told.
    pub met: Option<bool>,
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, value: impl Into<String>, reach: &'static str, met: bool) -> Self {
        Self { what: what.into(), value: value.into(), reach, met: Some(met) }
    }

    pub(crate) fn told(what: impl Into<String>, value: impl Into<String>) -> Self {
        Self { what: what.into(), value: value.into(), reach: "", met: None }
    }
}

/// What this process has spent so far, with all its threads.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
pub(crate) fn print(text: &str) {
    println!("{}", text.trim_end());
}

pub(crate) fn table(figures: &[Figure], markdown: bool) -> String {
    let mut text = String::new();
    let wide = |of: fn(&Figure) -> &str| figures.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0);
    let (what, value, reach) = (wide(|figure| &figure.what), wide(|figure| &figure.value), wide(|figure| figure.reach).max(5));
    if markdown {
        text.push_str("| what | measured | reach | |\n|---|---|---|---|\n");
    }
    for figure in figures {
        let met = match figure.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        // Writing into a text cannot fail.
        let _ = if markdown {
            writeln!(text, "| {} | {} | {} | {met} |", figure.what, figure.value, figure.reach)
        } else {
            writeln!(text, "{:what$}  {:>value$}  {:reach$}  {met}", figure.what, figure.value, figure.reach)
        };
    }
    text
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}
