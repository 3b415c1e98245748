//! Everything that must hold before a change lands.

use crate::{cargo, install, sh};

pub fn run() -> anyhow::Result<()> {
    sh(cargo().args(["fmt", "--all", "--check"]))?;
    sh(cargo().args(["clippy", "--workspace", "--all-targets", "--features", "outpost/interop", "--", "-D", "warnings"]))?;
    install::strace()?;
    let codex = install::codex()?;
    install::shells()?;
    install::postgres()?;
    let clients = install::clients()?;
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--features", "outpost/interop"]);
    sh(tests.env("OUTPOST_TEST_CODEX", codex).env("OUTPOST_TEST_CLIENTS", clients))
}
