//! A Slurm cluster of one node, which is this machine.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::ground::Daemon;
use crate::{install, sh};

/// Sockets and states: munge wants directories that only root can change.
const RUN: &str = "/run/outpost-hosts";

pub(super) struct Slurm {
    /// Ended in this order.
    _daemons: Vec<Daemon>,
    pub conf: PathBuf,
}

impl Slurm {
    pub(super) fn start(place: &Path) -> anyhow::Result<Self> {
        install::need("slurmctld", "slurmctld")?;
        install::need("slurmd", "slurmd")?;
        install::need("srun", "slurm-client")?;
        install::need("munged", "munge")?;
        let run = Path::new(RUN);
        fs::create_dir_all(run)?;
        for (name, owner) in [("munge", "munge"), ("ctld", "slurm"), ("slurmd", "root")] {
            fs::create_dir_all(run.join(name))?;
            fs::set_permissions(run.join(name), PermissionsExt::from_mode(0o755))?;
            sh(Command::new("chown").arg("-R").arg(owner).arg(run.join(name)))?;
        }
        let host = String::from_utf8(Command::new("uname").arg("-n").output()?.stdout)?;
        // Where the freezer of cgroup v1 is, Slurm follows processes by it, as clusters do; else by parents.
        let has_freezer = Path::new("/sys/fs/cgroup/freezer").exists();
        let (track, task) = if has_freezer { ("cgroup", "cgroup") } else { ("linuxproc", "none") };
        let conf = place.join("slurm.conf");
        fs::write(&conf, configuration(host.trim(), track, task))?;
        fs::write(place.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n")?;
        let log = |name: &str| File::create(place.join(format!("{name}.log")));
        let spawn = |words: &[&str], name: &str| -> anyhow::Result<Daemon> {
            let log = log(name)?;
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).env("SLURM_CONF", &conf).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
            Daemon::start(&mut command)
        };
        let text = conf.to_str().context("the build directory has no plain name")?;
        let as_user =
            |user: &'static str| ["setpriv".to_owned(), format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()];
        let munge: Vec<String> = as_user("munge")
            .into_iter()
            .chain(["munged", "--force", "--foreground", "--num-threads=2"].map(str::to_owned))
            .chain(["socket", "pid-file", "log-file", "seed-file"].map(|option| format!("--{option}={RUN}/munge/{option}")))
            .collect();
        let munge: Vec<&str> = munge.iter().map(String::as_str).collect();
        let mut daemons = vec![spawn(&munge, "munged")?];
        wait(|| Path::new(&format!("{RUN}/munge/socket")).exists(), "munged does not listen")?;
        let controller: Vec<String> =
            as_user("slurm").into_iter().chain(["slurmctld", "-D", "-c", "-f", text].map(str::to_owned)).collect();
        let controller: Vec<&str> = controller.iter().map(String::as_str).collect();
        daemons.insert(0, spawn(&controller, "slurmctld")?);
        daemons.insert(0, spawn(&["slurmd", "-D", "-c", "-f", text], "slurmd")?);
        let slurm = Self { _daemons: daemons, conf };
        let is_idle = || {
            let states = slurm.command("sinfo").args(["-h", "-o", "%T"]).stderr(Stdio::null()).output();
            states.is_ok_and(|states| String::from_utf8_lossy(&states.stdout).trim() == "idle")
        };
        wait(is_idle, &format!("the node is not idle; see {}", place.join("slurmctld.log").display()))?;
        Ok(slurm)
    }

    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", &self.conf);
        command
    }
}

fn wait(is_so: impl Fn() -> bool, otherwise: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        ensure!(Instant::now() < deadline, "{otherwise}");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn configuration(host: &str, track: &str, task: &str) -> String {
    format!(
        "ClusterName=outposthosts\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=slurm\nAuthType=auth/munge\nAuthInfo=socket={RUN}/munge/socket\n\
         SlurmctldPort=16817\nSlurmdPort=16818\nStateSaveLocation={RUN}/ctld\nSlurmdSpoolDir={RUN}/slurmd\nSlurmctldPidFile={RUN}/ctld/pid\n\
         SlurmdPidFile={RUN}/slurmd/pid\nProctrackType=proctrack/{track}\nTaskPlugin=task/{task}\nPropagateResourceLimits=NONE\n\
         JobAcctGatherType=jobacct_gather/none\nKillWait=5\nReturnToService=2\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0\n"
    )
}
