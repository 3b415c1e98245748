//! Several servers on one database: what becomes of a thread when the node that has it is killed, or told to end.

mod clock;
mod database;
mod drain;
mod many;
mod orphans;
mod soak;

use std::fmt::Write as _;
use std::process::Stdio;

use outpost_rpc::link::ws::{self, ClientOptions};
use outpost_testkit::app::{begin, introduce, thread};
use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_testkit::postgres::Database;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{App, OUTPOST, Server};

/// A database, a model and an executor that all nodes know.
struct Cluster {
    database: Database,
    model: ScriptedModel,
    worker: ExecutorProcess,
    work: TempDir,
}

impl Cluster {
    async fn new(replies: Vec<Reply>) -> Self {
        Self {
            database: Database::create(),
            model: ScriptedModel::with(replies).await,
            worker: ExecutorProcess::start(std::path::Path::new(OUTPOST), &["--no-auth"]),
            work: tempfile::tempdir().unwrap(),
        }
    }

    fn node(&self) -> Server {
        let home = self.home();
        Server::start_in(home, &["--listen", "ws://127.0.0.1:0", "--no-auth"])
    }

    /// One on a machine of this name.
    fn node_on(&self, host: &str) -> Server {
        let home = self.home();
        let inner = crate::support::command(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--no-auth"]);
        let mut command = std::process::Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Server::launch(command, home)
    }

    fn home(&self) -> TempDir {
        let home = tempfile::tempdir().unwrap();
        let mut config =
            format!("store = \"{}\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n", self.database.url());
        write!(config, "model = \"m\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{}\"\n", self.model.base_url())
            .unwrap();
        config.push_str("wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n");
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        let environments = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", self.worker.url());
        std::fs::write(home.path().join("environments.toml"), environments).unwrap();
        home
    }

    /// A thread that works on the executor, with a turn that has begun.
    async fn turn(&self, node: &Server) -> (Client, String) {
        let mut client = client(node).await;
        let place = json!([{"environmentId": "worker", "cwd": self.work.path()}]);
        let thread = thread(&mut client, json!({"environments": place})).await;
        begin(&mut client, &thread, "go").await;
        (client, thread)
    }

    fn asked(&self) -> usize {
        self.model.requests().len()
    }
}

async fn client(node: &Server) -> Client {
    let mut client = Client::new(ws::connect(node.url(), &ClientOptions::default()).await.unwrap());
    introduce(&mut client, json!({"experimentalApi": true})).await;
    client
}

/// The turns of a thread, as a node reads them.
async fn turns(node: &Server, thread: &str) -> Vec<Value> {
    let mut client = client(node).await;
    let read = client.result("thread/read", json!({"threadId": thread, "includeTurns": true})).await;
    read["thread"]["turns"].as_array().cloned().unwrap_or_default()
}

async fn completed(node: &Server, thread: &str) -> Vec<Value> {
    for _ in 0..2400 {
        let turns = turns(node, thread).await;
        if turns.last().is_some_and(|turn| turn["status"] == "completed") {
            return turns;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the turn does not end: {:?}", turns(node, thread).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_of_a_killed_node_goes_on_in_exactly_one_other() {
    let cluster = Cluster::new(vec![Reply::Silent(String::new()), Reply::message("the second node")]).await;
    let (first, others) = (cluster.node(), [cluster.node(), cluster.node()]);
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    drop(first.kill());
    // No client asks for it.
    eventually("another node goes on", || cluster.asked() == 2).await;
    for node in &others {
        let turns = completed(node, &thread).await;
        assert_eq!(turns.len(), 1, "{turns:?}");
        assert!(turns[0].to_string().contains("the second node"), "{turns:?}");
    }
    assert_eq!(cluster.asked(), 2, "only one of them went on with it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_end_hands_its_threads_over() {
    let cluster = Cluster::new(vec![Reply::Silent(String::new()), Reply::message("the second node")]).await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    drop(first.stop());
    let turns = completed(&second, &thread).await;
    assert_eq!((turns.len(), cluster.asked()), (1, 2), "the turn was not interrupted: {turns:?}");
}

/// Without another node, the turn ends as it does anywhere, and the thread is free at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_node_interrupts_its_turns() {
    let cluster = Cluster::new(vec![Reply::Silent(String::new())]).await;
    let first = cluster.node();
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    drop(first.stop());
    let second = cluster.node();
    let turns = turns(&second, &thread).await;
    assert_eq!(turns[0]["status"], "interrupted", "{turns:?}");
    let mut client = client(&second).await;
    client.result("thread/resume", json!({"threadId": thread})).await;
}

/// A command that waits for a file in the middle of its output.
const WORK: &str = "echo ran >> ran; for i in 1 2 3; do echo line $i; done; while [ ! -e go ]; do sleep 0.05; done; \
                    for i in 4 5 6; do echo line $i; done; exit 5";
const LINES: &str = "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\n";

impl Cluster {
    /// Whose model asks for that command, waits for it, and says something.
    async fn working() -> Self {
        let command = Reply::call("c", "exec_command", &json!({"cmd": WORK, "yield_time_ms": 30_000}));
        Self::new(vec![command, Reply::message("seen")]).await
    }

    async fn runs(&self) {
        eventually("the command runs", || self.work.path().join("ran").exists()).await;
    }

    fn go(&self) {
        std::fs::write(self.work.path().join("go"), "").unwrap();
    }

    /// What the model was told of a call.
    fn told(&self, call: &str) -> String {
        let requests = self.model.requests();
        let items = requests.iter().flat_map(|request| request.body["input"].as_array().cloned().unwrap_or_default());
        let mut outputs = items.filter(|item| item["type"] == "function_call_output" && item["call_id"] == call);
        outputs.next_back().map(|item| item["output"].to_string().replace("\\n", "\n")).unwrap_or_default()
    }

    /// That the command ran once, and that its call ended with all of its output and its own exit code.
    fn assert_whole(&self, turns: &[Value]) {
        assert_eq!(std::fs::read_to_string(self.work.path().join("ran")).unwrap(), "ran\n", "it ran once");
        assert_eq!(turns.len(), 1, "{turns:?}");
        let items = turns[0]["items"].as_array().unwrap();
        let command = items.iter().find(|item| item["type"] == "commandExecution").unwrap();
        assert_eq!((&command["exitCode"], &command["aggregatedOutput"]), (&json!(5), &json!(LINES)), "{command}");
        let told = self.told("c");
        assert!(told.contains("Exit code: 5") && told.contains(LINES), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_a_killed_node_is_adopted_by_the_next_one() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    drop(first.kill());
    cluster.go();
    cluster.assert_whole(&completed(&second, &thread).await);
    assert_eq!(cluster.asked(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_a_node_that_is_told_to_end_is_not_interrupted() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    drop(first.stop());
    cluster.go();
    cluster.assert_whole(&completed(&second, &thread).await);
    assert_eq!(cluster.asked(), 2);
}

/// It wakes up when another node has its thread and the command, and can do nothing with either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_stopped_does_not_get_its_command_back() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    first.signal(rustix::process::Signal::STOP);
    // Only the second node is there to take it up.
    eventually("the second node has the thread", || cluster.database.ask("select claims from outpost_threads where work") == "1").await;
    first.signal(rustix::process::Signal::CONT);
    cluster.go();
    cluster.assert_whole(&completed(&second, &thread).await);
    cluster.assert_whole(&turns(&first, &thread).await);
    assert_eq!(cluster.asked(), 2, "only one of them went on with it");
}

/// The command line at another node is passed on to the node that is killed, and follows the turn to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_at_another_node_follows_the_turn_of_a_killed_one() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    let (desk, told) = (tempfile::tempdir().unwrap(), cluster.work.path().join("told"));
    let mut verb = crate::support::command(desk.path(), &["exec", "--server", second.url(), "--json", "resume", &thread]);
    let verb = verb.stdout(std::fs::File::create(&told).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    let says = |what: &str| std::fs::read_to_string(&told).unwrap().contains(what);
    eventually("it follows the turn", || says("thread.started")).await;
    drop(first.kill());
    cluster.go();
    let turns = completed(&second, &thread).await;
    cluster.assert_whole(&turns);
    eventually("it has ended", || !is_alive(verb.id())).await;
    let ended = verb.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(says("\"turn.completed\"") && says("seen"), "{}", std::fs::read_to_string(&told).unwrap());
}

/// A command that outlived its call is found by its session id on the next node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_in_the_background_is_adopted_when_it_is_asked_for() {
    let command = Reply::call("c", "exec_command", &json!({"cmd": WORK, "yield_time_ms": 250}));
    let cluster = Cluster::new(vec![command, Reply::Silent(String::new())]).await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked again", || cluster.asked() == 2).await;
    let told = cluster.told("c");
    let session: u64 = told.split_once("session id: ").unwrap().1.split_once('\n').unwrap().0.parse().unwrap();
    cluster.model.push(Reply::call("w", "write_stdin", &json!({"session_id": session, "yield_time_ms": 30_000})));
    cluster.model.push(Reply::message("seen"));
    drop(first.kill());
    cluster.go();
    completed(&second, &thread).await;
    let (before, after) = (cluster.told("c"), cluster.told("w"));
    assert!(after.contains("Exit code: 5"), "{after}");
    let lines = |text: &str| text.lines().filter(|line| line.starts_with("line ")).map(str::to_owned).collect::<Vec<_>>().join("\n");
    let (before, after) = (lines(&before), lines(&after));
    assert_eq!(format!("{before}\n{after}").trim(), LINES.trim(), "no byte is lost or shown twice");
}

/// Another executor has taken the place of the first one: what would claim the command is not shown to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_executor_under_the_same_name_is_not_asked_for_a_command() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    let other = ExecutorProcess::start(std::path::Path::new(OUTPOST), &["--no-auth"]);
    drop(first.kill());
    let changed = format!(
        "update outpost_shared set content = replace(content, '{}', '{}') where kind = 'environments' returning content",
        cluster.worker.url(),
        other.url()
    );
    let changed = cluster.database.ask(&changed);
    assert!(changed.contains(other.url()), "{changed}");
    completed(&second, &thread).await;
    let told = cluster.told("c");
    assert!(told.contains("another executor answers under `worker` now"), "{told}");
    let started = cluster.database.ask("select data from outpost_entries where kind = 'callStarted'");
    assert!(serde_json::from_str::<Value>(&started).unwrap()["executor"].is_string(), "{started}");
    cluster.go();
}

/// Its answer counts as it would have counted at the first node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_of_a_killed_node_is_asked_by_the_next_one() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let mut at_first = client(&first).await;
    let place = json!([{"environmentId": "worker", "cwd": cluster.work.path()}]);
    let thread = thread(&mut at_first, json!({"environments": place, "approvalPolicy": "untrusted"})).await;
    begin(&mut at_first, &thread, "go").await;
    let is_question = |message: &Value| message["method"] == "item/commandExecution/requestApproval";
    let before = at_first.until(is_question).await;
    drop(first.kill());
    eventually("the second node has the thread", || cluster.database.ask("select claims from outpost_threads where work") == "1").await;
    let mut at_second = client(&second).await;
    at_second.result("thread/resume", json!({"threadId": thread})).await;
    let after = at_second.until(is_question).await;
    assert_eq!(after["params"]["itemId"], before["params"]["itemId"], "it is the same question: {after}");
    assert!(!cluster.work.path().join("ran").exists(), "nothing runs before the answer");
    at_second.send(&json!({"id": after["id"], "result": {"decision": "accept"}}));
    cluster.runs().await;
    cluster.go();
    cluster.assert_whole(&completed(&second, &thread).await);
    assert_eq!(cluster.asked(), 2);
}

/// A key that is gone is named: the command is not simply lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_key_is_named() {
    let cluster = Cluster::working().await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    let key = cluster.database.ask("select value from outpost_keys where name = 'adoption'");
    cluster.database.ask("delete from outpost_keys");
    drop(first.kill());
    completed(&second, &thread).await;
    let told = cluster.told("c");
    assert!(told.contains("the key by which running commands are claimed was lost or replaced"), "{told}");
    let journal = cluster.database.ask("select string_agg(t::text, ' ') from outpost_entries t");
    assert!(!key.is_empty() && !journal.contains(&key), "the key stands in no journal");
    cluster.go();
}

/// The thread is idle when its node dies. It is taken up all the same, and its turn begins once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_of_a_killed_node_begins_one_turn_on_the_next() {
    let command = Reply::call("c", "exec_command", &json!({"cmd": WORK, "yield_time_ms": 250, "wake": true}));
    let cluster = Cluster::new(vec![command, Reply::message("waiting"), Reply::message("plotted")]).await;
    let (first, others) = (cluster.node(), [cluster.node(), cluster.node()]);
    let (_client, thread) = cluster.turn(&first).await;
    completed(&first, &thread).await;
    assert_eq!(cluster.database.ask("select work from outpost_threads"), "t", "a wake-up is work to do");
    drop(first.kill());
    cluster.go();
    for node in &others {
        eventually("the model is woken", || cluster.asked() == 3).await;
        let turns = completed(node, &thread).await;
        assert_eq!(turns.len(), 2, "{turns:?}");
        assert!(turns[1].to_string().contains("plotted"), "{turns:?}");
    }
    let woken = cluster.model.requests()[2].body["input"].to_string();
    assert!(
        woken.contains("which was started with wake, has ended.") && woken.contains("Exit code: 5") && woken.contains("line 6"),
        "{woken}"
    );
    assert_eq!(std::fs::read_to_string(cluster.work.path().join("ran")).unwrap(), "ran\n", "it ran once");
    assert_eq!(cluster.asked(), 3);
    assert_eq!(cluster.database.ask("select work from outpost_threads"), "f");
}

/// `local` of a thread is the machine on which it has worked. A node on another one does not run its commands there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_machines_local_is_not_taken_for_the_first_one() {
    let touch = |id: &str, file: &str| Reply::call(id, "exec_command", &json!({"cmd": format!("touch {file}")}));
    let replies = vec![touch("c1", "first"), Reply::message("one"), touch("c2", "second"), Reply::message("two")];
    let cluster = Cluster::new(replies).await;
    let first = cluster.node_on("elsewhere");
    let mut here = client(&first).await;
    let place = json!([{"environmentId": "local", "cwd": cluster.work.path()}]);
    let thread = thread(&mut here, json!({"environments": place})).await;
    begin(&mut here, &thread, "go").await;
    completed(&first, &thread).await;
    assert!(cluster.work.path().join("first").exists());
    drop(first.kill());
    let second = cluster.node();
    let mut there = client(&second).await;
    let mut resumed = json!({"error": {}});
    for _ in 0..600 {
        resumed = there.call("thread/resume", json!({"threadId": thread})).await;
        if resumed["error"].is_null() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(resumed["error"].is_null(), "{resumed}");
    begin(&mut there, &thread, "again").await;
    eventually("the model is told", || cluster.asked() == 4).await;
    let told = cluster.told("c2");
    assert!(told.contains("`local@elsewhere`") && told.contains("waits for a node on elsewhere"), "{told}");
    assert!(!cluster.work.path().join("second").exists(), "nothing ran on the other machine");
    // A token for the thread alone does not make this machine its `local`, at whichever node it comes in.
    let third = Server::start_in(cluster.home(), &["--listen", "ws://127.0.0.1:0"]);
    let token = third.token(&["--client", "--name", "uma", "--thread", &thread]);
    let mut limited = App::connect(third.url(), &token).await;
    for more in [json!({"environments": place}), json!({"cwd": "/"})] {
        let mut params = json!({"threadId": thread});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let why = limited.refused("thread/settings/update", params).await;
        assert!(why.contains("uma may not do that") && why.contains("is the machine elsewhere"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_begins_one_turn_where_it_was_set() {
    let command = Reply::call("c", "exec_command", &json!({"cmd": WORK, "yield_time_ms": 250, "wake": true}));
    let cluster = Cluster::new(vec![command, Reply::message("waiting"), Reply::message("plotted")]).await;
    let node = cluster.node();
    let (_client, thread) = cluster.turn(&node).await;
    completed(&node, &thread).await;
    cluster.go();
    eventually("the model is woken", || cluster.asked() == 3).await;
    let turns = completed(&node, &thread).await;
    assert_eq!(turns.len(), 2, "{turns:?}");
    let woken = cluster.model.requests()[2].body["input"].to_string();
    assert!(woken.contains("Exit code: 5") && woken.contains("line 6"), "{woken}");
    eventually("nothing is left to do", || cluster.database.ask("select work from outpost_threads") == "f").await;
    assert_eq!(cluster.asked(), 3);
}

/// The end of a command waits for the end of a turn when its node is told to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_was_not_told_outlives_the_node_that_hands_its_thread_over() {
    let work = WORK.replace("exit 5", "touch over; exit 5");
    let command = Reply::call("c", "exec_command", &json!({"cmd": work, "yield_time_ms": 250, "wake": true}));
    let cluster = Cluster::new(vec![command, Reply::Silent(String::new())]).await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked again", || cluster.asked() == 2).await;
    cluster.go();
    eventually("the command is over", || cluster.work.path().join("over").exists()).await;
    cluster.model.push(Reply::message("waiting"));
    cluster.model.push(Reply::message("plotted"));
    drop(first.stop());
    eventually("the model is woken", || cluster.asked() == 4).await;
    let turns = completed(&second, &thread).await;
    assert_eq!(turns.len(), 2, "{turns:?}");
    let woken = cluster.model.requests()[3].body["input"].to_string();
    assert!(woken.contains("Exit code: 5") && woken.contains("line 6"), "{woken}");
}

/// No other node is there when its node is told to end; each next one follows the command, however often that happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_outlives_many_restarts_of_the_only_node() {
    let command = Reply::call("c", "exec_command", &json!({"cmd": WORK, "yield_time_ms": 250, "wake": true}));
    let cluster = Cluster::new(vec![command, Reply::message("waiting"), Reply::message("plotted")]).await;
    let mut node = cluster.node();
    let (_client, thread) = cluster.turn(&node).await;
    completed(&node, &thread).await;
    let held =
        "select count(*) from outpost_threads t join outpost_nodes n on n.instance = t.instance where n.expires > now() and t.claims = 0";
    for _ in 0..4 {
        drop(node.stop());
        node = cluster.node();
        eventually("the next node has the thread", || cluster.database.ask(held) == "1").await;
    }
    cluster.go();
    eventually("the model is woken", || cluster.asked() == 3).await;
    let turns = completed(&node, &thread).await;
    assert_eq!(turns.len(), 2, "{turns:?}");
    let woken = cluster.model.requests()[2].body["input"].to_string();
    assert!(woken.contains("Exit code: 5") && woken.contains("line 6"), "{woken}");
    assert_eq!(std::fs::read_to_string(cluster.work.path().join("ran")).unwrap(), "ran\n", "it ran once");
}
