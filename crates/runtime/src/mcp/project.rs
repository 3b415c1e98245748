//! `.mcp.json` in the directories that a thread works in, read through the environment that they are in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outpost_environment::{Environment, EnvironmentError, Workplace};
use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::Attachment;
use serde_json::Value;

use super::declaration::{DeclarationOrigin, declarations};
use super::watching::{WatchedDirectory, Watching};
use super::{Declared, McpLimits, lock};

pub(super) const NAME: &str = ".mcp.json";
/// A file that is larger is no list of servers.
const LARGEST: usize = 1 << 20;

/// What the projects of each thread declare, as it was last read.
#[derive(Default)]
pub(crate) struct Projects(Mutex<HashMap<(ThreadId, WatchedDirectory), Known>>);

#[derive(Clone)]
struct Known {
    declared: Arc<Declared>,
    /// The number under which it is watched; while it stands, nothing has changed.
    number: Option<u64>,
}

impl Projects {
    /// What the project in this place declares. If it cannot be read now, what it declared last stays, and the reason is told.
    pub(crate) async fn of(
        &self,
        (thread, watching): (ThreadId, &Watching),
        place: &Workplace<'_>,
        sandbox: Option<SandboxContext>,
        limits: &McpLimits,
    ) -> (Arc<Declared>, Option<String>) {
        let key = (thread, WatchedDirectory::of(place));
        let number = watching.number(&key.1);
        let known = lock(&self.0).get(&key).cloned();
        if let Some(known) = known.as_ref().filter(|known| number.is_some() && known.number == number) {
            return (known.declared.clone(), None);
        }
        match read(place, sandbox, limits).await {
            Ok(declared) => {
                let declared = Arc::new(declared);
                lock(&self.0).insert(key, Known { declared: declared.clone(), number });
                (declared, None)
            }
            Err(problem) => (known.map(|known| known.declared).unwrap_or_default(), Some(problem.to_string())),
        }
    }

    pub(crate) fn forget(&self, thread: ThreadId) {
        lock(&self.0).retain(|(known, _), _| *known != thread);
    }

    /// Takes over what a refresh has read.
    pub(crate) fn set(&self, thread: ThreadId, place: &Workplace<'_>, declared: Declared, number: Option<u64>) {
        lock(&self.0).insert((thread, WatchedDirectory::of(place)), Known { declared: Arc::new(declared), number });
    }
}

/// Says that the file will be read.
pub(crate) fn foresee(handle: &Environment, attachment: &Attachment, sandbox: Option<SandboxContext>) {
    let params = ReadFileParams { path: attachment.cwd.join(NAME), follow_symlinks: None, sandbox };
    handle.foresee::<ReadFile>(&params);
}

/// Reads the file; no file is no servers.
pub(crate) async fn read(place: &Workplace<'_>, sandbox: Option<SandboxContext>, limits: &McpLimits) -> Result<Declared, SharedError> {
    let (environment, directory) = (place.attachment.environment_id.clone(), place.attachment.cwd.clone());
    let path = directory.join(NAME);
    let name = format!("{} in `{environment}`", path.to_syntax());
    let params = ReadFileParams { path, follow_symlinks: None, sandbox };
    let answer = tokio::time::timeout(limits.declarations, place.handle.followed::<ReadFile>(&params)).await;
    let bytes = match answer.map_err(|_| format!("{name} cannot be read: no answer within {} s", limits.declarations.as_secs()))? {
        Ok(read) => read.data_base64.0.clone(),
        Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => return Ok(Declared::new()),
        Err(EnvironmentError::Fault(fault)) if fault.unenforceable().is_some() => {
            let why = format!("{name} is not looked for, because the thread's sandbox cannot be held there");
            return Err(SharedError::worded(why, fault));
        }
        Err(error) => return Err(SharedError::worded(format!("{name} cannot be read: {error}"), error)),
    };
    if bytes.len() > LARGEST {
        return Err(format!("{name} has {} bytes; at most {LARGEST} are read", bytes.len()).into());
    }
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(Value::Object(object)) => Ok(declarations(&object, &DeclarationOrigin::Project { environment, directory }, limits)),
        Ok(_) => Err(format!("{name} holds no object").into()),
        Err(error) => Err(SharedError::worded(format!("{name} is not valid JSON: {error}"), error)),
    }
}
