//! Answers to UDP packets that do not fit a datagram and forbid fragments.
//!
//! QUIC looks for the largest packet that arrives (RFC 8899). A packet in two pieces would arrive, and
//! cost more bytes than the larger size saves. So a tunnel refuses such packets, as routers do
//! (RFC 1191, RFC 8201 §4). A flow that goes on sending them gets them through, in pieces. TCP is told
//! of segments that fit.

use super::tuning::{
    ANSWER_INTERVAL, ANSWERS_MAX, MTU_TOLD_MIN, REFUSALS_FORGOTTEN, REFUSALS_MAX, REFUSED_FLOWS_MAX,
};
use crate::reorder::Inner;
use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};
use ropewalk_headers::COMPRESSED_UDP;
use ropewalk_types::{Instant, PacketInfo, destination_of, source_of};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

const UDP: u8 = 17;
/// Headers of IP without options, and of UDP.
const HEADERS: [usize; 2] = [28, 48];
const DO_NOT_FRAGMENT: u8 = 0x40;
/// Hop limit of answers.
const HOPS: u8 = 64;
/// Bytes of a refused packet that its answer has: RFC 792 asks for 8 behind the header, RFC 4443 for
/// more.
const QUOTED: usize = 128;

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct TooBig {
    answers: VecDeque<Inner>,
    /// No answer before: a flood of packets gets few.
    next: Instant,
    /// By flow bucket: packets refused, and the time of the last one that was too big.
    flows: BTreeMap<u16, (u8, Instant)>,
    /// Packets refused.
    pub refused: u64,
}

impl TooBig {
    /// Whether a packet of this flow bucket is refused; `whole` is what the paths take whole, bytes, and
    /// `compressed` whether headers are compressed.
    pub fn refuses(
        &mut self,
        now: Instant,
        ip: &[u8],
        (info, flow): (&PacketInfo, u16),
        whole: usize,
        compressed: bool,
    ) -> bool {
        if ip.len() <= whole || info.flow.protocol != UDP || info.fragment {
            return false;
        }
        let may_be_fragmented = !info.v6 && ip[6] & DO_NOT_FRAGMENT == 0;
        let headers = HEADERS[usize::from(info.v6)];
        // Options and extension headers are never compressed.
        let saved = if compressed && info.transport_offset + 8 == headers {
            headers - COMPRESSED_UDP
        } else {
            0
        };
        let fits = (whole + saved).max(MTU_TOLD_MIN);
        if may_be_fragmented || ip.len() <= fits || self.insists(now, flow) {
            return false;
        }
        self.refused += 1;
        if now >= self.next && self.answers.len() < ANSWERS_MAX && may_be_answered(ip) {
            self.next = now + ANSWER_INTERVAL;
            self.answers.extend(answer(ip, info.v6, fits));
        }
        true
    }

    /// Whether enough packets of this flow were refused; else one more is.
    fn insists(&mut self, now: Instant, flow: u16) -> bool {
        if self.flows.len() >= REFUSED_FLOWS_MAX && !self.flows.contains_key(&flow) {
            self.flows.clear();
        }
        let (refused, last) = self.flows.entry(flow).or_insert((0, now));
        if now.since(*last) > REFUSALS_FORGOTTEN {
            *refused = 0;
        }
        *last = now;
        if *refused == REFUSALS_MAX {
            return true;
        }
        *refused += 1;
        false
    }

    pub fn is_waiting(&self) -> bool {
        !self.answers.is_empty()
    }

    pub fn poll(&mut self) -> Option<Inner> {
        self.answers.pop_front()
    }
}

/// Whether RFC 1122 §3.2.2 allows an answer: source and destination are hosts.
fn may_be_answered(ip: &[u8]) -> bool {
    let is_host = |address: IpAddr| match address {
        IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_unspecified() || v4.is_broadcast()),
        IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified()),
    };
    source_of(ip).is_some_and(is_host) && destination_of(ip).is_some_and(is_host)
}

/// Tells the source of `ip` to send packets of at most `fits` bytes. The answer comes from the packet's
/// destination: an address of this machine need not be known there.
fn answer(ip: &[u8], v6: bool, fits: usize) -> Option<Inner> {
    let quoted = &ip[..ip.len().min(QUOTED)];
    let mut data = Vec::with_capacity(QUOTED + 48);
    let written = if v6 {
        let source = *ip.get(8..)?.first_chunk()?;
        let destination = *ip.get(24..)?.first_chunk()?;
        let mtu = u32::try_from(fits).ok()?;
        PacketBuilder::ipv6(destination, source, HOPS)
            .icmpv6(Icmpv6Type::PacketTooBig { mtu })
            .write(&mut data, quoted)
    } else {
        let source = *ip.get(12..)?.first_chunk()?;
        let destination = *ip.get(16..)?.first_chunk()?;
        let next_hop_mtu = u16::try_from(fits).ok()?;
        let needed = DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
        PacketBuilder::ipv4(destination, source, HOPS)
            .icmpv4(Icmpv4Type::DestinationUnreachable(needed))
            .write(&mut data, quoted)
    };
    written.ok()?;
    Some(Inner::whole(data.into(), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
    use ropewalk_types::Duration;

    /// A UDP packet of so many bytes, with "don't fragment" in IPv4.
    fn packet(v6: bool, bytes: usize) -> Vec<u8> {
        let mut data = Vec::new();
        let (builder, headers) = if v6 {
            (PacketBuilder::ipv6([1; 16], [2; 16], 60), 48)
        } else {
            (PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 60), 28)
        };
        let payload = vec![7; bytes - headers];
        builder
            .udp(443, 50_000)
            .write(&mut data, &payload)
            .expect("memory takes it");
        data
    }

    fn refuses(big: &mut TooBig, at_ms: u64, ip: &[u8], whole: usize, compressed: bool) -> bool {
        let info = PacketInfo::parse(ip).expect("a packet");
        let now = Instant::from_millis(at_ms);
        big.refuses(now, ip, (&info, at_ms as u16), whole, compressed)
    }

    #[test]
    fn only_what_compressed_headers_do_not_make_fit_is_refused() {
        for (v6, compressed, largest) in [
            (false, false, 1_436),
            (true, false, 1_436),
            (false, true, 1_436 + 28 - COMPRESSED_UDP),
            (true, true, 1_436 + 48 - COMPRESSED_UDP),
        ] {
            let mut big = TooBig::default();
            assert!(!refuses(
                &mut big,
                0,
                &packet(v6, largest),
                1_436,
                compressed
            ));
            assert!(refuses(
                &mut big,
                0,
                &packet(v6, largest + 1),
                1_436,
                compressed
            ));
            assert_eq!(big.refused, 1);
        }
    }

    #[test]
    fn what_may_be_fragmented_or_must_be_taken_passes() {
        let mut big = TooBig::default();
        let mut fragmentable = packet(false, 1_500);
        fragmentable[6] = 0;
        assert!(!refuses(&mut big, 0, &fragmentable, 1_400, true));
        for v6 in [false, true] {
            assert!(!refuses(&mut big, 0, &packet(v6, 1_280), 1_000, true));
            assert!(refuses(&mut big, 0, &packet(v6, 1_281), 1_000, true));
        }
    }

    #[test]
    fn a_flow_that_goes_on_gets_its_packets_through() {
        let mut big = TooBig::default();
        let (ip, second) = (packet(true, 1_500), Duration::from_secs(1));
        let info = PacketInfo::parse(&ip).expect("a packet");
        let mut refused = |flow, seconds: u32| {
            let now = Instant::from_millis(1) + second * seconds;
            big.refuses(now, &ip, (&info, flow), 1_436, true)
        };
        assert!((0..16).all(|seconds| refused(1, seconds)));
        assert!((16..100).all(|seconds| !refused(1, seconds)));
        assert!(refused(2, 100), "another flow");
        assert!(refused(1, 161), "its search begins anew");
        // However many flows there are, memory is bounded.
        for flow in 0..4_096 {
            refused(flow, 200);
        }
        assert!(big.flows.len() <= REFUSED_FLOWS_MAX);
    }

    #[test]
    fn no_answer_goes_to_or_comes_from_a_group() {
        for (at, address) in [(16, [224, 0, 0, 1]), (12, [0; 4]), (12, [255; 4])] {
            let mut big = TooBig::default();
            let mut sent = packet(false, 1_500);
            sent[at..at + 4].copy_from_slice(&address);
            assert!(refuses(&mut big, 0, &sent, 1_436, true));
            assert!(!big.is_waiting());
        }
    }

    #[test]
    fn the_sender_is_told_what_fits_and_a_flood_gets_few_answers() {
        for v6 in [false, true] {
            let mut big = TooBig::default();
            let sent = packet(v6, 1_500);
            for at_ms in 0..100 {
                assert!(refuses(&mut big, at_ms, &sent, 1_436, false));
            }
            let answers = 100 / ANSWER_INTERVAL.as_millis() as usize;
            assert_eq!(big.answers.len(), answers.min(ANSWERS_MAX));
            let answer = big.poll().expect("an answer").data;
            let read = PacketHeaders::from_ip_slice(&answer).expect("a packet");
            assert_eq!(read.payload.slice(), &sent[..QUOTED]);
            match (read.net, read.transport) {
                (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Icmpv4(icmp))) => {
                    assert_eq!((ip.source, ip.destination), ([10, 0, 0, 2], [10, 0, 0, 1]));
                    let needed = DestUnreachableHeader::FragmentationNeeded {
                        next_hop_mtu: 1_436,
                    };
                    assert_eq!(icmp.icmp_type, Icmpv4Type::DestinationUnreachable(needed));
                }
                (Some(NetHeaders::Ipv6(ip, _)), Some(TransportHeader::Icmpv6(icmp))) => {
                    assert_eq!((ip.source, ip.destination), ([2; 16], [1; 16]));
                    assert_eq!(icmp.icmp_type, Icmpv6Type::PacketTooBig { mtu: 1_436 });
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
