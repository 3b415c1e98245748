//! What fails: nodes one after the other, and beside that the database and connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost_testkit::postgres::DatabaseEnd;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Dice;
use super::arena::{Arena, Node};

#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    /// Each fault once, for the tests.
    EachOnce,
    Until(Instant),
    /// Nothing but nodes that are killed, each after the hand-offs of the one before, until so many have left commands running.
    Kills(usize),
}

#[derive(Debug, Clone, Copy)]
enum NodeFault {
    Kill,
    Term,
    /// SIGSTOP, and SIGCONT later.
    Stop,
}

#[derive(Debug, Clone, Copy)]
enum LinkFault {
    Restart(DatabaseEnd),
    /// Nothing answers for a while.
    Pause,
    /// One node and the database.
    NodeCut,
    /// The connections of one node to the database die without a word.
    NodeFreeze,
    /// A websocket executor and all nodes.
    ExecutorCut,
    /// The joined executors and their nodes.
    JoinCut,
}

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the lease of a node, so that others take up its threads.
const LONG: Duration = Duration::from_secs(9);

pub(super) async fn run(arena: &Arc<Arena>, plan: Plan) {
    tokio::join!(fail_nodes(arena, plan), fail_links(arena, plan));
}

fn goes_on(arena: &Arena, plan: Plan, done: usize, most: usize) -> bool {
    !arena.is_over()
        && match plan {
            Plan::EachOnce => done < most,
            Plan::Until(until) => Instant::now() < until,
            Plan::Kills(wanted) => arena.tally.lock().unwrap().kills_with_hand_offs() < wanted,
        }
}

/// No client waits for the output of a command whose node failed, or it has waited for long.
async fn hand_offs_are_over(arena: &Arena) {
    let since = Instant::now();
    while arena.tally.lock().unwrap().is_waiting() && since.elapsed() < LONG * 3 {
        sleep(SECOND / 10).await;
    }
}

async fn fail_nodes(arena: &Arc<Arena>, plan: Plan) {
    use NodeFault::{Kill, Stop, Term};
    let mut dice = Dice::of(arena.seed, u64::MAX);
    let once = [Kill, Term, Stop];
    let often = [Kill, Kill, Kill, Term, Stop];
    let mut stopped = JoinSet::new();
    for done in 0.. {
        if !goes_on(arena, plan, done, once.len()) {
            break;
        }
        let fault = match plan {
            Plan::Kills(_) => Kill,
            _ if done < once.len() => once[done],
            _ => often[dice.index(often.len())],
        };
        if matches!(plan, Plan::Kills(_)) {
            hand_offs_are_over(arena).await;
        }
        sleep(dice.between(SECOND, SECOND * 4)).await;
        let index = dice.index(arena.nodes.len());
        let node = &arena.nodes[index];
        // One node always answers: the last one interrupts its turns when it is told to end.
        if arena.nodes.iter().filter(|node| node.url().is_some()).count() < 2 || node.url().is_none() {
            continue;
        }
        match fault {
            Kill => kill(arena, node, &mut dice).await,
            Term => term(arena, node, &mut dice).await,
            // The others fail meanwhile.
            Stop => drop(stopped.spawn(stop(arena.clone(), index, stop_time(&mut dice, plan)))),
        }
    }
    while stopped.join_next().await.is_some() {}
}

fn stop_time(dice: &mut Dice, plan: Plan) -> Duration {
    match plan {
        Plan::EachOnce => LONG,
        // Short enough that no other node has noticed, or long enough that all have.
        _ => [dice.between(SECOND, LONG), dice.between(LONG, SECOND * 20), SECOND * 60][[0, 0, 1, 1, 1, 2][dice.index(6)]],
    }
}

async fn kill(arena: &Arc<Arena>, node: &Node, dice: &mut Dice) {
    let mut place = node.place.lock().await;
    let Some(server) = place.server.take() else { return };
    node.reached(None);
    arena.lead();
    let fault = arena.tally.lock().unwrap().begins("kills");
    arena.node_fails(server.pid(), Some(fault)).await;
    arena.note(format!("kill -9 of node {}", node.name));
    place.home = Some(server.kill());
    drop(place);
    // Now and then it is back before its lease is over.
    sleep(dice.between(Duration::ZERO, SECOND * 9)).await;
    arena.launch(node).await;
    arena.tally.lock().unwrap().is_over(fault);
    arena.note(format!("node {} is back", node.name));
}

async fn term(arena: &Arc<Arena>, node: &Node, dice: &mut Dice) {
    let mut place = node.place.lock().await;
    let Some(server) = place.server.take() else { return };
    node.reached(None);
    arena.lead();
    arena.node_fails(server.pid(), None).await;
    let fault = arena.tally.lock().unwrap().begins("drains");
    arena.note(format!("TERM to node {}", node.name));
    let since = Instant::now();
    place.home = Some(tokio::task::spawn_blocking(move || server.stop()).await.unwrap());
    arena.tally.lock().unwrap().drains.push(since.elapsed());
    drop(place);
    arena.note(format!("node {} has ended after {:.2} s", node.name, since.elapsed().as_secs_f64()));
    sleep(dice.between(Duration::ZERO, SECOND * 4)).await;
    arena.launch(node).await;
    arena.tally.lock().unwrap().is_over(fault);
}

async fn stop(arena: Arc<Arena>, index: usize, long: Duration) {
    let node = &arena.nodes[index];
    let place = node.place.lock().await;
    let Some(server) = place.server.as_ref() else { return };
    let url = node.url();
    let fault = arena.tally.lock().unwrap().begins("stops");
    arena.note(format!("SIGSTOP to node {} for {long:?}", node.name));
    node.reached(None);
    arena.lead();
    if long >= LONG {
        arena.node_fails(server.pid(), None).await;
    }
    server.signal(Signal::STOP);
    sleep(long).await;
    server.signal(Signal::CONT);
    node.reached(url);
    arena.lead();
    arena.tally.lock().unwrap().is_over(fault);
    arena.note(format!("SIGCONT to node {}", node.name));
}

async fn fail_links(arena: &Arc<Arena>, plan: Plan) {
    use LinkFault::{ExecutorCut, JoinCut, NodeCut, NodeFreeze, Pause, Restart};
    let mut dice = Dice::of(arena.seed, u64::MAX - 1);
    let once = [Restart(DatabaseEnd::Fast), ExecutorCut, NodeCut, JoinCut, Restart(DatabaseEnd::Killed), Pause, NodeFreeze];
    let often = [
        Restart(DatabaseEnd::Fast),
        Restart(DatabaseEnd::Killed),
        Pause,
        NodeCut,
        NodeCut,
        NodeFreeze,
        ExecutorCut,
        ExecutorCut,
        ExecutorCut,
        JoinCut,
        JoinCut,
    ];
    for done in 0.. {
        if !goes_on(arena, plan, done, once.len()) {
            return;
        }
        sleep(match plan {
            Plan::EachOnce => dice.between(SECOND / 2, SECOND * 2),
            Plan::Kills(_) => return,
            Plan::Until(_) => dice.between(SECOND * 2, SECOND * 16),
        })
        .await;
        let fault = if matches!(plan, Plan::EachOnce) { once[done] } else { often[dice.index(often.len())] };
        link_fault(arena, fault, &mut dice).await;
        // Nothing looks at what the proxies note.
        arena.nodes.iter().for_each(|node| drop(node.proxy.take_statements()));
    }
}

async fn link_fault(arena: &Arc<Arena>, fault: LinkFault, dice: &mut Dice) {
    let (node, cutter) = (&arena.nodes[dice.index(arena.nodes.len())], dice.index(arena.cutters.len()));
    let cut = dice.between(SECOND / 10, SECOND * 8);
    let name = match fault {
        LinkFault::Restart(DatabaseEnd::Fast) => "database restarts",
        LinkFault::Restart(DatabaseEnd::Killed) => "database kills",
        LinkFault::Pause => "database pauses",
        LinkFault::NodeCut => "cuts of a node from the database",
        LinkFault::NodeFreeze => "half-open database connections of a node",
        LinkFault::ExecutorCut => "cuts of a websocket executor",
        LinkFault::JoinCut => "cuts of the joined executors",
    };
    let number = arena.tally.lock().unwrap().begins(name);
    arena.note(format!("{fault:?}, node {}, executor w{}, {cut:?}", node.name, cutter + 1));
    match fault {
        LinkFault::Restart(end) => {
            let arena = arena.clone();
            tokio::task::spawn_blocking(move || arena.database.restart(end)).await.unwrap();
        }
        LinkFault::Pause => {
            arena.database.pause();
            sleep(cut).await;
            arena.database.go_on();
        }
        LinkFault::NodeCut => {
            node.proxy.cut();
            sleep(cut).await;
            node.proxy.mend();
        }
        LinkFault::NodeFreeze => {
            node.proxy.freeze();
            // Until a statement on them has run out of time.
            sleep(SECOND * 13).await;
        }
        LinkFault::ExecutorCut => {
            arena.cutters[cutter].cut();
            sleep(cut).await;
            arena.cutters[cutter].mend();
        }
        LinkFault::JoinCut => arena.balancer.cut(),
    }
    arena.tally.lock().unwrap().is_over(number);
    arena.note(format!("{fault:?} is over"));
}
