//! `cargo xtask release X.Y.Z`: version, changelog section, commit and tag. Pushing is left to a person.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::{cargo, sh};

const HEADING: &str = "## Unreleased\n";

pub(crate) fn run(version: &str) -> anyhow::Result<()> {
    ensure!(output("git", &["status", "--porcelain"])?.is_empty(), "the work tree has changes: commit or stash them first");
    let manifest = std::fs::read_to_string("Cargo.toml")?;
    let changelog = std::fs::read_to_string("CHANGELOG.md")?;
    let date = output("date", &["-u", "+%Y-%m-%d"])?;
    let manifest = with_version(&manifest, version)?;
    let changelog = with_section(&changelog, version, date.trim())?;
    std::fs::write("Cargo.toml", manifest)?;
    std::fs::write("CHANGELOG.md", changelog)?;
    // Writes the new version of our own crates into Cargo.lock, and nothing else.
    sh(cargo().args(["update", "--workspace", "--offline"]))?;
    sh(Command::new("git").args(["commit", "--quiet", "-m", &format!("Release {version}"), "Cargo.toml", "Cargo.lock", "CHANGELOG.md"]))?;
    sh(Command::new("git").args(["tag", "-a", &format!("v{version}"), "-m", &format!("Outpost {version}")]))
}

fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The workspace's manifest with another version.
fn with_version(manifest: &str, version: &str) -> anyhow::Result<String> {
    let (before, rest) =
        manifest.split_once("[workspace.package]\nversion = \"").context("Cargo.toml: no version below [workspace.package]")?;
    let (old, after) = rest.split_once('"').context("Cargo.toml: the version does not end")?;
    ensure!(numbers(version)? > numbers(old)?, "{version} is not newer than {old}");
    Ok(format!("{before}[workspace.package]\nversion = \"{version}\"{after}"))
}

fn numbers(version: &str) -> anyhow::Result<[u32; 3]> {
    let parts: Vec<u32> =
        version.split('.').map(str::parse).collect::<Result<_, _>>().with_context(|| format!("`{version}` is not X.Y.Z"))?;
    parts.try_into().ok().with_context(|| format!("`{version}` is not X.Y.Z"))
}

/// The changelog with its unreleased section under a version, and an empty one above it.
fn with_section(changelog: &str, version: &str, date: &str) -> anyhow::Result<String> {
    let (before, rest) = changelog.split_once(HEADING).context("CHANGELOG.md: no section `## Unreleased`")?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    ensure!(!section.trim().is_empty(), "CHANGELOG.md: the section `## Unreleased` is empty");
    Ok(format!("{before}{HEADING}\n## {version} - {date}\n{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace]\n\n[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n### Added\n- a\n\n## 0.1.0 - 2026-01-01\n- b\n";

    #[test]
    fn the_version_moves_forward_only() -> anyhow::Result<()> {
        assert_eq!(with_version(MANIFEST, "0.2.0")?, MANIFEST.replace("0.1.0", "0.2.0"));
        for bad in ["0.1.0", "0.0.9", "0.2", "0.2.x", "v0.2.0"] {
            assert!(with_version(MANIFEST, bad).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn the_unreleased_section_gets_the_version() -> anyhow::Result<()> {
        let made = with_section(CHANGELOG, "0.2.0", "2026-02-02")?;
        assert_eq!(made, "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-02-02\n\n### Added\n- a\n\n## 0.1.0 - 2026-01-01\n- b\n");
        assert!(with_section(&made, "0.3.0", "2026-03-03").is_err(), "nothing to release");
        Ok(())
    }
}
