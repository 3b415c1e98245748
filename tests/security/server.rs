//! Servers as tests of doors and secrets need them: with their words kept, or as somebody without rights.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outpost_rpc::link::ws;
use outpost_testkit::{Client, ExecutorProcess};
use tempfile::TempDir;

use crate::support::OUTPOST;

/// Somebody without rights, and with nothing of their own.
pub(crate) const NOBODY: u32 = 65534;

pub(crate) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o7777
}

/// The program under test where every user can start it: a build directory may be private.
pub(crate) struct Everywhere {
    directory: TempDir,
}

impl Everywhere {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(OUTPOST, directory.path().join("outpost")).unwrap();
        Self { directory }
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.directory.path().join("outpost")
    }
}

/// A command of somebody without rights; only root can start one.
pub(crate) fn as_nobody(program: impl AsRef<Path>) -> Command {
    let (user, group) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
    let mut command = Command::new("setpriv");
    command.args([user.as_str(), group.as_str(), "--clear-groups", "--no-new-privs", "--"]).arg(program.as_ref());
    command
}

/// A server whose words are kept. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub url: String,
    said: Arc<Mutex<String>>,
    listener: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a command that tells its address first.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::new(Mutex::new(String::new()));
        let heard = said.clone();
        let listener = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                heard.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned(), said, listener: Some(listener) }
    }

    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("ws://").expect("not a websocket")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said a word on standard error: what it does after its answer may take a moment.
    pub(crate) async fn says(&self, word: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.said.lock().unwrap().contains(word) {
            assert!(Instant::now() < deadline, "`{word}` is not said: {}", self.said.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it; everything that it said on standard error.
    pub(crate) fn end(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.listener.take().unwrap().join().unwrap();
        std::mem::take(&mut *self.said.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of an executor that asks nobody who they are.
pub(crate) async fn client(executor: &ExecutorProcess) -> Client {
    let link = ws::connect(executor.url(), &ws::ClientOptions::default()).await.unwrap();
    let mut client = Client::new(link);
    client.hello().await;
    client
}
