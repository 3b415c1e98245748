//! Other root file systems on this kernel: busybox alone, as on Alpine, and a Debian with glibc 2.31.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::{install, sh};

/// A Debian by its name, below a place.
pub(super) fn debian(place: &Path, release: &str) -> anyhow::Result<PathBuf> {
    let root = place.join(release);
    if !root.join("var/lib/dpkg/status").exists() {
        install::need("debootstrap", "debootstrap")?;
        let aside = place.join(format!("{release}.new"));
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        sh(Command::new("debootstrap").args(["--variant=minbase", "--include=perl-base,procps,git,python3", release]).arg(&aside))?;
        fs::rename(&aside, &root)?;
        add_user(&root)?;
    }
    Ok(root)
}

/// A busybox without libraries. It is unpacked and not installed: the one that this machine has may need them, and Debian has one of both
/// at a time.
pub(super) fn busybox(place: &Path) -> anyhow::Result<PathBuf> {
    let unpacked = place.join("busybox-static");
    let program = unpacked.join("bin/busybox");
    if !program.exists() {
        fs::create_dir_all(&unpacked)?;
        let script = "apt-get -q update && apt-get -q download busybox-static && dpkg-deb -x busybox-static_*.deb .";
        sh(Command::new("sh").args(["-ec", script]).current_dir(&unpacked))?;
        ensure!(program.exists(), "the package busybox-static has no bin/busybox");
    }
    Ok(program)
}

/// Nothing but busybox and a few files of `/etc`.
pub(super) fn alpine(place: &Path) -> anyhow::Result<PathBuf> {
    let root = place.join("alpine");
    if root.join("etc/passwd").exists() {
        return Ok(root);
    }
    let busybox = busybox(place)?;
    for directory in ["bin", "sbin", "usr/bin", "usr/sbin", "etc", "tmp", "var/tmp", "root", "home/dev", "proc", "sys", "dev", "run", "old"]
    {
        fs::create_dir_all(root.join(directory))?;
    }
    for shared in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(shared), PermissionsExt::from_mode(0o1777))?;
    }
    fs::copy(&busybox, root.join("bin/busybox"))?;
    let listed = Command::new(&busybox).arg("--list").output()?;
    ensure!(listed.status.success(), "busybox does not list its commands");
    for name in String::from_utf8(listed.stdout)?.lines().filter(|name| *name != "busybox") {
        let _ = symlink("busybox", root.join("bin").join(name));
    }
    fs::write(root.join("etc/group"), "root:x:0:\ndev:x:1000:\n")?;
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n")?;
    Ok(root)
}

fn add_user(root: &Path) -> anyhow::Result<()> {
    sh(Command::new("chroot").arg(root).args(["useradd", "-m", "-u", "1000", "-s", "/bin/bash", "dev"]))
}

/// Runs a command there, with the kit of its architecture.
pub(super) fn enter(kit: &Path, root: &Path, user: u32, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh"]).arg(kit.join("enter.sh"));
    command.arg(root).arg(user.to_string()).args(words).env("KIT_FROM", kit);
    command
}
