//! Output of a command in bounded memory, and as much of it as the model is shown: its beginning and its end.

use super::tidy::tidy;

/// So much of a command's output is kept between two looks at it.
const KEPT: usize = 1 << 20;

/// So much of a command's output is shown to clients that come later, its beginning and its end.
pub(crate) const SHOWN_LATER_TOKENS: usize = 2_000;

/// About how many bytes a token has.
const BYTES_PER_TOKEN: usize = 4;

/// Keeps the first and the last bytes of whatever is pushed into it, and counts the rest.
#[derive(Debug, Default)]
pub struct HeadTail {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    omitted: u64,
}

/// Text for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelText {
    pub text: String,
    /// About how many tokens all of the output would have been.
    pub original_tokens: u64,
}

impl HeadTail {
    pub fn push(&mut self, bytes: &[u8]) {
        let half = KEPT / 2;
        let room = half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        if rest.len() >= half {
            self.omitted += (self.tail.len() + rest.len() - half) as u64;
            self.tail.clear();
            self.tail.extend(&rest[rest.len() - half..]);
            return;
        }
        let surplus = (self.tail.len() + rest.len()).saturating_sub(half);
        self.omitted += surplus as u64;
        self.tail.drain(..surplus);
        self.tail.extend(rest);
    }

    /// Bytes that are known to be missing at this place.
    pub fn lose(&mut self, bytes: u64) {
        self.omitted += bytes;
    }

    pub fn total(&self) -> u64 {
        self.head.len() as u64 + self.tail.len() as u64 + self.omitted
    }

    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// As much as fits the budget, cut in the middle at line ends where there are some.
    pub fn show(&self, budget_tokens: usize) -> ModelText {
        let budget = budget_tokens.saturating_mul(BYTES_PER_TOKEN);
        let original_tokens = self.total().div_ceil(BYTES_PER_TOKEN as u64);
        let (front, back) = self.tail.as_slices();
        let tail: Vec<u8> = [front, back].concat();
        // With something omitted in the middle, neither half may reach over the gap.
        let (first, second) = if self.omitted == 0 {
            (tidy(&String::from_utf8_lossy(&[&self.head[..], &tail].concat())), None)
        } else {
            (tidy(&String::from_utf8_lossy(&self.head)), Some(tidy(&String::from_utf8_lossy(&tail))))
        };
        if second.is_none() && first.len() <= budget {
            return ModelText { text: first, original_tokens };
        }
        let half = budget / 2;
        let head = first[..first.floor_char_boundary(half)].trim_end_matches(char::REPLACEMENT_CHARACTER);
        let head = head.rsplit_once('\n').filter(|(before, _)| before.len() > half / 2).map_or(head, |(before, _)| before);
        let end = second.as_ref().unwrap_or(&first);
        let tail = end[end.ceil_char_boundary(end.len().saturating_sub(half))..].trim_start_matches(char::REPLACEMENT_CHARACTER);
        let tail = tail.split_once('\n').filter(|(_, after)| after.len() > half / 2).map_or(tail, |(_, after)| after);
        let readable = (first.len() + second.as_ref().map_or(0, String::len)) as u64;
        let left_out = readable.saturating_sub((head.len() + tail.len()) as u64) + self.omitted;
        ModelText { text: format!("{head}\n[… {left_out} bytes left out …]\n{tail}"), original_tokens }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_output_is_shown_whole() {
        let mut output = HeadTail::default();
        output.push(b"one\ntwo\n");
        assert_eq!(output.show(10), ModelText { text: "one\ntwo\n".into(), original_tokens: 2 });
        assert_eq!(HeadTail::default().show(10).text, "");
    }

    #[test]
    fn long_output_keeps_both_ends_and_whole_lines() {
        let mut output = HeadTail::default();
        for n in 0..1000 {
            output.push(format!("line {n}\n").as_bytes());
        }
        let shown = output.show(50).text;
        assert!(shown.starts_with("line 0\nline 1\n") && shown.ends_with("line 999\n"), "{shown}");
        assert!(shown.lines().all(|line| line.starts_with("line ") || line.starts_with("[…")), "{shown}");
        assert!(shown.contains("bytes left out"));
        assert!(shown.len() < 260);
    }

    #[test]
    fn a_gigabyte_takes_a_megabyte() {
        let mut output = HeadTail::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..1024 {
            output.push(&chunk);
        }
        assert_eq!(output.total(), 1 << 30);
        assert!(output.head.capacity() + output.tail.capacity() < 4 << 20);
    }

    #[test]
    fn characters_are_not_cut_and_binary_does_not_break_it() {
        let mut output = HeadTail::default();
        output.push("ä".repeat(5000).as_bytes());
        let shown = output.show(25).text;
        assert!(!shown.contains(char::REPLACEMENT_CHARACTER), "{shown}");
        let mut binary = HeadTail::default();
        binary.push(&[0xff, 0, 1, 0xfe]);
        assert_eq!(binary.show(10).text.chars().count(), 2, "what controls a terminal is left out");
    }

    #[test]
    fn a_budget_is_spent_on_what_can_be_read() {
        let mut output = HeadTail::default();
        for percent in 0..=100 {
            output.push(format!("\u{1b}[2K downloading {percent}%\r").as_bytes());
        }
        output.push("\u{1b}[32mdone\u{1b}[0m\n".as_bytes());
        output.push("warning: the same\n".repeat(500).as_bytes());
        assert_eq!(output.show(30).text, "done\nwarning: the same\n[the line above 499 more times]\n");
    }

    proptest! {
        #[test]
        fn nothing_is_forgotten(pieces in prop::collection::vec(0usize..700_000, 1..6), lost in 0u64..10) {
            let mut output = HeadTail::default();
            let mut total = lost;
            output.lose(lost);
            for (n, length) in pieces.iter().enumerate() {
                output.push(&vec![b'a' + n as u8; *length]);
                total += *length as u64;
            }
            prop_assert_eq!(output.total(), total);
            let shown = output.show(100).text;
            prop_assert!(shown.len() <= 400 + 64);
        }
    }
}
