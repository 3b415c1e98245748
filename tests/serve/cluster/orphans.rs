//! Threads whose node died, as living nodes see them: many at once, agents without their makers, and one that ends its nodes.

use std::process::Stdio;

use outpost_testkit::app::notice;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use serde_json::json;

use super::{Cluster, client, completed};
use crate::support::{Server, command};

/// The thread that made an agent has ended its turn, and has nothing to do. The agent goes on all the same, and both are at one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_goes_on_in_another_node_although_its_maker_is_idle() {
    let cluster = Cluster::new(vec![]).await;
    cluster.model.push_for("\"text\":\"go\"", Reply::call("s", "spawn_agent", &json!({"message": "child job"})));
    cluster.model.push_for("\"text\":\"go\"", Reply::message("it is at work"));
    cluster.model.push_for("\"text\":\"child job\"", Reply::Silent(String::new()));
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    completed(&first, &thread).await;
    eventually("the agent asks its model", || cluster.asked() == 3).await;
    let child = cluster.database.ask("select id from outpost_threads where parent is not null and work");
    cluster.model.push_for("\"text\":\"child job\"", Reply::message("the work of the child"));
    drop(first.kill());
    let turns = completed(&second, &child).await;
    assert!(turns[0].to_string().contains("the work of the child"), "{turns:?}");
    assert_eq!(cluster.asked(), 4);
    let nodes = "select count(*) || ' ' || count(distinct instance) from outpost_threads";
    eventually("its maker is at the same node", || cluster.database.ask(nodes) == "2 1").await;
    assert_eq!(completed(&second, &thread).await.len(), 1, "and has nothing to do");
}

/// Each of its nodes is killed soon after it took the thread up. The next one leaves it alone and says so, until a client asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_ends_its_nodes_is_parked_and_tried_again_for_a_client() {
    let silent = || Reply::Silent(String::new());
    let cluster = Cluster::new(vec![silent(), silent(), silent(), silent(), Reply::message("at last")]).await;
    let mut node = cluster.node();
    let (_client, thread) = cluster.turn(&node).await;
    let log = cluster.work.path().join("log");
    for taken in 0..4 {
        eventually("the model is asked", || cluster.asked() == taken + 1).await;
        assert_eq!(cluster.database.ask("select claims from outpost_threads"), taken.to_string());
        drop(node.kill());
        // Nobody waits for the end of its lease.
        cluster.database.ask("update outpost_nodes set expires = now()");
        let home = cluster.home();
        let mut next = command(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--no-auth"]);
        next.stderr(Stdio::from(std::fs::File::create(&log).unwrap()));
        node = Server::launch(next, home);
    }
    let said = || std::fs::read_to_string(&log).unwrap();
    eventually("it is parked", || said().contains("parked")).await;
    // Once, however often it is looked at.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let lines: Vec<String> = said().lines().filter(|line| line.contains("parked")).map(str::to_owned).collect();
    assert!(lines.len() == 1 && lines[0].contains(&format!("outpost exec resume {thread}")), "{lines:?}");
    assert_eq!(cluster.asked(), 4, "it is left alone");
    let mut client = client(&node).await;
    client.result("thread/resume", json!({"threadId": thread})).await;
    let turns = completed(&node, &thread).await;
    assert!(turns.len() == 1 && turns[0].to_string().contains("at last"), "{turns:?}");
    assert_eq!(cluster.database.ask("select claims from outpost_threads"), "0");
}

/// A client whose node was killed asks for its thread by itself. Nodes leave the thread alone, and so it is refused; the next one who asks
/// knows that, and gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_thread_is_refused_to_a_client_that_waits_for_its_next_node() {
    let cluster = Cluster::new(vec![Reply::Silent(String::new()), Reply::message("at last")]).await;
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    let mut at_second = client(&second).await;
    at_second.result("thread/resume", json!({"threadId": thread})).await;
    cluster.database.ask("update outpost_threads set claims = 3");
    drop(first.kill());
    notice(&mut at_second, "thread/closed").await;
    let (_, why) = at_second.error("thread/resume", json!({"threadId": thread})).await;
    assert!(why.contains("no other one goes on with it; resume the thread to go on here"), "{why}");
    assert_eq!(cluster.asked(), 1, "it is left alone");
    at_second.result("thread/resume", json!({"threadId": thread})).await;
    let turns = completed(&second, &thread).await;
    assert!(turns.len() == 1 && turns[0].to_string().contains("at last"), "{turns:?}");
}

/// So many in the tests; `cargo xtask soak orphans` takes 1,000.
const MANY: u64 = 120;

/// They are copies of one thread in the middle of a turn, whose node is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_orphans_at_once_are_taken_up_once_each_by_all_nodes() {
    let count = std::env::var("OUTPOST_SOAK_ORPHANS").ok().and_then(|count| count.parse().ok()).unwrap_or(MANY);
    let cluster = Cluster::new(vec![Reply::Silent(String::new())]).await;
    let first = cluster.node();
    let (_client, thread) = cluster.turn(&first).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    drop(first.kill());
    cluster.database.ask("update outpost_nodes set expires = now()");
    for _ in 0..=count {
        cluster.model.push(Reply::message("done"));
    }
    let copied = "'01928f2e-4c1d-7a33-9c55-' || lpad(n::text, 12, '0')";
    let columns = "first, last, bytes, born, instance, host, pid, since, expires, created_at, updated_at, recency_at, source, cwd, work";
    let copies = format!(
        "insert into outpost_threads (id, epoch, summary, {columns})
           select {copied}, 1, replace(summary, '{thread}', {copied}), {columns} from outpost_threads, generate_series(1, {count}) n where id = '{thread}';
         insert into outpost_entries (thread, seq, at, kind, data)
           select {copied}, seq, at, kind, replace(data, '{thread}', {copied}) from outpost_entries, generate_series(1, {count}) n where thread = '{thread}';
         analyze"
    );
    cluster.database.ask(&copies);
    let since = std::time::Instant::now();
    let nodes = [cluster.node(), cluster.node()];
    let ended = || cluster.database.ask("select count(*) from outpost_entries where kind = 'turnFinished'");
    let all = (count + 1).to_string();
    let mut before = String::new();
    // As long as they get on.
    while ended() != all {
        let now = ended();
        assert!(now != before, "they do not get on: {now} of {all}");
        before = now;
        for _ in 0..60 {
            if ended() != before {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    }
    println!("{all} orphans went on within {:.1} s", since.elapsed().as_secs_f64());
    assert_eq!(cluster.asked() as u64, count + 2, "each is asked about once more");
    // The number of a lease grows with every change of hands: that of the copies was 1.
    let again = format!("select count(*) from outpost_threads where epoch <> 2 and id <> '{thread}'");
    assert_eq!(cluster.database.ask(&again), "0", "each was taken up once");
    // A node gives back what is not used any more.
    let shares = cluster.database.ask("select count(*) from outpost_threads where instance is not null group by instance order by 1");
    assert_eq!(shares.lines().count(), nodes.len(), "both take their share: {shares}");
    println!("by node: {}", shares.replace('\n', " and "));
}
