//! The file with what was typed in a directory before: one JSON string a line, in the home.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use outpost_terminal::history::{MOST, PromptHistory};
use outpost_wire::PathUri;

use crate::home::Home;

/// A text that is longer is a paste of something that is elsewhere; it is not worth keeping.
const LONGEST: usize = 64 << 10;

pub(super) struct PastPrompts {
    file: Option<PathBuf>,
}

impl PastPrompts {
    /// Those of a directory, whichever machine and thread they were for.
    pub(super) fn of(directory: &PathUri) -> Self {
        let file = Home::from_environment().map(|home| home.history().join(format!("{:016x}", digest(&directory.to_syntax()))));
        Self { file }
    }

    pub(super) fn read(&self) -> PromptHistory {
        let Some(Ok(file)) = self.file.as_ref().map(File::open) else { return PromptHistory::default() };
        let entries: Vec<String> =
            BufReader::new(file).lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).collect();
        let history = PromptHistory::new(entries.iter().cloned());
        // Written anew when it has grown far beyond what is read.
        if entries.len() > 4 * MOST {
            let kept: Vec<&str> = (0..history.len()).filter_map(|at| history.get(at)).collect();
            let _ = self.write(&kept, fs::OpenOptions::new().write(true).create(true).truncate(true));
        }
        history
    }

    /// Adds one. Without it nothing is lost but a convenience, so that a failure is only logged.
    pub(super) fn add(&self, entry: &str) {
        if entry.len() > LONGEST || entry.trim().is_empty() {
            return;
        }
        if let Err(error) = self.write(&[entry], fs::OpenOptions::new().append(true).create(true)) {
            tracing::debug!(%error, "what was typed is not remembered");
        }
    }

    fn write(&self, entries: &[&str], options: &mut fs::OpenOptions) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(folder) = file.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = options.mode(0o600).open(file)?;
        let text: String = entries.iter().map(|entry| format!("{}\n", serde_json::Value::from(*entry))).collect();
        file.write_all(text.as_bytes())
    }
}

/// FNV-1a: a name for a file, the same in every version.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn of_thousands_of_prompts_the_newest_are_kept_and_only_for_their_owner() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("history/0123");
        let past = PastPrompts { file: Some(file.clone()) };
        for number in 0..5000 {
            past.add(&format!("prompt {number}"));
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let history = past.read();
        assert_eq!((history.len(), history.get(0), history.get(MOST - 1)), (MOST, Some("prompt 4000"), Some("prompt 4999")));
        // The file is cut, too, and stays what it was.
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            (text.lines().count(), text.lines().next(), text.lines().last()),
            (MOST, Some("\"prompt 4000\""), Some("\"prompt 4999\""))
        );
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(home.path().join("history")).unwrap().permissions().mode() & 0o777, 0o700);
        // One more is added to what was kept; a paste of something long is not.
        past.add("one more");
        past.add(&"x".repeat(LONGEST + 1));
        assert_eq!(past.read().get(MOST - 1), Some("one more"));
    }
}
