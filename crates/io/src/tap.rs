//! An Ethernet interface in any network namespace whose wire is this process (TAP).
//!
//! The interface belongs to the namespace it was made in; the descriptor works from anywhere and
//! carries one whole Ethernet frame per read and write. It vanishes with the descriptor.
//! Source: Linux `Documentation/networking/tuntap.rst`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::netns::{Namespace, NamespaceError};
use crate::{netlink, sys};

/// How to make an Ethernet interface.
#[derive(Clone, Debug)]
pub struct TapConfig {
    /// Interface name, 1 to 15 bytes.
    pub name: String,
    /// MTU in bytes, 68..=[`MTU_MAX`] (1280 and more for IPv6).
    pub mtu: u32,
    /// Addresses with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Largest MTU of an Ethernet interface of this kind.
pub const MTU_MAX: u32 = 65_521;
/// Smallest MTU Linux accepts.
pub const MTU_MIN: u32 = 68;
/// Bytes of an Ethernet header without VLAN tag.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// Why an Ethernet interface could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// `/dev/net/tun` is missing.
    #[error("/dev/net/tun is missing: load the kernel module with `modprobe tun`")]
    NoDevice,
    /// The process may not create network interfaces.
    #[error("creating the interface {0} needs CAP_NET_ADMIN: run as root")]
    NotPermitted(String),
    /// The namespace has an interface of this name.
    #[error("{namespace} already has an interface {name}: choose another name or remove that one")]
    NameTaken {
        /// Interface name.
        name: String,
        /// Namespace.
        namespace: String,
    },
    /// The name is empty, too long or has characters interfaces cannot have.
    #[error("{0:?} is no interface name: 1 to 15 bytes without space, `/`, `:` or `%`")]
    BadName(String),
    /// The MTU is out of range.
    #[error("an MTU of {0} is not possible: use {MTU_MIN} to {MTU_MAX}")]
    BadMtu(u32),
    /// The namespace cannot be used.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The interface could not be configured.
    #[error(transparent)]
    Netlink(#[from] netlink::NetlinkError),
    /// Another system call failed.
    #[error("{step} the interface {name}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Interface name.
        name: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// An Ethernet interface that is up; non-blocking.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
}

impl Tap {
    /// Makes the interface in `namespace`, gives it MTU and addresses and sets it up.
    ///
    /// The interface skips duplicate address detection, so that its addresses work at once.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn create(namespace: &Namespace, config: &TapConfig) -> Result<Self, TapError> {
        let bad = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
        if config.name.is_empty() || config.name.len() > 15 || config.name.contains(bad) {
            return Err(TapError::BadName(config.name.clone()));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&config.mtu) {
            return Err(TapError::BadMtu(config.mtu));
        }
        namespace.enter(|| {
            let fd = open(namespace, config)?;
            configure(config)?;
            Ok(Self {
                fd,
                name: config.name.clone(),
            })
        })?
    }

    /// Interface name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one Ethernet frame; `None` when there is none now.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes one Ethernet frame, which the namespace receives; `false` when it refused it
    /// (interface down, no memory).
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        loop {
            match rustix::io::write(&self.fd, frame) {
                Ok(_) => return Ok(true),
                // EIO: the interface is down. EINVAL: no frame the kernel would take.
                Err(Errno::IO | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INVAL) => {
                    return Ok(false);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(namespace: &Namespace, config: &TapConfig) -> Result<OwnedFd, TapError> {
    let name = || config.name.clone();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDevice,
            Errno::ACCESS | Errno::PERM => TapError::NotPermitted(name()),
            errno => TapError::Io {
                step: "opening /dev/net/tun for",
                name: name(),
                source: errno.into(),
            },
        })?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    sys::tun_set_interface(fd.as_fd(), &config.name, flags).map_err(|source| {
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => TapError::NameTaken {
                name: name(),
                namespace: namespace.name().into(),
            },
            Some(libc::EPERM) => TapError::NotPermitted(name()),
            _ => TapError::Io {
                step: "creating",
                name: name(),
                source,
            },
        }
    })?;
    Ok(fd)
}

/// MTU, addresses and up, in the calling thread's namespace.
fn configure(config: &TapConfig) -> Result<(), TapError> {
    let fail = |step, source| TapError::Io {
        step,
        name: config.name.clone(),
        source,
    };
    let index = interface_index(&config.name).map_err(|source| fail("finding", source))?;
    // Where IPv6 is off there is nothing to switch, and a kernel that refuses only costs a second.
    let _ = std::fs::write(
        format!("/proc/sys/net/ipv6/conf/{}/accept_dad", config.name),
        "0",
    );
    netlink::set_mtu(index, config.mtu)?;
    netlink::set_up(index)?;
    for (address, prefix) in &config.addresses {
        netlink::add_address(index, *address, *prefix)?;
    }
    config
        .addresses
        .iter()
        .for_each(|(address, _)| wait_until_usable(*address));
    Ok(())
}

/// The kernel makes a new IPv6 address usable in the background, in a few milliseconds.
fn wait_until_usable(address: IpAddr) {
    for _ in 0..USABLE_ATTEMPTS_MAX {
        if std::net::UdpSocket::bind((address, 0)).is_ok() {
            return;
        }
        std::thread::sleep(USABLE_INTERVAL);
    }
}

/// Half a second in all; should the address need longer, users of it find out.
const USABLE_ATTEMPTS_MAX: u32 = 250;
const USABLE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(2);

fn interface_index(name: &str) -> io::Result<u32> {
    let domain = rustix::net::AddressFamily::UNIX;
    let socket = rustix::net::socket(domain, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}
