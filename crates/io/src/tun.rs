//! TUN interface with segmentation offloads.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::{InnerPacket, TunPacket};

/// How to open a TUN interface.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// Interface name, at most 15 bytes; `%d` is replaced by the first free number.
    pub name: String,
    /// MTU in bytes, 68..=65535 (1280 and more for IPv6).
    pub mtu: usize,
    /// Whether to use segmentation and checksum offloads where the kernel has them.
    pub offload: bool,
}

/// Why a TUN interface could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// `/dev/net/tun` is missing.
    #[error("/dev/net/tun is missing: load the kernel module with `modprobe tun`")]
    NoDevice,
    /// The process may not create network interfaces.
    #[error("creating the TUN interface {0} needs CAP_NET_ADMIN: run as root")]
    NotPermitted(String),
    /// Another process holds an interface of this name.
    #[error("the interface name {0} is in use: choose another name or stop the other program")]
    NameTaken(String),
    /// The name is empty, too long or has characters interfaces cannot have.
    #[error("{0:?} is no interface name: 1 to 15 bytes without space, `/` or `:`")]
    BadName(String),
    /// Another system call failed.
    #[error("{step} on the TUN interface {name}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Interface name.
        name: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Which offloads of a TUN interface are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The kernel hands over and takes TCP super packets of up to 64 KiB.
    pub tso: bool,
    /// The same for UDP.
    pub uso: bool,
    /// The kernel leaves TCP and UDP checksums to whoever delivers the packet.
    pub checksum: bool,
    /// One sentence for every offload that is off although it was asked for.
    pub given_up: Vec<String>,
}

/// What became of a batch of packets written to a TUN interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Inner packets the kernel took.
    pub written: usize,
    /// System calls it took.
    pub calls: usize,
    /// Inner packets that are no IPv4 or IPv6 packet.
    pub dropped_invalid: usize,
    /// Inner packets lost to a full queue or missing memory (`EAGAIN`, `ENOBUFS`, `ENOMEM`).
    pub dropped_full: usize,
    /// Inner packets the kernel refused otherwise (interface down, bad header).
    pub dropped_refused: usize,
}

/// An open TUN interface; it vanishes when dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    ifindex: u32,
    offloads: Offloads,
}

impl Tun {
    /// Creates the interface (down, without addresses).
    ///
    /// # Errors
    /// See [`TunError`].
    pub fn open(config: &TunConfig) -> Result<Self, TunError> {
        Err(TunError::BadName(config.name.clone()))
    }

    /// Interface name, with the number in place of `%d`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kernel interface index.
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Offloads in use now; writing may give some up.
    #[must_use]
    pub const fn offloads(&self) -> &Offloads {
        &self.offloads
    }

    /// Sets the MTU of the interface, in bytes.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` out of range.
    pub fn set_mtu(&self, _mtu: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Appends the packets that wait in the interface to `out`; returns how many. Reads until
    /// nothing waits or the batch bound is reached. Zero means nothing waits.
    ///
    /// # Errors
    /// The interface is gone or broken.
    pub fn recv_batch(&mut self, _out: &mut Vec<TunPacket>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Writes `packets` in order per flow and empties the vector. Losses are counted, not errors.
    ///
    /// # Errors
    /// The interface is gone (`EBADFD`); the packets are dropped.
    pub fn send_batch(&mut self, _packets: &mut Vec<InnerPacket>) -> io::Result<SendReport> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Tun {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
