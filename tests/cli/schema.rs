//! `outpost schema`.

use std::process::Command;

use serde_json::Value;

use crate::OUTPOST;

#[test]
fn both_protocols_are_written_or_printed() {
    let out = tempfile::tempdir().unwrap();
    let directory = out.path().join("made/here");
    assert!(Command::new(OUTPOST).args(["schema", "--out"]).arg(&directory).status().unwrap().success());
    let printed = Command::new(OUTPOST).arg("schema").output().unwrap();
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    for name in ["app", "exec"] {
        let text = std::fs::read_to_string(directory.join(format!("{name}.json"))).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        assert!(schema["methods"].as_object().unwrap().len() > 30 && schema == printed[name], "{name}");
    }
    let nowhere = Command::new(OUTPOST).args(["schema", "--out", "/dev/null/x"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
}
