//! Commands of a conversation, the same on a terminal and line by line.

use outpost_runtime::live::LiveThread;
use outpost_runtime::model::price::LISTED;
use outpost_store::PageRequest;
use outpost_thread::{Fact, SelectionChanged, Settings, SettingsChanged, TurnId};
use outpost_wire::app::thread::ThreadCapabilities;

use super::status::{ChatStatus, short};
use crate::agent_args::Which;
use crate::agents::Agents;
use crate::commands::thread::transfer::export_markdown;
use crate::commands::thread::why;
use crate::frame::{line, word};
use crate::out::with_causes;

/// The commands, with what they take and do.
pub(super) const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "keys and commands"),
    ("/status", "", "the thread, its model, environments, tokens and context"),
    ("/thread", "", "the id of this thread, and how to come back to it"),
    ("/model", "[NAME]", "the model of this thread, or another one from the next step on"),
    ("/env", "[ENV[=DIR]…]", "the environments, or other ones from the next step on"),
    ("/diff", "", "what the patches of the last turn changed"),
    ("/ps", "", "commands that run in the background"),
    ("/stop", "[ID]", "end one of them, or all"),
    ("/compact", "", "sum the conversation up, to make room"),
    ("/fork", "", "go on in a copy of this thread"),
    ("/revert", "", "take the last turn out of the conversation; what it did stays done"),
    ("/new", "", "a new thread"),
    ("/resume", "[ID]", "another thread"),
    ("/export", "[FILE]", "write the conversation to a file, as Markdown"),
    ("/why", "", "which skills and plugins the thread has, and why"),
    ("/detach", "", "leave now; the running turn goes on in the background"),
    ("/quit", "", "leave; Ctrl-D does the same"),
];

const KEYS: &str = "\
!COMMAND     run a command of yours in the primary environment, without a sandbox
@PATH Tab    complete a path of the primary environment
Esc          stop the running turn; what you type while it runs is told to the agent at its next step
Ctrl-C       empty the line, or stop the turn; twice leaves
Ctrl-R       search what you typed before in this directory; Up and Down go through it
Alt-Enter    a new line; so does a line that ends with \\";

/// What a command has to say.
pub(super) enum SlashLine {
    /// Our own words, with shown parts in them.
    Own(String),
    Wrong(String),
    /// A text of others, as it is.
    Theirs(String),
    Diff(String),
}

pub(super) enum SlashOutcome {
    Said(Vec<SlashLine>),
    Leave,
    /// At once, and the turn goes on.
    Detach,
    Switch(Which),
}

/// Whether a line is a command and no path or message.
pub(super) fn is_command(text: &str) -> bool {
    let name = text.split_whitespace().next().unwrap_or_default();
    let is_known = COMMANDS.iter().any(|(known, _, _)| *known == name) || name == "/exit";
    is_known || name.strip_prefix('/').is_some_and(|rest| !rest.contains(['/', '.']) && text.trim() == name)
}

pub(super) async fn run(text: &str, agents: &Agents, thread: &LiveThread) -> SlashOutcome {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let words: Vec<String> = words.map(str::to_owned).collect();
    let said = match name {
        "/quit" | "/exit" => return SlashOutcome::Leave,
        "/detach" => return SlashOutcome::Detach,
        "/new" => return SlashOutcome::Switch(Which::New),
        "/resume" => match words.first() {
            None => return SlashOutcome::Switch(Which::Pick),
            // Looked up first: a mistyped name must not end the conversation.
            Some(name) => match agents.find(name).await {
                Ok(_) => return SlashOutcome::Switch(Which::Id(name.clone())),
                Err(error) => Err(error),
            },
        },
        "/fork" => match fork(agents, thread).await {
            Ok(id) => return SlashOutcome::Switch(Which::Id(id)),
            Err(error) => Err(error),
        },
        "/help" => Ok(help()),
        "/thread" => Ok(own(format!("thread {0}; `outpost chat resume{1} {0}` goes on with it", thread.id(), agents.server_flag()))),
        "/status" => status(agents, thread).await,
        "/model" => model(agents, thread, words.first()).await,
        "/env" => environments(agents, thread, &words).await,
        "/diff" => diff(agents, thread).await,
        "/ps" => background(agents, thread).await,
        "/stop" => stop(thread, words.first()).await,
        "/compact" => thread.compact().await.map(|_| vec![]).map_err(Into::into),
        "/revert" => revert(agents, thread).await,
        "/export" => export(agents, thread, words.first()).await,
        "/why" => {
            let found = why_of(agents, thread).await;
            found.map(|found| vec![SlashLine::Theirs(why::text(&found))])
        }
        unknown => Ok(vec![SlashLine::Wrong(format!("there is no `{}`; /help lists what there is", line(unknown)))]),
    };
    SlashOutcome::Said(said.unwrap_or_else(|error| vec![SlashLine::Wrong(line(&with_causes(&error)))]))
}

async fn why_of(agents: &Agents, thread: &LiveThread) -> anyhow::Result<ThreadCapabilities> {
    match agents.remote() {
        Some(remote) => remote.server.why(thread.id()).await,
        None => Ok((&agents.own_runtime()?.why(thread.id()).await?).into()),
    }
}

type Said = anyhow::Result<Vec<SlashLine>>;

fn own(text: impl Into<String>) -> Vec<SlashLine> {
    vec![SlashLine::Own(text.into())]
}

fn help() -> Vec<SlashLine> {
    let commands = COMMANDS.iter().map(|(name, takes, what)| format!("{:<23}{what}", format!("{name} {takes}")));
    commands.chain(KEYS.lines().map(str::to_owned)).map(SlashLine::Own).collect()
}

async fn status(agents: &Agents, thread: &LiveThread) -> Said {
    let Some(status) = ChatStatus::of(agents, thread, None).await else { return Ok(own("the thread is closed")) };
    let state = thread.snapshot().await?;
    let environments = status.environments.iter().map(|(name, standing)| format!("{name} ({})", standing.as_deref().unwrap_or("ready")));
    let chosen = outpost_runtime::settings::approval(&state.effective_settings()).ok().flatten();
    let policy = chosen.or_else(|| agents.own_runtime().ok().map(|runtime| runtime.config().approval));
    let policy = policy.map_or_else(|| "as the server has it".to_owned(), |policy| policy.name().to_owned());
    let mut tokens = format!("{} in this thread", short(status.tokens));
    if let Some(cost) = status.cost {
        tokens.push_str(&format!(", about ${cost:.2} at the list prices of {} ({LISTED})", status.model));
    }
    let rows = [
        ("thread", thread.id().to_string()),
        ("model", format!("{} of {}", status.model, status.provider)),
        ("environments", environments.collect::<Vec<_>>().join(", ")),
        ("directory", status.directory.clone()),
        ("approvals", line(&policy)),
        ("tokens", tokens),
        ("context", format!("{} of {} tokens", short(status.context.0), short(status.context.1))),
        ("turns", state.turns.to_string()),
        ("background", format!("{} commands", status.background)),
    ];
    Ok(rows.into_iter().map(|(name, value)| SlashLine::Own(format!("{name:<15}{value}"))).collect())
}

async fn model(agents: &Agents, thread: &LiveThread, name: Option<&String>) -> Said {
    let settings = thread.snapshot().await?.effective_settings();
    let Some(name) = name else {
        let chosen = agents.model(thread.id(), &settings);
        let now = format!("model {} of provider {}", word(&chosen.name), word(&chosen.provider));
        return Ok(own(format!("{now}; /model NAME changes it")));
    };
    thread.change(vec![SettingsChanged { settings: Settings { model: Some(name.clone()), ..Settings::default() } }.into()]).await?;
    Ok(own(format!("from the next step on: model {}", word(name))))
}

async fn environments(agents: &Agents, thread: &LiveThread, names: &[String]) -> Said {
    if !names.is_empty() {
        let selection = agents.select(names).await?;
        let ids = selection.ids().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        thread.change(vec![SelectionChanged { selection: Some(selection), capability_roots: None }.into()]).await?;
        return Ok(own(format!("from the next step on: {ids}")));
    }
    let selection = thread.snapshot().await?.effective_selection().cloned().unwrap_or_default();
    let rows = agents.environments().await.into_iter().map(|row| {
        let chosen = selection.get(&row.id);
        let sign = match chosen {
            Some(_) if selection.primary().is_some_and(|primary| primary.environment_id == row.id) => "*",
            Some(_) => "+",
            None => " ",
        };
        let place = chosen.map(|attachment| word(&attachment.cwd.to_syntax())).unwrap_or_default();
        SlashLine::Own(format!("{sign} {:<15}{:<12}{place}", row.id.to_string(), row.word))
    });
    Ok(rows.chain(own("* primary, + selected; /env ENV[=DIR]… chooses others")).collect())
}

/// The last turn that counts.
async fn last_turn(agents: &Agents, thread: &LiveThread) -> anyhow::Result<(Option<TurnId>, Vec<Fact>)> {
    let request = PageRequest { turns: 1, ..PageRequest::default() };
    let page = agents.store().page(thread.id(), request).await?;
    let facts: Vec<Fact> = page.entries.into_iter().map(|entry| entry.fact).collect();
    let turn = facts.iter().rev().find_map(|fact| if let Fact::TurnStarted(turn) = fact { Some(turn.turn.clone()) } else { None });
    Ok((turn, facts))
}

async fn diff(agents: &Agents, thread: &LiveThread) -> Said {
    let (_, facts) = last_turn(agents, thread).await?;
    let mut lines = Vec::new();
    for fact in facts {
        let Fact::CallFinished(finished) = fact else { continue };
        for file in finished.view().files {
            lines.push(SlashLine::Own(format!("{} {}", file.change, word(&file.path))));
            lines.extend(file.diff.map(SlashLine::Diff));
        }
    }
    Ok(if lines.is_empty() { own("no patch changed a file in the last turn") } else { lines })
}

async fn background(agents: &Agents, thread: &LiveThread) -> Said {
    let running = thread.terminals().await?;
    let mut lines = Vec::new();
    for process in &running {
        let mut history = agents.store().history(thread.id(), process.asked_ordinal).await?;
        let mut command = String::new();
        while let Some(batch) = history.next().await? {
            let found = batch.entries.iter().find_map(|entry| match &entry.fact {
                Fact::CallStarted(started) if started.call == process.call => started.command(),
                _ => None,
            });
            if let Some(found) = found {
                command = word(found.command.lines().next().unwrap_or_default());
                break;
            }
        }
        lines.push(SlashLine::Own(format!("{:<12}{command}", process.session)));
    }
    Ok(if lines.is_empty() { own("no command runs in the background") } else { lines })
}

async fn stop(thread: &LiveThread, id: Option<&String>) -> Said {
    let session = match id.map(|id| id.parse::<u64>()) {
        Some(Err(_)) => anyhow::bail!("/stop takes the number of a command; /ps lists them"),
        Some(Ok(session)) => Some(session),
        None => None,
    };
    let count = thread.terminate(session).await?;
    Ok(own(format!("{count} stopped")))
}

async fn fork(agents: &Agents, thread: &LiveThread) -> anyhow::Result<String> {
    Ok(agents.fork(thread.id()).await?.to_string())
}

async fn revert(agents: &Agents, thread: &LiveThread) -> Said {
    let (Some(turn), _) = last_turn(agents, thread).await? else { return Ok(own("there is no turn to take back")) };
    thread.revert(turn).await?;
    Ok(own("the last turn does not count any more; what it did to files is not undone"))
}

async fn export(agents: &Agents, thread: &LiveThread, file: Option<&String>) -> Said {
    let file = file.cloned().unwrap_or_else(|| format!("outpost-{}.md", thread.id()));
    export_markdown(agents.store(), thread.id(), file.as_ref()).await?;
    Ok(own(format!("written to {}", word(&file))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_the_terminal_lists_every_command() {
        let page = include_str!("../../../../../docs/terminal.md");
        for (name, takes, _) in COMMANDS {
            let wanted = if takes.is_empty() { format!("`{name}`") } else { format!("`{name} {takes}`") };
            assert!(page.lines().any(|line| line.starts_with('|') && line.contains(&wanted)), "{wanted}");
        }
    }

    #[test]
    fn commands_are_told_from_paths_and_messages() {
        for command in ["/help", "/model gpt-5", "/nonsense", "/exit"] {
            assert!(is_command(command), "{command}");
        }
        for message in ["/etc/passwd", "/usr is full", "/a.b", "help", "what is /help"] {
            assert!(!is_command(message), "{message}");
        }
    }
}
