//! `fs/*`: files of this machine or of any environment.

use std::sync::Arc;

use outpost_environment::{Environment, EnvironmentError, FileChanges, FileWatch, Repeat};
use outpost_rpc::HandlerOutcome;
use outpost_wire::app::Nothing;
use outpost_wire::app::files::{
    AbsolutePath, FsChanged, FsCopy, FsCopyParams, FsCreateDirectory, FsCreateDirectoryParams, FsGetMetadata, FsMetadata, FsPathParams,
    FsReadDirectory, FsReadFile, FsRemove, FsRemoveParams, FsUnwatch, FsUnwatchParams, FsWatch, FsWatchParams, FsWatchResponse,
    FsWriteFile, FsWriteFileParams,
};
use outpost_wire::exec::files::{
    Copy, CopyParams, CreateDirectory, CreateDirectoryParams, ReadDirectoryResponse, ReadFileResponse, Remove, RemoveParams,
};
use outpost_wire::{Fault, PathUri, fault as codes};
use tokio_util::sync::CancellationToken;

use super::place::{environment, refused};
use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<FsReadFile, _, _>(read)
        .on::<FsWriteFile, _, _>(write)
        .on::<FsCreateDirectory, _, _>(create_directory)
        .on::<FsGetMetadata, _, _>(metadata)
        .on::<FsReadDirectory, _, _>(list)
        .on::<FsRemove, _, _>(remove)
        .on::<FsCopy, _, _>(copy)
        .on_call::<FsWatch, _, _>(watch)
        .on::<FsUnwatch, _, _>(unwatch)
}

fn place(connection: &ClientConnection, id: &Option<String>) -> Result<Environment, Fault> {
    environment(&connection.server, id.as_deref())
}

async fn read(connection: Arc<ClientConnection>, params: FsPathParams) -> Result<ReadFileResponse, Fault> {
    let data = place(&connection, &params.environment_id)?.files().read(params.path.0).await.map_err(refused)?;
    Ok(ReadFileResponse { data_base64: data.into() })
}

async fn write(connection: Arc<ClientConnection>, params: FsWriteFileParams) -> Result<Nothing, Fault> {
    let wrong = |error| Fault::invalid_request(format!("fs/writeFile requires valid base64 dataBase64: {error}"));
    let data = params.data_base64.0.map_err(wrong)?;
    place(&connection, &params.environment_id)?.files().write(params.path.0, data).await.map_err(refused)?;
    Ok(Nothing {})
}

async fn create_directory(connection: Arc<ClientConnection>, params: FsCreateDirectoryParams) -> Result<Nothing, Fault> {
    let environment = place(&connection, &params.environment_id)?;
    let recursive = params.recursive.unwrap_or(true);
    // With its parents it comes to the same when done twice; alone, the second time would find it there.
    let repeat = if recursive { Repeat::Harmless } else { Repeat::Never };
    let params = CreateDirectoryParams { path: params.path.0, recursive: Some(recursive), follow_symlinks: None, sandbox: None };
    environment.call::<CreateDirectory>(&params, repeat).await.map_err(refused)?;
    Ok(Nothing {})
}

async fn metadata(connection: Arc<ClientConnection>, params: FsPathParams) -> Result<FsMetadata, Fault> {
    let found = place(&connection, &params.environment_id)?.files().metadata(params.path.0).await.map_err(refused)?;
    Ok(FsMetadata {
        is_directory: found.is_directory,
        is_file: found.is_file,
        is_symlink: found.is_symlink,
        created_at_ms: found.created_at_ms,
        modified_at_ms: found.modified_at_ms,
        size: found.size,
    })
}

async fn list(connection: Arc<ClientConnection>, params: FsPathParams) -> Result<ReadDirectoryResponse, Fault> {
    let entries = place(&connection, &params.environment_id)?.files().list(params.path.0).await.map_err(refused)?;
    Ok(ReadDirectoryResponse { entries })
}

async fn remove(connection: Arc<ClientConnection>, params: FsRemoveParams) -> Result<Nothing, Fault> {
    let environment = place(&connection, &params.environment_id)?;
    let (recursive, force) = (params.recursive.unwrap_or(true), params.force.unwrap_or(true));
    let repeat = if force { Repeat::Harmless } else { Repeat::Never };
    let params = RemoveParams { path: params.path.0, recursive: Some(recursive), force: Some(force), follow_symlinks: None, sandbox: None };
    environment.call::<Remove>(&params, repeat).await.map_err(refused)?;
    Ok(Nothing {})
}

async fn copy(connection: Arc<ClientConnection>, params: FsCopyParams) -> Result<Nothing, Fault> {
    let environment = place(&connection, &params.environment_id)?;
    let params = CopyParams {
        source_path: params.source_path.0,
        destination_path: params.destination_path.0,
        recursive: params.recursive.unwrap_or(false),
        sandbox: None,
    };
    environment.call::<Copy>(&params, Repeat::Never).await.map_err(refused)?;
    Ok(Nothing {})
}

/// So many watches may one client have: all clients share those of an environment.
const WATCHES: usize = 256;

/// Watches until the client does not want it any more, or is gone.
async fn watch(connection: Arc<ClientConnection>, params: FsWatchParams) -> Result<HandlerOutcome<FsWatchResponse>, Fault> {
    let environment = place(&connection, &params.environment_id)?;
    if connection.belongings.watches.count() >= WATCHES {
        let message = format!("a client may have {WATCHES} watches at a time; end one with fs/unwatch first");
        return Err(Fault::invalid_request(message));
    }
    let unwatched = CancellationToken::new();
    let name = connection.belongings.watches.take(&params.watch_id, unwatched.clone());
    let name = name.ok_or_else(|| Fault::invalid_request(format!("watchId already exists: {}", params.watch_id)))?;
    let mut seen = open(&environment, params.path.0).await.map_err(refused)?;
    let output = FsWatchResponse { path: AbsolutePath(seen.path.clone()) };
    let rest = async move {
        let telling = async {
            while let Some(changes) = seen.watch.next().await {
                let Some(changed_paths) = seen.told(changes) else { continue };
                connection.outlet.room().await;
                connection.tell(&FsChanged { watch_id: params.watch_id.clone(), changed_paths }.into());
            }
            tracing::info!(watch = params.watch_id, "a watch has ended by itself");
        };
        unwatched.run_until_cancelled(telling).await;
        drop(name);
    };
    Ok(HandlerOutcome { output, rest: Some(Box::pin(rest)) })
}

/// A watch, and what of it is told.
struct Seen {
    watch: FileWatch,
    path: PathUri,
    /// The path was missing, so the directory that it would be in is watched.
    only_path: bool,
}

async fn open(environment: &Environment, path: PathUri) -> Result<Seen, EnvironmentError> {
    match environment.files().canonicalize(path.clone()).await {
        Ok(real) => Ok(Seen { watch: environment.watch_files(real.clone(), false).await?, path: real, only_path: false }),
        Err(EnvironmentError::Fault(fault)) if fault.code == codes::NOT_FOUND => match path.split() {
            Some((parent, _)) => Ok(Seen { watch: environment.watch_files(parent, false).await?, path, only_path: true }),
            None => Err(EnvironmentError::Fault(fault)),
        },
        Err(error) => Err(error),
    }
}

impl Seen {
    fn told(&self, changes: FileChanges) -> Option<Vec<AbsolutePath>> {
        if changes.overflow {
            return Some(vec![AbsolutePath(self.path.clone())]);
        }
        let paths = changes.paths.into_iter().filter(|path| !is_passing(path) && (!self.only_path || *path == self.path));
        let paths: Vec<AbsolutePath> = paths.map(AbsolutePath).collect();
        (!paths.is_empty()).then_some(paths)
    }
}

/// Files as they are on the way into their place: those that our executors write, and those without a name yet.
fn is_passing(path: &PathUri) -> bool {
    let Some((_, name)) = path.split() else { return false };
    let is_hex = |rest: &[u8]| rest.len() == 32 && rest.iter().all(u8::is_ascii_hexdigit);
    name.0.strip_prefix(b".outpost-").is_some_and(is_hex)
        || name.0.strip_prefix(b"#").is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
}

async fn unwatch(connection: Arc<ClientConnection>, params: FsUnwatchParams) -> Result<Nothing, Fault> {
    if let Some(watch) = connection.belongings.watches.remove(&params.watch_id) {
        watch.cancel();
    }
    Ok(Nothing {})
}
