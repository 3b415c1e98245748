//! Smaller methods: searches that are refined, skills that are switched off, settings of one turn, marks of what was read, and what
//! there is not.

use std::path::Path;

use outpost_testkit::app::{AppServer, begin, completed, introduce, notice, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

/// The files that a search tells for a query.
async fn found(client: &mut outpost_testkit::Client, query: &str) -> Vec<String> {
    let fits = |message: &Value| message["method"] == "fuzzyFileSearch/sessionUpdated" && message["params"]["query"] == query;
    let told = client.until(fits).await["params"].take();
    let session = told["sessionId"].clone();
    client.until(|message| message["method"] == "fuzzyFileSearch/sessionCompleted" && message["params"]["sessionId"] == session).await;
    told["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_search_for_files_is_refined() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    std::fs::create_dir_all(app.work().join("sub/deep")).unwrap();
    for name in ["alpha.txt", "sub/beta.rs", "sub/deep/alphabet.md"] {
        std::fs::write(app.work().join(name), "x").unwrap();
    }
    let mut client = app.client().await;
    let start = json!({"sessionId": "s", "roots": [app.cwd()]});
    assert_eq!(client.result("fuzzyFileSearch/sessionStart", start.clone()).await, json!({}));
    assert_eq!(found(&mut client, "").await, [] as [&str; 0]);
    let update = |query: &str| json!({"sessionId": "s", "query": query});
    client.result("fuzzyFileSearch/sessionUpdate", update("alp")).await;
    assert_eq!(found(&mut client, "alp").await, ["alpha.txt", "sub/deep/alphabet.md"]);
    client.result("fuzzyFileSearch/sessionUpdate", update("alpb")).await;
    assert_eq!(found(&mut client, "alpb").await, ["sub/deep/alphabet.md"]);
    // One of the same name takes its place and looks again.
    std::fs::write(app.work().join("alpine"), "x").unwrap();
    client.result("fuzzyFileSearch/sessionStart", start).await;
    client.result("fuzzyFileSearch/sessionUpdate", update("alpi")).await;
    assert_eq!(found(&mut client, "alpi").await, ["alpine"]);
    for _ in 0..2 {
        assert_eq!(client.result("fuzzyFileSearch/sessionStop", json!({"sessionId": "s"})).await, json!({}));
    }
    let (code, message) = client.error("fuzzyFileSearch/sessionUpdate", update("a")).await;
    assert_eq!((code, message.as_str()), (-32600, "fuzzy file search session not found: s"));
    for (params, why) in [
        (json!({"sessionId": "", "roots": ["/"]}), "sessionId must not be empty"),
        (json!({"sessionId": "t", "roots": []}), "roots must not be empty"),
        (json!({"sessionId": "t", "roots": ["/"], "environmentId": "ghost"}), "ghost"),
    ] {
        let (code, message) = client.error("fuzzyFileSearch/sessionStart", params).await;
        assert!(code == -32600 && message.contains(why), "{message}");
    }
    // A place that is not there is told, and the others are looked at all the same.
    client.result("fuzzyFileSearch/sessionStart", json!({"sessionId": "t", "roots": ["/nowhere/at/all", app.cwd()]})).await;
    assert!(notice(&mut client, "warning").await["message"].as_str().unwrap().contains("/nowhere/at/all"));
    client.result("fuzzyFileSearch/sessionUpdate", json!({"sessionId": "t", "query": "beta"})).await;
    assert_eq!(found(&mut client, "beta").await, ["sub/beta.rs"]);
    for number in 0..15 {
        client.result("fuzzyFileSearch/sessionStart", json!({"sessionId": format!("n{number}"), "roots": [app.cwd()]})).await;
    }
    let (_, message) = client.error("fuzzyFileSearch/sessionStart", json!({"sessionId": "one more", "roots": [app.cwd()]})).await;
    assert!(message.contains("16 searches at a time"), "{message}");
}

fn skill(root: &Path, name: &str) -> String {
    let folder = root.join(".agents/skills").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("SKILL.md");
    std::fs::write(&file, format!("---\nname: {name}\ndescription: about {name}\n---\nDo it.\n")).unwrap();
    file.canonicalize().unwrap().display().to_string()
}

/// Which skills of a directory are on.
async fn enabled(client: &mut outpost_testkit::Client, cwd: &str) -> Vec<String> {
    let listed = client.result("skills/list", json!({"cwds": [cwd]})).await;
    let skills = listed["data"][0]["skills"].as_array().unwrap().clone();
    skills.into_iter().filter(|skill| skill["enabled"] == true).map(|skill| skill["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_skill_is_switched_off_and_on() {
    let mut app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    std::fs::create_dir_all(app.work().join(".git")).unwrap();
    let (greeting, _) = (skill(app.work(), "greeting"), skill(app.work(), "parting"));
    let mut client = app.client().await;
    let cwd = app.cwd();
    let mut all = enabled(&mut client, &cwd).await;
    all.sort();
    assert_eq!(all, ["greeting", "parting"]);
    let off = json!({"path": greeting, "enabled": false});
    assert_eq!(client.result("skills/config/write", off).await, json!({"effectiveEnabled": false}));
    notice(&mut client, "skills/changed").await;
    assert_eq!(enabled(&mut client, &cwd).await, ["parting"]);
    // The model is not told of it either.
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "hello").await;
    let body = app.model.requests().pop().unwrap().body.to_string();
    assert!(body.contains("about parting") && !body.contains("about greeting"), "{body}");
    client.result("skills/config/write", json!({"name": "parting", "enabled": false})).await;
    assert_eq!(enabled(&mut client, &cwd).await, [] as [&str; 0]);
    // It is written down, so it holds after a restart.
    app.restart();
    let mut client = app.client().await;
    assert_eq!(enabled(&mut client, &cwd).await, [] as [&str; 0]);
    client.result("skills/config/write", json!({"name": "parting", "enabled": true})).await;
    client.result("skills/config/write", json!({"path": greeting, "enabled": true})).await;
    assert_eq!(enabled(&mut client, &cwd).await.len(), 2);
    let config = std::fs::read_to_string(app.home().join("config.toml")).unwrap();
    assert!(!config.contains("greeting") && !config.contains("parting"), "{config}");
    for params in [json!({"enabled": true}), json!({"enabled": true, "name": " "}), json!({"enabled": true, "name": "a", "path": "/b"})] {
        let (_, message) = client.error("skills/config/write", params).await;
        assert!(message.contains("exactly one of path or name"), "{message}");
    }
}

#[tokio::test]
async fn settings_of_one_turn_end_with_it() {
    let waiting = json!({"cmd": "while ! test -e go; do sleep 0.05; done", "yield_time_ms": 20000});
    let app =
        AppServer::start(OUTPOST, vec![Reply::call("c", "exec_command", &waiting), Reply::message("done"), Reply::message("again")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({"model": "usual"})).await;
    let running = begin(&mut client, &id, "go").await;
    notice(&mut client, "item/started").await;
    let change = |turn: &str| json!({"threadId": id, "turnId": turn, "model": "other", "effort": "high"});
    // Whether the first step is asked already does not matter: it holds from the next one on.
    while app.model.requests().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(client.result("turn/settings/update", change(&running)).await, json!({"status": "applied"}));
    assert_eq!(client.result("turn/settings/update", change("nope")).await, json!({"status": "targetUnavailable"}));
    std::fs::write(app.work().join("go"), "").unwrap();
    assert_eq!(completed(&mut client, &running).await["status"], "completed");
    assert_eq!(client.result("turn/settings/update", change(&running)).await, json!({"status": "targetUnavailable"}));
    turn(&mut client, &id, "and now").await;
    let asked: Vec<Value> = app.model.requests().into_iter().map(|request| request.body).collect();
    let models: Vec<&str> = asked.iter().map(|body| body["model"].as_str().unwrap()).collect();
    assert_eq!(models, ["usual", "other", "usual"]);
    assert_eq!((&asked[1]["reasoning"]["effort"], asked[2]["reasoning"]["effort"] == "high"), (&json!("high"), false));
    assert_eq!(client.result("thread/read", json!({"threadId": id})).await["thread"]["model"], "usual");
    for (params, why) in [
        (json!({"threadId": id, "turnId": running, "serviceTier": "fast"}), "`serviceTier` cannot be changed"),
        (json!({"threadId": id, "turnId": running, "summary": "auto"}), "`summary` cannot be changed"),
        (json!({"threadId": id, "turnId": running, "cwd": "/"}), "unknown field `cwd`"),
    ] {
        let (code, message) = client.error("turn/settings/update", params).await;
        assert!(code == -32600 && message.contains(why), "{message}");
    }
}

#[tokio::test]
async fn what_was_read_is_marked() {
    let mut app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let mark = |operation: &str, revision: &Value| json!({"threadId": id, "operation": {"type": operation}, "expectedRevision": revision});
    assert_eq!(client.result("thread/read", json!({"threadId": id})).await["readState"], Value::Null);
    assert_eq!(client.error("thread/readState/update", mark("read", &json!("x"))).await.1, "thread read state unavailable");
    let first = turn(&mut client, &id, "one").await["id"].take();
    let state = client.result("thread/read", json!({"threadId": id})).await["readState"].take();
    assert_eq!(state["firstUnread"], json!({"type": "turn", "turnId": first}));
    let read = client.result("thread/readState/update", mark("read", &state["revision"])).await["readState"].take();
    assert_eq!(read["firstUnread"], Value::Null);
    assert_eq!(notice(&mut client, "thread/readState/changed").await, json!({"threadId": id, "readState": read}));
    // Whoever has not seen the mark is told how it is now.
    let refused = client.call("thread/readState/update", mark("unread", &state["revision"])).await["error"].take();
    assert_eq!((&refused["code"], &refused["message"]), (&json!(-32600), &json!("read state changed")));
    assert_eq!(refused["data"], json!({"reason": "readStateConflict", "readState": read}));
    let second = turn(&mut client, &id, "two").await["id"].take();
    turn(&mut client, &id, "three").await;
    let state = client.result("thread/read", json!({"threadId": id})).await["readState"].take();
    assert_eq!(state["firstUnread"], json!({"type": "turn", "turnId": second}));
    assert_ne!(state["revision"], read["revision"]);
    app.restart();
    let mut client = app.client().await;
    let unread = client.result("thread/readState/update", mark("unread", &state["revision"])).await["readState"].take();
    assert_eq!(unread["firstUnread"], json!({"type": "threadStart"}));
    assert_eq!(client.result("thread/read", json!({"threadId": id})).await["readState"], unread);
}

#[tokio::test]
async fn what_there_is_not_is_told_with_what_to_do() {
    let config = "[mcp_servers.tickets]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let app = AppServer::start_with(OUTPOST, vec![], config).await;
    let mut client = app.connect().await;
    introduce(&mut client, Value::Null).await;
    assert_eq!(client.result("app/list", json!({})).await, json!({"data": [], "nextCursor": null}));
    let features = json!({"enablement": {"whatever": true}});
    assert_eq!(client.result("experimentalFeature/enablement/set", features).await, json!({"enablement": {}}));
    for (method, params, why) in [
        ("plugin/read", json!({"pluginName": "p", "marketplacePath": "/m.json"}), "selectedCapabilityRoots"),
        ("plugin/install", json!({"pluginName": "p", "remoteMarketplaceName": "m"}), "selectedCapabilityRoots"),
        ("plugin/uninstall", json!({"pluginId": "p@m"}), "plugin `p@m` is not installed"),
        ("mcpServer/oauth/login", json!({"name": "ghost"}), "No MCP server named 'ghost' found."),
        ("mcpServer/oauth/login", json!({"name": "tickets"}), "mcp_servers.tickets.bearer_token_env_var"),
        ("turn/settings/update", json!({"threadId": "x", "turnId": "y"}), "requires experimentalApi capability"),
        ("thread/sample/cancel", json!({"requestId": 1}), "requires experimentalApi capability"),
    ] {
        let (code, message) = client.error(method, params).await;
        assert!(code == -32600 && message.contains(why), "{method}: {message}");
    }
}

#[tokio::test]
async fn something_is_asked_aside() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("a title"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let ask = |turn: &Value, prompt: &str| json!({"threadId": id, "expectedTurnId": turn, "prompt": prompt});
    let (_, message) = client.error("thread/sample", ask(&json!("none"), "x")).await;
    assert!(message.contains("latest finished turn"), "{message}");
    let first = turn(&mut client, &id, "first words").await["id"].take();
    let answer = client.result("thread/sample", ask(&first, "a title, please")).await;
    assert_eq!((&answer["text"], &answer["sourceTurnId"]), (&json!("a title"), &first));
    assert!(answer["inputTokens"].is_u64() && answer["responseId"].is_string(), "{answer}");
    let body = app.model.requests().pop().unwrap().body.to_string();
    assert!(body.contains("first words") && body.contains("a title, please"), "{body}");
    // The thread knows nothing of it.
    turn(&mut client, &id, "second words").await;
    let body = app.model.requests().pop().unwrap().body.to_string();
    assert!(!body.contains("title"), "{body}");
    let turns = client.result("thread/turns/list", json!({"threadId": id})).await;
    assert_eq!(turns["data"].as_array().unwrap().len(), 2);
    let (_, message) = client.error("thread/sample", ask(&first, "x")).await;
    assert!(message.contains("latest finished turn"), "{message}");
    assert!(client.error("thread/sample", ask(&first, "")).await.1.contains("prompt"));
    assert_eq!(client.result("thread/sample/cancel", json!({"requestId": 77})).await, json!({}));
}
