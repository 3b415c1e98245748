//! `outpost cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_environment::{ExcludePattern, Location, Transfer, TransferOptions, TransferSummary};
use outpost_wire::PathUri;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{FAILED, failure};
use crate::ProcessContext;
use crate::args::CpArguments;
use crate::connection_notices;
use crate::out::{on_line_exactly, print_shown, say};
use crate::progress::{ProgressBar, size};
use crate::reach::{self, Caller, Reached};
use crate::signals::ForwardedSignals;

pub(crate) async fn run(arguments: CpArguments, own: &ProcessContext) -> ExitCode {
    match copy(&arguments, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure(&error),
    }
}

async fn copy(arguments: &CpArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let (source, destination) = (Side::parse(&arguments.source)?, Side::parse(&arguments.destination)?);
    let there = source.reach(arguments, own).await?;
    // One connection if both are the same.
    let other = if source.place == destination.place { None } else { Some(destination.reach(arguments, own).await?) };
    let from = source.locate(&there).await?;
    let to = destination.locate(other.as_ref().unwrap_or(&there)).await?;
    let mut signals = ForwardedSignals::listen().context("signals cannot be taken")?;
    let tag = Uuid::new_v4().simple().to_string()[..12].to_owned();
    let _notices = [&from, &to].map(|at| AbortOnDropHandle::new(tokio::spawn(connection_notices::tell(at.environment.clone(), "\n"))));
    // The usual spelling of a path that must be a directory.
    let into_directory = destination.path.as_bytes().ends_with(b"/");
    let options = TransferOptions {
        recursive: arguments.recursive,
        into_directory,
        exclude: arguments.exclude.iter().map(|text| ExcludePattern::parse(text)).collect::<Result<_, _>>()?,
        delete: arguments.delete,
        dry_run: arguments.dry_run,
        sync: arguments.sync,
    };
    let transfer = Transfer::new(from, to, options, tag);
    let label = Path::new(&arguments.source).file_name().unwrap_or(&arguments.source).to_string_lossy().into_owned();
    let bar = if own.is_quiet() { None } else { ProgressBar::start(transfer.progress(), label) };
    let outcome = tokio::select! {
        outcome = transfer.run() => Ok(outcome),
        code = signals.stop() => Err(code),
    };
    drop(bar);
    let left = transfer.clean_up().await;
    if !left.is_empty() {
        say(&format!("unfinished copies were left behind: {}", left.join(", ")));
    }
    for reached in [Some(there), other].into_iter().flatten() {
        reached.leave().await;
    }
    match outcome {
        Err(code) => Ok(code),
        Ok(outcome) => report(&outcome?, arguments, own),
    }
}

/// Says what was done; a copy from which something is missing has failed.
fn report(summary: &TransferSummary, arguments: &CpArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    use std::io::IsTerminal;
    if arguments.dry_run {
        let line = |what: &str, path: &PathUri| format!("{what} {}\n", on_line_exactly(&path.to_syntax()));
        let written = summary.planned.iter().map(|path| line("write", path));
        let lines: String = written.chain(summary.removed.iter().map(|path| line("remove", path))).collect();
        print_shown(&lines)?;
    } else if !own.is_quiet() && std::io::stderr().is_terminal() {
        let files = if summary.files == 1 { "1 file".into() } else { format!("{} files", summary.files) };
        say(&format!("{files}, {}", size(summary.bytes)));
    }
    for path in &summary.skipped {
        say(&format!("left out {path}: neither a file, nor a directory, nor a link"));
    }
    Ok(if summary.skipped.is_empty() { 0 } else { FAILED })
}

/// One of the two ends, as it was written.
struct Side {
    place: Place,
    path: OsString,
}

#[derive(PartialEq, Eq)]
enum Place {
    Here,
    Via,
    Named(String),
}

impl Side {
    fn parse(text: &OsStr) -> anyhow::Result<Self> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            bail!("a path is empty");
        }
        let is_address = [&b"ws://"[..], b"wss://", b"unix://"].iter().any(|scheme| bytes.starts_with(scheme));
        let colon = if is_address {
            let authority = bytes.windows(3).position(|window| window == b"://").unwrap_or_default() + 3;
            let rest = bytes[authority..].windows(2).position(|window| window == b":/");
            Some(authority + rest.with_context(|| format!("{} names no path; write ADDRESS:/PATH", text.display()))?)
        } else {
            bytes.iter().position(|byte| *byte == b':')
        };
        let named = colon.map(|colon| bytes.split_at(colon)).and_then(|(name, rest)| Some((std::str::from_utf8(name).ok()?, &rest[1..])));
        let here = || Self { place: Place::Here, path: text.to_owned() };
        Ok(match named {
            Some((name, path)) if is_address || is_name(name) => {
                let place = match name {
                    "local" => return Ok(Self { place: Place::Here, path: OsString::from_vec(path.to_vec()) }),
                    "via" => Place::Via,
                    name => Place::Named(name.to_owned()),
                };
                Self { place, path: OsString::from_vec(path.to_vec()) }
            }
            _ => here(),
        })
    }

    async fn reach(&self, arguments: &CpArguments, own: &ProcessContext) -> anyhow::Result<Reached> {
        let caller = Caller { client: "outpost-cp", patience: Duration::from_secs(arguments.patience) };
        match (&self.place, &arguments.via) {
            (Place::Here, _) => reach::here(caller, own),
            (Place::Via, Some(command)) => reach::via(command, caller, own),
            (Place::Via, None) => reach::named("via", caller, own).await,
            (Place::Named(name), _) => {
                let hint = || format!("`{name}:` names an environment; a file of this machine with a colon is written as ./{name}:…");
                reach::named(name, caller, own).await.with_context(hint)
            }
        }
    }

    /// A relative path begins in the current directory here, and in the home there.
    async fn locate(&self, reached: &Reached) -> anyhow::Result<Location> {
        let info = reached.connect().await?;
        let path = Path::new(&self.path);
        let path = if self.place == Place::Here {
            std::env::current_dir().context("the current directory is gone")?.join(path)
        } else if path.is_absolute() {
            path.to_owned()
        } else {
            let home = info.user_home_dir.or(info.cwd).context("the executor tells no home; give an absolute path")?;
            let rest = path.strip_prefix("~").unwrap_or(path);
            home.to_native().map(|home: PathBuf| home.join(rest))?
        };
        Ok(Location { environment: reached.environment.clone(), path: PathUri::from_native(&path)? })
    }
}

/// Whether this may be the name of an environment; anything else before a colon is part of a file's name.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}
