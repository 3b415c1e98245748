//! P3: whoever uses too much is held, and told by what; others do not notice.

use std::path::Path;
use std::time::Duration;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_testkit::executor::eventually;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::card::{FORKS, MOUNTS, PER_SESSION, can_mount, denies, is_at_least};
use crate::support::{Ground, Who, directory, entry, is_root, number};

/// The end of a process as it was told.
async fn exited(client: &mut Client, id: &str) -> Value {
    let events = client.events(id).await;
    events.into_iter().find(|event| event["method"] == "process/exited").unwrap()["params"].take()
}

/// Somebody else gets answers all the while.
async fn others_are_served(ground: &Ground, client: &mut Client) {
    for _ in 0..5 {
        let id = number();
        client.start(ground.shell(&id, "echo hi")).await;
        assert_eq!(client.outcome(&id).await, (0, b"hi\n".to_vec()));
    }
}

async fn mechanism(client: &mut Client, what: &str) -> Option<String> {
    let info = client.result("environment/info", json!({})).await;
    let limit = info["limits"].as_array().unwrap().iter().find(|limit| limit["what"] == what).cloned();
    limit.map(|limit| limit["mechanism"].as_str().unwrap().to_owned())
}

as_root_and_user! {
    #[needs(FORKS)]
    async fn limits_are_on_by_default_and_told(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        for what in ["processes", "bytes of memory", "open files", "bytes of a file", "bytes of free space"] {
            let mechanism = mechanism(&mut client, what).await;
            assert!(matches!(mechanism.as_deref(), Some("cgroup v2" | "cgroup v1" | "rlimit" | "watchdog")), "{what}: {mechanism:?}");
        }
        assert_eq!(mechanism(&mut client, "seconds of processor time").await, None);
    }

    #[needs(FORKS)]
    async fn a_fork_bomb_is_held(who: Who) {
        let ground = Ground::with(who, &["--limit", "processes=200"]);
        let (mut bomber, mut other) = (ground.client().await, ground.client().await);
        others_are_served(&ground, &mut other).await;
        // Without control groups the kernel counts those of all unconfined sessions of one user together, and each has twice as many.
        let shares = mechanism(&mut bomber, "processes").await.as_deref() == Some("rlimit");
        for (id, sandbox, most) in [("open", Value::Null, if shares { 520 } else { 320 }), ("held", ground.workspace_write(), 320)] {
            // Bounded, so that a limit that does not hold fails the test and not the machine.
            let bomb = "perl -e 'for (1..10) { fork } sleep 600' & perl -e 'for (1..10) { fork } sleep 600'";
            bomber.start(with(ground.shell(id, bomb), json!({"sandbox": sandbox}))).await;
            eventually("it forks", || below(ground.executor.pid()) >= 20).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            others_are_served(&ground, &mut other).await;
            let running = below(ground.executor.pid());
            assert!((20..most).contains(&running), "{running} processes");
            bomber.result("process/terminate", json!({"processId": id})).await;
            exited(&mut bomber, id).await;
        }
        // It is over: the same session can start something again.
        for attempt in 0.. {
            let id = format!("after-{attempt}");
            let answer = bomber.call("process/start", ground.shell(&id, "echo again")).await;
            if answer.get("error").is_none() && bomber.outcome(&id).await == (0, b"again\n".to_vec()) {
                break;
            }
            assert!(attempt < 1000, "{answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[needs(FORKS)]
    async fn whoever_forks_too_much_is_told(who: Who) {
        let ground = Ground::with(who, &["--limit", "processes=30"]);
        let mut client = ground.client().await;
        client.start(ground.shell("p", "for i in $(seq 400); do sleep 5 & done; exit 0")).await;
        let exited = exited(&mut client, "p").await;
        assert_ne!(exited["exitCode"], 0, "{exited}");
        if mechanism(&mut client, "processes").await.unwrap().starts_with("cgroup") {
            assert_eq!(exited["limit"]["what"], "processes", "{exited}");
        }
    }

    async fn a_memory_hog_is_held(who: Who) {
        let ground = Ground::with(who, &["--limit", "memory=200M"]);
        let (mut hog, mut other) = (ground.client().await, ground.client().await);
        for (id, sandbox) in [("open", Value::Null), ("held", ground.workspace_write())] {
            let script = "perl -e '$x = \"a\" x (600 << 20); sleep 600'";
            hog.start(with(ground.shell(id, script), json!({"sandbox": sandbox}))).await;
            others_are_served(&ground, &mut other).await;
            let exited = exited(&mut hog, id).await;
            assert_ne!(exited["exitCode"], 0, "{exited}");
            assert_eq!((&exited["limit"]["what"], &exited["limit"]["value"]), (&json!("bytes of memory"), &json!(200 << 20)), "{exited}");
        }
    }

    async fn of_a_session_that_uses_too_much_the_largest_program_goes(who: Who) {
        let ground = Ground::with(who, &["--limit", "memory=200M"]);
        let mut client = ground.client().await;
        for sandbox in [Value::Null, ground.workspace_write()] {
            // Each alone would be allowed; the other command of the session is not to blame.
            let (quiet, hogs) = (number(), number());
            client.start(with(ground.shell(&quiet, "read x; exit 7"), json!({"sandbox": sandbox, "pipeStdin": true}))).await;
            let hog = |size: u32| format!("perl -e '$x = \"a\" x ({size} << 20); sleep 600'");
            let script = format!("{} & {}; echo $?; kill $!; exit 5", hog(90), hog(150));
            client.start(with(ground.shell(&hogs, &script), json!({"sandbox": sandbox}))).await;
            let events = client.events(&hogs).await;
            let exited = &events.iter().find(|event| event["method"] == "process/exited").unwrap()["params"];
            assert_eq!((&exited["exitCode"], &exited["limit"]["what"]), (&json!(5), &json!("bytes of memory")), "{exited}");
            client.result("process/closeStdin", json!({"processId": quiet})).await;
            let exited = self::exited(&mut client, &quiet).await;
            assert_eq!((&exited["exitCode"], &exited["limit"]), (&json!(7), &Value::Null), "{exited}");
        }
    }

    async fn address_space_is_not_memory(who: Who) {
        let ground = Ground::with(who, &["--limit", "memory=200M"]);
        let mut client = ground.client().await;
        // What sanitizers, the JVM, Go and V8 do at their start.
        let number = if cfg!(target_arch = "x86_64") { 9 } else { 222 };
        let script = format!("perl -e 'syscall({number}, 0, 1 << 43, 3, 0x4022, -1, 0) > 0 or die $!; print q(reserved)'");
        for sandbox in [Value::Null, ground.workspace_write()] {
            let id = self::number();
            client.start(with(ground.shell(&id, &script), json!({"sandbox": sandbox}))).await;
            assert_eq!(client.outcome(&id).await, (0, b"reserved".to_vec()));
        }
    }

    async fn a_file_does_not_grow_without_end(who: Who) {
        let ground = Ground::with(who, &["--limit", "file-size=8M"]);
        let mut client = ground.client().await;
        client.start(ground.shell("p", "head -c 64M /dev/zero > big")).await;
        let exited = exited(&mut client, "p").await;
        assert_eq!(exited["limit"], json!({"what": "bytes of a file", "value": 8 << 20, "mechanism": "rlimit"}), "{exited}");
        assert_eq!(std::fs::metadata(ground.path("big")).unwrap().len(), 8 << 20);
    }

    async fn a_disk_filler_is_stopped(who: Who) {
        if !is_root() || !can_mount() {
            return;
        }
        let disk = Disk::new(who);
        let ground = Ground::with(who, &["--limit", "free-space=32M"]);
        let (mut filler, mut other) = (ground.client().await, ground.client().await);
        let uri = outpost_wire::PathUri::from_native(disk.0.path()).unwrap().to_string();
        other.start(with(ground.shell("quiet", "read x; echo fine"), json!({"cwd": uri, "pipeStdin": true}))).await;
        let script = filling(".");
        filler.start(with(ground.shell("p", &script), json!({"cwd": uri}))).await;
        let exited = exited(&mut filler, "p").await;
        assert_eq!(exited["limit"], json!({"what": "bytes of free space", "value": 32 << 20, "mechanism": "watchdog"}), "{exited}");
        other.result("process/write", json!({"processId": "quiet", "chunk": "Cg==", "writeId": "1"})).await;
        assert_eq!(other.outcome("quiet").await, (0, b"fine\n".to_vec()));
    }

    async fn the_sessions_own_temporary_files_count(who: Who) {
        if !is_root() || !can_mount() {
            return;
        }
        let disk = Disk::new(who);
        let ground = Ground::on(who, &disk.0, &["--limit", "free-space=32M"]);
        let mut filler = ground.client().await;
        let script = filling("/tmp");
        filler.start(with(ground.shell("p", &script), json!({"sandbox": ground.workspace_write()}))).await;
        let exited = exited(&mut filler, "p").await;
        assert_eq!(exited["limit"], json!({"what": "bytes of free space", "value": 32 << 20, "mechanism": "watchdog"}), "{exited}");
    }

    async fn a_writable_root_counts_wherever_a_command_was_started(who: Who) {
        if !is_root() || !can_mount() {
            return;
        }
        let disk = Disk::new(who);
        let place = disk.0.path().canonicalize().unwrap();
        let ground = Ground::with(who, &["--limit", "free-space=32M"]);
        let mut filler = ground.client().await;
        let policy = ground.policy(json!([entry(Path::new("/"), "read"), entry(&place, "write")]));
        let script = filling(&place.display().to_string());
        filler.start(with(ground.shell("p", &script), json!({"sandbox": policy}))).await;
        let exited = exited(&mut filler, "p").await;
        assert_eq!(exited["limit"]["what"], "bytes of free space", "{exited}");
    }

    #[needs(FORKS)]
    async fn a_file_call_at_the_limit_ends_nothing(who: Who) {
        // As one user with all other tests, these would count as well.
        if (!is_root() || !is_at_least(who, MOUNTS).await) && denies(who, &[PER_SESSION]).await {
            return;
        }
        let ground = Ground::with(who, &["--limit", "processes=40"]);
        let mut client = ground.client().await;
        let policy = ground.workspace_write();
        let start = |id: &str, script: &str| with(ground.shell(id, script), json!({"sandbox": policy, "pipeStdin": true}));
        client.start(start("long", "read x; echo finished")).await;
        let many = "use POSIX; for (1..200) { my $p = fork; last if !defined $p; if (!$p) { pause; exit } } print qq(full\\n); $| = 1; print q(); pause";
        client.start(start("many", &format!("exec perl -e '{many}'"))).await;
        client.until(|message| message["method"] == "process/output" && message["params"]["processId"] == "many").await;
        let answer = client.call("fs/getMetadata", json!({"path": ground.uri(""), "sandbox": policy})).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("temporarily unavailable"), "{answer}");
        if mechanism(&mut client, "processes").await.unwrap().starts_with("cgroup") {
            assert!(message.contains("40 processes"), "{message}");
        }
        client.result("process/write", json!({"processId": "long", "chunk": "Cg==", "writeId": "1"})).await;
        assert_eq!(client.outcome("long").await, (0, b"finished\n".to_vec()));
        // With room again, the same call works.
        client.result("process/terminate", json!({"processId": "many"})).await;
        self::exited(&mut client, "many").await;
        client.result("fs/getMetadata", json!({"path": ground.uri(""), "sandbox": policy})).await;
    }

    async fn endless_output_that_nobody_reads_hurts_nobody(who: Who) {
        let ground = Ground::new(who);
        let (mut printer, mut other) = (ground.client().await, ground.client().await);
        printer.start(ground.shell("p", "head -c 1G /dev/zero")).await;
        others_are_served(&ground, &mut other).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        others_are_served(&ground, &mut other).await;
        assert!(ground.executor.peak_memory() < 128 << 20, "{}", ground.executor.peak_memory());
    }
}

/// How many processes came of this one.
fn below(pid: u32) -> usize {
    let mut found = vec![pid];
    let mut at = 0;
    let entries: Vec<_> = std::fs::read_dir("/proc").unwrap().flatten().collect();
    let parents = entries.iter().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()?))
    });
    let parents: Vec<_> = parents.collect();
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.len()
}

/// A small file system of its own.
struct Disk(tempfile::TempDir);

/// Fills such a disk almost to what must be left free, and then so slowly that it is seen long before there is nothing left.
fn filling(directory: &str) -> String {
    format!(
        "cd {directory}; head -c 60M /dev/zero > first; i=0; while :; do i=$((i+1)); head -c 1M /dev/zero > file$i || exit 9; sleep 0.3; done"
    )
}

impl Disk {
    fn new(who: Who) -> Self {
        let point = directory(who);
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m,mode=1777", "none"]).arg(point.path()).status();
        assert!(mounted.unwrap().success());
        Self(point)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
