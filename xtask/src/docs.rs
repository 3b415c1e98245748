//! Pages that are made from the code.

use anyhow::{Context, ensure};

use crate::cargo;

pub(crate) fn run() -> anyhow::Result<()> {
    let output = cargo().args(["run", "--quiet", "--", "__reference"]).output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write("docs/configuration.md", output.stdout)?;
    Ok(())
}
