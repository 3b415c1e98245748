//! Texts that want to be obeyed, hidden or taken for another: what is shown can be taken back, is harmless, and imitates no frame.

use outpost_wire::shown::{FRAME, Form, Showing, Untrusted, decode};

use super::{Episode, Random, Steps};

/// Controls, line ends, escapes, bidirectional, zero-width and combining marks, letters that look like others, and our own marks.
const ALPHABET: &[&str] = &[
    "\r",
    "\n",
    "\t",
    "\u{1b}",
    "\u{1b}[2J",
    "\u{1b}]0;x\u{7}",
    "\u{7}",
    "\u{8}",
    "\0",
    "\u{7f}",
    "\u{85}",
    "\u{9b}",
    "\u{202e}",
    "\u{2066}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{300}",
    "\u{fe0f}",
    "\u{e0041}",
    "а",
    "е",
    "é",
    "漢",
    "🙂",
    "a",
    "b",
    " ",
    "<",
    ">",
    "<U+001B>",
    "<U+",
    "U+0041>",
    "<<U+001B>",
    "<0x",
    "<0xFF>",
    "\\",
    "`",
    "…",
    "\u{258C}",
    "[environment]",
    "rm -rf /",
    "\u{ad}",
    "\u{2028}",
    "\u{1160}",
];

const FORMS: &[Form] = &[Form::Text, Form::Line, Form::Script, Form::Word];

pub(super) async fn run(episode: Episode, steps: Steps) {
    let mut random = Random::new(episode.seed);
    for _ in 0..2_000 {
        let mut bytes = Vec::new();
        for _ in 0..random.below(24) {
            if random.percent(8) {
                bytes.push((random.next() & 0xff) as u8);
            } else {
                bytes.extend_from_slice(random.pick(ALPHABET).as_bytes());
            }
        }
        for form in FORMS {
            let shown = Untrusted::from(bytes.as_slice()).show(*form);
            let in_pieces = {
                let (mut text, mut showing) = (String::new(), Showing::new(*form));
                let cut = random.below(bytes.len() + 1);
                showing.bytes(&bytes[..cut], &mut text);
                showing.bytes(&bytes[cut..], &mut text);
                showing.end(&mut text);
                text
            };
            let says = || format!("{form:?} {bytes:?} shown as {shown:?}");
            assert_eq!(decode(&shown), bytes, "{}", says());
            assert_eq!(in_pieces, shown, "in pieces: {}", says());
            let lines = matches!(form, Form::Text | Form::Script);
            let is_harmless = |c: char| !c.is_control() || c == '\t' || lines && c == '\n';
            // The end of a line as some systems write it obeys no program.
            let unended = shown.replace("\r\n", "\n");
            assert!(if lines { &unended } else { &shown }.chars().all(is_harmless), "{}", says());
            let hidden = ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\u{ad}', FRAME];
            assert!(!shown.contains(hidden), "{}", says());
            if matches!(form, Form::Script | Form::Word) {
                // A letter may stand in the mark that names it.
                let plain: String = shown.split(':').map(|piece| piece.strip_prefix(|c: char| !c.is_ascii()).unwrap_or(piece)).collect();
                assert!(plain.is_ascii(), "{}", says());
            }
        }
    }
    steps.note("2000 texts in every form");
}
