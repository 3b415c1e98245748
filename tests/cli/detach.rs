//! Turns that are left to a process in the background, and webhooks that hear of turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::sync::mpsc;
use std::time::Duration;

use outpost_testkit::TestTerminal;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call};
use serde_json::{Value, json};

use crate::chat::{Scene, journal_has, run};

/// A call that runs until there is a file.
fn waits_for(file: &Path) -> Reply {
    let script = format!(
        "echo early-$((20 + 1)); echo begun >> {0}.begun; until [ -e {0} ]; do sleep 0.1; done; echo seen-$((40 + 2))",
        file.display()
    );
    Reply::Items(vec![run("c1", &script)])
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Whether a server of this home listens. Nothing is said to it: a client would keep it.
fn has_owner(scene: &Scene) -> bool {
    std::os::unix::net::UnixStream::connect(scene.home.path().join("run/app.sock")).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_turn_goes_on_in_the_background_and_is_waited_for_there() {
    let scene = Scene::new(vec![]).await;
    let file = scene.work.path().join("go");
    scene.model.push(waits_for(&file));
    scene.model.push(Reply::message("all done"));
    let begun = scene.command(&["exec", "--detach", "wait for it"]).current_dir(scene.work.path()).output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    let id = String::from_utf8(begun.stdout.clone()).unwrap().trim().to_owned();
    assert!(said(&begun).contains(&format!("outpost chat resume {id}")), "{begun:?}");
    eventually("the command runs", || file.with_extension("begun").exists()).await;
    // Another program attaches, hears the rest and ends with the turn.
    let piped = std::process::Stdio::piped;
    let mut waiting = scene.command(&["exec", "resume", &id]).stdout(piped()).stderr(piped()).spawn().unwrap();
    let mut first = String::new();
    let mut shown = BufReader::new(waiting.stderr.take().unwrap());
    shown.read_line(&mut first).unwrap();
    assert!(first.contains(&id), "{first}");
    // What runs already is announced, and what it prints is told at its end, from its beginning.
    let mut running = [String::new(), String::new()];
    for line in &mut running {
        shown.read_line(line).unwrap();
    }
    assert!(running[0].contains("[local] $ sh -c") && running[1].contains("it runs already"), "{running:?}");
    std::fs::write(&file, "").unwrap();
    let (mut told, mut rest) = (String::new(), String::new());
    waiting.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    shown.read_to_string(&mut rest).unwrap();
    assert!(waiting.wait().unwrap().success() && told.contains("all done"), "{told}");
    assert!(rest.contains("  early-21\n  seen-42\n"), "{rest}");
    // What went on with it ends by itself, and the thread is free again.
    eventually("the owner has ended", || !has_owner(&scene)).await;
    let shown = scene.command(&["thread", "show", &id]).output().unwrap();
    assert!(said(&shown).contains("seen-42"), "{shown:?}");
}

/// `exec` ends while a command runs whose end is to begin a turn: it begins without any program of the user, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_begins_its_turn_after_the_program_has_ended() {
    let scene = Scene::new(vec![]).await;
    let file = scene.work.path().join("go");
    let script = format!("sh -c 'until [ -e {} ]; do sleep 0.1; done; echo seen-$((40 + 2))'", file.display());
    scene.model.push(Reply::call("c", "exec_command", &json!({"cmd": script, "yield_time_ms": 250, "wake": true})));
    scene.model.push(Reply::message("it runs"));
    let begun = scene.command(&["exec", "tell me when it is done"]).current_dir(scene.work.path()).output().unwrap();
    assert!(begun.status.success() && said(&begun).contains("a turn begins in the background"), "{begun:?}");
    let id = said(&begun).split("outpost chat resume ").nth(1).unwrap()[..36].to_owned();
    // Twice as long as a process in the background stays that has nothing to wait for.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(has_owner(&scene) && scene.model.requests().len() == 2, "it waits for the command: {begun:?}");
    scene.model.push(Reply::message("plotted"));
    std::fs::write(&file, "").unwrap();
    eventually("the owner has ended", || !has_owner(&scene)).await;
    let requests = scene.model.requests();
    assert_eq!(requests.len(), 3, "one turn with one request");
    let shown = said(&scene.command(&["thread", "show", &id]).output().unwrap());
    assert!(shown.contains("seen-42") && shown.contains("plotted"), "{shown}");
    // The next program finds nothing left to tell.
    scene.model.push(Reply::message("fine"));
    let resumed = scene.command(&["exec", "resume", &id, "and now?"]).current_dir(scene.work.path()).output().unwrap();
    assert!(resumed.status.success() && scene.model.requests().len() == 4, "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn detach_leaves_a_conversation_and_its_running_command() {
    let scene = Scene::new(vec![]).await;
    let file = scene.work.path().join("go");
    scene.model.push(waits_for(&file));
    scene.model.push(Reply::message("all done"));
    let mut command = scene.command(&["chat"]);
    command.env_remove("OUTPOST_PLAIN").current_dir(scene.work.path());
    let mut terminal = TestTerminal::start(&command);
    terminal.wait_for_row("/help");
    terminal.type_keys("wait for it\r");
    eventually("the command runs", || file.with_extension("begun").exists()).await;
    terminal.type_keys("/detach\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    assert!(terminal.text().contains("goes on in the background"), "{}", terminal.text());
    let text = terminal.text();
    let id = text.split("outpost chat resume ").nth(1).unwrap()[..36].to_owned();
    // The conversation is taken up where it is, and sees the end of the turn.
    let mut command = scene.command(&["chat", "resume", &id]);
    command.env_remove("OUTPOST_PLAIN").current_dir(scene.work.path());
    let mut terminal = TestTerminal::start(&command);
    terminal.wait_for_row("Esc stops");
    terminal.wait_for_row("[local] $ sh -c 'echo early");
    terminal.wait_for_row("> wait for it");
    // Another one, line by line, sees the same.
    let mut plain = TestTerminal::start(scene.command(&["chat", "resume", &id]).current_dir(scene.work.path()));
    plain.wait_for("> wait for it");
    plain.wait_for("[local] $ sh -c 'echo early");
    plain.wait_for("it runs already");
    std::fs::write(&file, "").unwrap();
    terminal.wait_for_row("all done");
    plain.wait_for("all done");
    let everything = terminal.everything();
    let place = |text: &str| everything.iter().position(|row| row == text);
    assert!(place("  early-21").is_some() && place("  early-21") < place("  seen-42"), "its whole output is shown: {everything:#?}");
    assert!(plain.text().contains("  early-21\r\n  seen-42\r\n"), "{:?}", plain.text());
    // The server told how much the context of its model holds.
    terminal.wait_for_row("% context left");
    plain.type_keys("\x04");
    assert_eq!(plain.exit_code(), Some(0), "{}", plain.text());
    assert_eq!(std::fs::read_to_string(file.with_extension("begun")).unwrap(), "begun\n", "it ran once");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// A program that comes when the turn is over already is told the same as one that waited.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_turn_that_is_over_is_told() {
    let scene = Scene::new(vec![Reply::message("all done")]).await;
    let begun = scene.command(&["exec", "--detach", "say it"]).current_dir(scene.work.path()).output().unwrap();
    let id = String::from_utf8(begun.stdout).unwrap().trim().to_owned();
    eventually("the owner has ended", || !has_owner(&scene)).await;
    let answer = scene.work.path().join("answer");
    let resumed = scene.command(&["exec", "resume", &id, "-o", answer.to_str().unwrap()]).output().unwrap();
    assert!(resumed.status.success() && String::from_utf8_lossy(&resumed.stdout).contains("all done"), "{resumed:?}");
    assert_eq!(std::fs::read_to_string(&answer).unwrap().trim(), "all done");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_a_turn_that_is_over_are_told() {
    let scene = Scene::new(vec![]).await;
    let begun =
        scene.command(&["exec", "--detach", "--provider", "offline", "$ sh -c 'exit 3'"]).current_dir(scene.work.path()).output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    let id = String::from_utf8(begun.stdout).unwrap().trim().to_owned();
    eventually("the owner has ended", || !has_owner(&scene)).await;
    let resumed = scene.command(&["exec", "resume", &id]).output().unwrap();
    assert_eq!(resumed.status.code(), Some(1), "{resumed:?}");
}

/// A turn in the background whose agent asks before it touches `made`. The turn is over when there is `told`.
async fn agent_asks(scene: &Scene) -> String {
    let waits = run("waits", "until [ -e told ]; do sleep 0.1; done");
    let spawns = call("spawned", "spawn_agent", &json!({"message": "job"}));
    scene.model.push_for("\"text\":\"job\"", Reply::call("inner", "exec_command", &json!({"cmd": "touch made"})));
    scene.model.push_for("\"text\":\"job\"", Reply::Items(vec![run("tells", "touch told")]));
    scene.model.push_for("\"text\":\"begin\"", Reply::Items(vec![spawns, waits]));
    let begun = scene.command(&["exec", "--detach", "begin"]).current_dir(scene.work.path()).output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    eventually("the agent has asked", || journal_has(scene, "approvalAsked")).await;
    String::from_utf8(begun.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_question_of_an_agent_is_refused_where_no_user_is() {
    let scene = Scene::new(vec![]).await;
    let id = agent_asks(&scene).await;
    let mut waiting = scene.command(&["exec", "resume", &id]).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("the agent goes on", || scene.work.path().join("told").exists()).await;
    assert!(waiting.wait().unwrap().success());
    assert!(!scene.work.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_question_of_an_agent_is_asked_in_the_conversation_that_comes_later() {
    let scene = Scene::new(vec![]).await;
    let id = agent_asks(&scene).await;
    let mut terminal = TestTerminal::start(&scene.command(&["chat", "resume", &id]));
    terminal.wait_for("asks:");
    terminal.wait_for("touch made");
    terminal.wait_for("Allow?");
    terminal.type_keys("y\r");
    eventually("the agent's command has run", || scene.work.path().join("told").exists()).await;
    assert!(scene.work.path().join("made").exists());
    terminal.type_keys("/quit\r");
}

/// `--cd`, `-e '*'` and `-c` mean the same whether this program drives the thread or the process in the background.
#[tokio::test(flavor = "multi_thread")]
async fn directories_and_settings_are_not_dropped_where_another_process_drives_the_thread() {
    let scene = Scene::new(vec![]).await;
    let other = tempfile::tempdir().unwrap();
    let go = scene.work.path().join("go");
    scene.model.push(waits_for(&go));
    scene.model.push(Reply::message("one"));
    // The owner is started in the home of the test, and works where the user is.
    let begun = scene.command(&["exec", "--detach", "-e", "*", "first"]).current_dir(scene.work.path()).output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    let id = String::from_utf8(begun.stdout).unwrap().trim().to_owned();
    eventually("the command runs", || go.with_extension("begun").exists()).await;
    let refused = scene.command(&["-c", "sandbox_mode=read-only", "exec", "resume", &id]).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("-c sandbox_mode has no effect"), "{refused:?}");
    // A second detached turn, from elsewhere: each works in the directory of its user.
    scene.model.push_for("\"text\":\"second\"", Reply::Items(vec![run("w2", "pwd > where")]));
    let second = scene.command(&["exec", "--detach", "-e", "*", "second"]).current_dir(other.path()).output().unwrap();
    assert!(second.status.success(), "{second:?}");
    eventually("the second has run", || other.path().join("where").exists()).await;
    std::fs::write(&go, "").unwrap();
    eventually("the owner has ended", || !has_owner(&scene)).await;
    // The thread moves.
    scene.model.push_for("\"text\":\"third\"", Reply::Items(vec![run("w3", "pwd > moved")]));
    let cd = other.path().to_str().unwrap();
    let third = scene.command(&["exec", "resume", "--detach", "--cd", cd, &id, "third"]).output().unwrap();
    assert!(third.status.success(), "{third:?}");
    eventually("the thread has moved", || other.path().join("moved").exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_in_the_background_waits_for_a_slow_webhook() {
    let scene = Scene::new(vec![Reply::message("the answer")]).await;
    // The first answer, an error, comes when the process would have ended without it.
    let (url, heard) = webhook(Duration::from_secs(5));
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let table = format!("{config}\n[notify]\nurl = \"{url}\"\nsecret_env = \"HOOK_SECRET\"\n");
    std::fs::write(scene.home.path().join("config.toml"), table).unwrap();
    let mut command = scene.command(&["exec", "--detach", "hello"]);
    let begun = command.env("HOOK_SECRET", "a very secret key").output().unwrap();
    assert!(begun.status.success(), "{begun:?}");
    for _ in 0..2 {
        let body: Value = serde_json::from_str(&heard.recv_timeout(Duration::from_secs(120)).unwrap().body).unwrap();
        assert_eq!((body["type"].as_str(), body["message"].as_str()), (Some("turn_completed"), Some("the answer")));
    }
}

/// Has every news written to a file, one a line; what was told so far.
fn told_to_file(scene: &Scene) -> impl Fn() -> Vec<Value> + use<> {
    let heard = scene.work.path().join("heard");
    let script = format!("printf '%s\\n' \"$1\" >> {}", heard.display());
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let config = format!("notify = [\"sh\", \"-c\", {}, \"notify\"]\n{config}", Value::from(script));
    std::fs::write(scene.home.path().join("config.toml"), config).unwrap();
    move || {
        let text = std::fs::read_to_string(&heard).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The process in the background, a conversation line by line, and one that is drawn: each tells of what an agent asks, once, and under the
/// name of the thread in which it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn questions_of_agents_are_notified() {
    let scene = Scene::new(vec![]).await;
    let news = told_to_file(&scene);
    let id = agent_asks(&scene).await;
    eventually("the question is told", || !news().is_empty()).await;
    let question = &news()[0];
    assert_eq!((question["type"].as_str(), question["message"].as_str()), (Some("question"), Some("touch made")), "{question}");
    assert_eq!(question["thread_id"].as_str(), Some(id.as_str()), "{question}");
    assert!(scene.command(&["exec", "resume", &id]).output().unwrap().status.success());
    eventually("the end is told", || news().len() >= 2).await;
    let kinds: Vec<String> = news().iter().map(|news| news["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["question", "turn_completed"], "the turn of the agent is no news");
    for plain in ["1", ""] {
        let scene = Scene::new(vec![]).await;
        let news = told_to_file(&scene);
        scene.model.push_for("\"text\":\"job\"", Reply::call("inner", "exec_command", &json!({"cmd": "touch made"})));
        let spawns = call("spawned", "spawn_agent", &json!({"message": "job"}));
        scene.model.push_for("\"text\":\"begin\"", Reply::Items(vec![spawns]));
        let mut command = scene.command(&["chat"]);
        let mut terminal = TestTerminal::start(command.env("OUTPOST_PLAIN", plain).current_dir(scene.work.path()));
        terminal.wait_for("> ");
        terminal.type_keys("begin\r");
        eventually("the question is told", || news().iter().any(|news| news["type"] == "question")).await;
        assert_eq!(news().iter().filter(|news| news["message"] == "touch made").count(), 1, "{:?}", news());
        terminal.type_keys("\x03\x03");
    }
}

/// A request that a webhook was sent.
struct Heard {
    headers: Vec<(String, String)>,
    body: String,
}

impl Heard {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).unwrap()
    }
}

/// An HTTP server that answers the first request with an error, late, and the others with 204.
fn webhook(late: Duration) -> (String, mpsc::Receiver<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() == 0 || line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_owned());
            }
            let headers: Vec<(String, String)> =
                lines.iter().skip(1).filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into())).collect();
            let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length")).unwrap().1.parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let heard = Heard { headers, body: String::from_utf8(body).unwrap() };
            let _ = sender.send(heard);
            if number == 0 {
                std::thread::sleep(late);
            }
            let status = if number == 0 { "503 Service Unavailable" } else { "204 No Content" };
            write!(reader.get_mut(), "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    (url, heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_hears_of_ends_and_failures_and_can_verify_them() {
    let scene = Scene::new(vec![Reply::message("the answer"), Reply::status(400, "{}")]).await;
    let (url, heard) = webhook(Duration::ZERO);
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let table = format!("{config}\n[notify]\nurl = \"{url}\"\nsecret_env = \"HOOK_SECRET\"\n");
    std::fs::write(scene.home.path().join("config.toml"), table).unwrap();
    let turn = |secret: Option<&str>| {
        let mut command = scene.command(&["exec", "hello"]);
        if let Some(secret) = secret {
            command.env("HOOK_SECRET", secret);
        }
        command.output().unwrap()
    };
    let unsigned = turn(None);
    assert!(!unsigned.status.success() && said(&unsigned).contains("secret_env"), "{unsigned:?}");
    let fine = turn(Some("a very secret key"));
    assert!(fine.status.success(), "{fine:?}");
    let failed = turn(Some("a very secret key"));
    assert!(!failed.status.success(), "{failed:?}");
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let message = heard.recv_timeout(Duration::from_secs(120)).unwrap();
        let signed = format!("{}.{}", message.header("x-outpost-timestamp"), message.body);
        assert_eq!(message.header("x-outpost-signature"), format!("sha256={}", hmac("a very secret key", &signed)), "{}", message.body);
        assert_ne!(message.header("x-outpost-signature"), format!("sha256={}", hmac("another key", &signed)));
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert!(body["thread_id"].is_string(), "{body}");
        kinds.push((body["type"].as_str().unwrap().to_owned(), body["message"].as_str().unwrap().to_owned()));
    }
    // The first request was answered with an error and made again.
    assert_eq!(kinds[0], ("turn_completed".into(), "the answer".into()));
    assert_eq!(kinds[1], kinds[0]);
    assert_eq!(kinds[2].0, "turn_failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_hears_of_questions() {
    let scene = Scene::new(vec![Reply::call("asks", "exec_command", &json!({"cmd": "touch made"})), Reply::message("over")]).await;
    let (url, heard) = webhook(Duration::ZERO);
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let table = format!("{config}\n[notify]\nurl = \"{url}\"\nsecret_env = \"HOOK_SECRET\"\n");
    std::fs::write(scene.home.path().join("config.toml"), table).unwrap();
    let mut command = scene.command(&["chat"]);
    let mut terminal = TestTerminal::start(command.env("HOOK_SECRET", "a very secret key").current_dir(scene.work.path()));
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    terminal.wait_for("Allow?");
    // It is told while it waits for its answer, and again after the error.
    for _ in 0..2 {
        let message = heard.recv_timeout(Duration::from_secs(120)).unwrap();
        let signed = format!("{}.{}", message.header("x-outpost-timestamp"), message.body);
        assert_eq!(message.header("x-outpost-signature"), format!("sha256={}", hmac("a very secret key", &signed)), "{}", message.body);
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!((body["type"].as_str(), body["message"].as_str()), (Some("question"), Some("touch made")), "{body}");
        assert_eq!(body["environment_id"].as_str(), Some("local"), "{body}");
    }
    terminal.type_keys("y\r");
    terminal.wait_for("over");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// HMAC-SHA256 as RFC 2104 writes it, so that the test does not verify the program with itself.
fn hmac(key: &str, text: &str) -> String {
    use sha2::{Digest, Sha256};
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key.as_bytes());
    let pad = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text.as_bytes()).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server of the home that stays; killed when dropped.
struct AppServer(std::process::Child);

impl Drop for AppServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that drives the thread notifies, and no client that is attached to it: a process in the background, or a server that stays.
#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_notified_once_though_a_client_is_attached() {
    for server in [None, Some(&["app-server", "--listen", "off"][..]), Some(&["serve", "--listen", "ws://127.0.0.1:0"])] {
        let scene = Scene::new(vec![]).await;
        let news = told_to_file(&scene);
        let _server = server.map(|words| AppServer(scene.command(words).stdout(std::process::Stdio::null()).spawn().unwrap()));
        if server.is_some() {
            eventually("the server listens", || has_owner(&scene)).await;
        }
        let file = scene.work.path().join("go");
        scene.model.push(waits_for(&file));
        // Asked for, and refused where no user is.
        scene.model.push(Reply::call("asks", "exec_command", &json!({"cmd": "touch made"})));
        scene.model.push(Reply::message("all done"));
        scene.model.push(Reply::status(400, r#"{"error":{"message":"no such thing"}}"#));
        let begun = scene.command(&["exec", "--detach", "wait for it"]).current_dir(scene.work.path()).output().unwrap();
        assert!(begun.status.success(), "{begun:?}");
        let id = String::from_utf8(begun.stdout).unwrap().trim().to_owned();
        eventually("the command runs", || file.with_extension("begun").exists()).await;
        let mut attached = scene.command(&["exec", "resume", &id]).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut shown = BufReader::new(attached.stderr.take().unwrap());
        shown.read_line(&mut String::new()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::io::copy(&mut shown, &mut std::io::sink()).unwrap();
        attached.wait().unwrap();
        // One more turn: what would be told twice of the first one is told by then.
        let second = scene.command(&["exec", "--detach", "second"]).current_dir(scene.work.path()).output().unwrap();
        assert!(second.status.success(), "{second:?}");
        let kinds = || -> Vec<String> { news().iter().map(|news| news["type"].as_str().unwrap().to_owned()).collect() };
        eventually("the last is told", || kinds().contains(&"turn_failed".to_owned())).await;
        let mut told = kinds();
        told.sort();
        assert_eq!(told, ["question", "turn_completed", "turn_failed"], "{server:?}");
    }
}
