//! Watches: one over paths that are missing, and ours over paths that are there.

use serde::{Deserialize, Serialize};

use super::policy::SandboxContext;
use super::session::Empty;
use crate::path::PathUri;
use crate::{encode_with_serde, method, notification};

/// The client remembers that these paths are missing, for as long as nothing happens to them or to `present`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchMissingParams {
    /// Must grow; a greater one replaces the watch before it.
    pub watch_id: u64,
    pub missing: Vec<PathUri>,
    pub present: PathUri,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchMissingResponse {
    /// Without a watch, the client must not remember anything.
    pub watching: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingChangedParams {
    pub watch_id: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchParams {
    /// Chosen by the client.
    pub watch_id: String,
    pub path: PathUri,
    pub recursive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnwatchParams {
    pub watch_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedParams {
    pub watch_id: String,
    /// Each path once, in no particular order.
    pub paths: Vec<PathUri>,
    /// More changed than can be told; anything below the watched path may be different.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overflow: bool,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

encode_with_serde!(WatchMissingResponse, MissingChangedParams, ChangedParams);

method!(WatchMissing = "fs/watchMissing", WatchMissingParams => WatchMissingResponse);
notification!(MissingChanged = "fs/missingChanged", MissingChangedParams);
method!(
    /// Ours.
    Watch = "fs/watch", WatchParams => Empty
);
method!(
    /// Ours.
    Unwatch = "fs/unwatch", UnwatchParams => Empty
);
notification!(
    /// Ours.
    Changed = "fs/changed", ChangedParams
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Encode;

    #[test]
    fn overflow_is_told_only_when_there_is_one() {
        let text = |changed: &ChangedParams| {
            let mut out = Vec::new();
            changed.encode(&mut out);
            String::from_utf8(out).unwrap()
        };
        let path = PathUri::parse("file:///a").unwrap();
        let changed = ChangedParams { watch_id: "w".into(), paths: vec![path], overflow: false };
        assert_eq!(text(&changed), r#"{"watchId":"w","paths":["file:///a"]}"#);
        assert_eq!(serde_json::from_str::<ChangedParams>(&text(&changed)).unwrap(), changed);
        let lost = ChangedParams { paths: vec![], overflow: true, ..changed };
        assert_eq!(text(&lost), r#"{"watchId":"w","paths":[],"overflow":true}"#);
    }
}
