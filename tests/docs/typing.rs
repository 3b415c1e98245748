//! What the pages tell readers to type is typed: the `sh` blocks of each page, in order, at a fresh desk. A command that does not
//! end well is a fault of its page, or of the program. What cannot be typed here says why in a comment above its block (`blocks.rs`).

use std::collections::BTreeSet;

use crate::blocks::{Block, Typed, blocks};
use crate::stage::{Ended, Seen, Stage};

/// How a command is typed.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// To its end.
    Whole,
    /// It goes on until the page is over.
    Server,
    /// On a terminal: when it has begun, these keys are typed, and this is to come of them.
    Terminal { seen: Seen, keys: &'static str, wanted: &'static str },
}

impl Way {
    fn of(command: &str) -> Self {
        let words: Vec<&str> = command.split_whitespace().skip_while(|word| word.contains('=')).take(3).collect();
        match words.as_slice() {
            ["outpost", "serve" | "app-server" | "executor" | "forward", ..] => Self::Server,
            ["outpost", "shell", ..] => Self::Terminal { seen: Seen::Raw, keys: "echo it is $((6 * 7))\rexit\r", wanted: "it is 42" },
            ["outpost", "chat", ..] => Self::Terminal { seen: Seen::Text("> "), keys: "hello\r\u{4}", wanted: "goes on with this thread" },
            ["outpost", "run", "-t"] => Self::Terminal { seen: Seen::Text("top -"), keys: "q\r", wanted: "" },
            _ => Self::Whole,
        }
    }
}

/// Types a page. Before its first block, the reader has done this.
fn type_page(page: &str, mut stage: Stage, before: &[&str]) {
    let mut faults = Vec::new();
    for command in before {
        let Ended { status, text } = stage.run(command);
        assert!(status.success(), "{page} supposes `{command}`: {text}");
    }
    let mut typed = 0;
    for block in blocks().iter().filter(|block| block.page == page && is_shell(block)) {
        for command in block.commands().iter().filter(|command| block.mark(command).is_none()) {
            typed += 1;
            if let Err(fault) = type_command(&mut stage, command) {
                faults.push(format!("{page}:{}: {}\n{fault}", command.line, command.text));
            }
        }
    }
    faults.extend(stage.gone().iter().map(|gone| format!("{page}: {gone}")));
    assert!(typed > 0, "{page} has nothing to type");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

fn type_command(stage: &mut Stage, command: &Typed) -> Result<(), String> {
    let text = stage.spelled(&command.text);
    let asked_before = stage.requests();
    let Ended { status, text: said } = match Way::of(&text) {
        Way::Server => return stage.start(&text).map(drop),
        Way::Whole => stage.run(&text),
        Way::Terminal { seen, keys, wanted } => stage.on_terminal(&text, seen, keys, wanted),
    };
    if !status.success() {
        return Err(format!("typed as `{text}`: {status}: {said}"));
    }
    if is_for_a_model(&text) && stage.requests() == asked_before {
        return Err(format!("typed as `{text}`: no model was asked: {said}"));
    }
    if ["export ", "cd "].iter().any(|kept| text.starts_with(kept)) {
        stage.keep(&text);
    }
    Ok(())
}

/// `exec` and `chat` ask a model, unless all that is said to them is a command.
fn is_for_a_model(text: &str) -> bool {
    let verb = text.split_whitespace().skip_while(|word| *word != "outpost").nth(1);
    verb.is_some_and(|verb| verb == "exec" || verb == "chat") && !text.contains("'$ ")
}

fn is_shell(block: &Block) -> bool {
    ["sh", "bash", "shell"].contains(&block.language.as_str())
}

/// A test for each page with something to type, and the list of these pages.
macro_rules! pages {
    ($($name:ident: $page:literal, $stage:expr, [$($before:literal),*];)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(#[test]
        fn $name() {
            type_page($page, $stage, &[$($before),*]);
        })*
    };
}

pages! {
    the_front_page: "README.md", Stage::new(), [];
    agents: "docs/agent.md", Stage::new(), [];
    questions_of_newcomers: "docs/faq.md", Stage::new(), [];
    limits: "docs/limits.md", Stage::new(), [];
    a_terminal: "docs/terminal.md", Stage::new().with_model(), [];
    messages: "docs/troubleshooting.md", Stage::new(), [];
    backups: "docs/upgrade.md", Stage::new().with_model(), ["outpost exec '$ true'"];
    what_breaks: "docs/when-things-break.md", Stage::new(), [];
    capability_roots: "docs/capability-roots.md", Stage::new().with_model(), ["outpost env add box --ssh box"];
    clients: "docs/clients.md", Stage::new(), [];
    environments: "docs/environments.md", Stage::new().with_model().with_build(), [];
    the_executor: "docs/executor.md", Stage::new(), [];
    installation: "docs/install.md", Stage::new(), [];
    commands_by_hand: "docs/run.md", Stage::new(), ["outpost env add box --ssh box", "outpost env add alpha --ssh alpha", "outpost env add beta --ssh beta"];
    serving: "docs/serve.md", Stage::new(), [];
    machines_behind_ssh: "docs/ssh.md", Stage::new(), [];
    threads: "docs/threads.md", Stage::new().with_model(), ["outpost exec '$ true'"];
}

#[test]
fn every_block_is_typed_or_says_why_not() {
    let blocks: Vec<Block> = blocks().into_iter().filter(is_shell).collect();
    let faults: Vec<String> = blocks.iter().flat_map(Block::faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let (mut typed, mut untyped) = (0, 0);
    let mut pages = BTreeSet::new();
    for block in &blocks {
        if block.commands().iter().any(|command| block.mark(command).is_none()) {
            typed += 1;
            pages.insert(block.page.as_str());
        } else {
            untyped += 1;
        }
    }
    println!("{typed} blocks are typed, {untyped} are not");
    assert_eq!(pages, PAGES.iter().copied().collect(), "a page has a test above if it has something to type, and only then");
    assert!(untyped * 4 < typed, "{untyped} blocks of {} are not typed", typed + untyped);
}

/// A newcomer waits for minutes and not for a quarter of an hour, and is told how long.
#[test]
fn the_first_command_builds_what_is_quick_to_build() {
    let blocks = blocks();
    let first = blocks.iter().find(|block| block.page == "README.md" && is_shell(block)).unwrap().commands().remove(0);
    assert!(first.text.starts_with("cargo run -- demo ") && first.text.contains("minutes"), "{}", first.text);
}
