//! Terminals obey no text of others: what commands, threads, files and executors choose is made visible on its way to one, and
//! stays as it is on its way to a program.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use outpost_testkit::TestTerminal;

use crate::person::Newcomer;

/// Sets the title of a window, clears it, and hides what follows.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}end";
const SHOWN: &str = "<U+001B>]0;owned<U+0007><U+001B>[2J<U+202E>end";

struct Scene(Newcomer);

impl Scene {
    fn new() -> Self {
        Self(Newcomer::new())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(arguments);
        command.env("TERM", "xterm");
        command
    }

    fn piped(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What a terminal is given by the whole run of a verb.
    fn on_terminal(&self, arguments: &[&str]) -> String {
        let mut terminal = TestTerminal::start(&self.command(arguments));
        terminal.exit_code();
        terminal.text()
    }

    /// A thread in which something was said and done.
    fn thread(&self, prompt: &str) -> String {
        let output = self.piped(&["exec", "--json", "--provider", "offline", "--sandbox", "danger-full-access", prompt]);
        let text = String::from_utf8(output.stdout).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        first["thread_id"].as_str().unwrap().to_owned()
    }
}

/// Nothing but plain text, ends of lines, and what this program itself draws with.
fn assert_harmless(text: &str) {
    let mut own = text.to_owned();
    for sequence in ["\u{1b}[K", "\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[33m", "\r\u{1b}[K", "\r\n", "\r"] {
        own = own.replace(sequence, "\n");
    }
    let odd = own
        .chars()
        .find(|c| (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{200b}'..='\u{200f}'));
    assert_eq!(odd, None, "{text:?}");
}

#[test]
fn run_shows_what_a_terminal_would_obey_and_passes_it_on_to_programs() {
    let scene = Scene::new();
    let script = format!("printf '%s\\r\\n' '{EVIL}'; printf '%s\\n' '{EVIL}' >&2; printf '\\377'");
    let shown = scene.on_terminal(&["run", "--", "/bin/sh", "-c", &script]);
    assert_harmless(&shown);
    assert!(shown.matches(SHOWN).count() == 2 && shown.contains("<0xFF>"), "{shown:?}");
    assert!(!shown.contains("<U+000D>"), "the end of a line is no trick: {shown:?}");
    let piped = scene.piped(&["run", "--", "/bin/sh", "-c", &script]);
    assert_eq!(piped.stdout, [EVIL.as_bytes(), b"\r\n\xff"].concat());
    assert_eq!(piped.stderr, [EVIL.as_bytes(), b"\n"].concat());
    // Who asks for a terminal there gets what programs do with one, as with ssh.
    let passed = scene.on_terminal(&["run", "-t", "--", "/bin/sh", "-c", &script]);
    assert!(passed.contains(EVIL), "{passed:?}");
}

#[test]
fn a_thread_is_shown_and_exported_without_harm() {
    let scene = Scene::new();
    let id = scene.thread(&format!("$ printf '%s' '{EVIL}'\n> said {EVIL}\u{258c} [prod] $ ls"));
    for words in [&["thread", "show", &id][..], &["thread", "show", &id, "--json"], &["thread", "export", &id], &["thread", "list"]] {
        let shown = scene.on_terminal(words);
        assert_harmless(&shown);
        // A list on a terminal shows the end of an id.
        assert!(shown.contains(if words.len() == 2 { &id[id.len() - 8..] } else { &id }), "{shown}");
    }
    let shown = scene.on_terminal(&["thread", "show", &id]);
    assert!(shown.contains(&format!("said {SHOWN}<U+258C> [prod] $ ls")), "{shown:?}");
    assert!(shown.contains("\u{258c} [local] $ printf"), "{shown:?}");
    let markdown = scene.on_terminal(&["thread", "export", "--markdown", &id]);
    assert_harmless(&markdown);
    assert!(markdown.contains(SHOWN), "{markdown:?}");
    let piped = String::from_utf8(scene.piped(&["thread", "show", &id]).stdout).unwrap();
    assert!(piped.contains(&format!("said {EVIL}")) && piped.contains("\n[local] $ printf"), "{piped:?}");
    let piped = String::from_utf8(scene.piped(&["thread", "export", "--markdown", &id]).stdout).unwrap();
    assert!(piped.contains(&format!("said {EVIL}")), "{piped:?}");
}

#[test]
fn an_executor_cannot_write_to_the_terminal() {
    let scene = Scene::new();
    let script = format!("printf '%s\\n' '{EVIL}' >&2; exit 1");
    let file = scene.0.home.path().join("environments.toml");
    std::fs::write(&file, format!("[[environments]]\nid = \"box\"\nprogram = \"/bin/sh\"\nargs = [\"-c\", {}]\n", toml_text(&script)))
        .unwrap();
    for words in [
        &["env", "check", "box"][..],
        &["run", "-e", "box", "--", "true"],
        &["run", "--via", &script, "--", "true"],
        &["cp", "box:/x", "/tmp/none"],
    ] {
        let shown = scene.on_terminal(words);
        assert_harmless(&shown);
        assert!(shown.contains(SHOWN), "{words:?}: {shown:?}");
    }
    // What goes to a log is shown there, too.
    let logged = scene.command(&["env", "check", "box"]).env("OUTPOST_LOG", "debug").stdin(Stdio::null()).output().unwrap();
    let logged = String::from_utf8(logged.stderr).unwrap();
    assert!(logged.contains("owned") && !logged.contains('\u{1b}') && !logged.contains('\u{202e}'), "{logged:?}");
}

fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{202e}', "\\u202e")
}

#[test]
fn names_of_files_and_mistakes_are_shown() {
    let scene = Scene::new();
    let (from, to) = (scene.0.work.path().join("from"), scene.0.work.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    let fifo = from.join(format!("pipe{EVIL}"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let shown = scene.on_terminal(&["cp", "-r", &text(&from), &text(&to)]);
    assert_harmless(&shown);
    assert!(shown.contains("left out"), "{shown:?}");
    for words in [&["thread", "show", EVIL][..], &["cp", &format!("/none{EVIL}"), "/tmp/none"], &["run", "-C", EVIL, "--", "true"]] {
        let shown = scene.on_terminal(words);
        assert_harmless(&shown);
        assert!(shown.contains("<U+001B>]0;owned"), "{words:?}: {shown:?}");
    }
}
