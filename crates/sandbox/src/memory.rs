//! What the processes of a session use of memory, asked of the kernel: for machines on which no control group counts it.
//!
//! Address space that was only reserved is not counted, nor what can be read from a file again. Pages that several processes share
//! are first counted for each of them, which is cheap; only where that is more than the limit are they measured by their share.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::meter;

/// A cell as it is seen from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root {
    pub pid: u32,
    /// How many generations of our own processes come before the first program.
    pub helpers: usize,
}

/// Which program something was started for: the cell, and the program's number in its own world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    pub cell: u32,
    pub leader: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MeasuredProcess {
    pid: u32,
    /// When it was started, by which it differs from a later one with the same number.
    started: u64,
    bytes: u64,
    /// The child of ours that it is, or that it came of; nothing for our own processes.
    top: Option<u32>,
    cell: u32,
}

/// Who descends from whom.
#[derive(Default)]
struct Kin(Option<HashMap<u32, Vec<u32>>>);

impl Kin {
    fn new() -> Self {
        if fs::exists("/proc/thread-self/children").unwrap_or(false) {
            return Self(None);
        }
        // Not every kernel tells the children of a process.
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (child, parent) in meter::parents() {
            children.entry(parent).or_default().push(child);
        }
        Self(Some(children))
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        if let Some(known) = &self.0 {
            return known.get(&pid).cloned().unwrap_or_default();
        }
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }
}

/// All processes of a session with what they use, if they might use more than this many bytes together; the exact sum otherwise does
/// not matter.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub bytes: u64,
    pub processes: Vec<MeasuredProcess>,
}

impl Use {
    pub(crate) fn of(roots: &[Root], limit: u64) -> Self {
        let kin = Kin::new();
        let mut processes = Vec::new();
        for root in roots {
            let mut left = vec![(root.pid, 0_usize, None)];
            while let Some((pid, depth, top)) = left.pop() {
                let top = top.or_else(|| (depth >= root.helpers).then_some(pid));
                left.extend(kin.children(pid).into_iter().map(|child| (child, depth + 1, top)));
                if let (Some(bytes), Some(started)) = (at_most(pid), started(pid)) {
                    processes.push(MeasuredProcess { pid, started, bytes, top, cell: root.pid });
                }
            }
        }
        let sum = |processes: &[MeasuredProcess]| processes.iter().map(|process| process.bytes).sum();
        if sum(&processes) > limit {
            for process in &mut processes {
                process.bytes = share(process.pid).unwrap_or(process.bytes);
            }
        }
        Self { bytes: sum(&processes), processes }
    }

    /// Whether a process still has memory. One that has ended has none, also while nothing has waited for it.
    pub(crate) fn holds(&self, process: &MeasuredProcess) -> bool {
        self.processes.iter().any(|other| other.bytes > 0 && (other.pid, other.started) == (process.pid, process.started))
    }

    /// The largest programs that hold what is beyond the limit; twice as much each time that this was not enough, but no more than what
    /// leaves half as much each time.
    pub(crate) fn largest_beyond(&self, limit: u64, strikes: u32) -> Vec<&MeasuredProcess> {
        let excess = self.bytes.saturating_sub(limit).saturating_mul(1_u64.checked_shl(strikes).unwrap_or(u64::MAX));
        self.largest_with(excess.min(self.bytes.saturating_sub(limit.checked_shr(strikes).unwrap_or(0))))
    }

    /// The largest programs that use so much together; at least one, if there is any. Small ones that would hardly help are spared.
    fn largest_with(&self, bytes: u64) -> Vec<&MeasuredProcess> {
        let mut sum = 0;
        let mut is_enough = false;
        self.largest()
            .into_iter()
            .take_while(|process| {
                let takes = !is_enough;
                sum += process.bytes;
                is_enough = sum >= bytes;
                takes
            })
            .collect()
    }

    /// Programs, those that use most first, and of two alike the newer one. Our own processes are none.
    fn largest(&self) -> Vec<&MeasuredProcess> {
        let mut programs: Vec<_> = self.processes.iter().filter(|process| process.top.is_some()).collect();
        programs.sort_by_key(|process| std::cmp::Reverse((process.bytes, process.started, process.pid)));
        programs
    }
}

/// How long a process that was killed may take to give its memory back.
const DYING: Duration = Duration::from_secs(2);

/// What was killed last because too much memory was used.
#[derive(Debug)]
pub(crate) struct Strike {
    pub killed: Vec<MeasuredProcess>,
    /// How often in a row something was killed, this time included.
    pub count: u32,
}

impl Strike {
    /// How often in a row something was killed that was not enough, so long after the last time and with so much used now; nothing while that
    /// is still giving its memory back. A watchdog that comes much later than it meant to, because the machine is busy, sees something new.
    pub(crate) fn not_enough(&self, used: &Use, since: Duration, pause: Duration) -> Option<u32> {
        let is_held = self.killed.iter().any(|process| used.holds(process));
        if is_held && since < DYING {
            return None;
        }
        Some(if !is_held && since >= DYING.max(pause * 2) { 0 } else { self.count })
    }
}

impl MeasuredProcess {
    /// Kills it; false if it could not be.
    pub(crate) fn kill(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        // Held by its handle, so that it is the one that was measured.
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) if started(self.pid) == Some(self.started) => pidfd_send_signal(&handle, Signal::KILL).is_ok(),
            Ok(_) => true,
            Err(error) => error == rustix::io::Errno::SRCH,
        }
    }

    /// The program that the executor started and that this one is or came of.
    pub(crate) fn program(&self) -> Option<Program> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.top?)).ok()?;
        let leader = field(&status, "NSpid:").and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
        Some(Program { cell: self.cell, leader: leader.or(self.top)? })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// What a process keeps in memory that is in no file, with everything that others have as well.
fn at_most(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(["RssAnon:", "RssShmem:", "VmSwap:"].iter().filter_map(|name| kibibytes(&status, name)).sum())
}

/// The same with its share only of what others have as well; nothing if that may not be seen.
fn share(pid: u32) -> Option<u64> {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let anonymous = kibibytes(&sums, "Pss_Anon:")?;
    Some(anonymous + ["Pss_Shmem:", "SwapPss:"].iter().filter_map(|name| kibibytes(&sums, name)).sum::<u64>())
}

/// When a process was started, in ticks since the machine was.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in between may hold anything; after its bracket comes the third of all fields.
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_processes_share_is_counted_once() {
        // Two processes that have the same 64 MiB, of which the second is the child of the first.
        let script = "my $n = 64 << 20; my $x = 'a' x $n; $| = 1; my $p = fork; if (!$p) { print 'ready'; <STDIN>; exit } waitpid($p, 0)";
        let mut parent = Command::new("perl").args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        parent.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let root = Root { pid: parent.id(), helpers: 1 };
        let roughly = Use::of(&[root], u64::MAX);
        let exactly = Use::of(&[root], 0);
        assert!(roughly.bytes > 120 << 20, "{roughly:?}");
        assert!((60 << 20..110 << 20).contains(&exactly.bytes), "{exactly:?}");
        let child = roughly.largest();
        assert!(child.len() == 1 && child[0].pid != parent.id() && roughly.holds(child[0]), "{child:?}");
        assert_eq!(child[0].program(), Some(Program { cell: parent.id(), leader: child[0].pid }));
        // Another process with that number is left alone.
        assert!(MeasuredProcess { started: 1, ..child[0].clone() }.kill() && Use::of(&[root], 0).holds(child[0]));
        assert!(child[0].kill());
        parent.stdin.take().unwrap().write_all(b"\n").unwrap_or_default();
        parent.wait().unwrap();
        assert_eq!(Use::of(&[root], 0), Use::default());
    }

    #[test]
    fn reserved_addresses_are_not_counted() {
        let script = "my $r = syscall(MMAP, 0, 1 << 40, 3, 0x4022, -1, 0); $r > 0 or die $!; $| = 1; print 'ready'; <STDIN>";
        let number = if cfg!(target_arch = "x86_64") { "9" } else { "222" };
        let mut child = Command::new("perl")
            .args(["-e", &script.replace("MMAP", number)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        let used = Use::of(&[Root { pid: child.id(), helpers: 0 }], 0);
        assert!((1..64 << 20).contains(&used.bytes), "{used:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn only_as_many_are_killed_as_hold_what_is_too_much() {
        let process = |pid: u32, bytes: u64| MeasuredProcess { pid, started: 1, bytes, top: Some(pid), cell: 1 };
        let own = MeasuredProcess { top: None, ..process(9, 500) };
        let used = Use { bytes: 0, processes: vec![process(2, 10), process(3, 150), own, process(4, 90)] };
        let killed = |bytes: u64| used.largest_with(bytes).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!((killed(0), killed(150)), (vec![3], vec![3]));
        assert_eq!((killed(151), killed(240)), (vec![3, 4], vec![3, 4]));
        assert_eq!(killed(u64::MAX), [3, 4, 2]);
        assert!(Use::default().largest_with(1).is_empty());
    }

    #[test]
    fn what_was_not_enough_takes_no_small_programs_at_once() {
        let process = |pid: u32, mib: u64| MeasuredProcess { pid, started: 1, bytes: mib << 20, top: Some(pid), cell: 1 };
        let own = MeasuredProcess { top: None, ..process(9, 21) };
        let used = Use { bytes: 523 << 20, processes: vec![process(2, 1), process(3, 312), own, process(4, 189)] };
        let killed = |strikes: u32| used.largest_beyond(200 << 20, strikes).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!([killed(0), killed(1), killed(3)], [vec![3, 4], vec![3, 4], vec![3, 4]]);
        assert_eq!([killed(4), killed(64)], [vec![3, 4, 2], vec![3, 4, 2]]);
        let many: Vec<_> = (1..8).map(|pid| process(pid, 300)).collect();
        let used = Use { bytes: 2100 << 20, processes: many };
        let count = |strikes: u32| used.largest_beyond(2 << 30, strikes).len();
        assert_eq!([count(0), count(1), count(2), count(3), count(4), count(64)], [1, 1, 1, 2, 3, 7], "a little too much");
    }

    #[test]
    fn more_is_killed_only_if_what_was_killed_was_not_enough() {
        let process = |pid: u32, bytes: u64| MeasuredProcess { pid, started: 1, bytes, top: Some(pid), cell: 1 };
        let strike = Strike { killed: vec![process(3, 100)], count: 2 };
        let used = |bytes: u64| Use { bytes: 0, processes: vec![process(3, bytes), process(4, 90)] };
        let (soon, late, pause) = (Duration::from_millis(20), Duration::from_secs(3), Duration::from_millis(20));
        assert_eq!(strike.not_enough(&used(100), soon, pause), None, "it gives its memory back");
        assert_eq!(strike.not_enough(&used(0), soon, pause), Some(2), "it has ended, whether it was waited for or not");
        assert_eq!(strike.not_enough(&used(100), late, pause), Some(2), "it does not go away");
        assert_eq!(strike.not_enough(&used(0), late, pause), Some(0), "the watchdog came late");
        assert_eq!(strike.not_enough(&used(0), late, Duration::from_secs(2)), Some(2), "it meant to come so late");
    }
}
