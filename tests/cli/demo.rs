//! `outpost demo`: the first thing that a newcomer runs.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::{OUTPOST, is_ignored};

/// What a newcomer's shell would start. Nothing of the tests' own environment gets in.
fn demo(prefix: &[&str], home: &Path) -> Output {
    let words = [prefix, &[OUTPOST, "demo"]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("OUTPOST_HOME", home).env_remove("NO_COLOR").stdin(Stdio::null());
    // What a user has set up elsewhere has no say in it.
    command.env("OUTPOST_EXEC_SERVER_URL", "none").env("TMPDIR", "/var/tmp").output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no noise");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The place of the second executor, and that nothing of it is left.
fn nothing_is_left(told: &str) {
    let line = told.lines().find(|line| line.contains("a second executor in ")).unwrap();
    let place = Path::new(line.rsplit(' ').next().unwrap());
    assert!(place.is_absolute() && !place.exists(), "{}", place.display());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let there = std::fs::read_link(process.path().join("cwd")).is_ok_and(|directory| directory.starts_with(place));
        assert!(!there, "{}", process.path().display());
    }
}

#[test]
fn it_shows_what_it_says_and_leaves_only_the_thread() {
    let home = tempfile::tempdir().unwrap();
    let told = text(&demo(&["env"], home.path()));
    let words = [
        "made by local",
        "made by worker",
        "cut after line 3",
        "no line is lost or doubled",
        "killed after line 3",
        "it ran once",
        "original  4  > The original goes on.",
        "fork      4  > The fork goes its own way.",
    ];
    for word in words {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert!(!told.contains('\x1b'), "{told}");
    nothing_is_left(&told);
    let last: Vec<&str> = told.lines().rev().take(3).map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(last, ["Next", "It lies", "You saw"]);

    // What it says about the thread is true.
    let (_, rest) = told.split_once("It lies  in ").unwrap();
    let (journal, rest) = rest.split_once("; `").unwrap();
    assert!(Path::new(journal).is_file(), "{journal}");
    let (command, _) = rest.split_once('`').unwrap();
    let id = command.rsplit(' ').next().unwrap();
    let run = |arguments: &[&str]| Command::new(OUTPOST).args(arguments).env("OUTPOST_HOME", home.path()).output().unwrap();
    let shown = run(&["thread", "show", id]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("The original goes on."), "{shown:?}");
    let listed: serde_json::Value = serde_json::from_slice(&run(&["thread", "--json", "list", "--all"]).stdout).unwrap();
    assert_eq!(listed["threads"].as_array().unwrap().len(), 1, "the fork is gone: {listed}");
    let verified = run(&["thread", "verify", id]);
    assert!(verified.status.success(), "{verified:?}");
}

/// An ordinary user may not enter each directory that its sandboxes leave behind, such as those that the kernel makes for overlays.
#[test]
fn started_by_an_ordinary_user_it_leaves_nothing() {
    const USER: u32 = 54_321;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return; // Each test here is that case.
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    std::os::unix::fs::chown(directory.path(), Some(USER), Some(USER)).unwrap();
    let program = directory.path().join("outpost");
    std::fs::copy(OUTPOST, &program).unwrap();
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]).arg(&program).arg("demo");
    command.env("HOME", directory.path()).env("OUTPOST_HOME", directory.path().join("home")).env("TMPDIR", "/var/tmp");
    nothing_is_left(&text(&command.current_dir(directory.path()).stdin(Stdio::null()).output().unwrap()));
}

/// Inside of namespaces that allow no more of them.
#[test]
fn with_a_weaker_sandbox_it_says_so_and_goes_on() {
    let closed = "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && exec \"$@\"";
    let prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", closed, "sh"];
    if !Command::new("unshare").args(["--user", "--map-root-user", "true"]).status().is_ok_and(|status| status.success()) {
        return;
    }
    // Without mounts a home below `/tmp`, where sandboxed code may write, could not be kept from it.
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let told = text(&demo(&prefix, home.path()));
    assert!(told.contains("the sandbox of this machine has the level `landlock`") && !told.contains("WITHOUT ONE"), "{told}");
    assert!(told.contains("it ran once") && told.contains("stray"), "{told}");
    nothing_is_left(&told);
}

/// A demo whose output the test reads while it runs.
fn under_way(home: &Path) -> Child {
    let mut command = Command::new(OUTPOST);
    command.arg("demo").env("OUTPOST_HOME", home).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Stopped at any moment, it leaves no directory, no process and no half-made thread.
#[test]
fn stopped_at_any_moment_it_leaves_nothing() {
    if is_ignored(2) {
        return;
    }
    for moment in ["`local` is this program", "1  A turn", "cut after line", "the command goes on there"] {
        let home = tempfile::tempdir().unwrap();
        let mut child = under_way(home.path());
        let mut told = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !told.contains(moment) {
            assert!(out.read_line(&mut told).unwrap() > 0, "it never came to `{moment}`: {told}");
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        out.read_to_string(&mut told).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(130), ""), "{moment}: {told}");
        assert!(told.contains("Nothing is left of the demo"), "{told}");
        nothing_is_left(&told);
        let listed = Command::new(OUTPOST).args(["thread", "list", "--all", "--json"]).env("OUTPOST_HOME", home.path()).output().unwrap();
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["threads"], serde_json::json!([]), "{moment}");
    }
}

/// Not even SIGKILL leaves anything, whichever of its two programs it meets.
#[test]
fn killed_it_leaves_nothing() {
    for meets_stage in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let mut child = under_way(home.path());
        let mut told = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !told.contains("cut after line") {
            assert!(out.read_line(&mut told).unwrap() > 0, "{told}");
        }
        if meets_stage {
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
            let stage: Vec<&str> = children.split_whitespace().collect();
            assert_eq!(stage.len(), 1, "{children}");
            assert!(Command::new("kill").args(["-KILL", stage[0]]).status().unwrap().success());
        } else {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        // Whoever is left holds the output until it has cleaned up.
        out.read_to_string(&mut told).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), meets_stage.then_some(1), "{said}");
        assert!(
            if meets_stage { said.contains("the demo was killed") } else { told.contains("Nothing is left of the demo") },
            "{told}{said}"
        );
        nothing_is_left(&told);
    }
}

/// Where there is no room it says so, and where, before it begins.
#[test]
fn without_room_it_says_what_to_do() {
    // The program and the home are somewhere else.
    let script = "mount --bind \"$(dirname \"$1\")\" /mnt && mount -t tmpfs x /media && mount -t tmpfs -o size=64k x /var/tmp && \
                  mount -t tmpfs -o size=64k x /tmp && OUTPOST_HOME=/media/home exec \"/mnt/$(basename \"$1\")\" demo";
    let prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"];
    if !Command::new("unshare").args(["--user", "--map-root-user", "true"]).status().is_ok_and(|status| status.success()) {
        return;
    }
    let output = demo(&prefix, Path::new("/media/home"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no place for a throw-away directory") && said.contains("TMPDIR") && said.contains("MiB are free"), "{said}");
}
