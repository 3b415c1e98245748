//! `outpost env`, and names in place of addresses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outpost_testkit::ExecutorProcess;
use serde_json::Value;

use crate::OUTPOST;

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("environments.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command
            .args(arguments)
            .env("OUTPOST_HOME", self.0.path())
            .env_remove("OUTPOST_EXEC_SERVER_URL")
            .env_remove("CODEX_EXEC_SERVER_URL")
            .env_remove("OUTPOST_TOKEN");
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.output(arguments).stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str], code: i32, why: &str) {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{arguments:?}: {}", text(&output));
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn executor(arguments: &[&str]) -> ExecutorProcess {
    ExecutorProcess::start(Path::new(OUTPOST), arguments)
}

#[test]
fn environments_are_added_used_and_removed() {
    let (home, executor) = (Home::new(), executor(&["--no-auth"]));
    home.done(&["env", "add", "far", "--url", executor.url()]);
    let via = format!("OUTPOST_HOME='{}' exec {OUTPOST} executor --listen stdio", home.0.path().join("other").display());
    home.done(&["env", "add", "piped", "--via", &via, "--connect", "manual"]);
    assert_eq!(home.done(&["run", "-e", "far", "--", "echo", "there"]), "there\n");
    assert_eq!(home.done(&["run", "-e", "piped", "--", "echo", "piped"]), "piped\n");
    assert_eq!(home.done(&["run", "-e", "local", "--", "echo", "here"]), "here\n");
    let (one, two) = (home.0.path().join("one"), home.0.path().join("two"));
    fs::write(&one, "copied").unwrap();
    home.done(&["cp", &format!("far:{}", one.display()), &format!("piped:{}", two.display())]);
    assert_eq!(fs::read(&two).unwrap(), b"copied");
    let listed = home.json(&["env", "list", "--json"]);
    let names: Vec<&str> = listed["environments"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["local", "far", "piped"]);
    assert_eq!(listed["environments"][0]["default"], true);
    assert_eq!((&listed["environments"][1]["address"], &listed["environments"][2]["connect"]), (&executor.url().into(), &"manual".into()));
    let table = home.done(&["env", "list"]);
    assert!(table.contains("local (default)") && table.contains(executor.url()), "{table}");
    home.done(&["env", "remove", "far"]);
    home.refused(&["run", "-e", "far", "--", "true"], 125, "there is no environment `far`; there are `local`, `piped`");
    home.refused(&["cp", "far:/x", "y"], 1, "./far:");
    home.refused(&["env", "remove", "far"], 1, "there is no environment `far`");
}

#[test]
fn a_check_tells_what_is_there_and_what_is_not() {
    let (home, executor) = (Home::new(), executor(&["--no-auth"]));
    home.done(&["env", "add", "far", "--url", executor.url()]);
    let found = home.json(&["env", "check", "far", "--json"]);
    let found = &found["environments"][0];
    assert_eq!((&found["id"], &found["state"]), (&"far".into(), &"ready".into()));
    let identity = fs::read_to_string(executor.home().join("executor/identity")).unwrap();
    assert_eq!(found["executorId"], identity.trim());
    assert_eq!(found["version"], env!("CARGO_PKG_VERSION"));
    assert!(found["latencyMs"].as_f64().unwrap() > 0.0 && found["shell"].as_str().unwrap().starts_with('/'));
    let table = home.done(&["env", "check"]);
    assert!(table.contains("local") && table.contains("far") && table.contains(identity.trim()), "{table}");
    home.done(&["env", "add", "down", "--url", "ws://127.0.0.1:1"]);
    // The others are told about all the same.
    home.refused(&["env", "check"], 3, identity.trim());
    home.refused(&["env", "check", "down"], 3, "Connection refused");
    home.refused(&["env", "check", "nobody"], 1, "there is no environment `nobody`");
    home.done(&["env", "check", executor.url()]);
}

#[test]
fn tokens_come_from_their_file() {
    let home = Home::new();
    let token = home.0.path().join("token");
    fs::write(&token, "s3cret\n").unwrap();
    let executor = executor(&["--ws-auth", "capability-token", "--ws-token-file", token.to_str().unwrap()]);
    home.done(&["env", "add", "far", "--url", executor.url(), "--token-file", token.to_str().unwrap()]);
    assert_eq!(home.done(&["run", "-e", "far", "--", "echo", "in"]), "in\n");
    home.done(&["env", "add", "bare", "--url", executor.url()]);
    home.refused(&["env", "check", "bare"], 3, "401");
    assert!(!home.done(&["env", "list"]).contains("s3cret"));
}

#[test]
fn what_agents_may_do_there_and_which_devices_they_see_is_written_down() {
    let home = Home::new();
    let policy = ["--sandbox", "workspace-write", "--network", "restricted", "--approval-policy", "untrusted"];
    let lists = ["--writable-root", "/srv/a", "--writable-root", "/srv/b", "--device", "nvidia", "--device", "/dev/kfd"];
    home.done(&[&["env", "add", "gpu", "--url", "ws://127.0.0.1:1"], &policy[..], &lists[..]].concat());
    let written = fs::read_to_string(home.file()).unwrap();
    for line in [
        "sandbox = \"workspace-write\"",
        "network = \"restricted\"",
        "approval_policy = \"untrusted\"",
        "writable_roots = [\"/srv/a\", \"/srv/b\"]",
        "devices = [\"nvidia\", \"/dev/kfd\"]",
    ] {
        assert!(written.contains(line), "{written}");
    }
    // What makes no sense is refused before anything is written.
    for (flags, why) in [
        (["--sandbox", "none"], "`sandbox` is"),
        (["--network", "off"], "`network` is"),
        (["--approval-policy", "always"], "`approval_policy` is"),
        (["--writable-root", "here"], "absolute paths"),
        (["--device", "gpu"], "`devices` are"),
    ] {
        home.refused(&[&["env", "add", "b", "--url", "ws://127.0.0.1:1"], &flags[..]].concat(), 1, why);
    }
    assert_eq!(fs::read_to_string(home.file()).unwrap(), written);
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let home = Home::new();
    let original = "# mine\ndefault = \"a\"\n[[environments]]\nid = \"a\"\nurl = \"ws://127.0.0.1:1\"\n[[environments]]\nid = \"bad\"\n";
    fs::write(home.file(), original).unwrap();
    for (arguments, code, why) in [
        (vec!["env", "add", "a", "--url", "ws://127.0.0.1:2"], 1, "there is an environment `a` already"),
        (vec!["env", "add", "local", "--url", "ws://127.0.0.1:2"], 1, "`local` is reserved"),
        (vec!["env", "add", "a b", "--url", "ws://127.0.0.1:2"], 1, "may hold only"),
        (vec!["env", "add", "c", "--url", "http://x"], 1, "use ws://HOST:PORT"),
        (vec!["env", "add", "c", "--via", " "], 1, "empty"),
        (vec!["env", "add", "c"], 2, "--ssh"),
        (vec!["env", "add", "c", "--url", "ws://127.0.0.1:2", "--ssh", "x"], 2, "cannot be used with"),
        (vec!["env", "add", "c", "--url", "ws://127.0.0.1:2", "--binary", "x"], 2, "cannot be used with"),
        (vec!["env", "add", "c", "--ssh", "-oProxyCommand=x"], 2, ""),
        (vec!["env", "add", "c", "--ssh=-oProxyCommand=x"], 1, "is not an ssh destination"),
        (vec!["env", "remove", "a"], 1, "is the default"),
        (vec!["run", "-e", "bad", "--", "true"], 125, "one of `url`, `program`, `ssh`"),
        (vec!["run", "-e", "no/name", "--", "true"], 125, "may hold only"),
    ] {
        home.refused(&arguments, code, why);
    }
    assert_eq!(fs::read_to_string(home.file()).unwrap(), original);
    assert!(home.done(&["env", "list"]).contains("wrong: "));
    home.done(&["env", "remove", "bad"]);
    assert_eq!(fs::read_to_string(home.file()).unwrap(), original.replace("[[environments]]\nid = \"bad\"\n", ""));
    fs::write(home.file(), "default = \"gone\"\n").unwrap();
    home.refused(&["env", "list"], 1, "environments.toml:1: the default environment `gone` is not known");
    home.refused(&["run", "-e", "x", "--", "true"], 125, "environments.toml:1:");
    assert_eq!(home.done(&["run", "--", "echo", "here"]), "here\n", "this machine needs no file");
}

#[test]
fn the_variable_beats_the_file() {
    let (home, executor) = (Home::new(), executor(&["--no-auth"]));
    fs::write(home.file(), "this is = not [ even toml").unwrap();
    let with = |value: &str, arguments: &[&str]| home.command(arguments).env("OUTPOST_EXEC_SERVER_URL", value).output().unwrap();
    assert_eq!(with(executor.url(), &["run", "-e", "remote", "--", "echo", "there"]).stdout, b"there\n");
    for arguments in [
        vec!["run", "-e", "remote", "--", "true"],
        vec!["run", "-e", executor.url(), "--", "true"],
        vec!["run", "--via", "true", "--", "true"],
    ] {
        let off = with("none", &arguments);
        assert_eq!(off.status.code(), Some(125));
        assert!(text(&off).contains("switched off"), "{}", text(&off));
    }
    // The name that Codex has for it counts where ours says nothing, and only there.
    let both = |ours: &str, theirs: &str, arguments: &[&str]| {
        home.command(arguments).env("OUTPOST_EXEC_SERVER_URL", ours).env("CODEX_EXEC_SERVER_URL", theirs).output().unwrap()
    };
    let echo = ["run", "-e", "remote", "--", "echo", "there"];
    assert_eq!(both("", executor.url(), &echo).stdout, b"there\n");
    assert_eq!(both(executor.url(), "ws://127.0.0.1:1", &echo).stdout, b"there\n");
    assert_eq!(both("none", executor.url(), &echo).status.code(), Some(125));
    let wrong = both("", "http://x", &echo);
    assert!(text(&wrong).contains("CODEX_EXEC_SERVER_URL: "), "{}", text(&wrong));
    let added = with("none", &["env", "add", "x", "--url", "ws://127.0.0.1:1"]);
    assert!(!added.status.success() && text(&added).contains("switched off"), "{}", text(&added));
    let added = with(executor.url(), &["env", "add", "x", "--url", "ws://127.0.0.1:1"]);
    assert!(!added.status.success() && text(&added).contains("unset it first"), "{}", text(&added));
}

#[test]
fn a_watcher_hears_states_and_the_file() {
    let (home, executor) = (Home::new(), executor(&["--no-auth"]));
    home.done(&["env", "add", "far", "--url", executor.url()]);
    let mut child = home.command(&["env", "watch", "--json", "far", "late"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut complaint = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut complaint).unwrap();
    assert!(complaint.contains("there is no environment `late`"), "{complaint}");
    assert_eq!(child.wait().unwrap().code(), Some(1));

    let mut child = home.command(&["env", "watch", "--json", "far"]).stdout(Stdio::piped()).spawn().unwrap();
    // Read until the end of the test: without a reader it ends by itself.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    let mut added = false;
    for line in lines.by_ref() {
        let news: Value = serde_json::from_str(&line.unwrap()).unwrap();
        seen.push(format!("{} {}", news["event"].as_str().unwrap(), news["state"].as_str().unwrap_or_default()));
        if news["state"] == "ready" && !added {
            added = true;
            home.done(&["env", "remove", "far"]);
        }
        if news["event"] == "removed" {
            break;
        }
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(seen.first().is_some_and(|first| first.starts_with("replayed")), "{seen:?}");
    // How far it was when it was first looked at is not ours to say.
    assert!(seen.iter().any(|news| news.ends_with(" ready")) && seen.contains(&"removed missing".into()), "{seen:?}");
}
