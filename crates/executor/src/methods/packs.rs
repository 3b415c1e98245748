//! `fs/readPack`, `fs/writePack` and `fs/sync`.

use outpost_rpc::{Lane, Router};
use outpost_wire::exec::packs::{PackedBytes, ReadPack, ReadPackResponse, Sync, WritePack};
use outpost_wire::exec::session::Empty;

use crate::connection::ExecutorConnection;
use crate::fault;
use crate::files::LinkPolicy;
use crate::files::pack::{self, NewFile};
use crate::methods::files::FileCall;
use crate::methods::native::{admit, aside, blocking, gate, native, open_path};

/// Files of one pack, and bytes in all of them.
const MAX_FILES: usize = 4096;
const MAX_BYTES: usize = 8 << 20;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<ReadPack, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let gate = gate(&connection, params.sandbox.as_ref())?;
            let paths = params.paths.iter().map(native).collect::<Result<Vec<_>, _>>()?;
            let Some(first) = paths.first().filter(|_| paths.len() <= MAX_FILES) else {
                return Err(fault::pack_of(paths.len(), MAX_FILES));
            };
            let _call = FileCall::new(&connection, first).await;
            let compression = params.compression;
            let read = async move {
                let (mut sizes, mut raw) = (Vec::with_capacity(paths.len()), Vec::new());
                for path in &paths {
                    let file = gate.open_whole(path, LinkPolicy::Links).await?;
                    if raw.len() as u64 + file.size > MAX_BYTES as u64 {
                        return Err(fault::pack_too_large(MAX_BYTES));
                    }
                    let data = file.read()?;
                    sizes.push(data.len() as u64);
                    raw.extend_from_slice(&data);
                }
                // A file may have grown meanwhile.
                if raw.len() > MAX_BYTES {
                    return Err(fault::pack_too_large(MAX_BYTES));
                }
                Ok(ReadPackResponse { sizes, bytes: PackedBytes::pack(raw.into(), compression) })
            };
            aside(read).await
        })
        .on::<WritePack, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let new = |file: &outpost_wire::exec::packs::PackedFile| {
                let path = open_path(&connection, &file.path, params.sandbox.as_ref())?;
                let size = usize::try_from(file.size).ok().filter(|size| *size <= MAX_BYTES);
                Ok(NewFile { path, size: size.ok_or_else(|| fault::pack_too_large(MAX_BYTES))?, mode: file.mode })
            };
            if params.files.is_empty() || params.files.len() > MAX_FILES {
                return Err(fault::pack_of(params.files.len(), MAX_FILES));
            }
            let files = params.files.iter().map(new).collect::<Result<Vec<_>, _>>()?;
            let length: usize = files.iter().map(|file| file.size).sum();
            if length > MAX_BYTES {
                return Err(fault::pack_too_large(MAX_BYTES));
            }
            let _call = FileCall::new(&connection, &files[0].path).await;
            blocking(move || pack::write(&files, params.placing, &params.bytes.unpack(length).map_err(fault::unpacked)?)).await?;
            Ok(Empty {})
        })
        .on::<Sync, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let path = open_path(&connection, &params.path, params.sandbox.as_ref())?;
            let _call = FileCall::new(&connection, &path).await;
            blocking(move || pack::sync(&path).map_err(|error| fault::of_path(&path, error))).await?;
            Ok(Empty {})
        })
}
