//! `outpost exec` with servers in `config.toml`.

use std::fmt::Write as _;
use std::process::{Command, Output, Stdio};

use outpost_testkit::executor::{ExecutorProcess, eventually};
use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::OUTPOST;
use crate::http::HttpServer;
use crate::support::{SERVER, living, starts};

struct Stage {
    home: TempDir,
    work: TempDir,
    model: ScriptedModel,
}

impl Stage {
    async fn new(replies: Vec<Reply>, servers: &str) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = String::from("model = \"m\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\n");
        write!(config, "[model_providers.scripted]\nbase_url = \"{}\"\nwire_api = \"responses\"\n{servers}\n", model.base_url()).unwrap();
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        Self { home, work, model }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.arg("exec").args(arguments).current_dir(self.work.path()).env("OUTPOST_HOME", self.home.path());
        command.env_remove("OUTPOST_EXEC_SERVER_URL").stdin(Stdio::null());
        command
    }

    async fn exec(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

#[tokio::test]
async fn a_server_of_the_configuration_is_used_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("starts");
    let servers = format!(
        "[mcp_servers.tools]\ncommand = \"python3\"\nargs = [\"{SERVER}\"]\nstartup_timeout_sec = 20\nrequired = true\nenv = {{ STARTS = \"{}\" }}\n",
        file.display()
    );
    let stage =
        Stage::new(vec![Reply::call("a", "mcp__tools__echo", &json!({"text": "over here"})), Reply::message("heard it")], &servers).await;
    let output = stage.exec(&["go"]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "heard it");
    assert!(stage.model.requests()[1].body["input"].to_string().contains("over here"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("[local] tools echo"), "{output:?}");
    assert_eq!(starts(&file).len(), 1);
    eventually("it is ended", || living(&file) == 0).await;
}

/// The session on the other machine outlives the program; the server that nobody speaks to any more does not.
#[tokio::test]
async fn a_server_that_a_killed_program_left_behind_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("starts");
    let worker = ExecutorProcess::start(std::path::Path::new(OUTPOST), &["--no-auth"]);
    let servers = format!(
        "[mcp_servers.tools]\ncommand = \"python3\"\nargs = [\"{SERVER}\"]\nenvironment_id = \"worker\"\nrequired = true\nenv = {{ STARTS = \"{}\" }}\n",
        file.display()
    );
    let replies = vec![Reply::Silent(String::new()), Reply::call("a", "mcp__tools__echo", &json!({"text": "x"})), Reply::message("done")];
    let stage = Stage::new(replies, &servers).await;
    let environments = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", worker.url());
    std::fs::write(stage.home.path().join("environments.toml"), environments).unwrap();
    let place = format!("worker={}", stage.work.path().display());
    let mut first = stage.command(&["-e", &place, "go"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the model is asked", || !stage.model.requests().is_empty()).await;
    first.kill().unwrap();
    let said = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(living(&file), 1, "the session keeps it");
    let thread = said.lines().find_map(|line| line.strip_prefix("thread ")).unwrap().to_owned();
    let output = stage.exec(&["resume", &thread]).await;
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
    assert_eq!(starts(&file).len(), 2);
    eventually("both are ended", || living(&file) == 0).await;
}

#[tokio::test]
async fn a_server_that_does_not_start_is_told() {
    let stage = Stage::new(vec![], "[mcp_servers.broken]\ncommand = \"/no/such/program\"\n").await;
    let output = stage.exec(&["go"]).await;
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("MCP server `broken` could not be started"), "{said}");
}

/// A server of this very machine is nobody's to reach until the configuration says so; the refusal says how.
#[tokio::test]
async fn a_server_of_this_machine_behind_http_is_reached_where_that_is_allowed() {
    let server = HttpServer::start(None);
    let declared = format!("[mcp_servers.web]\nurl = \"{}\"\nrequired = true\nstartup_timeout_sec = 20\n", server.url());
    let stage = Stage::new(vec![Reply::call("a", "mcp__web__session", &json!({})), Reply::message("heard it")], &declared).await;
    let refused = stage.exec(&["go"]).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("`http_allow` in the config.toml of its home"), "{said}");
    let output = stage.exec(&["-c", "http_allow=[\"loopback\"]", "go"]).await;
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("[local] web session"), "{output:?}");
    let wrong = stage.exec(&["-c", "http_allow=[\"a b\"]", "go"]).await;
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("http_allow"), "{wrong:?}");
}
