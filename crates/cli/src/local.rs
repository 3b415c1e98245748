//! The executor of this machine.

use std::sync::Arc;
use std::time::Duration;

use outpost_executor::{ExecutorConfig, OutputLimits};
use outpost_rpc::PeerOptions;
use outpost_sandbox::Launcher;
use uuid::Uuid;

use crate::home::Home;

/// An executor's configuration as this program runs it, home and all.
pub fn executor_config(grace: Duration, spool: u64, peer: PeerOptions) -> anyhow::Result<ExecutorConfig> {
    let home = Home::from_environment();
    let executor_id = home
        .as_ref()
        .and_then(|home| home.executor_id().inspect_err(|error| tracing::warn!(%error, "this executor cannot keep an identity")).ok());
    Ok(ExecutorConfig {
        grace,
        closed_retention: Duration::from_secs(30),
        output: OutputLimits { spool, ..OutputLimits::default() },
        spool_directory: home.map(|home| home.spool()),
        launcher: Launcher::with_own_stage(),
        ids: Arc::new(|| Uuid::new_v4().to_string()),
        executor_id,
        version: env!("CARGO_PKG_VERSION").into(),
        variables: std::env::vars_os().collect(),
        cwd: std::env::current_dir()?,
        peer,
    })
}
