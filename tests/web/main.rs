//! The page in a real browser. `cargo xtask test` installs Chromium and what drives it, and names the directory of the latter in
//! `OUTPOST_TEST_BROWSER`. Pictures of the page are left in `target/pictures`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../serve/support.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outpost_testkit::model::{Reply, ScriptedModel, call, image, message};
use outpost_testkit::threads::make_many;
use outpost_testkit::{Cutter, ExecutorProcess};
use serde_json::{Value, json};

use crate::support::{Server, joined, joined_in};

/// What the browser's script asks for, and what to do about it.
struct Stage {
    cutter: Cutter,
    executor: Option<ExecutorProcess>,
    home: Option<tempfile::TempDir>,
    token: String,
}

impl Stage {
    fn act(&mut self, wish: &str) {
        match wish {
            "cut" => self.cutter.cut(),
            "mend" => self.cutter.mend(),
            "kill" => self.home = self.executor.take().map(|mut executor| executor.kill_and_keep_home()),
            "start" => self.executor = Some(joined_in(&self.cutter.url(), "box", &self.token, self.home.take().unwrap())),
            other => panic!("`{other}` is not known"),
        }
    }
}

fn pictures() -> PathBuf {
    // Beside the program under test, which is in the build directory.
    let target = Path::new(support::OUTPOST).parent().unwrap().parent().unwrap();
    target.join("pictures")
}

/// A script that drives the page of a server.
fn browser(script: &str, server: &Server, profile: &Path) -> Command {
    let mut node = Command::new("node");
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/web").join(script))
        .env("TOOLS", std::env::var_os("OUTPOST_TEST_BROWSER").expect("run these tests with `cargo xtask test`"))
        .env("PAGE", server.url().replacen("ws", "http", 1))
        .env("TOKEN", server.token(&["--client"]))
        .env("PICTURES", pictures())
        .env("HOME", profile);
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_in_a_browser() {
    let server = Server::start();
    let token = server.token(&["--executor", "box"]);
    let cutter = Cutter::start(server.address(), Vec::new()).await;
    let executor = joined(&cutter.url(), "box", &token);
    let work = tempfile::tempdir().unwrap();
    let profile = tempfile::tempdir().unwrap();
    let mut script =
        browser("page.mjs", &server, profile.path()).env("WORK", work.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stage = Stage { cutter, executor: Some(executor), home: None, token };
    let (mut answers, wishes) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
    // The server, the proxy and the executor go on in other threads.
    tokio::task::block_in_place(|| {
        for line in wishes.lines().map_while(Result::ok) {
            if let Some(wish) = line.strip_prefix("wish ") {
                stage.act(wish);
                writeln!(answers, "done").unwrap();
            } else {
                println!("{line}");
            }
        }
    });
    assert!(script.wait().unwrap().success(), "see what it says above");
    assert_eq!(std::fs::read_to_string(work.path().join("counter")).unwrap(), "x\n", "the command ran once");
}

/// The page and the program show every text in the same way. Needs no browser.
#[test]
fn the_page_shows_what_the_program_shows() {
    use outpost_wire::shown::{Form, Untrusted};
    const FORMS: [(&str, Form); 4] = [("text", Form::Text), ("line", Form::Line), ("script", Form::Script), ("word", Form::Word)];
    let alphabet: Vec<char> = "\0\u{7}\t\n\r\u{1b}\u{7f}\u{85}\u{9b}\u{ad}\u{301}\u{34f}\u{61c}\u{200b}\u{200d}\u{202e}\u{2066}\u{2028}\u{feff}\u{fe0f}\u{20dd}\u{258c}\u{e0041}<>U+0x:Aa \u{430}\u{e9}\u{4e2d}\u{5d0}\u{26a0}\u{1f600}".chars().collect();
    // Every character in its own place, and strings of strange ones.
    let mut texts: Vec<String> = (0..0x11_0000_u32).step_by(7).filter_map(char::from_u32).map(|c| format!("a{c}b{c}")).collect();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..5000 {
        let mut text = String::new();
        for _ in 0..12 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text.push(alphabet[usize::try_from(state % alphabet.len() as u64).unwrap()]);
        }
        texts.push(text);
    }
    let cases: Vec<(&str, Form, String)> =
        texts.into_iter().enumerate().map(|(number, text)| (FORMS[number % 4].0, FORMS[number % 4].1, text)).collect();
    let given: Vec<_> = cases.iter().map(|(form, _, text)| serde_json::json!({"form": form, "text": text})).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/web/shown.mjs");
    let mut node = Command::new("node").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = node.stdin.take().unwrap();
    let given = serde_json::to_vec(&given).unwrap();
    let writing = std::thread::spawn(move || input.write_all(&given).unwrap());
    let output = node.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success(), "see what it says above");
    let shown: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown.len(), cases.len());
    for ((_, form, text), shown) in cases.into_iter().zip(shown) {
        assert_eq!(shown, Untrusted::from(&text).show(form), "{text:?}");
    }
}

/// Markdown of agents is read, and nothing in it can do harm. Needs no browser.
#[test]
fn the_page_reads_markdown() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/web/markdown.mjs");
    let output = Command::new("node").arg(script).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Plans, changes, calls that fail, questions, and what people do to threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_working_day_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(work.path().join("greeting"), "hello\n").unwrap();
    let step = |step: &str, status: &str| json!({"step": step, "status": status});
    let plan = json!({"plan": [step("look", "completed"), step("mend", "in_progress"), step("test", "pending")]});
    let patch = "*** Begin Patch\n*** Update File: greeting\n@@\n-hello\n+good day\n*** End Patch";
    let done = "**Done.** See [the log](https://example.org/log).\n\n| file | change |\n|---|---|\n| greeting | 1 line |\n\n\
                <img src=x onerror=\"document.title='harm'\"> and <script>document.title='harm'</script>";
    let model = ScriptedModel::with(vec![
        Reply::Items(vec![
            message("I look first."),
            call("plan", "update_plan", &plan),
            call("far", "exec_command", &json!({"cmd": "uname -a", "environment_id": "gone"})),
            call("pixel", "view_image", &json!({"path": "no-such.png"})),
        ]),
        Reply::call("made", "exec_command", &json!({"cmd": "echo made; : make everything"})),
        Reply::call("heard", "mcp__tools__echo", &json!({"text": "over here"})),
        Reply::Items(vec![json!({"type": "custom_tool_call", "call_id": "patched", "name": "apply_patch", "input": patch})]),
        Reply::message(done),
    ])
    .await;
    // A sandbox does not see a clone of this project that lies in /tmp; it sees the workspace.
    let server = work.path().join("server.py");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp/server.py"), &server).unwrap();
    let config = format!(
        "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"scripted\"\nsandbox_mode = \"workspace-write\"\napproval_policy = \"untrusted\"\n\
         [model_providers.scripted]\nbase_url = \"{}\"\n\
         [mcp_servers.tools]\ncommand = \"python3\"\nargs = [\"{}\"]\nrequired = true\nstartup_timeout_sec = 60\n",
        model.base_url(),
        server.display()
    );
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let gone = "[[environments]]\nid = \"gone\"\nurl = \"ws://127.0.0.1:9\"\n";
    std::fs::write(home.path().join("environments.toml"), gone).unwrap();
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let mut script = browser("daily.mjs", &server, profile.path())
        .env("WORK", work.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let answered = work.path().join("answered");
    let (mut answers, wishes) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
    tokio::task::block_in_place(|| {
        for line in wishes.lines().map_while(Result::ok) {
            match line.strip_prefix("wish ") {
                Some("ask") => {
                    let reply = Reply::call("again", "exec_command", &json!({"cmd": "touch again"}));
                    model.push(Reply::Once(answered.clone(), Box::new(reply)));
                    model.push(Reply::Items(vec![image("ig_1"), message("As you wish.")]));
                }
                Some("answer") => std::fs::write(&answered, "").unwrap(),
                Some(other) => panic!("`{other}` is not known"),
                None => {
                    println!("{line}");
                    continue;
                }
            }
            writeln!(answers, "done").unwrap();
        }
    });
    assert!(script.wait().unwrap().success(), "see what it says above");
    assert_eq!(std::fs::read_to_string(work.path().join("greeting")).unwrap(), "good day\n");
    assert!(!work.path().join("again").exists(), "what was not allowed did not run");
    assert_eq!(model.requests().pop().unwrap().body["model"], "another-model", "the model that was chosen is asked");
}

/// Every answer to a question, and machines that are connected by hand, one of which runs only later.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_and_machine_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let touch = |id: &str, command: &str| call(id, "exec_command", &json!({"cmd": command}));
    let ruled = |id: &str, command: &str| call(id, "exec_command", &json!({"cmd": command, "prefix_rule": ["mkdir"]}));
    let question = json!({"questions": [{"id": "q", "header": "h", "question": "Which colour?", "options": [
        {"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}]}]});
    let wider = json!({"environment_id": "box", "reason": "to build it", "permissions": {"file_system": {"write": ["/data"]}}});
    let garbage = "```\n|||\n**_`[x](\u{202e}\n> > > #<script>document.title='harm'</script>\u{9b}2J\n".repeat(20);
    let model = ScriptedModel::with(vec![
        Reply::Items(vec![touch("a", "touch always")]),
        Reply::Items(vec![touch("b", "touch always")]),
        Reply::Items(vec![touch("c", "touch once")]),
        Reply::Items(vec![touch("d", "rm once")]),
        Reply::Items(vec![touch("e", "touch once")]),
        Reply::Items(vec![ruled("r1", "mkdir first")]),
        Reply::Items(vec![ruled("r2", "mkdir second")]),
        Reply::call("f", "request_user_input", &question),
        Reply::call("g", "request_permissions", &wider),
        Reply::call("h", "exec_command", &json!({"cmd": "sleep 1000", "yield_time_ms": 250})),
        Reply::streamed(&garbage),
        Reply::Items(vec![touch("i", "touch stopped")]),
    ])
    .await;
    let config = format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"workspace-write\"\napproval_policy = \"untrusted\"\n\
         [model_providers.scripted]\nbase_url = \"{}\"\n[models.scripted]\n[models.chosen-model]\nvision = false\n",
        model.base_url()
    );
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let runs = ExecutorProcess::start(Path::new(support::OUTPOST), &["--no-auth"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let late = format!("ws://{free}");
    let machine = |id: &str, url: &str| format!("[[environments]]\nid = \"{id}\"\nurl = \"{url}\"\nconnect = \"manual\"\n");
    std::fs::write(home.path().join("environments.toml"), machine("box", runs.url()) + &machine("late", &late)).unwrap();
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let rules = server.home().join("rules.toml");
    let mut script = browser("answers.mjs", &server, profile.path())
        .env("WORK", work.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut answers, wishes) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
    let mut started = None;
    tokio::task::block_in_place(|| {
        for line in wishes.lines().map_while(Result::ok) {
            if line == "wish start" {
                started = Some(ExecutorProcess::start(Path::new(support::OUTPOST), &["--no-auth", "--listen", &late]));
                writeln!(answers, "done").unwrap();
            } else {
                println!("{line}");
            }
        }
    });
    assert!(script.wait().unwrap().success(), "see what it says above");
    assert!(std::fs::read_to_string(rules).unwrap().contains("mkdir"), "the rule is written down");
    assert_eq!(model.requests()[0].body["model"], "chosen-model");
    let told = model.requests().pop().unwrap().body.to_string();
    assert!(told.contains(r#"\"answers\":[\"blue\"]"#), "the answer reached the model: {told}");
}

/// Ten thousand items. How many are in the document is counted; nothing is measured by a clock.
#[test]
fn a_long_thread_in_a_browser() {
    const ID: &str = "01928f2e-4c1d-7a33-9c55-000000000001";
    let (home, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = |kind: &str, payload: Value| json!({"timestamp": "2026-11-15T23:01:09.992Z", "type": kind, "payload": payload});
    let said = |role: &str, kind: &str, text: &str| {
        line("response_item", json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
    };
    let mut lines = vec![line(
        "session_meta",
        json!({"id": ID, "session_id": ID, "timestamp": "2026-11-15T23:01:09.992Z", "cwd": "/", "originator": "x", "cli_version": "0.166.0",
            "source": "exec", "model_provider": "offline", "base_instructions": {"text": "Be good."}}),
    )];
    for number in 0..2500 {
        let turn = format!("turn-{number}");
        let (ask, answer) = (format!("question {number} of many"), format!("answer {number}\n\n{}", "more words. ".repeat(number % 40)));
        lines.push(line("event_msg", json!({"type": "task_started", "turn_id": turn})));
        lines.push(said("user", "input_text", &ask));
        lines.push(line("event_msg", json!({"type": "user_message", "message": ask})));
        lines.push(said("assistant", "output_text", "I look."));
        let call = format!("call-{number}");
        let command = json!({"type": "function_call", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}", "call_id": call});
        lines.push(line("response_item", command));
        lines.push(line("response_item", json!({"type": "function_call_output", "call_id": call, "output": "a.txt"})));
        lines.push(said("assistant", "output_text", &answer));
        lines.push(line("event_msg", json!({"type": "task_complete", "turn_id": turn, "last_agent_message": answer})));
    }
    let rollout = profile.path().join(format!("rollout-2026-11-15T23-01-09-{ID}.jsonl"));
    std::fs::write(&rollout, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let imported = support::outpost(home.path(), &["thread", "import", rollout.to_str().unwrap()]);
    assert!(imported.status.success(), "{imported:?}");
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("long.mjs", &server, profile.path()).env("THREAD", ID).stdin(Stdio::null()).output().unwrap();
    println!("{}", String::from_utf8_lossy(&script.stdout));
    assert!(script.status.success(), "see what it says above");
}

/// A thread that `outpost exec` holds.
#[test]
fn a_thread_is_taken_over_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let waits = "$ : wait for a file; echo begun > begun; until [ -e over ]; do sleep 0.05; done";
    let arguments = ["exec", "-e", "local", "--provider", "offline", "--sandbox", "danger-full-access", waits];
    let mut holder =
        support::command(home.path(), &arguments).current_dir(work.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !work.path().join("begun").exists() {
        assert!(holder.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("takeover.mjs", &server, profile.path()).stdin(Stdio::null()).output().unwrap();
    std::fs::write(work.path().join("over"), "").unwrap();
    let _ = holder.wait();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stdout));
}

/// The only journal below a directory.
fn journal(directory: &Path) -> PathBuf {
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            return path;
        }
        left.extend(std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    panic!("there is no journal below {}", directory.display())
}

/// What a disk changed in a thread is said where it was.
#[test]
fn a_damaged_thread_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = |arguments: &[&str]| {
        let output = support::command(home.path(), arguments).current_dir(work.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run(&["exec", "--json", "-e", "local", "--provider", "offline", "first question\n> first answer"]);
    let started: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let id = started["thread_id"].as_str().unwrap();
    run(&["exec", "resume", id, "--provider", "offline", "second question\n> second answer"]);
    let journal = journal(&home.path().join("threads"));
    let mut bytes = std::fs::read(&journal).unwrap();
    // Behind what the user said, in what the model answered.
    let words = b"\"first answer\"";
    let at = bytes.windows(words.len()).rposition(|window| window == words).unwrap();
    bytes[at + 3] ^= 1;
    std::fs::write(journal, bytes).unwrap();
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("damage.mjs", &server, profile.path()).stdin(Stdio::null()).output().unwrap();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stdout));
}

/// Sixty machines besides this one, with names as long as they may be, and more threads than are shown at once.
#[test]
fn a_crowd_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine = |number: usize| {
        let id = if number == 0 { "m".repeat(64) } else { format!("machine-{number}") };
        format!("[[environments]]\nid = \"{id}\"\nurl = \"ws://127.0.0.1:9\"\nconnect = \"manual\"\n")
    };
    std::fs::write(home.path().join("environments.toml"), (0..60).map(machine).collect::<String>()).unwrap();
    let run = |arguments: &[&str]| {
        let output = support::command(home.path(), arguments).current_dir(work.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["exec", "-e", "local", "--provider", "offline", "> a needle in a haystack"]);
    let noise = "$ seq 6000\n> That was long.";
    let first = run(&["exec", "--json", "-e", "local", "--provider", "offline", "--sandbox", "danger-full-access", noise]);
    let started: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let mut last = started["thread_id"].as_str().unwrap().to_owned();
    for _ in 0..60 {
        last = run(&["thread", "fork", &last]).trim().to_owned();
    }
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("crowd.mjs", &server, profile.path()).stdin(Stdio::null()).output().unwrap();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stdout));
}

/// Fifty machines and ten thousand threads. What is asked for and what is in the document is counted; nothing is measured by a clock.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_machines_and_ten_thousand_threads_in_a_browser() {
    let (home, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine =
        |number: usize| format!("[[environments]]\nid = \"machine-{number}\"\nurl = \"ws://127.0.0.1:9\"\nconnect = \"manual\"\n");
    std::fs::write(home.path().join("environments.toml"), (0..50).map(machine).collect::<String>()).unwrap();
    make_many(home.path(), 10_000, 1_763_247_600_000).await;
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("many.mjs", &server, profile.path()).stdin(Stdio::null()).output().unwrap();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stdout));
}
