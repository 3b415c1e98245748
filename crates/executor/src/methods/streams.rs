//! `fs/open`, `fs/readBlock`, `fs/writeBlock` and `fs/close`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::session::Empty;
use outpost_wire::exec::streams::{Close, Open, OpenResponse, ReadBlock, ReadBlockResponse, WriteBlock};

use crate::connection::Connection;
use crate::methods::native::{admit, gate, native};

pub fn routes(router: Router<Connection>) -> Router<Connection> {
    router
        .on::<Open, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            connection.streams().open(&params.handle_id, move || gate.open_stream(&path, params.mode)).await?;
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
