//! Ours: what a faithful copy of a tree asks for and sets. Permissions, links that stay links, names of any bytes.

use serde::{Deserialize, Serialize};

use super::policy::SandboxContext;
use super::session::Empty;
use crate::path::{Escaped, PathUri};
use crate::{encode_with_serde, method};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttributesParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

/// Of the thing itself: a link at the end of the path is not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attributes {
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits, without set-user-id and set-group-id.
    pub mode: u32,
    pub modified_at_ms: i64,
    /// Together with size and time of change it tells whether this is still the file that it was.
    pub inode: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<Escaped>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A pipe, a socket or a device.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListAttributesResponse {
    /// In no particular order.
    pub entries: Vec<NamedAttributes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedAttributes {
    pub name: Escaped,
    pub attributes: Attributes,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetModeParams {
    pub path: PathUri,
    pub mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreateLinkParams {
    pub path: PathUri,
    pub target: Escaped,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

encode_with_serde!(Attributes, ListAttributesResponse);

method!(GetAttributes = "fs/getAttributes", AttributesParams => Attributes);
method!(ListAttributes = "fs/listAttributes", AttributesParams => ListAttributesResponse);
method!(
    /// Refuses a link.
    SetMode = "fs/setMode", SetModeParams => Empty
);
method!(
    /// A symbolic link; refused where something is.
    CreateLink = "fs/createLink", CreateLinkParams => Empty
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_a_stable_shape() {
        let link = Attributes {
            kind: FileKind::Symlink,
            size: 1,
            mode: 0o777,
            modified_at_ms: 5,
            inode: 7,
            link_target: Some(Escaped(b"../x y".to_vec())),
        };
        let text = r#"{"kind":"symlink","size":1,"mode":511,"modifiedAtMs":5,"inode":7,"linkTarget":"../x%20y"}"#;
        assert_eq!(serde_json::to_string(&link).unwrap(), text);
        assert_eq!(serde_json::from_str::<Attributes>(text).unwrap(), link);
    }
}
