//! SECURITY.md: each row of its table names the tests that attack the promise, and each of them is there.

use crate::pages::project;

const COLUMNS: usize = 5;

/// The rows of the table, cell by cell.
fn rows() -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(project().join("SECURITY.md")).unwrap();
    let cells = |line: &str| line.trim().trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows: Vec<_> = text.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---")).map(cells).collect();
    assert_eq!(rows.remove(0), ["attacker", "promise", "mechanism", "test", "remains"]);
    rows
}

/// What stands in marks of code in a cell.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether a file holds a test of this name.
fn is_there(file: &str, name: &str) -> bool {
    let text = std::fs::read_to_string(project().join(file)).unwrap_or_default();
    text.split("fn ").skip(1).any(|rest| rest.strip_prefix(name).is_some_and(|after| after.starts_with('(')))
}

#[test]
fn every_promise_names_tests_that_are_there() {
    let rows = rows();
    assert!(rows.len() >= 30, "only {} rows", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        if row.len() != COLUMNS || row.iter().any(String::is_empty) {
            wrong.push(format!("{} cells, none of them empty, are needed: {row:?}", COLUMNS));
            continue;
        }
        let (promise, tests) = (&row[1], &row[3]);
        if code(tests).next().is_none() {
            wrong.push(format!("`{promise}` names no test"));
        }
        for test in code(tests) {
            match test.split_once("::") {
                Some((file, name)) if is_there(file, name) => {}
                Some((file, name)) => wrong.push(format!("`{promise}` names {name}, which is not in {file}")),
                None => wrong.push(format!("`{promise}` names {test}, which is not written as FILE::TEST")),
            }
        }
    }
    assert!(wrong.is_empty(), "SECURITY.md: {}", wrong.join("\n"));
    assert!(!is_there("tests/docs/security.rs", "no_such_test"));
}

/// What 0.1.0 said of itself that it does not hold: each has a row.
#[test]
fn what_did_not_hold_in_the_first_version_has_a_row() {
    let rows = rows();
    for words in [
        &["run as root", "memory of every process"][..],
        &["comes to match a denied pattern"],
        &["`fs/watch`", "refused where anything below the path is denied"],
        &["loopback listener with `--no-auth`"],
        &["client's token", "without a sandbox"],
        &["literally into `mcp_servers`"],
    ] {
        let has_all = |row: &Vec<String>| words.iter().all(|words| row.iter().any(|cell| cell.contains(words)));
        assert!(rows.iter().any(has_all), "no row of SECURITY.md speaks of {words:?}");
    }
}
