//! What is kept of the output of processes that have ended: so much for all of a session together. The newest stays in memory,
//! what came before goes to disk, and the oldest is given up and counted.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, Weak};

/// How much of the output of all processes that have ended is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetainedLimits {
    pub memory: usize,
    pub disk: u64,
    /// Each process that has something on disk has a file open for it.
    pub files: usize,
}

impl Default for RetainedLimits {
    fn default() -> Self {
        Self { memory: 32 << 20, disk: 1 << 30, files: 256 }
    }
}

/// Something that holds the output of one process.
pub(crate) trait OutputHolder {
    /// Bytes in memory, and on disk.
    fn held(&self) -> (usize, u64);
    /// Whether no attached client still waits for some of it.
    fn is_told(&self) -> bool;
    fn move_to_disk(&self);
    fn give_up(&self);
}

pub(crate) struct Retained<H> {
    limits: RetainedLimits,
    inside: Mutex<Inside<H>>,
}

/// The oldest stand first.
struct Inside<H> {
    in_memory: VecDeque<Weak<H>>,
    on_disk: VecDeque<Weak<H>>,
}

impl<H: OutputHolder> Retained<H> {
    pub(crate) fn new(limits: RetainedLimits) -> Self {
        Self { limits, inside: Mutex::new(Inside { in_memory: VecDeque::new(), on_disk: VecDeque::new() }) }
    }

    /// Another process has ended.
    pub(crate) fn add(&self, ended: Weak<H>) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let Inside { in_memory, on_disk } = &mut *inside;
        let is_on_disk = ended.upgrade().is_some_and(|holder| holder.held().1 > 0);
        if is_on_disk {
            on_disk.push_back(ended)
        } else {
            in_memory.push_back(ended)
        }
        // Those that no client can ask for any more take no room.
        in_memory.retain(|holder| holder.strong_count() > 0);
        on_disk.retain(|holder| holder.strong_count() > 0);
        let held = |all: &VecDeque<Weak<H>>| {
            let each = all.iter().filter_map(Weak::upgrade).map(|holder| holder.held());
            each.fold((0, 0), |sum: (usize, u64), (memory, disk)| (sum.0 + memory, sum.1 + disk))
        };
        let mut memory = held(in_memory).0;
        while memory > self.limits.memory
            && let Some(oldest) = in_memory.pop_front()
        {
            let Some(holder) = oldest.upgrade() else { continue };
            memory -= holder.held().0;
            holder.move_to_disk();
            on_disk.push_back(oldest);
        }
        let mut disk = held(on_disk).1;
        while (disk > self.limits.disk || on_disk.len() > self.limits.files) && !on_disk.is_empty() {
            let told = on_disk.iter().position(|holder| holder.upgrade().is_none_or(|holder| holder.is_told()));
            let Some(holder) = on_disk.remove(told.unwrap_or(0)).and_then(|oldest| oldest.upgrade()) else { continue };
            disk -= holder.held().1;
            holder.give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outpost_wire::exec::process::Stream;

    use super::*;
    use crate::output::{OutputLimits, OutputLog};

    struct One(Mutex<OutputLog>);

    impl OutputHolder for One {
        fn held(&self) -> (usize, u64) {
            self.0.lock().unwrap().held()
        }

        fn is_told(&self) -> bool {
            true
        }

        fn move_to_disk(&self) {
            self.0.lock().unwrap().move_to_disk();
        }

        fn give_up(&self) {
            self.0.lock().unwrap().give_up();
        }
    }

    #[test]
    fn the_newest_is_in_memory_the_rest_on_disk_and_the_oldest_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let limits = RetainedLimits { memory: 3000, disk: 4000, files: 3 };
        let retained = Retained::new(limits);
        let ended: Vec<Arc<One>> = (0..10)
            .map(|_| {
                let mut log = OutputLog::new(OutputLimits::default(), Some(directory.path()));
                log.append(Stream::Stdout, vec![b'x'; 1000]);
                log.close();
                let one = Arc::new(One(Mutex::new(log)));
                retained.add(Arc::downgrade(&one));
                one
            })
            .collect();
        let held: Vec<(usize, u64)> = ended.iter().map(|one| one.held()).collect();
        assert_eq!(held[..4], [(0, 0); 4]);
        assert_eq!(held[4..7], [(0, 1000); 3]);
        assert_eq!(held[7..], [(1000, 0); 3]);
        drop(ended);
        retained.add(Weak::new());
        assert!(retained.inside.lock().unwrap().on_disk.is_empty());
    }
}
