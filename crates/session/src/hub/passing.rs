//! Packets for shared addresses, on their way from the hub that they came to, to the hub that serves the site.
//!
//! An inner address leads to the right hub by routes. A shared address leads to any hub that serves one of its sites. A
//! hub that does not serve the site wraps the packet in one to the site's inner address (RFC 2003), and gives it to its
//! kernel. The hub that serves the site unwraps it.
//!
//! Invariants: what is wrapped already is not wrapped again, so each packet is wrapped once at most. Only packets that
//! the kernel hands over are unwrapped, never those that a site sends. No site can send what would be unwrapped
//! elsewhere: the source of a wrapped packet is a shared address, from which sites may send other protocols only. What
//! comes out takes the way of a packet for the shared address that came here by itself.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use bytes::{Bytes, BytesMut};
use ropewalk_core::reorder::Inner;
use ropewalk_types::{
    Instant, PROTOCOL_IPV4, PacketInfo, WRAP_BYTES, checksum, source_of, unwrap, wrapping,
};
use ropewalk_wire::HEADROOM;

use super::Hub;
use super::tuning::{PASSED_MAX, WRAP_CHUNK};
use crate::session::Elsewhere;

/// What is passed on, and what was counted.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// Memory for headers in front of packets.
    headers: BytesMut,
    /// Wrapped packets for the kernel.
    wrapped: VecDeque<Inner>,
    /// Packets that were wrapped.
    pub(super) passed_on: u64,
    /// Packets that were unwrapped, for sites that are served here.
    pub(super) unwrapped: u64,
    /// Wrapped packets for sites that are not served here.
    not_here: u64,
    /// Wrapped packets that no hub makes, or that are not for the block of the site.
    invalid: u64,
    /// Packets that were not wrapped because too many waited for the kernel.
    full: u64,
}

impl Passing {
    /// Wraps a packet and keeps it for the kernel. Whether it could be wrapped; what finds no room counts as that.
    fn wrap(
        &mut self,
        mut data: BytesMut,
        checksum_partial: bool,
        info: &PacketInfo,
        to: Ipv4Addr,
    ) -> bool {
        // What follows in the buffer is no part of the packet.
        data.truncate(HEADROOM + info.length);
        let packet = &mut data[HEADROOM..];
        let Some(header) = wrapping(packet, info, to) else {
            return false;
        };
        if self.wrapped.len() >= PASSED_MAX {
            self.full += 1;
            return true;
        }
        // The kernel would look for the checksum behind the header in front.
        if checksum_partial
            && !checksum::complete(packet, info.flow.protocol, info.transport_offset)
        {
            return false;
        }
        let head = self.front(&header);
        self.wrapped.push_back(Inner {
            head,
            data: data.split_off(HEADROOM).freeze(),
            checksum_partial: false,
        });
        self.passed_on += 1;
        true
    }

    /// A piece of memory with this header. Memory is asked for once in many headers.
    fn front(&mut self, header: &[u8; WRAP_BYTES]) -> Bytes {
        if self.headers.capacity() < WRAP_BYTES {
            self.headers = BytesMut::with_capacity(WRAP_CHUNK);
        }
        self.headers.extend_from_slice(header);
        self.headers.split().freeze()
    }

    /// The next packet for the kernel.
    pub(super) fn poll(&mut self) -> Option<Inner> {
        self.wrapped.pop_front()
    }

    /// Counted drops, by reason.
    pub(super) const fn drops(&self) -> [(&'static str, u64); 3] {
        [
            ("pass_on_full", self.full),
            ("wrapped_invalid", self.invalid),
            ("wrapped_not_here", self.not_here),
        ]
    }
}

/// Whether an address is none that a host of the internet sends from (RFC 6890).
const fn is_nobody(source: Ipv4Addr) -> bool {
    source.is_unspecified()
        || source.is_loopback()
        || source.is_multicast()
        || source.is_broadcast()
        || source.is_link_local()
}

impl Hub {
    /// Whether another hub may have wrapped this packet: of this protocol nobody else sends from a shared address.
    #[inline]
    pub(super) fn is_wrapped(&self, packet: &[u8], info: &PacketInfo) -> bool {
        self.settings.passes_on
            && info.flow.protocol == PROTOCOL_IPV4
            && !info.v6
            && matches!(source_of(packet), Some(IpAddr::V4(ip)) if self.listed.shares(ip))
    }

    /// A packet for a site that is listed and not served here: another hub serves it, or none does. A packet for a
    /// shared address is passed on, if this hub does so, to the inner address `site`. All others end here: inner
    /// addresses lead to the right hub by routes.
    pub(super) fn pass_on(
        &mut self,
        data: BytesMut,
        checksum_partial: bool,
        info: &PacketInfo,
        site: Option<Ipv4Addr>,
    ) {
        let is_wrapped = match site.filter(|_| self.settings.passes_on) {
            Some(site) => self.passing.wrap(data, checksum_partial, info, site),
            None => false,
        };
        self.withdrawn += u64::from(!is_wrapped);
    }

    /// Another hub has passed a packet on. It is unwrapped if it is for the block of the site to whose inner address it
    /// came.
    pub(super) fn on_wrapped(&mut self, now: Instant, mut data: BytesMut, outer: &PacketInfo) {
        let site = outer.destination();
        let Some(index) = self.sites.at(site) else {
            match self.listed.find(site) {
                Some(worker) => self.elsewhere.push_back(Elsewhere {
                    worker,
                    data,
                    checksum_partial: false,
                }),
                None => self.passing.not_here += 1,
            }
            return;
        };
        if self.sites.get(index).is_none_or(|site| site.withdrawn) {
            self.passing.not_here += 1;
            return;
        }
        let Some(info) = unwrap(&mut data[HEADROOM..], outer) else {
            self.passing.invalid += 1;
            return;
        };
        // The free bytes in front of the packet are others now.
        let data = data.split_off(WRAP_BYTES);
        let packet = &data[HEADROOM..];
        if self.comes_from_inside(packet) || self.sites.receiver(now, packet, &info) != Some(index)
        {
            self.passing.invalid += 1;
            return;
        }
        self.passing.unwrapped += 1;
        self.deliver(now, index, data, false, &info);
    }

    /// Whether the source of a packet is an address of the pool, or none that a host has. Such a packet comes from
    /// nobody outside.
    fn comes_from_inside(&self, packet: &[u8]) -> bool {
        let Some(source) = source_of(packet) else {
            return true;
        };
        let pool = |net: &ipnet::IpNet| net.contains(&source);
        let nobody = matches!(source, IpAddr::V4(ip) if is_nobody(ip));
        nobody || self.settings.addresses.iter().any(pool) || self.sites.at(source).is_some()
    }
}
