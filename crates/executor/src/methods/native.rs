//! What every family of file methods does first: is it the time for it, where on this machine is it, through which gate.

use std::path::PathBuf;

use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::{Fault, PathUri};

pub(super) use crate::blocking::aside;
pub(crate) use crate::blocking::blocking;
use crate::connection::ExecutorConnection;
use crate::fault;
use crate::files::gate::FileGate;

pub(super) fn admit(connection: &ExecutorConnection) -> Result<(), Fault> {
    connection.admit("filesystem")
}

pub(super) fn native(path: &PathUri) -> Result<PathBuf, Fault> {
    path.to_native().map_err(fault::path)
}

/// The gate for what a request asks for: a policy that cannot be held is refused, never ignored.
pub(crate) fn gate(connection: &ExecutorConnection, sandbox: Option<&SandboxContext>) -> Result<FileGate, Fault> {
    let (session, _) = connection.session()?;
    let policy = session.file_policy(sandbox)?;
    Ok(FileGate::new(session, policy, connection.executor()))
}

/// The gate for a request that has no way to ask for less than the operator allows.
pub(super) fn ceiling(connection: &ExecutorConnection) -> Result<FileGate, Fault> {
    let (session, _) = connection.session()?;
    let executor = connection.executor();
    Ok(FileGate::new(session, executor.config.grounds.ceiling.clone(), executor))
}

/// The native path of a call that is made without confinement only: under a policy it is refused, never ignored.
pub(super) fn open_path(connection: &ExecutorConnection, path: &PathUri, sandbox: Option<&SandboxContext>) -> Result<PathBuf, Fault> {
    if gate(connection, sandbox)?.is_confined() {
        return Err(fault::sandbox_unsupported());
    }
    native(path)
}
