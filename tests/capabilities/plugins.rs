//! Plugins in capability roots: what they declare, and what becomes of it.

use outpost_wire::intent::CapabilityRoot;
use serde_json::json;

use crate::stage::{Machine, Stage, id, put, put_skill, uri};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s80_a_plugin_names_its_skills_and_hands_on_its_servers() {
    let machine = Machine::new();
    let servers =
        json!({"docs": {"command": "docs", "cwd": "./bin"}, "out": {"command": "x", "cwd": "../x"}, "web": {"url": "https://e.org/mcp"}});
    put(machine.path("plug/.claude-plugin/plugin.json"), json!({"name": "acme", "version": "2", "mcpServers": servers}).to_string());
    put(machine.path("plug/hooks/hooks.json"), json!({"hooks": {"PreToolUse": [], "Stop": []}}).to_string());
    put_skill(machine.path("plug/skills"), "deploy");
    let stage = Stage::new(&[("box", &machine)]).await;
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("acme", id("box"), uri(machine.path("plug")))]).await;
    let told = stage.told(&thread, "hello").await.unwrap();
    assert!(told.contains("- acme:deploy: how to deploy (skill://acme/skills/deploy/SKILL.md"), "{told}");
    let step = stage.runtime.why(thread.id()).await.unwrap();
    let plugin = &step.plugins[0];
    let names: Vec<_> = plugin.mcp_servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(
        (plugin.name.as_str(), &names[..], &plugin.hooks[..]),
        ("acme", &["docs", "web"][..], &["PreToolUse".to_owned(), "Stop".into()][..])
    );
    let docs = &plugin.mcp_servers[0];
    assert_eq!((&docs.environment, &docs.directory, docs.root.as_str()), (&id("box"), &uri(machine.path("plug")), "acme"));
    assert_eq!(docs.config["cwd"], json!(machine.path("plug/bin")));
    assert!(step.roots[0].warnings.iter().any(|warning| warning.contains("`out`") && warning.contains("leads out")), "{:?}", step.roots);
    // A folder without a manifest is no plugin, and its `.mcp.json` is nobody's.
    put(machine.path("plain/.mcp.json"), json!({"mcpServers": {"x": {"command": "x"}}}).to_string());
    put_skill(machine.path("plain"), "alone");
    let thread = stage.thread(&["box"], vec![CapabilityRoot::new("plain", id("box"), uri(machine.path("plain")))]).await;
    let step = stage.runtime.why(thread.id()).await.unwrap();
    assert!(step.plugins.is_empty() && step.skills[0].name == "alone", "{:?}", step.plugins);
}
