//! `fs/*`.

use outpost_rpc::{Lane, Router};
use outpost_wire::Fault;
use outpost_wire::exec::files::{
    Canonicalize, CanonicalizeResponse, Copy, CreateDirectory, GetMetadata, ReadDirectory, ReadDirectoryResponse, ReadFile,
    ReadFileResponse, Remove, Rename, WriteFile,
};
use outpost_wire::exec::session::Empty;
use std::path::Path;

use crate::connection::ExecutorConnection;
use crate::fault;
use crate::files::{self, LinkPolicy};
use crate::methods::native::{admit, aside, blocking, gate, native};

/// Up to here the bytes of a file are moved in no time.
const QUICK_BYTES: u64 = 256 << 10;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<ReadFile, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            let opened = call.quick(async move { gate.open_whole(&path, follow(params.follow_symlinks)).await }).await?;
            let is_quick = opened.size <= QUICK_BYTES;
            let data = if is_quick { call.quick(async move { opened.read() }).await? } else { blocking(move || opened.read()).await? };
            Ok(ReadFileResponse { data_base64: data.into() })
        })
        .on::<WriteFile, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            if params.mode.is_some() && gate.is_confined() {
                return Err(fault::sandbox_unsupported());
            }
            let options =
                files::WriteOptions { follow: follow(params.follow_symlinks), sync: params.sync.unwrap_or(false), mode: params.mode };
            let data = params
                .data_base64
                .0
                .map_err(|error| Fault::invalid_request(format!("fs/writeFile requires valid base64 dataBase64: {error}")))?;
            let is_quick = data.len() as u64 <= QUICK_BYTES && !options.sync;
            let write = async move { gate.write(&path, &data, &options).await };
            if is_quick {
                call.quick(write).await?
            } else {
                aside(write).await?
            }
            Ok(Empty {})
        })
        .on::<CreateDirectory, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            let recursive = params.recursive.unwrap_or(true);
            call.quick(async move { gate.create_directory(&path, recursive, follow(params.follow_symlinks)).await }).await?;
            Ok(Empty {})
        })
        .on::<GetMetadata, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            call.quick(async move { gate.metadata(&path, follow(params.follow_symlinks)).await }).await
        })
        .on::<Canonicalize, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let call = FileCall::new(&connection, &path).await;
            Ok(CanonicalizeResponse { path: call.quick(async move { gate.canonicalize(&path).await }).await? })
        })
        .on::<ReadDirectory, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let _call = FileCall::new(&connection, &path).await;
            Ok(ReadDirectoryResponse { entries: blocking(move || gate.read_directory(&path)).await? })
        })
        .on::<Remove, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (path, gate) = (native(&params.path)?, gate(&connection, params.sandbox.as_ref())?);
            let _call = FileCall::new(&connection, &path).await;
            let options = files::RemoveOptions {
                recursive: params.recursive.unwrap_or(true),
                force: params.force.unwrap_or(true),
                follow: follow(params.follow_symlinks),
            };
            blocking(move || gate.remove(&path, &options)).await?;
            Ok(Empty {})
        })
        .on::<Copy, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (source, destination) = (native(&params.source_path)?, native(&params.destination_path)?);
            let gate = gate(&connection, params.sandbox.as_ref())?;
            let _call = FileCall::new(&connection, &source).await;
            blocking(move || gate.copy(&source, &destination, params.recursive)).await?;
            Ok(Empty {})
        })
        .on::<Rename, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (source, destination) = (native(&params.source_path)?, native(&params.destination_path)?);
            let gate = gate(&connection, params.sandbox.as_ref())?;
            let call = FileCall::new(&connection, &source).await;
            call.quick(async move { gate.rename(&source, &destination).await }).await?;
            Ok(Empty {})
        })
}

/// A file call whose turn it is.
pub(super) struct FileCall<'a> {
    /// Held until the call is over. One that may take for ever holds up no other.
    turn: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl<'a> FileCall<'a> {
    pub(super) async fn new(connection: &'a ExecutorConnection, path: &Path) -> Self {
        let may_hang = connection.executor().slow_mounts.hold(path);
        let turn = connection.file_turn().await;
        Self { turn: (!may_hang).then_some(turn) }
    }

    /// Runs what is over sooner than another thread would wake up where it was asked for.
    pub(super) async fn quick<T: Send + 'static>(&self, work: impl Future<Output = Result<T, Fault>> + Send + 'static) -> Result<T, Fault> {
        if self.turn.is_some() { work.await } else { aside(work).await }
    }
}

fn follow(asked: Option<bool>) -> LinkPolicy {
    if asked.unwrap_or(true) { LinkPolicy::Links } else { LinkPolicy::Nothing }
}
