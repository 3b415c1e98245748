//! The runtime as this program runs it: home, store, environments, models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use outpost_config::{Config, wrong_line};
use outpost_environment::{EnvironmentOptions, Registry, SessionMemory};
use outpost_executor::Executor;
use outpost_runtime::config::RuntimeConfig;
use outpost_runtime::feed::FeedLimits;
use outpost_runtime::mcp::McpConfig;
use outpost_runtime::model::{ModelError, ModelProvider, NO_MODEL, Provider, Quirk, Quirks, built_in};
use outpost_runtime::models::{Models, VariableLookup as ModelVariables};
use outpost_runtime::rules::{CommandRule, CommandRules};
use outpost_runtime::skills::host::{HostRoot, HostSkillScope};
use outpost_runtime::{Runtime, RuntimeParts};
use outpost_sandbox::Limits;
use outpost_store::{Clock, MemoryStore, Store};
use outpost_thread::ThreadId;
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::environments::{self, KnownEnvironments};
use crate::home::Home;
use crate::lock::Lock;
use crate::reach::{Caller, kept_local, local};
use crate::variables::VisibleVariables;
use crate::{ProcessContext, servers, store};

/// Everything that runs in this process.
pub(crate) struct Assembly {
    pub runtime: Runtime,
    executor: Executor,
    sessions: Option<Arc<SessionMemory>>,
    /// Why the provider is not the one that a newcomer expects, if so.
    pub note: Option<String>,
    /// Follows environments.toml for as long as this is here.
    _environments: Option<AbortOnDropHandle<()>>,
}

/// What a verb decides about the runtime that it wants.
pub(crate) struct RuntimeOptions {
    pub config: Config,
    pub provider: Option<String>,
    pub model: Option<String>,
    /// Whether a user can be asked while it runs.
    pub questions: bool,
    /// Whether sessions on other machines are kept for the next start of this program.
    pub keeps_sessions: bool,
    /// Whether changes of environments.toml take effect while it runs.
    pub follows_environments: bool,
    /// Whether commands on this machine outlive the program.
    pub keeps_local: bool,
    /// How much is remembered for a reader of a thread that is slow.
    pub feed: FeedLimits,
    pub role: NodeRole,
}

/// What a program is to others that use the same database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// Its threads are those of its user, who comes back to them.
    Single,
    /// One of several servers: it takes up threads of others that died, and they take up its own.
    Server,
}

impl RuntimeOptions {
    /// What servers and checks want: the provider and the model of the configuration.
    pub(crate) fn of(config: Config) -> Self {
        Self {
            config,
            provider: None,
            model: None,
            questions: false,
            keeps_sessions: false,
            follows_environments: false,
            keeps_local: true,
            feed: FeedLimits::default(),
            role: NodeRole::Single,
        }
    }
}

impl Assembly {
    pub(crate) async fn new(home: &Home, wish: RuntimeOptions, own: &ProcessContext) -> anyhow::Result<Self> {
        let RuntimeOptions { config, provider, model, questions, keeps_sessions, follows_environments, keeps_local, feed, role } = wish;
        let clock: Clock = Arc::new(store::now);
        home.usable()?;
        let (provider, note) = choose(provider.or_else(|| config.model_provider.clone()), &own.variables);
        let limits = config.limits.over(Limits::default());
        let (connector, executor) = if keeps_local { kept_local(home, limits, own)? } else { local(limits, own)? };
        let caller = Caller { client: "outpost", patience: Duration::from_secs(600) };
        let lock = Lock::read()?;
        let approval = config.approval_policy.unwrap_or_default();
        lock.check_policy(approval)?;
        let mut options = EnvironmentOptions { narrowing: lock.narrowing(), ..caller.options(own) };
        let sessions = match keeps_sessions {
            true => Some(Arc::new(SessionMemory::new(home.seat(&own.variables)?.run.join("sessions")))),
            false => None,
        };
        options.sessions.clone_from(&sessions);
        let changes = if follows_environments { environments::watch() } else { None };
        let store = Box::pin(store::open_for(&config, home, Some(own.secrets.clone()), role)).await?;
        if let Some(records) = store.records() {
            // Definitions come through the same connections as threads.
            let _ = own.shared.set(records);
        }
        let known = KnownEnvironments::load(own).await?;
        let registry: Registry = known.registry(options, connector)?;
        // What begins with some definitions ends with them, and needs no connection that hears of others.
        let followed = if follows_environments { known.follow(changes, &registry) } else { None };
        let providers = providers(&config, &own.variables);
        let model = model.or_else(|| config.model.clone()).unwrap_or_else(|| default_model(&provider).to_owned());
        let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::now_v7().to_string());
        let known = own.variables.clone();
        let variables: ModelVariables = Arc::new(move |name| known.get(name)?.to_str().map(str::to_owned));
        let mut windows = config.model_context_windows.clone();
        if let Some(window) = config.model_context_window {
            windows.entry("default".into()).or_insert(window);
        }
        let parts = RuntimeParts {
            config: RuntimeConfig {
                model: model.clone(),
                model_provider: provider.clone(),
                reasoning_effort: config.model_reasoning_effort.clone(),
                service_tier: config.service_tier.clone(),
                approval,
                allowed_policies: lock.policies(),
                sandbox: config.sandbox()?,
                budgets: config.budgets,
                agents: config.agents,
                context_windows: windows,
                models: config.models.clone(),
                questions,
                host_skills: host_skills(home, &own.variables),
                user_instructions: Some(home.path().join("AGENTS.md")),
                skill_choices: config.skills.config.clone(),
                feed,
                mcp: McpConfig { source: servers::source(home, &config), secrets: own.secrets.clone(), ..McpConfig::default() },
                ..RuntimeConfig::default()
            },
            store,
            ephemeral: Store::Memory(MemoryStore::new(clock.clone(), None)),
            registry,
            models: Models::new(providers, (provider, model), variables, ids.clone()),
            rules: rules(home)?,
            clock,
            ids,
            thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
        };
        let runtime = Runtime::new(parts);
        let file = home.rules();
        runtime.keep_rules_with(Arc::new(move |rule| keep_rule(&file, rule).map_err(SharedError::new)));
        Ok(Self { runtime, executor, sessions, note, _environments: followed })
    }

    /// What the sandbox of this machine does not hold, unless agents run without one.
    pub(crate) fn shortfall(&self) -> Option<String> {
        (!self.runtime.config().sandbox.is_full_access()).then(|| self.executor.shortfall()).flatten()
    }

    /// Ends what runs here.
    pub(crate) async fn shut_down(self) {
        self.shut_down_with(|| ()).await;
    }

    /// The same, with something that is done as soon as no thread is driven any more.
    pub(crate) async fn shut_down_with(self, threads_are_left: impl FnOnce()) {
        let report = self.runtime.end_threads(THREADS).await;
        threads_are_left();
        self.runtime.end_servers(THREADS).await;
        self.runtime.store().close().await;
        // What a sandbox needs in a workspace goes with its session; it should not lie there until the grace is over.
        let registry = self.runtime.registry();
        // A command that has exited may not have been told yet: its result is kept for the program that asks for it.
        let idle = registry.list().into_iter().filter(|_| !report.is_work_left);
        let environments = idle.filter_map(|status| registry.get(&status.id));
        let sessions = self.sessions.as_ref();
        join_all(environments.map(|environment| async move {
            match environment.end_if_idle().await {
                Ok(true) => sessions.into_iter().for_each(|sessions| sessions.forget(environment.name())),
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "a session was not ended"),
            }
        }))
        .await;
        self.executor.shut_down().await;
        if let Some(sessions) = sessions {
            sessions.leave();
        }
    }
}

/// The provider that threads ask by default, and why it is not the one that a newcomer expects, if so.
pub(crate) fn default_provider(config: &Config, own: &VisibleVariables) -> (String, Option<String>, Result<ModelProvider, ModelError>) {
    let (provider, note) = choose(config.model_provider.clone(), own);
    let known = own.clone();
    let variables: ModelVariables = Arc::new(move |name| known.get(name)?.to_str().map(str::to_owned));
    let models = Models::new(providers(config, own), (provider.clone(), String::new()), variables, Arc::new(String::new));
    (provider, note, models.get(None))
}

/// The table of providers: those that are built in, as the variables and the configuration have them, and the user's own.
fn providers(config: &Config, own: &VisibleVariables) -> BTreeMap<String, Provider> {
    let mut providers = built_in();
    if let Some(openai) = providers.get_mut("openai") {
        let elsewhere = config.openai_base_url.clone().or_else(|| text(own, "OPENAI_BASE_URL"));
        openai.base_url = elsewhere.unwrap_or_else(|| openai.base_url.clone());
        // Clients of Codex pass the key by this name.
        if text(own, "OPENAI_API_KEY").is_none() && text(own, CODEX_KEY).is_some() {
            openai.env_key = Some(CODEX_KEY.into());
        }
    }
    if let Some(anthropic) = providers.get_mut("anthropic") {
        anthropic.base_url = text(own, "ANTHROPIC_BASE_URL").unwrap_or_else(|| anthropic.base_url.clone());
        // Gateways give out a token in the place of a key; it goes into another header.
        if text(own, ANTHROPIC_KEY).is_none() && text(own, ANTHROPIC_TOKEN).is_some() {
            anthropic.env_key = Some(ANTHROPIC_TOKEN.into());
            anthropic.quirks = Quirks::from([Quirk::BearerKey]);
        }
    }
    providers.extend(config.model_providers.clone());
    providers
}

/// So long each thread has to come to its end, and then its servers.
const THREADS: Duration = Duration::from_secs(10);
const CODEX_KEY: &str = "CODEX_API_KEY";
const ANTHROPIC_KEY: &str = "ANTHROPIC_API_KEY";
const ANTHROPIC_TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";

/// A variable that says something.
fn text(own: &VisibleVariables, name: &str) -> Option<String> {
    own.get(name).map(|value| value.to_string_lossy().trim().to_owned()).filter(|value| !value.is_empty())
}

/// Where this machine keeps skills: our home, the user's, and the administrator's.
fn host_skills(home: &Home, own: &VisibleVariables) -> Vec<HostRoot> {
    let user = own.get("HOME").map(|user| PathBuf::from(user).join(".agents/skills"));
    let folders = [Some((HostSkillScope::User, home.path().join("skills"))), user.map(|path| (HostSkillScope::User, path))];
    let folders = folders.into_iter().flatten().chain([(HostSkillScope::Admin, PathBuf::from("/etc/outpost/skills"))]);
    folders.filter_map(|(scope, path)| Some(HostRoot { scope, path: PathUri::from_native(&path).ok()? })).collect()
}

/// With neither a configuration nor a key there is the provider that needs none.
fn choose(wanted: Option<String>, own: &VisibleVariables) -> (String, Option<String>) {
    if let Some(provider) = wanted {
        return (provider, None);
    }
    if text(own, "OPENAI_API_KEY").or_else(|| text(own, CODEX_KEY)).is_some() {
        return ("openai".into(), None);
    }
    if text(own, ANTHROPIC_KEY).or_else(|| text(own, ANTHROPIC_TOKEN)).is_some() {
        return ("anthropic".into(), None);
    }
    let note = "no model is configured and OPENAI_API_KEY is not set: using the offline provider, which only runs the commands you write";
    ("offline".into(), Some(note.into()))
}

pub(crate) fn default_model(provider: &str) -> &'static str {
    match provider {
        "openai" => "gpt-5",
        "anthropic" => "claude-sonnet-4-5",
        "ollama" => "qwen3",
        _ => NO_MODEL,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    #[serde(default)]
    rules: Vec<CommandRule>,
}

/// Adds a rule to the user's file.
fn keep_rule(file: &Path, rule: &CommandRule) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(format!("\n{}", rule.to_toml()).as_bytes())
}

/// The user's command rules. A file that cannot be read forbids nothing, so it is an error.
pub(crate) fn rules(home: &Home) -> anyhow::Result<CommandRules> {
    let file = home.rules();
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(CommandRules::default()),
        Err(error) => return Err(error).with_context(|| format!("{} cannot be read", file.display())),
    };
    let parsed: RuleFile = toml::from_str(&text).map_err(|error| wrong_line(&file, &text, &error))?;
    CommandRules::new(parsed.rules).with_context(|| format!("{}", file.display()))
}
