//! L8: `fs/writeFile` leaves the old bytes or the new ones, whatever happens in the middle.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::client::base64;
use outpost_wire::PathUri;
use serde_json::{Value, json};

use crate::server::client;
use crate::support::{OUTPOST, is_root};

/// Two contents of one file, each of one letter.
type Contents = [(u8, usize); 2];
/// Large enough to be told apart by more than a page.
const SMALL: Contents = [(b'a', 200_000), (b'b', 130_000)];
/// So large that a plain write of one takes long enough to be hit in the middle.
const LARGE: Contents = [(b'a', 24 << 20), (b'b', 16 << 20)];

/// Whatever a program can do to a file. Each of these is made to take so long that a look, and a kill, fit behind it.
const STEPS: &str =
    "openat,openat2,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,copy_file_range,linkat,rename,renameat,renameat2";
const STEP: &str = "15ms";

/// Kills per test; `cargo xtask soak files` asks for more.
fn kills() -> u64 {
    std::env::var("OUTPOST_SOAK_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

fn write(path: &Path, data: &[u8]) -> Value {
    json!({"path": PathUri::from_native(path).unwrap().to_string(), "dataBase64": base64(data)})
}

/// One letter throughout, and all of it.
fn is_whole(data: &[u8], contents: &Contents) -> bool {
    data.first().is_some_and(|first| contents.contains(&(*first, data.len())) && data.iter().all(|byte| byte == first))
}

/// Looks at the edges of a file until it seems to be half written, or time is up.
fn wait_for_mixture(path: &Path, contents: &Contents, patience: Duration) {
    use std::os::unix::fs::FileExt;
    let since = std::time::Instant::now();
    while since.elapsed() < patience {
        let Ok(file) = fs::File::open(path) else { return };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut edges = [[0], [0]];
        let seen = file.read_exact_at(&mut edges[0], 0).and_then(|()| file.read_exact_at(&mut edges[1], length.saturating_sub(1)));
        if seen.is_err() || edges[0] != edges[1] || !contents.contains(&(edges[0][0], length as usize)) {
            return;
        }
    }
}

/// Holds up every step of an executor's work on files. Nothing without `strace`, or where processes of others may not be
/// looked at, which an executor does not allow to anybody but root.
fn slowed(executor: &ExecutorProcess) -> Option<Child> {
    if !is_root() {
        eprintln!("only root can hold up an executor; large files are used instead");
        return None;
    }
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", &format!("trace={STEPS}"), "-e", &format!("inject={STEPS}:delay_exit={STEP}")]);
    let Ok(mut child) = strace.args(["-p", &executor.pid().to_string()]).stderr(Stdio::piped()).spawn() else {
        eprintln!("strace is not installed; large files are used instead");
        return None;
    };
    let mut words = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    // Threads that come later are told, too, and nobody must be held up by that.
    std::thread::spawn(move || words.read_to_string(&mut String::new()));
    Some(child)
}

/// Writes one file over and over, and kills the executor as soon as it seems to be in the middle, or at some moment. Returns what
/// is whole.
async fn kill_while_writing(path: &Path, executor: &mut ExecutorProcess, round: u64) -> Contents {
    let mut client = client(executor).await;
    let strace = slowed(executor);
    let contents = if strace.is_some() { SMALL } else { LARGE };
    let writes = contents.map(|(letter, length)| write(path, &vec![letter; length]));
    // Begins with something whole, in place, so that the file stays the same; the shorter content is written first, because that
    // leaves a mixture between any two steps.
    fs::OpenOptions::new().write(true).truncate(true).open(path).unwrap().write_all(&vec![contents[0].0; contents[0].1]).unwrap();
    let writing = async {
        for turn in 1.. {
            client.request("fs/writeFile", writes[turn % 2].clone());
            if client.receive().await.is_err() {
                break;
            }
        }
    };
    // Spread over the time that a write or two take.
    let moment = Duration::from_micros(5_000 + round.wrapping_mul(61_803) % 400_000);
    let (watched, pid) = (path.to_owned(), rustix::process::Pid::from_raw(executor.pid() as i32).unwrap());
    let killer = tokio::task::spawn_blocking(move || {
        wait_for_mixture(&watched, &contents, moment);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    let _ = tokio::time::timeout(Duration::from_secs(20), writing).await;
    killer.await.unwrap();
    executor.kill();
    if let Some(mut strace) = strace {
        strace.wait().unwrap();
    }
    contents
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_kill_tears_nothing() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("file");
    fs::write(&path, "").unwrap();
    let mut home = tempfile::tempdir().unwrap();
    for round in 0..kills() {
        let mut executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], home);
        let contents = kill_while_writing(&path, &mut executor, round).await;
        home = executor.kill_and_keep_home();
        assert!(is_whole(&fs::read(&path).unwrap(), &contents), "torn in round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_file_with_two_names_is_finished_by_the_next_start() {
    let work = tempfile::tempdir().unwrap();
    let (path, other) = (work.path().join("file"), work.path().join("other"));
    fs::write(&path, "").unwrap();
    fs::hard_link(&path, &other).unwrap();
    let mut home = tempfile::tempdir().unwrap();
    for round in 0..kills() {
        let mut executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], home);
        let contents = kill_while_writing(&path, &mut executor, round).await;
        // Only here may a reader see a mixture, and only until somebody starts again.
        executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], executor.kill_and_keep_home());
        let (data, same) = (fs::read(&path).unwrap(), fs::read(&other).unwrap());
        assert!(is_whole(&data, &contents) && data == same, "torn in round {round}");
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
