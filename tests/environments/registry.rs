//! Which environments there are: from a snapshot, by hand, replaced and removed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outpost_environment::{
    ActiveConfiguration, CommandLine, ConfigurationSnapshot, ConfiguredEnvironment, ConnectPolicy, ConnectionState, Connector,
    DefaultChoice, Definition, DefinitionError, Environment, EnvironmentError, EnvironmentState, FailureKind, InfoError, Registry,
    RegistryError, RegistryEvent, RegistryOptions, RegistryTransition, Token, Variable,
};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::{eventually, is_alive};
use tokio::net::TcpListener;

use crate::support::{Site, finish, id, news, options, over_sites, ready, registry, selection, shell, soon, standing, stdio, uri};

fn url(url: &str) -> Definition {
    Definition::url(url, Token::None).unwrap()
}

/// A registry whose own machine is that site.
fn with_local(site: &Site, configuration: ActiveConfiguration) -> Result<Registry, RegistryError> {
    Registry::configured(
        RegistryOptions { environment: options(), local: Some(site.connector()), ..RegistryOptions::default() },
        configuration,
    )
}

over_sites! {
    async fn s01_s03_this_machine_is_ready_by_itself_and_always_the_same_handle(site: Site) {
        let registry = with_local(&site, ActiveConfiguration::On(ConfigurationSnapshot::local_only())).unwrap();
        let handle = ready(&registry, "local").await;
        assert!(registry.info(&id("local")).await.unwrap().cwd.is_some());
        assert!(handle.is(&registry.get(&id("local")).unwrap()));
        assert_eq!(registry.default_selection(&uri("/w"), &[]).primary().unwrap().environment_id, id("local"));
        let process = handle.start(site.shell("p", "echo here")).await.unwrap();
        assert_eq!(finish(&process).await, ("here\n".into(), Some(0)));
    }

    async fn s08_add_connects_in_the_background_and_again_when_replaced(site: Site) {
        let registry = registry();
        let before = registry.default_selection(&uri("/w"), &[]);
        assert_eq!(registry.attach(id("box"), site.connector(), ConnectPolicy::Eager).unwrap(), RegistryTransition::Added);
        let first = ready(&registry, "box").await;
        assert_eq!(registry.attach(id("box"), site.connector(), ConnectPolicy::Eager).unwrap(), RegistryTransition::Replaced);
        let second = ready(&registry, "box").await;
        assert!(!first.is(&second) && second.generation() > first.generation());
        // The old handle lives on for those who hold it.
        let process = first.start(site.shell("p", "echo old")).await.unwrap();
        assert_eq!(finish(&process).await.0, "old\n");
        // What is added is not selected by itself.
        assert_eq!(registry.default_selection(&uri("/w"), &[]), before);
    }
}

#[tokio::test]
async fn s02_the_variable_decides_alone() {
    let site = Site::new(LinkKind::Memory);
    let file = ConfigurationSnapshot {
        entries: vec![ConfiguredEnvironment { id: id("box"), definition: Ok(url("ws://127.0.0.1:1")) }],
        ..ConfigurationSnapshot::local_only()
    };
    let with = |value: Option<&str>| {
        let variable = Variable::parse(value, Token::None).unwrap();
        with_local(&site, ActiveConfiguration::new(variable, file.clone())).unwrap()
    };
    let ids = |registry: &Registry| registry.list().iter().map(|status| status.id.to_string()).collect::<Vec<_>>();
    let defaults = |registry: &Registry| registry.default_selection(&uri("/w"), &[]).ids().map(ToString::to_string).collect::<Vec<_>>();
    let unset = with(Some(" "));
    assert_eq!((ids(&unset), defaults(&unset)), (vec!["local".into(), "box".into()], vec!["local".into(), "box".into()]));
    let remote = with(Some("ws://127.0.0.1:1"));
    assert_eq!((ids(&remote), defaults(&remote)), (vec!["remote".into()], vec!["remote".into()]));
    let off = with(Some("None"));
    assert_eq!((ids(&off), defaults(&off)), (vec![], Vec::<String>::new()));
    // The kill switch cannot be undone, and what is selected all the same is disabled.
    assert_eq!(off.add(id("box"), url("ws://127.0.0.1:1")), Err(RegistryError::Off));
    assert_eq!(off.configure(ActiveConfiguration::On(ConfigurationSnapshot::local_only())), Err(RegistryError::Off));
    assert!(off.join(id("box")).is_err() && off.announce(id("box")).is_err());
    assert_eq!(off.standing(&id("local")), EnvironmentState::Disabled);
    let view = off.capture(&selection(&["local"]), &[]);
    assert_eq!(view.primary().unwrap_err().to_string(), "environment `local` is not ready: disabled: environments are switched off");
    assert!(matches!(off.info(&id("local")).await, Err(InfoError::Registry(RegistryError::Off))));
}

#[tokio::test]
async fn s04_s05_snapshots_are_checked_before_anything_happens() {
    let site = Site::new(LinkKind::Memory);
    let entry =
        |name: &str| ConfiguredEnvironment { id: id(name), definition: Ok(url("ws://127.0.0.1:1").connecting(ConnectPolicy::Eager)) };
    let snapshot = |names: &[&str], default: DefaultChoice| ConfigurationSnapshot {
        include_local: true,
        entries: names.iter().map(|name| entry(name)).collect(),
        default,
        ..ConfigurationSnapshot::default()
    };
    let refused = |snapshot| with_local(&site, ActiveConfiguration::On(snapshot)).err().unwrap().to_string();
    assert!(refused(snapshot(&["local"], DefaultChoice::Derived)).contains("must not define `local`"));
    assert_eq!(refused(snapshot(&["a", "a"], DefaultChoice::Derived)), "duplicate environment id `a`");
    assert_eq!(refused(snapshot(&["a"], DefaultChoice::Id(id("x")))), "the default environment `x` is not known");
    let nothing = Registry::configured(RegistryOptions::default(), ActiveConfiguration::On(ConfigurationSnapshot::local_only()));
    assert!(nothing.err().unwrap().to_string().contains("nothing was given to reach it"));
    assert_eq!(site.connections(), 0);

    let defaults = |snapshot| {
        let registry = with_local(&site, ActiveConfiguration::On(snapshot)).unwrap();
        registry.default_selection(&uri("/w"), &[uri("/r")]).ids().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(defaults(snapshot(&["b", "a"], DefaultChoice::Derived)), ["local", "b", "a"]);
    assert_eq!(defaults(snapshot(&["b", "a"], DefaultChoice::Id(id("a")))), ["a", "local", "b"]);
    assert_eq!(defaults(snapshot(&["b", "a"], DefaultChoice::Disabled)), Vec::<String>::new());
    let without = ConfigurationSnapshot { include_local: false, ..snapshot(&["b"], DefaultChoice::Derived) };
    assert_eq!(defaults(without.clone()), Vec::<String>::new());
    let registry = with_local(&site, ActiveConfiguration::On(without)).unwrap();
    assert_eq!(registry.standing(&id("local")), EnvironmentState::Missing);
}

#[tokio::test]
async fn s07_what_is_not_there_is_not_found() {
    let registry = registry();
    assert!(registry.get(&id("ghost")).is_none() && registry.status(&id("ghost")).is_none());
    assert_eq!(registry.standing(&id("ghost")), EnvironmentState::Missing);
    assert_eq!(registry.remove(&id("ghost")), Err(RegistryError::Unknown(id("ghost"))));
    assert_eq!(registry.replace(id("ghost"), url("ws://127.0.0.1:1")), Err(RegistryError::Unknown(id("ghost"))));
    assert!(matches!(registry.info(&id("ghost")).await, Err(InfoError::Registry(RegistryError::Unknown(_)))));
    assert_eq!(registry.add(id("local"), url("ws://127.0.0.1:1")), Err(RegistryError::Local));
    assert_eq!(Definition::url(" ", Token::None).unwrap_err().to_string(), "the address is empty");
    assert_eq!(Definition::url("none", Token::None), Err(DefinitionError::None));
}

/// A command that leaves a mark when it is started and then never says a word.
fn silent_command(mark: &std::path::Path) -> CommandLine {
    let script = format!("echo $$ >> {}; exec sleep 60", mark.display());
    CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), script], ..CommandLine::default() }
}

#[tokio::test]
async fn s09_a_lazy_command_is_not_started_by_looking_at_it() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("started");
    let registry = registry();
    registry.add(id("lazy"), Definition::program(silent_command(&mark)).unwrap()).unwrap();
    let manual = Definition::program(silent_command(&mark)).unwrap().connecting(ConnectPolicy::Manual);
    registry.add(id("manual"), manual).unwrap();
    assert_eq!(registry.list().len(), 2);
    assert_eq!(registry.standing(&id("lazy")), EnvironmentState::Idle);
    assert_eq!(registry.probe(&id("lazy")).await, EnvironmentState::Idle);
    let mut watcher = registry.watch();
    watcher.next().await;
    // Not even a step wakes a machine that is connected by hand.
    let view = registry.capture(&selection(&["manual"]), &[]);
    assert!(view.primary().unwrap_err().to_string().contains("only when asked for"));
    let handle = registry.get(&id("manual")).unwrap();
    assert!(matches!(handle.info().await, Err(EnvironmentError::NotAsked { .. })));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!mark.exists());
    // A step starts the lazy one that it selects, and does not wait for it.
    let view = registry.capture(&selection(&["lazy"]), &[]);
    assert_eq!(view.primary().unwrap_err().to_string(), "environment `lazy` is not ready: starting");
    eventually("the command is started", || mark.exists()).await;
    assert_eq!(registry.standing(&id("manual")), EnvironmentState::Idle);
}

#[tokio::test]
async fn what_happens_before_a_watcher_first_looks_is_news_to_it() {
    let registry = registry();
    let definition = Definition::program(CommandLine { program: "/bin/true".into(), ..CommandLine::default() }).unwrap();
    registry.add(id("box"), definition.clone()).unwrap();
    let mut watcher = registry.watch();
    registry.add(id("box"), definition).unwrap();
    let mut told = Vec::new();
    for _ in 0..2 {
        if let RegistryEvent::Environment { generation, transition, .. } = soon("news", watcher.next()).await.event {
            told.push((generation, transition));
        }
    }
    assert_eq!(told, [(1, RegistryTransition::Replayed), (2, RegistryTransition::Replaced)]);
}

#[tokio::test]
async fn s10_replacing_ends_a_start_that_is_not_through() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("started");
    let registry = registry();
    let definition = Definition::program(silent_command(&mark)).unwrap();
    registry.add(id("box"), definition.clone()).unwrap();
    let old = registry.get(&id("box")).unwrap();
    let waiting = tokio::spawn({
        let old = old.clone();
        async move { old.info().await }
    });
    eventually("the command is started", || std::fs::read_to_string(&mark).is_ok_and(|text| text.ends_with('\n'))).await;
    let pid: u32 = std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    registry.add(id("box"), definition).unwrap();
    let error = soon("whoever waits is told", waiting).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("replaced or removed"), "{error}");
    assert!(matches!(old.state(), ConnectionState::Failed(failure) if failure.kind == FailureKind::Retired && failure.is_final()));
    eventually("the command is ended", || !is_alive(pid)).await;
    // It stays what it is, and the new one knows nothing of it.
    assert!(old.connect().await.is_err());
    assert_eq!(registry.standing(&id("box")), EnvironmentState::Idle);
}

#[tokio::test]
async fn s12_whether_the_default_is_elsewhere_is_known_without_connecting() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", listener.local_addr().unwrap());
    let variable = Variable::parse(Some(&address), Token::None).unwrap();
    let ActiveConfiguration::On(snapshot) = ActiveConfiguration::new(variable, ConfigurationSnapshot::local_only()) else { panic!() };
    assert!(snapshot.default_is_remote() && !ConfigurationSnapshot::local_only().default_is_remote());
    let came = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
    assert!(came.is_err());
}

/// An environment `box` behind a command, and the process of that command.
async fn behind_a_command(home: &Path) -> (Registry, u32) {
    let mark = home.join("pid");
    let line = stdio(home, &[]);
    let script = format!("echo $$ > {}; exec {} {}", mark.display(), line.program, line.args.join(" "));
    let line = CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), script], ..line };
    let registry = registry();
    registry.add(id("box"), Definition::program(line).unwrap()).unwrap();
    registry.info(&id("box")).await.unwrap();
    (registry, std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_handle_ends_its_command() {
    let home = tempfile::tempdir().unwrap();
    let (registry, pid) = behind_a_command(home.path()).await;
    let held = registry.get(&id("box")).unwrap();
    registry.add(id("box"), Definition::url("ws://127.0.0.1:1", Token::None).unwrap()).unwrap();
    // It was replaced, and somebody still holds the old one.
    assert!(held.info().await.is_ok() && is_alive(pid));
    drop(held);
    eventually("the command is ended", || !is_alive(pid)).await;
}

/// Whatever ran there before, and whoever still holds the handle: a thread keeps the handles of its last step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_an_environment_ends_its_command_at_once() {
    let home = tempfile::tempdir().unwrap();
    let (registry, pid) = behind_a_command(home.path()).await;
    let held = registry.get(&id("box")).unwrap();
    let process = held.start(shell("before", "echo ran", home.path())).await.unwrap();
    assert_eq!(finish(&process).await, ("ran\n".to_owned(), Some(0)));
    registry.remove(&id("box")).unwrap();
    eventually("the command is ended", || !is_alive(pid)).await;
    assert!(held.info().await.unwrap_err().to_string().contains("removed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_is_told_how_things_stand_and_then_what_changes() {
    let site = Site::new(LinkKind::Memory);
    let registry = registry();
    site.add_to(&registry, "a");
    ready(&registry, "a").await;
    let mut watcher = registry.watch();
    let first = watcher.next().await;
    assert!(
        matches!(&first.event, RegistryEvent::Environment { id: about, standing: EnvironmentState::Ready, transition: RegistryTransition::Replayed, .. } if *about == id("a"))
    );
    site.add_to(&registry, "b");
    let mut last = first.sequence;
    let mut seen = Vec::new();
    while seen.last() != Some(&EnvironmentState::Ready) {
        let change = soon("news", watcher.next()).await;
        assert_eq!(change.sequence, last + 1, "nothing is left out");
        last = change.sequence;
        if let RegistryEvent::Environment { id: about, standing, .. } = change.event {
            assert_eq!(about, id("b"));
            seen.push(standing);
        }
    }
    assert_eq!(seen, [EnvironmentState::Idle, EnvironmentState::Connecting, EnvironmentState::Ready]);
    // Two who watch are told the same.
    registry.remove(&id("b")).unwrap();
    let gone = news(&mut watcher, |change| match &change.event {
        RegistryEvent::Environment { standing: EnvironmentState::Missing, transition: RegistryTransition::Removed, .. } => {
            Some(change.sequence)
        }
        _ => None,
    })
    .await;
    assert!(gone > last);
}

#[tokio::test]
async fn a_watcher_that_sleeps_for_long_is_told_how_things_stand_again() {
    let registry = registry();
    let mut watcher = registry.watch();
    registry.add(id("a"), url("ws://127.0.0.1:1")).unwrap();
    assert!(matches!(watcher.next().await.event, RegistryEvent::Environment { transition: RegistryTransition::Added, .. }));
    for _ in 0..2000 {
        registry.add(id("a"), url("ws://127.0.0.1:1")).unwrap();
    }
    let change = watcher.next().await;
    assert!(
        matches!(change.event, RegistryEvent::Environment { transition: RegistryTransition::Replayed, generation: 2001, .. }),
        "{change:?}"
    );
}

#[tokio::test]
async fn one_attempt_is_shared_by_all_who_wait() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let site = Site::new(LinkKind::Memory);
    let inner = site.connector();
    let connector = Connector::new("slow", move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let inner = inner.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            inner.link().await
        }
    });
    let environment = Environment::new(connector, options());
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let environment = environment.clone();
            tokio::spawn(async move { environment.info().await })
        })
        .collect();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_wrong_entry_is_listed_and_the_others_work() {
    let site = Site::new(LinkKind::Memory);
    let bad = ConfiguredEnvironment { id: id("bad"), definition: Err("environments.toml:3: environment `bad`: it is wrong".into()) };
    let snapshot =
        ConfigurationSnapshot { entries: vec![bad], default: DefaultChoice::Id(id("bad")), ..ConfigurationSnapshot::local_only() };
    let registry = with_local(&site, ActiveConfiguration::On(snapshot)).unwrap();
    ready(&registry, "local").await;
    let failed = standing(&registry, "bad", |_| true).await;
    assert!(matches!(failed, EnvironmentState::Failed { cause: outpost_environment::FailureCause::Config, retry_at: None, .. }));
    // Nothing takes the place of a bad default.
    let chosen = registry.default_selection(&uri("/w"), &[]);
    let view = registry.capture(&chosen, &[]);
    assert_eq!(chosen.ids().map(ToString::to_string).collect::<Vec<_>>(), ["bad", "local"]);
    assert!(view.primary().unwrap_err().to_string().contains("environments.toml:3"));
    assert!(registry.info(&id("bad")).await.unwrap_err().to_string().contains("it is wrong"));
}
