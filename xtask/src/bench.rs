//! Figures. The measuring is done by a program of its own, so that this one stays quick to compile.

mod history;

use self::history::recorded;
use crate::{cargo, install, sh, target};

pub(crate) use self::history::compare;

/// Threads: what writing, opening, listing and searching cost.
pub(crate) fn threads(options: &[&str]) -> anyhow::Result<()> {
    recorded("threads", options, cargo().args(["run", "--release", "-p", "outpost-bench", "--", "threads"]).args(options))
}

/// The executor against a bare server and the peer, where that can be had.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn exec(options: &[&str]) -> anyhow::Result<()> {
    sh(cargo().args(["build", "--release", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--release", "-p", "outpost-bench", "--", "exec", "--outpost"]).arg(target().join("release/outpost"));
    match install::codex_without_launcher() {
        Ok(codex) => drop(run.arg("--codex").arg(codex)),
        Err(error) => eprintln!("codex is left out: {error:#}"),
    }
    recorded("exec", options, run.args(options))
}

/// The registry: idle environments, step views, reconnects.
pub(crate) fn environments(options: &[&str]) -> anyhow::Result<()> {
    sh(cargo().args(["build", "--release", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--release", "-p", "outpost-bench", "--", "environments", "--outpost"]).arg(target().join("release/outpost"));
    recorded("environments", options, run.args(options))
}

/// What a sandbox costs.
pub(crate) fn sandbox() -> anyhow::Result<()> {
    sh(cargo().args(["build", "--release", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--release", "-p", "outpost-bench", "--", "sandbox"]).arg(target().join("release/outpost"));
    recorded("sandbox", &[], &mut run)
}

/// `turns` and `app`: what a model that answers at once is asked, beside the peer where it can be had.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn with_peer(verb: &str, options: &[&str]) -> anyhow::Result<()> {
    sh(cargo().args(["build", "--release", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--release", "-p", "outpost-bench", "--", verb, "--outpost"]).arg(target().join("release/outpost"));
    match install::codex_without_launcher() {
        Ok(codex) => drop(run.arg("--codex").arg(codex)),
        Err(error) => eprintln!("codex is left out: {error:#}"),
    }
    recorded(verb, options, run.args(options))
}

/// A machine far away, beside ssh, scp and rsync. With `--debug` the programs are debug builds, whose times mean less.
pub(crate) fn distance(options: &[&str]) -> anyhow::Result<()> {
    let profile = if options.contains(&"--debug") { "dev" } else { "release" };
    let folder = if profile == "dev" { "debug" } else { profile };
    sh(cargo().args(["build", "--profile", profile, "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--profile", profile, "-p", "outpost-bench", "--", "distance", "--outpost"])
        .arg(target().join(folder).join("outpost"));
    recorded("distance", options, run.args(options.iter().filter(|option| **option != "--debug")))
}

/// A conversation on a terminal.
pub(crate) fn terminal(options: &[&str]) -> anyhow::Result<()> {
    sh(cargo().args(["build", "--release", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "--release", "-p", "outpost-bench", "--", "terminal", "--outpost"]).arg(target().join("release/outpost"));
    recorded("terminal", options, run.args(options))
}

/// Records a conversation and writes what its terminal shows as a picture.
pub(crate) fn picture() -> anyhow::Result<()> {
    sh(cargo().args(["build", "-p", "outpost"]))?;
    let mut run = cargo();
    run.args(["run", "-p", "outpost-bench", "--", "picture", "--outpost"]).arg(target().join("debug/outpost"));
    sh(run.arg("docs/terminal.svg"))
}
