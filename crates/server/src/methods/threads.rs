//! Starting, resuming, forking and taking over threads. A client that opens a thread is subscribed to it.

use std::path::Path;
use std::sync::Arc;

use outpost_environment::selection;
use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::LiveThread;
use outpost_runtime::runtime::LATER_INSTRUCTIONS;
use outpost_runtime::{ForkThread, StartThread};
use outpost_thread::{Fact, ForkPoint, Marker, Raw, SelectionChanged, Settings, SettingsChanged, TurnId};
use outpost_wire::app::ThreadParams;
use outpost_wire::app::event::{ThreadStarted, Warning};
use outpost_wire::app::thread::{
    ThreadFork, ThreadForkParams, ThreadOpened, ThreadResume, ThreadResumeParams, ThreadStart, ThreadStartParams, ThreadTakeover,
};
use outpost_wire::app::turn::{ItemsView, Turn};
use outpost_wire::intent::Selection;
use outpost_wire::{Fault, PathUri};
use serde_json::Value;

use super::choices::{self, Whose};
use super::{dynamic_tools, reading, thread_id};
use crate::agents;
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::{self, ClientMessage, ThreadFacts};
use crate::subscription::{SubscriptionReason, ThreadOpening};
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on_call::<ThreadStart, _, _>(start)
        .on_call::<ThreadResume, _, _>(resume)
        .on_call::<ThreadFork, _, _>(fork)
        .on_call::<ThreadTakeover, _, _>(take_over)
}

async fn start(connection: Arc<ClientConnection>, params: ThreadStartParams) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let server = connection.server.clone();
    let chosen = choices::choose(&connection, &params.overrides(), Whose::NewThread)?;
    let here = &server.facts.cwd;
    let cwd = params.cwd.as_deref().map_or_else(|| here.clone(), |text| selection::resolve_cwd(here, text));
    let roots = match &params.runtime_workspace_roots {
        Some(roots) => choices::workspace_roots(roots)?,
        None => vec![cwd.clone()],
    };
    let asked = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let mut start = StartThread::new();
    start.ephemeral = params.ephemeral.unwrap_or(false);
    let created = &mut start.created;
    created.selection = Some(selection::begin(asked, || server.runtime.registry().default_selection(&cwd, &roots)));
    created.capability_roots = choices::roots(params.selected_capability_roots.as_deref().unwrap_or_default())?;
    created.settings = Settings { cwd: Some(cwd.to_syntax()), ..chosen.settings };
    created.instructions = chosen.instructions;
    created.dynamic_tools = dynamic_tools::checked(params.dynamic_tools.unwrap_or_default())?;
    created.source = Some(Raw::from(Value::from("appServer")));
    created.thread_source = params.thread_source;
    created.originator = connection.client().map(|client| client.name.clone());
    created.by.clone_from(&connection.identity.name);
    created.program_version = Some(server.facts.version.clone());
    let live = server.runtime.start(start).await.map_err(fault::thread)?;
    open(connection, live, Past::New).await
}

async fn resume(connection: Arc<ClientConnection>, params: ThreadResumeParams) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let server = connection.server.clone();
    if let Some(history) = &params.history {
        return resume_history(connection, &params, history).await;
    }
    let path = params.path.as_deref().filter(|path| !path.is_empty());
    let id = if path.is_none() { Some(thread_id(&params.thread_id)?) } else { None };
    let given = params.overrides();
    let mut chosen = choices::choose(&connection, &given, Whose::KnownThread)?;
    // What is said later counts from the next step on.
    if let Some(instructions) = chosen.instructions.take().and_then(|raw| raw.read().ok()) {
        chosen.settings.other.insert(LATER_INSTRUCTIONS.into(), instructions);
    }
    let asked = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let capability_roots = params.selected_capability_roots.as_deref().map(choices::roots).transpose()?;
    let workspace_roots = params.runtime_workspace_roots.as_deref().map(choices::workspace_roots).transpose()?;
    let live = match (id, path) {
        (Some(id), _) => server.runtime.resume(id).await,
        (None, path) => server.runtime.resume_journal(Path::new(path.unwrap_or_default())).await,
    };
    let live = live.map_err(fault::thread)?;
    let place = WorkplaceChange { cwd: given.cwd, environments: asked, workspace_roots, capability_roots };
    change(&live, chosen.settings, place, &server.facts.cwd).await?;
    let mut past = Past::Whole { after: params.after, page: None };
    if params.exclude_turns {
        past = Past::Recent { after: params.after };
    }
    if let (Some(page), Past::Whole { page: wanted, .. }) = (params.initial_turns_page, &mut past) {
        *wanted = Some(page);
    }
    open(connection, live, past).await
}

/// A thread that goes on from a history which the client keeps: a new one, that begins with these items.
async fn resume_history(
    connection: Arc<ClientConnection>,
    params: &ThreadResumeParams,
    items: &[Value],
) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let server = connection.server.clone();
    if items.is_empty() {
        return Err(Fault::invalid_request("history must not be empty; thread/start begins without one"));
    }
    if let Some(index) = items.iter().position(|item| !item["type"].is_string()) {
        return Err(Fault::invalid_request(format!("history[{index}] is not an item of the Responses API: it has no `type`")));
    }
    let given = params.overrides();
    let chosen = choices::choose(&connection, &given, Whose::NewThread)?;
    let here = &server.facts.cwd;
    let cwd = given.cwd.as_deref().map_or_else(|| here.clone(), |text| selection::resolve_cwd(here, text));
    let roots = match &params.runtime_workspace_roots {
        Some(roots) => choices::workspace_roots(roots)?,
        None => vec![cwd.clone()],
    };
    let asked = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let mut start = StartThread::new();
    start.history = items.iter().cloned().map(Raw::from).collect();
    let created = &mut start.created;
    created.selection = Some(selection::begin(asked, || server.runtime.registry().default_selection(&cwd, &roots)));
    created.capability_roots = choices::roots(params.selected_capability_roots.as_deref().unwrap_or_default())?;
    created.settings = Settings { cwd: Some(cwd.to_syntax()), ..chosen.settings };
    created.instructions = chosen.instructions;
    created.source = Some(Raw::from(Value::from("appServer")));
    created.originator = connection.client().map(|client| client.name.clone());
    created.by.clone_from(&connection.identity.name);
    created.program_version = Some(server.facts.version.clone());
    let live = server.runtime.start(start).await.map_err(fault::thread)?;
    open(connection, live, Past::New).await
}

/// Where a thread is to work from now on.
#[derive(Default)]
pub(super) struct WorkplaceChange {
    pub cwd: Option<String>,
    pub environments: Option<Selection>,
    pub workspace_roots: Option<Vec<PathUri>>,
    pub capability_roots: Option<Vec<outpost_wire::CapabilityRoot>>,
}

/// Writes down what is different from now on, if anything is.
pub(super) async fn change(live: &LiveThread, mut settings: Settings, place: WorkplaceChange, here: &PathUri) -> Result<(), Fault> {
    let WorkplaceChange { cwd, environments, workspace_roots, capability_roots } = place;
    let mut facts: Vec<Fact> = Vec::new();
    let moves = cwd.is_some() || environments.is_some() || workspace_roots.is_some();
    let mut selection = None;
    if moves {
        let state = live.snapshot().await.map_err(fault::command)?;
        let now = state.settings.cwd.as_deref().and_then(|cwd| PathUri::from_syntax(cwd).ok()).unwrap_or_else(|| here.clone());
        let cwd = cwd.map(|text| selection::resolve_cwd(&now, &text));
        settings.cwd = cwd.as_ref().map(PathUri::to_syntax);
        let before = state.selection.clone().unwrap_or_default();
        let request = selection::SelectionRequest { environments, scope: selection::TurnScope::Thread, cwd, workspace_roots };
        let outcome = selection::decide(&before, request);
        selection = (outcome.thread != before).then_some(outcome.thread);
    }
    if settings != Settings::default() {
        facts.push(SettingsChanged { settings }.into());
    }
    if selection.is_some() || capability_roots.is_some() {
        facts.push(SelectionChanged { selection, capability_roots }.into());
    }
    if facts.is_empty() {
        return Ok(());
    }
    live.change(facts).await.map_err(fault::command)
}

async fn fork(connection: Arc<ClientConnection>, params: ThreadForkParams) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let server = connection.server.clone();
    let parent = match params.path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => server.runtime.thread_of_journal(Path::new(path)).map_err(fault::thread)?,
        None => thread_id(&params.thread_id)?,
    };
    if !params.ephemeral && server.runtime.is_ephemeral(parent).await {
        return Err(Fault::invalid_request(format!(
            "{}: it is not kept, so neither can a fork of it be; ask for `ephemeral`",
            fault::no_rollout(parent).message
        )));
    }
    let given = params.overrides();
    let chosen = choices::choose(&connection, &given, Whose::KnownThread)?;
    let asked = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let point = match (params.last_turn_id, params.before_turn_id) {
        (Some(_), Some(_)) => return Err(Fault::invalid_request("`lastTurnId` cannot be combined with `beforeTurnId`")),
        (Some(turn), None) => ForkPoint::AfterTurn(TurnId(turn)),
        (None, Some(turn)) => ForkPoint::BeforeTurn(TurnId(turn)),
        (None, None) => ForkPoint::Interrupted(Marker::User),
    };
    let mut fork = ForkThread::new(parent, point);
    fork.ephemeral = params.ephemeral;
    fork.forked.settings = chosen.settings;
    fork.forked.instructions = chosen.instructions;
    fork.forked.selection = asked;
    fork.forked.capability_roots = params.selected_capability_roots.as_deref().map(choices::roots).transpose()?;
    fork.forked.source = Some(Raw::from(Value::from("appServer")));
    fork.forked.thread_source = params.thread_source;
    fork.forked.originator = connection.client().map(|client| client.name.clone());
    fork.forked.program_version = Some(server.facts.version.clone());
    let workspace_roots = params.runtime_workspace_roots.as_deref().map(choices::workspace_roots).transpose()?;
    let live = server.runtime.fork(fork).await.map_err(fault::thread)?;
    let place = WorkplaceChange { cwd: given.cwd, workspace_roots, ..WorkplaceChange::default() };
    change(&live, Settings::default(), place, &server.facts.cwd).await?;
    open(connection, live, if params.exclude_turns { Past::NewWithoutTurns } else { Past::Forked }).await
}

async fn take_over(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let id = thread_id(&params.thread_id)?;
    let live = connection.server.runtime.take_over(id).await.map_err(fault::thread)?;
    open(connection, live, Past::Whole { after: None, page: None }).await
}

/// What of a thread's past the answer shows, and what is told again after it.
enum Past {
    New,
    NewWithoutTurns,
    Forked,
    Whole { after: Option<u64>, page: Option<outpost_wire::app::thread::InitialTurnsPage> },
    Recent { after: Option<u64> },
}

/// Answers with a thread as it is now, and tells from there on.
async fn open(connection: Arc<ClientConnection>, live: LiveThread, past: Past) -> Result<HandlerOutcome<ThreadOpened>, Fault> {
    let server = connection.server.clone();
    let opening = ThreadOpening::of(&connection, live).await?;
    let id = opening.state.id;
    let ephemeral = server.runtime.is_ephemeral(id).await;
    let (mut turns, mut page, mut again): (Vec<Turn>, Option<Vec<Turn>>, Vec<ClientMessage>) = (vec![], None, vec![]);
    let mut damage = vec![];
    match &past {
        Past::New | Past::NewWithoutTurns | Past::Recent { after: None } => {}
        Past::Recent { after: Some(after) } => again = reading::told_after(&server, &opening, *after).await?,
        Past::Forked => {
            let read = reading::past(&server, &opening.store, id, opening.state.last).await?;
            (turns, damage) = (read.turns.into_turns(), read.damage);
        }
        Past::Whole { after, page: wanted } => {
            let read = reading::past(&server, &opening.store, id, opening.state.last).await?;
            damage = read.damage;
            let all = read.turns.into_turns();
            if let Some(wanted) = wanted {
                page = Some(reading::first_page(all.clone(), wanted));
            }
            turns = all;
            if let Some(after) = after {
                again = reading::told_after(&server, &opening, *after).await?;
            }
        }
    }
    let shown = ThreadFacts { status: Some(opening.live().status()), ephemeral, path: reading::path(&opening.store, id), turns, damage };
    let missing = projection::damage(&opening.state, &shown);
    if !missing.is_empty() {
        let message = projection::damage_warning(id, &missing);
        again.insert(0, Warning { thread_id: Some(id.to_string()), message }.into());
    }
    let mut answer = projection::opened(&opening.state, shown, &server.defaults);
    answer.initial_turns_page = page.map(|data| outpost_wire::app::thread::ThreadTurnsListResponse {
        data: data.into_iter().map(|turn| Turn { items_view: ItemsView::Full, ..turn }).collect(),
        next_cursor: None,
        backwards_cursor: None,
    });
    let is_new = matches!(past, Past::New | Past::NewWithoutTurns | Past::Forked);
    let thread = answer.thread.clone();
    let begun = opening.begin(&connection, SubscriptionReason::Asked).await;
    let rest = async move {
        if is_new {
            server.broadcast(&ThreadStarted { thread }.into());
        }
        begun.tell(again).await;
        agents::join(&connection, id).await;
    };
    Ok(HandlerOutcome { output: answer, rest: Some(Box::pin(rest)) })
}
