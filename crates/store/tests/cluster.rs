//! A model of nodes that share one thread, searched exhaustively: every order of claims, take-overs, writes, kills,
//! orders to end, pauses, expiries and failures to go on. It uses the
//! product's own rules (`LeaseRow::grants`, `OrphanedThread::fate`, `ThreadWork`, `OwnerEpoch`); `tests/postgres.rs` compares the first with the
//! statement that a database decides by.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, VecDeque};

use outpost_store::{ClaimMode, LeaseRow, MOST_CLAIMS, OrphanFate, OrphanedThread, RowHolder, ThreadWork};
use outpost_thread::ThreadId;
use outpost_wire::exec::adoption::OwnerEpoch;
use uuid::Uuid;

const NODES: usize = 3;
/// So many starts of programs there may be in all: each is another instance.
const STARTS: u8 = 4;
/// So many lives of the thread: beyond that nothing new can happen.
const EPOCHS: u8 = 5;

/// What can be taken out of the product, to see that the search notices.
#[derive(Clone, Copy)]
struct Rules {
    compares_epochs: bool,
    looks_for_orphans: bool,
    counts_claims: bool,
    /// Executors refuse an epoch that is not newer.
    fences_commands: bool,
    /// A node that cannot go on with a thread leaves it to the search, instead of giving it back.
    gives_up_to_the_search: bool,
    /// Whether a command runs. Then there are fewer programs and leases, and only users change who has the thread: what can happen to the
    /// command does not need more.
    has_command: bool,
}

impl Rules {
    fn starts(self) -> u8 {
        if self.has_command { 3 } else { STARTS }
    }

    fn epochs(self) -> u8 {
        if self.has_command { 4 } else { EPOCHS }
    }
}

const PRODUCT: Rules = Rules {
    compares_epochs: true,
    looks_for_orphans: true,
    counts_claims: true,
    fences_commands: true,
    gives_up_to_the_search: true,
    has_command: false,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    /// Its instance, if it runs.
    instance: Option<u8>,
    /// It is stopped, or cut off from the database; it does not know.
    is_away: bool,
    /// The epoch under which it believes to have the thread.
    lease: Option<u8>,
    /// It started or adopted the command under that lease.
    has_command: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Cluster {
    nodes: [Node; NODES],
    starts: u8,
    // The row of the thread.
    epoch: u8,
    holder: Option<u8>,
    work: bool,
    claims: u8,
    // Leases of programs, by instance.
    alive: [bool; STARTS as usize],
    /// The epoch of the last write.
    written: u8,
    /// Two nodes wrote in turns.
    is_torn: bool,
    command: Command,
    /// A user has taken the thread over, a node was told to end, or one could not go on. Once is enough: what can follow does not depend on
    /// how often it was, and the search would become ten times longer.
    has_turned: bool,
}

/// What an executor knows of a command of the thread that the first node is about to start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Command {
    /// The epoch of the last claim or start.
    claimed: u8,
    /// The instance whose session has it.
    owner: Option<u8>,
    /// A node asked for it before it had begun, and told the model that it is lost.
    is_lost: bool,
    /// It began after that.
    is_torn: bool,
}

impl Command {
    /// `process/start` of the first node, which may have been on its way for long.
    fn start(&mut self, instance: u8, epoch: u8, rules: Rules) -> bool {
        let is_late = OwnerEpoch(epoch.into()).is_superseded_by(OwnerEpoch(self.claimed.into()));
        if rules.fences_commands && is_late {
            return false;
        }
        self.is_torn |= self.is_lost;
        (self.owner, self.claimed) = (Some(instance), epoch);
        true
    }

    /// `process/adopt`.
    fn adopt(&mut self, instance: u8, epoch: u8, rules: Rules) -> bool {
        if rules.fences_commands && !OwnerEpoch(self.claimed.into()).yields_to(OwnerEpoch(epoch.into())) {
            return false;
        }
        self.claimed = epoch;
        self.is_lost |= self.owner.is_none();
        self.owner = self.owner.map(|_| instance);
        self.owner.is_some()
    }
}

/// Whether an action is the cluster's own, or a fault that need not happen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Work,
    Fault,
}

impl Cluster {
    /// The first node has a turn that runs.
    fn begin() -> Self {
        let node = |instance: u8, lease| Node { instance: Some(instance), is_away: false, lease, has_command: false };
        let mut alive = [false; STARTS as usize];
        alive[..NODES].fill(true);
        let mut work = ThreadWork::default();
        ["inputReceived", "turnStarted"].iter().for_each(|kind| work.see(kind));
        Self {
            nodes: [node(0, Some(1)), node(1, None), node(2, None)],
            starts: 3,
            epoch: 1,
            holder: Some(0),
            work: work.is_there,
            claims: 0,
            alive,
            written: 1,
            is_torn: false,
            command: Command::default(),
            has_turned: false,
        }
    }

    fn row(&self, instance: u8, holds: bool) -> LeaseRow {
        let holder = match self.holder {
            None => RowHolder::Free,
            Some(holder) if holder == instance && holds => RowHolder::Own,
            Some(holder) if holder == instance => RowHolder::OwnUnreturned,
            Some(_) => RowHolder::Other,
        };
        let program = self.holder.map(|holder| self.alive[usize::from(holder)]);
        LeaseRow { holder, program, has_expired: false, work: self.work }
    }

    fn fate(&self) -> OrphanFate {
        let thread = ThreadId::new(Uuid::nil());
        OrphanedThread { thread, has_work: true, claims: u64::from(self.claims), host: "one".into(), selection: None }.fate("one")
    }

    /// Everything that can happen next.
    fn next(&self, rules: Rules) -> Vec<(Kind, Self)> {
        let mut next = Vec::new();
        for at in 0..NODES {
            let node = self.nodes[at];
            let mut with = |kind: Kind, change: &dyn Fn(&mut Self)| {
                let mut changed = self.clone();
                change(&mut changed);
                if changed != *self {
                    next.push((kind, changed));
                }
            };
            let Some(instance) = node.instance else {
                if self.starts < rules.starts() {
                    let started = Node { instance: Some(self.starts), is_away: false, lease: None, has_command: false };
                    with(Kind::Work, &|cluster| {
                        cluster.nodes[at] = started;
                        cluster.alive[usize::from(cluster.starts)] = true;
                        cluster.starts += 1;
                    });
                }
                continue;
            };
            with(Kind::Fault, &|cluster| cluster.nodes[at] = Node { instance: None, is_away: false, lease: None, has_command: false });
            // It is told to end, and hands its threads over.
            if !node.is_away && !self.has_turned && !rules.has_command {
                with(Kind::Fault, &|cluster| {
                    cluster.has_turned = true;
                    if cluster.holder == Some(instance) {
                        cluster.claims = 0;
                    }
                    cluster.alive[usize::from(instance)] = false;
                    cluster.nodes[at] = Node { instance: None, is_away: false, lease: None, has_command: false };
                });
            }
            // A node that is cut off from the database may still reach executors.
            if let Some(epoch) = node.lease.filter(|_| rules.has_command) {
                if epoch == 1 && self.command.owner.is_none() {
                    with(Kind::Work, &|cluster| cluster.nodes[at].has_command |= cluster.command.start(instance, epoch, rules));
                }
                if epoch > 1 || !rules.fences_commands {
                    with(Kind::Work, &|cluster| cluster.nodes[at].has_command |= cluster.command.adopt(instance, epoch, rules));
                }
            }
            if node.is_away {
                // Only a program that does not renew its lease loses it.
                with(Kind::Work, &|cluster| cluster.alive[usize::from(instance)] = false);
                with(Kind::Work, &|cluster| cluster.nodes[at].is_away = false);
                continue;
            }
            with(Kind::Fault, &|cluster| cluster.nodes[at].is_away = true);
            with(Kind::Work, &|cluster| cluster.alive[usize::from(instance)] = true);
            match node.lease {
                Some(epoch) => {
                    for kind in ["callFinished", "turnFinished"] {
                        with(Kind::Work, &|cluster| cluster.write(at, epoch, kind, rules));
                    }
                    // What it has to read or to write fails.
                    if !self.has_turned && !rules.has_command {
                        with(Kind::Fault, &|cluster| {
                            cluster.has_turned = true;
                            cluster.nodes[at].lease = None;
                            let is_holder = cluster.holder == Some(instance) && cluster.epoch == epoch;
                            if is_holder && !(rules.gives_up_to_the_search && cluster.work) {
                                cluster.holder = None;
                            }
                        });
                    }
                }
                None if rules.looks_for_orphans && self.alive[usize::from(instance)] && self.epoch < rules.epochs() => {
                    let is_wanted = !rules.counts_claims || self.fate() == OrphanFate::TakeUp;
                    // The search goes through what programs hold or held.
                    let is_listed = self.holder.is_some();
                    if is_listed && is_wanted && self.row(instance, false).grants(ClaimMode::Orphaned) {
                        with(Kind::Work, &|cluster| {
                            cluster.epoch += 1;
                            cluster.holder = Some(instance);
                            cluster.claims = (cluster.claims + 1).min(u8::try_from(MOST_CLAIMS).unwrap());
                            (cluster.nodes[at].lease, cluster.nodes[at].has_command) = (Some(cluster.epoch), false);
                        });
                    }
                }
                None => {}
            }
            // A user goes on with it at this node, also if another one has it.
            let may_take_over = node.lease.is_none() && !self.has_turned && self.epoch < rules.epochs();
            if may_take_over && self.row(instance, false).grants(ClaimMode::TakeOver) {
                with(Kind::Fault, &|cluster| {
                    cluster.has_turned = true;
                    cluster.epoch += 1;
                    (cluster.holder, cluster.claims) = (Some(instance), 0);
                    (cluster.nodes[at].lease, cluster.nodes[at].has_command) = (Some(cluster.epoch), false);
                });
            }
        }
        // The lease of a program that does not run any more.
        for instance in 0..self.starts {
            if self.alive[usize::from(instance)] && self.nodes.iter().all(|node| node.instance != Some(instance)) {
                let mut changed = self.clone();
                changed.alive[usize::from(instance)] = false;
                next.push((Kind::Work, changed));
            }
        }
        next
    }

    /// An append, as the database decides about it.
    fn write(&mut self, at: usize, epoch: u8, kind: &str, rules: Rules) {
        let is_holder = self.holder == self.nodes[at].instance && self.epoch == epoch;
        if rules.compares_epochs && !is_holder {
            self.nodes[at].lease = None;
            return;
        }
        self.is_torn |= epoch < self.written;
        self.written = self.written.max(epoch);
        if ThreadWork::is_progress(kind) {
            self.claims = 0;
        }
        let mut work = ThreadWork::default();
        ["turnStarted", kind].iter().for_each(|kind| work.see(kind));
        self.work = work.is_there;
        if !self.work {
            self.holder = None;
            self.nodes[at].lease = None;
        }
    }

    /// A node that has the command loses it to a newer lease only. A node that takes a thread up asks the executor first, also for what its
    /// own session has.
    fn has_one_owner_of_its_command(&self) -> bool {
        let has_it = |node: &&Node| node.has_command && self.command.owner != node.instance;
        let is_superseded = |epoch: u8| OwnerEpoch(epoch.into()).is_superseded_by(OwnerEpoch(self.command.claimed.into()));
        self.nodes.iter().filter(has_it).filter_map(|node| node.lease).all(is_superseded)
    }

    fn owners(&self) -> usize {
        self.nodes.iter().filter(|node| node.lease == Some(self.epoch) && node.instance == self.holder).count()
    }
}

/// What the search found to be wrong, if anything; else how many states there are.
fn search(rules: Rules) -> Result<usize, String> {
    let mut known: HashMap<Cluster, usize> = HashMap::new();
    let mut states = vec![Cluster::begin()];
    let mut onward: Vec<Vec<usize>> = Vec::new();
    known.insert(Cluster::begin(), 0);
    let mut queue = VecDeque::from([0]);
    while let Some(at) = queue.pop_front() {
        let state = states[at].clone();
        if state.is_torn {
            return Err(format!("two writers: {state:?}"));
        }
        if state.command.is_torn || !state.has_one_owner_of_its_command() {
            return Err(format!("two owners of a command: {state:?}"));
        }
        if state.owners() > 1 {
            return Err(format!("two owners: {state:?}"));
        }
        let mut follow = Vec::new();
        for (kind, next) in state.next(rules) {
            let index = *known.entry(next.clone()).or_insert_with(|| {
                states.push(next);
                queue.push_back(states.len() - 1);
                states.len() - 1
            });
            if kind == Kind::Work {
                follow.push(index);
            }
        }
        onward.resize(states.len(), Vec::new());
        onward[at] = follow;
    }
    // Without further faults, every thread with work comes to its end or is parked: looked for backwards from where that is so.
    let is_settled =
        |state: &Cluster| !state.work || (rules.counts_claims && state.fate() == OrphanFate::Parked) || state.epoch >= rules.epochs();
    let mut backward = vec![Vec::new(); states.len()];
    for (at, follow) in onward.iter().enumerate() {
        follow.iter().for_each(|next| backward[*next].push(at));
    }
    let mut settles: Vec<bool> = states.iter().map(is_settled).collect();
    let mut queue: VecDeque<usize> = (0..states.len()).filter(|at| settles[*at]).collect();
    while let Some(at) = queue.pop_front() {
        for before in &backward[at] {
            if !std::mem::replace(&mut settles[*before], true) {
                queue.push_back(*before);
            }
        }
    }
    // Where every program is gone and none may start, no rule can help.
    let has_nodes = |state: &Cluster| state.starts < rules.starts() || state.nodes.iter().any(|node| node.instance.is_some());
    match states.iter().zip(&settles).find(|(state, settles)| has_nodes(state) && !**settles) {
        Some((state, _)) => Err(format!("an orphan: {state:?}")),
        None => Ok(states.len()),
    }
}

#[test]
fn one_writer_one_owner_and_no_orphans() {
    let states = search(PRODUCT).unwrap();
    assert!(states > 10_000, "the search is too small to say anything: {states}");
}

#[test]
fn one_owner_of_a_command() {
    let states = search(Rules { has_command: true, ..PRODUCT }).unwrap();
    assert!(states > 10_000, "the search is too small to say anything: {states}");
}

#[test]
fn the_search_notices_what_is_taken_out() {
    let torn = search(Rules { compares_epochs: false, ..PRODUCT }).unwrap_err();
    assert!(torn.starts_with("two writers"), "{torn}");
    let owners = search(Rules { has_command: true, fences_commands: false, ..PRODUCT }).unwrap_err();
    assert!(owners.starts_with("two owners of a command"), "{owners}");
    for rules in [Rules { looks_for_orphans: false, ..PRODUCT }, Rules { gives_up_to_the_search: false, ..PRODUCT }] {
        let orphan = search(rules).unwrap_err();
        assert!(orphan.starts_with("an orphan"), "{orphan}");
    }
}
