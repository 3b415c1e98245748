//! Clients of others on our front doors, unchanged. `cargo xtask test` installs them and names their directory in
//! `OUTPOST_TEST_CLIENTS`; what each of them does is in `clients/`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::OUTPOST;

fn clients() -> PathBuf {
    PathBuf::from(std::env::var_os("OUTPOST_TEST_CLIENTS").expect("run these tests with `cargo xtask test`"))
}

/// Where a client works, and the model that its agent asks.
struct Desk {
    model: ScriptedModel,
    home: TempDir,
    work: TempDir,
}

impl Desk {
    async fn new(replies: Vec<Reply>) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"scripted-model\"\nmodels.scripted-model = {{}}\nmodel_provider = \"scripted\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
             [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}\"\nwire_api = \"responses\"\n\
             request_max_retries = 0\nstream_max_retries = 0\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        Self { model, home, work }
    }

    /// Runs a client's script, which ends well or says what it missed.
    async fn run(&self, mut command: Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home.path())
            .env("OUTPOST_HOME", self.home.path())
            .env("OUTPOST", OUTPOST)
            .env("WORK", self.work.path())
            .env("NO_PROXY", "127.0.0.1")
            .current_dir(self.work.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(100), command.output()).await.expect("the client hangs").unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(output.status.success(), "{}\n{} requests to the model", String::from_utf8_lossy(&said), self.model.requests().len());
    }

    async fn python(&self, script: &str) {
        let mut command = Command::new(clients().join("python/bin/python"));
        command.arg(here().join(script));
        self.run(command).await;
    }

    async fn node(&self, script: &str) {
        // Beside the packages, because that is where a script looks for them.
        let beside = clients().join(script);
        std::fs::copy(here().join(script), &beside).unwrap();
        let mut command = Command::new("node");
        command.arg(beside);
        self.run(command).await;
    }
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/clients")
}

/// A command that leaves a trace, and an answer.
fn where_are_you() -> [Reply; 2] {
    [Reply::call("where", "exec_command", &json!({"cmd": "echo ran-once; pwd"})), Reply::streamed("I am there.")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_sdk() {
    let mut replies = Vec::from(where_are_you());
    let waiting = json!({"cmd": "while ! test -e go; do sleep 0.05; done", "yield_time_ms": 20000});
    replies.extend([
        Reply::streamed("one two three"),
        Reply::Silent(String::new()),
        Reply::call("wait", "exec_command", &waiting),
        Reply::message("steered"),
        Reply::status(400, r#"{"error": {"message": "no such model"}}"#),
        Reply::message("forked"),
        Reply::message("again"),
        Reply::message("asynchronous"),
    ]);
    let desk = Desk::new(replies).await;
    desk.python("python_sdk.py").await;
    assert_eq!(desk.model.requests().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_typescript_sdk() {
    let mut replies = Vec::from(where_are_you());
    replies.extend([
        Reply::message("the same thread"),
        Reply::streamed("one two three"),
        Reply::status(400, r#"{"error": {"message": "no such model"}}"#),
        Reply::message(r#"{"n":1}"#),
        Reply::Silent(String::new()),
    ]);
    let desk = Desk::new(replies).await;
    desk.node("typescript_sdk.mjs").await;
    let asked = desk.model.requests();
    assert_eq!(asked[5].body["text"]["format"]["type"], "json_schema", "{}", asked[5].body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_editor_through_the_acp_adapter() {
    let escalated = json!({"cmd": "touch made", "sandbox_permissions": "require_escalated", "justification": "it has to be made"});
    let replies = where_are_you().map(|reply| ("say where you are", reply)).into_iter().chain([
        ("this one never ends", Reply::Silent(String::new())),
        ("leave the sandbox", Reply::call("leave", "exec_command", &escalated)),
        ("leave the sandbox", Reply::streamed("It is made.")),
    ]);
    // The adapter asks the model questions of its own in between.
    let desk = Desk::new(Vec::new()).await;
    for (said, reply) in replies {
        desk.model.push_for(&format!("\"text\":\"{said}\""), reply);
    }
    desk.node("acp.mjs").await;
    assert!(desk.work.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_of_the_ai_sdk() {
    let desk = Desk::new(Vec::new()).await;
    // Its script says when the client listens to a turn.
    let when = |file: &str, reply: Reply| desk.model.push(Reply::Once(desk.work.path().join(file), Box::new(reply)));
    let [call, answer] = where_are_you();
    when("listens-1", call);
    desk.model.push(answer);
    when("listens-2", Reply::streamed("the same thread"));
    desk.node("ai_sdk.mjs").await;
}

/// This one cannot be told not to put a feature on the command line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_that_enables_features() {
    let mut replies = Vec::from(where_are_you());
    replies.push(Reply::streamed("one two three"));
    let desk = Desk::new(replies).await;
    desk.python("python_features.py").await;
    let config = std::fs::read_to_string(desk.home.path().join("config.toml")).unwrap();
    assert!(config.contains("model_reasoning_effort = \"high\"") && config.contains("skill/SKILL.md"), "{config}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_of_both_doors() {
    let mut replies = Vec::from(where_are_you());
    replies.extend([Reply::message("the same thread"), Reply::message("said"), Reply::message("a summary")]);
    let desk = Desk::new(replies).await;
    desk.python("python_both_doors.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_of_the_ai_sdk_for_both_doors() {
    let mut replies = Vec::from(where_are_you());
    replies.push(Reply::message("with options"));
    replies.extend(where_are_you());
    replies.push(Reply::status(400, r#"{"error": {"message": "no such model"}}"#));
    let desk = Desk::new(replies).await;
    desk.node("ai_sdk_cli.mjs").await;
}
