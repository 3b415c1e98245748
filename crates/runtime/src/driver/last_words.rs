//! What a compaction keeps word by word, and how much of it: the window of the model decides. The user's newest message is always kept,
//! if need be with its beginning and its end.

use std::collections::HashMap;

use outpost_thread::{Kept, Raw, estimate, is_user_message};
use serde_json::{Value, json};

use crate::tools::output::HeadTail;

/// So much of what the user said is kept at most, in tokens.
const MOST_WORDS: u64 = 20_000;
/// So much of a summary is kept in any case, in tokens.
const LEAST_SUMMARY: u64 = 1_000;

/// How much of a new context its parts may take, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompactionBudget {
    words: u64,
    summary: u64,
}

impl CompactionBudget {
    /// A quarter of the window for the user's words and one for the summary; the rest is for instructions, tools and work.
    pub(super) fn of(window: u64) -> Self {
        let quarter = window / 4;
        Self { words: quarter.min(MOST_WORDS), summary: quarter.max(LEAST_SUMMARY) }
    }

    /// A summary, without its middle if it is too long.
    pub(super) fn summary(self, text: &str) -> String {
        if estimate([&Raw::from(json!(text))]) <= self.summary {
            return text.to_owned();
        }
        head_and_tail(text, self.summary)
    }

    /// The user's last messages, oldest first, and how large they are together. An entry that holds nothing else is named.
    pub(super) fn last_words(self, located: &[(u64, &Raw)]) -> (Vec<Kept>, u64) {
        let mut sizes: HashMap<u64, usize> = HashMap::new();
        located.iter().for_each(|(ordinal, _)| *sizes.entry(*ordinal).or_default() += 1);
        let (mut words, mut tokens) = (Vec::new(), 0);
        for (ordinal, item) in located.iter().rev().filter(|(_, item)| is_user_message(item)) {
            let more = estimate([*item]);
            if tokens + more > self.words {
                if words.is_empty() {
                    let short = shortened(item, self.words);
                    tokens = estimate([&short]);
                    words.push(Kept::Item(short));
                }
                break;
            }
            tokens += more;
            words.push(if sizes.get(ordinal) == Some(&1) { Kept::Entry(*ordinal) } else { Kept::Item((*item).clone()) });
        }
        words.reverse();
        (words, tokens)
    }
}

fn head_and_tail(text: &str, tokens: u64) -> String {
    let mut kept = HeadTail::default();
    kept.push(text.as_bytes());
    kept.show(usize::try_from(tokens).unwrap_or(usize::MAX)).text
}

/// A message with as much of it as the budget allows: what is attached while it takes at most half, and head and tail of the text.
fn shortened(item: &Raw, budget: u64) -> Raw {
    let Ok(mut message) = item.read::<Value>() else { return item.clone() };
    let parts = match message["content"].take() {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "input_text", "text": text})],
    };
    let (texts, mut attached): (Vec<Value>, Vec<Value>) = parts.into_iter().partition(|part| part["text"].is_string());
    let all = attached.len();
    let mut room = budget;
    attached.retain(|part| {
        let rest = room.saturating_sub(estimate([&Raw::from(part.clone())]));
        let fits = rest >= budget / 2;
        room = if fits { rest } else { room };
        fits
    });
    let text = texts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
    let note = match all - attached.len() {
        0 => String::new(),
        left_out => format!("\n[… {left_out} of {all} attachments left out …]"),
    };
    // What JSON adds to the text is seen only once it is written.
    loop {
        let short = json!({"type": "input_text", "text": format!("{}{note}", head_and_tail(&text, room))});
        message["content"] = std::iter::once(short).chain(attached.iter().cloned()).collect();
        let kept = Raw::from(message.clone());
        let size = estimate([&kept]);
        if size <= budget || room == 0 {
            return kept;
        }
        room = (room * budget / size).min(room - 1);
    }
}

#[cfg(test)]
mod tests {
    use outpost_thread::said;

    use super::*;

    fn user(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
    }

    fn words(items: &[Raw], window: u64) -> (Vec<Kept>, u64) {
        let located: Vec<(u64, &Raw)> = (0..).zip(items).collect();
        CompactionBudget::of(window).last_words(&located)
    }

    #[test]
    fn budgets_follow_the_window() {
        assert_eq!(CompactionBudget::of(8192), CompactionBudget { words: 2048, summary: 2048 });
        assert_eq!(CompactionBudget::of(2048), CompactionBudget { words: 512, summary: 1000 });
        assert_eq!(CompactionBudget::of(1_000_000), CompactionBudget { words: 20_000, summary: 250_000 });
    }

    #[test]
    fn in_a_window_of_8k_the_last_messages_take_a_quarter() {
        let items: Vec<Raw> = (0..10).map(|n| user(&format!("{n} {}", "word ".repeat(600)))).collect();
        let (kept, tokens) = words(&items, 8192);
        assert_eq!(kept, [Kept::Entry(8), Kept::Entry(9)]);
        assert!(tokens <= 2048, "{tokens}");
        assert_eq!(words(&items, 1_000_000).0.len(), 10);
    }

    #[test]
    fn the_newest_message_is_kept_with_both_ends_where_it_alone_is_too_long() {
        let lines: String = (0..5_000).map(|n| format!("\"line {n}\"\n")).collect();
        let long = user(&format!("Mend this:\n{lines}That is all."));
        for items in [vec![user("before"), long.clone()], vec![user("before"), long, Raw::from(json!({"type": "reasoning"}))]] {
            let (kept, tokens) = words(&items, 8192);
            let [Kept::Item(item)] = &kept[..] else { panic!("{kept:?}") };
            let text = said(item).unwrap();
            assert!(text.starts_with("Mend this:\n\"line 0\"\n") && text.ends_with("\"line 4999\"\nThat is all."), "{text}");
            assert!(text.contains("bytes left out") && is_user_message(item));
            assert!((1_500..=2048).contains(&tokens) && tokens == estimate([item]), "{tokens}");
        }
    }

    #[test]
    fn a_message_of_which_only_the_pictures_are_too_large_keeps_its_words() {
        let picture = json!({"type": "input_image", "image_url": format!("https://example.com/{}", "x".repeat(2_400))});
        let mut content = vec![json!({"type": "input_text", "text": "What differs?"})];
        content.extend((0..5).map(|_| picture.clone()));
        let message = Raw::from(json!({"type": "message", "role": "user", "content": content}));
        let (kept, tokens) = words(&[message], 8192);
        let [Kept::Item(item)] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!(said(item).unwrap(), "What differs?\n[… 4 of 5 attachments left out …]");
        assert!(item.get().contains("input_image") && tokens <= 2048);
    }

    #[test]
    fn a_summary_that_is_too_long_loses_its_middle() {
        let budget = CompactionBudget::of(8192);
        assert_eq!(budget.summary("short\nshort\nshort"), "short\nshort\nshort");
        let long: String = (0..5_000).map(|n| format!("fact {n}\n")).collect();
        let kept = budget.summary(&long);
        assert!(kept.starts_with("fact 0\n") && kept.ends_with("fact 4999\n") && kept.len() <= 2048 * 4 + 64, "{} bytes", kept.len());
    }
}
