//! Reviews: a turn with instructions of our own about what to look at, and how to tell what was found.

use std::sync::Arc;

use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::{Accepted, InputMode, NewInput};
use outpost_thread::{Raw, TurnKind};
use outpost_wire::Fault;
use outpost_wire::app::review::{ReviewStart, ReviewStartParams, ReviewStartResponse, ReviewTarget};
use serde_json::json;

use super::loaded;
use super::turns::{attend, begun, then_tell};
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table.on_call::<ReviewStart, _, _>(start)
}

/// How a reviewer works, whatever is reviewed.
const MANNER: &str = include_str!("review.md");

async fn start(connection: Arc<ClientConnection>, params: ReviewStartParams) -> Result<HandlerOutcome<ReviewStartResponse>, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let (shown, task) = worded(&params.target)?;
    let told = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": format!("{task}\n\n{MANNER}")}]});
    let new = NewInput {
        by: connection.identity.name.clone(),
        mode: InputMode::StartIfIdle,
        kind: TurnKind::Review,
        content: vec![Raw::from(json!({"type": "text", "text": shown, "text_elements": []}))],
        items: vec![Raw::from(told)],
        ..NewInput::default()
    };
    let hold = attend(&connection, &live).await?;
    match live.input(new).await.map_err(fault::command)? {
        Accepted::Started(turn) | Accepted::Steered(turn) | Accepted::Known(Some(turn)) => {
            Ok(then_tell(ReviewStartResponse { turn: begun(&turn), review_thread_id: params.thread_id }, hold))
        }
        Accepted::Queued | Accepted::Known(None) => Err(Fault::invalid_request("a turn is running")),
    }
}

/// What people are shown of the task, and what the model is told.
fn worded(target: &ReviewTarget) -> Result<(String, String), Fault> {
    let named = |what: &str, name: &str| match name.trim() {
        "" => Err(Fault::invalid_request(format!("{what} must not be empty"))),
        name => Ok(name.to_owned()),
    };
    Ok(match target {
        ReviewTarget::UncommittedChanges => (
            "Review of the uncommitted changes".into(),
            "Review everything in the working tree that is not committed: what is staged, what is not, and files that git does not know yet."
                .into(),
        ),
        ReviewTarget::BaseBranch { branch } => {
            let branch = named("branch", branch)?;
            let task = format!(
                "Review what the present branch changes compared with `{branch}`. Look for the commit where both part \
                 (`git merge-base HEAD {branch}`) and compare the working tree with that one."
            );
            (format!("Review of the changes since `{branch}`"), task)
        }
        ReviewTarget::Commit { sha, title } => {
            let sha = named("sha", sha)?;
            let title = title.as_deref().map(|title| format!(" ({title})")).unwrap_or_default();
            (format!("Review of commit {sha}{title}"), format!("Review the changes of commit `{sha}`{title}."))
        }
        ReviewTarget::Custom { instructions } => {
            let instructions = named("instructions", instructions)?;
            (instructions.clone(), instructions)
        }
    })
}
