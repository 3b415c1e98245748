//! What happened in a run, and the figures of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A command that ran on when its node failed, and whose next output a client waits for.
struct Waiting {
    since: Instant,
    /// The number of the fault, if it was a kill.
    kill: Option<usize>,
}

/// How long a client waited for the next output.
struct HandOff {
    took: Duration,
    kill: usize,
    /// Whether anything else failed meanwhile.
    is_alone: bool,
}

#[derive(Default)]
pub(super) struct Tally {
    pub faults: BTreeMap<&'static str, u64>,
    /// When something failed, and when that was over.
    failing: Vec<(Instant, Option<Instant>)>,
    waiting: HashMap<String, Waiting>,
    hand_offs: Vec<HandOff>,
    pub drains: Vec<Duration>,
    pub tasks: u64,
    pub turns: u64,
    pub commands: u64,
    pub entries: u64,
    /// Commands that ran when their node was killed, stopped for long or told to end, by their threads.
    outlived: HashMap<String, u64>,
    pub adopted: u64,
    /// Starts that a fault cut short: the command never ran, and the model was told so.
    pub never_ran: u64,
    pub violations: Vec<String>,
}

impl Tally {
    /// Something begins to fail; what [`Self::is_over`] is told.
    pub(super) fn begins(&mut self, name: &'static str) -> usize {
        *self.faults.entry(name).or_default() += 1;
        self.failing.push((Instant::now(), None));
        self.failing.len() - 1
    }

    pub(super) fn is_over(&mut self, fault: usize) {
        self.failing[fault].1 = Some(Instant::now());
    }

    /// The node of a thread fails while a command of it runs.
    pub(super) fn node_fails(&mut self, thread: &str, kill: Option<usize>) {
        *self.outlived.entry(thread.to_owned()).or_default() += 1;
        self.waiting.entry(thread.to_owned()).or_insert(Waiting { since: Instant::now(), kill });
    }

    /// A client has heard output of a thread.
    pub(super) fn output(&mut self, thread: &str) {
        let Some(Waiting { since, kill }) = self.waiting.remove(thread) else { return };
        let overlaps = |(from, to): &&(Instant, Option<Instant>)| *from > since || to.is_none_or(|to| to > since);
        // The kill itself is one of them.
        let others = self.failing.iter().filter(overlaps).count().saturating_sub(1);
        if let Some(kill) = kill {
            self.hand_offs.push(HandOff { took: since.elapsed(), kill, is_alone: others == 0 });
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many kills left commands running whose next output a client has heard.
    pub(super) fn kills_with_hand_offs(&self) -> usize {
        self.hand_offs.iter().map(|off| off.kill).collect::<BTreeSet<_>>().len()
    }

    /// The command of a thread ended with its own result and all of its output.
    pub(super) fn whole(&mut self, thread: &str) {
        self.output(thread);
        self.commands += 1;
        self.adopted += u64::from(self.outlived.contains_key(thread));
    }

    /// What was promised, for a run in which all of it held.
    pub(super) fn promises(&self) -> Vec<String> {
        let outlived = self.outlived.len() as u64;
        let failures: u64 = self.outlived.values().sum();
        vec![
            format!(
                "{} tasks, {} turns, {} commands, {} entries: 0 lost entries, 0 doubled commands, every turn ended; {} starts were cut short before the command ran",
                self.tasks, self.turns, self.commands, self.entries, self.never_ran
            ),
            format!("{outlived} commands outlived {failures} failures of their nodes: {} adopted with their whole output", self.adopted),
        ]
    }

    /// What failed, and how long that took.
    pub(super) fn figures(&self) -> Vec<String> {
        let faults: Vec<String> = self.faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let mut lines = vec![format!("faults: {}", faults.join(", "))];
        for (beside, alone) in [("beside other faults", false), ("nothing else failing", true)] {
            let off = || self.hand_offs.iter().filter(|off| off.is_alone || !alone);
            let took = off().map(|off| off.took).collect();
            lines.push(format!("hand-off, kill -9 to the next output byte at a client, {beside}: {}", percentiles(took)));
            let mut slowest: BTreeMap<usize, Duration> = BTreeMap::new();
            for HandOff { took, kill, .. } in off() {
                let slow = slowest.entry(*kill).or_default();
                *slow = (*slow).max(*took);
            }
            let kills = slowest.into_values().collect();
            lines.push(format!("of each kill that left commands running, the slowest hand-off, {beside}: {}", percentiles(kills)));
        }
        lines.push(format!("drain, TERM to the end of the node: {}", percentiles(self.drains.clone())));
        lines
    }
}

fn percentiles(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let Some(longest) = took.last() else { return "none".to_owned() };
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)].as_secs_f64();
    format!("{} times, p50 {:.2} s, p90 {:.2} s, p99 {:.2} s, longest {:.2} s", took.len(), at(50), at(90), at(99), longest.as_secs_f64())
}
