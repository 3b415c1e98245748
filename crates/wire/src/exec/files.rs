//! Files: whole files, metadata, directories, copies and removals.

use serde::{Deserialize, Serialize};

use super::policy::SandboxContext;
use super::session::Empty;
use crate::base64::{self, Base64};
use crate::encode::Encode;
use crate::path::PathUri;
use crate::{encode_with_serde, method};

/// Declares a parameter struct whose optional members may be absent or null.
macro_rules! params {
    ($(#[$doc:meta])* $name:ident { $($required:ident: $required_type:ty),* ; $($optional:ident: $optional_type:ty),* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            $(pub $required: $required_type,)*
            $(#[serde(default, skip_serializing_if = "Option::is_none")] pub $optional: Option<$optional_type>,)*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub sandbox: Option<SandboxContext>,
        }
    };
}

params!(ReadFileParams { path: PathUri; follow_symlinks: bool });
params!(
    /// Bad base64 has an answer of its own kind here. `mode` is ours: the permissions of a file that is not there yet, from its first moment on.
    WriteFileParams { path: PathUri, data_base64: base64::Unchecked; follow_symlinks: bool, sync: bool, mode: u32 }
);
params!(CreateDirectoryParams { path: PathUri; recursive: bool, follow_symlinks: bool });
params!(GetMetadataParams { path: PathUri; follow_symlinks: bool });
params!(CanonicalizeParams { path: PathUri; });
params!(ReadDirectoryParams { path: PathUri; });
params!(RemoveParams { path: PathUri; recursive: bool, force: bool, follow_symlinks: bool });
params!(CopyParams { source_path: PathUri, destination_path: PathUri, recursive: bool; });
params!(RenameParams { source_path: PathUri, destination_path: PathUri; });

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadFileResponse {
    pub data_base64: Base64,
}

impl Encode for ReadFileResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"dataBase64\":");
        base64::encode_quoted(&self.data_base64.0, out);
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        32 + base64::quoted_len(self.data_base64.0.len())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileMetadata {
    pub is_directory: bool,
    pub is_file: bool,
    pub is_symlink: bool,
    pub size: u64,
    pub created_at_ms: i64,
    pub modified_at_ms: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CanonicalizeResponse {
    pub path: PathUri,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectoryEntry {
    /// Plain text; bytes that are not UTF-8 are replaced, as the wire says.
    pub file_name: String,
    pub is_directory: bool,
    pub is_file: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadDirectoryResponse {
    pub entries: Vec<DirectoryEntry>,
}

encode_with_serde!(FileMetadata, CanonicalizeResponse, ReadDirectoryResponse);

method!(ReadFile = "fs/readFile", ReadFileParams => ReadFileResponse);
method!(WriteFile = "fs/writeFile", WriteFileParams => Empty);
method!(CreateDirectory = "fs/createDirectory", CreateDirectoryParams => Empty);
method!(GetMetadata = "fs/getMetadata", GetMetadataParams => FileMetadata);
method!(Canonicalize = "fs/canonicalize", CanonicalizeParams => CanonicalizeResponse);
method!(ReadDirectory = "fs/readDirectory", ReadDirectoryParams => ReadDirectoryResponse);
method!(Remove = "fs/remove", RemoveParams => Empty);
method!(Copy = "fs/copy", CopyParams => Empty);
method!(
    /// Ours.
    Rename = "fs/rename", RenameParams => Empty
);
