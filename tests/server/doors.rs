//! The ways in: standard input and output, a websocket, a unix socket.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use outpost_rpc::link::ws::ClientOptions;
use outpost_rpc::link::{stdio, unix};
use outpost_testkit::app::{AppServer, introduce, turn};
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_testkit::{Client, RawSocket};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::OUTPOST;

/// A home whose provider is the scripted model, and keys that this program does not know.
fn home(model: &ScriptedModel) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"mock\"\nsandbox_mode = \"danger-full-access\"\nsomebody_elses = true\n\
         [model_providers.mock]\nname = \"mock\"\nbase_url = \"{}\"\nwire_api = \"responses\"\nrequires_openai_auth = false\n\
         [features]\napps = false\n",
        model.base_url()
    );
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    home
}

fn server(home: &Path, arguments: &[&str]) -> Child {
    Command::new(OUTPOST)
        .args(arguments)
        .env("OUTPOST_HOME", home)
        .env("HOME", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_server_on_standard_input_ends_with_it() {
    let model = ScriptedModel::with(vec![Reply::message("hello")]).await;
    let home = home(&model);
    let mut child = server(home.path(), &["-c", "model=\"chosen\"", "app-server", "--listen", "stdio://"]);
    let link = stdio::link(child.stdout.take().unwrap(), child.stdin.take().unwrap(), "test");
    let mut client = Client::new(link);
    introduce(&mut client, json!({"experimentalApi": true})).await;
    let id = outpost_testkit::app::thread(&mut client, json!({})).await;
    assert_eq!(turn(&mut client, &id, "hi").await["status"], "completed");
    assert_eq!(model.requests()[0].body["model"], "chosen");
    assert!(home.path().join("run/app.sock").exists());
    client.close();
    let status = tokio::time::timeout(Duration::from_secs(120), child.wait()).await.expect("it does not end").unwrap();
    assert!(status.success(), "{status}");
    assert!(!home.path().join("run/app.sock").exists());
}

#[tokio::test]
async fn a_websocket_asks_for_the_token_of_its_home_and_lets_no_page_in() {
    let model = ScriptedModel::with(vec![]).await;
    let home = home(&model);
    let mut child = server(home.path(), &["app-server", "--listen", "ws://127.0.0.1:0"]);
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).await.unwrap();
    let address = url.trim().strip_prefix("ws://").expect("a URL").to_owned();
    let token = std::fs::read_to_string(home.path().join("tokens/app")).unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let status = |headers: Vec<(&'static str, String)>| {
        let address = address.clone();
        async move {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            RawSocket::connect(&address).await.upgrade(&headers).await.status
        }
    };
    assert_eq!(status(vec![]).await, 401);
    assert_eq!(status(vec![("authorization", "Bearer wrong-wrong-wrong-wrong-wrong".into())]).await, 401);
    assert_eq!(status(vec![("authorization", bearer.clone()), ("origin", "https://evil.example".into())]).await, 403);
    assert_eq!(status(vec![("authorization", bearer)]).await, 101);
    for path in ["/readyz", "/healthz"] {
        assert_eq!(RawSocket::connect(&address).await.http(&format!("GET {path}"), &[]).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_running_server_is_found_at_its_socket() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("hello")]).await;
    let mut far = app.client().await;
    let id = outpost_testkit::app::thread(&mut far, json!({})).await;
    let link = unix::connect(&app.home().join("run/app.sock"), &ClientOptions::default()).await.unwrap();
    let mut near = Client::new(link);
    introduce(&mut near, Value::Null).await;
    assert_eq!(near.result("thread/loaded/list", json!({})).await["data"], json!([id]));
}

#[tokio::test]
async fn whoever_asks_too_much_at_once_is_told_so() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    // Somebody who takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = app.client().await;
    let url = format!("ws://{}", silent.local_addr().unwrap());
    client.result("environment/add", json!({"environmentId": "silent", "execServerUrl": url, "connectTimeoutMs": 60000})).await;
    for _ in 0..1024 {
        client.request("environment/info", json!({"environmentId": "silent"}));
    }
    let last = client.request("thread/loaded/list", json!({}));
    let answer = client.answer(last).await;
    assert_eq!(answer["error"]["code"], -32001, "{answer}");
    // Others are served as ever.
    app.client().await.result("thread/loaded/list", json!({})).await;
}

#[tokio::test]
async fn a_server_whose_log_nobody_reads_goes_on() {
    let model = ScriptedModel::with(vec![Reply::message("hello")]).await;
    let home = home(&model);
    let mut child = Command::new(OUTPOST)
        .args(["app-server", "--listen", "stdio://"])
        .envs([("OUTPOST_HOME", home.path()), ("HOME", home.path())])
        .env("OUTPOST_LOG", "trace")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let link = stdio::link(child.stdout.take().unwrap(), child.stdin.take().unwrap(), "test");
    let mut client = Client::new(link);
    introduce(&mut client, json!({"experimentalApi": true})).await;
    let id = outpost_testkit::app::thread(&mut client, json!({})).await;
    assert_eq!(turn(&mut client, &id, "hi").await["status"], "completed");
}
