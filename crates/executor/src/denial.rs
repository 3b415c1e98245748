//! Whether a confined process that failed was probably refused something: told from what it printed, as peers do.

use outpost_wire::denial_words::{OFFLINE, REFUSED};
use outpost_wire::exec::process::Stream;

/// What programs print that know of sandboxes. In lower case.
const SANDBOXES: [&str; 3] = ["sandbox", "seccomp", "landlock"];
/// At least as long as the longest word that is looked for.
const LONGEST: usize = 32;
/// What a process exits with that was killed for a forbidden system call.
const BAD_CALL: i32 = 128 + 31;

/// Looks at output as it passes.
#[derive(Default)]
pub(crate) struct DenialWatch {
    was_seen: bool,
    /// Whether the sandbox has no network.
    is_offline: bool,
    /// The end of what each stream said last, because a word may come in two pieces.
    tails: [Vec<u8>; 2],
}

impl DenialWatch {
    pub(crate) fn new(is_offline: bool) -> Self {
        Self { is_offline, ..Self::default() }
    }

    pub(crate) fn see(&mut self, stream: Stream, bytes: &[u8]) {
        if self.was_seen {
            return;
        }
        let tail = &mut self.tails[usize::from(stream == Stream::Stderr)];
        let mut text = std::mem::take(tail);
        text.extend(bytes.iter().map(u8::to_ascii_lowercase));
        let offline = OFFLINE.iter().filter(|_| self.is_offline);
        self.was_seen = REFUSED.iter().chain(&SANDBOXES).chain(offline).any(|word| memchr::memmem::find(&text, word.as_bytes()).is_some());
        let keep = text.len().saturating_sub(LONGEST);
        *tail = text.split_off(keep);
    }

    /// Success is never a refusal.
    pub(crate) fn is_likely(&self, code: i32) -> bool {
        code != 0 && (self.was_seen || code == BAD_CALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_across_pieces_and_only_failures_count() {
        let mut watch = DenialWatch::default();
        watch.see(Stream::Stderr, b"touch: x: Read-only fi");
        watch.see(Stream::Stdout, b"nothing");
        assert!(!watch.is_likely(1) && watch.is_likely(BAD_CALL));
        watch.see(Stream::Stderr, b"le system");
        assert!(watch.is_likely(1) && !watch.is_likely(0));
    }

    #[test]
    fn a_network_that_is_not_there_counts_where_the_sandbox_took_it() {
        assert!(REFUSED.iter().chain(&SANDBOXES).chain(&OFFLINE).all(|word| word.len() <= LONGEST && *word == word.to_ascii_lowercase()));
        for is_offline in [true, false] {
            let mut watch = DenialWatch::new(is_offline);
            watch.see(Stream::Stderr, b"curl: (6) Could not resolve host: example.org");
            assert_eq!(watch.is_likely(6), is_offline);
        }
    }
}
