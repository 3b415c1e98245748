//! A real executor in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Killed when dropped.
pub struct ExecutorProcess {
    child: Child,
    url: String,
    /// Only taken out when it is given to the next start.
    home: Option<TempDir>,
}

impl ExecutorProcess {
    /// Starts `outpost executor` with these arguments in a home of its own, and waits until it listens.
    pub fn start(outpost: &Path, arguments: &[&str]) -> Self {
        Self::start_in(outpost, arguments, tempfile::tempdir().unwrap())
    }

    pub fn start_in(outpost: &Path, arguments: &[&str], home: TempDir) -> Self {
        Self::start_with(outpost, arguments, &[], home)
    }

    /// With variables added to the environment that the executor itself runs in.
    pub fn start_with(outpost: &Path, arguments: &[&str], variables: &[(&str, &str)], home: TempDir) -> Self {
        let mut command = Command::new(outpost);
        command.arg("executor").args(arguments).envs(variables.iter().copied());
        Self::start_command(command, home)
    }

    /// With everything said but its home.
    pub fn start_command(mut command: Command, home: TempDir) -> Self {
        let mut child = command
            .env("OUTPOST_HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the executor cannot be started");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(!url.is_empty(), "the executor did not say where it listens");
        Self { child, url: url.trim().to_owned(), home: Some(home) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// `IP:PORT` of a websocket listener.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("ws://").expect("not a websocket")
    }

    pub fn home(&self) -> &Path {
        self.home.as_ref().expect("the home was given away").path()
    }

    /// The token that its home was given.
    pub fn token(&self) -> String {
        std::fs::read_to_string(self.home().join("tokens/executor")).expect("a token").trim().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most that it ever had, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).expect("a running process");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// kill -9; its home is for the next start.
    pub fn kill_and_keep_home(&mut self) -> TempDir {
        self.kill();
        self.home.take().expect("the home was given away")
    }

    /// Asks it to end and waits for that; returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for ExecutorProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something is so; fails the test if it takes too long.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2400 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{what}: still not so after two minutes");
}

/// Whether a process lives and is not merely waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    std::fs::read_to_string(stat).is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}
