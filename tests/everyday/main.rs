//! A share of `cargo xtask everyday`, with the same tasks and the same runner: those that are quick and whose programs the test command installs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/everyday");
/// A user of no machine, who gets a line in the user table for the time of the run.
const USER: &str = "54330";

/// Bare, tasks use the same ports.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What may come of a task: anything else is a fault.
const RIGHT: [&str; 3] = ["pass", "forbidden", "not at hand"];

/// A place that every user may read, and that is not in `/tmp`, of which a sandbox has its own.
struct Ground(tempfile::TempDir);

impl Ground {
    fn new() -> Self {
        let place = tempfile::Builder::new().prefix("outpost-everyday-test-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::copy(OUTPOST, place.path().join("outpost")).unwrap();
        let run = place.path().join("run.sh");
        fs::copy(Path::new(HERE).join("run.sh"), run).unwrap();
        fs::create_dir(place.path().join("tasks")).unwrap();
        for file in fs::read_dir(Path::new(HERE).join("tasks")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), place.path().join("tasks").join(file.file_name())).unwrap();
        }
        for (table, line) in
            [("passwd", format!("everyday:x:{USER}:{USER}::/nonexistent:/bin/sh")), ("group", format!("everyday:x:{USER}:"))]
        {
            let text = fs::read_to_string(Path::new("/etc").join(table)).unwrap();
            fs::write(place.path().join(table), format!("{}\n{line}\n", text.trim_end())).unwrap();
        }
        Self(place)
    }

    fn tasks(&self) -> Vec<PathBuf> {
        let mut tasks: Vec<PathBuf> = fs::read_dir(self.0.path().join("tasks")).unwrap().map(|entry| entry.unwrap().path()).collect();
        tasks.sort();
        tasks
    }

    /// Runs the share as it is started by these words.
    fn check(&self, before: &[&str]) {
        let mut command = Command::new(before.first().unwrap_or(&"sh"));
        command.args(before.iter().skip(1));
        if !before.is_empty() {
            command.arg("sh");
        }
        command.arg(self.0.path().join("run.sh")).args(self.tasks()).current_dir("/").env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("TESTS", "1");
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let output = command.env("OUTPOST", self.0.path().join("outpost")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let results: Vec<(&str, Vec<&str>)> = said.lines().map(|line| (line, line.split('\t').collect())).collect();
        assert!(results.iter().all(|(_, fields)| fields.len() == 6), "{said}{errors}");
        let wrong: Vec<&str> = results.iter().filter(|(_, fields)| !RIGHT.contains(&fields[2])).map(|(line, _)| *line).collect();
        assert!(wrong.is_empty() && output.status.success(), "{}\n{errors}", wrong.join("\n"));
        // A machine on which hardly anything passes bare shows nothing.
        let passed = results.iter().filter(|(_, fields)| fields[2] == "pass").count();
        assert!(passed >= 20, "only {passed} tasks passed:\n{said}{errors}");
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

#[test]
fn as_root() {
    if !is_root() {
        eprintln!("skipped: this needs root");
        return;
    }
    Ground::new().check(&[]);
}

#[test]
fn as_user() {
    let ground = Ground::new();
    if !is_root() {
        return ground.check(&[]);
    }
    let place = ground.0.path().display().to_string();
    let users = format!("mount --bind '{place}/passwd' /etc/passwd; mount --bind '{place}/group' /etc/group");
    let change = format!("{users}; exec setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps=-all \"$@\"");
    ground.check(&["unshare", "-m", "sh", "-ec", &change, "sh"]);
}
