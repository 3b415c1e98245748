//! Figures of executors, measured over the wire, and of environments: `cargo xtask bench NAME` runs this program. Only ratios of one run mean
//! anything, so every contender takes its turn in every round.

mod app;
mod contender;
mod distance;
mod environments;
mod exec;
mod figure;
mod floor;
mod picture;
mod sandbox;
mod scenario;
mod table;
mod terminal;
mod threads;
mod turns;
mod wire;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use contender::Contender;
use table::Style;

const USAGE: &str = "usage: outpost-bench exec --outpost PROGRAM [--codex PROGRAM] [--rounds N] [--only SCENARIO] [--markdown]
       outpost-bench environments --outpost PROGRAM [--rounds N]
       outpost-bench threads [--small] [--markdown]
       outpost-bench turns --outpost PROGRAM [--codex PROGRAM] [--small] [--markdown]
       outpost-bench app --outpost PROGRAM [--codex PROGRAM] [--stored N] [--small] [--markdown]
       outpost-bench distance --outpost PROGRAM [--delay MS] [--rate MB/S] [--losses PER-MILLION] [--small] [--markdown]
       outpost-bench terminal --outpost PROGRAM [--small] [--markdown]
       outpost-bench picture --outpost PROGRAM FILE
       outpost-bench sandbox PROGRAM";

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outpost-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("exec") => exec::run(&plan(words)?),
        Some("environments") => environments(words),
        Some("threads") => threads::run(threads_plan(words)?),
        Some(threads::IDLE) => threads::idle(words),
        Some(threads::LAST_PAGE) => threads::last_page(words),
        Some("turns") => turns::run(&turns_plan(words)?),
        Some("app") => app::run(&app_plan(words.collect())?),
        Some("distance") => distance::run(&distance_plan(words)?),
        Some(turns::MODEL) => turns::model(),
        Some("terminal") => terminal::run(&terminal_plan(words)?),
        Some("picture") => picture(words),
        Some("sandbox") => sandbox::run(Contender::outpost(words.next().context(USAGE)?.into())),
        Some(floor::VERB) => floor::serve(),
        Some(PRINT) => print(words.next().context(USAGE)?.parse()?),
        _ => bail!(USAGE),
    }
}

fn plan(mut words: impl Iterator<Item = String>) -> anyhow::Result<exec::Plan> {
    let (mut outpost, mut codex) = (None, None);
    let (mut rounds, mut only, mut style) = (3, None, Style::Plain);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--outpost" => outpost = Some(PathBuf::from(words.next().context(USAGE)?)),
            "--codex" => codex = Some(PathBuf::from(words.next().context(USAGE)?)),
            "--rounds" => rounds = words.next().context(USAGE)?.parse().context("--rounds wants a number")?,
            "--only" => only = Some(words.next().context(USAGE)?),
            "--markdown" => style = Style::Markdown,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    let mut contenders = vec![Contender::outpost(outpost.context(USAGE)?), Contender::floor()?];
    contenders.extend(codex.map(Contender::codex));
    Ok(exec::Plan { contenders, rounds, only, style })
}

fn environments(mut words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let (mut outpost, mut rounds) = (None, 3);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--outpost" => outpost = Some(PathBuf::from(words.next().context(USAGE)?)),
            "--rounds" => rounds = words.next().context(USAGE)?.parse().context("--rounds wants a number")?,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    environments::run(outpost.context(USAGE)?, rounds)
}

fn threads_plan(words: impl Iterator<Item = String>) -> anyhow::Result<threads::Plan> {
    let mut plan = threads::Plan::default();
    for word in words {
        match word.as_str() {
            "--small" => plan.small = true,
            "--markdown" => plan.markdown = true,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    Ok(plan)
}

fn turns_plan(mut words: impl Iterator<Item = String>) -> anyhow::Result<turns::Plan> {
    let (mut outpost, mut codex, mut small, mut markdown) = (None, None, false, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--outpost" => outpost = Some(words.next().context(USAGE)?),
            "--codex" => codex = Some(PathBuf::from(words.next().context(USAGE)?)),
            "--small" => small = true,
            "--markdown" => markdown = true,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    Ok(turns::Plan { outpost: outpost.context(USAGE)?, codex, small, markdown })
}

fn distance_plan(mut words: impl Iterator<Item = String>) -> anyhow::Result<distance::Plan> {
    let (mut outpost, mut plan) = (None, distance::Plan::default());
    while let Some(word) = words.next() {
        let mut number = || anyhow::Ok(words.next().context(USAGE)?.parse::<u32>().with_context(|| format!("{word} wants a number"))?);
        match word.as_str() {
            "--delay" => plan.delay_ms = number()?,
            "--rate" => plan.rate_mb = number()?,
            "--losses" => plan.losses = number()?,
            "--outpost" => outpost = Some(words.next().context(USAGE)?),
            "--small" => plan.small = true,
            "--markdown" => plan.markdown = true,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    plan.outpost = outpost.context(USAGE)?;
    Ok(plan)
}

fn terminal_plan(mut words: impl Iterator<Item = String>) -> anyhow::Result<terminal::Plan> {
    let (mut outpost, mut small, mut markdown) = (None, false, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--outpost" => outpost = Some(PathBuf::from(words.next().context(USAGE)?)),
            "--small" => small = true,
            "--markdown" => markdown = true,
            _ => bail!("`{word}` is not known\n{USAGE}"),
        }
    }
    Ok(terminal::Plan { outpost: outpost.context(USAGE)?, small, markdown })
}

fn picture(words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    match words.collect::<Vec<_>>().as_slice() {
        [flag, outpost, file] if flag == "--outpost" => picture::run(outpost.as_ref(), file.as_ref()),
        _ => bail!(USAGE),
    }
}

fn app_plan(mut words: Vec<String>) -> anyhow::Result<app::Plan> {
    let mut stored = None;
    if let Some(at) = words.iter().position(|word| word == "--stored") {
        stored = Some(words.get(at + 1).context(USAGE)?.parse().context("--stored wants a number")?);
        words.drain(at..at + 2);
    }
    let turns::Plan { outpost, codex, small, markdown } = turns_plan(words.into_iter())?;
    Ok(app::Plan { outpost: outpost.into(), codex, stored, small, markdown })
}

/// The hidden verb of the child that prints so many bytes.
const PRINT: &str = "__print";

/// Prints in pieces as large as a pipe. A closed pipe is no failure: some scenarios hang up.
fn print(mut bytes: usize) -> anyhow::Result<()> {
    let block = vec![b'x'; 64 << 10];
    let mut out = std::io::stdout().lock();
    while bytes > 0 {
        let piece = bytes.min(block.len());
        if out.write_all(&block[..piece]).is_err() {
            break;
        }
        bytes -= piece;
    }
    Ok(())
}
