//! Nodes that are killed, stopped and told to end at random while commands of their threads run. The tests take a few rounds;
//! `cargo xtask soak cluster` takes as many minutes as asked for.

use std::time::{Duration, Instant};

use outpost_testkit::app::{begin, thread};
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use serde_json::json;

use super::{Cluster, client, completed};
use crate::support::Server;

const NODES: usize = 3;
const TASKS: usize = 4;

/// What happens to a node.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    /// It wakes up when others have its threads.
    Stop,
    Term,
}

/// Numbers that look random and are the same in every run of a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

#[derive(Default)]
struct Tally {
    rounds: usize,
    commands: usize,
    adopted: usize,
    hand_offs: Vec<Duration>,
}

impl Tally {
    #[expect(clippy::print_stdout, reason = "a run with --nocapture prints the figures")]
    fn print(&mut self) {
        self.hand_offs.sort_unstable();
        let at = |share: usize| self.hand_offs.get((self.hand_offs.len() * share / 100).min(self.hand_offs.len().saturating_sub(1)));
        println!(
            "{} rounds, {} commands: 0 lost entries, 0 doubled commands, {} adopted; hand-off p50 {:?}, p90 {:?}, p99 {:?}",
            self.rounds,
            self.commands,
            self.adopted,
            at(50),
            at(90),
            at(99)
        );
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_fail_at_random_and_every_command_ends_once_with_its_own_result() {
    let until = number("OUTPOST_SOAK_CLUSTER_MINUTES").map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let seed = number("OUTPOST_SOAK_SEED").unwrap_or(0x5eed);
    let (mut dice, mut tally) = (Dice(seed.max(1)), Tally::default());
    let cluster = Cluster::new(Vec::new()).await;
    let mut nodes: Vec<Option<Server>> = (0..NODES).map(|_| Some(cluster.node())).collect();
    // Each fault once, and then as long as asked for.
    while tally.rounds < 3 || until.is_some_and(|until| Instant::now() < until) {
        let fault = match tally.rounds {
            0 => Fault::Kill,
            1 => Fault::Term,
            2 => Fault::Stop,
            _ => [Fault::Kill, Fault::Kill, Fault::Term, Fault::Stop][dice.below(4)],
        };
        round(&cluster, &mut nodes, fault, &mut dice, &mut tally).await;
        tally.rounds += 1;
    }
    tally.print();
}

async fn round(cluster: &Cluster, nodes: &mut [Option<Server>], fault: Fault, dice: &mut Dice, tally: &mut Tally) {
    let victim = dice.below(NODES);
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let name = format!("task-{}-{task}", tally.rounds);
        let script = format!(
            "echo ran >> {name}.ran; for i in $(seq 1 50); do echo {name} $i; done; while [ ! -e {name}.go ]; do sleep 0.05; done; \
             for i in $(seq 51 100); do echo {name} $i; done; exit 3"
        );
        // Calls of one model have names of their own, and its second answer comes after the first.
        let call = Reply::call(&name, "exec_command", &json!({"cmd": script, "yield_time_ms": 30_000}));
        cluster.model.push_for(&name, call);
        cluster.model.push_for(&name, Reply::message("done"));
        let at = if task == 0 { victim } else { dice.below(NODES) };
        let mut client = client(nodes[at].as_ref().unwrap()).await;
        let place = json!([{"environmentId": "worker", "cwd": cluster.work.path()}]);
        let id = thread(&mut client, json!({"environments": place})).await;
        begin(&mut client, &id, &name).await;
        tasks.push((name, id, at, client));
    }
    let file = |name: &str, ending: &str| cluster.work.path().join(format!("{name}.{ending}"));
    eventually("all commands run", || tasks.iter().all(|(name, ..)| file(name, "ran").exists())).await;
    let holder = cluster.database.ask(&format!("select instance from outpost_threads where id = '{}'", tasks[0].1));
    let began = Instant::now();
    let node = nodes[victim].take().unwrap();
    let mut stopped = None;
    match fault {
        Fault::Kill => drop(node.kill()),
        Fault::Term => drop(node.stop()),
        Fault::Stop => {
            node.signal(rustix::process::Signal::STOP);
            stopped = Some(node);
        }
    }
    let others = "select count(*) from outpost_threads where work and instance = ";
    eventually("others have its threads", || cluster.database.ask(&format!("{others}'{holder}'")) == "0").await;
    tally.hand_offs.push(began.elapsed());
    tally.adopted += tasks.iter().filter(|(_, _, at, _)| *at == victim).count();
    // Before anything that takes long: a call that ends while its command waits has no exit code.
    for (name, ..) in &tasks {
        std::fs::write(file(name, "go"), "").unwrap();
    }
    match stopped {
        Some(node) => {
            node.signal(rustix::process::Signal::CONT);
            nodes[victim] = Some(node);
        }
        None => nodes[victim] = Some(cluster.node()),
    }
    for (name, id, ..) in &tasks {
        let turns = completed(nodes[dice.below(NODES)].as_ref().unwrap(), id).await;
        assert_eq!(turns.len(), 1, "{turns:?}");
        let items = turns[0]["items"].as_array().unwrap();
        let command = items.iter().find(|item| item["type"] == "commandExecution").unwrap();
        let whole: String = (1..=100).map(|line| format!("{name} {line}\n")).collect();
        assert_eq!((&command["exitCode"], &command["aggregatedOutput"]), (&json!(3), &json!(whole)), "{fault:?}: {command}");
        assert_eq!(std::fs::read_to_string(file(name, "ran")).unwrap(), "ran\n", "{fault:?}: {name} ran once");
        tally.commands += 1;
    }
    let holes = "select count(*) from (select thread, count(*) n, min(seq) a, max(seq) b from outpost_entries group by thread) t where n <> b - a + 1";
    assert_eq!(cluster.database.ask(holes), "0", "no entry is lost");
}
