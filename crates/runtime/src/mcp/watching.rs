//! Hears when something changes that the servers of threads depend on, and has those threads refreshed, also while they are idle:
//! files of this machine, `.mcp.json` where threads work, folders of which discovery tells that they are others now.
//!
//! One task for all threads of a program; a directory is watched once, by its own executor, however many threads work in it. What
//! is not watched, because there are too many directories or an executor cannot, is read again at every step. So nothing depends
//! on this room but how soon something is seen.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use outpost_environment::{ChangedFolder, Environment, FileWatch, Registry, StepView, Workplace};
use outpost_thread::{Thread, ThreadId};
use outpost_wire::PathUri;
use outpost_wire::intent::EnvironmentId;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{lock, project};
use crate::runtime::RuntimeShared;

/// So many directories of one executor are watched. It has others to watch for.
const MOST: usize = 32;

/// A directory on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WatchedDirectory {
    pub environment: EnvironmentId,
    /// Another machine under the same name has other files.
    pub executor: Result<String, u64>,
    pub directory: PathUri,
}

impl WatchedDirectory {
    pub(crate) fn of(place: &Workplace<'_>) -> Self {
        let executor = place.handle.identity().and_then(|identity| identity.executor_id);
        Self {
            environment: place.attachment.environment_id.clone(),
            executor: executor.ok_or_else(|| place.handle.generation()),
            directory: place.attachment.cwd.clone(),
        }
    }

    fn is_on_machine_of(&self, other: &Self) -> bool {
        (&self.environment, &self.executor) == (&other.environment, &other.executor)
    }
}

/// What is watched, and for whom.
#[derive(Default)]
pub(crate) struct Watching(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    wishes: Option<mpsc::UnboundedSender<Wish>>,
    guards: HashMap<WatchedDirectory, Guard>,
    /// The capability roots of threads, and the environments that they work in.
    roots: HashMap<ThreadId, HashSet<(EnvironmentId, Option<PathUri>)>>,
    count: u64,
}

struct Guard {
    threads: BTreeSet<ThreadId>,
    /// Of the handle through which it is watched.
    generation: u64,
    /// Another one after each change; none as long as changes are not heard.
    number: Option<u64>,
    end: CancellationToken,
}

/// A directory that is to be watched.
struct Wish {
    place: WatchedDirectory,
    handle: Environment,
    end: CancellationToken,
}

impl Watching {
    /// What was read while this number stood is still true as long as it stands. Without one that is unknown.
    pub(crate) fn number(&self, place: &WatchedDirectory) -> Option<u64> {
        lock(&self.0).guards.get(place).and_then(|guard| guard.number)
    }

    /// Takes down what the servers of a thread depend on, as its step sees it.
    pub(crate) fn follow(&self, shared: &Arc<RuntimeShared>, thread: &Thread, view: &StepView) {
        let places: Vec<(WatchedDirectory, Environment)> =
            view.workplaces().map(|place| (WatchedDirectory::of(&place), place.handle.clone())).collect();
        let own = thread.capability_roots.iter().map(|root| (root.environment_id().clone(), Some(root.path().clone())));
        let there = places.iter().map(|(place, _)| (place.environment.clone(), None));
        let mut inside = lock(&self.0);
        inside.roots.insert(thread.id, own.chain(there).collect());
        inside.leave(thread.id, |place| places.iter().any(|(known, _)| known == place));
        for (place, handle) in places {
            if let Some(guard) = inside.guards.get_mut(&place).filter(|guard| guard.generation == handle.generation()) {
                guard.threads.insert(thread.id);
                continue;
            }
            // A handle that was replaced is let go.
            let mut threads = inside.guards.remove(&place).map(Guard::end).unwrap_or_default();
            threads.insert(thread.id);
            if inside.guards.keys().filter(|known| known.is_on_machine_of(&place)).count() >= MOST {
                continue;
            }
            let end = CancellationToken::new();
            let guard = Guard { threads, generation: handle.generation(), number: None, end: end.clone() };
            inside.guards.insert(place.clone(), guard);
            let wishes = inside.wishes.get_or_insert_with(|| begin(shared));
            let _ = wishes.send(Wish { place, handle, end });
        }
        // Also for a thread without any place: files of this machine are followed from the first step on.
        inside.wishes.get_or_insert_with(|| begin(shared));
    }

    /// A thread that is not loaded any more.
    pub(crate) fn release(&self, thread: ThreadId) {
        let mut inside = lock(&self.0);
        inside.roots.remove(&thread);
        inside.leave(thread, |_| false);
    }

    fn heard(&self, place: &WatchedDirectory) -> BTreeSet<ThreadId> {
        let mut inside = lock(&self.0);
        inside.count += 1;
        let count = inside.count;
        let Some(guard) = inside.guards.get_mut(place) else { return BTreeSet::new() };
        guard.number = Some(count);
        guard.threads.clone()
    }

    /// It is not watched any more. One that never was stays known, so that it is not tried again at every step.
    fn lost(&self, place: &WatchedDirectory, end: &CancellationToken) {
        let mut inside = lock(&self.0);
        // Another one may have taken its place.
        let is_own = |guard: &Guard| !guard.end.is_cancelled() && !end.is_cancelled() && guard.number.is_some();
        if inside.guards.get(place).is_some_and(is_own) {
            inside.guards.remove(place);
        }
    }

    /// Lets go of environments that are gone or have another handle now; the next step watches anew.
    fn prune(&self, registry: &Registry) {
        let mut inside = lock(&self.0);
        let current = |guard: &Guard, place: &WatchedDirectory| {
            registry.get(&place.environment).is_some_and(|handle| handle.generation() == guard.generation)
        };
        inside.guards.retain(|place, guard| {
            let is_current = current(guard, place);
            if !is_current {
                guard.end.cancel();
            }
            is_current
        });
    }

    fn concerned(&self, folder: &ChangedFolder) -> BTreeSet<ThreadId> {
        let key = (folder.environment.clone(), folder.path.clone());
        lock(&self.0).roots.iter().filter(|(_, roots)| roots.contains(&key)).map(|(thread, _)| *thread).collect()
    }
}

impl Guard {
    fn end(self) -> BTreeSet<ThreadId> {
        self.end.cancel();
        self.threads
    }
}

impl Inside {
    /// A thread works in no other places any more than those that are kept.
    fn leave(&mut self, thread: ThreadId, keep: impl Fn(&WatchedDirectory) -> bool) {
        self.guards.retain(|place, guard| {
            if !keep(place) {
                guard.threads.remove(&thread);
            }
            let is_wanted = !guard.threads.is_empty();
            if !is_wanted {
                guard.end.cancel();
            }
            is_wanted
        });
    }
}

/// Starts the task. It ends with the runtime.
fn begin(shared: &Arc<RuntimeShared>) -> mpsc::UnboundedSender<Wish> {
    let (sender, wishes) = mpsc::unbounded_channel();
    let task = Task { shared: Arc::downgrade(shared), watches: FuturesUnordered::new(), due: None };
    let ears =
        Ears { wishes, files: shared.mcp.changes(), folders: shared.skills.discoveries.changes(), environments: shared.registry.changes() };
    tokio::spawn(task.run(ears));
    sender
}

struct Task {
    shared: Weak<RuntimeShared>,
    watches: FuturesUnordered<BoxFuture<'static, (WatchedDirectory, Heard)>>,
    due: Option<(Instant, Due)>,
}

/// What the task listens to.
struct Ears {
    wishes: mpsc::UnboundedReceiver<Wish>,
    /// Files of this machine.
    files: Option<watch::Receiver<u64>>,
    folders: broadcast::Receiver<ChangedFolder>,
    environments: watch::Receiver<u64>,
}

/// Who is to be refreshed.
enum Due {
    Some(BTreeSet<ThreadId>),
    All,
}

enum Heard {
    Changed { watch: FileWatch, end: CancellationToken, is_first: bool },
    Over(CancellationToken),
}

impl Task {
    async fn run(mut self, ears: Ears) {
        let Ears { mut wishes, mut files, mut folders, mut environments } = ears;
        loop {
            let due = self.due.as_ref().map(|(at, _)| *at);
            tokio::select! {
                wish = wishes.recv() => match wish {
                    Some(Wish { place, handle, end }) => self.watches.push(Box::pin(arm(place, handle, end))),
                    None => return,
                },
                Some((place, heard)) = self.watches.next() => self.hear(place, heard),
                is_heard = changed(&mut files) => if is_heard { self.add(Due::All) } else { files = None },
                news = environments.changed() => match (news, self.shared.upgrade()) {
                    (Ok(()), Some(shared)) => shared.mcp.watching.prune(&shared.registry),
                    _ => return,
                },
                folder = folders.recv() => match folder {
                    Ok(folder) => {
                        let Some(shared) = self.shared.upgrade() else { return };
                        self.add(Due::Some(shared.mcp.watching.concerned(&folder)));
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => self.add(Due::All),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let Some(shared) = self.shared.upgrade() else { return };
                    match self.due.take() {
                        Some((_, Due::All)) => shared.refresh_in_background(None).await,
                        Some((_, Due::Some(threads))) => shared.refresh_in_background(Some(&threads)).await,
                        None => {}
                    }
                },
            }
        }
    }

    fn hear(&mut self, place: WatchedDirectory, heard: Heard) {
        let Some(shared) = self.shared.upgrade() else { return };
        match heard {
            // Another thread watches it now, or none does.
            Heard::Changed { end, .. } if end.is_cancelled() => {}
            Heard::Changed { watch, end, is_first } => {
                let threads = shared.mcp.watching.heard(&place);
                // From now on changes are heard; what was read before counts for the step that read it.
                if !is_first {
                    self.add(Due::Some(threads));
                }
                self.watches.push(Box::pin(listen(place, watch, end)));
            }
            Heard::Over(end) => shared.mcp.watching.lost(&place, &end),
        }
    }

    /// Whatever comes within a moment is done together.
    fn add(&mut self, more: Due) {
        let settle = self.shared.upgrade().map_or_else(Default::default, |shared| shared.mcp.pool.limits().settle);
        let (_, due) = self.due.get_or_insert_with(|| (Instant::now() + settle, Due::Some(BTreeSet::new())));
        match (&mut *due, more) {
            (Due::Some(known), Due::Some(more)) => known.extend(more),
            (_, Due::All) => *due = Due::All,
            (Due::All, _) => {}
        }
        if matches!(due, Due::Some(threads) if threads.is_empty()) {
            self.due = None;
        }
    }
}

async fn changed(files: &mut Option<watch::Receiver<u64>>) -> bool {
    match files {
        Some(files) => files.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn arm(place: WatchedDirectory, handle: Environment, end: CancellationToken) -> (WatchedDirectory, Heard) {
    let armed = tokio::select! {
        armed = handle.watch_files(place.directory.clone(), false) => armed,
        () = end.cancelled() => return (place, Heard::Over(end)),
    };
    match armed {
        Ok(watch) => (place, Heard::Changed { watch, end, is_first: true }),
        Err(error) => {
            tracing::debug!(environment = %place.environment, %error, "a directory is not watched and read at every step");
            (place, Heard::Over(end))
        }
    }
}

/// Waits until something happens to the file that matters.
async fn listen(place: WatchedDirectory, mut watch: FileWatch, end: CancellationToken) -> (WatchedDirectory, Heard) {
    let file = place.directory.join(project::NAME);
    loop {
        let changes = tokio::select! {
            changes = watch.next() => changes,
            () = end.cancelled() => None,
        };
        match changes {
            None => return (place, Heard::Over(end)),
            Some(changes) if changes.overflow || changes.paths.contains(&file) => {
                return (place, Heard::Changed { watch, end, is_first: false });
            }
            Some(_) => {}
        }
    }
}
