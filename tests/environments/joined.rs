//! Executors that dial in: somebody hands in their links.

use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{EnvironmentState, LinkRefused};
use outpost_rpc::Close;
use outpost_testkit::LinkKind;

use crate::support::{Site, finish, id, over_sites, read_line, ready, registry, soon, standing};

over_sites! {
    async fn s24_ready_at_once_and_the_next_link_takes_over_with_everything_in_it(site: Site) {
        let registry = registry();
        let door = registry.join(id("far")).unwrap();
        assert!(matches!(registry.standing(&id("far")), EnvironmentState::Idle | EnvironmentState::Connecting));
        let first = site.connector().link().await.unwrap();
        let first_sink = first.tx.clone();
        door.hand_in(first).unwrap();
        let handle = ready(&registry, "far").await;
        let process = handle.start(site.shell("p", "while read -r line; do echo \"got $line\"; done; exit 3")).await.unwrap();
        let mut text = String::new();
        process.write(Bytes::from_static(b"one\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got one");
        // The executor dials in again while the first link still looks alive: that one waits, and disturbs nobody.
        door.hand_in(site.connector().link().await.unwrap()).unwrap();
        process.write(Bytes::from_static(b"two\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got two");
        assert_eq!(door.waiting(), 1);
        // Whoever knows that the first one is dead retires it.
        first_sink.close(Close::new(Close::NORMAL, "it is known to be dead"));
        process.write(Bytes::from_static(b"three\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got three");
        assert_eq!(door.waiting(), 0);
        process.close_stdin().await.unwrap();
        assert_eq!(finish(&process).await, (String::new(), Some(3)));
        assert!(handle.is(&registry.get(&id("far")).unwrap()));
    }
}

#[tokio::test]
async fn s24_a_link_for_an_environment_that_is_gone_is_let_go() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let door = registry.join(id("far")).unwrap();
    registry.remove(&id("far")).unwrap();
    soon("the environment goes", async {
        loop {
            let link = site.connector().link().await.unwrap();
            let sink = link.tx.clone();
            if door.hand_in(link) == Err(LinkRefused::Gone) {
                assert!(sink.is_closed());
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn s24_links_wait_for_their_turn_and_only_so_many_of_them() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let door = registry.join(id("far")).unwrap();
    // The same door for whoever asks again.
    let again = registry.join(id("far")).unwrap();
    let mut sinks = Vec::new();
    let refused = loop {
        let link = site.connector().link().await.unwrap();
        sinks.push(link.tx.clone());
        if let Err(refusal) = again.hand_in(link) {
            break refusal;
        }
    };
    assert_eq!(refused, LinkRefused::Crowded);
    assert!(sinks.last().unwrap().is_closed());
    standing(&registry, "far", |standing| *standing == EnvironmentState::Ready).await;
    assert!(registry.get(&id("far")).unwrap().info().await.is_ok());
    // One that ends while it waits is not handed out.
    let before = door.waiting();
    sinks[sinks.len() - 2].close(Close::new(Close::NORMAL, ""));
    soon("it is forgotten", async {
        while door.waiting() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let taken = door.take().await;
    assert!(!taken.tx.is_closed());
}

#[tokio::test]
async fn s24_whoever_dials_in_after_a_failure_is_tried_soon() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let door = registry.join(id("far")).unwrap();
    standing(&registry, "far", |standing| matches!(standing, EnvironmentState::Failed { .. })).await;
    door.hand_in(site.connector().link().await.unwrap()).unwrap();
    standing(&registry, "far", |standing| *standing == EnvironmentState::Ready).await;
}
