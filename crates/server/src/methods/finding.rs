//! Finding files by a few letters of their paths: once, or again with every key that is pressed.

use std::sync::Arc;

use outpost_environment::{Environment, Repeat};
use outpost_rpc::HandlerOutcome;
use outpost_wire::app::Nothing;
use outpost_wire::app::event::Warning;
use outpost_wire::app::search::{
    FoundFile, FuzzyFileSearch, FuzzyFileSearchParams, FuzzyFileSearchResponse, FuzzySessionCompleted, FuzzySessionStart,
    FuzzySessionStartParams, FuzzySessionStop, FuzzySessionStopParams, FuzzySessionUpdate, FuzzySessionUpdateParams, FuzzySessionUpdated,
    MatchType,
};
use outpost_wire::exec::walk::{Walk, WalkKind, WalkOptions, WalkParams};
use outpost_wire::{Fault, PathUri};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::place::{environment, refused};
use crate::connection::ClientConnection;
use crate::connection_resources::Search;
use crate::fuzzy;
use crate::table::Table;

/// So many files are told.
const FILES: usize = 50;
/// So many files are looked through, page by page.
const CANDIDATES: usize = 200_000;
/// So many searches may one client have at a time: each remembers the files that it looks through.
const SEARCHES: usize = 16;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<FuzzyFileSearch, _, _>(once)
        .on_call::<FuzzySessionStart, _, _>(begin)
        .on::<FuzzySessionUpdate, _, _>(refine)
        .on::<FuzzySessionStop, _, _>(end)
}

/// A file or directory below a root.
struct Candidate {
    root: String,
    below: String,
    kind: WalkKind,
}

/// What is below a root, as far as it is looked at.
async fn candidates(connection: &ClientConnection, environment: &Environment, root: &str) -> Result<Vec<Candidate>, Fault> {
    let path = PathUri::from_syntax(root).unwrap_or_else(|_| connection.server.facts.cwd.join(root));
    let mut options = WalkOptions {
        max_depth: 32,
        max_directories: 10_000,
        max_entries: 50_000,
        follow_directory_symlinks: false,
        prune_hidden_directories: true,
        after: None,
    };
    let base = path.to_syntax();
    let candidate = |full: String, kind| {
        let below = full.strip_prefix(&base).unwrap_or(&full).trim_start_matches(['/', '\\']).to_owned();
        Candidate { root: root.to_owned(), below, kind }
    };
    let mut all = Vec::new();
    loop {
        let params = WalkParams { path: path.clone(), options, sandbox: None };
        let walked = environment.call::<Walk>(&params, Repeat::Harmless).await.map_err(refused)?;
        let last = walked.entries.last().map(|entry| entry.path.clone());
        all.extend(walked.entries.into_iter().map(|entry| candidate(entry.path.to_syntax(), entry.kind)));
        let has_pages = environment.info().await.is_ok_and(|info| info.capabilities.walk_pages);
        if !walked.truncated || last.is_none() || !has_pages || all.len() >= CANDIDATES {
            return Ok(all);
        }
        options = WalkOptions { after: last, ..params.options };
    }
}

/// Those that fit, the best ones first. Before the first letter there is nothing to find.
fn fitting(candidates: &[Candidate], query: &str) -> Vec<FoundFile> {
    if query.is_empty() {
        return Vec::new();
    }
    let found = |candidate: &Candidate| {
        let found = fuzzy::find(&candidate.below, query)?;
        Some(FoundFile {
            root: candidate.root.clone(),
            file_name: candidate.below.rsplit(['/', '\\']).next().unwrap_or(&candidate.below).to_owned(),
            path: candidate.below.clone(),
            match_type: if candidate.kind == WalkKind::Directory { MatchType::Directory } else { MatchType::File },
            score: found.score,
            indices: Some(found.indices),
        })
    };
    let mut files: Vec<FoundFile> = candidates.iter().filter_map(found).collect();
    files.sort_by(|one, other| other.score.cmp(&one.score).then_with(|| one.path.cmp(&other.path)));
    files.truncate(FILES);
    files
}

async fn once(connection: Arc<ClientConnection>, params: FuzzyFileSearchParams) -> Result<FuzzyFileSearchResponse, Fault> {
    let environment = environment(&connection.server, params.environment_id.as_deref())?;
    let mut all = Vec::new();
    let roots = if params.query.is_empty() { vec![] } else { params.roots };
    for root in roots {
        all.extend(candidates(&connection, &environment, &root).await?);
    }
    Ok(FuzzyFileSearchResponse { files: fitting(&all, &params.query) })
}

/// Lives until the client ends it, begins another one of the same name, or is gone.
async fn begin(connection: Arc<ClientConnection>, params: FuzzySessionStartParams) -> Result<HandlerOutcome<Nothing>, Fault> {
    let FuzzySessionStartParams { session_id, roots, environment_id } = params;
    if session_id.is_empty() {
        return Err(Fault::invalid_request("sessionId must not be empty"));
    }
    if roots.is_empty() {
        return Err(Fault::invalid_request("roots must not be empty"));
    }
    let environment = environment(&connection.server, environment_id.as_deref())?;
    let searches = &connection.belongings.searches;
    if let Some(older) = searches.remove(&session_id) {
        older.ended.cancel();
    }
    if searches.count() >= SEARCHES {
        let message = format!("a client may have {SEARCHES} searches at a time; end one with fuzzyFileSearch/sessionStop first");
        return Err(Fault::invalid_request(message));
    }
    let (query, mut asked) = watch::channel(String::new());
    let ended = CancellationToken::new();
    let name = searches.take(&session_id, Arc::new(Search { query, ended: ended.clone() }));
    let name = name.ok_or_else(|| Fault::invalid_request(format!("fuzzy file search session is being started: {session_id}")))?;
    let rest = async move {
        let searching = async {
            let mut all = Vec::new();
            for root in &roots {
                match candidates(&connection, &environment, root).await {
                    Ok(found) => all.extend(found),
                    // Other roots may hold what is looked for.
                    Err(fault) => {
                        let message = format!("nothing is found below {root}: {}", fault.message);
                        connection.tell(&Warning { thread_id: None, message }.into());
                    }
                }
            }
            loop {
                // Of several queries that came meanwhile only the last one counts.
                let query = asked.borrow_and_update().clone();
                let files = fitting(&all, &query);
                connection.outlet.room().await;
                connection.tell(&FuzzySessionUpdated { session_id: session_id.clone(), query, files }.into());
                connection.tell(&FuzzySessionCompleted { session_id: session_id.clone() }.into());
                if asked.changed().await.is_err() {
                    return;
                }
            }
        };
        ended.run_until_cancelled(searching).await;
        drop(name);
    };
    Ok(HandlerOutcome { output: Nothing {}, rest: Some(Box::pin(rest)) })
}

async fn refine(connection: Arc<ClientConnection>, params: FuzzySessionUpdateParams) -> Result<Nothing, Fault> {
    let search = connection.belongings.searches.get(&params.session_id);
    let search = search.ok_or_else(|| Fault::invalid_request(format!("fuzzy file search session not found: {}", params.session_id)))?;
    search.query.send_replace(params.query);
    Ok(Nothing {})
}

/// One that is over is what was wanted.
async fn end(connection: Arc<ClientConnection>, params: FuzzySessionStopParams) -> Result<Nothing, Fault> {
    if let Some(search) = connection.belongings.searches.remove(&params.session_id) {
        search.ended.cancel();
    }
    Ok(Nothing {})
}
