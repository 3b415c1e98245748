//! `environment/info` and `environment/status`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::environment::{EnvironmentStatus, Info, Status};

use crate::blocking::blocking;
use crate::connection::ExecutorConnection;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<Info, _, _>(
            Lane::Control,
            |connection| connection.admit("environment info"),
            |connection, _| async move {
                let (session, _) = connection.session()?;
                let executor = connection.executor().clone();
                // Trials take their time, and commands of this connection do not wait for them.
                blocking(move || Ok(session.caller().full_info(executor.instance_id()).clone())).await
            },
        )
        .on::<Status, _, _>(
            Lane::Control,
            |connection| connection.admit("environment status"),
            |_, _| async move { Ok(EnvironmentStatus { status: "ready".into() }) },
        )
}
