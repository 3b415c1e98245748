//! Roots and skills as a user meets them on the command line.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::OUTPOST;
use crate::stage::{put, put_skill};

struct User(TempDir);

impl User {
    fn outpost(&self, words: &[&str]) -> Output {
        let mut command = Command::new(OUTPOST);
        command
            .args(words)
            .current_dir(self.0.path())
            .env("OUTPOST_HOME", self.0.path().join("own"))
            .env("HOME", self.0.path().join("user"));
        command.env_remove("OPENAI_API_KEY").output().unwrap()
    }

    fn says(&self, words: &[&str]) -> String {
        let output = self.outpost(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.says(words)).unwrap()
    }
}

#[test]
fn thread_why_says_per_root_why_it_is_in_or_out() {
    let user = User(tempfile::tempdir().unwrap());
    let at = |name: &str| user.0.path().join(name).display().to_string();
    put_skill(at("tools"), "deploy");
    put(at("tools/plugin.json"), json!({"name": "acme", "hooks": {"Stop": []}, "mcpServers": {"docs": {"command": "docs"}}}).to_string());
    put_skill(at("own/skills"), "house");
    let (tools, none) = (format!("local:{}", at("tools")), format!("gone=local:{}", at("none")));
    let output = user.outpost(&["exec", "--provider", "offline", "--root", &tools, "--root", &none, "hello"]);
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && warned.matches("the capability root `gone` is not used").count() == 1, "{warned}");
    let id = user.json(&["thread", "list", "--json"])["threads"][0]["id"].as_str().unwrap().to_owned();
    let text = user.says(&["thread", "why", &id]);
    let lines = [
        format!("in   tools  local:{}", at("tools")),
        "     plugin `acme`, 1 skill".into(),
        "     MCP server docs".into(),
        "     hooks for Stop are declared; this release does not run them".into(),
        format!("out  gone  local:{}", at("none")),
        "     acme:deploy  skill://tools/deploy/SKILL.md".into(),
    ];
    for line in lines {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
    assert!(text.contains("No such file or directory") && text.contains("house  skill://local@"), "{text}");
    let told = user.json(&["thread", "why", &id, "--json"]);
    assert_eq!((&told["roots"][0]["available"], &told["roots"][1]["available"]), (&json!(true), &json!(false)));
    assert_eq!(told["plugins"][0]["hooksNotRun"], json!(["Stop"]));
}

#[test]
fn roots_that_cannot_be_meant_say_what_to_write() {
    let user = User(tempfile::tempdir().unwrap());
    for (root, why) in [
        ("/just/a/path", "write [ID=]ENV:/PATH"),
        ("local:relative", "write [ID=]ENV:/PATH"),
        ("nowhere:/x", "environment `nowhere`, which does not exist"),
        (" =local:/x", "has a blank id"),
    ] {
        let output = user.outpost(&["exec", "--provider", "offline", "--root", root, "hello"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(why), "{root}: {error}");
    }
}
