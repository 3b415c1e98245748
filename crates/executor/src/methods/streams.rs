//! `fs/open`, `fs/readBlock`, `fs/writeBlock` and `fs/close`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::session::Empty;
use outpost_wire::exec::streams::{Close, Open, OpenMode, OpenResponse, ReadBlock, ReadBlockResponse, WriteBlock};
use outpost_wire::packed;

use crate::connection::ExecutorConnection;
use crate::methods::native::{admit, blocking, gate, native, open_path};
use crate::streams::MAX_BLOCK;
use crate::{fault, files};

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
            let eof = chunk.len() < params.len;
            let Some(compression) = params.compression else {
                return Ok(ReadBlockResponse { chunk: chunk.into(), eof, compression: None });
            };
            let packed = blocking(move || Ok(packed::compress(&chunk).ok_or(chunk))).await?;
            Ok(match packed {
                Ok(smaller) => ReadBlockResponse { chunk: smaller.into(), eof, compression: Some(compression) },
                Err(chunk) => ReadBlockResponse { chunk: chunk.into(), eof, compression: None },
            })
        })
        .on::<WriteBlock, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let chunk = match params.compression {
                None => params.chunk.0,
                compression => packed::expand(&params.chunk.0, compression, MAX_BLOCK).map_err(fault::unpacked)?,
            };
            connection.streams().write(&params.handle_id, params.offset, chunk).await?;
            Ok(Empty {})
        })
        .on::<Close, _, _>(Lane::Control, admit, |connection, params| async move {
            connection.streams().close(&params.handle_id).await;
            Ok(Empty {})
        })
}
