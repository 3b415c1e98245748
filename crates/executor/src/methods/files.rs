//! `fs/*`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::files::{
    Canonicalize, CanonicalizeResponse, Copy, CreateDirectory, GetMetadata, ReadDirectory, ReadDirectoryResponse, ReadFile,
    ReadFileResponse, Remove, Rename, WriteFile,
};
use outpost_wire::exec::session::Empty;
use outpost_wire::{Fault, PathUri, base64};

use crate::connection::Connection;
use crate::fault;
use crate::files::{self, Follow};
use crate::methods::native::{admit, blocking, open_path};

pub fn routes(router: Router<Connection>) -> Router<Connection> {
    router
        .on::<ReadFile, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            let data = blocking(move || files::read(&path, follow(params.follow_symlinks))).await?;
            Ok(ReadFileResponse { data_base64: data.into() })
        })
        .on::<WriteFile, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            let data = base64::decode(&params.data_base64)
                .map_err(|error| Fault::invalid_request(format!("fs/writeFile requires valid base64 dataBase64: {error}")))?;
            let options = files::WriteOptions { follow: follow(params.follow_symlinks), sync: params.sync.unwrap_or(false) };
            blocking(move || files::write(&path, &data, &options)).await?;
            Ok(Empty {})
        })
        .on::<CreateDirectory, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            let recursive = params.recursive.unwrap_or(true);
            blocking(move || files::create_directory(&path, recursive, follow(params.follow_symlinks))).await?;
            Ok(Empty {})
        })
        .on::<GetMetadata, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            blocking(move || files::metadata(&path, follow(params.follow_symlinks))).await
        })
        .on::<Canonicalize, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            let path = blocking(move || files::canonicalize(&path)).await?;
            Ok(CanonicalizeResponse { path: PathUri::from_native(&path).map_err(fault::path)? })
        })
        .on::<ReadDirectory, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            Ok(ReadDirectoryResponse { entries: blocking(move || files::read_directory(&path)).await? })
        })
        .on::<Remove, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let path = open_path(&params.path, params.sandbox.as_ref())?;
            let options = files::RemoveOptions {
                recursive: params.recursive.unwrap_or(true),
                force: params.force.unwrap_or(true),
                follow: follow(params.follow_symlinks),
            };
            blocking(move || files::remove(&path, &options)).await?;
            Ok(Empty {})
        })
        .on::<Copy, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let source = open_path(&params.source_path, params.sandbox.as_ref())?;
            let destination = open_path(&params.destination_path, params.sandbox.as_ref())?;
            blocking(move || files::copy(&source, &destination, params.recursive)).await?;
            Ok(Empty {})
        })
        .on::<Rename, _, _>(Lane::Ordinary, admit, |_, params| async move {
            let source = open_path(&params.source_path, params.sandbox.as_ref())?;
            let destination = open_path(&params.destination_path, params.sandbox.as_ref())?;
            blocking(move || files::rename(&source, &destination)).await?;
            Ok(Empty {})
        })
}

fn follow(asked: Option<bool>) -> Follow {
    if asked.unwrap_or(true) { Follow::Links } else { Follow::Nothing }
}
