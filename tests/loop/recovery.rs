//! The program is killed at every stage of a turn and started again: nothing runs twice, and the turn ends as if nothing
//! had happened wherever the executor lived on.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use outpost_testkit::ExecutorProcess;
use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::OUTPOST;

/// A home, a working directory on this machine and one on another executor.
pub(crate) struct Stage {
    pub home: TempDir,
    pub work: TempDir,
    pub model: ScriptedModel,
    worker: ExecutorProcess,
}

impl Stage {
    pub(crate) async fn new(replies: Vec<Reply>) -> Self {
        let model = ScriptedModel::with(replies).await;
        let worker = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = String::from("model = \"m\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\n");
        write!(config, "[model_providers.scripted]\nbase_url = \"{}\"\nwire_api = \"responses\"\n", model.base_url()).unwrap();
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        let environments = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", worker.url());
        std::fs::write(home.path().join("environments.toml"), environments).unwrap();
        Self { home, work, model, worker }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.arg("exec").args(arguments).current_dir(self.work.path()).env("OUTPOST_HOME", self.home.path());
        command.env_remove("OUTPOST_EXEC_SERVER_URL").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn in_worker(&self) -> String {
        format!("worker={}", self.work.path().display())
    }

    /// Starts a turn, kills the program once `ready` says so, and resumes. Returns what the second program said.
    async fn kill_and_resume(&self, arguments: &[&str], ready: impl Fn(&Self) -> bool, between: impl FnOnce(&Self)) -> Output {
        let mut child = self.command(&[arguments, &["go"]].concat()).spawn().unwrap();
        let began = Instant::now();
        while !ready(self) {
            assert!(began.elapsed() < Duration::from_secs(120), "it does not get there");
            assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        between(self);
        let thread = self.thread();
        let mut resumed = self.command(&["resume", &thread]);
        tokio::task::spawn_blocking(move || resumed.output().unwrap()).await.unwrap()
    }

    /// The journals of all threads, oldest first.
    fn journals(&self) -> Vec<PathBuf> {
        fn find(directory: &Path, found: &mut Vec<PathBuf>) {
            for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
                match path.extension() {
                    _ if path.is_dir() => find(&path, found),
                    Some(extension) if extension == "jsonl" => found.push(path),
                    _ => {}
                }
            }
        }
        let mut found = Vec::new();
        find(&self.home.path().join("threads"), &mut found);
        found.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
        found
    }

    fn journal(&self) -> PathBuf {
        self.journals().into_iter().next().expect("there is a journal")
    }

    pub(crate) fn thread(&self) -> String {
        self.journal().file_stem().unwrap().to_str().unwrap().to_owned()
    }

    fn kinds(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.journal()).unwrap_or_default();
        text.lines().skip(1).filter_map(|line| serde_json::from_str::<Value>(line).ok()?["kind"].as_str().map(str::to_owned)).collect()
    }

    /// What a command has written; a file that was made and is still empty is none yet.
    pub(crate) fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.work.path().join(name)).ok().filter(|text| !text.is_empty())
    }

    /// The process of the keeper of this home.
    fn keeper(&self) -> rustix::process::Pid {
        let run = std::fs::read_dir(self.home.path().join("run")).unwrap().flatten();
        let led = run
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("local-"))
            .find_map(|entry| std::fs::read_link(entry.path()).ok());
        let name = led.expect("there is a keeper").to_string_lossy().into_owned();
        let pid = name.strip_prefix('k').and_then(|name| name.strip_suffix(".sock")).unwrap().parse().unwrap();
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    pub(crate) fn told(&self) -> String {
        self.model.requests().last().unwrap().body["input"].to_string()
    }
}

fn slow() -> Reply {
    let command = "echo run >> counter; while [ ! -e go ]; do sleep 0.01; done; echo survived";
    Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 30000, "login": false}))
}

pub(crate) fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test]
async fn killed_while_the_model_thinks() {
    let stage = Stage::new(vec![Reply::Silent(String::new()), Reply::message("second try")]).await;
    let output = stage.kill_and_resume(&[], |stage| !stage.model.requests().is_empty(), |_| {}).await;
    assert_eq!(said(&output), "second try");
    assert_eq!(stage.model.requests().len(), 2);
}

#[tokio::test]
async fn killed_while_a_command_runs_elsewhere() {
    let stage = Stage::new(vec![slow(), Reply::message("all there")]).await;
    let place = stage.in_worker();
    let let_go = |stage: &Stage| std::fs::write(stage.work.path().join("go"), "").unwrap();
    let output = stage.kill_and_resume(&["-e", &place], |stage| stage.file("counter").is_some(), let_go).await;
    assert_eq!(said(&output), "all there");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"), "it ran once");
    assert!(stage.told().contains("survived") && stage.told().contains("Exit code: 0"), "{}", stage.told());
}

/// The command ends while nobody is there.
#[tokio::test]
async fn killed_and_the_command_ends_before_anybody_is_back() {
    let stage = Stage::new(vec![slow(), Reply::message("all there")]).await;
    let place = stage.in_worker();
    let let_go = |stage: &Stage| {
        std::fs::write(stage.work.path().join("go"), "").unwrap();
        std::thread::sleep(Duration::from_millis(300));
    };
    let output = stage.kill_and_resume(&["-e", &place], |stage| stage.file("counter").is_some(), let_go).await;
    assert_eq!(said(&output), "all there");
    assert!(stage.told().contains("survived") && stage.told().contains("Exit code: 0"), "{}", stage.told());
}

/// On this machine commands run in the keeper of the home: the next start of the program finds the command and its whole output.
#[tokio::test]
async fn killed_while_a_command_runs_here() {
    let command = "seq 1 20000; echo run >> counter; while [ ! -e go ]; do sleep 0.01; done; echo survived";
    let slow = Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 30000, "login": false}));
    let stage = Stage::new(vec![slow, Reply::message("all there")]).await;
    let let_go = |stage: &Stage| std::fs::write(stage.work.path().join("go"), "").unwrap();
    let output = stage.kill_and_resume(&[], |stage| stage.file("counter").is_some(), let_go).await;
    assert_eq!(said(&output), "all there");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"), "it ran once");
    let journal = std::fs::read_to_string(stage.journal()).unwrap();
    assert!(stage.told().contains("survived") && stage.told().contains("Exit code: 0"), "{}", stage.told());
    assert!(stage.told().contains("1\\n2\\n3\\n"), "from its beginning: {}", stage.told());
    let bytes = (1..=20000).map(|number: u32| number.to_string().len() + 1).sum::<usize>() + "survived\n".len();
    assert!(journal.contains(&format!("\"outputBytes\":{bytes}")), "no byte is missing or doubled: {journal}");
    assert!(!journal.contains("outcome is unknown"));
}

/// Another program of the same home has other variables and another directory; each has its own in its commands.
#[tokio::test]
async fn commands_here_run_in_the_place_of_the_program_that_asks_for_them() {
    let ask = || Reply::call("c", "exec_command", &json!({"cmd": "echo $MARK; pwd", "login": false}));
    let stage = Stage::new(vec![ask(), Reply::message("one"), ask(), Reply::message("two")]).await;
    let other = tempfile::tempdir().unwrap();
    let mut keepers = Vec::new();
    for (mark, directory) in [("first", stage.work.path()), ("second", other.path())] {
        let mut command = stage.command(&["go"]);
        command.env("MARK", mark).current_dir(directory);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        said(&output);
        let told = stage.told();
        assert!(told.contains(&format!("{mark}\\n")) && told.contains(directory.file_name().unwrap().to_str().unwrap()), "{told}");
        keepers.push(stage.keeper());
    }
    assert_eq!(keepers[0], keepers[1], "one keeper serves both");
}

/// The keeper is killed as well: the next one knows that the command ended with it, and it is not run again.
#[tokio::test]
async fn killed_together_with_the_keeper_of_this_machine() {
    let stage = Stage::new(vec![slow(), Reply::message("I see")]).await;
    let kill = |stage: &Stage| {
        let keeper = stage.keeper();
        rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
        while rustix::process::test_kill_process(keeper).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let output = stage.kill_and_resume(&[], |stage| stage.file("counter").is_some(), kill).await;
    assert_eq!(said(&output), "I see");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"), "it ran once");
    assert!(stage.told().contains("Lost: its outcome is unknown"), "{}", stage.told());
}

/// A program without a keeper, as where no socket can be made, works all the same.
#[tokio::test]
async fn without_a_place_for_a_keeper_commands_run_in_the_program_itself() {
    let quick = Reply::call("c", "exec_command", &json!({"cmd": "echo here", "login": false}));
    let stage = Stage::new(vec![quick, Reply::message("done")]).await;
    let run = stage.home.path().join("run");
    std::fs::create_dir_all(&run).unwrap();
    // A directory in the place of the lock: no keeper can be started.
    std::fs::create_dir_all(run.join("local.lock/x")).unwrap();
    let mut command = stage.command(&["go"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(said(&output), "done");
    assert!(stage.told().contains("here"), "{}", stage.told());
    assert!(String::from_utf8_lossy(&output.stderr).contains("end with this program"), "{output:?}");
}

/// The executor is restarted meanwhile: it knows the fate of its processes, and nothing is run again.
#[tokio::test]
async fn killed_together_with_the_executor() {
    let mut stage = Stage::new(vec![slow(), Reply::message("I see")]).await;
    let place = stage.in_worker();
    let mut child = stage.command(&["-e", &place, "go"]).spawn().unwrap();
    while stage.file("counter").is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    stage.worker = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let environments = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", stage.worker.url());
    std::fs::write(stage.home.path().join("environments.toml"), environments).unwrap();
    let thread = stage.thread();
    let mut resumed = stage.command(&["resume", &thread]);
    let output = tokio::task::spawn_blocking(move || resumed.output().unwrap()).await.unwrap();
    assert_eq!(said(&output), "I see");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"), "it ran once");
    assert!(stage.told().contains("its outcome is unknown"), "{}", stage.told());
}

#[tokio::test]
async fn killed_after_the_calls_and_before_the_answer() {
    let quick = Reply::call("c", "exec_command", &json!({"cmd": "echo run >> counter", "login": false}));
    let stage = Stage::new(vec![quick, Reply::Silent(String::new()), Reply::message("done")]).await;
    let output = stage.kill_and_resume(&[], |stage| stage.model.requests().len() == 2, |_| {}).await;
    assert_eq!(said(&output), "done");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"));
    assert_eq!(stage.kinds().iter().filter(|kind| *kind == "callStarted").count(), 1);
}

#[tokio::test]
async fn resumed_after_its_end() {
    let stage = Stage::new(vec![Reply::message("one"), Reply::message("two")]).await;
    let mut first = stage.command(&["go"]);
    said(&tokio::task::spawn_blocking(move || first.output().unwrap()).await.unwrap());
    let thread = stage.thread();
    let mut idle = stage.command(&["resume", &thread]);
    let output = tokio::task::spawn_blocking(move || idle.output().unwrap()).await.unwrap();
    // What it said is told again, and the model is not asked.
    assert_eq!(said(&output), "one");
    let mut next = stage.command(&["resume", &thread, "more"]);
    let output = tokio::task::spawn_blocking(move || next.output().unwrap()).await.unwrap();
    assert_eq!(said(&output), "two");
    assert_eq!(stage.model.requests().len(), 2);
}

/// Under the default policy, what holds protected paths that do not exist yet is gone when the program is.
#[tokio::test]
async fn a_sandboxed_turn_leaves_nothing_behind_but_its_work() {
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(OUTPOST);
    command
        .args(["exec", "--provider", "offline", "$ touch made; mkdir .git || true"])
        .current_dir(work.path())
        .env("OUTPOST_HOME", home.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    said(&output);
    let left: Vec<_> = std::fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["made"], "{output:?}");
}

/// A command that went on behind a session id: after the restart it is written to where it runs, and what was shown is not
/// shown again.
#[tokio::test]
async fn killed_while_a_command_goes_on_elsewhere() {
    let command = "echo run >> counter; echo ready; while read line; do echo got $line; done; echo end";
    let begin = Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 250, "login": false}));
    let stage = Stage::new(vec![begin, Reply::Silent(String::new())]).await;
    let place = stage.in_worker();
    // The model is asked for the second time, and killed before it answers.
    let write = |stage: &Stage| {
        let session = stage.told().split("session id: ").nth(1).unwrap().split('\\').next().unwrap().parse::<u64>().unwrap();
        for text in ["one\n", "two\n"] {
            stage.model.push(Reply::call(
                text.trim(),
                "write_stdin",
                &json!({"session_id": session, "chars": text, "yield_time_ms": 3000}),
            ));
        }
        stage.model.push(Reply::message("all there"));
    };
    let output = stage.kill_and_resume(&["-e", &place], |stage| stage.model.requests().len() == 2, write).await;
    assert_eq!(said(&output), "all there");
    assert_eq!(stage.file("counter").as_deref(), Some("run\n"), "it ran once");
    let told = stage.told();
    assert!(told.contains("got one") && told.contains("got two"), "{told}");
    assert_eq!(told.matches("ready").count(), 2, "once in the command, once in its first output: {told}");
}

/// The same on this machine.
#[tokio::test]
async fn killed_while_a_command_goes_on_here() {
    let begin =
        Reply::call("c", "exec_command", &json!({"cmd": "echo ready; read line; echo got $line", "yield_time_ms": 250, "login": false}));
    let stage = Stage::new(vec![begin, Reply::Silent(String::new())]).await;
    let write = |stage: &Stage| {
        let session = stage.told().split("session id: ").nth(1).unwrap().split('\\').next().unwrap().parse::<u64>().unwrap();
        stage.model.push(Reply::call("w", "write_stdin", &json!({"session_id": session, "chars": "x\n"})));
        stage.model.push(Reply::message("all there"));
    };
    let output = stage.kill_and_resume(&[], |stage| stage.model.requests().len() == 2, write).await;
    assert_eq!(said(&output), "all there");
    assert!(stage.told().contains("got x") && stage.told().contains("Exit code: 0"), "{}", stage.told());
}

/// A write that was under way is the same write when it is taken up again.
#[tokio::test]
async fn killed_while_a_command_is_written_to() {
    let command = "while read line; do echo $line >> lines; done";
    let begin = Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 250, "login": false}));
    let stage = Stage::new(vec![begin]).await;
    let place = stage.in_worker();
    let write = Reply::call("w", "write_stdin", &json!({"session_id": 6000, "chars": "once\n", "yield_time_ms": 3000}));
    stage.model.push(write);
    stage.model.push(Reply::message("written"));
    let output = stage.kill_and_resume(&["-e", &place], |stage| stage.file("lines").is_some(), |_| {}).await;
    assert_eq!(said(&output), "written");
    assert_eq!(stage.file("lines").as_deref(), Some("once\n"));
    assert!(!stage.told().contains("outcome is unknown"), "{}", stage.told());
}

/// The wake-up and the write that was under way look for the same command at once, and both find it.
#[tokio::test]
async fn killed_while_a_command_that_wakes_is_written_to() {
    let command = "read line; echo $line >> lines; while [ ! -e go ]; do sleep 0.05; done; echo over";
    let begin = Reply::call("c", "exec_command", &json!({"cmd": command, "yield_time_ms": 250, "login": false, "wake": true}));
    let write = Reply::call("w", "write_stdin", &json!({"session_id": 6000, "chars": "once\n", "yield_time_ms": 30000}));
    let stage = Stage::new(vec![begin, write, Reply::message("written")]).await;
    let place = stage.in_worker();
    let go = |stage: &Stage| std::fs::write(stage.work.path().join("go"), "").unwrap();
    let output = stage.kill_and_resume(&["-e", &place], |stage| stage.file("lines").is_some(), go).await;
    assert_eq!(said(&output), "written");
    assert_eq!(stage.file("lines").as_deref(), Some("once\n"));
    let told = stage.told();
    assert!(told.contains("Exit code: 0") && told.contains("\\nover") && !told.contains("it is lost"), "{told}");
    assert_eq!(stage.model.requests().len(), 3, "its end is told once");
}

/// An agent goes on with its work when its maker is resumed, and whoever waits for it waits for that.
#[tokio::test]
async fn killed_while_an_agent_works() {
    let stage = Stage::new(vec![]).await;
    stage.model.push_for("\"text\":\"go\"", Reply::call("s", "spawn_agent", &json!({"message": "child job"})));
    stage.model.push_for("\"text\":\"go\"", Reply::Silent(String::new()));
    stage.model.push_for("\"text\":\"child job\"", Reply::Silent(String::new()));
    let wait = |stage: &Stage| {
        let text = stage.journals().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<String>();
        let child = text.split("\"child\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        stage.model.push_for("\"text\":\"go\"", Reply::call("w", "wait_agent", &json!({"targets": [child]})));
        stage.model.push_for("\"text\":\"go\"", Reply::message("it is done"));
        stage.model.push_for("\"text\":\"child job\"", Reply::message("the work of the child"));
    };
    let output = stage.kill_and_resume(&[], |stage| stage.model.requests().len() == 3, wait).await;
    assert_eq!(said(&output), "it is done");
    assert!(stage.told().contains("the work of the child"), "{}", stage.told());
}
