//! The command blocks of the pages are typed, line after line as they stand, on a stage: machines, containers and jobs are stand-ins
//! (`world.rs`), the model is a scripted one, and what a reader has to put in is put in. Programs of others are not run here.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::model::ScriptedModel;

use crate::OUTPOST;
use crate::typed::{Block, blocks};
use crate::world::{World, text};

/// A shell that stops at the first command that fails. Servers are ended when they say that they are there, and what needs a terminal
/// gets one.
const SHELL: &str = r#"
set -eE
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
outpost() {
    case "$1 $2" in
    serve* | app-server* | executor*) served "$@" ;;
    shell* | "run -t") echo exit | timeout 60 script -qec "$(printf '%q ' "$PROGRAM" "$@")" /dev/null > /dev/null ;;
    # What holds differs from machine to machine, and it says so.
    doctor*) "$PROGRAM" "$@" > /dev/null || [ $? = 1 ] ;;
    *) "$PROGRAM" "$@" < /dev/null ;;
    esac
}
served() {
    "$PROGRAM" "$@" > said < /dev/null &
    local pid=$! waited=0
    until [ -s said ]; do
        kill -0 $pid 2> /dev/null || { wait $pid; return 1; }
        waited=$((waited + 1)); [ $waited -lt 600 ]; sleep 0.1
    done
    kill $pid; wait $pid || true; rm said
}
sh() { [ "$1" = install.sh ] || command sh "$@"; }
"#;

/// Programs whose own doings are not ours to test.
const OTHERS: [&str; 5] = ["cargo", "codex", "top", "rustup", "npm"];

struct Stage {
    world: World,
    model: ScriptedModel,
    /// What `build.example.org` is, and the server that an executor dials in to.
    build: Option<ExecutorProcess>,
    hub: Option<std::process::Child>,
    /// What stands in a page, and what stands here for it.
    here: Vec<(String, String)>,
    /// Commands that a reader writes need no model, and then there is no key.
    has_key: bool,
}

impl Stage {
    async fn new(block: &Block) -> Self {
        let world = World::new().with_program();
        for name in OTHERS {
            world.tool(name, "exit 0");
        }
        let has = |word: &str| block.text.contains(word);
        let build = has("build.example.org").then(|| ExecutorProcess::start(std::path::Path::new(OUTPOST), &[]));
        let model = ScriptedModel::with(vec![]).await;
        let mut stage = Self { world, model, build, hub: None, here: Vec::new(), has_key: !has("'$ ") };
        stage.furnish(block);
        if has("--join") {
            let (child, address) = hub(&stage.world);
            stage.hub = Some(child);
            stage.here.push(("wss://hub.example.org".to_owned(), address));
        }
        stage.fill_in(block);
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.path(name)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Files, machines and a configuration.
    fn furnish(&self, block: &Block) {
        let base = self.model.base_url();
        self.write(
            "home/config.toml",
            &format!("[serve]\nlisten = \"ws://127.0.0.1:0\"\n[model_providers.ollama]\nbase_url = \"{base}\"\nwire_api = \"chat\"\n"),
        );
        let names = ["box", "alpha", "beta", "gpu"].into_iter().filter(|name| !block.text.contains(&format!("env add {name} ")));
        let entry = |name: &str| {
            let home = self.path("state").join(name);
            std::fs::create_dir_all(&home).unwrap();
            format!(
                "[[environments]]\nid = \"{name}\"\nprogram = \"{OUTPOST}\"\nargs = [\"executor\", \"--listen\", \"stdio\"]\n\
                 [environments.env]\nOUTPOST_HOME = \"{0}/.outpost\"\nHOME = \"{0}\"\n",
                home.display()
            )
        };
        self.write("home/environments.toml", &names.map(entry).collect::<String>());
        for (file, content) in [
            ("state/job", "RUNNING\n"),
            ("state/web.status", "running\n"),
            ("work/notes.txt", "notes\n"),
            ("work/Makefile", "test:\n\t@echo tested\n"),
            ("work/.devcontainer/devcontainer.json", "{\"image\": \"image:1\"}\n"),
            ("stage/srv/app/Makefile", "test:\n\t@echo tested\n"),
            ("stage/srv/data/one", "1\n"),
            ("stage/srv/tools/deploy/SKILL.md", "---\nname: deploy\ndescription: how to\n---\nSo.\n"),
            ("stage/var/log/app.log", "a line\n"),
            ("stage/etc/outpost/token", "0123456789abcdef0123456789abcdef\n"),
            ("stage/tmp/.keep", ""),
            ("user/.profile", ""),
        ] {
            self.write(file, content);
        }
        self.write("state/box/results/one", "1\n");
        self.write("state/box/Makefile", "test:\n\t@echo tested\n");
        if let Some(build) = &self.build {
            let token = std::fs::read_to_string(build.home().join("tokens/executor")).unwrap();
            self.write("user/build.token", &token);
        }
        for directory in ["work", "stage/srv/app"] {
            let script = "git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty -m first";
            let made = self.world.command("sh").args(["-c", script]).current_dir(self.path(directory)).output().unwrap();
            assert!(made.status.success(), "{}", text(&made));
        }
    }

    /// What a reader has to replace: ids, secrets, addresses and places.
    fn fill_in(&mut self, block: &Block) {
        let place = |name: &str| format!("{}{name}", self.path("stage").display());
        let mut here: Vec<(String, String)> = [
            ("wss://build.example.org/executor", self.build.as_ref().map(|build| build.url().to_owned()).unwrap_or_default()),
            ("beta:/tmp/", format!("beta:{}", place("/tmp/"))),
            ("0.0.0.0:443", "0.0.0.0:0".to_owned()),
            ("10.0.0.5:7000", "127.0.0.1:0".to_owned()),
            ("127.0.0.1:7000", "127.0.0.1:0".to_owned()),
            ("127.0.0.1:8765", "127.0.0.1:0".to_owned()),
        ]
        .map(|(there, here)| (there.to_owned(), here))
        .into();
        here.extend(["/srv/", "/etc/outpost/", "/var/log/"].map(|name| (name.to_owned(), place(name))));
        if block.text.contains("4f21") || block.text.contains(" ID") {
            let made = self.run("outpost exec --json '> here'");
            let first = String::from_utf8_lossy(&made.stdout).lines().next().unwrap_or_default().to_owned();
            let thread: serde_json::Value = serde_json::from_str(&first).unwrap_or_else(|_| panic!("{}", text(&made)));
            let thread = thread["thread_id"].as_str().unwrap().to_owned();
            here.extend([("4f21".to_owned(), thread.clone()), (" ID".to_owned(), format!(" {thread}"))]);
        }
        if block.text.contains("token revoke") {
            self.run("outpost token create --client");
            let listed: serde_json::Value = serde_json::from_slice(&self.run("outpost token list --json").stdout).unwrap();
            here.push(("3f9c2a51d07e".to_owned(), listed[0]["name"].as_str().unwrap().to_owned()));
        }
        if block.text.contains("OUTPOST_TOKEN=…") {
            // Of the hub, whose home is this one's.
            let made = self.run("outpost token create --executor gpu");
            here.push(("OUTPOST_TOKEN=…".to_owned(), format!("OUTPOST_TOKEN={}", String::from_utf8_lossy(&made.stdout).trim())));
        }
        here.push(("…".to_owned(), "x".to_owned()));
        self.here.extend(here);
    }

    fn run(&self, script: &str) -> Output {
        // A command that hangs is one that fails.
        let mut command = self.world.command("timeout");
        command.args(["100", "bash", "-c", &format!("{SHELL}{script}")]).current_dir(self.path("work"));
        command.env("PROGRAM", OUTPOST).env("HOME", self.path("user")).env_remove("OPENAI_API_KEY");
        if self.has_key {
            command.env("OPENAI_API_KEY", "x").env("OPENAI_BASE_URL", self.model.base_url());
        }
        command.output().unwrap()
    }

    fn typed(&self, block: &Block) -> Output {
        let script = self.here.iter().fold(block.text.clone(), |script, (there, here)| script.replace(there, here));
        self.run(&script)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(hub) = &mut self.hub {
            let _ = hub.kill();
            let _ = hub.wait();
        }
    }
}

/// A server with the home of the stage.
fn hub(world: &World) -> (std::process::Child, String) {
    use std::io::BufRead;
    let mut command = world.command(OUTPOST);
    command.args(["serve", "--listen", "ws://127.0.0.1:0"]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut hub = command.spawn().unwrap();
    let mut address = String::new();
    std::io::BufReader::new(hub.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (hub, address.trim().to_owned())
}

/// Certificates are made by the block that follows the one that uses them.
fn with_certificates(block: &Block, all: &[Block]) -> String {
    let maker = all.iter().find(|other| other.page == block.page && other.text.contains("openssl req"));
    let needs = block.text.contains("--tls-cert");
    maker.filter(|_| needs).map(|maker| format!("{} 2> /dev/null\n", maker.text.trim_end())).unwrap_or_default()
}

/// Programs of the system that a block needs; without them it cannot be typed.
fn lacks(block: &Block) -> Option<&'static str> {
    let needed = [
        ("git ", "git"),
        ("make ", "make"),
        ("outpost shell", "script"),
        ("run -t", "script"),
        ("--tls-", "openssl"),
        ("openssl ", "openssl"),
    ];
    let is_there = |program: &str| {
        let found = std::process::Command::new("sh").args(["-c", "command -v \"$0\"", program]).output();
        found.is_ok_and(|output| output.status.success())
    };
    needed.into_iter().find(|(word, program)| block.text.contains(word) && !is_there(program)).map(|(_, program)| program)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_block_of_the_pages_can_be_typed() {
    let all = blocks();
    let mut wrong = Vec::new();
    let mut typed = 0;
    for block in all.iter().filter(|block| block.language == "sh") {
        typed += 1;
        if let Some(program) = lacks(block) {
            eprintln!("skipped: a block of {} needs {program}", block.page);
            continue;
        }
        let stage = Stage::new(block).await;
        let whole = Block { page: block.page.clone(), language: "sh".into(), text: with_certificates(block, &all) + &block.text };
        let run = tokio::task::spawn_blocking(move || stage.typed(&whole));
        let output =
            tokio::time::timeout(Duration::from_secs(120), run).await.unwrap_or_else(|_| panic!("it hangs: {}", block.text)).unwrap();
        if !output.status.success() {
            wrong.push(format!("{}:\n{}{}", block.page, block.text, text(&output)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(typed >= 15, "only {typed} blocks were found");
}
