//! Figures of turns, with a model that answers at once: `cargo xtask bench turns` runs this. Whatever is compared takes turns
//! within one loop, because disks and processors wander.

mod model;
mod ours;
mod peer;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost_runtime::live::LiveThread;
use outpost_runtime::permissions::SandboxMode;
use outpost_store::{Durability, Store};
use outpost_testkit::postgres::Database;

pub(crate) use model::{ModelProcess, VERB as MODEL, WANTS_TOOL, serve as model};
pub(crate) use peer::{Peer, configure};

use crate::figure::{Figure, cpu, median, ms, print, table};
use crate::threads::{Made, sync_cost};
use model::BarePost;
use ours::{Ours, turn};

/// What to measure against what.
pub(crate) struct Plan {
    pub outpost: String,
    pub codex: Option<PathBuf>,
    /// A tenth of everything, to see that it works.
    pub small: bool,
    pub markdown: bool,
}

const AT_ONCE: usize = 32;

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let figures = runtime.block_on(async {
        let model = ModelProcess::start()?;
        let peer = match &plan.codex {
            Some(codex) => Some(Peer::start(codex, &model).await?),
            None => None,
        };
        let mut figures = single(plan, &model, peer.as_ref()).await?;
        figures.extend(many(plan, &model, peer).await?);
        figures.extend(long(plan, &model).await?);
        model.verdict()?;
        anyhow::Ok(figures)
    })?;
    print(&table(&figures, plan.markdown));
    // Cells of the executor in this process end with it; nothing else is waited for.
    std::process::exit(0)
}

fn rounds(plan: &Plan, count: usize) -> usize {
    if plan.small { count.div_ceil(10) } else { count }
}

/// One thread at a time.
async fn single(plan: &Plan, model: &ModelProcess, peer: Option<&Peer>) -> anyhow::Result<Vec<Figure>> {
    let full = SandboxMode::DangerFullAccess;
    let durable = Ours::new(&plan.outpost, model, Durability::Effect, full.clone()).await?;
    let stored = Ours::new(&plan.outpost, model, Durability::Stored, full).await?;
    let confined = Ours::new(&plan.outpost, model, Durability::Effect, SandboxMode::workspace_write()).await?;
    let database = Database::create();
    let shared = Ours::in_database(&plan.outpost, model, &database).await?;
    let threads =
        [durable.thread().await?, stored.thread().await?, durable.thread().await?, confined.thread().await?, shared.thread().await?];
    let [plain, quick, tool, sandboxed, in_database] = &threads;
    let mut peer = match peer {
        Some(peer) => Some((peer, peer.thread().await?, peer.thread().await?)),
        None => None,
    };
    let mut times = Times::default();
    for round in 0..rounds(plan, 200) + 3 {
        let mut sample = Times::default();
        sample.sync.push(sync_cost(durable.home.path(), 1)?);
        sample.plain.push(timed(turn(plain, "why does it fail?")).await?);
        sample.stored.push(timed(turn(quick, "why does it fail?")).await?);
        sample.round_trip.push(timed(async { Ok(shared.store.ping().await?) }).await?);
        sample.database.push(timed(turn(in_database, "why does it fail?")).await?);
        sample.bash.push(bash()?);
        sample.tool.push(timed(turn(tool, WANTS_TOOL)).await?);
        sample.confined.push(timed(turn(sandboxed, WANTS_TOOL)).await?);
        if let Some((peer, plain, tool)) = peer.as_mut().filter(|_| round % 4 == 0) {
            sample.peer_plain.push(timed(peer.turn(plain, "why does it fail?")).await?);
            sample.peer_tool.push(timed(peer.turn(tool, WANTS_TOOL)).await?);
        }
        // The first ones warm up.
        if round >= 3 {
            times.extend(sample);
        }
    }
    let mut figures = times.figures();
    let cpu = cpu_per_turn(plain, rounds(plan, 200)).await?;
    figures.push(Figure::new("CPU per plain turn", ms(cpu), "at most 3 ms", cpu <= Duration::from_millis(3)));
    if let Some((peer, plain, _)) = &mut peer {
        let (before, turns) = (peer.cpu()?, rounds(plan, 40));
        for _ in 0..turns {
            peer.turn(plain, "why does it fail?").await?;
        }
        figures.push(Figure::told("CPU per plain turn, peer", format!("{:.1} ms", (peer.cpu()? - before) / turns as f64)));
    }
    Ok(figures)
}

#[derive(Default)]
struct Times {
    sync: Vec<Duration>,
    plain: Vec<Duration>,
    stored: Vec<Duration>,
    round_trip: Vec<Duration>,
    database: Vec<Duration>,
    bash: Vec<Duration>,
    tool: Vec<Duration>,
    confined: Vec<Duration>,
    peer_plain: Vec<Duration>,
    peer_tool: Vec<Duration>,
}

impl Times {
    fn extend(&mut self, sample: Self) {
        self.sync.extend(sample.sync);
        self.plain.extend(sample.plain);
        self.stored.extend(sample.stored);
        self.round_trip.extend(sample.round_trip);
        self.database.extend(sample.database);
        self.bash.extend(sample.bash);
        self.tool.extend(sample.tool);
        self.confined.extend(sample.confined);
        self.peer_plain.extend(sample.peer_plain);
        self.peer_tool.extend(sample.peer_tool);
    }

    fn figures(self) -> Vec<Figure> {
        let two = Duration::from_millis(2);
        let [sync, plain, stored, bash] = [self.sync, self.plain, self.stored, self.bash].map(median);
        let [tool, confined, round_trip, database] = [self.tool, self.confined, self.round_trip, self.database].map(median);
        let step = |turn: Duration| turn.saturating_sub(plain);
        let reach = sync.mul_f64(1.5) + two;
        // The database of the tests does not sync either.
        let database_reach = stored.mul_f64(1.5) + round_trip * 2;
        let tool_reach = bash * 2 + sync.mul_f64(1.5) + two;
        let mut figures = vec![
            Figure::told("append + fdatasync of this disk, p50", ms(sync)),
            Figure::told("`bash -c true`, p50", ms(bash)),
            Figure::new("plain turn, p50", format!("{} of {}", ms(plain), ms(reach)), "1.5 syncs + 2 ms", plain <= reach),
            Figure::new("plain turn with `stored`, p50", ms(stored), "at most 3 ms", stored <= Duration::from_millis(3)),
            Figure::told("round trip to Postgres over a socket of this machine, p50", ms(round_trip)),
            Figure::new(
                "plain turn with Postgres that does not sync, p50",
                format!("{} of {}", ms(database), ms(database_reach)),
                "1.5 with `stored` + 2 round trips",
                database <= database_reach,
            ),
            Figure::new(
                "tool step (`true`), p50",
                format!("{} of {}", ms(step(tool)), ms(tool_reach)),
                "2 bash + 1.5 syncs + 2 ms",
                step(tool) <= tool_reach,
            ),
            Figure::told("the same under workspace-write", ms(step(confined))),
        ];
        if !self.peer_plain.is_empty() {
            let (peer_plain, peer_tool) = (median(self.peer_plain), median(self.peer_tool));
            let ratio = |theirs: Duration, own: Duration| format!("{} = {:.1}x", ms(theirs), theirs.as_secs_f64() / own.as_secs_f64());
            figures.push(Figure::told("plain turn, peer (never synced)", ratio(peer_plain, plain)));
            figures.push(Figure::told("tool step, peer", ratio(peer_tool.saturating_sub(peer_plain), step(tool))));
        }
        figures
    }
}

async fn timed(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work.await?;
    Ok(start.elapsed())
}

fn bash() -> anyhow::Result<Duration> {
    let start = Instant::now();
    Command::new("/bin/bash").args(["-c", "true"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    Ok(start.elapsed())
}

/// Of this process, with all its threads; the model has its own.
async fn cpu_per_turn(thread: &LiveThread, turns: usize) -> anyhow::Result<Duration> {
    let before = cpu();
    for _ in 0..turns {
        turn(thread, "why does it fail?").await?;
    }
    Ok((cpu() - before) / u32::try_from(turns).unwrap_or(1))
}

/// Many threads at once.
async fn many(plan: &Plan, model: &ModelProcess, peer: Option<Peer>) -> anyhow::Result<Vec<Figure>> {
    let ours = Ours::new(&plan.outpost, model, Durability::Effect, SandboxMode::DangerFullAccess).await?;
    let mut threads = Vec::new();
    for _ in 0..AT_ONCE {
        let thread = ours.thread().await?;
        turn(&thread, "hello").await?;
        threads.push(thread);
    }
    let turns = rounds(plan, 40);
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for thread in threads {
        running.spawn(async move {
            for _ in 0..turns {
                turn(&thread, "why does it fail?").await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    let rate = (turns * AT_ONCE) as f64 / start.elapsed().as_secs_f64();
    let Some(peer) = peer else {
        return Ok(vec![Figure::told(format!("turns a second, {AT_ONCE} threads at once"), format!("{rate:.0}"))]);
    };
    let theirs = many_of_peer(peer, rounds(plan, 10)).await?;
    let ratio = rate / theirs;
    Ok(vec![
        Figure::new(
            format!("turns a second, {AT_ONCE} threads at once"),
            format!("{rate:.0} = {ratio:.1}x of the peer's"),
            "at least 8x",
            ratio >= 8.0,
        ),
        Figure::told("the same, peer", format!("{theirs:.0}")),
    ])
}

async fn many_of_peer(peer: Peer, turns: usize) -> anyhow::Result<f64> {
    let peer = Arc::new(peer);
    let mut threads = Vec::new();
    for _ in 0..AT_ONCE {
        let mut thread = peer.thread().await?;
        peer.turn(&mut thread, "hello").await?;
        threads.push(thread);
    }
    let start = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for mut thread in threads {
        let peer = peer.clone();
        running.spawn(async move {
            for _ in 0..turns {
                peer.turn(&mut thread, "why does it fail?").await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok((turns * AT_ONCE) as f64 / start.elapsed().as_secs_f64())
}

/// A turn of a long thread against one of a short thread, in time and in CPU of this process. A bare connection carries as many bytes in the
/// same loop, so that these can be told apart: what is compared is the rest.
async fn long(plan: &Plan, model: &ModelProcess) -> anyhow::Result<Vec<Figure>> {
    let ours = Ours::new(&plan.outpost, model, Durability::Stored, SandboxMode::DangerFullAccess).await?;
    let many = if plan.small { 1000 } else { 10_000 };
    let (short, short_bytes, _) = with_turns(&ours, 10).await?;
    let (long, long_bytes, first) = with_turns(&ours, many).await?;
    if let Store::Local(local) = &ours.store {
        // The words of all these turns are read beside; that is no part of any turn.
        local.index()?.complete().await;
    }
    let (mut short_bare, mut long_bare) = (BarePost::new(model.port, short_bytes)?, BarePost::new(model.port, long_bytes)?);
    let (mut short_turns, mut long_turns, mut short_sends, mut long_sends) = Default::default();
    for _ in 0..rounds(plan, 200) {
        spent(&mut short_turns, turn(&short, "why does it fail?")).await?;
        spent(&mut long_turns, turn(&long, "why does it fail?")).await?;
        spent(&mut short_sends, async { short_bare.send() }).await?;
        spent(&mut long_sends, async { long_bare.send() }).await?;
    }
    let [short, long, short_send, long_send] = [short_turns, long_turns, short_sends, long_sends].map(Spent::medians);
    let told = |turn: (Duration, Duration), send: (Duration, Duration)| {
        format!("{} and {}, CPU {} and {}", ms(turn.0), ms(send.0), ms(turn.1), ms(send.1))
    };
    let ratio = |long: Duration, long_send: Duration, short: Duration, short_send: Duration| {
        long.saturating_sub(long_send).as_secs_f64() / short.saturating_sub(short_send).as_secs_f64()
    };
    let (time, cpu) = (ratio(long.0, long_send.0, short.0, short_send.0), ratio(long.1, long_send.1, short.1, short_send.1));
    Ok(vec![
        Figure::told("plain turn after 10 turns, its bytes sent bare", told(short, short_send)),
        Figure::told(
            format!("plain turn after {many} turns ({:.1} MB), its bytes sent bare", long_bytes as f64 / 1e6),
            told(long, long_send),
        ),
        Figure::told("the first one after it was opened", ms(first)),
        Figure::new("a turn after many / a turn after few, bytes aside", format!("{time:.2}x"), "at most 1.5x", time <= 1.5),
        Figure::new("the same in CPU", format!("{cpu:.2}x"), "at most 1.5x", cpu <= 1.5),
    ])
}

/// Time and CPU of something that is done again and again.
#[derive(Default)]
struct Spent(Vec<Duration>, Vec<Duration>);

impl Spent {
    fn medians(self) -> (Duration, Duration) {
        (median(self.0), median(self.1))
    }
}

async fn spent(spent: &mut Spent, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let before = cpu();
    spent.0.push(timed(work).await?);
    spent.1.push(cpu() - before);
    Ok(())
}

/// A thread with so many turns, how many bytes the model is sent of it, and what its first turn took.
async fn with_turns(ours: &Ours, count: u64) -> anyhow::Result<(LiveThread, usize, Duration)> {
    let mut made = Made::new(&ours.store).await?;
    made.plain_turns(&ours.store, count).await?;
    made.checkpoint(&ours.store).await?;
    let id = made.lease.thread;
    ours.store.release(made.lease).await;
    let thread = ours.runtime.resume(id).await?;
    let first = timed(turn(&thread, "why does it fail?")).await?;
    let context = outpost_store::context_with(&ours.store, &thread.snapshot().await?, |_| {}).await?;
    let bytes = context.items().iter().map(|item| item.get().len() + 1).sum();
    Ok((thread, bytes, first))
}
