//! `outpost token`, and what revoking one does to whoever uses it.

use std::path::Path;

use outpost_testkit::RawSocket;
use outpost_testkit::executor::eventually;
use serde_json::Value;

use crate::support::{App, Server, Trying, answer, http, joined, joined_in, joined_readable, listens, outpost};

fn list(home: &Path) -> Vec<Value> {
    let listed = outpost(home, &["token", "list", "--json"]);
    serde_json::from_slice(&listed.stdout).unwrap()
}

#[test]
fn a_secret_is_shown_once_and_kept_as_a_digest() {
    let home = tempfile::tempdir().unwrap();
    let made = outpost(home.path(), &["token", "create", "--executor", "gpu", "--note", "the box in the cellar"]);
    let secret = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    assert_eq!(secret.len(), 64);
    let listed = list(home.path());
    assert_eq!((listed[0]["scope"]["kind"].as_str(), listed[0]["scope"]["id"].as_str()), (Some("executor"), Some("gpu")));
    assert_eq!(listed[0]["note"], "the box in the cellar");
    let everything = walk(home.path());
    assert!(!everything.is_empty() && everything.iter().all(|text| !text.contains(&secret)));
    let name = listed[0]["name"].as_str().unwrap();
    let revoked = outpost(home.path(), &["token", "revoke", name]);
    assert!(revoked.status.success() && list(home.path()).is_empty());
    let again = outpost(home.path(), &["token", "revoke", name]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("outpost token list"));
    for wrong in [&["token", "create"][..], &["token", "create", "--client", "--metrics"], &["token", "create", "--executor", "local"]] {
        assert!(!outpost(home.path(), wrong).status.success(), "{wrong:?}");
    }
}

/// A machine that has never dialled in has not failed.
#[tokio::test]
async fn a_token_that_was_never_used_waits_for_the_first_connection() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let listed = || String::from_utf8(outpost(server.home(), &["token", "list"]).stdout).unwrap();
    assert!(listed().contains("waiting for the first connection"), "{}", listed());
    let mut app = App::connect(server.url(), &server.own_token()).await;
    let mut gpu = async || {
        loop {
            let all = app.call("environment/list", serde_json::json!({})).await["data"].take();
            let found = all.as_array().unwrap().iter().find(|entry| entry["environmentId"] == "gpu").cloned();
            if let Some(found) = found {
                return found;
            }
        }
    };
    assert_eq!(gpu().await["reason"], "waiting for the first connection");
    let executor = joined(server.url(), "gpu", &token);
    while gpu().await["reason"] == "waiting for the first connection" {}
    assert!(!listed().contains("waiting for"), "{}", listed());
    drop(executor);
    assert_ne!(gpu().await["reason"], "waiting for the first connection");
}

/// The texts of all files below.
fn walk(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![std::fs::read_to_string(path).unwrap_or_default()] }).collect()
}

#[tokio::test]
async fn who_may_do_what() {
    let server = Server::start();
    let (client, metrics, executor) = (server.token(&["--client"]), server.token(&["--metrics"]), server.token(&["--executor", "gpu"]));
    let own = server.own_token();
    assert_eq!(server.get("/readyz", None).await.0, 200);
    assert_eq!(server.get("/healthz", None).await.0, 200);
    assert_eq!(server.get("/nothing", None).await.0, 404);
    // Nobody knows who asks, or it is known and something else is its business. What follows the check is a 404: no such executor.
    for (path, token, status) in [
        ("/executors/reach/gpu", None, 401),
        ("/executors/reach/gpu", Some("wrong"), 401),
        ("/executors/reach/gpu", Some(executor.as_str()), 403),
        ("/executors/reach/gpu", Some(metrics.as_str()), 403),
        ("/executors/reach/gpu", Some(client.as_str()), 404),
        ("/executors/reach/gpu", Some(own.as_str()), 404),
        ("/executors/join?id=gpu", None, 401),
        ("/executors/join?id=gpu&executor=e&instance=i&link=1", Some(client.as_str()), 403),
        ("/executors/join?id=other&executor=e&instance=i&link=1", Some(executor.as_str()), 403),
        ("/executors/join?id=gpu&instance=i&link=1", Some(executor.as_str()), 400),
        ("/executors/join?id=gpu&executor=e&instance=i&link=x", Some(executor.as_str()), 400),
        // Everything is right, but it is no websocket.
        ("/executors/join?id=gpu&executor=e&instance=i&link=1", Some(executor.as_str()), 400),
    ] {
        assert_eq!(server.get(path, token).await.0, status, "{path} {token:?}");
    }
    let evil = "GET /executors/reach/gpu HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(http(server.address(), evil).await.0, 403);
    let elsewhere = "GET /readyz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(http(server.address(), elsewhere).await.0, 403);
}

#[test]
fn a_wrong_token_is_refused_with_a_reason() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let home = || tempfile::tempdir().unwrap();
    let wrong = Trying::start(&["--join", server.url(), "--id", "gpu"], &"0".repeat(64), home());
    assert!(wrong.says("trying again").contains("outpost token create --executor"));
    let other = Trying::start(&["--join", server.url(), "--id", "cpu"], &token, home());
    assert!(other.says("trying again").contains("not for joining as `cpu`"));
}

#[tokio::test]
async fn a_revoked_token_ends_what_is_open_by_it() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let executor = joined_readable(server.url(), "gpu", &token);
    assert!(!listens(executor.pid()));
    let client = server.token(&["--client"]);
    assert_ne!(server.get("/executors/reach/gpu", Some(&client)).await.0, 404);
    let name = list(server.home())[0]["name"].as_str().unwrap().to_owned();
    assert!(outpost(server.home(), &["token", "revoke", &name]).status.success());
    for _ in 0..1200 {
        if server.get("/executors/reach/gpu", Some(&client)).await.0 == 404 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it is still connected");
}

#[tokio::test]
async fn one_id_is_one_install_until_the_operator_says_otherwise() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let mut first = joined(server.url(), "gpu", &token);
    // Another install, with the right token, while the first is there and when it is gone.
    let stranger = Trying::start(&["--join", server.url(), "--id", "gpu"], &token, tempfile::tempdir().unwrap());
    assert!(stranger.says("trying again").contains("belongs to another install"));
    let home = first.kill_and_keep_home();
    let late = Trying::start(&["--join", server.url(), "--id", "gpu"], &token, tempfile::tempdir().unwrap());
    assert!(late.says("trying again").contains("belongs to another install"));
    // The same install may come back.
    let again = joined_in(server.url(), "gpu", &token, home);
    drop(again);
    // Once its token is revoked, the id is free.
    let name = list(server.home())[0]["name"].as_str().unwrap().to_owned();
    assert!(outpost(server.home(), &["token", "revoke", &name]).status.success());
    let token = server.token(&["--executor", "gpu"]);
    let _second = joined(server.url(), "gpu", &token);
}

#[tokio::test]
async fn two_starts_of_one_install_do_not_fight() {
    let server = Server::start();
    let token = server.token(&["--executor", "gpu"]);
    let mut first = joined(server.url(), "gpu", &token);
    // A copy of its home: the same install.
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("executor")).unwrap();
    std::fs::copy(first.home().join("executor/identity"), copy.path().join("executor/identity")).unwrap();
    let second = Trying::start(&["--join", server.url(), "--id", "gpu"], &token, copy);
    assert!(second.says("trying again").contains("another start of the executor"));
    assert!(first.is_running());
    // When the first one is gone, the other one is let in.
    first.kill();
    second.says("joined");
    eventually("the first is gone", || true).await;
}

/// Logs in as a browser does; the cookie.
async fn log_in(server: &Server, token: &str) -> String {
    let body = format!("token={token}");
    let head = format!("POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let answer = answer(server.address(), &format!("{head}{kind}\r\n{body}")).await;
    let cookie = answer.lines().find_map(|line| line.to_ascii_lowercase().starts_with("set-cookie:").then(|| line[11..].trim().to_owned()));
    cookie.unwrap_or_else(|| panic!("no cookie: {answer}")).split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn logging_out_ends_what_was_opened_with_the_cookie() {
    let server = Server::start();
    for token in [server.own_token(), server.token(&["--client"])] {
        let (cookie, other) = (log_in(&server, &token).await, log_in(&server, &token).await);
        let mut open = RawSocket::connect(server.address()).await;
        assert_eq!(open.upgrade(&[("cookie", &cookie)]).await.status, 101);
        let mut stays = RawSocket::connect(server.address()).await;
        assert_eq!(stays.upgrade(&[("cookie", &other)]).await.status, 101);
        let request =
            format!("POST /logout HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\nCookie: {cookie}\r\n\r\n");
        assert_eq!(http(server.address(), &request).await.0, 303);
        assert_eq!(open.ended().await, Some(1008));
        assert_eq!(RawSocket::connect(server.address()).await.upgrade(&[("cookie", &cookie)]).await.status, 401);
        let hello = serde_json::json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "page", "version": "1"}}});
        assert!(stays.call(&hello).await["result"].is_object(), "another session is another matter");
    }
}

#[test]
fn nobody_is_let_in_unasked_through_a_proxy() {
    let home = tempfile::tempdir().unwrap();
    let refused =
        outpost(home.path(), &["serve", "--listen", "ws://127.0.0.1:0", "--behind-proxy", "--no-auth", "--allow-host", "hub.example"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--no-auth is for those on this machine only"), "{refused:?}");
}

/// A viewer reads and follows; an operator works; limits of a token hold for both.
#[tokio::test]
async fn a_role_says_what_a_person_may_do() {
    let server = Server::start();
    let own = server.own_token();
    let mut admin = App::connect(server.url(), &own).await;
    let id = admin.call("thread/start", serde_json::json!({})).await["thread"]["id"].as_str().unwrap().to_owned();
    let say = |text: &str| serde_json::json!({"threadId": id, "input": [{"type": "text", "text": text}]});
    admin.call("turn/start", say("$ true")).await;

    let mut viewer = App::connect(server.url(), &server.token(&["--client", "--name", "vera", "--role", "viewer"])).await;
    viewer.call("thread/resume", serde_json::json!({"threadId": id})).await;
    viewer.call("thread/list", serde_json::json!({})).await;
    for (method, params) in [
        ("turn/start", say("$ id")),
        ("thread/start", serde_json::json!({})),
        ("command/exec", serde_json::json!({"command": ["id"]})),
        ("fs/readFile", serde_json::json!({"path": "/etc/hostname"})),
        ("thread/resume", serde_json::json!({"threadId": id, "approvalPolicy": "never"})),
        ("config/value/write", serde_json::json!({"keyPath": "model", "value": "x", "mergeStrategy": "replace"})),
    ] {
        let why = viewer.refused(method, params).await;
        assert!(why.contains("vera may not do that"), "{method}: {why}");
    }

    let mut operator = App::connect(server.url(), &server.token(&["--client", "--name", "otto", "--role", "operator"])).await;
    operator.call("thread/resume", serde_json::json!({"threadId": id})).await;
    operator.call("turn/start", say("$ true")).await;
    let why = operator.refused("environment/add", serde_json::json!({"environmentId": "x", "url": "ws://127.0.0.1:1"})).await;
    assert!(why.contains("needs the role admin"), "{why}");
    let started = operator.call("thread/start", serde_json::json!({})).await["thread"]["id"].as_str().unwrap().to_owned();
    let text = serde_json::json!({"threadId": started, "input": [{"type": "text", "text": "$ true"}]});
    operator.call("turn/start", text).await;
    let seen = admin.call("thread/overview", serde_json::json!({"threadIds": [started]})).await;
    assert_eq!(seen["data"][0]["createdBy"], "otto", "{seen}");

    // Limited to one thread, and to an environment in which none works.
    let mut one = App::connect(server.url(), &server.token(&["--client", "--name", "uma", "--thread", &started])).await;
    let listed = one.call("thread/list", serde_json::json!({})).await;
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|thread| thread["id"].clone()).collect();
    assert_eq!(ids, [serde_json::json!(started)], "{listed}");
    one.call("thread/resume", serde_json::json!({"threadId": started})).await;
    for (method, params) in [
        ("thread/read", serde_json::json!({"threadId": id})),
        ("thread/resume", serde_json::json!({"threadId": id})),
        ("thread/start", serde_json::json!({})),
        ("command/exec", serde_json::json!({"command": ["id"]})),
        // Naming its thread beside the matter opens nothing.
        ("command/exec", serde_json::json!({"command": ["id"], "threadId": started})),
        ("fs/readFile", serde_json::json!({"path": "/etc/hostname", "threadId": started})),
        ("thread/start", serde_json::json!({"threadId": started})),
        ("config/value/write", serde_json::json!({"keyPath": "model", "value": "x", "mergeStrategy": "replace", "threadId": started})),
        ("thread/fork", serde_json::json!({"threadId": started})),
        ("thread/resume", serde_json::json!({"threadId": started, "config": {"mcp_servers": {"x": {"command": "id"}}}})),
        // Parameters in a list are read by handlers, but not by the check.
        ("thread/read", serde_json::json!([id])),
    ] {
        assert!(one.refused(method, params).await.contains("uma may not do that"), "{method}");
    }
    let box_only = server.token(&["--client", "--name", "bob", "--environment", "box"]);
    let mut limited = App::connect(server.url(), &box_only).await;
    assert_eq!(limited.call("thread/list", serde_json::json!({})).await["data"], serde_json::json!([]));
    for (method, params) in [
        ("thread/start", serde_json::json!({})),
        ("thread/start", serde_json::json!({"environments": [{"environmentId": "local", "cwd": "/"}]})),
        ("turn/start", say("$ id")),
        ("command/exec", serde_json::json!({"command": ["id"], "environmentId": "box"})),
    ] {
        assert!(limited.refused(method, params).await.contains("bob may not do that"), "{method}");
    }
    // What ran in an environment is told of threads within the limits only.
    let of = |activity: &Value| -> Vec<String> {
        let all = [&activity["commands"], &activity["processes"]].into_iter().flat_map(|list| list.as_array().unwrap());
        all.map(|entry| entry["threadId"].as_str().unwrap().to_owned()).collect()
    };
    let place = serde_json::json!({"environmentId": "local"});
    while !of(&admin.call("environment/activity", place.clone()).await).contains(&id) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let own = one.call("environment/activity", place).await;
    assert!(of(&own).iter().all(|thread| *thread == started), "{own}");
    // Reaching an executor is running commands there.
    for token in [box_only, server.token(&["--client", "--role", "viewer"])] {
        assert_eq!(server.get("/executors/reach/gpu", Some(&token)).await.0, 403);
    }
    let listed = String::from_utf8(outpost(server.home(), &["token", "list"]).stdout).unwrap();
    assert!(listed.contains("vera (viewer)") && listed.contains("environments box"), "{listed}");
}

/// Every method of the protocol that can name an environment, with parameters that name this one and this thread.
fn naming(environment: &str, thread: &str) -> Vec<(String, Value)> {
    let schema: Value = serde_json::from_str(include_str!("../../schema/app.json")).unwrap();
    let mut all = Vec::new();
    for (method, shapes) in schema["methods"].as_object().unwrap() {
        let shape = shapes["params"]["$ref"].as_str().map_or(&shapes["params"], |name| &schema["$defs"][name.rsplit('/').next().unwrap()]);
        for (member, value) in [
            ("environmentId", serde_json::json!(environment)),
            ("environments", serde_json::json!([{"environmentId": environment, "cwd": "/"}])),
            (
                "selectedCapabilityRoots",
                serde_json::json!([{"id": "r", "location": {"type": "environment", "environmentId": environment, "path": "/"}}]),
            ),
        ] {
            if shape["properties"][member].is_object() {
                all.push((method.clone(), serde_json::json!({"threadId": thread, member: value})));
            }
        }
    }
    assert!(all.len() > 25, "{all:#?}");
    all
}

/// A limited token names environments within its limits only, whatever the method; one for threads takes none in that a thread does not have.
#[tokio::test]
async fn a_limited_token_brings_no_environment_into_a_thread() {
    let server = Server::start();
    let mut admin = App::connect(server.url(), &server.own_token()).await;
    for id in ["other", "third"] {
        admin.call("environment/add", serde_json::json!({"environmentId": id, "execServerUrl": "ws://127.0.0.1:1"})).await;
    }
    let here = |id: &str| serde_json::json!([{"environmentId": id, "cwd": "/"}]);
    let started = admin.call("thread/start", serde_json::json!({"environments": here("local")})).await;
    let id = started["thread"]["id"].as_str().unwrap().to_owned();
    let say = |more: Value| {
        let mut params = serde_json::json!({"threadId": id, "input": [{"type": "text", "text": "$ true"}]});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    admin.call("turn/start", say(serde_json::json!({}))).await;
    let works_in = async |admin: &mut App| {
        let seen = admin.call("thread/overview", serde_json::json!({"threadIds": [id]})).await["data"][0]["environments"].take();
        seen.as_array().unwrap().iter().map(|one| one["environmentId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(works_in(&mut admin).await, ["local"]);

    let token = |scope: &[&str]| server.token(&[&["--client", "--name", "uma", "--role", "operator"], scope].concat());
    let mut of_thread = App::connect(server.url(), &token(&["--thread", &id])).await;
    let mut of_place = App::connect(server.url(), &token(&["--environment", "local"])).await;
    for (method, params) in naming("other", &id) {
        // How an environment stands can be looked at; a role of its own is asked for to change which there are.
        let is_look = ["environment/activity", "environment/status"].contains(&method.as_str());
        for (client, is_refused) in [(&mut of_thread, !is_look), (&mut of_place, true)] {
            if is_refused {
                let why = client.refused(&method, params.clone()).await;
                assert!(why.starts_with("uma may not do that"), "{method} {params}: {why}");
            }
        }
    }
    // Forms that a handler would read.
    for (method, more) in [
        ("turn/start", serde_json::json!({"environments": here("other"), "environmentsScope": "thread"})),
        (
            "turn/start",
            serde_json::json!({"environments": [{"environmentId": "local", "cwd": "/"}, {"environmentId": "other", "cwd": "/"}]}),
        ),
        ("turn/start", serde_json::json!({"environments": [["other", "/"]]})),
        ("turn/start", serde_json::json!({"input": [{"type": "localImage", "path": "/etc/hostname"}]})),
        ("turn/steer", serde_json::json!({"input": [["localImage", "/etc/hostname"]]})),
        ("thread/resume", serde_json::json!({"environments": here("other"), "input": null})),
    ] {
        let why = of_thread.refused(method, say(more.clone())).await;
        assert!(why.starts_with("uma may not do that"), "{method} {more}: {why}");
    }
    assert_eq!(works_in(&mut admin).await, ["local"]);

    // Within what the thread has, it chooses: also a directory, and a part of the environments.
    of_thread.call("turn/start", say(serde_json::json!({"environments": here("local"), "cwd": "/tmp"}))).await;
    // Who may name others says so for both.
    let mut of_both = App::connect(server.url(), &token(&["--thread", &id, "--environment", "local", "--environment", "other"])).await;
    let both = serde_json::json!([{"environmentId": "local", "cwd": "/"}, {"environmentId": "other", "cwd": "/"}]);
    of_both.call("thread/settings/update", serde_json::json!({"threadId": id, "environments": both})).await;
    assert_eq!(works_in(&mut admin).await, ["local", "other"]);
    let third = serde_json::json!({"threadId": id, "environments": here("third")});
    assert!(of_both.refused("thread/settings/update", third).await.contains("not for the environment `third`"));
    of_thread.call("thread/settings/update", serde_json::json!({"threadId": id, "environments": here("local")})).await;
    assert_eq!(works_in(&mut admin).await, ["local"]);
    let why = of_thread.refused("thread/settings/update", serde_json::json!({"threadId": id, "environments": both})).await;
    assert!(why.contains(&format!("--thread {id} --environment other")), "what was given away does not come back: {why}");
}

/// A turn may work elsewhere than its thread: a token that is limited to environments has no part in it.
#[tokio::test]
async fn a_turn_in_another_environment_is_beyond_a_token_for_one() {
    let server = Server::start();
    let mut admin = App::connect(server.url(), &server.own_token()).await;
    admin.call("environment/add", serde_json::json!({"environmentId": "box", "execServerUrl": "ws://127.0.0.1:1"})).await;
    let here = |id: &str| serde_json::json!([{"environmentId": id, "cwd": "/"}]);
    let started = admin.call("thread/start", serde_json::json!({"environments": here("box"), "sandbox": "danger-full-access"})).await;
    let id = started["thread"]["id"].as_str().unwrap().to_owned();
    let mut limited = App::connect(server.url(), &server.token(&["--client", "--name", "bob", "--environment", "box"])).await;
    limited.call("thread/read", serde_json::json!({"threadId": id})).await;
    let long = serde_json::json!({"threadId": id, "environments": here("local"), "input": [{"type": "text", "text": "$ sleep 600"}]});
    let turn = admin.call("turn/start", long).await["turn"]["id"].clone();
    let steer = serde_json::json!({"threadId": id, "expectedTurnId": turn, "input": [{"type": "text", "text": "$ id"}]});
    let why = limited.refused("turn/steer", steer).await;
    assert!(why.contains("its token is not for thread"), "{why}");
    admin.call("turn/interrupt", serde_json::json!({"threadId": id, "turnId": turn})).await;
    admin.notified("turn/completed").await;
    limited.call("thread/read", serde_json::json!({"threadId": id})).await;
}

/// The numbers of questions can be guessed: a limited token answers none of a thread that it is not for.
#[tokio::test]
async fn a_limited_token_answers_questions_within_its_limits_only() {
    let server = Server::start();
    let work = tempfile::tempdir().unwrap();
    let mut admin = App::connect(server.url(), &server.own_token()).await;
    let here = serde_json::json!([{"environmentId": "local", "cwd": work.path()}]);
    let careful = serde_json::json!({"environments": here, "sandbox": "danger-full-access", "approvalPolicy": "untrusted"});
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(admin.call("thread/start", careful.clone()).await["thread"]["id"].as_str().unwrap().to_owned());
    }
    let say = |thread: &str, text: &str| serde_json::json!({"threadId": thread, "input": [{"type": "text", "text": text}]});
    let decided = |decision: &str| serde_json::json!({"decision": decision});
    let asked = "item/commandExecution/requestApproval";

    // Its own thread: it is asked, and what it says counts.
    admin.call("turn/start", say(&ids[0], "> nothing")).await;
    admin.notified("turn/completed").await;
    admin.call("thread/unsubscribe", serde_json::json!({"threadId": ids[0]})).await;
    let token = server.token(&["--client", "--name", "uma", "--role", "operator", "--thread", &ids[0]]);
    let mut limited = App::connect(server.url(), &token).await;
    limited.call("thread/resume", serde_json::json!({"threadId": ids[0]})).await;
    limited.call("turn/start", say(&ids[0], "$ touch own")).await;
    let number = limited.asked(asked).await;
    limited.answer(&number, decided("accept"));
    limited.notified("turn/completed").await;
    assert!(work.path().join("own").exists());

    // Another one: it is not asked, and tries every number.
    admin.call("turn/start", say(&ids[1], "$ touch other")).await;
    let number = admin.asked(asked).await;
    for guessed in 0..100 {
        limited.answer(&guessed.into(), decided("accept"));
    }
    limited.call("thread/read", serde_json::json!({"threadId": ids[0]})).await;
    admin.answer(&number, decided("decline"));
    admin.notified("turn/completed").await;
    assert!(!work.path().join("other").exists(), "the admin was first");

    // A rule would count for every thread: from a limited token it is a yes for its own.
    limited.call("turn/start", say(&ids[0], "$ touch more")).await;
    let number = limited.asked(asked).await;
    let refused = serde_json::json!({"threadId": ids[0], "approvalId": "x", "decision": "approved", "detail": {"prefix": ["touch"]}});
    let why = limited.refused("thread/approval/answer", refused).await;
    assert!(why.contains("makes no rules about commands"), "{why}");
    let rule = serde_json::json!({"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["touch"]}});
    limited.answer(&number, serde_json::json!({"decision": rule}));
    limited.notified("turn/completed").await;
    assert!(work.path().join("more").exists() && !server.home().join("rules.toml").exists());
    admin.call("turn/start", say(&ids[1], "$ touch another")).await;
    let number = admin.asked(asked).await;
    admin.answer(&number, decided("decline"));
    admin.notified("turn/completed").await;
    assert!(!work.path().join("another").exists());
}
