//! Permissions beyond the sandbox: what an agent asks for, and what a user grants of it.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::exec::policy::{Access, SpecialRoot};
use crate::{encode_with_serde, method};

method!(PermissionsApproval = "item/permissions/requestApproval", PermissionsApprovalParams => PermissionsApprovalResponse);

records! {
    /// What is asked for, or granted, on top of what the sandbox allows anyway.
    #[derive(Default)]
    PermissionProfile { ; network: Option<NetworkPermissions>, file_system: Option<FilePermissions> }

    #[derive(Default)]
    NetworkPermissions { ; enabled: Option<bool> }

    /// The lists and the entries say the same. In an answer that has both, only what stands in both is granted.
    #[derive(Default)]
    FilePermissions {
        ; read: Option<Vec<String>>,
        write: Option<Vec<String>>,
        glob_scan_max_depth: Option<NonZeroU32>,
        entries: Option<Vec<PermissionEntry>>,
    }

    PermissionEntry { path: PermissionPath, access: Access }

    PermissionsApprovalParams {
        thread_id: String,
        turn_id: String,
        item_id: String,
        started_at_ms: u64,
        environment_id: Option<String>,
        /// Ours: the question itself, the same through restarts.
        approval_id: Option<String>,
        /// Where relative paths began; all paths here are absolute.
        cwd: String,
        permissions: PermissionProfile,
        reason: Option<String>,
    }

    PermissionsApprovalResponse {
        /// What is granted; beyond what was asked for it counts as not said. Nothing at all is a no.
        permissions: PermissionProfile;
        scope: Option<PermissionScope>,
        /// Read and not used: there is no reviewer but the user here.
        strict_auto_review: Option<bool>,
    }
}

/// How a path is named in an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PermissionPath {
    Path { path: String },
    GlobPattern { pattern: String },
    Special { value: SpecialRoot },
}

/// How long a grant holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PermissionScope {
    #[default]
    Turn,
    /// As long as the thread.
    Session,
}

encode_with_serde!(PermissionsApprovalResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_be_short() {
        let read = |text: &str| serde_json::from_str::<PermissionsApprovalResponse>(text).unwrap();
        let nothing = read(r#"{"permissions":{}}"#);
        assert_eq!((nothing.permissions, nothing.scope), (PermissionProfile::default(), None));
        let some = read(r#"{"permissions":{"fileSystem":{"write":["/w"]},"network":{"enabled":true}},"scope":"session"}"#);
        assert_eq!(some.scope, Some(PermissionScope::Session));
        assert_eq!(some.permissions.file_system.unwrap().write.unwrap(), ["/w"]);
        assert!(serde_json::from_str::<PermissionsApprovalResponse>(r#"{"permissions":{},"scope":"forever"}"#).is_err());
    }

    #[test]
    fn entries_name_paths_in_three_ways() {
        let text = r#"[{"path":{"type":"path","path":"/x"},"access":"write"},
            {"path":{"type":"special","value":{"kind":"slash_tmp"}},"access":"read"},
            {"path":{"type":"glob_pattern","pattern":"*.env"},"access":"deny"}]"#;
        let entries: Vec<PermissionEntry> = serde_json::from_str(text).unwrap();
        assert_eq!(entries[0].path, PermissionPath::Path { path: "/x".into() });
        assert_eq!((entries[1].access, entries[2].access), (Access::Read, Access::Deny));
    }
}
