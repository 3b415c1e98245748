//! What clients of the app server see of MCP servers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::OUTPOST;
use crate::support::SERVER;

/// An app server on pipes.
struct App {
    child: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
    next: i64,
    home: TempDir,
    work: TempDir,
    /// What came while something else was waited for.
    heard: Vec<Value>,
    model: ScriptedModel,
}

impl App {
    async fn start(replies: Vec<Reply>) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(home.path().join("config.toml"), config(&model, "")).unwrap();
        let mut child = Command::new(OUTPOST)
            .arg("app-server")
            .current_dir(work.path())
            .env("OUTPOST_HOME", home.path())
            .env_remove("OUTPOST_EXEC_SERVER_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take().unwrap();
        let mut app = Self { child, input, lines, next: 0, home, work, heard: vec![], model };
        let hello = json!({"clientInfo": {"name": "t", "title": "t", "version": "1"}, "capabilities": {"experimentalApi": true}});
        app.ask("initialize", hello).unwrap();
        app.send(&json!({"method": "initialized"}));
        app
    }

    fn configure(&self, more: &str) {
        std::fs::write(self.home.path().join("config.toml"), config(&self.model, more)).unwrap();
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
        self.input.flush().unwrap();
    }

    fn hear(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        if let Some(at) = self.heard.iter().position(&mut wanted) {
            return self.heard.remove(at);
        }
        loop {
            let message = self.lines.recv_timeout(Duration::from_secs(60)).expect("the server says nothing");
            if wanted(&message) {
                return message;
            }
            self.heard.push(message);
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"id": id, "method": method, "params": params}));
        let answer = self.hear(|message| message["id"] == id && message.get("method").is_none());
        match answer.get("error") {
            Some(error) => Err(error["message"].as_str().unwrap().to_owned()),
            None => Ok(answer["result"].clone()),
        }
    }

    fn notification(&mut self, method: &str) -> Value {
        self.hear(|message| message["method"] == method)["params"].clone()
    }

    fn thread(&mut self, servers: Value) -> String {
        let cwd = self.work.path().display().to_string();
        let started = self.ask("thread/start", json!({"cwd": cwd, "config": {"mcp_servers": servers}})).unwrap();
        started["thread"]["id"].as_str().unwrap().to_owned()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(model: &ScriptedModel, more: &str) -> String {
    let mut text = String::from(
        "model = \"m\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"on-request\"\n",
    );
    write!(text, "[model_providers.scripted]\nbase_url = \"{}\"\nwire_api = \"responses\"\n{more}\n", model.base_url()).unwrap();
    text
}

fn server() -> Value {
    json!({"command": "python3", "args": [SERVER, "good"], "startup_timeout_sec": 30, "required": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn s89_a_client_lists_calls_reads_and_reloads() {
    let mut app = App::start(vec![]).await;
    let thread = app.thread(json!({"mine": server()}));
    let listed = app.ask("mcpServerStatus/list", json!({"threadId": thread})).unwrap();
    let mine = &listed["data"][0];
    assert_eq!((&mine["name"], &mine["runtimeStatus"], &mine["authStatus"]), (&json!("mine"), &json!("connected"), &json!("unsupported")));
    assert_eq!((&mine["tools"]["echo"]["name"], &mine["environmentId"]), (&json!("echo"), &json!("local")));
    assert_eq!(mine["resources"][0]["uri"], "memo:one");
    let called =
        app.ask("mcpServer/tool/call", json!({"threadId": thread, "server": "mine", "tool": "echo", "arguments": {"text": "hi"}})).unwrap();
    assert_eq!(called["content"][0]["text"], "hi");
    let read = app.ask("mcpServer/resource/read", json!({"threadId": thread, "server": "mine", "uri": "memo:one"})).unwrap();
    assert_eq!(read["contents"][0]["text"], "the memo");
    let unknown = app.ask("mcpServer/tool/call", json!({"threadId": thread, "server": "none", "tool": "x"})).unwrap_err();
    assert!(unknown.contains("there is no MCP server `none`; there are: mine"), "{unknown}");

    app.configure(&format!("[mcp_servers.file]\ncommand = \"python3\"\nargs = [\"{SERVER}\"]\n"));
    app.ask("config/mcpServer/reload", json!({})).unwrap();
    let names = |listed: &Value| {
        listed["data"].as_array().unwrap().iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&app.ask("mcpServerStatus/list", json!({"threadId": thread})).unwrap()), ["file", "mine"]);
    // Nothing else of the file is taken up by a thread that runs.
    let other = config(&app.model, &format!("[mcp_servers.file]\ncommand = \"python3\"\nargs = [\"{SERVER}\"]\n"));
    std::fs::write(app.home.path().join("config.toml"), other.replace("model = \"m\"", "model = \"other\"")).unwrap();
    app.ask("config/mcpServer/reload", json!({})).unwrap();
    app.ask("turn/start", json!({"threadId": thread, "input": [{"type": "text", "text": "go"}]})).unwrap();
    app.notification("turn/completed");
    assert_eq!(app.model.requests().last().unwrap().body["model"], "m");

    app.configure("[mcp_servers.file]\ncommand = 3\n");
    let broken = app.ask("config/mcpServer/reload", json!({})).unwrap_err();
    assert!(broken.contains("mcp_servers.file"), "{broken}");
    assert_eq!(
        names(&app.ask("mcpServerStatus/list", json!({"threadId": thread, "detail": "toolsAndAuthOnly"})).unwrap()),
        ["file", "mine"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_hears_of_calls_and_is_asked() {
    let replies = vec![
        Reply::call("p", "mcp__mine__progress", &json!({})),
        Reply::call("d", "mcp__mine__destroy", &json!({})),
        Reply::call("a", "mcp__mine__ask", &json!({})),
    ];
    let mut app = App::start(replies).await;
    let thread = app.thread(json!({"mine": server()}));
    app.ask("turn/start", json!({"threadId": thread, "input": [{"type": "text", "text": "go"}]})).unwrap();
    let started = app.notification("mcpServer/startupStatus/updated");
    assert_eq!((&started["name"], &started["status"]), (&json!("mine"), &json!("ready")));
    // The second note may overtake the first, which is then left out.
    let progress = app.notification("item/mcpToolCall/progress");
    assert!(["step 1", "step 2"].contains(&progress["message"].as_str().unwrap()), "{progress}");

    let may = app.hear(|message| message["method"] == "mcpServer/elicitation/request");
    assert_eq!((&may["params"]["serverName"], &may["params"]["_meta"]["tool_name"]), (&json!("mine"), &json!("destroy")));
    app.send(&json!({"id": may["id"], "result": {"action": "accept", "content": {}}}));
    let which = app.hear(|message| message["method"] == "mcpServer/elicitation/request");
    assert_eq!((&which["params"]["mode"], &which["params"]["message"]), (&json!("form"), &json!("Which colour?")));
    assert_eq!(which["params"]["requestedSchema"]["required"], json!(["colour"]));
    app.send(&json!({"id": which["id"], "result": {"action": "accept", "content": {"colour": "blue"}}}));
    app.notification("turn/completed");
    let is_asked = |message: &Value| message["method"] == "item/completed" && message["params"]["item"]["tool"] == "ask";
    let item = app.hear(is_asked)["params"]["item"].clone();
    assert_eq!((&item["type"], &item["status"], &item["server"]), (&json!("mcpToolCall"), &json!("completed"), &json!("mine")));
    assert!(item["result"]["content"][0]["text"].as_str().unwrap().contains("blue"), "{item}");
    assert!(item["durationMs"].is_u64() && item["environmentId"] == "local", "{item}");
}
