//! Programs that are killed while they write, two of them on one thread, disks that are full, power that is cut.
//!
//! The program that is killed is this test itself: [`writer`] runs only when it is told where. It tells every entry that the
//! store has acknowledged, and whatever it told must be there afterwards. `OUTPOST_SOAK_KILLS` says how many are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outpost_store::{AppendError, ClaimError, ClaimMode, Need, Store, open};
use support::{created, entries, id, local, plain_turn};

const HOME: &str = "OUTPOST_CRASH_HOME";
const NAME: &str = "OUTPOST_CRASH_NAME";
const THREADS: u64 = 3;

/// Not a test: the program that the others kill.
#[tokio::test]
async fn writer() {
    let Ok(home) = std::env::var(HOME) else { return };
    let store = local(Path::new(&home), &std::env::var(NAME).unwrap());
    let mut leases = Vec::new();
    for thread in 1..=THREADS {
        let lease = match store.claim(id(thread), ClaimMode::IfFree).await {
            Ok(lease) => lease,
            Err(ClaimError::NotFound(_)) => {
                let lease = store.create(id(thread)).await.unwrap();
                store.append(&lease, entries(1, vec![created(thread)]), Need::Stored).await.unwrap();
                lease
            }
            // What was killed may have left a file without a single whole line; nothing of it was told.
            Err(ClaimError::Journal { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let last = store.head(id(thread)).await.unwrap().last;
        leases.push((lease, last));
    }
    say("ready");
    loop {
        for (lease, last) in &mut leases {
            let batch = entries(*last + 1, plain_turn(*last));
            let need = if (*last / 6).is_multiple_of(2) { Need::BeforeCompleted } else { Need::Stored };
            match store.append(lease, batch, need).await {
                Ok(appended) => {
                    *last = appended.last;
                    say(&format!("ack {} {} {}", lease.thread, appended.last, appended.durable));
                }
                Err(AppendError::NoSpace { .. }) => {
                    say("full");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(AppendError::LeaseLost { .. }) => {
                    say("lost");
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {text}").unwrap();
    out.flush().unwrap();
}

/// A running [`writer`].
struct Writer {
    child: Child,
    told: BufReader<std::process::ChildStdout>,
}

/// Of one thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Acknowledged {
    last: u64,
    durable: u64,
}

impl Writer {
    fn start(home: &Path, name: &str) -> Self {
        Self::start_below(Command::new(std::env::current_exe().unwrap()), home, name)
    }

    fn start_below(mut command: Command, home: &Path, name: &str) -> Self {
        let mut child = command
            .args(["--exact", "writer", "--nocapture"])
            .env(HOME, home)
            .env(NAME, name)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Self { child, told }
    }

    /// What it says next.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.told.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // A line that was cut off by the kill was not told.
            if let Some(text) = line.strip_prefix("> ").and_then(|text| text.strip_suffix('\n')) {
                return Some(text.to_owned());
            }
        }
    }

    fn hear_until(&mut self, wanted: &str) -> Vec<String> {
        let mut heard = Vec::new();
        while let Some(text) = self.hear() {
            let is_it = text == wanted;
            heard.push(text);
            if is_it {
                return heard;
            }
        }
        panic!("it ended without saying `{wanted}`: {heard:?}");
    }

    fn kill(mut self) -> Vec<String> {
        // Its group: a tracer that is killed alone lets its program go.
        let _ = rustix::process::kill_process_group(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::KILL);
        let mut heard = Vec::new();
        while let Some(text) = self.hear() {
            heard.push(text);
        }
        self.child.wait().unwrap();
        heard
    }
}

fn acknowledged(told: &[String], into: &mut [Acknowledged]) {
    for text in told {
        let words: Vec<&str> = text.split(' ').collect();
        if let ["ack", thread, last, durable] = words.as_slice() {
            let index = (1..=THREADS).position(|number| id(number).to_string() == *thread).unwrap();
            let ack = Acknowledged { last: last.parse().unwrap(), durable: durable.parse().unwrap() };
            into[index] = Acknowledged { last: into[index].last.max(ack.last), durable: into[index].durable.max(ack.durable) };
        }
    }
}

/// Every entry up to `least` of every thread is there, and as it was written.
async fn check(store: &Store, least: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut lasts = Vec::new();
    for (index, thread) in (1..=THREADS).enumerate() {
        let least = least(index);
        let read = match store.history(id(thread), 0).await {
            Ok(history) => history.rest().await.unwrap(),
            Err(error) if least == 0 => {
                lasts.push(0);
                let _ = error;
                continue;
            }
            Err(error) => panic!("thread {thread}, {least} acknowledged: {error}"),
        };
        assert!(read.damage.iter().all(|damage| damage.what.is_tail()), "{:?}", read.damage);
        assert!(read.entries.len() as u64 >= least, "thread {thread}: {} entries, {least} acknowledged", read.entries.len());
        let mut rest = &read.entries[1..];
        while let Some(first) = rest.first() {
            // A turn whose append was killed may be there in part; it was not acknowledged, and the next one follows it.
            let turn = entries(first.ordinal, plain_turn(first.ordinal - 1));
            let whole = turn.iter().zip(rest).take_while(|(wanted, found)| wanted == found).count();
            assert!(whole > 0, "thread {thread}: entry {} is not as it was written: {first:?}", first.ordinal);
            rest = &rest[whole..];
        }
        assert_eq!(open(store, id(thread)).await.unwrap().unfit, []);
        lasts.push(read.entries.len() as u64);
    }
    lasts
}

fn count(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_kills() {
    let mut home = tempfile::tempdir().unwrap();
    let mut acks = [Acknowledged::default(); THREADS as usize];
    let mut total = 0;
    let mut moment = 0x9e37_79b9_u64;
    for round in 0..count("OUTPOST_SOAK_KILLS", 10) {
        if round % 50 == 49 {
            // Everything is read again in each round; a long run begins anew now and then.
            total += acks.iter().map(|ack| ack.last).sum::<u64>();
            (home, acks) = (tempfile::tempdir().unwrap(), Default::default());
        }
        let mut writer = Writer::start(home.path(), &format!("round-{round}"));
        let mut told = writer.hear_until("ready");
        moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((moment >> 33) % 30_000));
        told.extend(writer.kill());
        acknowledged(&told, &mut acks);
        let store = local(home.path(), &format!("check-{round}"));
        check(&store, |thread| acks[thread].last).await;
    }
    total += acks.iter().map(|ack| ack.last).sum::<u64>();
    eprintln!("{total} entries were acknowledged, none is missing");
    assert!(total > 0, "nothing was written");
}

/// `strace`, which `cargo xtask test` installs, kills a program exactly at a system call.
fn strace() -> Option<PathBuf> {
    let found = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    found.then(|| PathBuf::from("strace"))
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_kills_at_system_calls() {
    let Some(strace) = strace() else {
        eprintln!("skipped: strace is not installed");
        return;
    };
    for call in ["pwrite64", "fdatasync", "fsync", "flock", "openat"] {
        for when in [1, 4, 13, 40] {
            let home = tempfile::tempdir().unwrap();
            let mut acks = [Acknowledged::default(); THREADS as usize];
            for round in 0..2 {
                let mut command = Command::new(&strace);
                command.args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
                command.arg("-e").arg(format!("inject={call}:signal=KILL:when={when}")).arg(std::env::current_exe().unwrap());
                let mut writer = Writer::start_below(command, home.path(), &format!("round-{round}"));
                let mut told = Vec::new();
                while told.len() < 30 {
                    let Some(text) = writer.hear() else { break };
                    told.push(text);
                }
                told.extend(writer.kill());
                acknowledged(&told, &mut acks);
                let store = local(home.path(), &format!("check-{round}"));
                check(&store, |thread| acks[thread].last).await;
            }
        }
    }
}

/// What a power cut leaves: the commit log is synced, and of the journals only their names are.
#[tokio::test]
async fn nothing_durable_is_lost_by_power_cuts() {
    let mut moment = 7_u64;
    for round in 0..count("OUTPOST_SOAK_POWER_CUTS", 8) {
        let home = tempfile::tempdir().unwrap();
        let mut acks = [Acknowledged::default(); THREADS as usize];
        let mut writer = Writer::start(home.path(), "writer");
        let mut told = writer.hear_until("ready");
        while told.len() < 20 + round {
            told.push(writer.hear().unwrap());
        }
        told.extend(writer.kill());
        acknowledged(&told, &mut acks);
        for (_, path) in local_journals(home.path()) {
            let bytes = std::fs::read(&path).unwrap();
            moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let kept = (moment >> 33) as usize % (bytes.len() + 1);
            let mut left = bytes[..kept].to_vec();
            match round % 3 {
                // The length is there and the bytes are not.
                0 => left.resize(bytes.len(), 0),
                // Nothing at all is there.
                1 => left.clear(),
                _ => {}
            }
            std::fs::write(&path, left).unwrap();
        }
        let store = local(home.path(), "after");
        check(&store, |thread| acks[thread].durable).await;
        assert!(acks.iter().any(|ack| ack.durable > 0), "{acks:?}");
    }
}

/// Without opening the home, which would replay the logs.
fn local_journals(home: &Path) -> Vec<((), PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![home.join("threads")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == "jsonl") {
                found.push(((), entry.path()));
            }
        }
    }
    found
}

#[tokio::test]
async fn two_programs_on_one_thread() {
    let home = tempfile::tempdir().unwrap();
    let mut writer = Writer::start(home.path(), "first");
    let pid = writer.child.id();
    writer.hear_until("ready");
    while !writer.hear().unwrap().starts_with(&format!("ack {}", id(THREADS))) {}
    let store = local(home.path(), "second");
    let held = store.claim(id(1), ClaimMode::IfFree).await.unwrap_err();
    assert!(matches!(&held, ClaimError::Held { holder, .. } if holder.pid == pid && holder.instance == "first"), "{held}");
    assert!(held.to_string().contains(&pid.to_string()), "{held}");
    // Somebody decides. The first one's next write fails, however late it comes.
    let mine = store.claim(id(1), ClaimMode::TakeOver).await.unwrap();
    let last = store.head(id(1)).await.unwrap().last;
    writer.hear_until("lost");
    store.append(&mine, entries(last + 1, plain_turn(last)), Need::BeforeCompleted).await.unwrap();
    assert_eq!(store.head(id(1)).await.unwrap().last, last + 6);
    writer.child.wait().unwrap();
    check(&store, |_| 1).await;
    // The others were left by a program that is gone: nobody has to decide anything.
    store.claim(id(2), ClaimMode::IfFree).await.unwrap();
    let mut third = Writer::start(home.path(), "third");
    assert_eq!(third.hear(), None, "a thread that is held here was claimed there");
    third.child.wait().unwrap();
}

#[tokio::test]
async fn a_killed_program_holds_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut writer = Writer::start(home.path(), "first");
    let told = writer.hear_until("ready");
    let mut acks = [Acknowledged::default(); THREADS as usize];
    acknowledged(&told, &mut acks);
    while acks.iter().any(|ack| ack.last == 0) {
        acknowledged(&[writer.hear().unwrap()], &mut acks);
    }
    acknowledged(&writer.kill(), &mut acks);
    let store = local(home.path(), "second");
    for thread in 1..=THREADS {
        store.claim(id(thread), ClaimMode::IfFree).await.unwrap();
    }
    check(&store, |thread| acks[thread].last).await;
    let left: Vec<_> = std::fs::read_dir(home.path().join("commit")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name == "first.log"), "{left:?}");
}

/// A small disk of its own, for root; taken away at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(folder.path()).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_and_loses_nothing() {
    let Some(disk) = SmallDisk::new() else {
        eprintln!("skipped: mounting a small disk needs root");
        return;
    };
    let home = disk.0.path().join("home");
    let ballast = disk.0.path().join("ballast");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut acks = [Acknowledged::default(); THREADS as usize];
    let mut writer = Writer::start(&home, "first");
    acknowledged(&writer.hear_until("full"), &mut acks);
    // It says so every time, and it goes on as soon as there is room.
    acknowledged(&writer.hear_until("full"), &mut acks);
    let before = acks;
    std::fs::remove_file(&ballast).unwrap();
    while acks.iter().zip(&before).any(|(now, before)| now.last <= before.last) {
        acknowledged(&[writer.hear().unwrap()], &mut acks);
    }
    acknowledged(&writer.hear_until("full"), &mut acks);
    // Killed while it is full.
    acknowledged(&writer.kill(), &mut acks);
    let store = local(&home, "second");
    check(&store, |thread| acks[thread].last).await;
    let lease = store.claim(id(1), ClaimMode::IfFree).await.unwrap();
    let last = store.head(id(1)).await.unwrap().last;
    let refused = loop {
        let last = store.head(id(1)).await.unwrap().last;
        match store.append(&lease, entries(last + 1, plain_turn(last)), Need::BeforeCompleted).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::NoSpace { .. }), "{refused}");
    assert!(store.head(id(1)).await.unwrap().last >= last);
    check(&store, |thread| acks[thread].last).await;
}

/// Something that the killed program was just starting has its log open for a moment longer.
#[tokio::test]
async fn the_last_breath_of_a_killed_program_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let mut writer = Writer::start(home.path(), "first");
    writer.hear_until("ready");
    while !writer.hear().unwrap().starts_with(&format!("ack {}", id(THREADS))) {}
    writer.kill();
    let log = std::fs::File::open(home.path().join("commit/first.log")).unwrap();
    log.lock().unwrap();
    let breath = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(log);
    });
    local(home.path(), "second").claim(id(1), ClaimMode::IfFree).await.unwrap();
    breath.join().unwrap();
}
