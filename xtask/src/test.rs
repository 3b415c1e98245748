//! Everything that must hold before a change lands.

use crate::{cargo, install, sh};

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
    tests.args(["test", "--workspace", "--features", "outpost/interop"]);
    tests
        .env("OUTPOST_TEST_CODEX", codex)
        .env("OUTPOST_TEST_CLIENTS", clients)
        .env("OUTPOST_TEST_MCP_SERVER", mcp_server)
        .env("OUTPOST_TEST_BROWSER", browser);
    sh(&mut tests)
}
