//! What bash offers for the words of the program: its own completion function, called as bash calls it. Other shells are in `shells.rs`.

#[cfg(feature = "interop")]
mod shells;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::OUTPOST;

struct Desk {
    home: TempDir,
    work: TempDir,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { home: tempfile::tempdir().unwrap(), work: tempfile::tempdir().unwrap() };
        let environments = "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n[[environments]]\nid = \"bench\"\nurl = \"ws://127.0.0.1:1\"\n\
                            [[environments]]\nid = \"gpu\"\nurl = \"ws://127.0.0.1:1\"\n";
        std::fs::write(desk.home.path().join("environments.toml"), environments).unwrap();
        let config = "[mcp_servers.docs]\ncommand = \"true\"\n[mcp_servers.tickets]\ncommand = \"true\"\n";
        std::fs::write(desk.home.path().join("config.toml"), config).unwrap();
        desk
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:{}", Path::new(OUTPOST).parent().unwrap().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("OUTPOST_HOME", self.home.path()).stdin(Stdio::null()).current_dir(self.work.path());
        command.env_remove("OUTPOST_EXEC_SERVER_URL").env_remove("CODEX_EXEC_SERVER_URL").env_remove("BASH_ENV");
        command
    }

    /// What is offered for the last word of a line.
    fn offered(&self, line: &str) -> Vec<String> {
        let script = r#"
            eval "$(outpost completions bash)"
            function=$(complete -p outpost | sed 's/.*-F \([^ ]*\) .*/\1/')
            IFS=' ' read -r -a COMP_WORDS <<< "$1"
            [[ $1 == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
            "$function" outpost "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let output = self.command("bash").args(["--norc", "-c", script, "bash", line]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Every file of the home.
    fn files(&self) -> BTreeSet<String> {
        let found = Command::new("find").arg(self.home.path()).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn names_of_this_machine_are_offered() {
    let desk = Desk::new();
    let before = desk.files();
    for (line, names) in [
        ("outpost shell b", &["box", "bench"][..]),
        ("outpost shell bo", &["box"]),
        ("outpost run -e g", &["gpu"]),
        ("outpost exec --environment be", &["bench"]),
        ("outpost forward bo", &["box"]),
        ("outpost env remove ", &["local", "box", "bench", "gpu"]),
        ("outpost cp bo", &["box:"]),
        ("outpost mcp remove ", &["docs", "tickets"]),
        ("outpost config get budgets.turn_t", &["budgets.turn_tokens"]),
        ("outpost -c sandbox_mi", &["sandbox_minimum="]),
        ("outpost help environm", &["environments"]),
    ] {
        let mut offered = desk.offered(line);
        offered.sort();
        let mut names = names.to_vec();
        names.sort_unstable();
        // Whether this machine can be forgotten is not the question here.
        offered.retain(|name| name != "local" || names.contains(&"local"));
        names.retain(|name| *name != "local" || offered.iter().any(|offered| offered == "local"));
        assert_eq!(offered, names, "{line}");
    }
    // Words of the program itself are still offered.
    assert!(desk.offered("outpost ser").contains(&"serve".to_owned()));
    assert!(desk.offered("outpost exec --ephem").contains(&"--ephemeral".to_owned()));
    assert!(desk.offered("outpost thread show ").iter().all(|word| word.starts_with(['-', '<'])), "no thread");
    assert_eq!(desk.files(), before, "nothing was made");
    // Not even a home.
    std::fs::remove_dir_all(desk.home.path()).unwrap();
    for line in ["outpost shell lo", "outpost thread show ", "outpost mcp remove "] {
        desk.offered(line);
    }
    assert!(!desk.home.path().exists());
    std::fs::create_dir(desk.home.path()).unwrap();
}

#[test]
fn threads_are_offered_by_their_short_ids_with_their_titles() {
    let desk = Desk::new();
    let mut ids = Vec::new();
    for prompt in ["$ echo the first one", "$ echo the second one"] {
        let output = desk.command(OUTPOST).args(["exec", "--json", "--provider", "offline", prompt]).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        ids.push(first["thread_id"].as_str().unwrap().to_owned());
    }
    let short = |id: &str| id[id.len() - 8..].to_owned();
    for line in ["outpost thread show ", "outpost exec resume ", "outpost chat resume ", "outpost forward box 80 --thread "] {
        let offered = desk.offered(line);
        assert_eq!(offered.len(), 2, "{line}: {offered:?}");
        // The newest first.
        assert!(offered[0].starts_with(&short(&ids[1])) && offered[0].contains("the second one"), "{line}: {offered:?}");
    }
    // One that is left is inserted as it is, and what is inserted is understood.
    let id = short(&ids[0]);
    assert_eq!(desk.offered(&format!("outpost thread show {}", &id[..7])), std::slice::from_ref(&id));
    assert_eq!(desk.offered(&format!("outpost thread show {}", &ids[0][..35])), [ids[0].clone()]);
    assert!(desk.command(OUTPOST).args(["thread", "show", &id]).output().unwrap().status.success());
}
