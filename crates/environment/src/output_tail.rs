//! The end of what a process printed: its last words often say why it failed.

/// Keeps the last bytes of an output of any length.
#[derive(Debug)]
pub struct OutputTail {
    most: usize,
    bytes: Vec<u8>,
}

impl OutputTail {
    /// Keeps so many bytes at most.
    pub fn new(most: usize) -> Self {
        Self { most, bytes: Vec::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(self.most)..]);
        // Now and then only, so that each byte is moved once.
        if self.bytes.len() > 2 * self.most {
            self.bytes.drain(..self.bytes.len() - self.most);
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(self.most)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = OutputTail::new(10);
        assert_eq!(tail.bytes(), b"");
        for n in 0..1000 {
            tail.push(format!("{n:03}\n").as_bytes());
            assert!(tail.bytes.len() <= 20);
        }
        assert_eq!(tail.bytes(), b"7\n998\n999\n".as_slice());
        tail.push(&[b'x'; 100]);
        assert_eq!(tail.bytes(), [b'x'; 10]);
    }
}
