//! The one place where the sandbox that a request asks for becomes rules of this machine.
//!
//! Everything relative or special is resolved here: project roots, temporary directories, patterns, missing paths, links.
//! What is protected is added, our own files are taken out, and the operator's ceiling is kept.

mod remembered;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_sandbox::home::{KnownHome, SandboxHome, without_secrets};
use outpost_sandbox::policy::{
    Exceeds, Glob, GlobError, HomeView, NetworkRule, PathAccess, PathRule, PathRules, Policy, RuleOrigin, Trace, trace,
};
use outpost_wire::exec::policy as wire;
use outpost_wire::exec::policy::{EntryPath, FileSystem, Grant, MissingPath, Permissions, PolicyEntry, SandboxContext, SpecialRoot};
use outpost_wire::{PathError, PathUri};
use thiserror::Error;

use crate::devices::{self, DeviceError};
use crate::trails::Trails;

pub(crate) use remembered::Policies;

/// What a system needs to run programs at all.
const MINIMAL: &[&str] =
    &["/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/opt", "/proc", "/sbin", "/sys", "/usr"];

/// What this machine adds to every policy.
#[derive(Debug, Clone, Default)]
pub struct Grounds {
    /// `TMPDIR`, if there is one.
    pub temporary: Option<PathBuf>,
    /// Our own files: out of reach, whatever a request says.
    pub own: Vec<PathBuf>,
    /// What of them is meant to be read: skills and plugins. Still only by those who may read where it is.
    pub shared: Vec<PathBuf>,
    /// Homes of users, resolved: where shells, ssh and git read their files.
    pub homes: Vec<PathBuf>,
    /// The home of the executor's user, of which sandboxed code sees a layer.
    pub home: Option<Arc<SandboxHome>>,
    /// What no request exceeds.
    pub ceiling: Policy,
}

/// Why a policy is not one of this machine.
#[derive(Debug, Error)]
pub enum PolicyError {
    #[error("file system sandbox context with dynamic permissions requires cwd")]
    NeedsCwd,
    #[error("a pattern can only deny: `{0}`")]
    PatternGrants(String),
    #[error(transparent)]
    Pattern(#[from] GlobError),
    #[error("sandbox path: {0}")]
    Path(#[from] PathError),
    #[error("the sandbox names {path}, which cannot be looked at: {error}", path = .path.display())]
    Unreachable {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the sandbox makes {} writable, which does not exist; make it first or say missing_path_behavior: skip", .0.display())]
    Missing(PathBuf),
    #[error("{}, which was asked for on top, is behind a link: its real path is {}; ask for that one", .path.display(), .real.display())]
    Linked { path: PathBuf, real: PathBuf },
    #[error(
        "the sandbox gives {}, which led to {} when the session began and leads to {} now, through a link that sandboxed code could have changed; \
         name the real path, or begin a new session", .path.display(), .first.display(), .now.display()
    )]
    Moved { path: PathBuf, first: PathBuf, now: PathBuf },
    #[error("the sandbox names {}, which has led to too many places in this session; name the real path, or begin a new session", .path.display())]
    Restless { path: PathBuf },
    #[error("the sandbox denies an unknown special path `{0}`: this executor cannot know what to hide")]
    Unknown(String),
    #[error("the subpath `{0}` of a project root leads out of it")]
    Subpath(String),
    #[error("sandbox devices: {0}")]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Ceiling(#[from] Exceeds),
}

impl Grounds {
    /// The policy for a request, which may have none, in a session whose paths have led somewhere before.
    pub fn policy(&self, asked: Option<&SandboxContext>, trails: &Trails) -> Result<Policy, PolicyError> {
        let policy = match asked {
            None => Policy::Open,
            Some(context) => self.confine(context, trails)?,
        };
        Ok(policy.within(&self.ceiling)?)
    }

    fn confine(&self, context: &SandboxContext, trails: &Trails) -> Result<Policy, PolicyError> {
        let mut draft = Draft {
            trails,
            homes: &self.homes,
            accesses: BTreeMap::new(),
            usual: BTreeMap::new(),
            open: Vec::new(),
            limits: Vec::new(),
            links: Vec::new(),
            globs: Vec::new(),
        };
        let asked_network = match &context.permissions {
            Permissions::Disabled => return Ok(Policy::Open),
            // A sandbox outside holds the files; the network is still ours to hold.
            Permissions::External { network } | Permissions::Managed { file_system: FileSystem::Unrestricted, network } => match network {
                wire::Network::Enabled => return Ok(Policy::Open),
                wire::Network::Restricted => {
                    draft.open.push(granted("/", PathAccess::Write));
                    *network
                }
            },
            Permissions::Managed { file_system: FileSystem::Restricted { entries, .. }, network } => {
                self.entries(entries, context, &mut draft)?;
                *network
            }
        };
        let network = match asked_network {
            wire::Network::Restricted => NetworkRule::Restricted,
            wire::Network::Enabled => NetworkRule::Enabled,
        };
        let mut about = Vec::new();
        for uri in context.workspace_roots.iter().flatten().chain(&context.cwd) {
            let path = uri.to_native()?;
            let led = follow(&path)?;
            trails.given(&path, &led)?;
            about.push(led.real);
        }
        // What is not there cannot be shown; a command that wants to work in it is refused when it starts.
        about.retain(|path| path.exists());
        let mut rules = draft.rules(network)?.about(about);
        let mut shown = Vec::new();
        // A ceiling speaks for itself.
        for shared in self.shared.iter().filter(|shared| self.ceiling == Policy::Open && shared.is_dir()) {
            let shared = resolved(shared)?;
            if rules.access(&shared).access >= PathAccess::Read {
                shown.push(shared);
            }
        }
        for own in &self.own {
            let led = follow(own)?;
            for path in trails.taken(own, &led)? {
                rules = rules.held_to(PathRule { path, access: PathAccess::Deny, origin: RuleOrigin::Own });
            }
            rules = rules.led_by(led.links, PathAccess::Deny);
        }
        let rules = self.at_home(shown.into_iter().fold(rules, PathRules::showing));
        let rules = rules.with_devices(devices::find(&context.devices)?);
        Ok(Policy::Confined(Arc::new(rules)))
    }

    /// Shows the home through a layer, and takes keys and tokens away wherever the layer does not.
    fn at_home(&self, mut rules: PathRules) -> PathRules {
        let Some(known) = self.home.as_ref().and_then(|home| home.known()) else { return rules };
        let secrets: Vec<PathBuf> = known.hidden.iter().chain(&known.mixed).map(|path| known.home.join(path)).collect();
        let is_layered = rules.access(&known.home).access == PathAccess::Read;
        // Places inside of the home that are shown as they are, or all of it.
        let open: Vec<PathBuf> = match is_layered {
            true => rules.below(&known.home).filter(|rule| rule.access > PathAccess::Deny).map(|rule| rule.path.clone()).collect(),
            false => vec![known.home.clone()],
        };
        let inside = secrets.iter().filter(|path| open.iter().any(|place| path.starts_with(place)));
        let exposed: Vec<&PathBuf> = inside.chain(&known.outside).filter(|path| !rules.names(path) && has_secrets(&known, path)).collect();
        for path in exposed {
            rules = rules.held_to(PathRule { path: path.clone(), access: PathAccess::Deny, origin: RuleOrigin::Credentials });
        }
        if !is_layered {
            return rules;
        }
        let written = rules.writable_roots().map(|rule| &rule.path);
        let workspace = rules.workspaces().iter().chain(written).next().cloned().unwrap_or_else(|| "/".into());
        let view = HomeView {
            home: known.home.clone(),
            workspace,
            directories: known.directories.clone(),
            hidden: known.hidden.clone(),
            mixed: known.mixed.clone(),
        };
        rules.with_home(view)
    }

    fn entries(&self, entries: &[PolicyEntry], context: &SandboxContext, draft: &mut Draft<'_>) -> Result<(), PolicyError> {
        for entry in entries {
            let access = match entry.access {
                wire::Access::Read => PathAccess::Read,
                wire::Access::Write => PathAccess::Write,
                wire::Access::Deny => PathAccess::Deny,
            };
            if let EntryPath::GlobPattern { pattern } = &entry.path {
                if access != PathAccess::Deny {
                    return Err(PolicyError::PatternGrants(pattern.clone()));
                }
                let base = match &context.cwd {
                    _ if pattern.starts_with('/') => PathBuf::from("/"),
                    Some(cwd) => cwd.to_native()?,
                    None => return Err(PolicyError::NeedsCwd),
                };
                let globs = globs(&base, pattern, &mut |path| draft.taken(path, PathAccess::Deny))?;
                draft.globs.extend(globs);
                continue;
            }
            for path in self.places(&entry.path, access, context)? {
                let led = match entry.grant {
                    None => follow(&path)?,
                    Some(Grant::Required) => unlinked(path.clone())?,
                    Some(Grant::Optional) => match unlinked(path.clone()) {
                        Ok(led) if self.ceiling_gives(&led.real, access) => led,
                        _ => continue,
                    },
                };
                let is_missing = !led.real.exists();
                let is_optional = entry.missing_path_behavior == Some(MissingPath::Skip) || entry.grant == Some(Grant::Optional);
                if is_missing && access == PathAccess::Write && !is_optional {
                    return Err(PolicyError::Missing(led.real));
                }
                draft.add(&path, &led, access, is_missing && is_optional)?;
                if access == PathAccess::Read {
                    let is_usual = matches!(&entry.path, EntryPath::Special { value: SpecialRoot::ProjectRoots { subpath: Some(sub) } } if sub == ".git");
                    *draft.usual.entry(led.real).or_insert(true) &= is_usual;
                }
            }
        }
        Ok(())
    }

    /// Whether the operator allows this much there.
    fn ceiling_gives(&self, path: &Path, access: PathAccess) -> bool {
        self.ceiling.rules().is_none_or(|ceiling| ceiling.access(path).access >= access)
    }

    /// The concrete places that an entry means.
    fn places(&self, path: &EntryPath, access: PathAccess, context: &SandboxContext) -> Result<Vec<PathBuf>, PolicyError> {
        let EntryPath::Special { value } = path else {
            let EntryPath::Path { path } = path else { return Ok(Vec::new()) };
            return Ok(vec![path.to_native()?]);
        };
        Ok(match value {
            SpecialRoot::Root => vec![PathBuf::from("/")],
            SpecialRoot::Minimal => MINIMAL.iter().map(PathBuf::from).filter(|path| path.exists()).collect(),
            SpecialRoot::SlashTmp => vec![PathBuf::from("/tmp")],
            SpecialRoot::Tmpdir => match &context.temporary_directories {
                Some(directories) => natives(directories)?,
                None => self.temporary.iter().cloned().collect(),
            },
            SpecialRoot::ProjectRoots { subpath } => {
                let cwd = context.cwd.as_ref().ok_or(PolicyError::NeedsCwd)?;
                let roots = match &context.workspace_roots {
                    Some(roots) => natives(roots)?,
                    None => vec![cwd.to_native()?],
                };
                roots.into_iter().map(|root| below(root, subpath.as_deref())).collect::<Result<_, _>>()?
            }
            // Less than what was meant is safe if it was a grant.
            SpecialRoot::Unknown { path, .. } if access == PathAccess::Deny => return Err(PolicyError::Unknown(path.clone())),
            SpecialRoot::Unknown { .. } => Vec::new(),
        })
    }
}

/// Whether something is there that must not be read: settings without a secret may be.
fn has_secrets(known: &KnownHome, path: &Path) -> bool {
    let mixed = path.strip_prefix(&known.home).ok().filter(|inner| known.mixed.iter().any(|mixed| mixed == inner));
    match mixed {
        None => path.exists(),
        Some(_) => std::fs::read(path).is_ok_and(|text| without_secrets(path, &text).is_none_or(|clean| clean != text)),
    }
}

fn granted(path: impl Into<PathBuf>, access: PathAccess) -> PathRule {
    PathRule { path: path.into(), access, origin: RuleOrigin::Request }
}

fn natives(uris: &[PathUri]) -> Result<Vec<PathBuf>, PolicyError> {
    uris.iter().map(|uri| Ok(uri.to_native()?)).collect()
}

fn below(root: PathBuf, subpath: Option<&str>) -> Result<PathBuf, PolicyError> {
    let Some(subpath) = subpath else { return Ok(root) };
    let stays = Path::new(subpath).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if stays { Ok(root.join(subpath)) } else { Err(PolicyError::Subpath(subpath.to_owned())) }
}

/// The rules of a request while they are made.
struct Draft<'a> {
    trails: &'a Trails,
    homes: &'a [PathBuf],
    accesses: BTreeMap<PathBuf, PathAccess>,
    /// The `.git` of project roots that may be read, which every client says: by its root, unless the same path was named by itself.
    usual: BTreeMap<PathBuf, bool>,
    /// What may be written with everything in it, protected or not.
    open: Vec<PathRule>,
    /// Where paths led before that may only be read: they are given nothing there.
    limits: Vec<PathRule>,
    links: Vec<(Vec<PathBuf>, PathAccess)>,
    globs: Vec<Glob>,
}

impl Draft<'_> {
    /// Adds an entry for a path as it is spelled. One that is skipped still denies where it led before.
    fn add(&mut self, spelled: &Path, led: &Trace, access: PathAccess, is_skipped: bool) -> Result<(), PolicyError> {
        if access == PathAccess::Write {
            self.trails.given(spelled, led)?;
        } else {
            if access == PathAccess::Read && !is_skipped {
                self.trails.given(spelled, led)?;
            }
            for target in self.trails.taken(spelled, led)?.into_iter().filter(|target| *target != led.real) {
                match access {
                    PathAccess::Deny => self.set(target, access),
                    _ => self.limits.push(granted(target, access)),
                }
            }
            self.links.push((led.links.clone(), access));
        }
        if !is_skipped {
            self.set(led.real.clone(), access);
        }
        Ok(())
    }

    /// Of two entries for one path a denial counts, then what gives more.
    fn set(&mut self, path: PathBuf, access: PathAccess) {
        let known = self.accesses.entry(path).or_insert(access);
        *known = if *known == PathAccess::Deny || access == PathAccess::Deny { PathAccess::Deny } else { access.max(*known) };
    }

    /// Everything that a path means from which something is taken away.
    fn taken(&mut self, spelled: &Path, access: PathAccess) -> Result<Vec<PathBuf>, PolicyError> {
        let led = follow(spelled)?;
        let targets = self.trails.taken(spelled, &led)?;
        self.links.push((led.links, access));
        Ok(targets)
    }

    /// What every client says about `.git` is what is protected anyway: how that is held is decided where it is held.
    fn forget_usual(&mut self) {
        for (path, _) in self.usual.iter().filter(|(_, is_usual)| **is_usual) {
            let around = path.parent().and_then(|parent| parent.ancestors().find_map(|ancestor| self.accesses.get(ancestor)));
            if around == Some(&PathAccess::Write) && self.accesses.get(path) == Some(&PathAccess::Read) {
                self.accesses.remove(path);
            }
        }
    }

    fn rules(mut self, network: NetworkRule) -> Result<PathRules, PolicyError> {
        self.forget_usual();
        let writable: Vec<_> = self.accesses.iter().filter(|(_, access)| **access == PathAccess::Write).map(|(path, _)| path).collect();
        self.trails.may_write(writable.iter().copied().filter(|root| *root != Path::new("/")));
        let given = self.accesses.iter().map(|(path, access)| granted(path, *access));
        let mut rules = PathRules::new(self.open.into_iter().chain(given), self.globs, network);
        for root in &writable {
            for (path, led) in self.trails.protected(root, self.homes).iter() {
                for target in self.trails.taken(path, led)? {
                    // What a request says about exactly such a path is what it wants.
                    if !self.accesses.contains_key(&target) {
                        rules = rules.protecting(target);
                    }
                }
                rules = rules.led_by(led.links.iter().cloned(), PathAccess::Read);
            }
        }
        let rules = self.limits.into_iter().fold(rules, PathRules::limited);
        Ok(self.links.into_iter().fold(rules, |rules, (links, access)| rules.led_by(links, access)))
    }
}

/// Everywhere that a path means.
pub(crate) type Meaning<'a> = &'a mut dyn FnMut(&Path) -> Result<Vec<PathBuf>, PolicyError>;

/// A pattern, relative to a directory unless it is absolute, as it is meant and as it may be meant.
///
/// The names before the first mark are resolved like any path, because what is checked later is resolved, too. A directory
/// whose very name holds a mark (`[id]`) may have been put before a pattern as text: then that one is denied as well.
pub(crate) fn globs(base: &Path, pattern: &str, meaning: Meaning<'_>) -> Result<Vec<Glob>, PolicyError> {
    let meant = Glob::below(base, pattern)?;
    let mut literal = meant.base().to_owned();
    let mut parts = meant.pattern().split('/').peekable();
    while let Some(part) = parts.next_if(|part| literal.join(part).symlink_metadata().is_ok()) {
        literal.push(part);
    }
    let rest = parts.collect::<Vec<_>>().join("/");
    let mut globs: Vec<_> = meaning(meant.base())?.into_iter().map(|base| meant.clone().moved_to(base)).collect();
    if rest != meant.pattern() {
        for base in meaning(&literal)? {
            globs.push(Glob::below(&base, &rest)?);
        }
    }
    Ok(globs)
}

/// Links resolved as far as the path exists.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf, PolicyError> {
    Ok(follow(path)?.real)
}

/// Where a path leads, as far as it exists.
pub(crate) fn follow(path: &Path) -> Result<Trace, PolicyError> {
    let unreachable = |error| PolicyError::Unreachable { path: path.to_owned(), error };
    let led = trace(path).map_err(unreachable)?;
    // A link to nowhere would be a hole: a process that makes its target later makes it where we did not look.
    if led.is_dangling { Err(unreachable(io::Error::other("a symbolic link on its way leads to nothing"))) } else { Ok(led) }
}

/// A path that was given on top, which must be what it says: code that may write beside it could otherwise make it a link to
/// something that was not given.
fn unlinked(path: PathBuf) -> Result<Trace, PolicyError> {
    let led = follow(&path)?;
    if led.real == path { Ok(led) } else { Err(PolicyError::Linked { path, real: led.real }) }
}

#[cfg(test)]
mod tests;
