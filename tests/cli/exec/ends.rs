//! Turns that are ended from outside: by signals, by readers that went away, by other programs.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn signals_interrupt_the_turn_and_leave_a_thread_that_can_be_resumed() {
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        if is_ignored(number) {
            continue;
        }
        let scene =
            Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": "echo on; sleep 1000", "yield_time_ms": 30000}))]).await;
        let mut child = scene.command(&["exec", "--json", "go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut read = Vec::new();
        while !read.last().is_some_and(|line: &Value| line["type"] == "item.started") {
            read.push(next_line(&mut out).unwrap());
        }
        assert!(Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success());
        while let Some(line) = next_line(&mut out) {
            read.push(line);
        }
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let last = read.last().unwrap();
        assert_eq!(last["type"], "turn.failed");
        assert!(last["error"]["message"].as_str().unwrap().contains("interrupted"), "{last}");
        let id = read[0]["thread_id"].as_str().unwrap();
        let again = scene.lines(&["exec", "--json", "resume", id, "again"]);
        assert_eq!(again.last().unwrap()["type"], "turn.completed");
        let told = scene.told();
        assert!(told.iter().any(|part| part["text"].as_str().unwrap().starts_with("<turn_aborted>")), "{told:?}");
    }
}

/// A shell that runs a script in the background, and `nohup`, start programs with signals ignored.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_that_is_ignored_without_a_terminal_stays_ignored() {
    let wait = "touch started; while [ ! -e go ]; do sleep 0.01; done";
    let scene =
        Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": wait, "yield_time_ms": 30000})), Reply::message("done")]).await;
    let mut command = scene.command(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$0\" exec --json go", OUTPOST]).current_dir(scene.work.path()).stdin(Stdio::null());
    for (name, value) in command.stdin(Stdio::null()).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !scene.work.path().join("started").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // An interrupt that counted would have ended the turn by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output).last().unwrap()["type"], "turn.completed", "{output:?}");
}

fn next_line(out: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_turn_is_finished_by_resuming_without_a_prompt() {
    let wait = json!({"cmd": "touch begun; while [ ! -e go ]; do sleep 0.01; done; echo survived", "yield_time_ms": 30000});
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &wait)]).await;
    let mut child = scene.command(&["exec", "--json", "go"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut read = Vec::new();
    while !read.last().is_some_and(|line: &Value| line["type"] == "item.started") {
        read.push(next_line(&mut out).unwrap());
    }
    // That it is about to start is told before it does.
    while !scene.work.path().join("begun").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    let lines = scene.lines(&["exec", "--json", "resume", read[0]["thread_id"].as_str().unwrap()]);
    let kinds: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thread.started", "turn.started", "item.started", "item.completed", "item.completed", "turn.completed"]);
    // The command went on in the keeper of the home.
    assert_eq!((&lines[3]["item"]["status"], &lines[3]["item"]["exit_code"]), (&json!("completed"), &json!(0)));
    assert_eq!(lines[3]["item"]["aggregated_output"], "survived\n");
    assert_eq!(lines[4]["item"]["text"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_went_away_ends_the_turn() {
    let scene = Scene::new(vec![
        Reply::call("a", "exec_command", &json!({"cmd": "while [ ! -e go ]; do sleep 0.01; done"})),
        Reply::Items(vec![message("one"), message("two")]),
        Reply::Silent(String::new()),
    ])
    .await;
    let mut child = scene.command(&["exec", "--json", "go"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    while next_line(&mut out).unwrap()["type"] != "item.started" {}
    drop(out);
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard output cannot be written"), "{output:?}");
}

/// Waits for the end without reading anything.
fn ends(child: &mut std::process::Child) -> Option<i32> {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while std::time::Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("it does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_somebody_else_took_ends_the_run() {
    let wait = json!({"cmd": "touch begun; while [ ! -e go ]; do sleep 0.01; done", "yield_time_ms": 30000});
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &wait)]).await;
    for arguments in [&["exec", "go"][..], &["exec", "--json", "go"]] {
        for file in ["begun", "go"] {
            let _ = std::fs::remove_file(scene.work.path().join(file));
        }
        let mut child = scene.command(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        while !scene.work.path().join("begun").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let list = scene.run(&["thread", "list", "--json"]);
        let list: Value = serde_json::from_slice(&list.stdout).unwrap();
        let taken = scene.run(&["thread", "takeover", list["threads"][0]["id"].as_str().unwrap()]);
        assert!(taken.status.success(), "{taken:?}");
        std::fs::write(scene.work.path().join("go"), "").unwrap();
        assert_eq!(ends(&mut child), Some(1));
        scene.model.push(Reply::call("a", "exec_command", &wait));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_an_ephemeral_thread_is_told_the_truth() {
    let print = |id: &str, bytes: usize| {
        let cmd = format!("head -c {bytes} /dev/zero | tr '\\0' x");
        Reply::call(id, "exec_command", &json!({"cmd": cmd, "yield_time_ms": 30000, "max_output_tokens": 100_000}))
    };
    // The first line is more than a pipe holds, and the second command says more than a feed remembers.
    let scene = Scene::new(vec![print("a", 300_000), print("b", 12_000_000), Reply::message("done")]).await;
    let mut child = scene.command(&["exec", "--ephemeral", "--json", "go"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while scene.model.requests().len() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let lines = lines(&output);
    let done: Vec<&Value> = lines.iter().filter(|line| line["type"] == "item.completed").map(|line| &line["item"]).collect();
    let commands: Vec<&Value> = done.into_iter().filter(|item| item["type"] == "command_execution").collect();
    assert_eq!(commands.len(), 2);
    for command in commands {
        assert_eq!((&command["status"], &command["exit_code"]), (&json!("completed"), &json!(0)));
    }
}
