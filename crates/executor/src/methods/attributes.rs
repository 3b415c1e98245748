//! `fs/getAttributes`, `fs/listAttributes`, `fs/setMode` and `fs/createLink`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::attributes::{CreateLink, GetAttributes, ListAttributes, ListAttributesResponse, SetMode};
use outpost_wire::exec::session::Empty;

use crate::attributes;
use crate::connection::Connection;
use crate::methods::files::FileCall;
use crate::methods::native::{admit, blocking, open_path};

pub fn routes(router: Router<Connection>) -> Router<Connection> {
    router
        .on::<GetAttributes, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { attributes::get(&path) }).await
        })
        .on::<ListAttributes, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
            let _call = FileCall::new(&connection, &path).await;
            Ok(ListAttributesResponse { entries: blocking(move || attributes::list(&path)).await? })
        })
        .on::<SetMode, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { attributes::set_mode(&path, params.mode) }).await?;
            Ok(Empty {})
        })
        .on::<CreateLink, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { attributes::create_link(&path, &params.target) }).await?;
            Ok(Empty {})
        })
}
