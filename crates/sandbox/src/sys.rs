//! The few system calls that cannot be made safely from the outside. The only file of the workspace with `unsafe`.
//!
//! Everything here is called by the stages, which are processes with a single thread, unless said otherwise.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which side of a fork this is.
pub(crate) enum Fork {
    Parent(Pid),
    Child,
}

/// Forks a process that has a single thread; refuses if there are more.
pub(crate) fn fork() -> io::Result<Fork> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|count| count > 1) {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    // SAFETY: there is no other thread, so the child owns every lock and all memory is in a state that this thread left.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => Fork::Parent(pid),
        None => Fork::Child,
    })
}

/// Ends this process at once, without running what was registered for its end: a forked child must not do that.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: it takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Signals that a stage hears by reading instead of being interrupted.
pub(crate) struct SignalReader {
    mask: libc::sigset_t,
    descriptor: OwnedFd,
}

/// What a stage does when it is asked to end.
extern "C" fn nothing(_signal: i32) {}

/// Told to a stage when its parent is gone. Not one that programs send by mistake.
pub(crate) const PARENT_GONE: i32 = 50;

impl SignalReader {
    /// Blocks and listens to the end of children and of the parent. Every other signal gets its usual meaning back, except that a
    /// stage is not ended by what is sent to all processes when a job, a unit or a session ends: the executor ends it, after all processes
    /// was told how the programs ended. A handler, because that is not inherited by what is started.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set, the others only change it; the only handler does nothing at all.
        let mask = unsafe {
            libc::sigemptyset(mask.as_mut_ptr());
            let mut mask = mask.assume_init();
            for number in 1..32 {
                if number != libc::SIGPIPE {
                    libc::signal(number, libc::SIG_DFL);
                }
            }
            for number in [libc::SIGTERM, libc::SIGHUP] {
                libc::signal(number, nothing as extern "C" fn(i32) as libc::sighandler_t);
            }
            libc::sigaddset(&mut mask, libc::SIGCHLD);
            libc::sigaddset(&mut mask, PARENT_GONE);
            mask
        };
        // SAFETY: the set is initialised; the descriptor is new and owned by this value alone.
        let descriptor = unsafe {
            let raw = check(libc::signalfd(-1, &mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
            OwnedFd::from_raw_fd(raw as RawFd)
        };
        let signals = Self { mask, descriptor };
        signals.block()?;
        Ok(signals)
    }

    /// In a forked child that runs no other program: signals that a stage survives end it, as they would end a program.
    pub(crate) fn usual_ends() {
        // SAFETY: no handler is installed.
        unsafe {
            for number in [libc::SIGTERM, libc::SIGHUP] {
                libc::signal(number, libc::SIG_DFL);
            }
        }
    }

    fn block(&self) -> io::Result<()> {
        // SAFETY: the set is initialised, and the old one is not asked for.
        check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) }.into())?;
        Ok(())
    }

    /// Runs something with no signal blocked: what is started in there inherits that.
    pub(crate) fn unblocked<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let mut none = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set, which is then only read.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            check(libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()).into())?;
        }
        let result = work();
        self.block()?;
        Ok(result)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.descriptor.as_fd()
    }

    /// Takes what has come. True if the parent is gone.
    pub(crate) fn take(&self) -> bool {
        let mut parent_is_gone = false;
        let mut buffer = [0_u8; 128 * 8];
        while let Ok(length) = rustix::io::read(&self.descriptor, &mut buffer) {
            // Each is 128 bytes and begins with the signal's number.
            for one in buffer[..length].chunks_exact(128) {
                let number = one.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
                parent_is_gone |= number == Some(PARENT_GONE as u32);
            }
        }
        parent_is_gone
    }
}

/// Closes every descriptor but the three streams and this one. For a forked child that ends with [`exit`], so that no owner of a
/// closed one is ever dropped.
pub(crate) fn close_all_but(kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = kept.as_raw_fd();
    if kept > 3 {
        // SAFETY: it takes numbers only; what owns these descriptors is not used any more and never dropped.
        check(unsafe { libc::syscall(libc::SYS_close_range, 3, kept - 1, 0) })
            .or_else(|_| close_listed(|number| (3..kept).contains(&number)))?;
    }
    close_all_from(kept + 1)
}

/// Closes those of the open descriptors that are meant, on a kernel that does not know ranges.
fn close_listed(is_meant: impl Fn(RawFd) -> bool) -> io::Result<libc::c_long> {
    let open: Vec<RawFd> =
        std::fs::read_dir("/proc/self/fd")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| is_meant(*number)) {
        // SAFETY: as with ranges. The one that the list was read through is closed already, which only gives an error.
        unsafe { libc::close(number) };
    }
    Ok(0)
}

/// Closes every descriptor from this number on. Called before anything was opened, so none of them is in use here.
pub(crate) fn close_all_from(first: RawFd) -> io::Result<()> {
    // SAFETY: it takes numbers only; nothing in this process owns one of these descriptors yet.
    let closed = check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) });
    closed.or_else(|_| close_listed(|number| number >= first)).map(drop)
}

/// Asks to be told when the parent is gone.
pub(crate) fn hear_of_parents_end() -> io::Result<()> {
    // SAFETY: this prctl takes a number.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, PARENT_GONE, 0, 0, 0) }.into())?;
    Ok(())
}

/// The child will lead a session of its own, with its standard input as the terminal that controls it.
pub(crate) fn take_terminal(command: &mut Command) {
    let take = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        Ok(())
    };
    // SAFETY: both calls are plain system calls, which may be made between fork and exec.
    unsafe { command.pre_exec(take) };
}

/// Leaves these namespaces for new ones.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes flags only, and there is no other thread that could be surprised.
    check(unsafe { libc::unshare(flags) }.into())?;
    Ok(())
}

/// Lets a child go that made us its tracer, with the signal that it stopped for.
pub(crate) fn stop_tracing(child: Pid, signal: Option<i32>) {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    let signal = std::ptr::without_provenance_mut::<libc::c_void>(usize::try_from(signal.unwrap_or(0)).unwrap_or(0));
    // SAFETY: this request takes two numbers in the place of pointers. It fails if the child is gone, and then there is nothing to do.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, child.as_raw_nonzero().get(), nothing, signal) };
}

/// The version of the running kernel; 0.0 if that cannot be told. May be called from any thread.
pub(crate) fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    (parts.next().flatten().unwrap_or(0), parts.next().flatten().unwrap_or(0))
}

/// Goes over into a namespace of another process.
pub(crate) fn join(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes a descriptor and a flag, and there is no other thread that could be surprised.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into())?;
    Ok(())
}

/// Switches the loopback device of this network namespace on; its addresses come with that.
pub(crate) fn bring_up_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // Whether it has a sign depends on the architecture.
    let mut name: [libc::c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    for (at, byte) in name.iter_mut().zip(b"lo") {
        *at = *byte as libc::c_char;
    }
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let request = libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: the structure is valid for reads, has a name that ends with a zero, and is not kept by the kernel.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, std::ptr::from_ref(&request)) }.into())?;
    Ok(())
}

/// Changes what a mount, or a whole tree of them, allows.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, attributes: &libc::mount_attr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty string, the structure is valid for reads of the size that is told.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Numbers of limits, as the kernel counts them on all architectures that we run on. The constants of `libc` have another type with
/// every C library.
pub(crate) mod rlimit {
    pub(crate) const CPU: u32 = 0;
    pub(crate) const FSIZE: u32 = 1;
    pub(crate) const CORE: u32 = 4;
    pub(crate) const NPROC: u32 = 6;
    pub(crate) const NOFILE: u32 = 7;
}

/// Limits this process and all that it starts; never beyond what it may have already.
pub(crate) fn set_rlimit(resource: u32, value: u64) -> io::Result<()> {
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let nothing = std::ptr::null::<libc::rlimit64>();
    // SAFETY: the old limit is valid for writes, and a null pointer sets nothing.
    check(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, nothing, std::ptr::from_mut(&mut old)) })?;
    let value = value.min(old.rlim_max);
    let new = libc::rlimit64 { rlim_cur: value, rlim_max: value };
    // SAFETY: the new limit is valid for reads, and a null pointer asks for nothing.
    check(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, std::ptr::from_ref(&new), std::ptr::null_mut::<libc::rlimit64>()) })?;
    Ok(())
}

/// Which version of Landlock this kernel has; none is 0. May be called from any thread.
pub(crate) fn landlock_version() -> i64 {
    const CREATE_RULESET: libc::c_long = 444;
    const VERSION: libc::c_uint = 1;
    // SAFETY: asked for the version only, the kernel reads no memory.
    unsafe { libc::syscall(CREATE_RULESET, std::ptr::null::<libc::c_void>(), 0_usize, VERSION) }.max(0)
}

/// Gives memory that was freed back to the system, where the allocator would keep it for later.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of the program file that are only read. Each comes back from the page cache when it is used again; until then the
/// system may drop it sooner than one that is mapped.
pub fn give_back_program() {
    // SAFETY: the function below is of the type that is asked for, and nothing is passed on to it.
    unsafe { libc::dl_iterate_phdr(Some(give_back_segments), std::ptr::null_mut()) };
}

/// The first object is the program itself.
unsafe extern "C" fn give_back_segments(object: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> libc::c_int {
    const STOP: libc::c_int = 1;
    // SAFETY: the loader passes an object that is valid during this call.
    let Some(object) = (unsafe { object.as_ref() }) else { return STOP };
    if object.dlpi_phdr.is_null() {
        return STOP;
    }
    // SAFETY: the loader tells where the headers are and how many; they stay as long as the program.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    // SAFETY: it takes no pointer.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return STOP };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0) {
        let (Ok(base), Ok(offset), Ok(length)) =
            (usize::try_from(object.dlpi_addr), usize::try_from(header.p_vaddr), usize::try_from(header.p_memsz))
        else {
            continue;
        };
        let start = base.wrapping_add(offset);
        let (first, end) = (start & !(page - 1), start.wrapping_add(length).next_multiple_of(page));
        // SAFETY: the segment is mapped from the file and cannot be written to, so what is read again is what was there.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(first), end - first, libc::MADV_DONTNEED) };
    }
    STOP
}
