//! `fs/watchMissing`, `fs/watch` and `fs/unwatch`.

use outpost_rpc::peer::Rest;
use outpost_rpc::{HandlerOutcome, Lane, Router};
use outpost_wire::exec::session::Empty;
use outpost_wire::exec::watch::{Unwatch, Watch, WatchMissing, WatchMissingParams, WatchMissingResponse};

use crate::connection::ExecutorConnection;
use crate::methods::native::{admit, ceiling, gate, native};
use crate::watch::{MissingPaths, WatchRequest};

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on_call::<WatchMissing, _, _>(Lane::Ordinary, admit, |connection, call| async move {
            let id = call.params.watch_id;
            let paths = missing_paths(&call.params);
            // It cannot name a sandbox; what the operator denies is denied to it all the same, down to whether it is there.
            let gate = ceiling(&connection)?;
            for path in paths.iter().flat_map(|paths| paths.missing.iter().chain([&paths.present])) {
                gate.check_watch(path)?;
            }
            let watching = connection.watches().watch_missing(id, paths).await?;
            let announcement = connection.watches().announce_missing(id);
            let rest = watching.then(|| Box::pin(announcement) as Rest);
            Ok(HandlerOutcome { output: WatchMissingResponse { watching }, rest })
        })
        .on::<Watch, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            gate.check_watch(&path)?;
            connection.watches().watch(WatchRequest { id: params.watch_id, path, recursive: params.recursive }).await?;
            Ok(Empty {})
        })
        .on::<Unwatch, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            connection.watches().unwatch(params.watch_id).await?;
            Ok(Empty {})
        })
}

/// Paths of another kind of machine cannot be watched here, which is no error.
fn missing_paths(params: &WatchMissingParams) -> Option<MissingPaths> {
    let missing = params.missing.iter().map(|path| path.to_native().ok()).collect::<Option<_>>()?;
    Some(MissingPaths { missing, present: params.present.to_native().ok()? })
}
