//! `fs/walk`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::walk::Walk;

use crate::connection::Connection;
use crate::methods::native::{admit, blocking, open_path};
use crate::walk;

pub fn routes(router: Router<Connection>) -> Router<Connection> {
    router.on::<Walk, _, _>(Lane::Ordinary, admit, |_, params| async move {
        let path = open_path(&params.path, params.sandbox.as_ref())?;
        blocking(move || walk::walk(&path, &params.options)).await
    })
}
