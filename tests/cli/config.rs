//! `config.toml`, as a person who has just written it meets it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::OUTPOST;

struct Home(TempDir);

impl Home {
    fn with(config: &str) -> Self {
        let home = Self(TempDir::new().unwrap());
        std::fs::write(home.config(), config).unwrap();
        home
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("config.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(OUTPOST);
        command.args(arguments).env("OUTPOST_HOME", self.0.path()).env("HOME", self.0.path()).stdin(Stdio::null());
        command.env_remove("OPENAI_API_KEY").env_remove("CODEX_API_KEY");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What it says when it fails with this code.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

const OPEN_FILES: [&str; 4] = ["--", "/bin/sh", "-c", "ulimit -n"];

#[test]
fn limits_hold_for_commands_here_and_flags_count_before_them() {
    let home = Home::with("[limits]\nopen_files = 123\n");
    let run = |flags: &[&str]| out(&home.run(&[&["run"], flags, &OPEN_FILES].concat()));
    assert_eq!(run(&[]), "123");
    assert_eq!(run(&["-c", "limits.open_files=99"]), "99");
    let via = |flags: &str| format!("'{OUTPOST}' executor --listen stdio {flags}");
    assert_eq!(run(&["--via", &via("")]), "123");
    assert_eq!(run(&["--via", &via("--limit open-files=77")]), "77");
    let agent = home.run(&["exec", "--provider", "offline", "--sandbox", "danger-full-access", "$ ulimit -n"]);
    assert!(String::from_utf8_lossy(&agent.stderr).contains("  123"), "{agent:?}");
    // The keeper, which nobody hears, has the same limits as whoever asked for it.
    let keeping = format!("'{OUTPOST}' -c limits.open_files=66 executor --listen stdio --keep");
    assert_eq!(run(&["--via", &keeping]), "66");
}

#[test]
fn what_makes_no_sense_is_told_with_its_place_and_nothing_is_run() {
    let home = Home::with("[limits]\nmemory = \"8 GB\"\n");
    for verb in [&["run", "--", "true"][..], &["exec", "> hi"], &["executor"], &["serve"], &["demo"]] {
        let code = match verb[0] {
            "run" => 125,
            "serve" => 2,
            _ => 1,
        };
        let said = home.refused(verb, code);
        assert!(said.contains(&format!("{}: `limits.memory`: invalid limit `8 GB`", home.config().display())), "{said}");
    }
    assert!(home.refused(&["run", "-c", "limits.memory=lots", "--", "true"], 125).contains("-c limits.memory=lots: "));
}

#[test]
fn a_key_that_is_not_known_is_told_once_at_any_depth() {
    let home = Home::with("modle = 1\n[serve]\nport = 80\n");
    let output = home.run(&["exec", "--provider", "offline", "> hi"]);
    assert_eq!(out(&output), "hi");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("`modle` is not known").count(), 1, "{said}");
    assert_eq!(said.matches("`serve.port` is not known").count(), 1, "{said}");
}

#[test]
fn a_key_that_is_not_known_is_told_in_values_that_are_tables() {
    let home =
        Home::with("approval_policy = { granular = { rulez = false } }\n[[skills.config]]\nname = \"x\"\nenabled = false\nenable = 1\n");
    let output = home.run(&["exec", "--provider", "offline", "> hi"]);
    assert_eq!(out(&output), "hi");
    let said = String::from_utf8(output.stderr).unwrap();
    for key in ["approval_policy.granular.rulez", "skills.config.enable"] {
        assert_eq!(said.matches(&format!("`{key}` is not known")).count(), 1, "{said}");
    }
}

#[test]
fn a_writable_root_is_an_absolute_path() {
    for root in ["../x", "~/x"] {
        let home = Home::with(&format!("[sandbox_workspace_write]\nwritable_roots = [\"{root}\"]\n"));
        let said = home.refused(&["exec", "--provider", "offline", "> hi"], 1);
        let told = format!(
            "sandbox_workspace_write.writable_roots: `{root}` is not an absolute path; `~` and relative paths are not understood there"
        );
        assert!(said.contains(&told), "{said}");
    }
}

#[test]
fn the_server_listens_where_the_file_says_unless_a_flag_says_otherwise() {
    let home = Home::with("[serve]\nlisten = \"ws://127.0.0.2:0\"\n");
    for (flags, address) in [(&[][..], "ws://127.0.0.2:"), (&["--listen", "ws://127.0.0.1:0"], "ws://127.0.0.1:")] {
        let mut server = home.command(&[&["serve"], flags].concat()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(line.starts_with(address), "{line}");
    }
    let beyond = Home::with("[serve]\nlisten = \"ws://0.0.0.0:0\"\n");
    assert!(beyond.refused(&["serve"], 2).contains("--tls-cert and --tls-key, or --behind-proxy"));
    let half = Home::with("[serve]\ntls_cert = \"chain.pem\"\n");
    assert!(half.refused(&["serve"], 2).contains("TLS needs both"));
    let both = Home::with("[serve]\ntls_cert = \"chain.pem\"\ntls_key = \"key.pem\"\n");
    let said = both.refused(&["serve"], 2);
    assert!(said.contains(&both.0.path().join("chain.pem").display().to_string()), "relative to the home: {said}");
}

#[test]
fn a_setting_without_a_key_is_wrong_usage() {
    let home = Home::with("");
    for wrong in ["rubbish", "=1", " = 1"] {
        let said = home.refused(&["exec", "-c", wrong, "--provider", "offline", "> hello"], 2);
        assert!(said.contains("a setting is written key=value"), "{said}");
    }
}
