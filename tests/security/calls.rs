//! What a file call costs in system calls: what holds a sandbox is looked at before each one, and must not be looked at more than needed.

use std::fs;
use std::process::Command;

use outpost_testkit::executor::eventually;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::json;

use crate::card::{MOUNTS, denies};
use crate::support::{OUTPOST, Who, directory, is_root};

/// Calls that have to do with files and with the worker in the sandbox, and nothing with the network. How often threads wake each other differs
/// from run to run, and so does how often a worker is waited for.
const COUNTED: &str = "readlink,readlinkat,stat,lstat,newfstatat,statx,open,openat,openat2,lseek,sendmsg,recvmsg,close,getdents64";
/// What version 0.1.0 made of them, besides one for each directory on the way.
const FIRST_VERSION: usize = 11;
/// So many more are allowed; one of the two that there are is not counted here.
const MORE: usize = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandboxed_read_makes_hardly_more_calls_than_in_the_first_version() {
    let who = Who::Root;
    // What runs in a sandbox is closed to its own user, also for tracing.
    if !is_root() || Command::new("strace").args(["-f", "true"]).output().is_err() || denies(who, &[MOUNTS]).await {
        eprintln!("cannot be tried here: it needs root, strace and a sandbox with mounts");
        return;
    }
    let (home, work) = (directory(who), directory(who));
    let trace = home.path().join("trace");
    let mut command = Command::new("strace");
    // As its own grandchild, so that the executor is the process that is ended.
    command.args(["-D", "-f", "-s", "200", "-e", &format!("trace={COUNTED}"), "-o"]).arg(&trace);
    command.args([OUTPOST, "executor", "--no-auth"]).env("HOME", "/nonexistent").current_dir("/");
    let executor = ExecutorProcess::start_command(command, home);
    let mut client = Client::new(outpost_testkit::bench::connect(executor.url()).await);
    client.hello().await;
    let root = work.path().canonicalize().unwrap();
    fs::write(root.join("file"), "text").unwrap();
    let uri = |name: &str| format!("file://{}/{name}", root.display());
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    let sandbox = json!({
        "permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted",
            "entries": [special("root", "read"), special("project_roots", "write"), special("slash_tmp", "write")]}},
        "cwd": uri(""), "workspaceRoots": [uri("")], "windowsSandboxLevel": "disabled",
    });
    // What has just been made is looked at more closely for a moment.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    for _ in 0..60 {
        client.result("fs/readFile", json!({"path": uri("file"), "sandbox": sandbox})).await;
    }
    client.call("fs/readFile", json!({"path": uri("the-end"), "sandbox": sandbox})).await;
    let read = || fs::read_to_string(&trace).unwrap_or_default();
    eventually("everything is written down", || read().contains("the-end")).await;
    // From one opening of the file to the next one: once a second the policy is made anew, and then more is looked at.
    let text = read();
    let begun = text.lines().filter(|line| !line.contains("resumed>") && line.contains('('));
    let opened = format!("\"{}/file\", O_RDONLY", root.display());
    let mut counts = Vec::new();
    let mut count = 0;
    for line in begun {
        count += 1;
        if line.contains(&opened) {
            counts.push(count);
            count = 0;
        }
    }
    let way = root.components().count();
    counts.sort_unstable();
    let median = counts[counts.len() / 2];
    assert!(counts.len() >= 60, "{} openings were seen: {text}", counts.len());
    assert!(median <= FIRST_VERSION + MORE + way, "{median} calls instead of {}", FIRST_VERSION + way);
}

/// Calls that replacing a small file makes: three files are opened, looked at and closed, and names change twice.
const REPLACING: usize = 13;

/// Closing a file that was replaced waits until the disk has what was written to it before; clients waited with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_replaced_with_few_calls_and_the_old_one_is_closed_elsewhere() {
    // Fewer than may wait to be closed.
    const WRITES: usize = 12;
    if !is_root() || Command::new("strace").args(["-f", "true"]).output().is_err() {
        eprintln!("cannot be tried here: it needs root and strace");
        return;
    }
    let (home, work) = (directory(Who::Root), directory(Who::Root));
    let trace = home.path().join("trace");
    let mut command = Command::new("strace");
    // Some C libraries have a call of their own where others use the general one.
    let counted = "readlink,open,openat,statx,fstat,newfstatat,fchmod,flistxattr,link,linkat,rename,renameat,close";
    command.args(["-D", "-f", "-s", "200", "-e", &format!("trace={counted}"), "-o"]).arg(&trace);
    command.args([OUTPOST, "executor", "--no-auth"]).env("HOME", "/nonexistent").current_dir("/");
    let executor = ExecutorProcess::start_command(command, home);
    let mut client = Client::new(outpost_testkit::bench::connect(executor.url()).await);
    client.hello().await;
    let root = work.path().canonicalize().unwrap();
    let uri = |name: &str| format!("file://{}/{name}", root.display());
    for _ in 0..=WRITES {
        client.result("fs/writeFile", json!({"path": uri("small"), "dataBase64": "dGV4dA=="})).await;
    }
    client.call("fs/readFile", json!({"path": uri("the-end")})).await;
    let read = || fs::read_to_string(&trace).unwrap_or_default();
    let is_over = || read().contains("the-end") && closings(&read()).iter().all(|(_, closer)| closer.is_some());
    eventually("everything is written down", is_over).await;
    let text = read();
    let begun = begun(&text);
    let writes: Vec<usize> = (0..begun.len()).filter(|at| begun[*at].contains("readlink(") && begun[*at].contains("/small\"")).collect();
    let mut counts: Vec<usize> = writes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    counts.sort_unstable();
    assert!(counts.len() >= WRITES && counts[counts.len() / 2] <= REPLACING, "{counts:?}: {text}");
    let closings = closings(&text);
    let elsewhere = |(opener, closer): &(String, Option<String>)| closer.as_ref() != Some(opener);
    assert!(!closings.is_empty() && closings.iter().all(elsewhere), "the thread that answers closes it: {closings:?}\n{text}");
}

/// The calls of a trace, with the thread in front of each; one that another was seen in the middle of is there twice.
fn begun(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.contains("resumed>") && line.contains('(')).collect()
}

/// Which thread opened the file that was replaced, and which one closed it.
fn closings(text: &str) -> Vec<(String, Option<String>)> {
    let begun = begun(text);
    let thread = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
    let opened = begun.iter().enumerate().filter(|(_, line)| line.contains("\"small\", O_WRONLY"));
    let closing = |(at, line): (usize, &&str)| {
        let old = line.rsplit(" = ").next()?.trim().parse::<u32>().ok()?;
        let is_closing = |line: &&&str| line.contains(&format!("close({old})")) || line.contains(&format!("close({old} "));
        Some((thread(line), begun[at..].iter().find(is_closing).map(|line| thread(line))))
    };
    opened.filter_map(closing).collect()
}
