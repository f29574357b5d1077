//! All Linux system calls of the gateway: TUN with offloads, UDP with GSO and GRO, netlink,
//! nftables, sysctl, clocks and `TCP_INFO`.
//!
//! Every descriptor is non-blocking and offers `AsFd`, so that one event loop waits on all.
//! `unsafe` stays in `sys`, but for one call in `netns`; the other modules are safe code above it.

pub mod challenge;
mod checksum;
pub mod clock;
mod coalesce;
pub mod conntrack;
pub mod counters;
mod emit;
mod headers;
pub mod icmp;
pub mod netlink;
pub mod netns;
pub mod nft;
mod pool;
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

use bytes::{Bytes, BytesMut};

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

/// An inner packet on its way to a TUN interface.
#[derive(Debug, Clone)]
pub struct InnerPacket {
    /// Exactly one IP packet.
    pub data: Bytes,
    /// The TCP or UDP checksum field holds no valid checksum; [`tun::Tun::send_batch`] completes it
    /// or lets the kernel do so.
    pub checksum_partial: bool,
}
