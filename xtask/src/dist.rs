//! A program that needs nothing of the machine it runs on but its kernel: what `outpost env add --ssh` copies.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::{cargo, sh, target};

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub fn run() -> anyhow::Result<()> {
    let arch = std::env::consts::ARCH;
    let triple = format!("{arch}-unknown-linux-musl");
    let mut missing = Vec::new();
    if !has_target(&triple)? {
        missing.push(format!("the Rust target: `rustup target add {triple}`"));
    }
    // One of the libraries is partly written in C.
    let compiler = format!("{arch}-linux-musl-gcc");
    if !["musl-gcc", &compiler].iter().any(|program| can_run(program)) {
        missing.push("a C compiler for musl: `apt-get install musl-tools`".into());
    }
    ensure!(missing.is_empty(), "a static program cannot be built here; what is missing is {}", missing.join(", and "));
    sh(cargo().args(["build", "--profile", "dist", "-p", "outpost", "--target", &triple]))?;
    let (built, directory) = (target().join(&triple).join("dist/outpost"), target().join("dist"));
    std::fs::create_dir_all(&directory)?;
    // Where `outpost env add --ssh` looks for it: beside the program that runs.
    let name = directory.join(format!("outpost-{arch}-static"));
    for path in [&name, &directory.join("outpost")] {
        std::fs::copy(&built, path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    eprintln!("{}", name.display());
    Ok(())
}

fn has_target(triple: &str) -> anyhow::Result<bool> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", triple]).output().context("rustc cannot be run")?;
    let directory = String::from_utf8(output.stdout).unwrap_or_default();
    Ok(output.status.success() && std::fs::read_dir(directory.trim()).is_ok_and(|mut files| files.next().is_some()))
}

fn can_run(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
