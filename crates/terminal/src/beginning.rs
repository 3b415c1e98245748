//! Whether what was shown of a text is its beginning, without keeping it.

/// How much was shown, and a mark of it.
#[derive(Debug, Clone, Copy)]
pub struct ShownBeginning {
    bytes: u64,
    mark: u64,
}

impl Default for ShownBeginning {
    fn default() -> Self {
        Self { bytes: 0, mark: 0xcbf2_9ce4_8422_2325 }
    }
}

impl ShownBeginning {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        // FNV-1a: what is compared was shown by the same program, and a mistake would only be seen.
        self.mark = bytes.iter().fold(self.mark, |mark, byte| (mark ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What comes after it in a text that begins with it; nothing if the text does not.
    pub fn rest_of<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (begun, rest) = text.split_at_checked(usize::try_from(self.bytes).ok()?)?;
        let mut same = Self::default();
        same.push(begun.as_bytes());
        (same.mark == self.mark).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_shown_is_left() {
        let mut shown = ShownBeginning::default();
        assert_eq!(shown.rest_of("one\ntwo\n"), Some("one\ntwo\n"));
        shown.push(b"on");
        shown.push(b"e\n");
        assert_eq!((shown.rest_of("one\ntwo\n"), shown.rest_of("one\n")), (Some("two\n"), Some("")));
        assert_eq!((shown.rest_of("one"), shown.rest_of("two\none\n")), (None, None));
    }
}
