//! Figures of the registry: what an unused environment costs, what a step view costs, and how a reconnect
//! compares with a fresh connect. They are taken in this very process, which is the client, against a real executor.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outpost_environment::{
    ConnectPolicy, Connector, Definition, Environment, EnvironmentOptions, ProcessStart, Registry, RegistryOptions, Token,
};
use outpost_rpc::link::ws;
use outpost_rpc::{Close, FrameSink};
use outpost_wire::{Attachment, EnvironmentId, PathUri, Selection};

use crate::contender::Contender;
use crate::scenario::median;

const REGISTERED: usize = 1000;
const IN_A_STEP: usize = 50;
const VIEWS: usize = 2000;
const CONNECTS: usize = 200;

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
pub(crate) fn run(outpost: PathBuf, rounds: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = Contender::outpost(outpost).start()?;
    let url = format!("ws://{}", server.address());
    println!("{:<52} {:>10}  target", "metric", "value");
    let idle = runtime.block_on(idle())?;
    row("memory per registered lazy environment, KiB", idle.kib, &format!("<= 20: {}", verdict(idle.kib <= 20.0)));
    row("tasks per 1,000 of them", idle.tasks as f64, &format!("0: {}", verdict(idle.tasks == 0)));
    row("open files per 1,000 of them", idle.files as f64, &format!("0: {}", verdict(idle.files == 0)));
    let views = runtime.block_on(views(&url))?;
    row("step view over 50 of 1,000, all ready, us", views.ready, &format!("tens: {}", verdict(views.ready < 100.0)));
    row("step view over 50 of 1,000, none of them there, us", views.missing, "");
    let (mut fresh, mut again) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let round = runtime.block_on(connects(&url))?;
        fresh.push(round.0);
        again.push(round.1);
    }
    let ratio = median(fresh.iter().zip(&again).map(|(fresh, again)| again / fresh).collect()).context("no round")?;
    row("fresh connect and one call, us", median(fresh).context("no round")?, "");
    row("reconnect, catch up and one call, us", median(again).context("no round")?, "");
    row("reconnect / fresh", ratio, &format!("about 1: {}", verdict(ratio <= 1.25)));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
fn row(title: &str, value: f64, target: &str) {
    println!("{title:<52} {value:>10.2}  {target}");
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "yes" } else { "no" }
}

struct Idle {
    kib: f64,
    tasks: usize,
    files: usize,
}

fn id(n: usize) -> anyhow::Result<EnvironmentId> {
    Ok(format!("environment-{n}").parse()?)
}

fn registry() -> Registry {
    Registry::new(RegistryOptions { environment: EnvironmentOptions::default(), ..RegistryOptions::default() })
}

/// What unused environments cost.
async fn idle() -> anyhow::Result<Idle> {
    // The first registry pays for what is needed only once.
    let warm = registry();
    warm.add(id(0)?, Definition::url("ws://127.0.0.1:1", Token::None)?)?;
    let count = || Ok::<_, anyhow::Error>((resident()?, tokio::runtime::Handle::current().metrics().num_alive_tasks(), files()?));
    let before = count()?;
    let registry = registry();
    for n in 0..REGISTERED {
        let definition = Definition::url(&format!("ws://executor-{n}.example.org:7000"), Token::None)?;
        registry.add(id(n)?, definition)?;
    }
    let after = count()?;
    ensure!(registry.list().len() == REGISTERED, "not all are registered");
    Ok(Idle { kib: (after.0 - before.0) / REGISTERED as f64, tasks: after.1 - before.1, files: after.2 - before.2 })
}

/// Resident memory in KiB.
fn resident() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn files() -> anyhow::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

struct Views {
    ready: f64,
    missing: f64,
}

async fn views(url: &str) -> anyhow::Result<Views> {
    let registry = registry();
    for n in 0..REGISTERED {
        registry.add(id(n)?, Definition::url(url, Token::None)?)?;
    }
    let select = |from: usize| {
        let attach = |n| Ok(Attachment::new(id(n)?, PathUri::parse("file:///work")?));
        Ok::<_, anyhow::Error>(Selection::new((from..from + IN_A_STEP).map(attach).collect::<anyhow::Result<_>>()?)?)
    };
    // Spread over the registry, and connected.
    let there = select(REGISTERED - IN_A_STEP)?;
    for one in there.ids() {
        registry.info(one).await?;
    }
    let time = |selection: &Selection| {
        let times = (0..VIEWS).map(|_| {
            let since = Instant::now();
            std::hint::black_box(registry.capture(selection, &[]));
            since.elapsed().as_secs_f64() * 1e6
        });
        median(times.collect()).context("no view")
    };
    ensure!(registry.capture(&there, &[]).workplaces().count() == IN_A_STEP, "not all are ready");
    Ok(Views { ready: time(&there)?, missing: time(&select(REGISTERED)?)? })
}

/// Medians of a fresh connect and of a reconnect, in microseconds, each with one call after it.
async fn connects(url: &str) -> anyhow::Result<(f64, f64)> {
    let sink: Arc<Mutex<Option<FrameSink>>> = Arc::default();
    let (kept, target) = (sink.clone(), url.to_owned());
    let connector = Connector::new("bench", move || {
        let (kept, target) = (kept.clone(), target.clone());
        async move {
            let link = ws::connect(&target, &ws::ClientOptions::default()).await?;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.tx.clone());
            Ok(link)
        }
    });
    let options = EnvironmentOptions { connect: ConnectPolicy::Lazy, ..EnvironmentOptions::default() };
    let root = PathUri::parse("file:///")?;
    let steady = Environment::new(connector.clone(), options.clone());
    let start = ProcessStart {
        id: "idle".into(),
        argv: vec!["/bin/sh".into(), "-c".into(), "seq 1 100; exec sleep 1000".into()],
        cwd: root.clone(),
        env_policy: None,
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        tty: false,
        pipe_stdin: false,
        profiles: None,
        adoption: None,
    };
    let process = steady.start(start).await?;
    let steady_sink = sink.lock().unwrap_or_else(PoisonError::into_inner).clone().context("no link")?;
    let mut current = steady_sink;
    let (mut fresh, mut again) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTS {
        let since = Instant::now();
        let environment = Environment::new(connector.clone(), options.clone());
        environment.files().metadata(root.clone()).await?;
        fresh.push(since.elapsed().as_secs_f64() * 1e6);
        environment.end().await?;
        drop(environment);
        let since = Instant::now();
        current.close(Close::new(Close::NORMAL, ""));
        steady.files().metadata(root.clone()).await?;
        again.push(since.elapsed().as_secs_f64() * 1e6);
        current = sink.lock().unwrap_or_else(PoisonError::into_inner).clone().context("no link")?;
        // The server is done with what came before.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    process.terminate().await?;
    steady.end().await?;
    Ok((median(fresh).context("no figure")?, median(again).context("no figure")?))
}
