//! A node that is told to end with many threads loaded: what that costs the database, and how long it takes.

use std::path::Path;
use std::time::{Duration, Instant};

use outpost_testkit::app::{begin, thread, turn};
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, Request};
use serde_json::json;

use super::database::behind_proxy;
use super::{Cluster, client, completed};
use crate::support::Server;

/// Half of them in the middle of a turn, half with nothing to do.
const THREADS: usize = 100;

/// What a node says of itself, and its looks for orphans, are no part of its end.
const ASIDE: [&str; 4] = ["insert into outpost_nodes", "t.claims end, t.host", "outpost_shared", "set expires = now() + make_interval"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_costs_a_few_statements_however_many_threads_there_are() {
    let cluster = Cluster::new(vec![]).await;
    let (proxy, first) = behind_proxy(&cluster);
    let second = cluster.node();
    let mut at_first = client(&first).await;
    let half = THREADS / 2;
    for _ in 0..half {
        cluster.model.push(Reply::message("done"));
        let idle = thread(&mut at_first, json!({"environments": []})).await;
        turn(&mut at_first, &idle, "a question").await;
    }
    for _ in 0..half {
        cluster.model.push(Reply::Silent(String::new()));
        let busy = thread(&mut at_first, json!({"environments": []})).await;
        begin(&mut at_first, &busy, "go").await;
    }
    eventually("the model is asked in all of them", || cluster.asked() == THREADS).await;
    for _ in 0..half {
        cluster.model.push(Reply::message("the second node"));
    }
    proxy.take_statements();
    let since = Instant::now();
    drop(first.stop());
    let took = since.elapsed();
    let statements: Vec<String> = proxy.take_statements();
    let own = statements.iter().filter(|text| !text.is_empty() && !ASIDE.iter().any(|part| text.contains(part)));
    let own: Vec<&String> = own.collect();
    println!("drain of {THREADS} threads: {:.2} s, {} statements", took.as_secs_f64(), own.len());
    // Whether there is another node, threads that are given back, what followers are told, and the end of its lease.
    assert!(own.len() <= 12, "{own:#?}");
    let finished = "select count(*) || ' ' || count(*) filter (where data::jsonb->>'status' = 'completed')
                    from outpost_entries where kind = 'turnFinished'";
    eventually("the other node goes on with all of them", || cluster.database.ask(finished) == format!("{THREADS} {THREADS}")).await;
    drop(second);
}

/// A call of an MCP server cannot be found again by another node: it ends first, and then its thread goes on there. The other threads of the
/// node stay until then, and do nothing: a client that asks for one of them does not bring it to life again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_no_other_node_could_find_again_ends_before_its_thread_is_handed_over() {
    let cluster = Cluster::new(vec![]).await;
    let file = cluster.work.path().join("file");
    cluster.model.push(Reply::Silent(String::new()));
    let home = cluster.home();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp/server.py");
    let mut config = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
    let arguments = format!("[{:?}, \"plain\"]", server.to_str().unwrap());
    config
        .push_str(&format!("[mcp_servers.tools]\ncommand = \"python3\"\nargs = {arguments}\nrequired = true\nstartup_timeout_sec = 60\n"));
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let first = Server::start_in(home, &["--listen", "ws://127.0.0.1:0", "--no-auth"]);
    let second = cluster.node();
    let mut at_first = client(&first).await;
    let other = thread(&mut at_first, json!({"environments": []})).await;
    begin(&mut at_first, &other, "go").await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    cluster.model.push(Reply::call("late", "mcp__tools__late", &json!({"file": file, "bytes": 5})));
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the server is at work", || file.with_extension("begun").exists()).await;
    (0..2).for_each(|_| cluster.model.push(Reply::message("the second node")));
    let ending = tokio::task::spawn_blocking(move || drop(first.stop()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!ending.is_finished(), "it waits for the call");
    at_first.result("thread/resume", json!({"threadId": other})).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(cluster.asked(), 2, "the node begins nothing any more");
    std::fs::write(&file, "").unwrap();
    ending.await.unwrap();
    for thread in [&thread, &other] {
        let turns = completed(&second, thread).await;
        assert!(turns.len() == 1 && turns[0].to_string().contains("the second node"), "{turns:?}");
    }
    let has_result = |request: &Request| request.body["input"].to_string().contains("xxxxx");
    assert!(cluster.model.requests()[2..].iter().any(has_result), "the model has its result");
    let ends = "select count(*) from outpost_entries where kind = 'callFinished'";
    assert_eq!((cluster.database.ask(ends).as_str(), cluster.asked()), ("1", 4));
}
