//! kill -9 of the executor: the fate of every process is still known to the next start.

use std::path::Path;

use outpost_rpc::link::ws;
use outpost_testkit::{Client, ExecutorProcess};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

async fn connect(executor: &ExecutorProcess) -> Client {
    Client::new(ws::connect(executor.url(), &ws::ClientOptions::default()).await.unwrap())
}

fn start(id: &str, script: &str) -> Value {
    json!({"processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///", "env": {"PATH": "/usr/bin:/bin"}, "tty": false, "pipeStdin": true})
}

/// Ends what the killed executor left running: the group of each, if there still is one. Asked of the system itself,
/// because what `kill` makes of a negative number depends on whose `kill` it is.
fn clean_up(pids: &[i32]) {
    for pid in pids {
        if let Some(group) = Pid::from_raw(*pid) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_processes_in_all_states_are_answered_for() {
    let home = tempfile::tempdir().unwrap();
    let marker = home.path().join("runs");
    let mut executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
    let mut client = connect(&executor).await;
    let session = client.hello().await;
    let once = format!("echo once >> {}", marker.display());
    let finished = [
        ("ok", "true".to_owned()),
        ("seven", "exit 7".into()),
        ("killed", "kill -9 $$".into()),
        ("wrote", "echo some output".into()),
        ("once", once.clone()),
    ];
    for (id, script) in &finished {
        client.start(start(id, script)).await;
        client.events(id).await;
    }
    // The direct child is gone, but somebody else still holds its output.
    client.start(start("lingering", "sleep 300 & exit 3")).await;
    client.until(|message| message["method"] == "process/exited" && message["params"]["processId"] == "lingering").await;
    for (id, script) in [("sleeping", "sleep 300"), ("reading", "cat"), ("printing", "yes > /dev/null"), ("stopped", "kill -STOP $$")] {
        client.start(start(id, script)).await;
    }
    let list = client.result("process/list", json!(null)).await;
    let rows = list["processes"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    let running = rows.iter().filter(|row| row["closed"] == false);
    let pids: Vec<i32> = running.map(|row| row["pid"].as_i64().unwrap().try_into().unwrap()).collect();
    let home = executor.kill_and_keep_home();
    clean_up(&pids);

    let executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
    let mut client = connect(&executor).await;
    assert_eq!(client.resume(&session).await, session);
    for (id, code) in [("ok", 0), ("seven", 7), ("killed", 137), ("wrote", 0), ("once", 0), ("lingering", 3)] {
        let read = client.read(id, 0).await;
        assert_eq!((&read["exitCode"], &read["closed"], &read["failure"]), (&json!(code), &json!(true), &json!(null)), "{id}: {read}");
    }
    for id in ["sleeping", "reading", "printing", "stopped"] {
        let read = client.read(id, 0).await;
        assert_eq!((&read["exitCode"], &read["exited"], &read["closed"]), (&json!(-1), &json!(true), &json!(true)), "{id}: {read}");
        assert!(read["failure"].as_str().unwrap().contains("lost"), "{id}: {read}");
    }
    // A start that is repeated over the restart is the same start; it does not run again.
    client.start(start("once", &once)).await;
    assert_eq!(std::fs::read_to_string(executor.home().join("runs")).unwrap(), "once\n");
    let other = client.error("process/start", start("once", "echo other")).await;
    assert_eq!(other, (-32600, "process once already exists".into()));
    assert_eq!(client.result("process/list", json!(null)).await["processes"].as_array().unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_says_that_a_command_was_lost_with_its_executor() {
    let home = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("ws://127.0.0.1:{port}");
    let mut executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth", "--listen", &listen], home);
    let started = executor.home().join("started");
    let script = format!("echo $$ > {}; sleep 300", started.display());
    let run = tokio::process::Command::new(OUTPOST)
        .args(["run", "-e", &listen, "--", "/bin/sh", "-c", &script])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    outpost_testkit::executor::eventually("the command runs", || std::fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n')))
        .await;
    let pid: i32 = std::fs::read_to_string(&started).unwrap().trim().parse().unwrap();
    let home = executor.kill_and_keep_home();
    clean_up(&[pid]);
    let _executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth", "--listen", &listen], home);
    let output = run.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("the outcome of the command is unknown") && message.contains("lost"), "{message}");
}
