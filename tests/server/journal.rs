//! The journal as it is stored, for clients that ask for it, and answers by the ids that stand in it.

use outpost_testkit::app::{AppServer, begin, completed, introduce, thread, turn};
use outpost_testkit::model::{Reply, call};
use serde_json::{Value, json};

use crate::OUTPOST;

/// The facts of these kinds that a client was told.
fn told(heard: &[Value], kind: &str) -> Vec<Value> {
    heard.iter().filter(|heard| heard["entry"]["kind"] == kind).map(|heard| heard["entry"]["data"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_listed_in_order_and_told_to_those_who_ask() {
    let server = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two")]).await;
    let mut plain = server.client().await;
    let mut client = server.connect().await;
    introduce(&mut client, json!({"experimentalApi": true, "extensions": {"outpost/entries": true}})).await;
    let id = thread(&mut client, json!({})).await;
    let first = client.result("thread/entries/list", json!({"threadId": id})).await;
    assert_eq!((&first["data"][0]["kind"], &first["nextAfter"]), (&json!("threadCreated"), &Value::Null), "{first}");
    turn(&mut client, &id, "hello").await;
    let heard = client.heard("thread/entry");
    assert_eq!((told(&heard, "turnStarted").len(), told(&heard, "turnFinished").len()), (1, 1), "{heard:?}");
    // Page by page the same as at once.
    let whole = client.result("thread/entries/list", json!({"threadId": id})).await["data"].as_array().unwrap().clone();
    let (mut pages, mut after) = (Vec::new(), json!(0));
    while !after.is_null() {
        let page = client.result("thread/entries/list", json!({"threadId": id, "after": after, "limit": 3})).await;
        assert!(page["data"].as_array().unwrap().len() <= 3, "{page}");
        pages.extend(page["data"].as_array().unwrap().clone());
        after = page["nextAfter"].clone();
    }
    assert_eq!(pages, whole);
    let ordinals: Vec<u64> = whole.iter().map(|entry| entry["ordinal"].as_u64().unwrap()).collect();
    assert_eq!(ordinals, (1..=ordinals.len() as u64).collect::<Vec<_>>());
    assert!(heard.iter().all(|heard| whole.contains(&heard["entry"])));
    // Another client follows the same thread and does not hear of entries.
    plain.result("thread/resume", json!({"threadId": id})).await;
    turn(&mut plain, &id, "again").await;
    assert!(plain.heard("thread/entry").is_empty());
    let (_, refusal) = plain.error("thread/entries/list", json!({"threadId": "01900000-0000-7000-8000-000000000000"})).await;
    assert!(refusal.contains("no rollout found"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_by_its_id_in_the_journal() {
    let file = "answered";
    let replies = vec![Reply::Items(vec![call("c1", "exec_command", &json!({"cmd": format!("touch {file}")}))]), Reply::message("done")];
    let server = AppServer::start_with(OUTPOST, replies, "approval_policy = \"untrusted\"\nsandbox_mode = \"danger-full-access\"\n").await;
    let mut client = server.connect().await;
    introduce(&mut client, json!({"experimentalApi": true, "extensions": {"outpost/entries": true}})).await;
    let id = thread(&mut client, json!({})).await;
    let running = begin(&mut client, &id, "touch it").await;
    let asked = client.until(|message| message["params"]["entry"]["kind"] == "approvalAsked").await;
    let question = &asked["params"]["entry"]["data"];
    assert_eq!(question["detail"]["command"], format!("touch {file}"), "the whole question is there: {question}");
    let answer = |decision: &str| json!({"threadId": id, "approvalId": question["approval"], "decision": decision});
    let (_, refusal) = client.error("thread/approval/answer", answer("perhaps")).await;
    assert!(refusal.contains("`perhaps` is not a decision"), "{refusal}");
    // A rule that an answer makes is about the command in question.
    for prefix in [json!(["rm"]), json!(["touch", "other"]), json!(["touch", file, "more"])] {
        let mut params = answer("approved");
        params["detail"] = json!({"prefix": prefix});
        let (_, refusal) = client.error("thread/approval/answer", params).await;
        assert!(refusal.contains("does not begin with"), "{refusal}");
    }
    assert!(!server.work().join(file).exists() && !server.home().join("rules.toml").exists());
    client.result("thread/approval/answer", answer("approved")).await;
    assert_eq!(completed(&mut client, &running).await["status"], "completed");
    assert!(server.work().join(file).exists());
    let (_, refusal) = client.error("thread/approval/answer", answer("approved")).await;
    assert!(refusal.contains("already answered"), "{refusal}");
}
