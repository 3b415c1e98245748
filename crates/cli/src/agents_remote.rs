//! What the verbs that run an agent share where the threads are those of a server.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use outpost_runtime::feed::FeedLimits;
use outpost_store::{ListOrder, MemoryStore, Store, ThreadSummary};
use outpost_thread::ThreadId;
use outpost_wire::PathUri;
use outpost_wire::app::environment::{CapabilityRootParams, EnvironmentEntry, EnvironmentParams};
use outpost_wire::app::settings::{AskForApproval, ThreadSettingsUpdate, ThreadSettingsUpdateParams};
use outpost_wire::app::thread::{
    SandboxName, ThreadFork, ThreadForkParams, ThreadListParams, ThreadOpened, ThreadResume, ThreadResumeParams, ThreadStart,
    ThreadStartParams,
};
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use serde_json::json;

use crate::ProcessContext;
use crate::agent_args::AgentOptions;
use crate::agents::{ChosenModel, Here, Open, ThreadOrigin};
use crate::remote::{OpenedMirror, RemoteServer, list_params};
use crate::store;

/// Threads of a server, and what the command line says about new ones.
pub(crate) struct RemoteAgents {
    pub server: RemoteServer,
    pub store: Store,
    mirrors: MemoryStore,
    limits: FeedLimits,
    /// What the command line says about this machine, and about folders anywhere.
    here: Here,
    model: Option<String>,
    provider: Option<String>,
    sandbox: Option<String>,
    bypasses_approvals: bool,
    /// Those that were opened, for as long as this program talks to the server.
    opened: Mutex<Vec<(ThreadOpened, OpenedMirror)>>,
}

impl RemoteAgents {
    pub(crate) fn new(server: RemoteServer, options: &AgentOptions, here: Here, limits: FeedLimits) -> anyhow::Result<Self> {
        let is_about_here = [
            (options.cd.is_some() && !server.is_of_home, "--cd", "name the directory with -e ENV=DIR"),
            (!options.add_dirs.is_empty() && !server.is_of_home, "--add-dir", "name the directory with -e ENV=DIR"),
            (!options.attached.is_empty(), "--attach", "add the environment on the server, or let its executor join it"),
        ];
        if let Some((_, flag, advice)) = is_about_here.iter().find(|(is_given, ..)| *is_given) {
            bail!("{flag} is about this machine, and the thread is one of {}; {advice}", server.address());
        }
        let mirrors = MemoryStore::new(Arc::new(store::now), None);
        Ok(Self {
            store: Store::Memory(mirrors.clone()),
            mirrors,
            limits,
            here,
            model: options.model.clone(),
            provider: options.provider(),
            sandbox: options.sandbox().map(str::to_owned),
            bypasses_approvals: options.dangerously_bypass_approvals_and_sandbox,
            opened: Mutex::default(),
            server,
        })
    }

    async fn places(&self) -> anyhow::Result<Option<Vec<EnvironmentParams>>> {
        match self.here.environments.as_slice() {
            [] => Ok(None),
            names => self.refined(self.select(names).await?).map(Some),
        }
    }

    /// Environments by name; on this machine the directory of the user is meant.
    pub(crate) async fn select(&self, names: &[String]) -> anyhow::Result<Vec<EnvironmentParams>> {
        if !self.server.is_of_home {
            return self.server.select(names).await;
        }
        let local = EnvironmentId::local().to_string();
        let here = |name: String| if name == local { format!("{name}={}", self.here.cwd.to_syntax()) } else { name };
        let names: Vec<String> = self.server.expanded(names).await?.into_iter().map(here).collect();
        self.server.select(&names).await
    }

    /// With what `--cd` and `--add-dir` say.
    fn refined(&self, places: Vec<EnvironmentParams>) -> anyhow::Result<Vec<EnvironmentParams>> {
        if !self.here.is_placed() {
            return Ok(places);
        }
        Ok(places_of(&self.here.refine(selection_of(places)?)?))
    }

    fn sandbox(&self) -> Option<SandboxName> {
        self.sandbox.as_ref().and_then(|name| serde_json::from_value(json!(name)).ok())
    }

    /// Only what was asked for: the server's own policy is not loosened from here. Where no user is, questions are refused.
    fn approval_policy(&self) -> Option<AskForApproval> {
        self.bypasses_approvals.then_some(AskForApproval::Never)
    }

    fn roots(&self) -> Option<Vec<CapabilityRootParams>> {
        let roots = self.here.roots.iter().filter_map(|root| serde_json::from_value(serde_json::to_value(root).ok()?).ok());
        Some(roots.collect::<Vec<_>>()).filter(|roots| !roots.is_empty())
    }

    pub(crate) async fn start(&self, birth: ThreadOrigin) -> anyhow::Result<Open> {
        let params = ThreadStartParams {
            model: self.model.clone(),
            model_provider: self.provider.clone(),
            approval_policy: self.approval_policy(),
            sandbox: self.sandbox(),
            ephemeral: Some(birth.ephemeral),
            thread_source: birth.thread_source.or_else(|| Some(birth.source.to_owned())),
            environments: self.default_place().await?,
            selected_capability_roots: self.roots(),
            ..ThreadStartParams::default()
        };
        self.follow(self.server.call::<ThreadStart>(&params).await?).await
    }

    /// Those that were named, else the default one: a plain call touches one machine.
    async fn default_place(&self) -> anyhow::Result<Option<Vec<EnvironmentParams>>> {
        if let Some(places) = self.places().await? {
            return Ok(Some(places));
        }
        let known = self.server.environments().await?;
        let default = known.iter().find(|entry| entry.is_default).map(|entry| entry.environment_id.clone());
        match default {
            Some(name) => self.refined(self.select(&[name]).await?).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn resume(&self, id: ThreadId) -> anyhow::Result<Open> {
        let mut params = ThreadResumeParams { thread_id: id.to_string(), exclude_turns: true, ..ThreadResumeParams::default() };
        params.model.clone_from(&self.model);
        params.model_provider.clone_from(&self.provider);
        params.sandbox = self.sandbox();
        params.environments = self.places().await?;
        params.selected_capability_roots = self.roots();
        let opened = self.server.call::<ThreadResume>(&params).await?;
        if params.environments.is_none() && self.here.is_placed() {
            let own = opened.thread.environments.iter().flatten().map(|place| EnvironmentParams {
                environment_id: place.environment_id.clone(),
                cwd: place.cwd.clone(),
                runtime_workspace_roots: Some(place.runtime_workspace_roots.clone()),
            });
            let environments = Some(self.refined(own.collect())?);
            let change = ThreadSettingsUpdateParams { thread_id: id.to_string(), environments, ..Default::default() };
            self.server.call::<ThreadSettingsUpdate>(&change).await?;
        }
        self.follow(opened).await
    }

    async fn follow(&self, opened: ThreadOpened) -> anyhow::Result<Open> {
        let mirror = self.server.mirror(&opened, self.mirrors.clone(), self.limits).await?;
        let (thread, before) = (mirror.thread.clone(), mirror.before.clone());
        let follow = thread.follow(before.last);
        let missing = opened.thread.damage.iter().map(|damage| format!("a part of this thread cannot be read ({})", damage.what)).collect();
        self.lock().push((opened, mirror));
        Ok(Open { thread, follow, before, missing })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(ThreadOpened, OpenedMirror)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model and the provider that a thread has by default, and the room that the model has by what the server told last.
    pub(crate) fn model_of(&self, thread: ThreadId) -> ChosenModel {
        let id = thread.to_string();
        let opened = self.lock();
        let found = opened.iter().rev().find(|(opened, _)| opened.thread.id == id);
        let chosen = |(opened, mirror): &(ThreadOpened, OpenedMirror)| ChosenModel {
            name: opened.model.clone(),
            provider: opened.model_provider.clone(),
            context_window: mirror.context_window(),
        };
        found.map(chosen).unwrap_or_default()
    }

    pub(crate) async fn environments(&self) -> Vec<EnvironmentEntry> {
        self.server.environments().await.unwrap_or_default()
    }

    pub(crate) async fn recent(&self, most: usize) -> anyhow::Result<Vec<ThreadSummary>> {
        let limit = Some(u32::try_from(most).unwrap_or(u32::MAX));
        let params = ThreadListParams { limit, ..list_params(ListOrder::Updated, false) };
        Ok(self.server.threads(&params).await?.rows.into_iter().map(|row| row.summary).collect())
    }

    pub(crate) async fn fork(&self, thread: ThreadId) -> anyhow::Result<ThreadId> {
        let params = ThreadForkParams { thread_id: thread.to_string(), exclude_turns: true, ..ThreadForkParams::default() };
        self.server.call::<ThreadFork>(&params).await?.thread.id.parse().context("the server names a thread by no id")
    }
}

/// Environments as clients name them, as a selection.
pub(crate) fn selection_of(places: Vec<EnvironmentParams>) -> anyhow::Result<Selection> {
    let path = |text: &String| PathUri::from_syntax(text).or_else(|error| PathUri::parse(text).map_err(|_| error));
    let attachment = |place: EnvironmentParams| -> anyhow::Result<Attachment> {
        let attachment = Attachment::new(EnvironmentId::parse(&place.environment_id)?, path(&place.cwd)?);
        match place.runtime_workspace_roots {
            Some(roots) => Ok(attachment.with_roots(roots.iter().map(path).collect::<Result<Vec<_>, _>>()?)),
            None => Ok(attachment),
        }
    };
    let attachments = places.into_iter().map(attachment).collect::<anyhow::Result<Vec<_>>>()?;
    Selection::new(attachments).map_err(|duplicate| anyhow::anyhow!("environment `{}` is named twice", duplicate.0))
}

/// The same the other way round.
pub(crate) fn places_of(selection: &Selection) -> Vec<EnvironmentParams> {
    let place = |place: &Attachment| EnvironmentParams {
        environment_id: place.environment_id.to_string(),
        cwd: place.cwd.to_syntax(),
        runtime_workspace_roots: Some(place.workspace_roots.iter().map(PathUri::to_syntax).collect()),
    };
    selection.attachments().iter().map(place).collect()
}

/// Refuses what would have no effect: a turn must not run with a looser sandbox than the user wrote.
pub(crate) fn check_settings(server: &RemoteServer, settings: &[String]) -> anyhow::Result<()> {
    let Some(key) = ineffective(settings) else { return Ok(()) };
    bail!(
        "-c {key} has no effect on a thread that {} drives: use --model, --provider or --sandbox after the verb, or write the key into the \
         server's config.toml and restart it",
        server.address()
    )
}

/// The first `-c KEY=VALUE` that would have no effect where a server drives the thread: all but what is about this program.
fn ineffective(settings: &[String]) -> Option<&str> {
    let keys = settings.iter().map(|setting| setting.split('=').next().unwrap_or_default().trim());
    keys.into_iter().find(|key| !matches!(key.split('.').next().map(str::trim), Some("client" | "notify")))
}

/// The server that this run is for: the one that the user named, or the server of this home that already works on the thread.
pub(crate) async fn server_for(which: &crate::agent_args::Which, own: &ProcessContext) -> anyhow::Result<Option<RemoteServer>> {
    use crate::agent_args::Which;
    if let Some(server) = RemoteServer::named(own).await? {
        return Ok(Some(server));
    }
    let Some(server) = (match which {
        Which::New => None,
        Which::Id(_) | Which::Last | Which::Pick => RemoteServer::of_home(own).await,
    }) else {
        return Ok(None);
    };
    let id = match which {
        Which::Id(name) => server.find(name).await.ok(),
        Which::Last => server.last().await.ok(),
        Which::New | Which::Pick => None,
    };
    let is_there = match id {
        Some(id) => server.is_loaded(id).await,
        None => *which == Which::Pick,
    };
    Ok(Some(server).filter(|_| is_there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_this_program_go_with_a_server() {
        let first = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
            ineffective(&settings).map(str::to_owned)
        };
        assert_eq!(first(&["client.server=ws://host:1", "notify=[\"true\"]", "notify.url=http://host"]), None);
        assert_eq!(first(&["client.server=", "sandbox_mode=read-only"]).as_deref(), Some("sandbox_mode"));
        assert_eq!(first(&["notifying=1"]).as_deref(), Some("notifying"));
    }

    #[test]
    fn environments_keep_their_roots_both_ways() {
        let places = vec![
            EnvironmentParams {
                environment_id: "local".into(),
                cwd: "/work".into(),
                runtime_workspace_roots: Some(vec!["/work".into(), "/more".into()]),
            },
            EnvironmentParams { environment_id: "gpu".into(), cwd: "/srv".into(), runtime_workspace_roots: Some(vec![]) },
        ];
        assert_eq!(places_of(&selection_of(places.clone()).unwrap()), places);
    }
}
