//! A real Postgres for tests: one server per test program, one database per test. The server belongs to an unprivileged user
//! when the tests run as root, listens only on a socket in a directory of its own, and goes away with the program, however
//! that ends: a shell that holds the server waits for the end of its standard input.

use std::fs::Permissions;
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

impl Database {
    /// `OUTPOST_TEST_POSTGRES` (a URL without a database, ending in `/`) names a server that is already there.
    pub fn create() -> Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = SERVER.get_or_init(Server::start);
        let name = format!("test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let output = Command::new(server.programs.join("psql"))
            .arg(format!("{}postgres", server.url))
            .args(["--quiet", "--no-psqlrc", "--command"])
            .arg(format!("create database {name}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    /// Its standard input is what keeps the server running.
    _holder: Option<Child>,
}

impl Server {
    fn start() -> Self {
        if let Ok(url) = std::env::var("OUTPOST_TEST_POSTGRES") {
            return Self { programs: programs(), directory: PathBuf::new(), url, _holder: None };
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
        Self { programs, directory, url: format!("postgres://postgres@{socket}/"), _holder: Some(holder) }
    }
}

/// Nothing is synced: a test database need not survive a power cut.
const HOLDER: &str = r#"
set -e
programs=$1 directory=$2
shift 2
"$programs/initdb" --pgdata "$directory/data" --username postgres --auth trust --no-sync --encoding UTF8 --locale C \
  > "$directory/initdb.log" 2>&1
"$programs/postgres" -D "$directory/data" -k "$directory" -c fsync=off -c max_connections=200 "$@" \
  > "$directory/server.log" 2>&1 < /dev/null &
server=$!
cat > /dev/null || true
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
