//! The settings of a thread that decide what its work may do: read, or refused. A value that cannot be read never stands for the
//! usual one.

use outpost_thread::{Raw, Settings};
use thiserror::Error;

use crate::permissions::SandboxMode;
use crate::policy::ApprovalPolicy;

/// A setting that says nothing that is known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the setting `{field}` cannot be read: `{value}` is not one of {accepted}")]
pub struct SettingError {
    field: &'static str,
    value: String,
    accepted: &'static str,
}

const SANDBOXES: &str = "\"read-only\", \"workspace-write\", \"danger-full-access\", or an object whose `type` is `readOnly`, `workspaceWrite`, \
                         `dangerFullAccess` or `externalSandbox`";
const POLICIES: &str = "\"untrusted\", \"on-request\", \"never\", or an object with `granular`";

/// The sandbox that a thread has for itself.
pub fn sandbox(settings: &Settings) -> Result<Option<SandboxMode>, SettingError> {
    let read = |raw: &Raw| match raw.read::<String>() {
        Ok(name) => SandboxMode::named(&name),
        Err(_) => raw.read::<SandboxMode>().ok(),
    };
    read_or_refuse("sandbox", settings.sandbox.as_ref(), SANDBOXES, read)
}

/// The approval policy that a thread has for itself.
pub fn approval(settings: &Settings) -> Result<Option<ApprovalPolicy>, SettingError> {
    read_or_refuse("approvalPolicy", settings.approval_policy.as_ref(), POLICIES, |raw| raw.read().ok())
}

/// Whether all of them can be read.
pub fn check(settings: &Settings) -> Result<(), SettingError> {
    sandbox(settings)?;
    approval(settings)?;
    Ok(())
}

fn read_or_refuse<T>(
    field: &'static str,
    raw: Option<&Raw>,
    accepted: &'static str,
    read: impl Fn(&Raw) -> Option<T>,
) -> Result<Option<T>, SettingError> {
    let Some(raw) = raw else { return Ok(None) };
    let value = || raw.get().chars().take(80).collect();
    read(raw).map(Some).ok_or_else(|| SettingError { field, value: value(), accepted })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_cannot_be_read_is_refused_with_what_can() {
        let sandboxed = |value: Value| sandbox(&Settings { sandbox: Some(Raw::from(value)), ..Settings::default() });
        let asking = |value: Value| approval(&Settings { approval_policy: Some(Raw::from(value)), ..Settings::default() });
        assert_eq!(sandboxed(json!("read-only")), Ok(SandboxMode::named("read-only")));
        assert_eq!(sandboxed(json!({"type": "readOnly"})), Ok(SandboxMode::named("read-only")));
        for wrong in
            [json!("readonly"), json!({"type": "read-only"}), json!({"type": "Unset"}), json!({}), json!(null), json!(1), json!("")]
        {
            let error = sandboxed(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains("`sandbox`") && error.contains("workspace-write") && error.contains(&wrong.to_string()), "{error}");
        }
        assert_eq!(asking(json!("untrusted")), Ok(Some(ApprovalPolicy::Untrusted)));
        for wrong in [json!("Untrusted"), json!("sometimes"), json!({"granular": 1}), json!(null), json!([])] {
            let error = asking(wrong).unwrap_err().to_string();
            assert!(error.contains("`approvalPolicy`") && error.contains("on-request"), "{error}");
        }
        assert_eq!((sandbox(&Settings::default()), approval(&Settings::default())), (Ok(None), Ok(None)));
    }
}
