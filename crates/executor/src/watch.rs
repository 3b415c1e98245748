//! The watches of one connection: any number over paths that are there, one over paths that are missing.
//!
//! All of them share one inotify instance, which is made when it is first needed and goes with the connection.

mod changes;
mod notifier;
mod trail;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::Peer;
use outpost_wire::Fault;
use outpost_wire::exec::watch::{Changed, ChangedParams, MissingChanged, MissingChangedParams};
use tokio::sync::{Mutex as Queue, Notify};
use tokio::time::sleep;

use self::changes::{ChangeLog, Changes};
use self::notifier::{Gap, Notifier, WatchDemand};
use self::trail::{LastLink, Trail, TrailEnd};
pub(crate) use self::trail::{MAX_LINKS, names_from_root, tells_changes};
use crate::fault;

/// Each costs little, but every change is compared with all of them. All clients of one app server share a connection.
const MAX_WATCHES: usize = 1024;
const MAX_MISSING: usize = 64;
/// Changes are collected for so long before they are told.
const PAUSE: Duration = Duration::from_millis(100);
/// Nothing is told while more than this waits to be sent; changes are collected meanwhile.
const PUSH_ROOM: usize = 256 << 10;

pub(crate) struct SessionWatches {
    board: Arc<Board>,
    /// Requests about watches take effect in the order in which they came, one after the other.
    notifications: Arc<Queue<Notifications>>,
}

/// The system's side.
#[derive(Default)]
struct Notifications {
    notifier: Option<Notifier>,
    /// What is wanted for the sake of the missing paths.
    for_missing: Vec<WatchDemand>,
}

/// The client's side. Its lock is taken by the notifier's thread, so it is never held while that thread is waited for.
struct Board {
    peer: Peer,
    state: Mutex<State>,
    /// There is something to tell.
    pending: Notify,
}

#[derive(Default)]
struct State {
    logs: HashMap<String, ChangeLog>,
    /// The greatest id so far, whatever became of it.
    last_missing: Option<u64>,
    missing: Option<MissingWatch>,
}

/// Spent as soon as it was told.
struct MissingWatch {
    id: u64,
    names: BTreeSet<PathBuf>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The client does not know yet that there is a watch.
    Unannounced,
    /// The same, but it is already too late.
    Overtaken,
    Live,
}

/// A path to be watched.
pub(crate) struct WatchRequest {
    pub id: String,
    pub path: PathBuf,
    pub recursive: bool,
}

/// Paths of which a client remembers that they are missing while another one is present.
pub(crate) struct MissingPaths {
    pub missing: Vec<PathBuf>,
    pub present: PathBuf,
}

impl SessionWatches {
    pub(crate) fn new(peer: Peer) -> Self {
        let board = Arc::new(Board { peer, state: Mutex::default(), pending: Notify::new() });
        Self { board, notifications: Arc::default() }
    }

    pub(crate) async fn watch(&self, request: WatchRequest) -> Result<(), Fault> {
        self.work(move |notifications, board| notifications.watch(board, request)).await?
    }

    pub(crate) async fn unwatch(&self, id: String) -> Result<(), Fault> {
        self.work(move |notifications, board| notifications.unwatch(board, &id)).await
    }

    /// Whether there is a watch now. It is silent until it is announced.
    pub(crate) async fn watch_missing(&self, id: u64, paths: Option<MissingPaths>) -> Result<bool, Fault> {
        self.work(move |notifications, board| notifications.watch_missing(board, id, paths)).await
    }

    /// Must follow the answer to the request: before it, a client would not know what the notification is about.
    pub(crate) fn announce_missing(&self, id: u64) -> impl Future<Output = ()> + Send + use<> {
        let board = self.board.clone();
        async move { board.announce_missing(id) }
    }

    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&mut Notifications, &Arc<Board>) -> T + Send + 'static) -> Result<T, Fault> {
        let mut turn = self.notifications.clone().lock_owned().await;
        let board = self.board.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut turn, &board));
        done.await.map_err(Fault::internal)
    }
}

impl Notifications {
    fn notifier(&mut self, board: &Arc<Board>) -> Result<&mut Notifier, Fault> {
        let notifier = match self.notifier.take() {
            Some(notifier) => notifier,
            None => {
                let (reader, teller) = (board.clone(), board.clone());
                let notifier = Notifier::new(move |event| reader.take(event))?;
                tokio::spawn(teller.tell_changes());
                notifier
            }
        };
        Ok(self.notifier.insert(notifier))
    }

    fn watch(&mut self, board: &Arc<Board>, request: WatchRequest) -> Result<(), Fault> {
        let WatchRequest { id, path, recursive } = request;
        let count = {
            let state = board.lock();
            if state.logs.contains_key(&id) {
                return Err(fault::watch_exists(&id));
            }
            state.logs.len()
        };
        if count >= MAX_WATCHES {
            return Err(fault::too_many_watches(MAX_WATCHES));
        }
        let real = fs::canonicalize(&path).map_err(fault::file)?;
        let notifier = self.notifier(board)?;
        // Listed first, so that nothing is missed that is told from the first moment on.
        board.lock().logs.insert(id.clone(), ChangeLog::new(path, real.clone(), recursive));
        notifier.add(WatchDemand { path: real, recursive }).map_err(|(fault, gap)| {
            board.lock().logs.remove(&id);
            board.lose(gap);
            fault
        })
    }

    fn unwatch(&mut self, board: &Board, id: &str) {
        let Some(log) = board.lock().logs.remove(id) else { return };
        let wanted = WatchDemand { path: log.real().to_owned(), recursive: log.is_recursive() };
        board.lose(self.remove(&wanted));
    }

    fn remove(&mut self, wanted: &WatchDemand) -> Option<Gap> {
        self.notifier.as_mut()?.remove(wanted)
    }

    fn watch_missing(&mut self, board: &Arc<Board>, id: u64, paths: Option<MissingPaths>) -> bool {
        if !board.replace_missing(id) {
            return false;
        }
        let mut unwanted = std::mem::take(&mut self.for_missing);
        let watching = paths.is_some_and(|paths| self.watch_trail(board, id, &paths));
        if !watching {
            unwanted.append(&mut self.for_missing);
        }
        for wanted in unwanted {
            board.lose(self.remove(&wanted));
        }
        watching
    }

    fn watch_trail(&mut self, board: &Arc<Board>, id: u64, paths: &MissingPaths) -> bool {
        let Some(trail) = missing_trail(paths) else { return false };
        for directory in &trail.directories {
            let wanted = WatchDemand { path: directory.clone(), recursive: false };
            match self.notifier(board).map(|notifier| notifier.add(wanted.clone())) {
                Ok(Ok(())) => self.for_missing.push(wanted),
                Ok(Err((_, gap))) => {
                    board.lose(gap);
                    return false;
                }
                Err(_) => return false,
            }
        }
        board.lock().missing = Some(MissingWatch { id, names: trail.names.clone(), stage: Stage::Unannounced });
        // Something may have happened before all of it was watched.
        let is_unchanged = missing_trail(paths).is_some_and(|again| again == trail);
        if !is_unchanged {
            board.lock().missing = None;
        }
        is_unchanged
    }
}

/// The ways to all of the paths, if the missing ones are missing and the present one is present.
fn missing_trail(paths: &MissingPaths) -> Option<Trail> {
    if paths.missing.is_empty() || paths.missing.len() > MAX_MISSING {
        return None;
    }
    let mut trail = Trail::default();
    let mut leads_to = |path: &Path, last, end| trail.add(path, last).is_ok_and(|found| found == end);
    let as_said = leads_to(&paths.present, LastLink::Followed, TrailEnd::Present)
        && paths.missing.iter().all(|path| leads_to(path, LastLink::Meant, TrailEnd::Missing));
    as_said.then_some(trail)
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the system.
    fn take(&self, event: notify::Result<notify::Event>) {
        match event {
            // Reading is no change.
            Ok(event) if event.kind.is_access() => {}
            Ok(event) if !event.need_rescan() => event.paths.iter().for_each(|path| self.note(path)),
            // Events were lost, or a new directory could not be watched any more.
            Ok(_) | Err(_) => self.lose(Some(Gap(PathBuf::from("/")))),
        }
    }

    fn note(&self, path: &Path) {
        let mut state = self.lock();
        let mut is_pending = false;
        for log in state.logs.values_mut() {
            is_pending |= log.note(path);
        }
        if state.missing.as_ref().is_some_and(|missing| missing.names.contains(path)) {
            self.tell_missing(&mut state);
        }
        drop(state);
        if is_pending {
            self.pending.notify_one();
        }
    }

    /// What happens below a gap is not known, so it is told as a change.
    fn lose(&self, gap: Option<Gap>) {
        let Some(gap) = gap else { return };
        let mut state = self.lock();
        for log in state.logs.values_mut().filter(|log| log.real().starts_with(&gap.0)) {
            log.lose();
        }
        if state.missing.as_ref().is_some_and(|missing| missing.names.iter().any(|name| name.starts_with(&gap.0))) {
            self.tell_missing(&mut state);
        }
        drop(state);
        self.pending.notify_one();
    }

    /// Makes room for a watch over missing paths. False if the id is not a new one.
    fn replace_missing(&self, id: u64) -> bool {
        let mut state = self.lock();
        let is_new = state.last_missing.is_none_or(|last| id > last);
        if is_new {
            state.last_missing = Some(id);
            state.missing = None;
        }
        is_new
    }

    fn announce_missing(&self, id: u64) {
        let mut state = self.lock();
        let Some(missing) = state.missing.as_mut().filter(|missing| missing.id == id) else { return };
        let is_late = missing.stage == Stage::Overtaken;
        missing.stage = Stage::Live;
        if is_late {
            self.tell_missing(&mut state);
        }
    }

    fn tell_missing(&self, state: &mut State) {
        let Some(missing) = &mut state.missing else { return };
        if missing.stage == Stage::Live {
            self.peer.notify::<MissingChanged>(&MissingChangedParams { watch_id: missing.id });
            state.missing = None;
        } else {
            missing.stage = Stage::Overtaken;
        }
    }

    /// The one timer of all watches.
    async fn tell_changes(self: Arc<Self>) {
        let sink = self.peer.sink().clone();
        let telling = async {
            loop {
                self.pending.notified().await;
                sleep(PAUSE).await;
                sink.room(PUSH_ROOM).await;
                self.tell_pending();
            }
        };
        tokio::select! {
            () = telling => {}
            () = sink.closed() => {}
        }
    }

    /// Under the lock, so that nothing is told about a watch after its end was answered.
    fn tell_pending(&self) {
        for (id, log) in &mut self.lock().logs {
            let (paths, overflow) = match log.take() {
                None => continue,
                Some(Changes::Paths(paths)) => (paths, false),
                Some(Changes::TooMany) => (Vec::new(), true),
            };
            self.peer.notify::<Changed>(&ChangedParams { watch_id: id.clone(), paths, overflow });
        }
    }
}
