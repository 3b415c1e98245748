//! What an executor tells about its own configuration, and about what is installed beside it.

use std::fs;
use std::path::Path;

use outpost_testkit::{Bench, LinkKind, Setup};
use outpost_wire::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;

fn put(path: impl AsRef<Path>, text: &str) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn uri(path: impl AsRef<Path>) -> String {
    PathUri::from_native(path.as_ref()).unwrap().to_string()
}

/// An executor with a user's home of its own.
fn bench() -> (Bench, TempDir) {
    let user = tempfile::tempdir().unwrap();
    let home = user.path().display().to_string();
    let setup = Setup { variables: &[("HOME", &home)], ..Setup::default() };
    (Bench::with_setup(LinkKind::WebSocket, env!("CARGO_BIN_EXE_outpost"), &setup), user)
}

fn ask(bench: &Bench, paths: Value) -> Value {
    json!({"cwd": bench.uri(""), "configPaths": paths, "requirementsPaths": []})
}

#[tokio::test]
async fn s87_chosen_keys_of_the_configuration_are_told() {
    let (bench, user) = bench();
    let home = bench.process().unwrap().home();
    put(home.join("config.toml"), "model = \"m\"\nstore = \"postgres://secret\"\n[mcp_servers.h]\nurl = \"http://127.0.0.1:1/mcp\"\n");
    let mut client = bench.client().await;
    let told = client.result("environmentConfig/read", ask(&bench, json!([["mcp_servers"], ["store"]]))).await;
    assert_eq!((&told["userHomeDir"], &told["codexHomeDir"]), (&json!(uri(user.path())), &json!(uri(home))));
    assert!(told["hostname"].is_string());
    let layer = json!({
        "source": format!("user ({})", home.join("config.toml").display()), "baseDir": uri(home),
        "toml": "[mcp_servers.h]\nurl = \"http://127.0.0.1:1/mcp\"\n",
    });
    assert_eq!(told["config"], json!({"layers": [layer], "cloudInsertionIndex": 0}));
    assert_eq!(told["requirements"], json!({"layers": [], "cloudInsertionIndex": 0}));
}

#[tokio::test]
async fn s87_questions_and_files_that_make_no_sense_are_refused() {
    let (bench, _user) = bench();
    let mut client = bench.client().await;
    let method = "environmentConfig/read";
    let refused = client.error(method, ask(&bench, json!([]))).await;
    assert_eq!(refused, (-32602, "at least one config or requirements path is required".into()));
    let refused = client.error(method, ask(&bench, json!([[]]))).await;
    assert_eq!(refused, (-32602, "TOML paths must contain at least one key segment".into()));
    let refused = client.error(method, json!({"cwd": bench.uri(""), "configPaths": [["a"]]})).await;
    assert_eq!(refused, (-32602, "missing field `requirementsPaths`".into()));
    let nothing = client.result(method, ask(&bench, json!([["model"]]))).await;
    assert_eq!(nothing["config"]["layers"], json!([]));
    let file = bench.process().unwrap().home().join("config.toml");
    put(&file, "broken = = 1");
    let (code, message) = client.error(method, ask(&bench, json!([["model"]]))).await;
    assert_eq!(code, -32603);
    assert!(message.starts_with(&format!("failed to load executor-local config: {}: ", file.display())), "{message}");
}

#[tokio::test]
async fn installed_skills_and_plugins_are_told() {
    let (bench, user) = bench();
    let home = bench.process().unwrap().home();
    put(home.join("skills/hs/SKILL.md"), "---\nname: hs\ndescription: home skill\nmetadata:\n  short-description: short\n---\nbody\n");
    put(home.join("skills/hs/agents/openai.yaml"), "policy:\n  allow_implicit_invocation: false\n");
    put(home.join("skills/none/SKILL.md"), "no front matter");
    put(user.path().join(".agents/skills/us/SKILL.md"), "---\nname: us\ndescription: user skill\n---\n");
    put(home.join("plugins/plug/.codex-plugin/plugin.json"), r#"{"name":"plug","version":"1.0.0","interface":{"displayName":"Plug"}}"#);
    put(home.join("plugins/plug/skills/ps/SKILL.md"), "---\nname: ps\ndescription: d\n---\n");
    let mut client = bench.client().await;
    let found = client.result("capabilities/discoverV2", json!({"cwd": bench.uri("")})).await;
    let root = |id: &str, path: &Path| json!({"id": id, "path": uri(path)});
    assert_eq!(
        found["skills"],
        json!([
            {"name": "hs", "description": "home skill", "shortDescription": "short", "path": uri(home.join("skills/hs/SKILL.md")),
             "discoveryRoot": root("outpost-home-skills", &home.join("skills")), "dependencies": null,
             "policy": {"allowImplicitInvocation": false, "products": []}},
            {"name": "us", "description": "user skill", "shortDescription": null, "path": uri(user.path().join(".agents/skills/us/SKILL.md")),
             "discoveryRoot": root("user-agent-skills", &user.path().join(".agents/skills")), "dependencies": null, "policy": null},
        ])
    );
    let plugin = &found["plugins"][0];
    assert_eq!((&plugin["id"], &plugin["displayName"], &plugin["version"]), (&json!("plug"), &json!("Plug"), &json!("1.0.0")));
    assert_eq!(plugin["skills"][0]["name"], "plug:ps");
    assert!(found["warnings"][0].as_str().unwrap().contains("skills/none/SKILL.md is not a skill"), "{found}");
    assert_eq!(client.error("capabilities/discoverV2", json!({})).await, (-32602, "missing field `cwd`".into()));
    // Ours: known already.
    let known = client.result("capabilities/discoverV2", json!({"cwd": bench.uri(""), "knownDigest": ""})).await;
    let again = client.result("capabilities/discoverV2", json!({"cwd": bench.uri(""), "knownDigest": known["digest"]})).await;
    assert_eq!((&again["unchanged"], &again["skills"]), (&json!(true), &json!([])));
}

/// Inside a sandbox skills can be read where they are; the rest of the home stays out of reach.
#[tokio::test]
async fn skills_of_the_home_are_the_only_thing_of_it_that_a_sandbox_shows() {
    let (bench, _user) = bench();
    let home = bench.process().unwrap().home();
    put(home.join("skills/hs/SKILL.md"), "---\nname: hs\ndescription: home skill\n---\nbody\n");
    put(home.join("config.toml"), "model = \"m\"\n");
    let sandbox = json!({
        "permissions": {"type": "managed", "file_system": {"type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}]}, "network": "restricted"},
        "cwd": bench.uri(""), "windowsSandboxLevel": "disabled",
    });
    let mut client = bench.client().await;
    let found = client.result("capabilities/discoverV2", json!({"cwd": bench.uri(""), "sandbox": sandbox})).await;
    assert_eq!(found["skills"][0]["name"], "hs", "{found}");
    client.result("fs/readFile", json!({"path": uri(home.join("skills/hs/SKILL.md")), "sandbox": sandbox})).await;
    client.error("fs/readFile", json!({"path": uri(home.join("config.toml")), "sandbox": sandbox})).await;
    let write = json!({"path": uri(home.join("skills/hs/new")), "dataBase64": "", "sandbox": sandbox});
    client.error("fs/writeFile", write).await;
    let cat = format!("cat {}/skills/hs/SKILL.md; cat {}/config.toml", home.display(), home.display());
    let mut start = bench.shell("cat", &cat);
    start["sandbox"] = sandbox;
    client.start(start).await;
    let (code, output) = client.outcome("cat").await;
    let output = String::from_utf8(output).unwrap();
    assert!(code != 0 && output.contains("home skill") && !output.contains("model ="), "{output}");
}
