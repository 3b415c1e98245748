//! The twenty small tasks of `cargo xtask models`, with a scripted model that makes each known mistake of weak models once and then does
//! the right thing; with models that never do; and with answers as models of 20 to 30 billion parameters write them. Every run ends by
//! itself, and none exits with 0 while its task is not done.

use std::path::Path;
use std::process::{Command, Stdio};

use outpost_testkit::model::{Reply, ScriptedModel, call, message};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::OUTPOST;

#[derive(Deserialize)]
struct Task {
    name: String,
    prompt: String,
    machines: usize,
    /// What is there before; `box:` stands in front of what is on the second machine.
    files: std::collections::BTreeMap<String, String>,
    /// A shell command that succeeds when the task is done; `BOX` is the directory of the second machine.
    check: String,
    mistake: String,
    /// One call in each answer of a model that can do it.
    steps: Vec<Step>,
}

#[derive(Deserialize, Clone)]
struct Step {
    tool: String,
    arguments: Value,
}

/// A call that a model wrote as text, as a public issue shows it.
#[derive(Deserialize)]
struct Answer {
    model: String,
    shape: String,
    text: String,
}

fn tasks() -> Vec<Task> {
    fixture("tasks.json")
}

fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// A home, and a directory for each machine.
struct Scene {
    home: TempDir,
    here: TempDir,
    there: TempDir,
    model: ScriptedModel,
}

impl Scene {
    async fn new(task: &Task, wire: &str, replies: Vec<Reply>) -> Self {
        Self::with_quirks(task, wire, replies, "\"text_calls\"").await
    }

    async fn with_quirks(task: &Task, wire: &str, replies: Vec<Reply>, quirks: &str) -> Self {
        let model = ScriptedModel::with(replies).await;
        let [home, here, there] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\n[model_providers.scripted]\n\
             base_url = \"{}\"\nwire_api = \"{wire}\"\nrequest_max_retries = 0\nstream_max_retries = 0\nquirks = [{quirks}]\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        if task.machines > 1 {
            let other =
                format!("[[environments]]\nid = \"box\"\nprogram = \"{OUTPOST}\"\nargs = [\"executor\", \"--listen\", \"stdio\"]\n");
            std::fs::write(home.path().join("environments.toml"), other).unwrap();
        }
        for (path, content) in &task.files {
            let file = match path.strip_prefix("box:") {
                Some(path) => there.path().join(path),
                None => here.path().join(path),
            };
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        Self { home, here, there, model }
    }

    /// Adds tables to the configuration.
    fn configure(&self, tables: &str) {
        let file = self.home.path().join("config.toml");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, before + tables).unwrap();
    }

    /// Says in the configuration what is known of the model.
    fn know(&self, facts: &str) {
        let file = self.home.path().join("config.toml");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, before.replace("models.scripted = {}", &format!("models.scripted = {{ {facts} }}"))).unwrap();
    }

    /// Runs the task; the exit code, what was told, and whether it is done.
    fn run(&self, task: &Task) -> (Option<i32>, String, bool) {
        let mut command = Command::new(OUTPOST);
        command.args(["exec", "-e", &format!("local={}", self.here.path().display())]);
        if task.machines > 1 {
            command.args(["-e", &format!("box={}", self.there.path().display())]);
        }
        command.arg(&task.prompt).current_dir(self.here.path()).stdin(Stdio::null());
        command.env("OUTPOST_HOME", self.home.path()).env("HOME", self.home.path());
        for name in ["OPENAI_API_KEY", "CODEX_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OUTPOST_EXEC_SERVER_URL"] {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let check = Command::new("sh").args(["-c", &task.check]).current_dir(self.here.path()).env("BOX", self.there.path()).output();
        (output.status.code(), told, check.unwrap().status.success())
    }
}

/// The call of a step, as the API of its wire would give it.
fn right(step: &Step, id: &str) -> Value {
    call(id, &step.tool, &step.arguments)
}

/// What a model that makes this mistake answers before it answers as it should, and from which of its steps on that is.
fn wrong(mistake: &str, first: &Step) -> (Vec<Reply>, usize) {
    let (tool, arguments) = (&first.tool, &first.arguments);
    let spoken = |text: String| (vec![Reply::message(&text)], 1);
    let patch = || arguments["input"].as_str().unwrap().to_owned();
    let patched = |text: &str| (vec![Reply::Items(vec![call("p", "apply_patch", &json!({"input": text}))])], 1);
    let before = |items: Vec<Value>| (vec![Reply::Items(items)], 0);
    let whole = json!({"name": tool, "arguments": arguments});
    match mistake {
        "fencedCall" => spoken(format!("I create it:\n```json\n{whole}\n```")),
        "toolCallTag" => spoken(format!("<tool_call>\n{whole}\n</tool_call>")),
        "xmlCall" => {
            let cmd = arguments["cmd"].as_str().unwrap();
            spoken(format!("<tool_call>\n<function={tool}>\n<parameter=cmd>\n{cmd}\n</parameter>\n</function>\n</tool_call>"))
        }
        "channelCall" => spoken(format!("<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>{arguments}<|call|>")),
        "argKeyCall" => {
            let pair =
                |(key, value): (&String, &Value)| format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", value.as_str().unwrap());
            let pairs: String = arguments.as_object().unwrap().iter().map(pair).collect();
            spoken(format!("<tool_call>{tool}\n{pairs}</tool_call>"))
        }
        // Patches that mean one thing only.
        "endOfFile" => patched(&patch().replace("\n*** End Patch", "\n*** End of File\n*** End Patch")),
        "noEndPatch" => patched(patch().trim_end_matches("*** End Patch")),
        "fencedPatch" => {
            let (replies, from) = (vec![Reply::Items(vec![right(first, "a")])], 1);
            let fenced = Reply::Items(vec![call(
                "p",
                "apply_patch",
                &json!({"input": "```diff\n*** Begin Patch\n*** Update File: main.sh\n@@ -1,1 +1,1 @@\n-ecoh ok\n+echo ok\n*** End Patch\n```"}),
            )]);
            ([replies, vec![fenced]].concat(), from + 1)
        }
        "unifiedDiff" => {
            patched("--- a/config.ini\n+++ b/config.ini\n@@ -1,3 +1,3 @@\n name = web\n-port = 80\n+port = 8080\n user = www\n")
        }
        // One that could mean two things is answered with how it must be written.
        "mixedPatch" => before(vec![call("p", "apply_patch", &json!({"input": patch().replace("\n level", "\nlevel")}))]),
        "emptyAnswer" => (vec![Reply::Items(vec![])], 0),
        "promise" => (vec![Reply::message("I'll count the lines now.")], 0),
        "truncatedAnswer" => {
            let cut = json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"name": tool, "arguments": "{\"cmd\": \"rm -r"}}]}, "finish_reason": "length"}]});
            (vec![Reply::Chunks(vec![cut])], 0)
        }
        "wrongArgument" => before(vec![call("w", tool, &json!({"command": arguments["cmd"]}))]),
        "unknownTool" => before(vec![call("w", "run_shell_command", arguments)]),
        "brokenJson" => before(vec![json!({"type": "function_call", "call_id": "w", "name": tool, "arguments": "{\"cmd\": "})]),
        "unknownEnvironment" => before(vec![call("w", tool, &json!({"cmd": arguments["cmd"], "environment_id": "the box"}))]),
        "inventedSession" => (vec![Reply::call("w", "write_stdin", &json!({"session_id": 12345, "chars": ""})); 4], 0),
        "repeatedCall" => (vec![Reply::Items(vec![right(first, "r")]); 4], 1),
        "twoCallsOneId" => {
            before(vec![call("d", "exec_command", &json!({"cmd": "ls"})), call("d", "exec_command", &json!({"cmd": "cat names.txt"}))])
        }
        "spokenUnknownTool" => {
            let call = json!({"name": "delete_file", "arguments": {"path": "old.log"}});
            (vec![Reply::message(&format!("I'll delete it:\n```json\n{call}\n```"))], 0)
        }
        "spokenBrokenCall" => {
            let call = "{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"mv \" + \"draft.txt final.txt\"}}";
            (vec![Reply::message(&format!("I'll rename it:\n```json\n{call}\n```"))], 0)
        }
        // It runs on the primary environment, and what it did there has to be taken back.
        "noEnvironment" => {
            let here = |id: &str, cmd: Value| Reply::call(id, tool, &json!({"cmd": cmd}));
            (vec![here("w", arguments["cmd"].clone()), here("u", "rm there.txt".into())], 0)
        }
        other => panic!("{other}"),
    }
}

/// Mistakes beside those that the tasks name, each with the task that it is made on.
const MORE: [(&str, &str); 3] = [("delete", "spokenUnknownTool"), ("rename", "spokenBrokenCall"), ("two-machines", "noEnvironment")];

/// Every mistake with the task that it is made on.
fn mistakes() -> Vec<Task> {
    let more = MORE.map(|(name, mistake)| Task { mistake: mistake.into(), ..task(name) });
    tasks().into_iter().chain(more).collect()
}

fn task(name: &str) -> Task {
    tasks().into_iter().find(|task| task.name == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_is_done_in_spite_of_its_mistake() {
    for (index, task) in mistakes().iter().enumerate() {
        // What is cut off is written in the words of one wire.
        let wire = if task.mistake == "truncatedAnswer" { "chat" } else { ["responses", "chat", "anthropic"][index % 3] };
        let (mut replies, from) = wrong(&task.mistake, &task.steps[0]);
        replies.extend(task.steps.iter().enumerate().skip(from).map(|(n, step)| Reply::Items(vec![right(step, &format!("s{n}"))])));
        replies.push(Reply::message("Done."));
        let asked = replies.len();
        let scene = Scene::new(task, wire, replies).await;
        let (code, told, done) = scene.run(task);
        assert_eq!((code, done), (Some(0), true), "{} on {wire} ({}): {told}", task.name, task.mistake);
        assert_eq!(scene.model.requests().len(), asked, "{}: every answer was asked for", task.name);
    }
}

/// A model that gets nowhere: the turn ends, and says that it failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_not_done_exits_with_one() {
    let tasks = tasks();
    let stuck = |task: &Task, reply: Reply| (task.name.clone(), vec![reply; 8]);
    let wrong_patch = json!({"input": "*** Begin Patch\n*** Add File: hello.txt\n+hello\nworld\n*** End Patch"});
    let runs = [
        stuck(&tasks[0], Reply::call("p", "apply_patch", &wrong_patch)),
        stuck(&tasks[3], Reply::Items(vec![])),
        stuck(&tasks[4], Reply::call("s", "write_stdin", &json!({"session_id": 12345}))),
        stuck(&tasks[8], Reply::call("u", "delete_file", &json!({"path": "old.log"}))),
        // A call as text, and broken.
        stuck(&tasks[15], Reply::message("{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"sh -c 'echo \" + \"add.sh\"}}")),
        stuck(&tasks[17], Reply::call("e", "exec_command", &json!({"cmd": "touch there.txt", "environment_id": "remote"}))),
        // Without an environment it runs on the primary one.
        stuck(&tasks[17], Reply::call("l", "exec_command", &json!({"cmd": "echo there > there.txt"}))),
    ];
    for (name, replies) in runs {
        let task = tasks.iter().find(|task| task.name == name).unwrap();
        let scene = Scene::new(task, "chat", replies).await;
        let (code, told, done) = scene.run(task);
        assert_eq!((code, done), (Some(1), false), "{name}: {told}");
        assert!(scene.model.requests().len() <= 6, "{name}: at most six calls that are the same");
    }
}

/// A model that makes its mistake for ever, and never does anything else, with the quirk that takes calls in text and without: whatever comes
/// of it, no run exits with 0 while its task is not done.
#[tokio::test(flavor = "multi_thread")]
async fn no_mistake_that_is_made_for_ever_exits_with_zero_undone() {
    for (index, task) in mistakes().iter().enumerate() {
        let wire = if task.mistake == "truncatedAnswer" { "chat" } else { ["anthropic", "responses", "chat"][index % 3] };
        let (replies, _) = wrong(&task.mistake, &task.steps[0]);
        let again: Vec<Reply> = replies.iter().cycle().take(24).cloned().collect();
        // Without the quirk, text that names no tool of the program is what it is.
        let is_text = task.mistake.starts_with("spoken");
        for quirks in ["\"text_calls\"", ""].into_iter().filter(|quirks| !is_text || !quirks.is_empty()) {
            let scene = Scene::with_quirks(task, wire, again.clone(), quirks).await;
            // Mistakes that come by turns are no call that is made again and again: the budget ends them.
            scene.configure("[budgets]\nturn_steps = 12\n");
            let (code, told, done) = scene.run(task);
            assert!(code == Some(1) || code == Some(0) && done, "{} on {wire} ({}), [{quirks}]: {code:?}: {told}", task.name, task.mistake);
            assert!(scene.model.requests().len() <= 12, "{} ({}): {} requests", task.name, task.mistake, scene.model.requests().len());
        }
    }
}

/// What public issues show of models that people run at home, on a real task.
#[tokio::test(flavor = "multi_thread")]
async fn every_recorded_shape_of_a_call_does_its_task() {
    let tasks = tasks();
    let task = tasks.iter().find(|task| task.name == "run").unwrap();
    for (index, answer) in fixture::<Vec<Answer>>("answers.json").iter().enumerate() {
        let wire = ["chat", "responses", "anthropic"][index % 3];
        let scene = Scene::new(task, wire, vec![Reply::message(&answer.text), Reply::message("Done.")]).await;
        let (code, told, done) = scene.run(task);
        assert_eq!((code, done), (Some(0), true), "{}, {} on {wire}: {told}", answer.model, answer.shape);
        assert!(told.contains("text_calls"), "{told}");
    }
}

/// The answers tell the model what it needs to get on.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_answered_with_what_is_right() {
    let tasks = tasks();
    let task = |mistake: &str| tasks.iter().find(|task| task.mistake == mistake).unwrap();
    for (mistake, told) in [
        ("unknownEnvironment", "box"),
        ("inventedSession", "no command is running behind a session id"),
        ("unknownTool", "exec_command"),
        ("wrongArgument", "`cmd`"),
        ("mixedPatch", r"-debug = true\n level = 3"),
    ] {
        let task = task(mistake);
        let (mut replies, _) = wrong(mistake, &task.steps[0]);
        replies.truncate(1);
        replies.push(Reply::Items(vec![message("I give up.")]));
        let scene = Scene::new(task, "chat", replies).await;
        scene.run(task);
        let requests = scene.model.requests();
        let messages = requests[1].body["messages"].as_array().unwrap();
        let answer = messages.iter().rev().find(|message| message["role"] == "tool").unwrap()["content"].to_string();
        assert!(answer.contains(told), "{mistake}: {answer}");
    }
}

/// What the configuration says of a model decides what it is asked with, on every wire.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_asked_as_the_configuration_says_that_it_is() {
    let task = task("run");
    for wire in ["chat", "responses", "anthropic"] {
        for able in [true, false] {
            let scene = Scene::new(&task, wire, vec![]).await;
            scene.know(&format!("parallel_calls = {able}, vision = {able}"));
            scene.run(&task);
            let body = scene.model.requests().remove(0).body;
            let one_call = match wire {
                "anthropic" => body["tool_choice"]["disable_parallel_tool_use"] == true,
                _ => body["parallel_tool_calls"] == false,
            };
            assert_eq!(one_call, !able, "{wire}: {body:#}");
            let name = |tool: &Value| tool["name"].as_str().or(tool["function"]["name"].as_str()).unwrap_or_default().to_owned();
            let offered: Vec<String> = body["tools"].as_array().unwrap().iter().map(name).collect();
            assert!(offered.contains(&"exec_command".to_owned()), "{wire}: {offered:?}");
            assert_eq!(offered.contains(&"view_image".to_owned()), able, "{wire}: {offered:?}");
        }
    }
}

/// What is sent with every request is paid with every request, and a small model reads it badly. 4,200 bytes are about 1,150 tokens by
/// llama.cpp's count; two environments need a little more.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_is_small() {
    let tasks = tasks();
    for (name, ceiling) in [("create", 4200), ("two-machines", 5000)] {
        let task = tasks.iter().find(|task| task.name == name).unwrap();
        let scene = Scene::new(task, "chat", vec![]).await;
        scene.run(task);
        let body = scene.model.requests().remove(0).body;
        let offered: Vec<&str> = body["tools"].as_array().unwrap().iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        assert_eq!(offered, ["exec_command", "apply_patch", "view_image", "update_plan", "spawn_agent"], "nothing that cannot be used now");
        let size = body.to_string().len();
        assert!(size <= ceiling, "{name}: {size} bytes");
    }
}
