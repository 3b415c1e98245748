//! Whether a confined process that failed was probably refused something: told from what it printed, as peers do.

use outpost_wire::exec::process::Stream;

/// What programs print when the system refuses them something. In lower case.
const WORDS: [&[u8]; 7] = [
    b"permission denied",
    b"operation not permitted",
    b"read-only file system",
    b"sandbox",
    b"seccomp",
    b"landlock",
    b"failed to write file",
];
const LONGEST: usize = 24;
/// What a process exits with that was killed for a forbidden system call.
const BAD_CALL: i32 = 128 + 31;

/// Looks at output as it passes.
#[derive(Default)]
pub struct DenialWatch {
    was_seen: bool,
    /// The end of what each stream said last, because a word may come in two pieces.
    tails: [Vec<u8>; 2],
}

impl DenialWatch {
    pub fn see(&mut self, stream: Stream, bytes: &[u8]) {
        if self.was_seen {
            return;
        }
        let tail = &mut self.tails[usize::from(stream == Stream::Stderr)];
        let mut text = std::mem::take(tail);
        text.extend(bytes.iter().map(u8::to_ascii_lowercase));
        self.was_seen = WORDS.iter().any(|word| memchr::memmem::find(&text, word).is_some());
        let keep = text.len().saturating_sub(LONGEST);
        *tail = text.split_off(keep);
    }

    /// Success is never a refusal.
    pub fn is_likely(&self, code: i32) -> bool {
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
}
