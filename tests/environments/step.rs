//! What a step may use: frozen when it begins, whatever happens afterwards.

use outpost_environment::selection::{EnvironmentRequest, SelectionRequest, begin, decide, select};
use outpost_environment::{
    Captured, ConnectPolicy, Connector, Definition, EnvironmentState, RegistryEvent, RegistryTransition, Token, ViewError,
};
use outpost_rpc::LinkError;
use outpost_testkit::LinkKind;
use outpost_wire::{Attachment, CapabilityRoot, EnvironmentId, Selection};

use crate::support::{Site, finish, id, over_sites, ready, registry, selection, standing, uri};

/// Somebody who never answers.
fn never() -> Connector {
    Connector::new("nowhere", std::future::pending)
}

fn dead() -> Connector {
    Connector::new("dead", || std::future::ready(Err(LinkError::Protocol("it is dead".into()))))
}

over_sites! {
    async fn s33_a_step_keeps_its_handle_and_the_next_one_gets_the_new(site: Site) {
        let (registry, other) = (registry(), Site::new(LinkKind::Memory));
        site.add_to(&registry, "box");
        let first = ready(&registry, "box").await;
        let view = registry.capture(&selection(&["box"]), &[]);
        other.add_to(&registry, "box");
        let second = ready(&registry, "box").await;
        // The running step goes on where it began.
        let workplace = view.primary().unwrap();
        assert!(workplace.handle.is(&first));
        let process = workplace.handle.start(site.shell("p", "echo first > mark")).await.unwrap();
        assert_eq!(finish(&process).await.1, Some(0));
        assert!(site.path("mark").exists() && !other.path("mark").exists());
        // The next one works on the new machine; nobody has to touch the selection.
        let view = registry.capture(&selection(&["box"]), &[]);
        assert!(view.primary().unwrap().handle.is(&second));
        // What the old one does is no longer news.
        let mut watcher = registry.watch();
        watcher.next().await;
        drop((first, process, site));
        registry.attach(id("end"), never(), ConnectPolicy::Lazy).unwrap();
        match watcher.next().await.event {
            RegistryEvent::Environment { id: about, transition: RegistryTransition::Added, .. } => assert_eq!(about, id("end")),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn s29_defaults_come_from_the_configuration_and_never_from_what_was_added() {
    let registry = registry();
    registry.add(id("box"), Definition::url("ws://127.0.0.1:1", Token::None).unwrap()).unwrap();
    assert!(registry.default_selection(&uri("/w"), &[]).is_empty());
    let selected = begin(None, || registry.default_selection(&uri("/w"), &[]));
    assert_eq!(registry.capture(&selected, &[]).primary().unwrap_err(), ViewError::Empty);
}

#[tokio::test]
async fn s30_the_first_selected_is_primary_and_nothing_takes_its_place() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    site.add_to(&registry, "alive");
    registry.attach(id("dead"), dead(), ConnectPolicy::Eager).unwrap();
    ready(&registry, "alive").await;
    standing(&registry, "dead", |standing| matches!(standing, EnvironmentState::Failed { .. })).await;
    let wish = |name: &str| EnvironmentRequest { environment_id: name.into(), cwd: "/w".into(), workspace_roots: None };
    // Twice, or not there at all: refused before anything starts.
    let refused = |names: &[&str]| {
        let wishes: Vec<EnvironmentRequest> = names.iter().map(|name| wish(name)).collect();
        select(&wishes, &registry.catalogue()).unwrap_err().to_string()
    };
    assert_eq!(refused(&["alive", "alive"]), "duplicate turn environment id `alive`");
    assert_eq!(refused(&["alive", "ghost"]), "unknown turn environment id `ghost`");
    let view = registry.capture(&selection(&["dead", "alive"]), &[]);
    let error = view.primary().unwrap_err();
    assert!(matches!(&error, ViewError::NotReady { id: about, .. } if *about == id("dead")), "{error}");
    assert!(error.to_string().contains("it is dead"));
    // Named, the other one works.
    assert!(view.workplace(Some("alive")).is_ok());
    assert_eq!(view.workplace(Some("ghost")).unwrap_err().to_string(), "unknown turn environment id `ghost`");
}

#[tokio::test]
async fn s31_capturing_waits_for_nobody_and_keeps_the_order() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    registry.attach(id("slow"), never(), ConnectPolicy::Lazy).unwrap();
    site.add_to(&registry, "fast");
    ready(&registry, "fast").await;
    let view = registry.capture(&selection(&["ghost", "slow", "fast"]), &[]);
    let states: Vec<String> = view.members().iter().map(|member| format!("{} {}", member.id, member.captured.describe())).collect();
    assert_eq!(states, ["ghost missing: no such environment is configured", "slow starting", "fast ready"]);
    assert_eq!(view.workplaces().map(|place| place.attachment.environment_id.to_string()).collect::<Vec<_>>(), ["fast"]);
    standing(&registry, "slow", |standing| *standing == EnvironmentState::Connecting).await;
}

#[tokio::test]
async fn waiting_for_an_environment_ends_when_it_is_there_or_cannot_be() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    assert_eq!(registry.settled(&id("ghost")).await, EnvironmentState::Missing);
    site.add_to(&registry, "fine");
    registry.attach(id("dead"), dead(), ConnectPolicy::Lazy).unwrap();
    registry.attach(id("idle"), never(), ConnectPolicy::Lazy).unwrap();
    registry.capture(&selection(&["fine", "dead"]), &[]);
    assert_eq!(crate::support::soon("ready", registry.settled(&id("fine"))).await, EnvironmentState::Ready);
    let failed = crate::support::soon("failed", registry.settled(&id("dead"))).await;
    assert_eq!((failed.word(), failed.reason()), ("failed", Some("it is dead")));
    assert_eq!(registry.settled(&id("idle")).await.word(), "idle");
}

#[tokio::test]
async fn s32_what_failed_is_tried_again_by_a_later_step_and_not_before_its_time() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let (inner, tries) = (site.connector(), std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let counted = tries.clone();
    let connector = Connector::new("recovers", move || {
        let (inner, attempt) = (inner.clone(), counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        async move { if attempt < 2 { Err(LinkError::Protocol("not yet".into())) } else { inner.link().await } }
    });
    registry.attach(id("box"), connector, ConnectPolicy::Lazy).unwrap();
    let mut steps = 0;
    while registry.standing(&id("box")) != EnvironmentState::Ready {
        let view = registry.capture(&selection(&["box"]), &[]);
        if let Some(Captured::Failed { reason, retry_at }) = view.captured(&id("box")) {
            assert_eq!(reason, "not yet");
            tokio::time::sleep_until(retry_at.unwrap()).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!(tries.load(std::sync::atomic::Ordering::SeqCst), 3);
}

#[tokio::test]
async fn s34_a_child_that_captures_the_same_gets_the_same_handle() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    site.add_to(&registry, "box");
    ready(&registry, "box").await;
    let parent = registry.capture(&selection(&["box"]), &[]);
    let elsewhere = Selection::new(vec![Attachment::new(id("box"), uri("/other"))]).unwrap();
    let child = registry.capture(&elsewhere, &[]);
    assert!(parent.primary().unwrap().handle.is(child.primary().unwrap().handle));
    assert_eq!(child.primary().unwrap().attachment.cwd, uri("/other"));
    // A view can be handed on as it is.
    assert!(parent.clone().primary().unwrap().handle.is(parent.primary().unwrap().handle));
}

#[test]
fn s35_only_this_machine_has_a_directory_that_this_machine_may_look_at() {
    let local = EnvironmentId::local();
    assert!(selection(&["box"]).get(&local).is_none());
    assert_eq!(selection(&["box", "local"]).get(&local).unwrap().cwd, uri("/tmp"));
}

#[tokio::test]
async fn s37_s38_a_turn_is_not_retargeted_and_the_thread_comes_back() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    site.add_to(&registry, "a");
    site.add_to(&registry, "b");
    ready(&registry, "a").await;
    ready(&registry, "b").await;
    let thread = selection(&["a"]);
    let turn = decide(&thread, SelectionRequest { environments: Some(selection(&["b", "a"])), ..SelectionRequest::default() });
    let running = registry.capture(&turn.turn, &[]);
    assert_eq!(running.primary().unwrap().attachment.environment_id, id("b"));
    // The settings change while it runs: the step and the turn stay as they are.
    let changed = decide(&turn.thread, SelectionRequest { cwd: Some(uri("/else")), ..SelectionRequest::default() });
    assert_eq!(running.primary().unwrap().attachment.cwd, uri("/tmp"));
    assert_eq!(registry.capture(&turn.turn, &[]).primary().unwrap().attachment.cwd, uri("/tmp"));
    // The next turn says nothing and gets the thread's own, at the new place.
    let next = decide(&changed.thread, SelectionRequest::default());
    assert_eq!(next.turn.primary().unwrap(), &Attachment::new(id("a"), uri("/else")));
    let none = decide(&next.thread, SelectionRequest { environments: Some(Selection::empty()), ..SelectionRequest::default() });
    assert_eq!(registry.capture(&none.turn, &[]).primary().unwrap_err(), ViewError::Empty);
    assert_eq!(decide(&Selection::empty(), SelectionRequest::default()).turn, Selection::empty());
}

#[tokio::test]
async fn s42_s43_what_was_written_down_comes_back_as_it_was_and_nothing_is_substituted() {
    let (before, site) = (registry(), Site::new(LinkKind::Memory));
    site.add_to(&before, "far");
    site.add_to(&before, "gone");
    let chosen = selection(&["gone", "far"]);
    let roots = vec![CapabilityRoot::new("tools", id("gone"), uri("/r"))];
    let journal = serde_json::to_string(&(Some(&chosen), &roots)).unwrap();
    // Another process, another registry: one of them is no longer there.
    let after = registry();
    site.add_to(&after, "far");
    site.add_to(&after, "other");
    ready(&after, "far").await;
    let (restored, roots): (Option<Selection>, Vec<CapabilityRoot>) = serde_json::from_str(&journal).unwrap();
    let restored = begin(restored, || unreachable!("defaults are not asked for"));
    assert_eq!(restored, chosen);
    let view = after.capture(&restored, &roots);
    let error = view.primary().unwrap_err().to_string();
    assert_eq!(error, "environment `gone` is not ready: missing: no such environment is configured");
    assert_eq!(view.workplaces().count(), 1);
    // It comes back by itself when the environment does.
    site.add_to(&after, "gone");
    ready(&after, "gone").await;
    assert!(after.capture(&restored, &roots).primary().is_ok());
    let empty = serde_json::to_string(&Some(Selection::empty())).unwrap();
    let empty: Option<Selection> = serde_json::from_str(&empty).unwrap();
    assert!(begin(empty, || unreachable!()).is_empty());
}

#[tokio::test]
async fn ten_environments_of_which_nine_are_dead_do_not_slow_down_the_tenth() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let names: Vec<String> = (0..10).map(|n| format!("e{n}")).collect();
    for name in &names[..9] {
        registry.attach(id(name), never(), ConnectPolicy::Eager).unwrap();
    }
    site.add_to(&registry, "e9");
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    ready(&registry, "e9").await;
    let view = registry.capture(&selection(&all), &[]);
    let place = view.workplace(Some("e9")).unwrap();
    let process = place.handle.start(site.shell("p", "echo works")).await.unwrap();
    assert_eq!(finish(&process).await, ("works\n".into(), Some(0)));
    // They are all still being tried, so nothing waited for their end.
    assert!(names[..9].iter().all(|name| registry.standing(&id(name)) == EnvironmentState::Connecting));
}
