//! Programs of others that tests talk to.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::ensure;

use crate::sh;

/// The released peer, exactly the one whose wire we speak.
const CODEX: &str = "@openai/codex@0.166.0";

/// Below the build directory, so that it is kept between runs and never committed.
fn directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    std::path::absolute(target.join("interop")).unwrap_or(target)
}

/// The peer's program.
pub fn codex() -> anyhow::Result<PathBuf> {
    let directory = directory();
    let program = directory.join("node_modules/.bin/codex");
    let stamp = directory.join(".installed");
    if program.exists() && std::fs::read_to_string(&stamp).is_ok_and(|text| text == CODEX) {
        return Ok(program);
    }
    need("npm", "npm")?;
    std::fs::create_dir_all(&directory)?;
    sh(Command::new("npm").args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&directory).arg(CODEX))?;
    ensure!(program.exists(), "npm did not install {}", program.display());
    std::fs::write(stamp, CODEX)?;
    Ok(program)
}

/// Installs a Debian package if a program is missing.
fn need(program: &str, package: &str) -> anyhow::Result<()> {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    sh(Command::new("apt-get").arg("update"))?;
    sh(Command::new("apt-get").args(["install", "-y", "--no-install-recommends", package]))
}
