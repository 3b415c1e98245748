//! From a frame of text to a message.
//!
//! serde_json neither refuses duplicate keys nor counts values, so one scanner walks the text once: it checks the syntax,
//! enforces the limits and remembers where the members of the envelope are. Parameters are then decoded once, by the code that
//! knows their type.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;
use outpost_wire::SharedError;
use outpost_wire::envelope::TraceContext;
use outpost_wire::{Fault, RequestId};
use serde::de::{DeserializeOwned, IgnoredAny};
use thiserror::Error;

/// How much structure one message may have; its size is the link's business.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// Every scalar, array and object counts one.
    pub values: usize,
    pub depth: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self { values: 262_144, depth: 128 }
    }
}

/// A message, its variable part still as text.
#[derive(Debug, Clone)]
pub enum RpcMessage {
    Request { id: RequestId, method: String, params: Bytes, trace: Option<TraceContext> },
    Notification { method: String, params: Bytes },
    Response { id: RequestId, result: Bytes },
    Error { id: RequestId, fault: Fault },
}

/// Why a frame is not a message. The text is told to the sender.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Malformed(#[source] pub SharedError);

/// Decodes the text of parameters or results; the message of a failure carries no position, which would be one inside a
/// fragment that the sender never saw.
pub fn decode_value<T: DeserializeOwned>(text: &[u8]) -> Result<T, SharedError> {
    decoded(serde_json::from_slice(text))
}

/// The same for what was read elsewhere.
pub fn decoded<T>(read: Result<T, serde_json::Error>) -> Result<T, SharedError> {
    read.map_err(|error| SharedError::worded(without_position(&error), error))
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

pub fn decode(frame: &Bytes, limits: FrameLimits) -> Result<RpcMessage, Malformed> {
    let text = std::str::from_utf8(frame).map_err(|error| Malformed(SharedError::new(error)))?;
    let mut scanner = Scanner { text: text.as_bytes(), at: 0, values: 0, depth: 0, limits, members: Members::default() };
    scanner.document().map_err(|error| Malformed(error.explain(text).into()))?;
    let members = scanner.members;
    if text.trim_start().as_bytes().first() != Some(&b'{') {
        return Err(Malformed("expected a JSON-RPC object".into()));
    }
    let part = |range: &Range<usize>| frame.slice(range.clone());
    let value = |range: &Option<Range<usize>>| range.as_ref().map_or_else(|| Bytes::from_static(b"null"), part);
    let id = || -> Result<RequestId, Malformed> {
        let range = members.id.as_ref().ok_or_else(|| Malformed("missing field `id`".into()))?;
        decode_value(&frame[range.clone()]).map_err(Malformed)
    };
    if let Some(range) = &members.method {
        let method: String = decode_value(&frame[range.clone()]).map_err(Malformed)?;
        let params = value(&members.params);
        if members.id.is_none() {
            return Ok(RpcMessage::Notification { method, params });
        }
        // A trace is carried, never required: one that makes no sense is as good as none.
        let trace = members.trace.as_ref().and_then(|range| decode_value(&frame[range.clone()]).ok());
        return Ok(RpcMessage::Request { id: id()?, method, params, trace });
    }
    if let Some(range) = &members.result {
        return Ok(RpcMessage::Response { id: id()?, result: part(range) });
    }
    let range = members.error.as_ref().ok_or_else(|| Malformed("missing field `error`".into()))?;
    Ok(RpcMessage::Error { fault: decode_value(&frame[range.clone()]).map_err(Malformed)?, id: id()? })
}

/// Where the members of the envelope are.
#[derive(Default)]
struct Members {
    id: Option<Range<usize>>,
    method: Option<Range<usize>>,
    params: Option<Range<usize>>,
    result: Option<Range<usize>>,
    error: Option<Range<usize>>,
    trace: Option<Range<usize>>,
}

impl Members {
    fn note(&mut self, key: &[u8], range: Range<usize>) {
        let member = match key {
            b"id" => &mut self.id,
            b"method" => &mut self.method,
            b"params" => &mut self.params,
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            b"trace" => &mut self.trace,
            _ => return,
        };
        *member = Some(range);
    }
}

enum ScanError {
    /// Not JSON; serde_json says it best.
    Syntax,
    Depth {
        at: usize,
    },
    Values {
        at: usize,
        limit: usize,
    },
    Duplicate {
        at: usize,
        key: String,
    },
}

impl ScanError {
    fn explain(self, text: &str) -> String {
        let place = |at: usize| {
            let before = &text.as_bytes()[..at.min(text.len())];
            let line = memchr::memchr_iter(b'\n', before).count() + 1;
            let column = at - memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
            format!("at line {line} column {column}")
        };
        match self {
            Self::Syntax => match serde_json::from_str::<IgnoredAny>(text) {
                Err(error) => error.to_string(),
                Ok(_) => "invalid JSON".into(),
            },
            Self::Depth { at } => format!("recursion limit exceeded {}", place(at)),
            Self::Values { at, limit } => format!("JSON-RPC message exceeds the limit of {limit} JSON values {}", place(at)),
            Self::Duplicate { at, key } => format!("duplicate JSON object key `{key}` {}", place(at)),
        }
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    values: usize,
    depth: usize,
    limits: FrameLimits,
    members: Members,
}

impl<'a> Scanner<'a> {
    fn document(&mut self) -> Result<(), ScanError> {
        self.value()?;
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(ScanError::Syntax) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Scans one value and returns where it is, without the space around it.
    fn value(&mut self) -> Result<Range<usize>, ScanError> {
        self.space();
        let start = self.at;
        self.values += 1;
        if self.values > self.limits.values {
            return Err(ScanError::Values { at: self.at, limit: self.limits.values });
        }
        match self.peek() {
            Some(b'{') => self.nested(Self::object)?,
            Some(b'[') => self.nested(Self::array)?,
            Some(b'"') => {
                self.string()?;
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => self.word(b"null")?,
            _ => return Err(ScanError::Syntax),
        }
        Ok(start..self.at)
    }

    fn nested(&mut self, inside: fn(&mut Self) -> Result<(), ScanError>) -> Result<(), ScanError> {
        self.depth += 1;
        if self.depth > self.limits.depth {
            return Err(ScanError::Depth { at: self.at + 1 });
        }
        self.at += 1;
        inside(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn array(&mut self) -> Result<(), ScanError> {
        self.space();
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            self.value()?;
            self.space();
            if self.eat(b']') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(ScanError::Syntax);
            }
        }
    }

    fn object(&mut self) -> Result<(), ScanError> {
        let is_envelope = self.depth == 1;
        let mut keys = Keys::default();
        self.space();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            self.space();
            let key = self.string()?;
            if !keys.insert(key.clone()) {
                return Err(ScanError::Duplicate { at: self.at, key: String::from_utf8_lossy(&key).into_owned() });
            }
            self.space();
            if !self.eat(b':') {
                return Err(ScanError::Syntax);
            }
            let range = self.value()?;
            if is_envelope {
                self.members.note(&key, range);
            }
            self.space();
            if self.eat(b'}') {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(ScanError::Syntax);
            }
        }
    }

    /// Scans a string and returns its content, unescaped where it must be.
    fn string(&mut self) -> Result<Cow<'a, [u8]>, ScanError> {
        let start = self.at;
        if !self.eat(b'"') {
            return Err(ScanError::Syntax);
        }
        let mut escaped = false;
        loop {
            let rest = &self.text[self.at..];
            let plain = memchr::memchr2(b'"', b'\\', rest).ok_or(ScanError::Syntax)?;
            // Written as a fold so that it is vectorised: bulk bytes are one long string.
            if rest[..plain].iter().fold(false, |found, byte| found | (*byte < 0x20)) {
                return Err(ScanError::Syntax);
            }
            self.at += plain + 1;
            if rest[plain] == b'"' {
                break;
            }
            escaped = true;
            match self.peek() {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                Some(b'u') => {
                    let digits = self.text.get(self.at + 1..self.at + 5).ok_or(ScanError::Syntax)?;
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return Err(ScanError::Syntax);
                    }
                    self.at += 5;
                }
                _ => return Err(ScanError::Syntax),
            }
        }
        if escaped {
            // A lone surrogate has no unescaped form; its own spelling is as good for telling keys apart.
            let token = &self.text[start..self.at];
            let content = serde_json::from_slice::<String>(token).map_or_else(|_| token.to_vec(), String::into_bytes);
            return Ok(Cow::Owned(content));
        }
        Ok(Cow::Borrowed(&self.text[start + 1..self.at - 1]))
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(ScanError::Syntax) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), ScanError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        // A digit after a leading zero would otherwise be taken for the next token's problem.
        if matches!(self.peek(), Some(b'0'..=b'9')) { Err(ScanError::Syntax) } else { Ok(()) }
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), ScanError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        Err(ScanError::Syntax)
    }
}

/// The keys of one object: a short list as long as it is short.
#[derive(Default)]
struct Keys<'a> {
    few: Vec<Cow<'a, [u8]>>,
    many: HashSet<Cow<'a, [u8]>>,
}

impl<'a> Keys<'a> {
    const FEW: usize = 16;

    /// False if the key was there already.
    fn insert(&mut self, key: Cow<'a, [u8]>) -> bool {
        if self.many.is_empty() {
            if self.few.contains(&key) {
                return false;
            }
            if self.few.len() < Self::FEW {
                self.few.push(key);
                return true;
            }
            self.many.extend(self.few.drain(..));
        }
        self.many.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<RpcMessage, Malformed> {
        decode(&Bytes::copy_from_slice(text.as_bytes()), FrameLimits::default())
    }
    fn why(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_read_is_told_without_a_position_and_keeps_its_cause() {
        let error = decode_value::<u64>(b" \"x\"").unwrap_err();
        assert_eq!(error.to_string(), "invalid type: string \"x\", expected u64");
        let mut causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
        assert!(causes.any(|cause| cause.downcast_ref::<serde_json::Error>().is_some_and(|error| error.column() > 0)));
    }

    #[test]
    fn members_decide_the_kind() {
        assert!(
            matches!(parse(r#" {"id":1,"method":"m","jsonrpc":"2.0"} "#), Ok(RpcMessage::Request { params, .. }) if &params[..] == b"null")
        );
        assert!(
            matches!(parse(r#"{"method":"m","params": {"a":[1]} }"#), Ok(RpcMessage::Notification { params, .. }) if &params[..] == br#"{"a":[1]}"#)
        );
        assert!(matches!(parse(r#"{"id":"x","result":null}"#), Ok(RpcMessage::Response { id: RequestId::Text(_), .. })));
        assert!(matches!(parse(r#"{"id":-7,"error":{"code":1,"message":"x"}}"#), Ok(RpcMessage::Error { id: RequestId::Number(-7), .. })));
        assert!(matches!(parse(r#"{"id":1,"m\u0065thod":"a\/b"}"#), Ok(RpcMessage::Request { method, .. }) if method == "a/b"));
    }

    #[test]
    fn a_trace_that_makes_no_sense_is_ignored() {
        assert!(matches!(parse(r#"{"id":1,"method":"m","trace":7}"#), Ok(RpcMessage::Request { trace: None, .. })));
        assert!(matches!(parse(r#"{"id":1,"method":"m","trace":{"traceparent":"x"}}"#), Ok(RpcMessage::Request { trace: Some(_), .. })));
    }

    #[test]
    fn malformed_messages_say_why() {
        assert_eq!(why("this is not json"), "expected ident at line 1 column 2");
        assert_eq!(why(r#"{"id":1,"method":"#), "EOF while parsing a value at line 1 column 17");
        assert_eq!(why(""), "EOF while parsing a value at line 1 column 0");
        assert_eq!(why("[{}]"), "expected a JSON-RPC object");
        assert_eq!(why("{}"), "missing field `error`");
        assert_eq!(why(r#"{"id":null,"method":"m"}"#), "data did not match any variant of untagged enum RequestId");
        assert_eq!(why(r#"{"id":1.5,"method":"m"}"#), "data did not match any variant of untagged enum RequestId");
        assert_eq!(why(r#"{"id":5,"id":6,"method":"m"}"#), "duplicate JSON object key `id` at line 1 column 12");
        assert_eq!(why(r#"{"id":5,"method":"m","params":{"a":{"b":1,"\u0062":2}}}"#), "duplicate JSON object key `b` at line 1 column 50");
        assert!(why(r#"{"id":5,"method":7}"#).starts_with("invalid type: integer `7`, expected a string"));
        assert!(decode(&Bytes::from_static(b"{\"id\":1,\"method\":\"\xff\"}"), FrameLimits::default()).is_err());
    }

    #[test]
    fn structure_is_bounded() {
        let wrap = |params: String| format!(r#"{{"id":5,"method":"m","params":{params}}}"#);
        // The envelope, its id and its method count as well.
        let zeros = |n: usize| wrap(format!("[{}]", vec!["0"; n].join(",")));
        assert!(parse(&zeros(262_140)).is_ok());
        assert!(why(&zeros(262_141)).starts_with("JSON-RPC message exceeds the limit of 262144 JSON values"));
        let nest = |n: usize| wrap(format!("{}{}", "[".repeat(n), "]".repeat(n)));
        assert!(parse(&nest(127)).is_ok());
        assert!(why(&nest(128)).starts_with("recursion limit exceeded"));
        assert!(parse(&nest(100_000)).is_err());
    }

    #[test]
    fn many_keys_are_told_apart() {
        let object = |last: &str| {
            let keys: Vec<String> = (0..1000).map(|n| format!("\"k{n}\":0")).collect();
            format!(r#"{{"id":5,"method":"m","params":{{{},"{last}":0}}}}"#, keys.join(","))
        };
        assert!(parse(&object("other")).is_ok());
        assert!(why(&object("k999")).starts_with("duplicate JSON object key `k999`"));
    }

    /// JSON-like text: valid pieces glued together, sometimes damaged.
    fn almost_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            "-?[0-9]{1,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?",
            "\"[a-z\\\\\"u0-9é\t]{0,6}\"",
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,"))),
                prop::collection::vec(inner, 0..4).prop_map(|items| {
                    let members: Vec<String> = items.iter().enumerate().map(|(n, item)| format!("\"{n}\": {item}")).collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_scanner_accepts_exactly_what_serde_json_accepts(text in almost_json(), cut in 0usize..40, junk in "[\\]\\[{},:\" x]{0,2}") {
            let cut = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
            let text = format!("{}{junk}{}", &text[..cut], &text[cut..]);
            let mut scanner = Scanner { text: text.as_bytes(), at: 0, values: 0, depth: 0, limits: FrameLimits::default(), members: Members::default() };
            let ours = match scanner.document() {
                Ok(()) => true,
                Err(ScanError::Duplicate { .. }) => return Ok(()),
                Err(_) => false,
            };
            prop_assert_eq!(ours, serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{}", text);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&Bytes::from(bytes), FrameLimits::default());
        }
    }
}
