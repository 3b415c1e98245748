//! What an executor finds in capability roots.

use std::fs;
use std::os::unix::fs::symlink;

use outpost_testkit::{Bench, over_every_link, over_links};
use serde_json::{Value, json};

fn put(bench: &Bench, name: &str, contents: impl AsRef<[u8]>) {
    let path = bench.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

fn file(bench: &Bench, name: &str) -> Value {
    json!({"path": bench.uri(name), "contents": fs::read_to_string(bench.path(name)).unwrap()})
}

over_every_link! {
    async fn a_plugin_and_its_skills_come_in_one_answer(bench: Bench) {
        put(&bench, "plug/.codex-plugin/plugin.json", r#"{"name":"plug","apps":"./apps.json","mcpServers":"../bad.json"}"#);
        put(&bench, "plug/apps.json", "{}");
        put(&bench, "plug/.mcp.json", r#"{"mcpServers":{}}"#);
        put(&bench, "plug/skills/sk/SKILL.md", "---\nname: sk\ndescription: d\n---\nbody\n");
        put(&bench, "plug/skills/sk/agents/openai.yaml", "interface: {}\n");
        let mut client = bench.client().await;
        let roots = json!([
            {"id": "a", "path": bench.uri("plug")},
            {"id": "b", "path": bench.uri("nope")},
            {"id": "c", "path": bench.uri("plug/apps.json"), "sandbox": null},
        ]);
        let found = client.result("capabilityRoots/discoverV1", json!({"roots": roots})).await;
        let manifest = file(&bench, "plug/.codex-plugin/plugin.json");
        let warning = format!("ignoring mcpServers in {}: path must start with `./`", bench.uri("plug/.codex-plugin/plugin.json"));
        assert_eq!(found["roots"][0], json!({
            "id": "a", "path": bench.uri("plug"),
            "plugin": {"manifest": manifest, "mcpConfig": file(&bench, "plug/.mcp.json"), "appsConfig": file(&bench, "plug/apps.json")},
            "skills": [{"instructions": file(&bench, "plug/skills/sk/SKILL.md"), "metadata": file(&bench, "plug/skills/sk/agents/openai.yaml")}],
            "namespaceManifests": [manifest], "warnings": [warning], "error": null,
        }));
        let nothing = |id: &str, path: &str, error: String| {
            json!({"id": id, "path": path, "plugin": null, "skills": [], "namespaceManifests": [], "warnings": [], "error": error})
        };
        let nope = bench.uri("nope");
        let error = format!("failed to inspect capability root {nope}: No such file or directory (os error 2)");
        assert_eq!(found["roots"][1], nothing("b", &nope, error));
        let apps = bench.uri("plug/apps.json");
        assert_eq!(found["roots"][2], nothing("c", &apps, format!("capability root {apps} is not a directory")));
    }

    async fn a_foreign_path_and_a_loop_concern_only_their_own_root(bench: Bench) {
        symlink("loop", bench.path("loop")).unwrap();
        put(&bench, "good/SKILL.md", "x");
        let mut client = bench.client().await;
        let roots = json!([{"id": "w", "path": "file:///C:/x"}, {"id": "l", "path": bench.uri("loop")}, {"id": "g", "path": bench.uri("good")}]);
        let found = client.result("capabilityRoots/discoverV1", json!({"roots": roots})).await;
        let error = |index: usize| found["roots"][index]["error"].as_str().map(str::to_owned);
        assert_eq!(error(0).unwrap(), "failed to inspect capability root file:///C:/x: 'file:///C:/x' is invalid on 'linux'");
        assert!(error(1).unwrap().ends_with("(os error 40)"));
        assert_eq!(error(2), None);
        assert_eq!(found["roots"][2]["skills"][0]["instructions"]["contents"], "x");
    }

    async fn requests_that_cannot_be_meant_are_refused(bench: Bench) {
        let mut client = bench.client().await;
        assert_eq!(client.result("capabilityRoots/discoverV1", json!({"roots": []})).await, json!({"roots": []}));
        let many: Vec<_> = (0..129).map(|id| json!({"id": id.to_string(), "path": bench.uri("nope")})).collect();
        let refused = client.error("capabilityRoots/discoverV1", json!({"roots": many})).await;
        assert_eq!(refused, (-32600, "capability root discovery accepts at most 128 roots".into()));
        assert_eq!(client.error("capabilityRoots/discoverV1", json!({})).await, (-32602, "missing field `roots`".into()));
        let relative = client.error("capabilityRoots/discoverV1", json!({"roots": [{"id": "x", "path": "/plain"}]})).await;
        assert_eq!(relative, (-32602, "invalid URI: relative URL without a base".into()));
    }
}

over_links! {
    [Memory, WebSocket]

    // Ours: a client that knows a root is told only whether it is still the same.
    async fn what_a_client_knows_is_not_told_again(bench: Bench) {
        put(&bench, "r/s/SKILL.md", "one");
        let mut client = bench.client().await;
        let ask = |digest: &str| json!({"roots": [{"id": "r", "path": bench.uri("r"), "knownDigest": digest}]});
        let first = client.result("capabilityRoots/discoverV1", ask("")).await["roots"][0].take();
        let digest = first["digest"].as_str().unwrap().to_owned();
        assert_eq!(first["skills"][0]["instructions"]["contents"], "one");
        let same = client.result("capabilityRoots/discoverV1", ask(&digest)).await["roots"][0].take();
        assert_eq!((&same["unchanged"], &same["digest"], &same["skills"]), (&json!(true), &json!(digest), &json!([])));
        put(&bench, "r/s/SKILL.md", "two");
        let other = client.result("capabilityRoots/discoverV1", ask(&digest)).await["roots"][0].take();
        assert_eq!((other.get("unchanged"), &other["skills"][0]["instructions"]["contents"]), (None, &json!("two")));
        assert_ne!(other["digest"], json!(digest));
    }

    // A root is looked at with the rights of its sandbox and no others, links or not.
    async fn a_sandbox_holds_a_look_as_well(bench: Bench) {
        put(&bench, "in/s/SKILL.md", "inside");
        put(&bench, "in/hidden/SKILL.md", "denied by pattern");
        put(&bench, "out/SKILL.md", "outside");
        symlink(bench.path("out"), bench.path("in/link")).unwrap();
        let path = |name: &str| json!({"path": {"type": "path", "path": bench.uri(name)}, "access": "read"});
        let pattern = json!({"path": {"type": "glob_pattern", "pattern": "**/hidden/*"}, "access": "deny"});
        let minimal = json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
        let sandbox = json!({
            "permissions": {"type": "managed", "file_system": {"type": "restricted", "entries": [minimal, path("in"), pattern]}, "network": "restricted"},
            "cwd": bench.uri("in"), "windowsSandboxLevel": "disabled",
        });
        let mut client = bench.client().await;
        let roots = json!([{"id": "in", "path": bench.uri("in"), "sandbox": sandbox}, {"id": "out", "path": bench.uri("out"), "sandbox": sandbox}]);
        let found = client.result("capabilityRoots/discoverV1", json!({"roots": roots})).await;
        let contents: Vec<_> = found["roots"][0]["skills"].as_array().unwrap().iter().map(|skill| &skill["instructions"]["contents"]).collect();
        assert_eq!(contents, [&json!("inside")], "{found}");
        assert_eq!(found["roots"][1]["skills"], json!([]));
        assert!(found["roots"][1]["error"].as_str().unwrap().contains("Permission denied"), "{found}");
    }
}
