//! A command line, split into the commands that it would run.
//!
//! This is not a shell. It splits what is plain and says when something is not: then nothing can be allowed because of its
//! words, but what is recognised can still be forbidden.

/// The commands of a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    pub commands: Vec<Vec<String>>,
    /// Whether these words are exactly what would run: no expansion, no redirection, no grouping.
    pub is_plain: bool,
}

pub fn split(text: &str) -> Script {
    let mut splitter = Splitter { script: Script { commands: vec![], is_plain: true }, command: vec![], word: None };
    splitter.run(text);
    splitter.end_command();
    splitter.script
}

struct Splitter {
    script: Script,
    command: Vec<String>,
    word: Option<String>,
}

impl Splitter {
    fn run(&mut self, text: &str) {
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\'' => {
                    let word = self.word.get_or_insert_default();
                    let mut closed = false;
                    for c in chars.by_ref() {
                        if c == '\'' {
                            closed = true;
                            break;
                        }
                        word.push(c);
                    }
                    self.script.is_plain &= closed;
                }
                '"' => {
                    self.word.get_or_insert_default();
                    self.double_quoted(&mut chars);
                }
                '\\' => match chars.next() {
                    Some('\n') => {}
                    Some(c) => self.word.get_or_insert_default().push(c),
                    None => self.script.is_plain = false,
                },
                ' ' | '\t' | '\r' => self.end_word(),
                '\n' | ';' | '|' | '&' => {
                    // A lone `&` leaves something running behind; both of a pair are one separator.
                    if c == '&' && chars.next_if_eq(&'&').is_none() {
                        self.script.is_plain = false;
                    }
                    if c == '|' && chars.next_if_eq(&'|').is_none() && chars.next_if_eq(&'&').is_some() {
                        self.script.is_plain = false;
                    }
                    self.end_command();
                }
                '(' | ')' | '`' => {
                    self.script.is_plain = false;
                    self.end_command();
                }
                '$' => {
                    self.script.is_plain = false;
                    if chars.peek() != Some(&'(') {
                        self.word.get_or_insert_default().push(c);
                    }
                }
                '<' | '>' => {
                    self.script.is_plain = false;
                    self.end_word();
                }
                '*' | '?' | '[' | ']' | '{' | '}' | '~' | '!' | '#' => {
                    self.script.is_plain &= c == '#' && self.word.is_some();
                    self.word.get_or_insert_default().push(c);
                }
                _ => self.word.get_or_insert_default().push(c),
            }
        }
    }

    fn double_quoted(&mut self, chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        while let Some(c) = chars.next() {
            match c {
                '"' => return,
                '\\' => match chars.next() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.word.get_or_insert_default().push(c),
                    Some('\n') => {}
                    Some(c) => self.word.get_or_insert_default().extend(['\\', c]),
                    None => break,
                },
                '`' | '(' | ')' if !self.script.is_plain || c == '`' => {
                    // Something is substituted in here; its words are looked at like any others.
                    self.script.is_plain = false;
                    self.end_command();
                }
                '$' => {
                    self.script.is_plain = false;
                    self.word.get_or_insert_default().push(c);
                }
                c => self.word.get_or_insert_default().push(c),
            }
            // `"$(rm x)"` separates its words with blanks like any command does.
            if !self.script.is_plain && chars.next_if(|c| *c == ' ').is_some() {
                self.end_word();
            }
        }
        self.script.is_plain = false;
    }

    fn end_word(&mut self) {
        self.command.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let mut words = std::mem::take(&mut self.command);
        // Variables in front of a command change what it does.
        let assignments = words.iter().take_while(|word| is_assignment(word)).count();
        if assignments > 0 {
            self.script.is_plain = false;
            words.drain(..assignments);
        }
        if !words.is_empty() {
            self.script.commands.push(words);
        }
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(text: &str) -> Vec<Vec<String>> {
        let script = split(text);
        assert!(script.is_plain, "{text}: {script:?}");
        script.commands
    }

    #[test]
    fn plain_commands() {
        assert_eq!(plain("git commit -m 'a b' \"c d\" e\\ f"), [["git", "commit", "-m", "a b", "c d", "e f"]]);
        assert_eq!(plain("a && b || c; d | e\nf"), [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]);
        assert_eq!(plain("echo '$HOME `x`' \"\\$x\""), [["echo", "$HOME `x`", "$x"]]);
        assert_eq!(plain("  "), Vec::<Vec<String>>::new());
    }

    #[test]
    fn what_is_not_plain_is_said() {
        for text in [
            "a $(b)", "a `b`", "a > b", "a & b", "(a)", "a $x", "a *", "a ~", "x=1 a", "a 'b", "a \"b", "a \\", "\"$(b)\"", "a <(b)",
            "{ a; }", "! a", "a |& b",
        ] {
            assert!(!split(text).is_plain, "{text}");
        }
    }

    #[test]
    fn hidden_commands_are_seen() {
        for text in ["a $(rm x)", "a `rm x`", "(rm x)", "a & rm x", "x=1 rm x", "a <(rm x)", "a \"$(rm x)\"", "a |& rm x"] {
            let commands = split(text).commands;
            assert!(commands.iter().any(|command| command[0] == "rm"), "{text}: {commands:?}");
        }
    }

    proptest! {
        #[test]
        fn quoted_words_come_back(words in prop::collection::vec("[ -~]{1,8}", 1..5)) {
            let line = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(plain(&format!("x {line}"))[0][1..].to_vec(), words);
        }

        #[test]
        fn rubbish_never_panics(text in "[-a-z '\"\\\\$`()<>|&;\n=*]{0,40}") {
            split(&text);
        }
    }
}
