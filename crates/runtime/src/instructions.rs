//! What users and projects ask of agents: the AGENTS.md file of the home on this machine, and those of each environment, read
//! through that environment's own filesystem and sandbox.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use outpost_environment::{EnvironmentError, Repeat, Workplace};
use outpost_thread::{Context, Raw};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};

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
    let mut left = BUDGET;
    let mut messages = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let share = left / (places.len() - index);
        let id = &place.attachment.environment_id;
        let Ok(read) = tokio::time::timeout(patience, read(tools, place, share)).await else {
            tracing::warn!(environment = %id, "project instructions could not be read in time");
            continue;
        };
        let Some(text) = read else { continue };
        left -= text.len().min(left);
        let message = user_message(&format!("<project_instructions environment=\"{id}\">\n{text}\n</project_instructions>"));
        let is_known = context.is_some_and(|context| context.items().contains(&message));
        if !is_known {
            messages.push(message);
        }
    }
    messages
}

/// The files of one environment, from its outermost workspace root down to its working directory.
async fn read(tools: &StepTools, place: &Workplace<'_>, share: usize) -> Option<String> {
    let mut parts = Vec::new();
    let mut left = share;
    for directory in directories(place) {
        let path = directory.join(NAME);
        let params = ReadFileParams { path: path.clone(), follow_symlinks: None, sandbox: tools.sandbox(place) };
        let bytes = match place.handle.call::<ReadFile>(&params, Repeat::Harmless).await {
            Ok(read) => read.data_base64.0,
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => continue,
            Err(error) => {
                tracing::debug!(environment = %place.attachment.environment_id, %error, "no project instructions");
                continue;
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let text = clipped(&text, left);
        if text.is_empty() {
            continue;
        }
        left -= text.len();
        parts.push(format!("From {}:\n{}", path.to_syntax(), text.trim_end()));
    }
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// The working directory and those above it, up to the workspace root that holds it; the outermost first.
fn directories(place: &Workplace<'_>) -> Vec<PathUri> {
    let cwd = &place.attachment.cwd;
    let below = |root: &&PathUri| cwd.to_string().starts_with(&format!("{}/", root.to_string().trim_end_matches('/'))) || cwd == *root;
    let Some(root) = place.attachment.workspace_roots.iter().filter(below).min_by_key(|root| root.to_string().len()) else {
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
