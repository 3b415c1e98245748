//! What an executor takes for itself and leaves to its sessions: open files, and the profiles of an operator.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::OUTPOST;

/// A server takes as many files as the system gives it; a command has as many as whoever started the server.
#[test]
fn a_server_takes_all_files_and_a_command_has_those_that_it_always_had() {
    let home = tempfile::tempdir().unwrap();
    let script = format!("ulimit -S -n 200; exec '{OUTPOST}' executor --listen stdio");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .env("OUTPOST_HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It has answered nothing yet, but it reads: by then the limit is set.
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let limits = || {
        let text = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (words[3].clone(), words[4].clone())
    };
    let is_raised = || {
        let (soft, hard) = limits();
        soft == hard && soft != "200"
    };
    let patient = (0..12_000).any(|_| is_raised() || (std::thread::sleep(std::time::Duration::from_millis(10)), false).1);
    assert!(patient, "{:?}", limits());
    drop(child.stdin.take());
    child.wait().unwrap();
    let via = format!("sh -c \"ulimit -S -n 200; exec '{OUTPOST}' executor --listen stdio --limit open-files=none\"");
    let run = Command::new(OUTPOST)
        .args(["run", "--via", &via, "--", "sh", "-c", "ulimit -S -n"])
        .env("OUTPOST_HOME", home.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), "200", "{run:?}");
}

/// Some programs, ssh among them, cannot count files beyond what is usual.
#[test]
fn a_program_that_carries_a_connection_has_the_files_that_it_always_had() {
    let home = tempfile::tempdir().unwrap();
    let seen = home.path().join("seen");
    // It has its limit a moment after it began.
    let look = format!(
        "i=0; while [ \"$(ulimit -S -n)\" != 200 ] && [ $i -lt 500 ]; do sleep 0.01; i=$((i+1)); done; ulimit -S -n > '{}'",
        seen.display()
    );
    let via = format!("{look}; exec '{OUTPOST}' executor --listen stdio");
    let table = format!("[[environments]]\nid = \"far\"\nprogram = \"/bin/sh\"\nargs = [\"-c\", {via:?}]\n");
    fs::write(home.path().join("environments.toml"), table).unwrap();
    for place in [vec!["--via", &via], vec!["-e", "far"]] {
        let place = place.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" ");
        let script = format!("ulimit -S -n 200; exec '{OUTPOST}' run {place} -- true");
        let run = Command::new("sh").args(["-c", &script]).env("OUTPOST_HOME", home.path()).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        assert_eq!(fs::read_to_string(&seen).unwrap().trim(), "200", "{run:?}");
        fs::remove_file(&seen).unwrap();
    }
}

#[test]
fn a_shared_host_holds_everybody_to_a_ceiling_and_the_others_to_none() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |profile: &str| {
        let via = format!("'{OUTPOST}' executor --listen stdio --profile {profile}");
        let mut command = Command::new(OUTPOST);
        command.args(["run", "--via", &via, "--", "sh", "-c", "echo ran; ulimit -t"]).env("OUTPOST_HOME", home.path());
        command.current_dir(work.path()).output().unwrap()
    };
    let refused = run("shared-host");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("operator's ceiling"), "{refused:?}");
    for profile in ["own-machine", "container"] {
        let ran = run(profile);
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "ran\nunlimited\n", "{ran:?}");
    }
    let wrong = Command::new(OUTPOST).args(["executor", "--profile", "laptop"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("own-machine, shared-host, container"), "{wrong:?}");
}
