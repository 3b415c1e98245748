//! Several servers on one database: what becomes of a thread when the node that has it is killed, or told to end.

use std::fmt::Write as _;

use outpost_rpc::link::ws::{self, ClientOptions};
use outpost_testkit::app::{begin, introduce, thread};
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_testkit::postgres::Database;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{OUTPOST, Server};

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
        let home = tempfile::tempdir().unwrap();
        let mut config =
            format!("store = \"{}\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n", self.database.url());
        write!(config, "model = \"m\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{}\"\n", self.model.base_url())
            .unwrap();
        config.push_str("wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n");
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        let environments = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", self.worker.url());
        std::fs::write(home.path().join("environments.toml"), environments).unwrap();
        Server::start_in(home, &["--listen", "ws://127.0.0.1:0", "--no-auth"])
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
