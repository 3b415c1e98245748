//! Environments in containers and jobs and behind a login. Docker, kubectl, Slurm and ssh are stand-ins here: scripts that take
//! the same arguments and run what they are given on this machine, with a home of its own. Real ones are tried by hand
//! (docs/environments.md).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::OUTPOST;

/// A container is a home below `state`, and a file that says whether it runs.
const DOCKER: &str = r#"
echo "$*" | head -n 1 >> "$STATE/docker.log"
case "$1 $2" in
"container inspect") for c; do :; done; cat "$STATE/$c.status" 2> /dev/null; exit;;
"image inspect") [ "$3" = image:1 ]; exit;;
esac
case $1 in
run) shift 3; echo running > "$STATE/$1.status";;
start) echo running > "$STATE/$2.status";;
stop) echo exited > "$STATE/$4.status";;
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

struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        for name in ["tools", "inside", "state", "home", "runtime"] {
            fs::create_dir(world.path(name)).unwrap();
            fs::set_permissions(world.path(name), PermissionsExt::from_mode(0o700)).unwrap();
        }
        for (name, script) in [("docker", DOCKER), ("kubectl", KUBECTL), ("squeue", SQUEUE), ("srun", SRUN), ("ssh", SSH)] {
            let path = world.path("tools").join(name);
            fs::write(&path, format!("#!/bin/sh{script}\n")).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        fs::copy(world.path("tools").join("squeue"), world.path("inside").join("squeue")).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Every place has the program already, so that nothing has to be copied.
    fn with_program(self) -> Self {
        std::os::unix::fs::symlink(OUTPOST, self.path("inside").join("outpost")).unwrap();
        self
    }

    fn container(&self, name: &str, status: &str) {
        fs::write(self.path("state").join(format!("{name}.status")), format!("{status}\n")).unwrap();
    }

    fn status(&self, name: &str) -> String {
        fs::read_to_string(self.path("state").join(format!("{name}.status"))).unwrap_or_default().trim().to_owned()
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(OUTPOST);
        command.args(arguments).stdin(Stdio::null()).env_remove("OUTPOST_EXEC_SERVER_URL").env_remove("SLURM_JOB_ID");
        command.env("OUTPOST_HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.env("STATE", self.path("state")).env("TOOLS", self.path("tools"));
        command.env("INSIDE", format!("{}:{path}", self.path("inside").display()));
        command.env("PATH", format!("{}:{path}", self.path("tools").display()));
        command.output().unwrap()
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str], code: i32, why: &str) {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{arguments:?}: {}", text(&output));
    }

    fn log(&self, tool: &str) -> String {
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

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: still not so after 30 seconds");
}

#[test]
fn a_program_is_carried_into_a_container_that_is_started_for_it() {
    let world = World::new();
    world.container("web", "exited");
    let added =
        text(&world.output(&["env", "add", "web", "--docker", "web", "-u", "dev", "--label", "ci", "--setup", "echo ready > $HOME/ready"]));
    assert!(added.contains("copied") && added.contains("web is ready"), "{added}");
    assert!(added.contains("+ echo ready"), "what a set-up does is shown: {added}");
    assert_eq!((world.status("web"), fs::read_to_string(world.path("state/web/ready")).unwrap()), ("running".into(), "ready\n".into()));
    assert!(world.log("docker").contains("start web") && world.log("docker").contains("exec -i -u dev web"), "{}", world.log("docker"));
    assert_eq!(world.done(&["run", "-e", "web", "--", "sh", "-c", "echo $HOME"]).trim(), world.path("state/web").display().to_string());
    let listed: Value = serde_json::from_str(&world.done(&["env", "list", "--json", "--label", "ci"])).unwrap();
    assert_eq!(listed["environments"].as_array().unwrap().len(), 1);
    assert_eq!((&listed["environments"][0]["address"], &listed["environments"][0]["labels"][0]), (&"docker web".into(), &"ci".into()));
    // A container that was made anew has nothing of it: the program and the set-up come with the next connection.
    fs::remove_dir_all(world.path("state/web")).unwrap();
    eventually("the keeper of the old one is gone", || !text(&world.output(&["run", "-e", "web", "--", "true"])).contains("lost"));
    assert_eq!(world.done(&["run", "-e", "web", "--", "sh", "-c", "cat $HOME/ready"]), "ready\n");
}

#[test]
fn an_image_becomes_a_container_and_is_stopped_when_nobody_uses_it() {
    let world = World::new().with_program();
    world.done(&["env", "add", "tmp", "--docker", "image:1", "--idle-stop", "1s", "--run-arg=--network=none"]);
    let log = world.log("docker");
    assert!(log.contains("run -d --name outpost-tmp --network=none --entrypoint sh image:1"), "{log}");
    world.refused(&["env", "add", "no", "--docker", "image:2"], 3, "knows neither a container nor an image `image:2`");
    assert!(!fs::read_to_string(world.path("home/environments.toml")).unwrap().contains("image:2"));
    let mut watching = Command::new(OUTPOST);
    let path = std::env::var("PATH").unwrap();
    watching.args(["env", "watch", "tmp"]).env("OUTPOST_HOME", world.path("home")).env("XDG_RUNTIME_DIR", world.path("runtime"));
    watching.env("STATE", world.path("state")).env("INSIDE", format!("{}:{path}", world.path("inside").display()));
    watching.env("PATH", format!("{}:{path}", world.path("tools").display())).stdout(Stdio::null());
    let mut watching = watching.spawn().unwrap();
    eventually("it is stopped", || world.status("outpost-tmp") == "exited");
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert_eq!(world.done(&["run", "-e", "tmp", "--", "echo", "woken"]), "woken\n");
    assert!(world.log("docker").contains("start outpost-tmp"), "{}", world.log("docker"));
    // Nobody of ours is left to see that it is not used, and it is stopped all the same.
    eventually("it is stopped again", || world.status("outpost-tmp") == "exited");
}

#[test]
fn pods_and_what_is_behind_ssh_are_entered_in_order() {
    let world = World::new().with_program();
    world.container("c", "running");
    world.done(&["env", "add", "api", "--kubectl", "api-0", "-c", "app", "-n", "prod"]);
    assert!(world.log("kubectl").contains("exec -i -n prod api-0 -c app -- sh -c"), "{}", world.log("kubectl"));
    assert_eq!(world.done(&["run", "-e", "api", "--", "echo", "in a pod"]), "in a pod\n");
    world.done(&["env", "add", "deep", "--ssh", "me@box", "--docker", "c"]);
    assert_eq!(world.done(&["run", "-e", "deep", "--", "sh", "-c", "echo $HOME"]).trim(), world.path("state/c").display().to_string());
    assert!(world.done(&["env", "list"]).contains("ssh me@box, docker c"));
    world.refused(&["env", "add", "x", "--docker", "a", "--podman", "b"], 2, "cannot be used with");
    world.refused(&["env", "add", "x", "--kubectl", "p", "--idle-stop", "5m"], 1, "`idle_stop` needs");
    world.refused(&["env", "add", "x", "--url", "ws://127.0.0.1:1", "--setup", "true"], 1, "`setup` needs");
    world.refused(&["env", "add", "x", "--docker", "c", "--setup", "exit 3"], 1, "failed with code 3 in `exit 3`");
    assert!(!world.done(&["env", "list"]).contains("\nx "));
}

#[test]
fn a_deleted_pod_is_told_with_what_kubectl_said() {
    let world = World::new().with_program();
    world.done(&["env", "add", "api", "--kubectl", "api-0"]);
    fs::write(world.path("state/deleted"), "").unwrap();
    world.refused(&["env", "check", "api"], 3, "pods \"api-0\" not found");
    world.refused(&["run", "-e", "api", "--", "true"], 125, "pods \"api-0\" not found");
    world.refused(&["env", "add", "other", "--kubectl", "api-0"], 3, "pods \"api-0\" not found");
    assert!(!world.done(&["env", "list"]).contains("other"), "nothing is written down");
    // One of the same name is reached again.
    fs::remove_file(world.path("state/deleted")).unwrap();
    assert_eq!(world.done(&["run", "-e", "api", "--", "echo", "back"]), "back\n");
}

#[test]
fn a_job_is_joined_and_ends_with_it() {
    let world = World::new().with_program();
    fs::write(world.path("state/job"), "PENDING\n").unwrap();
    world.refused(&["env", "add", "gpu", "--slurm", "9"], 3, "does not run yet: PENDING");
    fs::write(world.path("state/job"), "RUNNING\n").unwrap();
    world.done(&["env", "add", "gpu", "--slurm", "9"]);
    assert!(world.log("srun").contains("--overlap --jobid=9"), "{}", world.log("srun"));
    assert_eq!(world.done(&["run", "-e", "gpu", "--", "sh", "-c", "echo $SLURM_JOB_ID"]), "9\n");
    fs::write(world.path("state/job"), "COMPLETED\n").unwrap();
    world.refused(&["env", "check", "gpu"], 3, "the Slurm job 9 is over or not known");
    world.refused(&["env", "add", "x", "--slurm", "9;id"], 1, "is no number of a Slurm job");
}

#[test]
fn a_host_with_a_second_factor_needs_a_login_and_then_does_not() {
    let world = World::new().with_program();
    world.done(&["env", "add", "box", "--ssh", "me@box"]);
    fs::write(world.path("state/factor"), "").unwrap();
    let output = world.output(&["env", "check", "box", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["environments"][0]["state"]), (Some(3), &"needs login".into()), "{found}");
    assert!(found["environments"][0]["reason"].as_str().unwrap().contains("`outpost env login box`"), "{found}");
    let tries = world.log("ssh").lines().count();
    world.refused(&["run", "-e", "box", "--", "true"], 125, "outpost env login box");
    assert_eq!(world.log("ssh").lines().count(), tries + 1, "it is not tried again and again");
    let said = text(&world.output(&["env", "login", "box"]));
    assert!(said.contains("Verification code") && said.contains("box is ready"), "{said}");
    assert_eq!(world.done(&["run", "-e", "box", "--", "echo", "in"]), "in\n");
    assert!(text(&world.output(&["env", "login", "box"])).contains("logged in already"));
    world.done(&["env", "login", "box", "--end"]);
    world.refused(&["env", "check", "box"], 3, "needs login");
    world.done(&["env", "add", "far", "--url", "ws://127.0.0.1:1"]);
    world.refused(&["env", "login", "far"], 1, "only a machine behind ssh");
}

#[test]
fn hosts_are_imported_and_environments_upgraded() {
    let world = World::new().with_program();
    let config = world.path("ssh_config");
    fs::write(&config, "Host box gpu.example.org\n  User me\nHost *\n  Compression yes\n").unwrap();
    let config = config.to_str().unwrap();
    let shown = world.done(&["env", "import", "ssh", "--ssh-config", config]);
    assert!(shown.contains("gpu.example.org") && !shown.contains('*'), "{shown}");
    world.refused(&["env", "import", "ssh", "--ssh-config", config, "other"], 1, "knows no host `other`");
    world.done(&["env", "import", "ssh", "--ssh-config", config, "--all", "--offline"]);
    let listed = world.done(&["env", "list"]);
    assert!(listed.contains("box") && listed.contains("gpu-example-org"), "{listed}");
    assert!(text(&world.output(&["env", "import", "ssh", "--ssh-config", config, "--all"])).contains("nothing was written down"));
    let upgraded = text(&world.output(&["env", "upgrade", "--all", "--now"]));
    assert!(upgraded.contains("box is ready") && upgraded.contains("gpu-example-org is ready"), "{upgraded}");
    world.refused(&["env", "upgrade"], 2, "NAME");
    world.refused(&["env", "upgrade", "nobody"], 1, "there is no environment `nobody`");
    assert!(Path::new(config).exists());
}
