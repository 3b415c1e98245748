//! What is measured. Every scenario gets a fresh server and returns figures by the names of the table's rows.

mod files;
mod memory;
mod output;
mod starts;
mod trouble;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::contender::{Kind, Server};

pub(crate) type Figures = Vec<(&'static str, f64)>;

pub(crate) struct Scenario {
    pub name: &'static str,
    pub entrants: Entrants,
    pub run: fn(&Server) -> anyhow::Result<Figures>,
}

/// The floor keeps nothing, so it cannot take part where something must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrants {
    All,
    WithRetention,
}

impl Entrants {
    pub(crate) fn admit(self, kind: Kind) -> bool {
        self == Self::All || kind != Kind::Floor
    }
}

const fn all(name: &'static str, run: fn(&Server) -> anyhow::Result<Figures>) -> Scenario {
    Scenario { name, entrants: Entrants::All, run }
}

const fn with_retention(name: &'static str, run: fn(&Server) -> anyhow::Result<Figures>) -> Scenario {
    Scenario { name, entrants: Entrants::WithRetention, run }
}

pub(crate) const ALL: &[Scenario] = &[
    all("cold", starts::cold),
    all("true", starts::one_by_one),
    all("starts", starts::many),
    all("echo", output::echo),
    all("push", output::push),
    with_retention("read", output::read),
    all("small-files", files::small),
    all("large-files", files::large),
    all("frame", files::frame),
    all("directory", files::directory),
    all("sessions", memory::sessions),
    all("processes", memory::processes),
    all("stalled", trouble::stalled),
    with_retention("resume", trouble::resume),
    with_retention("poll", trouble::poll),
    all("terminates", trouble::terminates),
];

pub(crate) const TRUE: &[&str] = &["/usr/bin/true"];

/// Ends by itself, should a scenario fail before it ends it.
pub(crate) const SLEEP: &[&str] = &["/usr/bin/sleep", "60"];

/// How often something is repeated: so many times, or fewer if it is slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeat {
    pub times: usize,
    pub at_most: Duration,
}

impl Repeat {
    pub(crate) fn new(times: usize) -> Self {
        Self { times, at_most: Duration::from_secs(3) }
    }

    /// How long each took, in seconds.
    pub(crate) fn time(self, mut each: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
        let (begin, mut times) = (Instant::now(), Vec::new());
        while times.len() < self.times && (times.is_empty() || begin.elapsed() < self.at_most) {
            let since = Instant::now();
            each()?;
            times.push(since.elapsed().as_secs_f64());
        }
        Ok(times)
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(values[middle - 1].midpoint(values[middle])),
    }
}

/// The median in microseconds.
fn micros(times: Vec<f64>) -> f64 {
    median(times).unwrap_or(f64::NAN) * 1e6
}

fn millis(times: Vec<f64>) -> f64 {
    median(times).unwrap_or(f64::NAN) * 1e3
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// A child that prints so many bytes.
fn printer(bytes: usize) -> anyhow::Result<[String; 3]> {
    Ok([std::env::current_exe()?.display().to_string(), crate::PRINT.into(), bytes.to_string()])
}
