//! IP packets from what the simulator has instead of them.
//!
//! Simulated hosts exchange values, so headers are made here from those values: sequence numbers,
//! acknowledgements with their blocks, timestamps, lengths and checksums are those that the values
//! mean. What no value stands for is constant: a window of 65,535 without a scale, and zeros as
//! content. There is no handshake. Flow number `n` has the site's address 10.254.0.0 + 1 + `n`, so
//! that a filter finds it; the server has 10.255.0.1.

use crate::packet::{Ack, Body, Packet, TCP_HEADERS};
use ropewalk_netem::Side;
use ropewalk_testkit::packet::{Body as OuterBody, Packet as Outer};
use ropewalk_types::Ecn;
use ropewalk_types::checksum::{add, fold};
use std::net::{IpAddr, Ipv4Addr};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// Address of the site's host of flow 0, less one.
const FIRST_SITE: u32 = u32::from_be_bytes([10, 254, 0, 0]);
/// Port of the first connection of a flow at the site; each use of the flow has the next.
const CLIENT_PORT: u16 = 10_000;
const USES: u16 = 50_000;
/// Ports of the server: of iperf3, HTTP/3 and RTP.
const TCP_PORT: u16 = 5_201;
const QUIC_PORT: u16 = 443;
const CALL_PORT: u16 = 5_004;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const TTL: u8 = 64;
const DO_NOT_FRAGMENT: u8 = 0x40;
const WINDOW: u16 = 65_535;
const FLAG_ACK: u8 = 0x10;
const FLAG_PUSH: u8 = 0x08;
const FLAG_SYN: u8 = 0x02;
const FLAG_FIN: u8 = 0x01;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// Identifier of echo requests.
const PING_ID: u16 = 1;
/// First byte of a QUIC short header (RFC 9000 §17.3.1).
const QUIC_SHORT: u8 = 0x40;

/// Writes one packet after the other into the same bytes.
#[derive(Debug, Default)]
pub struct Writer {
    ip: Vec<u8>,
    /// Bytes of data in a segment of each TCP flow, as its segments show.
    segments: Vec<u32>,
}

impl Writer {
    /// The packet of a host.
    pub fn inner(&mut self, now_ns: u64, direction: Side, packet: &Packet) -> &[u8] {
        let site = Ipv4Addr::from(FIRST_SITE + 1 + u32::from(packet.flow));
        let client = CLIENT_PORT + packet.use_count % USES;
        let protocol = match (packet.tcp, packet.body) {
            (true, _) => TCP,
            (false, Body::Ping(_) | Body::Pong(_)) => ICMP,
            (false, _) => UDP,
        };
        let server = match (packet.tcp, packet.body) {
            (true, _) => TCP_PORT,
            (false, Body::Voice(_)) => CALL_PORT,
            (false, _) => QUIC_PORT,
        };
        let (addresses, ports) = match direction {
            Side::Up => ([site, SERVER], [client, server]),
            Side::Down => ([SERVER, site], [server, client]),
        };
        self.begin(packet.bytes as usize, protocol, addresses, 0);
        match protocol {
            TCP => self.tcp(now_ns, ports, packet),
            ICMP => self.icmp(packet.body),
            _ => self.udp(ports, packet),
        }
        &self.ip
    }

    /// The packet of a gateway: the datagrams are real, also their encryption.
    pub fn outer(&mut self, packet: &Outer) -> &[u8] {
        if let OuterBody::Plain(ip) = &packet.body {
            self.ip.clear();
            self.ip.extend_from_slice(ip);
            return &self.ip;
        }
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        let addresses = [address(packet.from.ip()), address(packet.to.ip())];
        let ports = [packet.from.port(), packet.to.port()];
        let (protocol, ecn) = match &packet.body {
            OuterBody::Udp(ecn, _) => (UDP, *ecn),
            OuterBody::TcpOpen
            | OuterBody::TcpData(..)
            | OuterBody::TcpClose
            | OuterBody::Plain(_) => (TCP, Ecn::NotEct),
        };
        self.begin(packet.ip_bytes(), protocol, addresses, ecn as u8);
        self.put_ports(ports);
        match &packet.body {
            OuterBody::Udp(_, data) => {
                self.udp_lengths();
                self.put(IP_HEADER + UDP_HEADER, data);
            }
            OuterBody::TcpOpen => self.tcp_header(FLAG_SYN, 0, 0, 0, 0),
            OuterBody::TcpClose => self.tcp_header(FLAG_FIN | FLAG_ACK, 0, 0, 0, 0),
            OuterBody::TcpData(place, data) => {
                #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
                let sequence = (*place as u32).wrapping_add(1);
                self.tcp_header(FLAG_ACK, sequence, 1, 0, 0);
                self.put(TCP_HEADERS as usize, data);
            }
            OuterBody::Plain(_) => {}
        }
        if protocol == TCP {
            self.end_tcp(TCP_HEADERS as usize);
        }
        &self.ip
    }

    fn begin(&mut self, length: usize, protocol: u8, addresses: [Ipv4Addr; 2], ecn: u8) {
        self.ip.clear();
        self.ip.resize(length.max(IP_HEADER + UDP_HEADER), 0);
        let total = u16::try_from(length).unwrap_or(u16::MAX);
        self.ip[0] = 0x45;
        self.ip[1] = ecn;
        self.put(2, &total.to_be_bytes());
        self.ip[6] = DO_NOT_FRAGMENT;
        (self.ip[8], self.ip[9]) = (TTL, protocol);
        for (address, at) in addresses.into_iter().zip([12, 16]) {
            self.put(at, &address.octets());
        }
        let sum = checksum(&[&self.ip[..IP_HEADER]]);
        self.put(10, &sum.to_be_bytes());
    }

    fn tcp(&mut self, now_ns: u64, ports: [u16; 2], packet: &Packet) {
        let flow = usize::from(packet.flow);
        if flow >= self.segments.len() {
            self.segments.resize(flow + 1, ropewalk_plan::SEGMENT_MAX);
        }
        let payload = packet.bytes.saturating_sub(TCP_HEADERS);
        #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
        let clock = (now_ns / 1_000_000) as u32;
        let place = |segment: u32, bytes: u32| segment.wrapping_mul(bytes).wrapping_add(1);
        self.put_ports(ports);
        let header = match packet.body {
            Body::Data { segment, stamp, .. } => {
                self.segments[flow] = payload;
                self.tcp_header(FLAG_ACK, place(segment, payload), 1, stamp, 0);
                TCP_HEADERS as usize
            }
            Body::Ack(ack) => {
                let bytes = self.segments[flow];
                self.tcp_header(FLAG_ACK, 1, place(ack.next, bytes), clock, ack.echo);
                self.blocks(&ack, bytes)
            }
            // Handshakes and requests of web clients, which have no place in a stream.
            Body::Ping(_) | Body::Pong(_) | Body::Request(_) | Body::Voice(_) => {
                self.tcp_header(FLAG_ACK | FLAG_PUSH, 1, 1, clock, 0);
                TCP_HEADERS as usize
            }
        };
        self.end_tcp(header);
    }

    fn tcp_header(&mut self, flags: u8, sequence: u32, ack: u32, stamp: u32, echo: u32) {
        self.put(24, &sequence.to_be_bytes());
        self.put(28, &ack.to_be_bytes());
        self.put(33, &[flags]);
        self.put(34, &WINDOW.to_be_bytes());
        // Two paddings, then timestamps (RFC 7323 appendix A).
        self.put(40, &[1, 1, 8, 10]);
        self.put(44, &stamp.to_be_bytes());
        self.put(48, &echo.to_be_bytes());
    }

    /// Selective acknowledgements (RFC 2018 §3); the length of the header with them.
    fn blocks(&mut self, ack: &Ack, bytes: u32) -> usize {
        let start = TCP_HEADERS as usize;
        let blocks = &ack.blocks()[..ack.blocks().len().min(3)];
        if blocks.is_empty() {
            return start;
        }
        let length = u8::try_from(2 + 8 * blocks.len()).unwrap_or(u8::MAX);
        self.put(start, &[1, 1, 5, length]);
        for (block, at) in blocks.iter().zip((start + 4..).step_by(8)) {
            for (edge, at) in [block.0, block.1].into_iter().zip([at, at + 4]) {
                let place = edge.wrapping_mul(bytes).wrapping_add(1);
                self.put(at, &place.to_be_bytes());
            }
        }
        start + 4 + 8 * blocks.len()
    }

    /// Length of the header and checksum. Content of zeros adds nothing to the sum.
    fn end_tcp(&mut self, header: usize) {
        let words = u8::try_from((header - IP_HEADER) / 4).unwrap_or(15).min(15);
        self.put(32, &[words << 4]);
        let segment = u16::try_from(self.ip.len() - IP_HEADER).unwrap_or(u16::MAX);
        let pseudo = [0, TCP, segment.to_be_bytes()[0], segment.to_be_bytes()[1]];
        let sum = checksum(&[&self.ip[12..IP_HEADER], &pseudo, &self.ip[IP_HEADER..]]);
        self.put(36, &sum.to_be_bytes());
    }

    fn udp(&mut self, ports: [u16; 2], packet: &Packet) {
        self.put_ports(ports);
        self.udp_lengths();
        if !matches!(packet.body, Body::Voice(_)) {
            self.put(IP_HEADER + UDP_HEADER, &[QUIC_SHORT]);
        }
    }

    /// The checksum stays zero: not computed (RFC 768).
    fn udp_lengths(&mut self) {
        let length = u16::try_from(self.ip.len() - IP_HEADER).unwrap_or(u16::MAX);
        self.put(24, &length.to_be_bytes());
    }

    fn icmp(&mut self, body: Body) {
        let (kind, number) = match body {
            Body::Ping(number) => (8, number),
            Body::Pong(number) => (0, number),
            Body::Data { .. } | Body::Ack(_) | Body::Voice(_) | Body::Request(_) => return,
        };
        let [_, _, high, low] = number.to_be_bytes();
        self.put(IP_HEADER, &[kind, 0, 0, 0]);
        self.put(24, &PING_ID.to_be_bytes());
        self.put(26, &[high, low]);
        let sum = checksum(&[&self.ip[IP_HEADER..]]);
        self.put(22, &sum.to_be_bytes());
    }

    fn put_ports(&mut self, ports: [u16; 2]) {
        for (port, at) in ports.into_iter().zip([20, 22]) {
            self.put(at, &port.to_be_bytes());
        }
    }

    /// Writes what there is room for.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = (at + bytes.len()).min(self.ip.len());
        if let Some(slot) = self.ip.get_mut(at..end) {
            slot.copy_from_slice(&bytes[..end - at]);
        }
    }
}

/// The internet checksum over parts of even length, and a last one of any.
fn checksum(parts: &[&[u8]]) -> u16 {
    !fold(parts.iter().fold(0, |sum, part| add(sum, part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_the_values_mean_and_their_sums_are_right() {
        let mut writer = Writer::default();
        let mut packet = Packet {
            flow: 2,
            use_count: 0,
            subflow: 0,
            bytes: 1_052,
            tcp: true,
            ecn: Ecn::NotEct,
            reduced: false,
            body: Body::Data {
                segment: 3,
                stamp: 7,
                sent_ns: 0,
            },
        };
        let ip = writer.inner(0, Side::Down, &packet).to_vec();
        assert_eq!(ip.len(), 1_052);
        assert_eq!(
            (&ip[12..16], &ip[16..20]),
            (&[10, 255, 0, 1][..], &[10, 254, 0, 3][..])
        );
        assert_eq!(ip[24..28], 3_001_u32.to_be_bytes());
        assert_eq!(ip[44..48], 7_u32.to_be_bytes());
        let mut ack = Ack {
            next: 2,
            echo: 9,
            ..Ack::default()
        };
        ack.push((3, 4));
        packet.bytes = ack.tcp_bytes();
        packet.body = Body::Ack(ack);
        let ack = writer.inner(5_000_000, Side::Up, &packet).to_vec();
        assert_eq!(ack[28..32], 2_001_u32.to_be_bytes());
        assert_eq!((ack[32] >> 4, ack.len()), (11, 64));
        assert_eq!(ack[52..56], [1, 1, 5, 10]);
        assert_eq!(
            ack[56..64],
            [3_001_u32.to_be_bytes(), 4_001_u32.to_be_bytes()].concat()[..]
        );
        for ip in [ip, ack] {
            assert_eq!(checksum(&[&ip[..IP_HEADER]]), 0);
            let length = u16::try_from(ip.len() - IP_HEADER).unwrap().to_be_bytes();
            let pseudo = [0, TCP, length[0], length[1]];
            assert_eq!(checksum(&[&ip[12..20], &pseudo, &ip[20..]]), 0);
        }
    }
}
