//! How texts are written: see "How we write" in docs/glossary.md.

use super::{Finding, Source};

/// Words that hide the actor. Name it: the client, the executor, the user, another process.
const FORBIDDEN: &[&str] = &["whoever", "whomever", "somebody", "someone", "nobody", "anybody", "everybody"];

/// How a refusal begins that says what a value is not.
const RIDDLES: &[&str] = &["` is no ", "} is no ", "it is no "];

/// Error texts that another protocol prescribes.
const PRESCRIBED: &[&str] = &["crates/wire/src/base64.rs"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let is_code = source.crate_name().is_some() || source.path.starts_with("xtask/src/");
        let is_page = source.path.ends_with(".md") && !source.path.contains("fixtures/");
        for (number, line) in source.text.lines().enumerate() {
            let readers_text = if is_page { Some(line) } else { doc_comment(line).filter(|_| is_code) };
            if let Some(word) = readers_text.and_then(forbidden) {
                findings.push(source.finding(number + 1, hides(word)));
            }
        }
        if is_code && source.path.ends_with(".rs") {
            findings.extend(literals(&source.text).iter().flat_map(|literal| in_literal(source, literal)));
        }
    }
    findings.sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
    findings
}

fn in_literal(source: &Source, literal: &Literal) -> Vec<Finding> {
    let mut found = Vec::new();
    let text = literal.text.as_str();
    let is_read = literal.is_error || is_shipped(source) && text.contains(' ');
    if let Some(word) = forbidden(text).filter(|_| is_read) {
        found.push(hides(word));
    }
    if is_read && RIDDLES.iter().any(|riddle| text.contains(riddle)) {
        found.push("\"is no …\" is a riddle: write \"is not a …\" or \"invalid …\"".to_owned());
    }
    if literal.is_error && !PRESCRIBED.contains(&source.path.as_str()) {
        if begins_a_sentence(text) {
            found.push("an error text starts in lower case: it stands after \"error: \"".to_owned());
        }
        if text.ends_with('.') && !text.ends_with("..") {
            found.push("an error text ends without a full stop".to_owned());
        }
    }
    found.into_iter().map(|what| source.finding(literal.line, what)).collect()
}

fn hides(word: &str) -> String {
    format!("`{word}` hides the actor: name it")
}

/// Benchmarks, stand-ins and files of tests have no users.
fn is_shipped(source: &Source) -> bool {
    let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    source.crate_name().is_some_and(|name| !["bench", "testkit"].contains(&name)) && !is_test
}

fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// A string of the program.
struct Literal {
    line: usize,
    /// As it is written, escapes included.
    text: String,
    /// It is the text of `#[error(…)]`, on this line or the next.
    is_error: bool,
}

/// The strings of a file before its tests, which are a module at its end. A small lexer: comments, characters and lifetimes are skipped.
fn literals(text: &str) -> Vec<Literal> {
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    let mut is_error = false;
    while let Some(next) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inner) = rest.strip_prefix("#[error(") {
            is_error = inner.trim_start().starts_with('"');
            "#[error(".len()
        } else if let Some((text, length)) = string(rest).filter(|_| next == '"' || !code[..at].ends_with(is_word)) {
            found.push(Literal { line, text: text.to_owned(), is_error: std::mem::take(&mut is_error) });
            length
        } else if next == '\'' {
            character(rest)
        } else {
            next.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The text of a string that stands here (`"…"` or `r#"…"#`), and how long all of it is.
fn string(rest: &str) -> Option<(&str, usize)> {
    if let Some(inner) = rest.strip_prefix('"') {
        let mut is_escaped = false;
        let end = inner.find(|c: char| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        })?;
        return Some((&inner[..end], end + 2));
    }
    let marks = rest.strip_prefix('r')?;
    let inner = marks.trim_start_matches('#');
    let hashes = marks.len() - inner.len();
    let inner = inner.strip_prefix('"')?;
    let end = inner.find(&format!("\"{}", "#".repeat(hashes)))?;
    Some((&inner[..end], end + 3 + 2 * hashes))
}

/// What a name may end with: an `r` behind it begins no raw string.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// How long a character is that stands here; of a lifetime, its tick.
fn character(rest: &str) -> usize {
    let inner = &rest[1..];
    let first = inner.chars().next().map_or(0, char::len_utf8);
    match inner.strip_prefix('\\') {
        Some(escaped) => escaped.get(1..).and_then(|rest| rest.find('\'')).map_or(1, |end| end + 4),
        None if inner[first..].starts_with('\'') => first + 2,
        None => 1,
    }
}

fn forbidden(text: &str) -> Option<&'static str> {
    text.split(|c: char| !c.is_alphanumeric()).find_map(|word| FORBIDDEN.iter().find(|bad| word.eq_ignore_ascii_case(bad)).copied())
}

/// Begins with a capital that is not part of an abbreviation or a variable's name (`MCP`, `OUTPOST_HOME`). One letter before a blank
/// (`A file…`) is a word.
fn begins_a_sentence(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(char::is_uppercase) && letters.next().is_some_and(|next| next.is_lowercase() || next == ' ')
}

#[cfg(test)]
mod tests {
    use super::super::tests::source;
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[source(path, text)]).len()
    }

    #[test]
    fn words_that_hide_the_actor_are_found_in_comments_errors_texts_and_pages() {
        assert_eq!(count("crates/a/src/lib.rs", "/// Somebody waits."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "//! For whoever reads."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "    #[error(\"held by nobody\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "say(\"nobody can be asked\");"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "say(r#\"\"nobody\" can be asked\"#);"), 1);
        assert_eq!(count("docs/a.md", "Nobody has it."), 1);
        assert_eq!(count("crates/a/src/lib.rs", "let user = \"nobody\";"), 0);
        assert_eq!(count("fixtures/a.txt", "Nobody has it."), 0);
    }

    #[test]
    fn texts_of_tests_and_of_what_is_not_shipped_are_free() {
        let text = "say(\"nobody can be asked\");";
        for path in
            ["crates/bench/src/lib.rs", "crates/testkit/src/lib.rs", "crates/a/src/tests.rs", "xtask/src/main.rs", "tests/a/main.rs"]
        {
            assert_eq!(count(path, text), 0, "{path}");
        }
        assert_eq!(count("crates/a/src/lib.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")), 0);
    }

    #[test]
    fn error_texts_are_fragments() {
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"Cannot read\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"A file is gone\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"cannot read.\")]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\n        \"Cannot read it at all\"\n    )]"), 1);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(\"MCP server `{0}` has ended\")]"), 0);
        assert_eq!(count("crates/a/src/lib.rs", "#[error(transparent)]\nsay(\"Cannot read.\");"), 0);
    }

    #[test]
    fn what_a_value_is_not_is_said_plainly() {
        for text in [
            "#[error(\"`{0}` is no port\")]",
            "bail!(\"`{text}` is no port\");",
            "bail!(\"{path} is no file\");",
            "bail!(\"it is no file\");",
        ] {
            assert_eq!(count("crates/a/src/lib.rs", text), 1, "{text}");
        }
        for text in ["bail!(\"`{text}` is not a port\");", "bail!(\"there is no port `{text}`\");", "// `x` is no port"] {
            assert_eq!(count("crates/a/src/lib.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn strings_are_found_among_characters_lifetimes_and_comments() {
        let text = "fn f<'a>(x: &'a str) { g('\"', '\\'', '\\u{1F}', \"one \\\" two\"); } // \"not this\"\nlet y = r\"three\";\nlet z = r##\"fo\"#ur\"##;";
        let found: Vec<(usize, String)> = literals(text).into_iter().map(|literal| (literal.line, literal.text)).collect();
        let expected = [(1, "one \\\" two"), (2, "three"), (3, "fo\"#ur")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }
}
