//! What nodes of one database share beside threads: definitions of environments, and tokens.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use outpost_testkit::database_proxy::DatabaseProxy;
use outpost_testkit::postgres::Database;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{App, Server, command, joined, outpost};

/// A home whose store is this database.
fn home_on(database: &Database) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), format!("store = \"{}\"\n", database.url())).unwrap();
    home
}

/// A node whose standard error is kept in its home.
fn node_in(home: TempDir, name: &str) -> Server {
    let mut command = command(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--node", name]);
    command.stderr(File::create(home.path().join("stderr")).unwrap());
    Server::launch(command, home)
}

fn node_on(database: &Database, name: &str) -> Server {
    node_in(home_on(database), name)
}

async fn own_client(node: &Server) -> App {
    App::connect(node.url(), &node.own_token()).await
}

/// What a verb prints, which must succeed.
fn done(home: &Path, arguments: &[&str]) -> String {
    let output = outpost(home, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a verb says that fails with 1.
fn refused(home: &Path, arguments: &[&str]) -> String {
    let output = outpost(home, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The environments that a home knows, in their order.
fn known(home: &Path) -> Vec<String> {
    let listed: Value = serde_json::from_str(&done(home, &["env", "list", "--json"])).unwrap();
    listed["environments"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn ids(client: &mut App) -> Vec<String> {
    let listed = client.call("environment/list", json!({})).await;
    listed["data"].as_array().unwrap().iter().map(|one| one["environmentId"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a node knows exactly these environments.
async fn knows(client: &mut App, expected: &[&str]) {
    for _ in 0..1200 {
        if ids(client).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}, not {expected:?}", ids(client).await);
}

async fn says(node: &Server, text: &str) -> String {
    for _ in 0..1200 {
        let said = std::fs::read_to_string(node.home().join("stderr")).unwrap();
        if said.contains(text) {
            return said;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it does not say `{text}`: {}", std::fs::read_to_string(node.home().join("stderr")).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_environment_that_is_added_at_one_node_is_one_of_all() {
    let database = Database::create();
    let (first, second) = (node_on(&database, "a"), node_on(&database, "b"));
    let (mut at_first, mut at_second) = (own_client(&first).await, own_client(&second).await);
    done(first.home(), &["env", "add", "box", "--url", "ws://127.0.0.1:1"]);
    assert!(!first.home().join("environments.toml").exists(), "the store is where it is");
    knows(&mut at_second, &["local", "box"]).await;
    knows(&mut at_first, &["local", "box"]).await;
    assert_eq!(known(second.home()), ["local", "box"]);
    let again = refused(second.home(), &["env", "add", "box", "--url", "ws://127.0.0.1:2"]);
    assert!(again.contains("there is an environment `box` already"), "{again}");
    // Of two that add at once none undoes the other's.
    std::thread::scope(|scope| {
        for (node, name) in [(&first, "one"), (&second, "two")] {
            scope.spawn(move || done(node.home(), &["env", "add", name, "--url", "ws://127.0.0.1:1"]));
        }
    });
    done(second.home(), &["env", "remove", "box"]);
    let mut both = known(first.home());
    both.sort();
    assert_eq!(both, ["local", "one", "two"]);
    let order = known(first.home());
    knows(&mut at_first, &order.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(refused(first.home(), &["env", "remove", "box"]).contains("there is no environment `box`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_brought_in_once_and_later_edits_are_told() {
    let database = Database::create();
    let entry = |id: &str, port: u16| format!("[[environments]]\nid = \"{id}\"\nurl = \"ws://127.0.0.1:{port}\"\n");
    let first = home_on(&database);
    std::fs::write(first.path().join("environments.toml"), format!("# ours\n{}", entry("box", 1))).unwrap();
    let first = node_in(first, "a");
    says(&first, "was brought into the store").await;
    let mut at_first = own_client(&first).await;
    knows(&mut at_first, &["local", "box"]).await;
    // Another node's file comes too late, and it is told what of it has no effect.
    let second = home_on(&database);
    let file = second.path().join("environments.toml");
    std::fs::write(&file, format!("{}{}", entry("box", 2), entry("gpu", 3))).unwrap();
    let second = node_in(second, "b");
    let said = says(&second, "outpost env import file").await;
    assert!(said.contains("has no effect") && said.contains("`gpu`, `box`"), "{said}");
    let mut at_second = own_client(&second).await;
    assert_eq!(ids(&mut at_second).await, ["local", "box"]);
    // An edit while it runs, too.
    std::fs::write(&file, format!("{}{}", entry("box", 1), entry("late", 3))).unwrap();
    says(&second, "`late`").await;
    assert_eq!(ids(&mut at_second).await, ["local", "box"]);

    // It can be brought in again. What both define differently is named, and stays.
    std::fs::write(&file, format!("{}{}", entry("box", 2), entry("gpu", 3))).unwrap();
    let shown = refused(second.home(), &["env", "import", "file"]);
    assert!(shown.contains("+ gpu") && shown.contains("~ box") && shown.contains("--replace"), "{shown}");
    assert_eq!(known(first.home()), ["local", "box"], "nothing is changed");
    let shown = done(second.home(), &["env", "import", "file", "gpu", "--dry-run"]);
    assert!(shown.contains("+ gpu") && !shown.contains("box"), "{shown}");
    assert_eq!(known(first.home()), ["local", "box"]);
    done(second.home(), &["env", "import", "file", "gpu"]);
    knows(&mut at_first, &["local", "box", "gpu"]).await;
    done(second.home(), &["env", "import", "file", "--replace"]);
    let listed: Value = serde_json::from_str(&done(first.home(), &["env", "list", "--json"])).unwrap();
    let address = listed["environments"].as_array().unwrap().iter().find(|one| one["id"] == "box").unwrap()["address"].clone();
    assert!(address.as_str().unwrap().contains(":2"), "{address}");
    assert!(done(second.home(), &["env", "import", "file"]).contains("= box"), "there is nothing left to bring in");
    // What is wrong as a whole is not brought in.
    std::fs::write(&file, "nonsense = 1\n").unwrap();
    assert!(refused(second.home(), &["env", "import", "file"]).contains("unknown key `nonsense`"));
}

/// Removing is the first thing that is done with this database: the rest of the file is brought in before.
#[test]
fn what_a_file_defines_is_brought_in_before_one_of_it_is_removed() {
    let database = Database::create();
    let home = home_on(&database);
    let entry = |id: &str| format!("[[environments]]\nid = \"{id}\"\nurl = \"ws://127.0.0.1:1\"\n");
    std::fs::write(home.path().join("environments.toml"), format!("{}{}", entry("box"), entry("gpu"))).unwrap();
    done(home.path(), &["env", "remove", "box"]);
    assert_eq!(known(home.path()), ["local", "gpu"]);
}

/// A file that says the same in a form that cannot be merged is no file that says something else.
#[test]
fn a_file_that_equals_the_store_is_not_complained_of() {
    let database = Database::create();
    let home = home_on(&database);
    let inline = "environments = [{ id = \"box\", url = \"ws://127.0.0.1:1\" }]\n";
    std::fs::write(home.path().join("environments.toml"), inline).unwrap();
    assert_eq!(known(home.path()), ["local", "box"]);
    let again = outpost(home.path(), &["env", "list"]);
    assert!(!String::from_utf8_lossy(&again.stderr).contains("has no effect"), "{again:?}");
    let import = outpost(home.path(), &["env", "import", "file"]);
    let said = String::from_utf8_lossy(&import.stderr);
    assert!(import.status.success() && said.contains("word for word"), "{said}");
}

/// A run ends with the definitions with which it began, and holds no connection that hears of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_does_not_listen_for_definitions() {
    let database = Database::create();
    let proxy = DatabaseProxy::start(database.url());
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), format!("store = \"{}\"\n", proxy.url())).unwrap();
    let place = format!("local={}", home.path().display());
    let path = home.path().to_owned();
    let run = move || outpost(&path, &["exec", "--sandbox", "danger-full-access", "-e", &place, "$ sleep 2"]);
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let statements = proxy.take_statements();
    assert!(statements.iter().any(|text| text.contains("outpost_shared")), "definitions are read: {statements:#?}");
    assert!(!statements.iter().any(|text| text.contains("listen outpost_shared")), "{statements:#?}");
}

#[test]
fn a_home_on_its_own_has_nothing_to_bring_in() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("environments.toml"), "").unwrap();
    assert!(refused(home.path(), &["env", "import", "file"]).contains("there is no shared store"));
    assert!(refused(home.path(), &["env", "import", "ssh", "--replace"]).contains("env import file"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_one_node_is_one_of_all_until_it_is_revoked_anywhere() {
    let database = Database::create();
    let (first, second) = (node_on(&database, "a"), node_on(&database, "b"));
    let secret = first.token(&["--client", "--name", "anna", "--role", "operator"]);
    assert!(!first.home().join("tokens/issued").exists(), "the store is where it is");
    assert_eq!(database.ask(&format!("select count(*) from outpost_shared where content like '%{secret}%' or key like '%{secret}%'")), "0");
    for node in [&first, &second] {
        assert_eq!(node.get("/metrics", Some(&secret)).await.0, 200);
    }
    let (mut one, mut two) = (App::connect(first.url(), &secret).await, App::connect(second.url(), &secret).await);
    two.call("thread/list", json!({})).await;
    // A home without a server that shares the store may take it back.
    let elsewhere = home_on(&database);
    let listed: Vec<Value> = serde_json::from_str(&done(elsewhere.path(), &["token", "list", "--json"])).unwrap();
    assert_eq!(listed[0]["person"]["name"], "anna");
    done(elsewhere.path(), &["token", "revoke", listed[0]["name"].as_str().unwrap()]);
    for node in [&first, &second] {
        assert_eq!(node.get("/metrics", Some(&secret)).await.0, 401, "at the next request");
    }
    while one.read().await.is_some() {}
    while two.read().await.is_some() {}
    assert!(refused(first.home(), &["token", "revoke", listed[0]["name"].as_str().unwrap()]).contains("outpost token list"));
}

/// A home that had tokens before keeps them when it begins to share a store; one that was revoked meanwhile does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_in_files_are_brought_in_and_stay_revoked() {
    let database = Database::create();
    let old = tempfile::tempdir().unwrap();
    let kept = crate::support::token(old.path(), &["--client"]);
    let lost = crate::support::token(old.path(), &["--metrics"]);
    std::fs::write(old.path().join("config.toml"), format!("store = \"{}\"\n", database.url())).unwrap();
    // Verbs do not bring them in: only the server of this home does.
    assert_eq!(done(old.path(), &["token", "list"]), "");
    assert_eq!(database.ask("select count(*) from outpost_shared where kind = 'token'"), "0");
    let node = node_in(old, "a");
    says(&node, "2 tokens").await;
    let second = node_on(&database, "b");
    assert_eq!((second.get("/metrics", Some(&kept)).await.0, second.get("/metrics", Some(&lost)).await.0), (200, 200));
    let listed: Vec<Value> = serde_json::from_str(&done(second.home(), &["token", "list", "--json"])).unwrap();
    let name = listed.iter().find(|token| token["scope"]["kind"] == "metrics").unwrap()["name"].as_str().unwrap().to_owned();
    done(second.home(), &["token", "revoke", &name]);
    // One whose record cannot be read is left out of the list, and can be revoked as well.
    let odd = "0123456789ab".repeat(5);
    database.ask(&format!("insert into outpost_shared (kind, key, content) values ('token', '{odd}', '{{}}')"));
    let listed: Vec<Value> = serde_json::from_str(&done(second.home(), &["token", "list", "--json"])).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(done(second.home(), &["token", "revoke", &odd[..12]]).contains("could not be read"));
    let again = node_in(node.kill(), "a");
    assert_eq!((again.get("/metrics", Some(&kept)).await.0, again.get("/metrics", Some(&lost)).await.0), (200, 401));
}

/// An executor's id belongs to the first install at whichever node that joined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_joins_any_node_with_one_token() {
    let database = Database::create();
    let (first, second) = (node_on(&database, "a"), node_on(&database, "b"));
    let token = first.token(&["--executor", "gpu"]);
    let mut executor = joined(second.url(), "gpu", &token);
    let home = executor.kill_and_keep_home();
    let other = crate::support::Trying::start(&["--join", first.url(), "--id", "gpu"], &token, tempfile::tempdir().unwrap());
    assert!(other.says("trying again").contains("belongs to another install"));
    let _executor = crate::support::joined_in(first.url(), "gpu", &token, home);
    let mut at_second = own_client(&second).await;
    knows(&mut at_second, &["local", "gpu"]).await;
    let listed: Vec<Value> = serde_json::from_str(&done(second.home(), &["token", "list", "--json"])).unwrap();
    done(second.home(), &["token", "revoke", listed[0]["name"].as_str().unwrap()]);
    knows(&mut at_second, &["local"]).await;
    let mut at_first = own_client(&first).await;
    knows(&mut at_first, &["local"]).await;
}
