//! The table of a run: every metric, its target, and whether the target is met.

use std::fmt::Write;

use crate::exec::Samples;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Markdown,
}

/// One metric under the name that its scenario gives it.
struct Row {
    metric: &'static str,
    title: &'static str,
    unit: Unit,
    targets: &'static [Target],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Less is better.
    Cost(&'static str),
    /// More is better.
    Rate(&'static str),
    YesNo,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    /// Ours by the floor's.
    AtMostFloor(f64),
    AtLeastFloor(f64),
    /// How many times better than the peer.
    Codex(f64),
    AtMost(f64),
    Yes,
}

use Target::{AtLeastFloor, AtMost, AtMostFloor, Codex, Yes};
use Unit::{Cost, Rate, YesNo};

const fn row(metric: &'static str, title: &'static str, unit: Unit, targets: &'static [Target]) -> Row {
    Row { metric, title, unit, targets }
}

const ROWS: &[Row] = &[
    row("cold", "cold start to the first answer", Cost("ms"), &[AtMostFloor(1.5), Codex(3.0)]),
    row("true", "`true`, start to closed", Cost("us"), &[AtMostFloor(1.3), Codex(30.0)]),
    row("true-cpu", "server CPU per `true`", Cost("us"), &[AtMostFloor(2.0)]),
    row("starts-64", "starts, 64 in flight", Rate("/s"), &[AtLeastFloor(0.9)]),
    row("starts-16x4", "starts, 16 connections x 4", Rate("/s"), &[AtLeastFloor(0.9)]),
    row("pipe-echo", "echo over a pipe", Cost("us"), &[AtMostFloor(1.2)]),
    row("pty-echo", "echo over a terminal", Cost("us"), &[AtMostFloor(1.2)]),
    row("push", "push of 256 MiB", Rate("MB/s"), &[AtLeastFloor(0.9)]),
    row("push-cpu", "server CPU per pushed GiB", Cost("ms"), &[AtMostFloor(1.3)]),
    row("read", "process/read of 128 MiB by 1 MiB", Rate("MB/s"), &[Codex(4.0)]),
    row("read-lost", "lost to process/read", Cost("bytes"), &[AtMost(0.0)]),
    row("stat", "stat", Cost("us"), &[AtMostFloor(1.2)]),
    row("read-1k", "read a file of 1 KiB", Cost("us"), &[AtMostFloor(1.2)]),
    row("write-1k", "write a file of 1 KiB", Cost("us"), &[AtMostFloor(1.2)]),
    row("read-8m", "read a file of 8 MiB", Rate("MB/s"), &[Codex(4.0)]),
    row("write-8m", "write a file of 8 MiB", Rate("MB/s"), &[Codex(1.3)]),
    row("frame-60m", "60 MiB in one frame", YesNo, &[Yes]),
    row("directory", "list 10,000 entries", Cost("ms"), &[AtMostFloor(1.3)]),
    row("idle", "memory, idle", Cost("MB"), &[AtMost(12.0)]),
    row("per-session", "memory per session", Cost("KB"), &[AtMost(32.0)]),
    row("per-process", "memory per idle process", Cost("KB"), &[AtMost(24.0)]),
    row("after-load", "memory after load", Cost("MB"), &[]),
    row("stalled-growth", "growth behind a stalled reader", Cost("MB"), &[AtMost(4.0)]),
    row("stalled-lost", "lost to a stalled reader", Cost("bytes"), &[AtMost(0.0)]),
    row("stalled-other", "`true` of another client meanwhile", Cost("us"), &[AtMostFloor(1.2)]),
    row("resume-lost", "lost over a dropped connection", Cost("%"), &[AtMost(0.0)]),
    row("poll", "poll of 300 ms", Cost("ms"), &[]),
    row("poll-stat", "stat behind that poll", Cost("ms"), &[]),
    row("terminates", "10,000 pipelined terminates", YesNo, &[Yes]),
];

const HEAD: [&str; 9] = ["metric", "unit", "ours", "floor", "codex", "ours/floor", "vs codex", "target", "met"];

const NOTE: &str = "Medians over the rounds; ratios are medians of the single rounds' ratios. \
    `vs codex`: how many times better ours is (codex/ours for costs, ours/codex for rates). \
    The peer leaves Nagle's algorithm on, so that an exchange of several small messages takes it 40 ms.";

pub(crate) fn render(samples: &Samples, style: Style) -> String {
    let measured = ROWS.iter().filter(|row| row.is_measured(samples));
    let lines: Vec<[String; 9]> = measured.map(|row| row.cells(samples)).collect();
    match style {
        Style::Plain => plain(&lines),
        Style::Markdown => markdown(&lines),
    }
}

fn plain(lines: &[[String; 9]]) -> String {
    let head = HEAD.map(str::to_owned);
    let all = || std::iter::once(&head).chain(lines);
    let widths: [usize; 9] = std::array::from_fn(|column| all().map(|line| line[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for line in all() {
        let mut padded = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            // Numbers to the right, words to the left.
            let _ = if (2..7).contains(&column) { write!(padded, "{cell:>width$}  ") } else { write!(padded, "{cell:<width$}  ") };
        }
        text.push_str(padded.trim_end());
        text.push('\n');
    }
    format!("{text}\n{NOTE}")
}

fn markdown(lines: &[[String; 9]]) -> String {
    let mut text = format!("| {} |\n|---|---|---:|---:|---:|---:|---:|---|---|\n", HEAD.join(" | "));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    format!("{text}\n{NOTE}")
}

impl Row {
    fn is_measured(&self, samples: &Samples) -> bool {
        ["outpost", "floor", "codex"].iter().any(|contender| samples.median(contender, self.metric).is_some())
    }

    fn to_floor(&self, samples: &Samples) -> Option<f64> {
        samples.ratio("outpost", "floor", self.metric)
    }

    fn to_codex(&self, samples: &Samples) -> Option<f64> {
        match self.unit {
            Cost(_) => samples.ratio("codex", "outpost", self.metric),
            Rate(_) => samples.ratio("outpost", "codex", self.metric),
            YesNo => None,
        }
    }

    fn cells(&self, samples: &Samples) -> [String; 9] {
        let value = |contender| match samples.median(contender, self.metric) {
            Some(value) if self.unit == YesNo => (if value == 1.0 { "yes" } else { "no" }).into(),
            Some(value) => figure(value),
            None => String::new(),
        };
        let ratio = |ratio: Option<f64>| ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let unit = match self.unit {
            Cost(unit) | Rate(unit) => unit,
            YesNo => "",
        };
        let to_floor = if self.unit == YesNo { None } else { self.to_floor(samples) };
        [
            self.title.into(),
            unit.into(),
            value("outpost"),
            value("floor"),
            value("codex"),
            ratio(to_floor),
            ratio(self.to_codex(samples)),
            self.targets.iter().map(|target| target.text()).collect::<Vec<_>>().join(", "),
            self.verdict(samples).into(),
        ]
    }

    /// Nothing where there is no target, or nothing to compare with.
    fn verdict(&self, samples: &Samples) -> &'static str {
        let known: Option<Vec<bool>> = self.targets.iter().map(|target| target.is_met(self, samples)).collect();
        match known.as_deref() {
            None => "?",
            Some([]) => "",
            Some(all) if all.iter().all(|&met| met) => "yes",
            Some(_) => "no",
        }
    }
}

impl Target {
    fn text(self) -> String {
        match self {
            AtMostFloor(limit) => format!("<= {limit} floor"),
            AtLeastFloor(limit) => format!(">= {limit} floor"),
            Codex(factor) => format!(">= {factor} vs codex"),
            AtMost(limit) => format!("<= {limit}"),
            Yes => "yes".into(),
        }
    }

    fn is_met(self, row: &Row, samples: &Samples) -> Option<bool> {
        let ours = samples.median("outpost", row.metric);
        match self {
            AtMostFloor(limit) => row.to_floor(samples).map(|ratio| ratio <= limit),
            AtLeastFloor(limit) => row.to_floor(samples).map(|ratio| ratio >= limit),
            Codex(factor) => row.to_codex(samples).map(|ratio| ratio >= factor),
            AtMost(limit) => ours.map(|value| value <= limit),
            Yes => ours.map(|value| value == 1.0),
        }
    }
}

/// About three digits, and no more than are known.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.2}"),
    }
}
