//! `outpost chat` line by line: on a terminal and in a script. What is drawn on a terminal is in `ui.rs`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, ScriptedModel, call};
use outpost_testkit::{ExecutorProcess, TestTerminal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::OUTPOST;

pub(crate) struct Scene {
    pub home: TempDir,
    pub work: TempDir,
    pub model: ScriptedModel,
}

impl Scene {
    pub(crate) async fn new(replies: Vec<Reply>) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"untrusted\"\n\
             [model_providers.scripted]\nbase_url = \"{}\"\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        let rules = "[[rules]]\nprefix = [\"sh\"]\ndecision = \"allow\"\n";
        std::fs::write(home.path().join("rules.toml"), rules).unwrap();
        Self { home, work, model }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command
            .args(arguments)
            .env("OUTPOST_HOME", self.home.path())
            .env("HOME", self.work.path())
            .env("TERM", "xterm")
            .env("OUTPOST_PLAIN", "1");
        for name in ["OUTPOST_EXEC_SERVER_URL", "NO_COLOR"] {
            command.env_remove(name);
        }
        command
    }

    fn chat(&self, arguments: &[&str]) -> TestTerminal {
        let work = self.work.path().to_str().unwrap();
        TestTerminal::start(&self.command(&[&["chat", "--cd", work], arguments].concat()))
    }

    pub(crate) fn told(&self) -> Vec<String> {
        let body = self.model.requests().pop().unwrap().body;
        let items = body["input"].as_array().unwrap().iter().filter(|item| item["role"] == "user");
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).filter(|text| !text.starts_with('<')).collect()
    }
}

pub(crate) fn run(id: &str, script: &str) -> Value {
    call(id, "exec_command", &json!({"cmd": format!("sh -c '{script}'"), "yield_time_ms": 30000}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_with_steering_an_interrupt_and_a_way_back() {
    let scene = Scene::new(vec![
        Reply::message("hello yourself"),
        Reply::Items(vec![run("a", "echo begun; while [ ! -e go ]; do sleep 0.01; done")]),
        Reply::message("steered"),
        Reply::Items(vec![run("b", "echo endless; sleep 1000")]),
        Reply::message("back again"),
    ])
    .await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("hello\r");
    terminal.wait_for("hello yourself");
    terminal.type_keys("work\r");
    terminal.wait_for("[local] $ sh -c");
    terminal.type_keys("and mind the gap\r");
    eventually("the steering is stored", || journal_has(&scene, "and mind the gap")).await;
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    terminal.wait_for("steered");
    assert_eq!(scene.told(), ["hello", "work", "and mind the gap"]);
    terminal.type_keys("never end\r");
    terminal.wait_for_times("[local] $ sh -c", 2);
    terminal.type_keys("\x03");
    terminal.wait_for("the turn was interrupted");
    terminal.type_keys("\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    terminal.wait_for("goes on with this thread");

    let mut terminal = scene.chat(&["resume", "--last"]);
    terminal.wait_for("never end");
    terminal.type_keys("still there?\r");
    terminal.wait_for("back again");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// A shell that runs a script in the background, or a `trap`, hands on that Ctrl-C is ignored. Who sits at a terminal means it.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_is_taken_on_a_terminal_whatever_was_inherited() {
    let scene = Scene::new(vec![Reply::Items(vec![run("a", "echo endless; sleep 1000")])]).await;
    let chat = scene.command(&["chat", "--cd", scene.work.path().to_str().unwrap()]);
    let mut trapped = Command::new("sh");
    trapped.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(chat.get_program()).args(chat.get_args());
    for (name, value) in chat.get_envs() {
        match value {
            Some(value) => trapped.env(name, value),
            None => trapped.env_remove(name),
        };
    }
    let mut terminal = TestTerminal::start(&trapped);
    terminal.wait_for("> ");
    terminal.type_keys("never end\r");
    terminal.wait_for("[local] $ sh -c");
    terminal.type_keys("\x03");
    terminal.wait_for("the turn was interrupted");
    terminal.type_keys("\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

pub(crate) fn journal_has(scene: &Scene, text: &str) -> bool {
    let found = Command::new("grep").args(["-rqs", text]).arg(scene.home.path()).status().unwrap();
    found.success()
}

/// Nobody else could answer what an agent wants to know.
#[tokio::test(flavor = "multi_thread")]
async fn questions_of_agents_are_asked_on_the_terminal() {
    let scene = Scene::new(vec![]).await;
    scene.model.push_for("\"text\":\"job\"", Reply::call("inner", "exec_command", &json!({"cmd": "touch made"})));
    scene.model.push_for("\"text\":\"begin\"", Reply::call("spawned", "spawn_agent", &json!({"message": "job"})));
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("begin\r");
    terminal.wait_for("asks:");
    terminal.wait_for("touch made");
    terminal.wait_for("Allow?");
    assert!(!scene.work.path().join("made").exists());
    terminal.type_keys("y\r");
    eventually("the agent's command has run", || scene.work.path().join("made").exists()).await;
    terminal.type_keys("/quit\r");
}

/// A conversation lasts: what `environments.toml` says later counts in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_moved_is_found_where_the_file_says() {
    let scene = Scene::new(vec![Reply::message("hello")]).await;
    let executor = || ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let write_down = |executor: &ExecutorProcess| {
        let entry = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", executor.url());
        std::fs::write(scene.home.path().join("environments.toml"), entry).unwrap();
    };
    let first = executor();
    write_down(&first);
    let mut terminal = TestTerminal::start(&scene.command(&["chat", "-e", &format!("worker={}", scene.work.path().display())]));
    terminal.wait_for("> ");
    terminal.type_keys("hi\r");
    terminal.wait_for("hello");
    drop(first);
    let second = executor();
    write_down(&second);
    // A turn may begin before the file is read again.
    let end = Instant::now() + Duration::from_secs(120);
    for number in 0.. {
        scene.model.push(Reply::Items(vec![run(&format!("call-{number}"), "touch made")]));
        scene.model.push(Reply::message(&format!("over {number}.")));
        terminal.type_keys("go\r");
        terminal.wait_for(&format!("over {number}."));
        if scene.work.path().join("made").exists() {
            terminal.type_keys("\u{4}");
            assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
            return;
        }
        assert!(Instant::now() < end, "the file is not followed: {}", terminal.text());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_asked_on_the_terminal() {
    let touch = |id: &str, file: &str| call(id, "exec_command", &json!({"cmd": format!("touch {file}")}));
    let question = json!({"questions": [{"id": "q", "header": "h", "question": "Which colour?", "options": [
        {"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}]}]});
    let scene = Scene::new(vec![
        Reply::Items(vec![touch("a", "yes")]),
        Reply::Items(vec![touch("b", "no")]),
        Reply::call("c", "request_user_input", &question),
        Reply::message("fine"),
    ])
    .await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    terminal.wait_for("$ touch yes");
    terminal.wait_for("Allow?");
    terminal.type_keys("what?\r");
    terminal.wait_for_times("Allow?", 2);
    terminal.type_keys("y\r");
    terminal.wait_for_times("Allow?", 3);
    terminal.type_keys("n\r");
    terminal.wait_for("Which colour?");
    terminal.type_keys("2\r");
    terminal.wait_for("fine");
    assert!(scene.work.path().join("yes").exists() && !scene.work.path().join("no").exists());
    let body = scene.model.requests().pop().unwrap().body.to_string();
    assert!(body.contains(r#"\"q\":\"blue\""#), "{body}");
    terminal.type_keys("/nonsense\r");
    terminal.wait_for("there is no `/nonsense`");
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// Whatever a command is made of, all of it is shown, and none of it looks like the program's own rows.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_about_is_what_runs() {
    let hidden = "touch evil; #\rtouch harmless";
    let lookalike = "touch p\u{430}ss \u{202e}\u{200b}\u{1b}[2Jx";
    let badge = "touch a\n\u{258c} environment    production\n\u{258c} Allow? [y]es once";
    let padded = format!("touch b{}touch evil", " ".repeat(150));
    let commands = [hidden, lookalike, badge, &padded];
    let asks = commands.iter().map(|cmd| {
        let reason = "because\n\u{258c} environment    production\r\u{258c} sandbox        read-only";
        Reply::Items(vec![call(
            "a",
            "exec_command",
            &json!({"cmd": cmd, "justification": reason, "sandbox_permissions": "require_escalated"}),
        )])
    });
    let scene = Scene::new(asks.chain([Reply::message("fine")]).collect()).await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    for number in 1..=commands.len() {
        terminal.wait_for_times("Allow? [y]es once, [a]lways", number);
        terminal.type_keys("n\r");
    }
    terminal.wait_for("fine");
    let text = terminal.text();
    assert!(text.contains("$ touch evil; #<U+000D>touch harmless"), "{text}");
    assert!(text.contains("$ touch p<U+0430:\u{430}>ss <U+202E><U+200B><U+001B>[2Jx"), "{text}");
    assert!(text.contains("│   <U+258C> environment    production"), "{text}");
    assert!(!text.contains('\u{202e}') && !text.contains('\u{200b}') && !text.contains("\u{1b}[2J"), "{text:?}");
    // Every row that is framed says what the program knows.
    let framed: Vec<&str> = text.lines().filter_map(|line| line.split_once('\u{258c}')).map(|(_, own)| own.trim()).collect();
    for (name, value) in [("environment", "local"), ("sandbox", "none"), ("directory", scene.work.path().to_str().unwrap())] {
        let rows: Vec<&&str> = framed.iter().filter(|row| row.starts_with(name)).collect();
        assert!(rows.len() == commands.len() && rows.iter().all(|row| row.contains(value)), "{name}: {rows:?}");
    }
    assert!(text.lines().all(|line| !line.trim_start().starts_with("touch evil")), "a row of its own: {text}");
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_command_is_allowed_only_after_it_was_seen() {
    let long = format!("true{}touch evil", "\n".repeat(400));
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": long})), Reply::message("fine")]).await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    terminal.wait_for("395 more lines");
    terminal.wait_for("[v]iew all of it first");
    for (number, yes) in ["y", "a", "yes"].into_iter().enumerate() {
        terminal.type_keys(&format!("{yes}\r"));
        terminal.wait_for_times("not all of it was shown", number + 1);
        terminal.wait_for_times("Allow?", number + 2);
    }
    assert!(!terminal.text().contains("touch evil") && !scene.work.path().join("evil").exists());
    terminal.type_keys("v\r");
    terminal.wait_for("touch evil");
    terminal.wait_for_times("Allow?", 5);
    let text = terminal.text();
    let (_, below) = text.rsplit_once("touch evil").unwrap();
    assert!(
        below.contains("environment    local") && below.contains("asked because"),
        "what the program knows stands by the prompt: {below}"
    );
    terminal.type_keys("y\r");
    terminal.wait_for("fine");
    assert!(scene.work.path().join("evil").exists());
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_granted_on_the_terminal() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().to_str().unwrap();
    let ask =
        |id: &str| call(id, "request_permissions", &json!({"reason": "to build it", "permissions": {"file_system": {"write": [path]}}}));
    let touch = |id: &str, name: &str| run(id, &format!("touch {path}/{name}"));
    let scene = Scene::new(vec![
        Reply::Items(vec![ask("a")]),
        Reply::Items(vec![touch("b", "refused")]),
        Reply::Items(vec![ask("c")]),
        Reply::Items(vec![touch("d", "granted")]),
        Reply::message("fine"),
    ])
    .await;
    let mut terminal = scene.chat(&["--sandbox", "read-only"]);
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    terminal.wait_for("more than the sandbox allows");
    terminal.wait_for(&format!("+ write {path}"));
    terminal.wait_for("to build it");
    terminal.wait_for("until this turn ends");
    terminal.type_keys("n\r");
    terminal.wait_for_times("Allow?", 2);
    terminal.type_keys("y\r");
    terminal.wait_for("fine");
    assert!(!data.path().join("refused").exists() && data.path().join("granted").exists(), "{}", terminal.text());
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn piped_lines_are_turns_of_their_own() {
    let scene = Scene::new(vec![Reply::message("one"), Reply::message("two")]).await;
    let mut child = scene.command(&["chat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"first\\\nline\nsecond\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "one\ntwo\n");
    assert_eq!(scene.told(), ["first\nline", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_name_does_not_end_a_conversation() {
    let scene = Scene::new(vec![Reply::message("one")]).await;
    let mut child = scene.command(&["chat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"/resume nonsense\nfirst\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("nonsense"), "{told}");
    assert_eq!((String::from_utf8(output.stdout).unwrap().as_str(), scene.told()), ("one\n", vec!["first".to_owned()]));
}

/// Leaving is not killing: the last line says what goes on, and the words to wait for it or to stop it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_runs_when_a_conversation_ends_is_told() {
    let script = "echo $$ > server; while true; do sleep 0.05; done";
    let server = call("a", "exec_command", &json!({"cmd": format!("sh -c '{script}'"), "yield_time_ms": 250, "login": false}));
    let scene = Scene::new(vec![Reply::Items(vec![server]), Reply::message("it runs")]).await;
    let mut chat = scene.command(&["chat", "--cd", scene.work.path().to_str().unwrap()]);
    let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"start the server\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let last = told.lines().find(|line| line.contains("still runs")).unwrap_or_else(|| panic!("{told}"));
    let thread = last.split_once("exec resume ").unwrap().1.split_once(" --wait").unwrap().0;
    assert!(last.contains("on local") && last.contains(&format!("exec resume {thread} --stop")), "{last}");
    let pid = std::fs::read_to_string(scene.work.path().join("server")).unwrap();
    let runs = || Path::new("/proc").join(pid.trim()).join("cmdline").exists();
    assert!(runs(), "it was killed");
    let stopped = scene.command(&["exec", "resume", thread, "--stop"]).stdin(Stdio::null()).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    eventually("it is stopped", || !runs()).await;
}

#[test]
fn every_shell_gets_its_completions() {
    for (shell, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef outpost"),
        ("fish", "complete -c outpost"),
        ("elvish", "edit:"),
        ("powershell", "Register-"),
    ] {
        let output = Command::new(OUTPOST).args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(word) && text.contains("exec"), "{shell}: {text}");
    }
}

#[test]
fn output_that_cannot_be_written_is_no_bug() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(OUTPOST).args(["completions", "bash"]).stdout(full).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("No space left") && !told.contains("bug") && !told.contains("panicked"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn piped_lines_are_never_answers() {
    let touch = |id: &str, file: &str| call(id, "exec_command", &json!({"cmd": format!("touch {file}")}));
    let scene = Scene::new(vec![Reply::Items(vec![touch("a", "made")]), Reply::message("one"), Reply::message("two")]).await;
    let mut chat = scene.command(&["chat", "--cd", scene.work.path().to_str().unwrap()]);
    let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"first\ny\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "one\ntwo\n");
    assert_eq!(scene.told(), ["first", "y"], "what is piped in is what is said");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("$ touch made") && told.contains("no answer can be given here: no"), "{told}");
    assert!(!scene.work.path().join("made").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_thread_is_told_when_it_is_opened() {
    let scene = Scene::new(vec![Reply::message("one"), Reply::message("two")]).await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("first words\r");
    terminal.wait_for("one");
    terminal.type_keys("\u{4}");
    terminal.exit_code();
    let mut folders = vec![scene.home.path().join("threads")];
    let mut journals = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { journals.push(path) }
        }
    }
    let journal = journals.into_iter().find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    let at = bytes.windows(11).position(|window| window == b"first words").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let mut terminal = scene.chat(&["resume", "--last"]);
    terminal.wait_for("cannot be read");
    terminal.type_keys("\u{4}");
    terminal.exit_code();
}

/// What is typed into a command that was allowed is asked about, and shown with the command that it goes to.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_into_a_command_is_asked_about() {
    let begin = call("a", "exec_command", &json!({"cmd": "cat > typed", "yield_time_ms": 250}));
    let scene = Scene::new(vec![Reply::Items(vec![begin]), Reply::message("it waits")]).await;
    let mut terminal = scene.chat(&[]);
    terminal.wait_for("> ");
    terminal.type_keys("begin\r");
    terminal.wait_for("Run this command?");
    terminal.type_keys("y\r");
    terminal.wait_for("it waits");
    let body = scene.model.requests().pop().unwrap().body.to_string();
    let session: u64 = body.split("session id: ").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    scene.model.push(Reply::call("b", "write_stdin", &json!({"session_id": session, "chars": "evil\n"})));
    scene.model.push(Reply::message("no then"));
    terminal.type_keys("type\r");
    terminal.wait_for("Type this into a running command?");
    terminal.wait_for("typed into");
    assert!(terminal.text().contains("evil") && terminal.text().contains("cat > typed"), "{}", terminal.text());
    terminal.type_keys("n\r");
    terminal.wait_for("no then");
    assert_eq!(std::fs::read_to_string(scene.work.path().join("typed")).unwrap(), "");
    terminal.type_keys("\u{4}");
    terminal.exit_code();
}
