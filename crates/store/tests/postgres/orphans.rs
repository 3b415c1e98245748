//! Threads whose node died: which of them a node finds, and which it takes.

use super::*;

/// The orphans that a node finds that has not looked before.
async fn orphans(store: &PostgresStore) -> Vec<(OrphanedThread, OrphanFate)> {
    store.orphans(16, &mut PassedOrphans::default()).await.unwrap()
}

/// What becomes of thread 1, as a node knows that is asked for it; nothing if a program has it.
async fn asked(store: &PostgresStore) -> Option<OrphanFate> {
    match store.tenure(id(1)).await.unwrap() {
        ThreadTenure::Held(_) => None,
        ThreadTenure::Orphaned(orphan) => Some(orphan.fate(store.host())),
    }
}

/// The database carried a claim out, and the answer was lost: the thread is this program's, and no other may take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_whose_claim_was_not_answered_is_found() {
    let database = Database::create();
    // None of them renews anything meanwhile.
    let node_lease = Duration::from_secs(24 * 3600);
    let adopting = |instance: &str| PostgresConfig { adopts: true, node_lease, ..PostgresConfig::new(database.url(), instance, "here") };
    let (one, two) = (PostgresStore::open(adopting("one")).await.unwrap(), PostgresStore::open(adopting("two")).await.unwrap());
    let store = Store::Postgres(one.clone());
    let (_lease, written) = start(&store, 1).await;
    assert_eq!(orphans(&one).await.len(), 0);
    let (lease, _) = start(&store, 2).await;
    store.append(&lease, entries(written.len() as u64 + 1, vec![input("to do", None)]), Need::Stored).await.unwrap();
    for _ in 0..3 {
        assert_eq!(orphans(&one).await.len(), 0, "it is held");
    }
    let lease_ends = |when: &str| database.ask(&format!("update outpost_nodes set expires = now() {when} where instance = 'one'"));
    lease_ends("- interval '1 minute'");
    assert_eq!(orphans(&one).await.len(), 0, "its own driver goes on with it, until another program takes it");
    assert_eq!(orphans(&two).await.len(), 1);
    lease_ends("+ interval '1 day'");
    // Held by this program as far as the database knows.
    one.hand_over(&lease);
    let found = async |store: &PostgresStore| orphans(store).await.into_iter().map(|(orphan, _)| orphan.thread).collect::<Vec<_>>();
    assert_eq!(found(&one).await, [], "it may just be on its way");
    assert_eq!(found(&one).await, [id(2)]);
    assert_eq!(found(&two).await, [], "the other program leaves it alone");
    assert!(one.claim(id(2), ClaimMode::Orphaned).await.is_ok());
    assert_eq!(found(&one).await, []);
}

/// A node that cannot read a thread that it has taken up, or write to it, leaves it to the search, in which it takes part itself. What has
/// nothing to do is free, and so is every thread of a program that does not look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_cannot_go_on_is_found_again_if_it_has_work() {
    let database = Database::create();
    let open = async |instance: &str, adopts: bool| {
        let node_lease = Duration::from_secs(24 * 3600);
        let config = PostgresConfig { adopts, node_lease, ..PostgresConfig::new(database.url(), instance, "here") };
        PostgresStore::open(config).await.unwrap()
    };
    let (node, other, program) = (open("node", true).await, open("other", true).await, open("program", false).await);
    let holder = |number: u64| database.ask(&format!("select instance from outpost_threads where id = '{}'", id(number)));
    for (number, store, has_work, held_by) in [(1, &node, true, "node"), (2, &node, false, ""), (3, &program, true, "")] {
        let store = Store::Postgres(store.clone());
        let (lease, written) = start(&store, number).await;
        if has_work {
            store.append(&lease, entries(written.len() as u64 + 1, vec![input("to do", None)]), Need::Stored).await.unwrap();
        }
        store.give_up(lease).await;
        assert_eq!(holder(number), held_by, "{number}");
    }
    assert_eq!(orphans(&node).await.len(), 0, "its claim may just be on its way");
    let found: Vec<_> = orphans(&node).await.into_iter().map(|(orphan, fate)| (orphan.thread, fate)).collect();
    assert_eq!(found, [(id(1), OrphanFate::TakeUp)]);
    // Also after it was taken up without anything that was written.
    let lease = node.claim(id(1), ClaimMode::Orphaned).await.unwrap();
    node.give_up(lease).await;
    // A node that cannot go on with it time after time leaves it to the user, who finds it free.
    let soon = "(select expires from outpost_nodes where instance = 'node')";
    database.ask(&format!("update outpost_threads set claims = 3, since = {soon} where id = '{}'", id(1)));
    let found: Vec<_> = orphans(&node).await.into_iter().map(|(_, fate)| fate).collect();
    assert_eq!((found, holder(1).as_str()), (vec![OrphanFate::Parked], ""));
    let lease = other.claim(id(1), ClaimMode::IfFree).await.unwrap();
    other.give_up(lease).await;
    database.ask("update outpost_nodes set expires = now() where instance = 'other'");
    assert_eq!(orphans(&node).await.len(), 1);
}

/// `local` of a thread is the machine of its first step, whichever node had the thread last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_waits_for_the_machine_that_is_local_in_it() {
    let database = Database::create();
    let on = |instance: &str, host: &str| PostgresConfig {
        adopts: true,
        // None of them renews anything meanwhile.
        node_lease: Duration::from_secs(24 * 3600),
        ..PostgresConfig::new(database.url(), instance, host)
    };
    let first = Store::Postgres(PostgresStore::open(on("one", "first")).await.unwrap());
    let lease = first.create(id(1)).await.unwrap();
    let cwd = outpost_wire::PathUri::from_syntax("/srv").unwrap();
    let attachment = outpost_wire::intent::Attachment::new(outpost_wire::EnvironmentId::local(), cwd);
    let selection = outpost_wire::intent::Selection::new(vec![attachment]).ok();
    let seen = outpost_thread::StepEnvironment {
        id: outpost_wire::EnvironmentId::local(),
        state: "ready".into(),
        generation: None,
        executor: None,
        cwd: None,
        host: Some("first".into()),
    };
    let turn = outpost_thread::TurnId::from("turn".to_owned());
    let facts = vec![
        created(1),
        outpost_thread::SelectionChanged { selection, capability_roots: None }.into(),
        input("go", None),
        outpost_thread::TurnStarted::new(turn.clone(), vec![]).into(),
        outpost_thread::StepCaptured { turn, step: 0, environments: vec![seen], items: vec![], detail: None }.into(),
    ];
    first.append(&lease, entries(1, facts), Need::Stored).await.unwrap();
    // A client resumes it on another machine, whose node dies, too.
    let second = PostgresStore::open(on("two", "second")).await.unwrap();
    second.claim(id(1), ClaimMode::TakeOver).await.unwrap();
    database.ask("update outpost_nodes set expires = now() - interval '1 hour' where instance = 'two'");
    let Store::Postgres(first) = &first else { panic!() };
    let third = PostgresStore::open(on("three", "second")).await.unwrap();
    let fate = async |store: &PostgresStore| orphans(store).await.first().map(|(_, fate)| *fate);
    assert_eq!((fate(first).await, asked(first).await), (Some(OrphanFate::TakeUp), Some(OrphanFate::TakeUp)));
    assert_eq!((fate(&third).await, asked(&third).await), (Some(OrphanFate::Elsewhere), Some(OrphanFate::Elsewhere)));
}

/// A thread that ends its nodes is parked. One whose nodes were told to end, or lived on with it, is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_nodes_that_died_soon_after_they_took_a_thread_up_are_counted() {
    let database = Database::create();
    let open = async |instance: &str| {
        let node_lease = Duration::from_secs(24 * 3600);
        let config = PostgresConfig { adopts: true, node_lease, ..PostgresConfig::new(database.url(), instance, "here") };
        PostgresStore::open(config).await.unwrap()
    };
    let watch = open("watch").await;
    let store = Store::Postgres(open("first").await);
    let (lease, written) = start(&store, 1).await;
    store.append(&lease, entries(written.len() as u64 + 1, vec![input("to do", None)]), Need::Stored).await.unwrap();
    let dies = |instance: &str| database.ask(&format!("update outpost_nodes set expires = now() where instance = '{instance}'"));
    let next = async |claims: u64| {
        let (orphan, fate) = orphans(&watch).await.remove(0);
        assert_eq!(orphan.claims, claims);
        assert_eq!(asked(&watch).await, Some(fate), "who is asked for it knows the same");
        fate
    };
    let take_up = async |instance: &str| {
        let node = open(instance).await;
        node.claim(id(1), ClaimMode::Orphaned).await.unwrap();
        node
    };
    dies("first");
    for (claims, instance) in (0..).zip(["a", "b"]) {
        assert_eq!(next(claims).await, OrphanFate::TakeUp);
        drop(take_up(instance).await);
        dies(instance);
    }
    assert_eq!(next(2).await, OrphanFate::TakeUp);
    // It is told to end.
    take_up("c").await.leave().await;
    assert_eq!(next(0).await, OrphanFate::TakeUp);
    for (claims, instance) in (0..).zip(["d", "e", "f"]) {
        assert_eq!(next(claims).await, OrphanFate::TakeUp);
        drop(take_up(instance).await);
        dies(instance);
    }
    assert_eq!(next(3).await, OrphanFate::Parked);
    // The last one had it for ten minutes.
    database.ask("update outpost_threads set since = now() - interval '10 minutes'");
    assert_eq!(next(0).await, OrphanFate::TakeUp);
    let last = take_up("g").await;
    assert_eq!(asked(&watch).await, None, "it is held");
    drop(last);
    dies("g");
    assert_eq!(next(1).await, OrphanFate::TakeUp);
    // No node looks for what has nothing to do, or was given back.
    database.ask("update outpost_threads set work = false");
    assert_eq!((orphans(&watch).await.len(), asked(&watch).await), (0, Some(OrphanFate::Idle)));
    database.ask("update outpost_threads set work = true, instance = null");
    assert_eq!((orphans(&watch).await.len(), asked(&watch).await), (0, Some(OrphanFate::Idle)));
}

/// However many threads no node takes up, those behind them in the list are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_that_are_not_taken_up_hide_no_others() {
    const MANY: u64 = 200;
    let database = Database::create();
    let adopting = |instance: &str| PostgresConfig {
        adopts: true,
        node_lease: Duration::from_secs(24 * 3600),
        ..PostgresConfig::new(database.url(), instance, "here")
    };
    let store = Store::Postgres(PostgresStore::open(adopting("first")).await.unwrap());
    for number in 1..=MANY {
        let (lease, written) = start(&store, number).await;
        store.append(&lease, entries(written.len() as u64 + 1, vec![input("to do", None)]), Need::Stored).await.unwrap();
    }
    let watch = PostgresStore::open(adopting("watch")).await.unwrap();
    let last = database.ask("select id from outpost_threads order by md5(id || 'watch') desc limit 1");
    database.ask(&format!("update outpost_threads set claims = 3 where id <> '{last}'"));
    database.ask("update outpost_nodes set expires = now() where instance = 'first'");
    let mut passed = PassedOrphans::default();
    let found = watch.orphans(16, &mut passed).await.unwrap();
    let count = |fate: OrphanFate| found.iter().filter(|(_, own)| *own == fate).count();
    assert_eq!((count(OrphanFate::TakeUp), count(OrphanFate::Parked)), (1, MANY as usize - 1));
    assert_eq!(found.last().unwrap().0.thread.to_string(), last);
    // The others are not read again with every look.
    let again = watch.orphans(16, &mut passed).await.unwrap();
    assert_eq!(again.iter().map(|(orphan, _)| orphan.thread.to_string()).collect::<Vec<_>>(), [last]);
    // One that changed hands is another matter.
    let changed = found[0].0.thread;
    database.ask(&format!("update outpost_threads set claims = 0, epoch = epoch + 1 where id = '{changed}'"));
    assert!(watch.orphans(16, &mut passed).await.unwrap().iter().any(|(orphan, _)| orphan.thread == changed));
}

/// An agent comes with the thread that made it. Where that has nothing to do, it is taken up by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_maker_has_nothing_to_do_is_an_orphan_of_its_own() {
    let database = Database::create();
    let adopting = |instance: &str| PostgresConfig {
        adopts: true,
        node_lease: Duration::from_secs(24 * 3600),
        ..PostgresConfig::new(database.url(), instance, "here")
    };
    let store = Store::Postgres(PostgresStore::open(adopting("first")).await.unwrap());
    for number in 1..=2 {
        let (lease, written) = start(&store, number).await;
        store.append(&lease, entries(written.len() as u64 + 1, vec![input("to do", None)]), Need::Stored).await.unwrap();
    }
    database.ask(&format!("update outpost_threads set parent = '{}' where id = '{}'", id(1), id(2)));
    database.ask("update outpost_nodes set expires = now() where instance = 'first'");
    let watch = PostgresStore::open(adopting("watch")).await.unwrap();
    let found = async || orphans(&watch).await.into_iter().map(|(orphan, _)| orphan.thread).collect::<Vec<_>>();
    assert_eq!(found().await, [id(1)]);
    database.ask(&format!("update outpost_threads set work = false where id = '{}'", id(1)));
    assert_eq!(found().await, [id(2)]);
    // The thread that made it was deleted.
    database.ask(&format!("delete from outpost_threads where id = '{}'", id(1)));
    assert_eq!(found().await, [id(2)]);
    assert!(watch.claim(id(2), ClaimMode::Orphaned).await.is_ok());
    // Threads without work are not gone through.
    let look = "explain select t.id from outpost_threads t join outpost_nodes n on n.instance = t.instance
        where t.work and n.adopts and n.expires <= now()
          and (t.parent is null or not exists (select from outpost_threads p where p.id = t.parent and p.work))";
    let plan = database.ask(&format!("set enable_seqscan = off; {look}"));
    assert!(plan.contains("outpost_threads_work"), "{plan}");
}
