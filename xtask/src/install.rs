//! Programs of others that tests talk to.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::{sh, target};

/// The released peer, exactly the one whose wire we speak.
const CODEX: &str = "@openai/codex@0.166.0";

/// The reference server of the Model Context Protocol.
const MCP_SERVER: &str = "@modelcontextprotocol/server-everything@2026.8.31";

/// Below the build directory, so that it is kept between runs and never committed.
fn directory() -> PathBuf {
    target().join("interop")
}

/// The peer's program.
pub(crate) fn codex() -> anyhow::Result<PathBuf> {
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

/// A server of the Model Context Protocol that offers everything that a server can offer.
pub(crate) fn mcp_server() -> anyhow::Result<PathBuf> {
    let directory = target().join("interop-mcp");
    let program = directory.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let stamp = directory.join(".installed");
    if program.exists() && std::fs::read_to_string(&stamp).is_ok_and(|text| text == MCP_SERVER) {
        return Ok(program);
    }
    need("npm", "npm")?;
    std::fs::create_dir_all(&directory)?;
    sh(Command::new("npm").args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&directory).arg(MCP_SERVER))?;
    ensure!(program.exists(), "npm did not install {}", program.display());
    std::fs::write(stamp, MCP_SERVER)?;
    Ok(program)
}

/// Clients of the app protocol and of `exec --json` that others wrote, as they are released.
const NODE_CLIENTS: [&str; 6] = [
    "@openai/codex-sdk@0.163.0",
    "@agentclientprotocol/codex-acp@2.6.0",
    "@agentclientprotocol/sdk@2.4.0",
    "ai-sdk-provider-codex-app-server@1.1.7",
    "ai-sdk-provider-codex-cli@1.4.1",
    "ai@6",
];
const PYTHON_CLIENTS: [&str; 3] = ["openai-codex==0.163.0", "codex-python-sdk==0.2.1", "codex-sdk-python==0.117.0"];
/// What the first one stands on. Its other dependency is a copy of the peer's program, which is not needed.
const PYTHON_LIBRARIES: [&str; 6] = ["pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "packaging"];

/// A directory with `node_modules`, and `python` with a virtual environment.
pub(crate) fn clients() -> anyhow::Result<PathBuf> {
    let directory = directory().join("clients");
    let stamp = directory.join(".installed");
    let wanted = [&NODE_CLIENTS[..], &PYTHON_CLIENTS].concat().join(" ");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(directory);
    }
    need("npm", "npm")?;
    std::fs::create_dir_all(&directory)?;
    let npm = ["install", "--no-audit", "--no-fund", "--legacy-peer-deps", "--ignore-scripts", "--prefix"];
    sh(Command::new("npm").args(npm).arg(&directory).args(NODE_CLIENTS))?;
    let python = directory.join("python");
    python_environment(&python)?;
    let pip = || {
        let mut pip = Command::new(python.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check"]);
        pip
    };
    sh(pip().arg("--no-deps").args(PYTHON_CLIENTS))?;
    sh(pip().args(PYTHON_LIBRARIES))?;
    std::fs::write(stamp, wanted)?;
    Ok(directory)
}

/// A virtual environment, into which pip installs.
pub(crate) fn python_environment(directory: &Path) -> anyhow::Result<()> {
    need("python3", "python3")?;
    if !has_venv() {
        debian(&["python3-venv"])?;
    }
    sh(Command::new("python3").args(["-m", "venv"]).arg(directory))
}

/// Debian keeps a part of Python apart without which there are no virtual environments.
fn has_venv() -> bool {
    Command::new("python3").args(["-c", "import ensurepip, venv"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What drives a browser, and what checks a page for accessibility. The browser is Debian's.
const BROWSER_TOOLS: [&str; 2] = ["playwright-core@1.64.1", "axe-core@4.14.0"];

/// A directory with `node_modules`.
pub(crate) fn browser() -> anyhow::Result<PathBuf> {
    need("chromium", "chromium")?;
    need("node", "nodejs")?;
    let directory = directory().join("browser");
    let stamp = directory.join(".installed");
    let wanted = BROWSER_TOOLS.join(" ");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(directory);
    }
    need("npm", "npm")?;
    std::fs::create_dir_all(&directory)?;
    sh(Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
        .arg(&directory)
        .args(BROWSER_TOOLS))?;
    std::fs::write(stamp, wanted)?;
    Ok(directory)
}

/// The peer's program itself, without the launcher that starts it: that one costs time of its own.
pub(crate) fn codex_without_launcher() -> anyhow::Result<PathBuf> {
    codex()?;
    let below = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    below(directory().join("node_modules/@openai"))
        .flat_map(|package| below(package.join("vendor")))
        .map(|machine| machine.join("bin/codex"))
        .find(|program| program.exists())
        .context("the package has another shape")
}

/// A Postgres server; Debian keeps its programs off the path.
fn has_postgres() -> bool {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    installed.map(|version| version.path().join("bin/initdb")).any(|initdb| initdb.exists()) || is_there("initdb")
}

/// Installs a Debian package if a program is missing.
pub(crate) fn need(program: &str, package: &str) -> anyhow::Result<()> {
    if is_there(program) { Ok(()) } else { debian(&[package]) }
}

// Not all programs can be asked for their version.
pub(crate) fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

pub(crate) fn debian(packages: &[&str]) -> anyhow::Result<()> {
    ensure!(can_install(), "missing: {}; install with {}", packages.join(", "), by_hand(packages));
    sh(Command::new("apt-get").arg("update"))?;
    sh(Command::new("apt-get").args(["install", "-y", "--no-install-recommends"]).args(packages))
}

/// Whether packages can be installed by us: that takes Debian and root.
fn can_install() -> bool {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    is_root && is_there("apt-get")
}

fn by_hand(packages: &[&str]) -> String {
    format!("`sudo apt-get install {}` (or the packages of those names in your distribution)", packages.join(" "))
}

/// No program of its own: a part of `python3`.
const VENV: &str = "python3 -m venv";

/// What the tests need of the system: the program, its package, and which tests need it.
const NEEDED: [(&str, &str, Tests); 21] = [
    ("strace", "strace", Tests::Some),
    ("python3", "python3", Tests::Some),
    ("ip", "iproute2", Tests::Some),
    ("unshare", "util-linux", Tests::Some),
    ("setsid", "util-linux", Tests::Some),
    ("git", "git", Tests::Some),
    ("openssl", "openssl", Tests::Some),
    ("make", "make", Tests::Some),
    ("initdb", "postgresql", Tests::Some),
    (VENV, "python3-venv", Tests::Interop),
    ("npm", "npm", Tests::Interop),
    ("node", "nodejs", Tests::Interop),
    ("chromium", "chromium", Tests::Interop),
    ("/usr/sbin/sshd", "openssh-server", Tests::Interop),
    ("ssh", "openssh-client", Tests::Interop),
    ("bash", "bash", Tests::Interop),
    ("dash", "dash", Tests::Interop),
    ("busybox", "busybox", Tests::Interop),
    ("tcsh", "tcsh", Tests::Interop),
    ("zsh", "zsh", Tests::Interop),
    ("fish", "fish", Tests::Interop),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    /// Some of those that always run.
    Some,
    /// Those with programs of others.
    Interop,
}

/// Installs what is missing of the system, all at once; where that cannot be done, says in one message what to install and how.
/// Returns whether the tests with programs of others can run.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn system() -> bool {
    let is_missing = |program: &str| match program {
        "initdb" => !has_postgres(),
        VENV => !has_venv(),
        program => !is_there(program),
    };
    let missing: Vec<_> = NEEDED.into_iter().filter(|(program, ..)| is_missing(program)).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    if packages.is_empty() {
        return true;
    }
    if can_install() {
        match debian(&packages) {
            Ok(()) => return true,
            Err(error) => eprintln!("xtask: {error:#}"),
        }
    }
    let interop = !missing.iter().any(|(.., tests)| *tests == Tests::Interop);
    eprintln!(
        "xtask: some tests need programs that are not here, and installing them takes root and apt-get.\n  missing: {}\n  install: {}\n  now: {}",
        missing.iter().map(|(program, ..)| *program).collect::<Vec<_>>().join(", "),
        by_hand(&packages),
        if interop {
            "all tests run; those that need one of these are skipped or fail"
        } else {
            "the tests with programs of others (ssh, SDKs, editors, a browser) are left out; all others run"
        }
    );
    interop
}
