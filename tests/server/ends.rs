//! What a server leaves behind that was ended politely.

use std::fs;
use std::path::{Path, PathBuf};

use outpost_testkit::app::{AppServer, begin, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::json;

use super::OUTPOST;

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut left = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() { left.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

#[tokio::test]
async fn nothing_stays_in_run_and_no_commit_log_is_left_open() {
    let call = |id: &str, cmd: &str| Reply::call(id, "exec_command", &json!({"cmd": cmd}));
    let replies = vec![call("a", "echo a > a"), Reply::message("done"), call("b", "touch begun; sleep 300"), Reply::message("done")];
    let mut app = AppServer::start_with(OUTPOST, replies, "approval_policy = \"never\"\nsandbox_mode = \"workspace-write\"\n").await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "first").await;
    // One is in the middle of its work, and one is only there.
    let other = thread(&mut client, json!({})).await;
    begin(&mut client, &other, "second").await;
    let begun = app.work().join("begun");
    outpost_testkit::executor::eventually("the command runs", || begun.exists()).await;
    let logs = |app: &AppServer| files(&app.home().join("commit")).into_iter().filter(|path| path.extension().is_some()).count();
    assert_eq!((logs(&app), files(&app.home().join("run")).is_empty()), (1, false));
    assert_eq!(app.stop(), Some(0));
    // The keeper of this machine goes a few seconds later; the file that programs lock while they start one stays.
    let lock = app.home().join("run/local.lock");
    outpost_testkit::executor::eventually("the keeper goes", || files(&app.home().join("run")) == [lock.clone()]).await;
    assert_eq!(logs(&app), 0, "{:?}", files(&app.home().join("commit")));
    let left: Vec<_> =
        fs::read_dir(app.work()).unwrap().map(|entry| entry.unwrap().file_name()).filter(|name| name != "a" && name != "begun").collect();
    assert!(left.is_empty(), "{left:?}");
}
