//! `view_image`: a picture file of an environment, shown to the model.

use outpost_environment::{Environment, EnvironmentError, Repeat};
use outpost_thread::{CallDetail, CallId, ImageDetail};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use serde::Deserialize;
use serde_json::json;

use super::exec::directory;
use super::{CallEnd, CallPlan, RequestedCall, ResultType, StepTools, Work};
use crate::pictures::Picture;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
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
    pub(super) fn plan_image(&self, asked: &RequestedCall<'_>, view: ViewImage) -> CallPlan {
        let place = match self.place(view.environment_id.as_deref()) {
            Ok(place) => place,
            Err(why) => {
                return self.refuse_place(
                    asked,
                    &why,
                    CallDetail::ImageView(ImageDetail { path: view.path.clone(), environment_id: view.environment_id.clone() }),
                );
            }
        };
        let path = directory(&place.attachment.cwd, Some(&view.path));
        let id = place.attachment.environment_id.clone();
        let detail = CallDetail::ImageView(ImageDetail { path: path.to_syntax(), environment_id: Some(id.to_string()) });
        let run = ImageRun { environment: place.handle.clone(), path, sandbox: self.sandbox(&place), result: asked.result() };
        asked.run(Some(id), true, Some(detail), Work::Image(run))
    }
}

impl ImageRun {
    pub(crate) async fn execute(self, call: &CallId) -> CallEnd {
        let params = ReadFileParams { path: self.path.clone(), follow_symlinks: None, sandbox: self.sandbox };
        let read: Result<_, EnvironmentError> = self.environment.call::<ReadFile>(&params, Repeat::Harmless).await;
        let bytes = match read {
            Ok(read) => read.data_base64.0,
            Err(error) => return CallEnd::failed(self.result, call, &format!("{} cannot be read: {error}", self.path.to_syntax())),
        };
        let read = tokio::task::spawn_blocking(move || Picture::read(bytes.into())).await;
        let url = match read {
            Ok(Ok(picture)) => picture.address(),
            Ok(Err(why)) => return CallEnd::failed(self.result, call, &format!("{} cannot be shown: {why}", self.path.to_syntax())),
            Err(error) => return CallEnd::failed(self.result, call, &format!("{} cannot be shown: {error}", self.path.to_syntax())),
        };
        CallEnd::completed(self.result, call, json!([{"type": "input_image", "image_url": url}]), None)
    }
}
