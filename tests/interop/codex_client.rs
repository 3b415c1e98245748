//! The real client with our executor.

use std::path::Path;
use std::process::Stdio;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::model::ScriptedModel;
use serde_json::json;

use crate::{OUTPOST, codex};

const PATCH: &str = "apply_patch <<EOF\n*** Begin Patch\n*** Update File: a.txt\n@@\n-hi\n+ho\n*** End Patch\nEOF";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_client_runs_a_command_and_applies_a_patch() {
    let model = ScriptedModel::start(vec![
        ("exec_command", json!({"cmd": "echo hi > a.txt; echo ran >> runs"})),
        ("exec_command", json!({"cmd": PATCH})),
    ])
    .await
    .for_strangers();
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = format!(
        "model = \"gpt-5\"\nmodel_provider = \"scripted\"\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}\"\n\
         wire_api = \"responses\"\nrequires_openai_auth = false\n[analytics]\nenabled = false\n",
        model.base_url()
    );
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let output = tokio::process::Command::new(codex())
        .args(["exec", "--skip-git-repo-check", "-s", "danger-full-access", "--json", "go"])
        .current_dir(work.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", home.path())
        .env("CODEX_HOME", home.path())
        .env("SHELL", "/bin/bash")
        .env("NO_PROXY", "127.0.0.1")
        .env("CODEX_EXEC_SERVER_URL", executor.url())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(work.path().join("a.txt")).unwrap(), "ho\n", "{text}");
    assert_eq!(std::fs::read_to_string(work.path().join("runs")).unwrap(), "ran\n", "{text}");
}
