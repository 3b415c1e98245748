//! The program for other machines: what `outpost env add --ssh` copies.
//!
//! A static one needs nothing of the machine it runs on but its kernel. Where it cannot be built, the one that needs a C library is
//! built instead, and that is said.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::{cargo, install, sh, target};

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub fn run() -> anyhow::Result<()> {
    let arch = std::env::consts::ARCH;
    let triple = format!("{arch}-unknown-linux-musl");
    let directory = target().join("dist");
    std::fs::create_dir_all(&directory)?;
    let missing = missing(arch, &triple);
    if !missing.is_empty() {
        eprintln!("xtask: a static program cannot be built here. What is missing: {}", missing.join(", and "));
        eprintln!("xtask: instead of it the usual one is built, for machines with a C library that is not older than the one here");
        sh(cargo().args(["build", "--profile", "dist", "-p", "outpost"]))?;
        // The build directory of the profile is this very directory.
        eprintln!("{}", directory.join("outpost").display());
        return Ok(());
    }
    sh(cargo().args(["build", "--profile", "dist", "-p", "outpost", "--target", &triple]))?;
    let built = target().join(&triple).join("dist/outpost");
    // Where `outpost env add --ssh` looks for it: beside the program that runs.
    for name in [format!("outpost-{arch}-static"), "outpost".to_owned()] {
        put(&built, &directory.join(name))?;
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn put(built: &Path, place: &PathBuf) -> anyhow::Result<()> {
    std::fs::copy(built, place).with_context(|| format!("cannot write {}", place.display()))?;
    eprintln!("{}", place.display());
    Ok(())
}

/// What is not there and cannot be installed by us, with the command that installs it.
fn missing(arch: &str, triple: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let is_there = has_target(triple) || (rustup_adds(triple) && has_target(triple));
    if !is_there {
        missing.push(format!("the Rust target (`rustup target add {triple}`)"));
    }
    // Some of the libraries are written in C.
    let compilers = ["musl-gcc".to_owned(), format!("{arch}-linux-musl-gcc")];
    if !compilers.iter().any(|program| can_run(program)) && install::need("musl-gcc", "musl-tools").is_err() {
        missing.push("a C compiler for musl (`apt-get install musl-tools`)".to_owned());
    }
    missing
}

fn has_target(triple: &str) -> bool {
    let Ok(output) = Command::new("rustc").args(["--print", "target-libdir", "--target", triple]).output() else { return false };
    let directory = String::from_utf8(output.stdout).unwrap_or_default();
    output.status.success() && std::fs::read_dir(directory.trim()).is_ok_and(|mut files| files.next().is_some())
}

fn rustup_adds(triple: &str) -> bool {
    Command::new("rustup").args(["target", "add", triple]).status().is_ok_and(|status| status.success())
}

fn can_run(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
