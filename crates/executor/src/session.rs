//! One client's belongings: its processes, and whom they are pushed to. A lost connection is not the end of a session.

mod start;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Child, Launch, LaunchError, Level, Loss, LossSink, ProcessScope};
use outpost_wire::Fault;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{ProcessSummary, StartParams};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

pub(crate) use self::start::{Claim, Starting, sandbox_type};
use crate::attachment::SessionAttachment;
use crate::blocking::blocking;
use crate::caller::SessionCaller;
use crate::config::ExecutorConfig;
use crate::files::worker::{CallProgress, Done, WorkerCall, WorkerReply, Workers};
use crate::git::{Git, RepositoryInUse};
use crate::input::InputRoom;
use crate::journal::{Fate, FateLog, PreviousSession};
use crate::policy::Policies;
use crate::process::Process;
use crate::retained::{Retained, RetainedLimits};
use crate::snapshot::{Setting, ShellState, Snapshots};
use crate::trails::Trails;
use crate::{fault, past, variables};

/// So many starts of a session may take long at once.
const LAUNCHES: usize = 4;
/// And so many wait for programs to take their connections: each has a thread meanwhile, of which other sessions need some, too.
const CONNECTS: usize = 32;
/// The client that is there now has this part of the time for which a closed process is kept, however long others were there before.
const NEWEST_SHARE: u32 = 6;
/// So many times longer a closed process is kept that another session may come for.
const FOR_ANOTHER: u32 = 20;
/// How long after its last use memory is given back.
const GIVING_BACK: Duration = Duration::from_secs(1);

pub(crate) struct ExecutorSession {
    id: String,
    config: Arc<ExecutorConfig>,
    /// In whose place new commands run: of the client that was attached last.
    caller: Mutex<Arc<SessionCaller>>,
    fates: FateLog,
    /// Whom everything belongs to that is started here.
    owner: ProcessScope,
    /// How many threads may be waiting for something inside the owner's sandboxes.
    at_work: AtomicUsize,
    /// Starts that may take long, a few at a time: no session takes all the threads that there are for such work.
    launches: Semaphore,
    connects: Semaphore,
    /// What was written to our processes and not yet read by them.
    input_room: InputRoom,
    /// Who makes file calls inside our sandboxes.
    workers: Workers,
    policies: Policies,
    /// Where the paths of our policies have led.
    trails: Trails,
    /// The layers of our repositories.
    git: Git,
    snapshots: Snapshots,
    /// The output of our processes that have ended.
    retained: Retained<Process>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    attachment: Option<Arc<SessionAttachment>>,
    /// Counts attachments and detachments, so that a timer knows whether it is still meant.
    epoch: u64,
    /// Since when a client is attached, and for how long clients were before.
    attached_at: Option<Instant>,
    attended: Duration,
    processes: HashMap<String, ProcessEntry>,
    ended: bool,
    /// So many processes that were started here run in other sessions. Our sandboxes are theirs until they end.
    lent: usize,
}

/// What there is of a process that another session asks for.
pub(crate) enum Lent {
    Process(Arc<Process>),
    Starting(Arc<Starting>),
}

/// A process of this run, or what is left of one of a previous run.
#[derive(Clone)]
pub(crate) enum ProcessEntry {
    Starting(Arc<Starting>),
    Live(Arc<Process>),
    Past(Fate),
}

impl ProcessEntry {
    fn fingerprint(&self) -> &str {
        match self {
            Self::Starting(starting) => starting.fingerprint(),
            Self::Live(process) => process.fingerprint(),
            Self::Past(fate) => &fate.fingerprint,
        }
    }
}

impl State {
    /// For how long clients were attached so far.
    fn attended(&self) -> Duration {
        self.attended + self.attached_at.map(|at| at.elapsed()).unwrap_or_default()
    }

    fn live(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.processes.values().filter_map(|entry| match entry {
            ProcessEntry::Live(process) => Some(process),
            ProcessEntry::Past(_) | ProcessEntry::Starting(_) => None,
        })
    }
}

impl Drop for ExecutorSession {
    fn drop(&mut self) {
        give_back_later();
    }
}

/// What was freed goes back to the system a moment later: an executor that had much to do is as small as before.
fn give_back_later() {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async {
        sleep(GIVING_BACK).await;
        let _ = tokio::task::spawn_blocking(outpost_sandbox::give_back_memory).await;
    });
}

impl ExecutorSession {
    pub(crate) fn new(id: String, caller: Arc<SessionCaller>, fates: FateLog, past: PreviousSession) -> Arc<Self> {
        let config = caller.config.clone();
        let processes = past.fates.into_iter().map(|(id, fate)| (id, ProcessEntry::Past(fate))).collect();
        let owner = config.launcher.owner();
        let git = Git::new(&id, config.git.clone(), &config.variables);
        let session = Arc::new(Self {
            trails: Trails::new(id.clone(), fates.clone(), past.led, past.writable),
            id,
            fates,
            owner,
            workers: Workers::new(config.worker_patience),
            at_work: AtomicUsize::new(0),
            launches: Semaphore::new(LAUNCHES),
            connects: Semaphore::new(CONNECTS),
            input_room: InputRoom::new(config.input),
            policies: Policies::default(),
            git,
            snapshots: Snapshots::default(),
            retained: Retained::new(RetainedLimits::default()),
            config,
            caller: Mutex::new(caller),
            state: Mutex::new(State { processes, ..State::default() }),
        });
        let told = Arc::downgrade(&session);
        session.owner.report_losses(LossSink::new(move |loss| {
            if let Some(session) = told.upgrade() {
                session.tell_loss(&loss);
            }
        }));
        session
    }

    /// A program outside took away something that a sandbox of ours held.
    fn tell_loss(&self, loss: &Loss) {
        tracing::warn!(session = self.id, path = %loss.path.display(), held = ?loss.held, outcome = ?loss.outcome, "a sandbox lost what it held");
        let attachment = self.lock().attachment.clone();
        if let Some(attachment) = attachment {
            attachment.tell_loss(loss);
        }
    }

    pub(crate) fn retained(&self) -> &Retained<Process> {
        &self.retained
    }

    pub(crate) fn fates(&self) -> &FateLog {
        &self.fates
    }

    /// Makes a file call inside the sandbox of a policy. Blocks.
    pub(crate) fn call(&self, policy: &Policy, call: &WorkerCall, data: &[u8]) -> Result<Done, Fault> {
        self.with_owner(|owner| self.workers.call(owner, policy, call, data))
    }

    /// Makes a file call that is over sooner than another thread would wake up, if nothing is wrong; else another thread waits for it.
    pub(crate) async fn quick_call(self: &Arc<Self>, policy: &Policy, call: WorkerCall, data: Bytes) -> Result<Done, Fault> {
        let (session, policy) = (self.clone(), policy.clone());
        match self.workers.begin(&policy, &call, &data)? {
            CallProgress::Done(done) => Ok(done),
            CallProgress::Waiting(worker, patience) => {
                let waited = session.clone();
                match blocking({
                    let policy = policy.clone();
                    move || waited.workers.end_call(&policy, worker, patience)
                })
                .await?
                {
                    (WorkerReply::Doubtful, _) => blocking(move || session.call(&policy, &call, &data)).await,
                    done => Ok(done),
                }
            }
            CallProgress::NotYet => blocking(move || session.call(&policy, &call, &data)).await,
        }
    }

    /// Does what may take long.
    fn with_owner<T>(&self, work: impl FnOnce(&ProcessScope) -> T) -> T {
        self.at_work.fetch_add(1, Ordering::AcqRel);
        let done = work(&self.owner);
        self.at_work.fetch_sub(1, Ordering::AcqRel);
        done
    }

    /// Starts a program under a policy on a thread where it may take its time: a sandbox is made by looking at many files, and
    /// what runs in it can stop the task that starts the next program there. A child that no request waits for any more is killed.
    async fn launch_aside(self: &Arc<Self>, launch: Launch) -> Result<Child, LaunchError> {
        let _turn = self.launches.acquire().await;
        self.launch_for_us(launch).await
    }

    /// The same for what a start, or the end of a command, waits for itself.
    pub(crate) async fn launch_for_us(self: &Arc<Self>, launch: Launch) -> Result<Child, LaunchError> {
        let session = self.clone();
        let launched = tokio::task::spawn_blocking(move || session.with_owner(|owner| owner.start(&launch))).await;
        launched.map_err(io::Error::other)?
    }

    /// Whether something can still be started in its sandboxes: also after its end, while another session has a process there.
    pub(crate) fn has_sandboxes(&self) -> bool {
        let state = self.lock();
        !state.ended || state.lent > 0
    }

    /// Waits until one more start may take long.
    pub(crate) async fn launch_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.launches.acquire().await.ok()
    }

    /// Waits until one more start may wait for a program to take its connection.
    pub(crate) async fn connect_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.connects.acquire().await.ok()
    }

    /// Whether what runs under the policy of a request could hold up the task that starts it.
    pub(crate) fn confines(&self, asked: Option<&SandboxContext>) -> bool {
        asked.is_some() || self.config.grounds.ceiling != Policy::Open
    }

    /// The policy of a file call. Those that leave files alone need no sandbox for them, unless the operator's ceiling does.
    pub(crate) fn file_policy(&self, asked: Option<&SandboxContext>) -> Result<Policy, Fault> {
        let grounds = &self.config.grounds;
        match asked.filter(|context| grounds.ceiling != Policy::Open || !context.leaves_files_open()) {
            Some(context) => self.policies.of(context, grounds, &self.trails),
            None => grounds.policy(None, &self.trails),
        }
        .map(|policy| self.layered(policy))
        .map_err(|error| fault::policy(&error))
    }

    /// With what sandboxed code sees in the place of repositories, where mounts can show it.
    fn layered(&self, policy: Policy) -> Policy {
        let has_mounts = |policy: &Policy| policy.rules().is_some() && self.config.launcher.capacity().level > Some(Level::Landlock);
        if has_mounts(&policy) { self.git.layered(policy, &self.config.grounds.ceiling) } else { policy }
    }

    /// Has a command find its repositories as they are now. Returns what there is to say, and what it holds until it ends. Blocks, on a
    /// thread where work may take its time.
    fn before_command(self: &Arc<Self>, policy: &Policy) -> (Vec<String>, RepositoryInUse) {
        match (policy, tokio::runtime::Handle::try_current()) {
            (Policy::Confined(_), Ok(runtime)) => runtime.block_on(self.git.before(self, policy)),
            _ => Default::default(),
        }
    }

    /// Carries over what a command committed. Returns what there is to say.
    pub(crate) async fn after_command(self: &Arc<Self>, policy: &Policy, took: Duration) -> Vec<String> {
        let is_over = {
            let state = self.lock();
            state.ended && state.lent == 0
        };
        if is_over { Vec::new() } else { self.git.after(self, policy, took).await }
    }

    /// The policy that a process is started under.
    pub(crate) fn start_policy(&self, params: &StartParams) -> Result<Policy, Fault> {
        let policy = self.config.grounds.policy(params.sandbox.as_ref(), &self.trails).map_err(|error| fault::policy(&error))?;
        Ok(self.layered(policy))
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn input_room(&self) -> &InputRoom {
        &self.input_room
    }

    pub(crate) fn config(&self) -> &ExecutorConfig {
        &self.config
    }

    /// In whose place it runs.
    pub(crate) fn caller(&self) -> Arc<SessionCaller> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is started from now on inherits from another program. What runs keeps what it has, and so do the sandboxes.
    pub(crate) fn run_for(&self, caller: Arc<SessionCaller>) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = caller;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest connection wins; an older one is told so. False if the session ended meanwhile.
    pub(crate) fn attach(&self, attachment: Arc<SessionAttachment>) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        state.epoch += 1;
        state.attended = state.attended();
        state.attached_at = Some(Instant::now());
        let older = state.attachment.replace(attachment.clone());
        for process in state.live() {
            process.push_to(Some(attachment.clone()));
        }
        drop(state);
        if let Some(older) = older {
            older.revoke();
        }
        true
    }

    /// The connection is gone. Returns the epoch to wait in for the next one, unless there already is one.
    pub(crate) fn detach(&self, attachment: &Arc<SessionAttachment>) -> Option<u64> {
        let mut state = self.lock();
        if !state.attachment.as_ref().is_some_and(|current| Arc::ptr_eq(current, attachment)) {
            return None;
        }
        state.attachment = None;
        state.epoch += 1;
        state.attended = state.attended();
        state.attached_at = None;
        for process in state.live() {
            process.push_to(None);
        }
        (!state.ended).then_some(state.epoch)
    }

    /// Whether a client that comes back would find a command that still runs, or the end of one that it has not heard of.
    pub(crate) fn owes_results(&self, epoch: u64) -> bool {
        let state = self.lock();
        state.epoch == epoch && state.live().any(|process| !process.is_closed() || !process.is_told())
    }

    /// Ends the session if no client came back since `epoch`. True if it is over.
    pub(crate) fn expire(self: &Arc<Self>, epoch: u64) -> bool {
        let state = self.lock();
        if state.epoch != epoch {
            return false;
        }
        self.end_locked(state);
        true
    }

    /// Kills everything. Nothing can be started afterwards.
    pub(crate) fn end(self: &Arc<Self>) -> Vec<Arc<Process>> {
        self.end_locked(self.lock())
    }

    /// Kills everything because the executor ends. An attached client is still told how its processes ended, and a later start of the
    /// executor can be asked.
    pub(crate) fn stop(self: &Arc<Self>) -> Vec<Arc<Process>> {
        let mut state = self.lock();
        state.ended = true;
        let processes: Vec<_> = state.live().cloned().collect();
        for entry in state.processes.values() {
            if let ProcessEntry::Starting(starting) = entry {
                starting.end();
            }
        }
        drop(state);
        for process in &processes {
            process.terminate();
        }
        processes
    }

    /// Ends what is left after [`Self::stop`].
    pub(crate) fn let_go(self: &Arc<Self>) {
        self.end_owner();
        self.git.leave();
    }

    /// Closes the connection, if there is one, once everything that was said on it has been taken.
    pub(crate) async fn take_leave(&self) {
        let attachment = self.lock().attachment.clone();
        if let Some(attachment) = attachment {
            attachment.take_leave().await;
        }
    }

    fn end_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> Vec<Arc<Process>> {
        state.ended = true;
        let processes: Vec<_> = state.live().cloned().collect();
        for entry in std::mem::take(&mut state.processes).into_values() {
            if let ProcessEntry::Starting(starting) = entry {
                starting.end();
            }
        }
        let is_used = state.lent > 0;
        drop(state);
        for process in &processes {
            process.terminate();
            process.push_to(None);
        }
        if is_used {
            self.workers.end();
        } else {
            self.let_go();
        }
        self.fates.note(|journal| journal.ended(&self.id));
        processes
    }

    /// Gives a process to another session. Nothing if there is none that runs or ran here.
    pub(crate) fn lend(self: &Arc<Self>, id: &str, claimant: &Arc<Self>) -> Result<Option<Lent>, Fault> {
        if claimant.process(id).is_some() {
            return Err(fault::process_exists(id));
        }
        let mut state = self.lock();
        let process = match state.processes.get(id) {
            Some(ProcessEntry::Starting(starting)) => return Ok(Some(Lent::Starting(starting.clone()))),
            Some(ProcessEntry::Live(process)) => process.clone(),
            Some(ProcessEntry::Past(_)) | None => return Ok(None),
        };
        state.processes.remove(id);
        if process.leave_home(self) {
            state.lent += 1;
        }
        let attachment = state.attachment.clone();
        drop(state);
        if let Some(attachment) = attachment {
            attachment.tell_moved(id);
        }
        claimant.trails.inherit(&self.trails);
        claimant.take_in(process.clone())?;
        Ok(Some(Lent::Process(process)))
    }

    /// Takes a process of another session in. It ends with this one, as those do that were started here.
    fn take_in(self: &Arc<Self>, process: Arc<Process>) -> Result<(), Fault> {
        let mut state = self.lock();
        process.move_to(self, state.attachment.clone());
        if state.ended {
            drop(state);
            process.terminate();
            return Err(fault::session_ended());
        }
        state.processes.insert(process.id().to_owned(), ProcessEntry::Live(process));
        Ok(())
    }

    /// One that this session has already.
    pub(crate) fn own(&self, id: &str) -> Option<Lent> {
        match self.lock().processes.get(id)? {
            ProcessEntry::Starting(starting) => Some(Lent::Starting(starting.clone())),
            ProcessEntry::Live(process) => Some(Lent::Process(process.clone())),
            ProcessEntry::Past(_) => None,
        }
    }

    /// A process that another session has, and that was started here, is closed.
    pub(crate) fn take_back(self: &Arc<Self>) {
        let mut state = self.lock();
        state.lent = state.lent.saturating_sub(1);
        let is_over = state.ended && state.lent == 0;
        drop(state);
        if is_over {
            self.let_go();
        }
    }

    fn end_owner(self: &Arc<Self>) {
        // Also what outlived processes that are long forgotten.
        self.workers.end();
        if self.at_work.load(Ordering::Acquire) == 0 {
            self.owner.end();
        } else {
            // Another task may be making a sandbox just now, and the owner ends only after that.
            let session = self.clone();
            tokio::task::spawn_blocking(move || session.owner.end());
        }
    }

    /// The state of a shell that a start wants to begin with, if it asks for one and one can be had.
    pub(crate) async fn snapshot(self: &Arc<Self>, params: &StartParams) -> Result<Option<Arc<ShellState>>, Fault> {
        let caller = self.caller();
        let login = variables::for_login(&caller.config.variables, params.env_policy.as_ref(), &params.env);
        let setting = || {
            Ok(Setting {
                env: variables::build(&caller.config.variables, params.env_policy.as_ref(), &login),
                cwd: params.cwd.to_native().map_err(|error| fault::foreign_cwd(&params.cwd.to_string(), &error))?,
                policy: self.start_policy(params)?,
            })
        };
        let launch = async |launch: Launch| match launch.policy {
            Policy::Open => self.owner.start(&launch),
            Policy::Confined(_) => self.launch_aside(launch).await,
        };
        self.snapshots.for_start(params, &login, setting, launch).await
    }

    pub(crate) fn process(&self, id: &str) -> Option<ProcessEntry> {
        self.lock().processes.get(id).cloned()
    }

    /// Kills a process and everything that came of it, or sees to it that one that is being started never runs. False if there is
    /// none that runs or will.
    pub(crate) fn terminate(&self, id: &str) -> bool {
        let state = self.lock();
        match state.processes.get(id) {
            Some(ProcessEntry::Starting(starting)) => {
                starting.end();
                true
            }
            Some(ProcessEntry::Live(process)) => {
                let process = process.clone();
                drop(state);
                process.terminate()
            }
            Some(ProcessEntry::Past(_)) | None => false,
        }
    }

    pub(crate) fn list(&self) -> Vec<ProcessSummary> {
        let processes: Vec<_> = self.lock().processes.iter().map(|(id, entry)| (id.clone(), entry.clone())).collect();
        let summary = |(id, entry): (String, ProcessEntry)| match entry {
            ProcessEntry::Starting(starting) => starting.summary(id),
            ProcessEntry::Live(process) => process.summary(),
            ProcessEntry::Past(fate) => past::summary(id, &fate),
        };
        let mut rows: Vec<_> = processes.into_iter().map(summary).collect();
        rows.sort_by(|a, b| a.process_id.cmp(&b.process_id));
        rows
    }

    /// Drops a closed process once clients that were there have had time to read it, the one that is there now a share of that time
    /// for itself. While no client is attached it is kept: the session's own end is its end.
    pub(crate) async fn forget_later(process: &Arc<Process>) {
        // Another session that it has gone to has its own time to read it.
        while !Self::forget_in(&process.session(), process).await {}
    }

    /// False if it has gone to another session meanwhile.
    async fn forget_in(session: &Weak<Self>, process: &Arc<Process>) -> bool {
        let closed_at = Instant::now();
        let before = session.upgrade().map(|session| (session.config.closed_retention, session.lock().attended()));
        let Some((retention, before)) = before else { return true };
        // A link that is cut again and again must not keep everything for ever.
        let share = retention / NEWEST_SHARE;
        let mut rest = retention;
        loop {
            sleep(rest).await;
            if !session.ptr_eq(&process.session()) {
                return false;
            }
            let Some(session) = session.upgrade() else { return true };
            let mut state = session.lock();
            if state.ended {
                return true;
            }
            let (attended, newest) = (state.attended().saturating_sub(before), state.attached_at.map(|at| at.elapsed()));
            let is_there = state.attachment.as_ref().is_some_and(|attachment| attachment.was_there_after(closed_at));
            let is_for_another = state.attachment.as_ref().is_some_and(|attachment| process.waits_for_another_than(attachment));
            let kept = if is_for_another { retention * FOR_ANOTHER } else { retention };
            if is_there && attended >= kept && newest.is_some_and(|newest| newest >= share) && process.is_told() {
                state.processes.remove(process.id());
                session.fates.note(|journal| journal.forgotten(&session.id, process.id()));
                if state.processes.is_empty() {
                    give_back_later();
                }
                return true;
            }
            rest = kept.saturating_sub(attended).max(share);
        }
    }
}
