//! `contrib/install.sh` against a release that lies in a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use tempfile::TempDir;

const ARCH: &str = std::env::consts::ARCH;

/// A release with a script in place of the program.
fn release() -> anyhow::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let name = format!("outpost-1.2.3-{ARCH}");
    let tree = directory.path().join(&name);
    for below in ["bin", "lib/systemd/user", "share/doc/outpost"] {
        fs::create_dir_all(tree.join(below))?;
    }
    let program = tree.join("bin/outpost");
    fs::write(&program, "#!/bin/sh\necho outpost 1.2.3\n")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::write(tree.join("lib/systemd/user/outpost-serve.service"), "[Unit]\n")?;
    fs::write(tree.join("share/doc/outpost/README.md"), "# Outpost\n")?;
    fs::copy(&program, directory.path().join("outpost-aarch64-static"))?;
    shell(directory.path(), &format!("tar -czf {name}.tar.gz {name} && sha256sum {name}.tar.gz outpost-aarch64-static > SHA256SUMS"))?;
    Ok(directory)
}

fn shell(directory: &Path, script: &str) -> anyhow::Result<()> {
    let status = Command::new("sh").args(["-c", script]).current_dir(directory).status()?;
    ensure!(status.success(), "{script}: {status}");
    Ok(())
}

/// Runs the installer with a home of its own.
fn install(release: &Path, home: &Path, words: &[&str]) -> anyhow::Result<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).args(words).env("HOME", home).env_remove("OUTPOST_HOME");
    command.env("OUTPOST_RELEASES", format!("file://{}", release.display())).env("OUTPOST_VERSION", "1.2.3");
    command.output().context("cannot run sh")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_release_is_installed_and_removed() -> anyhow::Result<()> {
    let (release, home) = (release()?, tempfile::tempdir()?);
    let prefix = home.path().join("prefix");
    let words = ["--prefix", prefix.to_str().context("not UTF-8")?];
    let installed = install(release.path(), home.path(), &words)?;
    assert!(installed.status.success(), "{}", said(&installed));
    let version = Command::new(prefix.join("bin/outpost")).arg("--version").output()?;
    assert_eq!(String::from_utf8_lossy(&version.stdout), "outpost 1.2.3\n");
    assert!(prefix.join("lib/systemd/user/outpost-serve.service").exists());
    assert!(prefix.join("share/doc/outpost/README.md").exists());
    let removed = install(release.path(), home.path(), &[&words[..], &["--uninstall"]].concat())?;
    assert!(removed.status.success(), "{}", said(&removed));
    assert!(!prefix.join("bin/outpost").exists() && !prefix.join("share/doc/outpost").exists());
    Ok(())
}

#[test]
fn a_program_for_other_machines_goes_where_env_add_looks_for_it() -> anyhow::Result<()> {
    let (release, home) = (release()?, tempfile::tempdir()?);
    let carried = install(release.path(), home.path(), &["--carry", "arm64"])?;
    assert!(carried.status.success(), "{}", said(&carried));
    assert!(home.path().join(".outpost/programs/outpost-aarch64-static").exists());
    Ok(())
}

#[test]
fn a_download_that_was_altered_is_not_installed() -> anyhow::Result<()> {
    let (release, home) = (release()?, tempfile::tempdir()?);
    let prefix = home.path().join("prefix");
    let words = ["--prefix", prefix.to_str().context("not UTF-8")?];
    shell(release.path(), &format!("echo x >> outpost-1.2.3-{ARCH}.tar.gz"))?;
    let altered = install(release.path(), home.path(), &words)?;
    assert_eq!(altered.status.code(), Some(1));
    assert!(said(&altered).contains("nothing was installed"), "{}", said(&altered));
    shell(release.path(), "echo > SHA256SUMS")?;
    let unnamed = install(release.path(), home.path(), &words)?;
    assert_eq!(unnamed.status.code(), Some(1));
    assert!(said(&unnamed).contains("SHA256SUMS does not name"), "{}", said(&unnamed));
    fs::remove_file(release.path().join("SHA256SUMS"))?;
    let missing = install(release.path(), home.path(), &words)?;
    assert!(said(&missing).contains("cannot download"), "{}", said(&missing));
    assert!(!prefix.exists());
    Ok(())
}

#[test]
fn what_the_installer_cannot_do_it_says() -> anyhow::Result<()> {
    let (release, home) = (release()?, tempfile::tempdir()?);
    let unknown = install(release.path(), home.path(), &["--carry", "sparc"])?;
    assert!(said(&unknown).contains("there is no program for sparc: x86_64 and aarch64 are built"), "{}", said(&unknown));
    let option = install(release.path(), home.path(), &["--fast"])?;
    assert!(said(&option).contains("unknown option --fast"), "{}", said(&option));
    Ok(())
}
