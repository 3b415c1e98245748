//! Signals that are meant for the command, not for us.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use outpost_environment::{Environment, RemoteProcess, State};
use outpost_wire::exec::environment::Capabilities;
use outpost_wire::exec::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::terminal;

/// What signals are forwarded to.
pub struct Forwarding {
    pub process: Arc<RemoteProcess>,
    pub environment: Environment,
    pub capabilities: Capabilities,
}

/// Forwards signals for ever.
pub async fn forward(to: Forwarding, tty: bool) {
    let listen = |kind: SignalKind| signal(kind).ok();
    let (Some(mut interrupt), Some(mut terminate), Some(mut hangup), Some(mut quit), Some(mut window)) = (
        listen(SignalKind::interrupt()),
        listen(SignalKind::terminate()),
        listen(SignalKind::hangup()),
        listen(SignalKind::quit()),
        listen(SignalKind::window_change()),
    ) else {
        tracing::warn!("signals cannot be forwarded");
        return;
    };
    if tty {
        to.resize().await;
    }
    let mut told = false;
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            _ = hangup.recv() => Signal::Hangup,
            _ = quit.recv() => Signal::Quit,
            _ = window.recv() => {
                if tty {
                    to.resize().await;
                }
                continue;
            }
        };
        let connected = matches!(*to.environment.watch().borrow(), State::Ready(_));
        if connected {
            to.send(signal).await;
        } else if told {
            // Asked twice while nobody is there to pass it on to.
            give_up(signal);
        } else {
            told = true;
            say("not connected; once more to give up");
        }
    }
}

impl Forwarding {
    async fn send(&self, signal: Signal) {
        let sent = match signal {
            Signal::Interrupt => self.process.signal(Signal::Interrupt).await,
            other if self.capabilities.process_signals => self.process.signal(other).await,
            // All that a foreign executor offers beyond an interrupt.
            _ => self.process.terminate().await.map(|_| ()),
        };
        if let Err(error) = sent {
            tracing::warn!(%error, "a signal was not passed on");
        }
    }

    async fn resize(&self) {
        if let Some(size) = terminal::size()
            && self.capabilities.process_resize
            && let Err(error) = self.process.resize(size.rows, size.cols).await
        {
            tracing::debug!(%error, "the window's size was not passed on");
        }
    }
}

#[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
fn say(text: &str) {
    eprintln!("outpost: {text}");
}

fn give_up(signal: Signal) -> ! {
    let number = match signal {
        Signal::Interrupt => 2,
        Signal::Quit => 3,
        Signal::Hangup => 1,
        _ => 15,
    };
    std::process::exit(128 + number)
}

/// Whether standard input is `/dev/null`, which has nothing to say.
pub fn stdin_is_null() -> bool {
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    match (std::fs::metadata("/dev/stdin"), null) {
        (Ok(stdin), Ok(null)) => stdin.file_type().is_char_device() && stdin.rdev() == null,
        _ => false,
    }
}
