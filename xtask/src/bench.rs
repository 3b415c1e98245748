//! Figures. The measuring is done by a program of its own, so that this one stays quick to compile.

mod history;

use std::path::PathBuf;
use std::process::Command;

use self::history::recorded;
use crate::{cargo, install, sh, target};

pub(crate) use self::history::compare;

/// The program that is measured and the one that measures.
struct Programs {
    outpost: PathBuf,
    bench: PathBuf,
}

impl Programs {
    /// Builds both in one call: one set of features, so that no crate is compiled twice.
    fn build(profile: &str) -> anyhow::Result<Self> {
        sh(cargo().args(["build", "--profile", profile, "-p", "outpost", "-p", "outpost-bench"]))?;
        let built = target().join(if profile == "dev" { "debug" } else { profile });
        Ok(Self { outpost: built.join("outpost"), bench: built.join("outpost-bench") })
    }

    /// The command that measures one thing.
    fn measure(&self, verb: &str) -> Command {
        let mut run = Command::new(&self.bench);
        run.args([verb, "--outpost"]).arg(&self.outpost);
        run
    }
}

/// Threads: what writing, opening, listing and searching cost.
pub(crate) fn threads(options: &[&str]) -> anyhow::Result<()> {
    recorded("threads", options, cargo().args(["run", "--release", "-p", "outpost-bench", "--", "threads"]).args(options))
}

/// `environments` (idle environments, step views, reconnects) and `terminal` (a conversation on one).
pub(crate) fn alone(verb: &str, options: &[&str]) -> anyhow::Result<()> {
    recorded(verb, options, Programs::build("release")?.measure(verb).args(options))
}

/// What a sandbox costs.
pub(crate) fn sandbox() -> anyhow::Result<()> {
    let programs = Programs::build("release")?;
    recorded("sandbox", &[], Command::new(&programs.bench).arg("sandbox").arg(&programs.outpost))
}

/// `exec` (the executor beside a bare server), `turns` and `app` (a model that answers at once), all beside the peer where it can be had.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn with_peer(verb: &str, options: &[&str]) -> anyhow::Result<()> {
    let mut run = Programs::build("release")?.measure(verb);
    match install::codex_without_launcher() {
        Ok(codex) => drop(run.arg("--codex").arg(codex)),
        Err(error) => eprintln!("codex is left out: {error:#}"),
    }
    recorded(verb, options, run.args(options))
}

/// A machine far away, beside ssh, scp and rsync. With `--debug` the programs are debug builds, whose times mean less.
pub(crate) fn distance(options: &[&str]) -> anyhow::Result<()> {
    let profile = if options.contains(&"--debug") { "dev" } else { "release" };
    let mut run = Programs::build(profile)?.measure("distance");
    recorded("distance", options, run.args(options.iter().filter(|option| **option != "--debug")))
}

/// Records a conversation and writes what its terminal shows as a picture.
pub(crate) fn picture() -> anyhow::Result<()> {
    sh(Programs::build("dev")?.measure("picture").arg("docs/terminal.svg"))
}
