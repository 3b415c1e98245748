//! The real terminal UI on our server.

use std::process::Command;
use std::time::Duration;

use outpost_testkit::TestTerminal;
use outpost_testkit::app::AppServer;
use outpost_testkit::model::Reply;

use crate::{OUTPOST, codex};

/// Keys that come too soon after others, or after a new picture, are taken for something pasted.
fn enter_until(terminal: &mut TestTerminal, wanted: &str) {
    for _ in 0..120 {
        std::thread::sleep(Duration::from_millis(500));
        if terminal.text().contains(wanted) {
            return;
        }
        terminal.type_keys("\r");
    }
    terminal.wait_for(wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_terminal_ui_runs_a_turn() {
    // It may ask for more than the user does, such as a title; whoever asks is answered alike.
    let replies = (0..4).map(|_| Reply::message("forty-two, says ours")).collect();
    let app = AppServer::start(OUTPOST, replies).await;
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), "check_for_update_on_startup = false\n[analytics]\nenabled = false\n").unwrap();
    let mut tui = Command::new(codex());
    tui.args(["--remote", app.url(), "--no-alt-screen", "--cd", &app.cwd()]);
    for (name, _) in std::env::vars_os() {
        tui.env_remove(name);
    }
    tui.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home.path()).env("CODEX_HOME", home.path());
    tui.env("TERM", "xterm-256color").env("NO_PROXY", "127.0.0.1");
    let url = app.url().to_owned();
    let shown = tokio::task::spawn_blocking(move || {
        let mut terminal = TestTerminal::start(&tui);
        // Its user decides about the folder first, and the decision is written into our configuration.
        terminal.wait_for("Trust this folder?");
        enter_until(&mut terminal, "scripted");
        terminal.type_keys("what is it?");
        terminal.wait_for("what is it?");
        enter_until(&mut terminal, "forty-two");
    });
    shown.await.unwrap_or_else(|error| panic!("no turn at {url}: {error}"));
    let config = std::fs::read_to_string(app.home().join("config.toml")).unwrap();
    assert!(config.contains("trust_level = \"trusted\""), "{config}");
    assert!(app.model.requests().iter().any(|request| request.body.to_string().contains("what is it?")));
}
