//! From what was asked for to what is selected. Pure: values in, values out, nothing is looked up or waited for.
//!
//! A selection never grows by itself. It becomes wider only when a client names the environments; a new working
//! directory moves within the primary one and touches nothing else.

use std::collections::HashSet;

use outpost_wire::{Attachment, CapabilityRoot, EnvironmentId, Fault, PathUri, Selection};
use thiserror::Error;

/// The longest working directory, in bytes of its native form.
pub const MAX_CWD: usize = 8 << 10;

/// Which ids may be selected: those that the registry knew at one moment.
#[derive(Debug, Clone, Default)]
pub struct Catalogue(HashSet<EnvironmentId>);

impl Catalogue {
    pub fn new(ids: impl IntoIterator<Item = EnvironmentId>) -> Self {
        Self(ids.into_iter().collect())
    }

    pub fn knows(&self, id: &EnvironmentId) -> bool {
        self.0.contains(id)
    }
}

/// One environment as a client asks for it, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    pub environment_id: String,
    /// As the far machine spells it; no URI.
    pub cwd: String,
    /// Left out, it is the working directory.
    pub workspace_roots: Option<Vec<String>>,
}

/// Why a wish cannot be granted.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum SelectionError {
    #[error("unknown turn environment id `{0}`")]
    Unknown(String),
    #[error("duplicate turn environment id `{0}`")]
    Duplicate(String),
    #[error("invalid cwd for environment `{id}`: path `{path}` does not use absolute POSIX or Windows path syntax")]
    Cwd { id: String, path: String },
    #[error("invalid workspace root for environment `{id}`: path `{path}` does not use absolute POSIX or Windows path syntax")]
    Root { id: String, path: String },
    #[error("invalid cwd for environment `{id}`: working directory exceeds the maximum size of {MAX_CWD} bytes")]
    Long { id: String },
    #[error("capability root `{root}` is in environment `{id}`, which is not known")]
    UnknownRoot { root: String, id: EnvironmentId },
    #[error(transparent)]
    Roots(#[from] outpost_wire::intent::RootsError),
}

impl From<SelectionError> for Fault {
    fn from(error: SelectionError) -> Self {
        Self::invalid_request(error.to_string())
    }
}

/// Checks what a client asks for. This is the only way from a client's words to a selection.
pub fn select(wishes: &[EnvironmentRequest], catalogue: &Catalogue) -> Result<Selection, SelectionError> {
    let mut attachments: Vec<Attachment> = Vec::with_capacity(wishes.len());
    for wish in wishes {
        // An id that breaks the rules cannot be known either.
        let id = EnvironmentId::parse(&wish.environment_id).ok().filter(|id| catalogue.knows(id));
        let id = id.ok_or_else(|| SelectionError::Unknown(shortened(&wish.environment_id)))?;
        if attachments.iter().any(|earlier| earlier.environment_id == id) {
            return Err(SelectionError::Duplicate(id.to_string()));
        }
        if wish.cwd.len() > MAX_CWD {
            return Err(SelectionError::Long { id: id.to_string() });
        }
        let wrong = |path: &String| (id.to_string(), shortened(path));
        let cwd = PathUri::from_syntax(&wish.cwd).map_err(|_| wrong(&wish.cwd)).map_err(|(id, path)| SelectionError::Cwd { id, path })?;
        let roots = wish.workspace_roots.as_ref().map(|roots| {
            let root = |path: &String| PathUri::from_syntax(path).map_err(|_| wrong(path));
            roots.iter().map(root).collect::<Result<Vec<_>, _>>().map_err(|(id, path)| SelectionError::Root { id, path })
        });
        let attachment = Attachment::new(id.clone(), cwd);
        attachments.push(match roots.transpose()? {
            Some(roots) => attachment.with_roots(roots),
            None => attachment,
        });
    }
    Selection::new(attachments).map_err(|duplicate| SelectionError::Duplicate(duplicate.0.to_string()))
}

/// Checks capability roots that a client asks for. Unlike others we say so at once when one can never be found.
pub fn check_roots(roots: &[CapabilityRoot], catalogue: &Catalogue) -> Result<(), SelectionError> {
    CapabilityRoot::check_all(roots)?;
    match roots.iter().find(|root| !catalogue.knows(root.environment_id())) {
        Some(root) => Err(SelectionError::UnknownRoot { root: root.id.clone(), id: root.environment_id().clone() }),
        None => Ok(()),
    }
}

/// Keeps an error message short.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(256) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// How long environments that come with a turn count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TurnScope {
    /// For this turn; then the thread's own come back.
    #[default]
    Turn,
    /// From now on.
    Thread,
}

/// What a turn, or a change of settings, says about where to work. Nothing said changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectionRequest {
    pub environments: Option<Selection>,
    pub scope: TurnScope,
    /// Another working directory in the primary environment, and nothing more.
    pub cwd: Option<PathUri>,
    pub workspace_roots: Option<Vec<PathUri>>,
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectionOutcome {
    /// What counts for this turn.
    pub turn: Selection,
    /// What the thread keeps.
    pub thread: Selection,
}

/// A new thread's selection: what it asks for, which may be nothing at all, or else the defaults. It is written down as it
/// is, so that a later change of the configuration does not widen it.
pub fn begin(asked: Option<Selection>, defaults: impl FnOnce() -> Selection) -> Selection {
    asked.unwrap_or_else(defaults)
}

/// The decision for one turn of a thread.
pub fn decide(thread: &Selection, request: SelectionRequest) -> SelectionOutcome {
    let mut kept = thread.clone();
    if let Some(chosen) = request.environments {
        // They bring their own directories.
        return match request.scope {
            TurnScope::Turn => SelectionOutcome { turn: chosen, thread: kept },
            TurnScope::Thread => SelectionOutcome { turn: chosen.clone(), thread: chosen },
        };
    }
    if let Some(cwd) = request.cwd {
        kept = kept.with_primary_cwd(cwd);
    }
    if let Some(roots) = request.workspace_roots {
        kept = kept.with_primary_roots(roots);
    }
    SelectionOutcome { turn: kept.clone(), thread: kept }
}

/// The directory that a client means: absolute, or below the one where it is.
pub fn resolve_cwd(now: &PathUri, text: &str) -> PathUri {
    PathUri::from_syntax(text).unwrap_or_else(|_| now.join(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(text: &str) -> EnvironmentId {
        text.parse().unwrap()
    }
    fn uri(text: &str) -> PathUri {
        PathUri::from_syntax(text).unwrap()
    }
    fn selection(ids: &[&str]) -> Selection {
        Selection::new(ids.iter().map(|name| Attachment::new(id(name), uri("/w"))).collect()).unwrap()
    }
    fn catalogue() -> Catalogue {
        Catalogue::new(["local", "a", "b"].map(id))
    }
    fn wish(environment_id: &str, cwd: &str) -> EnvironmentRequest {
        EnvironmentRequest { environment_id: environment_id.into(), cwd: cwd.into(), workspace_roots: None }
    }
    fn why(wishes: &[EnvironmentRequest]) -> String {
        select(wishes, &catalogue()).unwrap_err().to_string()
    }

    #[test]
    fn s45_what_cannot_be_selected_is_refused_with_these_words() {
        assert_eq!(why(&[wish("ghost", "/w")]), "unknown turn environment id `ghost`");
        assert_eq!(why(&[wish("a b", "/w")]), "unknown turn environment id `a b`");
        assert_eq!(why(&[wish("a", "/w"), wish("a", "/x")]), "duplicate turn environment id `a`");
        let relative = "invalid cwd for environment `local`: path `rel/path` does not use absolute POSIX or Windows path syntax";
        assert_eq!(why(&[wish("local", "rel/path")]), relative);
        assert!(why(&[wish("a", "file:///w")]).contains("path `file:///w` does not use absolute"));
        assert!(why(&[wish("a", &format!("/{}", "x".repeat(MAX_CWD)))]).contains("working directory exceeds the maximum size"));
        let root = EnvironmentRequest { workspace_roots: Some(vec!["/fine".into(), "rel".into()]), ..wish("a", "/w") };
        assert!(why(&[root]).starts_with("invalid workspace root for environment `a`: path `rel`"));
        assert_eq!(Fault::from(SelectionError::Unknown("x".into())).code, -32600);
    }

    #[test]
    fn s44_roots_that_are_left_out_are_the_directory_and_none_are_none() {
        let roots = |roots: Option<Vec<&str>>| {
            let wish = EnvironmentRequest {
                workspace_roots: roots.map(|roots| roots.into_iter().map(str::to_owned).collect()),
                ..wish("a", "/w")
            };
            select(&[wish], &catalogue()).unwrap().primary().unwrap().workspace_roots.clone()
        };
        assert_eq!(roots(None), [uri("/w")]);
        assert_eq!(roots(Some(vec![])), []);
        assert_eq!(roots(Some(vec!["/b", "/a", "/b"])), [uri("/b"), uri("/a")]);
        assert!(select(&[], &catalogue()).unwrap().is_empty());
        assert_eq!(select(&[wish("b", r"C:\x")], &catalogue()).unwrap().primary().unwrap().cwd.to_string(), "file:///C:/x");
    }

    #[test]
    fn roots_that_cannot_exist_are_refused_at_once() {
        let root = |name: &str, environment: &str| CapabilityRoot::new(name, id(environment), uri("/r"));
        assert_eq!(check_roots(&[root("x", "a"), root("y", "b")], &catalogue()), Ok(()));
        assert_eq!(
            check_roots(&[root("x", "ghost")], &catalogue()).unwrap_err().to_string(),
            "capability root `x` is in environment `ghost`, which is not known"
        );
        assert!(check_roots(&[root("x", "a"), root("x", "b")], &catalogue()).is_err());
    }

    #[test]
    fn s46_the_matrix_with_a_turn_that_counts_for_itself() {
        let defaults = || selection(&["local", "a"]);
        let (none, s, t) = (Selection::empty(), selection(&["a"]), selection(&["b"]));
        for (thread, turn, effective) in [
            (None, None, defaults()),
            (None, Some(&none), none.clone()),
            (None, Some(&t), t.clone()),
            (Some(&none), None, none.clone()),
            (Some(&none), Some(&none), none.clone()),
            (Some(&none), Some(&t), t.clone()),
            (Some(&s), None, s.clone()),
            (Some(&s), Some(&none), none.clone()),
            (Some(&s), Some(&t), t.clone()),
        ] {
            let sticky = begin(thread.cloned(), defaults);
            let outcome = decide(&sticky, SelectionRequest { environments: turn.cloned(), ..SelectionRequest::default() });
            assert_eq!((&outcome.turn, &outcome.thread), (&effective, &sticky), "{thread:?} {turn:?}");
            let outcome =
                decide(&sticky, SelectionRequest { environments: turn.cloned(), scope: TurnScope::Thread, ..SelectionRequest::default() });
            assert_eq!((&outcome.turn, &outcome.thread), (&effective, &effective), "{thread:?} {turn:?}");
        }
    }

    #[test]
    fn s36_s46_a_directory_alone_moves_the_primary_and_widens_nothing() {
        let request = |cwd: &str| SelectionRequest { cwd: Some(uri(cwd)), ..SelectionRequest::default() };
        assert!(decide(&Selection::empty(), request("/new")).turn.is_empty());
        let before = selection(&["b", "a"]);
        let after = decide(&before, request("/new"));
        assert_eq!(after.turn, after.thread);
        assert_eq!(after.turn.attachments()[0], Attachment::new(id("b"), uri("/new")));
        assert_eq!(after.turn.attachments()[1], before.attachments()[1]);
        // Environments that are named bring their own directories.
        let named = SelectionRequest { environments: Some(selection(&["a"])), ..request("/new") };
        assert_eq!(decide(&before, named).turn.primary().unwrap().cwd, uri("/w"));
        assert_eq!(resolve_cwd(&uri("/w"), "sub/../other"), uri("/w/other"));
        assert_eq!(resolve_cwd(&uri("/w"), "/abs"), uri("/abs"));
        assert_eq!(resolve_cwd(&uri(r"C:\w"), r"a\b"), uri(r"C:\w\a\b"));
    }

    fn any_selection() -> impl Strategy<Value = Selection> {
        proptest::collection::vec((0..6u8, 0..4u8), 0..6).prop_map(|picks| {
            let mut attachments: Vec<Attachment> = Vec::new();
            for (name, cwd) in picks {
                let id = id(&format!("e{name}"));
                if attachments.iter().all(|earlier| earlier.environment_id != id) {
                    attachments.push(Attachment::new(id, uri(&format!("/d{cwd}"))));
                }
            }
            Selection::new(attachments).unwrap()
        })
    }

    fn any_request() -> impl Strategy<Value = SelectionRequest> {
        let scope = prop_oneof![Just(TurnScope::Turn), Just(TurnScope::Thread)];
        let cwd = proptest::option::of((0..4u8).prop_map(|n| uri(&format!("/d{n}"))));
        let roots = proptest::option::of(proptest::collection::vec((0..4u8).prop_map(|n| uri(&format!("/r{n}"))), 0..4));
        (proptest::option::of(any_selection()), scope, cwd, roots)
            .prop_map(|(environments, scope, cwd, workspace_roots)| SelectionRequest { environments, scope, cwd, workspace_roots })
    }

    proptest! {
        #[test]
        fn nothing_is_ever_added_that_was_not_named(sticky in any_selection(), requests in proptest::collection::vec(any_request(), 1..8)) {
            let mut thread = sticky;
            for request in requests {
                let outcome = decide(&thread, request.clone());
                match &request.environments {
                    Some(named) => {
                        prop_assert_eq!(&outcome.turn, named);
                        if request.scope == TurnScope::Turn {
                            prop_assert_eq!(&outcome.thread, &thread);
                        }
                    }
                    None => {
                        // The same environments in the same order, and only the primary may have moved.
                        prop_assert!(outcome.turn.ids().eq(thread.ids()));
                        prop_assert_eq!(outcome.turn.attachments().get(1..), thread.attachments().get(1..));
                        prop_assert_eq!(&outcome.turn, &outcome.thread);
                    }
                }
                thread = outcome.thread;
            }
        }

        #[test]
        fn a_selection_survives_being_written_down(selection in any_selection()) {
            let text = serde_json::to_string(&selection).unwrap();
            prop_assert_eq!(serde_json::from_str::<Selection>(&text).unwrap(), selection);
        }

        #[test]
        fn narrowing_only_narrows(selection in any_selection(), kept in 0..6u8) {
            let narrow = selection.clone().narrowed(|id| id.as_str() <= format!("e{kept}").as_str());
            prop_assert!(narrow.is_within(&selection));
            prop_assert!(narrow.attachments().iter().all(|attachment| selection.attachments().contains(attachment)));
        }

        #[test]
        fn any_words_are_either_granted_whole_or_refused(wishes in proptest::collection::vec((".{0,12}", ".{0,12}"), 0..4)) {
            let wishes: Vec<EnvironmentRequest> = wishes.iter().map(|(environment, cwd)| wish(environment, cwd)).collect();
            if let Ok(selection) = select(&wishes, &catalogue()) {
                prop_assert_eq!(selection.attachments().len(), wishes.len());
                prop_assert!(selection.ids().all(|id| catalogue().knows(id)));
            }
        }
    }
}
