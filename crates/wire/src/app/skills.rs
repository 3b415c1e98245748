//! Skills, as clients list them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Nothing;
use super::files::AbsolutePath;
use crate::{app_method, encode_with_serde};

app_method!(SkillsList = "skills/list", SkillsListParams => SkillsListResponse);
app_method!(
    /// Folders of this machine that are looked at besides the usual ones, for all clients, until the server ends.
    SkillsExtraRootsSet = "skills/extraRoots/set", SkillsExtraRootsSetParams => Nothing
);
app_method!(
    /// Switches a skill on or off, in `config.toml`, and from the next step on.
    SkillsConfigWrite = "skills/config/write", SkillsConfigWriteParams => SkillsConfigWriteResponse
);

records! {
    /// Either by the path of its file or by its name.
    SkillsConfigWriteParams { enabled: bool; path: Option<AbsolutePath>, name: Option<String> }
    SkillsConfigWriteResponse { effective_enabled: bool }
    SkillsListParams { ; cwds: Vec<String>, force_reload: bool }
    SkillsListResponse { data: Vec<SkillsListEntry> }
    SkillsListEntry { cwd: String, skills: Vec<SkillEntry>, errors: Vec<SkillError> }
    SkillEntry {
        name: String,
        description: String,
        short_description: Option<String>,
        path: String,
        scope: SkillScope,
        enabled: bool,
        plugin_id: Option<String>,
        interface: Option<Value>,
        dependencies: Option<Value>,
        /// Ours: where it is.
        environment_id: Option<String>
    }
    SkillError { path: String, message: String }
    SkillsExtraRootsSetParams { extra_roots: Vec<AbsolutePath> }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SkillScope {
    User,
    Repo,
    System,
    Admin,
}

/// The skills of this machine are other ones; a client that shows them asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillsChanged {}

encode_with_serde!(SkillsListResponse, SkillsConfigWriteResponse);
