//! A real Postgres for tests: one server per test program, one database per test. The server belongs to an unprivileged user
//! when the tests run as root, listens only on a socket in a directory of its own, and goes away with the program, however
//! that ends: a shell that holds the server waits for the end of its standard input.

use std::os::unix::fs::{MetadataExt, chown};
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
}

struct Server {
    programs: PathBuf,
    url: String,
    /// Its standard input is what keeps the server running.
    _holder: Option<Child>,
}

impl Server {
    fn start() -> Self {
        let programs = programs();
        if let Ok(url) = std::env::var("OUTPOST_TEST_POSTGRES") {
            return Self { programs, url, _holder: None };
        }
        let directory = tempfile::Builder::new().prefix("pg").tempdir().unwrap().keep();
        let is_root = directory.metadata().unwrap().uid() == 0;
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
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.join("holder.log")).unwrap())
            .spawn()
            .unwrap();
        let socket = directory.display().to_string().replace('/', "%2F");
        wait_until_it_answers(&programs, &directory);
        Self { programs, url: format!("postgres://postgres@{socket}/"), _holder: Some(holder) }
    }
}

/// Nothing is synced: a test database need not survive a power cut.
const HOLDER: &str = r#"
set -e
"$1/initdb" --pgdata "$2/data" --username postgres --auth trust --no-sync --encoding UTF8 --locale C > "$2/initdb.log" 2>&1
"$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c fsync=off -c max_connections=200 > "$2/server.log" 2>&1 < /dev/null &
server=$!
cat > /dev/null || true
kill -QUIT $server
wait $server || true
cd / && rm -rf "$2" || true
"#;

fn wait_until_it_answers(programs: &Path, directory: &Path) {
    let since = Instant::now();
    loop {
        let ready = Command::new(programs.join("pg_isready")).arg("--host").arg(directory).arg("--quiet").status().unwrap();
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
