//! Containers: podman of root, rootless podman, docker with a daemon of its own, and a dev container.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::ground::Daemon;
use super::kit::{KIT, PROGRAM};
use super::{Who, root};
use crate::{install, sh};

/// What a container runtime needs where it may not raise limits and there is no systemd.
const CONF: &str = "[containers]\ndefault_ulimits = [\"nofile=20000:20000\", \"nproc=4000:4000\"]\n\
    [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
pub(super) const IMAGE: &str = "localhost/outpost-hosts";
const DEV_CONTAINER_CLI: &str = "@devcontainers/cli@0.89.0";

/// A podman with its own storage: a script, because the dev container program takes only a path.
pub(super) fn podman(place: &Path) -> anyhow::Result<PathBuf> {
    install::need("podman", "podman")?;
    install::need("runc", "runc")?;
    let script = place.join("podman");
    // By its whole path: the faults put this script on the path as `podman`.
    let found = Command::new("sh").args(["-c", "command -v podman"]).output()?;
    let program = String::from_utf8(found.stdout)?;
    let text = format!(
        "#!/bin/sh\nexport CONTAINERS_CONF={0}/containers.conf\nexec {1} --root {0}/pod --runroot {0}/podrun \"$@\"\n",
        place.display(),
        program.trim()
    );
    fs::write(place.join("containers.conf"), CONF)?;
    fs::write(&script, text)?;
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    import(&script, place)?;
    Ok(script)
}

fn import(podman: &Path, place: &Path) -> anyhow::Result<()> {
    if !Command::new(podman).args(["image", "exists", IMAGE]).status()?.success() {
        sh(Command::new(podman).args(["import", "-q", "-c", "CMD=[\"sh\"]"]).arg(archive(place)?).arg(IMAGE).current_dir("/"))?;
    }
    Ok(())
}

/// The root file system of the containers, as one file.
fn archive(place: &Path) -> anyhow::Result<PathBuf> {
    let (root, archive) = (root::debian(place, "bookworm")?, place.join("min.tar"));
    if !archive.exists() {
        let aside = place.join("min.tar.new");
        sh(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&aside).arg("."))?;
        fs::rename(aside, &archive)?;
    }
    Ok(archive)
}

/// What `run` gets, with default flags but for the network, which would leave traces on this machine.
pub(super) fn arguments(who: Who, image: &str, words: &[&str]) -> Vec<String> {
    let user = if who == Who::Root { "0" } else { "1000" };
    let mut all = vec!["run", "--rm", "--network", "none", "-u", user, "-e", "HOME=/var/tmp"];
    let (program, volume) = (format!("OUTPOST={PROGRAM}"), format!("{KIT}:{KIT}:ro"));
    all.extend(["-e", &program, "-v", &volume, image]);
    all.extend(words);
    all.into_iter().map(str::to_owned).collect()
}

/// An ordinary user with a podman of its own.
pub(super) struct Rootless {
    pub uid: u32,
    home: PathBuf,
    /// The user was made for this run, and goes with it.
    is_ours: bool,
}

pub(super) const USER: &str = "outpost-hosts";

impl Rootless {
    pub(super) fn new() -> anyhow::Result<Self> {
        let home = PathBuf::from("/var/tmp/outpost-hosts-home");
        let id = || Command::new("id").args(["-u", USER]).stderr(Stdio::null()).output();
        let is_ours = !id()?.status.success();
        if is_ours {
            sh(Command::new("useradd").args(["-m", "-s", "/bin/sh", "-d"]).arg(&home).arg(USER))?;
        }
        let uid = String::from_utf8(id()?.stdout)?.trim().parse().context("the new user has no number")?;
        let runtime = format!("/run/user/{uid}");
        fs::create_dir_all(&runtime)?;
        chown(&runtime, Some(uid), Some(uid))?;
        fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700))?;
        Ok(Self { uid, home, is_ours })
    }

    /// A command of that user.
    pub(super) fn command(&self, program: &str) -> Command {
        let uid = self.uid;
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--init-groups", program]);
        command.env("HOME", &self.home).env("XDG_RUNTIME_DIR", format!("/run/user/{uid}")).env("USER", USER).current_dir(&self.home);
        command
    }

    pub(super) fn podman(&self, place: &Path) -> anyhow::Result<Command> {
        install::need("newuidmap", "uidmap")?;
        let conf = self.home.join("containers.conf");
        fs::write(&conf, CONF)?;
        let podman = || {
            let mut podman = self.command("podman");
            podman.env("CONTAINERS_CONF", &conf).args(["--storage-driver", "overlay"]);
            podman
        };
        if !podman().args(["image", "exists", IMAGE]).status()?.success() {
            let mut import = podman();
            import.args(["import", "-q", "-", IMAGE]).stdin(File::open(archive(place)?)?);
            sh(&mut import)?;
        }
        Ok(podman())
    }
}

impl Drop for Rootless {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = self.command("podman").args(["--storage-driver", "overlay", "system", "reset", "-f"]).stdout(Stdio::null()).status();
            let _ = Command::new("userdel").args(["-r", USER]).stderr(Stdio::null()).status();
            let _ = fs::remove_dir_all(&self.home);
        }
    }
}

/// A docker daemon of its own, without a network, and the address of its socket.
pub(super) fn docker(place: &Path) -> anyhow::Result<(Daemon, String)> {
    install::need("dockerd", "docker.io")?;
    let (at, socket) = (place.display(), format!("unix://{}/docker.sock", place.display()));
    let log = File::create(place.join("docker.log"))?;
    let mut dockerd = Command::new("dockerd");
    dockerd.args(["-H", &socket, "--bridge=none", "--iptables=false", "-p", &format!("{at}/docker.pid")]);
    dockerd.args(["--data-root", &format!("{at}/docker"), "--exec-root", &format!("{at}/docker-run")]);
    let daemon = Daemon::start(dockerd.stdout(log.try_clone()?).stderr(log))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let docker = || {
        let mut docker = Command::new("docker");
        docker.args(["-H", &socket]);
        docker
    };
    while !docker().arg("info").stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        ensure!(Instant::now() < deadline, "dockerd does not answer; see {at}/docker.log");
        sleep(Duration::from_millis(500));
    }
    if !docker().args(["image", "inspect", IMAGE]).stdout(Stdio::null()).stderr(Stdio::null()).status()?.success() {
        sh(docker().args(["import", "-c", "CMD [\"sh\"]"]).arg(archive(place)?).arg(IMAGE))?;
    }
    Ok((daemon, socket))
}

/// A dev container that is up; removed in the end.
pub(super) struct DevContainer {
    program: PathBuf,
    podman: PathBuf,
    folder: PathBuf,
}

impl DevContainer {
    pub(super) fn up(place: &Path) -> anyhow::Result<Self> {
        let podman = podman(place)?;
        let directory = place.join("devcontainer");
        let program = directory.join("node_modules/.bin/devcontainer");
        if !program.exists() {
            install::need("npm", "npm")?;
            fs::create_dir_all(&directory)?;
            sh(Command::new("npm").args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&directory).arg(DEV_CONTAINER_CLI))?;
        }
        let folder = directory.join("folder");
        fs::create_dir_all(folder.join(".devcontainer"))?;
        let described = serde_json::json!({
            "image": IMAGE, "runArgs": ["--network=none"], "mounts": [format!("source={KIT},target={KIT},type=bind,readonly")],
            "containerEnv": {"OUTPOST": PROGRAM},
        });
        fs::write(folder.join(".devcontainer/devcontainer.json"), described.to_string())?;
        let up = Self { program, podman, folder };
        sh(up.command("up").stdout(Stdio::null()))?;
        Ok(up)
    }

    pub(super) fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([verb, "--docker-path"]).arg(&self.podman).arg("--workspace-folder").arg(&self.folder);
        command
    }
}

impl Drop for DevContainer {
    fn drop(&mut self) {
        let label = format!("label=devcontainer.local_folder={}", self.folder.display());
        let listed = Command::new(&self.podman).args(["ps", "-aq", "--filter", &label]).output();
        for id in listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default().lines() {
            let _ = Command::new(&self.podman).args(["rm", "-f", "-t", "0", id]).stdout(Stdio::null()).status();
        }
    }
}
