//! What a cell is told about itself: its rules, who it becomes, what it is limited to. Made by the executor, read by the stage.

use std::io;
use std::path::{Path, PathBuf};

use crate::level::Level;
use crate::message::{Reader, Writer};
use crate::policy::{Access, Glob, Network};

/// Whom sandboxed code runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// As the executor's own user, who is not root.
    Own,
    /// As this user and group, which nobody else has; files of a writable root are mapped to it.
    Mapped { id: u32 },
    /// As this user, to whom the operator gave the workspace.
    Named { uid: u32, gid: u32 },
    /// As the owner of the workspace, without rights: where root cannot map the users of a mount. If that is root itself, a user
    /// namespace shows it under another number.
    Owner { uid: u32, gid: u32, id: u32 },
}

impl Identity {
    /// The user and group that a process of root becomes, if it becomes another one.
    pub fn other_user(self) -> Option<(u32, u32)> {
        match self {
            Self::Mapped { id } => Some((id, id)),
            Self::Named { uid, gid } | Self::Owner { uid: uid @ 1.., gid, .. } => Some((uid, gid)),
            Self::Own | Self::Owner { .. } => None,
        }
    }

    /// Whether what runs is root to the kernel, although it has none of its rights.
    pub fn is_root_by_name(self) -> bool {
        matches!(self, Self::Owner { uid: 0, .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    pub access: Access,
    pub rights: Rights,
    /// Whether the directories between it and the writable place around it must keep their names, so that it is found again
    /// where the policy says.
    pub fixed: bool,
    pub shape: Shape,
    /// A pattern denies it, by its name.
    pub by_pattern: bool,
    /// A directory of ours that is seen there instead of what is there.
    pub source: Option<PathBuf>,
}

impl Place {
    /// Where what is seen there comes from.
    pub fn origin(&self) -> &Path {
        self.source.as_deref().unwrap_or(&self.path)
    }
}

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A file, or a directory with everything below it.
    Tree,
    /// A link on the way to something with the access of the place.
    Link,
}

/// Whose rights the sandbox's user has in a place, as far as the access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Those of anybody.
    Others,
    /// Those of its owner, if the file system can map users.
    OwnersIfPossible,
    /// Those of its owner. Without them it is of no use.
    Owners,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    pub level: Level,
    /// Outer places first.
    pub places: Vec<Place>,
    /// Patterns that deny.
    pub globs: Vec<Glob>,
    pub network: Network,
    pub identity: Identity,
    /// What the cell sees as `/tmp`; without it, something that goes with the cell.
    pub temporary: Option<PathBuf>,
    /// Devices that are shown besides the harmless ones.
    pub devices: Vec<PathBuf>,
}

/// One limit of the kernel for every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: u32,
    pub value: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Nothing: the cell is only looked after, not confined.
    pub confinement: Option<Confinement>,
    pub rlimits: Vec<Rlimit>,
    /// Files into which the cell writes itself to be limited together with the others of its session.
    pub cgroups: Vec<PathBuf>,
}

impl Plan {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.list(&self.rlimits, |out, rlimit| {
            out.number(rlimit.resource.into());
            out.number(rlimit.value);
        });
        out.list(&self.cgroups, |out, path| out.text(path.as_os_str()));
        let Some(confinement) = &self.confinement else {
            out.byte(0);
            return out.0;
        };
        out.byte(1);
        out.list(&confinement.places, |out, place| {
            out.text(place.path.as_os_str());
            out.byte(place.access as u8);
            out.byte(place.rights as u8);
            out.byte(place.fixed.into());
            out.byte((place.shape == Shape::Link).into());
            out.byte(place.by_pattern.into());
            out.text(place.source.as_deref().unwrap_or(Path::new("")).as_os_str());
        });
        out.list(&confinement.globs, |out, glob| {
            out.text(glob.base().as_os_str());
            out.text(glob.pattern().as_ref());
        });
        out.byte(confinement.level as u8);
        out.byte((confinement.network == Network::Enabled).into());
        match confinement.identity {
            Identity::Own => out.byte(0),
            Identity::Mapped { id } => {
                out.byte(1);
                out.number(id.into());
            }
            Identity::Named { uid, gid } => {
                out.byte(2);
                out.number(uid.into());
                out.number(gid.into());
            }
            Identity::Owner { uid, gid, id } => {
                out.byte(3);
                out.number(uid.into());
                out.number(gid.into());
                out.number(id.into());
            }
        }
        out.byte(confinement.temporary.is_some().into());
        if let Some(path) = &confinement.temporary {
            out.text(path.as_os_str());
        }
        out.list(&confinement.devices, |out, path| out.text(path.as_os_str()));
        out.0
    }

    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = Reader(bytes);
        let id = |input: &mut Reader<'_>| u32::try_from(input.number()?).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        let rlimits = input.list(|input| Ok(Rlimit { resource: id(input)?, value: input.number()? }))?;
        let cgroups = input.list(Reader::path)?;
        if input.byte()? == 0 {
            return Ok(Self { confinement: None, rlimits, cgroups });
        }
        let places = input.list(|input| {
            let path = input.path()?;
            let access = match input.byte()? {
                0 => Access::Deny,
                1 => Access::Read,
                _ => Access::Write,
            };
            let rights = match input.byte()? {
                0 => Rights::Others,
                1 => Rights::OwnersIfPossible,
                _ => Rights::Owners,
            };
            let fixed = input.byte()? == 1;
            let shape = if input.byte()? == 1 { Shape::Link } else { Shape::Tree };
            let by_pattern = input.byte()? == 1;
            let source = Some(input.path()?).filter(|source| !source.as_os_str().is_empty());
            Ok(Place { path, access, rights, fixed, shape, by_pattern, source })
        })?;
        let globs = input.list(|input| {
            let (base, pattern) = (input.path()?, input.text()?);
            Glob::below(&base, &pattern.to_string_lossy()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        })?;
        let level = match input.byte()? {
            0 => Level::Landlock,
            1 => Level::Mounts,
            _ => Level::Full,
        };
        let network = if input.byte()? == 1 { Network::Enabled } else { Network::Restricted };
        let identity = match input.byte()? {
            0 => Identity::Own,
            1 => Identity::Mapped { id: id(&mut input)? },
            2 => Identity::Named { uid: id(&mut input)?, gid: id(&mut input)? },
            _ => Identity::Owner { uid: id(&mut input)?, gid: id(&mut input)?, id: id(&mut input)? },
        };
        let temporary = if input.byte()? == 1 { Some(input.path()?) } else { None };
        let devices = input.list(Reader::path)?;
        Ok(Self { confinement: Some(Confinement { level, places, globs, network, identity, temporary, devices }), rlimits, cgroups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, access: Access, rights: Rights) -> Place {
        Place { path: path.into(), access, rights, fixed: true, shape: Shape::Tree, by_pattern: false, source: None }
    }

    #[test]
    fn a_plan_survives_the_way() {
        let confinement = Confinement {
            level: Level::Mounts,
            places: vec![
                place("/", Access::Read, Rights::OwnersIfPossible),
                Place { fixed: false, ..place("/w", Access::Write, Rights::Owners) },
                Place { by_pattern: true, source: Some("/own/layer".into()), ..place("/w/.git", Access::Deny, Rights::Others) },
                Place { shape: Shape::Link, ..place("/w/link", Access::Read, Rights::Others) },
            ],
            globs: vec![Glob::below(std::path::Path::new("/w/[x]"), "**/*.env").unwrap(), Glob::new("/a/*").unwrap()],
            network: Network::Enabled,
            identity: Identity::Mapped { id: 7 },
            temporary: Some("/x".into()),
            devices: vec!["/dev/dri/card0".into()],
        };
        let plan = Plan {
            confinement: Some(confinement),
            rlimits: vec![Rlimit { resource: 7, value: u64::MAX }],
            cgroups: vec!["/sys/fs/cgroup/x/cgroup.procs".into()],
        };
        assert_eq!(Plan::decode(&plan.encode()).unwrap(), plan);
        let other = Confinement {
            level: Level::Full,
            places: Vec::new(),
            globs: Vec::new(),
            network: Network::Restricted,
            identity: Identity::Owner { uid: 0, gid: 1, id: 2 },
            temporary: None,
            devices: Vec::new(),
        };
        let plan = Plan { confinement: Some(other), ..Plan::default() };
        assert_eq!(Plan::decode(&plan.encode()).unwrap(), plan);
        assert_eq!(Plan::decode(&Plan::default().encode()).unwrap(), Plan::default());
    }
}
