//! `cargo xtask tidy`: rules of the house that neither the compiler nor clippy knows. Each rule is a function from sources to findings.

mod architecture;
mod errors;
mod names;
mod pages;
mod words;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::sh;

/// A text file of the repository.
pub(crate) struct Source {
    /// Relative to the root of the repository.
    pub path: String,
    pub text: String,
}

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub path: String,
    pub line: usize,
    pub what: String,
}

impl Source {
    /// The crate that a file below `crates/NAME/src` belongs to.
    fn crate_name(&self) -> Option<&str> {
        let (name, rest) = self.path.strip_prefix("crates/")?.split_once('/')?;
        rest.starts_with("src/").then_some(name)
    }

    fn finding(&self, line: usize, what: String) -> Finding {
        Finding { path: self.path.clone(), line, what }
    }
}

/// Checks every rule. With `--deny`, also the licences, sources and bans of dependencies.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn run(deny: bool) -> anyhow::Result<()> {
    let findings = check(&sources(Path::new("."))?);
    for finding in &findings {
        eprintln!("{}:{}: {}", finding.path, finding.line, finding.what);
    }
    if deny {
        sh(crate::cargo().args(["deny", "check", "bans", "licenses", "sources"]))?;
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("tidy: 1 finding"),
        count => bail!("tidy: {count} findings"),
    }
}

fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = names::check(sources);
    findings.extend(words::check(sources));
    findings.extend(architecture::check(sources));
    findings.extend(pages::check(sources));
    findings.extend(errors::check(sources));
    findings
}

/// The tracked text files that rules look at.
fn sources(root: &Path) -> anyhow::Result<Vec<Source>> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "*.rs", "*.md", "*.toml", "*.js"])
        .output()
        .context("cannot run git")?;
    if !listed.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let mut sources = Vec::new();
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let at = root.join(path);
        // Deleted in the work tree and not yet in the index.
        if at.is_file() {
            let text = std::fs::read_to_string(&at).with_context(|| format!("cannot read {path}"))?;
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn this_repository_is_tidy() -> anyhow::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the repository")?;
        assert_eq!(check(&sources(root)?), []);
        Ok(())
    }
}
