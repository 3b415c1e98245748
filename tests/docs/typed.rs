//! Every command line of ours in a page must be one that the program takes, and every flag, variable, key and exit code that a page
//! names must be one that there is.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::OUTPOST;
use crate::blocks::{Block, blocks, pages, read};
use crate::pages::project;

/// A shell in which our program only looks at its arguments, and all others do nothing.
const SHELL: &str = r#"
outpost() {
    local words=() seen= word
    for word in "$@"; do
        if [ "$word" = -- ] && [ -z "$seen" ]; then seen=1; words+=(--help); fi
        words+=("$word")
    done
    [ -n "$seen" ] || words+=(--help)
    "$PROGRAM" "${words[@]}" < /dev/null > /dev/null 2> "$SAID" || printf '%s\n' "outpost $*: $(cat "$SAID")"
}
for name in cargo codex openssl git sh ssh docker curl kubectl systemctl loginctl rm cp npm rustup sudo ollama echo; do
    eval "$name() { :; }"
done
"#;

/// What the program says against the command lines of a script. With `--help` in its arguments it reads all of them, refuses what it
/// does not know, and does nothing.
fn refusals(script: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{SHELL}{script}")]).env("PROGRAM", OUTPOST).env("SAID", home.path().join("said"));
    let output = command.env("HOME", home.path()).current_dir(home.path()).stdin(Stdio::null()).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn every_command_line_of_a_page_is_one_that_the_program_takes() {
    let (mut typed, mut wrong) = (0, Vec::new());
    // Those that are not typed, because they need other machines, are told apart from what a program prints by how they begin.
    let is_script = |block: &Block| match block.language.as_str() {
        "sh" => block.text.contains("outpost "),
        "text" => ["outpost ", "export "].iter().any(|word| block.text.starts_with(word)),
        _ => false,
    };
    for block in blocks().iter().filter(|block| is_script(block)) {
        let refusals = refusals(&block.text.replace('…', "x"));
        typed += block.text.matches("outpost ").count();
        if !refusals.is_empty() {
            wrong.push(format!("{}: {refusals}", block.page));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(typed > 30, "only {typed} were found");
    // What is wrong is found.
    let found = refusals("outpost exec --no-such-flag x\noutpost run --no-such -- true");
    assert_eq!(found.matches("unexpected argument").count(), 2, "{found}");
}

/// What stands in marks of code in the sentences of a page.
fn in_sentences(page: &Path) -> BTreeSet<String> {
    let text = read(page);
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    prose.iter().flat_map(|prose| prose.split('`').skip(1).step_by(2)).map(|code| code.replace('\n', " ")).collect()
}

/// The same for what stands in a sentence.
#[test]
fn every_command_line_in_a_sentence_is_one_that_the_program_takes() {
    let (mut typed, mut wrong) = (0, Vec::new());
    for page in pages() {
        for command in in_sentences(&page).iter().filter(|code| code.starts_with("outpost ")) {
            let refusals = refusals(&command.replace('…', "x").replace("MODE", "read-only"));
            typed += 1;
            if !refusals.is_empty() {
                wrong.push(format!("{}: `{command}`: {refusals}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(typed > 100, "only {typed} were found");
}

/// Words with `_` in them that belong to other programs and the kernel, and such as begin a numbered name.
const NAMES_OF_OTHERS: [&str; 9] = [
    "codex_bin",
    "codex_command",
    "codex_path_override",
    "item_0",
    "item_1",
    "perf_event_paranoid",
    "pidfd_getfd",
    "process_vm_readv",
    "synchronous_commit",
];

/// A name of the code as messages spell it.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Words of ours with `_` in them are keys of files, arguments of tools, members of messages and metrics: each is in the code.
#[test]
fn every_key_that_a_page_names_is_there() {
    let code = sources(&["crates", "xtask"]);
    let mut known: BTreeSet<String> = words(&code).map(str::to_owned).collect();
    known.extend(words(&code).filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase())).map(snake));
    let is_key = |word: &&str| word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let (mut named, mut wrong) = (BTreeSet::new(), BTreeSet::new());
    for page in pages() {
        // Tests have names of the same kind, and a test of their own.
        for text in in_sentences(&page).iter().filter(|text| !text.contains("::") && !text.contains("--test")) {
            for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').filter(is_key) {
                named.insert(word.to_owned());
                // The metrics are written without what all of them begin with, and counters without what they end with.
                let metric = word.strip_prefix("outpost_").map(|metric| metric.strip_suffix("_total").unwrap_or(metric));
                let is_known = known.contains(word) || metric.is_some_and(|metric| known.contains(metric));
                if !is_known && !NAMES_OF_OTHERS.contains(&word) {
                    wrong.insert(format!("{}: {word} in `{text}`", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "these are nowhere in the code:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(named.contains("idle_stop") && named.len() > 80, "{named:?}");
}

fn help(verbs: &[&str]) -> String {
    let Output { stdout, .. } = Command::new(OUTPOST).args(verbs).arg("--help").output().unwrap();
    String::from_utf8(stdout).unwrap()
}

/// All flags of all verbs. Some are hidden: they are there for programs that pass them.
fn flags() -> BTreeSet<String> {
    let hidden =
        "stdio oss skip-git-repo-check enable disable ask-for-approval search yolo all full-auto dangerously-bypass-approvals-and-sandbox";
    let mut flags: BTreeSet<String> = hidden.split(' ').map(|flag| format!("--{flag}")).collect();
    let mut open: Vec<Vec<String>> = vec![vec![]];
    while let Some(verbs) = open.pop() {
        let text = help(&verbs.iter().map(String::as_str).collect::<Vec<_>>());
        flags.extend(words(&text).filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned));
        let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with("  "));
        let names = commands.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next().filter(|_| !line.starts_with("   ")));
        open.extend(names.filter(|name| *name != "help").map(|name| [verbs.clone(), vec![name.to_owned()]].concat()));
    }
    flags
}

/// What may stand in a flag or a variable.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').map(|word| word.trim_end_matches('-'))
}

/// Flags of other programs that the pages speak of.
const OTHERS: [&str; 29] = [
    "--stored",
    "--release",
    "--locked",
    "--path",
    "--example",
    "--test",
    "--markdown",
    "--rounds",
    "--only",
    "--small",
    "--latest",
    "--remote",
    "--user",
    "--now",
    "--features",
    "--workspace",
    "--no-run",
    "--nocapture",
    "--build",
    "--rm",
    "--security-opt",
    "--device",
    "--cap-add",
    "--privileged",
    "--tmpfs",
    "--api-key",
    "--scope",
    "--overlap",
    "--jobid",
];

#[test]
fn every_flag_that_a_page_names_is_there() {
    let known = flags();
    assert!(known.contains("--sandbox") && known.contains("--ws-token-file") && known.len() > 60, "{known:?}");
    let mut wrong = BTreeSet::new();
    for page in pages() {
        // Flags of other programs are in blocks, beside the program; prose is about ours.
        let text = read(&page);
        let prose: Vec<&str> = text.split("```").step_by(2).collect();
        for code in prose.iter().flat_map(|prose| prose.split('`').skip(1).step_by(2)) {
            let is_ours =
                !["cargo", "ssh ", "docker", "codex ", "systemctl", "podman", "git ", "mount "].iter().any(|other| code.contains(other));
            for flag in words(code).filter(|word| word.starts_with("--") && word.len() > 2 && is_ours) {
                if !known.contains(flag) && !OTHERS.contains(&flag) {
                    wrong.insert(format!("{}: {flag} in `{code}`", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "no verb has these:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// The text of every source file below these folders.
fn sources(folders: &[&str]) -> String {
    let mut text = String::new();
    let mut open: Vec<_> = folders.iter().map(|folder| project().join(folder)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("target")));
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "js") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
}

#[test]
fn every_variable_that_a_page_names_is_read_somewhere() {
    let code = sources(&["crates", "tests/conformance", "tests/interop", "xtask"]);
    // These are named because they are not read.
    let not_read = ["CODEX_HOME", "CODEX_PATH", "CLAUDE_PLUGIN_ROOT"];
    let is_variable =
        |word: &&str| ["OUTPOST_", "CODEX_", "OPENAI_"].iter().any(|prefix| word.starts_with(prefix) && word.len() > prefix.len());
    let mut wrong = BTreeSet::new();
    for page in pages() {
        for name in words(&read(&page)).filter(is_variable) {
            let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            if is_name && !not_read.contains(&name) && !code.contains(name) {
                wrong.insert(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "nothing reads these:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// What the program says about a home with this file in it.
fn with_file(name: &str, text: &str, verb: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join(name), text).unwrap();
    let mut command = Command::new(OUTPOST);
    command.args(verb).env("OUTPOST_HOME", home.path()).env("HOME", home.path()).current_dir(home.path()).stdin(Stdio::null());
    for name in ["OPENAI_API_KEY", "CODEX_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OUTPOST_EXEC_SERVER_URL"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

/// Every key in an example of a file of ours is one that there is, and every value makes sense.
#[test]
fn every_example_of_a_file_can_be_read() {
    let mut tried = 0;
    for Block { page, text, .. } in blocks().into_iter().filter(|block| block.language == "toml") {
        let (file, verb): (&str, &[&str]) = match &text {
            text if text.contains("[[environments]]") => ("environments.toml", &["env", "list"]),
            text if text.contains("[[rules]]") => ("rules.toml", &["exec", "--provider", "offline", "> read"]),
            text if text.contains("identity") => ("requirements.toml", &["exec", "--provider", "offline", "> read"]),
            text if text.contains("deny = [") => ("ceiling.toml", &["executor", "--listen", "stdio", "--ceiling", "ceiling.toml"]),
            _ => ("config.toml", &["exec", "--provider", "offline", "> read"]),
        };
        let output = with_file(file, &text, verb);
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // That a database or a server of an example is not there is no mistake in the example.
        let complaints =
            ["is not known", "wrong:", "unknown key", "config.toml:", "shows an example of every key", "requirements in", "ceiling.toml:"];
        let complaint = complaints.iter().find(|complaint| told.contains(**complaint));
        assert!(complaint.is_none(), "{page}: {complaint:?} in what is said of\n{text}\n{told}");
        tried += 1;
    }
    assert!(tried > 10, "only {tried} were found");
}

/// The numbers that a page calls exit codes are those that the program has.
#[test]
fn every_exit_code_that_a_page_names_is_there() {
    let code = sources(&["crates/cli/src", "crates/environment/src"]);
    let consts = code.lines().filter_map(|line| line.split_once(": u8 = ")?.1.split([';', ' ']).next()?.parse::<u32>().ok());
    let known: BTreeSet<u32> = consts.chain([0, 128]).collect();
    let mut named = BTreeSet::new();
    for page in pages() {
        let text = read(&page);
        let about = text.lines().skip_while(|line| *line != "## Exit codes").skip(1).take_while(|line| !line.starts_with("## "));
        let sentences: Vec<&str> = about.flat_map(|line| line.split([';', '.'])).collect();
        named.extend(sentences.iter().filter_map(|sentence| sentence.split_whitespace().next()?.parse::<u32>().ok()));
        let said = text.match_indices("exit code ").chain(text.match_indices("exits with "));
        named.extend(said.filter_map(|(at, word)| words(&text[at + word.len()..]).next()?.parse::<u32>().ok()));
    }
    // What a command of an example ends with is its own.
    let own: BTreeSet<u32> = [3, 7, 137].into();
    assert!(named.contains(&1) && named.contains(&2), "{named:?}");
    let wrong: Vec<&u32> = named.difference(&known).filter(|code| !own.contains(code)).collect();
    assert!(wrong.is_empty(), "{wrong:?} are no exit codes of the program: {known:?}");
}

/// Every method and notification of the exec protocol is in the list at the beginning of its page.
#[test]
fn the_page_about_the_exec_protocol_lists_its_methods() {
    let code = sources(&["crates/wire/src/exec"]);
    let quoted = code.split('"').skip(1).step_by(2);
    let is_method = |word: &&str| {
        word.split_once('/').is_some_and(|(group, rest)| !group.is_empty() && !rest.is_empty())
            && words(word).count() == word.split('/').count()
    };
    let methods: BTreeSet<&str> =
        quoted.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/')).filter(is_method).collect();
    assert!(methods.contains("process/start") && methods.contains("fs/changed") && methods.len() > 30, "{methods:?}");
    let page = read(Path::new("docs/protocol/executor.md"));
    let list = page.split("\n## ").find(|part| part.starts_with("Methods")).unwrap();
    let missing: Vec<_> = methods.iter().filter(|method| !list.contains(&format!("`{method}`"))).collect();
    assert!(missing.is_empty(), "docs/protocol/executor.md lists none of {missing:?}");
}

/// What a message of the program says in the code: strings, with what they leave open. Lines that are wrapped are joined.
fn said_in_code() -> String {
    let code = sources(&["crates"]);
    let mut joined = String::with_capacity(code.len());
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("\\\n") {
        joined.push_str(before);
        rest = after.trim_start();
    }
    joined + rest
}

/// The parts of a message between what stands for anything: `…`, and names in backquotes.
fn fixed_parts(message: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (number, piece) in message.split('`').enumerate() {
        // Names of ours stand as they are in the code; those of the reader do not.
        if number % 2 == 0 {
            parts.extend(piece.split('…').flat_map(|part| part.split(['(', ')', ',', ':', ';'])).map(|part| part.trim().to_owned()));
        }
    }
    parts.retain(|part| part.split(' ').count() > 2);
    parts
}

/// What only other programs say, or no program: the row is found by what the user sees.
const NOT_OURS: [&str; 4] = ["Read-only file system", "on a server", "box is unreachable", "401"];

/// A reader finds his message in the table about troubles only if the program still says it.
#[test]
fn every_message_in_the_table_about_troubles_is_one_of_the_program() {
    let (page, code) = (read(Path::new("docs/troubleshooting.md")), said_in_code());
    let rows: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("| message |")).skip(2).collect();
    let messages = rows.iter().filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
    let mut looked_for = 0;
    for message in messages.filter(|message| !NOT_OURS.iter().any(|other| message.contains(other))) {
        let parts = fixed_parts(message);
        for part in &parts {
            assert!(code.contains(part.as_str()), "`{part}` of `{message}` is nowhere in the code");
        }
        looked_for += parts.len();
    }
    assert!(looked_for > 12, "only {looked_for} were found");
    assert_eq!(fixed_parts("there is no way `x` to go … it is gone (for good now)"), ["there is no way", "it is gone", "for good now"]);
}

/// Every crate of others that the workspace names has its line in the page about dependencies.
#[test]
fn the_page_about_dependencies_names_every_crate_of_others() {
    let manifest = std::fs::read_to_string(project().join("Cargo.toml")).unwrap();
    let table = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1).take_while(|line| !line.starts_with('['));
    let names: Vec<&str> =
        table.filter_map(|line| line.split_once(" = ").map(|(name, _)| name)).filter(|name| !name.starts_with("outpost-")).collect();
    assert!(names.contains(&"tokio") && names.len() > 40, "{names:?}");
    let page = read(Path::new("docs/dependencies.md"));
    let rows =
        page.lines().skip_while(|line| !line.starts_with("| crate | for | instead of |")).skip(2).take_while(|line| line.starts_with('|'));
    let named: BTreeSet<&str> = rows.filter_map(|row| row.strip_prefix("| ")?.split(" | ").next()).flat_map(words).collect();
    let missing: Vec<&&str> = names.iter().filter(|name| !named.contains(**name)).collect();
    assert!(missing.is_empty(), "docs/dependencies.md has no line for {missing:?}");
}
