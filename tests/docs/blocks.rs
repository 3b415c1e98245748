//! The blocks of code in the pages, and what the pages say about them where readers do not see it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::pages::{all, project};

/// Why a command of a page is not typed by the tests.
pub(crate) const REASONS: [&str; 5] =
    ["builds or installs the program", "runs these tests", "needs a release", "makes a release", "needs the Codex program"];

/// A piece of code in a page.
pub(crate) struct Block {
    pub page: String,
    /// Of its first line, from 1.
    pub line: usize,
    pub language: String,
    pub text: String,
    /// The comments right above it that begin with `not typed`.
    pub marks: Vec<Mark>,
}

/// `<!-- not typed: REASON -->` above a block, or ``<!-- not typed: `BEGINNING`: REASON -->`` for those of its commands that begin so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub beginning: String,
    pub reason: String,
}

/// A command of a block: one line, or several that belong together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    pub line: usize,
    pub text: String,
}

impl Mark {
    fn read(line: &str) -> Option<Self> {
        let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim().strip_prefix("not typed:")?.trim();
        let of_a_command = inner.strip_prefix('`').and_then(|inner| inner.split_once("`:"));
        let (beginning, reason) = of_a_command.unwrap_or(("", inner));
        Some(Self { beginning: beginning.to_owned(), reason: reason.trim().to_owned() })
    }

    fn is_about(&self, command: &Typed) -> bool {
        command.text.starts_with(&self.beginning)
    }
}

impl Block {
    /// Its commands. A shell says which lines belong together.
    pub(crate) fn commands(&self) -> Vec<Typed> {
        let mut commands = Vec::new();
        let mut open: Option<Typed> = None;
        for (number, line) in (self.line..).zip(self.text.lines()) {
            let mut command = open.take().unwrap_or_else(|| Typed { line: number, text: String::new() });
            command.text.push_str(line);
            if line.ends_with('\\') || !is_whole(&command.text) {
                command.text.push('\n');
                open = Some(command);
            } else if !command.text.trim().is_empty() {
                commands.push(command);
            }
        }
        commands.extend(open);
        commands
    }

    /// The mark that says why a command is not typed.
    pub(crate) fn mark(&self, command: &Typed) -> Option<&Mark> {
        self.marks.iter().find(|mark| mark.is_about(command))
    }

    /// What is wrong with its marks.
    pub(crate) fn faults(&self) -> Vec<String> {
        let commands = self.commands();
        let fault = |mark: &Mark| {
            let place = format!("{}:{}", self.page, self.line);
            if !REASONS.contains(&mark.reason.as_str()) {
                Some(format!("{place}: `{}` is no reason not to type a command; there are {REASONS:?}", mark.reason))
            } else if !commands.iter().any(|command| mark.is_about(command)) {
                Some(format!("{place}: no command begins with `{}`", mark.beginning))
            } else {
                None
            }
        };
        self.marks.iter().filter_map(fault).collect()
    }
}

/// Whether a shell would begin to run this, and not wait for another line.
fn is_whole(text: &str) -> bool {
    let checked = Command::new("bash").args(["-n", "-c", text]).stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    checked.success()
}

/// The pages for people who use the program.
pub(crate) fn pages() -> Vec<PathBuf> {
    let is_for_users = |page: &PathBuf| !page.starts_with("docs/decisions") && page != Path::new("CHANGELOG.md");
    all().into_iter().filter(is_for_users).collect()
}

pub(crate) fn read(page: &Path) -> String {
    std::fs::read_to_string(project().join(page)).unwrap()
}

pub(crate) fn blocks() -> Vec<Block> {
    pages().iter().flat_map(|page| blocks_of(&page.display().to_string(), &read(page))).collect()
}

fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let (mut blocks, mut marks) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(language), None) => {
                let (language, marks) = (language.trim().to_owned(), std::mem::take(&mut marks));
                open = Some(Block { page: page.to_owned(), line: number + 1, language, text: String::new(), marks });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => match Mark::read(line) {
                Some(mark) => marks.push(mark),
                None if line.trim().is_empty() => {}
                None => marks.clear(),
            },
        }
    }
    blocks
}

#[test]
fn blocks_are_taken_apart_as_a_shell_does_it() {
    let text = "\
a page

<!-- not typed: `cargo install`: builds or installs the program -->
```sh
cargo install x   # it's a comment
outpost exec 'one
two'              # said
openssl req \\
  -x
```

<!-- not typed: no time -->
a line between

```sh
true
```

<!-- not typed: no time -->

```sh
true
```
";
    let blocks = blocks_of("p", text);
    let commands = blocks[0].commands();
    let lines: Vec<(usize, &str)> = commands.iter().map(|command| (command.line, command.text.as_str())).collect();
    assert_eq!(
        lines,
        [(5, "cargo install x   # it's a comment"), (6, "outpost exec 'one\ntwo'              # said"), (8, "openssl req \\\n  -x")]
    );
    assert_eq!(blocks[0].mark(&commands[0]).unwrap().reason, "builds or installs the program");
    assert_eq!(blocks[0].mark(&commands[1]), None);
    assert!(blocks[0].faults().is_empty() && blocks[1].marks.is_empty());
    assert!(blocks[2].faults()[0].contains("`no time` is no reason"), "{:?}", blocks[2].faults());
}
