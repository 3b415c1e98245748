//! Machines that can be switched off and on again, and a runtime that works on them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_environment::{
    ActiveConfiguration, ConfigurationSnapshot, ConnectPolicy, Connector, EnvironmentOptions, EnvironmentState, Registry, RegistryOptions,
    Waits,
};
use outpost_rpc::LinkError;
use outpost_runtime::config::{RuntimeConfig, StepPatience};
use outpost_runtime::live::LiveThread;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::rules::CommandRules;
use outpost_runtime::{Runtime, StartThread};
use outpost_store::Store;
use outpost_testkit::ExecutorProcess;
use outpost_testkit::model::ScriptedModel;
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId, Selection};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{OUTPOST, memory, parts, turn};

pub(crate) fn id(text: &str) -> EnvironmentId {
    text.parse().unwrap()
}

pub(crate) fn uri(path: impl AsRef<Path>) -> PathUri {
    PathUri::from_native(path.as_ref()).unwrap()
}

/// Writes a file, and the folders that it is in.
pub(crate) fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A skill with this name in a folder of the same name.
pub(crate) fn put_skill(root: impl AsRef<Path>, name: &str) {
    put(root.as_ref().join(name).join("SKILL.md"), format!("---\nname: {name}\ndescription: how to {name}\n---\nThe body of {name}.\n"));
}

/// A real executor with a home and files that outlive it, reached by websocket.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Inside>);

struct Inside {
    process: Mutex<Option<ExecutorProcess>>,
    home: Mutex<Option<TempDir>>,
    files: TempDir,
    /// Who the executor runs as, and the program that this user can start.
    user: Option<(u32, PathBuf)>,
}

impl Machine {
    /// Switched on.
    pub(crate) fn new() -> Self {
        let machine = Self::off();
        machine.on();
        machine
    }

    pub(crate) fn off() -> Self {
        let home = Mutex::new(Some(tempfile::tempdir().unwrap()));
        Self(Arc::new(Inside { process: Mutex::default(), home, files: tempfile::tempdir().unwrap(), user: None }))
    }

    /// Run by a user who may not read everything, whoever runs the tests.
    pub(crate) fn of_an_ordinary_user() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::new();
        }
        const NOBODY: u32 = 65534;
        let (home, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for directory in [home.path(), files.path()] {
            std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // The program may lie where only root looks.
        let program = files.path().join("outpost");
        if std::fs::hard_link(OUTPOST, &program).is_err() {
            std::fs::copy(OUTPOST, &program).unwrap();
        }
        let user = Some((NOBODY, program));
        let machine = Self(Arc::new(Inside { process: Mutex::default(), home: Mutex::new(Some(home)), files, user }));
        machine.on();
        machine
    }

    /// With a user's home of its own, so that nothing of this machine's user is found.
    pub(crate) fn on(&self) -> &Self {
        let home = self.0.home.lock().unwrap().take().unwrap();
        let user = self.path("user").display().to_string();
        let process = match &self.0.user {
            None => ExecutorProcess::start_with(Path::new(OUTPOST), &["--no-auth"], &[("HOME", &user)], home),
            Some((id, program)) => {
                let mut command = std::process::Command::new(program);
                command.args(["executor", "--no-auth"]).env("HOME", &user).current_dir(self.0.files.path()).uid(*id).gid(*id);
                ExecutorProcess::start_command(command, home)
            }
        };
        *self.0.process.lock().unwrap() = Some(process);
        self
    }

    /// A path in the executor's own home.
    pub(crate) fn home(&self, name: &str) -> PathBuf {
        self.0.process.lock().unwrap().as_ref().unwrap().home().join(name)
    }

    /// kill -9.
    pub(crate) fn kill(&self) {
        let mut process = self.0.process.lock().unwrap().take().unwrap();
        *self.0.home.lock().unwrap() = Some(process.kill_and_keep_home());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.files.path().join(name)
    }

    pub(crate) fn connector(&self) -> Connector {
        let machine = self.clone();
        Connector::new("machine", move || {
            let url = machine.0.process.lock().unwrap().as_ref().map(|process| process.url().to_owned());
            async move {
                let url = url.ok_or(LinkError::Io(std::io::ErrorKind::ConnectionRefused.into()))?;
                outpost_rpc::link::ws::connect(&url, &Default::default()).await
            }
        })
    }
}

/// A runtime with machines, by name.
pub(crate) struct Stage {
    pub runtime: Runtime,
    pub model: ScriptedModel,
    machines: Vec<(&'static str, Machine)>,
    store: Store,
    config: RuntimeConfig,
}

fn registry(machines: &[(&'static str, Machine)]) -> Registry {
    let waits = Waits { first: Duration::from_millis(10), longest: Duration::from_millis(50) };
    let environment = EnvironmentOptions { recovery: waits, retry: waits, ..EnvironmentOptions::default() };
    let local = machines.iter().find(|(name, _)| *name == "local").map(|(_, machine)| machine.connector());
    let registry = match local {
        Some(local) => {
            let options = RegistryOptions { environment, local: Some(local), ..RegistryOptions::default() };
            Registry::configured(options, ActiveConfiguration::On(ConfigurationSnapshot::local_only())).unwrap()
        }
        None => Registry::new(RegistryOptions { environment, ..RegistryOptions::default() }),
    };
    for (name, machine) in machines.iter().filter(|(name, _)| *name != "local") {
        registry.attach(id(name), machine.connector(), ConnectPolicy::Lazy).unwrap();
    }
    registry
}

pub(crate) fn config() -> RuntimeConfig {
    RuntimeConfig {
        model: "scripted".into(),
        model_provider: "scripted".into(),
        models: [("scripted".to_owned(), Default::default())].into(),
        sandbox: SandboxMode::DangerFullAccess,
        patience: StepPatience { primary: Duration::from_secs(60), others: Duration::from_secs(60) },
        // However busy the machine is that runs the tests, an executor is not left out because it takes long.
        discovery_patience: Duration::from_secs(60),
        ..RuntimeConfig::default()
    }
}

impl Stage {
    pub(crate) async fn new(machines: &[(&'static str, &Machine)]) -> Self {
        Self::with_mode(machines, SandboxMode::DangerFullAccess).await
    }

    pub(crate) async fn with_mode(machines: &[(&'static str, &Machine)], sandbox: SandboxMode) -> Self {
        Self::with_config(machines, RuntimeConfig { sandbox, ..config() }).await
    }

    pub(crate) async fn with_config(machines: &[(&'static str, &Machine)], config: RuntimeConfig) -> Self {
        let machines: Vec<_> = machines.iter().map(|(name, machine)| (*name, (*machine).clone())).collect();
        let (model, store) = (ScriptedModel::with(vec![]).await, memory());
        let runtime = Runtime::new(parts(config.clone(), store.clone(), registry(&machines), &model, CommandRules::default()));
        Self { runtime, model, machines, store, config }
    }

    /// Another program on the same store, with the same machines.
    pub(crate) fn restarted(&self) -> Runtime {
        Runtime::new(parts(self.config.clone(), self.store.clone(), registry(&self.machines), &self.model, CommandRules::default()))
    }

    /// A new handle to the same machine, ready.
    pub(crate) async fn replace(&self, name: &'static str, machine: &Machine) {
        self.runtime.registry().attach(id(name), machine.connector(), ConnectPolicy::Lazy).unwrap();
        self.runtime.registry().info(&id(name)).await.unwrap();
    }

    /// Waits until an environment is ready.
    pub(crate) async fn ready(&self, name: &str) {
        self.until(name, |standing| matches!(standing, EnvironmentState::Ready)).await;
    }

    /// Waits until it is known that an environment is not ready any more.
    pub(crate) async fn lost(&self, name: &str) {
        self.until(name, |standing| !matches!(standing, EnvironmentState::Ready)).await;
    }

    async fn until(&self, name: &str, fits: impl Fn(&EnvironmentState) -> bool) {
        for _ in 0..2400 {
            let handle = self.runtime.registry().get(&id(name)).unwrap();
            if fits(&self.runtime.registry().standing(&id(name))) {
                return;
            }
            handle.want();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("environment `{name}` stays {:?}", self.runtime.registry().standing(&id(name)));
    }

    /// A thread that works in these environments with these roots.
    pub(crate) async fn thread(&self, places: &[&str], roots: Vec<CapabilityRoot>) -> LiveThread {
        self.runtime.start(self.start(places, roots)).await.unwrap()
    }

    pub(crate) fn start(&self, places: &[&str], roots: Vec<CapabilityRoot>) -> StartThread {
        let mut start = StartThread::new();
        let attach = |name: &&str| {
            let machine = &self.machines.iter().find(|(known, _)| known == name).unwrap().1;
            Attachment::new(id(name), uri(machine.0.files.path()))
        };
        start.created.selection = Some(Selection::new(places.iter().map(attach).collect()).unwrap());
        start.created.capability_roots = roots;
        start
    }

    /// Takes a turn and returns what the model was asked in its last step, as one text.
    pub(crate) async fn turn(&self, thread: &LiveThread, text: &str) -> String {
        turn(thread, text).await;
        self.model.requests().last().unwrap().body["input"].to_string()
    }

    /// Takes a turn and returns what the model was told anew about skills in it, if anything.
    pub(crate) async fn told(&self, thread: &LiveThread, text: &str) -> Option<String> {
        let before = self.model.requests().last().map_or(0, |request| about_skills(&request.body).len());
        turn(thread, text).await;
        let now = about_skills(&self.model.requests().last().unwrap().body);
        let news = &now[before.min(now.len())..];
        assert!(news.len() < 2, "{news:?}");
        news.first().cloned()
    }
}

/// The messages about skills that a request holds, in order.
pub(crate) fn about_skills(request: &Value) -> Vec<String> {
    let texts = request["input"].as_array().unwrap().iter().filter_map(|item| item["content"][0]["text"].as_str());
    texts.filter(|text| text.starts_with("<skills>")).map(str::to_owned).collect()
}
