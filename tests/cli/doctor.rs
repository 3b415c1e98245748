//! `outpost doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::OUTPOST;

fn doctor(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(OUTPOST);
    command.arg("doctor").args(arguments).env("OUTPOST_HOME", home).env("SOME_API_KEY", "/very/secret/path").output().unwrap()
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
    assert_eq!(sections.iter().map(|section| section["name"].as_str().unwrap()).collect::<Vec<_>>(), ["host", "doors", "sandbox"]);
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
