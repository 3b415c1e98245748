//! What only a database that several programs share can show.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "postgres/orphans.rs"]
mod orphans;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outpost_store::{
    AppendError, ClaimError, ClaimMode, Lease, LeaseRow, ListQuery, Need, OrphanFate, OrphanedThread, PassedOrphans, PostgresConfig,
    PostgresError, PostgresStore, RowHolder, Store, ThreadChange, ThreadTenure,
};
use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::postgres::{Database, EncryptedServer};
use support::{created, entries, id, input, plain_turn, postgres, start};

/// So long that a program on a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(5);

async fn open(url: &str, instance: &str) -> PostgresStore {
    let config = PostgresConfig { lease: LEASE, ..PostgresConfig::new(url, instance, "here") };
    PostgresStore::open(config).await.unwrap()
}

/// A program of its own that holds thread 1 and writes an entry whenever it is told a line. This very test program plays it.
struct Other {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_program", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("OUTPOST_TEST_OTHER", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    /// The next line that it says; the test harness says some of its own.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the other program ended");
            if let Some((_, said)) = line.split_once("said: ") {
                return said.trim().to_owned();
            }
        }
    }

    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other side of the tests below, started by them"]
async fn the_other_program() {
    let Ok(url) = std::env::var("OUTPOST_TEST_OTHER") else { return };
    let say = |text: &str| writeln!(std::io::stdout(), "said: {text}").unwrap();
    let store = Store::Postgres(open(&url, "other").await);
    let (lease, written) = start(&store, 1).await;
    say("ready");
    let mut next = written.len() as u64 + 1;
    for _ in std::io::stdin().lines() {
        match store.append(&lease, entries(next, vec![input("from the other", None)]), Need::Durable).await {
            Ok(_) => {
                next += 1;
                say("written");
            }
            Err(AppendError::LeaseLost { .. }) => say("lost"),
            Err(error) => say(&error.to_string()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_program_loses_its_thread_to_another_within_the_lease_time() {
    let database = Database::create();
    let mut other = Other::start(database.url());
    assert_eq!(other.says(), "ready");
    other.tell();
    assert_eq!(other.says(), "written");
    let store = open(database.url(), "mine").await;
    let held = store.claim(id(1), ClaimMode::IfFree).await.unwrap_err();
    assert!(matches!(&held, ClaimError::Held { holder, .. } if holder.pid == other.child.id()), "{held}");
    let holder = store.holder(id(1)).await.unwrap().expect("the other program holds it");
    assert_eq!((holder.pid, holder.instance.as_str(), holder.host.as_str()), (other.child.id(), "other", "here"));
    // It lives and renews: waiting longer than the lease time does not help.
    tokio::time::sleep(LEASE * 2).await;
    assert!(matches!(store.claim(id(1), ClaimMode::IfFree).await, Err(ClaimError::Held { .. })));
    other.signal(rustix::process::Signal::KILL);
    let killed = Instant::now();
    let lease = loop {
        match store.claim(id(1), ClaimMode::IfFree).await {
            Ok(lease) => break lease,
            Err(ClaimError::Held { .. }) => assert!(killed.elapsed() < Duration::from_secs(120), "the lease never expires"),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let last = store.head(id(1)).await.unwrap().last;
    assert_eq!(last, 8, "everything that was acknowledged is there");
    store.append(&lease, entries(last + 1, vec![input("mine", None)]), Need::Durable).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_slept_through_its_lease_cannot_write_any_more() {
    let database = Database::create();
    let mut other = Other::start(database.url());
    assert_eq!(other.says(), "ready");
    other.signal(rustix::process::Signal::STOP);
    let store = open(database.url(), "mine").await;
    let lease = loop {
        match store.claim(id(1), ClaimMode::IfFree).await {
            Ok(lease) => break lease,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let last = store.head(id(1)).await.unwrap().last;
    store.append(&lease, entries(last + 1, vec![input("mine", None)]), Need::Durable).await.unwrap();
    other.tell();
    other.signal(rustix::process::Signal::CONT);
    assert_eq!(other.says(), "lost");
    assert_eq!(store.head(id(1)).await.unwrap().last, last + 1, "only one of the two has written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_write_the_same_ordinal_one_wins() {
    let database = Database::create();
    let store = postgres(database.url(), "one").await;
    let (lease, written) = start(&store, 1).await;
    let next = written.len() as u64 + 1;
    let (mut won, mut lost) = (0, 0);
    let tries = (0..8).map(|n| store.append(&lease, entries(next, vec![input(&format!("try {n}"), None)]), Need::Stored));
    for outcome in futures_util::future::join_all(tries).await {
        match outcome {
            Ok(_) => won += 1,
            Err(AppendError::Conflict { expected, found }) => {
                assert_eq!((expected, found), (next + 1, next));
                lost += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((won, lost), (1, 7));
}

/// A lease that could not be given back expires, also if its holder holds others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_held_is_renewed() {
    let database = Database::create();
    let (here, there) = (Store::Postgres(open(database.url(), "here").await), Store::Postgres(open(database.url(), "there").await));
    let (_kept, _) = start(&here, 1).await;
    let (given, _) = start(&here, 2).await;
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("alter table outpost_threads rename to away").await.unwrap();
    here.release(given).await;
    client.batch_execute("alter table away rename to outpost_threads").await.unwrap();
    tokio::time::sleep(LEASE * 2).await;
    assert!(there.claim(id(2), ClaimMode::IfFree).await.is_ok(), "it has expired");
    assert!(matches!(there.claim(id(1), ClaimMode::IfFree).await, Err(ClaimError::Held { .. })), "it is renewed");
}

/// The first entries of a thread are being stored when it is given back: the thread stays, and no program holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_is_given_back_while_it_begins_is_free() {
    let database = Database::create();
    let store = postgres(database.url(), "one").await;
    let lease = store.create(id(1)).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // Both wait for the row, and get it in the order in which they came.
    let locked = client.transaction().await.unwrap();
    locked.execute("select from outpost_threads for update", &[]).await.unwrap();
    let waiting = async |count: u32| {
        let text = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        // On a machine that stands still for long, a renewal waits for the row as well.
        while database.ask(text).parse::<u32>().unwrap() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Its writer has given up on the append, which the database still carries out.
    let given = Lease { thread: lease.thread, epoch: lease.epoch };
    let beginning = tokio::spawn({
        let store = store.clone();
        async move { store.append(&lease, entries(1, vec![created(1), input("go", None)]), Need::Stored).await }
    });
    waiting(1).await;
    let returning = tokio::spawn({
        let store = store.clone();
        async move { store.release(given).await }
    });
    waiting(2).await;
    locked.commit().await.unwrap();
    beginning.await.unwrap().unwrap();
    returning.await.unwrap();
    assert_eq!(database.ask("select born, instance is null, expires is null, last from outpost_threads"), "t|t|t|2");
    let other = postgres(database.url(), "two").await;
    other.claim(id(1), ClaimMode::IfFree).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_is_told() {
    let database = Database::create();
    let (reader, writer) = (open(database.url(), "reader").await, Store::Postgres(open(database.url(), "writer").await));
    let mut feed = reader.feed().await.unwrap();
    let (lease, written) = start(&writer, 1).await;
    assert_eq!(feed.next().await, ThreadChange::Thread { thread: id(1), last: written.len() as u64 });
    let more = entries(written.len() as u64 + 1, plain_turn(5));
    let last = writer.append(&lease, more, Need::Stored).await.unwrap().last;
    assert_eq!(feed.next().await, ThreadChange::Thread { thread: id(1), last });
    writer.release(lease).await;
    writer.delete(id(1), ClaimMode::IfFree).await.unwrap();
    assert_eq!(feed.next().await, ThreadChange::Thread { thread: id(1), last: 0 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_lost_its_connection_says_so_and_goes_on() {
    let database = Database::create();
    let writer = Store::Postgres(open(database.url(), "writer").await);
    let mut feed = open(database.url(), "reader").await.feed().await.unwrap();
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let cut =
        "select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen outpost_threads' and datname = current_database()";
    assert_eq!(client.query(cut, &[]).await.unwrap().len(), 1);
    assert_eq!(feed.next().await, ThreadChange::Gap);
    assert_eq!(feed.next().await, ThreadChange::Gap, "connected again");
    let (_, written) = start(&writer, 1).await;
    assert_eq!(feed.next().await, ThreadChange::Thread { thread: id(1), last: written.len() as u64 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_a_newer_program_are_left_alone() {
    let database = Database::create();
    drop(open(database.url(), "one").await);
    drop(open(database.url(), "two").await);
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let known: i64 = client.query_one("select max(version) from outpost_migrations", &[]).await.unwrap().get(0);
    let newer = |oldest: i64| format!("insert into outpost_migrations (version, sum, oldest) values ({}, 'x', {oldest})", known + 1);
    // One that says that programs of this version may go on is no obstacle: nodes are upgraded one after another.
    client.batch_execute(&newer(known)).await.unwrap();
    let running = Store::Postgres(open(database.url(), "running").await);
    let (lease, written) = start(&running, 1).await;
    client.batch_execute(&format!("update outpost_migrations set oldest = {0} where version = {0}", known + 1)).await.unwrap();
    let error = PostgresStore::open(PostgresConfig::new(database.url(), "three", "here")).await.err().unwrap();
    assert!(matches!(error, PostgresError::Newer { version, known: own } if version == known + 1 && own == known), "{error}");
    // A program that runs when the tables are upgraded writes nothing any more.
    let late = running.append(&lease, entries(written.len() as u64 + 1, plain_turn(2)), Need::Stored).await.unwrap_err();
    assert!(late.to_string().contains("upgrade it"), "{late}");
    assert_eq!(running.head(id(1)).await.unwrap().last, written.len() as u64);
    running.release(lease).await;
    let claim = running.claim(id(1), ClaimMode::IfFree).await.unwrap_err();
    assert!(claim.to_string().contains("upgrade it"), "{claim}");
    for bad in ["mysql://x", "postgres://user@host/db?sslmode=prefer", "postgres://nobody@%2Fno%2Fsuch%2Fplace/db"] {
        assert!(PostgresStore::open(PostgresConfig::new(bad, "four", "here")).await.is_err(), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strange_characters_survive() {
    let database = Database::create();
    let store = postgres(database.url(), "one").await;
    let lease = store.create(id(1)).await.unwrap();
    let text = "nul \0 quote ' \" backslash \\ emoji 🦀 and % and _";
    let written = entries(1, vec![created(1), input(text, None)]);
    store.append(&lease, written.clone(), Need::Stored).await.unwrap();
    assert_eq!(store.history(id(1), 0).await.unwrap().rest().await.unwrap().entries, written);
    for (search, count) in [("emoji", 1), ("'", 0), ("\\", 0), ("quote ' back", 1), ("nothing", 0), ("a:b & !c", 0)] {
        let page = store.list(ListQuery { search: Some(search.into()), ..ListQuery::default() }).await.unwrap();
        assert_eq!(page.threads.len(), count, "{search}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_database_is_reached_if_it_is_the_right_one() {
    let server = EncryptedServer::start();
    let (port, certificate) = (server.port, server.certificate());
    let open_at = async |host: &str, options: String| {
        let url = format!("postgres://postgres@{host}:{port}/postgres?{options}");
        PostgresStore::open(PostgresConfig::new(url, "one", "here")).await
    };
    let trusting = format!("sslmode=require&sslrootcert={}", certificate.display());
    let store = open_at("localhost", trusting.clone()).await.unwrap();
    let mut feed = store.feed().await.unwrap();
    let store = Store::Postgres(store);
    let (lease, written) = start(&store, 1).await;
    assert_eq!(feed.next().await, ThreadChange::Thread { thread: id(1), last: written.len() as u64 });
    store.release(lease).await;
    let refusals = [
        ("localhost", "sslmode=require".to_owned(), "sslrootcert=FILE"),
        ("127.0.0.1", trusting, "sslrootcert=FILE, and the host as the certificate does"),
        ("localhost", "sslmode=disable".to_owned(), "pg_hba"),
        ("localhost", "sslmode=require&sslrootcert=/no/such.pem".to_owned(), "/no/such.pem"),
    ];
    for (host, options, why) in refusals {
        let error = open_at(host, options.clone()).await.err().unwrap().to_string();
        assert!(error.contains(why), "{host} {options}: {error}");
    }
}

/// The statement by which a database decides about a claim says what [`LeaseRow::grants`] says, in every case that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_granted_as_the_rule_says() {
    let database = Database::create();
    // It does not renew anything meanwhile.
    let long = Duration::from_secs(24 * 3600);
    let config = PostgresConfig { lease: long, node_lease: long, ..PostgresConfig::new(database.url(), "own", "here") };
    let store = Store::Postgres(PostgresStore::open(config).await.unwrap());
    let (lease, _) = start(&store, 1).await;
    let thread = lease.thread;
    store.release(lease).await;
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut cases = 0;
    for holder in [RowHolder::Free, RowHolder::Own, RowHolder::OwnUnreturned, RowHolder::Other] {
        for program in [None, Some(true), Some(false)] {
            for (has_expired, work, mode) in [false, true].into_iter().flat_map(|expired| {
                let modes = [ClaimMode::IfFree, ClaimMode::TakeOver, ClaimMode::Orphaned];
                [false, true].into_iter().flat_map(move |work| modes.map(move |mode| (expired, work, mode)))
            }) {
                // What this program holds is in use; what it could not give back is not.
                let held = match holder {
                    RowHolder::Own => Some(store.claim(thread, ClaimMode::TakeOver).await.unwrap()),
                    _ => None,
                };
                let instance = match holder {
                    RowHolder::Free => "null",
                    RowHolder::Own | RowHolder::OwnUnreturned => "'own'",
                    RowHolder::Other => "'other'",
                };
                let until = |is_over: bool| if is_over { "now() - interval '1 hour'" } else { "now() + interval '1 hour'" };
                let row = match (program, instance) {
                    (Some(is_alive), "'own'" | "'other'") => {
                        let until = until(!is_alive);
                        format!(
                            "insert into outpost_nodes (instance, host, pid, adopts, expires) values ({instance}, 'h', 1, true, {until});"
                        )
                    }
                    _ => String::new(),
                };
                let expires = until(has_expired);
                let text = format!(
                    "delete from outpost_nodes; {row} update outpost_threads set instance = {instance}, expires = {expires}, work = {work};"
                );
                client.batch_execute(&text).await.unwrap();
                let known = LeaseRow { holder, program: program.filter(|_| holder != RowHolder::Free), has_expired, work };
                let claimed = store.claim(thread, mode).await;
                assert_eq!(claimed.is_ok(), known.grants(mode), "{known:?} {mode:?} {claimed:?}");
                for lease in claimed.into_iter().chain(held) {
                    store.release(lease).await;
                }
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 4 * 3 * 2 * 2 * 3);
}

/// Every connection dies without a word, as behind a firewall that forgot them; new ones work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_die_silently_cost_a_time_out_and_nothing_else() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    let config = PostgresConfig {
        statement: Duration::from_millis(500),
        connections: 3,
        // It does not matter here, and machines that run tests are slow.
        node_lease: Duration::from_secs(60),
        ..PostgresConfig::new(proxy.url(), "one", "here")
    };
    let store = Store::Postgres(PostgresStore::open(config).await.unwrap());
    let (lease, written) = start(&store, 1).await;
    futures_util::future::join_all((0..3).map(|_| store.head(id(1)))).await;
    let before = proxy.connections();
    proxy.freeze();
    let last = store.append(&lease, entries(written.len() as u64 + 1, plain_turn(2)), Need::Stored).await.unwrap().last;
    assert!(proxy.connections() > before, "it went on with another connection");
    assert_eq!(store.head(id(1)).await.unwrap().last, last);
    assert_eq!(store.verify(id(1), None).await.unwrap().entries, last, "nothing is doubled");
    store.ping().await.unwrap();
}

/// A database that was slow for a moment costs the connection that waited for it, and not all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_slow_costs_one_connection() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    let config = PostgresConfig {
        statement: Duration::from_millis(500),
        connections: 6,
        // Nothing else is out meanwhile.
        node_lease: Duration::from_secs(600),
        ..PostgresConfig::new(proxy.url(), "one", "here")
    };
    let store = Store::Postgres(PostgresStore::open(config).await.unwrap());
    start(&store, 1).await;
    let all = async || futures_util::future::join_all((0..6).map(|_| store.head(id(1)))).await;
    assert!(all().await.into_iter().all(|head| head.is_ok()));
    let before = proxy.connections();
    proxy.hold();
    store.head(id(1)).await.unwrap_err();
    proxy.resume();
    assert!(all().await.into_iter().all(|head| head.is_ok()));
    let made = proxy.connections() - before;
    // The one that was closed, and that of the lease, which is not tried.
    assert!(made <= 2, "{made} of 6 connections were made anew");
}

/// The lease of a program is renewed in time although all of its connections are dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_whose_connections_die_silently_keeps_its_lease() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    // A statement may take longer than the lease.
    let config = PostgresConfig {
        adopts: true,
        node_lease: Duration::from_secs(30),
        statement: Duration::from_secs(600),
        ..PostgresConfig::new(proxy.url(), "one", "here")
    };
    let store = Store::Postgres(PostgresStore::open(config).await.unwrap());
    let (_lease, _) = start(&store, 1).await;
    futures_util::future::join_all((0..8).map(|_| store.head(id(1)))).await;
    proxy.freeze();
    let renewed = "select expires > now() + interval '29 seconds' from outpost_nodes where instance = 'one'";
    let lapsed = "select expires <= now() from outpost_nodes where instance = 'one'";
    // From one renewal to the next.
    for wanted in ["f", "t"] {
        while database.ask(renewed) != wanted {
            assert_eq!(database.ask(lapsed), "f", "its lease is over");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// An append is one statement, and what followers are told costs none of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_is_one_round_trip_and_notes_are_batched() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    let store = Store::Postgres(open(&proxy.url(), "one").await);
    let (lease, written) = start(&store, 1).await;
    let mut last = written.len() as u64;
    proxy.take_statements();
    let begun = std::time::Instant::now();
    for turn in 0..200 {
        last = store.append(&lease, entries(last + 1, plain_turn(turn)), Need::Stored).await.unwrap().last;
    }
    let statements = proxy.take_statements();
    // At most one batch per pause, however slow the machine is.
    let most = begun.elapsed().as_millis() / 100 + 2;
    let count = |part: &str| statements.iter().filter(|text| text.contains(part)).count();
    assert_eq!(count("insert into outpost_entries"), 200);
    assert!(statements.iter().all(|text| !text.contains("pg_notify") || !text.contains("outpost_entries")), "no note inside an append");
    assert!(count("pg_notify") as u128 <= most, "{} notes for one thread", count("pg_notify"));
    // Leases are renewed and idle connections tried beside it.
    let aside = ["outpost_entries", "pg_notify", "outpost_nodes", "set statement_timeout", "set expires"];
    let others = statements.iter().filter(|text| !text.is_empty() && !aside.iter().any(|part| text.contains(part)));
    assert_eq!(others.collect::<Vec<_>>(), [] as [&String; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_found_by_an_index() {
    let database = Database::create();
    let store = Store::Postgres(open(database.url(), "one").await);
    let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // Written by the statement that any program uses, older ones included: the names follow.
    let many = "insert into outpost_threads (id, first, last, epoch, born, name, summary)
                select 'thread-' || n, 1, 1, 1, true, 'Build number ' || n, '{}' from generate_series(1, 20000) n;
                update outpost_threads set name = 'Die Straße nach München' where id = 'thread-5'; analyze";
    client.batch_execute(many).await.unwrap();
    let found = async |text: &str| {
        let sought = "select thread from outpost_names where outpost_grams(name) @> $1::text[] and name ilike $2 order by thread";
        let grams: Vec<String> = vec![text.to_lowercase()];
        let rows = client.query(sought, &[&grams, &format!("%{text}%")]).await.unwrap();
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
    };
    assert_eq!(found("nac").await, ["thread-5"]);
    assert_eq!(found("Nach").await, [] as [&str; 0], "no part is longer than three characters");
    let plan = "explain select thread from outpost_names where outpost_grams(name) @> array['m\u{fc}n', 'xyz'] and name ilike '%xyz%'";
    let plan = client.query(plan, &[]).await.unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.join("\n").contains("outpost_names_grams"), "{plan:?}");
    client.batch_execute("delete from outpost_threads where id = 'thread-5'").await.unwrap();
    assert_eq!(found("nac").await, [] as [&str; 0]);
    drop(store);
}

/// Its leases would be renewed, and the loss noticed, in twenty minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_from_which_an_idle_thread_is_taken_is_told() {
    let database = Database::create();
    let config = PostgresConfig { lease: Duration::from_secs(3600), ..PostgresConfig::new(database.url(), "first", "here") };
    let first = PostgresStore::open(config).await.unwrap();
    let store = Store::Postgres(first.clone());
    // As a server does, which follows tokens.
    let _following = store.records().unwrap().changes();
    let listens = "select count(*) from pg_stat_activity where query = 'listen outpost_shared' and datname = current_database()";
    while database.ask(listens) != "1" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_lease, _) = start(&store, 1).await;
    let second = open(database.url(), "second").await;
    second.claim(id(1), ClaimMode::TakeOver).await.unwrap();
    let taken = tokio::time::timeout(Duration::from_secs(60), first.taken_threads()).await;
    assert_eq!(taken.expect("it is not told"), [id(1)]);
}

/// Programs of version 0.1.0 compare no version. While tables allow them they write; once a version does not, the database refuses them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_program_of_version_0_1_0_is_shut_out_by_the_database() {
    let database = Database::create();
    let store = Store::Postgres(open(database.url(), "new").await);
    let (lease, written) = start(&store, 1).await;
    let last = written.len() as u64;
    // What it says to claim a thread, to write an entry, and to renew its lease.
    let (old, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let claim = "update outpost_threads
        set epoch = epoch + 1, instance = 'old', host = 'here', pid = 1, since = now(), expires = now() + make_interval(secs => 30)
        where id = $1 and (instance is null or expires <= now()) returning epoch";
    let append = "with moved as (
          update outpost_threads set last = last + 1, expires = now() + make_interval(secs => 30) where id = $1 and epoch = $2 and instance = 'old' returning id, last
        ), entries as (
          insert into outpost_entries (thread, seq, at, kind, data)
          select $1, last, 1, 'metadataChanged', '{\"name\":\"old\"}' from moved
        ) select pg_notify('outpost_threads', id || ' ' || last)::text from moved";
    let renew = "update outpost_threads set expires = now() + make_interval(secs => 30) where instance = 'old'";
    let thread = id(1).to_string();
    assert_eq!(old.query(claim, &[&thread]).await.unwrap().len(), 0, "it does not take what a new program holds");
    store.release(lease).await;
    let epoch: i64 = old.query_one(claim, &[&thread]).await.unwrap().get(0);
    assert_eq!(old.query(append, &[&thread, &epoch]).await.unwrap().len(), 1);
    assert!(matches!(store.claim(id(1), ClaimMode::IfFree).await, Err(ClaimError::Held { .. })), "a new one does not take what it holds");
    // A version comes that it must not write.
    database.ask("select outpost_require(max(version), 2) from outpost_migrations");
    for refused in [old.query(append, &[&thread, &epoch]).await, old.query(renew, &[]).await] {
        let why = refused.unwrap_err().as_db_error().unwrap().message().to_owned();
        assert!(why.contains("upgrade it"), "{why}");
    }
    let lease = store.claim(id(1), ClaimMode::TakeOver).await.unwrap();
    store.append(&lease, entries(last + 2, vec![input("new", None)]), Need::Stored).await.unwrap();
    assert_eq!(store.verify(id(1), None).await.unwrap().entries, last + 2);
}
