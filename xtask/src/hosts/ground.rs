//! What the hosts are made of, each part when it is first needed, and how a command is run on each of them.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::container::{self, DevContainer, IMAGE, Rootless};
use super::kit::{self, CHECKS, FAULTS, PROGRAM, SECURITY};
use super::machine::Machine;
use super::results::Column;
use super::slurm::Slurm;
use super::{Host, Kind, Who, root, show};
use crate::dist::Arch;
use crate::target;

/// A user that is in no file.
const NOBODY: u32 = 54_321;

/// A program that ends with this one.
pub(super) struct Daemon(Child);

impl Daemon {
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        show(&format!("+ {command:?}"));
        Ok(Self(command.spawn().with_context(|| format!("cannot run {command:?}"))?))
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        // It may have children of its own to end.
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(100));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) struct Ground {
    pub place: PathBuf,
    /// `tests/security` is part of the kit.
    with_tests: bool,
    /// Kits that were built in this run.
    kits: Vec<(Arch, PathBuf)>,
    docker: Option<(Daemon, String)>,
    dev_container: Option<DevContainer>,
    slurm: Option<Slurm>,
    user: Option<Rootless>,
    /// One at a time: each takes a processor.
    machine: Option<(Arch, Machine)>,
}

impl Ground {
    pub(super) fn new(with_tests: bool) -> anyhow::Result<Self> {
        let place = target().join("hosts");
        fs::create_dir_all(&place)?;
        Ok(Self { place, with_tests, kits: Vec::new(), docker: None, dev_container: None, slurm: None, user: None, machine: None })
    }

    pub(super) fn checks(&mut self, host: &Host) -> anyhow::Result<Column> {
        if host.kind == Kind::ArmUser {
            // An emulator of programs lacks calls of the kernel; one without those that start a command is no host.
            let tried = self.on(host, &[PROGRAM, "run", "--", "true"])?.output()?;
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            ensure!(tried.status.success(), "the emulator starts no command: {}", said.lines().last().unwrap_or_default());
        }
        let column = Column::parse(&read(&mut self.on(host, &["sh", CHECKS])?)?);
        ensure!(!column.lines.is_empty(), "nothing was checked");
        Ok(column)
    }

    /// The promises, attacked where they are made.
    pub(super) fn security(&mut self, host: &Host) -> anyhow::Result<Column> {
        if matches!(host.kind, Kind::Alpine | Kind::ArmUser) {
            bail!(
                "{}",
                if host.kind == Kind::Alpine { "the tests need perl, git and util-linux" } else { "there is no sandbox under qemu-user" }
            );
        }
        let said = read(&mut self.on(host, &[SECURITY, "--show-output", "--test-threads=2"])?)?;
        fs::write(self.place.join(format!("{}.security.log", host.name)), &said)?;
        let column = counted(&said);
        ensure!(column.get("held").is_some_and(|held| held != "0"), "no test was run");
        Ok(column)
    }

    /// What happens when something breaks; only on the hosts on which it can.
    pub(super) fn faults(&mut self, host: &Host) -> anyhow::Result<Option<Column>> {
        let words = ["sh", FAULTS, host.name];
        let mut command = match (host.kind, host.who) {
            (Kind::Here, Who::Root) => {
                let podman = container::podman(&self.place)?;
                self.on(host, &words)?.tap(|it| it.env("PODMAN", podman))
            }
            // On the login node, which is this machine as well.
            (Kind::Slurm, Who::Root) => {
                self.kit(Arch::X86_64)?;
                let conf = self.cluster()?;
                plain("sh", &words[1..]).tap(|it| it.env("SLURM_CONF", conf).env("OUTPOST", PROGRAM))
            }
            (Kind::Machine, Who::Root) => self.on(host, &words)?,
            _ => return Ok(None),
        };
        let column = Column::parse(&read(&mut command)?);
        ensure!(!column.lines.is_empty(), "nothing was checked");
        Ok(Some(column))
    }

    /// A command that runs on a host.
    fn on(&mut self, host: &Host, words: &[&str]) -> anyhow::Result<Command> {
        let (place, is_root) = (self.place.clone(), host.who == Who::Root);
        let kit = self.kit(host.kind.arch())?;
        let mut command = match host.kind {
            Kind::Here if is_root => plain("env", words),
            Kind::Here => {
                let mut command = plain("setpriv", &[&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
                command.args(words).env("HOME", "/nonexistent");
                command
            }
            Kind::Alpine => root::enter(&kit, &root::alpine(&place)?, if is_root { 0 } else { 1000 }, words),
            Kind::Bullseye => root::enter(&kit, &root::debian(&place, "bullseye")?, if is_root { 0 } else { 1000 }, words),
            Kind::Podman => plain(container::podman(&place)?, &[]).tap(|it| it.args(container::arguments(host.who, IMAGE, words))),
            Kind::Rootless => self.user()?.podman(&place)?.tap(|it| it.args(container::arguments(host.who, IMAGE, words))),
            Kind::Docker => {
                if self.docker.is_none() {
                    self.docker = Some(container::docker(&place)?);
                }
                let socket = self.docker.as_ref().map(|(_, socket)| socket.clone()).unwrap_or_default();
                plain("docker", &["-H", &socket]).tap(|it| it.args(container::arguments(host.who, IMAGE, words)))
            }
            Kind::DevContainer => {
                if self.dev_container.is_none() {
                    self.dev_container = Some(DevContainer::up(&place)?);
                }
                let up = self.dev_container.as_ref().context("there is no dev container")?;
                up.command("exec").tap(|it| it.args(words))
            }
            Kind::Slurm => self.job(host.who, words)?,
            Kind::Machine => self.machine(Arch::X86_64)?.command(host.who, words),
            Kind::Arm => self.machine(Arch::Aarch64)?.command(host.who, words),
            Kind::ArmUser => {
                let root = place.join("vm-arm64/root");
                ensure!(root.join("bin").exists(), "run arm-root first: it makes the root");
                root::enter(&kit, &root, if is_root { 0 } else { 1000 }, words)
            }
        };
        command.env("OUTPOST", PROGRAM);
        Ok(command)
    }

    fn job(&mut self, who: Who, words: &[&str]) -> anyhow::Result<Command> {
        let conf = self.cluster()?;
        let mut command = match who {
            Who::Root => plain("srun", &[]),
            _ => self.user()?.command("srun"),
        };
        command.env("SLURM_CONF", conf).args(["-Q", "-n1"]).args(words);
        Ok(command)
    }

    /// The configuration of a cluster that runs.
    fn cluster(&mut self) -> anyhow::Result<PathBuf> {
        if self.slurm.is_none() {
            self.slurm = Some(Slurm::start(&self.place)?);
        }
        self.slurm.as_ref().map(|slurm| slurm.conf.clone()).context("there is no cluster")
    }

    fn user(&mut self) -> anyhow::Result<&Rootless> {
        if self.user.is_none() {
            self.user = Some(Rootless::new()?);
        }
        self.user.as_ref().context("there is no user")
    }

    fn kit(&mut self, arch: Arch) -> anyhow::Result<PathBuf> {
        if let Some((_, kit)) = self.kits.iter().find(|(built, _)| *built == arch) {
            return Ok(kit.clone());
        }
        let kit = kit::build(arch, self.with_tests)?;
        self.kits.push((arch, kit.clone()));
        Ok(kit)
    }

    fn machine(&mut self, arch: Arch) -> anyhow::Result<&Machine> {
        if self.machine.as_ref().is_none_or(|(running, _)| *running != arch) {
            self.machine = None;
            let kit = self.kit(arch)?;
            self.machine = Some((arch, Machine::boot(&self.place, arch, &kit)?));
        }
        self.machine.as_ref().map(|(_, machine)| machine).context("there is no machine")
    }
}

/// Adds to a command in the middle of an expression.
trait Tap: Sized {
    fn tap(mut self, change: impl FnOnce(&mut Self) -> &mut Self) -> Self {
        change(&mut self);
        self
    }
}

impl Tap for Command {}

fn plain(program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// What a command says on standard output; it may fail, which its lines tell.
fn read(command: &mut Command) -> anyhow::Result<String> {
    show(&format!("+ {command:?}"));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(!said.is_empty(), "{command:?} said nothing ({})", output.status);
    Ok(said)
}

/// Numbers of a run of the test binary, and the names of the tests that failed.
fn counted(said: &str) -> Column {
    let results = || said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let held = results().filter(|(_, how)| *how == "ok").count();
    let of = |mark: &str| said.lines().filter(|line| line.starts_with(mark)).count();
    let (denied, impossible) = (of("denied by the verdict card: "), of("cannot be tried here: "));
    let mut lines = vec![
        ("held".to_owned(), held.saturating_sub(denied + impossible).to_string()),
        ("denied".to_owned(), denied.to_string()),
        ("impossible".to_owned(), impossible.to_string()),
    ];
    lines.extend(results().filter(|(_, how)| *how == "FAILED").map(|(name, _)| (name.to_owned(), "FAILED".to_owned())));
    Column { lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_card_denies_is_not_counted_as_held() {
        let said = "test a::b ... ok\ntest a::c ... FAILED\ntest d ... ok\ntest e ... ignored\n\
            ---- d stdout ----\ndenied by the verdict card: no network\n";
        let column = counted(said);
        assert_eq!((column.get("held"), column.get("denied"), column.get("a::c")), (Some("1"), Some("1"), Some("FAILED")));
    }
}
