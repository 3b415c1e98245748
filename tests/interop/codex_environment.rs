//! The real executor as an environment of ours. It tells no identity, and over standard input and output it keeps nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_environment::{
    CommandLine, ConnectPolicy, Connector, Definition, Environment, EnvironmentOptions, EnvironmentState, ProcessEvent, ProcessStart,
    Registry, RegistryChange, RegistryEvent, RegistryOptions, Waits, Watcher,
};
use outpost_rpc::link::ws;
use outpost_wire::{EnvironmentId, PathUri};
use tokio::time::timeout;

use crate::codex;
use crate::codex_executor::{CodexExecutor, kill_tree};

fn registry() -> Registry {
    let quick = Waits { first: Duration::from_millis(20), longest: Duration::from_millis(100) };
    Registry::new(RegistryOptions {
        environment: EnvironmentOptions { recovery: quick, retry: quick, ..EnvironmentOptions::default() },
        local: None,
        ..RegistryOptions::default()
    })
}

fn id() -> EnvironmentId {
    "codex".parse().unwrap()
}

async fn until<T>(watcher: &mut Watcher, fits: impl Fn(&RegistryChange) -> Option<T>) -> T {
    let news = async {
        loop {
            if let Some(found) = fits(&watcher.next().await) {
                return found;
            }
        }
    };
    timeout(Duration::from_secs(120), news).await.expect("no such news")
}

fn shell(name: &str, script: &str) -> ProcessStart {
    ProcessStart {
        id: name.into(),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        cwd: PathUri::from_native(Path::new("/tmp")).unwrap(),
        env_policy: None,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        tty: false,
        pipe_stdin: false,
        profiles: None,
        adoption: None,
    }
}

async fn output(environment: &Environment, start: ProcessStart) -> String {
    let process = environment.start(start).await.unwrap();
    let mut text = Vec::new();
    while let Some(event) = process.next().await {
        match event {
            ProcessEvent::Output { bytes, .. } => text.extend_from_slice(&bytes),
            ProcessEvent::Lost { reason } => panic!("{reason}"),
            _ => {}
        }
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_executor_without_an_identity_is_a_stranger() {
    let first = CodexExecutor::start();
    let url = Arc::new(Mutex::new(first.url.clone()));
    let target = url.clone();
    let connector = Connector::new("codex", move || {
        let url = target.lock().unwrap().clone();
        async move { ws::connect(&url, &ws::ClientOptions::default()).await }
    });
    let registry = registry();
    registry.attach(id(), connector, ConnectPolicy::Eager).unwrap();
    assert_eq!(registry.info(&id()).await.unwrap().executor_id, None);
    let old = registry.get(&id()).unwrap();
    assert_eq!(output(&old, shell("p", "echo there")).await, "there\n");
    let running = old.start(shell("q", "exec sleep 60")).await.unwrap();
    let mut watcher = registry.watch();
    let second = CodexExecutor::start();
    url.lock().unwrap().clone_from(&second.url);
    first.kill();
    // Its session is unknown there, so the process is lost; and nobody can say that it is the same machine.
    let lost = until(&mut watcher, |change| match &change.event {
        RegistryEvent::Lost { processes, .. } => Some(processes.clone()),
        _ => None,
    })
    .await;
    assert_eq!(lost, ["q"]);
    assert!(matches!(running.next().await, Some(ProcessEvent::Lost { .. })));
    until(&mut watcher, |change| matches!(change.event, RegistryEvent::OtherExecutor { .. }).then_some(())).await;
    let new = registry.get(&id()).unwrap();
    assert!(!new.is(&old) && old.info().await.is_err());
    assert_eq!(output(&new, shell("p", "echo again")).await, "again\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_command_it_is_said_to_be_unable_to_recover() {
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    let script = format!("echo $$ > {}; exec {} exec-server --listen stdio", pid.display(), codex().display());
    let line = CommandLine {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script],
        env: BTreeMap::from([("CODEX_HOME".to_owned(), home.path().display().to_string())]),
        ..CommandLine::default()
    };
    let registry = registry();
    registry.add(id(), Definition::program(line).unwrap()).unwrap();
    let handle = registry.get(&id()).unwrap();
    assert_eq!(output(&handle, shell("p", "echo there")).await, "there\n");
    let mut watcher = registry.watch();
    kill_tree(std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap());
    let reason = until(&mut watcher, |change| match &change.event {
        RegistryEvent::Environment { standing: EnvironmentState::Failed { reason, .. }, .. } => Some(reason.clone()),
        _ => None,
    })
    .await;
    assert!(reason.contains("keeps no sessions, so nothing can be recovered"), "{reason}");
}
