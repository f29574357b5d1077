//! Gives up what a gateway does not need once its helper is there: capabilities, and system calls.
//!
//! The list of system calls is that of `calls`.
//!
//! Invariant: no program is started, no process is made, no other process is looked into or gets a
//! signal, no other process of the same user looks into this one, and no socket is opened that sees
//! packets of others.
//!
//! Sources: capabilities(7), seccomp(2). Why `EPERM` and not an end: `docs/decisions/privileges.md`.

use std::io;

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn restrict_calls(keeps: Keeps) -> io::Result<bool> {
    rustix::thread::set_no_new_privs(true)?;
    // The list is the last: it lets no further filter in. Of two filters the stricter answer counts.
    crate::sys::add_filter(&crate::calls::unknown_to_libraries()?)?;
    crate::sys::add_filter(&crate::calls::allowed(keeps)?)?;
    Ok(true)
}

/// Says that the processor has no list: its system calls have other names.
///
/// # Errors
/// None.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn restrict_calls(_: Keeps) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
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
