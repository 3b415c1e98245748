//! Differences of files, coloured by line.

use outpost_wire::shown::{Form, Untrusted};

use crate::ink::{Ink, InkLine};

/// The lines of a difference in the unified form. Each is shown in the form for code, so that lookalikes are seen.
pub fn coloured(diff: &str) -> Vec<InkLine> {
    let shown = Untrusted::from(diff).show(Form::Script);
    let lines = shown.strip_suffix('\n').unwrap_or(&shown).split('\n');
    lines.map(|line| InkLine::of(ink(line), line)).collect()
}

/// How many lines it adds and removes.
pub fn counts(diff: &str) -> (usize, usize) {
    let count = |wanted: Ink| diff.lines().filter(|line| ink(line) == wanted).count();
    (count(Ink::Added), count(Ink::Removed))
}

fn ink(line: &str) -> Ink {
    match line.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => Ink::Strong,
        [b'+', ..] => Ink::Added,
        [b'-', ..] => Ink::Removed,
        [b'@', b'@', ..] => Ink::Hunk,
        _ => Ink::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_ink_of_their_sign() {
        let diff = "--- a\n+++ b\n@@ -1 +1 @@\n-old \u{430}\n+new\x1b[2J\n same\n";
        let lines = coloured(diff);
        let inks: Vec<Ink> = lines.iter().map(|line| line.0[0].ink).collect();
        assert_eq!(inks, [Ink::Strong, Ink::Strong, Ink::Hunk, Ink::Removed, Ink::Added, Ink::Plain]);
        assert_eq!((lines[3].text(), lines[4].text()), ("-old <U+0430:\u{430}>".to_owned(), "+new<U+001B>[2J".to_owned()));
        assert_eq!(counts(diff), (1, 1));
    }
}
