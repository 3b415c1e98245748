//! Syntax colours for code: words, literals and comments, told apart by the family of the language.
//!
//! Enough to find one's way in a piece of code of a screen. A grammar for each language would be larger than this whole program.

use crate::ink::{Ink, InkLine};

const KEYWORDS: &[&str] = &[
    "abstract",
    "and",
    "as",
    "async",
    "await",
    "begin",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "crate",
    "def",
    "default",
    "defer",
    "del",
    "do",
    "done",
    "elif",
    "else",
    "elsif",
    "end",
    "enum",
    "esac",
    "except",
    "export",
    "extends",
    "extern",
    "false",
    "fi",
    "final",
    "finally",
    "fn",
    "for",
    "from",
    "func",
    "function",
    "go",
    "goto",
    "if",
    "impl",
    "implements",
    "import",
    "in",
    "interface",
    "is",
    "lambda",
    "let",
    "local",
    "loop",
    "match",
    "mod",
    "module",
    "mut",
    "namespace",
    "new",
    "nil",
    "none",
    "not",
    "null",
    "or",
    "package",
    "pass",
    "private",
    "protected",
    "pub",
    "public",
    "raise",
    "ref",
    "return",
    "self",
    "select",
    "static",
    "struct",
    "super",
    "switch",
    "then",
    "this",
    "throw",
    "trait",
    "true",
    "try",
    "type",
    "typedef",
    "union",
    "unless",
    "unsafe",
    "until",
    "use",
    "using",
    "var",
    "virtual",
    "void",
    "volatile",
    "when",
    "where",
    "while",
    "with",
    "yield",
];

/// What begins a comment that ends with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Slashes,
    Hash,
    Dashes,
    /// Nothing is known of it.
    Unknown,
}

/// One block of code, line by line.
#[derive(Debug, Clone)]
pub(crate) struct Highlighter {
    family: Family,
    is_diff: bool,
    in_comment: bool,
}

impl Highlighter {
    pub(crate) fn new(language: &str) -> Self {
        let family = match language.to_ascii_lowercase().as_str() {
            "rust" | "rs" | "c" | "h" | "cpp" | "c++" | "cc" | "go" | "java" | "js" | "javascript" | "jsx" | "ts" | "typescript"
            | "tsx" | "kotlin" | "swift" | "scala" | "cs" | "csharp" | "php" | "json" | "jsonc" | "proto" | "css" | "scss" | "dart"
            | "zig" => Family::Slashes,
            "python" | "py" | "sh" | "bash" | "zsh" | "shell" | "fish" | "ruby" | "rb" | "perl" | "toml" | "yaml" | "yml" | "make"
            | "makefile" | "dockerfile" | "r" | "nix" | "ini" | "conf" | "elixir" => Family::Hash,
            "sql" | "lua" | "haskell" | "hs" | "ada" => Family::Dashes,
            _ => Family::Unknown,
        };
        Self { family, is_diff: matches!(language, "diff" | "patch"), in_comment: false }
    }

    pub(crate) fn line(&mut self, text: &str) -> InkLine {
        if self.is_diff {
            return crate::diff::coloured(text).pop().unwrap_or_default();
        }
        if self.family == Family::Unknown {
            return InkLine::of(Ink::Code, text);
        }
        let (mut line, mut rest) = (InkLine::default(), text);
        while let Some(first) = rest.chars().next() {
            let (ink, length) = self.piece(rest, first);
            line.push(ink, &rest[..length]);
            rest = &rest[length..];
        }
        line
    }

    /// The ink and the length of what a text begins with.
    fn piece(&mut self, rest: &str, first: char) -> (Ink, usize) {
        if self.in_comment {
            let end = rest.find("*/");
            self.in_comment = end.is_none();
            return (Ink::Comment, end.map_or(rest.len(), |at| at + 2));
        }
        let comment = match self.family {
            Family::Slashes => "//",
            Family::Hash => "#",
            Family::Dashes => "--",
            Family::Unknown => "\n",
        };
        if rest.starts_with(comment) {
            return (Ink::Comment, rest.len());
        }
        if self.family == Family::Slashes && rest.starts_with("/*") {
            self.in_comment = true;
            return (Ink::Comment, 2);
        }
        match first {
            '"' | '`' => (Ink::Literal, quoted(rest, first)),
            // A quote that is not closed in this line is an apostrophe or a lifetime.
            '\'' if quoted(rest, first) < rest.len() || rest.len() > 1 && rest.ends_with('\'') => (Ink::Literal, quoted(rest, first)),
            '0'..='9' => (Ink::Literal, run(rest, |c| c.is_ascii_alphanumeric() || c == '_' || c == '.')),
            c if c.is_alphabetic() || c == '_' => {
                let length = run(rest, |c| c.is_alphanumeric() || c == '_');
                let word = rest[..length].to_ascii_lowercase();
                (if KEYWORDS.contains(&word.as_str()) { Ink::Keyword } else { Ink::Plain }, length)
            }
            c => (Ink::Plain, c.len_utf8()),
        }
    }
}

/// The length of what is between quotes, with both; all of it if there is no second.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn run(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_literals_and_comments_are_told_apart() {
        let mut rust = Highlighter::new("rust");
        let inks: Vec<(Ink, String)> =
            rust.line("let x: &'a str = \"a // b\"; // why").0.into_iter().map(|span| (span.ink, span.text)).collect();
        assert_eq!(inks[0], (Ink::Keyword, "let".to_owned()));
        assert!(inks.contains(&(Ink::Literal, "\"a // b\"".to_owned())) && inks.contains(&(Ink::Comment, "// why".to_owned())), "{inks:?}");
        assert_eq!(rust.line("/* one").0[0].ink, Ink::Comment);
        assert_eq!(rust.line("two */ fn").0.last().map(|span| span.ink), Some(Ink::Keyword));
        assert_eq!(Highlighter::new("sh").line("# all of it").0[0].ink, Ink::Comment);
    }

    proptest! {
        #[test]
        fn no_text_is_lost(text in "[ -~é日\t]{0,60}", language in "(rust|sh|sql|diffx|)") {
            prop_assert_eq!(Highlighter::new(&language).line(&text).text(), text);
        }
    }
}
