//! The same names in zsh, at a terminal, and in fish.

use outpost_testkit::TestTerminal;

use super::Desk;

/// A thread, by its short id.
fn thread(desk: &Desk) -> String {
    let output = desk.command(crate::OUTPOST).args(["exec", "--json", "--provider", "offline", "$ echo the only one"]).output().unwrap();
    let first: serde_json::Value = serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let id = first["thread_id"].as_str().unwrap();
    id[id.len() - 8..].to_owned()
}

#[test]
fn fish_offers_names_and_no_files_beside_them() {
    let desk = Desk::new();
    let id = thread(&desk);
    std::fs::write(desk.work.path().join("box.txt"), "").unwrap();
    let offered = |line: &str| -> Vec<String> {
        let script = format!("outpost completions fish | source; complete -C '{line}'");
        let output = desk.command("fish").env("HOME", desk.work.path()).args(["--no-config", "-c", &script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    for (line, names) in [
        ("outpost shell b", &["bench", "box"][..]),
        ("outpost run -e g", &["gpu"]),
        ("outpost exec --environment b", &["bench", "box"]),
        ("outpost exec -c sandbox_mi", &["sandbox_minimum="]),
        ("outpost cp bo", &["box:"]),
        ("outpost mcp remove ", &["docs", "tickets"]),
        ("outpost -c sandbox_mi", &["sandbox_minimum="]),
        ("outpost help environm", &["environments"]),
    ] {
        assert_eq!(offered(line), names, "{line}");
    }
    for line in ["outpost thread show ", "outpost chat resume ", "outpost thread list --below "] {
        let threads = offered(line);
        assert!(threads.len() == 1 && threads[0].starts_with(&format!("{id}\t")) && threads[0].contains("the only one"), "{threads:?}");
    }
    assert!(offered("outpost ser").iter().any(|word| word.starts_with("serve\t")));
    assert_eq!(offered("outpost cp ./b"), ["./box.txt"], "where a path is meant, files");
}

#[test]
fn zsh_completes_names_at_a_terminal() {
    let desk = Desk::new();
    let id = thread(&desk);
    let mut shell = desk.command("zsh");
    shell.args(["-f", "-i"]).env("HOME", desk.work.path()).env("TERM", "xterm");
    let mut terminal = TestTerminal::start(&shell);
    terminal.type_keys("PS1='zsh%% '; autoload -U compinit; compinit -u -D; source <(outpost completions zsh); echo read''y\r");
    terminal.wait_for_row("ready");
    for (line, completed) in [
        ("outpost shell bo", "outpost shell box".to_owned()),
        ("outpost run -e g", "outpost run -e gpu".to_owned()),
        ("outpost thread list --below ", format!("outpost thread list --below {id}")),
        // A path follows at once.
        ("outpost cp bo\t/tmp", "outpost cp box:/tmp".to_owned()),
        ("outpost -c sandbox_mi\tfull", "outpost -c sandbox_minimum=full".to_owned()),
        ("outpost mcp remove d", "outpost mcp remove docs".to_owned()),
        ("outpost thread show ", format!("outpost thread show {id}")),
        ("outpost ser", "outpost serve".to_owned()),
        ("outpost exec --ephem", "outpost exec --ephemeral".to_owned()),
    ] {
        terminal.type_keys(&if line.contains('\t') { line.to_owned() } else { format!("{line}\t") });
        terminal.wait_until(&completed, |rows| rows[usize::from(terminal.cursor().0)] == format!("zsh% {completed}"));
        terminal.type_keys("\x15");
        terminal.wait_until("an empty line", |rows| rows[usize::from(terminal.cursor().0)] == "zsh%");
    }
    // Several are listed below the line.
    terminal.type_keys("outpost shell b\t");
    terminal.wait_for_row("bench  box");
    terminal.type_keys("\x15exit\r");
    terminal.exit_code();
}
