//! seccomp: system calls that sandboxed code has no business making.
//!
//! What is not named here is allowed: most of what would be dangerous needs rights that the sandbox does not have. Named
//! is what works without rights, or gives them (new user namespaces), and large parts of the kernel that were the way out
//! of other sandboxes.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter,
    sock_filter,
};

use super::{ConfineRefused, During};
use crate::level::Level;
use crate::policy::NetworkRule;
use crate::sys;

/// System calls that `libc` does not name for every C library and architecture.
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };
const FCHMODAT2: libc::c_long = 452;

/// Never, whatever the arguments.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_process_madvise,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Looking into another process. The kernel asks for the same of all of them: the other process must be of the same user, must be
/// dumpable, and must be in the same Landlock domain or in one below it.
const TRACING: &[libc::c_long] =
    &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_getfd, libc::SYS_kcmp];

/// Before this version a tracer could change a system call after the filter had seen it.
const TRACERS_ARE_FILTERED: (u32, u32) = (4, 8);

/// Whose processes sandboxed code may look into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracing {
    /// Those of its own sandbox.
    Own,
    None,
}

impl Tracing {
    /// What can be held to the processes of one sandbox: by its own process table, in which others have no number, or by Landlock,
    /// whose domains are per sandbox. Our own processes are in the same table and domain; they are kept out by not being dumpable.
    pub(super) fn held(level: Level, has_landlock: bool) -> Self {
        let is_separate = level == Level::Full || has_landlock;
        if is_separate && sys::kernel() >= TRACERS_ARE_FILTERED { Self::Own } else { Self::None }
    }
}

/// Said not to exist: programs then use an older call, whose arguments can be looked at.
const MISSING: &[libc::c_long] = &[
    // Its flags are behind a pointer.
    libc::SYS_clone3,
    // So are its mode and its flags.
    libc::SYS_openat2,
    // Calls made through a ring are not seen here.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const NEW_NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    // CLONE_NEWTIME, which only unshare takes; as a flag of clone it is part of the exit signal and stays without effect.
    0x80,
];

/// What types into a terminal of another process.
const INJECTION: [u64; 2] = [0x5412, 0x541c];

const SET_ID: [u64; 2] = [0o4000, 0o2000];
const O_CREAT: u64 = libc::O_CREAT as u64;
const O_TRUNC: u64 = libc::O_TRUNC as u64;
const O_TMPFILE: u64 = 0o20_000_000;

/// Families of sockets that do not lead out of a network namespace.
const LOCAL_FAMILIES: [u64; 4] = [libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What reaches others where there is no namespace of its own: memory and messages by number, and files by their names alone.
const SHARED: &[libc::c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Older versions of Landlock do not see it.
    libc::SYS_truncate,
];

/// Families of sockets that a sandbox without namespaces may use if its policy allows the network. Sockets with a path are not among
/// them: they lead to other programs of the machine, which hold to no policy.
const REMOTE_FAMILIES: [u64; 3] = [libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];

pub(super) fn install(network: NetworkRule, level: Level, tracing: Tracing) -> Result<(), ConfineRefused> {
    for program in [missing()?, forbidden(network, level, tracing)?] {
        apply_filter(&program).during("seccomp")?;
    }
    Ok(())
}

fn missing() -> Result<BpfProgram, ConfineRefused> {
    let rules = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    let mut program = compile(rules, libc::ENOSYS)?;
    if cfg!(target_arch = "x86_64") {
        // The calls of a second interface that x86 has beside its own.
        let refuse = 0x0005_0000 | u32::try_from(libc::ENOSYS).unwrap_or_default();
        let alike = [
            sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 },
            sock_filter { code: 0x06, jt: 0, jf: 0, k: refuse },
        ];
        program.splice(0..0, alike);
    }
    Ok(program)
}

fn forbidden(network: NetworkRule, level: Level, tracing: Tracing) -> Result<BpfProgram, ConfineRefused> {
    let shared = SHARED.iter().filter(|_| level == Level::Landlock);
    let looking = TRACING.iter().filter(|_| tracing == Tracing::None);
    let mut rules: Rules = FORBIDDEN.iter().chain(shared).chain(looking).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_perf_event_open, measuring(tracing)?);
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        let flags = NEW_NAMESPACES.iter().filter(|flag| **flag != 0x80 || call == libc::SYS_unshare);
        let flags = flags.map(|flag| u64::from(flag.cast_unsigned()));
        rules.insert(call, flags.map(|flag| rule(&[has(0, flag)])).collect::<Result<_, _>>()?);
    }
    rules.insert(libc::SYS_ioctl, INJECTION.iter().map(|request| rule(&[is(1, *request)])).collect::<Result<_, _>>()?);
    set_id(&mut rules)?;
    if level < Level::Full {
        // The limits of others; one's own are number 0.
        rules.insert(libc::SYS_prlimit64, vec![rule(&[differs(0, 0)])?]);
    }
    if level == Level::Landlock {
        without_namespaces(&mut rules, network)?;
    } else if network == NetworkRule::Restricted {
        let others: Vec<_> = LOCAL_FAMILIES.iter().map(|family| differs(0, *family)).collect();
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            rules.insert(call, vec![rule(&others)?]);
        }
    }
    compile(rules, libc::EPERM)
}

/// Which events may not be counted. Of one process the kernel asks for the same as of tracing it; those of a processor or of a group
/// are also other people's, and some machines let every user count them.
fn measuring(tracing: Tracing) -> Result<Vec<SeccompRule>, ConfineRefused> {
    const OF_A_GROUP: u64 = 1 << 2;
    let all_processes = u64::from(u32::MAX);
    match tracing {
        Tracing::None => Ok(Vec::new()),
        Tracing::Own => Ok(vec![rule(&[is(1, all_processes)])?, rule(&[has(4, OF_A_GROUP)])?]),
    }
}

fn without_namespaces(rules: &mut Rules, network: NetworkRule) -> Result<(), ConfineRefused> {
    let families: &[u64] = if network == NetworkRule::Enabled { &REMOTE_FAMILIES } else { &[] };
    let others: Vec<_> = families.iter().map(|family| differs(0, *family)).collect();
    rules.insert(libc::SYS_socket, if others.is_empty() { Vec::new() } else { vec![rule(&others)?] });
    rules.insert(libc::SYS_socketpair, vec![rule(&[differs(0, libc::AF_UNIX as u64)])?]);
    // Emptying a file without being allowed to write it.
    let emptying = |flags: u8| rule(&[has(flags, O_TRUNC), condition(flags, SeccompCmpOp::MaskedEq(3), 0)]);
    rules.entry(libc::SYS_openat).or_default().push(emptying(2)?);
    #[cfg(target_arch = "x86_64")]
    rules.entry(libc::SYS_open).or_default().push(emptying(1)?);
    Ok(())
}

/// A file made inside belongs to another user outside: it must not lend that user's rights.
fn set_id(rules: &mut Rules) -> Result<(), ConfineRefused> {
    let with_mode = |argument: u8| SET_ID.iter().map(|bit| rule(&[has(argument, *bit)])).collect::<Result<Vec<_>, _>>();
    for (call, argument) in [(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (FCHMODAT2, 2), (libc::SYS_mknodat, 2)] {
        rules.insert(call, with_mode(argument)?);
    }
    let opening = |flags: u8, mode: u8| {
        let makes = [O_CREAT, O_TMPFILE];
        makes.iter().flat_map(|make| SET_ID.iter().map(|bit| rule(&[has(flags, *make), has(mode, *bit)]))).collect::<Result<Vec<_>, _>>()
    };
    rules.insert(libc::SYS_openat, opening(2, 3)?);
    #[cfg(target_arch = "x86_64")]
    {
        for (call, argument) in [(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)] {
            rules.insert(call, with_mode(argument)?);
        }
        rules.insert(libc::SYS_open, opening(1, 2)?);
    }
    Ok(())
}

fn compile(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, ConfineRefused> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).during("seccomp on this kind of machine")?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).and_then(BpfProgram::try_from).during("seccomp")
}

fn rule(conditions: &[Result<SeccompCondition, ConfineRefused>]) -> Result<SeccompRule, ConfineRefused> {
    let conditions = conditions.iter().cloned().collect::<Result<_, _>>()?;
    SeccompRule::new(conditions).during("seccomp")
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, ConfineRefused> {
    // The kernel, too, looks at the lower half only of what is an int for it.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value).during("seccomp")
}

fn has(argument: u8, bit: u64) -> Result<SeccompCondition, ConfineRefused> {
    condition(argument, SeccompCmpOp::MaskedEq(bit), bit)
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, ConfineRefused> {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn differs(argument: u8, value: u64) -> Result<SeccompCondition, ConfineRefused> {
    condition(argument, SeccompCmpOp::Ne, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_made() {
        assert!(missing().is_ok());
        for network in [NetworkRule::Restricted, NetworkRule::Enabled] {
            for level in crate::level::LEVELS {
                for tracing in [Tracing::Own, Tracing::None] {
                    assert!(forbidden(network, level, tracing).is_ok());
                }
            }
        }
    }

    #[test]
    fn tracing_needs_something_that_keeps_others_out() {
        assert_eq!(Tracing::held(Level::Full, false), Tracing::Own);
        assert_eq!(Tracing::held(Level::Mounts, true), Tracing::Own);
        assert_eq!(Tracing::held(Level::Mounts, false), Tracing::None);
        assert_eq!(Tracing::held(Level::Landlock, false), Tracing::None);
    }
}
