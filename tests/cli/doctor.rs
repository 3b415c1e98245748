//! `outpost doctor`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use outpost_testkit::ExecutorProcess;

use crate::OUTPOST;

fn doctor(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(OUTPOST);
    for name in ["OPENAI_API_KEY", "CODEX_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OUTPOST_EXEC_SERVER_URL", "OUTPOST_TOKEN"]
    {
        command.env_remove(name);
    }
    command.arg("doctor").args(arguments).env("OUTPOST_HOME", home).env("SOME_API_KEY", "/very/secret/path").output().unwrap()
}

/// The findings by what they are about: verdict, and everything that is said.
fn findings(home: &Path) -> BTreeMap<String, (String, String)> {
    let report: serde_json::Value = serde_json::from_slice(&doctor(home, &["--json"]).stdout).unwrap();
    let all = report["sections"].as_array().unwrap().iter().flat_map(|section| section["findings"].as_array().unwrap().clone());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    all.map(|finding| {
        (text(&finding["what"]), (text(&finding["verdict"]), format!("{} -> {}", text(&finding["detail"]), text(&finding["toDo"]))))
    })
    .collect()
}

fn assert_found(found: &BTreeMap<String, (String, String)>, what: &str, verdict: &str, said: &str) {
    let (is, text) = found.get(what).unwrap_or_else(|| panic!("nothing about {what}: {found:#?}"));
    assert!(is == verdict && text.contains(said), "{what}: {is}: {text}");
}

#[test]
fn files_with_mistakes_are_found_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("config.toml"), "model = 5").unwrap();
    fs::write(home.path().join("rules.toml"), "nonsense").unwrap();
    fs::write(home.path().join("environments.toml"), "nonsense").unwrap();
    let found = findings(home.path());
    assert_found(&found, "config.toml", "broken", "docs/configuration.md");
    assert_found(&found, "rules.toml", "broken", "docs/agent.md");
    assert_found(&found, "environments.toml", "broken", "docs/environments.md");
    fs::write(home.path().join("config.toml"), "modle = \"x\"").unwrap();
    assert_found(&findings(home.path()), "config.toml", "weak", "modle");
}

#[test]
fn environments_are_reached_and_looked_at() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &[]);
    let home = tempfile::tempdir().unwrap();
    let token = executor.home().join("tokens/executor");
    let file = format!(
        "[[environments]]\nid = \"box\"\nurl = \"{}\"\ntoken_file = \"{}\"\n[[environments]]\nid = \"gone\"\nurl = \"ws://127.0.0.1:1\"\n",
        executor.url(),
        token.display()
    );
    fs::write(home.path().join("environments.toml"), file).unwrap();
    let found = findings(home.path());
    assert_found(&found, "box", "good", "reached in");
    assert_found(&found, "box: clock", "good", "agrees");
    assert!(found.contains_key("box: sandbox"), "{found:#?}");
    assert_found(&found, "gone", "broken", "outpost env check gone");
}

#[test]
fn threads_and_the_provider_are_looked_at() {
    let home = tempfile::tempdir().unwrap();
    assert_found(&findings(home.path()), "store", "good", "no thread yet");
    assert_found(&findings(home.path()), "provider offline", "weak", "OPENAI_API_KEY");
    let exec = Command::new(OUTPOST).args(["exec", "--provider", "offline", "> hi"]).env("OUTPOST_HOME", home.path()).output().unwrap();
    assert!(exec.status.success(), "{exec:?}");
    assert_found(&findings(home.path()), "newest threads", "good", "1 of 1");
    let journals = Command::new("find").arg(home.path().join("threads")).args(["-name", "*.jsonl"]).output().unwrap();
    let journal = String::from_utf8(journals.stdout).unwrap().trim().to_owned();
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let found = findings(home.path());
    let thread = found.keys().find(|what| what.starts_with("thread ")).unwrap_or_else(|| panic!("{found:#?}")).clone();
    assert_found(&found, &thread, "broken", "outpost thread repair");
    fs::write(home.path().join("config.toml"), "model_provider = \"x\"\n[model_providers.x]\nbase_url = \"http://127.0.0.1:1/v1\"")
        .unwrap();
    assert_found(&findings(home.path()), "provider x", "broken", "http://127.0.0.1:1/v1");
}

#[test]
fn both_faces_say_the_same_and_the_exit_code_follows() {
    let home = tempfile::tempdir().unwrap();
    let (text, json) = (doctor(home.path(), &[]), doctor(home.path(), &["--json"]));
    let json_text = String::from_utf8(json.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&json_text).unwrap();
    let text_text = String::from_utf8(text.stdout).unwrap();
    assert_eq!((text.status.code(), json.status.code()), (Some(if report["holds"] == true { 0 } else { 1 }), text.status.code()));
    let sections = report["sections"].as_array().unwrap();
    let names: Vec<&str> = sections.iter().map(|section| section["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["host", "access", "sandbox", "configuration", "environments", "MCP servers", "threads", "model"]);
    for section in sections {
        for finding in section["findings"].as_array().unwrap() {
            assert!(text_text.contains(finding["what"].as_str().unwrap()), "{finding} is not in {text_text}");
            assert!(["good", "weak", "broken"].contains(&finding["verdict"].as_str().unwrap()));
            assert_eq!(finding["verdict"] == "good", finding.get("toDo").is_none(), "{finding}");
        }
    }
    assert!(sections[2]["findings"].as_array().unwrap().len() > 4, "{report}");
}

#[test]
fn a_token_that_others_may_have_read_is_found_and_told_without_secrets() {
    let home = tempfile::tempdir().unwrap();
    let secret_home = home.path().join("very/secret/path");
    fs::create_dir_all(secret_home.join("tokens")).unwrap();
    fs::write(secret_home.join("tokens/executor"), "0123456789".repeat(7)).unwrap();
    fs::set_permissions(secret_home.join("tokens/executor"), fs::Permissions::from_mode(0o644)).unwrap();
    let output = doctor(&secret_home, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("FAIL  token of the executor") && text.contains("-> rm "), "{text}");
    assert!(text.contains("[redacted]") && !text.contains("/very/secret/path"), "{text}");
}

#[test]
fn what_is_wrong_with_mcp_servers_and_programs_is_named() {
    let home = tempfile::tempdir().unwrap();
    assert_found(&findings(home.path()), "MCP servers", "good", "none");
    fs::write(home.path().join("config.toml"), "[mcp_servers.gone]\ncommand = \"/no/such/server\"\n").unwrap();
    let file = "[[environments]]\nid = \"box\"\nprogram = \"/no/such/executor\"\n\n[[environments]]\nurl = \"ws://127.0.0.1:1\"\n";
    fs::write(home.path().join("environments.toml"), file).unwrap();
    let found = findings(home.path());
    assert_found(&found, "MCP server gone", "broken", "cannot run `/no/such/server` on `local`");
    assert_found(&found, "box", "broken", "cannot run `/no/such/executor`");
    assert_found(&found, "environments.toml:5", "broken", "without `id`");
    fs::write(home.path().join("requirements.toml"), "mcp_servers = {").unwrap();
    let found = findings(home.path());
    assert_found(&found, "requirements.toml", "broken", "no MCP server may be used");
    assert!(!doctor(home.path(), &[]).status.success());
}

/// Status, type and body of an answer, by the first line of the request.
type Answer = fn(&str) -> (u16, &'static str, &'static str);

/// A server that answers every request in one way.
fn provider(answer: Answer) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
            let (mut first, mut length) = (String::new(), 0);
            let _ = reader.read_line(&mut first);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                    break;
                }
                if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = told.trim().parse().unwrap();
                }
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let (status, kind, body) = answer(&first);
            let head =
                format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    format!("http://{address}/v1")
}

/// What is wrong with a provider is named: a page of a site, an address without an API, a model that is not there.
#[test]
fn the_provider_is_asked_for_the_configured_model() {
    type Answer = fn(&str) -> (u16, &'static str, &'static str);
    const LIST: &str = r#"{"data": [{"id": "small"}, {"id": "large"}]}"#;
    const NO_MODEL: &str = r#"{"error": {"message": "the model `medium` does not exist"}}"#;
    let cases: [(Answer, &str, &str, &str); 5] = [
        (|_| (200, "text/html; charset=utf-8", "<html>welcome</html>"), "large", "broken", "answers with a web page (HTML"),
        (|_| (404, "text/plain", "nothing here"), "large", "broken", "answers with 404: neither a list of models nor the model `large`"),
        (|_| (200, "application/json", LIST), "large", "good", "has the model `large`"),
        (
            |line| if line.starts_with("GET") { (200, "application/json", LIST) } else { (404, "application/json", NO_MODEL) },
            "medium",
            "broken",
            "does not have the model `medium`",
        ),
        (
            |line| if line.starts_with("GET") { (405, "text/plain", "") } else { (400, "application/json", NO_MODEL) },
            "medium",
            "broken",
            "the model `medium` does not exist",
        ),
    ];
    for (answer, model, verdict, said) in cases {
        let home = tempfile::tempdir().unwrap();
        let config = format!(
            "model = \"{model}\"\nmodel_provider = \"x\"\n[model_providers.x]\nbase_url = \"{}\"\nrequest_max_retries = 0\n",
            provider(answer)
        );
        fs::write(home.path().join("config.toml"), config).unwrap();
        assert_found(&findings(home.path()), "provider x", verdict, said);
    }
}

/// Thirty-six machines behind one broken network are one line for people; programs are told of each.
#[test]
fn machines_with_the_same_trouble_are_one_line() {
    let home = tempfile::tempdir().unwrap();
    let machine = |number: usize| format!("[[environments]]\nid = \"machine-{number:02}\"\nurl = \"ws://127.0.0.1:1\"\n");
    fs::write(home.path().join("environments.toml"), (0..36).map(machine).collect::<String>()).unwrap();
    let text = String::from_utf8(doctor(home.path(), &[]).stdout).unwrap();
    let told: Vec<&str> = text.lines().filter(|line| line.contains("machine-")).collect();
    assert!(told.len() == 1 && told[0].starts_with("  FAIL  machine-00, machine-01") && told[0].contains("and 30 more:"), "{text}");
    assert!(text.contains("outpost env check NAME"), "{text}");
    assert_eq!(findings(home.path()).keys().filter(|what| what.starts_with("machine-")).count(), 36);
}

/// As root at a level without a user of its own for each session, doctor must not say both.
#[test]
fn who_runs_sandboxed_commands_is_said_in_one_place() {
    let home = tempfile::tempdir().unwrap();
    let found = findings(home.path());
    let (_, user) = &found["user"];
    assert!(!user.contains("unprivileged id"), "{user}");
}
