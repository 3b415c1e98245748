//! The keeper: what survives when the command that led to it does not.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::readable_words;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

/// A home with a keeper; both are gone when this is dropped.
struct KeptHome {
    directory: tempfile::TempDir,
}

impl KeptHome {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command that bridges to the keeper and leaves its own number behind, so that it can be killed.
    fn via(&self) -> String {
        let pids = self.path().join("bridges");
        // The keeper that it starts is looked at in /proc.
        let program: Vec<String> = readable_words(Path::new(OUTPOST)).iter().map(|word| word.to_str().unwrap().to_owned()).collect();
        format!("echo $$ >> {}; exec {} executor --listen stdio --keep", pids.display(), program.join(" "))
    }

    fn bridges(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.path().join("bridges")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn run(&self, script: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(OUTPOST);
        command
            .args(["run", "--via", &self.via(), "--", "/bin/sh", "-c", script])
            .env("OUTPOST_HOME", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn output(&self, script: &str) -> Output {
        self.run(script).output().await.unwrap()
    }

    /// The keeper's own number: the process that has this home's socket as its own.
    fn keeper(&self) -> Option<u32> {
        let wanted = format!("OUTPOST_HOME={}", self.path().display());
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let has = |bytes: Vec<u8>, text: &str| bytes.split(|byte| *byte == 0).any(|part| part == text.as_bytes());
            has(read("cmdline"), "__keeper") && has(read("environ"), &wanted)
        })
    }
}

impl Drop for KeptHome {
    fn drop(&mut self) {
        if let Some(pid) = self.keeper() {
            let _ = Command::new("kill").arg(pid.to_string()).status();
            for _ in 0..100 {
                if !is_alive(pid) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_killed_twenty_times_loses_nothing() {
    let home = KeptHome::new();
    let (counter, enough) = (home.path().join("runs"), home.path().join("enough"));
    // Still printing when the last bridge is killed, however long that takes.
    let script =
        format!("echo run >> {}; until [ -e {} ]; do seq 1 30000; sleep 0.05; done; echo end", counter.display(), enough.display());
    let running = home.run(&script).spawn().unwrap();
    let mut reading = tokio::spawn(running.wait_with_output());
    // A machine that was never reached is not waited for.
    eventually("the command runs", || counter.exists()).await;
    for killed in 0..20 {
        tokio::select! {
            () = eventually("there is another bridge", || home.bridges().len() > killed) => {}
            output = &mut reading => panic!("it ended after {killed} bridges: {:?}", output.unwrap().unwrap().stderr.escape_ascii().to_string()),
        }
        // Somewhere in the middle of its work.
        tokio::time::sleep(Duration::from_millis(100)).await;
        kill(home.bridges()[killed]);
    }
    eventually("there is a last bridge", || home.bridges().len() > 20).await;
    std::fs::write(enough, "").unwrap();
    let output = reading.await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let part: String = (1..=30_000).map(|n| format!("{n}\n")).collect();
    let parts = output.stdout.len() / part.len();
    let whole = part.repeat(parts) + "end\n";
    assert!(parts > 0 && output.stdout == whole.into_bytes(), "{} bytes came, {parts} parts", output.stdout.len());
    assert_eq!(std::fs::read_to_string(counter).unwrap(), "run\n");
    assert!(home.bridges().len() > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_detached_and_leaves_when_nothing_is_left() {
    let home = KeptHome::new();
    let output = home.output("echo hi").await;
    assert_eq!(output.stdout, b"hi\n", "{}", String::from_utf8_lossy(&output.stderr));
    let keeper = home.keeper().expect("a keeper runs");
    let stat = std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let (session, terminal) = (fields[3], fields[4]);
    assert_eq!((session, terminal), (keeper.to_string().as_str(), "0"), "not a session of its own");
    for descriptor in 0..3 {
        let target = std::fs::read_link(format!("/proc/{keeper}/fd/{descriptor}")).unwrap();
        assert_eq!(target, PathBuf::from("/dev/null"));
    }
    assert_eq!(std::fs::metadata(home.path().join("run/keeper.sock")).unwrap().permissions().mode() & 0o777, 0o600);
    eventually("the keeper is gone", || !is_alive(keeper)).await;
    assert!(!home.path().join("run/keeper.sock").exists());
    // And comes back when it is needed.
    assert_eq!(home.output("echo again").await.stdout, b"again\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hangup_of_the_bridge_does_not_reach_the_command() {
    let home = KeptHome::new();
    let running = home.run("for n in 1 2 3 4 5 6 7 8 9 10; do echo $n; sleep 0.2; done").spawn().unwrap();
    eventually("there is a bridge", || !home.bridges().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let hangup = Command::new("kill").args(["-HUP", &home.bridges()[0].to_string()]).status().unwrap();
    assert!(hangup.success());
    // Where hangups are ignored, the bridge lives on, which is just as well.
    let output = running.wait_with_output().await.unwrap();
    assert_eq!(output.stdout, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_socket_is_replaced() {
    let home = KeptHome::new();
    home.output("true").await;
    kill(home.keeper().unwrap());
    assert!(home.path().join("run/keeper.sock").exists(), "a killed keeper cannot clean up");
    assert_eq!(home.output("echo back").await.stdout, b"back\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_bridges_at_once_share_one_keeper() {
    // Between a command and the keeper are its reaper, its cell and the zygote.
    let keeper = "p=$PPID; for i in 1 2 3; do p=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$p/status); done; echo $p";
    let home = std::sync::Arc::new(KeptHome::new());
    let runs: Vec<_> = (0..6)
        .map(|n| {
            let home = home.clone();
            tokio::spawn(async move { home.output(&format!("{keeper}-{n}")).await.stdout })
        })
        .collect();
    let mut parents = std::collections::BTreeSet::new();
    for run in runs {
        let text = String::from_utf8(run.await.unwrap()).unwrap();
        parents.insert(text.split('-').next().unwrap().to_owned());
    }
    assert_eq!(parents.len(), 1, "{parents:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_build_uses_the_keeper_that_runs() {
    let home = KeptHome::new();
    let copy = home.path().join("other-outpost");
    std::fs::copy(OUTPOST, &copy).unwrap();
    let sleeping = home.run("sleep 30").spawn().unwrap();
    eventually("there is a keeper", || home.keeper().is_some()).await;
    let keeper = home.keeper();
    let via = format!("exec {} executor --listen stdio --keep", copy.display());
    let output = tokio::process::Command::new(OUTPOST)
        .args(["run", "--via", &via, "--", "/bin/echo", "hi"])
        .env("OUTPOST_HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert_eq!(output.stdout, b"hi\n");
    assert_eq!(home.keeper(), keeper);
    drop(sleeping);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_cannot_be_written_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Nobody, not even root, can make a directory below a file.
    let home = file.path().join("home");
    let output = tokio::process::Command::new(OUTPOST)
        .args(["executor", "--listen", "stdio", "--keep"])
        .env("OUTPOST_HOME", &home)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("sessions cannot be kept here") && message.contains("cannot make"), "{message}");
    let long = format!("/tmp/{}", "x".repeat(120));
    let output = tokio::process::Command::new(OUTPOST)
        .args(["executor", "--listen", "stdio", "--keep"])
        .env("OUTPOST_HOME", &long)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let _ = std::fs::remove_dir_all(&long);
    assert!(output.status.success(), "its socket is elsewhere: {}", String::from_utf8_lossy(&output.stderr));
}

fn bridge_command(home: &KeptHome, arguments: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::from(outpost_testkit::readable(Path::new(OUTPOST)));
    command.args(["executor", "--listen", "stdio", "--keep"]).args(arguments).env("OUTPOST_HOME", home.path()).kill_on_drop(true);
    command
}

/// A bridge that is told nothing and ends at once, if it gets through at all.
async fn bridge(home: &KeptHome, arguments: &[&str]) -> Output {
    bridge_command(home, arguments).stdin(Stdio::null()).output().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_with_another_ceiling_is_not_used() {
    let files = tempfile::tempdir().unwrap();
    let ceiling = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, other) = (ceiling("one.toml", "read = ['/']\n"), ceiling("other.toml", "read = ['/usr']\n"));
    let open = KeptHome::new();
    // Whoever is there keeps it.
    let _there = bridge_command(&open, &[]).stdin(Stdio::piped()).spawn().unwrap();
    eventually("the keeper is there", || open.path().join("run/keeper.json").exists()).await;
    assert!(bridge(&open, &[]).await.status.success());
    let refused = bridge(&open, &["--ceiling", &one]).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("runs without a ceiling"), "{said}");
    assert!(said.contains(&format!("process {}", open.keeper().unwrap())), "{said}");

    let held = KeptHome::new();
    let _there = bridge_command(&held, &["--ceiling", &one]).stdin(Stdio::piped()).spawn().unwrap();
    eventually("the keeper is there", || held.path().join("run/keeper.json").exists()).await;
    let same = bridge(&held, &["--ceiling", &one]).await;
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stderr));
    let said = bridge(&held, &["--ceiling", &other]).await.stderr;
    assert!(String::from_utf8_lossy(&said).contains("runs with another ceiling"));
}

impl KeptHome {
    /// A stand-in for the scheduler's `squeue`, which tells what is in a file, in a directory for the path.
    fn scheduler(&self) -> PathBuf {
        let tools = self.path().join("tools");
        std::fs::create_dir_all(&tools).unwrap();
        let script = format!("#!/bin/sh\nfor id; do :; done\ncat {}/job-$id 2> /dev/null || echo RUNNING\n", self.path().display());
        std::fs::write(tools.join("squeue"), script).unwrap();
        std::fs::set_permissions(tools.join("squeue"), PermissionsExt::from_mode(0o755)).unwrap();
        tools
    }

    /// The same command as [`Self::run`], as if it were in a job.
    fn run_in_job(&self, job: &str, script: &str) -> tokio::process::Command {
        let mut command = self.run(script);
        let path = format!("{}:{}", self.scheduler().display(), std::env::var("PATH").unwrap());
        command.env("SLURM_JOB_ID", job).env("PATH", path);
        command
    }

    /// The keeper of a job.
    fn keeper_of(&self, job: &str) -> Option<u32> {
        let wanted = format!("SLURM_JOB_ID={job}");
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let home = format!("OUTPOST_HOME={}", self.path().display());
        pids.find(|pid| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let has = |bytes: &[u8], text: &str| bytes.split(|byte| *byte == 0).any(|part| part == text.as_bytes());
            let environ = read("environ");
            has(&read("cmdline"), "__keeper") && has(&environ, &home) && has(&environ, &wanted)
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_has_a_keeper_of_its_own_that_ends_with_it() {
    let home = KeptHome::new();
    let started = home.path().join("started");
    let running = home.run_in_job("9", &format!("touch {}; sleep 600", started.display())).spawn().unwrap();
    eventually("the command of job 9 runs", || started.exists()).await;
    let (nine, first) =
        (home.keeper_of("9").expect("job 9 has a keeper"), home.run_in_job("9", "echo $SLURM_JOB_ID").output().await.unwrap());
    assert_eq!(first.stdout, b"9\n", "{}", String::from_utf8_lossy(&first.stderr));
    // On the old program job 10 was served by the keeper of job 9.
    let other = home.run_in_job("10", "echo $SLURM_JOB_ID").output().await.unwrap();
    assert_eq!(other.stdout, b"10\n", "{}", String::from_utf8_lossy(&other.stderr));
    let outside = home.output("echo ${SLURM_JOB_ID:-none}").await;
    assert_eq!(outside.stdout, b"none\n");
    let identity = |path: &Path| std::fs::read_to_string(path.join("identity")).unwrap();
    let places: Vec<PathBuf> =
        std::fs::read_dir(home.path().join("executor/places")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!(places.len(), 2, "{places:?}");
    assert_ne!(identity(&places[0]), identity(&places[1]));
    assert!(places.iter().all(|place| identity(place) != identity(&home.path().join("executor"))));
    // The job is over although a command still runs in it.
    std::fs::write(home.path().join("job-9"), "COMPLETING\n").unwrap();
    let output = running.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(137), "{}", String::from_utf8_lossy(&output.stderr));
    eventually("the keeper of job 9 is gone", || !is_alive(nine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_told_to_end_says_how_its_commands_ended() {
    let home = KeptHome::new();
    let started = home.path().join("started");
    let running = home.run(&format!("echo last words; touch {}; sleep 600", started.display())).spawn().unwrap();
    eventually("the command runs", || started.exists()).await;
    let keeper = home.keeper().unwrap();
    assert!(Command::new("kill").arg(keeper.to_string()).status().unwrap().success());
    let output = running.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(137), &b"last words\n"[..]), "{said}");
    eventually("the keeper is gone", || !is_alive(keeper)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_told_to_end_leaves_the_fates_of_a_client_that_is_away() {
    let home = KeptHome::new();
    let started = home.path().join("started");
    let mut running = home.run(&format!("touch {}; sleep 600", started.display())).spawn().unwrap();
    eventually("the command runs", || started.exists()).await;
    running.kill().await.unwrap();
    let keeper = home.keeper().unwrap();
    assert!(Command::new("kill").arg(keeper.to_string()).status().unwrap().success());
    eventually("the keeper is gone", || !is_alive(keeper)).await;
    // What it knew is left for the next start that is reached in the same way.
    let journals = std::fs::read_dir(home.path().join("executor")).unwrap().flatten();
    let facts: String = journals.filter_map(|entry| std::fs::read_to_string(entry.path().join("journal.jsonl")).ok()).collect();
    assert!(facts.contains(r#""fact":"exited""#) && facts.contains("137"), "{facts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_that_ends_with_its_job_still_passes_on_what_the_keeper_says() {
    let home = KeptHome::new();
    let started = home.path().join("started");
    let running = home.run(&format!("touch {}; sleep 600", started.display())).spawn().unwrap();
    eventually("the command runs", || started.exists()).await;
    // As a scheduler does it: everybody at once.
    let pids = [home.bridges()[0].to_string(), home.keeper().unwrap().to_string()];
    assert!(Command::new("kill").args(pids).status().unwrap().success());
    assert_eq!(running.wait_with_output().await.unwrap().status.code(), Some(137));
}

/// As `scancel` and `systemctl stop` do it: every process that belongs to the job or unit is asked to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_to_everybody_does_not_hide_how_a_command_ended() {
    let home = KeptHome::new();
    let started = home.path().join("started");
    let running = home.run(&format!("trap 'exit 7' TERM; touch {}; while :; do sleep 0.1; done", started.display())).spawn().unwrap();
    eventually("the command runs", || started.exists()).await;
    let mut family = vec![home.keeper().unwrap()];
    let mut index = 0;
    while index < family.len() {
        // Any thread may have started one.
        let threads = std::fs::read_dir(format!("/proc/{}/task", family[index])).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        family.extend(texts.collect::<Vec<_>>().join(" ").split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        index += 1;
    }
    assert!(family.len() > 4, "keeper, zygote, cell, reaper and command: {family:?}");
    // The keeper last: what it looks after is asked first.
    let pids: Vec<String> = family.iter().rev().map(u32::to_string).collect();
    Command::new("kill").args(pids).status().unwrap();
    let code = running.wait_with_output().await.unwrap().status.code();
    assert!(code == Some(7) || code == Some(137) || code == Some(143), "{code:?}");
}
