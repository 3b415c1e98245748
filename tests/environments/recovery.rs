//! Staying with an executor: lost connections, lost sessions, and what comes after them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{
    CommandLine, ConnectPolicy, ConnectionState, Connector, Definition, Environment, EnvironmentError, EnvironmentOptions,
    EnvironmentState, FailureKind, Heartbeat, ProcessEvent, ProcessStart, Registry, RegistryEvent, RegistryOptions, Repeat, SessionMemory,
};
use outpost_rpc::LinkError;
use outpost_rpc::link::ws;
use outpost_testkit::executor::{eventually, is_alive};
use outpost_testkit::{ExecutorProcess, LinkKind};
use outpost_wire::exec::adoption::{AdoptionClaim, AdoptionSecret, OwnerEpoch};
use outpost_wire::exec::environment::Unit;
use outpost_wire::exec::process::List;

use crate::support::{
    OUTPOST, Site, end_keeper, finish, id, news, options, over_sites, read_line, ready, registry, shell, soon, standing, state, stdio,
};

/// A way that can be closed: what goes through it is cut, and nobody gets in.
#[derive(Clone, Default)]
struct Barrier(Arc<(AtomicBool, tokio::sync::Notify)>);

impl Barrier {
    fn close(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.notify_waiters();
    }
    fn open(&self) {
        self.0.0.store(false, Ordering::SeqCst);
    }
    fn around(&self, inner: Connector) -> Connector {
        let barrier = self.clone();
        Connector::new("behind a barrier", move || {
            let (barrier, inner) = (barrier.clone(), inner.clone());
            async move {
                if barrier.0.0.load(Ordering::SeqCst) {
                    return Err(LinkError::Io(std::io::ErrorKind::ConnectionRefused.into()));
                }
                let (mut far, (ours, mut near)) = (inner.link().await?, outpost_rpc::link::memory::pair());
                tokio::spawn(async move {
                    use futures_util::StreamExt;
                    loop {
                        let mut closed = std::pin::pin!(barrier.0.1.notified());
                        closed.as_mut().enable();
                        if barrier.0.0.load(Ordering::SeqCst) {
                            return;
                        }
                        let (frame, sink) = tokio::select! {
                            frame = near.rx.next() => (frame, &far.tx),
                            frame = far.rx.next() => (frame, &near.tx),
                            () = closed => return,
                        };
                        let Some(Ok(frame)) = frame else { return };
                        if !sink.send(frame) {
                            return;
                        }
                    }
                });
                Ok(ours)
            }
        })
    }
}

over_sites! {
    async fn s20_a_session_goes_on_after_an_outage_with_everything_in_it(site: Site) {
        let barrier = Barrier::default();
        let environment = Environment::new(barrier.around(site.connector()), options());
        let process = environment.start(site.shell("p", "while read -r line; do echo \"got $line\"; done; seq 1 2000; exit 5")).await.unwrap();
        let mut text = String::new();
        process.write(Bytes::from_static(b"one\n")).await.unwrap();
        assert_eq!(read_line(&process, &mut text).await, "got one");
        barrier.close();
        let waiting = state(&environment, |state| matches!(state, ConnectionState::Recovering { retry_at: Some(_), .. })).await;
        assert!(matches!(waiting, ConnectionState::Recovering { reason, .. } if !reason.is_empty()));
        // A write while there is no connection waits for it.
        let writing = async {
            process.write(Bytes::from_static(b"two\n")).await.unwrap();
            process.close_stdin().await.unwrap();
        };
        let opening = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            barrier.open();
        };
        tokio::join!(writing, opening);
        let (rest, exit) = finish(&process).await;
        let expected: String = std::iter::once("got two\n".to_owned()).chain((1..=2000).map(|n| format!("{n}\n"))).collect();
        assert_eq!((text + &rest, exit), (expected, Some(5)));
    }

    // A node is killed and starts again at once, so that it resumes the session in which a command of its previous run ends. When it is told to
    // end then, the node that takes the thread up still finds the result.
    async fn the_result_that_an_earlier_start_left_is_kept_for_the_next_owner(site: Site) {
        let directory = tempfile::tempdir().unwrap();
        let memory = || Arc::new(SessionMemory::new(directory.path().join("sessions")));
        let start = |memory: &Arc<SessionMemory>| {
            Environment::new(site.connector(), EnvironmentOptions { sessions: Some(memory.clone()), ..options() })
        };
        let secret = AdoptionSecret("known to all nodes of one store".repeat(2));
        let claim = |epoch| AdoptionClaim { secret: secret.clone(), epoch: OwnerEpoch(epoch) };
        let first = memory();
        let killed = start(&first);
        let script = "echo begun; until [ -e go ]; do sleep 0.01; done; echo done; exit 3";
        let process = killed.start(ProcessStart { adoption: Some(claim(1)), ..site.shell("p", script) }).await.unwrap();
        assert_eq!(read_line(&process, &mut String::new()).await, "begun");
        drop((process, killed));
        eventually("the first program is gone", || Arc::strong_count(&first) == 1).await;
        drop(first);
        let second = memory();
        let next = start(&second);
        soon("it is back", next.info()).await.unwrap();
        std::fs::write(site.path("go"), "").unwrap();
        let has_ended = async {
            while !next.call::<List>(&Unit, Repeat::Harmless).await.unwrap().processes.iter().any(|process| process.exited) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the command of the first program has ended in its session", has_ended).await;
        assert!(!next.end_if_idle().await.unwrap(), "there is a result of another owner");
        drop(next);
        let other = site.environment();
        let adopted = other.adopt("p", Some(claim(2))).await.unwrap();
        assert_eq!(finish(&adopted).await, ("begun\ndone\n".to_owned(), Some(3)));
        assert!(other.end_if_idle().await.unwrap(), "its own session is over");
    }

    async fn s19_a_first_failure_does_not_burn_the_environment(site: Site) {
        let barrier = Barrier::default();
        barrier.close();
        let environment = Environment::new(barrier.around(site.connector()), options());
        assert!(matches!(environment.info().await, Err(EnvironmentError::Unreachable { .. })));
        // Nobody waits again before it is time; after that it is tried again, and fails again.
        assert!(matches!(environment.info().await, Err(EnvironmentError::Unreachable { .. })));
        let ConnectionState::Failed(failure) = environment.state() else { panic!() };
        barrier.open();
        tokio::time::sleep_until(failure.retry_at.unwrap()).await;
        soon("it works now", environment.info()).await.unwrap();
    }

    async fn s21_after_the_patience_each_process_is_lost_by_name_and_a_new_session_begins(site: Site) {
        let barrier = Barrier::default();
        let registry = Registry::new(RegistryOptions {
            environment: EnvironmentOptions { patience: Duration::from_millis(300), ..options() },
            local: None,
            ..RegistryOptions::default()
        });
        registry.attach(id("box"), barrier.around(site.connector()), ConnectPolicy::Lazy).unwrap();
        let environment = registry.get(&id("box")).unwrap();
        let mut watcher = registry.watch();
        let one = environment.start(site.shell("one", "echo begun; sleep 60")).await.unwrap();
        let two = environment.start(site.shell("two", "sleep 60")).await.unwrap();
        let done = environment.start(site.shell("done", "echo done")).await.unwrap();
        assert_eq!(finish(&done).await, ("done\n".into(), Some(0)));
        assert_eq!(read_line(&one, &mut String::new()).await, "begun");
        barrier.close();
        let (lost, reason) = news(&mut watcher, |change| match &change.event {
            RegistryEvent::Lost { processes, reason, .. } => Some((processes.clone(), reason.clone())),
            _ => None,
        })
        .await;
        assert_eq!(lost, ["one", "two"]);
        for process in [&one, &two] {
            assert_eq!(soon("its loss", process.next()).await, Some(ProcessEvent::Lost { reason: reason.clone() }));
            assert_eq!(process.next().await, None);
        }
        let EnvironmentState::Failed { retry_at: Some(at), .. } = registry.standing(&id("box")) else { panic!() };
        barrier.open();
        tokio::time::sleep_until(at).await;
        // The same handle, another session: what was lost stays lost, what is new works.
        let process = environment.start(site.shell("one", "echo again")).await.unwrap();
        assert_eq!(finish(&process).await, ("again\n".into(), Some(0)));
        assert!(matches!(one.write(Bytes::from_static(b"x")).await, Err(EnvironmentError::Lost { .. })));
        assert!(matches!(two.terminate().await, Err(EnvironmentError::Lost { .. })));
        assert!(environment.is(&registry.get(&id("box")).unwrap()));
    }

    async fn s21_s22_one_that_is_not_read_does_not_hold_up_the_others(site: Site) {
        let environment = site.environment();
        let ignored = environment.start(site.shell("ignored", "head -c 1000000 /dev/zero; exec sleep 60")).await.unwrap();
        for n in 0..5 {
            let process = environment.start(site.shell(&format!("p{n}"), "seq 1 1000")).await.unwrap();
            let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
            assert_eq!(finish(&process).await, (expected, Some(0)));
        }
        ignored.terminate().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s18_a_command_is_an_environment_and_its_death_is_the_end_of_what_has_no_keeper() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("pid");
    let line = stdio(home.path(), &[]);
    let script = format!("echo $$ > {}; exec {} {}", mark.display(), line.program, line.args.join(" "));
    let line = CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), script], ..line };
    let environment = Environment::new(Connector::program(line), options());
    let process = environment.start(shell("p", "echo begun; exec sleep 60", home.path())).await.unwrap();
    assert_eq!(read_line(&process, &mut String::new()).await, "begun");
    let pid: u32 = std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    kill(pid);
    let lost = soon("its loss", process.next()).await.unwrap();
    let ProcessEvent::Lost { reason } = lost else { panic!("{lost:?}") };
    assert!(reason.contains("keeps its sessions only with `--keep`"), "{reason}");
    let ConnectionState::Failed(failure) = state(&environment, |state| matches!(state, ConnectionState::Failed(_))).await else { panic!() };
    assert_eq!((failure.kind, &failure.lost[..]), (FailureKind::SessionLost, &["p".to_owned()][..]));
    // Not the end of the environment.
    tokio::time::sleep_until(failure.retry_at.unwrap()).await;
    let process = environment.start(shell("p", "echo again", home.path())).await.unwrap();
    assert_eq!(finish(&process).await.0, "again\n");
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_command_without_sessions_is_said_to_be_unable_to_recover() {
    // Answers the handshake, tells nothing that it could do, and leaves.
    let script = r#"read -r line; id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
        echo "{\"id\":$id,\"result\":{\"sessionId\":\"s\",\"environmentInfo\":{\"shell\":{\"name\":\"sh\",\"path\":\"/bin/sh\"}}}}"
        read -r line; sleep 0.1"#;
    let line = CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..CommandLine::default() };
    let registry = registry();
    registry.add(id("foreign"), Definition::program(line).unwrap()).unwrap();
    registry.info(&id("foreign")).await.unwrap();
    let failed = standing(&registry, "foreign", |standing| matches!(standing, EnvironmentState::Failed { .. })).await;
    let EnvironmentState::Failed { reason, retry_at, .. } = failed else { panic!() };
    assert!(reason.contains("keeps no sessions, so nothing can be recovered"), "{reason}");
    assert!(retry_at.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_goes_silent_is_noticed_and_the_session_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("pids");
    let line = stdio(home.path(), &["--keep"]);
    let script = format!("echo $$ >> {}; exec {} {}", mark.display(), line.program, line.args.join(" "));
    let line = CommandLine { program: "/bin/sh".into(), args: vec!["-c".into(), script], ..line };
    let heartbeat = Heartbeat { every: Duration::from_millis(200), give_up_after: Duration::from_secs(4) };
    let environment = Environment::new(Connector::program(line), EnvironmentOptions { heartbeat, ..options() });
    let process = environment.start(shell("p", "read -r line; echo \"got $line\"", home.path())).await.unwrap();
    let first: u32 = std::fs::read_to_string(&mark).unwrap().lines().last().unwrap().parse().unwrap();
    // It stays there and says nothing any more, like a network that swallows everything.
    let pid = rustix::process::Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    process.write(Bytes::from_static(b"it\n")).await.unwrap();
    assert_eq!(finish(&process).await, ("got it\n".into(), Some(0)));
    eventually("the silent one is ended", || !is_alive(first)).await;
    environment.end().await.unwrap();
    end_keeper(home.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_laptop_that_sleeps_for_longer_than_the_grace_finds_its_processes_lost_and_goes_on() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth", "--grace", "1"]);
    let url = executor.url().to_owned();
    let inner = Connector::new("box", move || {
        let url = url.clone();
        async move { ws::connect(&url, &ws::ClientOptions::default()).await }
    });
    let barrier = Barrier::default();
    let registry = registry();
    registry.attach(id("box"), barrier.around(inner), ConnectPolicy::Eager).unwrap();
    let handle = ready(&registry, "box").await;
    let process = handle.start(shell("p", "exec sleep 60", executor.home())).await.unwrap();
    let mut watcher = registry.watch();
    barrier.close();
    // The executor keeps sessions for a second and says so; nobody tries for ten minutes.
    let lost = news(&mut watcher, |change| match &change.event {
        RegistryEvent::Lost { processes, .. } => Some(processes.clone()),
        _ => None,
    })
    .await;
    assert_eq!(lost, ["p"]);
    assert!(matches!(soon("its loss", process.next()).await, Some(ProcessEvent::Lost { .. })));
    tokio::time::sleep(Duration::from_millis(500)).await;
    barrier.open();
    // Eager: it comes back by itself, and it is the same executor.
    let again = ready(&registry, "box").await;
    assert!(again.is(&handle));
    let process = again.start(shell("p", "echo awake", executor.home())).await.unwrap();
    assert_eq!(finish(&process).await.0, "awake\n");
}

#[tokio::test]
async fn waits_grow_within_their_bounds_and_are_told() {
    let registry = registry();
    let mut watcher = registry.watch();
    let dead = Connector::new("dead", || std::future::ready(Err(LinkError::Protocol("no".into()))));
    registry.attach(id("dead"), dead, ConnectPolicy::Eager).unwrap();
    let began = tokio::time::Instant::now();
    for _ in 0..6 {
        let retry_at = news(&mut watcher, |change| match &change.event {
            RegistryEvent::Environment { standing: EnvironmentState::Failed { retry_at, .. }, .. } => Some(retry_at.unwrap()),
            _ => None,
        })
        .await;
        let longest = options().retry.longest;
        assert!(retry_at <= tokio::time::Instant::now() + longest && retry_at >= began);
    }
}

#[tokio::test]
async fn s19_a_manual_environment_connects_when_told_to_and_not_otherwise() {
    let site = Site::new(LinkKind::Memory);
    let registry = registry();
    registry.attach(id("box"), site.connector(), ConnectPolicy::Manual).unwrap();
    let handle = registry.get(&id("box")).unwrap();
    handle.want();
    assert!(handle.info().await.is_err() && site.connections() == 0);
    registry.info(&id("box")).await.unwrap();
    assert_eq!(registry.standing(&id("box")), EnvironmentState::Ready);
    assert!(handle.info().await.is_ok());
}
