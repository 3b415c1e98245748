//! Commands that the user wrote: they run to their end, what they say is shown as they say it, and their failure is the program's.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::person::Newcomer;

struct Scene(Newcomer);

impl Scene {
    fn new() -> Self {
        Self(Newcomer::new())
    }

    fn exec(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(&["exec", "--provider", "offline", "--sandbox", "danger-full-access"]);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn write(&self, file: &str) {
        std::fs::write(self.0.work.path().join(file), "").unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.work.path().join(file)).unwrap()
    }
}

/// Reads standard error up to a line that is exactly this one, and returns everything up to it.
fn read_to(err: &mut impl BufRead, wanted: &str) -> String {
    let mut read = String::new();
    loop {
        let mut line = String::new();
        assert!(err.read_line(&mut line).unwrap() > 0, "it ended without `{wanted}`: {read}");
        read.push_str(&line);
        if line.trim_end() == wanted {
            return read;
        }
    }
}

fn wait_for(file: &Path, child: &mut Child) {
    while !file.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before there was {}", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_long_command_runs_to_its_end_shows_its_output_as_it_comes_and_its_failure_is_ours() {
    let scene = Scene::new();
    let script = "$ echo first; while [ ! -e go ]; do sleep 0.02; done; seq 1 40; printf last; exit 3";
    let mut child = scene.exec(&[script]).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    read_to(&mut err, "  first");
    // Longer than a call of a model waits for its command.
    std::thread::sleep(Duration::from_millis(10_500));
    scene.write("go");
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{rest}");
    assert!(rest.starts_with("  1\n") && rest.ends_with("  40\n  last\n  exit code 3\n"), "{rest}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 command ran and failed; the output is above.\n");
}

#[test]
fn programs_see_the_failure_of_a_command_too() {
    let scene = Scene::new();
    for (script, code) in [("$ exit 3\n\n$ true", 1), ("$ true", 0), ("> just words", 0), ("$ exit 3\n\n> a word", 1)] {
        let output = scene.exec(&["--json", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("\"turn.completed\""), "the turn itself is whole: {output:?}");
    }
}

/// Nothing is ever written to it, so it must not wait for that.
#[test]
fn a_command_that_reads_finds_the_end_of_its_input() {
    let output = Scene::new().exec(&["$ cat; echo over"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("  over"), "{output:?}");
}

#[test]
fn an_interrupted_turn_is_finished_by_resuming_without_a_prompt() {
    let scene = Scene::new();
    let script = "$ echo once >> log\n\n$ echo begun >> log; touch begun; while [ ! -e go ]; do sleep 0.02; done\n\n$ echo end >> log";
    let mut child = scene.exec(&[script]).spawn().unwrap();
    wait_for(&scene.0.work.path().join("begun"), &mut child);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let advice = told.lines().find_map(|line| line.strip_prefix("`outpost exec ")?.strip_suffix("` goes on with it")).unwrap();
    scene.write("go");
    let output = scene.exec(&advice.split(' ').collect::<Vec<_>>()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(scene.read("log"), "once\nbegun\nbegun\nend\n", "what had ended is not done again, what was stopped is");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Done: 3 commands ran"), "{output:?}");
    // There is nothing left to finish, and that is said.
    let output = scene.exec(&advice.split(' ').collect::<Vec<_>>()).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("nothing to finish"), "{output:?}");
    assert_eq!(scene.read("log"), "once\nbegun\nbegun\nend\n");
}
