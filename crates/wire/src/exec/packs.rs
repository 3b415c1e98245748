//! Ours: many small files in one message, and how bytes are made smaller on their way.

use serde::{Deserialize, Serialize};

use super::policy::SandboxContext;
use super::session::Empty;
use crate::base64::{self, Base64};
use crate::encode::{Encode, json};
use crate::path::PathUri;
use crate::{encode_with_serde, method};

/// How bytes were made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Compression {
    Zstd,
}

/// Regular files to read whole. The answer holds all of them, or none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadPackParams {
    pub paths: Vec<PathUri>,
    /// The answer may be compressed like this, if that makes it smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

/// What is in files, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PackedBytes {
    pub data: Base64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// XXH3, 64 bits, of the bytes as they are in the files; sixteen hexadecimal digits.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadPackResponse {
    /// In the order of the paths.
    pub sizes: Vec<u64>,
    pub bytes: PackedBytes,
}

impl Encode for ReadPackResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        let PackedBytes { data, compression, digest } = &self.bytes;
        out.extend_from_slice(b"{\"sizes\":");
        json(&self.sizes, out);
        out.extend_from_slice(b",\"bytes\":{\"data\":");
        base64::encode_quoted(&data.0, out);
        if let Some(compression) = compression {
            out.extend_from_slice(b",\"compression\":");
            json(compression, out);
        }
        out.extend_from_slice(b",\"digest\":");
        json(digest, out);
        out.extend_from_slice(b"}}");
    }
    fn size_hint(&self) -> usize {
        96 + self.sizes.len() * 8 + base64::quoted_len(self.bytes.data.0.len())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PackedFile {
    pub path: PathUri,
    pub size: u64,
    /// The permissions of the new file.
    pub mode: u32,
}

/// How the files of a pack come to their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PackPlacing {
    /// Into a tree of the client's own that no other program looks at yet: each is written where it will be.
    Part,
    /// Each takes the place of what is there, whole.
    Replace,
}

/// Writes files whole. What is written before a failure stays; the same call may be made again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WritePackParams {
    pub files: Vec<PackedFile>,
    pub placing: PackPlacing,
    pub bytes: PackedBytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SyncParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

encode_with_serde!(PackedBytes);

method!(ReadPack = "fs/readPack", ReadPackParams => ReadPackResponse);
method!(WritePack = "fs/writePack", WritePackParams => Empty);
method!(
    /// Answers when everything that was written to the file system of a path survives a power cut.
    Sync = "fs/sync", SyncParams => Empty
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_has_a_stable_shape() {
        let pack = |compression| ReadPackResponse {
            sizes: vec![1, 1],
            bytes: PackedBytes { data: b"hi".to_vec().into(), compression, digest: "00".into() },
        };
        let cases = [
            (pack(None), r#"{"sizes":[1,1],"bytes":{"data":"aGk=","digest":"00"}}"#),
            (pack(Some(Compression::Zstd)), r#"{"sizes":[1,1],"bytes":{"data":"aGk=","compression":"zstd","digest":"00"}}"#),
        ];
        for (pack, text) in cases {
            let mut out = Vec::new();
            pack.encode(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
            assert_eq!(serde_json::from_str::<ReadPackResponse>(text).unwrap(), pack);
        }
    }
}
