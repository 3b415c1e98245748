//! The executor of this machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outpost_executor::{ExecutorConfig, GitMode, GitSettings, Grounds, HttpTarget, InputLimits, OutputLimits, WorkerPatience};
use outpost_rpc::PeerOptions;
use outpost_sandbox::home::{HomeSettings, SandboxHome as UserHome};
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{IdleCells, Launcher, LauncherSettings, Level, Limits};
use uuid::Uuid;

use crate::home::Home;
use crate::variables::VisibleVariables;

/// What the verbs that need an executor choose for it.
pub(crate) struct ExecutorSettings {
    pub grace: Duration,
    pub grace_running: Duration,
    pub spool: u64,
    pub peer: PeerOptions,
    /// Whether a later start answers for the processes of this one.
    pub keeps_fates: bool,
    pub listener: String,
    pub http_allow: Vec<HttpTarget>,
    pub confinement: SandboxSettings,
}

/// What the operator says about sandboxes.
#[derive(Clone, Default)]
pub(crate) struct SandboxSettings {
    pub ceiling: Policy,
    pub sandbox_user: Option<(u32, u32)>,
    pub limits: Limits,
    pub minimum: Level,
    /// What is special in the home of the executor's user.
    pub home: HomeSettings,
    pub git: GitMode,
    /// The administrator's file, if that is where the minimum is from.
    pub minimum_from: Option<String>,
}

/// An executor's configuration as this program runs it, home and all.
pub(crate) fn executor_config(settings: ExecutorSettings, variables: &VisibleVariables) -> anyhow::Result<ExecutorConfig> {
    let home = Home::from_environment();
    if let Some(error) = home.as_ref().and_then(|home| home.close_to_others().err()) {
        tracing::warn!(%error, "the home cannot be closed to others");
    }
    let warn = |error: &std::io::Error| tracing::warn!(%error, "this executor cannot keep an identity");
    let seat = home.as_ref().and_then(|home| home.seat(variables).inspect_err(warn).ok());
    let executor_id = seat.as_ref().and_then(|seat| seat.executor_id().inspect_err(warn).ok());
    let launcher = LauncherSettings {
        scratch: seat.as_ref().map(|seat| seat.run.join("cells")),
        sandbox_user: settings.confinement.sandbox_user,
        home: variables.get("HOME").map(Into::into),
        layers: home.as_ref().map(Home::layers),
        limits: settings.confinement.limits,
        open_files: variables.open_files(),
        minimum: settings.confinement.minimum,
        minimum_from: settings.confinement.minimum_from,
        tried: seat.as_ref().map(|seat| seat.state.join("tried.json")),
        idle: IdleCells::default(),
    };
    let grounds = Grounds {
        temporary: variables.get("TMPDIR").filter(|path| !path.is_empty()).map(Into::into),
        own: home.iter().map(|home| home.path().to_owned()).collect(),
        shared: home.iter().flat_map(|home| ["skills", "plugins"].map(|name| home.path().join(name))).collect(),
        home: variables.get("HOME").map(|path| Arc::new(UserHome::new(path.into(), settings.confinement.home))),
        homes: homes(variables.get("HOME").map(Into::into)),
        ceiling: settings.confinement.ceiling,
    };
    let git = GitSettings { mode: settings.confinement.git, directory: seat.as_ref().map(|seat| seat.run.join("git")) };
    let own_home = home.as_ref().map(|home| home.path().to_owned());
    let redo_directory = home.as_ref().map(Home::redo);
    Ok(ExecutorConfig {
        grace: settings.grace,
        grace_running: settings.grace_running,
        closed_retention: Duration::from_secs(30),
        output: OutputLimits { spool: settings.spool, ..OutputLimits::default() },
        input: InputLimits::default(),
        spool_directory: home.as_ref().map(Home::spool),
        lock_directory: seat.as_ref().map(|seat| seat.run.join("locks")),
        journal_directory: seat.filter(|_| settings.keeps_fates).map(|seat| seat.state),
        redo_directory,
        listener: settings.listener,
        launcher: Launcher::with_own_stage(launcher),
        worker_patience: WorkerPatience::default(),
        grounds,
        git,
        ids: Arc::new(|| Uuid::new_v4().to_string()),
        executor_id,
        home: own_home,
        version: env!("CARGO_PKG_VERSION").into(),
        variables: variables.for_commands(),
        cwd: std::env::current_dir()?,
        http_allow: settings.http_allow,
        peer: settings.peer,
        for_caller: None,
    })
}

/// Where the users of this machine have their homes: the one that the variable names, and those of every user with a login shell.
fn homes(own: Option<PathBuf>) -> Vec<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let logs_in = |line: &&str| !line.ends_with("/nologin") && !line.ends_with("/false");
    let listed = users.lines().filter(logs_in).filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let there = own.into_iter().chain(listed).filter_map(|home| home.canonicalize().ok());
    let mut homes: Vec<PathBuf> = there
        .filter(|home| home.is_dir() && home.parent().is_some_and(|above| above.parent().is_some() || home.ends_with("root")))
        .collect();
    homes.sort();
    homes.dedup();
    homes
}
