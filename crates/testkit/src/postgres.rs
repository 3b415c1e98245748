//! A real Postgres for tests: one server per test program, one database per test. The server belongs to an unprivileged user
//! when the tests run as root, listens only on a socket in a directory of its own, and goes away with the program, however
//! that ends: a shell that holds the server waits for the end of its standard input.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A database of its own on the server of this test program.
pub struct Database {
    url: String,
}

/// A server of its own that other machines could reach, and only encrypted.
pub struct EncryptedServer {
    pub port: u16,
    server: Server,
}

impl EncryptedServer {
    /// Its certificate is for `localhost`.
    pub fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        // Below those that connections are given, so that no other program takes it before the server does.
        let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
        let port = (first..).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
        let settings = ["listen_addresses=127.0.0.1", "ssl=on", "ssl_cert_file=../certificate.pem", "ssl_key_file=../key.pem"];
        let settings = settings.into_iter().map(str::to_owned).chain([format!("port={port}"), "hba_file=doors".to_owned()]);
        let files = [
            ("certificate.pem", made.cert.pem()),
            ("key.pem", made.signing_key.serialize_pem()),
            ("doors", "local all all trust\nhostssl all all 127.0.0.1/32 trust\n".to_owned()),
        ];
        Self { port, server: Server::start_with(&settings.collect::<Vec<_>>(), &files, port) }
    }

    /// For clients that are to trust it.
    pub fn certificate(&self) -> PathBuf {
        self.server.directory.join("certificate.pem")
    }
}

/// A server of its own, which the test may restart and pause, with one database.
pub struct OwnServer {
    server: Server,
    url: String,
}

/// How a server is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseEnd {
    /// As its operator does it: connections are closed, what was committed is written.
    Fast,
    /// As when it is killed: the next start recovers from its log.
    Killed,
}

impl OwnServer {
    pub fn start() -> Self {
        let server = Server::start_with(&["listen_addresses=".to_owned()], &[], 5432);
        create(&server, "soak");
        Self { url: format!("{}soak", server.url), server }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What a statement returns, as text; nothing while the server is away or does not answer.
    pub fn ask(&self, statement: &str) -> Option<String> {
        let mut command = Command::new("timeout");
        command.arg("5").arg(self.server.programs.join("psql"));
        let output = command.args([self.url(), "-Atc", statement]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Ends it and starts it again; returns when it answers.
    pub fn restart(&self, end: DatabaseEnd) {
        let before = self.postmaster();
        let signal = match end {
            DatabaseEnd::Fast => "INT",
            DatabaseEnd::Killed => "QUIT",
        };
        let mut holder = self.server.holder.as_ref().unwrap().stdin.as_ref().unwrap();
        writeln!(holder, "{signal}").unwrap();
        let since = Instant::now();
        while self.postmaster().is_none_or(|now| Some(now) == before) {
            assert!(since.elapsed() < START_PATIENCE, "Postgres does not start again");
            std::thread::sleep(Duration::from_millis(20));
        }
        wait_until_it_answers(&self.server.programs, &self.server.directory, 5432);
    }

    /// Stops all of its processes: connections stay, and nothing answers.
    pub fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let Some(postmaster) = self.postmaster() else { return };
        // The postmaster first: it starts no process while the others are stopped.
        for pid in std::iter::once(postmaster).chain(children(postmaster)) {
            let _ = rustix::process::Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, signal));
        }
    }

    fn postmaster(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.server.directory.join("data/postmaster.pid")).ok()?;
        text.lines().next()?.parse().ok()
    }
}

fn children(parent: i32) -> Vec<i32> {
    let of = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let is_child = stat.rsplit(')').next()?.split_whitespace().nth(1)? == parent.to_string();
        is_child.then_some(pid)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of).collect()
}

fn create(server: &Server, name: &str) {
    let output = Command::new(server.programs.join("psql"))
        .arg(format!("{}postgres", server.url))
        .args(["--quiet", "--no-psqlrc", "--command"])
        .arg(format!("create database {name}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Database {
    /// `OUTPOST_TEST_POSTGRES` (a URL without a database, ending in `/`) names a server that is already there.
    pub fn create() -> Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(Server::start);
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        create(server, &name);
        Self { url: format!("{}{name}", server.url) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What a statement returns, as text.
    pub fn ask(&self, statement: &str) -> String {
        let output = Command::new(programs().join("psql")).args([self.url(), "-Atc", statement]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

struct Server {
    programs: PathBuf,
    directory: PathBuf,
    url: String,
    /// Its standard input is what keeps the server running; a line there is the signal by which the server ends before it is started again.
    holder: Option<Child>,
}

impl Server {
    fn start() -> Self {
        if let Ok(url) = std::env::var("OUTPOST_TEST_POSTGRES") {
            return Self { programs: programs(), directory: PathBuf::new(), url, holder: None };
        }
        Self::start_with(&["listen_addresses=".to_owned()], &[], 5432)
    }

    /// The port names the socket, too.
    fn start_with(settings: &[String], files: &[(&str, String)], port: u16) -> Self {
        let programs = programs();
        let directory = tempfile::Builder::new().prefix("pg").tempdir().unwrap().keep();
        let is_root = directory.metadata().unwrap().uid() == 0;
        for (name, content) in files {
            let path = directory.join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            if is_root {
                chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let mut command = if is_root {
            chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        let holder = command
            .args(["-c", HOLDER, "holder"])
            .arg(&programs)
            .arg(&directory)
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.join("holder.log")).unwrap())
            .spawn()
            .unwrap();
        let socket = directory.display().to_string().replace('/', "%2F");
        wait_until_it_answers(&programs, &directory, port);
        Self { programs, directory, url: format!("postgres://postgres@{socket}/"), holder: Some(holder) }
    }
}

/// Nothing is synced: a test database need not survive a power cut.
const HOLDER: &str = r#"
set -e
programs=$1 directory=$2
shift 2
"$programs/initdb" --pgdata "$directory/data" --username postgres --auth trust --no-sync --encoding UTF8 --locale C \
  > "$directory/initdb.log" 2>&1
serve() {
  "$programs/postgres" -D "$directory/data" -k "$directory" -c fsync=off -c max_connections=200 "$@" \
    >> "$directory/server.log" 2>&1 < /dev/null &
  server=$!
}
serve "$@"
while read -r signal; do
  kill -"$signal" $server
  wait $server || true
  serve "$@"
done
kill -CONT $server
kill -QUIT $server
wait $server || true
cd / && rm -rf "$directory" || true
"#;

fn wait_until_it_answers(programs: &Path, directory: &Path, port: u16) {
    let since = Instant::now();
    loop {
        let mut ask = Command::new(programs.join("pg_isready"));
        let ready = ask.arg("--host").arg(directory).args(["--port", &port.to_string(), "--quiet"]).status().unwrap();
        if ready.success() {
            return;
        }
        if since.elapsed() > START_PATIENCE {
            let logs =
                ["holder.log", "initdb.log", "server.log"].map(|name| std::fs::read_to_string(directory.join(name)).unwrap_or_default());
            panic!("Postgres does not start: {logs:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Debian keeps the programs of each version apart and off the path.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let newest = versions
        .filter(|bin| bin.join("initdb").exists())
        .max_by_key(|bin| bin.parent().and_then(Path::file_name).and_then(|version| version.to_str()?.parse::<u32>().ok()).unwrap_or(0));
    newest.expect("Postgres is not installed: run the tests with `cargo xtask test`")
}

#[cfg(test)]
mod tests {
    use super::Database;

    #[test]
    fn databases_are_apart() {
        let (one, two) = (Database::create(), Database::create());
        assert_ne!(one.url(), two.url());
        let output = std::process::Command::new(super::programs().join("psql")).args([one.url(), "-Atc", "select 1"]).output().unwrap();
        assert_eq!(output.stdout, b"1\n", "{}", String::from_utf8_lossy(&output.stderr));
    }
}
