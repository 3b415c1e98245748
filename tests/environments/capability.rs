//! Capability roots: reached through exactly the handle that the step captured.

use outpost_environment::capability::gather_roots;
use outpost_environment::{ConnectPolicy, Connector, Provided, resolve_selected_capability_roots};
use outpost_testkit::LinkKind;
use outpost_wire::{CapabilityRoot, PathUri, Selection};

use crate::support::{Site, id, over_sites, ready, registry, selection, state, uri};

fn root(name: &str, environment: &str) -> CapabilityRoot {
    CapabilityRoot::new(name, id(environment), uri("/opt/tools"))
}

over_sites! {
    async fn s76_a_root_resolves_through_the_captured_handle_after_a_replacement(site: Site) {
        let registry = registry();
        let roots = [root("tools", "tools")];
        site.add_to(&registry, "tools");
        let captured = ready(&registry, "tools").await;
        let view = registry.capture(&selection(&["tools"]), &roots);
        site.add_to(&registry, "tools");
        let resolved = resolve_selected_capability_roots(&roots, &view);
        assert!(resolved[0].handle().unwrap().is(&captured));
        assert!(!captured.is(&registry.get(&id("tools")).unwrap()));
        // A step that captured it while it was starting does not get it, even if it is ready by now.
        let starting = registry.capture(&selection(&["tools"]), &roots);
        ready(&registry, "tools").await;
        let starting_again = resolve_selected_capability_roots(&roots, &starting);
        if starting.primary().is_err() {
            assert!(starting_again[0].handle().is_none());
        }
    }
}

#[tokio::test]
async fn s76_while_it_starts_it_is_unavailable_and_stays_so_for_that_step() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let (inner, gate) = (site.connector(), std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let opened = gate.clone();
    let connector = Connector::new("gated", move || {
        let (inner, gate) = (inner.clone(), gate.clone());
        async move {
            let _ = gate.acquire().await;
            inner.link().await
        }
    });
    registry.attach(id("tools"), connector, ConnectPolicy::Lazy).unwrap();
    let roots = [root("tools", "tools")];
    let view = registry.capture(&Selection::empty(), &roots);
    opened.add_permits(1);
    ready(&registry, "tools").await;
    let resolved = resolve_selected_capability_roots(&roots, &view);
    assert!(resolved[0].handle().is_none());
    assert!(format!("{:?}", resolved[0].access).contains("environment `tools` is starting"));
    // The next step has it. It is there for its root only, so no tool is offered for it.
    let view = registry.capture(&Selection::empty(), &roots);
    assert!(resolve_selected_capability_roots(&roots, &view)[0].handle().is_some());
    assert!(view.members()[0].attachment.is_none() && view.workplaces().next().is_none());
    assert!(view.workplace(Some("tools")).is_err());
}

#[tokio::test]
async fn s76_the_order_is_kept_and_a_foreign_path_is_fine() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    site.add_to(&registry, "a");
    ready(&registry, "a").await;
    let windows = CapabilityRoot::new("w", id("a"), PathUri::parse("file:///C:/tools").unwrap());
    let roots = [root("x", "ghost"), windows, root("y", "a")];
    let view = registry.capture(&selection(&["a"]), &roots);
    let resolved = resolve_selected_capability_roots(&roots, &view);
    let available: Vec<_> = resolved.iter().map(|one| (one.root.id.as_str(), one.handle().is_some())).collect();
    assert_eq!(available, [("x", false), ("w", true), ("y", true)]);
    // A root of an environment that the step never looked at is not looked up.
    assert!(resolve_selected_capability_roots(&[root("z", "b")], &view)[0].handle().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s77_a_lost_connection_hides_the_root_and_its_return_shows_it_again() {
    let (registry, site) = (registry(), Site::new(LinkKind::WebSocket));
    // The first connection lasts just long enough to be ready; then nobody is let in for a while.
    let (inner, closed) = (site.cut(vec![6]), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let gate = closed.clone();
    let connector = Connector::new("unsteady", move || {
        let (inner, is_closed) = (inner.clone(), gate.load(std::sync::atomic::Ordering::SeqCst));
        async move {
            if is_closed {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
            inner.link().await
        }
    });
    registry.attach(id("box"), connector, ConnectPolicy::Eager).unwrap();
    let handle = ready(&registry, "box").await;
    let roots = [root("r", "box")];
    let available = || {
        let view = registry.capture(&selection(&["box"]), &roots);
        resolve_selected_capability_roots(&roots, &view)[0].handle().cloned()
    };
    assert!(available().unwrap().is(&handle));
    closed.store(true, std::sync::atomic::Ordering::SeqCst);
    let reading = tokio::spawn({
        let (handle, path) = (handle.clone(), site.path("file"));
        async move {
            std::fs::write(&path, "there").unwrap();
            for _ in 0..10 {
                assert_eq!(handle.files().read(uri(&path)).await.unwrap(), "there");
            }
        }
    });
    state(&handle, |state| matches!(state, outpost_environment::ConnectionState::Recovering { retry_at: Some(_), .. })).await;
    assert!(available().is_none());
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    reading.await.unwrap();
    // The same handle is back.
    assert!(available().unwrap().is(&handle));
}

#[tokio::test]
async fn s40_of_two_roots_with_one_id_the_first_counts_and_a_live_place_is_newer() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let at = |name: &str, environment: &str, path: &str| CapabilityRoot::new(name, id(environment), uri(path));
    let offered = vec![at("moved", "vm", "/new"), at("taken", "vm", "/vm"), at("extra", "vm", "/extra")];
    registry.provided(&id("vm"), Provided { connector: site.connector(), capability_roots: offered }).unwrap();
    let thread = [at("moved", "vm", "/old"), at("taken", "box", "/box")];
    let view = registry.capture(&selection(&["vm"]), &thread);
    assert_eq!(gather_roots(&thread, &view), [at("moved", "vm", "/new"), at("taken", "box", "/box"), at("extra", "vm", "/extra")]);
}
