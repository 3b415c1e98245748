//! What a cell is told about itself: its rules, who it becomes, what it is limited to. Made by the executor, read by the stage.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::level::Level;
use crate::message::{MessageReader, MessageWriter};
use crate::policy::{Glob, NetworkRule, PathAccess};

/// Whom sandboxed code runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxUser {
    /// As the executor's own user, who is not root.
    Own,
    /// As this user and group, which no other process has; files of a writable root are mapped to it.
    Mapped { id: u32 },
    /// As this user, to whom the operator gave the workspace.
    Named { uid: u32, gid: u32 },
    /// As the owner of the workspace, without rights: where root cannot map the users of a mount. If that is root itself, a user
    /// namespace shows it under another number.
    Owner { uid: u32, gid: u32, id: u32 },
}

impl SandboxUser {
    /// The user and group that a process of root becomes, if it becomes another one.
    pub(crate) fn other_user(self) -> Option<(u32, u32)> {
        match self {
            Self::Mapped { id } => Some((id, id)),
            Self::Named { uid, gid } | Self::Owner { uid: uid @ 1.., gid, .. } => Some((uid, gid)),
            Self::Own | Self::Owner { .. } => None,
        }
    }

    /// Whether what runs is root to the kernel, although it has none of its rights.
    pub(crate) fn is_root_by_name(self) -> bool {
        matches!(self, Self::Owner { uid: 0, .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedPath {
    pub path: PathBuf,
    pub access: PathAccess,
    pub rights: Rights,
    /// Whether the directories between it and the writable place around it must keep their names, so that it is found again
    /// where the policy says.
    pub fixed: bool,
    pub shape: PathShape,
    /// A pattern denies it, by its name.
    pub by_pattern: bool,
    /// A directory of ours that is seen there instead of what is there.
    pub source: Option<PathBuf>,
}

impl PlannedPath {
    /// Where what is seen there comes from.
    pub(crate) fn origin(&self) -> &Path {
        self.source.as_deref().unwrap_or(&self.path)
    }
}

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathShape {
    /// A file, or a directory with everything below it.
    Tree,
    /// A link on the way to something with the access of the place.
    Link,
    /// A directory of the home that is written into the layer over it.
    Home,
}

/// Whose rights the sandbox's user has in a place, as far as the access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Those of any user.
    Others,
    /// Those of its owner, if the file system can map users.
    OwnersIfPossible,
    /// Those of its owner. Without them it is of no use.
    Owners,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confinement {
    pub level: Level,
    /// Outer places first.
    pub places: Vec<PlannedPath>,
    /// Patterns that deny.
    pub globs: Vec<Glob>,
    pub network: NetworkRule,
    pub identity: SandboxUser,
    /// What the cell sees as `/tmp`; without it, something that goes with the cell.
    pub temporary: Option<PathBuf>,
    /// Devices that are shown besides the harmless ones.
    pub devices: Vec<PathBuf>,
    pub home: Option<HomeLayer>,
}

/// The layer over the home of the executor's user. Paths are relative to the home unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HomeLayer {
    /// Absolute.
    pub home: PathBuf,
    /// An empty directory, absolute, on which the layer is put together.
    pub frame: PathBuf,
    /// Where what is written is kept, absolute; without it, in memory.
    pub store: Option<PathBuf>,
    /// How many bytes may be kept in memory.
    pub room: u64,
    pub directories: Vec<PathBuf>,
    pub hidden: Vec<PathBuf>,
    pub copies: Vec<FileCopy>,
}

/// A file that is shown with this text, whatever the home holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileCopy {
    pub path: PathBuf,
    pub text: Vec<u8>,
}

impl HomeLayer {
    fn encode(&self, out: &mut MessageWriter) {
        out.text(self.home.as_os_str());
        out.text(self.frame.as_os_str());
        out.text(self.store.as_deref().unwrap_or(Path::new("")).as_os_str());
        out.number(self.room);
        out.list(&self.directories, |out, path| out.text(path.as_os_str()));
        out.list(&self.hidden, |out, path| out.text(path.as_os_str()));
        out.list(&self.copies, |out, copy| {
            out.text(copy.path.as_os_str());
            out.text(OsStr::from_bytes(&copy.text));
        });
    }

    fn decode(input: &mut MessageReader<'_>) -> io::Result<Self> {
        Ok(Self {
            home: input.path()?,
            frame: input.path()?,
            store: Some(input.path()?).filter(|path| !path.as_os_str().is_empty()),
            room: input.number()?,
            directories: input.list(MessageReader::path)?,
            hidden: input.list(MessageReader::path)?,
            copies: input.list(|input| Ok(FileCopy { path: input.path()?, text: input.text()?.into_vec() }))?,
        })
    }
}

/// One limit of the kernel for every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rlimit {
    pub resource: u32,
    pub value: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CellPlan {
    /// Nothing: the cell is only looked after, not confined.
    pub confinement: Option<Confinement>,
    pub rlimits: Vec<Rlimit>,
    /// Files into which the cell writes itself to be limited together with the others of its session.
    pub cgroups: Vec<PathBuf>,
    /// Which shares of its session come with the plan.
    pub shares: u8,
}

impl CellPlan {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MessageWriter::default();
        out.list(&self.rlimits, |out, rlimit| {
            out.number(rlimit.resource.into());
            out.number(rlimit.value);
        });
        out.list(&self.cgroups, |out, path| out.text(path.as_os_str()));
        out.byte(self.shares);
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
            out.byte(place.shape as u8);
            out.byte(place.by_pattern.into());
            out.text(place.source.as_deref().unwrap_or(Path::new("")).as_os_str());
        });
        out.list(&confinement.globs, |out, glob| {
            out.text(glob.base().as_os_str());
            out.text(glob.pattern().as_ref());
        });
        out.byte(confinement.level as u8);
        out.byte((confinement.network == NetworkRule::Enabled).into());
        match confinement.identity {
            SandboxUser::Own => out.byte(0),
            SandboxUser::Mapped { id } => {
                out.byte(1);
                out.number(id.into());
            }
            SandboxUser::Named { uid, gid } => {
                out.byte(2);
                out.number(uid.into());
                out.number(gid.into());
            }
            SandboxUser::Owner { uid, gid, id } => {
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
        out.byte(confinement.home.is_some().into());
        if let Some(home) = &confinement.home {
            home.encode(&mut out);
        }
        out.list(&confinement.devices, |out, path| out.text(path.as_os_str()));
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        let id = |input: &mut MessageReader<'_>| u32::try_from(input.number()?).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        let rlimits = input.list(|input| Ok(Rlimit { resource: id(input)?, value: input.number()? }))?;
        let cgroups = input.list(MessageReader::path)?;
        let shares = input.byte()?;
        if input.byte()? == 0 {
            return Ok(Self { confinement: None, rlimits, cgroups, shares });
        }
        let places = input.list(|input| {
            let path = input.path()?;
            let access = match input.byte()? {
                0 => PathAccess::Deny,
                1 => PathAccess::Read,
                _ => PathAccess::Write,
            };
            let rights = match input.byte()? {
                0 => Rights::Others,
                1 => Rights::OwnersIfPossible,
                _ => Rights::Owners,
            };
            let fixed = input.byte()? == 1;
            let shape = match input.byte()? {
                0 => PathShape::Tree,
                1 => PathShape::Link,
                _ => PathShape::Home,
            };
            let by_pattern = input.byte()? == 1;
            let source = Some(input.path()?).filter(|source| !source.as_os_str().is_empty());
            Ok(PlannedPath { path, access, rights, fixed, shape, by_pattern, source })
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
        let network = if input.byte()? == 1 { NetworkRule::Enabled } else { NetworkRule::Restricted };
        let identity = match input.byte()? {
            0 => SandboxUser::Own,
            1 => SandboxUser::Mapped { id: id(&mut input)? },
            2 => SandboxUser::Named { uid: id(&mut input)?, gid: id(&mut input)? },
            _ => SandboxUser::Owner { uid: id(&mut input)?, gid: id(&mut input)?, id: id(&mut input)? },
        };
        let temporary = if input.byte()? == 1 { Some(input.path()?) } else { None };
        let home = if input.byte()? == 1 { Some(HomeLayer::decode(&mut input)?) } else { None };
        let devices = input.list(MessageReader::path)?;
        let confinement = Confinement { level, places, globs, network, identity, temporary, devices, home };
        Ok(Self { confinement: Some(confinement), rlimits, cgroups, shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, access: PathAccess, rights: Rights) -> PlannedPath {
        PlannedPath { path: path.into(), access, rights, fixed: true, shape: PathShape::Tree, by_pattern: false, source: None }
    }

    #[test]
    fn a_plan_survives_the_way() {
        let confinement = Confinement {
            level: Level::Mounts,
            places: vec![
                place("/", PathAccess::Read, Rights::OwnersIfPossible),
                PlannedPath { fixed: false, ..place("/w", PathAccess::Write, Rights::Owners) },
                PlannedPath { by_pattern: true, source: Some("/own/layer".into()), ..place("/w/.git", PathAccess::Deny, Rights::Others) },
                PlannedPath { shape: PathShape::Link, ..place("/w/link", PathAccess::Read, Rights::Others) },
                PlannedPath { shape: PathShape::Home, ..place("/home/u/.cache", PathAccess::Write, Rights::Others) },
            ],
            globs: vec![Glob::below(std::path::Path::new("/w/[x]"), "**/*.env").unwrap(), Glob::new("/a/*").unwrap()],
            network: NetworkRule::Enabled,
            identity: SandboxUser::Mapped { id: 7 },
            temporary: Some("/x".into()),
            home: Some(HomeLayer {
                home: "/home/u".into(),
                frame: "/own/frame".into(),
                store: Some("/own/store".into()),
                room: 7,
                directories: vec![".cache".into()],
                hidden: vec![".aws".into(), ".config/gh".into()],
                copies: vec![FileCopy { path: ".npmrc".into(), text: b"a=\xff\n".to_vec() }],
            }),
            devices: vec!["/dev/dri/card0".into()],
        };
        let plan = CellPlan {
            confinement: Some(confinement),
            rlimits: vec![Rlimit { resource: 7, value: u64::MAX }],
            cgroups: vec!["/sys/fs/cgroup/x/cgroup.procs".into()],
            shares: 5,
        };
        assert_eq!(CellPlan::decode(&plan.encode()).unwrap(), plan);
        let other = Confinement {
            level: Level::Full,
            places: Vec::new(),
            globs: Vec::new(),
            network: NetworkRule::Restricted,
            identity: SandboxUser::Owner { uid: 0, gid: 1, id: 2 },
            temporary: None,
            home: None,
            devices: Vec::new(),
        };
        let plan = CellPlan { confinement: Some(other), ..CellPlan::default() };
        assert_eq!(CellPlan::decode(&plan.encode()).unwrap(), plan);
        assert_eq!(CellPlan::decode(&CellPlan::default().encode()).unwrap(), CellPlan::default());
    }
}
