//! `outpost cp`: streams, trees, cuts and refusals.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use outpost_testkit::{Cutter, ExecutorProcess, TestTerminal};

use crate::OUTPOST;

fn executor() -> ExecutorProcess {
    ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"])
}

fn cp<A: AsRef<OsStr>>(directory: &Path, arguments: &[A]) -> Output {
    let mut command = Command::new(OUTPOST);
    command.arg("cp").args(arguments).current_dir(directory).env("OUTPOST_HOME", directory.join(".home")).stdin(Stdio::null());
    command.output().unwrap()
}

fn copied<A: AsRef<OsStr>>(directory: &Path, arguments: &[A]) {
    let output = cp(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn refused<A: AsRef<OsStr>>(directory: &Path, arguments: &[A], code: i32, why: &str) {
    let output = cp(directory, arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(why), "{message}");
}

fn there(executor: &ExecutorProcess, path: &Path) -> String {
    format!("{}:{}", executor.url(), path.display())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// The same bytes in every run, and no block like another.
fn noise(length: usize) -> Vec<u8> {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend_from_slice(&seed.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Nothing unfinished is left in a directory.
fn assert_clean(directory: &Path) {
    let names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_survive_cuts_in_both_directions() {
    let (executor, work) = (executor(), tempfile::tempdir().unwrap());
    let bytes = noise(100 << 20);
    fs::write(work.path().join("big"), &bytes).unwrap();
    for (from, to) in [("big", "sent"), ("sent", "back")] {
        let cutter = Cutter::start(executor.address(), vec![3_000_000, 20_000_000, 41_000_007, 100, 30_000_000]).await;
        let (near, far) = (Path::new(from).to_owned(), format!("{}:{}", cutter.url(), work.path().join(to).display()));
        let output = if to == "sent" {
            cp(work.path(), &[near.as_os_str(), OsStr::new(&far)])
        } else {
            let far = format!("{}:{}", cutter.url(), work.path().join(from).display());
            cp(work.path(), &[OsStr::new(&far), OsStr::new(to)])
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(cutter.connections() > 5, "{} connections", cutter.connections());
        assert!(fs::read(work.path().join(to)).unwrap() == bytes, "{to} differs");
    }
    assert_clean(work.path());
}

#[test]
fn trees_keep_names_permissions_and_links() {
    let (alpha, beta, work) = (executor(), executor(), tempfile::tempdir().unwrap());
    let tree = work.path().join("tree");
    fs::create_dir_all(tree.join("a b/ünï")).unwrap();
    fs::write(tree.join("a b/run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("a b/run"), Permissions::from_mode(0o751)).unwrap();
    fs::write(tree.join("a b/secret"), "x").unwrap();
    fs::set_permissions(tree.join("a b/secret"), Permissions::from_mode(0o400)).unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"\xff\xfe %41 name\n")), "bytes").unwrap();
    symlink("../no where", tree.join("link")).unwrap();
    fs::set_permissions(tree.join("a b/ünï"), Permissions::from_mode(0o555)).unwrap();
    // Here to there, there to somewhere else, and back.
    copied(work.path(), &["-r", "tree", &there(&alpha, &work.path().join("one"))]);
    copied(work.path(), &["-r", &there(&alpha, &work.path().join("one")), &there(&beta, &work.path().join("two"))]);
    copied(work.path(), &["-r", &there(&beta, &work.path().join("two")), "three"]);
    let three = work.path().join("three");
    assert_eq!(fs::read(three.join(OsStr::from_bytes(b"\xff\xfe %41 name\n"))).unwrap(), b"bytes");
    assert_eq!(fs::read_link(three.join("link")).unwrap(), Path::new("../no where"));
    assert_eq!(fs::metadata(three.join("empty")).unwrap().len(), 0);
    for (name, bits) in [("a b/run", 0o751), ("a b/secret", 0o400), ("a b/ünï", 0o555)] {
        assert_eq!(mode(&three.join(name)), bits, "{name}");
    }
    // Into a directory that is there; a second time over what is there.
    copied(work.path(), &["-r", "three", "two"]);
    fs::set_permissions(work.path().join("two/three/a b/run"), Permissions::from_mode(0o600)).unwrap();
    fs::write(three.join("a b/run"), "newer").unwrap();
    copied(work.path(), &["-r", "three", "two"]);
    assert_eq!(fs::read(work.path().join("two/three/a b/run")).unwrap(), b"newer");
    assert_eq!(mode(&work.path().join("two/three/a b/run")), 0o751);
    assert_clean(work.path());
    assert_clean(&work.path().join("two/three"));
}

#[test]
fn what_is_there_is_replaced_in_one_step() {
    let (executor, work) = (executor(), tempfile::tempdir().unwrap());
    let path = |name: &str| work.path().join(name);
    fs::write(path("new"), "new").unwrap();
    fs::write(path("old"), "something longer than that").unwrap();
    fs::hard_link(path("old"), path("other name")).unwrap();
    copied(work.path(), &["new", &there(&executor, &path("old"))]);
    assert_eq!(fs::read(path("old")).unwrap(), b"new");
    assert_eq!(fs::read(path("other name")).unwrap(), b"something longer than that");
    // A link stays one; what it leads to is replaced.
    symlink("old", path("link")).unwrap();
    fs::write(path("newer"), "newer").unwrap();
    copied(work.path(), &["newer", &there(&executor, &path("link"))]);
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!(fs::read(path("old")).unwrap(), b"newer");
    // A link that is named is followed, and keeps its name in a directory.
    fs::create_dir(path("directory")).unwrap();
    copied(work.path(), &[there(&executor, &path("link")).as_str(), "directory"]);
    assert!(fs::symlink_metadata(path("directory/link")).unwrap().is_file());
    // A colon in a name of this machine.
    copied(work.path(), &["./new", "./a:b"]);
    assert_eq!(fs::read(path("a:b")).unwrap(), b"new");
}

#[test]
fn relative_paths_begin_in_the_home_there() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = home.path().to_str().unwrap().to_owned();
    let executor = ExecutorProcess::start_with(Path::new(OUTPOST), &["--no-auth"], &[("HOME", &path)], home);
    let via = format!("HOME={path} OUTPOST_HOME={path}/kept exec {OUTPOST} executor --listen stdio");
    fs::write(work.path().join("f"), "1").unwrap();
    copied(work.path(), &["--via", &via, "f", "via:"]);
    copied(work.path(), &["--via", &via, "f", "via:~/g h"]);
    assert!(executor.home().join("f").exists() && executor.home().join("g h").exists());
}

#[test]
fn refusals_say_what_is_wrong_and_leave_nothing() {
    let (executor, work) = (executor(), tempfile::tempdir().unwrap());
    let path = |name: &str| work.path().join(name);
    let far = |name: &str| there(&executor, &path(name));
    fs::write(path("file"), "x").unwrap();
    fs::create_dir_all(path("directory/file")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    refused(work.path(), &[far("missing"), "x".into()], 1, "No such file or directory");
    refused(work.path(), &["file".into(), far("no/such/directory")], 1, "No such file or directory");
    refused(work.path(), &["file".into(), far("file/x")], 1, "Not a directory");
    refused(work.path(), &["directory".into(), far("x")], 1, "is a directory; copy it with -r");
    refused(work.path(), &["file".into(), far("directory")], 1, "cannot be replaced by a file");
    refused(work.path(), &["-r".into(), "empty".into(), far("file")], 1, "cannot be replaced by one");
    refused(work.path(), &["file".into(), far("file") + "/"], 1, "is not a directory");
    refused(work.path(), &["file".into(), far("new") + "/"], 1, "is not a directory");
    refused(work.path(), &["-r", "directory", "directory/sub"], 1, "into itself");
    refused(work.path(), &["file", "/dev/null"], 1, "neither a file nor a directory");
    refused(work.path(), &["file", "ws://127.0.0.1:1:/x"], 3, "is unreachable");
    refused(work.path(), &["file", "ws://127.0.0.1:1"], 1, "names no path");
    assert!(!path("x").exists());
    // What is no file is left out and told.
    assert!(Command::new("mkfifo").arg(path("directory/pipe")).status().unwrap().success());
    fs::write(path("directory/also"), "x").unwrap();
    refused(work.path(), &["-r".into(), "directory".into(), far("y")], 1, "left out");
    assert!(path("y/also").exists() && !path("y/pipe").exists());
    assert_clean(work.path());
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let (executor, work) = (executor(), tempfile::tempdir().unwrap());
    fs::write(work.path().join("big"), noise(8 << 20)).unwrap();
    let small = work.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&small).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        // Only root has a disk that is this small; an ordinary user is stopped by a limit just as well.
        return;
    }
    fs::write(small.join("big"), "old").unwrap();
    let output = cp(work.path(), &["big", &there(&executor, &small)]);
    let kept = fs::read(small.join("big"));
    let left = fs::read_dir(&small).unwrap().count();
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left on device"));
    assert_eq!((kept.unwrap(), left), (b"old".to_vec(), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_copy_leaves_nothing_half_written() {
    let (executor, work) = (executor(), tempfile::tempdir().unwrap());
    fs::write(work.path().join("big"), noise(20 << 20)).unwrap();
    fs::write(work.path().join("target"), "old").unwrap();
    // Nobody gets further than this: every later connection is cut at once.
    let plan = std::iter::once(5_000_000).chain(std::iter::repeat_n(0, 10_000)).collect();
    let cutter = Cutter::start(executor.address(), plan).await;
    let child = Command::new(OUTPOST)
        .args(["cp", "big", &format!("{}:{}", cutter.url(), work.path().join("target").display())])
        .current_dir(work.path())
        .env("OUTPOST_HOME", work.path().join(".home"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    outpost_testkit::executor::eventually("a part is there", || {
        fs::read_dir(work.path()).unwrap().flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".part"))
    })
    .await;
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    // Removed if there was still a connection, and told otherwise.
    if !String::from_utf8_lossy(&output.stderr).contains("unfinished copies were left behind") {
        assert_clean(work.path());
    }
    assert_eq!(fs::read(work.path().join("target")).unwrap(), b"old");
}

#[test]
fn progress_is_for_people_only() {
    let work = tempfile::tempdir().unwrap();
    fs::write(work.path().join("big"), noise(8 << 20)).unwrap();
    let mut command = Command::new(OUTPOST);
    command.arg("cp").arg(work.path().join("big")).arg(work.path().join("copy")).env("OUTPOST_HOME", work.path().join(".home"));
    command.env("TERM", "xterm");
    // Who wants plain lines wants nothing to be drawn anew.
    for (plain, is_drawn) in [("", true), ("1", false)] {
        let mut terminal = TestTerminal::start(command.env("OUTPOST_PLAIN", plain));
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        terminal.wait_for("1 file, 8.0 MiB");
        let shown = terminal.text();
        assert_eq!((shown.contains("big ["), shown.contains("B/s "), shown.contains("\x1b[K")), (is_drawn, is_drawn, is_drawn), "{shown}");
    }
}
