//! Everything that varies between two executors.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outpost_rpc::PeerOptions;
use outpost_sandbox::Launcher;
use outpost_wire::exec::session::CallerContext;

use crate::files::worker::WorkerPatience;
use crate::git::GitSettings;
use crate::http::HttpTarget;
use crate::input::InputLimits;
use crate::output::OutputLimits;
use crate::policy::Grounds;

/// Makes ids that are never made twice.
pub type IdSource = Arc<dyn Fn() -> String + Send + Sync>;

/// Makes the configuration of a session that runs in the place of its caller, or says why it cannot.
pub type CallerConfig = Arc<dyn Fn(&CallerContext) -> Result<ExecutorConfig, String> + Send + Sync>;

#[derive(Clone)]
pub struct ExecutorConfig {
    /// How long a session outlives its connection.
    pub grace: Duration,
    /// How long one does in which a command runs, or has ended and no client has heard of it.
    pub grace_running: Duration,
    /// How long a closed process can still be read by a client that is there.
    pub closed_retention: Duration,
    pub output: OutputLimits,
    pub input: InputLimits,
    /// Where output goes that does not fit into memory; without it, memory is all there is.
    pub spool_directory: Option<PathBuf>,
    /// Where the fate of processes is written down; without it, it is forgotten with the executor.
    pub journal_directory: Option<PathBuf>,
    /// A directory of this machine for locks that the file system of the journals does not give.
    pub lock_directory: Option<PathBuf>,
    /// Where copies of files are kept while they are rewritten in place; without it, a kill may leave half of one.
    pub redo_directory: Option<PathBuf>,
    /// By what clients reach this executor; a later start that is reached in the same way answers for this one.
    pub listener: String,
    pub launcher: Launcher,
    /// How long file calls inside a sandbox may take.
    pub worker_patience: WorkerPatience,
    /// What every policy is measured by.
    pub grounds: Grounds,
    /// What sandboxed code may do with repositories.
    pub git: GitSettings,
    pub ids: IdSource,
    /// Identity of this install, the same after every restart.
    pub executor_id: Option<String>,
    pub version: String,
    /// Where this program keeps its own things: configuration, skills and plugins.
    pub home: Option<PathBuf>,
    /// The environment that children may inherit from, and the directory that relative things are relative to.
    pub variables: BTreeMap<OsString, OsString>,
    pub cwd: PathBuf,
    /// What `http/request` may reach besides public addresses.
    pub http_allow: Vec<HttpTarget>,
    pub peer: PeerOptions,
    /// For an executor whose clients are programs of its own user on its own machine: sessions run in their place. Without it, what
    /// clients say about themselves is not heard.
    pub for_caller: Option<CallerConfig>,
}

impl ExecutorConfig {
    /// The home of the user that this runs as.
    pub fn user_home(&self) -> Option<PathBuf> {
        self.variables.get(OsStr::new("HOME")).filter(|home| !home.is_empty()).map(PathBuf::from)
    }
}
