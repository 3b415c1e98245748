//! `initialize` and `session/end`.

use outpost_rpc::{Close, Lane, Router};
use outpost_wire::exec::session::{Empty, Initialize, SessionEnd};

use crate::connection::ExecutorConnection;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<Initialize, _, _>(Lane::Ordinary, |_| Ok(()), |connection, params| async move { connection.initialize(&params) })
        .on::<SessionEnd, _, _>(
            Lane::Control,
            |connection| connection.admit("session"),
            |connection, _| async move {
                let (session, _) = connection.session()?;
                connection.executor().end_session(&session);
                connection.peer().retire(Close::new(Close::NORMAL, "session has ended"));
                Ok(Empty {})
            },
        )
}
