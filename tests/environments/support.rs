//! Executors of every kind as environments, and how to wait for what they do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outpost_environment::{
    CommandLine, ConnectPolicy, ConnectionState, Connector, Environment, EnvironmentOptions, EnvironmentState, ProcessEvent, ProcessStart,
    Registry, RegistryChange, RegistryEvent, RegistryOptions, RemoteProcess, Waits, Watcher,
};
use outpost_testkit::chaos::cut_after;
use outpost_testkit::{Bench, LinkKind, Setup};
use outpost_wire::{Attachment, EnvironmentId, PathUri, Selection};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::timeout;

pub(crate) const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
const PATIENCE: Duration = Duration::from_secs(120);

/// Quick to try again, so that tests are.
pub(crate) fn options() -> EnvironmentOptions {
    EnvironmentOptions {
        recovery: Waits { first: Duration::from_millis(10), longest: Duration::from_millis(50) },
        retry: Waits { first: Duration::from_millis(20), longest: Duration::from_millis(50) },
        ..EnvironmentOptions::default()
    }
}

pub(crate) fn registry() -> Registry {
    Registry::new(RegistryOptions { environment: options(), ..RegistryOptions::default() })
}

pub(crate) fn id(text: &str) -> EnvironmentId {
    text.parse().unwrap()
}

pub(crate) fn uri(path: impl AsRef<Path>) -> PathUri {
    PathUri::from_native(path.as_ref()).unwrap()
}

pub(crate) fn selection(ids: &[&str]) -> Selection {
    Selection::new(ids.iter().map(|name| Attachment::new(id(name), uri("/tmp"))).collect()).unwrap()
}

/// An executor that outlives its connections, over any kind of link.
#[derive(Clone)]
pub(crate) struct Site(Arc<Inner>);

struct Inner {
    reach: Reach,
    work: TempDir,
    connections: AtomicUsize,
}

enum Reach {
    Bench(Bench),
    /// A bridge to a keeper, which would wait for its sessions longer than any test.
    Keeper(CommandLine, TempDir),
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Reach::Keeper(_, home) = &self.reach {
            end_keeper(home.path());
        }
    }
}

/// Ends whatever runs with that home; it ends its sessions in turn.
pub(crate) fn end_keeper(home: &Path) {
    let variable = format!("OUTPOST_HOME={}", home.display());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        let variables = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if variables.split(|byte| *byte == 0).any(|one| one == variable.as_bytes()) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Site {
    pub(crate) fn new(kind: LinkKind) -> Self {
        let reach = match kind {
            LinkKind::Stdio => {
                let home = tempfile::tempdir().unwrap();
                Reach::Keeper(stdio(home.path(), &["--keep", "--http-allow", "loopback"]), home)
            }
            kind => Reach::Bench(Bench::with_setup(kind, OUTPOST, &Setup::default())),
        };
        Self(Arc::new(Inner { reach, work: tempfile::tempdir().unwrap(), connections: AtomicUsize::new(0) }))
    }

    pub(crate) fn connector(&self) -> Connector {
        self.cut(Vec::new())
    }

    /// Every connection is cut after as many frames as the plan says; later ones are left alone.
    pub(crate) fn cut(&self, plan: Vec<usize>) -> Connector {
        let (site, first) = (self.clone(), self.connections());
        Connector::new("site", move || {
            let index = site.0.connections.fetch_add(1, Ordering::SeqCst) - first;
            let (site, frames) = (site.clone(), plan.get(index).copied());
            async move {
                let link = match &site.0.reach {
                    Reach::Bench(bench) => bench.link().await,
                    Reach::Keeper(line, _) => Connector::program(line.clone()).link().await?,
                };
                Ok(match frames {
                    Some(frames) => cut_after(link, frames),
                    None => link,
                })
            }
        })
    }

    pub(crate) fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.work.path().join(name)
    }

    pub(crate) fn environment(&self) -> Environment {
        Environment::new(self.connector(), options())
    }

    /// A place in a registry that is connected as soon as it is there.
    pub(crate) fn add_to(&self, registry: &Registry, name: &str) {
        registry.attach(id(name), self.connector(), ConnectPolicy::Eager).unwrap();
    }

    pub(crate) fn shell(&self, name: &str, script: &str) -> ProcessStart {
        shell(name, script, self.0.work.path())
    }
}

/// `outpost executor --listen stdio` in a home of its own.
pub(crate) fn stdio(home: &Path, more: &[&str]) -> CommandLine {
    let args = ["executor", "--listen", "stdio"].iter().chain(more).map(|&argument| argument.to_owned()).collect();
    let env = BTreeMap::from([("OUTPOST_HOME".to_owned(), home.display().to_string())]);
    CommandLine { program: OUTPOST.into(), args, env, ..CommandLine::default() }
}

pub(crate) fn shell(name: &str, script: &str, cwd: &Path) -> ProcessStart {
    ProcessStart {
        id: name.to_owned(),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        cwd: uri(cwd),
        env_policy: None,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        tty: false,
        pipe_stdin: true,
        profiles: None,
        adoption: None,
    }
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: still not so after {PATIENCE:?}"))
}

/// Everything that a process writes, and how it ends.
pub(crate) async fn finish(process: &RemoteProcess) -> (String, Option<i32>) {
    let (mut text, mut exit) = (Vec::new(), None);
    loop {
        match soon("the process goes on", process.next()).await {
            Some(ProcessEvent::Output { bytes, .. }) => text.extend_from_slice(&bytes),
            Some(ProcessEvent::Exited { code, .. }) => exit = Some(code),
            Some(ProcessEvent::Closed) | None => return (String::from_utf8(text).unwrap(), exit),
            Some(other) => panic!("{other:?} after {:?}", String::from_utf8_lossy(&text)),
        }
    }
}

/// Reads until that line has come.
pub(crate) async fn read_line(process: &RemoteProcess, text: &mut String) -> String {
    loop {
        if let Some((line, rest)) = text.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            *text = rest;
            return line;
        }
        match soon("a line", process.next()).await {
            Some(ProcessEvent::Output { bytes, .. }) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn ready(registry: &Registry, name: &str) -> Environment {
    standing(registry, name, |standing| *standing == EnvironmentState::Ready).await;
    registry.get(&id(name)).unwrap()
}

/// Waits until an environment stands like that.
pub(crate) async fn standing(registry: &Registry, name: &str, fits: impl Fn(&EnvironmentState) -> bool) -> EnvironmentState {
    let mut watcher = registry.watch();
    soon(&format!("{name} does not stand so"), async {
        loop {
            match watcher.next().await.event {
                RegistryEvent::Environment { id: about, standing, .. } if about == id(name) && fits(&standing) => return standing,
                _ => {}
            }
        }
    })
    .await
}

/// The next news that fits; what comes before is dropped.
pub(crate) async fn news<T>(watcher: &mut Watcher, fits: impl Fn(&RegistryChange) -> Option<T>) -> T {
    soon("no such news", async {
        loop {
            if let Some(found) = fits(&watcher.next().await) {
                return found;
            }
        }
    })
    .await
}

pub(crate) async fn state(environment: &Environment, fits: impl Fn(&ConnectionState) -> bool) -> ConnectionState {
    let mut watch = environment.watch();
    soon("no such state", async { watch.wait_for(fits).await.unwrap().clone() }).await
}

/// One test over executors that outlive their connections, however they are reached.
macro_rules! over_sites {
    ($(async fn $name:ident($site:ident: Site) $body:block)*) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;
            async fn check($site: crate::support::Site) $body
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory() {
                check(crate::support::Site::new(outpost_testkit::LinkKind::Memory)).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn stdio() {
                check(crate::support::Site::new(outpost_testkit::LinkKind::Stdio)).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn websocket() {
                check(crate::support::Site::new(outpost_testkit::LinkKind::WebSocket)).await;
            }
        })*
    };
}
pub(crate) use over_sites;
