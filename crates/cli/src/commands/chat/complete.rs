//! What Tab completes: commands, and paths of the primary environment behind `@`.

use std::time::Duration;

use outpost_environment::Repeat;
use outpost_runtime::live::LiveThread;
use outpost_wire::exec::files::{ReadDirectory, ReadDirectoryParams};

use super::slash::COMMANDS;
use crate::agents::Agents;

/// A machine that does not answer sooner is not worth waiting for.
const PATIENCE: Duration = Duration::from_secs(5);
/// More are not of use.
const MOST: usize = 200;

/// What a word may become. `word` is what it was when it was asked for.
pub(super) struct Completion {
    pub word: String,
    pub candidates: Vec<String>,
}

impl Completion {
    /// The longest beginning that all have in common, if it says more than the word.
    pub(super) fn common(&self) -> Option<String> {
        let first = self.candidates.first()?;
        let length = self.candidates.iter().fold(first.len(), |length, other| {
            let same = first.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
            length.min(same)
        });
        let common = &first[..first.floor_char_boundary(length)];
        (common.len() > self.word.len()).then(|| common.to_owned())
    }
}

/// Commands that a word is the beginning of.
pub(super) fn commands(word: &str) -> Completion {
    let candidates = COMMANDS.iter().map(|(name, _, _)| (*name).to_owned()).filter(|name| name.starts_with(word)).collect();
    Completion { word: word.to_owned(), candidates }
}

/// Where a path that was begun is looked for: its folder, and the beginning of a name.
fn split(path: &str) -> (&str, &str) {
    path.rfind('/').map_or(("", path), |at| path.split_at(at + 1))
}

/// Paths behind `@` in the directory of the primary environment.
pub(super) async fn paths(word: String, agents: &Agents, thread: &LiveThread) -> Option<impl Future<Output = Completion> + Send + 'static> {
    let state = thread.snapshot().await.ok()?;
    let primary = state.effective_selection()?.primary()?.clone();
    let environment = agents.assembly.runtime.registry().get(&primary.environment_id)?;
    Some(async move {
        let begun = word.strip_prefix('@').unwrap_or(&word).to_owned();
        let (folder, name) = split(&begun);
        let path = match folder {
            "" => primary.cwd.clone(),
            folder if folder.starts_with('/') => outpost_wire::PathUri::from_syntax(folder).unwrap_or_else(|_| primary.cwd.clone()),
            folder => primary.cwd.join(folder.trim_end_matches('/')),
        };
        let params = ReadDirectoryParams { path, sandbox: None };
        let read = tokio::time::timeout(PATIENCE, environment.call::<ReadDirectory>(&params, Repeat::Harmless)).await;
        let entries = read.ok().and_then(Result::ok).map(|read| read.entries).unwrap_or_default();
        // Names that hide are completed by those who ask for them; a name with a control character cannot be typed.
        let fits = |entry: &str| {
            entry.starts_with(name)
                && (!entry.starts_with('.') || name.starts_with('.'))
                && !entry.contains(|c: char| c.is_control() || c == ' ')
        };
        let mut candidates: Vec<String> = entries
            .iter()
            .filter(|entry| fits(&entry.file_name))
            .map(|entry| format!("@{folder}{}{}", entry.file_name, if entry.is_directory { "/" } else { "" }))
            .collect();
        candidates.sort();
        candidates.truncate(MOST);
        Completion { word, candidates }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_beginning_is_completed() {
        let completion = |word: &str, candidates: &[&str]| Completion {
            word: word.into(),
            candidates: candidates.iter().map(|candidate| (*candidate).to_owned()).collect(),
        };
        assert_eq!(completion("@s", &["@src/", "@srv"]).common().as_deref(), Some("@sr"));
        assert_eq!(completion("@sr", &["@src/", "@srv"]).common(), None);
        assert_eq!(completion("@é", &["@éa", "@éb"]).common(), None);
        assert_eq!(commands("/mo").common().as_deref(), Some("/model"));
        assert_eq!((split("a/b/c"), split("c")), (("a/b/", "c"), ("", "c")));
    }
}
