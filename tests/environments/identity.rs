//! One id, one executor: another one behind the same id is noticed, announced and never reached through an old handle.

use std::path::Path;
use std::sync::{Arc, Mutex};

use outpost_environment::{
    ConnectPolicy, ConnectionState, Connector, Environment, EnvironmentError, EnvironmentOptions, FailureKind, RegistryEvent, Token,
};
use outpost_testkit::{ExecutorProcess, LinkKind};

use crate::support::{OUTPOST, Site, finish, id, news, over_sites, ready, registry, selection, soon, state};

/// Leads to whichever site it is told to.
#[derive(Clone)]
struct Signpost(Arc<Mutex<Connector>>);

impl Signpost {
    fn new(site: &Site) -> Self {
        Self(Arc::new(Mutex::new(site.connector())))
    }
    fn turn(&self, connector: Connector) {
        *self.0.lock().unwrap() = connector;
    }
    fn connector(&self) -> Connector {
        let target = self.0.clone();
        Connector::new("signpost", move || {
            let connector = target.lock().unwrap().clone();
            async move { connector.link().await }
        })
    }
}

over_sites! {
    async fn s39_another_executor_behind_an_id_is_announced_and_gets_a_new_handle(site: Site) {
        let (registry, other) = (registry(), Site::new(LinkKind::Memory));
        // The first connection ends after a few frames, and the next one leads elsewhere.
        let signpost = Signpost(Arc::new(Mutex::new(site.cut(vec![8]))));
        registry.attach(id("box"), signpost.connector(), ConnectPolicy::Eager).unwrap();
        let old = ready(&registry, "box").await;
        let was = old.identity().unwrap();
        assert!(was.executor_id.is_some() && was.instance_id.is_some());
        let view = registry.capture(&selection(&["box"]), &[]);
        let mut watcher = registry.watch();
        signpost.turn(other.connector());
        // Work on the old machine until the connection is gone.
        let error = soon("the connection goes", async {
            loop {
                if let Err(error) = old.start(site.shell(&format!("p{:?}", std::time::Instant::now()), "true")).await {
                    return error;
                }
            }
        })
        .await;
        assert!(!matches!(error, EnvironmentError::Fault(_)), "{error}");
        let (told_was, told_now) = news(&mut watcher, |change| match &change.event {
            RegistryEvent::OtherExecutor { was, now, .. } => Some((was.clone(), now.clone())),
            _ => None,
        })
        .await;
        assert_eq!(told_was.executor_id, was.executor_id);
        assert_ne!(told_now.executor_id, was.executor_id);
        let new = ready(&registry, "box").await;
        assert!(!new.is(&old) && new.generation() > old.generation());
        assert_eq!(new.identity().unwrap(), told_now);
        // The old handle, and the step that holds it, never reach the new machine.
        assert!(matches!(old.state(), ConnectionState::Failed(failure) if failure.kind == FailureKind::OtherExecutor && failure.is_final()));
        let stuck = view.primary().unwrap().handle.start(site.shell("late", "echo late > late")).await;
        assert!(matches!(stuck, Err(EnvironmentError::Gone { .. })));
        assert!(!other.path("late").exists() && !site.path("late").exists());
        let process = new.start(other.shell("p", "echo fine")).await.unwrap();
        assert_eq!(finish(&process).await.0, "fine\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_executor_is_the_same_one() {
    let mut executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let address = Arc::new(Mutex::new(executor.url().to_owned()));
    let target = address.clone();
    let connector = Connector::new("restarted", move || {
        let url = target.lock().unwrap().clone();
        async move { outpost_rpc::link::ws::connect(&url, &outpost_rpc::link::ws::ClientOptions::default()).await }
    });
    let registry = registry();
    registry.attach(id("box"), connector, ConnectPolicy::Eager).unwrap();
    let handle = ready(&registry, "box").await;
    let before = handle.identity().unwrap();
    let mut watcher = registry.watch();
    let home = executor.kill_and_keep_home();
    let executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
    *address.lock().unwrap() = executor.url().to_owned();
    state(&handle, |state| matches!(state, ConnectionState::Ready(connected) if connected.info.instance_id != before.instance_id)).await;
    let after = handle.identity().unwrap();
    assert_eq!(after.executor_id, before.executor_id);
    assert_ne!(after.instance_id, before.instance_id);
    assert!(handle.is(&registry.get(&id("box")).unwrap()));
    // A mark at the end of what there is to be told.
    registry.announce(id("end")).unwrap();
    let strangers = soon("the end of the news", async {
        let mut strangers = 0;
        loop {
            match watcher.next().await.event {
                RegistryEvent::OtherExecutor { .. } => strangers += 1,
                RegistryEvent::Environment { id: about, .. } if about == id("end") => return strangers,
                _ => {}
            }
        }
    })
    .await;
    assert_eq!(strangers, 0);
}

#[tokio::test]
async fn handles_of_one_executor_know_that_they_are() {
    let site = Site::new(LinkKind::Memory);
    let (one, two) = (site.environment(), site.environment());
    let other = Site::new(LinkKind::Memory).environment();
    for environment in [&one, &two, &other] {
        assert!(environment.identity().is_none());
        environment.info().await.unwrap();
    }
    let identity = |environment: &Environment| environment.identity().unwrap();
    assert!(identity(&one).is_same_executor(&identity(&two)));
    assert!(!identity(&one).is_same_executor(&identity(&other)));
    let _ = Signpost::new(&site);
}

#[tokio::test]
async fn a_version_that_is_too_far_is_refused_with_the_command_to_type() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let with = |version: &str| {
        let options = EnvironmentOptions { version: version.into(), ..EnvironmentOptions::default() };
        Environment::new(Connector::target(executor.url().parse().unwrap(), Token::None), options)
    };
    let there: Vec<u64> = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
    let near = with(&format!("{}.{}.9", there[0], there[1] + 2));
    assert!(near.connect().await.is_ok());
    let refused = with(&format!("{}.{}.0", there[0], there[1] + 3)).connect().await.unwrap_err().to_string();
    assert!(refused.contains("more than 2 minor releases apart") && refused.contains("type `outpost env upgrade"), "{refused}");
    let newer = with(&format!("{}.0.0", there[0] + 1)).connect().await;
    assert!(newer.is_err());
}
