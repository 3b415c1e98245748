//! Chores of the project: `cargo xtask test | everyday | attack | soak NAME | bench NAME | docs | schema | dist`. Whatever a chore needs it installs by itself.

mod attack;
mod bench;
mod dist;
mod docs;
mod everyday;
mod hosts;
mod install;
mod interop;
mod models;
mod release;
mod schema;
mod soak;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};

const USAGE: &str = "\
usage: cargo xtask test            install what the tests need and run all of them
       cargo xtask soak cuts [N]   `outpost run` through N (default 200) cut connections
       cargo xtask soak files [N]  N (default 1,000,000) file calls while another process swaps links, a thousandth of it
                                   kills during fs/writeFile
       cargo xtask soak store      1,000 writers killed, 100,000 bits flipped: nothing lost, everything named
       cargo xtask soak threads [N]
                                   N (default 5,000) threads one after the other in one server with 1,024 files
       cargo xtask soak cluster [--minutes N | --kills N] [--seed S]
                                   for N (default 60) minutes three nodes, a database, five executors and the connections between them
                                   fail at random: nothing lost, nothing doubled, every command found again; hand-off percentiles
       cargo xtask soak orphans [N]
                                   N (default 1,000) threads whose node died at once are taken up by two others, once each
       cargo xtask soak stored [N] lists, searches and overviews among N (default 100,000) threads of a database
       cargo xtask soak properties [N]
                                   N (default 20,000) cases of every property, from a seed of this run
       cargo xtask attack [--minutes N] [--seed S] [--as root|user] [--level full|mounts|landlock] [--family NAME] [--with-tests]
                                   attack families with random interleavings, one minute by default; a finding is printed with its seed
                                   and its steps. --with-tests runs tests/security first
       cargo xtask bench exec [--rounds N] [--only SCENARIO] [--markdown]
                                   figures of the executor against a bare server and the peer, 3 rounds by default
       cargo xtask bench environments [--rounds N]
                                   memory of registered environments, step views, reconnects
       cargo xtask docs            write the pages that are made from the code
       cargo xtask interop --latest
                                   the newest released clients of others, and what came of it in docs/clients.md
       cargo xtask tidy [--deny]   check names, words and module boundaries; --deny also the licences and sources of dependencies
       cargo xtask release X.Y.Z   set the version, date the changelog's section, commit and tag
       cargo xtask schema          write schema/*.json, which are made from the shapes of both protocols
       cargo xtask dist [x86_64] [aarch64] [--programs-only] [--url ADDRESS]
                                   static programs and the packages of a release, below target/packages
       cargo xtask bench threads [--small] [--markdown]
                                   figures of threads: writing, opening, forking, listing, searching, memory
       cargo xtask bench turns [--small] [--markdown]
                                   turns of an agent whose model answers at once: latency, CPU, many at once, long histories
       cargo xtask bench app [--stored N] [--small] [--markdown]
                                   the app server beside the peer's: starts, memory, turns, long threads, many threads
       cargo xtask bench terminal [--small] [--markdown]
                                   a conversation on a terminal: the first paint, from a key to its echo beside 50 MB/s of output, memory
       cargo xtask bench distance [--delay MS] [--rate MB/S] [--losses PER-MILLION] [--small] [--markdown] [--debug]
                                   turns, commands and copies over a way of 100 ms and 50 MB/s, beside ssh, scp and rsync
       cargo xtask bench --compare REV
                                   figures of the newest runs beside those of a revision, from docs/bench.jsonl, where every bench
                                   on this machine writes what it printed; exit code 1 if one is worse
       cargo xtask picture         write docs/terminal.svg: a conversation, recorded on a terminal
       cargo xtask hosts [HOST...] [checks] [security] [faults] | page
                                   the same checks, tests/security and broken hosts on this machine, in containers, other roots, a
                                   Slurm job and virtual machines; writes the rows of docs/hosts.md. Needs root
       cargo xtask everyday [--list] [--only PATTERN] [--as root|user]
                                   everyday work of developers, bare and sandboxed; without options it writes docs/everyday.md
                                   and the table of docs/sandbox.md. Exit code 1 if a task goes otherwise than its row says
       cargo xtask models [--list] [--model 0.5b|1.5b] [--wire chat|responses|anthropic] [--only NAME]
                                   twenty small tasks with a real model through llama.cpp; fetches both and keeps them below
                                   ~/.cache/outpost-models. It takes about an hour
       cargo xtask bench sandbox   the same calls with and without a sandbox";

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => test::run(),
        ["soak", "cuts"] => soak::cuts(200),
        ["soak", "cuts", count] => soak::cuts(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["soak", "files"] => soak::files(1_000_000),
        ["soak", "files", count] => soak::files(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["attack", options @ ..] => attack::run(options),
        ["bench", "sandbox"] => bench::sandbox(),
        ["soak", "store"] => soak::store(1_000, 100_000),
        ["soak", "threads"] => soak::threads(5_000),
        ["soak", "threads", count] => soak::threads(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["soak", "cluster", options @ ..] => soak::cluster(options),
        ["soak", "orphans"] => soak::orphans(1_000),
        ["soak", "orphans", count] => soak::orphans(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["soak", "stored"] => soak::stored(100_000),
        ["soak", "stored", count] => soak::stored(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["soak", "properties"] => soak::properties(20_000),
        ["soak", "properties", count] => soak::properties(count.parse().with_context(|| format!("`{count}` is no number"))?),
        ["bench", verb @ ("environments" | "terminal"), options @ ..] => bench::alone(verb, options),
        ["docs"] => docs::run(),
        ["dist", options @ ..] => dist::run(&dist::Options::parse(options)?),
        ["interop", "--latest"] => interop::latest(),
        ["hosts", names @ ..] => hosts::run(names),
        ["everyday", options @ ..] => everyday::run(options),
        ["models", options @ ..] => models::run(options),
        ["schema"] => schema::run(),
        ["tidy"] => tidy::run(false),
        ["tidy", "--deny"] => tidy::run(true),
        ["release", version] => release::run(version),
        ["bench", "distance", options @ ..] => bench::distance(options),
        ["bench", "--compare", revision] => bench::compare(revision),
        ["picture"] => bench::picture(),
        ["bench", "threads", options @ ..] => bench::threads(options),
        ["bench", verb @ ("exec" | "turns" | "app"), options @ ..] => bench::with_peer(verb, options),
        _ => bail!("{USAGE}"),
    }
}

/// Runs a command that must succeed, and shows it.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn sh(command: &mut Command) -> anyhow::Result<()> {
    eprintln!("+ {command:?}");
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut cargo);
    cargo
}

/// `cargo run` tells this program of its own package. Build scripts that depend on these variables (ring's does) would run again, and everything
/// above them would be compiled again, whenever a build begun here follows one begun by hand.
fn forget_package(command: &mut Command) {
    let is_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_package)) {
        command.env_remove(name);
    }
}

/// The build directory.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    std::path::absolute(&target).unwrap_or(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_begun_here_is_not_told_of_this_package() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo tells every test of its package");
        let command = cargo();
        let forgotten: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(forgotten.iter().any(|forgotten| *forgotten == name), "{name}");
        }
    }
}
