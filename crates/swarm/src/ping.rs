//! Pings through the tunnel (RFC 792): requests with the time they were sent, and their answers.

use std::net::Ipv4Addr;

use bytes::BytesMut;
use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Type, PacketBuilder, SlicedPacket, TransportSlice,
};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::HEADROOM;

/// Bytes of the headers of a ping.
const HEADERS: usize = 28;
/// Bytes that say when it was sent.
const STAMP: usize = 8;
const TTL: u8 = 64;

/// A ping of `bytes` bytes with its IP header, behind the headroom that a session wants.
pub(crate) fn request(
    now: Instant,
    from: Ipv4Addr,
    to: Ipv4Addr,
    number: u16,
    bytes: u16,
) -> BytesMut {
    let mut payload = vec![0; usize::from(bytes).saturating_sub(HEADERS).max(STAMP)];
    payload[..STAMP].copy_from_slice(&now.as_nanos().to_be_bytes());
    let builder =
        PacketBuilder::ipv4(from.octets(), to.octets(), TTL).icmpv4_echo_request(ID, number);
    let mut packet = vec![0; HEADROOM];
    let built = builder.write(&mut packet, &payload);
    debug_assert!(built.is_ok(), "writing to memory");
    BytesMut::from(&packet[..])
}

/// Names the pings of a swarm.
const ID: u16 = 0x5357;

/// How long the answer to a ping took, if this is one.
pub(crate) fn answered(now: Instant, packet: &[u8]) -> Option<Duration> {
    let sliced = SlicedPacket::from_ip(packet).ok()?;
    let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else {
        return None;
    };
    let Icmpv4Header {
        icmp_type: Icmpv4Type::EchoReply(IcmpEchoHeader { id: ID, .. }),
        ..
    } = icmp.header()
    else {
        return None;
    };
    let stamp = icmp.payload().get(..STAMP)?.try_into().ok()?;
    Some(now.since(Instant::from_nanos(u64::from_be_bytes(stamp))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const HUB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    #[test]
    fn a_ping_has_its_length_and_its_answer_tells_the_time() {
        for bytes in [48, 84, 1_500] {
            let request = request(Instant::from_millis(5), US, HUB, 7, bytes);
            let packet = &request[HEADROOM..];
            assert_eq!(packet.len(), usize::from(bytes));
            assert_eq!(answered(Instant::from_millis(9), packet), None, "a request");
            let sliced = SlicedPacket::from_ip(packet).expect("whole");
            let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else {
                panic!("no ICMP");
            };
            let mut answer = Vec::new();
            PacketBuilder::ipv4(HUB.octets(), US.octets(), TTL)
                .icmpv4_echo_reply(ID, 7)
                .write(&mut answer, icmp.payload())
                .expect("memory");
            let took = answered(Instant::from_millis(9), &answer);
            assert_eq!(took, Some(Duration::from_millis(4)));
        }
    }
}
