//! `fs/*`: on this machine and elsewhere, refusals, watches.

use std::path::Path;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::app::{AppServer, introduce, notice};
use outpost_testkit::client::{base64, decode};
use serde_json::json;

use super::OUTPOST;

#[tokio::test]
async fn files_are_written_read_listed_copied_and_removed() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let at = |name: &str| format!("{}/{name}", app.cwd());
    client.result("fs/createDirectory", json!({"path": at("d/e")})).await;
    client.result("fs/writeFile", json!({"path": at("d/a"), "dataBase64": base64("hello")})).await;
    assert_eq!(decode(&client.result("fs/readFile", json!({"path": at("d/a")})).await["dataBase64"]), b"hello");
    let metadata = client.result("fs/getMetadata", json!({"path": at("d/a")})).await;
    assert!(metadata["isFile"] == true && metadata["isDirectory"] == false && metadata["modifiedAtMs"].as_u64() > Some(0), "{metadata}");
    client.result("fs/copy", json!({"sourcePath": at("d"), "destinationPath": at("c"), "recursive": true})).await;
    let mut entries = client.result("fs/readDirectory", json!({"path": at("c")})).await["entries"].take();
    entries.as_array_mut().unwrap().sort_by_key(|entry| entry["fileName"].to_string());
    assert_eq!(
        entries,
        json!([{"fileName": "a", "isDirectory": false, "isFile": true}, {"fileName": "e", "isDirectory": true, "isFile": false}])
    );
    client.result("fs/remove", json!({"path": at("c")})).await;
    assert!(!app.work().join("c").exists());
    client.result("fs/remove", json!({"path": at("c")})).await;
}

#[tokio::test]
async fn refusals_are_those_that_clients_know() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let missing = format!("{}/none", app.cwd());
    let missing_text = "No such file or directory (os error 2)".to_owned();
    assert_eq!(client.error("fs/readFile", json!({"path": missing})).await, (-32603, missing_text.clone()));
    assert_eq!(client.error("fs/remove", json!({"path": missing, "force": false})).await, (-32603, missing_text));
    let relative = "Invalid request: AbsolutePathBuf deserialized without a base path".to_owned();
    for path in ["rel", "file:///tmp", "~/x"] {
        assert_eq!(client.error("fs/readFile", json!({"path": path})).await, (-32600, relative.clone()), "{path}");
    }
    let (code, text) = client.error("fs/writeFile", json!({"path": missing, "dataBase64": "***"})).await;
    assert!(code == -32600 && text.starts_with("fs/writeFile requires valid base64 dataBase64: "), "{text}");
    let (code, text) = client.error("fs/copy", json!({"sourcePath": app.cwd(), "destinationPath": missing})).await;
    assert_eq!((code, text.as_str()), (-32600, "fs/copy requires recursive: true when sourcePath is a directory"));
    let (code, text) = client.error("fs/readFile", json!({"path": missing, "environmentId": "ghost"})).await;
    assert_eq!((code, text.as_str()), (-32600, "unknown environment id `ghost`"));
}

#[tokio::test]
async fn another_environment_has_files_of_its_own_for_clients_that_may_know() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let mut client = app.client().await;
    client.result("environment/add", json!({"environmentId": "worker", "execServerUrl": executor.url()})).await;
    let path = format!("{}/there", app.cwd());
    client.result("fs/writeFile", json!({"path": path, "dataBase64": base64("x"), "environmentId": "worker"})).await;
    let found = client.result("fs/readFile", json!({"path": path, "environmentId": "worker"})).await;
    assert_eq!(decode(&found["dataBase64"]), b"x");
    client.result("environment/add", json!({"environmentId": "dead", "execServerUrl": "ws://127.0.0.1:1"})).await;
    let (code, _) = client.error("fs/readFile", json!({"path": path, "environmentId": "dead"})).await;
    assert_eq!(code, -32603, "what was asked of it is not done here instead");

    let mut plain = app.connect().await;
    introduce(&mut plain, json!({})).await;
    let (code, text) = plain.error("fs/readFile", json!({"path": path, "environmentId": "worker"})).await;
    assert_eq!((code, text.as_str()), (-32600, "fs/readFile.environmentId requires experimentalApi capability"));
    plain.result("fs/readFile", json!({"path": path, "environmentId": null})).await;
}

#[tokio::test]
async fn watches_tell_changes_until_they_are_ended() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let at = |name: &str| format!("{}/{name}", app.cwd());
    assert_eq!(client.result("fs/watch", json!({"watchId": "w", "path": app.cwd()})).await["path"], app.cwd());
    let (code, text) = client.error("fs/watch", json!({"watchId": "w", "path": app.cwd()})).await;
    assert_eq!((code, text.as_str()), (-32600, "watchId already exists: w"));
    client.result("fs/writeFile", json!({"path": at("one"), "dataBase64": base64("1")})).await;
    let changed = notice(&mut client, "fs/changed").await;
    assert_eq!(changed, json!({"watchId": "w", "changedPaths": [at("one")]}));
    client.result("fs/unwatch", json!({"watchId": "w"})).await;
    client.result("fs/unwatch", json!({"watchId": "w"})).await;
    // What is not there yet can be watched, too.
    client.result("fs/watch", json!({"watchId": "w", "path": at("later")})).await;
    std::fs::write(app.work().join("other"), "").unwrap();
    std::fs::write(app.work().join("later"), "").unwrap();
    let changed = notice(&mut client, "fs/changed").await;
    assert_eq!(changed, json!({"watchId": "w", "changedPaths": [at("later")]}));
}

#[tokio::test]
async fn one_client_cannot_watch_everything_and_the_others_still_can() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let (mut greedy, mut other) = (app.client().await, app.client().await);
    for number in 0..256 {
        greedy.result("fs/watch", json!({"watchId": format!("w{number}"), "path": app.cwd()})).await;
    }
    let (code, text) = greedy.error("fs/watch", json!({"watchId": "more", "path": app.cwd()})).await;
    assert_eq!((code, text.as_str()), (-32600, "a client may have 256 watches at a time; end one with fs/unwatch first"));
    other.result("fs/watch", json!({"watchId": "mine", "path": app.cwd()})).await;
    std::fs::write(app.work().join("seen"), "").unwrap();
    assert_eq!(notice(&mut other, "fs/changed").await["watchId"], "mine");
    greedy.result("fs/unwatch", json!({"watchId": "w7"})).await;
    greedy.result("fs/watch", json!({"watchId": "more", "path": app.cwd()})).await;
}

#[tokio::test]
async fn files_are_found_by_a_few_letters() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    std::fs::create_dir_all(app.work().join("src/.hidden")).unwrap();
    for name in ["src/main.rs", "src/domain.rs", "src/.hidden/main.rs", "notes.md"] {
        std::fs::write(app.work().join(name), "").unwrap();
    }
    let found = client.result("fuzzyFileSearch", json!({"query": "main", "roots": [app.cwd()], "cancellationToken": null})).await;
    let files: Vec<&str> = found["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files, ["src/main.rs", "src/domain.rs"]);
    let best = &found["files"][0];
    assert_eq!((&best["file_name"], &best["match_type"], &best["root"]), (&json!("main.rs"), &json!("file"), &json!(app.cwd())));
    assert_eq!(best["indices"], json!([4, 5, 6, 7]));
    assert_eq!(client.result("fuzzyFileSearch", json!({"query": "", "roots": [app.cwd()]})).await, json!({"files": []}));
}
