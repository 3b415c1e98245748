//! What Slurm's `squeue` says of one job.
//!
//! Its exit code is 1 both for a job that is not known any more and for a controller that does not answer; only the message tells them apart.

/// What `squeue` complains about when a job ended a while ago or never was.
pub(crate) const UNKNOWN_JOB: &str = "Invalid job id";

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlurmJobState {
    Runs,
    Over,
    /// The scheduler could not be asked.
    Unknown,
}

impl SlurmJobState {
    /// What an answer of `squeue --noheader --format=%T` means.
    pub fn read(succeeded: bool, said: &str, complained: &str) -> Self {
        match said.trim() {
            // One that is put back into the queue is not here any more.
            "RUNNING" | "SUSPENDED" | "STOPPED" | "RESIZING" | "SIGNALING" | "CONFIGURING" | "STAGE_OUT" if succeeded => Self::Runs,
            _ if succeeded => Self::Over,
            _ if complained.contains(UNKNOWN_JOB) => Self::Over,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_scheduler_says_ends_a_job() {
        let read = SlurmJobState::read;
        assert_eq!(read(true, "RUNNING\n", ""), SlurmJobState::Runs);
        for over in ["COMPLETING\n", "CANCELLED\n", "PENDING\n", ""] {
            assert_eq!(read(true, over, ""), SlurmJobState::Over, "{over}");
        }
        assert_eq!(read(false, "", "slurm_load_jobs error: Invalid job id specified"), SlurmJobState::Over);
        assert_eq!(read(false, "", "slurm_load_jobs error: Unable to contact slurm controller"), SlurmJobState::Unknown);
    }
}
