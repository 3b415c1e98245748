//! Children of this process: who they are, how they ended, how they are killed.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use crate::sys;

/// Every direct child, also those that fell to us because their parent is gone.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_nonzero();
    let list = match fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        Ok(list) => list,
        // Not every kernel has it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return children_by_search(own.get()),
        Err(error) => return Err(error),
    };
    Ok(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

fn children_by_search(own: i32) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in between may hold anything; after its bracket come the state and the parent.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if parent.and_then(|parent| parent.parse::<i32>().ok()) == Some(own) {
            children.extend(Pid::from_raw(pid));
        }
    }
    Ok(children)
}

/// Kills direct children. Their numbers cannot belong to other processes: only this process reaps them.
pub(super) fn kill_all(except: impl Fn(Pid) -> bool) {
    for child in children().unwrap_or_default() {
        if !except(child) {
            // One that took another user's rights cannot be killed by us.
            let _ = kill_process(child, Signal::KILL);
        }
    }
}

/// What is left after reaping.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) enum Left {
    Some,
    None,
}

/// Takes the status of every child that has ended.
pub(super) fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> Left {
    loop {
        match wait(WaitOptions::NOHANG) {
            // It asked to be traced by its parent, which is us. We are no debugger: it goes on, and its end is told later.
            Ok(Some((pid, status))) if status.stopped() => {
                let signal = status.stopping_signal().filter(|signal| *signal != libc::SIGTRAP);
                sys::stop_tracing(pid, signal);
            }
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return Left::Some,
            Err(Errno::INTR) => {}
            Err(_) => return Left::None,
        }
    }
}
