//! Why a turn failed, as clients know it.

use outpost_wire::app::turn::TurnError;
use serde::Deserialize;
use serde_json::{Value, json};

/// What a turn's end says about what went wrong.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failure {
    message: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    http_status: Option<u16>,
}

impl Failure {
    pub(super) fn shown(self) -> TurnError {
        TurnError { codex_error_info: Some(self.info()), message: self.message, additional_details: None, misalignment: None }
    }

    fn info(&self) -> Value {
        match (self.kind.as_str(), self.http_status) {
            ("contextExceeded", _) => json!("contextWindowExceeded"),
            (_, Some(status @ 429)) => json!({"responseTooManyFailedAttempts": {"httpStatusCode": status}}),
            (_, Some(status @ (401 | 403))) => json!({"httpConnectionFailed": {"httpStatusCode": status}}),
            (_, Some(500..)) => json!("internalServerError"),
            ("unreachable", _) => json!({"httpConnectionFailed": {"httpStatusCode": null}}),
            _ => json!("other"),
        }
    }
}
