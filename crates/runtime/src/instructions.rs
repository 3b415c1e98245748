//! What users and projects ask of agents: the AGENTS.md file of the home on this machine, and those of each environment, read
//! through that environment's own filesystem and sandbox.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost_environment::{Environment, EnvironmentError, Workplace};
use outpost_thread::{Context, Raw};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams, ReadFileResponse};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::Attachment;

use crate::driver::user_message;
use crate::tools::StepTools;

/// All environments together may say so much; each gets the same share, and what one leaves is for the next.
const BUDGET: usize = 32 << 10;

const NAME: &str = "AGENTS.md";

/// What the user asks of agents wherever they work, unless the model was told exactly that.
pub(crate) async fn of_user(file: &Path, context: Option<&Context>) -> Option<Raw> {
    let bytes = match tokio::fs::read(file).await {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "the user's instructions cannot be read");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let text = clipped(text.trim(), BUDGET);
    if text.is_empty() {
        return None;
    }
    let message = user_message(&format!("<user_instructions>\n{text}\n</user_instructions>"));
    let is_known = context.is_some_and(|context| context.items().contains(&message));
    (!is_known).then_some(message)
}

/// As many whole characters as fit into so many bytes.
fn clipped(text: &str, most: usize) -> &str {
    let cut = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= most).last().unwrap_or(0);
    &text[..cut]
}

/// The messages that the model has not been told yet, one for each environment that has something to say. One that takes longer
/// than this is asked again at the next step.
pub(crate) async fn gather(tools: &StepTools, context: Option<&Context>, patience: Duration) -> Vec<Raw> {
    let places: Vec<Workplace<'_>> = tools.view.workplaces().collect();
    let reading = places.iter().map(|place| tokio::time::timeout(patience, read(tools, place)));
    let files = join_all(reading).await;
    let mut left = BUDGET;
    let mut messages = Vec::new();
    for (index, (place, files)) in places.iter().zip(files).enumerate() {
        let share = left / (places.len() - index);
        let id = &place.attachment.environment_id;
        let Ok(files) = files else {
            tracing::warn!(environment = %id, "project instructions could not be read in time");
            continue;
        };
        let Some(text) = together(&files, share) else { continue };
        left -= text.len().min(left);
        let message = user_message(&format!("<project_instructions environment=\"{id}\">\n{text}\n</project_instructions>"));
        let is_known = context.is_some_and(|context| context.items().contains(&message));
        if !is_known {
            messages.push(message);
        }
    }
    messages
}

/// Says that the files of an environment will be read.
pub(crate) fn foresee(handle: &Environment, attachment: &Attachment, sandbox: Option<&SandboxContext>) {
    for path in files(attachment) {
        handle.foresee::<ReadFile>(&ReadFileParams { path, follow_symlinks: None, sandbox: sandbox.cloned() });
    }
}

/// A file that is there.
struct InstructionFile {
    path: PathUri,
    contents: Arc<ReadFileResponse>,
}

/// The files of one environment, from its outermost workspace root down to its working directory.
async fn read(tools: &StepTools, place: &Workplace<'_>) -> Vec<InstructionFile> {
    let sandbox = tools.sandbox(place);
    let reading = files(place.attachment).into_iter().map(|path| async {
        let params = ReadFileParams { path: path.clone(), follow_symlinks: None, sandbox: sandbox.clone() };
        match place.handle.followed::<ReadFile>(&params).await {
            Ok(contents) => Some(InstructionFile { path, contents }),
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => None,
            Err(error) => {
                tracing::debug!(environment = %place.attachment.environment_id, %error, "no project instructions");
                None
            }
        }
    });
    join_all(reading).await.into_iter().flatten().collect()
}

/// As much of the files as fits into so many bytes.
fn together(files: &[InstructionFile], share: usize) -> Option<String> {
    let mut parts = Vec::new();
    let mut left = share;
    for InstructionFile { path, contents } in files {
        let text = String::from_utf8_lossy(&contents.data_base64.0);
        let text = clipped(&text, left);
        if text.is_empty() {
            continue;
        }
        left -= text.len();
        parts.push(format!("From {}:\n{}", path.to_syntax(), text.trim_end()));
    }
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

fn files(attachment: &Attachment) -> Vec<PathUri> {
    directories(attachment).iter().map(|directory| directory.join(NAME)).collect()
}

/// The working directory and those above it, up to the workspace root that holds it; the outermost first.
fn directories(attachment: &Attachment) -> Vec<PathUri> {
    let cwd = &attachment.cwd;
    let below = |root: &&PathUri| cwd.to_string().starts_with(&format!("{}/", root.to_string().trim_end_matches('/'))) || cwd == *root;
    let Some(root) = attachment.workspace_roots.iter().filter(below).min_by_key(|root| root.to_string().len()) else {
        return vec![cwd.clone()];
    };
    let mut directories = vec![cwd.clone()];
    let mut text = cwd.to_string();
    while text.len() > root.to_string().trim_end_matches('/').len()
        && let Some((parent, _)) = text.clone().rsplit_once('/')
        && parent.len() >= root.to_string().trim_end_matches('/').len()
        && let Ok(path) = PathUri::parse(parent)
    {
        directories.push(path);
        text = parent.to_owned();
    }
    directories.reverse();
    directories
}
