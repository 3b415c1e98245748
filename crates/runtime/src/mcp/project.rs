//! `.mcp.json` in the directories that a thread works in, read through the environment that they are in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outpost_environment::{EnvironmentError, Repeat, Workplace};
use outpost_thread::ThreadId;
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::EnvironmentId;
use serde_json::Value;

use super::declaration::{Origin, declarations};
use super::{Declared, McpLimits, lock};

const NAME: &str = ".mcp.json";
/// A file that is larger is no list of servers.
const LARGEST: usize = 1 << 20;

/// What the projects of each thread declare, as it was last read. A refresh reads it again.
#[derive(Default)]
pub(crate) struct Projects(Mutex<HashMap<Project, Arc<Declared>>>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Project {
    thread: ThreadId,
    environment: EnvironmentId,
    /// Another machine under the same name has other files.
    executor: Result<String, u64>,
    directory: PathUri,
}

impl Projects {
    /// What the project in this place declares.
    pub async fn of(
        &self,
        thread: ThreadId,
        place: &Workplace<'_>,
        sandbox: Option<SandboxContext>,
        limits: &McpLimits,
    ) -> Result<Arc<Declared>, String> {
        let project = Project::of(thread, place);
        if let Some(known) = lock(&self.0).get(&project) {
            return Ok(known.clone());
        }
        // What cannot be read now is asked for again at the next step.
        let declared = Arc::new(read(place, sandbox, limits).await?);
        lock(&self.0).insert(project, declared.clone());
        Ok(declared)
    }

    pub fn forget(&self, thread: ThreadId) {
        lock(&self.0).retain(|project, _| project.thread != thread);
    }

    /// Takes over what a refresh has read.
    pub fn set(&self, thread: ThreadId, place: &Workplace<'_>, declared: Declared) {
        lock(&self.0).insert(Project::of(thread, place), Arc::new(declared));
    }
}

impl Project {
    fn of(thread: ThreadId, place: &Workplace<'_>) -> Self {
        let executor = place.handle.identity().and_then(|identity| identity.executor_id);
        Self {
            thread,
            environment: place.attachment.environment_id.clone(),
            executor: executor.ok_or_else(|| place.handle.generation()),
            directory: place.attachment.cwd.clone(),
        }
    }
}

/// Reads the file; no file is no servers.
pub(crate) async fn read(place: &Workplace<'_>, sandbox: Option<SandboxContext>, limits: &McpLimits) -> Result<Declared, String> {
    let (environment, directory) = (place.attachment.environment_id.clone(), place.attachment.cwd.clone());
    let path = directory.join(NAME);
    let name = format!("{} in `{environment}`", path.to_syntax());
    let params = ReadFileParams { path, follow_symlinks: None, sandbox };
    let bytes = match place.handle.call::<ReadFile>(&params, Repeat::Harmless).await {
        Ok(read) => read.data_base64.0,
        Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => return Ok(Declared::new()),
        Err(error) => return Err(format!("{name} cannot be read: {error}")),
    };
    if bytes.len() > LARGEST {
        return Err(format!("{name} has {} bytes; at most {LARGEST} are read", bytes.len()));
    }
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(Value::Object(object)) => Ok(declarations(&object, &Origin::Project { environment, directory }, limits)),
        Ok(_) => Err(format!("{name} holds no object")),
        Err(error) => Err(format!("{name} is no JSON: {error}")),
    }
}
