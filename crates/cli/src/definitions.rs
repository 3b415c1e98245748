//! Where environments are defined: in `environments.toml` of the home, or in the store that several nodes share.
//!
//! Definitions in a store are one text in the form of the file. A change compares it with what was read, so that of two programs
//! that change it at once neither undoes the other's.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use outpost_config::Config;
use outpost_environment::config::edit::EditError;
use outpost_environment::config::{self, MergeMode, merge};
use outpost_environment::{ActiveConfiguration, ConfigurationSnapshot, Registry, Variable};
use outpost_executor::locks::Locks;
use outpost_store::SharedRecords;
use uuid::Uuid;

use crate::home::Home;
use crate::out::say;
use crate::{ProcessContext, store};

/// The record of a store that holds all definitions.
const KIND: &str = "environments";
const KEY: &str = "all";

/// What has to be said of a file whose content counts no more.
const IMPORT: &str = "`outpost env import file` brings it in";

/// Where environments are defined.
#[derive(Clone)]
pub(crate) enum DefinitionSource {
    File(Home),
    Store(SharedDefinitions),
}

/// Definitions of a store, as this home sees them.
#[derive(Clone)]
pub(crate) struct SharedDefinitions {
    records: SharedRecords,
    home: Home,
}

/// Whether a configuration names a store whose nodes share definitions and tokens.
pub(crate) fn is_shared(config: &Config) -> bool {
    config.store.as_deref().is_some_and(|store| store.starts_with("postgres://") || store.starts_with("postgresql://"))
}

/// What the store that is configured shares, if it does. Its database is opened once per program.
pub(crate) async fn shared_records(home: &Home, own: &ProcessContext) -> anyhow::Result<Option<SharedRecords>> {
    let config = Config::read(Some(&home.config()), &own.settings)?;
    if !is_shared(&config) {
        return Ok(None);
    }
    let open = async {
        let store = store::open_for(&config, home, Some(own.secrets.clone()), crate::assembly::NodeRole::Single).await;
        let store = store.context("environments and tokens are in the store of config.toml, which cannot be opened")?;
        store.records().context("this store shares nothing")
    };
    // Boxed, as is what reads definitions: every verb that may need it would carry its state otherwise.
    Ok(Some(own.shared.get_or_try_init(|| Box::pin(open)).await?.clone()))
}

impl DefinitionSource {
    pub(crate) async fn of(home: Home, own: &ProcessContext) -> anyhow::Result<Self> {
        Ok(match Box::pin(shared_records(&home, own)).await? {
            Some(records) => Self::Store(SharedDefinitions { records, home }),
            None => Self::File(home),
        })
    }

    /// What relative paths begin beside, and what errors name.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::File(home) => home.environments(),
            Self::Store(shared) => shared.path(),
        }
    }

    pub(crate) async fn read(&self) -> anyhow::Result<ConfigurationSnapshot> {
        match self {
            Self::File(home) => Ok(config::read(&home.environments())?.unwrap_or_else(ConfigurationSnapshot::local_only)),
            Self::Store(shared) => {
                let text = Box::pin(shared.text_at_start()).await?;
                Ok(config::parse(&text, &shared.path())?)
            }
        }
    }

    pub(crate) async fn text(&self) -> anyhow::Result<String> {
        match self {
            Self::File(home) => {
                let file = home.environments();
                Ok(file_text(&file).with_context(|| format!("cannot read {}", file.display()))?.unwrap_or_default())
            }
            Self::Store(shared) => Ok(shared.text().await?.unwrap_or_default()),
        }
    }

    /// Changes the text in one step, one at a time.
    pub(crate) async fn change(&self, own: &ProcessContext, edit: impl Fn(&str) -> Result<String, EditError>) -> anyhow::Result<()> {
        match self {
            Self::File(home) => change_file(home, own, edit),
            Self::Store(shared) => Box::pin(shared.change(edit)).await,
        }
        .with_context(|| format!("{} is unchanged", self.path().display()))
    }

    /// Takes over every change for as long as this future is polled.
    pub(crate) async fn follow(self, watch: Option<config::ConfigWatch>, registry: Registry) {
        match (self, watch) {
            (Self::File(home), Some(watch)) => registry.follow(&home.environments(), watch).await,
            (Self::File(_), None) => {}
            (Self::Store(shared), watch) => {
                tokio::join!(shared.follow(&registry), shared.follow_file(watch, &registry));
            }
        }
    }
}

impl SharedDefinitions {
    pub(crate) fn path(&self) -> PathBuf {
        self.home.path().join("environments.toml (in the store)")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.home.environments()
    }

    async fn text(&self) -> anyhow::Result<Option<String>> {
        Ok(self.records.get(KIND, KEY).await?)
    }

    /// The text; if there is none, that of this home's file, which is taken over now and never again by itself.
    async fn text_at_start(&self) -> anyhow::Result<String> {
        let file = self.file();
        let own = || file_text(&file).with_context(|| format!("cannot read {}", file.display()));
        if let Some(text) = self.text().await? {
            if let Some(what) = own()?.and_then(|own| self.difference(&text, &own)) {
                say(&what);
            }
            return Ok(text);
        }
        let Some(text) = own()? else { return Ok(String::new()) };
        config::parse(&text, &file)?;
        if self.records.put_new(KIND, KEY, &text).await? {
            say(&format!("{} was brought into the store, where environments are defined from now on", file.display()));
            return Ok(text);
        }
        // Another node was first.
        Box::pin(self.text_at_start()).await
    }

    async fn change(&self, edit: impl Fn(&str) -> Result<String, EditError>) -> anyhow::Result<()> {
        loop {
            let before = self.text().await?;
            let after = edit(before.as_deref().unwrap_or_default())?;
            let is_done = match &before {
                Some(before) => self.records.exchange(KIND, KEY, before, &after).await?,
                None => self.records.put_new(KIND, KEY, &after).await?,
            };
            if is_done {
                return Ok(());
            }
        }
    }

    /// What a file says that the store does not; nothing if it says nothing else.
    fn difference(&self, text: &str, own: &str) -> Option<String> {
        // Merging knows no inline tables, and judges what is not used.
        if text == own {
            return None;
        }
        let file = self.file();
        let no_effect = format!("{} has no effect, because environments are defined in the store", file.display());
        match merge(text, own, &file, &[], MergeMode::Keep) {
            Ok(merged) if merged.is_nothing() => None,
            Ok(merged) => {
                let names: Vec<String> = merged.added.iter().chain(&merged.differing).map(|name| format!("`{name}`")).collect();
                Some(format!("{no_effect}; what it says of {} is not used: {IMPORT}", names.join(", ")))
            }
            Err(error) => Some(format!("{no_effect}; {error}")),
        }
    }

    /// Takes over what any node changes.
    async fn follow(&self, registry: &Registry) {
        let mut changes = self.records.changes();
        let mut seen = None;
        loop {
            match self.text().await {
                Ok(text) if text != seen => {
                    let applied = config::parse(text.as_deref().unwrap_or_default(), &self.path()).map_err(|error| error.to_string());
                    let applied = applied.and_then(|snapshot| {
                        registry.configure(ActiveConfiguration::new(Variable::Unset, snapshot)).map_err(|error| error.to_string())
                    });
                    if let Err(reason) = applied {
                        registry.refuse_configuration(reason);
                    }
                    seen = text;
                }
                Ok(_) => {}
                Err(error) => tracing::debug!("definitions of environments are not followed now: {error:#}"),
            }
            changes.wait().await;
        }
    }

    /// Says of every change of this home's file that it has no effect.
    async fn follow_file(&self, watch: Option<config::ConfigWatch>, registry: &Registry) {
        let Some(mut watch) = watch else { return };
        while watch.changed().await {
            let own = file_text(&self.file()).ok().flatten();
            let Some(own) = own else { continue };
            match self.text().await {
                Ok(text) => {
                    if let Some(what) = self.difference(&text.unwrap_or_default(), &own) {
                        registry.refuse_configuration(what);
                    }
                }
                // What the store says is not known, which is not nothing.
                Err(error) => {
                    let file = self.file();
                    let why = format!("{error:#}");
                    tracing::warn!(file = %file.display(), why, "a file that has no effect has changed; whether the store says the same is not known now");
                }
            }
        }
    }
}

/// Nothing if there is no such file.
fn file_text(path: &Path) -> std::io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes `environments.toml` in one step, one at a time.
fn change_file(home: &Home, own: &ProcessContext, edit: impl Fn(&str) -> Result<String, EditError>) -> anyhow::Result<()> {
    home.usable()?;
    let directory = home.path();
    let lock = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    let _lock = lock_home(lock, home, own).with_context(|| format!("cannot lock {}", directory.display()))?;
    // What a link leads to is changed, not the link.
    let file = home.environments();
    let file = fs::canonicalize(&file).unwrap_or(file);
    let (text, mode) = match fs::read_to_string(&file) {
        Ok(text) => (text, fs::metadata(&file)?.permissions().mode() & 0o777),
        Err(error) if error.kind() == ErrorKind::NotFound => (String::new(), 0o600),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    replace(&file, &edit(&text)?, mode).with_context(|| format!("cannot write {}", file.display()))
}

/// On a home that is on a network, the lock may be one of this machine only.
fn lock_home(directory: File, home: &Home, own: &ProcessContext) -> anyhow::Result<File> {
    let locks = Locks::new(Some(home.seat(&own.variables)?.run.join("locks")));
    Ok(locks.lock(directory, "environments")?)
}

fn replace(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let aside = path.with_extension(format!("{}.part", Uuid::new_v4().simple()));
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&aside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}
