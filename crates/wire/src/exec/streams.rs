//! File streams: an open file that is read or written block by block.

use serde::{Deserialize, Serialize};

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
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadBlockResponse {
    pub chunk: Base64,
    /// Fewer bytes came than were asked for.
    pub eof: bool,
}

impl Encode for ReadBlockResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"chunk\":");
        base64::encode_quoted(&self.chunk.0, out);
        out.extend_from_slice(b",\"eof\":");
        json(&self.eof, out);
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
        let block = ReadBlockResponse { chunk: b"hi".to_vec().into(), eof: true };
        let mut out = Vec::new();
        block.encode(&mut out);
        assert_eq!(out, br#"{"chunk":"aGk=","eof":true}"#);
        assert_eq!(serde_json::from_slice::<ReadBlockResponse>(&out).unwrap(), block);
    }

    #[test]
    fn a_stream_is_read_unless_it_says_otherwise() {
        let open: OpenParams = serde_json::from_str(r#"{"handleId":"h","path":"file:///f"}"#).unwrap();
        assert_eq!(open.mode, OpenMode::Read);
        let error = serde_json::from_str::<OpenMode>("\"append\"").unwrap_err();
        assert!(error.to_string().starts_with("unknown variant `append`, expected `read` or `replace`"));
    }
}
