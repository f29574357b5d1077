//! All Linux system calls of the gateway: TUN with offloads, UDP with GSO and GRO, netlink,
//! nftables, sysctl, clocks and `TCP_INFO`; and the process that keeps the rights for them.
//!
//! Every descriptor is non-blocking and offers `AsFd`, so that one event loop waits on all.
//! `unsafe` stays in `sys`, but for one call in `netns`; the other modules are safe code above it.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod calls;
pub mod challenge;
mod checksum;
pub mod clock;
mod coalesce;
pub mod confine;
pub mod conntrack;
pub mod counters;
mod emit;
pub mod events;
mod headers;
pub mod helper;
pub mod icmp;
pub mod netlink;
pub mod netns;
pub mod nft;
mod pool;
pub mod program;
pub mod sock_diag;
mod split;
mod sys;
pub mod sysctl;
pub mod tap;
pub mod tcp;
pub mod tcp_info;
pub mod tun;
pub mod udp;
mod virtio;

#[cfg(test)]
mod offload_tests;

use std::io;
use std::os::fd::AsFd;

use bytes::{Bytes, BytesMut};

/// Marks the packets of a socket for firewall and routing rules (`SO_MARK`). Before Linux 5.17 the kernel
/// wants `CAP_NET_ADMIN` for it, which the helper has.
///
/// # Errors
/// Not permitted.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    match socket2::SockRef::from(socket).set_mark(mark) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            match helper::quick_order(&helper::Order::Mark(mark), Some(socket.as_fd())) {
                Some(done) => done.map(|((), _)| ()).map_err(io::Error::from),
                None => Err(error),
            }
        }
        other => other,
    }
}

/// Bytes free in front of every inner packet, for the tunnel header.
pub const HEADROOM: usize = 16;

/// An inner packet read from a TUN interface.
#[derive(Debug)]
pub struct TunPacket {
    /// [`HEADROOM`] arbitrary bytes, then exactly one IP packet, at most the MTU long. It is longer
    /// only when the kernel handed over a packet that it was not asked to segment.
    pub data: BytesMut,
    /// The TCP or UDP checksum field holds no valid checksum: whoever delivers the packet
    /// completes it.
    pub checksum_partial: bool,
}

impl InnerPacket {
    /// A packet in one piece.
    #[must_use]
    pub const fn whole(data: Bytes, checksum_partial: bool) -> Self {
        Self {
            head: Bytes::new(),
            data,
            checksum_partial,
        }
    }

    /// The first bytes, with all headers.
    pub(crate) fn front(&self) -> &[u8] {
        if self.head.is_empty() {
            &self.data
        } else {
            &self.head
        }
    }

    /// Bytes of the packet.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// What follows headers of this length.
    pub(crate) fn payload(&self, header_len: usize) -> &[u8] {
        if self.head.is_empty() {
            &self.data[header_len..]
        } else {
            debug_assert_eq!(self.head.len(), header_len);
            &self.data
        }
    }

    /// Where the headers of a plain packet are. A packet in two pieces is plain only if its first piece
    /// has all headers and nothing else.
    pub(crate) fn plain(&self) -> Option<headers::Plain> {
        let plain = headers::Plain::parse(self.front(), self.len())?;
        (self.head.is_empty() || self.head.len() == plain.header_len).then_some(plain)
    }
}

/// An inner packet on its way to a TUN interface.
#[derive(Debug, Clone)]
pub struct InnerPacket {
    /// The headers of IP and TCP, all of them and nothing else, if they are apart; empty otherwise.
    pub head: Bytes,
    /// Exactly one IP packet, or its payload behind `head`.
    pub data: Bytes,
    /// The TCP or UDP checksum field holds no valid checksum; [`tun::Tun::send_batch`] completes it
    /// or lets the kernel do so.
    pub checksum_partial: bool,
}
