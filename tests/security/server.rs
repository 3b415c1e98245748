//! Servers as tests of doors and secrets need them: with their words kept, or as somebody without rights.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

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
    said: Option<JoinHandle<String>>,
}

impl Server {
    /// Starts a command that tells its address first.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned(), said: Some(said) }
    }

    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("ws://").expect("not a websocket")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it; everything that it said on standard error.
    pub(crate) fn end(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.said.take().unwrap().join().unwrap()
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
