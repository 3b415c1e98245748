//! `outpost env login`: one ssh connection that the user opens and all others share.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use outpost_environment::Ssh;
use outpost_environment::route::master_name;
use outpost_wire::EnvironmentId;

use super::{check, say};
use crate::ProcessContext;
use crate::env_args::LoginArguments;
use crate::environments::KnownEnvironments;
use crate::home::local_directories;

/// The longest path that ssh can make a socket of; it makes it under a longer name first.
const MAX_PATH: usize = 107 - 17;

pub(super) async fn run(arguments: &LoginArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let id = EnvironmentId::parse(&arguments.name)?;
    let known = KnownEnvironments::load(own).await?;
    let definition = known.definition(&id)?;
    let Some(ssh) = definition.route().and_then(|route| route.ssh) else {
        bail!("`{id}` is {definition}; only a machine behind ssh is logged in to");
    };
    let directory = local_directories().choose().context("there is no place for the socket of a shared connection")?;
    let master = directory.join(master_name(&ssh));
    ensure!(
        master.as_os_str().len() <= MAX_PATH,
        "{} is longer than a socket's path can be; set XDG_RUNTIME_DIR to a shorter one",
        master.display()
    );
    let is_open = control(&ssh, &master, "check")?;
    if arguments.end {
        ensure!(is_open, "there is no shared connection to `{id}`");
        ensure!(control(&ssh, &master, "exit")?, "the shared connection to `{id}` did not end");
        say(&format!("the shared connection to `{id}` is closed"));
        return Ok(0);
    }
    if is_open {
        say(&format!("`{id}` is logged in already; `outpost env login {id} --end` closes the connection"));
    } else {
        // What a killed connection left behind.
        let _ = std::fs::remove_file(&master);
        open(&ssh, &master)?;
    }
    let found = check::check(id.as_str(), own).await;
    say(&found.sentence());
    Ok(found.code)
}

/// On this terminal: ssh asks what it wants to know, and goes to the background when it knows it.
fn open(ssh: &Ssh, master: &Path) -> anyhow::Result<()> {
    let status = Command::new("ssh")
        .args(["-M", "-N", "-f", "-T", "-o", "ControlPersist=no", "-o", "ServerAliveInterval=30", "-o"])
        .arg(format!("ControlPath={}", master.display()))
        .args(&ssh.args)
        .args(["--", &ssh.destination])
        .stdin(Stdio::inherit())
        .stdout(Stdio::null())
        .status()
        .context("ssh cannot be started")?;
    ensure!(status.success(), "ssh to {} failed ({status}); the login was not completed", ssh.destination);
    ensure!(control(ssh, master, "check")?, "ssh opened no connection that could be shared");
    Ok(())
}

/// Says something to the shared connection; false if there is none.
fn control(ssh: &Ssh, master: &Path, what: &str) -> anyhow::Result<bool> {
    let status = Command::new("ssh")
        .args(["-O", what, "-o"])
        .arg(format!("ControlPath={}", master.display()))
        .args(&ssh.args)
        .args(["--", &ssh.destination])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("ssh cannot be started")?;
    Ok(status.success())
}
