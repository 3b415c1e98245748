//! P1, P2: nothing outlives its owner, and nothing is left of those that ended.

use std::time::Duration;

use outpost_testkit::Client;
use outpost_testkit::bench::with;
use outpost_testkit::executor::is_alive;
use serde_json::{Value, json};

use crate::as_root_and_user;
use crate::support::{Ground, is_root};

/// Ways to get away. Each runs `SLEEP`, a program that can be recognised, and then stays or goes itself.
const KINDS: &[(&str, &str)] = &[
    ("plain", "SLEEP & wait"),
    ("background", "SLEEP &"),
    ("setsid", "setsid SLEEP & wait"),
    ("setsid that forks", "setsid -f SLEEP"),
    ("double fork", "( ( SLEEP & ) & )"),
    ("double fork in its own session", "( ( setsid SLEEP & ) & )"),
    ("nohup", "nohup SLEEP > /dev/null 2>&1 &"),
    ("closed descriptors", "setsid SLEEP > /dev/null 2>&1 < /dev/null &"),
    ("stopped", "SLEEP & sleep 0.3; kill -STOP $!"),
    ("ignoring signals", "( trap '' HUP INT QUIT TERM USR1 USR2 PIPE; SLEEP & ) "),
    ("empty environment", "env -i setsid SLEEP &"),
    ("chain of forks", "sh -c 'sh -c \"sh -c \\\"SLEEP & exit\\\" & exit\" & exit'"),
    ("pipeline", "SLEEP | SLEEP | SLEEP &"),
    ("subshell that waits", "( SLEEP; true ) & exit 3"),
    ("nested subreaper", "perl -e 'syscall(157, 36, 1, 0, 0, 0); if (fork == 0) { exec \"sh\", \"-c\", \"( SLEEP & ) \" } sleep 600' &"),
    ("many", "for i in 1 2 3 4 5 6 7 8; do setsid SLEEP & done"),
    ("new group", "perl -e 'setpgrp(0, 0); exec \"sh\", \"-c\", \"SLEEP\"' &"),
    ("forks for ever", "perl -e 'for (1..20000) { exit if fork; select undef, undef, undef, 0.001 } sleep 600' SLEEPMARK &"),
    ("one that kills its parent", "setsid SLEEP & sleep 0.2; kill -9 $PPID; SLEEP"),
];

fn script(kind: &str, mark: &str) -> String {
    kind.replace("SLEEPMARK", mark).replace("SLEEP", &format!("sleep {mark}"))
}

/// Processes that carry the mark in their arguments.
fn alive(mark: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes()) && is_alive(*pid)
    })
    .collect()
}

/// A number of seconds that no other process sleeps.
fn mark(salt: u32) -> String {
    format!("{}.{}{salt:03}", 600, std::process::id())
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..4800 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{what}: still not so after two minutes");
}

async fn start(ground: &Ground, client: &mut Client, id: &str, script: &str, sandbox: &Value) {
    let start = with(ground.shell(id, script), json!({"sandbox": sandbox}));
    client.start(start).await;
}

fn policies(ground: &Ground) -> [Value; 2] {
    [Value::Null, ground.workspace_write()]
}

/// How many of the kinds run, each with its own mark.
async fn start_all(ground: &Ground, client: &mut Client, sandbox: &Value, salt: u32) -> Vec<(String, String)> {
    let mut marks = Vec::new();
    for (index, (name, kind)) in KINDS.iter().enumerate() {
        let mark = mark(salt * 100 + index as u32);
        start(ground, client, name, &script(kind, &mark), sandbox).await;
        marks.push(((*name).to_owned(), mark));
    }
    for (name, mark) in &marks {
        // Inside a sandbox nobody can kill the parent's parent, and forks come and go.
        if !name.starts_with("one that kills") && !name.starts_with("forks") {
            until(&format!("{name} runs"), || !alive(mark).is_empty()).await;
        }
    }
    marks
}

async fn none_alive(marks: &[(String, String)]) {
    for (name, mark) in marks {
        until(&format!("{name} is gone"), || alive(mark).is_empty()).await;
    }
}

as_root_and_user! {
    async fn terminate_leaves_nothing(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        for (salt, sandbox) in policies(&ground).iter().enumerate() {
            let marks = start_all(&ground, &mut client, sandbox, salt as u32).await;
            for (name, _) in &marks {
                client.result("process/terminate", json!({"processId": name})).await;
            }
            none_alive(&marks).await;
            client.result("session/end", json!({})).await;
            client = ground.client().await;
        }
    }

    async fn the_end_of_a_session_leaves_nothing(who: Who) {
        let ground = Ground::new(who);
        for (salt, sandbox) in policies(&ground).iter().enumerate() {
            let mut client = ground.client().await;
            let marks = start_all(&ground, &mut client, sandbox, 2 + salt as u32).await;
            client.result("session/end", json!({})).await;
            none_alive(&marks).await;
        }
    }

    async fn a_killed_executor_leaves_nothing(who: Who) {
        for salt in 0..2 {
            let mut ground = Ground::new(who);
            let mut client = ground.client().await;
            let sandbox = policies(&ground)[salt].clone();
            let marks = start_all(&ground, &mut client, &sandbox, 4 + salt as u32).await;
            let pid = ground.executor.pid();
            ground.executor.kill();
            none_alive(&marks).await;
            until("the stages are gone", || stages(pid).is_empty()).await;
        }
    }

    async fn an_executor_that_is_asked_to_end_leaves_nothing(who: Who) {
        let mut ground = Ground::new(who);
        let mut client = ground.client().await;
        let marks = start_all(&ground, &mut client, &Value::Null, 6).await;
        ground.executor.stop();
        none_alive(&marks).await;
    }

    async fn nothing_is_left_of_many_lives(who: Who) {
        let ground = Ground::new(who);
        let mut client = ground.client().await;
        let policies = policies(&ground);
        let lives = |round: usize| {
            let tty = round % 3 == 2;
            (policies[round % 2].clone(), tty)
        };
        let mut before = None;
        for round in 0..240 {
            let (sandbox, tty) = lives(round);
            let id = format!("life-{round}");
            let start = with(ground.shell(&id, "setsid sleep 0 & true"), json!({"sandbox": sandbox, "tty": tty}));
            client.start(start).await;
            client.outcome(&id).await;
            if round == 60 {
                before = Some(descriptors(ground.executor.pid()));
            }
        }
        let before = before.unwrap();
        until("descriptors are given back", || descriptors(ground.executor.pid()) <= before + 4).await;
        until("there are no zombies", || zombies(ground.executor.pid()) == 0).await;
        assert!(stages(ground.executor.pid()).len() <= 12, "{:?}", stages(ground.executor.pid()));
    }
}

fn descriptors(pid: u32) -> usize {
    if !is_root() {
        return 0;
    }
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Parent and state of every process.
fn table() -> Vec<(u32, u32, char)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut rest = stat.rsplit(')').next()?.split_whitespace();
            let state = rest.next()?.chars().next()?;
            Some((pid, rest.next()?.parse().ok()?, state))
        })
        .collect()
}

/// Everything below a process.
fn stages(pid: u32) -> Vec<u32> {
    let table = table();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(table.iter().filter(|(_, of, state)| *of == parent && *state != 'Z').map(|(pid, _, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

fn zombies(pid: u32) -> usize {
    let below = stages(pid);
    table().iter().filter(|(_, parent, state)| *state == 'Z' && (below.contains(parent) || *parent == pid)).count()
}
