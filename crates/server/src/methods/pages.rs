//! Pages of turns. A page reads the turns that it shows, wherever in a thread they are, and not what lies before or behind them.
//!
//! Rarely something of a turn lies elsewhere: an input that waited through several turns, a call that ended after its own. Then
//! the whole thread is read, as a page would be cut from it in any case.

use std::collections::HashSet;
use std::str::FromStr;

use outpost_store::{PageRequest, ReadError, Store};
use outpost_thread::{Entry, Fact, InputId, Ordinal, Thread as State};
use outpost_wire::Fault;
use outpost_wire::app::SortDirection;
use outpost_wire::app::event::Notice;
use outpost_wire::app::turn::Turn;

use crate::fault;
use crate::projection::{ClientMessage, Projector, Turns};
use crate::server::ServerShared;

/// Which turns a client wants.
pub(super) struct TurnPageRequest {
    pub place: Option<PageCursor>,
    pub limit: usize,
    pub direction: SortDirection,
}

/// A place between two turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageCursor {
    /// Before the turn that begins with this entry.
    Entry(Ordinal),
    /// Behind so many turns.
    Row(usize),
}

impl PageCursor {
    fn cursor(entry: Ordinal) -> String {
        format!("e{entry}")
    }
}

impl FromStr for PageCursor {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix('e') {
            Some(entry) => entry.parse().map(Self::Entry),
            None => text.parse().map(Self::Row),
        }
    }
}

/// Turns in the order that was asked for, and where to go on in either direction.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TurnsPage {
    pub turns: Vec<Turn>,
    pub next: Option<String>,
    pub back: Option<String>,
}

/// A page of the turns that a thread has up to its state.
pub(super) async fn page(server: &ServerShared, store: &Store, state: &State, wanted: &TurnPageRequest) -> Result<TurnsPage, Fault> {
    // Which turns do not count is told only behind them.
    if state.reverted == 0
        && let Some(rows) = near(server, store, state, wanted).await?
        && let Some(page) = rows.page(state, wanted, Trust::OnlyWhatIsThere)
    {
        return Ok(page);
    }
    let mut all = Rows::new(server, state);
    let mut history = store.history(state.id, 0).await.map_err(fault::read)?;
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        all.read(&batch.with_gaps());
    }
    all.reaches_end = true;
    Ok(all.page(state, wanted, Trust::Everything).unwrap_or_default())
}

/// The entries of the turns that are wanted and of one more; nothing if only the whole thread can tell which these are.
async fn near(server: &ServerShared, store: &Store, state: &State, wanted: &TurnPageRequest) -> Result<Option<Rows>, Fault> {
    let from = match wanted.place {
        None => None,
        Some(PageCursor::Entry(entry)) => Some(entry),
        Some(PageCursor::Row(_)) => return Ok(None),
    };
    let mut rows = Rows::new(server, state);
    let before = |before: Option<Ordinal>, turns: usize| PageRequest { before, turns, bytes: usize::MAX };
    match wanted.direction {
        SortDirection::Desc => {
            let end = from.unwrap_or(state.last + 1).min(state.last + 1);
            let page = match store.page(state.id, before(Some(end), wanted.limit + 1)).await {
                // Nothing is written down before the first input.
                Err(ReadError::NotFound(_)) => return Ok(Some(rows)),
                page => page.map_err(fault::read)?,
            };
            rows.read(&page.with_gaps());
            rows.reaches_end = end > state.last;
        }
        SortDirection::Asc => {
            let from = from.unwrap_or(1).max(1);
            if from > 1 {
                // What the first turn of the page says may have been received while the one before it ran.
                rows.read(&store.page(state.id, before(Some(from), 1)).await.map_err(fault::read)?.with_gaps());
            }
            let enough = rows.starts.len() + wanted.limit + 1;
            let mut history = match store.history(state.id, from - 1).await {
                Err(ReadError::NotFound(_)) => return Ok(Some(rows)),
                history => history.map_err(fault::read)?,
            };
            rows.reaches_end = true;
            while let Some(batch) = history.next().await.map_err(fault::read)? {
                let entries = batch.with_gaps();
                let starts = entries.iter().enumerate().filter(|(_, entry)| matches!(entry.fact, Fact::TurnStarted(_)));
                let end = starts.map(|(at, _)| at + 1).nth(enough.saturating_sub(rows.starts.len() + 1));
                rows.read(&entries[..end.unwrap_or(entries.len())]);
                if end.is_some() {
                    rows.reaches_end = false;
                    break;
                }
            }
        }
    }
    Ok(Some(rows))
}

/// Whether a turn may lack something that was not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    OnlyWhatIsThere,
    Everything,
}

/// Turns that were read, in their order.
struct Rows {
    projector: Projector,
    turns: Turns,
    /// The entry that each begins with.
    starts: Vec<Ordinal>,
    /// Whether each begins with an input that was not read.
    lacks: Vec<bool>,
    inputs: HashSet<InputId>,
    last: Ordinal,
    reaches_end: bool,
}

impl Rows {
    fn new(server: &ServerShared, state: &State) -> Self {
        Self {
            projector: Projector::amid(state, server.defaults.clone()).without_diffs(),
            turns: Turns::default(),
            starts: Vec::new(),
            lacks: Vec::new(),
            inputs: HashSet::new(),
            last: state.last,
            reaches_end: false,
        }
    }

    fn read(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| entry.ordinal <= self.last) {
            let told = self.projector.entry(entry);
            // A turn may be told of that no entry begins: its beginning is lost.
            let begun = told.iter().filter(|told| matches!(told, ClientMessage::Notice(Notice::TurnStarted(_)))).count();
            self.starts.extend(std::iter::repeat_n(entry.ordinal, begun));
            self.lacks.resize(self.starts.len(), false);
            match &entry.fact {
                Fact::InputReceived(input) => drop(self.inputs.insert(input.input.clone())),
                Fact::TurnStarted(turn) => {
                    if let Some(lacks) = self.lacks.last_mut() {
                        *lacks = turn.inputs.iter().any(|input| !self.inputs.contains(input));
                    }
                }
                Fact::TurnsReverted(revert) => {
                    self.starts.retain(|start| *start <= revert.through);
                    self.lacks.truncate(self.starts.len());
                }
                _ => {}
            }
            self.turns.take(told);
        }
    }

    /// Cuts the page; nothing if one of its turns lacks something.
    fn page(self, state: &State, wanted: &TurnPageRequest, trust: Trust) -> Option<TurnsPage> {
        let Self { projector, turns, starts, lacks, reaches_end, .. } = self;
        let is_descending = wanted.direction == SortDirection::Desc;
        let place = match wanted.place {
            Some(PageCursor::Entry(entry)) => starts.partition_point(|start| *start < entry),
            Some(PageCursor::Row(row)) => row.min(starts.len()),
            None if is_descending => starts.len(),
            None => 0,
        };
        let (begin, end) = if is_descending {
            (place.saturating_sub(wanted.limit), place)
        } else {
            (place, starts.len().min(place.saturating_add(wanted.limit)))
        };
        let is_whole = !lacks[begin..end].contains(&true) && (reaches_end || !projector.has_open_calls());
        if trust == Trust::OnlyWhatIsThere && !is_whole {
            return None;
        }
        let cursor = |row: usize| match starts.get(row) {
            Some(start) => PageCursor::cursor(*start),
            None => PageCursor::cursor(state.last + 1),
        };
        let has_more = if is_descending { begin > 0 } else { end < starts.len() };
        let (next, back) = if is_descending { (begin, end) } else { (end, begin) };
        let back = match wanted.place {
            Some(PageCursor::Entry(entry)) => Some(PageCursor::cursor(entry)),
            _ => (!starts.is_empty()).then(|| cursor(back)),
        };
        let next = has_more.then(|| cursor(next));
        let mut turns = turns.into_turns();
        turns.truncate(end);
        let mut turns = turns.split_off(begin.min(turns.len()));
        if is_descending {
            turns.reverse();
        }
        Some(TurnsPage { turns, next, back })
    }
}
