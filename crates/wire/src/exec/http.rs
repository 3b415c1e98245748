//! HTTP requests that the executor makes for its client, from its own place in the network.

use serde::{Deserialize, Serialize};

use crate::base64::{self, Base64};
use crate::encode::{Encode, json};
use crate::{method, notification};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HttpRequestParams {
    pub method: String,
    pub url: String,
    /// Names the deltas of a streamed body; required even when there are none.
    pub request_id: String,
    #[serde(default)]
    pub headers: Vec<RequestHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// For the whole exchange, body included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub redirect_policy: RedirectPolicy,
    #[serde(default)]
    pub stream_response: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RequestHeader {
    pub name: String,
    pub value: String,
    /// A variable of the executor whose value is appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RedirectPolicy {
    #[default]
    Follow,
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HttpRequestResponse {
    pub status: u16,
    pub headers: Vec<ResponseHeader>,
    /// Empty if the body is streamed.
    pub body_base64: Base64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResponseHeader {
    pub name: String,
    pub value: String,
}

impl Encode for HttpRequestResponse {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"status\":");
        json(&self.status, out);
        out.extend_from_slice(b",\"headers\":");
        json(&self.headers, out);
        out.extend_from_slice(b",\"bodyBase64\":");
        base64::encode_quoted(&self.body_base64.0, out);
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        1024 + base64::quoted_len(self.body_base64.0.len())
    }
}

/// A piece of a streamed body. The end is a piece of its own, without bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BodyDeltaParams {
    pub request_id: String,
    /// Counts from 1.
    pub seq: u64,
    pub delta_base64: Base64,
    pub done: bool,
    #[serde(default)]
    pub error: Option<String>,
}

impl Encode for BodyDeltaParams {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"requestId\":");
        json(&self.request_id, out);
        out.extend_from_slice(b",\"seq\":");
        json(&self.seq, out);
        out.extend_from_slice(b",\"deltaBase64\":");
        base64::encode_quoted(&self.delta_base64.0, out);
        out.extend_from_slice(b",\"done\":");
        json(&self.done, out);
        out.extend_from_slice(b",\"error\":");
        json(&self.error, out);
        out.push(b'}');
    }
    fn size_hint(&self) -> usize {
        96 + self.request_id.len() + base64::quoted_len(self.delta_base64.0.len())
    }
}

method!(HttpRequest = "http/request", HttpRequestParams => HttpRequestResponse);
notification!(BodyDelta = "http/request/bodyDelta", BodyDeltaParams);

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: Encode>(value: &T) -> String {
        let mut out = Vec::new();
        value.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn answers_and_deltas_have_stable_shapes() {
        let header = ResponseHeader { name: "x-a".into(), value: "1".into() };
        let answer = HttpRequestResponse { status: 200, headers: vec![header], body_base64: b"hi".to_vec().into() };
        assert_eq!(text(&answer), r#"{"status":200,"headers":[{"name":"x-a","value":"1"}],"bodyBase64":"aGk="}"#);
        assert_eq!(serde_json::from_str::<HttpRequestResponse>(&text(&answer)).unwrap(), answer);
        let delta = BodyDeltaParams { request_id: "r\"".into(), seq: 1, delta_base64: b"hi".to_vec().into(), done: false, error: None };
        assert_eq!(text(&delta), r#"{"requestId":"r\"","seq":1,"deltaBase64":"aGk=","done":false,"error":null}"#);
        assert_eq!(serde_json::from_str::<BodyDeltaParams>(&text(&delta)).unwrap(), delta);
    }

    #[test]
    fn a_request_needs_little() {
        let request: HttpRequestParams = serde_json::from_str(r#"{"method":"GET","url":"u","requestId":"r","timeoutMs":null}"#).unwrap();
        assert!(request.headers.is_empty() && request.timeout_ms.is_none() && !request.stream_response);
        assert_eq!(request.redirect_policy, RedirectPolicy::Follow);
    }
}
