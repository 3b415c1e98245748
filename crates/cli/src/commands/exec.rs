//! `outpost exec`: one turn of an agent, without a terminal.

mod show;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use outpost_runtime::feed::Read as FeedRead;
use outpost_runtime::live::{Event, LiveThread, NewInput, Status};
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::{Runtime, StartThread};
use outpost_thread::{Fact, InterruptReason, Raw, ThreadId, TurnFinished, TurnStatus};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId, Selection};

use crate::Process;
use crate::args::{ExecArguments, ExecCommand};
use crate::assembly::{Assembly, Wish};
use crate::commands;
use crate::config::Config;
use crate::home::Home;

pub async fn run(arguments: ExecArguments, own: &Process) -> ExitCode {
    match work(arguments, own).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => commands::failure(&error),
    }
}

async fn work(arguments: ExecArguments, own: &Process) -> anyhow::Result<u8> {
    let home = Home::from_environment().context("there is no home: set OUTPOST_HOME")?;
    let mut config = Config::load(Some(&home.config()), &arguments.settings)?;
    if let Some(mode) = &arguments.sandbox {
        config.sandbox_mode = Some(mode.clone());
    }
    // Nobody is there to be asked.
    config.approval_policy = Some(config.approval_policy.unwrap_or(ApprovalPolicy::Never));
    let wish =
        Wish { config, provider: arguments.provider.clone(), model: arguments.model.clone(), questions: false, keeps_sessions: true };
    let assembly = Assembly::new(&home, wish, own).await?;
    let mut screen = show::Screen::new();
    if let Some(note) = &assembly.note {
        screen.note(note);
    }
    let (resumed, prompt) = match &arguments.command {
        Some(ExecCommand::Resume { id, prompt }) => (Some(id.parse::<ThreadId>()?), prompt.clone()),
        None => (None, arguments.prompt.clone()),
    };
    let prompt = prompt_text(prompt, resumed.is_some())?;
    let thread = match resumed {
        Some(id) => assembly.runtime.resume(id).await?,
        None => {
            let mut start = StartThread::new();
            start.created.source = Some(Raw::from(serde_json::Value::from("exec")));
            start.created.program_version = Some(env!("CARGO_PKG_VERSION").into());
            start.created.selection = Some(selection(&assembly.runtime, &arguments).await?);
            start.created.capability_roots = arguments.roots.iter().map(|text| root(text)).collect::<anyhow::Result<_>>()?;
            assembly.runtime.start(start).await?
        }
    };
    screen.thread(thread.id());
    let mut feed = thread.subscribe();
    if let Some(prompt) = prompt {
        thread.input(NewInput::text(&prompt)).await?;
    }
    let end = follow(&thread, &mut feed, &mut screen).await;
    assembly.shut_down().await;
    screen.end(&end);
    Ok(match end {
        Some(TurnFinished { status: TurnStatus::Completed, .. }) => 0,
        None if resumed.is_some() => 0,
        _ => commands::FAILED,
    })
}

/// Shows everything until the thread is idle; the end of its last turn.
async fn follow(thread: &LiveThread, feed: &mut outpost_runtime::feed::Cursor<Event>, screen: &mut show::Screen) -> Option<TurnFinished> {
    let mut end = None;
    let mut signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    loop {
        // The status is true only when everything before it was shown.
        match feed.try_next() {
            Some(FeedRead::Event(event)) => {
                if let Event::Entry(entry) = &event
                    && let Fact::TurnFinished(finished) = &entry.fact
                {
                    end = Some((**finished).clone());
                }
                screen.show(&event);
                continue;
            }
            Some(FeedRead::Missed(count)) => {
                screen.note(&format!("{count} events were missed"));
                continue;
            }
            Some(FeedRead::End) => return end,
            None => {}
        }
        if !matches!(thread.status(), Status::Active { .. }) {
            return end;
        }
        let terminated = async {
            match &mut signals {
                Some(signals) => drop(signals.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(std::time::Duration::from_millis(10)) => {}
            _ = tokio::signal::ctrl_c() => drop(thread.interrupt(None, InterruptReason::User).await),
            () = terminated => drop(thread.interrupt(None, InterruptReason::Shutdown).await),
        }
    }
}

/// The prompt: an argument, standard input, or both. A resumed thread may go on without one.
fn prompt_text(argument: Option<String>, may_be_empty: bool) -> anyhow::Result<Option<String>> {
    let argument = argument.filter(|text| text != "-");
    let piped = !std::io::stdin().is_terminal() && (argument.is_none() || !may_be_empty);
    let mut text = argument.clone().unwrap_or_default();
    if piped {
        let mut more = String::new();
        std::io::stdin().read_to_string(&mut more).context("the prompt cannot be read from standard input")?;
        if !more.trim().is_empty() {
            text = if text.is_empty() { more } else { format!("{text}\n\n{more}") };
        }
    }
    match text.trim() {
        "" if may_be_empty => Ok(None),
        "" => bail!("there is no prompt: give one as an argument, or on standard input"),
        _ => Ok(Some(text)),
    }
}

/// `--root [ID=]ENV:PATH`; without an id, the folder's name is it.
fn root(text: &str) -> anyhow::Result<CapabilityRoot> {
    let usage = || format!("`{text}` is no capability root: write [ID=]ENV:/PATH");
    let (id, place) = text.split_once('=').map_or((None, text), |(id, place)| (Some(id), place));
    let (environment, path) = place.split_once(':').with_context(usage)?;
    let path = PathUri::from_syntax(path).with_context(usage)?;
    let folder = || path.split().map(|(_, name)| String::from_utf8_lossy(&name.0).into_owned());
    let id = id.map(str::to_owned).or_else(folder).with_context(usage)?;
    Ok(CapabilityRoot::new(id, EnvironmentId::parse(environment)?, path))
}

/// `-e ENV[=CWD]`, or the defaults.
async fn selection(runtime: &Runtime, arguments: &ExecArguments) -> anyhow::Result<Selection> {
    let here = std::env::current_dir().context("the current directory is gone")?;
    let here = arguments.cd.as_ref().map_or(here.clone(), |directory: &PathBuf| here.join(directory));
    let cwd = PathUri::from_native(&here)?;
    if arguments.environments.is_empty() {
        return Ok(runtime.registry().default_selection(&cwd, std::slice::from_ref(&cwd)));
    }
    let mut attachments = Vec::new();
    for wish in &arguments.environments {
        let (name, directory) = wish.split_once('=').map_or((wish.as_str(), None), |(name, directory)| (name, Some(directory)));
        let id = EnvironmentId::parse(name)?;
        if runtime.registry().status(&id).is_none() {
            let known: Vec<String> = runtime.registry().list().iter().map(|status| status.id.to_string()).collect();
            bail!("there is no environment `{id}`; there are: {}", known.join(", "));
        }
        let directory = match directory {
            Some(directory) => PathUri::from_syntax(directory).with_context(|| format!("`{wish}`: the directory must be absolute"))?,
            None if id.is_local() => cwd.clone(),
            None => {
                let info = runtime.registry().info(&id).await?;
                info.cwd.or(info.user_home_dir).with_context(|| format!("`{id}` tells no directory; write {id}=/DIRECTORY"))?
            }
        };
        attachments.push(Attachment::new(id, directory));
    }
    Selection::new(attachments).map_err(|duplicate| anyhow::anyhow!("environment `{}` is named twice", duplicate.0))
}
