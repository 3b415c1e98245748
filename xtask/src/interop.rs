//! `cargo xtask interop --latest`: the newest released clients of others against the program of this tree, and what came of it in
//! `docs/clients.md`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::install::{need, python_environment};
use crate::{cargo, sh, target};

/// Where the table stands in the page.
const BEGIN: &str = "<!-- latest: begin (cargo xtask interop --latest) -->";
const END: &str = "<!-- latest: end -->";
const PAGE: &str = "docs/clients.md";

/// A client, where it comes from, and the test that drives it.
struct Client {
    package: &'static str,
    source: Source,
    test: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Npm,
    PyPi,
}

const CLIENTS: [Client; 7] = [
    Client { package: "openai-codex", source: Source::PyPi, test: "clients::the_official_python_sdk" },
    Client { package: "@openai/codex-sdk", source: Source::Npm, test: "clients::the_official_typescript_sdk" },
    Client { package: "@agentclientprotocol/codex-acp", source: Source::Npm, test: "clients::an_editor_through_the_acp_adapter" },
    Client { package: "ai-sdk-provider-codex-app-server", source: Source::Npm, test: "clients::a_provider_of_the_ai_sdk" },
    Client { package: "ai-sdk-provider-codex-cli", source: Source::Npm, test: "clients::a_provider_of_the_ai_sdk_for_both_doors" },
    Client { package: "codex-python-sdk", source: Source::PyPi, test: "clients::a_python_client_that_enables_features" },
    Client { package: "codex-sdk-python", source: Source::PyPi, test: "clients::a_python_client_of_both_doors" },
];

/// What these stand on.
const NODE_LIBRARIES: [&str; 2] = ["@agentclientprotocol/sdk@latest", "ai@latest"];
const PYTHON_LIBRARIES: [&str; 6] = ["pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "packaging"];

/// Tries all of them, writes down what came of each, and fails if one does.
pub(crate) fn latest() -> anyhow::Result<()> {
    let directory = install()?;
    let mut rows = Vec::new();
    for client in &CLIENTS {
        let version = client.version(&directory).unwrap_or_else(|error| format!("unknown: {error:#}"));
        rows.push((client, version, client.works(&directory)?));
    }
    let date = today()?;
    let mut table = String::from("| client | newest release | tried on | result |\n|---|---|---|---|\n");
    for (client, version, works) in &rows {
        let result = if *works { "works" } else { "fails" };
        let _ = writeln!(table, "| `{}` | {version} | {date} | {result} |", client.package);
    }
    let page = std::fs::read_to_string(PAGE).with_context(|| format!("{PAGE} cannot be read"))?;
    std::fs::write(PAGE, with_table(&page, &table)?)?;
    let failed: Vec<&str> = rows.iter().filter(|(_, _, works)| !works).map(|(client, ..)| client.package).collect();
    ensure!(failed.is_empty(), "the newest release of {} does not work; {PAGE} has the versions", failed.join(", "));
    Ok(())
}

/// The newest of each, below the build directory and apart from those that the tests are pinned to.
fn install() -> anyhow::Result<PathBuf> {
    need("npm", "npm")?;
    let directory = target().join("interop-latest");
    std::fs::create_dir_all(&directory)?;
    let npm = ["install", "--no-audit", "--no-fund", "--legacy-peer-deps", "--ignore-scripts", "--prefix"];
    let node = CLIENTS.iter().filter(|client| client.source == Source::Npm).map(|client| format!("{}@latest", client.package));
    sh(Command::new("npm").args(npm).arg(&directory).args(node).args(NODE_LIBRARIES))?;
    let python = directory.join("python");
    python_environment(&python)?;
    let pip = || {
        let mut pip = Command::new(python.join("bin/pip"));
        pip.args(["install", "--quiet", "--upgrade", "--disable-pip-version-check"]);
        pip
    };
    let packages = CLIENTS.iter().filter(|client| client.source == Source::PyPi).map(|client| client.package);
    sh(pip().arg("--no-deps").args(packages))?;
    sh(pip().args(PYTHON_LIBRARIES))?;
    Ok(directory)
}

impl Client {
    /// As it is installed.
    fn version(&self, directory: &Path) -> anyhow::Result<String> {
        let script = match self.source {
            Source::Npm => {
                let manifest = directory.join("node_modules").join(self.package).join("package.json");
                let text = std::fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
                let manifest: serde_json::Value = serde_json::from_str(&text)?;
                return Ok(manifest["version"].as_str().context("it names no version")?.to_owned());
            }
            Source::PyPi => format!("import importlib.metadata as m; print(m.version({:?}))", self.package),
        };
        said(Command::new(directory.join("python/bin/python")).args(["-c", &script]))
    }

    /// Whether its test passes.
    fn works(&self, directory: &Path) -> anyhow::Result<bool> {
        let mut test = cargo();
        // As `cargo xtask test` builds them, so that nothing is built twice.
        test.args(["test", "--workspace", "--features", "outpost/interop", "--test", "interop", "--", "--exact", self.test]);
        let status = test.env("OUTPOST_TEST_CLIENTS", directory).status().with_context(|| format!("cannot run {test:?}"))?;
        Ok(status.success())
    }
}

fn today() -> anyhow::Result<String> {
    said(Command::new("date").args(["-u", "+%Y-%m-%d"]))
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The page with another table between its marks.
fn with_table(page: &str, table: &str) -> anyhow::Result<String> {
    let (Some(begin), Some(end)) = (page.find(BEGIN), page.find(END)) else {
        bail!("{PAGE} has no place for the table: {BEGIN} … {END}")
    };
    ensure!(begin < end, "{PAGE}: the marks of the table stand in the wrong order");
    Ok(format!("{}{BEGIN}\n{table}{}", &page[..begin], &page[end..]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_written_anew() {
        let page = format!("# Clients\n\n{BEGIN}\nold\n{END}\n\nthe rest\n");
        let written = with_table(&page, "| new |\n").unwrap();
        assert_eq!(written, format!("# Clients\n\n{BEGIN}\n| new |\n{END}\n\nthe rest\n"));
        assert_eq!(with_table(&written, "| new |\n").unwrap(), written);
        assert!(with_table("no place", "").is_err());
        let own = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE)).unwrap();
        with_table(&own, "").unwrap();
    }

    /// Each of them has a test of its own, under the name that is run.
    #[test]
    fn every_client_has_its_test() {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/interop/clients.rs")).unwrap();
        for client in &CLIENTS {
            let name = client.test.strip_prefix("clients::").unwrap();
            assert!(text.contains(&format!("async fn {name}()")), "{}: {name}", client.package);
        }
    }
}
