//! Journals that are not as they were written: every client that opens such a thread is told, an item stands in the place of what
//! is lost, the model sees that something is missing, and going on is recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost_testkit::Client;
use outpost_testkit::app::{AppServer, notice, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

/// A thread of three turns, spoiled while no server has it.
async fn spoiled(spoil: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>) -> (AppServer, String, PathBuf) {
    let mut app = AppServer::start(OUTPOST, ["one", "two", "three", "four", "five"].map(Reply::message).to_vec()).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    for said in ["first", "second", "third"] {
        turn(&mut client, &id, said).await;
    }
    let journal = PathBuf::from(client.result("thread/read", json!({"threadId": id})).await["thread"]["path"].as_str().unwrap());
    drop(client);
    // What the killed server had in its commit log is put back first; after that nobody knows better than the journal.
    app.restart();
    let lines: Vec<Vec<u8>> = fs::read(&journal).unwrap().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let spoiled = spoil(lines).concat();
    fs::write(&journal, spoiled).unwrap();
    app.restart();
    (app, id, journal)
}

fn holding(lines: &[Vec<u8>], text: &str) -> usize {
    lines.iter().position(|line| line.windows(text.len()).any(|window| window == text.as_bytes())).unwrap()
}

fn missing(turns: &Value) -> Vec<String> {
    let items = turns.as_array().unwrap().iter().flat_map(|turn| turn["items"].as_array().unwrap());
    items.filter(|item| item.get("damage").is_some()).map(|item| item["text"].as_str().unwrap().to_owned()).collect()
}

fn noted(journal: &Path) -> Vec<Value> {
    let text = String::from_utf8_lossy(&fs::read(journal).unwrap()).into_owned();
    let lines = text.lines().filter(|line| line.contains("\"kind\":\"damageNoted\""));
    lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].take()).collect()
}

/// What every client of a damaged thread is told.
async fn opened(app: &AppServer, id: &str) -> Client {
    let mut client = app.client().await;
    // Reading changes nothing.
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await["thread"].take();
    assert_eq!(read["damaged"], true, "{read}");
    let verdict = client.result("thread/verify", json!({"threadId": id})).await;
    let range = |damage: &Value| (damage["from"].clone(), damage["to"].clone());
    assert_eq!(range(&read["damage"][0]), range(&verdict["damage"][0]), "{read} {verdict}");
    // Content that is kept aside is looked at when words are read, which a list does not wait for.
    let marked = async {
        while client.result("thread/list", json!({})).await["data"][0]["damaged"] != true {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), marked).await.expect("the list has no mark");
    assert_eq!(client.result("thread/read", json!({"threadId": id})).await["thread"]["damaged"], true);
    // Opening tells, and shows where.
    let opened = client.result("thread/resume", json!({"threadId": id})).await["thread"].take();
    assert_eq!(opened["damaged"], true, "{opened}");
    let warning = notice(&mut client, "warning").await;
    assert!(warning["threadId"] == id && warning["message"].as_str().unwrap().contains("cannot be read"), "{warning}");
    assert_eq!(missing(&opened["turns"]).len(), 1, "{opened}");
    let paged = client.result("thread/turns/list", json!({"threadId": id, "itemsView": "full", "limit": 100})).await;
    assert_eq!(missing(&paged["data"]).len(), 1, "{paged}");
    client
}

/// The same, and what becomes of it when it goes on.
async fn check(app: &AppServer, id: &str, journal: &Path) {
    let mut client = opened(app, id).await;
    // Going on is a decision that stays known, and the model is told.
    turn(&mut client, id, "fourth").await;
    let asked = app.model.requests().last().unwrap().body.to_string();
    assert!(asked.contains("<missing_history>"), "{asked}");
    let decisions = noted(journal).into_iter().filter(|noted| noted["continued"] == true).count();
    assert_eq!(decisions, 1);
    turn(&mut client, id, "fifth").await;
    assert_eq!(noted(journal).into_iter().filter(|noted| noted["continued"] == true).count(), 1, "once is enough");
}

#[tokio::test]
async fn a_flipped_byte() {
    let flip = |mut lines: Vec<Vec<u8>>| {
        let at = holding(&lines, "\"text\":\"two\"");
        let middle = lines[at].len() / 2;
        lines[at][middle] ^= 1;
        lines
    };
    let (app, id, journal) = spoiled(flip).await;
    check(&app, &id, &journal).await;
}

#[tokio::test]
async fn a_truncated_line() {
    let cut = |mut lines: Vec<Vec<u8>>| {
        let at = holding(&lines, "\"text\":\"two\"");
        let half = lines[at].len() / 2;
        lines[at].truncate(half);
        lines[at].push(b'\n');
        lines
    };
    let (app, id, journal) = spoiled(cut).await;
    check(&app, &id, &journal).await;
}

#[tokio::test]
async fn a_missing_line() {
    let remove = |mut lines: Vec<Vec<u8>>| {
        lines.remove(holding(&lines, "\"text\":\"two\""));
        lines
    };
    let (app, id, journal) = spoiled(remove).await;
    check(&app, &id, &journal).await;
}

/// Of a turn that lost its beginning and one that lost its end, the rest is shown.
#[tokio::test]
async fn the_end_of_one_turn_and_the_beginning_of_the_next() {
    let remove = |mut lines: Vec<Vec<u8>>| {
        let (from, to) = (holding(&lines, "\"text\":\"two\"") + 1, holding(&lines, "\"text\":\"three\""));
        lines.drain(from..to);
        lines
    };
    let (app, id, journal) = spoiled(remove).await;
    check(&app, &id, &journal).await;
}

#[tokio::test]
async fn a_lost_and_an_altered_blob() {
    for lose in [true, false] {
        let mut app = AppServer::start(OUTPOST, ["one", "two", "three"].map(Reply::message).to_vec()).await;
        let mut client = app.client().await;
        let id = thread(&mut client, json!({})).await;
        // Too long for a line: it is kept aside.
        turn(&mut client, &id, &"long ".repeat(1 << 20)).await;
        let journal = PathBuf::from(client.result("thread/read", json!({"threadId": id})).await["thread"]["path"].as_str().unwrap());
        drop(client);
        app.restart();
        let folders = fs::read_dir(app.home().join("blobs")).unwrap();
        let blobs = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        for blob in blobs.map(|blob| blob.unwrap().path()) {
            if lose { fs::remove_file(blob).unwrap() } else { fs::write(blob, "other").unwrap() }
        }
        // A changed time is all that tells the index to look again.
        let bytes = fs::read(&journal).unwrap();
        fs::write(&journal, bytes).unwrap();
        app.restart();
        opened(&app, &id).await;
    }
}
