//! `call/follow`, `call/unfollow` and `call/settle`.

use outpost_rpc::{HandlerOutcome, Lane, Router};
use outpost_wire::exec::calls::{CallFollow, CallSettle, CallUnfollow};
use outpost_wire::exec::session::Empty;

use crate::connection::ExecutorConnection;
use crate::follow;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    let admit = |connection: &ExecutorConnection| connection.admit("call");
    router
        .on_call::<CallFollow, _, _>(Lane::Ordinary, admit, |connection, call| async move {
            let (output, rest) = follow::carry(&connection, call.params).await;
            Ok(HandlerOutcome { output, rest })
        })
        .on::<CallUnfollow, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            connection.follows().unfollow(&params.ids);
            Ok(Empty {})
        })
        .on::<CallSettle, _, _>(Lane::Ordinary, admit, |connection, _| async move {
            connection.follows().settle().await;
            Ok(Empty {})
        })
}
