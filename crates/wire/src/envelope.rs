//! The envelope: request, notification, response and error. No peer sends a `jsonrpc` member; if present it is ignored.

use serde::{Deserialize, Serialize};

use crate::encode::{Encode, json};
use crate::fault::Fault;

/// The id of a request: a string or a signed 64-bit integer. `null` and fractions are malformed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    Number(i64),
    Text(String),
}

/// The id under which a malformed message is answered, since its own could not be read.
pub const MALFORMED_ID: RequestId = RequestId::Number(-1);

/// W3C trace context of the caller; carried, never required. One that makes no sense is no error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// The caller's span, if it is spelled as W3C says: `version-trace-span-flags` in lower-case hexadecimal.
    pub fn parent(&self) -> Option<&str> {
        let parent = self.traceparent.as_deref()?;
        let mut fields = parent.split('-');
        let mut field = |length: usize| {
            let text = fields.next().unwrap_or_default();
            let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (text.len() == length && is_hex).then_some(text)
        };
        let (version, trace, span, _flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_known = version != "00" || fields.next().is_none();
        let names_something = |text: &str| text.bytes().any(|byte| byte != b'0');
        // A later version may have more fields; `ff` is no version.
        (version != "ff" && is_known && names_something(trace) && names_something(span)).then_some(parent)
    }
}

/// `{"id":…,"method":…,"params":…}`
pub fn request<P: Serialize + ?Sized>(id: &RequestId, method: &str, params: &P) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"id\":");
    json(id, &mut out);
    out.extend_from_slice(b",\"method\":");
    json(method, &mut out);
    out.extend_from_slice(b",\"params\":");
    json(params, &mut out);
    out.push(b'}');
    out
}

/// The same for parameters that carry bulk bytes and write themselves.
pub fn bulk_request<P: Encode + ?Sized>(id: &RequestId, method: &str, params: &P) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + method.len() + params.size_hint());
    out.extend_from_slice(b"{\"id\":");
    json(id, &mut out);
    out.extend_from_slice(b",\"method\":");
    json(method, &mut out);
    out.extend_from_slice(b",\"params\":");
    params.encode(&mut out);
    out.push(b'}');
    out
}

/// `{"method":…,"params":…}`
pub fn notification<P: Encode + ?Sized>(method: &str, params: &P) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + params.size_hint());
    out.extend_from_slice(b"{\"method\":");
    json(method, &mut out);
    out.extend_from_slice(b",\"params\":");
    params.encode(&mut out);
    out.push(b'}');
    out
}

/// `{"id":…,"result":…}`
pub fn response<R: Encode + ?Sized>(id: &RequestId, result: &R) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + result.size_hint());
    out.extend_from_slice(b"{\"id\":");
    json(id, &mut out);
    out.extend_from_slice(b",\"result\":");
    result.encode(&mut out);
    out.push(b'}');
    out
}

/// `{"id":…,"error":…}`
pub fn error(id: &RequestId, fault: &Fault) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + fault.message.len());
    out.extend_from_slice(b"{\"id\":");
    json(id, &mut out);
    out.extend_from_slice(b",\"error\":");
    json(fault, &mut out);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sensible_parent_counts() {
        let is_parent = |text: &str| TraceContext { traceparent: Some(text.into()), tracestate: None }.parent().is_some();
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert!(is_parent(&format!("00-{trace}-{span}-01")) && is_parent(&format!("01-{trace}-{span}-01-more")));
        for text in [
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}"),
            "banana".into(),
            String::new(),
        ] {
            assert!(!is_parent(&text), "{text}");
        }
    }

    #[test]
    fn the_four_kinds_have_stable_shapes() {
        let id = RequestId::Text("a\"b".into());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(request(&RequestId::Number(7), "m/x", &())), r#"{"id":7,"method":"m/x","params":null}"#);
        assert_eq!(text(error(&id, &Fault::invalid_request("no"))), r#"{"id":"a\"b","error":{"code":-32600,"message":"no"}}"#);
        assert_eq!(text(error(&MALFORMED_ID, &Fault::internal("x"))), r#"{"id":-1,"error":{"code":-32603,"message":"x"}}"#);
    }
}
