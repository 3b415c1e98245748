//! Nodes whose clocks are wrong: leases are judged by the clock of the database alone.

use std::cell::Cell;
use std::process::Command;

use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use tempfile::TempDir;

use super::{Cluster, completed};
use crate::support::{Server, command};

/// What a program that is started with it takes for the time of day is wrong by so many seconds; clocks that only go on are not.
const SHIFT: &str = r#"
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, id, now);
    const char *shift = getenv("CLOCK_SHIFT");
    if (failed == 0 && id == CLOCK_REALTIME && shift) now->tv_sec += atol(shift);
    return (int) failed;
}
"#;

const HOUR: i64 = 3_600;

struct ShiftedNode {
    node: Server,
    proxy: DatabaseProxy,
    _library: TempDir,
}

impl Cluster {
    /// A node whose clock is wrong by so many seconds.
    fn shifted(&self, seconds: i64) -> ShiftedNode {
        let library = tempfile::tempdir().unwrap();
        let (source, shift) = (library.path().join("shift.c"), library.path().join("shift.so"));
        std::fs::write(&source, SHIFT).unwrap();
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shift).arg(&source).status().unwrap();
        assert!(made.success());
        let proxy = DatabaseProxy::start(self.database.url());
        let home = self.home();
        let config = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
        std::fs::write(home.path().join("config.toml"), config.replace(self.database.url(), &proxy.url())).unwrap();
        let mut command = command(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--no-auth"]);
        command.env("LD_PRELOAD", &shift).env("CLOCK_SHIFT", seconds.to_string());
        ShiftedNode { node: Server::launch(command, home), proxy, _library: library }
    }
}

impl ShiftedNode {
    /// Until it has looked for threads of dead nodes so many times.
    async fn looks(&self, times: usize) {
        drop(self.proxy.take_statements());
        let seen = Cell::new(0);
        eventually("it looks for orphans", || {
            let looks = self.proxy.take_statements().iter().filter(|text| text.contains("t.claims end, t.host")).count();
            seen.set(seen.get() + looks);
            seen.get() >= times
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_an_hour_off_neither_takes_a_living_lease_nor_loses_one() {
    let cluster = Cluster::new(vec![Reply::Silent(String::new()), Reply::Silent(String::new())]).await;
    let nodes = [cluster.shifted(HOUR), cluster.shifted(-HOUR)];
    let mut threads = Vec::new();
    for (ShiftedNode { node, .. }, asked) in nodes.iter().zip(1..) {
        threads.push(cluster.turn(node).await);
        eventually("the model is asked", || cluster.asked() == asked).await;
    }
    for ((_, thread), (least, most)) in threads.iter().zip([(3_000, 4_000), (-4_000, -3_000)]) {
        let off = format!("select max(at) / 1000 - extract(epoch from now()) between {least} and {most} from outpost_entries");
        assert_eq!(cluster.database.ask(&format!("{off} where thread = '{thread}'")), "t", "the clock of its node is not an hour off");
    }
    // Longer than a lease by any clock that goes on.
    nodes[0].looks(8).await;
    nodes[1].looks(2).await;
    let unmoved = "select count(*) from outpost_threads where epoch = 1 and claims = 0 and work";
    assert_eq!(cluster.database.ask(unmoved), "2", "a thread changed hands although its node lives");
    assert_eq!(cluster.asked(), 2, "each turn is driven by one node");
    // One that died is found by the other clock all the same.
    let [ahead, behind] = nodes;
    cluster.model.push(Reply::message("the node that is behind"));
    drop(ahead.node.kill());
    let turns = completed(&behind.node, &threads[0].1).await;
    assert!(turns[0].to_string().contains("the node that is behind"), "{turns:?}");
}
