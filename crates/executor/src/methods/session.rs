//! `initialize` and `session/end`.

use std::time::Duration;

use futures_util::future::join_all;
use outpost_rpc::peer::Rest;
use outpost_rpc::{Close, HandlerOutcome, Lane, Router};
use outpost_wire::exec::session::{Empty, Initialize, InitializeParams, SessionEnd};
use tokio::time::timeout;

use crate::connection::ExecutorConnection;
use crate::follow;

/// How long the end of a session may take until its client is answered.
const TIDYING: Duration = Duration::from_millis(1500);

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on_call::<Initialize, _, _>(
            Lane::Ordinary,
            |_| Ok(()),
            |connection, call| async move {
                let mut params = call.params;
                let calls = params.calls.take();
                let mut output = connection.initialize(&InitializeParams { calls: calls.clone(), ..params })?;
                let Some(calls) = calls else { return Ok(output.into()) };
                // In their order, and none waits for another one.
                let made = join_all(calls.into_iter().map(|call| follow::carry(&connection, call))).await;
                let (answers, rests): (Vec<_>, Vec<_>) = made.into_iter().unzip();
                output.answers = Some(answers);
                let rests: Vec<Rest> = rests.into_iter().flatten().collect();
                let rest = (!rests.is_empty()).then(|| Box::pin(async move { drop(join_all(rests).await) }) as Rest);
                Ok(HandlerOutcome { output, rest })
            },
        )
        .on::<SessionEnd, _, _>(
            Lane::Control,
            |connection| connection.admit("session"),
            |connection, _| async move {
                let (session, _) = connection.session()?;
                connection.executor().end_session(&session);
                // What its sandboxes held in workspaces is gone when the client hears that the session is.
                let _ = timeout(TIDYING, session.config().launcher.tidied()).await;
                connection.peer().retire(Close::new(Close::NORMAL, "session has ended"));
                Ok(Empty {})
            },
        )
}
