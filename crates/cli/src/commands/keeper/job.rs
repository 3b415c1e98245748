//! The end of the batch job that a keeper belongs to.
//!
//! Where a scheduler follows processes by control groups it ends a keeper itself. Others lose sight of a process that has left
//! its session, so the keeper looks after its job on its own.

use std::process::Stdio;
use std::time::Duration;

use outpost_environment::slurm::SlurmJobState;
use outpost_executor::place::HostPlace;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// How often the scheduler is asked: it serves a whole cluster.
const LOOK: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the job of a place is over; for ever if it is in none.
pub(super) async fn over(place: &HostPlace) {
    let Some(id) = place.slurm_job() else { return std::future::pending().await };
    let mut had_steps = false;
    loop {
        let job = match ask(id).await {
            SlurmJobState::Unknown => {
                // Each step of a job has a process that says so in its name.
                let has_steps = has_steps(id);
                let is_over = had_steps && !has_steps;
                had_steps |= has_steps;
                if is_over { SlurmJobState::Over } else { SlurmJobState::Unknown }
            }
            known => known,
        };
        if job == SlurmJobState::Over {
            return;
        }
        sleep(LOOK).await;
    }
}

async fn ask(id: &str) -> SlurmJobState {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--format=%T", "--jobs", id]).stdin(Stdio::null()).kill_on_drop(true);
    match timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => {
            let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            SlurmJobState::read(output.status.success(), &said, &complained)
        }
        _ => SlurmJobState::Unknown,
    }
}

fn has_steps(id: &str) -> bool {
    let wanted = format!("slurmstepd: [{id}.");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .any(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).starts_with(&wanted)))
}
