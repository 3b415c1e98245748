//! Everything that fails in a run and everything that looks at it: a database of its own, three nodes, five executors.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outpost_testkit::balancer::Balancer;
use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::model::ScriptedModel;
use outpost_testkit::postgres::OwnServer;
use outpost_testkit::{Cutter, ExecutorProcess};
use tempfile::TempDir;

use super::Dice;
use super::tally::Tally;
use super::task::{self, Told};
use crate::support::{OUTPOST, Server, command, joined, token};

const NAMES: [&str; 3] = ["a", "b", "c"];
const WEBSOCKET: [&str; 3] = ["w1", "w2", "w3"];
const JOINED: [&str; 2] = ["j1", "j2"];
/// So many of the last events are shown with a violation.
const SHOWN: usize = 60;

pub(super) struct Arena {
    pub seed: u64,
    pub database: OwnServer,
    pub nodes: Vec<Node>,
    pub cutters: Vec<Cutter>,
    pub balancer: Balancer,
    pub work: TempDir,
    pub tally: Mutex<Tally>,
    /// What the model was told of each task.
    pub told: Told,
    _model: ScriptedModel,
    executors: Mutex<Vec<ExecutorProcess>>,
    logs: PathBuf,
    /// By thread, the name of the task that runs now.
    tasks: Mutex<HashMap<String, String>>,
    events: Mutex<Vec<String>>,
    began: Instant,
    next: AtomicU64,
    over: AtomicBool,
    is_long: bool,
}

pub(super) struct Node {
    pub name: &'static str,
    pub proxy: DatabaseProxy,
    pub place: tokio::sync::Mutex<NodePlace>,
    /// Where it is reached; nothing while it is known not to answer.
    url: Mutex<Option<String>>,
}

/// A node that runs, or the home for its next start.
#[derive(Default)]
pub(super) struct NodePlace {
    pub server: Option<Server>,
    pub home: Option<TempDir>,
}

impl Arena {
    pub(super) async fn start(seed: u64, is_long: bool) -> Arc<Self> {
        let database = tokio::task::spawn_blocking(OwnServer::start).await.unwrap();
        let told = Told::default();
        let model = ScriptedModel::with(vec![]).await.speaking(task::voice(told.clone()));
        let mut executors: Vec<ExecutorProcess> =
            WEBSOCKET.iter().map(|_| ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"])).collect();
        let mut cutters = Vec::new();
        for executor in &executors {
            cutters.push(Cutter::start(executor.address(), vec![]).await);
        }
        let nodes = NAMES.map(|name| {
            let proxy = DatabaseProxy::start(database.url());
            let home = home(&proxy, &model, &cutters);
            Node { name, proxy, place: tokio::sync::Mutex::new(NodePlace { server: None, home: Some(home) }), url: Mutex::default() }
        });
        let logs = tempfile::Builder::new().prefix("soak").tempdir().unwrap().keep();
        let arena = Arc::new(Self {
            seed,
            database,
            nodes: nodes.into(),
            cutters,
            balancer: Balancer::start().await,
            work: tempfile::tempdir().unwrap(),
            tally: Mutex::default(),
            told,
            _model: model,
            executors: Mutex::default(),
            logs,
            tasks: Mutex::default(),
            events: Mutex::default(),
            began: Instant::now(),
            next: AtomicU64::new(0),
            over: AtomicBool::new(false),
            is_long,
        });
        for node in &arena.nodes {
            arena.launch(node).await;
        }
        let home = arena.nodes[0].place.lock().await.server.as_ref().unwrap().home().to_owned();
        for id in JOINED {
            // At the address of the balancer, as every executor outside would.
            let token = token(&home, &["--executor", id]);
            executors.push(joined(&arena.balancer.url(), id, &token));
        }
        *arena.executors.lock().unwrap() = executors;
        arena.note(format!("seed {seed}, logs in {}", arena.logs.display()));
        arena
    }

    /// Starts a node, or starts it again, for as long as that takes: its database may be away.
    pub(super) async fn launch(&self, node: &Node) {
        let mut place = node.place.lock().await;
        let mut home = place.home.take().unwrap();
        for _ in 0..300 {
            let log = File::options().create(true).append(true).open(self.logs.join(node.name)).unwrap();
            let mut command = command(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--no-auth", "--node", node.name]);
            command.env("OUTPOST_LOG", "info").stderr(log);
            match tokio::task::spawn_blocking(move || Server::try_launch(command, home)).await.unwrap() {
                Ok(server) => {
                    node.reached(Some(server.url().to_owned()));
                    place.server = Some(server);
                    self.lead();
                    return;
                }
                Err(kept) => home = kept,
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        self.violation(format!("node {} does not start any more", node.name));
        place.home = Some(home);
    }

    /// Tells the balancer which nodes answer.
    pub(super) fn lead(&self) {
        let urls = self.nodes.iter().filter_map(Node::url);
        self.balancer.lead_to(urls.filter_map(|url| Some(url.split_once("://")?.1.to_owned())).collect());
    }

    /// One of the nodes that answer.
    pub(super) fn some_node(&self, dice: &mut Dice) -> Option<String> {
        let urls: Vec<String> = self.nodes.iter().filter_map(Node::url).collect();
        (!urls.is_empty()).then(|| urls[dice.index(urls.len())].clone())
    }

    pub(super) fn some_place(dice: &mut Dice) -> &'static str {
        let places: Vec<&'static str> = WEBSOCKET.into_iter().chain(JOINED).collect();
        places[dice.index(places.len())]
    }

    /// What a statement returns at the end of a run, when the database is there.
    pub(super) fn ask(&self, statement: &str) -> String {
        self.database.ask(statement).unwrap_or_else(|| panic!("no answer to {statement}"))
    }

    /// Notes which commands run on when a node fails, which it is about to; `kill` is the number of the fault, if it is a kill.
    pub(super) async fn node_fails(self: &Arc<Self>, pid: u32, kill: Option<usize>) {
        let statement = format!("select t.id from outpost_threads t join outpost_nodes n on n.instance = t.instance where n.pid = {pid}");
        let arena = self.clone();
        let held = tokio::task::spawn_blocking(move || arena.database.ask(&statement)).await.unwrap();
        let Some(held) = held else { return };
        for thread in held.lines() {
            let name = self.tasks.lock().unwrap().get(thread).cloned();
            if name.is_some_and(|name| task::is_running(self.work.path(), &name)) {
                self.tally.lock().unwrap().node_fails(thread, kill);
            }
        }
    }

    pub(super) fn next_task(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn runs(&self, thread: &str, name: &str) {
        self.tasks.lock().unwrap().insert(thread.to_owned(), name.to_owned());
    }

    pub(super) fn is_done(&self, thread: &str) {
        self.tasks.lock().unwrap().remove(thread);
    }

    pub(super) fn open_tasks(&self) -> Vec<(String, String)> {
        self.tasks.lock().unwrap().clone().into_iter().collect()
    }

    #[expect(clippy::print_stdout, reason = "a long run shows what it does")]
    pub(super) fn note(&self, event: String) {
        let event = format!("{:8.2} {event}", self.began.elapsed().as_secs_f64());
        if self.is_long {
            println!("{event}");
        }
        self.events.lock().unwrap().push(event);
    }

    pub(super) fn violation(&self, what: String) {
        self.note(format!("VIOLATION {what}"));
        self.tally.lock().unwrap().violations.push(what);
        self.end();
    }

    pub(super) fn is_violated(&self) -> bool {
        !self.tally.lock().unwrap().violations.is_empty()
    }

    /// No task begins any more.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(super) fn count_entries(&self) {
        let count = self.ask("select count(*) from outpost_entries").parse().unwrap();
        self.tally.lock().unwrap().entries = count;
    }

    /// No command ran twice, those of threads that were given up among them.
    pub(super) fn check_runs(&self) {
        for entry in self.work.path().read_dir().unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "ran") && std::fs::read_to_string(&path).unwrap() != "ran\n" {
                self.violation(format!("{} ran twice", path.display()));
            }
        }
    }

    #[expect(clippy::print_stdout, reason = "a run with --nocapture prints the figures")]
    pub(super) fn report(&self) {
        let tally = self.tally.lock().unwrap();
        println!(
            "seed {}, {:.1} minutes, 3 nodes, 5 executors (3 websocket, 2 joined)",
            self.seed,
            self.began.elapsed().as_secs_f64() / 60.0
        );
        tally.figures().iter().for_each(|line| println!("{line}"));
        if tally.violations.is_empty() {
            tally.promises().iter().for_each(|line| println!("{line}"));
            let _ = std::fs::remove_dir_all(&self.logs);
            return;
        }
        let events = self.events.lock().unwrap();
        events[events.len().saturating_sub(SHOWN)..].iter().for_each(|event| println!("{event}"));
        tally.violations.iter().for_each(|violation| println!("violation: {violation}"));
        println!("the logs of the nodes are in {}", self.logs.display());
    }
}

impl Node {
    pub(super) fn url(&self) -> Option<String> {
        self.url.lock().unwrap().clone()
    }

    pub(super) fn reached(&self, url: Option<String>) {
        *self.url.lock().unwrap() = url;
    }
}

/// The home of a node, with a way of its own to the database.
fn home(proxy: &DatabaseProxy, model: &ScriptedModel, cutters: &[Cutter]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let mut config = format!("store = \"{}\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n", proxy.url());
    write!(config, "model = \"m\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nbase_url = \"{}\"\n", model.base_url()).unwrap();
    config.push_str("wire_api = \"responses\"\n");
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let mut environments = String::new();
    for (id, cutter) in WEBSOCKET.iter().zip(cutters) {
        writeln!(environments, "[[environments]]\nid = \"{id}\"\nurl = \"{}\"", cutter.url()).unwrap();
    }
    std::fs::write(home.path().join("environments.toml"), environments).unwrap();
    home
}
