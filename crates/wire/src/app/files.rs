//! Files, as clients of threads see them: native absolute paths, on this machine or, which is ours, in any environment.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Nothing;
use crate::base64::Unchecked;
use crate::exec::files::{ReadDirectoryResponse, ReadFileResponse};
use crate::path::PathUri;
use crate::{app_method, encode_with_serde};

/// An absolute path as its machine spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsolutePath(pub PathUri);

/// How clients of this protocol know a path that is not absolute.
const RELATIVE: &str = "AbsolutePathBuf deserialized without a base path";

impl Serialize for AbsolutePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_syntax())
    }
}

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = AbsolutePath;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("path string")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<AbsolutePath, E> {
                PathUri::from_syntax(text).map(AbsolutePath).map_err(|_| E::custom(RELATIVE))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for AbsolutePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AbsolutePath".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "An absolute path as its machine spells it."})
    }
}

/// Declares parameters with our `environmentId`; what is behind the semicolon may be left out.
macro_rules! params {
    ($(#[$doc:meta])* $name:ident { $($required:ident: $required_type:ty),* ; $($optional:ident: $optional_type:ty),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            $(pub $required: $required_type,)*
            $(#[serde(default)] pub $optional: Option<$optional_type>,)*
            /// Ours: where; left out it is this machine.
            #[serde(default)]
            pub environment_id: Option<String>,
        }
    };
}

params!(FsPathParams { path: AbsolutePath; });
params!(FsWriteFileParams { path: AbsolutePath, data_base64: Unchecked; });
params!(
    /// Parents are made as well, unless `recursive` is false.
    FsCreateDirectoryParams { path: AbsolutePath; recursive: bool }
);
params!(
    /// A directory goes with all that is in it and what is missing is fine, unless `recursive` or `force` are false.
    FsRemoveParams { path: AbsolutePath; recursive: bool, force: bool }
);
params!(FsCopyParams { source_path: AbsolutePath, destination_path: AbsolutePath; recursive: bool });
params!(
    /// `watchId` is the client's own.
    FsWatchParams { watch_id: String, path: AbsolutePath; }
);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsUnwatchParams {
    pub watch_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsMetadata {
    pub is_directory: bool,
    pub is_file: bool,
    pub is_symlink: bool,
    /// 0 if it is not known.
    pub created_at_ms: i64,
    pub modified_at_ms: i64,
    /// Ours.
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWatchResponse {
    /// What is watched, without links in it.
    pub path: AbsolutePath,
}

/// `fs/changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsChanged {
    pub watch_id: String,
    /// The watched path itself stands for anything in it.
    pub changed_paths: Vec<AbsolutePath>,
}

encode_with_serde!(FsMetadata, FsWatchResponse);

app_method!(FsReadFile = "fs/readFile", FsPathParams => ReadFileResponse, experimental ["environmentId"]);
app_method!(FsWriteFile = "fs/writeFile", FsWriteFileParams => Nothing, experimental ["environmentId"]);
app_method!(FsCreateDirectory = "fs/createDirectory", FsCreateDirectoryParams => Nothing, experimental ["environmentId"]);
app_method!(FsGetMetadata = "fs/getMetadata", FsPathParams => FsMetadata, experimental ["environmentId"]);
app_method!(FsReadDirectory = "fs/readDirectory", FsPathParams => ReadDirectoryResponse, experimental ["environmentId"]);
app_method!(FsRemove = "fs/remove", FsRemoveParams => Nothing, experimental ["environmentId"]);
app_method!(FsCopy = "fs/copy", FsCopyParams => Nothing, experimental ["environmentId"]);
app_method!(
    /// Watches a file, or what lies in a directory.
    FsWatch = "fs/watch", FsWatchParams => FsWatchResponse, experimental ["environmentId"]
);
app_method!(FsUnwatch = "fs/unwatch", FsUnwatchParams => Nothing);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_paths() {
        let read = |text: &str| serde_json::from_str::<AbsolutePath>(text).map_err(|error| error.to_string());
        assert_eq!(serde_json::to_string(&read("\"/a b/../c\"").unwrap()).unwrap(), "\"/c\"");
        assert!(read("\"rel\"").unwrap_err().starts_with(RELATIVE));
        assert!(read("\"file:///x\"").unwrap_err().starts_with(RELATIVE));
        assert!(read("5").unwrap_err().starts_with("invalid type: integer `5`, expected path string"));
    }
}
