//! Any node serves any thread: what a client of one node hears and does with a thread that another one drives. And how much a plain turn
//! asks of the database.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outpost_rpc::link::ws::{self, ClientOptions};
use outpost_testkit::Client;
use outpost_testkit::app::{introduce, notice, thread, turn};
use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_testkit::postgres::Database;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{App, Server};

/// A node with a home of its own on a database.
fn node(database: &str, model: &ScriptedModel, name: &str, more: &[&str]) -> Server {
    let home = tempfile::tempdir().unwrap();
    let mut config = format!("store = \"{database}\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n");
    write!(config, "model = \"m\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{}\"\n", model.base_url()).unwrap();
    config.push_str("wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n");
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    Server::start_in(home, &[&["--listen", "ws://127.0.0.1:0", "--node", name], more].concat())
}

async fn client(node: &Server) -> Client {
    let mut client = Client::new(ws::connect(node.url(), &ClientOptions::default()).await.unwrap());
    introduce(&mut client, json!({"experimentalApi": true})).await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_one_node_works_with_a_thread_of_another() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let (first, second) = (node(database.url(), &model, "a", &["--no-auth"]), node(database.url(), &model, "b", &["--no-auth"]));
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    let mut at_second = client(&second).await;
    // It sees who drives the thread, and where.
    let seen = at_second.result("thread/overview", json!({"threadIds": [id]})).await["data"][0]["holder"].clone();
    assert_eq!((&seen["node"], &seen["address"], &seen["isHere"]), (&json!("a"), &json!(first.url()), &json!(false)), "{seen}");
    // It resumes it, starts a turn, and hears what happens; so does the client of the first node.
    let resumed = at_second.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(resumed["thread"]["turns"].as_array().unwrap().len(), 1, "{resumed}");
    let ended = turn(&mut at_second, &id, "again").await;
    assert_eq!(ended["status"], "completed", "{ended}");
    notice(&mut at_first, "turn/completed").await;
    // It takes it over: from then on the second node drives it.
    at_second.result("thread/takeover", json!({"threadId": id})).await;
    turn(&mut at_second, &id, "mine").await;
    let seen = at_second.result("thread/overview", json!({"threadIds": [id]})).await["data"][0]["holder"].clone();
    assert_eq!((&seen["node"], &seen["isHere"]), (&json!("b"), &json!(true)), "{seen}");
    assert_eq!(model.requests().len(), 3);
}

/// A thread that moves to a third node is followed there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_follows_a_thread_to_a_third_node() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let start = |name: &str| node(database.url(), &model, name, &["--no-auth"]);
    let (first, second, third) = (start("a"), start("b"), start("c"));
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    let mut at_second = client(&second).await;
    at_second.result("thread/resume", json!({"threadId": id})).await;
    turn(&mut at_second, &id, "again").await;
    let mut at_third = client(&third).await;
    at_third.result("thread/takeover", json!({"threadId": id})).await;
    // A node from which an idle thread was taken notices when it renews its leases, and tells its clients; a client that resumes the thread
    // is passed on to where it is.
    assert_eq!(notice(&mut at_first, "thread/closed").await["threadId"], json!(id));
    at_second.result("thread/resume", json!({"threadId": id})).await;
    let ended = turn(&mut at_second, &id, "there").await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let seen = at_second.result("thread/overview", json!({"threadIds": [id]})).await["data"][0]["holder"].clone();
    assert_eq!(seen["node"], json!("c"), "{seen}");
    // The first node has nothing to do with the thread any more.
    drop(first.kill());
    at_second.result("thread/resume", json!({"threadId": id})).await;
}

/// When the node is killed the client is told, and finds the thread again where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_when_the_node_of_its_thread_ends() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let (first, second) = (node(database.url(), &model, "a", &["--no-auth"]), node(database.url(), &model, "b", &["--no-auth"]));
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    let mut at_second = client(&second).await;
    at_second.result("thread/resume", json!({"threadId": id})).await;
    turn(&mut at_second, &id, "again").await;
    drop(first.kill());
    assert_eq!(notice(&mut at_second, "thread/closed").await["threadId"], json!(id));
    // The lease of a killed node ends by itself; the client need not ask again.
    at_second.result("thread/resume", json!({"threadId": id})).await;
    let ended = turn(&mut at_second, &id, "there").await;
    assert_eq!(ended["status"], "completed", "{ended}");
}

/// A node that lives and cannot be reached from here keeps its thread; the client is told where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_node_that_cannot_be_reached() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one")]).await;
    // Nothing listens there.
    let first = node(database.url(), &model, "a", &["--no-auth", "--advertise", "ws://127.0.0.1:1"]);
    let second = node(database.url(), &model, "b", &["--no-auth"]);
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    let answer = client(&second).await.call("thread/resume", json!({"threadId": id})).await;
    let why = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("node a at ws://127.0.0.1:1") && !why.contains("process "), "{answer}");
}

/// Stands before a node. Until it is told where that is, it takes connections and says nothing, as a machine that is gone.
struct Gate {
    url: String,
    leads_to: watch::Sender<Option<String>>,
    connections: Arc<AtomicUsize>,
}

impl Gate {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Self {
            url: format!("ws://{}", listener.local_addr().unwrap()),
            leads_to: watch::Sender::new(None),
            connections: Arc::default(),
        };
        let (leads_to, connections) = (gate.leads_to.subscribe(), gate.connections.clone());
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let mut leads_to = leads_to.clone();
                tokio::spawn(async move {
                    let Ok(address) = leads_to.wait_for(Option::is_some).await.map(|address| address.clone()) else { return };
                    let mut to = TcpStream::connect(address.unwrap()).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        });
        gate
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// What a client asks of other nodes does not wait for it, and all that it asks of one node goes over one link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_answer_delays_nothing_else_of_a_client() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two")]).await;
    let gate = Gate::start().await;
    let first = node(database.url(), &model, "a", &["--no-auth", "--advertise", &gate.url]);
    let (second, third) = (node(database.url(), &model, "b", &["--no-auth"]), node(database.url(), &model, "c", &["--no-auth"]));
    let (mut at_first, mut at_third) = (client(&first).await, client(&third).await);
    let (silent, other) =
        (thread(&mut at_first, json!({"environments": []})).await, thread(&mut at_third, json!({"environments": []})).await);
    turn(&mut at_first, &silent, "go").await;
    turn(&mut at_third, &other, "go").await;
    let mut at_second = client(&second).await;
    let input = json!([{"type": "text", "text": "again"}]);
    let held_up: Vec<i64> = (0..3).map(|_| at_second.request("turn/start", json!({"threadId": silent, "input": input}))).collect();
    eventually("the silent node is dialled", || gate.connections() == 1).await;
    let resumed = at_second.request("thread/resume", json!({"threadId": other}));
    let next = at_second.next_answer().await;
    assert!(next["id"] == resumed && next["error"].is_null(), "it waited for the node that does not answer: {next}");
    for id in held_up {
        let answer = at_second.answer(id).await;
        assert!(answer["error"].is_object(), "{answer}");
    }
    assert_eq!(gate.connections(), 1, "they waited for one attempt");
    // Now it answers.
    gate.leads_to.send_replace(Some(first.address().to_owned()));
    let resumed: Vec<i64> = (0..3).map(|_| at_second.request("thread/resume", json!({"threadId": silent}))).collect();
    for id in resumed {
        let answer = at_second.answer(id).await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    assert_eq!(gate.connections(), 2, "they share one link");
}

/// A machine that is gone does not answer at all. Once the time is over in which other nodes take its threads up it is not tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_does_not_answer_is_not_dialled_when_the_wait_is_over() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one")]).await;
    let gate = Gate::start().await;
    let first = node(database.url(), &model, "a", &["--no-auth", "--advertise", &gate.url]);
    let second = node(database.url(), &model, "b", &["--no-auth"]);
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    let (_, why) = client(&second).await.error("thread/resume", json!({"threadId": id})).await;
    assert!(why.contains(&format!("node a at {}", gate.url)), "{why}");
    // Each attempt takes five seconds, and a third one would begin after nine.
    assert_eq!(gate.connections(), 2);
}

/// Two clients wait at two nodes for the end of a dead node's lease. Both find the thread free, and one node gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_that_meets_the_claim_of_another_node_is_passed_on_to_it() {
    let database = Arc::new(Database::create());
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let start = |name: &str| node(database.url(), &model, name, &["--no-auth"]);
    let (first, second, third) = (start("a"), start("b"), start("c"));
    let mut at_first = client(&first).await;
    let id = thread(&mut at_first, json!({"environments": []})).await;
    turn(&mut at_first, &id, "go").await;
    drop(first.kill());
    // Neither node gets it before both have come for it.
    let held_up = "do $$ begin
        perform from outpost_threads for update;
        while (select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock') < 2 loop
          perform pg_sleep(0.02), pg_stat_clear_snapshot();
        end loop;
      end $$";
    let holding = tokio::task::spawn_blocking({
        let database = database.clone();
        move || database.ask(held_up)
    });
    let locked = "select count(*) from pg_locks where relation = 'outpost_threads'::regclass and mode = 'RowShareLock'";
    eventually("the thread cannot be claimed", || database.ask(locked) == "1").await;
    let (mut at_second, mut at_third) = (client(&second).await, client(&third).await);
    let waiting = [&mut at_second, &mut at_third].map(|client| client.request("thread/resume", json!({"threadId": id})));
    for (client, request) in [&mut at_second, &mut at_third].into_iter().zip(waiting) {
        let answer = client.answer(request).await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    holding.await.unwrap();
    // Both work with it, and it is one thread.
    turn(&mut at_second, &id, "again").await;
    notice(&mut at_third, "turn/completed").await;
    turn(&mut at_third, &id, "and again").await;
    assert_eq!(database.ask("select epoch from outpost_threads"), "2", "it changed hands once");
}

/// The secret of the nodes is asked for, and a person stays who it is on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_a_client_is_goes_with_it_to_another_node() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two")]).await;
    let (first, second) = (node(database.url(), &model, "a", &[]), node(database.url(), &model, "b", &[]));
    let anna = second.token(&["--client", "--name", "anna", "--role", "operator"]);
    let ben = second.token(&["--client", "--name", "ben", "--role", "viewer"]);
    let mut own = App::connect(first.url(), &first.own_token()).await;
    let id = own.call("thread/start", json!({"environments": []})).await["thread"]["id"].as_str().unwrap().to_owned();
    own.call("turn/start", json!({"threadId": id, "input": [{"type": "text", "text": "go"}]})).await;
    eventually("the first turn", || model.requests().len() == 1).await;
    let mut app = App::connect(second.url(), &anna).await;
    app.call("thread/resume", json!({"threadId": id})).await;
    app.call("turn/start", json!({"threadId": id, "input": [{"type": "text", "text": "hello"}]})).await;
    eventually("the second turn", || model.requests().len() == 2).await;
    let mut app = App::connect(second.url(), &ben).await;
    app.call("thread/resume", json!({"threadId": id})).await;
    // Who said something is shown to everyone; the server's own token has no name.
    let read = app.call("thread/read", json!({"threadId": id, "includeTurns": true})).await;
    let by = |turn: usize| read["thread"]["turns"][turn]["items"][0]["by"].clone();
    assert_eq!((by(0), by(1)), (serde_json::Value::Null, json!("anna")), "{read}");
    let refused = app.refused("turn/start", json!({"threadId": id, "input": [{"type": "text", "text": "no"}]})).await;
    assert!(refused.contains("ben may not") && refused.contains("viewer"), "{refused}");
    let exported = crate::support::outpost(first.home(), &["thread", "export", &id]);
    let exported = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(exported.contains("\"by\":\"anna\"") && !exported.contains("\"by\":\"ben\""), "{exported}");
}

/// A question of the node that drives a thread reaches a client of another one, and its answer is that person's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_of_one_node_is_answered_at_another_and_the_entry_says_by_whom() {
    let database = Database::create();
    let work = tempfile::tempdir().unwrap();
    let command = Reply::call("c", "exec_command", &json!({"cmd": "echo ran >> ran", "login": false}));
    let model = ScriptedModel::with(vec![command, Reply::message("done")]).await;
    let (first, second) = (node(database.url(), &model, "a", &[]), node(database.url(), &model, "b", &[]));
    let anna = second.token(&["--client", "--name", "anna", "--role", "operator"]);
    let mut own = App::connect(first.url(), &first.own_token()).await;
    let here = json!([{"environmentId": "local", "cwd": work.path()}]);
    let started = own.call("thread/start", json!({"environments": here, "approvalPolicy": "untrusted"})).await;
    let id = started["thread"]["id"].as_str().unwrap().to_owned();
    own.call("turn/start", json!({"threadId": id, "input": [{"type": "text", "text": "go"}]})).await;
    own.asked("item/commandExecution/requestApproval").await;
    let mut app = App::connect(second.url(), &anna).await;
    app.call("thread/resume", json!({"threadId": id})).await;
    let question = app.asked("item/commandExecution/requestApproval").await;
    app.answer(&question, json!({"decision": "accept"}));
    own.notified("turn/completed").await;
    assert_eq!(std::fs::read_to_string(work.path().join("ran")).unwrap(), "ran\n");
    let answered = database.ask("select data from outpost_entries where kind = 'approvalAnswered'");
    let answered: serde_json::Value = serde_json::from_str(&answered).unwrap();
    assert_eq!(answered["by"], "anna", "{answered}");
    assert_eq!(database.ask("select count(distinct instance) from outpost_threads"), "1", "the first node still drives it");
}

/// Counted, not timed: the same on every machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_turn_is_three_commits_and_reads_nothing() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    let model = ScriptedModel::with(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let driver = node(&proxy.url(), &model, "a", &["--no-auth"]);
    // Another node costs a turn nothing.
    let beside = DatabaseProxy::start(database.url());
    let _other = node(&beside.url(), &model, "b", &["--no-auth"]);
    let mut client = client(&driver).await;
    let id = thread(&mut client, json!({"environments": []})).await;
    for _ in 0..2 {
        turn(&mut client, &id, "go").await;
    }
    // What nodes say of themselves and share, looks for orphans and notes to followers belong to no turn.
    let aside = ["outpost_nodes", "outpost_shared", "pg_notify", "set expires", "set statement_timeout"];
    let own = |proxy: &DatabaseProxy| -> Vec<String> {
        proxy.take_statements().into_iter().filter(|text| !aside.iter().any(|part| text.contains(part))).collect()
    };
    drop([&proxy, &beside].map(DatabaseProxy::take_statements));
    turn(&mut client, &id, "again").await;
    let (statements, others) = (own(&proxy), own(&beside));
    let appends = |statements: &[String]| statements.iter().filter(|text| text.contains("insert into outpost_entries")).count();
    assert_eq!((appends(&statements), statements.len()), (3, 3), "{statements:#?}");
    assert_eq!((appends(&others), others.len()), (0, 0), "{others:#?}");
    let (status, _) = driver.get("/readyz", None).await;
    assert_eq!(status, 200);
}

/// An executor that dialled in at one node is an environment of every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_joined_one_node_is_reached_through_another() {
    let database = Database::create();
    let model = ScriptedModel::with(vec![]).await;
    let (first, second) = (node(database.url(), &model, "a", &[]), node(database.url(), &model, "b", &[]));
    let token = first.token(&["--executor", "gpu"]);
    let _executor = crate::support::joined(first.url(), "gpu", &token);
    let mut app = App::connect(second.url(), &second.own_token()).await;
    loop {
        let listed = app.call("environment/list", json!({})).await;
        if listed["data"].as_array().unwrap().iter().any(|one| one["environmentId"] == "gpu") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    app.call("thread/start", json!({"environments": [{"environmentId": "gpu", "cwd": "/"}]})).await;
    while app.call("environment/status", json!({"environmentId": "gpu"})).await["status"] != "ready" {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
