//! Virtual machines with Debian, systemd and sshd, without the help of the processor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::ground::Daemon;
use super::kit::{KIT, PROGRAM};
use super::{Who, root};
use crate::dist::Arch;
use crate::{install, sh};

/// How long a machine may take until its sshd answers: each instruction is emulated.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct Machine {
    qemu: Daemon,
    place: PathBuf,
    port: &'static str,
}

impl Machine {
    pub(super) fn boot(place: &Path, arch: Arch, kit: &Path) -> anyhow::Result<Self> {
        let (debian, port) = (arch.debian(), if arch == Arch::X86_64 { "12322" } else { "12323" });
        let (program, package) = match arch {
            Arch::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Arch::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
        };
        install::need(program, package)?;
        install::need("debootstrap", "debootstrap")?;
        if arch == Arch::Aarch64 {
            // Its root is made by its own programs.
            install::need("qemu-aarch64-static", "qemu-user-static")?;
        }
        let here = place.join(format!("vm-{debian}"));
        fs::create_dir_all(&here)?;
        if arch == Arch::X86_64 {
            root::debian(place, "bookworm")?;
        }
        fs::write(here.join("machine.sh"), include_str!("machine.sh"))?;
        sh(Command::new("sh").args(["machine.sh", debian]).arg(root::busybox(place)?).current_dir(&here))?;
        let forward = format!("user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22");
        let mut qemu = Command::new(program);
        let console = match arch {
            Arch::X86_64 => {
                qemu.args(["-machine", "q35,accel=tcg", "-cpu", "max"]);
                "console=ttyS0 quiet panic=-1"
            }
            Arch::Aarch64 => {
                qemu.args(["-machine", "virt", "-cpu", "cortex-a57"]);
                "console=ttyAMA0 quiet panic=-1"
            }
        };
        // Its clock counts instructions: a time-out in the machine is as generous on a busy host as on an idle one.
        qemu.args(["-icount", "shift=1"]);
        qemu.args(["-m", "1500", "-smp", "1", "-nographic", "-no-reboot", "-snapshot", "-kernel", "vmlinuz", "-initrd", "initrd.gz"]);
        qemu.args([
            "-append",
            console,
            "-device",
            "virtio-net-pci,netdev=n",
            "-drive",
            "file=vm.img,format=raw,if=virtio",
            "-netdev",
            &forward,
        ]);
        let log = File::create(here.join("vm.log"))?;
        let qemu = Daemon::start(qemu.current_dir(&here).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))?;
        let mut machine = Self { qemu, place: here, port };
        let deadline = Instant::now() + PATIENCE;
        while !machine.ssh("root").arg("true").status()?.success() {
            let log = machine.place.join("vm.log");
            ensure!(!machine.qemu.has_ended(), "the virtual machine ended before it answered; see {}", log.display());
            ensure!(Instant::now() < deadline, "the virtual machine does not answer; see {}", log.display());
            sleep(Duration::from_secs(2));
        }
        // Everyday work takes too long where each instruction is emulated.
        let mut packed =
            Command::new("tar").arg("-C").arg(kit).args(["--exclude=./everyday", "-czf", "-", "."]).stdout(Stdio::piped()).spawn()?;
        let mut carry = machine.ssh("root");
        carry.arg(format!("mkdir -p {KIT} && tar -C {KIT} -xzf -"));
        if let Some(packed) = packed.stdout.take() {
            carry.stdin(packed);
        }
        sh(&mut carry)?;
        ensure!(packed.wait()?.success(), "the kit cannot be packed");
        Ok(machine)
    }

    fn ssh(&self, user: &str) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args([
            "-q",
            "-p",
            self.port,
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "ConnectTimeout=30",
            "-i",
        ]);
        ssh.arg(self.place.join("key")).arg(format!("{user}@127.0.0.1"));
        ssh
    }

    pub(super) fn command(&self, who: Who, words: &[&str]) -> Command {
        let (plain, words) = (format!("OUTPOST={PROGRAM}"), words.join(" "));
        let unit = |more: &str| format!("systemd-run -q --wait --pipe {more} -E {plain} {words}");
        let (user, line) = match who {
            Who::Root => ("root", format!("{plain} {words}")),
            Who::User => ("dev", format!("{plain} {words}")),
            Who::Unit => ("root", unit("-E HOME=/root")),
            Who::Delegate => ("root", unit("-p Delegate=yes -p User=dev -E HOME=/home/dev")),
        };
        let mut ssh = self.ssh(user);
        ssh.arg(line);
        ssh
    }
}
