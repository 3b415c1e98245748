//! A reader's desk: a home of its own, a workspace, hosts behind stand-ins for `ssh`, `docker` and the like, and a scripted model.
//! Nothing on it reaches a network beyond this machine.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use outpost_testkit::TestTerminal;
use outpost_testkit::model::ScriptedModel;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::OUTPOST;
use crate::world::World;

/// Longer than any command of a page takes on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);

/// Runs what it is given in the home of the host, which is named by the first part of its name.
const SSH: &str = r#"
while :; do case $1 in
-[oiplFSJEWLRDbBcemIQw]) shift 2;;
-*) shift;;
*) break;;
esac; done
host=${1##*@}; host=${host%%.*}; shift
mkdir -p "$STATE/$host"; cd "$STATE/$host"
exec env -i HOME="$STATE/$host" STATE="$STATE" INSIDE="$INSIDE" PATH="$TOOLS:$INSIDE" sh -c "$*"
"#;

/// `cargo run -- VERB` runs the program that is built already.
const CARGO: &str = r#"
[ "$1 $2" = "run --" ] || { echo "cargo: only \`cargo run -- VERB\` can be typed here" >&2; exit 1; }
shift 2; exec "$TOOLS/outpost" "$@"
"#;

/// What the examples run on a terminal.
const TOP: &str = r#"echo "top - 1 user"; read -r key; [ "$key" = q ]"#;

pub(crate) struct Stage {
    /// First, because what runs in the world ends before it.
    servers: Vec<Server>,
    world: World,
    runtime: tokio::runtime::Runtime,
    model: Option<ScriptedModel>,
    /// The executor behind the address that the pages give to `build`.
    build: Option<String>,
    /// What the reader's shell keeps from one command to the next: `export NAME=VALUE` and `cd DIRECTORY`.
    kept: String,
}

/// A program that was started and goes on.
struct Server {
    typed: String,
    child: Child,
    /// The first line of its output.
    said: String,
}

/// How a command ended, and what it said.
pub(crate) struct Ended {
    pub status: ExitStatus,
    pub text: String,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let model = runtime.block_on(ScriptedModel::with(vec![]));
        let world = World::new().with_program();
        for (name, script) in [("ssh", SSH), ("cargo", CARGO), ("top", TOP)] {
            world.tool(name, script);
        }
        std::os::unix::fs::symlink(OUTPOST, world.path("tools").join("outpost")).unwrap();
        let stage = Self { servers: Vec::new(), world, runtime, model: Some(model), build: None, kept: String::new() };
        stage.furnish();
        stage
    }

    /// What the pages suppose: a project here and on the hosts, and the files that they name.
    fn furnish(&self) {
        let base = self.model.as_ref().unwrap().base_url();
        let config = format!("openai_base_url = \"{base}\"\n[model_providers.ollama]\nbase_url = \"{base}\"\nwire_api = \"chat\"\n");
        let certified = rcgen::generate_simple_self_signed(vec!["hub.example.org".to_owned()]).unwrap();
        let files = [
            ("home/.outpost/config.toml", config.as_str()),
            ("home/build.token", "the-token-of-the-executor-that-is-called-build"),
            ("work/notes.txt", "notes\n"),
            ("work/Makefile", "test:\n\t@echo all tests pass\n"),
            ("work/chain.pem", &certified.cert.pem()),
            ("work/key.pem", &certified.signing_key.serialize_pem()),
            ("root/srv/app/Makefile", "test:\n\t@echo all tests pass\n"),
            ("state/box/Makefile", "test:\n\t@echo all tests pass\n"),
            ("root/srv/data/table.csv", "1,2\n"),
            ("root/srv/tools/skills/deploy/SKILL.md", "---\nname: deploy\ndescription: How to deploy\n---\nPush it.\n"),
            ("root/var/log/app.log", "it began\n"),
            ("root/etc/outpost/token", "the-token-of-an-executor-behind-a-proxy"),
            ("root/tmp/keep", ""),
            ("state/box/results/one", "1\n"),
            ("state/job", "RUNNING\n"),
        ];
        for (name, text) in files {
            let path = self.world.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        }
        self.world.container("web", "running");
        for project in ["work", "root/srv/app"] {
            let commit = "git init -q && git add . && git -c user.name=me -c user.email=me@example.org commit -q -m begin";
            let made = self.command(&format!("cd \"$0\" && {commit}")).arg(self.world.path(project)).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
    }

    /// A reader who has a key for a model.
    pub(crate) fn with_model(mut self) -> Self {
        self.keep("export OPENAI_API_KEY=a-key");
        self
    }

    /// How often the model was asked.
    pub(crate) fn requests(&self) -> usize {
        self.model.as_ref().map_or(0, |model| model.requests().len())
    }

    pub(crate) fn keep(&mut self, command: &str) {
        self.kept.push_str(command);
        self.kept.push('\n');
    }

    /// An executor behind a websocket, with the token in `~/build.token`.
    pub(crate) fn with_build(mut self) -> Self {
        let home = self.world.path("build");
        let listen = "outpost executor --listen ws://127.0.0.1:0 --ws-auth capability-token --ws-token-file ~/build.token";
        let said = self.start(&format!("OUTPOST_HOME={} {listen}", home.display())).unwrap();
        self.build = Some(said);
        self
    }

    /// Text of a page as it is typed here: an example's address, path or id stands for the one on this stage.
    pub(crate) fn spelled(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for directory in [":/tmp/", "/srv/", "/var/log/", "/etc/outpost/"] {
            let (colon, path) = directory.strip_prefix(':').map_or(("", directory), |path| (":", path));
            text = text.replace(directory, &format!("{colon}{}{path}", self.world.path("root").display()));
        }
        for address in ["ws://127.0.0.1:8765", "ws://127.0.0.1:7000"] {
            text = text.replace(address, "ws://127.0.0.1:0");
        }
        for address in ["ws://0.0.0.0:443", "ws://10.0.0.5:7000"] {
            text = text.replace(address, "ws://0.0.0.0:0");
        }
        // Its own address may be taken on this machine.
        if text.split_whitespace().take(2).eq(["outpost", "serve"]) && !text.contains("--listen") {
            text = text.replace("outpost serve", "outpost serve --listen ws://127.0.0.1:0");
        }
        if let Some(build) = &self.build {
            text = text.replace("wss://build.example.org/executor", build);
        }
        if let Some(hub) = self.servers.last().map(|server| server.said.as_str()) {
            text = text.replace("wss://hub.example.org", &hub.replace("0.0.0.0", "127.0.0.1"));
        }
        if text.contains("OUTPOST_TOKEN=…") {
            text = text.replace('…', &self.asked("outpost token create --executor gpu"));
        }
        if text.contains("3f9c2a51d07e") {
            text = text.replace("3f9c2a51d07e", &self.asked("outpost token list"));
        }
        if text.contains("4f21") || text.split_whitespace().any(|word| word == "ID") {
            let id = self.asked("outpost thread list --json | grep -o '\"id\": *\"[^\"]*' | grep -o '[^\"]*$'");
            text = text.replace("4f21", &id).replace(" ID ", &format!(" {id} "));
        }
        text.replace("OPENAI_API_KEY=…", "OPENAI_API_KEY=a-key")
    }

    /// The first word that a command prints.
    fn asked(&self, command: &str) -> String {
        let Ended { status, text } = self.run(command);
        assert!(status.success(), "{command}: {text}");
        text.split_whitespace().next().unwrap_or_else(|| panic!("{command} prints nothing")).to_owned()
    }

    /// A shell at the reader's desk, with nothing of what the tests were started with.
    fn command(&self, text: &str) -> Command {
        let world = self.world.command("env");
        let variable = |name: &OsStr, value: &OsStr| [name, OsStr::new("="), value].into_iter().collect::<OsString>();
        let given = world.get_envs().filter(|(name, _)| *name != "OUTPOST_HOME");
        let home = self.world.path("home");
        let mut command = Command::new("env");
        command.arg("-i").args(given.filter_map(|(name, value)| Some(variable(name, value?))));
        command.arg(variable("HOME".as_ref(), home.as_ref())).args(["TERM=xterm", "LC_ALL=C.UTF-8", "SHELL=/bin/sh"]);
        command.args(["bash", "-c", &format!("{}{text}", self.kept)]).current_dir(self.world.path("work")).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end. Its output goes to files: what it leaves running would keep a pipe open.
    pub(crate) fn run(&self, text: &str) -> Ended {
        let said = self.file();
        let mut child = self.spawn(text, &said, &said);
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > end {
                kill(&mut child);
                panic!("`{text}` does not end: {}", fs::read_to_string(said).unwrap());
            }
            std::thread::sleep(LOOK);
        };
        // What it started and did not end.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        Ended { status, text: fs::read_to_string(said).unwrap() }
    }

    fn file(&self) -> PathBuf {
        tempfile::NamedTempFile::new_in(self.world.path("state")).unwrap().into_temp_path().keep().unwrap()
    }

    fn spawn(&self, text: &str, out: &Path, err: &Path) -> Child {
        let file = |path: &Path| File::options().append(true).open(path).unwrap();
        self.command(text).stdout(file(out)).stderr(file(err)).process_group(0).spawn().unwrap()
    }

    /// Starts a program that goes on, and waits for the first line of its output.
    pub(crate) fn start(&mut self, text: &str) -> Result<String, String> {
        let (out, err) = (self.file(), self.file());
        let mut child = self.spawn(text, &out, &err);
        let end = Instant::now() + PATIENCE;
        loop {
            let is_over = child.try_wait().unwrap();
            let lines = fs::read_to_string(&out).unwrap();
            if let Some((said, _)) = lines.split_once('\n') {
                self.servers.push(Server { typed: text.to_owned(), child, said: said.to_owned() });
                return Ok(said.to_owned());
            }
            let complaint = || fs::read_to_string(&err).unwrap();
            if let Some(status) = is_over {
                return Err(format!("typed as `{text}`: {status}, and it said nothing but {}", complaint()));
            }
            if Instant::now() > end {
                kill(&mut child);
                return Err(format!("typed as `{text}`: it said nothing but {}", complaint()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The programs that should go on and do not.
    pub(crate) fn gone(&mut self) -> Vec<String> {
        let gone = |server: &mut Server| server.child.try_wait().unwrap().map(|status| format!("`{}` ended: {status}", server.typed));
        self.servers.iter_mut().filter_map(gone).collect()
    }

    /// Runs a command on a terminal, with a reader who types keys when they see that it has begun, and looks for what is to come of them.
    pub(crate) fn on_terminal(&self, text: &str, seen: Seen, keys: &str, wanted: &str) -> Ended {
        let mut terminal = TestTerminal::start(&self.command(text));
        match seen {
            Seen::Text(text) => terminal.wait_for(text),
            Seen::Raw => {
                let end = Instant::now() + PATIENCE;
                while !terminal.is_raw() {
                    assert!(Instant::now() < end, "`{text}` does not take the keys: {}", terminal.text());
                    std::thread::sleep(LOOK);
                }
            }
        }
        terminal.type_keys(keys);
        terminal.wait_for(wanted);
        let code = terminal.exit_code().unwrap_or(128);
        Ended { status: ExitStatusExt::from_raw(code << 8), text: terminal.text() }
    }
}

/// By what a reader sees that a program on a terminal has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Text(&'static str),
    /// Keys are passed on as they are. A shell's prompt is everyone's own.
    Raw,
}

fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait().unwrap();
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(|server| kill(&mut server.child));
        // What it refused fails the test; it needs its runtime for the last time.
        let _entered = self.runtime.enter();
        self.model.take();
    }
}
