//! Answers that are followed, and calls that come with `initialize`.

use std::fs;

use outpost_testkit::over_every_link;
use serde_json::{Value, json};

fn follow(id: u64, method: &str, params: Value) -> Value {
    json!({"method": method, "params": params, "follow": {"id": id}})
}

over_every_link! {
    // What a process changed is told before its end is, so a client never takes an old answer for a new one.
    async fn a_change_is_told_before_the_end_of_what_made_it(bench: Bench) {
        let mut client = bench.client().await;
        let (file, other) = (json!({"path": bench.uri("sub/file")}), json!({"path": bench.uri("other")}));
        let missing = client.result("call/follow", follow(1, "fs/readFile", file.clone())).await;
        assert_eq!((&missing["error"]["code"], &missing["following"]), (&json!(-32004), &json!("followed")), "{missing}");
        client.result("call/follow", follow(2, "fs/readFile", other)).await;
        client.start(bench.shell("p", "mkdir sub; echo new > sub/file")).await;
        client.until(|message| message["method"] == "process/exited").await;
        assert_eq!(client.heard("call/changed"), [json!({"ids": [1]})]);
        let now = client.result("call/follow", follow(3, "fs/readFile", file.clone())).await;
        assert_eq!(now["result"]["dataBase64"], "bmV3Cg==", "{now}");
        // Who knows it already is not told it again.
        let known = json!({"method": "fs/readFile", "params": file, "follow": {"id": 4, "knownDigest": now["digest"]}});
        let again = client.result("call/follow", known).await;
        assert_eq!((&again["unchanged"], again.get("result")), (&json!(true), None), "{again}");
        // A file call of the client's own counts as well, and each of the two that follow it is told.
        client.result("fs/writeFile", json!({"path": bench.uri("sub/file"), "dataBase64": "eA=="})).await;
        let told = client.heard("call/changed");
        assert_eq!(told.iter().map(|told| told["ids"].as_array().unwrap().len()).sum::<usize>(), 2, "{told:?}");
    }

    async fn what_is_no_longer_followed_is_not_told(bench: Bench) {
        let mut client = bench.client().await;
        fs::write(bench.path("file"), "1").unwrap();
        client.result("call/follow", follow(1, "fs/readFile", json!({"path": bench.uri("file")}))).await;
        client.result("call/unfollow", json!({"ids": [1]})).await;
        fs::write(bench.path("file"), "2").unwrap();
        client.result("call/settle", json!({})).await;
        assert_eq!(client.heard("call/changed"), Vec::<Value>::new());
    }

    // Settled means told: whatever was changed before the question is told before its answer.
    async fn a_settled_client_has_heard_everything(bench: Bench) {
        let mut client = bench.client().await;
        let names = ["a", "b", "c", "d"];
        for (id, name) in names.iter().enumerate() {
            client.result("call/follow", follow(id as u64, "fs/canonicalize", json!({"path": bench.uri(name)}))).await;
        }
        for name in names {
            fs::write(bench.path(name), "").unwrap();
        }
        client.result("call/settle", json!({})).await;
        let told = client.heard("call/changed");
        let mut ids: Vec<u64> = told.iter().flat_map(|told| told["ids"].as_array().unwrap()).map(|id| id.as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3]);
    }

    async fn files_of_the_kernel_change_without_a_notice(bench: Bench) {
        let mut client = bench.client().await;
        let answer = client.result("call/follow", follow(1, "fs/readFile", json!({"path": "file:///proc/none"}))).await;
        assert_eq!(answer["following"], "partly", "{answer}");
        // And what changes something is made, and not followed.
        let made = client.result("call/follow", follow(2, "fs/createDirectory", json!({"path": bench.uri("made")}))).await;
        assert!(bench.path("made").is_dir() && made.get("following").is_none(), "{made}");
    }

    async fn the_first_message_carries_calls(bench: Bench) {
        let mut client = bench.connect().await;
        fs::write(bench.path("file"), "x").unwrap();
        let start = json!({"processId": "p", "argv": ["sh", "-c", "echo first"], "env": {}, "tty": false, "arg0": null});
        let calls = json!([
            {"method": "process/start", "params": start},
            follow(1, "fs/readFile", json!({"path": bench.uri("file")})),
            {"method": "initialize", "params": {"clientName": "x"}},
            {"method": "fs/nonsense", "params": {}},
        ]);
        let greeting = client.result("initialize", json!({"clientName": "t", "calls": calls})).await;
        let answers = greeting["answers"].as_array().unwrap();
        assert_eq!(answers[0]["result"]["processId"], "p", "{answers:?}");
        assert_eq!((&answers[1]["result"]["dataBase64"], &answers[1]["following"]), (&json!("eA=="), &json!("followed")));
        assert_eq!((&answers[2]["error"]["code"], &answers[3]["error"]["code"]), (&json!(-32600), &json!(-32601)));
        client.notify("initialized", json!({}));
        client.until(|message| message["method"] == "process/closed").await;
    }

    async fn another_executor_does_nothing(bench: Bench) {
        let mut client = bench.connect().await;
        let made = json!([{"method": "fs/createDirectory", "params": {"path": bench.uri("trace")}}]);
        let refused = client.call("initialize", json!({"clientName": "t", "expectedExecutorId": "another one", "calls": made})).await;
        assert_eq!(refused["error"]["code"], -32011, "{refused}");
        assert!(!bench.path("trace").exists());
    }
}
