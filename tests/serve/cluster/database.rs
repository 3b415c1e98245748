//! A database that answers, and does not take what is written for a while: as one that fails over does.

use std::time::Duration;

use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;

use super::{Cluster, completed};
use crate::support::Server;

/// Longer than the lease of a node.
const LONG: Duration = Duration::from_secs(8);

impl Cluster {
    /// Has the database only read, or take what is written again. All connections are made anew, as after a fail-over.
    fn only_reads(&self, only_reads: bool) {
        self.database.ask(&format!(
            "set transaction read write;
             do $$ begin execute format('alter database %I set default_transaction_read_only = {only_reads}', current_database()); end $$"
        ));
        self.database
            .ask("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()");
    }

    /// That no thread has a hole, and that nothing was written twice.
    fn assert_nothing_lost_or_doubled(&self) {
        let none = [
            "select thread from outpost_entries e join outpost_threads t on t.id = e.thread group by thread, t.first, t.last
             having count(*) <> t.last - t.first + 1 or min(seq) <> t.first or max(seq) <> t.last",
            "select thread, data::jsonb->>'call', kind from outpost_entries where kind in ('callStarted', 'callFinished') group by 1, 2, 3 having count(*) > 1",
            "select thread, data::jsonb->>'turn', kind from outpost_entries where kind in ('turnStarted', 'turnFinished') group by 1, 2, 3 having count(*) > 1",
            "select thread, data::jsonb->>'input' from outpost_entries where kind = 'inputReceived' group by 1, 2 having count(*) > 1",
        ];
        for statement in none {
            assert_eq!(self.database.ask(statement), "", "{statement}");
        }
    }
}

pub(super) fn behind_proxy(cluster: &Cluster) -> (DatabaseProxy, Server) {
    let proxy = DatabaseProxy::start(cluster.database.url());
    let home = cluster.home();
    let config = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
    std::fs::write(home.path().join("config.toml"), config.replace(cluster.database.url(), &proxy.url())).unwrap();
    (proxy, Server::start_in(home, &["--listen", "ws://127.0.0.1:0", "--no-auth"]))
}

/// The end of a command, the answer of the model and the end of the turn have to be written meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_only_reads_for_a_while_loses_and_doubles_nothing() {
    let cluster = Cluster::working().await;
    // If the other node is the first to write again, it asks the model once more.
    cluster.model.push(Reply::message("seen"));
    let (first, second) = (cluster.node(), cluster.node());
    let (_client, thread) = cluster.turn(&first).await;
    cluster.runs().await;
    let is_written = || cluster.database.ask("select count(*) from outpost_entries where kind = 'callFinished'") == "1";
    cluster.only_reads(true);
    cluster.go();
    tokio::time::sleep(LONG).await;
    assert!(!is_written(), "the database took something");
    cluster.only_reads(false);
    eventually("it goes on", is_written).await;
    cluster.assert_whole(&completed(&second, &thread).await);
    cluster.assert_whole(&completed(&first, &thread).await);
    cluster.assert_nothing_lost_or_doubled();
}

/// Longer than an append waits: the thread is given up, and taken up again without a client once the database is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_goes_on_after_the_database_was_away_for_long() {
    let answer = Reply::Later(Duration::from_secs(1), Box::new(Reply::message("nobody hears this")));
    let cluster = Cluster::new(vec![answer, Reply::message("asked again")]).await;
    let (proxy, node) = behind_proxy(&cluster);
    let (_client, thread) = cluster.turn(&node).await;
    eventually("the model is asked", || cluster.asked() == 1).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_secs(33)).await;
    proxy.mend();
    let turns = completed(&node, &thread).await;
    assert!(turns.len() == 1 && turns[0].to_string().contains("asked again"), "{turns:?}");
    cluster.assert_nothing_lost_or_doubled();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_whether_it_has_its_database() {
    let cluster = Cluster::new(vec![]).await;
    let (proxy, node) = behind_proxy(&cluster);
    let states = async || (node.get("/readyz", None).await.0, node.get("/healthz", None).await.0);
    let becomes = async |state: (u16, u16)| {
        for _ in 0..600 {
            if states().await == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it says {:?} instead of {state:?}", states().await);
    };
    assert_eq!(states().await, (200, 200));
    proxy.cut();
    becomes((503, 200)).await;
    proxy.mend();
    becomes((200, 200)).await;
}
