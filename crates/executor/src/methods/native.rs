//! What every family of file methods does first: is it the time for it, where on this machine is it, may it be done.

use std::path::PathBuf;

use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::{Fault, PathUri};

use crate::connection::Connection;
use crate::fault;

pub fn admit(connection: &Connection) -> Result<(), Fault> {
    connection.admit("filesystem")
}

/// The native path of a call that this executor can honour: a policy that it cannot enforce is refused, never ignored.
pub fn open_path(path: &PathUri, sandbox: Option<&SandboxContext>) -> Result<PathBuf, Fault> {
    if sandbox.is_some_and(|context| !context.leaves_files_open()) {
        return Err(fault::sandbox_unsupported());
    }
    path.to_native().map_err(fault::path)
}

/// Runs file calls where they may take their time.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Fault::internal(error.to_string()))?
}
