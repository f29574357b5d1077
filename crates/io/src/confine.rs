//! Gives up what a gateway does not need once its helper is there: capabilities, and system calls.
//!
//! The list of system calls is an allow-list. It holds what the gateway and its libraries use while they
//! run, not what they use to start. Anything else fails with `EPERM`, and the kernel logs it where
//! audit is on. `clone3` fails with `ENOSYS`, so that the C library takes `clone`, whose flags can be looked at.
//!
//! Invariant: no program is started, no process is made, no other process is looked into or gets a
//! signal, no other process of the same user looks into this one, and no socket is opened that sees
//! packets of others.
//!
//! Sources: capabilities(7), seccomp(2). Why `EPERM` and not an end: `docs/decisions/privileges.md`.

use std::collections::BTreeMap;
use std::io;

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::sys;

/// What a gateway goes on to change of the network by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing: the helper does it.
    Nothing,
    /// The kernel's table of connections and TCP sockets of this machine, as balancing does. The kernel
    /// has one right for these and for the whole network (`CAP_NET_ADMIN`).
    Connections,
}

/// Gives up the capabilities that are not needed any more. The process of root keeps the rights to its
/// files, wherever those are; another user has none to give up.
///
/// # Errors
/// The kernel refuses.
pub fn drop_capabilities(keeps: Keeps) -> io::Result<()> {
    let mut kept = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    if keeps == Keeps::Connections {
        kept |= CapabilitySet::NET_ADMIN;
    }
    if rustix::process::geteuid().is_root() {
        kept |= CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    }
    // Kernels before 4.3 have no ambient set.
    let _ = rustix::thread::clear_ambient_capability_set();
    let mut sets = capabilities(None)?;
    sets.permitted &= kept;
    sets.effective = sets.permitted;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Keeps other processes of the same user from tracing this one, from reading its memory and from taking
/// its descriptors. Those that it makes are as it is. It leaves no core file, which would hold keys.
///
/// Source: ptrace(2), `PR_SET_DUMPABLE` in prctl(2).
///
/// # Errors
/// The kernel refuses.
pub fn shut_others_out() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::NotDumpable,
    )?)
}

/// Restricts this thread, and those that it makes, to the system calls of the list. False where the
/// processor has no list.
///
/// # Errors
/// The kernel refuses, or has no seccomp.
pub fn restrict_calls(keeps: Keeps) -> io::Result<bool> {
    let Some((arch, _)) = ARCHITECTURE else {
        return Ok(false);
    };
    rustix::thread::set_no_new_privs(true)?;
    // The list is the last: it lets no further filter in. Of two filters the stricter answer counts.
    sys::add_filter(&unknown_to_libraries(arch)?)?;
    sys::add_filter(&allowed(arch, keeps)?)?;
    Ok(true)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn allowed(arch: TargetArch, keeps: Keeps) -> io::Result<BpfProgram> {
    let own = ARCHITECTURE.map(|(_, calls)| calls).unwrap_or_default();
    let mut rules: Rules = CALLS
        .iter()
        .chain(own)
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
    rules.insert(libc::SYS_ioctl, one_of_long(1, &REQUESTS)?);
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
    program(
        rules,
        SeccompAction::Errno(EPERM),
        SeccompAction::Allow,
        arch,
    )
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

fn unknown_to_libraries(arch: TargetArch) -> io::Result<BpfProgram> {
    let rules = [(libc::SYS_clone3, vec![])].into();
    program(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(ENOSYS),
        arch,
    )
}

fn program(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
    arch: TargetArch,
) -> io::Result<BpfProgram> {
    let filter = SeccompFilter::new(rules, others, these, arch).map_err(io::Error::other)?;
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

fn one_of_long(argument: u8, values: &[libc::Ioctl]) -> io::Result<Vec<SeccompRule>> {
    // The kernel takes 32 bits of a request.
    let rules = values
        .iter()
        .map(|value| rule(&[(argument, Dword, Eq, value & 0xffff_ffff)]));
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
const REQUESTS: [libc::Ioctl; 9] = [
    libc::TUNSETOFFLOAD,
    libc::TUNSETVNETHDRSZ,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFNAME,
    libc::SIOCGIFMTU,
    libc::FIONBIO,
    libc::FIONREAD,
    libc::FIOCLEX,
    libc::TCGETS,
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
const ARCHITECTURE: Option<(TargetArch, &[i64])> = Some((
    TargetArch::x86_64,
    // Older forms of calls above, which the C library still uses here.
    &[
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
    ],
));

#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<(TargetArch, &[i64])> = Some((TargetArch::aarch64, &[]));

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<(TargetArch, &[i64])> = None;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use socket2::{Domain, Protocol, Socket, Type};

    fn number_of<T>(result: io::Result<T>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    /// A filter is for one thread and those that it makes: the test's process stays as it is.
    fn restricted<T: Send>(keeps: Keeps, work: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let is_restricted = restrict_calls(keeps).expect("a kernel with seccomp");
                is_restricted.then(work)
            });
            thread.join().expect("the thread ends")
        })
    }

    fn raw(domain: libc::c_int, protocol: libc::c_int) -> io::Result<Socket> {
        Socket::new(
            Domain::from(domain),
            Type::RAW,
            Some(Protocol::from(protocol)),
        )
    }

    #[test]
    fn calls_that_a_gateway_does_not_make_fail_and_are_not_carried_out() {
        let failed = restricted(Keeps::Nothing, || {
            let calls = [
                libc::SYS_ptrace,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_bpf,
                libc::SYS_mount,
                libc::SYS_init_module,
                libc::SYS_process_vm_readv,
                libc::SYS_io_uring_setup,
                libc::SYS_userfaultfd,
                libc::SYS_perf_event_open,
                libc::SYS_setuid,
                libc::SYS_chroot,
                libc::SYS_kill,
                // With zeros, to a process that is not this one.
                libc::SYS_tgkill,
                libc::SYS_keyctl,
            ];
            let calls = calls.map(|call| (call, number_of(sys::bare_call(call))));
            let program = number_of(Command::new("/bin/true").spawn());
            let instead = Command::new("/bin/false").exec().raw_os_error();
            let sockets = [
                number_of(raw(libc::AF_PACKET, 0)),
                number_of(raw(libc::AF_INET, libc::IPPROTO_ICMP)),
                number_of(raw(libc::AF_NETLINK, libc::NETLINK_NETFILTER)),
            ];
            let clone3 = number_of(sys::bare_call(libc::SYS_clone3));
            (calls, [program, instead], sockets, clone3)
        });
        let Some((calls, programs, sockets, clone3)) = failed else {
            eprintln!("skipped: no list for this processor");
            return;
        };
        for (call, number) in calls {
            assert_eq!(number, Some(libc::EPERM), "system call {call}");
        }
        assert_eq!(programs, [Some(libc::EPERM); 2]);
        assert_eq!(sockets, [Some(libc::EPERM); 3]);
        assert_eq!(clone3, Some(libc::ENOSYS));
    }

    #[test]
    fn what_a_gateway_does_goes_on() {
        let directory = std::env::temp_dir().join(format!("confine-{}", std::process::id()));
        restricted(Keeps::Connections, || {
            UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            assert!(files.current.is_some_and(|count| count > 0), "own limits");
            raw(libc::AF_NETLINK, libc::NETLINK_ROUTE).expect("interfaces are followed");
            // Balancing looks connections up itself; others do not.
            raw(libc::AF_NETLINK, libc::NETLINK_NETFILTER).expect("connections are looked up");
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(1)))
                .join()
                .expect("threads are made");
            std::fs::create_dir(&directory).expect("files are written");
            std::fs::write(directory.join("a"), "a").expect("written");
            std::fs::rename(directory.join("a"), directory.join("b")).expect("renamed");
            std::fs::remove_dir_all(&directory).expect("removed");
            let names = std::net::ToSocketAddrs::to_socket_addrs("localhost:80");
            assert!(names.expect("names are looked up").count() > 0);
        });
    }
}
