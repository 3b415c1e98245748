//! A bounded listing of a whole tree.

use serde::{Deserialize, Serialize};

use super::policy::SandboxContext;
use crate::path::PathUri;
use crate::{encode_with_serde, method};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkParams {
    pub path: PathUri,
    pub options: WalkOptions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkOptions {
    /// How far below the root directories are still entered; 0 lists only the root's own children.
    pub max_depth: usize,
    pub max_directories: usize,
    pub max_entries: usize,
    pub follow_directory_symlinks: bool,
    /// Hidden directories are listed but not entered.
    #[serde(default)]
    pub prune_hidden_directories: bool,
    /// Ours: only what comes after this entry of an answer that was cut short; so much is listed page by page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<PathUri>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkResponse {
    pub entries: Vec<WalkEntry>,
    pub errors: Vec<WalkError>,
    /// A limit was reached: there is more than this.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkEntry {
    pub path: PathUri,
    pub kind: WalkKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WalkKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WalkError {
    pub path: PathUri,
    pub message: String,
}

encode_with_serde!(WalkResponse);

method!(Walk = "fs/walk", WalkParams => WalkResponse);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encode;

    #[test]
    fn an_answer_has_a_stable_shape() {
        let path = PathUri::parse("file:///t/a").unwrap();
        let answer = WalkResponse {
            entries: vec![WalkEntry { path: path.clone(), kind: WalkKind::Directory }],
            errors: vec![WalkError { path, message: "no".into() }],
            truncated: false,
        };
        let mut out = Vec::new();
        answer.encode(&mut out);
        let text =
            r#"{"entries":[{"path":"file:///t/a","kind":"directory"}],"errors":[{"path":"file:///t/a","message":"no"}],"truncated":false}"#;
        assert_eq!(String::from_utf8(out).unwrap(), text);
        assert_eq!(serde_json::from_str::<WalkResponse>(text).unwrap(), answer);
    }

    #[test]
    fn four_options_are_required() {
        let error = serde_json::from_str::<WalkOptions>("{}").unwrap_err();
        assert!(error.to_string().starts_with("missing field `maxDepth`"));
        let options: WalkOptions =
            serde_json::from_str(r#"{"maxDepth":1,"maxDirectories":1,"maxEntries":1,"followDirectorySymlinks":false}"#).unwrap();
        assert!(!options.prune_hidden_directories);
    }
}
