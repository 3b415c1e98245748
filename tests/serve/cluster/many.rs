//! Lists, searches and overviews among many threads of one database, as a client of a node asks for them. The tests take a few thousand
//! threads and count statements; `cargo xtask soak stored` takes 100,000, and prints how long each answer took.

use std::time::{Duration, Instant};

use outpost_testkit::Client;
use outpost_testkit::app::{thread, turn};
use outpost_testkit::database_proxy::DatabaseProxy;
use serde_json::{Value, json};

use super::{Cluster, client};
use crate::support::Server;

const FEW: u64 = 2_000;
const ROUNDS: usize = 15;
/// Every so many threads one has words of its own.
const RARE: u64 = 1_000;

/// The thread of a number, as `COPIES` names it.
fn id(number: u64) -> String {
    format!("01928f2e-4c1d-7a33-9c55-{number:012}")
}

/// Copies of one thread, each with a name and times of its own; a few have a word that no other has.
fn copies(of: &str, count: u64) -> String {
    let copied = "'01928f2e-4c1d-7a33-9c55-' || lpad(n::text, 12, '0')";
    let times = "jsonb_build_object('createdAt', created_at + n, 'updatedAt', updated_at + n, 'recencyAt', recency_at + n)";
    format!(
        "insert into outpost_threads (id, first, last, bytes, born, epoch, created_at, updated_at, recency_at, source, cwd, name, summary)
           select {copied}, first, last, bytes, true, 1, created_at + n, updated_at + n, recency_at + n, source, '/srv/' || n % 50, 'Build number ' || n,
                  (summary::jsonb || {times} || jsonb_build_object('id', {copied}, 'name', 'Build number ' || n, 'cwd', '/srv/' || n % 50))::text
           from outpost_threads, generate_series(1, {count}) n where id = '{of}';
         insert into outpost_entries (thread, seq, at, kind, data)
           select {copied}, seq, at + n, kind, replace(data, '{of}', {copied}) from outpost_entries, generate_series(1, {count}) n where thread = '{of}';
         insert into outpost_words (thread, seq, words)
           select {copied}, seq, words from outpost_words, generate_series(1, {count}) n where thread = '{of}';
         insert into outpost_words (thread, seq, words)
           select {copied}, 1, to_tsvector('simple', 'needle' || n || 'x') from generate_series({RARE}, {count}, {RARE}) n;
         analyze"
    )
}

struct Question {
    what: &'static str,
    method: &'static str,
    params: Value,
    /// So many threads must the answer have.
    threads: usize,
    /// So many statements may it cost, however many threads there are.
    statements: usize,
}

/// What is asked.
fn questions(count: u64) -> Vec<Question> {
    let middle = json!({"cursor": null});
    let overview: Vec<String> = (1..=100).map(|number| id(number * count / 100)).collect();
    let question = |what, method, params, threads, statements| Question { what, method, params, threads, statements };
    vec![
        question("the first page of the list", "thread/list", json!({"limit": 25}), 25, 1),
        question("the same by recency", "thread/list", json!({"limit": 25, "sortKey": "recency_at"}), 25, 1),
        question("a page from the middle of the list", "thread/list", middle, 25, 1),
        question("the threads of one directory", "thread/list", json!({"limit": 25, "cwd": "/srv/7"}), 25, 1),
        // One more for all threads that are found by their words: where they stand.
        question("search for a word that one thread has", "thread/search", json!({"searchTerm": format!("needle{RARE}x")}), 1, 2),
        question("search for a word that no thread has", "thread/search", json!({"searchTerm": "nothinglikeit"}), 0, 1),
        question("search for words that all threads have", "thread/search", json!({"searchTerm": "parser question"}), 25, 2),
        question("search for a part of a name", "thread/search", json!({"searchTerm": format!("ild number {}", count - 1)}), 1, 1),
        // Who holds them, where each begins, and their entries in shares.
        question("the overview of 100 threads", "thread/overview", json!({"threadIds": overview}), 100, 8),
    ]
}

struct Many {
    node: Server,
    proxy: DatabaseProxy,
    _cluster: Cluster,
}

impl Many {
    async fn with(count: u64) -> (Self, Client) {
        let cluster = Cluster::new(vec![]).await;
        let proxy = DatabaseProxy::start(cluster.database.url());
        let home = cluster.home();
        let config = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
        std::fs::write(home.path().join("config.toml"), config.replace(cluster.database.url(), &proxy.url())).unwrap();
        let node = Server::start_in(home, &["--listen", "ws://127.0.0.1:0", "--no-auth"]);
        let mut client = client(&node).await;
        let made = thread(&mut client, json!({"environments": []})).await;
        for turns in 0..3 {
            turn(&mut client, &made, &format!("question {turns} about the parser and why its test fails")).await;
        }
        client.result("thread/unsubscribe", json!({"threadId": made})).await;
        cluster.database.ask(&copies(&made, count));
        (Self { node, proxy, _cluster: cluster }, client)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_searches_and_overviews_among_many_threads_of_a_database() {
    let asked = std::env::var("OUTPOST_SOAK_STORED").ok().and_then(|count| count.parse::<u64>().ok());
    let count = asked.unwrap_or(FEW);
    let since = Instant::now();
    let (many, mut client) = Many::with(count).await;
    println!(
        "{count} threads made in {:.0} s; p50 and longest of {ROUNDS}, statements and bytes of one answer",
        since.elapsed().as_secs_f64()
    );
    let middle = client.result("thread/list", json!({"limit": 1000})).await["nextCursor"].clone();
    for Question { what, method, mut params, threads, statements: most } in questions(count) {
        if params.get("cursor").is_some() {
            params["cursor"] = middle.clone();
        }
        let answer = client.result(method, params.clone()).await;
        assert_eq!(answer["data"].as_array().unwrap().len(), threads, "{what}: {answer}");
        let mut took: Vec<Duration> = Vec::new();
        let mut statements = usize::MAX;
        for _ in 0..ROUNDS {
            many.proxy.take_statements();
            let since = Instant::now();
            client.result(method, params.clone()).await;
            took.push(since.elapsed());
            // What the node says of itself, and its looks for orphans, belong to no answer.
            let aside = ["outpost_nodes", "outpost_shared", "pg_notify", "set expires"];
            let own =
                many.proxy.take_statements().into_iter().filter(|text| !text.is_empty() && !aside.iter().any(|part| text.contains(part)));
            statements = statements.min(own.count());
        }
        assert!(statements <= most, "{what}: {statements} statements instead of {most}");
        took.sort_unstable();
        let (p50, longest) = (took[took.len() / 2].as_secs_f64() * 1e3, took[took.len() - 1].as_secs_f64() * 1e3);
        println!("{what:42} {p50:8.1} ms {longest:8.1} ms {statements:4} statements {:7} bytes", answer.to_string().len());
    }
    drop(many.node);
}
