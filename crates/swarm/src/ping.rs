//! Pings through the tunnel (RFC 792): requests with the time they were sent, and their answers.

use std::net::Ipv4Addr;

use bytes::BytesMut;
use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Type, IpNumber, Ipv4Header, SlicedPacket, TransportSlice,
};
use ropewalk_types::Instant;
use ropewalk_wire::HEADROOM;

use crate::tuning::BLOCK_BYTES;

/// Bytes of the headers of a ping, and of those of IP.
const HEADERS: usize = 28;
const IP_HEADER: usize = 20;
/// Bytes that say when it was sent.
const STAMP: usize = 8;
const TTL: u8 = 64;

/// What a ping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It measures time.
    Ping,
    /// It is traffic.
    Load,
}

impl Kind {
    /// Identifier of ICMP. Each is a flow of its own.
    const fn id(self) -> u16 {
        match self {
            Self::Ping => 0x5357,
            Self::Load => 0x5358,
        }
    }

    fn of(id: u16) -> Option<Self> {
        [Self::Ping, Self::Load].into_iter().find(|k| k.id() == id)
    }
}

/// From whom to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) from: Ipv4Addr,
    pub(crate) to: Ipv4Addr,
}

/// An answer to a ping of a swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) number: u16,
    /// When the ping was sent.
    pub(crate) sent: Instant,
}

/// Makes pings, from memory that they share.
#[derive(Debug)]
pub(crate) struct Requests {
    block: BytesMut,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            block: BytesMut::with_capacity(BLOCK_BYTES),
        }
    }

    /// A ping of `bytes` bytes with its IP header, behind the headroom that a session wants.
    pub(crate) fn make(
        &mut self,
        now: Instant,
        kind: Kind,
        ends: Ends,
        number: u16,
        bytes: u16,
    ) -> BytesMut {
        let bytes = usize::from(bytes).max(HEADERS + STAMP);
        // An empty block is either taken back whole or followed by a new one.
        self.block.resize(HEADROOM + bytes, 0);
        let mut request = self.block.split();
        let packet = &mut request[HEADROOM..];
        let (front, payload) = packet.split_at_mut(HEADERS);
        payload[..STAMP].copy_from_slice(&now.as_nanos().to_be_bytes());
        let length = u16::try_from(bytes - IP_HEADER).unwrap_or(u16::MAX);
        let (from, to) = (ends.from.octets(), ends.to.octets());
        let (front, echo) = front.split_at_mut(IP_HEADER);
        if let Ok(mut ip) = Ipv4Header::new(length, TTL, IpNumber::ICMP, from, to) {
            ip.header_checksum = ip.calc_header_checksum();
            front.copy_from_slice(&ip.to_bytes());
        }
        let id = kind.id();
        let icmp = Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq: number });
        echo.copy_from_slice(&Icmpv4Header::with_checksum(icmp, payload).to_bytes());
        request
    }
}

/// What this packet answers, if it is an answer.
pub(crate) fn answer(packet: &[u8]) -> Option<Answer> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else {
        return None;
    };
    let Icmpv4Type::EchoReply(echo) = icmp.icmp_type() else {
        return None;
    };
    let stamp = icmp.payload().get(..STAMP)?.try_into().ok()?;
    Some(Answer {
        kind: Kind::of(echo.id)?,
        number: echo.seq,
        sent: Instant::from_nanos(u64::from_be_bytes(stamp)),
    })
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const HUB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    #[test]
    fn a_ping_is_what_any_library_makes_and_its_answer_tells_the_time() {
        let mut requests = Requests::new();
        let ends = Ends { from: US, to: HUB };
        for (kind, bytes) in [(Kind::Ping, 48), (Kind::Load, 60), (Kind::Ping, 1_500)] {
            let request = requests.make(Instant::from_millis(5), kind, ends, 7, bytes);
            let packet = &request[HEADROOM..];
            assert_eq!(packet.len(), usize::from(bytes));
            assert_eq!(answer(packet), None, "a request");
            let payload = &packet[HEADERS..];
            let mut same = Vec::new();
            PacketBuilder::ipv4(US.octets(), HUB.octets(), TTL)
                .icmpv4_echo_request(kind.id(), 7)
                .write(&mut same, payload)
                .expect("memory");
            assert_eq!(packet, same);
            let mut back = Vec::new();
            PacketBuilder::ipv4(HUB.octets(), US.octets(), TTL)
                .icmpv4_echo_reply(kind.id(), 7)
                .write(&mut back, payload)
                .expect("memory");
            let expected = Answer {
                kind,
                number: 7,
                sent: Instant::from_millis(5),
            };
            assert_eq!(answer(&back), Some(expected));
        }
    }

    #[test]
    fn pings_that_are_gone_leave_their_memory_to_the_next() {
        let mut requests = Requests::new();
        let ends = Ends { from: US, to: HUB };
        let mut places = std::collections::BTreeSet::new();
        for number in 0..1_000 {
            let request = requests.make(Instant::ZERO, Kind::Load, ends, number, 1_400);
            places.insert(request.as_ptr() as usize / BLOCK_BYTES);
        }
        assert!(places.len() < 4, "{} blocks", places.len());
    }
}
