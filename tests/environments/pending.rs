//! Environments that are announced before they exist.

use std::time::Duration;

use outpost_environment::{
    Captured, ConnectionState, Definition, EnvironmentState, FailureCause, FailureKind, Provided, RegistryError, ReportError, Token,
};
use outpost_testkit::LinkKind;
use outpost_wire::CapabilityRoot;

use crate::support::{Site, finish, id, over_sites, ready, registry, selection, soon, state, uri};

fn provided(site: &Site, roots: &[(&str, &str)]) -> Provided {
    let capability_roots = roots.iter().map(|(name, environment)| CapabilityRoot::new(*name, id(environment), uri("/r"))).collect();
    Provided { connector: site.connector(), capability_roots }
}

over_sites! {
    async fn s26_it_is_connected_when_it_is_provided_and_selected(site: Site) {
        let registry = registry();
        registry.announce(id("vm")).unwrap();
        let handle = registry.get(&id("vm")).unwrap();
        // A step asks for it; there is nothing to connect to yet.
        let view = registry.capture(&selection(&["vm"]), &[]);
        assert!(matches!(view.captured(&id("vm")), Some(Captured::Starting)));
        state(&handle, |state| matches!(state, ConnectionState::Connecting)).await;
        assert_eq!(site.connections(), 0);
        registry.provided(&id("vm"), provided(&site, &[("tools", "vm")])).unwrap();
        // The same handle through its whole life.
        assert!(ready(&registry, "vm").await.is(&handle));
        let view = registry.capture(&selection(&["vm"]), &[]);
        assert_eq!(view.members()[0].offered, [CapabilityRoot::new("tools", id("vm"), uri("/r"))]);
        let process = handle.start(site.shell("p", "echo there")).await.unwrap();
        assert_eq!(finish(&process).await.0, "there\n");
    }
}

#[tokio::test]
async fn s26_it_may_be_provided_before_it_is_announced_and_is_not_connected_before_it_is_selected() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    registry.provided(&id("vm"), provided(&site, &[])).unwrap();
    let handle = registry.get(&id("vm")).unwrap();
    registry.announce(id("vm")).unwrap();
    assert!(handle.is(&registry.get(&id("vm")).unwrap()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((site.connections(), registry.standing(&id("vm"))), (0, EnvironmentState::Idle));
    registry.capture(&selection(&["vm"]), &[]);
    ready(&registry, "vm").await;
}

#[tokio::test]
async fn s26_s27_failure_needs_no_connection_and_the_first_one_counts() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    // Before anybody announces it, before anybody waits, and while somebody does.
    registry.provision_failed(&id("early"), "no room").unwrap();
    registry.announce(id("quiet")).unwrap();
    registry.provision_failed(&id("quiet"), "no room").unwrap();
    registry.announce(id("waited")).unwrap();
    let waited = registry.get(&id("waited")).unwrap();
    let waiting = tokio::spawn({
        let waited = waited.clone();
        async move { waited.info().await }
    });
    state(&waited, |state| matches!(state, ConnectionState::Connecting)).await;
    registry.provision_failed(&id("waited"), "no room").unwrap();
    assert!(soon("whoever waits is told", waiting).await.unwrap().unwrap_err().to_string().contains("no room"));
    assert!(matches!(waited.state(), ConnectionState::Failed(failure) if failure.kind == FailureKind::Provisioning));
    for name in ["early", "quiet", "waited"] {
        registry.provision_failed(&id(name), "another reason").unwrap();
        let view = registry.capture(&selection(&[name]), &[]);
        assert_eq!(view.primary().unwrap_err().to_string(), format!("environment `{name}` is not ready: failed: no room"));
        let expected = EnvironmentState::Failed { cause: FailureCause::Provisioning, reason: "no room".into(), retry_at: None };
        assert_eq!(registry.standing(&id(name)), expected);
        let late = registry.provided(&id(name), provided(&site, &[])).unwrap_err();
        assert_eq!(late, RegistryError::Report(ReportError::Failed { id: id(name), reason: "no room".into() }));
    }
    assert_eq!(site.connections(), 0);
}

#[tokio::test]
async fn s27_what_is_ready_stays_ready_and_the_last_word_about_roots_counts() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    registry.provided(&id("vm"), provided(&site, &[("a", "vm")])).unwrap();
    assert_eq!(registry.provision_failed(&id("vm"), "late").unwrap_err(), RegistryError::Report(ReportError::Ready(id("vm"))));
    registry.provided(&id("vm"), provided(&site, &[("b", "vm")])).unwrap();
    // What makes no sense is refused; what was there stays.
    assert!(registry.provided(&id("vm"), provided(&site, &[("c", "other")])).is_err());
    let view = registry.capture(&selection(&["vm"]), &[]);
    assert_eq!(view.members()[0].offered[0].id, "b");
    ready(&registry, "vm").await;
}

#[tokio::test]
async fn s27_roots_that_make_no_sense_fail_what_is_waited_for_and_create_nothing() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    for roots in [&[("a", "vm"), ("a", "vm")][..], &[(" ", "vm")], &[("a", "other")]] {
        assert!(registry.provided(&id("vm"), provided(&site, roots)).is_err());
        assert_eq!(registry.standing(&id("vm")), EnvironmentState::Missing);
    }
    registry.announce(id("vm")).unwrap();
    assert!(registry.provided(&id("vm"), provided(&site, &[("a", "other")])).is_err());
    assert!(
        matches!(registry.standing(&id("vm")), EnvironmentState::Failed { cause: FailureCause::Provisioning, reason, .. } if reason.contains("`other`"))
    );
}

#[tokio::test]
async fn s28_the_two_kinds_do_not_mix() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let definition = Definition::url("ws://127.0.0.1:1", Token::None).unwrap();
    registry.announce(id("vm")).unwrap();
    let handle = registry.get(&id("vm")).unwrap();
    registry.announce(id("vm")).unwrap();
    assert!(handle.is(&registry.get(&id("vm")).unwrap()));
    assert_eq!(registry.add(id("vm"), definition.clone()), Err(RegistryError::IsPending(id("vm"))));
    registry.add(id("box"), definition).unwrap();
    assert_eq!(registry.announce(id("box")), Err(RegistryError::IsDefined(id("box"))));
    registry.provided(&id("box"), provided(&site, &[])).unwrap();
    registry.provision_failed(&id("box"), "x").unwrap();
    assert_eq!(registry.standing(&id("box")), EnvironmentState::Idle);
}
