//! What an administrator requires in `/etc/outpost/requirements.toml`, and no user loosens. The file is put there for one command only, in
//! a view of the file system of its own, which takes root.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::OUTPOST;

const FILE: &str = "/etc/outpost/requirements.toml";

struct Scene {
    home: TempDir,
    work: TempDir,
    etc: TempDir,
}

impl Scene {
    /// Nothing if this is not root.
    fn new(requirements: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let make = || tempfile::Builder::new().prefix("outpost-lock-").tempdir_in("/var/tmp").unwrap();
        let scene = Self { home: make(), work: make(), etc: make() };
        for name in ["layer", "layer/outpost", "room"] {
            std::fs::create_dir(scene.etc.path().join(name)).unwrap();
        }
        std::fs::write(scene.etc.path().join("layer/outpost/requirements.toml"), requirements).unwrap();
        Some(scene)
    }

    /// What a command prints, and whether it went well.
    fn run(&self, arguments: &[&str]) -> (String, bool) {
        let output = self.command(arguments).stdin(Stdio::null()).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (told, output.status.success())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let layers = |name: &str| self.etc.path().join(name).display().to_string();
        let mount = format!("mount -t overlay overlay -o lowerdir=/etc,upperdir={},workdir={} /etc", layers("layer"), layers("room"));
        let script = format!("{mount} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", &script, OUTPOST]).args(arguments);
        command.current_dir(self.work.path()).env("OUTPOST_HOME", self.home.path()).env("HOME", self.work.path());
        for name in [
            "OPENAI_API_KEY",
            "CODEX_API_KEY",
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "OUTPOST_EXEC_SERVER_URL",
            "CODEX_EXEC_SERVER_URL",
        ] {
            command.env_remove(name);
        }
        command
    }
}

#[test]
fn nothing_runs_without_a_sandbox_where_a_level_is_required() {
    let Some(scene) = Scene::new("sandbox_minimum = 'landlock'\n") else { return };
    let outside = tempfile::Builder::new().prefix("outpost-lock-").tempdir_in("/var/tmp").unwrap();
    let target = outside.path().join("file");
    let script = format!("$ touch {}", target.display());
    let (told, _) = scene.run(&["exec", "--provider", "offline", "--sandbox", "danger-full-access", &script]);
    assert!(!target.exists(), "{told}");
    assert!(told.contains(FILE), "{told}");
    // Inside the workspace it works all the same.
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "--sandbox", "danger-full-access", "$ touch inside"]);
    assert!(is_good && scene.work.path().join("inside").exists(), "{told}");
}

#[test]
fn clients_are_told_what_is_required() {
    let text = "sandbox_minimum = 'mounts'\nnetwork = 'restricted'\napproval_policies = ['untrusted', 'granular']\nenvironment_sources = ['ssh']\n";
    let Some(scene) = Scene::new(text) else { return };
    let settings = ["-c", "approval_policy=\"untrusted\"", "app-server"];
    let mut child = scene.command(&settings).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let hello = json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "test", "version": "1"}}});
    for message in [hello, json!({"method": "initialized"}), json!({"id": 2, "method": "configRequirements/read"})] {
        writeln!(input, "{message}").unwrap();
    }
    let answer = lines.find_map(|line| {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (message["id"] == 2).then_some(message)
    });
    drop(input);
    child.wait().unwrap();
    let answer = answer.expect("an answer");
    let expected = json!({
        "file": FILE, "sandboxMinimum": "mounts", "allowedSandboxModes": ["read-only", "workspace-write"],
        "allowedApprovalPolicies": ["untrusted"], "network": {"enabled": false}, "environmentSources": ["ssh"],
    });
    assert_eq!(answer["result"]["requirements"], expected, "{answer}");
}

#[test]
fn the_network_stays_closed() {
    let Some(scene) = Scene::new("network = 'restricted'\n") else { return };
    let script = "$ cat /proc/net/dev";
    let settings = ["exec", "--provider", "offline", "-c", "sandbox_workspace_write.network_access=true", script];
    let (told, _) = scene.run(&settings);
    let devices = told.lines().filter(|line| line.contains(':') && line.split_whitespace().count() > 10);
    assert!(devices.clone().count() >= 1 && devices.into_iter().all(|line| line.contains("lo:")), "{told}");
}

#[test]
fn this_machine_is_no_environment() {
    let Some(scene) = Scene::new("local = false\n") else { return };
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "$ touch made"]);
    assert!(!is_good && told.contains(FILE) && told.contains("local = false"), "{told}");
    assert!(!scene.work.path().join("made").exists());
}

#[test]
fn environments_come_only_from_allowed_sources() {
    let Some(scene) = Scene::new("environment_sources = ['ssh']\n") else { return };
    std::fs::write(scene.home.path().join("environments.toml"), "[[environments]]\nid = 'box'\nurl = 'ws://127.0.0.1:1'\n").unwrap();
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "-e", "box=/", "@box $ true"]);
    assert!(!is_good && told.contains(FILE) && told.contains("`url`") && told.contains("only ssh"), "{told}");
}

#[test]
fn only_allowed_approval_policies_are_used() {
    let Some(scene) = Scene::new("approval_policies = ['on-request']\n") else { return };
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "-c", "approval_policy=never", "> hi"]);
    assert!(!is_good && told.contains(FILE) && told.contains("`never`"), "{told}");
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "-c", "approval_policy=on-request", "> hi"]);
    assert!(is_good, "{told}");
}

#[test]
fn a_file_that_cannot_be_read_stops_everything_that_it_could_forbid() {
    let Some(scene) = Scene::new("sandbox_minimun = 'full'\n") else { return };
    let (told, is_good) = scene.run(&["exec", "--provider", "offline", "> hi"]);
    assert!(!is_good && told.contains(FILE) && told.contains("sandbox_minimun"), "{told}");
}
