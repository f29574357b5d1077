//! IP packets around the datagrams of gateways, which are real, also their encryption.

use crate::headers::ipv4::{
    FLAG_ACK, FLAG_FIN, FLAG_SYN, IP_HEADER, Ipv4, TCP, Tcp, UDP, UDP_HEADER,
};
use ropewalk_testkit::packet::{Body, Packet};
use ropewalk_types::Ecn;
use std::net::{IpAddr, Ipv4Addr};

/// The packet of a gateway, in place of what was in `ip`.
pub fn write(packet: &Packet, ip: &mut Vec<u8>) {
    ip.clear();
    if let Body::Plain(bytes) = &packet.body {
        ip.extend_from_slice(bytes);
        return;
    }
    let length = packet.ip_bytes();
    ip.resize(length.max(IP_HEADER + UDP_HEADER), 0);
    let addresses = [packet.from, packet.to].map(|end| match end.ip() {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    });
    let (protocol, ecn) = match &packet.body {
        Body::Udp(ecn, _) => (UDP, *ecn),
        Body::TcpOpen | Body::TcpData(..) | Body::TcpAck(_) | Body::TcpClose | Body::Plain(_) => {
            (TCP, Ecn::NotEct)
        }
    };
    let mut ip = Ipv4::new(ip, length, protocol, addresses, ecn as u8);
    ip.ports([packet.from.port(), packet.to.port()]);
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    let wire = |place: u64| (place as u32).wrapping_add(1);
    let (flags, sequence, acknowledgement, data) = match &packet.body {
        Body::Udp(_, data) => {
            // The checksum stays zero: not computed (RFC 768).
            ip.udp();
            ip.put(IP_HEADER + UDP_HEADER, data);
            return;
        }
        Body::TcpOpen => (FLAG_SYN, 0, 0, None),
        Body::TcpClose => (FLAG_FIN | FLAG_ACK, 0, 0, None),
        Body::TcpData(place, data) => (FLAG_ACK, wire(*place), 1, Some(data)),
        Body::TcpAck(place) => (FLAG_ACK, 1, wire(*place), None),
        Body::Plain(_) => return,
    };
    let header = Tcp {
        flags,
        sequence,
        acknowledgement,
        stamps: Some([0, 0]),
    };
    let at = ip.tcp(&header, [].into_iter());
    let end = data.map_or(at, |data| ip.put(at, data));
    ip.sum(end);
}
