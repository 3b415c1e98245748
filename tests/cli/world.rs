//! A machine with containers, pods, jobs and a host behind ssh. Docker, kubectl, Slurm and ssh are stand-ins: scripts that take the
//! same arguments and run what they are given on this machine, with a home of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::OUTPOST;

/// A container is a home below `state`, and a file that says whether it runs.
const DOCKER: &str = r#"
echo "$*" | head -n 1 >> "$STATE/docker.log"
# In one step, as a reader beside it must not find an empty file.
set_status() { echo "$2" > "$STATE/$1.status.$$"; mv "$STATE/$1.status.$$" "$STATE/$1.status"; }
case "$1 $2" in
"container inspect") for c; do :; done; cat "$STATE/$c.status" 2> /dev/null; exit;;
"image inspect") [ "$3" = image:1 ]; exit;;
esac
case $1 in
run) shift 3; set_status "$1" running;;
start) set_status "$2" running;;
stop) set_status "$4" exited;;
exec) shift; while :; do case $1 in -i) shift;; -u) shift 2;; *) break;; esac; done
  c=$1; shift; mkdir -p "$STATE/$c"; exec env -i HOME="$STATE/$c" PATH="$INSIDE" "$@";;
esac
"#;

const KUBECTL: &str = r#"
echo "$*" | head -n 1 >> "$STATE/kubectl.log"
[ ! -e "$STATE/deleted" ] || { echo 'Error from server (NotFound): pods "api-0" not found' >&2; exit 1; }
while [ "$1" != -- ]; do shift; done; shift
mkdir -p "$STATE/pod"; exec env -i HOME="$STATE/pod" PATH="$INSIDE" "$@"
"#;

const SQUEUE: &str = r#"
cat "$STATE/job" 2> /dev/null || { echo "Invalid job id specified" >&2; exit 1; }
"#;

const SRUN: &str = r#"
echo "$*" | head -n 1 >> "$STATE/srun.log"
while [ "$1" != sh ]; do shift; done
mkdir -p "$STATE/node"; exec env -i HOME="$STATE/node" STATE="$STATE" PATH="$INSIDE" SLURM_JOB_ID=9 "$@"
"#;

/// It enters the container in the folder that the workspace has there.
const DEVCONTAINER: &str = r#"
echo "$*" | head -n 1 >> "$STATE/devcontainer.log"
[ "$1" = up ] && exit
while [ "$1" != sh ]; do shift; done
mkdir -p "$STATE/dev/workspaces/project"; cd "$STATE/dev/workspaces/project"
exec env -i HOME="$STATE/dev" PATH="$INSIDE" "$@"
"#;

/// A host that asks for a second factor, unless the way goes through a shared connection.
const SSH: &str = r#"
echo "$*" | head -n 1 >> "$STATE/ssh.log"
path=; for a; do case $a in ControlPath=*) path=${a#ControlPath=};; esac; done
case " $* " in
*" -O check "*) [ -e "$path" ]; exit;;
*" -O exit "*) rm "$path"; exit;;
*" -M "*) echo "Verification code: " >&2; : > "$path"; exit;;
esac
if [ -z "$path" ] && [ -e "$STATE/factor" ]; then echo "me@box: Permission denied (publickey,keyboard-interactive)." >&2; exit 255; fi
for last; do :; done
mkdir -p "$STATE/box"; exec env -i HOME="$STATE/box" STATE="$STATE" INSIDE="$INSIDE" PATH="$TOOLS:$INSIDE" sh -c "$last"
"#;

pub(crate) struct World(tempfile::TempDir);

impl World {
    pub(crate) fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        for name in ["tools", "inside", "state", "home", "runtime"] {
            fs::create_dir(world.path(name)).unwrap();
            fs::set_permissions(world.path(name), PermissionsExt::from_mode(0o700)).unwrap();
        }
        let tools = [("docker", DOCKER), ("kubectl", KUBECTL), ("squeue", SQUEUE), ("srun", SRUN), ("ssh", SSH)];
        for (name, script) in tools.into_iter().chain([("devcontainer", DEVCONTAINER)]) {
            world.tool(name, script);
        }
        fs::copy(world.path("tools").join("squeue"), world.path("inside").join("squeue")).unwrap();
        world
    }

    /// A program that is found before any other of its name.
    pub(crate) fn tool(&self, name: &str, script: &str) {
        let path = self.path("tools").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Every place has the program already, so that nothing has to be copied.
    pub(crate) fn with_program(self) -> Self {
        std::os::unix::fs::symlink(OUTPOST, self.path("inside").join("outpost")).unwrap();
        self
    }

    pub(crate) fn container(&self, name: &str, status: &str) {
        fs::write(self.path("state").join(format!("{name}.status")), format!("{status}\n")).unwrap();
    }

    pub(crate) fn status(&self, name: &str) -> String {
        fs::read_to_string(self.path("state").join(format!("{name}.status"))).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(OUTPOST).args(arguments).output().unwrap()
    }

    /// A program that finds the stand-ins, and a home.
    pub(crate) fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env_remove("OUTPOST_EXEC_SERVER_URL").env_remove("SLURM_JOB_ID");
        command.env("OUTPOST_HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.env("STATE", self.path("state")).env("TOOLS", self.path("tools"));
        command.env("INSIDE", format!("{}:{path}", self.path("inside").display()));
        command.env("PATH", format!("{}:{path}", self.path("tools").display()));
        command
    }

    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn refused(&self, arguments: &[&str], code: i32, why: &str) {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{arguments:?}: {}", text(&output));
    }

    pub(crate) fn log(&self, tool: &str) -> String {
        fs::read_to_string(self.path("state").join(format!("{tool}.log"))).unwrap_or_default()
    }
}

impl Drop for World {
    /// Keepers that were started in here end with their sessions, but not before the directory is gone.
    fn drop(&mut self) {
        let home = self.0.path().display().to_string();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let has = |name: &str, text: &str| {
                fs::read(entry.path().join(name)).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
            };
            if has("cmdline", "__keeper") && has("environ", &home) {
                let _ = Command::new("kill").arg(entry.file_name()).status();
            }
        }
    }
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
