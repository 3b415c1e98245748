//! An executor that can only dial out, used by a thread of the server that it joined.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{EnvironmentOptions, EnvironmentState, FIRST_CONNECTION, Registry, RegistryOptions};
use outpost_listener::access::{AccessRules, ListenerAccess};
use outpost_listener::auth::Auth;
use outpost_listener::listen::{ListenAddr, Listener};
use outpost_runtime::config::RuntimeConfig;
use outpost_runtime::feed::Read;
use outpost_runtime::live::{LiveThread, NewInput, ThreadEvent};
use outpost_runtime::model::built_in;
use outpost_runtime::models::Models;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::rules::CommandRules;
use outpost_runtime::{Runtime, RuntimeParts, StartThread, ThreadActivity};
use outpost_server::admission::BrowserAdmission;
use outpost_server::executors::{Executors, JoinLimits};
use outpost_server::metrics::{MetricSources, Metrics};
use outpost_server::site::{ClientAccess, Site};
use outpost_server::tokens::{TokenPurpose, TokenStore};
use outpost_server::web::Sessions;
use outpost_server::{Facts, Server};
use outpost_store::{MemoryStore, Store};
use outpost_testkit::Cutter;
use outpost_thread::{CallOutcome, Fact, Raw, ThreadId};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::support::{http, joined, joined_in, joined_readable, listens};

/// Everything behind the listener in this process, with the offline model.
struct Hub {
    runtime: Runtime,
    address: String,
    executors: Arc<Executors>,
    tokens: TokenStore,
    _home: TempDir,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

fn id(text: &str) -> EnvironmentId {
    text.parse().unwrap()
}

impl Hub {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let environment = EnvironmentOptions { connect_timeout: Duration::from_secs(2), ..EnvironmentOptions::default() };
        let registry = Registry::new(RegistryOptions { environment, ..RegistryOptions::default() });
        let (tokens, admission) = (TokenStore::new(home.path()), Arc::new(BrowserAdmission::default()));
        let executors = Executors::new(registry.clone(), tokens.clone(), admission.clone(), JoinLimits::default());
        let runtime = runtime(registry.clone());
        let facts = Facts {
            home: home.path().to_owned(),
            cwd: PathUri::from_native(home.path()).unwrap(),
            version: "test".into(),
            config: serde_json::json!({}),
            check_config: |_| Ok(()),
            requirements: None,
        };
        let server = Server::new(outpost_server::ServerParts { runtime: runtime.clone(), facts, clock: clock() });
        let serving = server.clone();
        let site = Site {
            store: outpost_store::Store::Memory(outpost_store::MemoryStore::new(Arc::new(|| 0), None)),
            node_secret: None,
            access: ClientAccess::Tokens(Auth::token("own")),
            tokens: tokens.clone(),
            admission: admission.clone(),
            executors: executors.clone(),
            on_client: Arc::new(move |link, _| {
                let server = serving.clone();
                tokio::spawn(async move { server.serve(link).await });
            }),
            sessions: Sessions::new(Arc::new(|| Some(Uuid::new_v4().to_string()))),
            is_private: false,
            metrics: Metrics::new(MetricSources { server, executors: executors.clone() }),
        };
        let listener = Listener::ws(([127, 0, 0, 1], 0).into()).await.unwrap();
        let ListenAddr::Ws(address) = listener.address() else { panic!() };
        let address = address.to_string();
        let serving =
            tokio::spawn(async move { match listener.serve_door(ListenerAccess::to(AccessRules::default(), Arc::new(site))).await {} });
        let (looking, following) = (tokens.clone(), executors.clone());
        let looking = tokio::spawn(async move { admission.keep_looking(&looking).await });
        let following = tokio::spawn(async move { following.follow_tokens().await });
        let tasks = [serving, looking, following].map(AbortOnDropHandle::new).into();
        Self { runtime, address, executors, tokens, _home: home, _tasks: tasks }
    }

    async fn token(&self, name: &str) -> String {
        let secret = Uuid::new_v4().to_string();
        self.tokens.issue(&secret, TokenPurpose::Executor { id: id(name) }, None, 1).await.unwrap();
        secret
    }

    fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    async fn standing(&self, name: &str, fits: impl Fn(&EnvironmentState) -> bool) {
        let waiting = async {
            while !fits(&self.runtime.registry().standing(&id(name))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
        assert!(waited.is_ok(), "it stands like this: {:?}", self.runtime.registry().standing(&id(name)));
    }

    async fn thread(&self, name: &str, work: &TempDir) -> LiveThread {
        let mut start = StartThread::new();
        start.created.selection =
            Some(Selection::new(vec![Attachment::new(id(name), PathUri::from_native(work.path()).unwrap())]).unwrap());
        self.runtime.start(start).await.unwrap()
    }

    /// The outcomes of all calls, and what the model was told.
    async fn outputs(&self, thread: ThreadId) -> Vec<(CallOutcome, String)> {
        let entries = self.runtime.store().history(thread, 0).await.unwrap().rest().await.unwrap().entries;
        let told = |item: &Raw| item.read::<serde_json::Value>().unwrap()["output"].as_str().unwrap_or_default().to_owned();
        let finished = entries.into_iter().filter_map(|entry| match entry.fact {
            Fact::CallFinished(finished) => Some((finished.outcome, finished.items.iter().map(told).collect())),
            _ => None,
        });
        finished.collect()
    }
}

fn clock() -> outpost_store::Clock {
    Arc::new(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64)
}

fn runtime(registry: Registry) -> Runtime {
    let clock = clock();
    let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::new_v4().to_string());
    let memory = || Store::Memory(MemoryStore::new(clock.clone(), None));
    let offline = || "offline".to_owned();
    Runtime::new(RuntimeParts {
        config: RuntimeConfig {
            model: offline(),
            model_provider: offline(),
            sandbox: SandboxMode::DangerFullAccess,
            ..RuntimeConfig::default()
        },
        store: memory(),
        ephemeral: memory(),
        registry,
        models: Models::new(built_in(), (offline(), offline()), Arc::new(|_| None), ids.clone()),
        rules: CommandRules::default(),
        clock: clock.clone(),
        ids,
        thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
    })
}

/// Reads output until this is in it.
async fn output(cursor: &mut outpost_runtime::feed::FeedReader<ThreadEvent>, seen: &mut String, wanted: &str) {
    let reading = async {
        while !seen.contains(wanted) {
            match cursor.next().await {
                Read::Event(ThreadEvent::Output { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                Read::End => panic!("the thread ended"),
                _ => {}
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(120), reading).await.is_ok(), "`{wanted}` does not come: {seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_survives_two_lost_connections_and_runs_once() {
    let hub = Hub::start().await;
    let cutter = Cutter::start(&hub.address, Vec::new()).await;
    let executor = joined_readable(&cutter.url(), "gpu", &hub.token("gpu").await);
    assert!(!listens(executor.pid()), "it opens no port");
    hub.standing("gpu", |standing| *standing == EnvironmentState::Ready).await;
    let generation = hub.runtime.registry().status(&id("gpu")).unwrap().generation;
    let work = tempfile::tempdir().unwrap();
    let thread = hub.thread("gpu", &work).await;
    let mut cursor = thread.subscribe();
    // It goes on only when it is told to, so that each cut is in its middle.
    let script =
        "$ echo x >> counter; for step in one two three; do echo step $step; while [ ! -e $step ]; do sleep 0.02; done; done; echo over";
    thread.input(NewInput::text(script)).await.unwrap();
    let mut seen = String::new();
    for step in ["one", "two"] {
        output(&mut cursor, &mut seen, &format!("step {step}\n")).await;
        cutter.cut();
        hub.standing("gpu", |standing| matches!(standing, EnvironmentState::Recovering { .. })).await;
        // It goes on while nobody is connected.
        std::fs::write(work.path().join(step), "").unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        cutter.mend();
        hub.standing("gpu", |standing| *standing == EnvironmentState::Ready).await;
    }
    output(&mut cursor, &mut seen, "step three\n").await;
    std::fs::write(work.path().join("three"), "").unwrap();
    let status = tokio::time::timeout(Duration::from_secs(120), thread.settled()).await.unwrap();
    assert_eq!(status, ThreadActivity::Idle);
    let outputs = hub.outputs(thread.id()).await;
    assert_eq!(outputs.len(), 1);
    assert!(outputs[0].1.contains("step one\nstep two\nstep three\nover"), "{outputs:?}");
    assert_eq!(std::fs::read_to_string(work.path().join("counter")).unwrap(), "x\n");
    let status = hub.runtime.registry().status(&id("gpu")).unwrap();
    assert_eq!(status.generation, generation, "the same handle all the time");
    assert!(cutter.connections() >= 3, "it dialled in again: {}", cutter.connections());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_may_come_is_known_before_it_does() {
    let hub = Hub::start().await;
    assert_eq!(hub.runtime.registry().standing(&id("gpu")), EnvironmentState::Missing);
    let token = hub.token("gpu").await;
    hub.standing("gpu", |standing| matches!(standing, EnvironmentState::Failed { .. })).await;
    let mut executor = joined(&hub.url(), "gpu", &token);
    hub.standing("gpu", |standing| *standing == EnvironmentState::Ready).await;
    // A restart is the same install, and a new session.
    let home = executor.kill_and_keep_home();
    hub.standing("gpu", |standing| *standing != EnvironmentState::Ready).await;
    let _executor = joined_in(&hub.url(), "gpu", &token, home);
    hub.standing("gpu", |standing| *standing == EnvironmentState::Ready).await;
    // Without a token there is no such environment any more.
    let digest = outpost_server::tokens::digest(&token);
    hub.tokens.revoke(&digest).await.unwrap();
    hub.standing("gpu", |standing| *standing == EnvironmentState::Missing).await;
    assert!(hub.executors.links().is_empty());
}

/// It may join at another node first, or the store may not answer when its token is seen: this is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_joined_elsewhere_is_not_waited_for_as_a_new_one() {
    let hub = Hub::start().await;
    hub.token("gpu").await;
    let is_new =
        |standing: &EnvironmentState| matches!(standing, EnvironmentState::Failed { reason, .. } if reason.contains(FIRST_CONNECTION));
    hub.standing("gpu", is_new).await;
    hub.tokens.bind(&id("gpu"), "install-a").await.unwrap();
    hub.standing("gpu", |standing| matches!(standing, EnvironmentState::Failed { .. }) && !is_new(standing)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_nobody_out() {
    let hub = Hub::start().await;
    // Two hundred who say nothing, and two hundred who say something wrong.
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&hub.address).await.unwrap());
    }
    let address = hub.address.clone();
    let wrong = (0..200).map(|_| {
        let address = address.clone();
        tokio::spawn(async move {
            let request = "GET /executors/join?id=gpu&executor=e&instance=i&link=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer nonsense\r\n\r\n";
            tokio::time::timeout(Duration::from_secs(60), http(&address, request)).await
        })
    });
    let wrong: Vec<_> = wrong.collect();
    let executor = joined(&hub.url(), "gpu", &hub.token("gpu").await);
    hub.standing("gpu", |standing| *standing == EnvironmentState::Ready).await;
    let work = tempfile::tempdir().unwrap();
    let thread = hub.thread("gpu", &work).await;
    thread.input(NewInput::text("$ echo hello > there")).await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(120), thread.settled()).await.unwrap(), ThreadActivity::Idle);
    assert_eq!(std::fs::read_to_string(work.path().join("there")).unwrap(), "hello\n");
    wrong.iter().for_each(tokio::task::JoinHandle::abort);
    drop((silent, executor));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_configured_is_not_replaced() {
    let hub = Hub::start().await;
    let snapshot = outpost_environment::ConfigurationSnapshot {
        include_local: false,
        entries: vec![outpost_environment::ConfiguredEnvironment {
            id: id("gpu"),
            definition: Ok(outpost_environment::Definition::url("ws://127.0.0.1:9", outpost_environment::Token::None).unwrap()),
        }],
        ..outpost_environment::ConfigurationSnapshot::default()
    };
    hub.runtime.registry().configure(outpost_environment::ActiveConfiguration::On(snapshot)).unwrap();
    let token = hub.token("gpu").await;
    let trying = crate::support::Trying::start(&["--join", &hub.url(), "--id", "gpu"], &token, tempfile::tempdir().unwrap());
    assert!(trying.says("trying again").contains("environments.toml"));
}
