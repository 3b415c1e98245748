//! `fs/getAttributes`, `fs/listAttributes`, `fs/setMode` and `fs/createLink`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::attributes::{CreateLink, GetAttributes, ListAttributes, ListAttributesResponse, SetMode};
use outpost_wire::exec::session::Empty;

use crate::connection::ExecutorConnection;
use crate::methods::files::FileCall;
use crate::methods::native::{admit, blocking, gate, native};

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<GetAttributes, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { gate.attributes(&path).await }).await
        })
        .on::<ListAttributes, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let _call = FileCall::new(&connection, &path).await;
            Ok(ListAttributesResponse { entries: blocking(move || gate.list_attributes(&path)).await? })
        })
        .on::<SetMode, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { gate.set_mode(&path, params.mode).await }).await?;
            Ok(Empty {})
        })
        .on::<CreateLink, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { gate.create_link(&path, &params.target).await }).await?;
            Ok(Empty {})
        })
}
