//! Bringing a program to a machine behind ssh.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use outpost_environment::Progress;
use outpost_environment::bootstrap::{Binary, Far, SshHost, digest, file_name};

use super::say;
use crate::args::AddArguments;
use crate::progress::{ProgressBar, size};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Sees to it that there is a program of ours on the far machine, and says what was done for that.
pub async fn bring(destination: &str, arguments: &AddArguments) -> anyhow::Result<()> {
    let host = SshHost { destination: destination.to_owned(), args: arguments.ssh_args.clone() };
    let far = host.probe().await?;
    say(&format!("{destination} is {} {}, {}, {}", far.os, far.arch, far.libc, shown(&far.shell)));
    let ours = format!("outpost {VERSION}");
    if arguments.binary.is_none() && far.current.is_none() && far.version.as_deref() == Some(ours.as_str()) {
        say(&format!("{ours} is on the path there; nothing is copied"));
        return Ok(());
    }
    let binary = choose(&far, arguments.binary.as_deref()).await?;
    let name = file_name(VERSION, &digest(&binary.bytes));
    if far.current.as_deref() == Some(name.as_str()) && far.version.is_some() {
        say(&format!("~/.outpost/bin/{name} is there already; nothing is copied"));
        return Ok(());
    }
    let progress = Arc::new(Progress::of(binary.bytes.len() as u64));
    let bar = ProgressBar::start(progress.clone(), destination.to_owned());
    let installed = host.install(&binary, VERSION, |bytes| progress.add(bytes as u64)).await;
    drop(bar);
    let installed = installed?;
    say(&format!("copied {} to {} ({})", size(binary.bytes.len() as u64), installed.path, installed.version));
    Ok(())
}

fn shown(shell: &str) -> &str {
    if shell.is_empty() { "a shell without a name" } else { shell }
}

/// The program to copy: the one that is named; a static one beside this one; or this very one, if it fits.
async fn choose(far: &Far, named: Option<&Path>) -> anyhow::Result<Binary> {
    if let Some(path) = named {
        let binary = read(path).await?;
        far.fits(&binary).with_context(|| format!("{} cannot run there", path.display()))?;
        return Ok(binary);
    }
    let own = std::env::current_exe().context("this program cannot be found again")?;
    let fixed = own.with_file_name(format!("outpost-{}-static", far.arch));
    if fixed.exists() {
        let binary = read(&fixed).await?;
        far.fits(&binary).with_context(|| format!("{} cannot run there", fixed.display()))?;
        return Ok(binary);
    }
    // By this name it is found also when the file has been replaced since.
    let binary = read(Path::new("/proc/self/exe")).await?;
    if let Err(misfit) = far.fits(&binary) {
        bail!(
            "this program cannot run there: {misfit}. `cargo xtask dist` builds a static one for the machine it runs on; \
             give it with --binary, or put it beside this program as {}",
            fixed.display()
        );
    }
    Ok(binary)
}

async fn read(path: &Path) -> anyhow::Result<Binary> {
    let bytes = tokio::fs::read(path).await.with_context(|| format!("cannot read {}", path.display()))?;
    Binary::parse(bytes.into()).with_context(|| format!("{} cannot be copied to another machine", path.display()))
}
