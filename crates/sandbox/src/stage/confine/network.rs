//! The namespaces of a cell. Cells of one session whose policies allow no network share one network that leads nowhere: what one
//! command serves on a loopback address, the next one reaches.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};

use super::{ConfineRefused, During, become_user};
use crate::level::{Level, off_switch};
use crate::plan::{Confinement, SandboxUser};
use crate::policy;
use crate::shares::Shares;
use crate::sys;

fn own(name: &str) -> Result<OwnedFd, ConfineRefused> {
    File::open(format!("/proc/self/ns/{name}")).map(OwnedFd::from).during("the namespaces of the sandbox")
}

/// Leaves the namespaces of the machine. Returns what other cells of the session may share.
pub(super) fn separate(confinement: &Confinement, mut shared: Shares) -> Result<Shares, ConfineRefused> {
    let mut rest = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if confinement.level == Level::Full {
        rest |= libc::CLONE_NEWPID;
    }
    let is_closed = confinement.network == policy::NetworkRule::Restricted;
    let flags = if is_closed { rest | libc::CLONE_NEWNET } else { rest };
    if matches!(confinement.identity, SandboxUser::Mapped { .. } | SandboxUser::Named { .. }) {
        let made = match &shared.network {
            Some(network) if is_closed && shared.users.is_none() => {
                sys::join(network.as_fd(), libc::CLONE_NEWNET).and_then(|()| sys::unshare(rest))
            }
            _ => sys::unshare(flags),
        };
        match (made, confinement.identity) {
            (Ok(()), _) if !is_closed => return Ok(shared),
            (Ok(()), _) if shared.network.is_some() && shared.users.is_none() => return Ok(shared),
            (Ok(()), _) => {
                open_loopback("0 2147483647");
                return Ok(Shares { network: Some(own("net")?), ..shared });
            }
            // With enough rights they are made as root, which drops them later; without, that user makes them.
            (Err(_), SandboxUser::Named { uid, gid }) => become_user(uid, gid)?,
            (Err(error), _) => {
                return Err(
                    format!("namespaces of its own cannot be made (root without CAP_SYS_ADMIN; name a --sandbox-user): {error}").into()
                );
            }
        }
    }
    // Root by another number, or another user without the rights of root.
    let inside = match confinement.identity {
        SandboxUser::Owner { uid: 0, id, .. } => Some(id),
        SandboxUser::Owner { uid, gid, .. } => {
            become_user(uid, gid)?;
            None
        }
        _ => None,
    };
    if let Some(users) = &shared.users {
        let network = shared.network.as_ref().filter(|_| is_closed);
        let joined = sys::join(users.as_fd(), libc::CLONE_NEWUSER).and_then(|()| match network {
            Some(network) => sys::join(network.as_fd(), libc::CLONE_NEWNET).and_then(|()| sys::unshare(rest)),
            None => sys::unshare(flags),
        });
        joined.during("the namespaces of the session cannot be joined")?;
        if is_closed && network.is_none() {
            let group = getegid().as_raw();
            open_loopback(&format!("{group} {group}"));
            shared.network = Some(own("net")?);
        }
        return Ok(shared);
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Otherwise the maps below would belong to root.
    set_dumpable_behavior(DumpableBehavior::Dumpable).during("dumpable")?;
    let made = sys::unshare(flags | libc::CLONE_NEWUSER).map_err(|error| match (off_switch(), error.raw_os_error()) {
        // A limit says ENOSPC, a switch does not.
        (Some((key, off, _)), code) if key.starts_with("user.") == (code == Some(libc::ENOSPC)) => {
            io::Error::other(format!("user namespaces are disabled ({key}={off})"))
        }
        // The kernel's word for it makes people look at their disks.
        (_, Some(libc::ENOSPC)) => io::Error::other("network namespaces are disabled (user.max_net_namespaces=0)"),
        _ => error,
    });
    made.during("namespaces of its own cannot be made")?;
    std::fs::write("/proc/self/setgroups", "deny").during("groups of the user namespace")?;
    let (inside_uid, inside_gid) = (inside.unwrap_or(uid), inside.unwrap_or(gid));
    std::fs::write("/proc/self/gid_map", format!("{inside_gid} {gid} 1")).during("groups of the user namespace")?;
    std::fs::write("/proc/self/uid_map", format!("{inside_uid} {uid} 1")).during("users of the user namespace")?;
    let users = Some(own("user")?);
    if !is_closed {
        return Ok(Shares { users, ..shared });
    }
    open_loopback(&format!("{inside_gid} {inside_gid}"));
    Ok(Shares { network: Some(own("net")?), users, ..shared })
}

/// 127.0.0.1 and ::1 of this network, and nothing else, can be used. `groups` may ask for echoes (`ping`), which needs no rights
/// then. Where this is refused (root without CAP_NET_ADMIN) the sandbox simply has no loopback.
fn open_loopback(groups: &str) {
    let _ = sys::bring_up_loopback();
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", groups);
}
