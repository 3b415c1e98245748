//! The executor: its sessions, and what it serves on every link.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use outpost_rpc::peer::LinkEnd;
use outpost_rpc::{Close, Link, Peer, Router};
use outpost_wire::Fault;
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::session::CallerContext;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::adoption::Adoptions;
use crate::attachment::SessionAttachment;
use crate::caller::SessionCaller;
use crate::config::ExecutorConfig;
use crate::connection::ExecutorConnection;
use crate::files::redo::Redo;
use crate::files::replaced::ReplacedFiles;
use crate::journal::{FateLog, Journal, PreviousSession};
use crate::locks::Locks;
use crate::mounts::SlowMounts;
use crate::session::ExecutorSession;
use crate::{fault, methods};

/// How long the end of an executor waits for killed processes to be gone.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How long it waits for clients to take what they are told last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a client may take to introduce itself.
const STRANGER_TIME: Duration = Duration::from_secs(10);

/// How long after the start, or after its last client left, an executor without clients unmaps what they used of the program.
const QUIET: Duration = Duration::from_secs(1);

/// What the end of a link means for its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// It waits for the client to come back.
    Grace,
    /// It ends.
    Link,
}

/// Cheap to clone; all clones are one executor.
#[derive(Clone)]
pub struct Executor(Arc<ExecutorShared>);

pub(crate) struct ExecutorShared {
    pub config: Arc<ExecutorConfig>,
    /// In whose place sessions run that name no caller.
    own: Arc<SessionCaller>,
    instance_id: String,
    pub router: Router<ExecutorConnection>,
    pub slow_mounts: SlowMounts,
    pub redo: Option<Redo>,
    pub replaced: ReplacedFiles,
    fates: FateLog,
    sessions: Mutex<HashMap<String, Arc<ExecutorSession>>>,
    /// Processes that may go from one session to another.
    pub adoptions: Adoptions,
    links: AtomicUsize,
    is_closing: AtomicBool,
    /// A session or a link ended.
    less_to_do: Notify,
}

/// The journal of this run, and the sessions that previous runs left behind.
fn open_journal(config: &ExecutorConfig, instance_id: &str) -> (FateLog, HashMap<String, PreviousSession>) {
    let Some(directory) = &config.journal_directory else { return (FateLog::default(), HashMap::new()) };
    match Journal::open(directory, Locks::new(config.lock_directory.clone()), instance_id, &config.listener) {
        Ok(journal) => {
            let past = journal.past();
            (FateLog::new(journal), past)
        }
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "the fate of processes cannot be written down");
            (FateLog::default(), HashMap::new())
        }
    }
}

impl Executor {
    /// Must be called where tasks can be spawned: sessions of a previous run wait here for their clients.
    pub fn new(config: ExecutorConfig) -> Self {
        let instance_id = (config.ids)();
        let (fates, past) = open_journal(&config, &instance_id);
        let redo = config.redo_directory.clone().map(Redo::new);
        if let Some(redo) = &redo {
            redo.finish();
        }
        config.git.clean_up();
        let own = SessionCaller::new(config);
        let shared = Arc::new(ExecutorShared {
            config: own.config.clone(),
            own,
            instance_id,
            router: methods::router(),
            slow_mounts: SlowMounts::default(),
            redo,
            replaced: ReplacedFiles::default(),
            fates,
            sessions: Mutex::default(),
            adoptions: Adoptions::default(),
            links: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            less_to_do: Notify::new(),
        });
        for (id, past) in past {
            shared.revive(id, past);
        }
        shared.give_back_program_later();
        Self(shared)
    }

    /// What it tells about itself.
    pub fn info(&self) -> &EnvironmentInfo {
        self.0.own.info(&self.0.instance_id)
    }

    /// Serves one link until it ends.
    pub async fn serve(&self, link: Link, lifetime: Lifetime) -> LinkEnd {
        self.0.links.fetch_add(1, Ordering::AcqRel);
        let end = self.talk(link, lifetime).await;
        if self.0.links.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.give_back_program_later();
        }
        self.0.less_to_do.notify_waiters();
        end
    }

    async fn talk(&self, link: Link, lifetime: Lifetime) -> LinkEnd {
        let name = link.name.clone();
        let mut connection = None;
        let (peer, driver) = Peer::new(link, self.0.config.peer.clone(), |peer| {
            let service = Arc::new(ExecutorConnection::new(self.0.clone(), peer.clone()));
            connection = Some(service.clone());
            service
        });
        // Also when this is dropped or panics: a session must never wait for a link that is gone.
        let introduced = connection.clone();
        let _release = Release { executor: &self.0, connection, lifetime };
        let no_strangers = async {
            sleep(STRANGER_TIME).await;
            if introduced.is_some_and(|connection| connection.attached().is_none()) {
                peer.retire(Close::new(Close::PROTOCOL, "the client did not authenticate in time"));
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        let end = tokio::select! {
            end = driver => end,
            never = no_strangers => match never {},
        };
        tracing::debug!(link = name, ?end, "link ended");
        end
    }

    /// What a sandbox does not hold here, in a line for people, if anything.
    pub fn shortfall(&self) -> Option<String> {
        outpost_sandbox::told(&self.0.config.launcher).shortfall()
    }

    /// Ends everything that runs here and waits, for a while, until it is gone. How each process ended is written down and
    /// told to its client before the links are closed; a later start that is reached in the same way can still be asked.
    pub async fn shut_down(&self) {
        let ending = self.0.close();
        let processes: Vec<_> = ending.iter().flat_map(|session| session.stop()).collect();
        let _ = timeout(LAST_WAIT, async {
            for process in &processes {
                process.closed().await;
            }
        })
        .await;
        // Only now: those who wait for the processes end with their owners, and with them the knowledge of how each ended.
        ending.iter().for_each(ExecutorSession::let_go);
        let _ = timeout(LAST_WAIT, async {
            for process in &processes {
                process.told().await;
            }
            self.0.config.launcher.tidied().await;
        })
        .await;
        let _ = timeout(LAST_WORDS, join_all(ending.iter().map(|session| session.take_leave()))).await;
        self.0.config.launcher.leave();
    }

    /// Waits until there is neither a session nor a link.
    pub async fn idle(&self) {
        loop {
            let mut less = std::pin::pin!(self.0.less_to_do.notified());
            less.as_mut().enable();
            if self.is_idle() {
                return;
            }
            less.await;
        }
    }

    /// Whether a client is connected.
    pub fn has_clients(&self) -> bool {
        self.0.links.load(Ordering::Acquire) > 0
    }

    pub fn is_idle(&self) -> bool {
        self.0.links.load(Ordering::Acquire) == 0 && self.0.sessions().is_empty()
    }
}

/// Lets go of the session of a link that has ended.
struct Release<'a> {
    executor: &'a Arc<ExecutorShared>,
    connection: Option<Arc<ExecutorConnection>>,
    lifetime: Lifetime,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        if let Some((session, attachment)) = self.connection.take().and_then(|connection| connection.attached()) {
            self.executor.release(&session, &attachment, self.lifetime);
        }
    }
}

impl ExecutorShared {
    pub(crate) fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// What only the start needed, or clients that have left, is most of what an executor has mapped.
    fn give_back_program_later(self: &Arc<Self>) {
        // An executor that ends meanwhile is not kept for this.
        let shared = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(QUIET).await;
            if shared.upgrade().is_some_and(|shared| shared.links.load(Ordering::Acquire) == 0) {
                let _ = tokio::task::spawn_blocking(outpost_sandbox::give_back_program).await;
            }
        });
    }

    /// In whose place a session runs whose client says this about itself. Nothing if it says nothing, or is not heard.
    pub(crate) fn caller(&self, context: Option<&CallerContext>) -> Result<Option<Arc<SessionCaller>>, String> {
        match (context, &self.config.for_caller) {
            (Some(context), Some(config)) => config(context).map(SessionCaller::new).map(Some),
            _ => Ok(None),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<ExecutorSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all sessions out, and lets no new one in.
    fn close(&self) -> Vec<Arc<ExecutorSession>> {
        let mut sessions = self.sessions();
        self.is_closing.store(true, Ordering::Release);
        sessions.drain().map(|(_, session)| session).collect()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Under an id of the client's own, or a new one.
    pub(crate) fn create_session(&self, wanted: Option<&str>, caller: Option<Arc<SessionCaller>>) -> Result<Arc<ExecutorSession>, Fault> {
        if let Some(wanted) = wanted.filter(|wanted| !is_session_id(wanted)) {
            return Err(fault::bad_session_id(wanted));
        }
        let mut sessions = self.sessions();
        if self.is_closing() {
            return Err(fault::shutting_down());
        }
        if let Some(taken) = wanted.filter(|wanted| sessions.contains_key(*wanted)) {
            return Err(fault::session_exists(taken));
        }
        let id = wanted.map_or_else(|| (self.config.ids)(), str::to_owned);
        let caller = caller.unwrap_or_else(|| self.own.clone());
        let session = ExecutorSession::new(id, caller, self.fates.clone(), PreviousSession::default());
        sessions.insert(session.id().to_owned(), session.clone());
        Ok(session)
    }

    /// A session of which only the fates of its processes are left, and what it must not forget.
    fn revive(self: &Arc<Self>, id: String, past: PreviousSession) {
        let session = ExecutorSession::new(id, self.own.clone(), self.fates.clone(), past);
        self.sessions().insert(session.id().to_owned(), session.clone());
        self.expire_later(session, 0);
    }

    pub(crate) fn session(&self, id: &str) -> Option<Arc<ExecutorSession>> {
        self.sessions().get(id).cloned()
    }

    pub(crate) fn end_session(&self, session: &Arc<ExecutorSession>) {
        self.sessions().remove(session.id());
        session.end();
        self.less_to_do.notify_waiters();
    }

    fn release(self: &Arc<Self>, session: &Arc<ExecutorSession>, attachment: &Arc<SessionAttachment>, lifetime: Lifetime) {
        let Some(epoch) = session.detach(attachment) else { return };
        match lifetime {
            Lifetime::Link => self.end_session(session),
            Lifetime::Grace => self.expire_later(session.clone(), epoch),
        }
    }

    /// Ends a session when its grace is over, unless a client came back to it.
    fn expire_later(self: &Arc<Self>, session: Arc<ExecutorSession>, epoch: u64) {
        let executor = self.clone();
        tokio::spawn(async move {
            let ExecutorConfig { grace, grace_running, .. } = *session.config();
            sleep(grace).await;
            if session.owes_results(epoch) {
                sleep(grace_running.saturating_sub(grace)).await;
            }
            if session.expire(epoch) {
                executor.sessions().remove(session.id());
                executor.less_to_do.notify_waiters();
            }
        });
    }
}

/// Ids become names of files, and a client that knows one has the session: only what cannot be guessed is taken.
fn is_session_id(text: &str) -> bool {
    let is_hyphen = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    text.len() == 36 && text.bytes().enumerate().all(|(at, byte)| if is_hyphen(at) { byte == b'-' } else { byte.is_ascii_hexdigit() })
}
