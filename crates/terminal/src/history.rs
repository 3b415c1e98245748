//! What was sent before, to be found again.

/// So much is remembered.
pub const MOST: usize = 1000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptHistory(Vec<String>);

impl PromptHistory {
    /// From a file with one JSON string a line; a line that is none is skipped.
    pub fn new(entries: impl IntoIterator<Item = String>) -> Self {
        let mut history = Self::default();
        for entry in entries {
            history.push(entry);
        }
        history
    }

    /// Says whether it is new: the same again is not kept twice.
    pub fn push(&mut self, entry: String) -> bool {
        if entry.trim().is_empty() || self.0.last() == Some(&entry) {
            return false;
        }
        self.0.push(entry);
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
        true
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        self.0.get(index).map(String::as_str)
    }

    /// The newest entry before an index that contains a text.
    pub fn find_before(&self, index: usize, text: &str) -> Option<usize> {
        self.0[..index.min(self.0.len())].iter().rposition(|entry| entry.contains(text))
    }
}
