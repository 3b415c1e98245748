//! The host matrix: the same checks on every kind of host that can be had on one machine, and the table of `docs/hosts.md`.
//!
//! Needs root. Containers and the virtual machine are made below `target/hosts`; whatever is started is ended.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::{cargo, sh, target};

const CHECKS: &str = include_str!("hosts/checks.sh");
const MACHINE: &str = include_str!("hosts/machine.sh");
const PAGE: &str = "docs/hosts.md";
const PORT: &str = "12322";
/// What a container runtime needs here: limits that it may not raise, and no systemd.
const CONTAINERS: &str = "[containers]\ndefault_ulimits = [\"nofile=20000:20000\", \"nproc=4000:4000\"]\n\
    [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";

/// A kind of host: how it is called on the command line, and in the table.
const HOSTS: [(&str, &str); 10] = [
    ("here-root", "this machine, root"),
    ("here-user", "this machine, user"),
    ("podman-root", "podman, default flags, root"),
    ("podman-user", "podman, default flags, user"),
    ("docker-root", "docker, default flags, root"),
    ("docker-user", "docker, default flags, user"),
    ("vm-root", "Debian 12, systemd, root over ssh"),
    ("vm-user", "Debian 12, systemd, user over ssh"),
    ("vm-unit", "Debian 12, systemd, unit"),
    ("vm-delegate", "Debian 12, systemd, unit of a user with Delegate=yes"),
];

/// One line of the checks: what was checked, and how it went.
type Results = Vec<(String, String)>;

pub fn run(names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        ensure!(
            HOSTS.iter().any(|(known, _)| known == name),
            "there is no host `{name}`; there are {}",
            HOSTS.map(|(name, _)| name).join(", ")
        );
    }
    let place = target().join("hosts");
    fs::create_dir_all(&place)?;
    let mut ground = Ground::new(place)?;
    let mut rows = Vec::new();
    for (name, title) in HOSTS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let results = ground.check(name).unwrap_or_else(|error| vec![("level".to_owned(), format!("not tried: {error:#}"))]);
        for (what, result) in &results {
            show(&format!("{name}: {what}: {result}"));
        }
        rows.push((*title, results));
    }
    drop(ground);
    if names.is_empty() {
        fs::write(PAGE, page(&rows)).with_context(|| format!("{PAGE} cannot be written"))?;
    }
    let bad = rows.iter().flat_map(|(_, results)| results).filter(|(_, result)| result.chars().any(char::is_uppercase)).count();
    ensure!(bad == 0, "{bad} promises do not hold and are told to hold");
    Ok(())
}

#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
fn show(line: &str) {
    eprintln!("{line}");
}

/// What the hosts are made of, each part when it is first needed.
struct Ground {
    place: PathBuf,
    docker: Option<Daemon>,
    machine: Option<Daemon>,
}

/// A program that ends with this one.
struct Daemon(Child);

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

impl Ground {
    fn new(place: PathBuf) -> anyhow::Result<Self> {
        sh(cargo().args(["build", "-p", "outpost"]))?;
        fs::copy(target().join("debug/outpost"), place.join("outpost"))?;
        sh(Command::new("strip").arg(place.join("outpost")))?;
        fs::set_permissions(place.join("outpost"), PermissionsExt::from_mode(0o755))?;
        fs::write(place.join("checks.sh"), CHECKS)?;
        fs::write(place.join("machine.sh"), MACHINE)?;
        fs::write(place.join("containers.conf"), CONTAINERS)?;
        // The tasks, for hosts that do not see the project.
        let everyday =
            format!("rm -rf '{0}/everyday' && cp -r tests/everyday '{0}/everyday' && chmod -R a+rX '{0}/everyday'", place.display());
        sh(Command::new("sh").args(["-ec", &everyday]))?;
        sh(Command::new("tar").arg("-C").arg(&place).args(["-cf"]).arg(place.join("everyday.tar")).arg("everyday"))?;
        Ok(Self { place, docker: None, machine: None })
    }

    fn check(&mut self, name: &str) -> anyhow::Result<Results> {
        let (place, checks) = (self.place.display().to_string(), self.place.join("checks.sh"));
        match name {
            "here-root" => self.here(Command::new("sh").arg(checks)),
            "here-user" => {
                // The build directory may be closed to others.
                let aside = Path::new("/var/tmp/outpost-hosts-program");
                fs::copy(self.place.join("outpost"), aside)?;
                fs::set_permissions(aside, PermissionsExt::from_mode(0o755))?;
                let mut command = Command::new("setpriv");
                command.args(["--reuid=54321", "--regid=54321", "--clear-groups", "sh", "-s"]).stdin(File::open(checks)?);
                let tasks = Path::new("/var/tmp/outpost-hosts-everyday");
                sh(Command::new("cp").arg("-rT").arg(self.place.join("everyday")).arg(tasks))?;
                let results = read(command.env("OUTPOST", aside).env("EVERYDAY", tasks).env("HOME", "/nonexistent").current_dir("/"));
                fs::remove_file(aside)?;
                fs::remove_dir_all(tasks)?;
                results
            }
            "podman-root" | "podman-user" => {
                self.image()?;
                let podman = |place: &str| {
                    let mut podman = Command::new("podman");
                    podman.env("CONTAINERS_CONF", format!("{place}/containers.conf"));
                    podman.args(["--root", &format!("{place}/pod"), "--runroot", &format!("{place}/podrun")]);
                    podman
                };
                if !podman(&place).args(["image", "exists", "localhost/outpost-hosts"]).status()?.success() {
                    sh(podman(&place).args(["import", "-q", &format!("{place}/min.tar"), "localhost/outpost-hosts"]))?;
                }
                read(podman(&place).args(self.container(name, "localhost/outpost-hosts")))
            }
            "docker-root" | "docker-user" => {
                self.image()?;
                let socket = format!("unix://{place}/docker.sock");
                if self.docker.is_none() {
                    self.docker = Some(docker(&place, &socket)?);
                    sh(Command::new("docker").args(["-H", &socket, "import", &format!("{place}/min.tar"), "outpost-hosts"]))?;
                }
                read(Command::new("docker").args(["-H", &socket]).args(self.container(name, "outpost-hosts")))
            }
            _ => self.in_machine(name),
        }
    }

    fn here(&self, command: &mut Command) -> anyhow::Result<Results> {
        read(command.env("OUTPOST", self.place.join("outpost")).env("EVERYDAY", self.place.join("everyday")))
    }

    /// A root file system for containers.
    fn image(&self) -> anyhow::Result<()> {
        let script = "[ -d rootfs/bin ] || debootstrap --variant=minbase --include=perl-base,procps,git,python3 bookworm rootfs; \
            [ -f min.tar ] || tar -C rootfs -cf min.tar .";
        sh(Command::new("sh").args(["-ec", script]).current_dir(&self.place))
    }

    fn container(&self, name: &str, image: &str) -> Vec<String> {
        let volume = |file: &str, at: &str| format!("{}:{at}:ro", self.place.join(file).display());
        let user = if name.ends_with("root") { "0" } else { "1000" };
        let words = ["run", "--rm", "--network", "none", "-u", user, "-e", "HOME=/var/tmp", "-e", "OUTPOST=/usr/local/bin/outpost"];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend(["-e", "EVERYDAY=/everyday", "-v"].map(str::to_owned).into_iter().chain([volume("everyday", "/everyday")]));
        words.extend(["-v".to_owned(), volume("outpost", "/usr/local/bin/outpost"), "-v".to_owned(), volume("checks.sh", "/checks.sh")]);
        words.extend([image, "sh", "/checks.sh"].map(str::to_owned));
        words
    }

    fn in_machine(&mut self, name: &str) -> anyhow::Result<Results> {
        if self.machine.is_none() {
            self.machine = Some(self.boot()?);
        }
        let unit = |more: &str| {
            format!("systemd-run -q --wait --pipe {more} -E OUTPOST=/usr/local/bin/outpost -E EVERYDAY=/everyday sh /checks.sh")
        };
        let (user, command) = match name {
            "vm-root" => ("root", "OUTPOST=/usr/local/bin/outpost EVERYDAY=/everyday sh /checks.sh".to_owned()),
            "vm-user" => ("dev", "OUTPOST=/usr/local/bin/outpost EVERYDAY=/everyday sh /checks.sh".to_owned()),
            "vm-unit" => ("root", unit("-E HOME=/root")),
            _ => ("root", unit("-p Delegate=yes -p User=dev -E HOME=/home/dev")),
        };
        read(self.ssh(user).arg(command))
    }

    fn ssh(&self, user: &str) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args([
            "-q",
            "-p",
            PORT,
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

    /// Starts the virtual machine, without the help of the processor, and carries the program there.
    fn boot(&self) -> anyhow::Result<Daemon> {
        sh(Command::new("sh").arg("machine.sh").current_dir(&self.place))?;
        let forward = format!("user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{PORT}-:22");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-machine", "q35,accel=tcg", "-cpu", "max", "-m", "1500", "-smp", "1", "-nographic", "-no-reboot", "-snapshot"]);
        qemu.args(["-kernel", "vmlinuz", "-initrd", "initrd.gz", "-append", "console=ttyS0 quiet", "-device", "virtio-net-pci,netdev=n"]);
        qemu.args(["-drive", "file=vm.img,format=raw,if=virtio", "-netdev", &forward]).current_dir(&self.place);
        let log = File::create(self.place.join("vm.log"))?;
        let machine = Daemon(qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("qemu-system-x86 is needed")?);
        let deadline = Instant::now() + Duration::from_secs(300);
        while !self.ssh("root").arg("true").status()?.success() {
            ensure!(Instant::now() < deadline, "the virtual machine does not answer; see {}", self.place.join("vm.log").display());
            sleep(Duration::from_secs(2));
        }
        for (file, at) in [("outpost", "/usr/local/bin/outpost"), ("checks.sh", "/checks.sh")] {
            let carried = format!("cat > {at} && chmod 755 {at}");
            sh(self.ssh("root").arg(carried).stdin(File::open(self.place.join(file))?))?;
        }
        sh(self.ssh("root").arg("tar -C / -xf -").stdin(File::open(self.place.join("everyday.tar"))?))?;
        Ok(machine)
    }
}

/// A daemon of its own, without a network.
fn docker(place: &str, socket: &str) -> anyhow::Result<Daemon> {
    let log = File::create(format!("{place}/docker.log"))?;
    let mut dockerd = Command::new("dockerd");
    dockerd.args(["-H", socket, "--bridge=none", "--iptables=false", "-p", &format!("{place}/docker.pid")]);
    dockerd.args(["--data-root", &format!("{place}/docker"), "--exec-root", &format!("{place}/docker-run")]);
    let daemon = Daemon(dockerd.stdout(log.try_clone()?).stderr(log).spawn().context("docker.io is needed")?);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Command::new("docker").args(["-H", socket, "info"]).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        ensure!(Instant::now() < deadline, "dockerd does not answer; see {place}/docker.log");
        sleep(Duration::from_millis(500));
    }
    Ok(daemon)
}

fn read(command: &mut Command) -> anyhow::Result<Results> {
    show(&format!("+ {command:?}"));
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let results: Results =
        said.lines().filter_map(|line| line.split_once('\t')).map(|(what, how)| (what.to_owned(), how.to_owned())).collect();
    if results.is_empty() {
        bail!("nothing was checked ({})", output.status);
    }
    Ok(results)
}

fn page(rows: &[(&str, Results)]) -> String {
    let mut page = "# Hosts\n\nWritten by `cargo xtask hosts`, which runs the same checks on every host. *ok*: it works, or the attack failed. *told*: it does not \
        hold there, and `outpost doctor`, `environmentInfo.sandbox` and the first line of `outpost exec` say so. [Levels](sandbox.md#levels).\n\n"
        .to_owned();
    let whats: Vec<&String> = rows
        .iter()
        .max_by_key(|(_, results)| results.len())
        .map_or_else(Vec::new, |(_, results)| results.iter().map(|(what, _)| what).collect());
    let _ = writeln!(page, "| |{}", rows.iter().map(|(title, _)| format!(" {title} |")).collect::<String>());
    let _ = writeln!(page, "|---|{}", "---|".repeat(rows.len()));
    for what in whats {
        let cell = |results: &Results| {
            let found = results.iter().find(|(known, _)| known == what).map_or("", |(_, how)| how);
            format!(" {} |", if found.is_empty() { "–" } else { found })
        };
        let _ = writeln!(page, "| {what} |{}", rows.iter().map(|(_, results)| cell(results)).collect::<String>());
    }
    page
}
