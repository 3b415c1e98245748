//! Signals that are meant for the command, not for us.

use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{ConnectionState, Environment, RemoteProcess};
use outpost_wire::exec::environment::Capabilities;
use outpost_wire::exec::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::out::say;
use crate::terminal;

/// What signals are forwarded to.
pub(crate) struct Forwarding {
    pub process: Arc<RemoteProcess>,
    pub environment: Environment,
    pub capabilities: Capabilities,
}

/// A signal that this program takes. One that it was started with ignored (by `nohup`, or in the background of a script)
/// still has no effect on it, but is taken all the same: children would otherwise inherit that they ignore it.
pub(crate) struct Watched {
    signal: unix::Signal,
    counts: bool,
}

impl Watched {
    pub(crate) fn new(kind: SignalKind) -> io::Result<Self> {
        Self::unless(&IgnoredSignals::now(), kind)
    }

    fn unless(ignored: &IgnoredSignals, kind: SignalKind) -> io::Result<Self> {
        Ok(Self { signal: unix::signal(kind)?, counts: !ignored.have(kind) })
    }

    /// Ctrl-C for a program that its user talks to: it counts there whatever the program was started with, because a shell that
    /// runs a script in the background, or a `trap`, did not mean the person who sits at the terminal now.
    pub(crate) fn keyboard() -> io::Result<Self> {
        Ok(Self::new(SignalKind::interrupt())?.or_from_terminal())
    }

    fn or_from_terminal(self) -> Self {
        Self { counts: self.counts || has_terminal(), ..self }
    }

    pub(crate) async fn recv(&mut self) {
        while self.signal.recv().await.is_some() {
            if self.counts {
                return;
            }
        }
        std::future::pending().await
    }
}

/// Whether standard input is a terminal whose keys reach this program: those of one in the background go to another.
fn has_terminal() -> bool {
    let stdin = io::stdin();
    stdin.is_terminal() && rustix::termios::tcgetpgrp(&stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Signals that are ignored, as a mask. Those that this program was started with are looked at before any is taken: from then on it is
/// no longer ignored.
struct IgnoredSignals(u64);

impl IgnoredSignals {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default())
    }

    fn have(&self, kind: SignalKind) -> bool {
        self.0 & (1 << (kind.as_raw_value() - 1)) != 0
    }
}

/// Signals that are no longer ours from here on. Made before the command is started: whatever comes meanwhile is for it.
pub(crate) struct ForwardedSignals {
    interrupt: Watched,
    terminate: Watched,
    quit: Watched,
    hangup: Watched,
    window: Watched,
}

impl ForwardedSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = IgnoredSignals::now();
        Ok(Self {
            interrupt: Watched::unless(&ignored, SignalKind::interrupt())?.or_from_terminal(),
            terminate: Watched::unless(&ignored, SignalKind::terminate())?,
            quit: Watched::unless(&ignored, SignalKind::quit())?,
            hangup: Watched::unless(&ignored, SignalKind::hangup())?,
            window: Watched::unless(&ignored, SignalKind::window_change())?,
        })
    }

    /// Waits for one that asks a program to end, and tells the exit code that shells give to that.
    pub(crate) async fn stop(&mut self) -> u8 {
        code(self.next_stop().await)
    }

    async fn next_stop(&mut self) -> Signal {
        loop {
            if let SignalRequest::Stop(signal) = self.next().await {
                return signal;
            }
        }
    }

    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            () = self.interrupt.recv() => SignalRequest::Stop(Signal::Interrupt),
            () = self.terminate.recv() => SignalRequest::Stop(Signal::Terminate),
            () = self.hangup.recv() => SignalRequest::Stop(Signal::Hangup),
            () = self.quit.recv() => SignalRequest::Stop(Signal::Quit),
            () = self.window.recv() => SignalRequest::Resize,
        }
    }
}

/// What a signal wants.
pub(crate) enum SignalRequest {
    Stop(Signal),
    Resize,
}

/// An executor that has not answered so long after a signal is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Its answer may wait behind output that a slow link carries first.
const LONG_SILENCE: Duration = Duration::from_secs(30);

/// Waits for the start of a command. A signal that comes meanwhile is for the command; a second one, or an executor that does not
/// answer after the first, gives up with the exit code for that signal.
pub(crate) async fn unless_stopped<T>(
    starting: impl Future<Output = T>,
    signals: &mut ForwardedSignals,
) -> Result<(T, Option<Signal>), u8> {
    let mut starting = std::pin::pin!(starting);
    let first = tokio::select! {
        biased;
        started = &mut starting => return Ok((started, None)),
        first = signals.next_stop() => first,
    };
    say("not started yet; once more to give up");
    tokio::select! {
        biased;
        started = &mut starting => Ok((started, Some(first))),
        again = signals.stop() => Err(again),
        () = tokio::time::sleep(PATIENCE) => Err(code(first)),
    }
}

/// Forwards signals until one asks to give up; then tells the exit code.
pub(crate) async fn forward(to: Forwarding, mut signals: ForwardedSignals, tty: bool) -> u8 {
    if tty {
        to.resize().await;
    }
    let mut told = false;
    loop {
        let signal = match signals.next().await {
            SignalRequest::Stop(signal) => signal,
            SignalRequest::Resize => {
                if tty {
                    to.resize().await;
                }
                continue;
            }
        };
        let connected = matches!(*to.environment.watch().borrow(), ConnectionState::Ready(_));
        if connected {
            if let Err(code) = answered(to.send(signal), code(signal), &mut signals).await {
                return code;
            }
        } else if told {
            // A second signal while there is no process to pass it on to.
            return code(signal);
        } else {
            told = true;
            say("not connected; once more to give up");
        }
    }
}

/// Waits for the answer to a signal that was passed on. An executor that does not answer is given up when its user asks again, or
/// with the exit code for the signal when it is silent for long.
async fn answered(sending: impl Future<Output = ()>, silent: u8, signals: &mut ForwardedSignals) -> Result<(), u8> {
    let mut sending = std::pin::pin!(sending);
    if tokio::time::timeout(PATIENCE, &mut sending).await.is_ok() {
        return Ok(());
    }
    say("the executor has not answered yet; once more to give up");
    let given_up = tokio::select! {
        () = &mut sending => return Ok(()),
        again = signals.stop() => again,
        () = tokio::time::sleep(LONG_SILENCE) => silent,
    };
    say("given up: the command may still run");
    Err(given_up)
}

impl Forwarding {
    pub(crate) async fn send(&self, signal: Signal) {
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

pub(crate) fn code(signal: Signal) -> u8 {
    let number = match signal {
        Signal::Interrupt => 2,
        Signal::Quit => 3,
        Signal::Hangup => 1,
        _ => 15,
    };
    128 + number
}

/// Whether standard input is `/dev/null`, which has nothing to say.
pub(crate) fn stdin_is_null() -> bool {
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    match (std::fs::metadata("/dev/stdin"), null) {
        (Ok(stdin), Ok(null)) => stdin.file_type().is_char_device() && stdin.rdev() == null,
        _ => false,
    }
}
