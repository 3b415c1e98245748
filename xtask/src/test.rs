//! Everything that must hold before a change lands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, forget_package, install, sh, target};

pub(crate) fn run() -> anyhow::Result<()> {
    sh(cargo().args(["fmt", "--all", "--check"]))?;
    sh(cargo().args(["clippy", "--workspace", "--all-targets", "--features", "outpost/interop", "--", "-D", "warnings"]))?;
    let others = if install::system() { programs_of_others() } else { None };
    // By itself: the shapes are described only for this, and everything else is built without.
    sh(cargo().args(["test", "-p", "outpost-wire", "--features", "schema", "--test", "schema"]))?;
    let mut tests = plain();
    tests.arg(cargo().get_program()).args(["test", "--no-fail-fast", "--workspace"]);
    if let Some(others) = others {
        tests.args(["--features", "outpost/interop"]).envs(others);
    }
    apart(&mut tests)?;
    sh(&mut tests)
}

/// Downloads the programs of others; tells which variables name them.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn programs_of_others() -> Option<Vec<(&'static str, PathBuf)>> {
    let all = || -> anyhow::Result<_> {
        Ok(vec![
            ("OUTPOST_TEST_CODEX", install::codex()?),
            ("OUTPOST_TEST_CLIENTS", install::clients()?),
            ("OUTPOST_TEST_MCP_SERVER", install::mcp_server()?),
            ("OUTPOST_TEST_BROWSER", install::browser()?),
        ])
    };
    all().inspect_err(|error| eprintln!("xtask: {error:#}; the tests with programs of others are left out")).ok()
}

/// A command that begins with what tests depend on, whatever the shell, the terminal or the service that this was started by has
/// set: no signal is ignored (`nohup`, a job in the background), files are made readable, texts and times are in no
/// particular language and place, and as many files may be open as the system allows.
fn plain() -> Command {
    let mut command = Command::new("env");
    // Older and smaller ones do not know it; what is ignored stays so then.
    if Command::new("env").args(["--default-signal", "true"]).output().is_ok_and(|output| output.status.success()) {
        command.arg("--default-signal");
    }
    command.args(["sh", "-c", r#"umask 022; ulimit -S -n "$(ulimit -H -n)"; exec "$@""#, "sh"]);
    forget_package(&mut command);
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_ours = ["OUTPOST_", "CODEX_", "OPENAI_"].iter().any(|prefix| text.starts_with(prefix));
        if is_ours || ["LANG", "LANGUAGE", "COLUMNS", "LINES", "NO_COLOR", "TERM_PROGRAM"].contains(&text.as_ref()) {
            command.env_remove(&name);
        }
    }
    command
}

/// Tests start login shells and sandboxes: what is in the user's home, and which programs are there, must make no
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
