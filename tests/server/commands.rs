//! `command/exec` and `process/*`: output, input, terminals, limits, and their end with the connection.

use std::path::Path;
use std::time::Duration;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::app::{AppServer, notice};
use outpost_testkit::client::{base64, decode};
use serde_json::{Value, json};

use super::OUTPOST;

fn sh(script: &str, more: Value) -> Value {
    let mut params = json!({"command": ["sh", "-c", script]});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

#[tokio::test]
async fn a_command_is_answered_with_its_end() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let end = client.result("command/exec", sh("pwd; echo err >&2; exit 3", json!({}))).await;
    assert_eq!(end, json!({"exitCode": 3, "stdout": format!("{}\n", app.cwd()), "stderr": "err\n"}));
    std::fs::create_dir(app.work().join("below")).unwrap();
    let env = json!({"cwd": "below", "env": {"ONE": "1", "HOME": null}});
    let end = client.result("command/exec", sh("pwd; echo \"$ONE-${HOME-unset}\"; cat", env)).await;
    assert_eq!(end["stdout"], format!("{}/below\n1-unset\n", app.cwd()));
    let end = client.result("command/exec", sh("echo abcdef; echo 123456 >&2", json!({"outputBytesCap": 3}))).await;
    assert_eq!(end, json!({"exitCode": 0, "stdout": "abc", "stderr": "123"}));
    let end = client.result("command/exec", sh("echo begun; sleep 60", json!({"timeoutMs": 300}))).await;
    assert_eq!(end, json!({"exitCode": 124, "stdout": "begun\n", "stderr": ""}));
}

#[tokio::test]
async fn the_configured_sandbox_holds_unless_another_one_is_named() {
    let app = AppServer::start_with(OUTPOST, vec![], "sandbox_mode = \"read-only\"\n").await;
    let mut client = app.client().await;
    let end = client.result("command/exec", sh("touch x", json!({}))).await;
    assert!(end["exitCode"] != 0 && !app.work().join("x").exists(), "{end}");
    let end = client.result("command/exec", sh("touch x", json!({"sandboxPolicy": {"type": "dangerFullAccess"}}))).await;
    assert!(end["exitCode"] == 0 && app.work().join("x").exists(), "{end}");
    let end = client.result("command/exec", sh("touch y", json!({"permissionProfile": ":workspace"}))).await;
    assert!(end["exitCode"] == 0 && app.work().join("y").exists(), "{end}");
    let both = json!({"permissionProfile": ":workspace", "sandboxPolicy": {"type": "readOnly"}});
    assert_eq!(client.error("command/exec", sh("true", both)).await.0, -32600);
}

#[tokio::test]
async fn streams_are_told_as_they_come_and_written_to_in_order() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let params = sh("cat; echo over >&2", json!({"processId": "p", "streamStdin": true, "streamStdoutStderr": true}));
    // The answer comes at the end, so everything else is sent before anybody knows whether it runs.
    let request = client.request("command/exec", params);
    for number in 0..20 {
        client.request("command/exec/write", json!({"processId": "p", "deltaBase64": base64(format!("{number}\n"))}));
    }
    client.request("command/exec/write", json!({"processId": "p", "closeStdin": true}));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let end = loop {
        let message = client.until(|message| message["method"] == "command/exec/outputDelta" || message["id"] == request).await;
        let params = &message["params"];
        match params["stream"].as_str() {
            Some("stdout") => stdout.extend(decode(&params["deltaBase64"])),
            Some(_) => stderr.extend(decode(&params["deltaBase64"])),
            None => break message["result"].clone(),
        }
    };
    assert_eq!(end, json!({"exitCode": 0, "stdout": "", "stderr": ""}));
    let expected: String = (0..20).map(|number| format!("{number}\n")).collect();
    assert_eq!((String::from_utf8(stdout).unwrap(), stderr.as_slice()), (expected, b"over\n".as_slice()));
    let (code, text) = client.error("command/exec/write", json!({"processId": "p", "closeStdin": true})).await;
    assert_eq!((code, text.as_str()), (-32600, "no active command/exec for process id \"p\""));
}

#[tokio::test]
async fn a_terminal_has_its_size_from_the_first_moment_on() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let params = sh("stty size; read line; stty size", json!({"processId": "t", "tty": true, "size": {"rows": 11, "cols": 22}}));
    let request = client.request("command/exec", params);
    let first = notice(&mut client, "command/exec/outputDelta").await;
    assert_eq!((decode(&first["deltaBase64"]), &first["stream"]), (b"11 22\r\n".to_vec(), &json!("stdout")));
    client.result("command/exec/resize", json!({"processId": "t", "size": {"rows": 33, "cols": 44}})).await;
    client.result("command/exec/write", json!({"processId": "t", "deltaBase64": base64("\n")})).await;
    let mut shown = String::new();
    while !shown.contains("33 44") {
        let next = notice(&mut client, "command/exec/outputDelta").await;
        shown.push_str(&String::from_utf8_lossy(&decode(&next["deltaBase64"])));
    }
    assert_eq!(client.until(|message| message["id"] == request).await["result"]["exitCode"], 0);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let refusals = [
        (json!({"command": []}), -32600, "command must not be empty"),
        (sh("x", json!({"tty": true})), -32600, "command/exec tty or streaming requires a client-supplied processId"),
        (sh("x", json!({"timeoutMs": -1})), -32602, "negative"),
        (sh("x", json!({"timeoutMs": 1, "disableTimeout": true})), -32602, "both"),
        (sh("x", json!({"outputBytesCap": 1, "disableOutputCap": true})), -32602, "both"),
        (sh("x", json!({"processId": "p", "size": {"rows": 1, "cols": 1}})), -32602, "tty"),
        (sh("x", json!({"environmentId": "ghost"})), -32600, "unknown environment id `ghost`"),
        (json!({"command": ["/no/such/program"]}), -32603, "No such file"),
    ];
    for (params, code, part) in refusals {
        let (found, text) = client.error("command/exec", params.clone()).await;
        assert!(found == code && text.contains(part), "{params}: {found} {text}");
    }
    client.request("command/exec", sh("sleep 60", json!({"processId": "p"})));
    let (_, text) = client.error("command/exec", sh("true", json!({"processId": "p"}))).await;
    assert_eq!(text, "duplicate active command/exec process id: \"p\"");
    let (_, text) = client.error("command/exec/write", json!({"processId": "p", "deltaBase64": base64("x")})).await;
    assert!(text.contains("streamStdin"), "{text}");
    let (_, text) = client.error("command/exec/resize", json!({"processId": "p", "size": {"rows": 1, "cols": 1}})).await;
    assert!(text.contains("no terminal"), "{text}");
    client.result("command/exec/terminate", json!({"processId": "p"})).await;
}

#[tokio::test]
async fn a_process_is_told_when_it_ends() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let own = json!({"cwd": app.cwd(), "processHandle": "h", "streamStdin": true});
    client.result("process/spawn", sh("cat; exit 4", own.clone())).await;
    let (code, text) = client.error("process/spawn", sh("true", own.clone())).await;
    assert_eq!((code, text.as_str()), (-32600, "duplicate active process handle: \"h\""));
    client.result("process/writeStdin", json!({"processHandle": "h", "deltaBase64": base64("zz"), "closeStdin": true})).await;
    let end = notice(&mut client, "process/exited").await;
    assert_eq!((&end["exitCode"], &end["stdout"], &end["processHandle"]), (&json!(4), &json!("zz"), &json!("h")));
    let (code, text) = client.error("process/kill", json!({"processHandle": "h"})).await;
    assert_eq!((code, text.as_str()), (-32600, "no active process for process handle \"h\""));
    // Its name is free again.
    client.result("process/spawn", sh("sleep 60", json!({"cwd": app.cwd(), "processHandle": "h", "timeoutMs": null}))).await;
    client.result("process/kill", json!({"processHandle": "h"})).await;
    assert_eq!(notice(&mut client, "process/exited").await["exitCode"], 137);
}

#[tokio::test]
async fn commands_run_where_they_are_told_to() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let mut client = app.client().await;
    client.result("environment/add", json!({"environmentId": "worker", "execServerUrl": executor.url()})).await;
    let parent = |at: Value| sh("ps -o ppid= -p $PPID; cat /proc/$PPID/environ | tr '\\0' '\\n' | grep -c ^OUTPOST_HOME=", at);
    let here = client.result("command/exec", parent(json!({}))).await;
    let there = client.result("command/exec", parent(json!({"environmentId": "worker"}))).await;
    assert_ne!(here["stdout"], there["stdout"], "another executor ran it");
}

/// Whether a process whose pid a file names is still there.
fn lives(file: &Path) -> bool {
    let pid = std::fs::read_to_string(file).unwrap();
    Path::new("/proc").join(pid.trim()).exists()
}

#[tokio::test]
async fn whatever_a_client_started_ends_with_its_connection() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let forever = json!({"disableTimeout": true});
    client.request("command/exec", sh("echo $$ > one; sleep 1000", forever));
    let spawned = json!({"cwd": app.cwd(), "processHandle": "h", "timeoutMs": null});
    client.result("process/spawn", sh("echo $$ > two; sleep 1000", spawned)).await;
    let files = [app.work().join("one"), app.work().join("two")];
    let is_written = |file: &std::path::PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'));
    while !files.iter().all(is_written) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(files.iter().all(|file| lives(file)));
    client.close();
    while files.iter().any(|file| lives(file)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
