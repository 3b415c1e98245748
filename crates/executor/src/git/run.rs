//! Running git: in a sandbox, where the repository that it reads is not to be trusted, and outside, as the owner of the real one.
//!
//! Outside, git never reads the configuration, hooks or attributes of a user or a repository: it works in a directory of ours that has a
//! configuration of ours, and links to the refs and objects of the repository.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Child, Exit, Launch, LaunchError, LaunchIo};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::layer::Format;
use crate::session::ExecutorSession;

/// How long one run of git may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The most that it may say, other than objects.
const MAX_BYTES: usize = 512 << 20;
/// The most that objects of one import may take.
const MAX_PACK: u64 = 8 << 30;
/// So few objects are kept one by one.
const UNPACK: u32 = 100;

/// Why something could not be done with git.
#[derive(Debug, Error)]
pub(super) enum GitError {
    #[error("git cannot be run: {0}")]
    Run(#[source] io::Error),
    /// In a sandbox.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("its layer cannot be read: {0}")]
    Layer(#[source] io::Error),
    #[error("no place to work in can be made: {0}")]
    Workplace(#[source] io::Error),
    #[error(transparent)]
    File(#[from] io::Error),
    #[error("objects are missing: {0}")]
    Objects(#[source] Box<GitError>),
    /// What git in the sandbox said beside it.
    #[error("{0} ({1})")]
    Heard(#[source] Box<GitError>, String),
    /// The last line that git said, or what is wrong with what it said.
    #[error("{0}")]
    Refused(String),
}

impl From<&str> for GitError {
    fn from(why: &str) -> Self {
        Self::Refused(why.to_owned())
    }
}

impl From<String> for GitError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// Git on the side of the machine.
pub(super) struct Outside {
    program: PathBuf,
    /// Our own gitdir.
    directory: PathBuf,
    owner: (u32, u32),
    is_partial: bool,
}

impl Outside {
    /// `own` is a directory of ours; `unit` is the repository.
    pub(super) fn open(program: &Path, own: &Path, unit: &Path, owner: (u32, u32)) -> io::Result<Self> {
        let is_other = rustix::process::geteuid().is_root() && owner.0 != 0;
        let name = format!("outpost-git-{}", uuid::Uuid::new_v4());
        // Another user may not reach our files.
        let directory = if is_other { Path::new("/tmp").join(name) } else { own.join(name) };
        DirBuilder::new().mode(0o700).create(&directory)?;
        let format = Format::of(unit);
        let outside = Self { program: program.to_owned(), directory, owner, is_partial: format.is_partial };
        outside.fill(unit, &format)?;
        if is_other {
            chown(&outside.directory, Some(owner.0), Some(owner.1))?;
        }
        Ok(outside)
    }

    fn fill(&self, unit: &Path, format: &Format) -> io::Result<()> {
        for name in ["refs", "packed-refs", "objects", "logs", "shallow"] {
            // A log of refs is kept where there is one.
            if !matches!(name, "logs" | "shallow") || unit.join(name).exists() {
                symlink(unit.join(name), self.directory.join(name))?;
            }
        }
        fs::write(self.directory.join("HEAD"), "ref: refs/heads/outpost-none\n")?;
        let version = u8::from(format.is_sha256 || format.is_partial);
        let mut extension = String::new();
        if format.is_sha256 {
            extension.push_str("[extensions]\n\tobjectFormat = sha256\n");
        }
        if format.is_partial {
            // Objects may be missing that those of a remote name. Nothing is fetched from here: it has no address.
            extension.push_str("[remote \"absent\"]\n\tpromisor = true\n");
        }
        let text = format!(
            "[core]\n\trepositoryformatversion = {version}\n\tbare = true\n\tlogAllRefUpdates = true\n\thooksPath = /dev/null\n\
             \tfsmonitor = false\n\tattributesFile = /dev/null\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n\
             [transfer]\n\tfsckObjects = true\n[index]\n\tversion = 2\n{extension}"
        );
        fs::write(self.directory.join("config"), text)
    }

    /// A place for a file that only this run needs.
    pub(super) fn aside(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.directory.join(name);
        fs::write(&path, bytes)?;
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(self.owner.0), Some(self.owner.1))?;
        }
        Ok(path)
    }

    fn command(&self, arguments: &[&str], index: Option<&Path>) -> Command {
        let mut command = command(&self.program, self.owner);
        command.args(arguments).current_dir(&self.directory).env("GIT_DIR", &self.directory).env("HOME", &self.directory);
        if let Some(index) = index {
            command.env("GIT_INDEX_FILE", index);
        }
        command
    }

    pub(super) async fn run(&self, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>, GitError> {
        answer(self.command(arguments, None), input).await
    }

    pub(super) async fn run_on(&self, index: &Path, arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>, GitError> {
        answer(self.command(arguments, Some(index)), input).await
    }

    /// What a partial clone does not have is missing on purpose.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    pub(super) async fn holds(&self, arguments: &[&str]) -> bool {
        self.run(arguments, Vec::new()).await.is_ok()
    }

    /// Takes objects from a pack that comes out of a sandbox, checks each, and refuses all of them if one is bad.
    pub(super) async fn take_objects(&self, pack: &Child) -> Result<(), GitError> {
        let mut first = Vec::new();
        while first.len() < 12 {
            match pack.output.read().await {
                Some(bytes) => first.extend(bytes),
                None => break,
            }
        }
        let count = match first.get(..12) {
            Some([b'P', b'A', b'C', b'K', _, _, _, _, count @ ..]) => u32::from_be_bytes(count.try_into().unwrap_or_default()),
            _ => return Err("git in the sandbox gave no objects".into()),
        };
        let size = format!("--max-input-size={MAX_PACK}");
        let mut arguments = match count < UNPACK && !self.is_partial {
            true => vec!["unpack-objects", "-q", "--strict"],
            // What a partial clone does not have is missing on purpose.
            false => vec!["index-pack", "--stdin", "--fix-thin", if self.is_partial { "--fsck-objects" } else { "--strict" }],
        };
        arguments.push(&size);
        let mut child = self.command(&arguments, None);
        let mut child = child.stdout(Stdio::null()).spawn().map_err(GitError::Run)?;
        let mut input = child.stdin.take();
        let mut errors = child.stderr.take();
        let feed = async {
            let mut more = Some(first);
            while let Some(bytes) = more {
                let Some(input) = &mut input else { break };
                if input.write_all(&bytes).await.is_err() {
                    break;
                }
                more = pack.output.read().await;
            }
            drop(input.take());
        };
        let hear = async {
            let mut said = Vec::new();
            if let Some(errors) = &mut errors {
                let _ = errors.take(1 << 16).read_to_end(&mut said).await;
            }
            said
        };
        let (_, said) = timeout(PATIENCE, async { tokio::join!(feed, hear) }).await.map_err(|_| "taking objects took too long")?;
        let status = timeout(PATIENCE, child.wait()).await.map_err(|_| "taking objects took too long")?;
        if status.is_ok_and(|status| status.success()) { Ok(()) } else { Err(format!("objects were refused: {}", last_line(&said)).into()) }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Git without settings of the system, a user or a repository.
fn command(program: &Path, owner: (u32, u32)) -> Command {
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    for (name, value) in settings() {
        command.env(name, value);
    }
    if rustix::process::geteuid().is_root() && owner != (0, 0) {
        command.uid(owner.0).gid(owner.1);
    }
    command
}

/// The same on both sides: no configuration but the repository's, no replaced objects, no network, no questions.
fn settings() -> [(&'static str, &'static str); 13] {
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ALLOW_PROTOCOL", "none"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_COMMITTER_NAME", "Outpost"),
        ("GIT_COMMITTER_EMAIL", "outpost@localhost"),
    ]
}

async fn answer(mut command: Command, input: Vec<u8>) -> Result<Vec<u8>, GitError> {
    let mut child = command.spawn().map_err(GitError::Run)?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(&input).await;
        }
    };
    let (_, output) = timeout(PATIENCE, async { tokio::join!(feed, child.wait_with_output()) }).await.map_err(|_| "git took too long")?;
    let output = output.map_err(GitError::Run)?;
    if output.status.success() { Ok(output.stdout) } else { Err(last_line(&output.stderr).into()) }
}

/// Makes an empty repository on the side of the machine, as its owner.
pub(super) async fn init(program: &Path, work: &Path, owner: (u32, u32), branch: &str, is_sha256: bool) -> Result<(), GitError> {
    let mut command = command(program, owner);
    let format = if is_sha256 { "--object-format=sha256" } else { "--object-format=sha1" };
    command.args(["init", "-q", "--template=", format, &format!("--initial-branch={branch}")]).arg(work);
    command.current_dir("/").env("HOME", "/nonexistent");
    answer(command, Vec::new()).await.map(drop)
}

/// Everything that git would be told by the user's own settings, and by those of the repository at the top of a tree.
pub(super) async fn user_settings(program: &Path, home: Option<&Path>, root: &Path) -> Vec<u8> {
    let list = async |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(program);
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).current_dir("/");
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", home.unwrap_or(Path::new("/nonexistent")));
        command.args(["config", "-z", "--list", "--includes"]).args(arguments);
        answer(command, Vec::new()).await.unwrap_or_default()
    };
    let file = root.join(".git/config");
    let mut all = list(&["--global".as_ref()]).await;
    if file.is_file() {
        all.extend(list(&["--file".as_ref(), file.as_os_str()]).await);
    }
    all
}

/// One value of the configuration of a repository that we made.
pub(super) async fn set(program: &Path, gitdir: &Path, owner: (u32, u32), key: &str, value: &str) -> Result<(), GitError> {
    let mut command = command(program, owner);
    command.args(["config", "--file"]).arg(gitdir.join("config")).args([key, value]).current_dir("/").env("HOME", "/nonexistent");
    answer(command, Vec::new()).await.map(drop)
}

fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("git failed");
    line.chars().filter(|mark| !mark.is_control()).take(300).collect()
}

/// Git on the side of the sandbox. What it says is believed of nothing.
pub(super) struct Inside<'a> {
    pub session: &'a Arc<ExecutorSession>,
    pub policy: &'a Policy,
    pub program: &'a Path,
}

impl Inside<'_> {
    /// Starts it on a gitdir as the sandbox sees it.
    async fn start(&self, gitdir: &Path, arguments: &[&str]) -> Result<Child, GitError> {
        let own = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0"];
        let mut env: Vec<_> = settings().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        env.push(("GIT_DIR".into(), gitdir.into()));
        env.push(("HOME".into(), "/nonexistent".into()));
        let launch = Launch {
            connect: None,
            program: self.program.into(),
            arg0: None,
            args: own.iter().chain(arguments).map(Into::into).collect(),
            env,
            cwd: gitdir.to_owned(),
            io: LaunchIo::Pipes { stdin: true },
            policy: self.policy.clone(),
        };
        Ok(self.session.launch_for_us(launch).await?)
    }

    pub(super) async fn run(&self, gitdir: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, GitError> {
        let mut child = self.start(gitdir, arguments).await?;
        let stdin = child.input.take();
        let told = timeout(PATIENCE, async { tokio::join!(feed(stdin, input), read_all(&child), hear(&child)) }).await;
        let result = match told {
            Ok((_, Some(output), said)) => match child.end.wait().await {
                Exit::Code(0) => Ok(output),
                _ => Err(last_line(&said).into()),
            },
            Ok((_, None, _)) => Err("git in the sandbox said too much".into()),
            Err(_) => Err("git in the sandbox took too long".into()),
        };
        child.kin.kill();
        result
    }

    /// Gives everything that these tips need and the machine does not have.
    pub(super) async fn give_objects(&self, gitdir: &Path, outside: &Outside, tips: &[u8]) -> Result<(), GitError> {
        let arguments = ["pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q"];
        let mut child = self.start(gitdir, &arguments).await?;
        let stdin = child.input.take();
        let taken = timeout(PATIENCE, async { tokio::join!(feed(stdin, tips), outside.take_objects(&child), hear(&child)) }).await;
        let result = match taken {
            Ok((_, Ok(()), _)) => Ok(()),
            Ok((_, Err(why), said)) if said.is_empty() => Err(why),
            Ok((_, Err(why), said)) => Err(GitError::Heard(Box::new(why), last_line(&said))),
            Err(_) => Err("git in the sandbox took too long".into()),
        };
        child.kin.kill();
        result
    }
}

async fn feed(stdin: Option<outpost_sandbox::ChildInput>, bytes: &[u8]) {
    if let Some(stdin) = stdin {
        let _ = stdin.write_all(bytes).await;
    }
}

async fn read_all(child: &Child) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(more) = child.output.read().await {
        all.extend(more);
        if all.len() > MAX_BYTES {
            return None;
        }
    }
    Some(all)
}

async fn hear(child: &Child) -> Vec<u8> {
    let mut said = Vec::new();
    if let Some(errors) = &child.errors {
        while let Some(more) = errors.read().await {
            if said.len() < 1 << 16 {
                said.extend(more);
            }
        }
    }
    said
}
