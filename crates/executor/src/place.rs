//! Where an executor runs: which host, and which batch job or container on it.
//!
//! A home can be shared by many hosts, jobs and containers at once. An executor is one of them only: a client that was told
//! "this is job 9" must never be served by what runs in job 10.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The inode of the first process namespace of a kernel; every container that has its own has another one.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The length of a container's id in hexadecimal digits.
const CONTAINER_ID: usize = 64;

/// Variables by which schedulers tell a job its number. The first one that is set counts.
const JOBS: [(&str, &str); 5] =
    [("slurm", "SLURM_JOB_ID"), ("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"), ("flux", "FLUX_JOB_ID"), ("cobalt", "COBALT_JOBID")];

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostPlace {
    /// The name of the host.
    pub host: String,
    /// What identifies the installed system; nodes that boot one image may share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// One start of a kernel; no two hosts share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The scheduler and its number, such as `slurm:9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// What the kernel says about the container that a process is in.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContainerSigns<'a> {
    pub mounts: &'a str,
    pub groups: &'a str,
    /// Where the link to the process namespace leads.
    pub pid_namespace: &'a str,
    /// The name of process 1, and when it was started.
    pub init: &'a str,
    pub init_started: &'a str,
    pub boot: &'a str,
    /// What container programs of clusters put into the environment.
    pub image: Option<&'a str>,
}

impl HostPlace {
    /// This very process, with these variables.
    pub fn here(variables: &BTreeMap<OsString, OsString>) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let variable = |name: &str| variables.get(OsStr::new(name)).and_then(|value| value.to_str()).filter(|value| !value.is_empty());
        let boot = read("/proc/sys/kernel/random/boot_id");
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let stat = read("/proc/1/stat");
        let signs = ContainerSigns {
            mounts: &read("/proc/self/mountinfo"),
            groups: &read("/proc/self/cgroup"),
            pid_namespace: namespace.to_str().unwrap_or_default(),
            init: &read("/proc/1/comm"),
            // The twenty-second field; the name before it may hold blanks.
            init_started: stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).unwrap_or_default(),
            boot: &boot,
            image: variable("APPTAINER_CONTAINER").or_else(|| variable("SINGULARITY_CONTAINER")),
        };
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            machine: Some(read("/etc/machine-id")).filter(|id| !id.is_empty()),
            container: signs.container(),
            job: job(variable),
            boot: Some(boot).filter(|id| !id.is_empty()),
        }
    }

    /// Whether `now` is the same place at this or at a later time: a host keeps being itself when it is restarted, or renamed
    /// while it runs.
    pub fn is_still(&self, now: &Self) -> bool {
        if self.job != now.job || self.container != now.container {
            return false;
        }
        let same_boot = self.boot.is_some() && self.boot == now.boot;
        // The id of a container is enough, wherever it is restarted.
        same_boot || self.container.is_some() || (self.host == now.host && self.machine == now.machine)
    }

    /// A short name that no other place has, and that survives a restart of the host.
    pub fn key(&self) -> String {
        let mut digest = Sha256::new();
        let host = self.container.is_none() || self.job.is_some();
        let parts = [
            self.container.as_deref().unwrap_or_default(),
            self.job.as_deref().unwrap_or_default(),
            if host { &self.host } else { "" },
            if host { self.machine.as_deref().unwrap_or_default() } else { "" },
        ];
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The number of the Slurm job that this is in.
    pub fn slurm_job(&self) -> Option<&str> {
        self.job.as_deref()?.strip_prefix("slurm:")
    }
}

fn job<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let (scheduler, id) = JOBS.iter().find_map(|(scheduler, name)| Some((scheduler, variable(name)?)))?;
    Some(format!("{scheduler}:{id}"))
}

impl ContainerSigns<'_> {
    /// What identifies the container; nothing on a host, and nothing in a container with an init of its own, which is as good as
    /// a host and has a host's name and machine id.
    pub fn container(&self) -> Option<String> {
        let mounted = self.mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let (root, point) = (fields.nth(3)?, fields.next()?);
            matches!(point, "/etc/hostname" | "/etc/hosts" | "/etc/resolv.conf").then_some(root)
        });
        let named = mounted.chain(self.groups.lines()).find_map(|text| container_id(text).or_else(|| pod_id(text)));
        if let Some(id) = named {
            return Some(id.to_owned());
        }
        if let Some(image) = self.image {
            return Some(image.to_owned());
        }
        let own_namespace = !self.pid_namespace.is_empty() && self.pid_namespace != FIRST_PID_NAMESPACE;
        let has_init = matches!(self.init, "systemd" | "init");
        // A namespace alone is a container only for as long as it lives.
        (own_namespace && !has_init).then(|| format!("{}-{}-{}", self.pid_namespace, self.init_started, self.boot))
    }
}

/// The first run of exactly so many hexadecimal digits as a container's id has.
fn container_id(text: &str) -> Option<&str> {
    text.split(|c: char| !c.is_ascii_hexdigit()).find(|part| part.len() == CONTAINER_ID)
}

/// The id in `…/pods/ID/…`, as nodes of Kubernetes mount it.
fn pod_id(text: &str) -> Option<&str> {
    let id = text.split_once("/pods/")?.1.split('/').next()?;
    (id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, boot: &str) -> HostPlace {
        HostPlace { host: name.into(), machine: Some("m".into()), boot: Some(boot.into()), ..HostPlace::default() }
    }

    #[test]
    fn a_host_stays_itself_and_is_no_other() {
        let first = host("a", "1");
        assert!(first.is_still(&host("a", "2")), "it was restarted");
        assert!(first.is_still(&host("renamed", "1")), "it was renamed while it runs");
        assert!(!first.is_still(&host("b", "2")), "two nodes that booted one image share the machine id");
        assert_ne!(first.key(), host("b", "2").key());
        assert_eq!(first.key(), host("a", "2").key());
    }

    #[test]
    fn jobs_and_containers_of_one_host_are_apart() {
        let first = host("a", "1");
        let job = |id: &str| HostPlace { job: Some(id.into()), ..first.clone() };
        let container = |id: &str, boot: &str| HostPlace { container: Some(id.into()), ..host("c", boot) };
        assert!(!first.is_still(&job("slurm:9")) && !job("slurm:9").is_still(&job("slurm:10")));
        assert!(job("slurm:9").is_still(&job("slurm:9")));
        assert!(!first.is_still(&container("x", "1")) && !container("x", "1").is_still(&container("y", "1")));
        assert!(container("x", "1").is_still(&container("x", "2")), "a container keeps its id when its host restarts");
        // One job may have several nodes.
        let other_node = HostPlace { host: "b".into(), ..job("slurm:9") };
        let keys = [first.key(), job("slurm:9").key(), job("slurm:10").key(), other_node.key(), container("x", "1").key()];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(job("slurm:9").slurm_job(), Some("9"));
        assert_eq!(job("pbs:9").slurm_job(), None);
    }

    #[test]
    fn jobs_are_known_by_what_schedulers_set() {
        let variables: BTreeMap<OsString, OsString> =
            [("SLURM_JOB_ID".into(), "9".into()), ("PBS_JOBID".into(), "7".into())].into_iter().collect();
        assert_eq!(HostPlace::here(&variables).job.as_deref(), Some("slurm:9"));
        assert_eq!(HostPlace::here(&BTreeMap::new()).job, None);
    }

    #[test]
    fn containers_are_known_by_what_the_kernel_says() {
        let id = "ab".repeat(32);
        let docker = format!("712 700 8:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw - ext4 /dev/sda1 rw");
        let here = ContainerSigns { pid_namespace: FIRST_PID_NAMESPACE, init: "systemd", boot: "b", ..ContainerSigns::default() };
        assert_eq!(here.container(), None);
        assert_eq!(ContainerSigns { mounts: &docker, ..here }.container(), Some(id.clone()));
        let elsewhere = docker.replace(" /etc/hostname ", " /mnt ");
        assert_eq!(ContainerSigns { mounts: &elsewhere, ..here }.container(), None, "a host sees the directories of containers");
        let group = format!("0::/machine.slice/libpod-{id}.scope");
        assert_eq!(ContainerSigns { groups: &group, ..here }.container(), Some(id));
        let pod = "9 8 8:1 /var/lib/kubelet/pods/0f8fad5b-d9cb-469f-a165-70867728950e/etc-hosts /etc/hosts rw - ext4 x rw";
        assert_eq!(ContainerSigns { mounts: pod, ..here }.container().as_deref(), Some("0f8fad5b-d9cb-469f-a165-70867728950e"));
        let other = ContainerSigns { pid_namespace: "pid:[4026532190]", init: "sleep", init_started: "77", ..here };
        assert_eq!(other.container().as_deref(), Some("pid:[4026532190]-77-b"));
        assert_eq!(ContainerSigns { init: "systemd", ..other }.container(), None, "it has an init, so it is as good as a host");
        assert_eq!(ContainerSigns { image: Some("/img.sif"), ..here }.container().as_deref(), Some("/img.sif"));
    }
}
