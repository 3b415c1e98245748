//! File streams: an open file that is read or written block by block.

use serde::{Deserialize, Serialize};

use super::packs::Compression;
use super::policy::SandboxContext;
use super::session::Empty;
use crate::base64::{self, Base64};
use crate::encode::{Encode, json};
use crate::path::PathUri;
use crate::{encode_with_serde, method};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenParams {
    /// Chosen by the client.
    pub handle_id: String,
    pub path: PathUri,
    #[serde(default)]
    pub mode: OpenMode,
    /// Ours: with `replace`, a file of the client's own that is written in pieces. It is made for its owner only, what
    /// is in it stays, and a link is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OpenMode {
    #[default]
    Read,
    /// Created, or emptied at once.
    Replace,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenResponse {
    pub handle_id: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadBlockParams {
    pub handle_id: String,
    pub offset: u64,
    pub len: usize,
    /// Ours: the answer may be compressed like this, if that makes it smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadBlockResponse {
    pub chunk: Base64,
    /// Fewer bytes came than were asked for.
    pub eof: bool,
    #[serde(default)]
    pub compression: Option<Compression>,
}

impl Encode for ReadBlockResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"chunk\":");
        base64::encode_quoted(&self.chunk.0, out);
        out.extend_from_slice(b",\"eof\":");
        json(&self.eof, out);
        if let Some(compression) = &self.compression {
            out.extend_from_slice(b",\"compression\":");
            json(compression, out);
        }
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        32 + base64::quoted_len(self.chunk.0.len())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteBlockParams {
    pub handle_id: String,
    pub offset: u64,
    pub chunk: Base64,
    /// Ours: how the chunk was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

impl Encode for WriteBlockParams {
    fn encode(&self, out: &mut Vec<u8>) {
        let Self { handle_id, offset, chunk, compression } = self;
        out.extend_from_slice(b"{\"handleId\":");
        json(handle_id, out);
        out.extend_from_slice(b",\"offset\":");
        json(offset, out);
        out.extend_from_slice(b",\"chunk\":");
        base64::encode_quoted(&chunk.0, out);
        if let Some(compression) = compression {
            out.extend_from_slice(b",\"compression\":");
            json(compression, out);
        }
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        96 + self.handle_id.len() + base64::quoted_len(self.chunk.0.len())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CloseParams {
    pub handle_id: String,
}

encode_with_serde!(OpenResponse);

method!(Open = "fs/open", OpenParams => OpenResponse);
method!(ReadBlock = "fs/readBlock", ReadBlockParams => ReadBlockResponse);
method!(WriteBlock = "fs/writeBlock", WriteBlockParams => Empty);
method!(Close = "fs/close", CloseParams => Empty);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_a_stable_shape() {
        let block = ReadBlockResponse { chunk: b"hi".to_vec().into(), eof: true, compression: None };
        let mut out = Vec::new();
        block.encode(&mut out);
        assert_eq!(out, br#"{"chunk":"aGk=","eof":true}"#);
        assert_eq!(serde_json::from_slice::<ReadBlockResponse>(&out).unwrap(), block);
    }

    #[test]
    fn a_block_that_writes_itself_is_what_serde_writes() {
        for compression in [None, Some(Compression::Zstd)] {
            let block = WriteBlockParams { handle_id: "a\"b".into(), offset: 7, chunk: b"hi".to_vec().into(), compression };
            let mut out = Vec::new();
            block.encode(&mut out);
            assert_eq!(out, serde_json::to_vec(&block).unwrap());
            assert!(out.len() <= block.size_hint());
        }
    }

    #[test]
    fn a_stream_is_read_unless_it_says_otherwise() {
        let open: OpenParams = serde_json::from_str(r#"{"handleId":"h","path":"file:///f"}"#).unwrap();
        assert_eq!(open.mode, OpenMode::Read);
        let error = serde_json::from_str::<OpenMode>("\"append\"").unwrap_err();
        assert!(error.to_string().starts_with("unknown variant `append`, expected `read` or `replace`"));
    }
}
