//! Executors that dial in: somebody hands in their links.

use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{Refusal, Standing};
use outpost_testkit::LinkKind;

use crate::support::{Site, finish, id, over_sites, read_line, ready, registry, soon, standing};

over_sites! {
    async fn s24_ready_at_once_and_a_newer_link_takes_over_with_everything_in_it(site: Site) {
        let registry = registry();
        let door = registry.join(id("far")).unwrap();
        assert!(matches!(registry.standing(&id("far")), Standing::Idle | Standing::Connecting));
        door.hand_in(site.connector().link().await.unwrap()).unwrap();
        let handle = ready(&registry, "far").await;
        let process = handle.start(site.shell("p", "while read -r line; do echo \"got $line\"; done; exit 3")).await.unwrap();
        let mut text = String::new();
        process.write(Bytes::from_static(b"one\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got one");
        // The executor dials in again while the first link still looks alive.
        let before = registry.watch();
        door.hand_in(site.connector().link().await.unwrap()).unwrap();
        process.write(Bytes::from_static(b"two\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got two");
        drop(before);
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
            if door.hand_in(link) == Err(Refusal) {
                assert!(sink.is_closed());
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn s24_of_two_links_that_nobody_has_taken_the_newer_counts() {
    let (registry, site) = (registry(), Site::new(LinkKind::Memory));
    let door = registry.join(id("far")).unwrap();
    // The same door for whoever asks again.
    let again = registry.join(id("far")).unwrap();
    for _ in 0..10 {
        again.hand_in(site.connector().link().await.unwrap()).unwrap();
        door.hand_in(site.connector().link().await.unwrap()).unwrap();
    }
    standing(&registry, "far", |standing| *standing == Standing::Ready).await;
    assert!(registry.get(&id("far")).unwrap().info().await.is_ok());
}
