//! Turns: starting, steering, stopping.

use std::sync::Arc;

use outpost_environment::selection::{self, SelectionRequest, TurnScope};
use outpost_rpc::HandlerOutcome;
use outpost_runtime::follow::{Followed, ThreadFollower};
use outpost_runtime::live::{Accepted, CommandError, InputMode, LiveThread, NewInput, ThreadEvent};
use outpost_thread::{Entry, Fact, InputId, InputOrigin, InputReceived, InterruptReason, Ordinal, Raw, TurnId, TurnSettingsChanged};
use outpost_wire::app::Nothing;
use outpost_wire::app::turn::{
    EnvironmentsScope, ItemsView, Turn, TurnInterrupt, TurnInterruptParams, TurnSettingsUpdate, TurnSettingsUpdateParams,
    TurnSettingsUpdateResponse, TurnSettingsUpdateStatus, TurnStart, TurnStartParams, TurnStartResponse, TurnStatus, TurnSteer,
    TurnSteerParams, TurnSteerResponse,
};
use outpost_wire::{Fault, PathUri};

use super::{choices, loaded, reading};
use crate::agents;
use crate::connection::ClientConnection;
use crate::fault;
use crate::input;
use crate::subscription::{Hold, SubscriptionReason, ThreadOpening};
use crate::table::{Sent, Table};

pub(super) fn register(table: Table) -> Table {
    table
        .on_request::<TurnStart, _, _>(start)
        .on_call::<TurnSteer, _, _>(steer)
        .on::<TurnInterrupt, _, _>(interrupt)
        .on::<TurnSettingsUpdate, _, _>(settings)
}

/// Makes sure that this client hears of a thread, and keeps back what happens in it until the answer is on its way.
pub(super) async fn attend(connection: &Arc<ClientConnection>, live: &LiveThread) -> Result<Hold, Fault> {
    if connection.subscription(live.id()).is_none() {
        let begun = ThreadOpening::of(connection, live.clone()).await?.begin(connection, SubscriptionReason::Asked).await;
        begun.tell(vec![]).await;
        agents::join(connection, live.id()).await;
    }
    loop {
        let Some(subscription) = connection.subscription(live.id()) else { return Err(fault::thread_not_found(live.id())) };
        let hold = subscription.hold().await;
        // Another request may have opened the thread anew meanwhile.
        if !hold.is_replaced() {
            return Ok(hold);
        }
    }
}

/// An answer, after which what was kept back is told.
pub(super) fn then_tell<O>(output: O, hold: Hold) -> HandlerOutcome<O> {
    HandlerOutcome { output, rest: Some(Box::pin(async move { drop(hold) })) }
}

async fn start(connection: Arc<ClientConnection>, sent: Sent, params: TurnStartParams) -> Result<HandlerOutcome<TurnStartResponse>, Fault> {
    let server = connection.server.clone();
    let live = loaded(&connection, &params.thread_id).await?;
    // Everything is checked before anything is changed.
    let environments = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let workspace_roots = params.runtime_workspace_roots.as_deref().map(choices::workspace_roots).transpose()?;
    let mut settings = choices::wanted(
        &server,
        choices::TurnChoices {
            model: params.model,
            effort: params.effort,
            approval_policy: params.approval_policy,
            approvals_reviewer: params.approvals_reviewer,
            sandbox_policy: params.sandbox_policy.as_ref(),
            permissions: params.permissions.as_deref(),
        },
    )?;
    let message = input::message(params.input, params.additional_context).await?;
    let mut new = NewInput {
        mode: InputMode::StartOrSteer,
        client_key: params.client_user_message_id,
        by: connection.identity.name.clone(),
        content: message.content,
        items: message.items,
        output_schema: params.output_schema.filter(|schema| !schema.is_null()).map(Raw::from),
        trace: sent.trace.filter(|trace| trace.parent().is_some()),
        ..NewInput::default()
    };
    if environments.is_some() || workspace_roots.is_some() || params.cwd.is_some() {
        let state = live.snapshot().await.map_err(fault::command)?;
        let own = state.settings.cwd.as_deref().and_then(|cwd| PathUri::from_syntax(cwd).ok());
        let now = own.unwrap_or_else(|| server.facts.cwd.clone());
        let cwd = params.cwd.as_deref().map(|text| selection::resolve_cwd(&now, text));
        settings.cwd = cwd.as_ref().map(PathUri::to_syntax);
        let scope = match params.environments_scope.unwrap_or_default() {
            EnvironmentsScope::Turn => TurnScope::Turn,
            EnvironmentsScope::Thread => TurnScope::Thread,
        };
        let before = state.selection.unwrap_or_default();
        let is_override = environments.is_some();
        let outcome = selection::decide(&before, SelectionRequest { environments, scope, cwd, workspace_roots });
        new.turn_selection = (is_override && scope == TurnScope::Turn).then_some(outcome.turn);
        new.selection = (outcome.thread != before).then_some(outcome.thread);
    }
    new.settings = settings;
    let hold = attend(&connection, &live).await?;
    let waiting = Waiting::new(&live, &new);
    let turn = match live.input(new).await.map_err(fault::command)? {
        Accepted::Started(turn) | Accepted::Steered(turn) => begun(&turn),
        Accepted::Known(Some(turn)) => known(&connection, &live, &turn).await?,
        Accepted::Queued | Accepted::Known(None) => {
            // It may wait for long, and what happens meanwhile is told.
            drop(hold);
            return Ok(TurnStartResponse { turn: begun(&waiting.turn().await?) }.into());
        }
    };
    Ok(then_tell(TurnStartResponse { turn }, hold))
}

/// A turn that has only just begun.
pub(super) fn begun(id: &TurnId) -> Turn {
    Turn {
        id: id.to_string(),
        items: vec![],
        items_view: ItemsView::NotLoaded,
        status: TurnStatus::InProgress,
        error: None,
        started_at: None,
        completed_at: None,
        duration_ms: None,
        root_turn_id: None,
        plan: None,
    }
}

/// The turn that an earlier request with the same key started, as it stands.
async fn known(connection: &Arc<ClientConnection>, live: &LiveThread, id: &TurnId) -> Result<Turn, Fault> {
    let (state, _, store) = reading::state_of(&connection.server, live.id()).await?;
    let turns = reading::past(&connection.server, &store, live.id(), state.last).await?.turns.into_turns();
    let found = turns.into_iter().find(|turn| turn.id == id.as_str());
    Ok(found.map_or_else(|| begun(id), crate::projection::without_items))
}

/// Something that was said and waits for a turn of its own.
struct Waiting {
    live: LiveThread,
    /// From before it was said.
    follower: ThreadFollower,
    key: Option<String>,
    content: Vec<Raw>,
    /// What it is called, as soon as that is known.
    input: Option<InputId>,
    /// What lies before this entry is known.
    seen: Ordinal,
}

impl Waiting {
    fn new(live: &LiveThread, said: &NewInput) -> Self {
        let (key, content) = (said.client_key.clone(), said.content.clone());
        Self { live: live.clone(), follower: live.follow_from_now(), key, content, input: None, seen: 0 }
    }

    /// The turn that takes it up, unless it is taken back.
    async fn turn(mut self) -> Result<TurnId, Fault> {
        if self.key.is_some()
            && let Some(turn) = self.look().await?
        {
            return Ok(turn);
        }
        loop {
            let found = match self.follower.next().await {
                Followed::Event(ThreadEvent::Entry(entry)) if entry.ordinal > self.seen => self.entry(&entry).await?,
                Followed::Event(_) => None,
                Followed::Unreadable(_) => self.look().await?,
                Followed::End => return Err(fault::thread_not_found(self.live.id())),
            };
            if let Some(turn) = found {
                return Ok(turn);
            }
        }
    }

    async fn entry(&mut self, entry: &Entry) -> Result<Option<TurnId>, Fault> {
        let is_it = |inputs: &[InputId]| self.input.as_ref().is_some_and(|input| inputs.contains(input));
        match &entry.fact {
            Fact::InputReceived(fact) if fact.turn.is_none() && self.is_called(fact) => self.input = Some(fact.input.clone()),
            Fact::TurnStarted(fact) if is_it(&fact.inputs) => return Ok(Some(fact.turn.clone())),
            Fact::QueueChanged(fact) if self.input.is_some() && !is_it(&fact.queue) => return self.left(entry.ordinal).await.map(Some),
            _ => {}
        }
        Ok(None)
    }

    /// Without a key it is known by what it says, until its text is changed: then its name has become its key.
    fn is_called(&self, fact: &InputReceived) -> bool {
        match (&self.key, &self.input) {
            (Some(_), _) => fact.client_key == self.key,
            (None, Some(input)) => fact.client_key.as_deref() == Some(input.as_str()),
            (None, None) => fact.client_key.is_none() && fact.content == self.content,
        }
    }

    /// It has left the queue: the running turn took it, or it was dropped.
    async fn left(&mut self, ordinal: Ordinal) -> Result<TurnId, Fault> {
        // When this is answered, whatever was stored together with the change is there to be followed.
        if let Some(turn) = self.look().await? {
            return Ok(turn);
        }
        match self.follower.ready().await {
            Some(Followed::Event(ThreadEvent::Entry(entry))) if entry.ordinal == ordinal + 1 => match &entry.fact {
                Fact::InputReceived(fact) if fact.content == self.content => fact.turn.clone().ok_or_else(taken_back),
                _ => Err(taken_back()),
            },
            _ => Err(taken_back()),
        }
    }

    /// How it stands now, as far as that can be seen: taken up, waiting, or taken back.
    async fn look(&mut self) -> Result<Option<TurnId>, Fault> {
        let state = self.live.snapshot().await.map_err(fault::command)?;
        if let Some(key) = &self.key {
            let keyed = state.keyed(key).ok_or_else(taken_back)?;
            (self.input, self.seen) = (Some(keyed.input.clone()), state.last);
            return Ok(keyed.turn.clone());
        }
        if self.input.is_none() {
            let newest = state.queued.iter().rev().find(|input| input.client_key.is_none() && input.origin == InputOrigin::User);
            self.input = newest.map(|input| input.id.clone());
        }
        Ok(None)
    }
}

fn taken_back() -> Fault {
    Fault::invalid_request("the message was deleted from the queue before a turn took it up")
}

async fn steer(connection: Arc<ClientConnection>, params: TurnSteerParams) -> Result<HandlerOutcome<TurnSteerResponse>, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let message = input::message(params.input, params.additional_context).await?;
    let new = NewInput {
        by: connection.identity.name.clone(),
        mode: InputMode::Steer { expected: Some(TurnId(params.expected_turn_id)) },
        client_key: params.client_user_message_id,
        content: message.content,
        items: message.items,
        ..NewInput::default()
    };
    let hold = attend(&connection, &live).await?;
    let turn_id = match live.input(new).await.map_err(fault::steer)? {
        Accepted::Started(turn) | Accepted::Steered(turn) | Accepted::Known(Some(turn)) => turn.to_string(),
        Accepted::Queued | Accepted::Known(None) => return Err(Fault::invalid_request("no active turn to steer")),
    };
    Ok(then_tell(TurnSteerResponse { turn_id }, hold))
}

/// A turn that is over is what was wanted; the answer never waits for another one.
async fn interrupt(connection: Arc<ClientConnection>, params: TurnInterruptParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let turn = Some(params.turn_id).filter(|turn| !turn.is_empty()).map(TurnId);
    live.interrupt(turn, InterruptReason::User).await.map_err(fault::interrupt)?;
    Ok(Nothing {})
}

/// A turn that is over is told as such; that is no mistake of the client, who cannot know it.
async fn settings(connection: Arc<ClientConnection>, params: TurnSettingsUpdateParams) -> Result<TurnSettingsUpdateResponse, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    for (name, is_given) in [("summary", params.summary.is_some()), ("serviceTier", params.service_tier.is_some())] {
        if is_given {
            return Err(Fault::invalid_request(format!("`{name}` cannot be changed here; send only model, effort and approvalsReviewer")));
        }
    }
    let wanted = choices::TurnChoices {
        model: params.model,
        effort: params.effort,
        approval_policy: None,
        approvals_reviewer: params.approvals_reviewer,
        sandbox_policy: None,
        permissions: None,
    };
    let settings = choices::wanted(&connection.server, wanted)?;
    let changed = live.change(vec![TurnSettingsChanged { turn: TurnId(params.turn_id), settings }.into()]).await;
    let status = match changed {
        Ok(()) => TurnSettingsUpdateStatus::Applied,
        Err(CommandError::NoTurn | CommandError::OtherTurn { .. }) => TurnSettingsUpdateStatus::TargetUnavailable,
        Err(error) => return Err(fault::command(error)),
    };
    Ok(TurnSettingsUpdateResponse { status })
}
