//! What a thread wants: which environments, in which order, where in them, and which capability roots.
//!
//! Intent is durable. It is written into journals, sent over networks and compared, and it never holds anything live: no
//! handle, no connection, no state. Threads and environments share these types; neither may add to them what only it knows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::path::PathUri;

/// The longest id of an environment, in bytes.
pub const MAX_ID: usize = 64;

/// The most capability roots that one environment or one thread may name.
pub const MAX_ROOTS: usize = 256;

/// The name of an environment. Everything that is keyed by an environment is keyed by this.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnvironmentId(String);

/// Why a text is no id of an environment. There is no second set of rules anywhere.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EnvironmentIdError {
    #[error("an environment id must not be empty")]
    Empty,
    #[error("environment id `{0}` must not have spaces around it")]
    Spaces(String),
    #[error("an environment id has at most {MAX_ID} bytes; this one has {length}")]
    Long { length: usize },
    #[error("environment id `{id}` may hold only ASCII letters, digits, `-` and `_`, not {character:?}")]
    Character { id: String, character: char },
    #[error("environment id `{0}` is reserved: it says that there is no environment")]
    None(String),
    #[error("environment id `local` is reserved: it is this machine")]
    Local,
}

impl EnvironmentId {
    const LOCAL: &'static str = "local";

    /// The id of this machine.
    pub fn local() -> Self {
        Self(Self::LOCAL.to_owned())
    }

    /// Any id that a selection may name, `local` included.
    pub fn parse(text: &str) -> Result<Self, EnvironmentIdError> {
        if text.trim().is_empty() {
            return Err(EnvironmentIdError::Empty);
        }
        // Before the others, so that an id that is too long is not repeated in full.
        if text.len() > MAX_ID {
            return Err(EnvironmentIdError::Long { length: text.len() });
        }
        if text.trim() != text {
            return Err(EnvironmentIdError::Spaces(text.to_owned()));
        }
        if let Some(character) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_')) {
            return Err(EnvironmentIdError::Character { id: text.to_owned(), character });
        }
        if text.eq_ignore_ascii_case("none") {
            return Err(EnvironmentIdError::None(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// An id that a user may give to an environment: any but `local`.
    pub fn parse_own(text: &str) -> Result<Self, EnvironmentIdError> {
        match Self::parse(text)? {
            id if id.is_local() => Err(EnvironmentIdError::Local),
            id => Ok(id),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_local(&self) -> bool {
        self.0 == Self::LOCAL
    }
}

impl FromStr for EnvironmentId {
    type Err = EnvironmentIdError;
    fn from_str(text: &str) -> Result<Self, EnvironmentIdError> {
        Self::parse(text)
    }
}

impl fmt::Display for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EnvironmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for EnvironmentId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for EnvironmentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// One environment of a selection: which, and where in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "AttachmentShape")]
pub struct Attachment {
    pub environment_id: EnvironmentId,
    /// Belongs to that environment; it means nothing on any other machine.
    pub cwd: PathUri,
    /// Where work may be done. None at all is a choice, too.
    pub workspace_roots: Vec<PathUri>,
}

/// As it is read: without workspace roots, the working directory is the only one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentShape {
    environment_id: EnvironmentId,
    cwd: PathUri,
    #[serde(default)]
    workspace_roots: Option<Vec<PathUri>>,
}

impl From<AttachmentShape> for Attachment {
    fn from(shape: AttachmentShape) -> Self {
        let attachment = Self::new(shape.environment_id, shape.cwd);
        match shape.workspace_roots {
            Some(roots) => attachment.with_roots(roots),
            None => attachment,
        }
    }
}

impl Attachment {
    /// With the working directory as the only workspace root.
    pub fn new(environment_id: EnvironmentId, cwd: PathUri) -> Self {
        Self { environment_id, workspace_roots: vec![cwd.clone()], cwd }
    }

    /// Roots that are named twice count once, in the place of the first.
    pub fn with_roots(self, roots: impl IntoIterator<Item = PathUri>) -> Self {
        Self { workspace_roots: without_doubles(roots), ..self }
    }

    /// Somewhere else in the same environment. The root that was the old directory moves along, the others stay.
    pub fn moved_to(self, cwd: PathUri) -> Self {
        let old = self.cwd;
        let roots = self.workspace_roots.into_iter().map(|root| if root == old { cwd.clone() } else { root });
        Self { environment_id: self.environment_id, workspace_roots: without_doubles(roots), cwd }
    }
}

fn without_doubles(roots: impl IntoIterator<Item = PathUri>) -> Vec<PathUri> {
    let mut kept = Vec::new();
    for root in roots {
        if !kept.contains(&root) {
            kept.push(root);
        }
    }
    kept
}

/// The chosen environments, in order; the first is the primary one. No environment at all is a choice:
/// where it may also be left open, the type is `Option<Selection>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Attachment>", into = "Vec<Attachment>")]
pub struct Selection(Vec<Attachment>);

/// The same environment was chosen twice.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("duplicate turn environment id `{0}`")]
pub struct DuplicateId(pub EnvironmentId);

impl Selection {
    pub fn new(attachments: Vec<Attachment>) -> Result<Self, DuplicateId> {
        for (index, attachment) in attachments.iter().enumerate() {
            let id = &attachment.environment_id;
            if attachments[..index].iter().any(|earlier| earlier.environment_id == *id) {
                return Err(DuplicateId(id.clone()));
            }
        }
        Ok(Self(attachments))
    }

    /// Explicitly none.
    pub fn empty() -> Self {
        Self::default()
    }

    pub fn attachments(&self) -> &[Attachment] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first that was selected, whatever state it is in.
    pub fn primary(&self) -> Option<&Attachment> {
        self.0.first()
    }

    pub fn get(&self, id: &EnvironmentId) -> Option<&Attachment> {
        self.0.iter().find(|attachment| attachment.environment_id == *id)
    }

    pub fn ids(&self) -> impl Iterator<Item = &EnvironmentId> {
        self.0.iter().map(|attachment| &attachment.environment_id)
    }

    /// Another working directory in the primary environment, and nothing else. A selection of nothing stays that.
    pub fn with_primary_cwd(mut self, cwd: PathUri) -> Self {
        if !self.0.is_empty() {
            let primary = self.0.remove(0);
            self.0.insert(0, primary.moved_to(cwd));
        }
        self
    }

    /// Other workspace roots in the primary environment, and nothing else.
    pub fn with_primary_roots(mut self, roots: Vec<PathUri>) -> Self {
        if !self.0.is_empty() {
            let primary = self.0.remove(0);
            self.0.insert(0, primary.with_roots(roots));
        }
        self
    }

    /// What is left without the environments that do not fit. This can never add one.
    pub fn narrowed(self, fits: impl Fn(&EnvironmentId) -> bool) -> Self {
        Self(self.0.into_iter().filter(|attachment| fits(&attachment.environment_id)).collect())
    }

    /// Whether every environment of this one is in the other as well.
    pub fn is_within(&self, other: &Self) -> bool {
        self.ids().all(|id| other.get(id).is_some())
    }
}

impl TryFrom<Vec<Attachment>> for Selection {
    type Error = DuplicateId;
    fn try_from(attachments: Vec<Attachment>) -> Result<Self, DuplicateId> {
        Self::new(attachments)
    }
}

impl From<Selection> for Vec<Attachment> {
    fn from(selection: Selection) -> Self {
        selection.0
    }
}

/// A folder in an environment that offers skills, a plugin, MCP servers or connectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapabilityRoot {
    /// What the model calls it by; unique in its thread.
    pub id: String,
    pub location: RootLocation,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RootLocation {
    Environment {
        environment_id: EnvironmentId,
        /// Written as a URI; a native path, of whichever kind of machine, is read as well.
        #[serde(deserialize_with = "either_path")]
        path: PathUri,
    },
}

fn either_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathUri, D::Error> {
    let text = String::deserialize(deserializer)?;
    PathUri::parse_either(&text).map_err(serde::de::Error::custom)
}

/// Why a list of capability roots cannot be meant.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum RootsError {
    #[error("there may be at most {MAX_ROOTS} capability roots; these are {count}")]
    TooMany { count: usize },
    #[error("a capability root in environment `{environment}` has a blank id")]
    Blank { environment: EnvironmentId },
    #[error("duplicate capability root id `{0}`")]
    Duplicate(String),
}

impl CapabilityRoot {
    pub fn new(id: impl Into<String>, environment_id: EnvironmentId, path: PathUri) -> Self {
        Self { id: id.into(), location: RootLocation::Environment { environment_id, path } }
    }

    pub fn environment_id(&self) -> &EnvironmentId {
        let RootLocation::Environment { environment_id, .. } = &self.location;
        environment_id
    }

    pub fn path(&self) -> &PathUri {
        let RootLocation::Environment { path, .. } = &self.location;
        path
    }

    /// The one check of such lists, wherever they come from.
    pub fn check_all(roots: &[Self]) -> Result<(), RootsError> {
        if roots.len() > MAX_ROOTS {
            return Err(RootsError::TooMany { count: roots.len() });
        }
        for (index, root) in roots.iter().enumerate() {
            if root.id.trim().is_empty() {
                return Err(RootsError::Blank { environment: root.environment_id().clone() });
            }
            if roots[..index].iter().any(|earlier| earlier.id == root.id) {
                return Err(RootsError::Duplicate(root.id.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn id(text: &str) -> EnvironmentId {
        text.parse().unwrap()
    }
    fn uri(text: &str) -> PathUri {
        PathUri::parse_either(text).unwrap()
    }

    #[test]
    fn ids_that_are_refused_say_why() {
        let why = |text: &str| EnvironmentId::parse_own(text).unwrap_err().to_string();
        assert_eq!(why(""), "an environment id must not be empty");
        assert_eq!(why(" \t"), "an environment id must not be empty");
        assert_eq!(why(" box"), "environment id ` box` must not have spaces around it");
        assert_eq!(why(&"x".repeat(65)), "an environment id has at most 64 bytes; this one has 65");
        assert_eq!(why("a b"), "environment id `a b` may hold only ASCII letters, digits, `-` and `_`, not ' '");
        assert_eq!(why("größe"), "environment id `größe` may hold only ASCII letters, digits, `-` and `_`, not 'ö'");
        assert_eq!(why("NoNe"), "environment id `NoNe` is reserved: it says that there is no environment");
        assert_eq!(why("local"), "environment id `local` is reserved: it is this machine");
        for fine in ["remote", "Box-1_b", &"x".repeat(64)] {
            assert_eq!(EnvironmentId::parse_own(fine).unwrap().as_str(), fine);
        }
        assert!(EnvironmentId::parse("local").unwrap().is_local());
    }

    #[test]
    fn a_selection_has_this_shape() {
        let selection = Selection::new(vec![
            Attachment::new(id("box"), uri("/work")),
            Attachment::new(id("local"), uri("C:\\Users\\a b")).with_roots([]),
        ])
        .unwrap();
        let golden = json!([
            {"environmentId": "box", "cwd": "file:///work", "workspaceRoots": ["file:///work"]},
            {"environmentId": "local", "cwd": "file:///C:/Users/a%20b", "workspaceRoots": []},
        ]);
        assert_eq!(serde_json::to_value(&selection).unwrap(), golden);
        assert_eq!(serde_json::from_value::<Selection>(golden).unwrap(), selection);
        assert_eq!(serde_json::to_value(Selection::empty()).unwrap(), json!([]));
    }

    #[test]
    fn what_later_versions_add_is_ignored_and_open_roots_are_the_directory() {
        let read: Attachment = serde_json::from_value(json!({"environmentId": "box", "cwd": "file:///w", "future": {"a": 1}})).unwrap();
        assert_eq!(read, Attachment::new(id("box"), uri("/w")));
        let read: Attachment =
            serde_json::from_value(json!({"environmentId": "b", "cwd": "file:///w", "workspaceRoots": ["file:///x", "file:///x/"]}))
                .unwrap();
        assert_eq!(read.workspace_roots, [uri("/x")]);
        let root = json!({"id": "r", "future": 1, "location": {"type": "environment", "environmentId": "b", "path": "/p", "more": 2}});
        assert_eq!(serde_json::from_value::<CapabilityRoot>(root).unwrap(), CapabilityRoot::new("r", id("b"), uri("/p")));
    }

    #[test]
    fn nothing_chosen_is_not_the_same_as_nothing_said() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Place {
            #[serde(default, skip_serializing_if = "Option::is_none")]
            selection: Option<Selection>,
        }
        for (text, selection) in [("{}", None), (r#"{"selection":[]}"#, Some(Selection::empty()))] {
            let place: Place = serde_json::from_str(text).unwrap();
            assert_eq!(place, Place { selection });
            assert_eq!(serde_json::to_string(&place).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<Place>(r#"{"selection":null}"#).unwrap().selection, None);
    }

    #[test]
    fn a_capability_root_has_this_shape() {
        let root = CapabilityRoot::new("tools", id("box"), uri("/opt/tools"));
        let golden = json!({"id": "tools", "location": {"type": "environment", "environmentId": "box", "path": "file:///opt/tools"}});
        assert_eq!(serde_json::to_value(&root).unwrap(), golden);
        assert_eq!(serde_json::from_value::<CapabilityRoot>(golden).unwrap(), root);
        let relative = json!({"id": "tools", "location": {"type": "environment", "environmentId": "box", "path": "opt"}});
        assert!(serde_json::from_value::<CapabilityRoot>(relative).unwrap_err().to_string().contains("not absolute"));
    }

    #[test]
    fn lists_of_roots_are_checked() {
        let root = |name: &str| CapabilityRoot::new(name, id("box"), uri("/p"));
        assert_eq!(CapabilityRoot::check_all(&[root("a"), root("b")]), Ok(()));
        assert_eq!(CapabilityRoot::check_all(&[root("a"), root("a")]), Err(RootsError::Duplicate("a".into())));
        assert_eq!(CapabilityRoot::check_all(&[root(" ")]), Err(RootsError::Blank { environment: id("box") }));
        let many: Vec<_> = (0..257).map(|n| root(&n.to_string())).collect();
        assert_eq!(CapabilityRoot::check_all(&many), Err(RootsError::TooMany { count: 257 }));
    }

    #[test]
    fn doubles_are_refused_by_name() {
        let twice = vec![Attachment::new(id("box"), uri("/a")), Attachment::new(id("box"), uri("/b"))];
        assert_eq!(Selection::new(twice).unwrap_err().to_string(), "duplicate turn environment id `box`");
        let text = r#"[{"environmentId":"b","cwd":"file:///"},{"environmentId":"b","cwd":"file:///"}]"#;
        assert!(serde_json::from_str::<Selection>(text).is_err());
    }

    #[test]
    fn a_new_directory_moves_the_primary_and_its_root_only() {
        let before = Selection::new(vec![
            Attachment::new(id("a"), uri("/old")).with_roots([uri("/lib"), uri("/old"), uri("/new")]),
            Attachment::new(id("b"), uri("/old")),
        ])
        .unwrap();
        let after = before.clone().with_primary_cwd(uri("/new"));
        assert_eq!(after.attachments()[0], Attachment::new(id("a"), uri("/new")).with_roots([uri("/lib"), uri("/new")]));
        assert_eq!(after.attachments()[1], before.attachments()[1]);
        assert!(Selection::empty().with_primary_cwd(uri("/new")).is_empty());
    }
}
