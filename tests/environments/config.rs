//! The file: read, watched, and taken over while everything runs.

use std::time::Duration;

use outpost_environment::config::{self, ConfigWatch};
use outpost_environment::{
    ActiveConfiguration, ConfigurationSnapshot, EnvironmentState, FailureCause, Registry, RegistryEvent, RegistryOptions, Token, Variable,
};
use outpost_testkit::LinkKind;

use crate::support::{Site, id, news, options, ready, soon, uri};

fn ids(registry: &Registry) -> Vec<String> {
    registry.list().iter().map(|status| status.id.to_string()).collect()
}

#[tokio::test]
async fn s17_the_file_is_used_where_there_is_one_and_the_variable_beats_it() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("environments.toml");
    let load = |value: Option<&str>| {
        let snapshot = config::read(&path).unwrap().unwrap_or_else(ConfigurationSnapshot::local_only);
        ActiveConfiguration::new(Variable::parse(value, Token::None).unwrap(), snapshot)
    };
    assert_eq!(load(None), ActiveConfiguration::On(ConfigurationSnapshot::local_only()));
    std::fs::write(&path, "[[environments]]\nid='box'\nurl='ws://127.0.0.1:1'\n").unwrap();
    let ActiveConfiguration::On(snapshot) = load(None) else { panic!() };
    assert_eq!(snapshot.ids(), [id("local"), id("box")]);
    let ActiveConfiguration::On(snapshot) = load(Some("ws://127.0.0.1:2")) else { panic!() };
    assert_eq!(snapshot.ids(), [id("remote")]);
    assert_eq!(load(Some("none")), ActiveConfiguration::Off);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_checked_announced_and_applied() {
    let site = Site::new(LinkKind::WebSocket);
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("environments.toml");
    let entry = |name: &str, url: &str| format!("[[environments]]\nid='{name}'\nurl='{url}'\n");
    std::fs::write(&path, entry("keep", "ws://127.0.0.1:1")).unwrap();
    let configuration = ActiveConfiguration::On(config::read(&path).unwrap().unwrap());
    let registry = Registry::configured(
        RegistryOptions { environment: options(), local: Some(site.connector()), ..RegistryOptions::default() },
        configuration,
    )
    .unwrap();
    registry.add(id("by-hand"), outpost_environment::Definition::url("ws://127.0.0.1:3", Token::None).unwrap()).unwrap();
    let local = ready(&registry, "local").await;
    let kept = registry.get(&id("keep")).unwrap();
    let watch = ConfigWatch::new(&path).unwrap();
    let mut watcher = registry.watch();
    tokio::spawn({
        let (registry, path) = (registry.clone(), path.clone());
        async move { registry.follow(&path, watch).await }
    });

    // Replaced as editors do it, with one entry more in front.
    let text = entry("new", "ws://127.0.0.1:2") + &entry("keep", "ws://127.0.0.1:1") + "[[environments]]\nid='bad'\n";
    std::fs::write(home.path().join("aside"), text).unwrap();
    std::fs::rename(home.path().join("aside"), &path).unwrap();
    news(&mut watcher, |change| matches!(change.event, RegistryEvent::Configured).then_some(())).await;
    assert_eq!(ids(&registry), ["local", "new", "keep", "bad", "by-hand"]);
    assert!(matches!(registry.standing(&id("bad")), EnvironmentState::Failed { cause: FailureCause::Config, .. }));
    // What did not change keeps its handle.
    assert!(kept.is(&registry.get(&id("keep")).unwrap()) && local.is(&registry.get(&id("local")).unwrap()));

    // What is wrong as a whole changes nothing.
    std::fs::write(&path, "default = 'ghost'\n").unwrap();
    let reason = news(&mut watcher, |change| match &change.event {
        RegistryEvent::Misconfigured { reason } => Some(reason.clone()),
        _ => None,
    })
    .await;
    assert!(reason.ends_with("environments.toml:1: the default environment `ghost` is not known"), "{reason}");
    assert_eq!(ids(&registry), ["local", "new", "keep", "bad", "by-hand"]);

    // A new address is a new handle; what is gone from the file is gone.
    std::fs::write(&path, "default='keep'\n".to_owned() + &entry("keep", "ws://127.0.0.1:9")).unwrap();
    news(&mut watcher, |change| matches!(change.event, RegistryEvent::Configured).then_some(())).await;
    assert_eq!(ids(&registry), ["local", "keep", "by-hand"]);
    assert!(!kept.is(&registry.get(&id("keep")).unwrap()));
    assert_eq!(registry.default_selection(&uri("/w"), &[]).primary().unwrap().environment_id, id("keep"));
    assert_eq!(registry.standing(&id("new")), EnvironmentState::Missing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_touched_file_is_no_change_and_a_removed_one_is() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("environments.toml");
    std::fs::write(&path, "default='none'\n").unwrap();
    let mut watch = ConfigWatch::new(&path).unwrap();
    std::fs::write(&path, "default='none'\n").unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(500), watch.changed()).await.is_err());
    std::fs::remove_file(&path).unwrap();
    assert!(soon("the removal is heard", watch.changed()).await);
}
