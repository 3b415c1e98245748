//! What earlier runs of the benches said: every run with its commit, and which figures are worse than they were.
//!
//! A page is kept as it was printed. A row is known by its first words, and its figure is the first number after them.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

/// Where runs are kept, from the root of the project. Not committed: figures of two machines do not compare.
const HISTORY: &str = "docs/bench.jsonl";
/// What differs by less is noise.
const NOISE: f64 = 1.25;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    commit: String,
    /// Whether the program was changed since that commit.
    changed: bool,
    /// Seconds since 1970.
    at: u64,
    bench: String,
    options: Vec<String>,
    page: Vec<String>,
}

impl Run {
    fn line(&self) -> String {
        let Self { commit, changed, at, bench, options, page } = self;
        json!({"commit": commit, "changed": changed, "at": at, "bench": bench, "options": options, "page": page}).to_string()
    }

    fn parse(line: &str) -> anyhow::Result<Self> {
        let run: Value = serde_json::from_str(line)?;
        let text = |name: &str| run[name].as_str().map(str::to_owned).with_context(|| format!("a run without `{name}`"));
        let texts = |name: &str| {
            let all = run[name].as_array().with_context(|| format!("a run without `{name}`"))?;
            anyhow::Ok(all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        };
        Ok(Self {
            commit: text("commit")?,
            changed: run["changed"].as_bool().unwrap_or(true),
            at: run["at"].as_u64().unwrap_or_default(),
            bench: text("bench")?,
            options: texts("options")?,
            page: texts("page")?,
        })
    }
}

/// Runs a bench, shows what it prints, and keeps that.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for a terminal")]
pub(super) fn recorded(bench: &str, options: &[&str], command: &mut Command) -> anyhow::Result<()> {
    eprintln!("+ {command:?}");
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    ensure!(output.status.success(), "{command:?} failed: {}", output.status);
    let run = Run {
        commit: git(&["rev-parse", "HEAD"])?,
        changed: !git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"])?.is_empty(),
        at: SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or_default(),
        bench: bench.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        page: text.lines().map(str::to_owned).collect(),
    };
    let mut file = OpenOptions::new().create(true).append(true).open(HISTORY).with_context(|| format!("cannot write {HISTORY}"))?;
    writeln!(file, "{}", run.line())?;
    Ok(())
}

/// The newest run of each bench beside its newest run at a revision. Fails if a figure is worse.
#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
pub(crate) fn compare(revision: &str) -> anyhow::Result<()> {
    let commit = git(&["rev-parse", "--verify", &format!("{revision}^{{commit}}")])?;
    let runs = read(Path::new(HISTORY))?;
    let (text, slips) = compared(&runs, &commit)?;
    print!("{text}");
    ensure!(slips == 0, "{slips} figures are worse than at {revision}");
    Ok(())
}

fn git(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(words).output().context("cannot run git")?;
    ensure!(output.status.success(), "git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn read(path: &Path) -> anyhow::Result<Vec<Run>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}; run a bench first", path.display()))?;
    text.lines().map(Run::parse).collect()
}

/// A table of what differs, and how many figures are worse.
fn compared(runs: &[Run], commit: &str) -> anyhow::Result<(String, usize)> {
    let is_like = |run: &Run, other: &Run| run.bench == other.bench && run.options == other.options;
    let (mut text, mut slips, mut count) = (String::new(), 0, 0);
    for (index, now) in runs.iter().enumerate() {
        let is_newest = !runs[index + 1..].iter().any(|later| is_like(later, now));
        let before = runs[..index].iter().rev().find(|run| run.commit == commit && !run.changed && is_like(run, now));
        let Some(before) = before.filter(|_| is_newest) else { continue };
        count += 1;
        let changed = if now.changed { ", changed since" } else { "" };
        let short = |commit: &str| commit.chars().take(8).collect::<String>();
        writeln!(text, "{} {}: {} against {}{changed}", now.bench, now.options.join(" "), short(&before.commit), short(&now.commit))?;
        for figure in figures(&now.page) {
            let Some(old) = figures(&before.page).into_iter().find(|old| old.what == figure.what) else { continue };
            let worse = if figure.more_is_better { old.value / figure.value } else { figure.value / old.value };
            let verdict = match worse {
                worse if worse > NOISE => "SLIP",
                worse if worse < 1.0 / NOISE => "better",
                _ => continue,
            };
            slips += usize::from(verdict == "SLIP");
            writeln!(text, "  {verdict:6} {}: {} before, {} now", figure.what, old.text, figure.text)?;
        }
    }
    if count == 0 {
        bail!("no bench was run both at {commit} and after it; run it there first");
    }
    Ok((text, slips))
}

#[derive(Debug, PartialEq)]
struct PageFigure {
    what: String,
    value: f64,
    text: String,
    more_is_better: bool,
}

/// The rows of a page: cells are parted by two spaces, or by bars.
fn figures(page: &[String]) -> Vec<PageFigure> {
    let row = |line: &String| {
        let line = line.trim().trim_matches('|');
        let mut cells: Vec<&str> = if line.contains('|') { line.split('|').collect() } else { line.split("  ").collect() };
        cells.retain(|cell| !cell.trim().is_empty());
        let what = cells.first()?.trim();
        let text = cells.get(1..)?.iter().map(|cell| cell.trim()).find(|cell| number(cell).is_some())?;
        let unit = cells[1..].iter().take(2).any(|cell| cell.contains("/s"));
        let value = number(text).filter(|value| *value > 0.0)?;
        Some(PageFigure { what: what.to_owned(), value, text: text.to_owned(), more_is_better: unit })
    };
    page.iter().filter_map(row).collect()
}

/// The number that a text begins with.
fn number(text: &str) -> Option<f64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ',').unwrap_or(text.len());
    text[..end].replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(commit: &str, page: &[&str]) -> Run {
        let page = page.iter().map(|line| (*line).to_owned()).collect();
        Run { commit: commit.into(), changed: false, at: 0, bench: "turns".into(), options: vec![], page }
    }

    #[test]
    fn a_slip_is_told_and_noise_is_not() {
        let before =
            run("a", &["plain turn, p50       1.00 ms  at most 3", "turns a second  1,000 /s", "idle  5 MB", "| bytes | 10 KB | |"]);
        let now = run("b", &["plain turn, p50       1.60 ms  at most 3", "turns a second  700 /s", "idle  5.5 MB", "| bytes | 5 KB | |"]);
        let (text, slips) = compared(&[before.clone(), now.clone()], "a").unwrap();
        assert_eq!(slips, 2, "{text}");
        assert!(text.contains("SLIP   plain turn, p50: 1.00 ms before, 1.60 ms now"), "{text}");
        assert!(text.contains("SLIP   turns a second: 1,000 /s before, 700 /s now"), "{text}");
        assert!(text.contains("better bytes: 10 KB before, 5 KB now") && !text.contains("idle"), "{text}");
        assert_eq!(Run::parse(&now.line()).unwrap(), now);
        assert!(compared(&[now, before], "c").is_err());
    }

    #[test]
    fn only_the_newest_run_of_the_same_kind_counts() {
        let runs =
            [run("a", &["x  1 ms"]), run("b", &["x  9 ms"]), run("c", &["x  1 ms"]), Run { bench: "app".into(), ..run("d", &["x  9 ms"]) }];
        assert_eq!(compared(&runs, "a").unwrap().1, 0);
        assert_eq!(compared(&runs[..2], "a").unwrap().1, 1);
        // A run with changes is not a run of its commit.
        let changed = Run { changed: true, ..runs[0].clone() };
        assert!(compared(&[changed, runs[1].clone()], "a").is_err());
    }
}
