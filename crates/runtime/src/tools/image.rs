//! `view_image`: a picture file of an environment, shown to the model.

use outpost_environment::{Environment, EnvironmentError, Repeat};
use outpost_thread::{CallDetail, CallId, ImageDetail};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use serde::Deserialize;
use serde_json::json;

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{Offer, function, object, with_environment};
use super::exec::directory;
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::model::ToolSpec;
use crate::pictures::Picture;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "view_image",
    spec: |offer| (offer.environments > 0 && offer.vision).then(|| spec(offer)),
    read: WrittenCall::call::<ViewImage>,
};

fn spec(offer: &Offer) -> ToolSpec {
    let properties = object(json!({"path": {"type": "string"}}));
    function("view_image", "Shows you an image file.", with_environment(properties, offer), &["path"])
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ViewImage {
    path: String,
    #[serde(default)]
    environment_id: Option<String>,
}

struct ImageRun {
    environment: Environment,
    path: PathUri,
    sandbox: Option<SandboxContext>,
    result: ResultType,
}

impl OwnCall for ViewImage {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_image(asked, *self)
    }
}

impl StepTools {
    fn plan_image(&self, asked: &RequestedCall<'_>, view: ViewImage) -> CallPlan {
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
        asked.run(Some(id), true, Some(detail), Box::new(run))
    }
}

impl Work for ImageRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, _context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.show(call))
    }
}

impl ImageRun {
    async fn show(self, call: &CallId) -> CallEnd {
        let params = ReadFileParams { path: self.path.clone(), follow_symlinks: None, sandbox: self.sandbox };
        let read: Result<_, EnvironmentError> = self.environment.call::<ReadFile>(&params, Repeat::Harmless).await;
        let bytes = match read {
            Ok(read) => read.data_base64.0,
            Err(error) => return CallEnd::failed(self.result, call, format!("{} cannot be read: {error}", self.path.to_syntax())),
        };
        let read = tokio::task::spawn_blocking(move || Picture::read(bytes.into())).await;
        let url = match read {
            Ok(Ok(picture)) => picture.address(),
            Ok(Err(why)) => return CallEnd::failed(self.result, call, format!("{} cannot be shown: {why}", self.path.to_syntax())),
            Err(error) => return CallEnd::failed(self.result, call, format!("{} cannot be shown: {error}", self.path.to_syntax())),
        };
        CallEnd::completed(self.result, call, json!([{"type": "input_image", "image_url": url}]), None)
    }
}
