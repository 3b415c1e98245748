//! K1 to K4: secrets stay home.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use outpost_testkit::ExecutorProcess;
use outpost_testkit::client::base64;
use serde_json::{Value, json};

use crate::server::{Everywhere, NOBODY, Server, as_nobody, client, mode};
use crate::support::{OUTPOST, is_root};

const KEY: &str = "sk-this-is-the-providers-key";
const TOKEN: &str = "this-is-the-token-of-a-client";
/// A secret of the executor's own machine, and something that is none.
const VARIABLES: [(&str, &str); 5] = [
    ("OPENAI_API_KEY", KEY),
    ("ANTHROPIC_API_KEY", KEY),
    ("OUTPOST_TOKEN", TOKEN),
    ("DATABASE_PASSWORD", "this-is-a-password"),
    ("HARMLESS", "harmless-value"),
];
const SECRETS: [&str; 3] = [KEY, TOKEN, "this-is-a-password"];

fn executor() -> ExecutorProcess {
    ExecutorProcess::start_with(OUTPOST.as_ref(), &["--no-auth"], &VARIABLES, tempfile::tempdir().unwrap())
}

/// A script with everything that the widest policy hands on.
fn script(id: &str, script: &str) -> Value {
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
    json!({"processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///", "env": {}, "envPolicy": policy, "tty": false})
}

/// Everything that can be read of the processes above.
const LOOK_UP: &str = "pid=$$; while [ \"$pid\" -gt 1 ]; do
    tr '\\0' '\\n' < /proc/$pid/environ; cat /proc/$pid/cmdline; ls -l /proc/$pid/fd; head -c 1 /proc/$pid/mem
    pid=$(sed -n 's/^PPid:\t//p' /proc/$pid/status)
    [ \"$pid\" = TEST ] && break
done 2>/dev/null; env; true";

#[tokio::test]
async fn k1_a_command_finds_no_key_in_its_environment_or_its_parents() {
    let executor = executor();
    let mut client = client(&executor).await;
    // Not beyond the executor: what started it is not ours to protect.
    client.start(script("look", &LOOK_UP.replace("TEST", &std::process::id().to_string()))).await;
    let (code, output) = client.outcome("look").await;
    let output = String::from_utf8_lossy(&output).into_owned();
    assert_eq!(code, 0);
    assert!(output.contains("harmless-value"), "nothing was inherited at all: {output}");
    for secret in [KEY, TOKEN] {
        assert!(!output.contains(secret), "{secret} is in {output}");
    }
    // Only what the policy itself hands on is there, and only in the command's own environment.
    assert_eq!(output.matches("this-is-a-password").count(), 2, "{output}");
    let environment = fs::read(format!("/proc/{}/environ", executor.pid()));
    let environment = String::from_utf8_lossy(&environment.unwrap_or_default()).into_owned();
    assert!(SECRETS.iter().all(|secret| !environment.contains(secret)), "the executor's own environment holds a secret");
}

#[tokio::test]
async fn k1_a_key_is_handed_on_when_it_is_named() {
    let executor = executor();
    let mut client = client(&executor).await;
    let mut start = script("named", "echo $OPENAI_API_KEY $DATABASE_PASSWORD");
    start["envPolicy"]["includeOnly"] = json!(["OPENAI_API_KEY", "DATABASE_*"]);
    client.start(start).await;
    assert_eq!(String::from_utf8(client.outcome("named").await.1).unwrap(), format!("{KEY} this-is-a-password\n"));
}

#[tokio::test]
async fn k1_no_header_carries_a_key_out() {
    let executor = executor();
    let mut client = client(&executor).await;
    for name in ["OPENAI_API_KEY", "anthropic_api_key", "OUTPOST_TOKEN"] {
        let headers = json!([{"name": "X", "value": "", "valueEnvVar": name}]);
        let request = json!({"method": "GET", "url": "http://127.0.0.1:1/", "requestId": "r", "headers": headers});
        let (code, text) = client.error("http/request", request).await;
        assert!(code == -32602 && text.contains("cannot use executor environment variable"), "{text}");
    }
}

#[test]
fn k1_the_local_executor_of_run_hides_them_too() {
    let home = tempfile::tempdir().unwrap();
    let look = LOOK_UP.replace("TEST", &std::process::id().to_string());
    let run = |more: &[&str]| {
        let mut command = Command::new(OUTPOST);
        command.arg("run").args(more).args(["--", "sh", "-c", &look]).envs(VARIABLES).env("OUTPOST_HOME", home.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let output = run(&[]);
    assert!(output.contains("harmless-value") && [KEY, TOKEN].iter().all(|secret| !output.contains(secret)), "{output}");
    // Unless one is named.
    let output = run(&["--set-env", "OPENAI_API_KEY"]);
    assert!(output.contains(KEY) && !output.contains(TOKEN), "{output}");
}

/// Passwords by every usual name, and the key of a provider under a name that says nothing: neither commands, nor their parents, nor
/// the program that carries a connection find them.
#[test]
fn k1_passwords_and_the_key_of_a_provider_reach_no_command() {
    const LOGIN: &str = "this-is-the-key-of-a-provider";
    const PASSWORD: &str = "this-is-a-password";
    let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = "[model_providers.box]\nbase_url = \"http://127.0.0.1:1\"\nenv_key = \"MODEL_LOGIN\"\n";
    fs::write(home.path().join("config.toml"), config).unwrap();
    let carried = work.path().join("carried");
    let look = LOOK_UP.replace("TEST", &std::process::id().to_string());
    let via = format!("env > {}; exec {OUTPOST} executor --listen stdio", carried.display());
    for place in [&[][..], &["--via", &via]] {
        let mut command = Command::new(OUTPOST);
        command.arg("run").args(place).args(["--", "sh", "-c", &look]).env("OUTPOST_HOME", home.path()).env("HARMLESS", "harmless-value");
        for name in ["PGPASSWORD", "DB_PASSWD", "GPG_PASSPHRASE", "CLOUD_CREDENTIALS", "SMTP_PASS", "MYSQL_PWD"] {
            command.env(name, PASSWORD);
        }
        command.env("MODEL_LOGIN", LOGIN).env("COPY_OF_IT", LOGIN);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && found.contains("harmless-value"), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!found.contains(LOGIN), "{place:?}: {found}");
        // Beside an executor of its own `run` only carries; what it was started with is in its own environment alone.
        if place.is_empty() {
            assert!(!found.contains(PASSWORD), "{found}");
        }
    }
    let carried = fs::read_to_string(carried).unwrap();
    assert!(carried.contains("harmless-value") && !carried.contains(LOGIN) && !carried.contains(PASSWORD), "{carried}");
}

#[test]
fn k1_standard_input_still_arrives() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("echo typed | {OUTPOST} run -- cat")).envs(VARIABLES).env("OUTPOST_HOME", home.path());
    assert_eq!(command.output().unwrap().stdout, b"typed\n");
    // And a socket without a message, or a mark that the user set, does no harm.
    let output = Command::new(OUTPOST).args(["run", "--", "cat"]).env("OUTPOST_HIDDEN_VARIABLES", "1").stdin(Stdio::null()).output();
    assert!(output.unwrap().status.success());
}

#[tokio::test]
async fn k1_another_process_of_the_same_user_cannot_look_into_a_server() {
    if !is_root() {
        let executor = executor();
        assert!(fs::read(format!("/proc/{}/environ", executor.pid())).is_err());
        assert!(fs::read_dir(format!("/proc/{}/fd", executor.pid())).is_err());
        return;
    }
    let (everywhere, home) = (Everywhere::new(), tempfile::tempdir().unwrap());
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = as_nobody(everywhere.program());
    let server = Server::start(command.args(["executor", "--no-auth"]).env("OUTPOST_HOME", home.path()).envs(VARIABLES));
    for file in ["environ", "mem", "maps", "fd/0"] {
        let path = format!("/proc/{}/{file}", server.pid());
        assert!(!as_nobody("head").args(["-c", "1", &path]).output().unwrap().status.success(), "{path} can be read");
    }
}

/// Every file and folder below, with its mode.
fn modes(directory: &Path, found: &mut Vec<(String, u32, bool)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        found.push((path.display().to_string(), mode(&path), path.is_dir()));
        if path.is_dir() && !path.is_symlink() {
            modes(&path, found);
        }
    }
}

fn check_modes(home: &Path) {
    let mut found = Vec::new();
    modes(home, &mut found);
    assert!(found.len() > 4, "hardly anything was written: {found:?}");
    assert_eq!(mode(home), 0o700);
    for (path, mode, is_directory) in found {
        // What is in a slot of a layer has the modes that sandboxed code sees; the slot itself is closed.
        let in_slot = Path::new(&path).strip_prefix(home.join("layers")).is_ok_and(|below| below.components().count() > 2);
        if !in_slot {
            assert_eq!(mode, if is_directory { 0o700 } else { 0o600 }, "{path}");
        }
    }
}

#[tokio::test]
async fn k2_everything_that_is_written_is_for_its_owner_only() {
    let home = tempfile::tempdir().unwrap();
    // However generous the one who made it.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let open = |program: &str| format!("umask 000; exec {program}");
    let mut command = Command::new("sh");
    command.args(["-c", &open(&format!("{OUTPOST} executor --spool 4096"))]).env("OUTPOST_HOME", home.path());
    let server = Server::start(&mut command);
    let token = fs::read_to_string(home.path().join("tokens/executor")).unwrap();
    // A process with much output that nobody reads, and a keeper beside it.
    let run = Command::new("sh")
        .args(["-c", &open(&format!("{OUTPOST} run -e {} -- sh -c 'head -c 3000000 /dev/zero; sleep 1000'", server.url))])
        .env("OUTPOST_HOME", home.path())
        .env("OUTPOST_TOKEN", token.trim())
        .stdout(Stdio::piped())
        .spawn();
    let mut run = run.unwrap();
    let via = format!("sh -c '{}'", open(&format!("{OUTPOST} executor --listen stdio --keep")));
    let kept = Command::new(OUTPOST).args(["run", "--via", &via, "--", "true"]).env("OUTPOST_HOME", home.path()).status().unwrap();
    assert!(kept.success());
    outpost_testkit::executor::eventually("a journal", || {
        fs::read_dir(home.path().join("executor"))
            .is_ok_and(|mut list| list.any(|entry| entry.unwrap().path().join("journal.jsonl").exists()))
    })
    .await;
    check_modes(home.path());
    assert!(fs::symlink_metadata(home.path().join("run/keeper.sock")).is_ok(), "there was no keeper to look at");
    let _ = run.kill();
    let _ = run.wait();
}

#[tokio::test]
async fn k2_a_directory_with_other_things_in_it_is_not_closed() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(home.path().join("somebody-elses"), "").unwrap();
    let executor = ExecutorProcess::start_in(OUTPOST.as_ref(), &["--no-auth"], home);
    assert_eq!(mode(executor.home()), 0o755);
}

#[tokio::test]
async fn k3_a_client_learns_nothing_about_the_variables() {
    let executor = executor();
    let mut client = client(&executor).await;
    let info = client.result("environment/info", json!(null)).await.to_string();
    assert!(VARIABLES.iter().all(|(_, value)| !info.contains(value)), "{info}");
}

#[tokio::test]
async fn k4_nothing_that_is_logged_holds_a_secret() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(OUTPOST);
    let server = Server::start(command.arg("executor").envs(VARIABLES).env("OUTPOST_HOME", home.path()).env("OUTPOST_LOG", "trace"));
    let token = fs::read_to_string(home.path().join("tokens/executor")).unwrap().trim().to_owned();
    // Whatever a client says comes past the logs: names, malformed messages, wrong tokens, commands, files.
    let everything = format!("{token} {}", SECRETS.join(" "));
    let options = outpost_rpc::link::ws::ClientOptions { bearer: Some(token.clone()), ..Default::default() };
    let mut client = outpost_testkit::Client::new(outpost_rpc::link::ws::connect(&server.url, &options).await.unwrap());
    client.greet(json!({"clientName": everything})).await;
    client.send_text(&everything);
    client.call(&everything, json!({"x": everything})).await;
    client.call("fs/readFile", json!({"path": format!("file:///{token}")})).await;
    client.call("fs/writeFile", json!({"path": format!("file:///{token}/x"), "dataBase64": base64(&everything)})).await;
    client.call("http/request", json!({"method": "GET", "url": format!("http://{token}.invalid/"), "requestId": token})).await;
    client.start(script(&token, &format!("echo {everything}"))).await;
    client.outcome(&token).await;
    client.notify(&everything, json!({}));
    client.closed().await;
    for url in [format!("GET /{token} HTTP/1.1\r\nHost: {token}\r\n\r\n"), format!("{token}\r\n\r\n")] {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(url.as_bytes()).await.unwrap();
        let _ = socket.read(&mut [0; 64]).await;
    }
    // The last thing that is told of each: of the client's connection, and of those that came to nothing.
    for told in ["link ended", "a connection came to nothing"] {
        server.says(told).await;
    }
    let said = server.end();
    for secret in SECRETS.iter().chain([&token.as_str()]) {
        let line = said.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "logged: {line:?}");
    }
}
