//! Text that this program did not write, and the one function that makes it visible.
//!
//! Models, commands, files, executors and servers choose texts that people see on a terminal, on the page and in logs. A
//! terminal obeys control characters, a bidirectional mark reorders what stands beside it, a zero-width character hides, and
//! a letter of another alphabet looks like one of ours. Here each of them becomes a mark in plain ASCII, so that two
//! different texts never look the same: [`decode`] gives back exactly the bytes that were shown.
//!
//! Only for the eyes of people. On a network and in files texts stay as they are. The page has the same function in
//! `shown.js`; `fixtures/shown.json` holds both to the same results.

use std::fmt;

/// Begins every line that the program itself draws around texts of others. Untrusted text never shows it.
pub const FRAME: char = '\u{258C}';

/// Text that this program did not write. There is no `Display`: it has to be shown in one form or another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted<'a>(&'a [u8]);

impl<'a> Untrusted<'a> {
    /// As it can be shown to people without harm; [`decode`] takes it back.
    pub fn show(self, form: Form) -> String {
        let mut shown = String::with_capacity(self.0.len());
        let mut showing = Showing::new(form);
        showing.bytes(self.0, &mut shown);
        showing.end(&mut shown);
        shown
    }

    /// As it is, for networks and files.
    pub const fn exact(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> From<&'a str> for Untrusted<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Untrusted<'a> {
    fn from(text: &'a String) -> Self {
        Self(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Untrusted<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Untrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show(Form::Word))
    }
}

/// What kind of text it is, and where it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text of a message or a program's output, over as many lines as it has. Letters of every alphabet are shown as they are.
    Text,
    /// The same as a part of one line.
    Line,
    /// A command, a patch, anything that will be carried out. Whatever is not ASCII is marked, because letters of different
    /// alphabets look alike. Lines and tabs stay.
    Script,
    /// The same as a part of one line: also the form for paths and names.
    Word,
}

impl Form {
    const fn is_code(self) -> bool {
        matches!(self, Self::Script | Self::Word)
    }

    const fn has_lines(self) -> bool {
        matches!(self, Self::Text | Self::Script)
    }
}

/// Never seen, or seen where they are not: format characters, fillers, what is private or no character, and surrogates, which
/// only other languages have. Controls are dealt with before.
const HIDDEN: [(u32, u32); 24] = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (FRAME as u32, FRAME as u32),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xD800, 0xF8FF),
    (0xFDD0, 0xFDEF),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x13430, 0x1345F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0x1FFFE, 0x1FFFF),
    (0xE0000, 0x10FFFF),
];

/// Drawn over the character before them.
const COMBINING: [(u32, u32); 6] =
    [(0x0300, 0x036F), (0x0483, 0x0489), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F)];
/// So many of those one character may carry; more would be drawn over the lines above and below.
const MOST_COMBINING: u8 = 3;

/// Letters that a mark shows beside their number, so that people can still read the names of their files.
const LETTERS: [(u32, u32); 9] = [
    (0x00C0, 0x024F),
    (0x0391, 0x03A1),
    (0x03A3, 0x03C9),
    (0x0401, 0x0401),
    (0x0410, 0x0451),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
];

/// Pictures, which may be followed by a selector of their style and be joined.
const PICTURES: [(u32, u32); 2] = [(0x2600, 0x27BF), (0x1F000, 0x1FAFF)];
const JOINER: u32 = 0x200D;
const STYLES: [u32; 2] = [0xFE0E, 0xFE0F];

fn is_in(ranges: &[(u32, u32)], code: u32) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// Shows a text that comes in pieces.
#[derive(Debug, Clone)]
pub struct Showing {
    form: Form,
    /// Marks in the text are our own.
    is_assembled: bool,
    /// The last two characters, where they were shown as they are.
    before: [Option<char>; 2],
    combining: u8,
    /// A carriage return whose line may end with the next character.
    returned: bool,
    /// The beginning of a character.
    begun: Vec<u8>,
}

impl Showing {
    pub const fn new(form: Form) -> Self {
        Self { form, is_assembled: false, before: [None; 2], combining: 0, returned: false, begun: Vec::new() }
    }

    /// The next piece. What is not UTF-8 is shown byte by byte.
    pub fn bytes(&mut self, bytes: &[u8], out: &mut String) {
        let joined;
        let mut rest = bytes;
        if !self.begun.is_empty() {
            self.begun.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.begun);
            rest = &joined;
        }
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return self.text(text, out),
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            self.text(std::str::from_utf8(valid).unwrap_or_default(), out);
            let Some(wrong) = error.error_len() else {
                self.begun = after.to_vec();
                return;
            };
            self.odd_bytes(&after[..wrong], out);
            rest = &after[wrong..];
        }
    }

    /// The next piece of what is known to be text.
    pub fn text(&mut self, text: &str, out: &mut String) {
        text.chars().for_each(|c| self.put(c, out));
    }

    /// There is no more.
    pub fn end(&mut self, out: &mut String) {
        self.flush(out);
        let begun = std::mem::take(&mut self.begun);
        self.odd_bytes(&begun, out);
    }

    fn odd_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if !bytes.is_empty() {
            self.flush(out);
        }
        for byte in bytes {
            out.push_str(&format!("<0x{byte:02X}>"));
            self.before = [None; 2];
        }
    }

    fn flush(&mut self, out: &mut String) {
        if std::mem::take(&mut self.returned) {
            self.mark('\r', out);
        }
    }

    fn put(&mut self, c: char, out: &mut String) {
        if self.returned && c == '\n' {
            // The end of a line as some write it; it moves nothing that was written.
            self.returned = false;
            self.pass('\r', out);
        }
        self.flush(out);
        if c == '\r' && self.form == Form::Text {
            self.returned = true;
        } else if self.passes(c) {
            self.pass(c, out);
        } else {
            self.mark(c, out);
        }
    }

    fn passes(&self, c: char) -> bool {
        match (c, self.before) {
            ('\n' | '\t', _) => self.form.has_lines(),
            // What would begin a mark of ours.
            ('+', [Some('<'), Some('U')]) | ('x', [Some('<'), Some('0')]) => self.is_assembled,
            (' '..='~', _) => true,
            (FRAME, _) => self.is_assembled,
            _ if self.form.is_code() => false,
            (_, [_, last]) => self.passes_in_prose(u32::from(c), last.map(u32::from)),
        }
    }

    fn passes_in_prose(&self, code: u32, last: Option<u32>) -> bool {
        let after_picture = last.is_some_and(|last| is_in(&PICTURES, last) || STYLES.contains(&last));
        if STYLES.contains(&code) {
            return last.is_some_and(|last| last > 0x7F && !STYLES.contains(&last));
        }
        if code == JOINER {
            return after_picture;
        }
        if is_in(&HIDDEN, code) || code < 0xA0 {
            return false;
        }
        // Not over our own frame, nor over nothing.
        let has_base = last.is_some_and(|last| last > 0x20);
        !is_in(&COMBINING, code) || (has_base && self.combining < MOST_COMBINING)
    }

    fn pass(&mut self, c: char, out: &mut String) {
        out.push(c);
        self.combining = if is_in(&COMBINING, u32::from(c)) { self.combining + 1 } else { 0 };
        self.before = [self.before[1], Some(c)];
    }

    fn mark(&mut self, c: char, out: &mut String) {
        let code = u32::from(c);
        out.push_str(&match self.form.is_code() && is_in(&LETTERS, code) {
            true => format!("<U+{code:04X}:{c}>"),
            false => format!("<U+{code:04X}>"),
        });
        self.combining = 0;
        self.before = [None; 2];
    }
}

/// A text that was put together from shown parts, words and frames of our own. Those stay; whatever was forgotten is marked.
pub fn guard(text: &str) -> String {
    let (mut shown, mut showing) = (String::with_capacity(text.len()), Showing::new(Form::Text));
    showing.is_assembled = true;
    showing.text(text, &mut shown);
    showing.end(&mut shown);
    shown
}

/// The bytes of which a text was shown, in whichever form.
pub fn decode(shown: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(shown.len());
    let mut rest = shown;
    while let Some(c) = rest.chars().next() {
        let (read, length) = mark_at(rest).unwrap_or((Read::Char(c), c.len_utf8()));
        match read {
            Read::Char(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Read::Byte(byte) => bytes.push(byte),
        }
        rest = &rest[length..];
    }
    bytes
}

enum Read {
    Char(char),
    Byte(u8),
}

/// The mark with which a text begins, and its length.
fn mark_at(text: &str) -> Option<(Read, usize)> {
    // The longest is `<U+10FFFF>`, or one with a letter.
    let end = text.bytes().take(16).position(|byte| byte == b'>').filter(|_| text.starts_with('<'))?;
    if let Some(digits) = text[..end].strip_prefix("<0x") {
        return u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2).map(|byte| (Read::Byte(byte), end + 1));
    }
    let number = text[..end].strip_prefix("<U+")?;
    let digits = number.split_once(':').map_or(number, |(digits, _)| digits);
    let c = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)?;
    Some((Read::Char(c), end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    const FORMS: [Form; 4] = [Form::Text, Form::Line, Form::Script, Form::Word];

    /// Controls, ends of lines, marks of direction, what has no width, what combines, our own marks and frame, lookalikes.
    const ALPHABET: [char; 46] = [
        '\0',
        '\u{7}',
        '\u{8}',
        '\t',
        '\n',
        '\u{b}',
        '\r',
        '\u{1b}',
        '\u{7f}',
        '\u{85}',
        '\u{9b}',
        '\u{9d}',
        '\u{ad}',
        '\u{301}',
        '\u{34f}',
        '\u{61c}',
        '\u{200b}',
        '\u{200d}',
        '\u{200e}',
        '\u{200f}',
        '\u{2028}',
        '\u{202a}',
        '\u{202e}',
        '\u{2066}',
        '\u{2069}',
        '\u{feff}',
        '\u{fe0f}',
        '\u{20dd}',
        '\u{e0041}',
        '\u{e000}',
        FRAME,
        '<',
        '>',
        'U',
        '+',
        '0',
        'x',
        ':',
        'A',
        'a',
        '\u{430}',
        '\u{e9}',
        '\u{4e2d}',
        '\u{5d0}',
        ' ',
        '\u{1f600}',
    ];

    fn strange() -> impl Strategy<Value = String> {
        let known = prop::collection::vec(prop::sample::select(ALPHABET.to_vec()), 0..40).prop_map(|chars| chars.into_iter().collect());
        prop_oneof![3 => known, 1 => any::<String>()]
    }

    /// Whether a terminal would do anything with it but draw it in its place.
    fn is_harmless(c: char) -> bool {
        matches!(c, '\n' | '\t' | ' '..='~') || (u32::from(c) >= 0xA0 && !is_in(&HIDDEN, u32::from(c)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_is_shown_can_be_taken_back(text in strange()) {
            for form in FORMS {
                let shown = Untrusted::from(&text).show(form);
                prop_assert_eq!(decode(&shown), text.as_bytes(), "{:?} {:?}", form, shown);
            }
        }

        #[test]
        fn bytes_can_be_taken_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            for form in FORMS {
                prop_assert_eq!(&decode(&Untrusted::from(bytes.as_slice()).show(form)), &bytes);
            }
        }

        #[test]
        fn pieces_show_what_the_whole_shows(text in strange(), cut in 0_usize..100) {
            let cut = cut.min(text.len());
            for form in FORMS {
                let (mut shown, mut showing) = (String::new(), Showing::new(form));
                showing.bytes(&text.as_bytes()[..cut], &mut shown);
                showing.bytes(&text.as_bytes()[cut..], &mut shown);
                showing.end(&mut shown);
                prop_assert_eq!(shown, Untrusted::from(&text).show(form));
            }
        }

        #[test]
        fn nothing_that_is_shown_is_obeyed(text in strange()) {
            for form in FORMS {
                let shown = Untrusted::from(&text).show(form).replace("\r\n", "\n");
                let mut last = ' ';
                for c in shown.chars() {
                    let styles = STYLES.contains(&u32::from(c)) || u32::from(c) == JOINER;
                    prop_assert!(is_harmless(c) || (styles && u32::from(last) > 0x7F), "{:?} {:?}", form, shown);
                    prop_assert!(form.has_lines() || !matches!(c, '\n' | '\t'));
                    prop_assert!(c != FRAME);
                    last = c;
                }
            }
        }

        #[test]
        fn a_guarded_text_keeps_its_marks(text in strange()) {
            let shown = Untrusted::from(&text).show(Form::Line);
            prop_assert_eq!(guard(&shown), shown);
        }

        #[test]
        fn code_is_ascii_but_for_the_letters_in_marks(text in strange()) {
            for form in [Form::Script, Form::Word] {
                let shown = Untrusted::from(&text).show(form);
                let mut before = ' ';
                for c in shown.chars() {
                    prop_assert!(c.is_ascii() || before == ':', "{}", shown);
                    before = c;
                }
            }
        }
    }

    #[derive(Deserialize)]
    struct Vector {
        form: String,
        text: String,
        shown: String,
    }

    #[test]
    fn the_vectors_that_the_page_is_held_to() {
        let vectors: Vec<Vector> = serde_json::from_str(include_str!("../../../fixtures/shown.json")).unwrap();
        assert!(vectors.len() > 40);
        for Vector { form, text, shown } in vectors {
            let form = match form.as_str() {
                "text" => Form::Text,
                "line" => Form::Line,
                "script" => Form::Script,
                "word" => Form::Word,
                other => panic!("{other}"),
            };
            assert_eq!(Untrusted::from(&text).show(form), shown, "{text:?}");
            assert_eq!(decode(&shown), text.as_bytes(), "{shown}");
        }
    }
}
