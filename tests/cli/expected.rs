//! What people type because other programs have it: aliases, settings, names without flags, help for slips.

use std::path::Path;
use std::process::{Command, Output};

use outpost_testkit::{ExecutorProcess, TestTerminal};
use serde_json::{Value, json};

use crate::OUTPOST;

struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(words).env("OUTPOST_HOME", self.0.path()).current_dir(self.0.path());
        for name in ["OUTPOST_EXEC_SERVER_URL", "OPENAI_API_KEY", "OUTPOST_TOKEN"] {
            command.env_remove(name);
        }
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn says(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn file(&self) -> String {
        std::fs::read_to_string(self.0.path().join("config.toml")).unwrap()
    }
}

#[test]
fn lists_have_short_names() {
    let user = User::new();
    for noun in ["thread", "env", "token", "sandbox", "mcp"] {
        assert_eq!(user.says(&[noun, "ls"]), user.says(&[noun, "list"]), "{noun}");
    }
    user.says(&["env", "add", "far", "--url", "ws://127.0.0.1:1"]);
    user.says(&["env", "rm", "far"]);
    assert!(!user.says(&["env", "ls"]).contains("far"));
    for verb in ["rm", "remove"] {
        user.says(&["exec", "--provider", "offline", "-e", "local", "> hello"]);
        let listed: Value = serde_json::from_str(&user.says(&["thread", "ls", "--json"])).unwrap();
        user.says(&["thread", verb, "--yes", listed["threads"][0]["id"].as_str().unwrap()]);
        assert!(user.says(&["thread", "ls"]).contains("no threads"), "{verb}");
    }
}

#[test]
fn words_that_are_not_known_lead_to_those_that_are() {
    let user = User::new();
    for (typed, meant) in [(&["thred", "list"][..], "'thread'"), (&["thread", "lst"], "'list'"), (&["exec", "--jsno", "x"], "'--json'")] {
        let output = user.output(typed);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains("tip: ") && told.contains(meant), "{typed:?}: {told}");
    }
    // Without a terminal there is nothing to talk on.
    let alone = user.output(&[]);
    assert!(alone.status.code() == Some(2) && String::from_utf8_lossy(&alone.stderr).contains("First steps:"), "{alone:?}");
}

#[test]
fn settings_are_shown_and_changed() {
    let user = User::new();
    assert_eq!(user.says(&["config", "path"]).trim(), user.0.path().join("config.toml").to_str().unwrap());
    std::fs::write(user.0.path().join("config.toml"), "# mine\nmodel = \"small\" # for now\n").unwrap();
    assert_eq!(user.says(&["config", "get", "model"]), "small\n");
    user.says(&["config", "set", "model", "large"]);
    user.says(&["config", "set", "budgets.turn_tokens", "5000"]);
    assert!(user.file().starts_with("# mine\nmodel = \"large\""), "what else is in the file stays: {}", user.file());
    assert_eq!(user.says(&["config", "get", "budgets.turn_tokens"]), "5000\n");
    assert_eq!(user.says(&["config", "get", "model", "-c", "model=other"]), "other\n");
    let shown: Value = serde_json::from_str(&user.says(&["config", "show", "--json"])).unwrap();
    assert_eq!((&shown["model"], &shown["budgets"]["turn_tokens"]), (&json!("large"), &json!(5000)));
    assert!(user.says(&["config", "show"]).contains("model = \"large\""));
    user.says(&["config", "set", "model", "--unset"]);
    assert_eq!(user.output(&["config", "get", "model"]).status.code(), Some(1));
    // What would break the file, or have no effect, is not written.
    let before = user.file();
    assert!(user.refused(&["config", "set", "modle", "x"]).contains("did you mean `model`?"));
    assert!(user.refused(&["config", "set", "sandbox_mode", "nonsense"]).contains("sandbox_mode"));
    assert_eq!(user.file(), before);
}

#[test]
fn mcp_servers_are_added_listed_and_removed() {
    let user = User::new();
    user.says(&["mcp", "add", "docs", "--env", "LEVEL=3", "--", "docs-server", "--ro", "a b"]);
    user.says(&["mcp", "add", "tickets", "-e", "box", "--url", "https://tickets.example.org/mcp", "--bearer-token-env-var", "TICKETS"]);
    let written: toml::Table = user.file().parse().unwrap();
    let servers = &written["mcp_servers"];
    assert_eq!(servers["docs"]["command"].as_str(), Some("docs-server"));
    assert_eq!((servers["docs"]["args"][1].as_str(), servers["docs"]["env"]["LEVEL"].as_str()), (Some("a b"), Some("3")));
    assert_eq!(
        (servers["tickets"]["environment_id"].as_str(), servers["tickets"]["bearer_token_env_var"].as_str()),
        (Some("box"), Some("TICKETS"))
    );
    let listed = user.says(&["mcp", "list"]);
    assert!(
        listed.contains("docs     local  docs-server --ro a b") && listed.contains("tickets  box  https://tickets.example.org/mcp"),
        "{listed}"
    );
    assert!(user.refused(&["mcp", "add", "docs", "--", "other"]).contains("already"));
    assert!(user.refused(&["mcp", "add", "a.b", "--", "other"]).contains("letters, digits"));
    assert!(user.refused(&["mcp", "remove", "dosc"]).contains("did you mean `docs`?"));
    user.says(&["mcp", "rm", "docs"]);
    assert!(!user.says(&["mcp", "ls"]).contains("docs"));
}

#[test]
fn a_thread_gets_a_name_and_the_list_fits_the_screen() {
    let user = User::new();
    let words = "> a title that is much longer than what is left of a line on a screen of eighty columns or fewer";
    user.says(&["exec", "--provider", "offline", "-e", "local", words]);
    let id = |at: usize| {
        let listed: Value = serde_json::from_str(&user.says(&["thread", "list", "--json"])).unwrap();
        listed["threads"][at]["id"].as_str().unwrap().to_owned()
    };
    let first = id(0);
    user.says(&["thread", "fork", &first]);
    let listed = user.says(&["thread", "list"]);
    assert!(listed.starts_with("ID") && listed.contains("FORK OF") && listed.matches(&first).count() == 2, "{listed}");
    for columns in [80, 40] {
        let terminal = TestTerminal::start(&{
            let mut shell = Command::new("sh");
            let script = format!("stty cols {columns}; '{OUTPOST}' thread list; echo over");
            shell.args(["-c", &script]).env("OUTPOST_HOME", user.0.path()).env("TERM", "xterm");
            shell
        });
        terminal.wait_for("over");
        let text = terminal.text();
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && *line != "over").collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
        assert!(lines[1..].iter().any(|line| line.starts_with(&first[first.len() - 8..])) && text.contains("idle"), "{text}");
        assert_eq!(text.contains("FORK OF") && text.contains("local"), columns == 80, "{text}");
    }
    // The short id is taken, and so is a name from then on.
    user.says(&["thread", "rename", &first[first.len() - 8..], "the long one"]);
    assert!(user.says(&["thread", "list"]).contains("the long one"));
    assert!(user.says(&["thread", "show", "the long one"]).contains("a title that is much longer"));
    user.says(&["thread", "rename", "the long one", ""]);
    assert!(!user.says(&["thread", "list"]).contains("the long one"));
}

#[test]
fn environments_are_named_without_a_flag_and_slips_are_understood() {
    let user = User::new();
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    user.says(&["env", "add", "worker", "--url", executor.url()]);
    assert_eq!(user.says(&["run", "worker", "--", "echo", "there"]), "there\n");
    assert_eq!(user.says(&["run", "--", "echo", "here"]), "here\n");
    assert!(user.refused(&["run", "worker", "-e", "worker", "--", "true"]).contains("cannot be used with"));
    assert!(user.refused(&["run", "wokrer", "--", "true"]).contains("did you mean `worker`?"));
    let mut shell = TestTerminal::start(&user.command(&["shell", "worker"]));
    shell.type_keys("echo in-$((40 + 2))\n");
    shell.wait_for("in-42");
    shell.type_keys("exit\n");
    assert_eq!(shell.exit_code(), Some(0));
}

#[test]
fn the_documentation_is_inside_the_program() {
    let user = User::new();
    let topics = user.says(&["help", "topics"]);
    for page in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")).unwrap().flatten() {
        let name = page.file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".md") {
            assert!(topics.lines().any(|line| line.trim_start().starts_with(name)), "{name} is not in {topics}");
            assert_eq!(user.says(&["help", "page", name]).trim(), std::fs::read_to_string(page.path()).unwrap().trim());
        }
    }
    assert!(user.says(&["help", "models"]).starts_with("# "));
    assert!(user.says(&["help", "exec"]).contains("Usage: outpost exec"), "a verb's own help comes first");
    assert!(user.says(&["help", "env", "add"]).contains("Usage: outpost env add"));
    assert!(user.refused(&["help", "modles"]).contains("did you mean `models`?"));
}
