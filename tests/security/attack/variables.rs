//! Variables of the executor's own environment whose names say that they hold a secret: none reaches a command, in whichever spelling.

use outpost_testkit::bench::{connect, with};
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::json;

use super::scene::SECRET;
use super::{Episode, Random, Steps};
use crate::support::{as_who, directory, number, program_for};

/// What a name has in it, and what may stand behind it.
const WORDS: &[(&str, &[&str])] = &[
    ("KEY", &["", "S", "_ID", "RING"]),
    ("SECRET", &["", "S", "_ACCESS"]),
    ("TOKEN", &["", "_FILE", "S"]),
    ("PASSWORD", &["", "_FILE", "S", "1"]),
    ("PASSWD", &["", "_HASH"]),
    ("PASSPHRASE", &["", "_2"]),
    ("CREDENTIAL", &["", "S", "_PATH"]),
];
const BEFORE: &[&str] = &["", "MY_", "AWS_", "x", "DB_", "npm_config_", "A1_", "_", "GITHUB_", "my.", "app-"];

/// Big and small letters by turns, as the seed says.
fn spelled(random: &mut Random, name: &str) -> String {
    match random.below(4) {
        0 => name.to_lowercase(),
        1 => name.chars().map(|c| if random.percent(50) { c.to_ascii_lowercase() } else { c }).collect(),
        _ => name.to_owned(),
    }
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    let mut names = Vec::new();
    for _ in 0..40 {
        let (word, endings) = random.pick(WORDS);
        let name = format!("{}{word}{}", random.pick(BEFORE), random.pick(endings));
        names.push(spelled(&mut random, &name));
    }
    steps.note(format!("{names:?}"));
    let mut command = as_who(episode.who, &program_for(episode.who));
    command.args(["executor", "--no-auth"]).env("HOME", "/nonexistent").env("HARMLESS", "open");
    for (index, name) in names.iter().enumerate() {
        command.env(name, format!("{SECRET}{index}"));
    }
    let executor = ExecutorProcess::start_command(command, directory(episode.who));
    let mut client = Client::new(connect(executor.url()).await);
    client.hello().await;
    let work = directory(episode.who);
    let sandbox = json!({
        "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]}, "network": "restricted"},
        "cwd": format!("file://{}", work.path().display()), "windowsSandboxLevel": "disabled",
    });
    let script = "env; cat /proc/self/environ /proc/$PPID/environ /proc/1/environ; for f in /proc/[0-9]*/environ; do cat $f; done";
    for inherit in ["all", "core", "none"] {
        for confined in [true, false] {
            let id = number();
            let start = json!({
                "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///", "tty": false, "env": {"PATH": "/usr/bin:/bin"},
                "envPolicy": {"inherit": inherit, "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []},
            });
            let start = if confined { with(start, json!({"sandbox": sandbox})) } else { start };
            client.start(start).await;
            let (_, output) = client.outcome(&id).await;
            let output = String::from_utf8_lossy(&output).into_owned();
            // As root a command without a sandbox sees the processes of all users, this test included; only its own variables count.
            let own = if confined { output.as_str() } else { output.split('\0').next().unwrap_or_default() };
            let shown: Vec<&str> = own.split(['\n', '\0']).filter(|line| line.contains(SECRET)).collect();
            assert!(shown.is_empty(), "inherit {inherit}, sandbox {confined}: {shown:?}");
            assert_eq!(own.contains("HARMLESS=open"), inherit == "all", "inherit {inherit} hands on what is harmless");
        }
    }
}
