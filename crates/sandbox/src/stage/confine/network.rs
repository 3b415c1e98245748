//! The namespaces of a cell. Cells of one session whose policies allow no network share one network that leads nowhere: what one
//! command serves on a loopback address, the next one reaches.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};

use super::{During, Refused, become_user};
use crate::level::Level;
use crate::plan::{Confinement, Identity};
use crate::policy;
use crate::sys;

/// A network namespace, and the user namespace that it belongs to unless that is the machine's.
#[derive(Debug, Default)]
pub struct Network {
    namespace: Option<OwnedFd>,
    users: Option<OwnedFd>,
}

impl Network {
    /// As they come with an order; none at all means that there is no such network yet.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Self {
        let mut descriptors = descriptors.into_iter();
        Self { namespace: descriptors.next(), users: descriptors.next() }
    }

    /// The same, to be sent.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.namespace.iter().chain(&self.users).map(AsFd::as_fd).collect()
    }

    fn own(users: bool) -> Result<Self, Refused> {
        let open = |name: &str| File::open(format!("/proc/self/ns/{name}")).map(OwnedFd::from).during("the network of the sandbox");
        Ok(Self { namespace: Some(open("net")?), users: if users { Some(open("user")?) } else { None } })
    }
}

/// Leaves the namespaces of the machine. Returns the network of this cell if others may share it.
pub fn separate(confinement: &Confinement, shared: Network) -> Result<Network, Refused> {
    let mut rest = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if confinement.level == Level::Full {
        rest |= libc::CLONE_NEWPID;
    }
    let is_closed = confinement.network == policy::Network::Restricted;
    let flags = if is_closed { rest | libc::CLONE_NEWNET } else { rest };
    if matches!(confinement.identity, Identity::Mapped { .. } | Identity::Named { .. }) {
        let made = match &shared.namespace {
            Some(network) if is_closed && shared.users.is_none() => {
                sys::join(network.as_fd(), libc::CLONE_NEWNET).and_then(|()| sys::unshare(rest))
            }
            _ => sys::unshare(flags),
        };
        match (made, confinement.identity) {
            (Ok(()), _) if !is_closed => return Ok(Network::default()),
            (Ok(()), _) if shared.namespace.is_some() && shared.users.is_none() => return Ok(shared),
            (Ok(()), _) => {
                open_loopback("0 2147483647");
                return Network::own(false);
            }
            // With enough rights they are made as root, which drops them later; without, that user makes them.
            (Err(_), Identity::Named { uid, gid }) => become_user(uid, gid)?,
            (Err(error), _) => {
                return Err(
                    format!("namespaces of its own cannot be made (root without CAP_SYS_ADMIN; name a --sandbox-user): {error}").into()
                );
            }
        }
    }
    // Root by another number, or somebody else without the rights of root.
    let inside = match confinement.identity {
        Identity::Owner { uid: 0, id, .. } => Some(id),
        Identity::Owner { uid, gid, .. } => {
            become_user(uid, gid)?;
            None
        }
        _ => None,
    };
    if let (Some(network), Some(users), true) = (&shared.namespace, &shared.users, is_closed) {
        sys::join(users.as_fd(), libc::CLONE_NEWUSER)
            .and_then(|()| sys::join(network.as_fd(), libc::CLONE_NEWNET))
            .and_then(|()| sys::unshare(rest))
            .during("the network of the session cannot be joined")?;
        return Ok(shared);
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Otherwise the maps below would belong to root.
    set_dumpable_behavior(DumpableBehavior::Dumpable).during("dumpable")?;
    let made = sys::unshare(flags | libc::CLONE_NEWUSER).map_err(|error| match error.raw_os_error() {
        // The kernel's word for it makes people look at their disks.
        Some(libc::ENOSPC) => io::Error::other("the number of namespaces is limited to none"),
        _ => error,
    });
    made.during("namespaces of its own cannot be made (user namespaces are off here)")?;
    std::fs::write("/proc/self/setgroups", "deny").during("groups of the user namespace")?;
    let (inside_uid, inside_gid) = (inside.unwrap_or(uid), inside.unwrap_or(gid));
    std::fs::write("/proc/self/gid_map", format!("{inside_gid} {gid} 1")).during("groups of the user namespace")?;
    std::fs::write("/proc/self/uid_map", format!("{inside_uid} {uid} 1")).during("users of the user namespace")?;
    if !is_closed {
        return Ok(Network::default());
    }
    open_loopback(&format!("{inside_gid} {inside_gid}"));
    Network::own(true)
}

/// 127.0.0.1 and ::1 of this network, and nothing else, can be used. `groups` may ask for echoes (`ping`), which needs no rights
/// then. Where this is refused (root without CAP_NET_ADMIN) the sandbox simply has no loopback.
fn open_loopback(groups: &str) {
    let _ = sys::bring_up_loopback();
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", groups);
}
