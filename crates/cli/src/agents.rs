//! What the verbs that run an agent share: from their options to a thread that is open and followed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use outpost_environment::{Definition, EnvironmentState, InfoError, Registry};
use outpost_runtime::feed::FeedLimits;
use outpost_runtime::follow::ThreadFollower;
use outpost_runtime::live::LiveThread;
use outpost_runtime::model::{Provider, WireApi, built_in};
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::{ForkThread, Runtime, StartThread};
use outpost_store::{ListQuery, PageRequest, Store, ThreadSummary};
use outpost_thread::{
    DamagedRange, Fact, ForkPoint, Marker, Raw, SelectionChanged, Settings, SettingsChanged, Thread, ThreadId, TokenTotals, TurnKind,
    TurnStatus,
};
use outpost_wire::PathUri;
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId, Selection};

use crate::ProcessContext;
use crate::agent_args::{AgentOptions, Which};
use crate::agents_remote::{RemoteAgents, check_settings, selection_of, server_for};
use crate::assembly::{Assembly, RuntimeOptions};
use crate::commands::thread::{find, last};
use crate::environments::{token, unknown};
use crate::home::Home;
use crate::notify::Notifier;
use crate::remote::RemoteServer;

/// All output is to be shown: so much of it may wait while a terminal or a pipe is slow.
const FULL_OUTPUT: FeedLimits = FeedLimits { events: 1 << 16, weight: 64 << 20 };
/// Stands for every configured environment.
const EVERY: &str = "*";

/// A runtime as the options want it, and what the configuration says about threads.
pub(crate) struct Agents {
    engine: AgentEngine,
    /// What was said explicitly and is to stay with the thread.
    settings: Settings,
    /// Nothing says which model is meant, and the provider is none of those that are built in.
    has_no_model: bool,
    here: Here,
    audience: Audience,
    notifier: Notifier,
}

/// Who drives the threads.
enum AgentEngine {
    /// This program.
    Here(Box<Assembly>),
    /// A server that runs already.
    Server(Box<RemoteAgents>),
}

/// An environment and how it stands, in a word.
pub(crate) struct Standing {
    pub id: EnvironmentId,
    pub word: String,
    /// Whether commands can run there, or could as soon as one is wanted.
    pub is_usual: bool,
    /// It cannot be reached now.
    pub is_away: bool,
}

/// A model as threads name it.
#[derive(Default)]
pub(crate) struct ChosenModel {
    pub name: String,
    pub provider: String,
    /// What the context may hold; 0 if that is not known here.
    pub context_window: u64,
}

/// Whether a user can be asked while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    Unattended,
    User,
}

/// A thread that is open.
pub(crate) struct Open {
    pub thread: LiveThread,
    pub follow: ThreadFollower,
    /// How it stood before anything happened here.
    pub before: Thread,
    /// What of it cannot be read, in words.
    pub missing: Vec<String>,
}

/// What a new thread is told about itself.
#[derive(Default)]
pub(crate) struct ThreadOrigin {
    pub source: &'static str,
    pub thread_source: Option<String>,
    pub originator: Option<String>,
    pub ephemeral: bool,
}

/// What the options say about this machine and the others.
#[derive(Clone)]
pub(crate) struct Here {
    pub cwd: PathUri,
    /// It was named, and did not just happen to be the present one.
    is_named: bool,
    more: Vec<PathUri>,
    pub environments: Vec<String>,
    pub roots: Vec<CapabilityRoot>,
}

impl Agents {
    /// For a thread of this home, or of the server that the user named or that already works on it.
    pub(crate) async fn new(options: &AgentOptions, which: &Which, audience: Audience, own: &ProcessContext) -> anyhow::Result<Self> {
        match server_for(which, own).await? {
            Some(server) => Self::of_server(server, options, audience, own),
            None => Self::here(options, audience, own).await,
        }
    }

    pub(crate) fn of_server(
        server: RemoteServer,
        options: &AgentOptions,
        audience: Audience,
        own: &ProcessContext,
    ) -> anyhow::Result<Self> {
        check_settings(&server, &own.settings)?;
        let limits = if options.full_output { FULL_OUTPUT } else { FeedLimits::default() };
        let here = Here::new(options)?;
        let remote = RemoteAgents::new(server, options, here.clone(), limits)?;
        Ok(Self {
            engine: AgentEngine::Server(Box::new(remote)),
            settings: Settings::default(),
            has_no_model: false,
            here,
            audience,
            // The server drives the threads, and notifies.
            notifier: Notifier::silent(own),
        })
    }

    async fn here(options: &AgentOptions, audience: Audience, own: &ProcessContext) -> anyhow::Result<Self> {
        let home = Home::from_environment().context("there is no home: set OUTPOST_HOME")?;
        let mut config = crate::configuration::load(Some(&home.config()), &own.settings)?;
        if let Some(mode) = options.sandbox() {
            config.sandbox_mode = Some(mode.to_owned());
        }
        if options.dangerously_bypass_approvals_and_sandbox {
            config.approval_policy = Some(ApprovalPolicy::Never);
        }
        if audience == Audience::Unattended {
            config.approval_policy = Some(config.approval_policy.unwrap_or(ApprovalPolicy::Never));
        }
        let here = Here::new(options)?;
        let notifier = Notifier::new(&config.notify, own)?;
        let provider = options.provider().or_else(|| config.model_provider.clone());
        let has_no_model =
            options.model.is_none() && config.model.is_none() && provider.is_some_and(|provider| !built_in().contains_key(&provider));
        let wish = RuntimeOptions {
            provider: options.provider(),
            model: options.model.clone(),
            questions: audience == Audience::User,
            keeps_sessions: true,
            // A conversation lasts; a single turn has what there was when it began.
            follows_environments: audience == Audience::User,
            keeps_local: !options.unkept,
            feed: if options.full_output { FULL_OUTPUT } else { FeedLimits::default() },
            ..RuntimeOptions::of(config)
        };
        let assembly = Assembly::new(&home, wish, own).await?;
        for attached in &options.attached {
            attach(assembly.runtime.registry(), attached, own).with_context(|| format!("--attach {attached}"))?;
        }
        let is_set = |key: &str| own.settings.iter().any(|setting| setting.split('=').next().map(str::trim) == Some(key));
        let runtime = assembly.runtime.config();
        let names_model = options.provider().is_some() || options.model.is_some() || is_set("model") || is_set("model_provider");
        let names_sandbox = options.sandbox().is_some() || is_set("sandbox_mode");
        let settings = Settings {
            model: names_model.then(|| runtime.model.clone()),
            model_provider: names_model.then(|| runtime.model_provider.clone()),
            reasoning_effort: runtime.reasoning_effort.clone().filter(|_| is_set("model_reasoning_effort")),
            sandbox: names_sandbox.then(|| Raw::of(&runtime.sandbox)).transpose()?,
            ..Settings::default()
        };
        Ok(Self { engine: AgentEngine::Here(Box::new(assembly)), settings, has_no_model, here, audience, notifier })
    }

    /// What the user wants to be started when a turn of a thread ends, fails or asks.
    pub(crate) fn notifier(&self, thread: ThreadId) -> Notifier {
        self.notifier.clone().of_thread(thread)
    }

    /// Where the threads are read from: of a server, those that were opened.
    pub(crate) fn store(&self) -> &Store {
        match &self.engine {
            AgentEngine::Here(assembly) => assembly.runtime.store(),
            AgentEngine::Server(remote) => &remote.store,
        }
    }

    /// The server that the threads are those of, if it is another process.
    pub(crate) fn remote(&self) -> Option<&RemoteAgents> {
        match &self.engine {
            AgentEngine::Here(_) => None,
            AgentEngine::Server(remote) => Some(remote),
        }
    }

    /// What a hint has to say besides the verb, so that it finds the same thread.
    pub(crate) fn server_flag(&self) -> &str {
        self.remote().map(|remote| remote.server.flag()).unwrap_or_default()
    }

    /// The runtime of this process; refuses what only the server could tell.
    pub(crate) fn own_runtime(&self) -> anyhow::Result<&Runtime> {
        match &self.engine {
            AgentEngine::Here(assembly) => Ok(&assembly.runtime),
            AgentEngine::Server(remote) => bail!("{} does not tell this; ask on its machine", remote.server.address()),
        }
    }

    pub(crate) fn shortfall(&self) -> Option<String> {
        match &self.engine {
            AgentEngine::Here(assembly) => assembly.shortfall(),
            AgentEngine::Server(_) => None,
        }
    }

    pub(crate) async fn shut_down(self) {
        if let AgentEngine::Here(assembly) = self.engine {
            assembly.shut_down().await;
        }
    }

    pub(crate) async fn environments(&self) -> Vec<Standing> {
        match &self.engine {
            AgentEngine::Here(assembly) => {
                let rows = assembly.runtime.registry().list().into_iter();
                rows.map(|row| Standing {
                    is_usual: matches!(row.standing, EnvironmentState::Ready | EnvironmentState::Idle),
                    is_away: matches!(
                        row.standing,
                        EnvironmentState::Failed { .. }
                            | EnvironmentState::NeedsLogin { .. }
                            | EnvironmentState::Recovering { .. }
                            | EnvironmentState::Connecting
                    ),
                    word: row.standing.word().to_owned(),
                    id: row.id,
                })
                .collect()
            }
            AgentEngine::Server(remote) => {
                let rows = remote.environments().await.into_iter();
                rows.filter_map(|row| {
                    Some(Standing {
                        id: EnvironmentId::parse(&row.environment_id).ok()?,
                        is_usual: matches!(row.state.as_str(), "ready" | "idle"),
                        is_away: matches!(row.state.as_str(), "failed" | "needs login" | "recovering" | "connecting"),
                        word: row.state,
                    })
                })
                .collect()
            }
        }
    }

    /// The model that a thread with these settings uses.
    pub(crate) fn model(&self, thread: ThreadId, settings: &Settings) -> ChosenModel {
        match &self.engine {
            AgentEngine::Here(assembly) => {
                let (models, name) = (assembly.runtime.models(), assembly.runtime.models().model_name(settings));
                ChosenModel {
                    provider: models.provider_id(settings),
                    context_window: assembly.runtime.config().context_window(&name),
                    name,
                }
            }
            AgentEngine::Server(remote) => {
                let ChosenModel { name, provider, context_window } = remote.model_of(thread);
                ChosenModel {
                    name: settings.model.clone().unwrap_or(name),
                    provider: settings.model_provider.clone().unwrap_or(provider),
                    context_window,
                }
            }
        }
    }

    /// What so many tokens cost at the list price of a model; nothing where the server knows it better.
    pub(crate) fn cost(&self, model: &str, used: &TokenTotals) -> Option<f64> {
        self.own_runtime().ok()?.config().facts(model).price.map(|price| price.cost(used))
    }

    /// The threads that changed last.
    pub(crate) async fn recent(&self, most: usize) -> anyhow::Result<Vec<ThreadSummary>> {
        match &self.engine {
            AgentEngine::Here(_) => Ok(self.store().list(ListQuery { limit: most, ..ListQuery::default() }).await?.threads),
            AgentEngine::Server(remote) => remote.recent(most).await,
        }
    }

    /// The thread that a user means.
    pub(crate) async fn find(&self, name: &str) -> anyhow::Result<ThreadId> {
        match &self.engine {
            AgentEngine::Here(_) => find(self.store(), name).await,
            AgentEngine::Server(remote) => remote.server.find(name).await,
        }
    }

    /// A copy of a thread to go on in.
    pub(crate) async fn fork(&self, thread: ThreadId) -> anyhow::Result<ThreadId> {
        match &self.engine {
            AgentEngine::Here(assembly) => {
                let fork = ForkThread::new(thread, ForkPoint::Interrupted(Marker::Off));
                Ok(assembly.runtime.fork(fork).await?.id())
            }
            AgentEngine::Server(remote) => remote.fork(thread).await,
        }
    }

    /// Environments by name, as `-e` takes them.
    pub(crate) async fn select(&self, names: &[String]) -> anyhow::Result<Selection> {
        if let AgentEngine::Server(remote) = &self.engine {
            return selection_of(remote.select(names).await?);
        }
        let here = Here { environments: names.to_vec(), is_named: false, more: vec![], roots: vec![], cwd: self.here.cwd.clone() };
        here.named(self.own_runtime()?).await
    }

    /// The directory that this program was started for.
    pub(crate) fn directory(&self) -> &PathUri {
        &self.here.cwd
    }

    /// Why the provider is not the one that a newcomer expects, if this thread is asked to use it.
    pub(crate) fn note(&self, thread: &Thread) -> Option<&str> {
        let AgentEngine::Here(assembly) = &self.engine else { return None };
        assembly.note.as_deref().filter(|_| thread.settings.model_provider.is_none())
    }

    /// What is assumed of a model that the table does not know.
    pub(crate) fn unknown_model(&self, thread: &Thread) -> Option<String> {
        let runtime = self.own_runtime().ok()?;
        let (models, config) = (runtime.models(), runtime.config());
        let settings = thread.effective_settings();
        let is_offline = |provider: &Provider| provider.wire_api == WireApi::Offline;
        if models.providers().get(&models.provider_id(&settings)).is_none_or(is_offline) {
            return None;
        }
        let name = models.model_name(&settings);
        let facts = config.facts(&name);
        (!facts.is_known).then(|| {
            format!(
                "model `{name}` is not in the table of models: assuming a context window of {} tokens, images and parallel calls; \
                 [models.\"{name}\"] in config.toml says otherwise",
                facts.context_window
            )
        })
    }

    /// Whether the thread runs what the user writes, without any intelligence in between.
    pub(crate) async fn is_scripted(&self, thread: &LiveThread) -> anyhow::Result<bool> {
        let settings = thread.snapshot().await?.settings;
        let models = match &self.engine {
            AgentEngine::Here(assembly) => assembly.runtime.models(),
            AgentEngine::Server(_) => return Ok(self.model(thread.id(), &settings).provider == "offline"),
        };
        let provider = settings.model_provider.as_deref().unwrap_or(models.default_provider());
        Ok(models.providers().get(provider).is_some_and(|provider| provider.wire_api == WireApi::Offline))
    }

    /// Whether the last turn of a thread ended before its work was done, and nothing will go on by itself.
    pub(crate) async fn was_cut_short(&self, before: &Thread) -> anyhow::Result<bool> {
        if before.turn.is_some() || !before.queued.is_empty() || before.turns == 0 {
            return Ok(false);
        }
        let page = self.store().page(before.id, PageRequest { turns: 1, ..PageRequest::default() }).await?;
        let is_regular = page.entries.iter().all(|entry| !matches!(&entry.fact, Fact::TurnStarted(turn) if turn.kind != TurnKind::Regular));
        let last =
            page.entries.iter().rev().find_map(|entry| if let Fact::TurnFinished(end) = &entry.fact { Some(end.status) } else { None });
        Ok(is_regular && last.is_some_and(|status| status != TurnStatus::Completed))
    }

    pub(crate) async fn open(&self, which: &Which, birth: ThreadOrigin) -> anyhow::Result<Open> {
        if let AgentEngine::Server(remote) = &self.engine {
            let id = match which {
                Which::New => return remote.start(birth).await,
                Which::Id(name) => remote.server.find(name).await?,
                Which::Last => remote.server.last().await?,
                Which::Pick => bail!("no thread was chosen"),
            };
            return remote.resume(id).await;
        }
        let (store, runtime) = (self.store(), self.own_runtime()?);
        let id = match which {
            Which::New => return self.start(birth).await,
            Which::Id(name) => find(store, name).await?,
            Which::Last => last(self.store()).await?,
            Which::Pick => bail!("no thread was chosen"),
        };
        let opened = outpost_store::open(store, id).await?;
        // Opening reads only the end; who goes on with a thread is told of all that it lacks.
        let verdict = store.verify(id, None).await?;
        let found = verdict.damage.iter().map(|(_, damage)| damage).chain(&opened.damage).filter(|damage| damage.loses_entries());
        let mut missing: Vec<DamagedRange> = opened.thread.damage.iter().cloned().collect();
        for range in found.map(outpost_store::Damage::range) {
            missing.extend(outpost_store::unnoted(&missing.clone(), std::iter::once(range)));
        }
        let words = |range: &DamagedRange| format!("a part of this thread cannot be read ({range}); it goes on without that");
        let missing = missing.iter().map(words).collect();
        let before = opened.thread;
        let thread = runtime.resume(id).await?;
        let follow = thread.follow(before.last);
        let mut changes: Vec<Fact> = Vec::new();
        if self.settings != Settings::default() {
            changes.push(SettingsChanged { settings: self.settings.clone() }.into());
        }
        let selection = self.here.other_selection(runtime, before.selection.as_ref()).await?;
        if let Some(cwd) = selection.as_ref().and_then(directory).filter(|cwd| before.settings.cwd.as_ref() != Some(cwd)) {
            changes.push(SettingsChanged { settings: Settings { cwd: Some(cwd), ..Settings::default() } }.into());
        }
        let capability_roots = Some(self.here.roots.clone()).filter(|roots| !roots.is_empty());
        if selection.is_some() || capability_roots.is_some() {
            changes.push(SelectionChanged { selection, capability_roots }.into());
        }
        if !changes.is_empty() {
            thread.change(changes).await?;
        }
        if self.audience == Audience::Unattended && thread.snapshot().await?.selection.is_none_or(|selection| selection.is_empty()) {
            bail!("thread {id} has no environment to work in; name one with `-e ENV` or `--cd DIR`");
        }
        Ok(Open { thread, follow, before, missing })
    }

    async fn start(&self, birth: ThreadOrigin) -> anyhow::Result<Open> {
        let runtime = self.own_runtime()?;
        // Better told before there is a thread that cannot do anything.
        let model = runtime.models().get(self.settings.model_provider.as_deref())?;
        // Another provider's name for a model would be sent as it is, and refused with words that explain nothing.
        if self.has_no_model && model.provider().wire_api != WireApi::Offline {
            let name = self.settings.model_provider.as_deref().unwrap_or(runtime.models().default_provider());
            bail!("provider `{name}` has no model of its own: say --model NAME, or set `model` in config.toml");
        }
        let mut start = StartThread::new();
        start.created.source = Some(Raw::from(serde_json::Value::from(birth.source)));
        start.created.thread_source = birth.thread_source;
        start.created.originator = birth.originator;
        start.created.program_version = Some(env!("CARGO_PKG_VERSION").into());
        start.created.settings = self.settings.clone();
        let selection = self.here.selection(runtime).await?;
        start.created.settings.cwd = directory(&selection);
        start.created.selection = Some(selection);
        start.created.capability_roots.clone_from(&self.here.roots);
        start.ephemeral = birth.ephemeral;
        let thread = runtime.start(start).await?;
        let before = thread.snapshot().await?;
        let follow = thread.follow(before.last);
        Ok(Open { thread, follow, before, missing: vec![] })
    }
}

/// The directory that lists show: the one on this machine, if it works here at all.
fn directory(selection: &Selection) -> Option<String> {
    let here = selection.get(&EnvironmentId::local()).or_else(|| selection.primary());
    here.map(|attachment| attachment.cwd.to_syntax())
}

/// `NAME=URL`: an executor for this run only, in the place of one of that name that is written down.
fn attach(registry: &Registry, attached: &str, own: &ProcessContext) -> anyhow::Result<()> {
    let (name, url) = attached.split_once('=').context("NAME=URL was expected")?;
    registry.add(EnvironmentId::parse_own(name)?, Definition::url(url, token(url, &own.variables)?)?)?;
    Ok(())
}

impl Here {
    fn new(options: &AgentOptions) -> anyhow::Result<Self> {
        let present = std::env::current_dir().context("the current directory is gone")?;
        let directory = |flag: &str, directory: &PathBuf| {
            let directory = present.join(directory);
            if !Path::new(&directory).is_dir() {
                bail!("{flag} {}: there is no such directory", directory.display());
            }
            Ok(PathUri::from_native(&directory)?)
        };
        let cwd = match &options.cd {
            Some(named) => directory("--cd", named)?,
            None => PathUri::from_native(&present)?,
        };
        let more = options.add_dirs.iter().map(|named| directory("--add-dir", named)).collect::<anyhow::Result<_>>()?;
        let roots = options.roots.iter().map(|text| root(text)).collect::<anyhow::Result<_>>()?;
        Ok(Self { cwd, is_named: options.cd.is_some(), more, environments: options.environments.clone(), roots })
    }

    /// Of a new thread.
    async fn selection(&self, runtime: &Runtime) -> anyhow::Result<Selection> {
        let selection = if self.environments.is_empty() {
            runtime.registry().start_selection(&self.cwd, std::slice::from_ref(&self.cwd))
        } else {
            self.named(runtime).await?
        };
        self.refine(selection)
    }

    /// Of a thread that has one already; nothing if it stays as it is.
    async fn other_selection(&self, runtime: &Runtime, own: Option<&Selection>) -> anyhow::Result<Option<Selection>> {
        if !self.environments.is_empty() {
            return self.refine(self.named(runtime).await?).map(Some);
        }
        let changed = match own {
            _ if !self.is_named && self.more.is_empty() => return Ok(None),
            Some(own) => self.refine(own.clone())?,
            None => self.selection(runtime).await?,
        };
        Ok(Some(changed).filter(|changed| Some(changed) != own))
    }

    /// `-e ENV[=CWD]`.
    async fn named(&self, runtime: &Runtime) -> anyhow::Result<Selection> {
        if self.environments.iter().any(|wish| wish == EVERY) {
            if self.environments.len() > 1 {
                bail!("-e '*' stands for every configured environment and cannot be combined with another -e");
            }
            return Ok(runtime.registry().default_selection(&self.cwd, std::slice::from_ref(&self.cwd)));
        }
        let mut infos = self.wake(runtime).await;
        let mut attachments = Vec::new();
        for wish in &self.environments {
            let (name, directory) = wish.split_once('=').map_or((wish.as_str(), None), |(name, directory)| (name, Some(directory)));
            let id = EnvironmentId::parse(name)?;
            if runtime.registry().status(&id).is_none() {
                let known: Vec<EnvironmentId> = runtime.registry().list().iter().map(|status| status.id.clone()).collect();
                return Err(unknown(&id, &known));
            }
            let directory = match directory {
                Some(directory) if id.is_local() && Path::new(directory).is_absolute() && !Path::new(directory).is_dir() => {
                    bail!("-e {wish}: there is no such directory")
                }
                Some(directory) => PathUri::from_syntax(directory).with_context(|| format!("`{wish}`: the directory must be absolute"))?,
                None if id.is_local() => self.cwd.clone(),
                None => {
                    // A machine that does not answer is not waited for twice.
                    let info = match infos.remove(&id) {
                        Some(info) => info?,
                        None => runtime.registry().info(&id).await?,
                    };
                    info.cwd.or(info.user_home_dir).with_context(|| format!("`{id}` tells no directory; write {id}=/DIRECTORY"))?
                }
            };
            attachments.push(Attachment::new(id, directory));
        }
        Selection::new(attachments).map_err(|duplicate| anyhow::anyhow!("environment `{}` is named twice", duplicate.0))
    }

    /// Connects the machines that were named, all at once, and waits until each of them is there or known not to be: a first
    /// connection by ssh takes longer than a step waits.
    async fn wake(&self, runtime: &Runtime) -> HashMap<EnvironmentId, Result<EnvironmentInfo, InfoError>> {
        let names = self.environments.iter().map(|wish| wish.split('=').next().unwrap_or(wish));
        let ids = names.filter_map(|name| EnvironmentId::parse(name).ok()).filter(|id| !id.is_local());
        let ids: Vec<EnvironmentId> = ids.filter(|id| runtime.registry().status(id).is_some()).collect();
        join_all(ids.into_iter().map(|id| async move {
            let info = runtime.registry().info(&id).await;
            (id, info)
        }))
        .await
        .into_iter()
        .collect()
    }

    /// Whether `--cd` or `--add-dir` was given.
    pub(crate) fn is_placed(&self) -> bool {
        self.is_named || !self.more.is_empty()
    }

    /// `--cd` and `--add-dir` are about this machine and change nothing elsewhere.
    pub(crate) fn refine(&self, selection: Selection) -> anyhow::Result<Selection> {
        if !self.is_placed() {
            return Ok(selection);
        }
        if selection.get(&EnvironmentId::local()).is_none() {
            bail!("--cd and --add-dir are about this machine, which the thread does not work on: use -e ENV=DIR");
        }
        let refined = Vec::from(selection).into_iter().map(|attachment: Attachment| {
            if !attachment.environment_id.is_local() {
                return attachment;
            }
            let moved = if self.is_named { attachment.moved_to(self.cwd.clone()) } else { attachment };
            let roots: Vec<PathUri> = moved.workspace_roots.iter().chain(&self.more).cloned().collect();
            moved.with_roots(roots)
        });
        Selection::new(refined.collect()).map_err(|duplicate| anyhow::anyhow!("environment `{}` is named twice", duplicate.0))
    }
}

/// `--root [ID=]ENV:PATH`; without an id, the folder's name is it.
fn root(text: &str) -> anyhow::Result<CapabilityRoot> {
    let usage = || format!("`{text}` is not a capability root: write [ID=]ENV:/PATH");
    let (id, place) = text.split_once('=').map_or((None, text), |(id, place)| (Some(id), place));
    let (environment, path) = place.split_once(':').with_context(usage)?;
    let path = PathUri::from_syntax(path).with_context(usage)?;
    let folder = || path.split().map(|(_, name)| String::from_utf8_lossy(&name.0).into_owned());
    let id = id.map(str::to_owned).or_else(folder).with_context(usage)?;
    Ok(CapabilityRoot::new(id, EnvironmentId::parse(environment)?, path))
}
