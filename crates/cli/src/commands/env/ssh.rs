//! Bringing a program to a machine behind ssh, into a container or into a job.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use outpost_environment::TransferProgress;
use outpost_environment::bootstrap::{Binary, Far, ScriptTransport, digest, file_name};
use outpost_environment::route::{Manner, Route, master_name};
use outpost_wire::SharedError;

use super::say;
use crate::ProcessContext;
use crate::home::{Home, local_directories};
use crate::out::with_causes;
use crate::progress::{ProgressBar, size};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A place on whose way the user can be asked for a password.
pub(super) fn attended(route: Route) -> ScriptTransport {
    let manner = Manner { master: master(&route), attended: true, ..Manner::default() };
    ScriptTransport { route, manner }
}

/// The socket of a shared ssh connection, if there is one.
fn master(route: &Route) -> Option<PathBuf> {
    let ssh = route.ssh.as_ref()?;
    Some(local_directories().find()?.join(master_name(ssh))).filter(|path| path.exists())
}

/// Sees to it that there is a program of ours in a place, and says what was done for that.
pub(super) async fn bring(transport: &ScriptTransport, binary: Option<&Path>, own: &ProcessContext) -> anyhow::Result<()> {
    let name = transport.name();
    let far = transport.probe().await?;
    say(&format!("{name} is {} {}, {}, {}", far.os, far.arch, far.libc, shown(&far.shell)));
    match needed(&far, binary).await? {
        Needed::Nothing(why) => say(&format!("{why}; nothing is copied")),
        Needed::Program(binary) => {
            let progress = Arc::new(TransferProgress::of(binary.bytes.len() as u64));
            let bar = if own.is_quiet() { None } else { ProgressBar::start(progress.clone(), name) };
            let installed = transport.install(&binary, VERSION, |bytes| progress.add(bytes as u64)).await;
            drop(bar);
            let installed = installed?;
            say(&format!("copied {} to {} ({})", size(binary.bytes.len() as u64), installed.path, installed.version));
        }
    }
    Ok(())
}

/// The same in the background, where only errors are shown.
pub(crate) async fn carry(transport: ScriptTransport) -> Result<(), SharedError> {
    let carried = async {
        let far = transport.probe().await?;
        if let Needed::Program(binary) = needed(&far, None).await? {
            transport.install(&binary, VERSION, |_| {}).await?;
        }
        anyhow::Ok(())
    };
    carried.await.map_err(|error| SharedError::worded(with_causes(&error), error))
}

enum Needed {
    /// It is there; the text says where.
    Nothing(String),
    Program(Binary),
}

/// What has to be copied to a place.
async fn needed(far: &Far, named: Option<&Path>) -> anyhow::Result<Needed> {
    let ours = format!("outpost {VERSION}");
    if named.is_none() && far.current.is_none() && far.version.as_deref() == Some(ours.as_str()) {
        return Ok(Needed::Nothing(format!("{ours} is on the path there")));
    }
    let binary = choose(far, named).await?;
    let name = file_name(VERSION, &digest(&binary.bytes));
    if far.current.as_deref() == Some(name.as_str()) && far.version.is_some() {
        return Ok(Needed::Nothing(format!("~/.outpost/bin/{name} is there already")));
    }
    Ok(Needed::Program(binary))
}

fn shown(shell: &str) -> &str {
    if shell.is_empty() { "a shell without a name" } else { shell }
}

/// The program to copy: the one that is named; a static one that is kept for such machines; or this very one, if it fits.
async fn choose(far: &Far, named: Option<&Path>) -> anyhow::Result<Binary> {
    if let Some(path) = named {
        let binary = read(path).await?;
        far.fits(&binary).with_context(|| format!("{} cannot run there", path.display()))?;
        return Ok(binary);
    }
    let own = std::env::current_exe().context("cannot find the file of this program")?;
    if let Some(kept) = kept(&own, &far.arch).into_iter().find(|path| path.exists()) {
        let binary = read(&kept).await?;
        far.fits(&binary).with_context(|| format!("{} cannot run there", kept.display()))?;
        return Ok(binary);
    }
    // By this name it is found also when the file has been replaced since.
    let binary = read(Path::new("/proc/self/exe")).await?;
    if let Err(misfit) = far.fits(&binary) {
        let arch = &far.arch;
        bail!(
            "this program cannot run there: {misfit}; get the static program for that machine with `sh install.sh --carry {arch}` of a \
             release or `cargo xtask dist {arch} --programs-only` in the sources, and name it with `--binary` or put it at {}",
            kept(&own, arch).last().map_or_else(String::new, |path| path.display().to_string())
        );
    }
    Ok(binary)
}

/// Where the static program for an architecture may lie: beside this program, or in the home, where the installer puts it.
fn kept(own: &Path, arch: &str) -> Vec<PathBuf> {
    let name = format!("outpost-{arch}-static");
    let home = Home::from_environment().map(|home| home.programs().join(&name));
    std::iter::once(own.with_file_name(&name)).chain(home).collect()
}

async fn read(path: &Path) -> anyhow::Result<Binary> {
    let bytes = tokio::fs::read(path).await.with_context(|| format!("cannot read {}", path.display()))?;
    Binary::parse(bytes.into()).with_context(|| format!("{} cannot be copied to another machine", path.display()))
}
