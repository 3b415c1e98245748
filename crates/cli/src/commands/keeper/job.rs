//! The end of the batch job that a keeper belongs to.
//!
//! Where a scheduler follows processes by control groups it ends a keeper itself. Others lose sight of a process that has left
//! its session, so the keeper looks after its job on its own.

use std::process::Stdio;
use std::time::Duration;

use outpost_executor::place::HostPlace;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// How often the scheduler is asked: it serves a whole cluster.
const LOOK: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Runs,
    Over,
    /// The scheduler could not be asked.
    Unknown,
}

/// Waits until the job of a place is over; for ever if it is in none.
pub(super) async fn over(place: &HostPlace) {
    let Some(id) = place.slurm_job() else { return std::future::pending().await };
    let mut had_steps = false;
    loop {
        let job = match ask(id).await {
            Job::Unknown => {
                // Each step of a job has a process that says so in its name.
                let has_steps = has_steps(id);
                let is_over = had_steps && !has_steps;
                had_steps |= has_steps;
                if is_over { Job::Over } else { Job::Unknown }
            }
            known => known,
        };
        if job == Job::Over {
            return;
        }
        sleep(LOOK).await;
    }
}

async fn ask(id: &str) -> Job {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--format=%T", "--jobs", id]).stdin(Stdio::null()).kill_on_drop(true);
    match timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => read(output.status.success(), &String::from_utf8_lossy(&output.stdout), &String::from_utf8_lossy(&output.stderr)),
        _ => Job::Unknown,
    }
}

fn read(succeeded: bool, said: &str, complained: &str) -> Job {
    match said.trim() {
        // One that is put back into the queue is not here any more.
        "RUNNING" | "SUSPENDED" | "STOPPED" | "RESIZING" | "SIGNALING" | "CONFIGURING" | "STAGE_OUT" if succeeded => Job::Runs,
        _ if succeeded => Job::Over,
        // A job that ended a while ago is not known any more.
        _ if complained.contains("Invalid job id") => Job::Over,
        _ => Job::Unknown,
    }
}

fn has_steps(id: &str) -> bool {
    let wanted = format!("slurmstepd: [{id}.");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .any(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).starts_with(&wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_scheduler_says_ends_a_job() {
        assert_eq!(read(true, "RUNNING\n", ""), Job::Runs);
        for over in ["COMPLETING\n", "CANCELLED\n", "PENDING\n", ""] {
            assert_eq!(read(true, over, ""), Job::Over, "{over}");
        }
        assert_eq!(read(false, "", "slurm_load_jobs error: Invalid job id specified"), Job::Over);
        assert_eq!(read(false, "", "slurm_load_jobs error: Unable to contact slurm controller"), Job::Unknown);
    }
}
