//! L8: `fs/writeFile` leaves the old bytes or the new ones, whatever happens in the middle.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::client::base64;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::server::client;
use crate::support::{OUTPOST, is_root};

/// Two contents of one file. So large that a plain write of one takes long enough to be hit in the middle.
const CONTENTS: [(u8, usize); 2] = [(b'a', 24 << 20), (b'b', 16 << 20)];

/// Kills per test; `cargo xtask soak files` asks for more.
fn kills() -> u64 {
    std::env::var("OUTPOST_SOAK_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

fn write(path: &Path, data: &[u8]) -> Value {
    json!({"path": PathUri::from_native(path).unwrap().to_string(), "dataBase64": base64(data)})
}

/// One letter throughout, and all of it.
fn is_whole(data: &[u8]) -> bool {
    data.first().is_some_and(|first| CONTENTS.contains(&(*first, data.len())) && data.iter().all(|byte| byte == first))
}

/// Looks at the edges of a file until it seems to be half written, or time is up.
fn wait_for_mixture(path: &Path, patience: Duration) {
    use std::os::unix::fs::FileExt;
    let since = std::time::Instant::now();
    while since.elapsed() < patience {
        let Ok(file) = fs::File::open(path) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut edges = [[0], [0]];
        let seen = file.read_exact_at(&mut edges[0], 0).and_then(|()| file.read_exact_at(&mut edges[1], length.saturating_sub(1)));
        if seen.is_err() || edges[0] != edges[1] || !CONTENTS.iter().any(|(_, whole)| *whole as u64 == length) {
            return;
        }
    }
}

/// Writes one file over and over, and kills the executor as soon as it seems to be in the middle, or at some moment.
async fn kill_while_writing(path: &Path, executor: &mut ExecutorProcess, round: u64) {
    let mut client = client(executor).await;
    let contents = CONTENTS.map(|(letter, length)| write(path, &vec![letter; length]));
    let writing = async {
        for turn in 0.. {
            client.request("fs/writeFile", contents[turn % 2].clone());
            if client.receive().await.is_err() {
                break;
            }
        }
    };
    // Spread over the time that a few writes take.
    let moment = Duration::from_micros(20_000 + round.wrapping_mul(7_919) % 120_000);
    let (watched, pid) = (path.to_owned(), rustix::process::Pid::from_raw(executor.pid() as i32).unwrap());
    let killer = tokio::task::spawn_blocking(move || {
        wait_for_mixture(&watched, Duration::from_millis(500) + moment);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    let _ = tokio::time::timeout(Duration::from_secs(20), writing).await;
    killer.await.unwrap();
    executor.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_kill_tears_nothing() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("file");
    fs::write(&path, vec![CONTENTS[0].0; CONTENTS[0].1]).unwrap();
    let mut home = tempfile::tempdir().unwrap();
    for round in 0..kills() {
        let mut executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], home);
        kill_while_writing(&path, &mut executor, round).await;
        home = executor.kill_and_keep_home();
        assert!(is_whole(&fs::read(&path).unwrap()), "torn in round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_file_with_two_names_is_finished_by_the_next_start() {
    let work = tempfile::tempdir().unwrap();
    let (path, other) = (work.path().join("file"), work.path().join("other"));
    fs::write(&path, vec![CONTENTS[0].0; CONTENTS[0].1]).unwrap();
    fs::hard_link(&path, &other).unwrap();
    let mut home = tempfile::tempdir().unwrap();
    for round in 0..kills() {
        let mut executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], home);
        kill_while_writing(&path, &mut executor, round).await;
        // Only here may a reader see a mixture, and only until somebody starts again.
        executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], executor.kill_and_keep_home());
        let (data, same) = (fs::read(&path).unwrap(), fs::read(&other).unwrap());
        assert!(is_whole(&data) && data == same, "torn in round {round}");
        assert_eq!(fs::read_dir(executor.home().join("redo")).map_or(0, Iterator::count), 0);
        home = executor.kill_and_keep_home();
    }
}

#[tokio::test]
async fn l8_a_full_disk_leaves_the_old_bytes() {
    if !is_root() {
        eprintln!("only root can mount a small disk");
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "small"]).arg(disk.path()).status().unwrap();
    if !mounted.success() {
        eprintln!("nothing can be mounted here");
        return;
    }
    let executor = ExecutorProcess::start(OUTPOST.as_ref(), &["--no-auth"]);
    let mut client = client(&executor).await;
    let (alone, linked) = (disk.path().join("alone"), disk.path().join("linked"));
    for path in [&alone, &linked] {
        client.result("fs/writeFile", write(path, &[b'o'; 100_000])).await;
    }
    fs::hard_link(&linked, disk.path().join("link")).unwrap();
    for path in [&alone, &linked] {
        let (code, text) = client.error("fs/writeFile", write(path, &[b'n'; 2_000_000])).await;
        assert!(code == -32603 && text.contains("No space left"), "{text}");
        assert!(fs::read(path).unwrap() == [b'o'; 100_000], "{} was changed", path.display());
    }
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 3, "something was left beside them");
    // Works again when there is room.
    client.result("fs/writeFile", write(&alone, &[b'n'; 300_000])).await;
    assert!(fs::read(&alone).unwrap() == [b'n'; 300_000]);
    assert!(Command::new("umount").arg("-l").arg(disk.path()).status().unwrap().success());
}
