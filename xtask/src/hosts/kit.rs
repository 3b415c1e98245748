//! What every host gets: the static program, the test binary of `tests/security`, and the scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::dist::{self, Arch, Toolchain};
use crate::sh;

/// Where the kit is on every host. Open to all users, unlike a build directory.
pub(super) const KIT: &str = "/var/tmp/outpost-hosts";
pub(super) const PROGRAM: &str = "/var/tmp/outpost-hosts/outpost";
pub(super) const CHECKS: &str = "/var/tmp/outpost-hosts/checks.sh";
pub(super) const FAULTS: &str = "/var/tmp/outpost-hosts/faults.sh";
pub(super) const SECURITY: &str = "/var/tmp/outpost-hosts/security";

/// Builds the kit of one architecture, with `tests/security` if it is wanted, and returns where it lies on this machine.
pub(super) fn build(arch: Arch, with_tests: bool) -> anyhow::Result<PathBuf> {
    let directory = match arch {
        Arch::X86_64 => PathBuf::from(KIT),
        Arch::Aarch64 => PathBuf::from(format!("{KIT}-{}", arch.name())),
    };
    fs::create_dir_all(&directory)?;
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
    let toolchain = Toolchain::install()?;
    // As it is released: what runs on the hosts is what people get.
    put(&toolchain.program(arch, &dist::commit_time()?)?, &directory.join("outpost"))?;
    if with_tests {
        put(&tests(&toolchain, arch)?, &directory.join("security"))?;
    }
    for (name, text) in
        [("checks.sh", include_str!("checks.sh")), ("faults.sh", include_str!("faults.sh")), ("enter.sh", include_str!("enter.sh"))]
    {
        fs::write(directory.join(name), text)?;
        fs::set_permissions(directory.join(name), PermissionsExt::from_mode(0o755))?;
    }
    // The tasks of `cargo xtask everyday`, for hosts that do not see the project.
    let tasks = "rm -rf \"$1/everyday\" && cp -r tests/everyday \"$1/everyday\" && chmod -R a+rX \"$1/everyday\"";
    sh(Command::new("sh").args(["-ec", tasks, "sh"]).arg(&directory))?;
    Ok(directory)
}

/// The test binary of `tests/security`.
fn tests(toolchain: &Toolchain, arch: Arch) -> anyhow::Result<PathBuf> {
    let mut cargo = toolchain.command("test", arch)?;
    cargo.args(["--no-run", "--locked", "--package", "outpost", "--test", "security", "--message-format", "json-render-diagnostics"]);
    // The tests start the program where it is on the hosts.
    let output =
        cargo.env("OUTPOST_TEST_PROGRAM", PROGRAM).stderr(std::process::Stdio::inherit()).output().context("cannot run cargo-zigbuild")?;
    ensure!(output.status.success(), "tests/security cannot be built for {}", arch.name());
    executable(&String::from_utf8(output.stdout)?, "test", "security").context("cargo built no tests/security")
}

/// Stripped: a virtual machine has no room for symbols. By a rename, because a host of an earlier run may still use the old one.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    let aside = to.with_extension("new");
    fs::copy(from, &aside).with_context(|| format!("cannot copy {}", from.display()))?;
    // Where the tools of this machine do not know the architecture it stays as it is.
    let _ = Command::new("strip").arg(&aside).stderr(std::process::Stdio::null()).status();
    fs::set_permissions(&aside, PermissionsExt::from_mode(0o755))?;
    Ok(fs::rename(&aside, to)?)
}

/// The program or test that cargo says it built.
fn executable(built: &str, kind: &str, name: &str) -> Option<PathBuf> {
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = messages.filter(|message| message["target"]["name"] == name && message["target"]["kind"][0] == kind);
    found.find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_what_it_built() {
        let built = "{\"target\":{\"name\":\"outpost\",\"kind\":[\"bin\"]},\"executable\":null}\n\
            {\"target\":{\"name\":\"outpost\",\"kind\":[\"bin\"]},\"executable\":\"/b/outpost\"}\n\
            {\"target\":{\"name\":\"security\",\"kind\":[\"test\"]},\"executable\":\"/b/deps/security-1\"}\n";
        assert_eq!(executable(built, "bin", "outpost"), Some("/b/outpost".into()));
        assert_eq!(executable(built, "test", "security"), Some("/b/deps/security-1".into()));
        assert_eq!(executable(built, "test", "outpost"), None);
    }
}
