//! Everything that must hold before a change lands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, install, sh, target};

pub fn run() -> anyhow::Result<()> {
    sh(cargo().args(["fmt", "--all", "--check"]))?;
    sh(cargo().args(["clippy", "--workspace", "--all-targets", "--features", "outpost/interop", "--", "-D", "warnings"]))?;
    install::strace()?;
    let codex = install::codex()?;
    let mcp_server = install::mcp_server()?;
    install::mcp_tools()?;
    install::shells()?;
    install::postgres()?;
    let clients = install::clients()?;
    let browser = install::browser()?;
    // By itself: the shapes are described only for this, and everything else is built without.
    sh(cargo().args(["test", "-p", "outpost-wire", "--features", "schema", "--test", "schema"]))?;
    let mut tests = cargo();
    tests.args(["test", "--no-fail-fast", "--workspace", "--features", "outpost/interop"]);
    tests
        .env("OUTPOST_TEST_CODEX", codex)
        .env("OUTPOST_TEST_CLIENTS", clients)
        .env("OUTPOST_TEST_MCP_SERVER", mcp_server)
        .env("OUTPOST_TEST_BROWSER", browser);
    apart(&mut tests)?;
    sh(&mut tests)
}

/// Tests start login shells and sandboxes: what is in the home of whoever runs them, and which programs are there, must make no
/// difference.
fn apart(tests: &mut Command) -> anyhow::Result<()> {
    let home = target().join("home");
    std::fs::create_dir_all(&home)?;
    if let Some(own) = std::env::var_os("HOME").map(PathBuf::from) {
        for (name, below) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            tests.env(name, std::env::var_os(name).unwrap_or_else(|| own.join(below).into()));
        }
    }
    let mut path = OsString::from("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(own) = std::env::var_os("PATH") {
        path.push(":");
        path.push(own);
    }
    tests.env("HOME", home).env("PATH", path);
    Ok(())
}
