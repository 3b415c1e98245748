//! Everything that must hold before a change lands.

use crate::{cargo, install, sh};

pub fn run() -> anyhow::Result<()> {
    sh(cargo().args(["fmt", "--all", "--check"]))?;
    sh(cargo().args(["clippy", "--workspace", "--all-targets", "--features", "outpost/interop", "--", "-D", "warnings"]))?;
    install::strace()?;
    let codex = install::codex()?;
    install::shells()?;
    install::postgres()?;
    sh(cargo().args(["test", "--workspace", "--features", "outpost/interop"]).env("OUTPOST_TEST_CODEX", codex))
}
