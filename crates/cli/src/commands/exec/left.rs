//! Commands that outlive their turn: waited for, stopped, or left running with a word about it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use outpost_runtime::follow::ThreadFollower;
use outpost_runtime::live::{BackgroundProcess, LiveThread, ThreadActivity, ThreadEvent};
use outpost_thread::{CallId, ThreadId};
use tokio::time::{Instant, sleep_until};

use super::shapes::LineShape;
use super::{Report, Watching};
use crate::ProcessContext;
use crate::owner;

/// How long commands that are stopped may take to end.
const STOPPING: Duration = Duration::from_secs(15);
/// So much of a command is told of it.
const SHOWN: usize = 60;

/// Commands of a previous run of the thread: what they print stands in no turn that is shown here. They may print and end from the
/// moment on in which they are found.
#[derive(Default)]
pub(super) struct EarlierCommands {
    running: Vec<CallId>,
    half_lines: HashMap<CallId, Vec<u8>>,
    failed: bool,
}

impl EarlierCommands {
    pub(super) fn new(found: Vec<CallId>) -> Self {
        Self { running: found, ..Self::default() }
    }

    pub(super) fn event(&mut self, event: &ThreadEvent, report: &mut Report) {
        match event {
            ThreadEvent::Output { call, bytes } if self.running.contains(call) => {
                let half = self.half_lines.entry(call.clone()).or_default();
                half.extend_from_slice(bytes);
                let whole = half.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                report.left_output(&half.drain(..whole).collect::<Vec<u8>>());
            }
            ThreadEvent::ProcessEnded { call, exit_code } if self.running.contains(call) => {
                report.left_output(&self.half_lines.remove(call).unwrap_or_default());
                report.note(&exit_code.map_or_else(|| "its outcome is unknown".to_owned(), |code| format!("exit code {code}")));
                self.running.retain(|running| running != call);
                self.failed |= *exit_code != Some(0);
            }
            _ => {}
        }
    }
}

/// Waits until no command of the thread runs any more, after stopping them if that is wanted. A signal ends the wait, not the commands.
pub(super) async fn settle(
    thread: &LiveThread,
    follow: &mut ThreadFollower,
    watching: &mut Watching<'_>,
    stop: bool,
) -> anyhow::Result<()> {
    let running = thread.terminals().await?;
    let mut awaited: Vec<CallId> = running.into_iter().map(|command| command.call).collect();
    if stop {
        thread.terminate(None).await?;
    } else {
        // One that has ended meanwhile may not have been told yet.
        awaited.extend(watching.earlier.running.iter().filter(|call| !awaited.contains(call)).cloned().collect::<Vec<_>>());
    }
    let until = Instant::now() + STOPPING;
    while !awaited.is_empty() {
        let followed = tokio::select! {
            followed = follow.next() => followed,
            _ = watching.signals.next() => return Ok(()),
            () = sleep_until(until), if stop => return Ok(()),
        };
        let event = ThreadEvent::from(followed);
        watching.report.event(&event)?;
        watching.earlier.event(&event, watching.report);
        match event {
            ThreadEvent::ProcessEnded { call, exit_code } => {
                awaited.retain(|awaited| *awaited != call);
                watching.end.waited_badly |= !stop && exit_code != Some(0);
            }
            ThreadEvent::Status(ThreadActivity::Closed) => return Ok(()),
            _ => {}
        }
    }
    watching.end.waited_badly |= !stop && watching.earlier.failed;
    Ok(())
}

/// What becomes of the thread when this program ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterExit {
    /// No program has it until the user comes back.
    Rests,
    /// A server has it, and what runs.
    IsServed,
    /// Another process has it and begins a turn when a command ends that was started with `wake`.
    Wakes,
    /// The same is wanted, and this is why no process has it.
    CannotWake(String),
}

impl AfterExit {
    /// Leaves a thread that this program has given up to the process in the background, if the end of a command is to begin a turn.
    pub(crate) async fn of(thread: ThreadId, is_awaited: bool, is_remote: bool, own: &ProcessContext) -> Self {
        match (is_awaited, is_remote) {
            (false, false) => return Self::Rests,
            (false, true) => return Self::IsServed,
            (true, true) => return Self::Wakes,
            (true, false) => {}
        }
        match owner::take_up_wakes(thread, own).await {
            Ok(()) => Self::Wakes,
            Err(error) => Self::CannotWake(format!("{error:#}")),
        }
    }
}

/// A thread as a hint names it, behind its verb.
pub(crate) struct ThreadHint<'a> {
    pub thread: ThreadId,
    /// Where the thread is, if the verb does not find it by itself.
    pub flag: &'a str,
}

impl fmt::Display for ThreadHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.flag, self.thread)
    }
}

/// What people are told of commands that go on.
pub(crate) fn words(hint: &ThreadHint<'_>, left: &[BackgroundProcess], after: &AfterExit) -> Option<String> {
    let shown = |running: &BackgroundProcess| {
        let line = running.command.lines().next().unwrap_or_default();
        let short: String = line.chars().take(SHOWN).collect();
        let more = if short.len() < running.command.len() { " …" } else { "" };
        format!("`{short}{more}` on {}", running.environment)
    };
    let (subject, object) = match left {
        [] => return None,
        [one] => (format!("{} still runs", shown(one)), "it"),
        [first, rest @ ..] => (format!("{} commands still run, the first {}", rest.len() + 1, shown(first)), "them"),
    };
    let subject = match after {
        AfterExit::Wakes => {
            return Some(format!(
                "{subject}; when {object} ends, a turn begins in the background: `outpost chat resume{hint}` comes back to it, `/stop` there stops {object}"
            ));
        }
        // Only the server can follow and stop them.
        AfterExit::IsServed => return Some(format!("{subject}; in `outpost chat resume{hint}`, `/ps` lists and `/stop` stops {object}")),
        AfterExit::CannotWake(why) => format!("{subject}, and the turn for its end begins when the thread is opened next ({why})"),
        AfterExit::Rests => subject,
    };
    Some(format!(
        "{subject}; `outpost exec resume{hint} --wait` shows the output and waits for {object}, `outpost exec resume{hint} --stop` stops {object}"
    ))
}

/// The same for programs.
pub(super) fn shapes(left: &[BackgroundProcess]) -> Vec<LineShape> {
    let shape = |running: &BackgroundProcess| LineShape::CommandRunning {
        id: running.call.as_str().to_owned(),
        session_id: running.session,
        environment: running.environment.clone(),
        command: running.command.clone(),
    };
    left.iter().map(shape).collect()
}
