//! What is written is read back, and is what real hosts send.

use super::*;
use crate::host::plain;
use crate::packet::{PING_BYTES, TCP_HEADERS, UDP_HEADERS};
use proptest::prelude::*;
use ropewalk_types::PacketInfo;
use ropewalk_types::checksum::{add, fold};

fn packet(upper: Upper, bytes: u32, body: Body) -> Packet {
    Packet {
        flow: 2,
        use_count: 0,
        subflow: 0,
        bytes,
        upper,
        clock: match (upper, body) {
            (Upper::Tcp, Body::Data { stamp, .. }) => stamp,
            (Upper::Tcp, _) => 8,
            (Upper::PlainTcp | Upper::Udp | Upper::Echo, _) => 0,
        },
        ecn: Ecn::NotEct,
        reduced: false,
        body,
    }
}

fn data(segment: u32, stamp: u32, echo: u32) -> Body {
    Body::Data {
        segment,
        stamp,
        echo,
        sent_ns: 3 << 40 | 7,
    }
}

/// The bytes of a packet.
fn bytes(headers: &mut Headers, direction: Side, packet: &Packet) -> Vec<u8> {
    let mut data = BytesMut::new();
    headers.write(direction, packet, &mut data);
    data[HEADROOM..].to_vec()
}

/// Whether lengths and checksums are right, computed over all bytes.
fn is_sound(ip: &[u8]) -> bool {
    let length = u32::try_from(ip.len() - IP_HEADER).expect("short");
    let pseudo = match ip[9] {
        ICMP => 0,
        protocol => add(u32::from(protocol) + length, &ip[12..20]),
    };
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let udp = u32::from(u16::from_be_bytes([ip[24], ip[25]]));
    total == ip.len()
        && fold(add(0, &ip[..IP_HEADER])) == 0xffff
        && fold(add(pseudo, &ip[IP_HEADER..])) == 0xffff
        && (ip[9] != UDP || udp == length && ip[26..28] != [0, 0])
}

#[test]
fn headers_say_what_the_values_mean() {
    let mut headers = Headers::default();
    let sent = packet(Upper::Tcp, 1_052, data(3, 7, 5));
    let ip = bytes(&mut headers, Side::Down, &sent);
    assert_eq!(ip.len(), 1_052);
    assert_eq!(
        (&ip[12..16], &ip[16..20]),
        (&[10, 255, 0, 1][..], &[10, 254, 0, 3][..])
    );
    // Identification, and "don't fragment".
    assert_eq!(ip[4..8], [0, 0, 0x40, 0]);
    assert_eq!(
        ip[20..24],
        [5_201_u16.to_be_bytes(), 10_000_u16.to_be_bytes()].concat()[..]
    );
    assert_eq!(ip[24..28], 3_001_u32.to_be_bytes());
    assert_eq!((ip[32] >> 4, ip[33]), (8, FLAG_ACK));
    assert_eq!(ip[44..48], 7_u32.to_be_bytes());
    assert_eq!(ip[48..52], 5_u32.to_be_bytes());
    let mut ack = Ack {
        next: 2,
        echo: 9,
        ..Ack::default()
    };
    ack.push((3, 4));
    let answer = packet(Upper::Tcp, ack.tcp_bytes(), Body::Ack(ack));
    let ack = bytes(&mut headers, Side::Up, &answer);
    assert_eq!(ack[28..32], 2_001_u32.to_be_bytes());
    assert_eq!((ack[32] >> 4, ack.len()), (11, 64));
    assert_eq!(ack[44..48], 8_u32.to_be_bytes());
    assert_eq!(ack[48..52], 9_u32.to_be_bytes());
    assert_eq!(ack[52..56], [1, 1, 5, 10]);
    assert_eq!(
        ack[56..64],
        [3_001_u32.to_be_bytes(), 4_001_u32.to_be_bytes()].concat()[..]
    );
    assert!(is_sound(&ip) && is_sound(&ack));
}

#[test]
fn a_mark_is_told_in_the_flag_of_the_rfc() {
    let ack = Ack {
        congested: true,
        ..Ack::default()
    };
    let packet = packet(Upper::Tcp, TCP_HEADERS, Body::Ack(ack));
    let mut headers = Headers::default();
    let ip = bytes(&mut headers, Side::Up, &packet);
    assert_eq!(ip[33], FLAG_ACK | FLAG_ECE);
    assert_eq!(headers.read(&ip), Some(packet));
}

#[test]
fn hosts_without_options_have_none() {
    let mut headers = Headers::default();
    let sent = packet(Upper::PlainTcp, plain::HEADERS + 1_000, data(4, 0, 0));
    let ip = bytes(&mut headers, Side::Up, &sent);
    assert_eq!(
        (ip[32] >> 4, &ip[24..28]),
        (5, &4_001_u32.to_be_bytes()[..])
    );
    assert_eq!(headers.read(&ip), Some(sent));
    let ack = Ack {
        next: 5,
        ..Ack::default()
    };
    let ack = packet(Upper::PlainTcp, plain::HEADERS, Body::Ack(ack));
    let ip = bytes(&mut headers, Side::Down, &ack);
    assert_eq!((ip.len(), &ip[28..32]), (40, &5_001_u32.to_be_bytes()[..]));
    assert_eq!(headers.read(&ip), Some(ack));
}

#[test]
fn calls_are_rtp_and_pings_are_echoes() {
    let mut headers = Headers::default();
    let (number, sent_ns) = (65_535, 40_000_000);
    let voice = Body::Voice { number, sent_ns };
    let voice = packet(Upper::Udp, UDP_HEADERS + 32, voice);
    let ip = bytes(&mut headers, Side::Up, &voice);
    // Version, number, and 8 ticks of each ms.
    assert_eq!(ip[28..36], [0x80, 0, 0xff, 0xff, 0, 0, 1, 64]);
    assert_eq!(headers.read(&ip), Some(voice));
    for (body, kind) in [(Body::Ping(70_000), 8), (Body::Pong(70_000), 0)] {
        let ping = packet(Upper::Echo, PING_BYTES, body);
        let ip = bytes(&mut headers, Side::Up, &ping);
        assert_eq!(
            (ip[9], ip[20], &ip[26..28]),
            (1, kind, &4_464_u16.to_be_bytes()[..])
        );
        assert_eq!(headers.read(&ip), Some(ping));
    }
}

#[test]
fn a_connection_opens_with_the_flags_of_a_handshake() {
    let mut headers = Headers::default();
    let mut flags = |direction, body| {
        let packet = packet(Upper::Tcp, 300, body);
        let ip = bytes(&mut headers, direction, &packet);
        assert_eq!(headers.read(&ip), Some(packet));
        ip[33]
    };
    assert_eq!(flags(Side::Up, Body::Ping(0)), FLAG_SYN);
    assert_eq!(flags(Side::Down, Body::Pong(0)), FLAG_SYN | FLAG_ACK);
    assert_eq!(flags(Side::Up, Body::Ping(1)), FLAG_PUSH | FLAG_ACK);
    assert_eq!(flags(Side::Up, Body::Request(3)), FLAG_PUSH | FLAG_ACK);
}

#[test]
fn segments_are_told_apart_beyond_four_gigabytes() {
    // A download of 14 GB; each packet is on its way while a window of others is sent, and the
    // last of the window comes late.
    let (payload, window) = (1_374, 5_000);
    let (mut written, mut observed) = (Headers::default(), Headers::default());
    let mut late = None;
    let first = packet(Upper::Tcp, TCP_HEADERS + payload, data(0, 0, 0));
    let first = bytes(&mut written, Side::Down, &first);
    observed.read(&first).expect("a segment");
    for segment in (0..10_000_000).step_by(window) {
        let sent = packet(Upper::Tcp, TCP_HEADERS + payload, data(segment, 0, 0));
        let ip = bytes(&mut written, Side::Down, &sent);
        let mut ack = Ack {
            next: segment.saturating_sub(3),
            ..Ack::default()
        };
        ack.push((segment, segment + 1));
        let ack = packet(Upper::Tcp, ack.tcp_bytes(), Body::Ack(ack));
        let answer = bytes(&mut written, Side::Up, &ack);
        for (bytes, packet) in late.replace((ip, sent)).into_iter().chain([(answer, ack)]) {
            assert_eq!(written.read(&bytes), Some(packet));
            // One who sees only what arrives.
            assert_eq!(observed.read(&bytes), Some(packet));
        }
    }
}

#[test]
fn foreign_and_truncated_packets_are_none_of_ours() {
    let mut headers = Headers::default();
    let sent = packet(Upper::Tcp, 100, data(1, 2, 3));
    let ip = bytes(&mut headers, Side::Down, &sent);
    for length in 0..TCP_HEADERS as usize {
        assert_eq!(headers.read(&ip[..length]), None, "{length} bytes");
    }
    assert_eq!(headers.read(&[0; 100]), None);
    let mut odd = ip;
    odd[27] ^= 1;
    assert_eq!(headers.read(&odd), None, "no segment begins there");
}

/// Segments that a reader tells apart who has seen none.
const SEGMENTS: u32 = (1 << 31) / ropewalk_plan::SEGMENT_MAX - 1_000;

/// Blocks beyond `next`, apart from each other, and on demand a duplicate before them.
fn any_ack(most: usize) -> impl Strategy<Value = Ack> {
    let gaps = prop::collection::vec((1u32..50, 1u32..50), 0..=most);
    let rest = (0u32..SEGMENTS, any::<u32>(), any::<bool>(), 0u8..3);
    (rest, gaps).prop_map(move |((next, echo, congested, twice), gaps)| {
        let mut ack = Ack {
            next,
            echo,
            congested,
            ..Ack::default()
        };
        let mut at = next;
        let beyond = gaps.iter().map(|(gap, length)| {
            let start = at + gap;
            at = start + length;
            (start, at)
        });
        let mut blocks: Vec<(u32, u32)> = beyond.collect();
        blocks.reverse();
        let below = next.checked_sub(1).map(|segment| (segment, next));
        let within = blocks.first().map(|&(start, _)| (start, start + 1));
        let duplicate = [None, below, within][usize::from(twice)];
        ack.duplicate = duplicate.is_some();
        for block in duplicate.into_iter().chain(blocks).take(most) {
            ack.push(block);
        }
        ack
    })
}

/// A packet of TCP with a body that fits.
fn any_tcp() -> impl Strategy<Value = Packet> {
    let clocks = any::<(u32, u32, u64)>();
    let segments = (100u32..=1_448, 0u32..SEGMENTS, clocks).prop_map(
        |(payload, segment, (stamp, echo, sent_ns))| {
            let body = Body::Data {
                segment,
                stamp,
                echo,
                sent_ns,
            };
            packet(Upper::Tcp, TCP_HEADERS + payload, body)
        },
    );
    let acks = (any_ack(TCP_BLOCKS), any::<u32>()).prop_map(|(ack, clock)| Packet {
        clock,
        ..packet(Upper::Tcp, ack.tcp_bytes(), Body::Ack(ack))
    });
    let messages =
        (any_message(), 300u32..600).prop_map(|(body, bytes)| packet(Upper::Tcp, bytes, body));
    prop_oneof![segments, acks, messages]
}

fn any_message() -> impl Strategy<Value = Body> {
    prop_oneof![
        any::<u32>().prop_map(Body::Ping),
        any::<u32>().prop_map(Body::Pong),
        any::<u32>().prop_map(Body::Request),
    ]
}

/// The same without options: what they say is zero.
fn any_plain() -> impl Strategy<Value = Packet> {
    any_tcp().prop_map(|mut packet| {
        (packet.upper, packet.clock) = (Upper::PlainTcp, 0);
        match &mut packet.body {
            Body::Data { stamp, echo, .. } => (*stamp, *echo) = (0, 0),
            Body::Ack(ack) => {
                packet.bytes = plain::HEADERS;
                *ack = Ack {
                    next: ack.next,
                    congested: ack.congested,
                    ..Ack::default()
                };
            }
            Body::Ping(_) | Body::Pong(_) | Body::Request(_) | Body::Voice { .. } => {}
        }
        packet
    })
}

fn any_udp() -> impl Strategy<Value = Packet> {
    let data =
        (any::<(u32, u32, u64)>(), 100u32..1_400).prop_map(|((segment, stamp, sent_ns), bytes)| {
            let body = Body::Data {
                segment,
                stamp,
                echo: 0,
                sent_ns,
            };
            packet(Upper::Udp, bytes, body)
        });
    let acks = any_ack(BLOCKS_MAX).prop_map(|ack| {
        let ack = Ack {
            congested: false,
            ..ack
        };
        packet(Upper::Udp, ack.quic_bytes(), Body::Ack(ack))
    });
    let calls = (any::<u16>(), any::<u64>(), 32u32..=1_200).prop_map(|(number, sent_ns, bytes)| {
        let body = Body::Voice { number, sent_ns };
        packet(Upper::Udp, UDP_HEADERS + bytes, body)
    });
    prop_oneof![data, acks, calls]
}

fn any_echo() -> impl Strategy<Value = Packet> {
    let number = prop_oneof![
        any::<u32>().prop_map(Body::Ping),
        any::<u32>().prop_map(Body::Pong)
    ];
    number.prop_map(|body| packet(Upper::Echo, PING_BYTES, body))
}

fn any_packet() -> impl Strategy<Value = Packet> {
    let ecn = prop::sample::select(vec![Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce]);
    let kinds = prop_oneof![any_tcp(), any_plain(), any_udp(), any_echo()];
    (kinds, 0u16..60_000, 0u16..USES, ecn, any::<bool>()).prop_map(
        |(packet, flow, use_count, ecn, reduced)| Packet {
            flow,
            use_count,
            ecn,
            // Only segments of data say so.
            reduced: reduced
                && matches!(packet.upper, Upper::Tcp | Upper::PlainTcp)
                && matches!(packet.body, Body::Data { .. }),
            ..packet
        },
    )
}

proptest! {
    #[test]
    fn packets_survive_their_bytes(packet in any_packet(), down in any::<bool>()) {
        let mut headers = Headers::default();
        let direction = if down { Side::Down } else { Side::Up };
        let ip = bytes(&mut headers, direction, &packet);
        prop_assert_eq!(headers.read(&ip), Some(packet));
        prop_assert!(is_sound(&ip), "{:?}", packet);
        let info = PacketInfo::parse(&ip).expect("IPv4");
        prop_assert_eq!((info.ecn, info.length), (packet.ecn, ip.len()));
        let is_data = !matches!(packet.body, Body::Ack(_));
        let is_tcp = matches!(packet.upper, Upper::Tcp | Upper::PlainTcp);
        prop_assert_eq!(info.tcp_in_order(&ip), is_tcp && is_data);
        // A gateway that marks it keeps it ours.
        let mut marked = ip;
        ropewalk_types::mark_ce(&mut marked);
        prop_assert!(is_sound(&marked));
        let ecn = Ecn::Ce;
        prop_assert_eq!(headers.read(&marked), Some(Packet { ecn, ..packet }));
    }

    #[test]
    fn any_bytes_are_read_without_panic(ip in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut headers = Headers::default();
        let _ = headers.read(&ip);
    }
}
