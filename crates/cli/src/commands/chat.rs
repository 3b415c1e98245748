//! `outpost chat`: a conversation with a thread, on a terminal or line by line.
//!
//! On a terminal it is drawn at the bottom of what the terminal shows (`ui.rs`); elsewhere, and where the user wants it, lines come one
//! after the other and nothing is ever drawn anew (`plain.rs`). Both follow the same thread, ask the same questions and take the same
//! commands.

mod agents;
mod complete;
mod errands;
mod keyboard;
mod past;
mod picker;
mod plain;
mod question;
mod slash;
mod status;
mod ui;
mod ui_terminal;
mod view;
mod waiting;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_runtime::live::BackgroundProcess;
use outpost_thread::ThreadId;

use self::ui_terminal::UiTerminal;
use crate::ProcessContext;
use crate::agent_args::{ChatArguments, ChatRequest, Which};
use crate::agents::{Agents, Audience, ThreadOrigin};
use crate::commands;
use crate::commands::exec::{AfterExit, ThreadHint, left_running};
use crate::out;
use crate::owner;
use crate::variables::VisibleVariables;

/// A terminal with fewer columns gets plain lines.
const NARROW: usize = 40;

/// So long a thread is asked at the end for commands that still run.
const LISTING: Duration = Duration::from_secs(5);

/// How a conversation with a thread ended.
enum ChatEnd {
    Left {
        said_something: bool,
    },
    /// The turn is to go on without this program.
    Detached,
    /// The user wants another thread.
    Switch(Which),
}

pub(crate) async fn run(arguments: ChatArguments, own: &ProcessContext) -> ExitCode {
    match work(arguments.request(), own).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => commands::failure(&error),
    }
}

async fn work(request: ChatRequest, own: &ProcessContext) -> anyhow::Result<()> {
    let ChatRequest { options, which, plain } = request;
    let mut terminal = if plain || prefers_plain(&own.variables) { None } else { UiTerminal::enter() };
    if let Some(terminal) = &mut terminal {
        terminal.first_paint();
    }
    let agents = Agents::new(&options, &which, Audience::User, own).await?;
    let talked = converse(&agents, which, terminal.as_mut(), own).await;
    // The terminal is the user's again before anything else is said.
    drop(terminal);
    let (is_remote, flag) = (agents.remote().is_some(), agents.server_flag().to_owned());
    agents.shut_down().await;
    let Some(Talked { thread, left, said_something, is_detached, is_awaited }) = talked? else { return Ok(()) };
    let mark = out::error_mark();
    if is_detached {
        if !is_remote {
            owner::take_up(thread, own).await.with_context(|| format!("thread {thread} was left, and no process goes on with it"))?;
        }
        out::aside(&format!("{mark}the turn goes on in the background; `outpost chat resume{flag} {thread}` comes back to it\n"));
        return Ok(());
    }
    let after = AfterExit::of(thread, is_awaited, is_remote, own).await;
    left_running(&ThreadHint { thread, flag: &flag }, &left, &after)
        .iter()
        .for_each(|words| out::aside(&format!("{mark}{}\n", out::on_error_line(words))));
    if said_something {
        out::aside(&format!("{mark}`outpost chat resume{flag} {thread}` goes on with this thread\n"));
    }
    Ok(())
}

/// The thread that was talked about last.
struct Talked {
    thread: ThreadId,
    said_something: bool,
    /// The turn is to go on without this program.
    is_detached: bool,
    /// Commands that still run.
    left: Vec<BackgroundProcess>,
    /// The end of one of them is to begin a turn.
    is_awaited: bool,
}

/// One thread after the other.
async fn converse(
    agents: &Agents,
    mut which: Which,
    mut terminal: Option<&mut UiTerminal>,
    own: &ProcessContext,
) -> anyhow::Result<Option<Talked>> {
    loop {
        if which == Which::Pick {
            which = match &mut terminal {
                Some(terminal) => match picker::pick(agents, terminal).await? {
                    Some(id) => Which::Id(id.to_string()),
                    None => return Ok(None),
                },
                None => bail!("name a thread, or pass --last: `outpost thread list` shows those that are there"),
            };
        }
        let open = agents.open(&which, ThreadOrigin { source: "cli", ..ThreadOrigin::default() }).await?;
        let thread = open.thread.clone();
        let end = match &mut terminal {
            Some(terminal) => ui::talk(agents, open, terminal).await?,
            None => plain::talk(agents, open, own).await?,
        };
        match end {
            ChatEnd::Left { said_something } => {
                // A server that hangs is not waited for.
                let left = tokio::time::timeout(LISTING, thread.terminals()).await.ok().and_then(Result::ok).unwrap_or_default();
                let is_awaited = thread.snapshot().await.is_ok_and(|state| !state.wakes.is_empty());
                return Ok(Some(Talked { thread: thread.id(), said_something, is_detached: false, left, is_awaited }));
            }
            ChatEnd::Detached => {
                // What runs is left as it is for the process that takes it up.
                if agents.remote().is_none() {
                    thread.hand_over().await;
                }
                let thread = thread.id();
                return Ok(Some(Talked { thread, said_something: true, is_detached: true, left: Vec::new(), is_awaited: false }));
            }
            ChatEnd::Switch(next) => which = next,
        }
    }
}

/// Whether lines should come one after the other: for screen readers, for logs, and where a terminal cannot do more.
fn prefers_plain(variables: &VisibleVariables) -> bool {
    let is_set = |name: &str| variables.get(name).is_some_and(|value| !value.is_empty());
    let is_dumb = variables.get("TERM").is_none_or(|term| term == "dumb");
    let has_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
    is_set("OUTPOST_PLAIN") || is_set("NO_COLOR") || is_dumb || !has_terminal || UiTerminal::columns() <= NARROW
}
