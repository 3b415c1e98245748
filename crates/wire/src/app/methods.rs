//! Every method of the app protocol, with who may send it and what it is about: the schema and the checks of a server are made from this
//! one list.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{
    account, commands, config, environment, files, goals, journal, lists, mcp, models, overview, queue, review, sample, search, session,
    settings, skills, thread, turn, unread,
};
use crate::Method;

/// What a client may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Reads threads and follows them.
    Viewer,
    /// Starts turns, runs commands, answers questions.
    Operator,
    /// Changes the server, too: its configuration and its environments.
    #[default]
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        })
    }
}

/// A text that names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role: use viewer, operator or admin")]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let all = [Self::Viewer, Self::Operator, Self::Admin];
        all.into_iter().find(|role| role.to_string() == text).ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

/// What a method is about, which decides what a token may do that is limited to some threads or environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodSubject {
    /// The threads that it names.
    Threads,
    /// Its answer names threads in a list, of which a limited token gets what is left.
    ThreadLists,
    /// The server, a machine, or a thread that it makes. A thread that is named to it means nothing.
    Server,
}

/// Who may send a method, and what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodAccess {
    pub role: Role,
    pub subject: MethodSubject,
}

macro_rules! methods {
    ($($role:ident about $subject:ident: $($room:ident::{ $($name:ident),+ $(,)? }),+;)+) => {
        /// Who may send the method of this name. One that does not exist is not for viewers.
        pub fn access(method: &str) -> MethodAccess {
            $($($(if method == <$room::$name as Method>::NAME {
                return MethodAccess { role: Role::$role, subject: MethodSubject::$subject };
            })+)+)+
            MethodAccess { role: Role::Operator, subject: MethodSubject::Server }
        }

        #[cfg(feature = "schema")]
        impl crate::schema::Book {
            /// Enters all of them.
            pub(crate) fn app_methods(&mut self) {
                $($($(self.app::<$room::$name>();)+)+)+
            }
        }
    };
}

methods! {
    Viewer about Threads:
        thread::{
            ThreadResume, ThreadRead, ThreadUnsubscribe, ThreadTurnsList, ThreadItemsList, BackgroundTerminalsList, ThreadVerify,
            ThreadWhy,
        },
        overview::{ThreadOverview},
        journal::{ThreadEntriesList},
        goals::{ThreadGoalGet},
        queue::{ThreadQueueList},
        unread::{ThreadReadStateUpdate},
        search::{ThreadSearchOccurrences, ThreadItemsRead};
    Viewer about ThreadLists:
        thread::{ThreadList, ThreadLoadedList},
        search::{ThreadSearch};
    Viewer about Server:
        session::{Initialize},
        environment::{EnvironmentStatus, EnvironmentList, EnvironmentWatch, EnvironmentActivity},
        skills::{SkillsList},
        config::{PermissionProfileList},
        account::{AccountRead},
        models::{ModelList},
        lists::{CollaborationModeList, ExperimentalFeatureList, ServerDiagnosticsRead};
    Operator about Threads:
        thread::{
            ThreadFork, ThreadArchive, ThreadUnarchive, ThreadDelete, ThreadNameSet, ThreadCompactStart, ThreadShellCommand,
            ThreadInjectItems, BackgroundTerminalsTerminate, BackgroundTerminalsClean, ThreadTakeover, ThreadRevert,
        },
        turn::{TurnStart, TurnSteer, TurnInterrupt, TurnSettingsUpdate},
        settings::{ThreadSettingsUpdate},
        mcp::{McpServerStatusList, McpServerToolCall, McpServerResourceRead},
        journal::{ThreadApprovalAnswer},
        lists::{AppList},
        goals::{ThreadGoalSet, ThreadGoalClear, ThreadMetadataUpdate},
        queue::{ThreadQueueAdd, ThreadQueueUpdate, ThreadQueueDelete, ThreadQueueReorder, ThreadQueueStart},
        review::{ReviewStart},
        sample::{ThreadSample};
    Operator about Server:
        thread::{ThreadStart},
        environment::{EnvironmentInfo},
        files::{FsReadFile, FsWriteFile, FsCreateDirectory, FsGetMetadata, FsReadDirectory, FsRemove, FsCopy, FsWatch, FsUnwatch},
        commands::{
            CommandExec, CommandExecWrite, CommandExecResize, CommandExecTerminate, ProcessSpawn, ProcessWriteStdin, ProcessResizePty,
            ProcessKill,
        },
        mcp::{McpServerOauthLogin},
        config::{ConfigRead, ConfigRequirementsRead},
        account::{AccountLoginStart, AccountLoginCancel, AccountLogout, AccountRateLimitsRead, GovCloudCheck},
        lists::{ModelProviderCapabilitiesRead, HooksList, PluginList, PluginInstalled, PluginRead},
        sample::{ThreadSampleCancel},
        search::{FuzzyFileSearch, FuzzySessionStart, FuzzySessionUpdate, FuzzySessionStop};
    Admin about Server:
        environment::{EnvironmentAdd, EnvironmentRemove},
        skills::{SkillsExtraRootsSet, SkillsConfigWrite},
        mcp::{McpServerReload},
        config::{ConfigValueWrite, ConfigBatchWrite},
        lists::{ExperimentalFeatureEnablementSet, PluginInstall, PluginUninstall};
}
