//! What the checks said, kept between runs: a run of a few hosts changes their rows only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// What one part said on one host: lines of a name and a result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Column {
    pub lines: Vec<(String, String)>,
}

/// The name of the line that says why nothing was tried.
const UNTRIED: &str = "not tried";

impl Column {
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Self { lines: lines.map(|(what, how)| (what.trim().to_owned(), how.trim().to_owned())).collect() }
    }

    pub(super) fn untried(why: &str) -> Self {
        Self { lines: vec![(UNTRIED.to_owned(), why.replace(['\t', '\n'], " "))] }
    }

    pub(super) fn why_untried(&self) -> Option<&str> {
        self.get(UNTRIED)
    }

    pub(super) fn get(&self, what: &str) -> Option<&str> {
        self.lines.iter().find(|(known, _)| known == what).map(|(_, how)| how.as_str())
    }

    /// Lines whose result begins with a word in capitals: something is wrong that should not be.
    pub(super) fn broken(&self) -> Vec<String> {
        let is_loud = |how: &str| {
            let word = how.split([' ', ':', ',']).next().unwrap_or_default();
            word.len() > 1 && word.chars().all(|letter| letter.is_ascii_uppercase())
        };
        self.lines.iter().filter(|(_, how)| is_loud(how)).map(|(what, how)| format!("{what}: {how}")).collect()
    }

    fn to_text(&self) -> String {
        self.lines.iter().map(|(what, how)| format!("{what}\t{how}\n")).collect()
    }
}

/// Columns by host and part, in files below a directory.
pub(super) struct Results {
    directory: PathBuf,
    columns: BTreeMap<(String, String), Column>,
}

impl Results {
    pub(super) fn load(place: &Path) -> anyhow::Result<Self> {
        let directory = place.join("results");
        fs::create_dir_all(&directory)?;
        let mut columns = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((host, part)) = name.split_once('.') else { continue };
            columns.insert((host.to_owned(), part.to_owned()), Column::parse(&fs::read_to_string(entry.path())?));
        }
        Ok(Self { directory, columns })
    }

    pub(super) fn put(&mut self, host: &str, part: &str, column: Column) -> anyhow::Result<()> {
        let path = self.directory.join(format!("{host}.{part}"));
        fs::write(&path, column.to_text()).with_context(|| format!("{} cannot be written", path.display()))?;
        self.columns.insert((host.to_owned(), part.to_owned()), column);
        Ok(())
    }

    pub(super) fn get(&self, host: &str, part: &str) -> Option<&Column> {
        self.columns.get(&(host.to_owned(), part.to_owned()))
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.columns.iter().flat_map(|((host, _), column)| column.broken().into_iter().map(move |line| format!("{host}: {line}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_in_capitals_is_a_fault() {
        let column = Column::parse("run\tok\nprotected names\ttold\nno network\tESCAPED\ncp\tFAILED: no such file\nlevel\tfull\n");
        assert_eq!(column.broken(), ["no network: ESCAPED", "cp: FAILED: no such file"]);
        assert_eq!(column.get("level"), Some("full"));
    }

    #[test]
    fn results_are_kept_for_the_next_run() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let column = Column::parse("run\tok\n");
        Results::load(directory.path())?.put("here-root", "checks", column.clone())?;
        assert_eq!(Results::load(directory.path())?.get("here-root", "checks"), Some(&column));
        Ok(())
    }

    #[test]
    fn why_a_host_was_not_tried_is_one_line() {
        assert_eq!(Column::untried("no\nqemu").why_untried(), Some("no qemu"));
    }
}
