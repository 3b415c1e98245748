//! Output as a model reads it: without what only a terminal understands, without progress that was overwritten, and with a line
//! that is repeated told once.

/// So many lines in a row that are the same are shown one by one.
const SHOWN_REPEATS: usize = 3;

/// The text without escape sequences, overwritten progress and long repetitions.
pub(super) fn tidy(text: &str) -> String {
    let plain = without_escapes(text);
    let mut tidied = String::with_capacity(plain.len());
    let mut lines = plain.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let mut count = 1;
        while lines.next_if(|next| next.trim_end_matches('\n') == line.trim_end_matches('\n')).is_some() {
            count += 1;
        }
        let shown = if count > SHOWN_REPEATS { 1 } else { count };
        (0..shown).for_each(|_| tidied.push_str(line));
        if count > SHOWN_REPEATS {
            if !tidied.ends_with('\n') {
                tidied.push('\n');
            }
            tidied.push_str(&format!("[the line above {} more times]\n", count - 1));
        }
    }
    tidied
}

/// What is left on the screen of each line: escape sequences do nothing, and a carriage return begins the line anew.
fn without_escapes(text: &str) -> String {
    if !text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
        return text.to_owned();
    }
    let mut plain = String::with_capacity(text.len());
    // Where the present line began, and whether what follows overwrites it.
    let (mut line, mut overwrites) = (0, false);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' => {
                plain.push('\n');
                (line, overwrites) = (plain.len(), false);
            }
            '\r' => overwrites = true,
            '\u{1b}' | '\u{9b}' => skip_sequence(c, &mut rest),
            '\u{8}' => {
                if plain.len() > line {
                    plain.pop();
                }
            }
            c if c.is_control() && c != '\t' => {}
            c => {
                if overwrites {
                    plain.truncate(line);
                    overwrites = false;
                }
                plain.push(c);
            }
        }
    }
    plain
}

/// Skips what belongs to an escape sequence after its first character.
fn skip_sequence(first: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let kind = if first == '\u{9b}' { Some('[') } else { rest.next() };
    match kind {
        // Parameters, then one letter.
        Some('[') => while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
        // Text up to a bell or the end of the string.
        Some(']' | 'P' | '_' | '^' | 'X') => {
            while let Some(c) = rest.next() {
                if c == '\u{7}' || (c == '\u{1b}' && rest.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        // One more character: the choice of a character set.
        Some('(' | ')' | '*' | '+' | '#' | '%') => drop(rest.next()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_stays_on_the_screen_is_told() {
        assert_eq!(tidy("\u{1b}[1;32mok\u{1b}[0m \u{1b}]0;title\u{7}done\u{1b}(B\n"), "ok done\n");
        assert_eq!(tidy(" 10%\r 50%\r100%\nnext\r\n"), "100%\nnext\n");
        assert_eq!(tidy("N\u{8}NA\u{8}AME\n"), "NAME\n");
        assert_eq!(tidy("keeps\r"), "keeps", "a return at the end overwrites nothing");
        assert_eq!(tidy("a\tb\nä\n"), "a\tb\nä\n");
    }

    #[test]
    fn long_repetitions_are_told_once() {
        assert_eq!(tidy("a\na\na\nb\n"), "a\na\na\nb\n");
        assert_eq!(tidy("a\na\na\na\na\nb"), "a\n[the line above 4 more times]\nb");
        assert_eq!(tidy("a\na\na\na"), "a\n[the line above 3 more times]\n");
    }

    proptest! {
        #[test]
        fn plain_text_without_repeats_is_untouched(words in prop::collection::vec("[a-z]{1,8}", 0..20)) {
            let text: String = words.iter().enumerate().map(|(n, word)| format!("{n} {word}\n")).collect();
            prop_assert_eq!(tidy(&text), text);
        }

        #[test]
        fn nothing_that_controls_is_left(text in any::<String>()) {
            prop_assert!(!tidy(&text).contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
