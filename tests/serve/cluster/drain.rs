//! A node that is told to end with many threads loaded: what that costs the database, and how long it takes.

use std::time::Instant;

use outpost_testkit::app::{begin, thread, turn};
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use serde_json::json;

use super::database::behind_proxy;
use super::{Cluster, client};

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
