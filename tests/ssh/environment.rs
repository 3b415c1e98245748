//! `env add --ssh`, and what works through it afterwards while ssh is killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outpost_testkit::executor::eventually;
use outpost_testkit::{LoginShell, Sshd, TestTerminal};

use crate::OUTPOST;
use crate::bootstrap::NOISE;

/// This side: a home with nothing in it yet.
struct Here(tempfile::TempDir);

impl Here {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(arguments).env("OUTPOST_HOME", self.path()).env_remove("OUTPOST_EXEC_SERVER_URL").stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn add(&self, sshd: &Sshd) -> Output {
        let config = sshd.client_config().display().to_string();
        self.output(&["env", "add", "box", "--ssh", "box", "--ssh-arg", "-F", "--ssh-arg", &config])
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Adds a machine, runs a command there, and kills ssh twice while it runs.
async fn a_killed_ssh_costs_nothing(shell: LoginShell<'_>, noise: Option<&str>) {
    let (sshd, here) = (Sshd::start(shell), Here::new());
    if let Some(file) = noise {
        fs::write(sshd.home().join(file), NOISE).unwrap();
    }
    let added = here.add(&sshd);
    assert!(added.status.success(), "{}\n{}", text(&added), sshd.log());
    assert!(text(&added).contains("copied") && text(&added).contains("box is ready: outpost "), "{}", text(&added));
    let (counter, enough) = (sshd.home().join("runs"), sshd.home().join("enough"));
    // Still printing when the last ssh is killed, however long that takes.
    let script = format!("echo run >> {}; until [ -e {} ]; do seq 1 5000; sleep 0.05; done; exit 7", counter.display(), enough.display());
    let running = tokio::process::Command::from(here.command(&["run", "-e", "box", "--", "/bin/sh", "-c", &script]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let reading = tokio::spawn(running.wait_with_output());
    eventually("the command runs", || counter.exists()).await;
    for _ in 0..2 {
        eventually("ssh is there", || !sshd.clients().is_empty()).await;
        let before = sshd.logins();
        // Somewhere in the middle of its work.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for pid in sshd.clients() {
            kill(pid);
        }
        eventually("there is another login", || sshd.logins() > before).await;
    }
    fs::write(enough, "").unwrap();
    let output = reading.await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let part: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    let parts = output.stdout.len() / part.len();
    assert!(parts > 0 && output.stdout == part.repeat(parts).into_bytes(), "{} bytes came", output.stdout.len());
    assert_eq!(fs::read_to_string(counter).unwrap(), "run\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_bash() {
    a_killed_ssh_costs_nothing(LoginShell::Program("/bin/bash"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_bash_that_prints_noise() {
    a_killed_ssh_costs_nothing(LoginShell::Program("/bin/bash"), Some(".bashrc")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_dash() {
    a_killed_ssh_costs_nothing(LoginShell::Program("/bin/dash"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_busybox() {
    a_killed_ssh_costs_nothing(LoginShell::Busybox("/bin/busybox"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_csh_that_prints_noise() {
    let noise = ".cshrc";
    a_killed_ssh_costs_nothing(LoginShell::Program("/bin/tcsh"), Some(noise)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_a_terminal_go_through_it_as_well() {
    let (sshd, here) = (Sshd::start(LoginShell::Program("/bin/bash")), Here::new());
    fs::write(sshd.home().join(".bashrc"), NOISE).unwrap();
    assert!(here.add(&sshd).status.success());
    let bytes: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(here.path().join("big"), &bytes).unwrap();
    let big = here.path().join("big").display().to_string();
    let mut copying = tokio::process::Command::from(here.command(&["cp", &big, "box:sub dir"])).kill_on_drop(true).spawn().unwrap();
    let is_begun = || {
        let files = fs::read_dir(sshd.home()).unwrap().flatten();
        files
            .into_iter()
            .any(|file| file.file_name().to_string_lossy().ends_with(".part") && file.metadata().is_ok_and(|part| part.len() > 0))
    };
    eventually("something has come", is_begun).await;
    for pid in sshd.clients() {
        kill(pid);
    }
    assert!(copying.wait().await.unwrap().success());
    assert!(fs::read(sshd.home().join("sub dir")).unwrap() == bytes);

    let mut command = here.command(&["shell", "-e", "box"]);
    command.env("TERM", "xterm");
    let mut terminal = TestTerminal::start(&command);
    terminal.type_keys("mine=$$; echo up-$((1+1))\r");
    terminal.wait_for("up-2");
    for pid in sshd.clients() {
        kill(pid);
    }
    terminal.type_keys("test $mine = $$ && echo same-$((1+1)); exit 9\r");
    terminal.wait_for("same-2");
    assert_eq!(terminal.exit_code(), Some(9));
}

#[test]
fn a_second_time_copies_nothing_and_another_name_keeps_the_file() {
    let (sshd, here) = (Sshd::start(LoginShell::Program("/bin/dash")), Here::new());
    let file = here.path().join("environments.toml");
    fs::write(&file, "# mine\ninclude_local = true # yes\n").unwrap();
    let first = here.add(&sshd);
    assert!(first.status.success(), "{}", text(&first));
    let config = sshd.client_config().display().to_string();
    let expected =
        format!("# mine\ninclude_local = true # yes\n\n[[environments]]\nid = \"box\"\nssh = \"box\"\nargs = [\"-F\", \"{config}\"]\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let again = here.add(&sshd);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("there is an environment `box` already"), "{}", text(&again));
    let other = here.output(&["env", "add", "other", "--ssh", "box", "--ssh-arg", "-F", "--ssh-arg", &config, "--connect", "manual"]);
    assert!(other.status.success() && text(&other).contains("is there already; nothing is copied"), "{}", text(&other));
    let checked = here.output(&["env", "check", "--json", "other"]);
    assert!(checked.status.success(), "{}", text(&checked));
    let json: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let found = &json["environments"][0];
    assert_eq!((&found["state"], &found["home"]), (&"ready".into(), &sshd.home().display().to_string().into()));
    assert!(here.output(&["env", "remove", "other"]).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap().trim_end(), expected.trim_end());
}

#[test]
fn what_fails_there_writes_nothing_here() {
    let (sshd, here) = (Sshd::start(LoginShell::Program("/bin/dash")), Here::new());
    let file = here.path().join("environments.toml");
    let config = sshd.client_config().display().to_string();
    let add = |more: &[&str]| {
        let mut arguments = vec!["env", "add", "box", "--ssh", "box", "--ssh-arg", "-F", "--ssh-arg", &config];
        arguments.extend(more);
        here.output(&arguments)
    };
    let script = here.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let refused = add(&["--binary", script.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("is not a program for Linux"), "{}", text(&refused));
    // Another machine's program: the head of this one with another number in it.
    let mut foreign = fs::read(OUTPOST).unwrap();
    foreign.truncate(1 << 20);
    foreign[18] = if foreign[18] == 62 { 183 } else { 62 };
    fs::write(&script, foreign).unwrap();
    let refused = add(&["--binary", script.to_str().unwrap()]);
    assert!(text(&refused).contains("cannot run there") && text(&refused).contains("and the machine is"), "{}", text(&refused));
    // Nobody answers with the key that is known.
    fs::write(sshd.known_hosts(), "").unwrap();
    let refused = add(&[]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    assert!(
        text(&refused).contains("Host key verification failed") && text(&refused).contains("does `ssh box true` work?"),
        "{}",
        text(&refused)
    );
    assert!(!file.exists() && !sshd.home().join(".outpost").exists());
}
