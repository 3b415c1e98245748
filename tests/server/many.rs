//! Much in one server: many threads that name many environments, most of which nobody uses; and long threads, of which only a page is
//! wanted.

use std::collections::VecDeque;
use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use outpost_testkit::app::{AppServer, text, thread, turn};
use outpost_testkit::model::{Reply, call};
use serde_json::{Value, json};

use super::OUTPOST;

/// Open files, threads of the system and resident kilobytes of a process.
fn held(process: u32) -> (usize, usize, usize) {
    let count = |what: &str| fs::read_dir(format!("/proc/{process}/{what}")).unwrap().count();
    (count("fd"), count("task"), kilobytes(process, "VmRSS:"))
}

fn kilobytes(process: u32, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_thousand_threads_with_fifty_idle_environments_hold_nothing_open() {
    const THREADS: usize = 1000;
    let mut app = AppServer::start_readable(OUTPOST, vec![Reply::message("one")]).await;
    // Whoever connects is seen: nobody takes the connections, but the system keeps them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let tables = (0..50).map(|n| format!("[[environments]]\nid = \"machine-{n}\"\nurl = \"ws://{address}\"\nconnect = \"lazy\"\n"));
    fs::write(app.home().join("environments.toml"), tables.collect::<String>()).unwrap();
    app.restart();
    let mut client = app.client().await;
    let known = client.result("environment/list", json!({})).await;
    assert!(known["data"].as_array().unwrap().len() >= 50, "{known}");
    let named: Vec<Value> = (0..50).map(|n| json!({"environmentId": format!("machine-{n}"), "cwd": "/srv"})).collect();
    // What every thread needs is there before it is counted.
    for _ in 0..20 {
        thread(&mut client, json!({"environments": named})).await;
    }
    let before = held(app.pid());
    for _ in 0..THREADS {
        thread(&mut client, json!({"environments": named})).await;
    }
    let after = held(app.pid());
    let loaded = client.result("thread/loaded/list", json!({})).await;
    assert_eq!(loaded["data"].as_array().unwrap().len(), THREADS + 20);
    assert!(after.0 <= before.0 + 8, "open files: {before:?}, {after:?}");
    assert!(after.1 <= before.1 + 8, "threads of the system: {before:?}, {after:?}");
    assert!(after.2 <= before.2 + 100 * THREADS, "kilobytes: {before:?}, {after:?}");
    assert!(listener.accept().is_err(), "somebody connected to an environment that nobody uses");
}

/// The first version kept a copy of the thread for each of them: 1.7 GiB.
#[tokio::test]
async fn two_thousand_calls_of_one_answer_take_little_memory() {
    const CALLS: usize = 2000;
    let plan = |n: usize| json!({"plan": [{"step": format!("step {n}: {}", "x".repeat(200)), "status": "pending"}]});
    let calls = (0..CALLS).map(|n| call(&format!("call-{n}"), "update_plan", &plan(n))).collect();
    let replies = vec![Reply::message("ready"), Reply::Items(calls), Reply::message("done")];
    let app = AppServer::start_readable_with(OUTPOST, replies, "").await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "first").await;
    let most = || kilobytes(app.pid(), "VmHWM:");
    let before = most();
    turn(&mut client, &id, "go").await;
    let after = most();
    assert!(after <= before + 64 * 1024, "{before} KB before, at most {after} KB");
    let outputs = app.model.requests().last().unwrap().body["input"].as_array().unwrap().clone();
    let answered = outputs.iter().filter(|item| item["type"] == "function_call_output").count();
    assert_eq!(answered, CALLS);
}

/// Bytes that a process has read from files so far.
fn bytes_read(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// A driver that looked for each call in its thread would read the answer once for each of them, a thousand times.
#[tokio::test]
async fn calls_of_one_answer_read_the_thread_a_bounded_number_of_times() {
    const CALLS: usize = 1000;
    let plan = |n: usize| json!({"plan": [{"step": format!("step {n}: {}", "x".repeat(1000)), "status": "pending"}]});
    let calls: Vec<Value> = (0..CALLS).map(|n| call(&format!("call-{n}"), "update_plan", &plan(n))).collect();
    let answer: usize = calls.iter().map(|call| call.to_string().len()).sum();
    let replies = vec![Reply::message("ready"), Reply::Items(calls), Reply::message("done")];
    let app = AppServer::start_readable_with(OUTPOST, replies, "").await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "first").await;
    let before = bytes_read(app.pid());
    turn(&mut client, &id, "go").await;
    let read = bytes_read(app.pid()) - before;
    assert!(read <= 8 * answer as u64, "{read} bytes for an answer of {answer}");
}

/// How many processes came of one, and of those.
fn descendants(of: u32) -> usize {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid: &u32| *pid != of && std::iter::successors(Some(*pid), |pid| parent(*pid)).any(|above| above == of)).count()
}

/// `cargo xtask soak threads` does the same with thousands.
#[tokio::test]
async fn threads_that_are_not_used_any_more_hold_neither_files_nor_processes() {
    const WARM: usize = 100;
    let asked: Option<usize> = std::env::var("OUTPOST_SOAK_THREADS").ok().map(|count| count.parse().unwrap());
    let count = asked.unwrap_or(150);
    let write = |n: usize| Reply::call(&format!("call-{n}"), "exec_command", &json!({"cmd": format!("echo {n} > said; ls")}));
    let replies = (0..=count).flat_map(|n| [write(n), Reply::message("done")]).collect();
    let config = "approval_policy = \"never\"\nsandbox_mode = \"workspace-write\"\n";
    let app = AppServer::start_readable_with(OUTPOST, replies, config).await;
    // The old program had five files of each thread open for ever.
    app.limit_files(if asked.is_some() { 1024 } else { 512 });
    let mut client = app.client().await;
    let directory = |n: usize| app.work().canonicalize().unwrap().join(format!("workspace-{n}"));
    let (mut held_at, mut first) = (Vec::new(), String::new());
    for n in 0..count {
        fs::create_dir(directory(n)).unwrap();
        let id = thread(&mut client, json!({"cwd": directory(n)})).await;
        turn(&mut client, &id, "write").await;
        let said = fs::read_to_string(directory(n).join("said")).unwrap_or_default();
        let read = json!({"threadId": id, "includeTurns": true});
        assert_eq!(said, format!("{n}\n"), "{}", client.result("thread/read", read).await);
        let left = client.result("thread/unsubscribe", json!({"threadId": id})).await;
        assert_eq!(left["status"], "unsubscribed");
        if n == 0 {
            first = id;
        }
        if n + 1 == WARM || n + 1 > WARM && (n + 1) % 25 == 0 {
            let ((files, _, memory), processes) = (held(app.pid()), descendants(app.pid()));
            let now = (files, processes, memory);
            if asked.is_some() {
                println!("{:>6} threads: {files} files, {processes} processes, {memory} KB", n + 1);
            }
            held_at.push(now);
        }
    }
    let warm = held_at[0];
    let most = |of: fn(&(usize, usize, usize)) -> usize| held_at.iter().map(of).max().unwrap();
    assert!(most(|now| now.0) <= warm.0 + 48, "open files: {held_at:?}");
    assert!(most(|now| now.2) <= warm.2 + 16 * 1024 + count, "kilobytes: {held_at:?}");
    // Sandboxes end some time after their last command, so their number swings with the load; what leaks is there at the quietest moment, too.
    let quietest = held_at[1..].iter().rev().take(20).map(|now| now.1).min().unwrap();
    assert!(quietest <= warm.1 + 16, "processes: {held_at:?}");
    assert!(most(|now| now.1) <= warm.1 + WARM, "processes: {held_at:?}");
    let loaded = client.result("thread/loaded/list", json!({})).await["data"].as_array().unwrap().clone();
    assert!(loaded.len() < WARM && !loaded.contains(&json!(first)), "{} are loaded", loaded.len());
    // A client that comes back to a thread that was unloaded finds it as it was, also without opening it.
    client.result("turn/start", json!({"threadId": first, "input": text("again")})).await;
    outpost_testkit::executor::eventually("the first thread works again", || {
        fs::read_to_string(directory(0).join("said")).is_ok_and(|said| said == format!("{count}\n"))
    })
    .await;
}

#[tokio::test]
async fn pages_of_turns_lead_in_both_directions() {
    let replies: Vec<Reply> = (0..7).map(|n| Reply::message(&format!("answer {n}"))).collect();
    let app = AppServer::start(OUTPOST, replies).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    for n in 0..7 {
        turn(&mut client, &id, &format!("question {n}")).await;
    }
    let said = |page: &Value| -> Vec<String> {
        let turns = page["data"].as_array().unwrap().iter();
        turns.map(|turn| turn["items"].as_array().unwrap().iter().map(spoken).collect::<Vec<_>>().join(" ")).collect()
    };
    let of = |numbers: &[usize]| -> Vec<String> { numbers.iter().map(|n| format!("question {n} answer {n}")).collect() };
    let page = async |client: &mut outpost_testkit::Client, cursor: &Value, direction: &str| {
        let params = json!({"threadId": id, "limit": 3, "cursor": cursor, "sortDirection": direction, "itemsView": "full"});
        client.result("thread/turns/list", params).await
    };
    let newest = page(&mut client, &Value::Null, "desc").await;
    assert_eq!(said(&newest), of(&[6, 5, 4]));
    let middle = page(&mut client, &newest["nextCursor"], "desc").await;
    assert_eq!(said(&middle), of(&[3, 2, 1]));
    let oldest = page(&mut client, &middle["nextCursor"], "desc").await;
    assert_eq!((said(&oldest), &oldest["nextCursor"]), (of(&[0]), &Value::Null));
    // Back again: from where a page ended, in the other direction.
    assert_eq!(said(&page(&mut client, &middle["nextCursor"], "asc").await), of(&[1, 2, 3]));
    assert_eq!(said(&page(&mut client, &newest["backwardsCursor"], "asc").await), of(&[]));
    let first = page(&mut client, &Value::Null, "asc").await;
    assert_eq!(said(&first), of(&[0, 1, 2]));
    let second = page(&mut client, &first["nextCursor"], "asc").await;
    assert_eq!(said(&second), of(&[3, 4, 5]));
    let last = page(&mut client, &second["nextCursor"], "asc").await;
    assert_eq!((said(&last), &last["nextCursor"]), (of(&[6]), &Value::Null));
    assert_eq!(said(&page(&mut client, &last["backwardsCursor"], "desc").await), of(&[5, 4, 3]));
    // A search tells how many turns lie before the one it found.
    assert_eq!(said(&page(&mut client, &json!("5"), "asc").await), of(&[5, 6]));
    client.error("thread/turns/list", json!({"threadId": id, "cursor": "garbage"})).await;
}

/// What an item says.
fn spoken(item: &Value) -> String {
    item["text"].as_str().or_else(|| item["content"][0]["text"].as_str()).unwrap_or_default().to_owned()
}

/// How long one of a hundred requests of a client takes at least.
async fn p99(client: &mut outpost_testkit::Client) -> std::time::Duration {
    let mut times = Vec::new();
    for _ in 0..500 {
        let since = std::time::Instant::now();
        client.result("thread/loaded/list", json!({})).await;
        times.push(since.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// So many strangers come who never say anything, as fast as they are let in. The times are for those who run it with `--nocapture`; what
/// must hold is counted.
#[tokio::test]
async fn a_crowd_of_silent_strangers_does_not_keep_a_client_waiting() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut attached = app.client().await;
    let calm = p99(&mut attached).await;
    let address = app.url().trim_start_matches("ws://").to_owned();
    let (came, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let flood = {
        let (came, stop) = (came.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut crowd = VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                crowd.push_back(std::net::TcpStream::connect(&address).unwrap());
                if crowd.len() > 600 {
                    crowd.pop_front();
                }
                came.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(1600));
            }
        })
    };
    while came.load(Ordering::Relaxed) < 1000 {
        tokio::task::yield_now().await;
    }
    let (since, first) = (std::time::Instant::now(), came.load(Ordering::Relaxed));
    let crowded = p99(&mut attached).await;
    let mut longest = std::time::Duration::ZERO;
    for _ in 0..10 {
        let (before, entering) = (came.load(Ordering::Relaxed), std::time::Instant::now());
        let mut client = app.client().await;
        client.result("thread/loaded/list", json!({})).await;
        longest = longest.max(entering.elapsed());
        attached.result("thread/loaded/list", json!({})).await;
        let meanwhile = came.load(Ordering::Relaxed) - before;
        assert!(meanwhile < 600, "{meanwhile} strangers came before a client got in");
    }
    let rate = (came.load(Ordering::Relaxed) - first) as f64 / since.elapsed().as_secs_f64();
    println!(
        "p99 of an attached client: {calm:?} alone, {crowded:?} beside {rate:.0} strangers a second; a new client is in within {longest:?}"
    );
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
}

#[tokio::test]
async fn what_cannot_be_searched_for_is_an_invalid_parameter() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    for term in ["a\0b".to_owned(), "x".repeat(1 << 20)] {
        for method in ["thread/list", "thread/search"] {
            let (code, message) = client.error(method, json!({"searchTerm": term})).await;
            assert_eq!(code, -32602, "{method}: {message}");
        }
    }
}

/// Bytes that a process has read so far, from wherever.
fn read_so_far(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// What is read for the answer to one request, at least: threads that were opened are looked through for damage meanwhile.
async fn cost(app: &AppServer, client: &mut outpost_testkit::Client, method: &str, params: &Value) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..5 {
        let mut before = read_so_far(app.pid());
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            let now = read_so_far(app.pid());
            if now == before {
                break;
            }
            before = now;
        }
        client.result(method, params.clone()).await;
        least = least.min(read_so_far(app.pid()) - before);
    }
    least
}

/// A fork with its turns reads as much as reading them; without them it reads the same, however long the thread is.
#[tokio::test]
async fn a_fork_reads_no_more_than_its_turns() {
    const TURNS: usize = 60;
    let replies = (0..TURNS).map(|_| Reply::message(&"a long answer ".repeat(500))).collect();
    let app = AppServer::start_readable(OUTPOST, replies).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let bare = json!({"threadId": id, "excludeTurns": true});
    let mut without = Vec::new();
    for number in 0..TURNS {
        turn(&mut client, &id, &format!("question {number}")).await;
        if [5, TURNS - 1].contains(&number) {
            without.push(cost(&app, &mut client, "thread/fork", &bare).await);
        }
    }
    let reading = cost(&app, &mut client, "thread/read", &json!({"threadId": id, "includeTurns": true})).await;
    let forking = cost(&app, &mut client, "thread/fork", &json!({"threadId": id})).await;
    assert!(reading > 400_000, "the turns are read: {reading} bytes");
    assert!(forking <= reading + 8192, "a fork with its turns reads {forking} bytes, the turns are {reading}");
    assert!(without[0].abs_diff(without[1]) <= 4096, "without turns, at 6 and at {TURNS}: {without:?}");
}
