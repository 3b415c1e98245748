//! Going on from an earlier turn: later ones are neither shown nor told to the model any more, and nothing is lost.

use outpost_testkit::Client;
use outpost_testkit::app::{AppServer, begin, completed, notice, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

fn ids(turns: &Value) -> Vec<String> {
    turns.as_array().unwrap().iter().map(|turn| turn["id"].as_str().unwrap().to_owned()).collect()
}

async fn turns(client: &mut Client, id: &str) -> Vec<String> {
    ids(&client.result("thread/turns/list", json!({"threadId": id, "sortDirection": "asc"})).await["data"])
}

/// The texts of the model's last request.
fn told(app: &AppServer) -> String {
    app.model.requests().pop().unwrap().body["input"].to_string()
}

#[tokio::test]
async fn later_turns_do_not_count_any_more() {
    let replies = ["first answer", "second answer", "third answer", "fourth answer", "fifth answer"].map(Reply::message);
    let mut app = AppServer::start(OUTPOST, replies.to_vec()).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let mut all = Vec::new();
    for said in ["first words", "second words", "third words"] {
        all.push(turn(&mut client, &id, said).await["id"].as_str().unwrap().to_owned());
    }
    let answer = client.result("thread/revert", json!({"threadId": id, "beforeTurnId": all[1]})).await;
    assert_eq!((&answer["thread"]["id"], &answer["thread"]["turns"]), (&json!(id), &json!([])));
    assert_eq!(notice(&mut client, "thread/reverted").await, json!({"threadId": id}));
    assert_eq!(turns(&mut client, &id).await, all[..1]);
    let back = json!({"threadId": id, "cursor": answer["turnsBackwardsCursor"], "sortDirection": "desc"});
    assert_eq!(ids(&client.result("thread/turns/list", back).await["data"]), all[..1]);
    let back = json!({"threadId": id, "cursor": answer["itemsBackwardsCursor"], "sortDirection": "desc", "limit": 1});
    assert_eq!(client.result("thread/items/list", back).await["data"][0]["item"]["text"], "first answer");
    let fourth = turn(&mut client, &id, "fourth words").await["id"].as_str().unwrap().to_owned();
    let input = told(&app);
    assert!(input.contains("first words") && input.contains("first answer") && input.contains("fourth words"), "{input}");
    assert!(!input.contains("second") && !input.contains("third"), "{input}");
    // A restart knows it as well, and so does a fork.
    app.restart();
    let mut client = app.client().await;
    let resumed = client.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(ids(&resumed["thread"]["turns"]), [all[0].clone(), fourth.clone()]);
    let fork = client.result("thread/fork", json!({"threadId": id})).await["thread"].take();
    assert_eq!(fork["turns"].as_array().unwrap().len(), 2);
    turn(&mut client, &id, "fifth words").await;
    let input = told(&app);
    assert!(input.contains("first answer") && input.contains("fourth answer") && !input.contains("second words"), "{input}");
    // The journal is whole, and what was said is still in it.
    let verdict = client.result("thread/verify", json!({"threadId": id})).await;
    assert_eq!(verdict["whole"], true);
    let (code, message) = client.error("thread/revert", json!({"threadId": id, "beforeTurnId": all[2]})).await;
    assert_eq!((code, message), (-32600, format!("turn not found: {}", all[2])));
    client.result("thread/revert", json!({"threadId": id, "beforeTurnId": all[0]})).await;
    assert_eq!(turns(&mut client, &id).await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_running_turn_is_stopped_and_a_compacted_one_can_be_left() {
    let forever = json!({"cmd": "sleep 60", "yield_time_ms": 30000});
    let replies = [
        Reply::message("first answer"),
        Reply::message("second answer"),
        Reply::message("the summary"),
        Reply::call("c", "exec_command", &forever),
        Reply::message("fresh answer"),
    ];
    let app = AppServer::start(OUTPOST, replies.to_vec()).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "first words").await;
    let second = turn(&mut client, &id, "second words").await["id"].as_str().unwrap().to_owned();
    client.result("thread/compact/start", json!({"threadId": id})).await;
    notice(&mut client, "turn/completed").await;
    let running = begin(&mut client, &id, "third words").await;
    let fits = |message: &Value| message["method"] == "item/started" && message["params"]["item"]["type"] == "commandExecution";
    client.until(fits).await;
    // The compaction that came later does not count any more either: the model sees again what it had seen before.
    client.result("thread/revert", json!({"threadId": id, "beforeTurnId": second})).await;
    assert_eq!(completed(&mut client, &running).await["status"], "interrupted");
    turn(&mut client, &id, "fresh words").await;
    let input = told(&app);
    assert!(input.contains("first answer") && input.contains("fresh words"), "{input}");
    assert!(!input.contains("the summary") && !input.contains("second words") && !input.contains("third words"), "{input}");
    let (code, message) =
        client.error("thread/revert", json!({"threadId": "01a1e385-d5ce-75c0-94bb-40dfd825ef8a", "beforeTurnId": "x"})).await;
    assert_eq!((code, message.as_str()), (-32600, "thread not found: 01a1e385-d5ce-75c0-94bb-40dfd825ef8a"));
}
