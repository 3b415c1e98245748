//! `outpost sandbox`: what sandboxed commands left in layers over the home.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use outpost_sandbox::home::Layers;
use serde_json::json;

use super::{FAILED, complain};
use crate::args::SandboxCommand;
use crate::home::Home;
use crate::out::print;

pub(crate) fn run(command: SandboxCommand) -> ExitCode {
    let done = match command {
        SandboxCommand::List { json } => list(json),
        SandboxCommand::Clear { workspace, all } => clear(workspace.as_deref(), all),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

fn layers() -> anyhow::Result<Layers> {
    let home = Home::from_environment().context("layers are kept in a home; set OUTPOST_HOME")?;
    Ok(Layers::new(home.layers()))
}

fn list(as_json: bool) -> anyhow::Result<()> {
    let all = layers()?.list().context("the layers cannot be listed")?;
    if as_json {
        let row = |layer: &outpost_sandbox::home::LayerInfo| {
            let used = layer.used.and_then(|used| used.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs());
            json!({"workspace": layer.workspace.to_string_lossy(), "bytes": layer.bytes, "inUse": layer.is_in_use, "usedAt": used})
        };
        let rows: Vec<_> = all.iter().map(row).collect();
        return print(&format!("{}\n", serde_json::to_string_pretty(&rows)?));
    }
    let mut text = String::new();
    for layer in &all {
        let in_use = if layer.is_in_use { "  in use" } else { "" };
        let _ = writeln!(text, "{:>9}  {}{in_use}", size(layer.bytes), layer.workspace.display());
    }
    print(&text)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes.div_ceil(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

fn clear(workspace: Option<&Path>, all: bool) -> anyhow::Result<()> {
    let layers = layers()?;
    let known: Vec<PathBuf> = layers.list().context("the layers cannot be listed")?.into_iter().map(|layer| layer.workspace).collect();
    let wanted = match workspace {
        Some(path) => {
            // A workspace that is gone may have a layer all the same.
            let path = path.canonicalize().or_else(|_| std::path::absolute(path)).context("cannot resolve that path")?;
            if !known.contains(&path) {
                bail!("there is no layer of {}; `outpost sandbox list` says which there are", path.display());
            }
            vec![path]
        }
        None if all => known,
        None => bail!("name a workspace, or say --all"),
    };
    let mut busy = Vec::new();
    for workspace in wanted {
        let left = layers.clear(&workspace).with_context(|| format!("the layer of {} cannot be removed", workspace.display()))?;
        if left > 0 {
            busy.push(workspace.display().to_string());
        } else {
            print(&format!("removed the layer of {}\n", workspace.display()))?;
        }
    }
    if !busy.is_empty() {
        bail!("a session uses the layer of {}; end it first", busy.join(", "));
    }
    Ok(())
}
