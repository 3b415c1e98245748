//! The executor's end of a cell and its reapers: a pool of those that wait, a list of those that work.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tokio::net::unix::pipe;

use crate::channel::{self, Channel, ChannelMessage};
use crate::child::Exit;
use crate::limits::EffectiveLimit;
use crate::memory::{Program, Root};
use crate::message::{CellFailure, CellStanding, Checked, StageEvent, StageOrder, Task};
use crate::meter::Meter;
use crate::shares::Shares;
use crate::zygote::{CellEnds, ZygoteInUse};

/// How many reapers without work are kept.
const SPARE: usize = 64;
/// How long a reaper or a cell may take to answer. It answers in less than a millisecond unless the machine, or the
/// program's own file system, hangs.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a killed program may take until its reaper is taken for stuck.
const KILL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Cell {
    /// Its number on this machine.
    pid: u32,
    control: Channel,
    meter: Arc<Meter>,
    state: Mutex<State>,
    next: AtomicU64,
    /// Asks its guard, one at a time; nothing is held by mounts without one.
    requests: Mutex<Option<Channel>>,
    standing: Mutex<CellStanding>,
    /// Another one has taken its place: what runs in it goes on, and nothing new is started.
    retired: AtomicBool,
    /// Whom it runs as, if that is not the executor's own user.
    user: Option<(u32, u32)>,
    /// The directories that it may write, where only the directories themselves say so and not their names.
    anchors: Vec<Anchor>,
    /// The zygote that forked it lives as long as it does.
    _zygote: ZygoteInUse,
}

/// Which directory was at a path.
#[derive(Debug)]
pub(crate) struct Anchor {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Anchor {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: Self::look(path) }
    }

    fn look(path: &Path) -> Option<(u64, u64)> {
        path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    fn is_in_place(&self) -> bool {
        Self::look(&self.path) == self.identity
    }
}

/// What came of a start.
pub(crate) enum Started {
    Running(RunningProgram),
    Failed(io::Error),
    /// What the cell holds is not in place, or may not be. Nothing was started.
    Doubtful,
}

#[derive(Debug)]
struct State {
    spare: Vec<Arc<Reaper>>,
    /// With the job of each.
    busy: HashMap<u64, (Arc<Reaper>, u64)>,
    /// How many have something done in it, or are about to.
    engaged: usize,
    /// When that was last so.
    used: Instant,
    ended: bool,
}

/// A caller that is about to have something done in a cell: it is not ended meanwhile.
#[derive(Debug)]
pub(crate) struct Engaged(Arc<Cell>);

impl Deref for Engaged {
    type Target = Arc<Cell>;

    fn deref(&self) -> &Arc<Cell> {
        &self.0
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        self.0.disengage();
    }
}

#[derive(Debug)]
pub(crate) struct Reaper {
    number: u64,
    /// No pipe, but waited for in the same way.
    socket: pipe::Receiver,
}

impl Cell {
    /// Takes over the socket of a cell once that says that it is ready. With it comes what it shares with later cells of its
    /// session.
    pub(crate) fn adopt(ends: CellEnds, guarded: bool, meter: Arc<Meter>) -> io::Result<Adopted> {
        let CellEnds { control, requests, zygote } = ends;
        let requests = guarded.then_some(requests);
        Ok(hear(&control)?.map(|(pid, shares)| {
            // The cell and its reapers, and the guard before them if it has one.
            meter.watch_cell(Root { pid, helpers: if requests.is_some() { 3 } else { 2 } });
            let state = State { spare: Vec::new(), busy: HashMap::new(), engaged: 0, used: Instant::now(), ended: false };
            let cell = Self {
                pid,
                control,
                meter,
                _zygote: zygote,
                state: Mutex::new(state),
                next: AtomicU64::new(1),
                requests: Mutex::new(requests),
                standing: Mutex::default(),
                retired: AtomicBool::new(false),
                user: None,
                anchors: Vec::new(),
            };
            (cell, shares)
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing if it was let go.
    pub(crate) fn engage(self: &Arc<Self>) -> Option<Engaged> {
        let mut state = self.lock();
        if state.ended {
            return None;
        }
        state.engaged += 1;
        Some(Engaged(self.clone()))
    }

    fn disengage(&self) {
        let mut state = self.lock();
        state.engaged = state.engaged.saturating_sub(1);
        state.used = Instant::now();
    }

    /// Since when nothing runs in it and no caller is about to have something done there.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (!state.ended && state.engaged == 0 && state.busy.is_empty()).then_some(state.used)
    }

    /// Ends it unless something is done in it.
    pub(crate) fn end_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.engaged > 0 || !state.busy.is_empty() {
            return false;
        }
        state.ended = true;
        drop(state);
        self.end();
        true
    }

    /// Whether it can still be asked for something.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there_after(Duration::ZERO)
    }

    /// The same after so long; waits, on this thread, no longer than until it is gone.
    pub(crate) fn is_there_after(&self, time: Duration) -> bool {
        let mut events = [PollFd::new(&self.control, PollFlags::IN)];
        // It never says anything after it was ready: what can be read is its end.
        matches!(poll(&mut events, Timespec::try_from(time).ok().as_ref()), Ok(0) | Err(Errno::INTR))
    }

    /// Has its guard look at everything that it holds, and put back what is not in place. Waits, on this thread.
    pub(crate) fn check(&self) -> io::Result<Checked> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(requests) = requests.as_ref() else { return Ok(Checked::default()) };
        requests.send(&[1], &[])?;
        let answer = wait_for_message(requests.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let checked = Checked::decode(&answer.bytes)?;
        let standing = CellStanding { checks: Arc::new(checked.checks.clone()), was_checked: false };
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        Ok(checked)
    }

    /// The same, of a cell that runs as another user.
    pub(crate) fn of(mut self, user: Option<(u32, u32)>) -> Self {
        self.user = user;
        self
    }

    /// The same, of a cell that is good only as long as these directories stay where they are.
    pub(crate) fn anchored(mut self, anchors: Vec<Anchor>) -> Self {
        self.anchors = anchors;
        self
    }

    /// Whether what it may write is still at the paths that its policy names.
    pub(crate) fn is_in_place(&self) -> bool {
        self.anchors.iter().all(Anchor::is_in_place)
    }

    pub(crate) fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    /// What has to be in place before something is started.
    pub(crate) fn standing(&self) -> CellStanding {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether something runs in it that was started.
    pub(crate) fn is_busy(&self) -> bool {
        !self.lock().busy.is_empty()
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Starts a program; `order` is made for the number of the job. Waits, on this thread, for what comes of it.
    pub(crate) fn start(self: &Arc<Self>, order: impl Fn(u64) -> Vec<u8>, descriptors: &[BorrowedFd<'_>]) -> io::Result<Started> {
        let ordered = self.order(order, descriptors)?;
        let news = wait_for_news(ordered.0.reaper.socket.as_fd());
        ordered.settle(news)
    }

    /// The same without waiting.
    pub(crate) fn order(self: &Arc<Self>, order: impl Fn(u64) -> Vec<u8>, descriptors: &[BorrowedFd<'_>]) -> io::Result<OrderedProgram> {
        let job = self.next.fetch_add(1, Ordering::Relaxed);
        let bytes = order(job);
        let reaper = loop {
            let spare = self.lock().spare.pop();
            let is_new = spare.is_none();
            let reaper = match spare {
                Some(reaper) => reaper,
                None => self.fork_reaper()?,
            };
            match channel::send(reaper.socket.as_fd(), &bytes, descriptors) {
                Ok(()) => break reaper,
                // Another process killed it while it was waiting.
                Err(_) if !is_new => {}
                Err(error) => return Err(error),
            }
        };
        self.lock().busy.insert(reaper.number, (reaper.clone(), job));
        Ok(OrderedProgram(RunningProgram { cell: self.clone(), reaper, job, pid: 0 }))
    }

    fn fork_reaper(&self) -> io::Result<Arc<Reaper>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = channel::pair()?;
        self.control.send(&StageOrder::Reaper { number }.encode(), &[theirs.as_fd()])?;
        let socket = pipe::Receiver::from_owned_fd_unchecked(ours.into_descriptor())?;
        Ok(Arc::new(Reaper { number, socket }))
    }

    /// Forks a worker; it is there when this returns.
    pub(crate) fn worker(self: &Arc<Self>) -> io::Result<WorkerHandle> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = channel::pair()?;
        self.control.send(&StageOrder::Worker { number }.encode(), &[theirs.as_fd()])?;
        drop(theirs);
        match wait_for_news(ours.as_fd()) {
            Ok(Some(StageEvent::Started { .. })) => {
                self.lock().engaged += 1;
                Ok(WorkerHandle { cell: Arc::downgrade(self), number, channel: ours, is_engaged: AtomicBool::new(true) })
            }
            Ok(Some(StageEvent::Failed { errno, .. })) => Err(io::Error::from_raw_os_error(errno)),
            Ok(_) => Err(io::Error::other("the process that should make file calls was killed")),
            Err(error) => {
                // Another process stopped it, so it does not see the end of its socket either.
                let _ = self.control.send(&StageOrder::Fell { number }.encode(), &[]);
                Err(error)
            }
        }
    }

    fn fell(&self, reaper: &Reaper) {
        let _ = self.control.send(&StageOrder::Fell { number: reaper.number }.encode(), &[]);
    }

    /// Kills everything that runs now; more can be started.
    pub(crate) fn kill_all(&self) {
        for (reaper, job) in self.lock().busy.values() {
            let _ = channel::send(reaper.socket.as_fd(), &Task::kill(*job), &[]);
        }
    }

    /// Kills everything that still runs; those that wait for it are told. Nothing can be started any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        // A handle of a process that ended holds its reaper, too; it goes all the same.
        for reaper in std::mem::take(&mut state.spare) {
            let _ = shutdown(&reaper.socket, Shutdown::Write);
        }
        for (reaper, _) in state.busy.values() {
            // Its news can still be read.
            let _ = shutdown(&reaper.socket, Shutdown::Write);
        }
        drop(state);
        // Its own end can still be seen.
        let _ = shutdown(&self.control, Shutdown::Write);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.end();
        self.meter.forget_cell(self.pid);
    }
}

/// A process that does work of ours inside. It ends with its socket, unless it has been stopped; and with its cell, which may end
/// while the worker rests.
#[derive(Debug)]
pub struct WorkerHandle {
    cell: Weak<Cell>,
    number: u64,
    channel: Channel,
    /// One that was just made is.
    is_engaged: AtomicBool,
}

impl WorkerHandle {
    /// Our end of its socket.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Whether its cell is still the one in which things are started.
    pub fn is_current(&self) -> bool {
        self.cell.upgrade().is_some_and(|cell| !cell.is_retired() && !cell.lock().ended)
    }

    /// Must be called before it is given work, unless it was just made. False if its cell is not current any more.
    pub fn engage(&self) -> bool {
        let Some(cell) = self.cell.upgrade().filter(|cell| !cell.is_retired() && cell.is_in_place()) else { return false };
        let mut state = cell.lock();
        if state.ended {
            return false;
        }
        if !self.is_engaged.swap(true, Ordering::AcqRel) {
            state.engaged += 1;
        }
        true
    }

    /// Its work is done.
    pub fn rest(&self) {
        if self.is_engaged.swap(false, Ordering::AcqRel)
            && let Some(cell) = self.cell.upgrade()
        {
            cell.disengage();
        }
    }

    /// For one that does not answer: a stopped process sees no end of a socket.
    pub fn kill(&self) {
        if let Some(cell) = self.cell.upgrade() {
            let _ = cell.control.send(&StageOrder::Fell { number: self.number }.encode(), &[]);
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.rest();
    }
}

/// A program whose reaper was told to start it, and has not answered yet. Its number is not known.
#[derive(Debug)]
pub(crate) struct OrderedProgram(RunningProgram);

impl OrderedProgram {
    /// Waits for what comes of it.
    pub(crate) async fn outcome(self) -> io::Result<Started> {
        let news = tokio::time::timeout(ANSWER, self.0.news()).await;
        self.settle(news.map_err(|_| Errno::TIMEDOUT.into()))
    }

    fn settle(self, news: io::Result<Option<StageEvent>>) -> io::Result<Started> {
        let running = self.0;
        match news {
            Ok(Some(StageEvent::Started { pid, .. })) => Ok(Started::Running(RunningProgram { pid, ..running })),
            Ok(Some(StageEvent::Failed { errno, .. })) => {
                running.release();
                Ok(Started::Failed(io::Error::from_raw_os_error(errno)))
            }
            Ok(Some(StageEvent::Doubtful { .. })) => {
                running.release();
                Ok(Started::Doubtful)
            }
            Ok(_) => {
                running.drop_reaper();
                Err(io::Error::other("the process that should start the program was killed"))
            }
            Err(error) => {
                running.drop_reaper();
                running.cell.fell(&running.reaper);
                Err(error)
            }
        }
    }
}

/// A program that was started, and everything below it.
#[derive(Debug, Clone)]
pub(crate) struct RunningProgram {
    cell: Arc<Cell>,
    reaper: Arc<Reaper>,
    job: u64,
    pid: u32,
}

impl RunningProgram {
    /// The same for those who remember it after its end.
    pub(crate) fn remembered(&self) -> Remembered {
        let (cell, meter) = (Arc::downgrade(&self.cell), self.cell.meter.clone());
        let program = Program { cell: self.cell.pid, leader: self.pid };
        Remembered { cell, meter, reaper: self.reaper.number, job: self.job, program }
    }

    /// After a kill: if no end is told, the reaper itself was stopped, and is killed as well.
    pub(crate) async fn make_sure_of_kill(&self) {
        tokio::time::sleep(KILL).await;
        self.cell.fell(&self.reaper);
    }

    /// Waits for the program's end. May be dropped half-way.
    pub(crate) async fn end(&self) -> Exit {
        loop {
            match self.news().await {
                Some(StageEvent::Exited { job, exit, alone }) if job == self.job => {
                    if alone {
                        self.release();
                    } else {
                        tokio::spawn(self.clone().linger());
                    }
                    return exit;
                }
                Some(_) => {}
                None => {
                    self.drop_reaper();
                    return Exit::Lost;
                }
            }
        }
    }

    /// The program is gone and something that it started is not: the reaper is busy until that is gone, too.
    async fn linger(self) {
        loop {
            match self.news().await {
                Some(StageEvent::Alone { job }) if job == self.job => return self.release(),
                Some(_) => {}
                None => return self.drop_reaper(),
            }
        }
    }

    async fn news(&self) -> Option<StageEvent> {
        loop {
            self.reaper.socket.readable().await.ok()?;
            match self.reaper.socket.try_io(|| channel::receive(self.reaper.socket.as_fd())) {
                Ok(Some(message)) => return StageEvent::decode(&message.bytes).ok(),
                Ok(None) => return None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    /// The reaper is free for the next program.
    fn release(&self) {
        let mut state = self.cell.lock();
        state.used = Instant::now();
        if let Some((reaper, _)) = state.busy.remove(&self.reaper.number)
            && !state.ended
            && state.spare.len() < SPARE
        {
            state.spare.push(reaper);
        }
    }

    /// Forgets the reaper; with its socket everything ends that it still looks after.
    pub(crate) fn drop_reaper(&self) {
        let mut state = self.cell.lock();
        state.used = Instant::now();
        state.busy.remove(&self.reaper.number);
        drop(state);
        let _ = shutdown(&self.reaper.socket, Shutdown::Both);
    }
}

/// A program by its numbers: these keep neither its reaper nor its cell.
#[derive(Debug, Clone)]
pub(crate) struct Remembered {
    cell: Weak<Cell>,
    meter: Arc<Meter>,
    reaper: u64,
    job: u64,
    program: Program,
}

impl Remembered {
    pub(crate) fn pid(&self) -> u32 {
        self.program.leader
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.ask(&Task::signal(self.job, signal));
    }

    /// Which limit the program ran into that ended like this.
    pub(crate) fn limit_reached(&self, exit: Exit) -> Option<EffectiveLimit> {
        self.meter.reached(self.program, exit)
    }

    /// Kills the program and everything that came of it, wherever it hid.
    pub(crate) fn kill(&self) {
        self.ask(&Task::kill(self.job));
    }

    /// Nothing happens once no process of it is left.
    fn ask(&self, task: &[u8]) {
        let Some(cell) = self.cell.upgrade() else { return };
        let reaper = cell.lock().busy.get(&self.reaper).filter(|(_, job)| *job == self.job).map(|(reaper, _)| reaper.clone());
        let Some(reaper) = reaper else { return };
        if let Err(error) = channel::send(reaper.socket.as_fd(), task, &[])
            && error.raw_os_error() == Some(Errno::AGAIN.raw_os_error())
        {
            // It has been stopped: it takes no orders any more.
            cell.fell(&reaper);
        }
    }
}

/// Whether a cell can be made, for those who do not want it.
pub(crate) fn answer(control: &Channel) -> io::Result<Result<(), (CellFailure, String)>> {
    Ok(hear(control)?.map(drop))
}

/// A cell and what it shares, or why there is none.
pub(crate) type Adopted = Result<(Cell, Shares), (CellFailure, String)>;

type Heard = Result<(u32, Shares), (CellFailure, String)>;

/// What a new cell says: its number and what it shares, or why there is none.
fn hear(control: &Channel) -> io::Result<Heard> {
    let (news, descriptors) = match wait_for_message(control.as_fd())? {
        Some(message) => (Some(StageEvent::decode(&message.bytes)?), message.descriptors),
        None => (None, Vec::new()),
    };
    Ok(match news {
        Some(StageEvent::Ready { pid, shares }) => Ok((pid, Shares::new(shares, descriptors))),
        Some(StageEvent::Refused { cause, reason }) => Err((cause, reason)),
        _ => Err((CellFailure::Policy, "the process that should hold it ended".into())),
    })
}

/// Waits, on this thread, for what a stage has to say.
pub(crate) fn wait_for_news(socket: BorrowedFd<'_>) -> io::Result<Option<StageEvent>> {
    wait_for_message(socket)?.map(|message| StageEvent::decode(&message.bytes)).transpose()
}

fn wait_for_message(socket: BorrowedFd<'_>) -> io::Result<Option<ChannelMessage>> {
    let timeout = Timespec::try_from(ANSWER).ok();
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(Errno::TIMEDOUT.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        return channel::receive(socket);
    }
}
