//! Three nodes, five executors and a database that fail at random while commands of threads run: nodes are killed, stopped and told to end,
//! the database is restarted and paused, connections are cut or die without a word. The tests take each fault once; `cargo xtask soak
//! cluster` goes on for as long as asked, and with `--kills` it measures how long clients wait when nothing fails but nodes.
//!
//! What must hold: no entry is lost, no command runs twice, every command that outlived its node ends with its own result and all of its
//! output, every turn ends. A violation is printed with the faults before it and the seed, and the run fails.

mod arena;
mod fault;
mod line;
mod tally;
mod task;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arena::Arena;
use fault::Plan;

/// Tasks at the same time.
const TASKS: u64 = 6;
/// So long the last tasks may take once nothing fails any more.
const LAST: Duration = Duration::from_secs(240);

/// Numbers that look random and are the same in every run of a seed.
pub(super) struct Dice(u64);

impl Dice {
    /// Those of one part of a run.
    fn of(seed: u64, part: u64) -> Self {
        let mut dice = Self((seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1));
        for _ in 0..8 {
            dice.next();
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from((most - least).as_millis()).unwrap();
        least + Duration::from_millis(self.below(span + 1))
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_and_connections_fail_at_random_and_every_command_ends_once_with_its_own_result() {
    let minutes = number("OUTPOST_SOAK_CLUSTER_MINUTES");
    let kills = number("OUTPOST_SOAK_CLUSTER_KILLS");
    let seed = number("OUTPOST_SOAK_SEED").unwrap_or(0x5eed);
    let plan = match (kills, minutes) {
        (Some(kills), _) => Plan::Kills(usize::try_from(kills).unwrap()),
        (None, Some(minutes)) => Plan::Until(Instant::now() + Duration::from_secs(60 * minutes)),
        (None, None) => Plan::EachOnce,
    };
    let arena = Arena::start(seed, !matches!(plan, Plan::EachOnce)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(task::keep_going(arena.clone()));
    }
    fault::run(&arena, plan).await;
    arena.end();
    let ended = tokio::time::timeout(LAST, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        arena.violation(format!("turns do not end: {:?}", arena.open_tasks()));
    }
    if !arena.is_violated() {
        check_all(&arena).await;
    }
    arena.report();
    assert!(!arena.is_violated(), "what was promised did not hold; `cargo xtask soak cluster --seed {seed}` tries the same again");
}

/// What is stored, looked at without a node.
async fn check_all(arena: &Arc<Arena>) {
    // A thread whose turn is over has no work left once its node has written that.
    let since = Instant::now();
    while arena.ask("select count(*) from outpost_threads where work") != "0" && since.elapsed() < LAST {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let none = [
        ("threads with work that no node does", "select id, claims, instance from outpost_threads where work"),
        (
            "threads with a hole",
            "select thread from outpost_entries e join outpost_threads t on t.id = e.thread group by thread, t.first, t.last
             having count(*) <> t.last - t.first + 1 or min(seq) <> t.first or max(seq) <> t.last",
        ),
        (
            "calls that ended twice",
            "select thread, data::jsonb->>'call' from outpost_entries where kind = 'callFinished' group by 1, 2 having count(*) > 1",
        ),
        (
            "turns that began or ended twice",
            "select thread, kind, data::jsonb->>'turn' from outpost_entries where kind in ('turnStarted', 'turnFinished')
             group by 1, 2, 3 having count(*) > 1",
        ),
        (
            "turns that did not end",
            "select thread, data::jsonb->>'turn' from outpost_entries where kind = 'turnStarted'
             except select thread, data::jsonb->>'turn' from outpost_entries where kind = 'turnFinished'",
        ),
        (
            "inputs that were taken twice",
            "select thread, data::jsonb->>'clientKey' from outpost_entries where kind = 'inputReceived' and data::jsonb->>'clientKey' is not null
             group by 1, 2 having count(*) > 1",
        ),
    ];
    for (what, statement) in none {
        let found = arena.ask(statement);
        if !found.is_empty() {
            arena.violation(format!("{what}: {found}"));
        }
    }
    arena.count_entries();
    arena.check_runs();
}
