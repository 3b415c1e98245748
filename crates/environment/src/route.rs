//! The way into a place that is reached by running commands: a machine behind ssh, an allocation of a batch scheduler, a
//! container, and one inside the other.
//!
//! A route turns a script for the place into a command of this machine. What starts on the way (a container that is stopped, a
//! dev container that was never built) is started by that command. This room connects nothing and keeps nothing.

mod script;

pub(crate) use script::quoted;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::connector::CommandLine;
use crate::definition::{DefinitionError, Ssh};

/// The exit code of a way into a batch job that is over or not known.
pub(crate) const JOB_OVER_EXIT: u8 = 42;

/// A way into a place, from the outside to the inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    pub ssh: Option<Ssh>,
    pub slurm: Option<Slurm>,
    pub container: Option<Container>,
}

/// An allocation of Slurm that exists already; it is never started or ended from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    pub job: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Container {
    Engine(EngineContainer),
    Dev(DevContainer),
    Pod(Pod),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Docker,
    Podman,
}

/// A container of docker or podman, by its name, or one that is made of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineContainer {
    pub engine: Engine,
    /// The name of a container, or else of an image.
    pub target: String,
    /// What a container of an image is called that is made from here.
    pub own_name: String,
    pub user: Option<String>,
    /// More arguments for `run`, where a container is made.
    pub run_args: Vec<String>,
}

/// A folder with a `devcontainer.json`, whose container is built and started by the `devcontainer` program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevContainer {
    pub folder: String,
    pub engine: Engine,
}

/// A pod of Kubernetes; it is never started or ended from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub pod: String,
    pub container: Option<String>,
    pub namespace: Option<String>,
}

/// What is run in the place.
#[derive(Debug, Clone, Copy)]
pub struct Errand<'a> {
    pub script: &'a str,
    /// A command for the place that must go on when this one ends; only a scheduler needs to be told.
    pub companion: Option<&'a str>,
}

/// How ssh is used on the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manner {
    /// The socket of a shared connection.
    pub master: Option<PathBuf>,
    /// A user sits before a terminal and can be asked for a password.
    pub attended: bool,
    /// Much will be sent.
    pub compress: bool,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

impl From<Ssh> for Route {
    fn from(ssh: Ssh) -> Self {
        Self { ssh: Some(ssh), ..Self::default() }
    }
}

impl Route {
    /// Refuses what a program would take for an option of its own, or could not be meant.
    pub fn check(&self) -> Result<(), DefinitionError> {
        let names = match &self.container {
            Some(Container::Engine(found)) => vec![("container or image", Some(&found.target)), ("user", found.user.as_ref())],
            Some(Container::Pod(pod)) => {
                vec![("pod", Some(&pod.pod)), ("container", pod.container.as_ref()), ("namespace", pod.namespace.as_ref())]
            }
            Some(Container::Dev(dev)) => {
                if !dev.folder.starts_with('/') {
                    return Err(DefinitionError::Folder(dev.folder.clone()));
                }
                Vec::new()
            }
            None => Vec::new(),
        };
        for (what, name) in names {
            let is_fine =
                |name: &String| !name.is_empty() && !name.starts_with('-') && !name.contains(|c: char| c.is_whitespace() || c.is_control());
            if let Some(name) = name.filter(|name| !is_fine(name)) {
                return Err(DefinitionError::Name { what, name: name.clone() });
            }
        }
        if let Some(Slurm { job }) = &self.slurm
            && (job.is_empty() || !job.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_' || byte == b'+'))
        {
            return Err(DefinitionError::Job(job.clone()));
        }
        Ok(())
    }

    /// The command of this machine that does an errand there.
    pub fn command_line(&self, errand: Errand<'_>, manner: &Manner) -> CommandLine {
        let (mut inner, is_in_job) = (errand.script.to_owned(), self.slurm.is_some());
        if let Some(container) = &self.container {
            inner = script::in_container(container, &inner);
        }
        if let Some(slurm) = &self.slurm {
            inner = script::in_job(&slurm.job, &inner, errand.companion.filter(|_| self.container.is_none()));
        }
        let Some(ssh) = &self.ssh else {
            return CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), inner], is_in_job, ..CommandLine::default() };
        };
        let mut args = ssh.options(manner);
        args.extend(["--".into(), ssh.destination.clone(), script::for_any_shell(&inner)]);
        CommandLine { program: "ssh".into(), args, is_ssh: true, is_in_job, ..CommandLine::default() }
    }

    /// The command that stops what was started on the way, if it may be stopped; with a time, only if it was unused for that long.
    pub fn stop_line(&self, unused_for: Option<Duration>, manner: &Manner) -> Option<CommandLine> {
        let stop = script::stop(self.container.as_ref()?, unused_for)?;
        let outer = Self { container: None, ..self.clone() };
        Some(outer.command_line(Errand { script: &stop, companion: None }, manner))
    }

    /// Whether it can be started and stopped from here.
    pub fn is_stoppable(&self) -> bool {
        matches!(self.container, Some(Container::Engine(_) | Container::Dev(_)))
    }

    /// Whether it is more than a machine behind ssh.
    pub fn is_inside(&self) -> bool {
        self.slurm.is_some() || self.container.is_some()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(ssh) = &self.ssh {
            parts.push(format!("ssh {}", ssh.destination));
        }
        if let Some(slurm) = &self.slurm {
            parts.push(format!("slurm {}", slurm.job));
        }
        match &self.container {
            Some(Container::Engine(found)) => parts.push(format!("{} {}", found.engine.name(), found.target)),
            Some(Container::Dev(dev)) => parts.push(format!("devcontainer {}", dev.folder)),
            Some(Container::Pod(pod)) => {
                let namespace = pod.namespace.as_ref().map(|name| format!(" -n {name}")).unwrap_or_default();
                let container = pod.container.as_ref().map(|name| format!(" -c {name}")).unwrap_or_default();
                parts.push(format!("kubectl {}{namespace}{container}", pod.pod));
            }
            None => {}
        }
        f.write_str(&parts.join(", "))
    }
}

/// The name of the socket of a shared ssh connection: one for each destination and its arguments, and short.
pub fn master_name(ssh: &Ssh) -> String {
    let mut digest = Sha256::new();
    for part in std::iter::once(&ssh.destination).chain(&ssh.args) {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let hex: String = digest.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("ssh-{hex}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn engine(target: &str) -> Container {
        Container::Engine(EngineContainer {
            engine: Engine::Podman,
            target: target.into(),
            own_name: "outpost-x".into(),
            user: Some("dev".into()),
            run_args: vec!["--network".into(), "no ne".into()],
        })
    }

    fn ssh() -> Ssh {
        Ssh { destination: "me@box".into(), args: vec!["-p".into(), "22".into()] }
    }

    #[test]
    fn names_that_make_no_sense_are_refused() {
        let refused = |route: Route| route.check().unwrap_err().to_string();
        for bad in ["", "-x", "a b"] {
            assert!(Route { container: Some(engine(bad)), ..Route::default() }.check().is_err(), "{bad}");
        }
        assert!(Route { container: Some(engine("a:1")), ..Route::default() }.check().is_ok());
        let pod = Pod { pod: "p".into(), container: Some("--x".into()), namespace: None };
        assert!(refused(Route { container: Some(Container::Pod(pod)), ..Route::default() }).contains("`--x`"));
        for bad in ["", "9; rm", "x"] {
            assert!(Route { slurm: Some(Slurm { job: bad.into() }), ..Route::default() }.check().is_err(), "{bad}");
        }
        let dev = DevContainer { folder: "x".into(), engine: Engine::Docker };
        assert!(refused(Route { container: Some(Container::Dev(dev)), ..Route::default() }).contains("absolute"));
    }

    #[test]
    fn a_route_is_told_from_the_outside_to_the_inside() {
        let route = Route { ssh: Some(ssh()), slurm: Some(Slurm { job: "9".into() }), container: Some(engine("c")) };
        assert_eq!(route.to_string(), "ssh me@box, slurm 9, podman c");
    }

    #[test]
    fn login_shells_find_nothing_to_take_for_themselves() {
        let route = Route { container: Some(engine("c")), ..ssh().into() };
        let line = route.command_line(
            Errand { script: "echo 'a!b'\necho \"$HOME\"", companion: None },
            &Manner { master: Some("/m".into()), ..Manner::default() },
        );
        assert_eq!((line.program.as_str(), line.is_ssh), ("ssh", true));
        assert!(line.args.contains(&"ControlPath=/m".to_owned()), "{:?}", line.args);
        let far = line.args.last().unwrap();
        let inside = far.strip_prefix("exec sh -c '").unwrap().strip_suffix('\'').unwrap();
        assert!(!inside.contains(['\'', '!', '\n', '`']), "{far}");
    }

    /// Real shells and stand-ins for the programs on the way, which only show what they are given.
    #[test]
    fn the_script_arrives_as_it_is() {
        let tools = tempfile::tempdir().unwrap();
        let tool = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = tools.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        };
        // The last argument of ssh is given to a shell; the engine runs what follows the name of the container.
        tool("ssh", "for last; do :; done; exec sh -c \"$last\"");
        tool("srun", "while [ $# -gt 0 ]; do case $1 in sh) break;; esac; shift; done; exec \"$@\"");
        tool("squeue", "echo RUNNING");
        tool("podman", "case $1 in container) echo running;; exec) shift 5; exec \"$@\";; esac");
        tool("kubectl", "while [ $1 != -- ]; do shift; done; shift; exec \"$@\"");
        let script = "printf %s \"it's $((1+1)) a\\\\b !\"; cat";
        let pod = Container::Pod(Pod { pod: "p".into(), container: None, namespace: Some("n".into()) });
        let job = Some(Slurm { job: "9".into() });
        let routes = [
            Route { container: Some(engine("c")), ..Route::default() },
            Route { container: Some(engine("c")), ..ssh().into() },
            Route { container: Some(pod.clone()), ..ssh().into() },
            Route { slurm: job.clone(), ..ssh().into() },
            Route { slurm: job, container: Some(pod), ..ssh().into() },
            ssh().into(),
        ];
        for route in routes {
            let line = route.command_line(Errand { script, companion: None }, &Manner::default());
            let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
            let program = if line.program == "ssh" { tools.path().join("ssh") } else { line.program.clone().into() };
            let mut command = Command::new(program);
            let child = command.args(&line.args).env("PATH", path).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            let mut child = child.spawn().unwrap();
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), b" input").unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it's 2 a\\b ! input", "{route}");
        }
    }
}
