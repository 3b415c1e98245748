//! Hosts that do not answer, answer wrongly, or die in the middle.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use outpost_environment::{
    ConnectPolicy, ConnectionState, Connector, Definition, Environment, EnvironmentError, EnvironmentOptions, FailureKind, ProcessEvent,
    Token, Waits,
};
use outpost_rpc::link::{memory, ws};
use outpost_testkit::chaos::cut_after;
use outpost_testkit::executor::eventually;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{OUTPOST, finish, id, options, read_line, registry, shell, soon};

/// For those that say what is wrong: they are tried again for as long as this, and asked for much longer than they need.
fn patient() -> EnvironmentOptions {
    EnvironmentOptions { connect_timeout: Duration::from_secs(4), initialize_timeout: Duration::from_secs(4), ..options() }
}

/// For those that say nothing.
fn impatient() -> EnvironmentOptions {
    EnvironmentOptions { connect_timeout: Duration::from_millis(300), initialize_timeout: Duration::from_millis(300), ..options() }
}

/// An executor that says what it is told to say: one answer per request, in order; then it hangs up or falls silent.
fn scripted(answers: Vec<Value>, then: Then) -> Connector {
    Connector::new("scripted", move || {
        let (ours, theirs) = memory::pair();
        let (answers, then) = (answers.clone(), then);
        tokio::spawn(async move {
            let mut client = Client::new(theirs);
            for answer in answers {
                let Ok(request) = soon("a request", client.receive()).await else { return };
                if answer.is_null() {
                    return;
                }
                let id = request["id"].clone();
                client.send(&outpost_testkit::bench::with(answer.clone(), json!({"id": answer.get("id").cloned().unwrap_or(id)})));
            }
            if let Then::Silence = then {
                std::future::pending::<()>().await;
            }
        });
        std::future::ready(Ok(ours))
    })
}

#[derive(Clone, Copy)]
enum Then {
    Silence,
    HangUp,
}

async fn refusal(connector: Connector, options: EnvironmentOptions) -> String {
    let environment = Environment::new(connector, options);
    let error = soon("it is given up", environment.info()).await.unwrap_err();
    assert!(matches!(error, EnvironmentError::Unreachable { .. }), "{error}");
    assert!(
        matches!(environment.state(), ConnectionState::Failed(failure) if failure.kind == FailureKind::Unreachable && failure.retry_at.is_some())
    );
    error.to_string()
}

/// The kind of the system's error is found behind the words, through the supervisor and a copy for each caller.
#[tokio::test]
async fn what_caused_a_refusal_is_kept() {
    let address = "ws://127.0.0.1:1".parse().unwrap();
    let environment = Environment::new(Connector::target(address, Token::None), options());
    let error = soon("it is given up", environment.info()).await.unwrap_err();
    let mut causes = std::iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |cause| cause.source());
    let system = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()).unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!(system.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(error.to_string().ends_with(&system.to_string()), "{error}");
}

#[tokio::test]
async fn a_host_that_accepts_and_never_answers() {
    // Not even the upgrade.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ws://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let definition = Definition::url(&address, Token::None).unwrap();
    let definition = Definition { connect_timeout: Duration::from_millis(300), ..definition };
    let registry = registry();
    registry.add(id("mute"), definition).unwrap();
    let error = soon("it is given up", registry.info(&id("mute"))).await.unwrap_err();
    assert!(error.to_string().contains("no connection within 300ms"), "{error}");
    // Not the handshake.
    assert!(refusal(scripted(vec![], Then::Silence), impatient()).await.contains("no answer to the handshake within 300ms"));
}

#[tokio::test]
async fn a_host_that_answers_wrongly() {
    for (answers, why) in [
        (vec![json!({"result": {"no": "session"}})], "sessionId"),
        (vec![json!({"result": "text"})], "initialize"),
        (vec![json!({"result": {"sessionId": "s", "environmentInfo": {"shell": 7}}})], "initialize"),
        (vec![json!({"error": {"code": -32600, "message": "go away"}})], "go away"),
        (vec![json!({"id": 4711, "result": {"sessionId": "s"}})], "an answer to a request that was never made"),
    ] {
        let error = refusal(scripted(answers, Then::Silence), patient()).await;
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_command_that_is_no_executor() {
    for (command, why) in [
        ("echo hello; exit 3", "exit status: 3"),
        ("echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied (publickey)."),
        ("yes | head -c 100000; sleep 60", "no answer to the handshake"),
        ("exec /no/such/program", "exit status: 127"),
    ] {
        let line = outpost_environment::CommandLine {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), command.into()],
            ..outpost_environment::CommandLine::default()
        };
        let options = if why == "no answer to the handshake" { impatient() } else { patient() };
        let error = refusal(Connector::program(line), options).await;
        assert!(error.contains(why), "{command}: {error}");
    }
    let missing = outpost_environment::CommandLine { program: "/no/such/program".into(), ..outpost_environment::CommandLine::default() };
    assert!(refusal(Connector::program(missing), patient()).await.contains("cannot run `/no/such/program`"));
}

/// The time for the handshake is one for all attempts: a program that hangs up and is started again does not get a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_for_the_handshake_includes_every_attempt() {
    let home = tempfile::tempdir().unwrap();
    let starts = home.path().join("starts");
    let script = format!("echo x >> {}; exec sleep 1000", starts.display());
    let line = outpost_environment::CommandLine {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script],
        ..outpost_environment::CommandLine::default()
    };
    let options = EnvironmentOptions { initialize_timeout: Duration::from_secs(4), connect_timeout: Duration::from_secs(100), ..options() };
    let environment = Environment::new(Connector::program(line), options);
    let error = environment.connect().await.unwrap_err().to_string();
    assert!(error.contains("no answer to the handshake within 4s"), "{error}");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "x\n", "it is not started again");
}

#[tokio::test]
async fn a_host_that_dies_during_initialize() {
    let error = refusal(scripted(vec![Value::Null], Then::HangUp), patient()).await;
    assert!(error.contains("during the handshake"), "{error}");
    let error = refusal(scripted(vec![json!({"result": {"sessionId": "s"}})], Then::HangUp), patient()).await;
    assert!(error.contains("during the handshake"), "{error}");
}

/// One that greets and hangs up, each time: it is not tried for ever, nor without a pause.
#[tokio::test]
async fn a_host_that_dies_right_after_every_handshake_is_given_up() {
    let greeting = json!({"result": {"sessionId": "s", "environmentInfo": {"shell": {"name": "sh", "path": "/bin/sh"}}}});
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let connector = Connector::new("rude", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = memory::pair();
        let greeting = greeting.clone();
        tokio::spawn(async move {
            let mut client = Client::new(theirs);
            let Ok(request) = client.receive().await else { return };
            client.send(&outpost_testkit::bench::with(greeting, json!({"id": request["id"]})));
            // `initialized`.
            let _ = client.receive().await;
        });
        std::future::ready(Ok(ours))
    });
    let environment = Environment::new(connector, EnvironmentOptions { patience: Duration::from_millis(500), ..options() });
    // Whether that is told in time or not.
    let _ = environment.connect().await;
    eventually("it is given up", || matches!(environment.state(), ConnectionState::Failed(_))).await;
    let ConnectionState::Failed(failure) = environment.state() else { panic!("{:?}", environment.state()) };
    assert_eq!(failure.kind, FailureKind::SessionLost);
    assert!(failure.reason.to_string().contains("right after the handshake"), "{}", failure.reason);
    assert!(attempts.load(Ordering::Relaxed) < 50, "{attempts:?}");
}

/// An executor that is started, killed and started again at the same place.
struct Mortal {
    executor: Option<ExecutorProcess>,
    url: Arc<Mutex<String>>,
    work: tempfile::TempDir,
}

impl Mortal {
    fn new() -> Self {
        let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
        let url = Arc::new(Mutex::new(executor.url().to_owned()));
        Self { executor: Some(executor), url, work: tempfile::tempdir().unwrap() }
    }
    fn environment(&self, patience: Duration) -> Environment {
        let url = self.url.clone();
        let connector = Connector::new("mortal", move || {
            let url = url.lock().unwrap().clone();
            async move { ws::connect(&url, &ws::ClientOptions::default()).await }
        });
        Environment::new(connector, EnvironmentOptions { patience, ..options() })
    }
    fn kill(&mut self) -> tempfile::TempDir {
        self.executor.take().unwrap().kill_and_keep_home()
    }
    fn start(&mut self, home: tempfile::TempDir) {
        let executor = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
        *self.url.lock().unwrap() = executor.url().to_owned();
        self.executor = Some(executor);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_dies_during_output_and_comes_back_answers_for_its_processes() {
    let mut mortal = Mortal::new();
    let environment = mortal.environment(Duration::from_secs(30));
    let process = environment.start(shell("p", "echo begun; exec sleep 60", mortal.work.path())).await.unwrap();
    let finished = environment.start(shell("q", "exit 3", mortal.work.path())).await.unwrap();
    assert_eq!(finish(&finished).await.1, Some(3));
    assert_eq!(read_line(&process, &mut String::new()).await, "begun");
    let home = mortal.kill();
    mortal.start(home);
    let event = soon("its fate", process.next()).await;
    assert!(matches!(event, Some(ProcessEvent::Lost { .. })), "{event:?}");
    let process = environment.start(shell("r", "echo again", mortal.work.path())).await.unwrap();
    assert_eq!(finish(&process).await, ("again\n".into(), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_dies_during_start_or_write_and_stays_dead_keeps_nobody_waiting() {
    let mut mortal = Mortal::new();
    let environment = mortal.environment(Duration::from_millis(300));
    let process = environment.start(shell("p", "cat", mortal.work.path())).await.unwrap();
    let _home = mortal.kill();
    let (starting, writing) = tokio::join!(
        soon("the start", environment.start(shell("q", "true", mortal.work.path()))),
        soon("the write", process.write(Bytes::from_static(b"x"))),
    );
    for error in [starting.err().unwrap(), writing.err().unwrap()] {
        assert!(matches!(error, EnvironmentError::Unreachable { .. } | EnvironmentError::Unknown { .. }), "{error}");
    }
    assert!(matches!(soon("its fate", process.next()).await, Some(ProcessEvent::Lost { .. })));
}

/// The first connection is cut after the start has gone out; whoever answers the second knows of no session; the others work.
fn forgetful(url: String) -> Connector {
    let count = Arc::new(AtomicUsize::new(0));
    Connector::new("forgetful", move || {
        let (url, n) = (url.clone(), count.fetch_add(1, Ordering::SeqCst));
        async move {
            if n == 1 {
                let (ours, theirs) = memory::pair();
                tokio::spawn(async move {
                    let mut client = Client::new(theirs);
                    let Ok(request) = client.receive().await else { return };
                    client.send(&json!({"id": request["id"], "error": {"code": -32600, "message": "unknown session"}}));
                    let _ = client.receive().await;
                });
                return Ok(ours);
            }
            let link = ws::connect(&url, &ws::ClientOptions::default()).await?;
            // initialize, its answer, initialized, the start; its answer is lost.
            Ok(if n == 0 { cut_after(link, 4) } else { link })
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_session_is_over_is_not_repeated_in_the_next() {
    let mortal = Mortal::new();
    let url = mortal.url.lock().unwrap().clone();
    // Nothing is waited for, so that the next session is there before anybody has looked at the end of the first.
    let nothing = Waits { first: Duration::ZERO, longest: Duration::ZERO };
    for n in 0..20 {
        let eager = EnvironmentOptions { connect: ConnectPolicy::Eager, retry: nothing, recovery: nothing, ..options() };
        let environment = Environment::new(forgetful(url.clone()), eager);
        let mark = mortal.work.path().join(format!("runs-{n}"));
        let script = format!("echo run >> {}", mark.display());
        let error = soon("the start", environment.start(shell("p", &script, mortal.work.path()))).await.err().unwrap();
        // It may have run, and nobody can tell: never that it could not be started.
        assert!(matches!(error, EnvironmentError::Unknown { .. }), "{error}");
        // A new session works; the start of the old one is not in it.
        let process = soon("the next session", async {
            loop {
                if let Ok(process) = environment.start(shell("q", "true", mortal.work.path())).await {
                    return process;
                }
            }
        })
        .await;
        assert_eq!(finish(&process).await.1, Some(0));
        environment.end().await.unwrap();
    }
    // Now and then the question whether there is output goes out first, and the start is the frame that is lost.
    let runs = || (0..20).filter_map(|n| std::fs::read_to_string(mortal.work.path().join(format!("runs-{n}"))).ok()).collect::<Vec<_>>();
    eventually("most of them ran", || runs().len() > 5).await;
    // The last one may be about to write; none writes twice.
    assert!(runs().iter().all(|text| text == "run\n" || text.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_to_whom_this_machine_trusts_and_to_nobody_else() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let proxy = outpost_testkit::TlsProxy::start(executor.address()).await;
    let run = |trusted: bool| {
        let mut command = tokio::process::Command::new(OUTPOST);
        command.args(["run", "-e", &proxy.url(), "--", "echo", "through tls"]).stdin(std::process::Stdio::null());
        if trusted {
            command.env("SSL_CERT_FILE", proxy.certificate());
        }
        async move { command.output().await.unwrap() }
    };
    let output = run(true).await;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "through tls\n", "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(false).await;
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("certificate"), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A connector that panics is an environment that failed, for those who wait for it and for those who ask later.
#[tokio::test]
async fn a_connector_that_panics_is_a_failed_environment() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let connector = Connector::new("broken", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { panic!("the wire is cut") }
    });
    let registry = registry();
    registry.attach(id("broken"), connector, ConnectPolicy::Lazy).unwrap();
    let error = soon("it fails", registry.info(&id("broken"))).await.unwrap_err().to_string();
    assert!(error.contains("the connector panicked: the wire is cut"), "{error}");
    assert!(matches!(registry.standing(&id("broken")), outpost_environment::EnvironmentState::Failed { .. }));
    // Whoever asks again gets another attempt.
    soon("it fails again", registry.info(&id("broken"))).await.unwrap_err();
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
}
