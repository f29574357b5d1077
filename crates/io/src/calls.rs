//! The system calls that a gateway goes on to make, as filters for the kernel.
//!
//! The list is an allow-list. It holds what the gateway and its libraries use while they
//! run, not what they use to start. Anything else fails with `EPERM`, and the kernel logs it where
//! audit is on. `clone3` fails with `ENOSYS`, so that the C library takes `clone`, whose flags can be looked at.
//!
//! Only processors that are named here have a list: others have other names for their calls.
//!
//! Source: seccomp(2). Why `EPERM` and not an end: `docs/decisions/privileges.md`.

use std::collections::BTreeMap;
use std::io;

use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::confine::Keeps;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Lets through what the list has.
///
/// # Errors
/// The filter is none, which a test would see.
pub(crate) fn allowed(keeps: Keeps) -> io::Result<BpfProgram> {
    let mut rules: Rules = CALLS
        .iter()
        .chain(OWN_CALLS)
        .map(|call| (*call, vec![]))
        .collect();
    // Threads, no processes and no namespaces.
    let thread = u64::try_from(libc::CLONE_THREAD).unwrap_or(0);
    rules.insert(
        libc::SYS_clone,
        vec![rule(&[(0, Qword, MaskedEq(thread), thread)])?],
    );
    // The other filter refuses it, with another number.
    rules.insert(libc::SYS_clone3, vec![]);
    rules.insert(libc::SYS_socket, sockets(keeps)?);
    let pairs = one_of(0, &[libc::AF_UNIX])?;
    rules.insert(libc::SYS_socketpair, pairs);
    rules.insert(libc::SYS_ioctl, one_of_requests(1, &REQUESTS)?);
    rules.insert(
        libc::SYS_prctl,
        one_of(0, &[libc::PR_SET_NAME, PR_SET_VMA])?,
    );
    // Signals and limits are for this process: others may have the same user.
    let own = number(rustix::process::getpid().as_raw_nonzero().get());
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, Dword, Eq, own)])?]);
    let this_or_own = [
        vec![rule(&[(0, Dword, Eq, 0)])?],
        vec![rule(&[(0, Dword, Eq, own)])?],
    ];
    rules.insert(libc::SYS_prlimit64, this_or_own.concat());
    // Memory that is code comes from files only.
    let exec = u64::try_from(libc::PROT_EXEC).unwrap_or(0);
    rules.insert(
        libc::SYS_mprotect,
        vec![rule(&[(2, Dword, MaskedEq(exec), 0)])?],
    );
    program(rules, SeccompAction::Errno(EPERM), SeccompAction::Allow)
}

/// Families of addresses and kinds of sockets, and protocols of netlink. No packet sockets, and raw ones only
/// for the probes of balancing: they see what is everybody's.
fn sockets(keeps: Keeps) -> io::Result<Vec<SeccompRule>> {
    /// `SOCK_TYPE_MASK` of the kernel: the rest are flags.
    const KIND: u64 = 0xf;
    let mut rules = one_of(0, &[libc::AF_UNIX])?;
    let mut kinds = vec![libc::SOCK_STREAM, libc::SOCK_DGRAM];
    if keeps == Keeps::Connections {
        kinds.push(libc::SOCK_RAW);
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in &kinds {
            rules.push(rule(&[
                (0, Dword, Eq, number(family)),
                (1, Dword, MaskedEq(KIND), number(*kind)),
            ])?);
        }
    }
    let mut protocols = vec![libc::NETLINK_ROUTE];
    if keeps == Keeps::Connections {
        protocols.extend([libc::NETLINK_NETFILTER, libc::NETLINK_SOCK_DIAG]);
    }
    for protocol in protocols {
        rules.push(rule(&[
            (0, Dword, Eq, number(libc::AF_NETLINK)),
            (2, Dword, Eq, number(protocol)),
        ])?);
    }
    Ok(rules)
}

/// Says of some calls that this kernel does not know them.
///
/// # Errors
/// The filter is none, which a test would see.
pub(crate) fn unknown_to_libraries() -> io::Result<BpfProgram> {
    lacking(libc::SYS_clone3)
}

/// As on a kernel that does not know the system call `number`.
///
/// # Errors
/// The filter is none, which a test would see.
pub(crate) fn lacking(number: libc::c_long) -> io::Result<BpfProgram> {
    let rules = [(number, vec![])].into();
    program(rules, SeccompAction::Allow, SeccompAction::Errno(ENOSYS))
}

fn program(rules: Rules, others: SeccompAction, these: SeccompAction) -> io::Result<BpfProgram> {
    let filter =
        SeccompFilter::new(rules, others, these, ARCHITECTURE).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

fn rule(conditions: &[Condition]) -> io::Result<SeccompRule> {
    let conditions = conditions.iter().map(|(argument, length, compare, value)| {
        SeccompCondition::new(*argument, length.clone(), compare.clone(), *value)
    });
    let conditions: Result<Vec<_>, _> = conditions.collect();
    conditions
        .and_then(SeccompRule::new)
        .map_err(io::Error::other)
}

fn one_of(argument: u8, values: &[libc::c_int]) -> io::Result<Vec<SeccompRule>> {
    let rules = values
        .iter()
        .map(|value| rule(&[(argument, Dword, Eq, number(*value))]));
    rules.collect()
}

fn one_of_requests(argument: u8, values: &[u32]) -> io::Result<Vec<SeccompRule>> {
    let rules = values
        .iter()
        .map(|value| rule(&[(argument, Dword, Eq, u64::from(*value))]));
    rules.collect()
}

fn number(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

const EPERM: u32 = libc::EPERM.cast_unsigned();
const ENOSYS: u32 = libc::ENOSYS.cast_unsigned();
/// `linux/prctl.h`: names of memory areas, which the C library sets.
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// Requests to devices and sockets: of the TUN interface, the number of an interface, and what libraries ask.
/// The kernel takes 32 bits of a request, which have another type in each C library.
const REQUESTS: [u32; 9] = [
    libc::TUNSETOFFLOAD as u32,
    libc::TUNSETVNETHDRSZ as u32,
    libc::SIOCGIFINDEX as u32,
    libc::SIOCGIFNAME as u32,
    libc::SIOCGIFMTU as u32,
    libc::FIONBIO as u32,
    libc::FIONREAD as u32,
    libc::FIOCLEX as u32,
    libc::TCGETS as u32,
];

/// System calls that every architecture has. In the order of the man pages' sections: memory, threads and
/// time; descriptors; files; sockets; the process itself.
const CALLS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    // How the helper ended.
    libc::SYS_wait4,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    // Descriptors.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // Files.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_umask,
    libc::SYS_getcwd,
    libc::SYS_copy_file_range,
    libc::SYS_utimensat,
    // Sockets.
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    // The process itself and the machine.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_capget,
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
/// Older forms of calls above, which the C library still uses here.
#[cfg(target_arch = "x86_64")]
const OWN_CALLS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];

#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "aarch64")]
const OWN_CALLS: &[i64] = &[];
