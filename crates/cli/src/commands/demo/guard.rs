//! Who cleans up after the demo. The demo plays in a program of its own, and this one holds its standard input: whichever of the
//! two is killed, by whatever signal, the other one notices and leaves nothing behind.

use std::ffi::OsString;
use std::process::Stdio;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, stdin};
use tokio::process::Command;

use super::players::DemoDirectory;
use crate::ProcessContext;
use crate::signals::ForwardedSignals;

/// Starts the demo in a process group of its own, so that a signal to ours does not take both at once.
pub(super) async fn watch(own: &ProcessContext) -> anyhow::Result<u8> {
    let mut signals = ForwardedSignals::listen()?;
    let scratch = DemoDirectory::new()?;
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let settings = own.settings.iter().flat_map(|setting| ["-c".to_owned(), setting.clone()]);
    let stage: [OsString; 3] = ["demo".into(), "--stage".into(), scratch.path().into()];
    let started = Command::new(program).args(settings).args(stage).stdin(Stdio::piped()).process_group(0).spawn();
    let mut stage = started.context("this program cannot be started again")?;
    let group = stage.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let line = stage.stdin.take();
    let told = tokio::select! {
        status = stage.wait() => status?.code().map(|code| u8::try_from(code).unwrap_or(1)),
        code = signals.stop() => {
            drop(line);
            stage.wait().await?.code().map(|_| code)
        }
    };
    if told.is_none()
        && let Some(group) = group
    {
        // A killed demo could not end its other programs.
        let _ = kill_process_group(group, Signal::KILL);
    }
    scratch.remove().await;
    told.context("the demo was killed; nothing is left of it but the thread")
}

/// Returns when the demo's parent is gone, or wants it to end.
pub(super) async fn gone() -> u8 {
    let mut nothing = [0; 64];
    while stdin().read(&mut nothing).await.is_ok_and(|count| count > 0) {}
    1
}
