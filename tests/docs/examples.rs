//! The examples in the pages that begin with `console` are run, each page in a home of its own.

use tempfile::TempDir;

use crate::pages::{all, project};

#[test]
fn examples_do_what_they_show() {
    let mut shown = 0;
    for page in all() {
        let path = project().join(&page);
        let text = std::fs::read_to_string(&path).unwrap();
        let blocks = text.lines().filter(|line| line.trim_start() == "```console").count();
        if blocks == 0 {
            continue;
        }
        shown += blocks;
        let home = TempDir::new().unwrap();
        trycmd::TestCases::new()
            .env("OUTPOST_HOME", home.path().join("home").to_str().unwrap())
            .env("HOME", home.path().to_str().unwrap())
            .env("NO_COLOR", "1")
            .env("OPENAI_API_KEY", "")
            .case(path)
            .run();
    }
    assert!(shown > 0, "no page has an example that is run");
}

#[test]
fn the_page_about_the_configuration_is_the_programs_own() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_outpost")).arg("__reference").output().unwrap();
    let written = std::fs::read_to_string(project().join("docs/configuration.md")).unwrap();
    assert_eq!(written, String::from_utf8(output.stdout).unwrap(), "run `cargo xtask docs`");
}
