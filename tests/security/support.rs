//! An executor that somebody in particular runs, and policies to ask it for.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use outpost_testkit::bench::{connect, with};
use outpost_testkit::{Client, ExecutorProcess};
use outpost_wire::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program under test. `cargo xtask hosts` builds these tests for other hosts and says where the program is there.
pub(crate) const OUTPOST: &str = match option_env!("OUTPOST_TEST_PROGRAM") {
    Some(program) => program,
    None => env!("CARGO_BIN_EXE_outpost"),
};
/// A user that nobody is.
const NOBODY: u32 = 54_321;

/// Who runs the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// One test as root and as an ordinary user; run as an ordinary user, only that half is run. `#[needs(…)]` names promises of the
/// verdict card: where the card denies one, the test asserts that instead.
#[macro_export]
macro_rules! as_root_and_user {
    ($($(#[needs($($promise:expr),+)])? async fn $name:ident($who:ident: Who) $body:block)*) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;
            async fn check($who: $crate::support::Who) $body

            async fn hold_or_deny(who: $crate::support::Who) {
                $(if $crate::card::denies(who, &[$($promise),+]).await {
                    return;
                })?
                check(who).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn as_root() {
                if $crate::support::is_root() {
                    hold_or_deny($crate::support::Who::Root).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn as_user() {
                hold_or_deny($crate::support::Who::User).await;
            }
        })*
    };
}

pub(crate) struct Ground {
    pub executor: ExecutorProcess,
    work: TempDir,
    /// What a shell does before it starts the executor.
    before: Option<String>,
}

/// A directory that belongs to whoever runs the executor.
pub(crate) fn directory(who: Who) -> TempDir {
    let directory = tempfile::Builder::new().prefix("outpost-security-").tempdir_in("/var/tmp").unwrap();
    give(who, directory.path());
    directory
}

pub(crate) fn give(who: Who, path: &Path) {
    if who == Who::User && is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// The program where everybody can run it: a build directory may be private. One copy for each build directory.
fn program() -> PathBuf {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    OUTPOST.hash(&mut hasher);
    let path = PathBuf::from(format!("/var/tmp/outpost-security-program-{:x}", hasher.finish()));
    let stamp = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let built = stamp(Path::new(OUTPOST));
    if built != stamp(&path) {
        let aside = tempfile::Builder::new().prefix("outpost-security-copy-").tempfile_in("/var/tmp").unwrap();
        std::fs::copy(OUTPOST, aside.path()).unwrap();
        std::fs::set_permissions(aside.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        aside.as_file().set_modified(built.unwrap()).unwrap();
        // It is run, so nobody may have it open for writing.
        let _ = aside.into_temp_path().persist(&path);
    }
    path
}

/// Where somebody can run the program.
pub(crate) fn program_for(who: Who) -> PathBuf {
    if who == Who::User && is_root() { program() } else { OUTPOST.into() }
}

/// A command that somebody in particular runs.
pub(crate) fn as_who(who: Who, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/");
    if who == Who::User && is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

impl Ground {
    pub(crate) fn new(who: Who) -> Self {
        Self::with(who, &[])
    }

    pub(crate) fn with(who: Who, arguments: &[&str]) -> Self {
        Self::at_home(who, Path::new("/nonexistent"), arguments)
    }

    /// An executor whose user has this home.
    pub(crate) fn at_home(who: Who, home: &Path, arguments: &[&str]) -> Self {
        let mut command = as_who(who, &program_for(who));
        command.args(["executor", "--no-auth"]).args(arguments).env("HOME", home);
        Self { executor: ExecutorProcess::start_command(command, directory(who)), work: directory(who), before: None }
    }

    /// An executor that is started by a shell once the shell has done something.
    pub(crate) fn after(who: Who, script: &str) -> Self {
        let command = Self::behind(who, script);
        Self { executor: ExecutorProcess::start_command(command, directory(who)), work: directory(who), before: Some(script.to_owned()) }
    }

    /// The same for a user who has this home.
    pub(crate) fn after_at_home(who: Who, script: &str, home: &Path) -> Self {
        let mut command = Self::behind(who, script);
        command.env("HOME", home);
        Self { executor: ExecutorProcess::start_command(command, directory(who)), work: directory(who), before: Some(script.to_owned()) }
    }

    /// An executor whose user has this home, and that keeps its own files on this disk.
    pub(crate) fn at_home_on(who: Who, home: &Path, disk: &Path) -> Self {
        let own = tempfile::tempdir_in(disk).unwrap();
        give(who, own.path());
        let mut command = as_who(who, &program_for(who));
        command.args(["executor", "--no-auth"]).env("HOME", home);
        Self { executor: ExecutorProcess::start_command(command, own), work: directory(who), before: None }
    }

    fn behind(who: Who, script: &str) -> Command {
        let mut command = as_who(who, Path::new("/bin/sh"));
        command.args(["-c", &format!("{script}; exec \"$0\" executor --no-auth")]).arg(program_for(who)).env("HOME", "/nonexistent");
        command
    }

    /// An executor that keeps its own files on this disk.
    pub(crate) fn on(who: Who, disk: &TempDir, arguments: &[&str]) -> Self {
        let own = tempfile::tempdir_in(disk.path()).unwrap();
        give(who, own.path());
        let mut command = as_who(who, &program_for(who));
        command.args(["executor", "--no-auth"]).args(arguments).env("HOME", "/nonexistent");
        Self { executor: ExecutorProcess::start_command(command, own), work: directory(who), before: None }
    }

    /// An executor that keeps its own files below the directory that is worked in.
    pub(crate) fn around_its_files(who: Who) -> Self {
        let work = directory(who);
        let above = work.path().join("state");
        std::fs::create_dir(&above).unwrap();
        give(who, &above);
        let own = tempfile::Builder::new().prefix("home-").tempdir_in(above).unwrap();
        give(who, own.path());
        let mut command = as_who(who, &program_for(who));
        command.args(["executor", "--no-auth"]).env("HOME", "/nonexistent");
        Self { executor: ExecutorProcess::start_command(command, own), work, before: None }
    }

    /// Kills the executor with signal 9 and starts the next one on the same files, in the same way.
    pub(crate) fn killed(mut self, who: Who) -> Self {
        let home = self.executor.kill_and_keep_home();
        let command = if let Some(script) = &self.before {
            Self::behind(who, script)
        } else {
            let mut command = as_who(who, &program_for(who));
            command.args(["executor", "--no-auth"]).env("HOME", "/nonexistent");
            command
        };
        Self { executor: ExecutorProcess::start_command(command, home), ..self }
    }

    pub(crate) async fn client(&self) -> Client {
        let mut client = Client::new(connect(self.executor.url()).await);
        client.hello().await;
        client
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        PathUri::from_native(&self.path(name)).unwrap().to_string()
    }

    /// Parameters that start a shell script without a sandbox.
    pub(crate) fn shell(&self, id: &str, script: &str) -> Value {
        json!({
            "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": self.uri(""), "tty": false,
            "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"},
        })
    }

    /// What the real client asks for: everything may be read, the workspace and `/tmp` written, no network.
    pub(crate) fn workspace_write(&self) -> Value {
        let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
        let mut git = special("project_roots", "read");
        git["path"]["value"]["subpath"] = json!(".git");
        git["missing_path_behavior"] = json!("skip");
        self.policy(json!([special("root", "read"), special("project_roots", "write"), special("slash_tmp", "write"), git]))
    }

    pub(crate) fn read_only(&self) -> Value {
        self.policy(json!([{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]))
    }

    pub(crate) fn policy(&self, entries: Value) -> Value {
        json!({
            "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": entries}, "network": "restricted"},
            "cwd": self.uri(""), "workspaceRoots": [self.uri("")], "windowsSandboxLevel": "disabled",
        })
    }

    /// Runs a script under a policy; returns its exit code and everything that it printed.
    pub(crate) async fn run(&self, client: &mut Client, sandbox: &Value, script: &str) -> (i64, String) {
        let id = number();
        let answer = client.start(with(self.shell(&id, script), json!({"sandbox": sandbox}))).await;
        assert_eq!(answer["sandboxType"], "linuxSeccomp");
        let (code, output) = client.outcome(&id).await;
        (code, String::from_utf8_lossy(&output).into_owned())
    }
}

/// A directory that is mounted a second time for as long as this lives.
pub(crate) struct Bound(PathBuf);

impl Bound {
    pub(crate) fn new(from: &Path, to: PathBuf) -> Self {
        assert!(Command::new("mount").arg("--bind").arg(from).arg(&to).status().unwrap().success());
        Self(to)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A number that no other call gets.
pub(crate) fn number() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    format!("n{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// Entries of a policy.
pub(crate) fn entry(path: &Path, access: &str) -> Value {
    json!({"path": {"type": "path", "path": PathUri::from_native(path).unwrap().to_string()}, "access": access})
}
