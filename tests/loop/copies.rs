//! What `outpost cp` costs beside flights: bytes on the way, system calls and syncs at the destination.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outpost_testkit::executor::eventually;
use outpost_testkit::flights::LinkQuality;
use outpost_testkit::{ExecutorProcess, FlightClock};

use crate::harness::OUTPOST;

async fn cp(words: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(OUTPOST);
    command.arg("cp").args(words).env("OUTPOST_HOME", home.path());
    let output = command.stdin(Stdio::null()).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(length).collect()
}

fn text(length: usize) -> Vec<u8> {
    (0..).flat_map(|line: u64| format!("line {line} of a text that says little\n").into_bytes()).take(length).collect()
}

/// The bytes on a way of 8 MB/s for a file that goes there and comes back.
async fn carried(content: &[u8]) -> (u64, u64) {
    let quality = LinkQuality { delay: Duration::from_millis(20), rate: Some(8_000_000), losses: 0 };
    let clock = FlightClock::over(quality);
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let (link, directory) = (clock.link(executor.address()).await, tempfile::tempdir().unwrap());
    let at = |name: &str| directory.path().join(name).display().to_string();
    fs::write(at("source"), content).unwrap();
    cp(&[&at("source"), &format!("{}:{}", link.url(), at("there"))]).await;
    let there = clock.carried();
    cp(&[&format!("{}:{}", link.url(), at("there")), &at("back")]).await;
    let back = clock.carried() - there;
    assert!(fs::read(at("back")).unwrap() == content);
    (there, back)
}

#[tokio::test]
async fn what_a_slow_way_carries_is_compressed_if_that_makes_it_smaller() {
    const LENGTH: usize = 16 << 20;
    let (there, back) = carried(&text(LENGTH)).await;
    assert!(there < LENGTH as u64 / 2, "{there} bytes there");
    // What is asked for before anything is known comes as it is.
    assert!(back < LENGTH as u64 * 3 / 4, "{back} bytes back");
    let (there, back) = carried(&noise(LENGTH / 4)).await;
    for bytes in [there, back] {
        assert!((LENGTH as u64 / 4..LENGTH as u64 / 2).contains(&bytes), "{bytes}");
    }
}

/// System calls of an executor that receives a tree of small files. Its memory is closed to its user, so only root can count them.
#[expect(clippy::print_stderr, reason = "a test that is not made says so")]
async fn traced(words: &[&str]) -> Option<String> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root || Command::new("strace").args(["-f", "true"]).output().is_err() {
        eprintln!("cannot be tried here: it needs root and strace");
        return None;
    }
    let (home, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trace = home.path().join("trace");
    let mut command = Command::new("strace");
    let counted = "openat,linkat,renameat,renameat2,rename,fchmod,newfstatat,statx,readlink,fsync,fdatasync,syncfs,unlinkat";
    command.args(["-D", "-f", "-s", "200", "-e", &format!("trace={counted}"), "-o"]).arg(&trace);
    command.args([OUTPOST, "executor", "--no-auth"]).current_dir("/");
    let executor = ExecutorProcess::start_command(command, home);
    let source = directory.path().join("tree");
    for index in 0..FILES {
        let folder = source.join(format!("d{}", index % 4));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("small-{index}")), format!("{index} ").repeat(50)).unwrap();
    }
    // Each is asked for in vain: what was called before is written down when its name is.
    let marked = async |name: &str| {
        let url = format!("{}:{}", executor.url(), directory.path().join(name).display());
        let _ = tokio::process::Command::new(OUTPOST).args(["cp", &url, "/dev/null"]).output().await;
        eventually("everything is written down", || fs::read_to_string(&trace).unwrap_or_default().contains(name)).await;
        fs::read_to_string(&trace).unwrap()
    };
    let begun = marked("the-beginning").await.len();
    let copy = directory.path().join("copy");
    cp(&[words, &[&source.display().to_string(), &format!("{}:{}", executor.url(), copy.display())]].concat()).await;
    let text = marked("the-end").await;
    Some(text[begun..].lines().filter(|line| !line.contains("resumed>")).map(|line| format!("{line}\n")).collect())
}

const FILES: usize = 1000;

#[tokio::test]
async fn a_small_file_is_opened_once_and_nothing_is_synced() {
    let Some(calls) = traced(&["-r", "-q"]).await else { return };
    let of = |name: &str| calls.lines().filter(|line| line.contains(&format!(" {name}("))).count();
    // Each is opened and gets its permissions. What the executor does besides (control groups that it tries, the connection) names none.
    let all = calls.lines().filter(|line| line.contains("small-") || line.contains(" fchmod(")).count();
    assert!(all < FILES * 5 / 2, "{all} system calls for {FILES} files:\n{calls}");
    assert!(of("openat") >= FILES && of("fchmod") >= FILES, "{calls}");
    assert_eq!((of("fsync"), of("fdatasync"), of("syncfs")), (0, 0, 0));
}

#[tokio::test]
async fn a_copy_that_must_survive_a_power_cut_is_synced_once() {
    let Some(calls) = traced(&["-r", "-q", "--sync"]).await else { return };
    let of = |name: &str| calls.lines().filter(|line| line.contains(&format!(" {name}("))).count();
    assert_eq!((of("fsync"), of("fdatasync"), of("syncfs")), (0, 0, 1), "{calls}");
}
