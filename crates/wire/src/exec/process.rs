//! Processes: start, read, write, signal, and what is told about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::adoption::{AdoptableProcess, AdoptionClaim};
use super::environment::{Limit, Shell, Unit};
use super::policy::SandboxContext;
use super::session::Empty;
use crate::base64::{self, Base64};
use crate::encode::{Encode, json};
use crate::path::PathUri;
use crate::{encode_with_serde, method, notification};

/// A process to start. Equal parameters under one id are one start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartParams {
    pub process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ProcessMetadata>,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// The exact environment without a policy, an overlay with one.
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<ShellSnapshot>,
    pub tty: bool,
    #[serde(default)]
    pub pipe_stdin: bool,
    #[serde(default)]
    pub arg0: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
    #[serde(default)]
    pub enforce_managed_network: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<Value>,
    /// Ours: how large the terminal is from the first moment on. Others ignore it; they are told with `process/resize`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal_size: Option<TerminalSize>,
    /// Ours: who may have the process besides this session. Others ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption: Option<AdoptionClaim>,
    /// Ours: in the place of `argv`, which only names it then, a relay between its streams and a port there. Others would run `argv`,
    /// so it is for executors that say `processConnect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<PortConnection>,
}

/// A port of a loopback address to connect with. The relay's errors are lines of its own: `end COUNT` when the other side sends no more
/// after so many bytes of output, `lost REASON` when the connection broke.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortConnection {
    pub port: u16,
    /// Its output is not pushed: the client reads it with `process/read`, as fast as it can use it, and what it has not read holds up this
    /// connection and no other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull: bool,
    /// The loopback is the one that the first of these processes sees which the executor knows, whatever session has it, and whether or not it
    /// still runs; those with a loopback of their own count before those that see the machine's. Without any, it is the one that a process
    /// of this start's policy sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<AdoptableProcess>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

/// Whom the process is for; attribution only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ProcessMetadata"))]
pub struct ProcessMetadata {
    #[serde(default, with = "uuid_text")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub thread_id: Option<Uuid>,
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

/// How the executor's own environment becomes the child's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvPolicy {
    pub inherit: Inherit,
    pub ignore_default_excludes: bool,
    pub exclude: Vec<String>,
    pub set: BTreeMap<String, String>,
    pub include_only: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Inherit {
    Core,
    All,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShellSnapshot {
    pub scope_id: String,
    pub shell: Shell,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartResponse {
    pub process_id: String,
    /// A peer that leaves it out does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_type: Option<SandboxType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxType {
    None,
    MacosSeatbelt,
    LinuxSeccomp,
    WindowsRestrictedToken,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Stream {
    Stdout,
    Stderr,
    Pty,
}

impl Stream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// A piece of output, or the place where some is missing. `seq` of a gap is the last number that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPiece {
    Chunk { seq: u64, stream: Stream, chunk: Base64 },
    Gap { seq: u64, gap_bytes: u64 },
}

impl OutputPiece {
    pub fn seq(&self) -> u64 {
        match self {
            Self::Chunk { seq, .. } | Self::Gap { seq, .. } => *seq,
        }
    }

    /// The members without the braces, so that a notification can put its process id before them.
    fn encode_members(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"seq\":");
        json(&self.seq(), out);
        match self {
            Self::Chunk { stream, chunk, .. } => {
                out.extend_from_slice(b",\"stream\":\"");
                out.extend_from_slice(stream.as_str().as_bytes());
                out.extend_from_slice(b"\",\"chunk\":");
                base64::encode_quoted(&chunk.0, out);
            }
            Self::Gap { gap_bytes, .. } => {
                out.extend_from_slice(b",\"gapBytes\":");
                json(gap_bytes, out);
            }
        }
    }

    fn size_hint(&self) -> usize {
        match self {
            Self::Chunk { chunk, .. } => 64 + base64::quoted_len(chunk.0.len()),
            Self::Gap { .. } => 64,
        }
    }
}

/// The shape behind [`OutputPiece`], as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPiece {
    #[serde(default)]
    process_id: String,
    seq: u64,
    #[serde(default)]
    stream: Option<Stream>,
    #[serde(default)]
    chunk: Option<Base64>,
    #[serde(default)]
    gap_bytes: Option<u64>,
}

impl RawPiece {
    fn piece<E: serde::de::Error>(self) -> Result<OutputPiece, E> {
        match (self.stream, self.chunk, self.gap_bytes) {
            (Some(stream), Some(chunk), _) => Ok(OutputPiece::Chunk { seq: self.seq, stream, chunk }),
            (_, _, Some(gap_bytes)) => Ok(OutputPiece::Gap { seq: self.seq, gap_bytes }),
            _ => Err(E::missing_field("chunk")),
        }
    }
}

impl<'de> Deserialize<'de> for OutputPiece {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawPiece::deserialize(deserializer)?.piece()
    }
}

/// `process/output`: one piece of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputParams {
    pub process_id: String,
    pub piece: OutputPiece,
}

impl Encode for OutputParams {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"processId\":");
        json(&self.process_id, out);
        out.push(b',');
        self.piece.encode_members(out);
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        self.process_id.len() + 32 + self.piece.size_hint()
    }
}

impl<'de> Deserialize<'de> for OutputParams {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut raw = RawPiece::deserialize(deserializer)?;
        let process_id = std::mem::take(&mut raw.process_id);
        Ok(Self { process_id, piece: raw.piece()? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExitedParams {
    pub process_id: String,
    pub seq: u64,
    pub exit_code: i32,
    #[serde(default)]
    pub sandbox_denied: Option<bool>,
    /// Ours: the limit that the process ran into, if that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Ours: what else there is to say, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClosedParams {
    pub process_id: String,
    pub seq: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadParams {
    pub process_id: String,
    #[serde(default)]
    pub after_seq: Option<u64>,
    #[serde(default)]
    pub max_bytes: Option<usize>,
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadResponse {
    pub chunks: Vec<OutputPiece>,
    pub next_seq: u64,
    pub exited: bool,
    #[serde(default)]
    pub exit_code: Option<i32>,
    pub closed: bool,
    #[serde(default)]
    pub failure: Option<String>,
    #[serde(default)]
    pub sandbox_denied: bool,
    /// Ours, as in `process/exited`.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// Ours, as in `process/exited`.
    #[serde(default)]
    pub notices: Vec<String>,
}

impl Encode for ReadResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"chunks\":[");
        for (index, piece) in self.chunks.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            piece.encode_members(out);
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"nextSeq\":");
        json(&self.next_seq, out);
        out.extend_from_slice(b",\"exited\":");
        json(&self.exited, out);
        out.extend_from_slice(b",\"exitCode\":");
        json(&self.exit_code, out);
        out.extend_from_slice(b",\"closed\":");
        json(&self.closed, out);
        out.extend_from_slice(b",\"failure\":");
        json(&self.failure, out);
        out.extend_from_slice(b",\"sandboxDenied\":");
        json(&self.sandbox_denied, out);
        if let Some(limit) = &self.limit {
            out.extend_from_slice(b",\"limit\":");
            json(limit, out);
        }
        if !self.notices.is_empty() {
            out.extend_from_slice(b",\"notices\":");
            json(&self.notices, out);
        }
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        160 + self.chunks.iter().map(OutputPiece::size_hint).sum::<usize>()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteParams {
    pub process_id: String,
    pub chunk: Base64,
    /// A repeated id is answered, not written again.
    pub write_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WriteStatus {
    Accepted,
    UnknownProcess,
    StdinClosed,
    Starting,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteResponse {
    pub status: WriteStatus,
}

/// Only `interrupt` is known to foreign executors; the others need the capability `processSignals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Signal {
    Interrupt,
    Terminate,
    Hangup,
    Quit,
    Kill,
    Usr1,
    Usr2,
    Winch,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignalParams {
    pub process_id: String,
    pub signal: Signal,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessParams {
    pub process_id: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminateResponse {
    pub running: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResizeParams {
    pub process_id: String,
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListResponse {
    pub processes: Vec<ProcessSummary>,
}

/// One row of `process/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessSummary {
    pub process_id: String,
    pub argv: Vec<String>,
    #[serde(default)]
    pub metadata: Option<ProcessMetadata>,
    pub pid: Option<u32>,
    pub tty: bool,
    pub next_seq: u64,
    pub exited: bool,
    #[serde(default)]
    pub exit_code: Option<i32>,
    pub closed: bool,
}

encode_with_serde!(StartResponse, ExitedParams, ClosedParams, WriteResponse, TerminateResponse, ListResponse);

method!(Start = "process/start", StartParams => StartResponse);
method!(Read = "process/read", ReadParams => ReadResponse);
method!(Write = "process/write", WriteParams => WriteResponse);
method!(SendSignal = "process/signal", SignalParams => Empty);
method!(Terminate = "process/terminate", ProcessParams => TerminateResponse);
method!(
    /// Ours: the size of a terminal.
    Resize = "process/resize", ResizeParams => Empty
);
method!(
    /// Ours: end of input.
    CloseStdin = "process/closeStdin", ProcessParams => WriteResponse
);
method!(
    /// Ours: every process of the session.
    List = "process/list", Unit => ListResponse
);
notification!(Output = "process/output", OutputParams);
notification!(Exited = "process/exited", ExitedParams);
notification!(Closed = "process/closed", ClosedParams);

/// `uuid`'s own serde support is not enough here: the text form is wanted in every format.
mod uuid_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => serializer.collect_str(id),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            Some(text) => {
                Uuid::parse_str(&text).map(Some).map_err(|error| serde::de::Error::custom(format!("threadId is not a UUID: {error}")))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: Encode>(value: &T) -> String {
        let mut out = Vec::new();
        value.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn output_has_a_stable_shape() {
        let chunk = OutputPiece::Chunk { seq: 3, stream: Stream::Pty, chunk: b"hi".to_vec().into() };
        let params = OutputParams { process_id: "p\"1".into(), piece: chunk };
        assert_eq!(text(&params), r#"{"processId":"p\"1","seq":3,"stream":"pty","chunk":"aGk="}"#);
        assert_eq!(serde_json::from_str::<OutputParams>(&text(&params)).unwrap(), params);
        let gap = OutputParams { process_id: "p".into(), piece: OutputPiece::Gap { seq: 9, gap_bytes: 100 } };
        assert_eq!(text(&gap), r#"{"processId":"p","seq":9,"gapBytes":100}"#);
        assert_eq!(serde_json::from_str::<OutputParams>(&text(&gap)).unwrap(), gap);
    }

    #[test]
    fn a_read_answer_has_a_stable_shape() {
        let mut answer = ReadResponse {
            chunks: vec![],
            next_seq: 1,
            exited: false,
            exit_code: None,
            closed: false,
            failure: None,
            sandbox_denied: false,
            limit: None,
            notices: Vec::new(),
        };
        assert_eq!(
            text(&answer),
            r#"{"chunks":[],"nextSeq":1,"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}"#
        );
        answer.chunks = vec![
            OutputPiece::Gap { seq: 4, gap_bytes: 7 },
            OutputPiece::Chunk { seq: 5, stream: Stream::Stderr, chunk: vec![0xff].into() },
        ];
        assert!(text(&answer).starts_with(r#"{"chunks":[{"seq":4,"gapBytes":7},{"seq":5,"stream":"stderr","chunk":"/w=="}],"#));
        assert_eq!(serde_json::from_str::<ReadResponse>(&text(&answer)).unwrap(), answer);
    }

    #[test]
    fn optional_members_of_a_start_may_be_left_out() {
        let start: StartParams =
            serde_json::from_str(r#"{"processId":"p","argv":["x"],"cwd":"file:///","env":{},"tty":false,"future":true}"#).unwrap();
        assert!(!start.pipe_stdin && start.sandbox.is_none());
        let error = serde_json::from_str::<StartParams>(r#"{"processId":"p","argv":["x"],"cwd":"file:///","env":{}}"#).unwrap_err();
        assert!(error.to_string().starts_with("missing field `tty`"));
    }

    #[test]
    fn a_thread_id_is_a_uuid() {
        let error = serde_json::from_str::<ProcessMetadata>(r#"{"threadId":"t"}"#).unwrap_err();
        assert!(error.to_string().starts_with("threadId is not a UUID"), "{error}");
        let exited: ExitedParams = serde_json::from_str(r#"{"processId":"p","seq":1,"exitCode":0}"#).unwrap();
        assert_eq!(exited.sandbox_denied, None);
    }
}
