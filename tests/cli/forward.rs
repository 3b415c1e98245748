//! `outpost forward`: real executors, real sandboxes, real connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::cutter::Cutter;
use outpost_testkit::executor::eventually;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::OUTPOST;

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// A home, and an executor elsewhere.
struct Stage {
    home: TempDir,
    executor: ExecutorProcess,
}

impl Stage {
    fn new() -> Self {
        let executor = ExecutorProcess::start(Path::new(OUTPOST), &[]);
        let home = tempfile::tempdir().unwrap();
        Self { home, executor }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(arguments).env("OUTPOST_HOME", self.home.path()).env("OUTPOST_TOKEN", self.executor.token());
        command.env_remove("OUTPOST_EXEC_SERVER_URL").env_remove("CODEX_EXEC_SERVER_URL").stdin(Stdio::null());
        command
    }

    fn forward(&self, arguments: &[&str]) -> Forward {
        Forward::start(self.command(&[&["forward"], arguments].concat()))
    }
}

/// A program that forwards, killed when dropped.
struct Forward {
    child: Child,
    said: mpsc::Receiver<String>,
    address: SocketAddr,
}

impl Forward {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let address = first.split_whitespace().next().unwrap_or_default().parse();
        let address = address.unwrap_or_else(|_| panic!("`{first}`: {:?}", said.recv_timeout(LIMIT)));
        Self { child, said, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Waits for a line on standard error.
    fn hears(&self, what: &str) -> String {
        loop {
            let line = self.said.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("`{what}` is not said"));
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Ends it; everything that it said until then.
    fn silence(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
        self.said.iter().collect()
    }

    /// Ends it, and returns its exit code. Ctrl-C may be ignored where tests run.
    fn stop(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of this machine's loopback that deals with each connection on a thread of its own.
fn server(deal: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, deal) = (stream.unwrap(), deal.clone());
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            std::thread::spawn(move || deal(stream));
        }
    });
    port
}

/// Bytes that repeat nowhere.
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn bytes_go_both_ways_at_once_and_each_direction_ends_alone() {
    const COUNT: usize = 50 << 20;
    let stage = Stage::new();
    // Sends its own bytes, ends that direction, and only then says what it was sent.
    let (sender, received) = mpsc::channel();
    let port = server(move |stream| {
        let (mut reading, sender) = (stream.try_clone().unwrap(), sender.clone());
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reading.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut writing = stream;
        writing.write_all(&noise(2, COUNT)).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
        sender.send(digest(&read.join().unwrap())).unwrap();
    });
    let forward = stage.forward(&["-e", stage.executor.url(), &format!("0:{port}")]);
    let mut stream = forward.connect();
    let mut writing = stream.try_clone().unwrap();
    let (ended, has_ended) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let bytes = noise(1, COUNT);
        let (most, last) = bytes.split_at(COUNT - 10);
        writing.write_all(most).unwrap();
        // The rest is sent when the other direction is over: its end is no end of this one.
        has_ended.recv_timeout(LIMIT).unwrap();
        writing.write_all(last).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == COUNT && digest(&bytes) == digest(&noise(2, COUNT)), "{} bytes came back", bytes.len());
    ended.send(()).unwrap();
    writer.join().unwrap();
    assert_eq!(received.recv_timeout(LIMIT).unwrap(), digest(&noise(1, COUNT)));
}

/// However a connection ends in good order, there is nothing to say about it.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_good_order_is_not_mentioned() {
    let stage = Stage::new();
    let port = server(echo);
    let forward = stage.forward(&["-e", stage.executor.url(), &format!("0:{port}")]);
    let pid = stage.executor.pid().to_string();
    for ends_itself in [true, false, true] {
        let mut stream = forward.connect();
        stream.write_all(b"some").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        if ends_itself {
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        }
        drop(stream);
        eventually("its relay is gone", || !processes_below(&pid).iter().any(|name| name.contains("relay"))).await;
    }
    assert_eq!(forward.silence(), Vec::<String>::new());
}

/// What arrived is not all there is: an orderly end would make a whole of it.
#[test]
fn a_connection_that_broke_there_is_reset_here() {
    let stage = Stage::new();
    let port = server(|mut stream| {
        stream.write_all(b"a part").unwrap();
        // Sent once it was asked for.
        stream.read_exact(&mut [0; 1]).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let forward = stage.forward(&["-e", stage.executor.url(), &format!("0:{port}")]);
    let mut stream = forward.connect();
    stream.read_exact(&mut [0; 6]).unwrap();
    stream.write_all(b"x").unwrap();
    let end = stream.read(&mut [0; 1]);
    assert_eq!(end.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    forward.hears("broke: Connection reset by peer");
}

#[test]
fn the_environment_is_named_before_its_ports() {
    let stage = Stage::new();
    let file = stage.home.path().join("token");
    std::fs::write(&file, stage.executor.token()).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let entry = format!("[[environments]]\nid = \"box\"\nurl = \"{}\"\ntoken_file = \"{}\"\n", stage.executor.url(), file.display());
    std::fs::write(stage.home.path().join("environments.toml"), entry).unwrap();
    let port = server(echo);
    let forward = stage.forward(&["box", &format!("0:{port}")]);
    let mut stream = forward.connect();
    stream.write_all(b"named").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"named");
}

#[test]
fn sixty_connections_are_carried_at_once() {
    let stage = Stage::new();
    let port = server(echo);
    let forward = stage.forward(&["-e", stage.executor.url(), &format!("0:{port}")]);
    let mut streams: Vec<TcpStream> = (0..60).map(|_| forward.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        write!(stream, "this is {number:03}").unwrap();
    }
    // All of them are open until the last has had its answer.
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0; 11];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("this is {number:03}"));
    }
}

/// Sends without an end until nobody takes it any more.
fn flood(mut stream: TcpStream) {
    let bytes = noise(3, 1 << 20);
    while stream.write_all(&bytes).is_ok() {}
}

/// A program that takes no more of what it asked for, and one that goes away in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_read_holds_up_no_other() {
    let stage = Stage::new();
    let (floods, echoes) = (server(flood), server(echo));
    let mut command = stage.command(&["forward", "-e", stage.executor.url(), &format!("0:{floods}"), &format!("0:{echoes}")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut address = || told.next().and_then(|line| line.split(' ').next()?.parse::<SocketAddr>().ok()).unwrap();
    let (flooded, echoed) = (address(), address());
    let (_sender, said) = mpsc::channel();
    let forward = Forward { child, said, address: echoed };
    let works = |stream: &mut TcpStream| {
        stream.write_all(b"some").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
    };
    let mut before = forward.connect();
    works(&mut before);
    let mut stalled: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(flooded).unwrap()).collect();
    for stream in &mut stalled {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.read_exact(&mut [0; 1024]).unwrap();
    }
    // By then everything on the way is full that can be.
    tokio::time::sleep(Duration::from_secs(3)).await;
    works(&mut before);
    works(&mut forward.connect());
    // One reads on after all and has missed nothing.
    let mut whole = vec![0; 8 << 20];
    stalled[0].read_exact(&mut whole).unwrap();
    let sent = noise(3, 1 << 20).repeat(9);
    assert!(whole == sent[1024..1024 + whole.len()], "what comes is what was sent");
    // The others go away with most of it unread: their relays end, and connections are made as before.
    drop(stalled);
    works(&mut before);
    works(&mut forward.connect());
    drop(before);
    let pid = stage.executor.pid().to_string();
    eventually("the relays are gone", || !processes_below(&pid).iter().any(|name| name.contains("relay"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_survive_cuts_and_new_ones_wait() {
    let stage = Stage::new();
    let port = server(echo);
    let cutter = Cutter::start(stage.executor.address(), vec![]).await;
    let forward = stage.forward(&["-e", &cutter.url(), &format!("0:{port}")]);
    let mut stream = forward.connect();
    let mut answer = [0; 5];
    stream.write_all(b"first").unwrap();
    stream.read_exact(&mut answer).unwrap();
    for round in 0..3 {
        cutter.cut();
        stream.write_all(b"later").unwrap();
        let mut other = forward.connect();
        other.write_all(b"other").unwrap();
        if round == 0 {
            forward.hears("lost");
        }
        cutter.mend();
        for stream in [&mut stream, &mut other] {
            stream.read_exact(&mut answer).unwrap();
        }
        assert_eq!(&answer, b"other");
    }
    assert!(cutter.connections() > 3);
}

#[test]
fn what_does_not_work_is_said() {
    let stage = Stage::new();
    let url = stage.executor.url();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let forward = stage.forward(&["-e", url, &format!("0:{free}")]);
    for _ in 0..2 {
        assert_eq!(forward.connect().read(&mut [0; 1]).unwrap_or_default(), 0, "it is closed");
    }
    let line = forward.hears(&format!("nothing listens on port {free} of {url}"));
    assert!(line.contains("the connection is closed"), "{line}");
    // When something listens at last, connections work.
    let listener = TcpListener::bind(("127.0.0.1", free)).unwrap();
    let mut stream = forward.connect();
    listener.accept().unwrap().0.write_all(b"x").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    drop(listener);
    // Once, however often it was tried.
    assert_eq!(forward.silence(), Vec::<String>::new());

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.port())).unwrap();
    for (arguments, code, what) in [
        (vec!["-e".to_owned(), "ws://127.0.0.1:1".into(), format!("{}:80", taken.1)], 1, "another program listens there"),
        (vec!["-e".into(), "ws://127.0.0.1:1".into(), "0:80".into()], 3, "is unreachable"),
        (vec!["nowhere".into(), "0:80".into()], 1, "there is no environment `nowhere`"),
        (vec!["local".into(), free.to_string()], 1, "is this program itself"),
        (vec!["local".into(), format!("{free}:80"), format!("0:{free}")], 1, "is this program itself"),
        (vec!["6006".into()], 2, "say which environment"),
        (vec!["box".into(), "http".into()], 2, "is not a port"),
        (vec!["local".into(), "0:80".into(), "--last".into()], 1, "there is no thread yet"),
    ] {
        let arguments: Vec<&str> = std::iter::once("forward").chain(arguments.iter().map(String::as_str)).collect();
        let output = stage.command(&arguments).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && told.contains(what), "{arguments:?}: {:?}: {told}", output.status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_program_ends_its_connections() {
    let stage = Stage::new();
    let (sender, ended) = mpsc::channel();
    let port = server(move |mut stream| {
        stream.write_all(b"x").unwrap();
        let _ = sender.send(stream.read(&mut [0; 1]).unwrap_or_default());
    });
    let forward = stage.forward(&["-e", stage.executor.url(), &format!("0:{port}")]);
    let mut streams: Vec<TcpStream> = (0..3).map(|_| forward.connect()).collect();
    streams.iter_mut().for_each(|stream| stream.read_exact(&mut [0; 1]).unwrap());
    let pid = stage.executor.pid().to_string();
    let relays = || processes_below(&pid).iter().filter(|name| name.contains("relay")).count();
    assert_eq!(relays(), 3);
    assert_eq!(forward.stop(), Some(143));
    for stream in &mut streams {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or_default(), 0);
        assert_eq!(ended.recv_timeout(LIMIT).unwrap(), 0, "the server there sees the end");
    }
    eventually("nothing is left", || relays() == 0).await;
}

/// Names of the processes that a process has started, and of those that these have started.
fn processes_below(pid: &str) -> Vec<String> {
    // Each thread has those that it started.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children: Vec<String> = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default()).collect();
    children
        .iter()
        .flat_map(|children| children.split_whitespace())
        .flat_map(|child| {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default().trim().to_owned();
            std::iter::once(name).chain(processes_below(child))
        })
        .collect()
}

/// A server inside a sandbox without network, started by a command of a thread, here and on another machine.
#[tokio::test(flavor = "multi_thread")]
async fn the_loopback_of_a_thread_is_the_one_that_its_commands_see() {
    let stage = Stage::new();
    let file = format!("[[environments]]\nid = \"box\"\nurl = \"{}\"\ntoken_file = \"{}\"\n", stage.executor.url(), "TOKEN");
    let token = stage.home.path().join("box.token");
    std::fs::write(&token, stage.executor.token()).unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(stage.home.path().join("environments.toml"), file.replace("TOKEN", &token.display().to_string())).unwrap();
    for name in ["local", "box"] {
        let work = tempfile::tempdir().unwrap();
        let script = "import http.server,os\nserver = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n\
                      open('port.part', 'w').write(str(server.server_port))\nos.rename('port.part', 'port')\nserver.serve_forever()\n";
        std::fs::write(work.path().join("serve.py"), script).unwrap();
        std::fs::write(work.path().join("hello"), "from inside\n").unwrap();
        let place = format!("{name}={}", work.path().display());
        let arguments = ["exec", "--provider", "offline", "-s", "workspace-write", "-e", &place, "$ python3 serve.py 2>/dev/null"];
        let mut exec = stage.command(&arguments).current_dir(work.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("the server runs", || work.path().join("port").exists()).await;
        let port = std::fs::read_to_string(work.path().join("port")).unwrap();
        // The machine's own loopback is another one.
        let outside = stage.forward(&["-e", name, &format!("0:{port}")]);
        assert_eq!(outside.connect().read(&mut [0; 1]).unwrap_or_default(), 0);
        assert!(outside.hears("nothing listens").contains("--thread"));
        let forward = stage.forward(&["-e", name, &format!("0:{port}"), "--last"]);
        for _ in 0..2 {
            let mut stream = forward.connect();
            stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("from inside\n"), "{name}: {answer}");
        }
        // The thread ends, and with it what it served; the listener stays and says so.
        rustix::process::kill_process(rustix::process::Pid::from_child(&exec), rustix::process::Signal::TERM).unwrap();
        exec.wait().unwrap();
        eventually("the sandbox is gone", || forward.connect().read(&mut [0; 1]).unwrap_or_default() == 0).await;
        forward.hears(&format!("port {port} of {name}"));
    }
    // A thread that never worked there has no loopback there.
    let other = stage.command(&["forward", "-e", stage.executor.url(), "0:80", "--last"]).output().unwrap();
    let told = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.code() == Some(1) && told.contains("has run no command in"), "{told}");
}
