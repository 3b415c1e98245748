//! The host matrix: the same checks on every kind of host that can be had on one machine, and the tables of `docs/hosts.md`.
//!
//! Needs root. Containers, roots and virtual machines are made below `target/hosts` and kept for the next run; what is started is ended.

mod container;
mod ground;
mod kit;
mod machine;
mod page;
mod results;
mod root;
mod slurm;

use std::fs;

use anyhow::{Context, ensure};

use ground::Ground;
use results::{Column, Results};

use crate::dist::Arch;
use crate::target;

const PAGE: &str = "docs/hosts.md";

/// What a host is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Here,
    Podman,
    Rootless,
    Docker,
    DevContainer,
    Slurm,
    Alpine,
    Bullseye,
    Machine,
    Arm,
    ArmUser,
}

impl Kind {
    fn arch(self) -> Arch {
        if matches!(self, Self::Arm | Self::ArmUser) { Arch::Aarch64 } else { Arch::X86_64 }
    }
}

/// Who runs the executor there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
    /// A unit of systemd, as root.
    Unit,
    /// A unit of systemd of an ordinary user, with `Delegate=yes`.
    Delegate,
}

#[derive(Debug, Clone, Copy)]
struct Host {
    name: &'static str,
    title: &'static str,
    kind: Kind,
    who: Who,
}

const fn host(name: &'static str, title: &'static str, kind: Kind, who: Who) -> Host {
    Host { name, title, kind, who }
}

const HOSTS: [Host; 23] = [
    host("here-root", "this machine, root", Kind::Here, Who::Root),
    host("here-user", "this machine, user without a passwd entry", Kind::Here, Who::User),
    host("alpine-root", "busybox root like Alpine's, root", Kind::Alpine, Who::Root),
    host("alpine-user", "busybox root like Alpine's, user", Kind::Alpine, Who::User),
    host("glibc231-root", "Debian 11 root (glibc 2.31), root", Kind::Bullseye, Who::Root),
    host("glibc231-user", "Debian 11 root (glibc 2.31), user", Kind::Bullseye, Who::User),
    host("podman-root", "podman, default flags, root", Kind::Podman, Who::Root),
    host("podman-user", "podman, default flags, user", Kind::Podman, Who::User),
    host("rootless-root", "podman rootless, default flags, root", Kind::Rootless, Who::Root),
    host("rootless-user", "podman rootless, default flags, user", Kind::Rootless, Who::User),
    host("docker-root", "docker, default flags, root", Kind::Docker, Who::Root),
    host("docker-user", "docker, default flags, user", Kind::Docker, Who::User),
    host("devcontainer", "dev container (podman), root", Kind::DevContainer, Who::Root),
    host("slurm-root", "Slurm job, root", Kind::Slurm, Who::Root),
    host("slurm-user", "Slurm job, user", Kind::Slurm, Who::User),
    host("vm-root", "Debian 12, systemd, root over ssh", Kind::Machine, Who::Root),
    host("vm-user", "Debian 12, systemd, user over ssh", Kind::Machine, Who::User),
    host("vm-unit", "Debian 12, systemd, unit", Kind::Machine, Who::Unit),
    host("vm-delegate", "Debian 12, systemd, unit of a user with Delegate=yes", Kind::Machine, Who::Delegate),
    host("arm-root", "aarch64, Debian 12, systemd, root over ssh", Kind::Arm, Who::Root),
    host("arm-user", "aarch64, Debian 12, systemd, user over ssh", Kind::Arm, Who::User),
    host("arm-qemu-root", "aarch64 by qemu-user, root", Kind::ArmUser, Who::Root),
    host("arm-qemu-user", "aarch64 by qemu-user, user", Kind::ArmUser, Who::User),
];

/// Parts of a run; the first three if none is named. `page` alone writes the page from what earlier runs kept.
const PARTS: [&str; 4] = ["checks", "security", "faults", "page"];

pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let (parts, names): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| PARTS.contains(word));
    for name in &names {
        let known = HOSTS.map(|host| host.name).join(", ");
        ensure!(
            HOSTS.iter().any(|host| host.name == *name),
            "there is no host `{name}`; there are {known}; parts are {}",
            PARTS.join(", ")
        );
    }
    if parts == ["page"] {
        return write_page(&Results::load(&target().join("hosts"))?);
    }
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let mut ground = Ground::new(wants("security"))?;
    let mut all = Results::load(&ground.place)?;
    for host in HOSTS.iter().filter(|host| names.is_empty() || names.contains(&host.name)) {
        for part in PARTS.into_iter().filter(|part| *part != "page" && wants(part)) {
            let Some(column) = check(&mut ground, host, part) else { continue };
            for (what, result) in &column.lines {
                show(&format!("{}: {what}: {result}", host.name));
            }
            all.put(host.name, part, column)?;
        }
    }
    drop(ground);
    write_page(&all)
}

/// Also writes what is wrong, and then fails.
fn write_page(all: &Results) -> anyhow::Result<()> {
    fs::write(PAGE, page::page(all)).with_context(|| format!("{PAGE} cannot be written"))?;
    let bad = all.broken();
    ensure!(bad.is_empty(), "promises that do not hold and are told to hold, or checks that failed:\n{}", bad.join("\n"));
    Ok(())
}

/// One part on one host; nothing if the host has no such part.
fn check(ground: &mut Ground, host: &Host, part: &str) -> Option<Column> {
    let read = match part {
        "checks" => ground.checks(host),
        "security" => ground.security(host),
        _ => ground.faults(host).transpose()?,
    };
    Some(read.unwrap_or_else(|error| Column::untried(&format!("{error:#}"))))
}

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn show(line: &str) {
    eprintln!("{line}");
}
