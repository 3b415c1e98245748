//! `fs/walk`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::walk::Walk;

use crate::connection::ExecutorConnection;
use crate::methods::native::{admit, blocking, gate, native};

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router.on::<Walk, _, _>(Lane::Ordinary, admit, |connection, params| async move {
        let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
        let _turn = connection.bulk_turn().await;
        blocking(move || gate.walk(&path, &params.options)).await
    })
}
