//! What Tab completes: commands, and paths of the primary environment behind `@`.

use std::time::Duration;

use outpost_environment::{Environment, Repeat};
use outpost_runtime::live::LiveThread;
use outpost_wire::PathUri;
use outpost_wire::app::files::{AbsolutePath, FsPathParams, FsReadDirectory};
use outpost_wire::exec::files::{ReadDirectory, ReadDirectoryParams};

use super::slash::COMMANDS;
use crate::agents::Agents;
use crate::remote::RemoteServer;

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

/// Who is asked what is in a directory.
enum PathSource {
    Environment(Environment),
    Server(RemoteServer, String),
}

impl PathSource {
    /// Names, and whether each is that of a directory.
    async fn names(self, path: PathUri) -> Option<Vec<(String, bool)>> {
        match self {
            Self::Environment(environment) => {
                let params = ReadDirectoryParams { path, sandbox: None };
                let read = environment.call::<ReadDirectory>(&params, Repeat::Harmless).await.ok()?;
                Some(read.entries.into_iter().map(|entry| (entry.file_name, entry.is_directory)).collect())
            }
            Self::Server(server, environment) => {
                let params = FsPathParams { path: AbsolutePath(path), environment_id: Some(environment) };
                let read = server.call::<FsReadDirectory>(&params).await.ok()?;
                Some(read.entries.into_iter().map(|entry| (entry.file_name, entry.is_directory)).collect())
            }
        }
    }
}

/// Paths behind `@` in the directory of the primary environment.
pub(super) async fn paths(word: String, agents: &Agents, thread: &LiveThread) -> Option<impl Future<Output = Completion> + Send + 'static> {
    let state = thread.snapshot().await.ok()?;
    let primary = state.effective_selection()?.primary()?.clone();
    let source = match (agents.own_runtime(), agents.remote()) {
        (Ok(runtime), _) => PathSource::Environment(runtime.registry().get(&primary.environment_id)?),
        (Err(_), remote) => PathSource::Server(remote?.server.clone(), primary.environment_id.to_string()),
    };
    Some(async move {
        let begun = word.strip_prefix('@').unwrap_or(&word).to_owned();
        let (folder, name) = split(&begun);
        let path = match folder {
            "" => primary.cwd.clone(),
            folder if folder.starts_with('/') => PathUri::from_syntax(folder).unwrap_or_else(|_| primary.cwd.clone()),
            folder => primary.cwd.join(folder.trim_end_matches('/')),
        };
        let entries = tokio::time::timeout(PATIENCE, source.names(path)).await.ok().flatten().unwrap_or_default();
        // Names that hide are completed by those who ask for them; a name with a control character cannot be typed.
        let fits = |entry: &str| {
            entry.starts_with(name)
                && (!entry.starts_with('.') || name.starts_with('.'))
                && !entry.contains(|c: char| c.is_control() || c == ' ')
        };
        let mut candidates: Vec<String> = entries
            .iter()
            .filter(|(name, _)| fits(name))
            .map(|(name, is_directory)| format!("@{folder}{name}{}", if *is_directory { "/" } else { "" }))
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
