//! `apply_patch`: all files of a patch, or none.
//!
//! Everything is read and worked out first. Only then is anything written; if that fails half-way, what was written is put
//! back as it was, and the model is told if even that failed.

use futures_util::future::join_all;
use outpost_environment::{Environment, EnvironmentError, Repeat, Workplace};
use outpost_thread::{
    ApprovalDetail, ApprovalKind, CallDetail, CallId, CallReport, ChangeKind, FileChangeDetail, PlannedChange, WrittenFile,
};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{
    Canonicalize, CanonicalizeParams, CreateDirectory, CreateDirectoryParams, GetMetadata, GetMetadataParams, ReadFile, ReadFileParams,
    Remove, RemoveParams, WriteFile, WriteFileParams,
};
use outpost_wire::exec::policy::{Grant, SandboxContext};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{Offer, object, string, with_environment};
use super::exec::directory;
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::approvals::{Bound, key};
use crate::extra_permissions::ExtraPermissions;
use crate::model::{ToolInput, ToolSpec};
use crate::patch::{self, Diff, FileChange, Patch};
use crate::policy::{ApprovalRequest, Course};
use crate::rules::RulesVerdict;

/// The grammar of a patch, in Lark's notation.
const PATCH_GRAMMAR: &str = r#"start: begin environment? change+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
environment: "*** Environment ID: " /[^\n]+/ LF
change: add | delete | update
add: "*** Add File: " path LF added+
delete: "*** Delete File: " path LF
update: "*** Update File: " path LF move? chunk*
move: "*** Move to: " path LF
chunk: heading? line+ last?
heading: ("@@" | "@@ " /[^\n]+/) LF
added: "+" /[^\n]*/ LF
line: ("+" | "-" | " ") /[^\n]*/ LF
last: "*** End of File" LF
path: /[^\n]+/
%import common.LF
"#;

pub(super) const TOOL: OwnTool = OwnTool { name: "apply_patch", spec: |offer| (offer.environments > 0).then(|| spec(offer)), read };

fn spec(offer: &Offer) -> ToolSpec {
    let mut description = String::from(
        "Creates, edits and deletes files: all of a patch or nothing. Each file has one of these sections:\n\
         *** Begin Patch\n\
         *** Add File: new.txt\n\
         +first line\n\
         *** Update File: src/a.py\n\
         @@ def main():\n \
         kept line\n\
         -old line\n\
         +new line\n\
         *** Delete File: old.txt\n\
         *** End Patch\n\
         Give about three kept lines around a change; the text after @@ may be left out. `*** Move to: PATH` after Update File renames.",
    );
    if offer.environments > 1 {
        description.push_str(" `*** Environment ID: ID` after the first line names the environment; default: the primary one.");
    }
    let input = if offer.text_tools {
        ToolInput::Text { grammar: PATCH_GRAMMAR.to_owned() }
    } else {
        let properties = with_environment(object(json!({"input": string("The patch.")})), offer);
        ToolInput::Object(json!({"type": "object", "properties": properties, "required": ["input"], "additionalProperties": false}))
    };
    ToolSpec { name: "apply_patch".into(), description, input }
}

/// A patch comes as text, or as an argument.
fn read(written: &WrittenCall) -> Result<Box<dyn OwnCall>, String> {
    if written.kind == "custom_tool_call" {
        return Ok(Box::new(PatchInput { input: written.input.clone(), environment_id: None }));
    }
    written.call::<PatchInput>()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatchInput {
    input: String,
    #[serde(default)]
    environment_id: Option<String>,
}

impl OwnCall for PatchInput {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_patch_text(asked, &self.input, self.environment_id.as_deref())
    }
}

struct PatchRun {
    files: Gate,
    cwd: PathUri,
    /// What paths are shown relative to.
    root: PathUri,
    patch: Patch,
    /// Files that the sandbox does not let be written and that the user agreed to.
    agreed: ExtraPermissions,
    result: ResultType,
}

/// Files of one environment behind one sandbox.
struct Gate {
    environment: Environment,
    sandbox: Option<SandboxContext>,
}

/// Why a patch is not in the files.
enum Unwritten {
    /// Everything is as it was.
    Refused(String),
    /// Some files could not be put back.
    Mixed(String),
    /// The machine went away meanwhile.
    Unknown,
}

/// One file before and after.
struct Edit {
    path: PathUri,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
    /// The file that it was before it was moved here, and what that held.
    moved: Option<(PathUri, Vec<u8>)>,
}

/// How the result of a patch begins that was applied.
pub(crate) const APPLIED: &str = "Done. These files were changed:\n";

/// The environment of a patch, which may be named by an argument, by a line of the patch, or by both alike.
pub(super) fn named_once<'a>(argument: Option<&'a str>, header: Option<&'a str>) -> Result<Option<&'a str>, String> {
    match (argument, header) {
        (Some(argument), Some(header)) if argument != header => Err(format!(
            "the argument `environment_id` names `{argument}`, and the patch itself names `{header}`: name one environment. Nothing was done"
        )),
        (argument, header) => Ok(argument.or(header)),
    }
}

impl StepTools {
    fn plan_patch_text(&self, asked: &RequestedCall<'_>, text: &str, environment: Option<&str>) -> CallPlan {
        let patch = match patch::parse(text) {
            Ok(patch) => patch,
            Err(error) => {
                let form = patch::accepted_form(text);
                return asked.fail(format!("{error}. Nothing was done. The accepted form of this patch:\n{form}"));
            }
        };
        let environment = match named_once(environment, patch.environment.as_deref()) {
            Ok(environment) => environment.map(str::to_owned),
            Err(why) => return asked.fail(why),
        };
        match self.place(environment.as_deref()) {
            Ok(place) => self.plan_patch(asked, patch, &place, &place.attachment.cwd.clone()),
            Err(why) => {
                // Where it would have been is not known; what it would have done is.
                let changes = patch.changes.iter().map(|change| summary(change, &PathUri::root())).collect();
                self.refuse_place(asked, &why, CallDetail::FileChange(FileChangeDetail { changes, environment_id: patch.environment }))
            }
        }
    }

    pub(super) fn plan_patch(&self, asked: &RequestedCall<'_>, patch: Patch, place: &Workplace<'_>, cwd: &PathUri) -> CallPlan {
        let id = place.attachment.environment_id.clone();
        let touched: Vec<PathUri> = patch.changes.iter().flat_map(FileChange::paths).map(|path| directory(cwd, Some(path))).collect();
        let paths: Vec<String> = touched.iter().map(PathUri::to_syntax).collect();
        let sandbox = self.sandbox(place);
        let mut beyond = sandbox.as_ref().map(|sandbox| ExtraPermissions::writing(touched).beyond(sandbox)).unwrap_or_default();
        let changes: Vec<PlannedChange> = patch.changes.iter().map(|change| summary(change, cwd)).collect();
        // The rules are about commands; the policy is about everything.
        let full_access = self.mode_in(place.handle).is_full_access();
        if self.forbidden(place.handle, &beyond).is_some() {
            // The sandbox refuses it with its own reason.
            beyond = ExtraPermissions::default();
        }
        let request = ApprovalRequest { escalated: false, widened: !beyond.is_empty(), full_access };
        // A yes is to these very changes; one for the thread is to each of these files, in this environment.
        let granted = key(place, &json!(["fileChange", paths]));
        let bound = Bound::within(granted, &json!([cwd, changes]), sandbox.as_ref());
        let each: Vec<String> = paths.iter().map(|path| key(place, &json!(["fileChange", [path]]))).collect();
        let is_granted = asked.is_granted(&bound) || each.iter().all(|key| asked.grants.holds(key));
        match self.course(place.handle, &RulesVerdict::Silent, request) {
            // The user may not be asked. The sandbox refuses with its own reason what it does not allow.
            Course::Refuse { .. } => beyond = ExtraPermissions::default(),
            Course::Ask { why, .. } if !is_granted => {
                let detail = ApprovalDetail {
                    changes,
                    environment_id: Some(id.to_string()),
                    why: Some(if beyond.is_empty() { why } else { format!("{why}: {beyond}") }),
                    keys: each,
                    sandbox: Some(self.around(place, !full_access)),
                    ..ApprovalDetail::default()
                };
                return asked.bound_question(ApprovalKind::FileChange, Some(id), &bound, detail);
            }
            Course::Ask { .. } | Course::Run { .. } => {}
        }
        let files = Gate { environment: place.handle.clone(), sandbox };
        let root = place.attachment.cwd.clone();
        let run = PatchRun { files, cwd: cwd.clone(), root, patch, agreed: beyond, result: asked.result() };
        let detail = CallDetail::FileChange(FileChangeDetail { changes, environment_id: Some(id.to_string()) });
        asked.run(Some(id), false, Some(detail), Box::new(run))
    }
}

impl Work for PatchRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.apply(call, &context.cancel))
    }

    /// It reads files and then writes them.
    fn runs_alone(&self, _is_repeatable: bool) -> bool {
        true
    }
}

impl PatchRun {
    async fn apply(mut self, call: &CallId, cancel: &CancellationToken) -> CallEnd {
        let edits = tokio::select! {
            edits = self.work_out_all() => edits,
            () = cancel.cancelled() => return CallEnd::aborted(),
        };
        // From here on it is all or nothing, even if the caller is gone.
        match match edits {
            Ok(edits) => self.write(edits).await,
            Err(why) => Err(Unwritten::Refused(why)),
        } {
            Ok(edits) => {
                let lines: Vec<String> = edits.iter().map(Edit::describe).collect();
                let text = format!("{APPLIED}{}", lines.join("\n"));
                let changes = edits.iter().map(Edit::written).collect();
                let report = CallReport { changes, root: Some(self.root.to_syntax()), ..CallReport::default() };
                CallEnd::completed(self.result, call, text, Some(report))
            }
            Err(Unwritten::Refused(why)) => CallEnd::failed(self.result, call, format!("Nothing was changed: {why}")),
            Err(Unwritten::Mixed(why)) => CallEnd::failed(self.result, call, format!("The patch was not applied as a whole: {why}")),
            Err(Unwritten::Unknown) => CallEnd::lost(self.result, call),
        }
    }

    async fn work_out_all(&mut self) -> Result<Vec<Edit>, String> {
        if !self.agreed.is_empty() {
            self.files.sandbox = self.widened().await?;
        }
        // All files are asked for at once, and looked at in the order of the patch.
        let read = join_all(self.patch.changes.iter().map(|change| self.read(change))).await;
        let mut edits = Vec::new();
        for (change, read) in self.patch.changes.iter().zip(read) {
            self.work_out(change, read?, &mut edits)?;
        }
        Ok(edits)
    }

    /// The sandbox with the directories of the files that the user agreed to. A file that is not there yet cannot be named in a
    /// sandbox, and one that is replaced is made anew beside itself: both need the directory.
    async fn widened(&self) -> Result<Option<SandboxContext>, String> {
        let root = self.files.real(&self.root).await?.unwrap_or_else(|| self.root.clone());
        let mut directories = Vec::new();
        for path in self.agreed.files.keys() {
            let shown = path.to_syntax();
            // The environment's own directory may be behind a link: its user chose that. A link anywhere else leads to
            // a file that the user was not asked about.
            let below = path.to_string().strip_prefix(&self.root.to_string()).map(str::to_owned).filter(|_| path.is_within(&self.root));
            let path = below.and_then(|below| PathUri::parse(&format!("{root}{below}")).ok()).unwrap_or_else(|| path.clone());
            if let Some(real) = self.files.real(&path).await?.filter(|real| *real != path) {
                return Err(format!("{shown} is behind a link, its real path is {}; patch that one", real.to_syntax()));
            }
            let mut directory = parent(&path);
            while let Some(missing) = &directory
                && !self.files.is_directory(missing).await?
            {
                directory = parent(missing);
            }
            directories.push(directory.unwrap_or_else(PathUri::root));
        }
        let mut sandbox = self.files.sandbox.clone();
        if let Some(sandbox) = &mut sandbox {
            ExtraPermissions::writing(directories).widen(sandbox, Grant::Required);
        }
        Ok(sandbox)
    }

    /// All files are sent at once; the executor writes them in their order.
    async fn write(&self, edits: Vec<Edit>) -> Result<Vec<Edit>, Unwritten> {
        let written = join_all(edits.iter().map(|edit| self.files.put(&edit.path, edit.after.as_deref()))).await;
        match written.iter().zip(&edits).find_map(|(written, edit)| written.as_ref().err().map(|error| (edit, error))) {
            Some((first, error)) => Err(self.put_back(&edits, &written, first, error).await),
            None => Ok(edits),
        }
    }

    /// Makes everything as it was: some files could not be written, and those before and after them were.
    async fn put_back(
        &self,
        edits: &[Edit],
        written: &[Result<(), EnvironmentError>],
        first: &Edit,
        error: &EnvironmentError,
    ) -> Unwritten {
        let mut why = format!("{} cannot be written: {error}", first.path.to_syntax());
        let (mut is_known, mut is_whole) = (true, true);
        for (edit, written) in edits.iter().zip(written).rev() {
            let put = self.files.put(&edit.path, edit.before.as_deref()).await;
            match (written, put) {
                (_, Ok(())) => {}
                // One that was refused is as it was, most likely; of another one that is unknown.
                (Err(refused), Err(_)) => is_known &= matches!(refused, EnvironmentError::Fault(_)),
                (Ok(()), Err(error)) => {
                    is_known &= matches!(error, EnvironmentError::Fault(_));
                    is_whole = false;
                    why = format!("{why}; and {} could not be put back: {error}", edit.path.to_syntax());
                }
            }
        }
        match (is_known, is_whole) {
            (false, _) => Unwritten::Unknown,
            (true, true) => Unwritten::Refused(why),
            (true, false) => Unwritten::Mixed(why),
        }
    }

    /// What a change finds: the file, and the one that it is moved to.
    async fn read(&self, change: &FileChange) -> Result<FoundFiles, String> {
        let path = directory(&self.cwd, Some(change.path()));
        let target = if let FileChange::Update { move_to, .. } = change { move_to.as_deref() } else { None };
        let target = target.map(|target| directory(&self.cwd, Some(target)));
        let there = async {
            match &target {
                Some(target) => self.files.get(target).await.map_err(|error| format!("{}: {error}", target.to_syntax())),
                None => Ok(None),
            }
        };
        let (before, there) = tokio::join!(self.files.get(&path), there);
        Ok(FoundFiles { before: before.map_err(|error| format!("{} cannot be read: {error}", path.to_syntax()))?, there: there? })
    }

    fn work_out(&self, change: &FileChange, found: FoundFiles, edits: &mut Vec<Edit>) -> Result<(), String> {
        let path = directory(&self.cwd, Some(change.path()));
        let shown = path.to_syntax();
        let FoundFiles { before, there } = found;
        match change {
            FileChange::Add { content, .. } => edits.push(Edit { path, before, after: Some(content.clone().into_bytes()), moved: None }),
            FileChange::Delete { .. } => {
                let before = before.ok_or_else(|| format!("{shown} is to be deleted, but it is not there"))?;
                edits.push(Edit { path, before: Some(before), after: None, moved: None });
            }
            FileChange::Update { move_to, chunks, .. } => {
                let before = before.ok_or_else(|| format!("{shown} is to be changed, but it is not there"))?;
                let text = String::from_utf8(before.clone()).map_err(|_| format!("{shown} is not a text file"))?;
                let applied = patch::apply(&text, chunks).map_err(|error| format!("{shown}: {error}"))?;
                let after = Some(applied.content.into_bytes());
                match move_to {
                    None => edits.push(Edit { path, before: Some(before), after, moved: None }),
                    Some(target) => {
                        let target = directory(&self.cwd, Some(target));
                        let moved = Some((path.clone(), before.clone()));
                        edits.push(Edit { path: target, before: there, after, moved });
                        edits.push(Edit { path, before: Some(before), after: None, moved: None });
                    }
                }
            }
        }
        Ok(())
    }
}

/// What is there before a change.
struct FoundFiles {
    before: Option<Vec<u8>>,
    there: Option<Vec<u8>>,
}

impl Gate {
    /// Where a path leads; nothing if there is nothing. It is looked up without the sandbox, which hides what it does not show.
    async fn real(&self, path: &PathUri) -> Result<Option<PathUri>, String> {
        let params = CanonicalizeParams { path: path.clone(), sandbox: None };
        match self.environment.call::<Canonicalize>(&params, Repeat::Harmless).await {
            Ok(found) => Ok(Some(found.path)),
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => Ok(None),
            Err(error) => Err(format!("{} cannot be looked up: {error}", path.to_syntax())),
        }
    }

    async fn is_directory(&self, path: &PathUri) -> Result<bool, String> {
        let params = GetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
        match self.environment.call::<GetMetadata>(&params, Repeat::Harmless).await {
            Ok(found) => Ok(found.is_directory),
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => Ok(false),
            Err(error) => Err(format!("{} cannot be looked up: {error}", path.to_syntax())),
        }
    }

    /// A file's content; nothing if there is no such file.
    async fn get(&self, path: &PathUri) -> Result<Option<Vec<u8>>, EnvironmentError> {
        let params = ReadFileParams { path: path.clone(), follow_symlinks: None, sandbox: self.sandbox.clone() };
        match self.environment.call::<ReadFile>(&params, Repeat::Harmless).await {
            Ok(read) => Ok(Some(read.data_base64.0.to_vec())),
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file as a whole, or removes it. Doing it twice comes to the same.
    async fn put(&self, path: &PathUri, content: Option<&[u8]>) -> Result<(), EnvironmentError> {
        let Some(content) = content else {
            let params = RemoveParams {
                path: path.clone(),
                recursive: Some(false),
                force: Some(true),
                follow_symlinks: None,
                sandbox: self.sandbox.clone(),
            };
            self.environment.call::<Remove>(&params, Repeat::Harmless).await?;
            return Ok(());
        };
        let made = async {
            let Some(path) = parent(path) else { return Ok(()) };
            let params = CreateDirectoryParams { path, recursive: Some(true), follow_symlinks: None, sandbox: self.sandbox.clone() };
            self.environment.call::<CreateDirectory>(&params, Repeat::Harmless).await.map(drop)
        };
        let params = WriteFileParams {
            path: path.clone(),
            data_base64: bytes::Bytes::copy_from_slice(content).into(),
            follow_symlinks: None,
            sync: None,
            mode: None,
            sandbox: self.sandbox.clone(),
        };
        // Both are sent at once: file calls of one connection take effect in the order in which they were sent.
        let (made, written) = tokio::join!(biased; made, self.environment.call::<WriteFile>(&params, Repeat::Harmless));
        made?;
        match written {
            // The two may have been parted by a lost connection.
            Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => {
                self.environment.call::<WriteFile>(&params, Repeat::Harmless).await.map(drop)
            }
            written => written.map(drop),
        }
    }
}

fn parent(path: &PathUri) -> Option<PathUri> {
    path.split().map(|(parent, _)| parent)
}

impl Edit {
    fn kind(&self) -> ChangeKind {
        match (&self.before, &self.after) {
            (None, _) => ChangeKind::Add,
            (_, None) => ChangeKind::Delete,
            _ => ChangeKind::Update { move_path: None },
        }
    }

    fn describe(&self) -> String {
        let letter = match self.kind() {
            ChangeKind::Add => 'A',
            ChangeKind::Delete => 'D',
            ChangeKind::Update { .. } => 'M',
        };
        format!("{letter} {}", self.path.to_syntax())
    }

    /// With the difference where there is one to show: not for what is no text, nor for what is too large.
    fn written(&self) -> WrittenFile {
        let hunks = |before: Option<&[u8]>| {
            let text = |content: Option<&[u8]>| String::from_utf8(content.unwrap_or_default().to_vec()).ok();
            let (before, after) = (text(before)?, text(self.after.as_deref())?);
            Diff::between(&before, &after).map(|diff| diff.to_string())
        };
        WrittenFile {
            path: self.path.to_syntax(),
            kind: self.kind(),
            diff: hunks(self.before.as_deref()),
            moved_from: self.moved.as_ref().map(|(from, _)| from.to_syntax()),
            moved_diff: self.moved.as_ref().and_then(|(_, before)| hunks(Some(before))),
        }
    }
}

/// A change as clients are shown it, before it is made.
fn summary(change: &FileChange, cwd: &PathUri) -> PlannedChange {
    let path = directory(cwd, Some(change.path())).to_syntax();
    match change {
        FileChange::Add { content, .. } => PlannedChange { path, kind: ChangeKind::Add, diff: content.clone() },
        FileChange::Delete { .. } => PlannedChange { path, kind: ChangeKind::Delete, diff: String::new() },
        FileChange::Update { move_to, chunks, .. } => {
            let to = move_to.as_ref().map(|target| directory(cwd, Some(target)).to_syntax());
            PlannedChange { path, kind: ChangeKind::Update { move_path: to }, diff: patch::draft(chunks) }
        }
    }
}
