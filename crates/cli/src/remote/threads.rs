//! The threads of a server, as lists and verbs see them.

use anyhow::{Context, bail};
use outpost_store::{ListOrder, MemoryStore, Need, Store, ThreadSummary};
use outpost_thread::{ApprovalAsked, ThreadId};
use outpost_wire::PathUri;
use outpost_wire::app::SortDirection;
use outpost_wire::app::journal::{ThreadEntriesList, ThreadEntriesListParams};
use outpost_wire::app::thread::{
    Thread, ThreadCapabilities, ThreadList, ThreadListParams, ThreadLoadedList, ThreadLoadedListParams, ThreadSortKey, ThreadStatus,
    ThreadWhy, ThreadWhyParams,
};
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};

use super::RemoteServer;
use super::mirror::entry;
use crate::out::with_causes;
use crate::store;

/// So much of an id is enough to look for it.
const SHORTEST: usize = 3;
/// So many threads are asked for at once.
const PAGE: u32 = 100;

/// A row of a list, and whether a program works on it.
pub(crate) struct RemoteRow {
    pub summary: ThreadSummary,
    pub is_loaded: bool,
}

pub(crate) struct RemoteList {
    pub rows: Vec<RemoteRow>,
    pub next: Option<String>,
}

/// In which order, and from where on.
pub(crate) fn list_params(order: ListOrder, is_reverse: bool) -> ThreadListParams {
    let sort_key = match order {
        ListOrder::Updated => ThreadSortKey::UpdatedAt,
        ListOrder::Created => ThreadSortKey::CreatedAt,
        ListOrder::Recency => ThreadSortKey::RecencyAt,
    };
    let direction = if is_reverse { SortDirection::Asc } else { SortDirection::Desc };
    ThreadListParams { sort_key: Some(sort_key), sort_direction: Some(direction), ..ThreadListParams::default() }
}

impl RemoteServer {
    pub(crate) async fn threads(&self, params: &ThreadListParams) -> anyhow::Result<RemoteList> {
        let listed = self.call::<ThreadList>(params).await?;
        let archived = params.archived == Some(true);
        Ok(RemoteList { rows: listed.data.iter().filter_map(|thread| row(thread, archived)).collect(), next: listed.next_cursor })
    }

    /// The thread that a user means: its id, a unique beginning or end of it, or its name.
    pub(crate) async fn find(&self, name: &str) -> anyhow::Result<ThreadId> {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        let part = name.to_ascii_lowercase();
        let (mut named, mut alike) = (Vec::new(), Vec::new());
        for archived in [false, true] {
            let mut params = ThreadListParams { archived: Some(archived), limit: Some(PAGE), ..list_params(ListOrder::Updated, false) };
            loop {
                let page = self.threads(&params).await?;
                for RemoteRow { summary, .. } in &page.rows {
                    let id = summary.id.to_string();
                    if summary.name.as_deref() == Some(name) {
                        named.push(summary.id);
                    } else if name.len() >= SHORTEST && (id.starts_with(&part) || id.ends_with(&part)) {
                        alike.push(summary.id);
                    }
                }
                params.cursor = page.next;
                if params.cursor.is_none() {
                    break;
                }
            }
        }
        match (if named.is_empty() { alike } else { named }).as_slice() {
            [one] => Ok(*one),
            [] => bail!("{} has no thread `{name}`; `outpost thread list{}` shows those that are there", self.address(), self.flag()),
            several => bail!("`{name}` could be {} threads of {}", several.len(), self.address()),
        }
    }

    /// The thread that changed last; those of agents are not meant.
    pub(crate) async fn last(&self) -> anyhow::Result<ThreadId> {
        let params = ThreadListParams { limit: Some(PAGE), ..list_params(ListOrder::Updated, false) };
        let page = self.threads(&params).await?;
        match page.rows.iter().find(|row| row.summary.parent.is_none()) {
            Some(row) => Ok(row.summary.id),
            None => bail!("{} has no thread yet", self.address()),
        }
    }

    /// What the capability roots of a thread come to there.
    pub(crate) async fn why(&self, id: ThreadId) -> anyhow::Result<ThreadCapabilities> {
        let params = ThreadWhyParams { thread_id: id.to_string(), turn_id: None, capabilities: true };
        let told = self.call::<ThreadWhy>(&params).await?;
        told.capabilities.with_context(|| format!("{} is older than this program, and does not tell this", self.address()))
    }

    /// Whether the server works on a thread, so that no other program can.
    pub(crate) async fn is_loaded(&self, id: ThreadId) -> bool {
        let loaded = self.call::<ThreadLoadedList>(&ThreadLoadedListParams { cursor: None, limit: None }).await;
        loaded.is_ok_and(|loaded| loaded.data.contains(&id.to_string()))
    }

    /// What agents below a thread asked and is not answered yet. Clients are notified only of what is asked after they came.
    /// None if they cannot be read, which the log says.
    pub(crate) async fn open_questions(&self, root: ThreadId) -> Vec<(ThreadId, ApprovalAsked)> {
        let read = self.read_open_questions(root).await;
        read.inspect_err(|error| tracing::warn!("questions of agents cannot be read: {}", with_causes(error))).unwrap_or_default()
    }

    async fn read_open_questions(&self, root: ThreadId) -> anyhow::Result<Vec<(ThreadId, ApprovalAsked)>> {
        let mut params =
            ThreadListParams { ancestor_thread_id: Some(root.to_string()), limit: Some(PAGE), ..list_params(ListOrder::Updated, false) };
        let mut open = Vec::new();
        loop {
            let listed = self.call::<ThreadList>(&params).await?;
            for agent in listed.data.iter().filter(|agent| matches!(agent.status, ThreadStatus::Active { .. })) {
                let Ok(id) = agent.id.parse() else { continue };
                let copy = Store::Memory(self.copy(id).await?);
                let turn = outpost_store::open(&copy, id).await?.thread.turn;
                open.extend(turn.into_iter().flat_map(|turn| turn.approvals).map(|approval| (id, approval.asked)));
            }
            params.cursor = listed.next_cursor;
            if params.cursor.is_none() {
                return Ok(open);
            }
        }
    }

    /// A copy of a thread's journal, for those who only read.
    pub(crate) async fn copy(&self, id: ThreadId) -> anyhow::Result<MemoryStore> {
        let copy = MemoryStore::new(std::sync::Arc::new(store::now), None);
        let lease = copy.create(id).await?;
        let mut after = Some(0);
        while after.is_some() {
            let params = ThreadEntriesListParams { thread_id: id.to_string(), after, limit: None };
            let page = self.call::<ThreadEntriesList>(&params).await?;
            copy.append(&lease, page.data.into_iter().map(entry).collect(), Need::Stored).await?;
            after = page.next_after;
        }
        Ok(copy)
    }
}

fn row(thread: &Thread, archived: bool) -> Option<RemoteRow> {
    let mut summary = ThreadSummary::new(thread.id.parse().ok()?);
    summary.created_at = thread.created_at * 1000;
    summary.updated_at = thread.updated_at * 1000;
    summary.recency_at = thread.recency_at.unwrap_or(thread.updated_at) * 1000;
    summary.archived = archived;
    summary.name.clone_from(&thread.name);
    summary.preview = Some(thread.preview.clone()).filter(|preview| !preview.is_empty());
    summary.source = thread.source.as_str().map(str::to_owned);
    summary.thread_source.clone_from(&thread.thread_source);
    summary.cwd = Some(thread.cwd.clone());
    summary.model.clone_from(&thread.model);
    summary.provider = Some(thread.model_provider.clone());
    summary.parent = thread.parent_thread_id.as_deref().and_then(|id| id.parse().ok());
    summary.forked_from = thread.forked_from_id.as_deref().and_then(|id| id.parse().ok());
    summary.damaged = thread.damaged;
    let places = thread.environments.iter().flatten().filter_map(|place| {
        let cwd = PathUri::from_syntax(&place.cwd).or_else(|_| PathUri::parse(&place.cwd)).ok()?;
        Some(Attachment::new(EnvironmentId::parse(&place.environment_id).ok()?, cwd))
    });
    summary.selection = Selection::new(places.collect()).ok();
    Some(RemoteRow { summary, is_loaded: !matches!(thread.status, ThreadStatus::NotLoaded) })
}
