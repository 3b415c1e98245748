//! `outpost exec`: what programs read, and how it ends.

mod ends;
mod people;
mod providers;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outpost_testkit::model::{Reply, ScriptedModel, call, message};
use outpost_testkit::{ExecutorProcess, TestTerminal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{OUTPOST, OWN_VARIABLES, is_ignored};

/// A home whose model is scripted, and a directory to work in.
struct Scene {
    home: TempDir,
    work: TempDir,
    model: ScriptedModel,
}

impl Scene {
    async fn new(replies: Vec<Reply>) -> Self {
        Self::speaking("responses", replies).await
    }

    async fn speaking(wire: &str, replies: Vec<Reply>) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\n[model_providers.scripted]\n\
             base_url = \"{}\"\nwire_api = \"{wire}\"\nrequest_max_retries = 0\nstream_max_retries = 0\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        Self { home, work, model }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(arguments).current_dir(self.work.path()).stdin(Stdio::null());
        // Commands run in a login shell; what the user's own profile does is none of our business.
        command.env("OUTPOST_HOME", self.home.path()).env("HOME", self.work.path());
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The lines of a run that ends well.
    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        lines(&output)
    }

    fn piped(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// What the model was told by the user in its last request.
    fn told(&self) -> Vec<Value> {
        let body = self.model.requests().pop().unwrap().body;
        let items = body["input"].as_array().unwrap().iter();
        items.filter(|item| item["role"] == "user").flat_map(|item| item["content"].as_array().unwrap().clone()).collect()
    }
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn usage(input: u64) -> Value {
    json!({"input_tokens": input, "cached_input_tokens": 0, "cache_write_input_tokens": 0, "output_tokens": input, "reasoning_output_tokens": 0})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_profile_prints_is_not_a_commands_output() {
    let commands = ["echo $FROM_PROFILE one", "echo two"].map(|command| Reply::call(command, "exec_command", &json!({"cmd": command})));
    let scene = Scene::new(commands.into_iter().chain([Reply::message("done")]).collect()).await;
    let profile = "echo loaded >> loads; echo noise; echo 'pyenv: cannot rehash' >&2; export FROM_PROFILE=yes\n";
    for name in [".profile", ".bash_profile", ".zprofile"] {
        std::fs::write(scene.work.path().join(name), profile).unwrap();
    }
    let lines = scene.lines(&["exec", "--json", "go"]);
    let commands = lines.iter().filter(|line| line["type"] == "item.completed" && line["item"]["type"] == "command_execution");
    let printed: Vec<&Value> = commands.map(|line| &line["item"]["aggregated_output"]).collect();
    assert_eq!(printed, ["yes one\n", "two\n"]);
    let outputs = scene.model.requests().pop().unwrap().body.to_string();
    assert!(!outputs.contains("noise") && !outputs.contains("pyenv"), "{outputs}");
    assert_eq!(std::fs::read_to_string(scene.work.path().join("loads")).unwrap(), "loaded\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_line_has_the_shape_that_clients_know() {
    let patch = json!({"input": "*** Begin Patch\n*** Add File: new.txt\n+hi\n*** End Patch\n"});
    let plan = |status: &str| json!({"plan": [{"step": "look", "status": status}]});
    let thought = json!({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]});
    let scene = Scene::new(vec![
        Reply::Items(vec![thought, call("a", "exec_command", &json!({"cmd": "echo hi; exit 7"}))]),
        Reply::call("b", "apply_patch", &patch),
        Reply::call("c", "update_plan", &plan("in_progress")),
        Reply::call("d", "update_plan", &plan("completed")),
        Reply::call("e", "fly", &json!({})),
        Reply::message("that is all"),
    ])
    .await;
    let lines = scene.lines(&["exec", "--json", "go"]);
    assert!(lines[0]["thread_id"].is_string());
    let path = scene.work.path().join("new.txt");
    let changes = json!([{"path": path, "kind": "add"}]);
    let command = |output: &str, code: Value, status: &str| json!({"id": "item_1", "type": "command_execution", "command": "echo hi; exit 7", "environment_id": "local", "aggregated_output": output, "exit_code": code, "status": status});
    let todo = |done: bool| json!({"id": "item_3", "type": "todo_list", "items": [{"text": "look", "completed": done}]});
    let file =
        |status: &str| json!({"id": "item_2", "type": "file_change", "changes": changes, "environment_id": "local", "status": status});
    let expected = [
        json!({"type": "thread.started", "thread_id": lines[0]["thread_id"], "schema_version": 1}),
        json!({"type": "turn.started"}),
        json!({"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "hm"}}),
        json!({"type": "item.started", "item": command("", Value::Null, "in_progress")}),
        json!({"type": "item.completed", "item": command("hi\n", json!(7), "failed")}),
        json!({"type": "item.started", "item": file("in_progress")}),
        json!({"type": "item.completed", "item": file("completed")}),
        json!({"type": "item.started", "item": todo(false)}),
        json!({"type": "item.updated", "item": todo(true)}),
        json!({"type": "item.completed", "item": {"id": "item_4", "type": "error", "message": "there is no tool `fly`; there are: exec_command, apply_patch, view_image, update_plan, spawn_agent"}}),
        json!({"type": "item.completed", "item": {"id": "item_5", "type": "agent_message", "text": "that is all"}}),
        json!({"type": "item.completed", "item": todo(true)}),
        json!({"type": "turn.completed", "usage": usage(6)}),
    ];
    for (line, expected) in lines.iter().zip(&expected) {
        assert_eq!(line, expected);
    }
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn resuming_keeps_the_thread_and_sums_its_usage() {
    let scene = Scene::new(vec![]).await;
    let first = scene.lines(&["exec", "--experimental-json", "one"]);
    let id = first[0]["thread_id"].as_str().unwrap();
    // Options may stand on both sides of `resume`.
    let second = scene.lines(&["exec", "--json", "resume", id, "two", "--model", "other"]);
    assert_eq!(second[0], first[0]);
    assert_eq!(second.last().unwrap()["usage"], usage(2));
    assert_eq!(scene.model.requests().pop().unwrap().body["model"], "other");
    let last = scene.lines(&["exec", "--json", "resume", "--last", "three"]);
    assert_eq!(last[0], first[0]);
    assert_eq!(last.last().unwrap()["usage"], usage(3));
    let request = scene.model.requests().pop().unwrap().body;
    assert_eq!(request["model"], "other", "what was chosen stays with the thread");
    let all: Vec<Value> = scene.told();
    let texts: Vec<&str> = all.iter().filter_map(|part| part["text"].as_str()).filter(|text| !text.starts_with('<')).collect();
    assert_eq!(texts, ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_outlives_its_call_is_told_to_its_end() {
    let run = |id: &str, cmd: &str| Reply::call(id, "exec_command", &json!({"cmd": cmd, "yield_time_ms": 300}));
    let scene = Scene::new(vec![
        run("a", "echo $$ > pid; echo one; while [ ! -e go ]; do sleep 0.01; done; echo two"),
        // Until its executor has seen it end.
        Reply::call(
            "b",
            "exec_command",
            &json!({"cmd": "touch go; while kill -0 $(cat pid); do sleep 0.01; done", "yield_time_ms": 30000}),
        ),
        run("c", "echo on; sleep 1000"),
    ])
    .await;
    let lines = scene.lines(&["exec", "--json", "go"]);
    let done: Vec<&Value> = lines.iter().filter(|line| line["type"] == "item.completed").map(|line| &line["item"]).collect();
    let of = |id: &str| done.iter().find(|item| item["id"] == id).copied().unwrap_or_else(|| panic!("{id}: {lines:?}"));
    assert_eq!((&of("item_0")["aggregated_output"], &of("item_0")["exit_code"]), (&json!("one\ntwo\n"), &json!(0)));
    // What still runs at the end of the turn has no end that could be told, and goes on after the program.
    assert_eq!((&of("item_2")["exit_code"], &of("item_2")["status"]), (&Value::Null, &json!("failed")));
    let [.., completed, running] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&completed["type"], &running["type"]), (&json!("turn.completed"), &json!("command.running")));
    assert_eq!((&running["command"], &running["environment"]), (&json!("echo on; sleep 1000"), &json!("local")));
    let stopped = scene.run(&["exec", "resume", lines[0]["thread_id"].as_str().unwrap(), "--stop"]);
    assert!(stopped.status.success() && !text(&stopped.stderr).contains("still runs"), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_turn_says_why_and_exits_with_1() {
    let refused = || Reply::status(400, r#"{"error":{"message":"no such thing"}}"#);
    let scene = Scene::new(vec![refused(), refused()]).await;
    let output = scene.run(&["exec", "--json", "go"]);
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output);
    let (error, failed) = (&lines[lines.len() - 2], &lines[lines.len() - 1]);
    assert_eq!((&error["type"], &failed["type"]), (&json!("error"), &json!("turn.failed")));
    assert_eq!(error["message"], failed["error"]["message"]);
    assert!(error["message"].as_str().unwrap().contains("no such thing"));
    let output = scene.run(&["exec", "go"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(text(&output.stderr).contains("no such thing"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_begin_says_so_on_standard_error_only() {
    let scene = Scene::new(vec![]).await;
    let picture = scene.work.path().join("picture.png");
    std::fs::write(&picture, "no picture").unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["exec", "--json"], 1, "there is no prompt"),
        (&["exec", "--json", "resume", "01a1e22e-9532-7255-b7e8-6a7f57d3a45d", "x"], 1, "01a1e22e-9532-7255-b7e8-6a7f57d3a45d"),
        (&["exec", "--json", "resume", "nobody", "x"], 1, "there is no thread `nobody`"),
        (&["exec", "--json", "resume", "--last", "x"], 1, "there is no thread yet"),
        (&["exec", "--json", "--cd", "/no/such", "x"], 1, "/no/such"),
        (&["exec", "--json", "--image", "picture.png", "x"], 1, "not a known kind of picture"),
        (&["exec", "--json", "-c", "model", "x"], 2, "key=value"),
        (&["exec", "--json", "--sandbox", "some", "x"], 2, "read-only"),
        (&["exec", "--json", "-e", "mars", "x"], 1, "there is no environment `mars`"),
    ];
    for (arguments, code, why) in cases {
        let output = scene.run(arguments);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(code), ""), "{arguments:?}: {output:?}");
        assert!(text(&output.stderr).contains(why), "{arguments:?}: {output:?}");
    }
    assert!(scene.model.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_environment_is_3() {
    let scene = Scene::new(vec![]).await;
    let file = "[[environments]]\nid = \"away\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(scene.home.path().join("environments.toml"), file).unwrap();
    let output = scene.run(&["exec", "-e", "away", "x"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_comes_from_the_arguments_from_standard_input_or_from_both() {
    let scene = Scene::new(vec![]).await;
    let cases: [(&[&str], &str, &str); 4] = [
        (&["exec", "argued"], "", "argued"),
        (&["exec"], "piped", "piped"),
        (&["exec", "--", "-"], "piped\n", "piped\n"),
        (&["exec", "argued"], "piped", "argued\n\npiped"),
    ];
    for (arguments, input, expected) in cases {
        let output = scene.piped(arguments, input);
        assert_eq!(text(&output.stdout), "done\n", "{output:?}");
        assert_eq!(scene.told()[0]["text"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schema_picture_and_answer_file_do_what_they_say() {
    let scene = Scene::new(vec![Reply::message("{\"n\":1}")]).await;
    let at = |name: &str| scene.work.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("schema.json"), r#"{"type":"object","properties":{"n":{"type":"number"}}}"#).unwrap();
    std::fs::write(at("picture.png"), outpost_testkit::PIXEL).unwrap();
    let (schema, picture, answer) = (at("schema.json"), at("picture.png"), at("answer.txt"));
    let output = scene.run(&["exec", "--output-schema", &schema, "--image", &picture, "-o", &answer, "--skip-git-repo-check", "look"]);
    assert_eq!(text(&output.stdout), "{\"n\":1}\n");
    assert_eq!(std::fs::read_to_string(answer).unwrap(), "{\"n\":1}");
    let body = scene.model.requests().pop().unwrap().body;
    assert_eq!(body["text"]["format"]["schema"]["properties"]["n"]["type"], "number", "{body}");
    let told = scene.told();
    assert!(told[0]["image_url"].as_str().unwrap().starts_with("data:image/png;base64,iVBORw0K"), "{told:?}");
    assert_eq!(told[1]["text"], "look");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_stand_before_or_after_the_verb_and_the_last_one_counts() {
    let scene = Scene::new(vec![]).await;
    let model = |scene: &Scene| scene.model.requests().pop().unwrap().body["model"].as_str().unwrap().to_owned();
    scene.lines(&["-c", "model=\"first\"", "exec", "--json", "x"]);
    assert_eq!(model(&scene), "first");
    scene.lines(&["-c", "model=first", "exec", "--config", "model=second", "-c", "model_reasoning_effort=low", "--json", "x"]);
    assert_eq!(model(&scene), "second");
    assert_eq!(scene.model.requests().pop().unwrap().body["reasoning"]["effort"], "low");
    let url = scene.model.base_url();
    let provider = ["model_provider=mine".to_owned(), format!("model_providers.mine.base_url=\"{url}\"")];
    scene.lines(&["-c", &provider[0], "exec", "-c", &provider[1], "--json", "x"]);
    assert_eq!(scene.model.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_of_threads_are_listed_and_asked_for() {
    let spawn = Reply::call("s", "spawn_agent", &json!({"message": "child job"}));
    let scene = Scene::new(vec![spawn, Reply::message("one"), Reply::message("two")]).await;
    let own = scene.lines(&["exec", "--json", "--thread-source", "nightly", "go"])[0]["thread_id"].clone();
    let listed = |source: &str| {
        let output = scene.run(&["thread", "list", "--json", "--source", source]);
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        list["threads"].as_array().unwrap().clone()
    };
    let [thread] = &listed("exec")[..] else { panic!("{:?}", listed("exec")) };
    assert_eq!((&thread["id"], &thread["threadSource"]), (&own, &json!("nightly")), "{thread}");
    for spelling in ["subagent", "subAgent"] {
        let [child] = &listed(spelling)[..] else { panic!("{spelling}: {:?}", listed(spelling)) };
        assert_eq!(child["threadSource"], "subagent", "{child}");
        assert_ne!(child["id"], own);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_need_an_answer_is_refused() {
    let wish = json!({"cmd": "touch made", "sandbox_permissions": "require_escalated"});
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &wish)]).await;
    let lines = scene.lines(&["exec", "--json", "-c", "approval_policy=untrusted", "go"]);
    let warning = lines.iter().find(|line| line["item"]["type"] == "error").unwrap();
    assert!(warning["item"]["message"].as_str().unwrap().contains("touch made"), "{warning}");
    assert_eq!(lines.last().unwrap()["type"], "turn.completed");
    assert!(!scene.work.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_that_somebody_would_have_to_grant_are_refused() {
    for (policy, asks) in [("on-request", true), ("never", false)] {
        let wish = json!({"permissions": {"file_system": {"write": ["/srv"]}}});
        let scene = Scene::new(vec![Reply::call("a", "request_permissions", &wish), Reply::message("went on")]).await;
        let setting = format!("approval_policy={policy}");
        let lines = scene.lines(&["exec", "--json", "--sandbox", "read-only", "-c", &setting, "go"]);
        let warning = lines.iter().find(|line| line["item"]["type"] == "error");
        assert_eq!(warning.is_some(), asks, "{lines:?}");
        assert!(warning.is_none_or(|line| line["item"]["message"].as_str().unwrap().contains("write /srv")), "{lines:?}");
        assert_eq!(lines.last().unwrap()["type"], "turn.completed");
        let told = scene.model.requests().pop().unwrap().body.to_string();
        assert!(told.contains(if asks { "The user said no" } else { "no question was asked" }), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cd_moves_a_thread_on_this_machine_also_when_it_is_resumed() {
    let pwd = || Reply::call("a", "exec_command", &json!({"cmd": "pwd"}));
    let scene = Scene::new(vec![pwd(), Reply::message("x"), pwd()]).await;
    let below = scene.work.path().join("below");
    std::fs::create_dir(&below).unwrap();
    let where_to = |lines: &[Value]| {
        let item = lines.iter().find(|line| line["item"]["status"] == "completed").unwrap();
        item["item"]["aggregated_output"].as_str().unwrap().trim().to_owned()
    };
    let first = scene.lines(&["exec", "--json", "go"]);
    assert_eq!(Path::new(&where_to(&first)), scene.work.path().canonicalize().unwrap());
    let id = first[0]["thread_id"].as_str().unwrap();
    let second = scene.lines(&["exec", "--json", "--cd", "below", "--add-dir", "/tmp", "resume", id, "go"]);
    assert_eq!(Path::new(&where_to(&second)), below.canonicalize().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_what_happens_on_standard_error_and_the_answer_on_standard_output() {
    let scene = Scene::new(vec![
        Reply::call("a", "exec_command", &json!({"cmd": "printf '\\033[31mred\\n'; exit 3"})),
        Reply::message("the answer"),
    ])
    .await;
    let output = scene.run(&["exec", "go"]);
    assert_eq!(text(&output.stdout), "the answer\n");
    let told = text(&output.stderr);
    assert!(told.contains("[local] $ printf") && told.contains("exit code 3") && told.contains("red"), "{told}");
    assert!(!told.contains('\x1b'), "nothing that a terminal would obey: {told:?}");
    let output = scene.run(&["exec", "--color", "always", "go"]);
    assert!(text(&output.stderr).contains("\x1b[2mthread"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_of_an_ephemeral_thread() {
    let scene = Scene::new(vec![]).await;
    let lines = scene.lines(&["exec", "--json", "--ephemeral", "go"]);
    let id = lines[0]["thread_id"].as_str().unwrap();
    assert_eq!(scene.run(&["exec", "resume", id, "again"]).status.code(), Some(1));
}

/// As programs pass them that know another command line of this kind.
#[tokio::test(flavor = "multi_thread")]
async fn what_other_programs_put_before_the_verb_is_understood() {
    let scene = Scene::new(vec![]).await;
    let model = |scene: &Scene| scene.model.requests().pop().unwrap().body["model"].as_str().unwrap().to_owned();
    scene.lines(&["--ask-for-approval", "never", "-m", "outer", "--sandbox", "read-only", "exec", "--json", "x"]);
    assert_eq!(model(&scene), "outer");
    scene.lines(&["--dangerously-bypass-approvals-and-sandbox", "-m", "outer", "exec", "--json", "--model", "inner", "x"]);
    assert_eq!(model(&scene), "inner");
    scene.lines(&["--yolo", "--search", "exec", "--enable", "one", "--disable=two", "--yolo", "--json", "x"]);
    let output = scene.run(&["--enable", "one", "exec", "--disable", "two", "x"]);
    assert!(output.status.success() && text(&output.stderr).contains("`features` is not known and has no effect"), "{output:?}");
    for (arguments, why) in [
        (["--enable", "a b", "exec", "x"], "a feature is named by"),
        (["--ask-for-approval", "sometimes", "exec", "x"], "untrusted, on-request and never"),
    ] {
        let output = scene.run(&arguments);
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{output:?}");
    }
}

/// The journal of the only thread of a home, with one line of it spoiled.
fn spoil(home: &Path, line_with: &str) {
    fn find(folder: &Path) -> Option<std::path::PathBuf> {
        std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
            let path = entry.path();
            if path.is_dir() { find(&path) } else { path.extension().is_some_and(|end| end == "jsonl").then_some(path) }
        })
    }
    let journal = find(&home.join("threads")).unwrap();
    let text = std::fs::read_to_string(&journal).unwrap();
    let at = text.find(line_with).unwrap();
    let mut bytes = text.into_bytes();
    bytes[at] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_thread_is_told_when_it_is_resumed() {
    let scene = Scene::new(vec![Reply::message("one"), Reply::message("two"), Reply::message("three"), Reply::message("four")]).await;
    let id = scene.lines(&["exec", "--json", "first words"])[0]["thread_id"].as_str().unwrap().to_owned();
    spoil(scene.home.path(), "first words");
    let lines = scene.lines(&["exec", "--json", "resume", &id, "second"]);
    let told = lines.iter().find(|line| line["item"]["type"] == "error").unwrap_or_else(|| panic!("{lines:?}"));
    assert!(told["item"]["message"].as_str().unwrap().contains("cannot be read"), "{told}");
    // Each time that it is opened, and for people, too.
    let output = scene.run(&["exec", "resume", &id, "third"]);
    assert!(output.status.success() && text(&output.stderr).contains("cannot be read"), "{output:?}");
    let verified = scene.run(&["thread", "verify"]);
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    assert!(text(&scene.run(&["thread", "list"]).stdout).contains("damaged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_lost_is_told() {
    let waits = "echo x > ready; until [ -e go ]; do sleep 0.02; done";
    let scene =
        Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": waits, "yield_time_ms": 30000})), Reply::message("done")]).await;
    std::fs::write(scene.work.path().join(".envrc"), "old").unwrap();
    let mut command = scene.command(&["exec", "--json", "--sandbox", "workspace-write", "--skip-git-repo-check", "go"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let at = |name: &str| scene.work.path().join(name);
    outpost_testkit::executor::eventually("the command runs", || at("ready").exists()).await;
    std::fs::write(at("aside"), "new").unwrap();
    std::fs::rename(at("aside"), at(".envrc")).unwrap();
    let told = lines.find(|line| line.contains(".envrc")).expect("nothing was told");
    assert!(told.contains("\"error\"") && told.contains("held again"), "{told}");
    std::fs::write(at("go"), "").unwrap();
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}

/// A turn that ends with nothing, with a refusal or with a failure is none that went well, on whichever wire.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_empty_or_refused_exits_with_one() {
    let refused = json!({"type": "message", "id": "msg", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]});
    for (wire, replies, told) in [
        ("responses", vec![Reply::Items(vec![]), Reply::Items(vec![])], "neither text nor a tool call"),
        ("chat", vec![Reply::Items(vec![]), Reply::Items(vec![])], "neither text nor a tool call"),
        ("anthropic", vec![Reply::Items(vec![]), Reply::Items(vec![])], "neither text nor a tool call"),
        ("responses", vec![Reply::Items(vec![refused])], "the model refused to answer: I cannot."),
        (
            "anthropic",
            vec![Reply::Body { headers: vec![], body: b"<title>Sign in</title>".to_vec() }],
            "a web page with the title `Sign in`",
        ),
    ] {
        let scene = Scene::speaking(wire, replies).await;
        let output = scene.run(&["exec", "do it"]);
        assert_eq!(output.status.code(), Some(1), "{wire}: {output:?}");
        assert!(text(&output.stderr).contains(told), "{wire}: {}", text(&output.stderr));
    }
}

/// A model that lists an empty directory in the sandbox sees what keeps protected names from being made there: two placeholders and the
/// layer of git, all of them hidden, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_has_three_hidden_names_in_a_sandbox() {
    let list = call("a", "exec_command", &json!({"cmd": "ls -A; echo --; ls", "login": false}));
    let scene = Scene::new(vec![Reply::Items(vec![list]), Reply::message("Nothing.")]).await;
    let place = tempfile::tempdir().unwrap();
    let mut command = scene.command(&["exec", "-c", "sandbox_mode=workspace-write", "what is here?"]);
    command.current_dir(place.path()).env("HOME", scene.home.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let body = scene.model.requests().remove(1).body;
    let told = body["input"].as_array().unwrap().iter().find_map(|item| item["output"].as_str()).unwrap().to_owned();
    assert!(told.ends_with(".agents\n.codex\n.git\n--\n"), "{told}");
}

/// The keeper that the first program started is still there for the second one, whose commands must not get its rights.
#[tokio::test]
async fn commands_get_the_umask_and_the_limits_of_their_own_program() {
    let scene = Scene::new(vec![]).await;
    let made = |before: &str, file: &str| {
        let run = format!("{before}; exec {OUTPOST} exec --provider offline '$ umask > {file}; ulimit -t >> {file}'");
        let mut shell = Command::new("sh");
        shell.args(["-c", &run]).current_dir(scene.work.path()).stdin(Stdio::null());
        shell.env("OUTPOST_HOME", scene.home.path()).env("HOME", scene.work.path());
        for name in OWN_VARIABLES {
            shell.env_remove(name);
        }
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        std::fs::read_to_string(scene.work.path().join(file)).unwrap()
    };
    assert_eq!(made("umask 022", "one"), "0022\nunlimited\n");
    assert_eq!(made("umask 077", "two"), "0077\nunlimited\n");
    assert_eq!(made("umask 022; ulimit -t 5000", "three"), "0022\n5000\n");
}
