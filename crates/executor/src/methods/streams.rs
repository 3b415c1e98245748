//! `fs/open`, `fs/readBlock`, `fs/writeBlock` and `fs/close`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::session::Empty;
use outpost_wire::exec::streams::{Close, Open, OpenMode, OpenResponse, ReadBlock, ReadBlockResponse, WriteBlock};

use crate::connection::ExecutorConnection;
use crate::files;
use crate::methods::native::{admit, gate, native, open_path};

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<Open, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let handle = &params.handle_id;
            match params.mode {
                OpenMode::Replace if params.part == Some(true) => {
                    let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
                    connection.streams().open(handle, move || files::open_part(&path)).await?;
                }
                mode => {
                    let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
                    let runtime = tokio::runtime::Handle::current();
                    connection.streams().open(handle, move || runtime.block_on(gate.open_stream(&path, mode))).await?;
                }
            }
            Ok(OpenResponse { handle_id: params.handle_id })
        })
        .on::<ReadBlock, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let _turn = connection.bulk_turn().await;
            let chunk = connection.streams().read(&params.handle_id, params.offset, params.len).await?;
            Ok(ReadBlockResponse { eof: chunk.len() < params.len, chunk: chunk.into() })
        })
        .on::<WriteBlock, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            connection.streams().write(&params.handle_id, params.offset, params.chunk.0).await?;
            Ok(Empty {})
        })
        .on::<Close, _, _>(Lane::Control, admit, |connection, params| async move {
            connection.streams().close(&params.handle_id).await;
            Ok(Empty {})
        })
}
