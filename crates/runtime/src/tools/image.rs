//! `view_image`: a picture file of an environment, shown to the model.

use outpost_environment::{Environment, EnvironmentError, Repeat};
use outpost_thread::CallId;
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use serde::Deserialize;
use serde_json::json;

use super::exec::directory;
use super::{Asked, CallEnd, Plan, ResultType, StepTools, Work};

/// Models refuse larger ones.
const LARGEST: usize = 20 << 20;

#[derive(Debug, Clone, Deserialize)]
pub struct ViewImage {
    path: String,
    #[serde(default)]
    environment_id: Option<String>,
}

pub(crate) struct ImageRun {
    environment: Environment,
    path: PathUri,
    sandbox: Option<SandboxContext>,
    result: ResultType,
}

impl StepTools {
    pub(super) fn plan_image(&self, asked: &Asked<'_>, view: ViewImage) -> Plan {
        let place = match self.place(view.environment_id.as_deref()) {
            Ok(place) => place,
            Err(why) => return asked.refuse(&why, json!({"type": "imageView", "path": view.path, "environmentId": view.environment_id})),
        };
        let path = directory(&place.attachment.cwd, Some(&view.path));
        let id = place.attachment.environment_id.clone();
        let detail = json!({"type": "imageView", "path": path.to_syntax(), "environmentId": id});
        let run = ImageRun { environment: place.handle.clone(), path, sandbox: self.sandbox(&place), result: asked.result() };
        asked.run(Some(id), true, Some(detail), Work::Image(run))
    }
}

impl ImageRun {
    pub async fn execute(self, call: &CallId) -> CallEnd {
        let params = ReadFileParams { path: self.path.clone(), follow_symlinks: None, sandbox: self.sandbox };
        let read: Result<_, EnvironmentError> = self.environment.call::<ReadFile>(&params, Repeat::Harmless).await;
        let bytes = match read {
            Ok(read) => read.data_base64.0,
            Err(error) => return CallEnd::failed(self.result, call, &format!("{} cannot be read: {error}", self.path.to_syntax())),
        };
        let Some(kind) = picture_kind(&bytes) else {
            let why = format!("{} is no picture that can be shown (PNG, JPEG, GIF or WebP)", self.path.to_syntax());
            return CallEnd::failed(self.result, call, &why);
        };
        if bytes.len() > LARGEST {
            let why = format!("{} has {} bytes; at most {LARGEST} can be shown", self.path.to_syntax(), bytes.len());
            return CallEnd::failed(self.result, call, &why);
        }
        let url = format!("data:{kind};base64,{}", outpost_wire::base64::encode(&bytes));
        CallEnd::completed(self.result, call, json!([{"type": "input_image", "image_url": url}]), None)
    }
}

/// What kind of picture a file is by its first bytes; its name does not count.
pub fn picture_kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}
