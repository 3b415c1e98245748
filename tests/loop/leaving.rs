//! Leaving is not killing: what a turn left running goes on after the program, here and elsewhere.

use std::process::Output;
use std::time::Duration;

use outpost_testkit::model::Reply;
use serde_json::json;

use crate::recovery::{Stage, said};

/// A server that is started in one turn, and runs until a file says that it is over.
fn server() -> Reply {
    let command = "echo $$ > server; echo ready; while [ ! -e go ]; do sleep 0.01; done; echo finished; exit $(cat go)";
    Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 250, "login": false}))
}

/// Says that it is over, and with which exit code: in one step, because it looks all the time.
fn end_with(stage: &Stage, code: &str) {
    let directory = stage.work.path();
    std::fs::write(directory.join("go.new"), code).unwrap();
    std::fs::rename(directory.join("go.new"), directory.join("go")).unwrap();
}

async fn run(stage: &Stage, arguments: &[&str]) -> Output {
    let mut command = stage.command(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn runs(stage: &Stage) -> bool {
    let pid =
        stage.file("server").and_then(|pid| pid.trim().parse().ok()).and_then(rustix::process::Pid::from_raw).expect("it was started");
    rustix::process::test_kill_process(pid).is_ok()
}

async fn left_running(place: &[&str]) -> (Stage, String) {
    let stage = Stage::new(vec![server(), Reply::message("it runs")]).await;
    let output = run(&stage, &[place, &["go"]].concat()).await;
    assert_eq!(said(&output), "it runs");
    let thread = stage.thread();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("still runs") && told.contains(&format!("exec resume {thread} --wait")), "{told}");
    assert!(told.contains(&format!("exec resume {thread} --stop")), "{told}");
    assert!(runs(&stage), "it was killed");
    (stage, thread)
}

async fn waits(place: &[&str]) {
    let (stage, thread) = left_running(place).await;
    let waiting = stage.command(&["resume", &thread, "--wait"]).spawn().unwrap();
    end_with(&stage, "3");
    let output = tokio::task::spawn_blocking(move || waiting.wait_with_output().unwrap());
    let output = output.await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("finished") && !told.contains("still runs"), "{output:?}");
    assert_eq!(output.status.code(), Some(1), "its exit code tells the truth: {output:?}");
    assert_eq!(stage.model.requests().len(), 2, "the model is not asked");
}

async fn stops(place: &[&str]) {
    let (stage, thread) = left_running(place).await;
    let output = run(&stage, &["resume", &thread, "--stop"]).await;
    said(&output);
    assert!(!runs(&stage), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("still runs"), "{output:?}");
}

#[tokio::test]
async fn a_command_that_was_left_here_is_waited_for() {
    waits(&[]).await;
}

#[tokio::test]
async fn a_command_that_was_left_here_is_stopped() {
    stops(&[]).await;
}

#[tokio::test]
async fn a_command_that_was_left_elsewhere_is_stopped() {
    let stage = Stage::new(vec![server(), Reply::message("it runs")]).await;
    let place = stage.in_worker();
    let output = run(&stage, &["-e", &place, "go"]).await;
    assert_eq!(said(&output), "it runs");
    assert!(runs(&stage) && String::from_utf8_lossy(&output.stderr).contains("on worker"), "{output:?}");
    let output = run(&stage, &["resume", &stage.thread(), "--stop"]).await;
    said(&output);
    assert!(!runs(&stage), "{output:?}");
}

/// The model finds it again, too, and one that is started with `--stop` leaves nothing.
#[tokio::test]
async fn what_was_left_is_found_by_the_next_turn_and_nothing_is_left_with_stop() {
    let (stage, thread) = left_running(&[]).await;
    end_with(&stage, "0");
    let session = stage.told().split("session id: ").nth(1).unwrap().split('\\').next().unwrap().parse::<u64>().unwrap();
    stage.model.push(Reply::call("w", "write_stdin", &json!({"session_id": session, "chars": "", "yield_time_ms": 10000})));
    stage.model.push(Reply::message("it is over"));
    let output = run(&stage, &["resume", &thread, "how is it?"]).await;
    assert_eq!(said(&output), "it is over");
    assert!(stage.told().contains("finished") && stage.told().contains("Exit code: 0"), "{}", stage.told());
    std::fs::remove_file(stage.work.path().join("go")).unwrap();
    stage.model.push(server());
    stage.model.push(Reply::message("done"));
    let output = run(&stage, &["--stop", "again"]).await;
    assert_eq!(said(&output), "done");
    for _ in 0..500 {
        if !runs(&stage) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it still runs: {output:?}");
}
