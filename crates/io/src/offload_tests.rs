//! Splitting and coalescing against each other, and against packets nobody should send.

use bytes::Bytes;
use proptest::prelude::*;

use crate::coalesce::{Allowed, Coalescer, SEGMENTS_MAX};
use crate::headers::{FLAG_ACK, FLAG_CWR, FLAG_FIN, FLAG_PSH, Plain, be16, be32, put16};
use crate::pool::Pool;
use crate::split::{BadSuperPacket, split};
use crate::virtio::*;
use crate::{HEADROOM, InnerPacket, TunPacket, checksum, emit};

const ALL: Allowed = Allowed {
    tcp: true,
    udp: true,
};

/// Addresses, ports and the fields a test varies.
#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    tcp: bool,
    port: u16,
    seq: u32,
    id: u16,
    flags: u8,
    class: u8,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            v6: false,
            tcp: true,
            port: 4000,
            seq: 1,
            id: 7,
            flags: FLAG_ACK,
            class: 0,
            options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            payload: vec![0xab; 1000],
        }
    }
}

impl Spec {
    fn udp() -> Self {
        Self {
            tcp: false,
            options: Vec::new(),
            ..Self::default()
        }
    }

    /// The packet with right lengths and the given state of its checksum.
    fn build(&self, complete: bool) -> Vec<u8> {
        let mut p = if self.v6 { vec![0; 40] } else { vec![0; 20] };
        let protocol = if self.tcp { 6 } else { 17 };
        if self.v6 {
            p[0] = 0x60 | self.class >> 4;
            p[1] = self.class << 4 | 3;
            (p[6], p[7]) = (protocol, 64);
            p[8..40].copy_from_slice(&[0xfd; 32]);
        } else {
            (p[0], p[1]) = (0x45, self.class);
            p[4..6].copy_from_slice(&self.id.to_be_bytes());
            (p[8], p[9]) = (64, protocol);
            p[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let l4 = p.len();
        p.extend_from_slice(&self.port.to_be_bytes());
        p.extend_from_slice(&[0, 80]);
        if self.tcp {
            p.extend_from_slice(&self.seq.to_be_bytes());
            p.extend_from_slice(&9u32.to_be_bytes());
            let offset = u8::try_from((20 + self.options.len()) / 4).expect("short");
            p.extend_from_slice(&[offset << 4, self.flags, 1, 0, 0, 0, 0, 0]);
            p.extend_from_slice(&self.options);
        } else {
            p.extend_from_slice(&[0; 4]);
        }
        p.extend_from_slice(&self.payload);
        let total = p.len();
        crate::headers::set_ip_length(&mut p, self.v6, total);
        if !self.tcp {
            put16(&mut p, l4 + 4, u16::try_from(total - l4).expect("fits"));
        }
        let plain = Plain::parse(&p, p.len()).expect("plain");
        if complete {
            let (header, payload) = p.split_at_mut(plain.header_len);
            plain.set_full_checksum(header, payload);
        } else {
            plain.set_pseudo_checksum(&mut p, total);
        }
        p
    }

    fn vnet(&self, segment: u16) -> VnetHeader {
        let l4 = if self.v6 { 40 } else { 20 };
        VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: match (self.tcp, self.v6) {
                (true, false) => GSO_TCP_V4,
                (true, true) => GSO_TCP_V6,
                (false, _) => GSO_UDP_L4,
            },
            header_len: 0,
            gso_size: segment,
            checksum_start: l4,
            checksum_offset: if self.tcp { 16 } else { 6 },
        }
    }

    fn split(&self, segment: u16) -> Vec<TunPacket> {
        let mut out = Vec::new();
        let mut pool = Pool::new(128 * 1024);
        split(
            &self.vnet(segment),
            &mut self.build(false),
            &mut pool,
            &mut out,
        )
        .expect("sound");
        out
    }
}

fn inner(packets: &[TunPacket]) -> Vec<InnerPacket> {
    packets
        .iter()
        .map(|p| {
            InnerPacket::whole(
                Bytes::copy_from_slice(&p.data[HEADROOM..]),
                p.checksum_partial,
            )
        })
        .collect()
}

/// A virtio header, a packet, and the indices of the packets that it is made of.
type Written = (VnetHeader, Vec<u8>, Vec<usize>);

/// What would be written, per group. Restored headers that are apart change nothing of that.
fn written(packets: &[InnerPacket], allowed: Allowed) -> Vec<Written> {
    let found = written_as_given(packets, allowed);
    let apart: Vec<InnerPacket> = packets.iter().map(apart).collect();
    assert_eq!(written_as_given(&apart, allowed), found);
    found
}

/// The packet with its headers of IP and TCP in a piece of memory of their own, if it has them.
fn apart(packet: &InnerPacket) -> InnerPacket {
    let mut apart = packet.clone();
    if let Some(plain) = packet.plain().filter(|plain| plain.tcp) {
        apart.head = apart.data.split_to(plain.header_len);
    }
    apart
}

fn written_as_given(packets: &[InnerPacket], allowed: Allowed) -> Vec<Written> {
    let mut coalescer = Coalescer::default();
    coalescer.plan(packets, allowed);
    let mut out = Vec::new();
    for group in coalescer.groups() {
        let mut members = vec![group.first];
        for _ in 1..group.count {
            members.push(coalescer.after(members[members.len() - 1]));
        }
        let first = &packets[group.first];
        let (mut bytes, header_len) = match group.plain {
            Some(plain) if group.count > 1 => (
                emit::super_packet(first, group, plain).bytes(true).to_vec(),
                plain.header_len,
            ),
            Some(plain) if first.checksum_partial => (
                emit::completed(first, plain, true).bytes(true).to_vec(),
                plain.header_len,
            ),
            _ => (vec![0; VNET_HEADER_LEN], 0),
        };
        for member in &members {
            let member = &packets[*member];
            match header_len {
                0 => bytes.extend_from_slice(&[&member.head[..], &member.data].concat()),
                _ => bytes.extend_from_slice(member.payload(header_len)),
            }
        }
        let (header, packet) = bytes.split_first_chunk().expect("header");
        out.push((VnetHeader::parse(header), packet.to_vec(), members));
    }
    out
}

fn complete(data: Vec<u8>) -> InnerPacket {
    InnerPacket::whole(data.into(), false)
}

fn partial(data: Vec<u8>) -> InnerPacket {
    InnerPacket::whole(data.into(), true)
}

/// A run of packets of one flow as a sender makes them.
fn run_of(spec: &Spec, count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let length = u32::try_from(spec.payload.len()).expect("short");
            let id = spec.id.wrapping_add(u16::try_from(i).expect("few"));
            Spec {
                seq: spec.seq.wrapping_add(i * length),
                id,
                ..spec.clone()
            }
            .build(true)
        })
        .collect()
}

#[test]
fn tcp_segments_carry_the_fields_linux_gives_them() {
    let flags = FLAG_ACK | FLAG_PSH | FLAG_FIN | FLAG_CWR;
    let seq = u32::MAX - 500; // wraps
    let id = u16::MAX;
    let spec = Spec {
        flags,
        seq,
        id,
        payload: vec![1; 2500],
        ..Spec::default()
    };
    let out = spec.split(1000);
    let fields: Vec<_> = out
        .iter()
        .map(|p| {
            let p = &p.data[HEADROOM..];
            (be16(p, 2), be16(p, 4), be32(p, 24), p[33])
        })
        .collect();
    assert_eq!(
        fields,
        [
            (1052, 65_535, seq, FLAG_ACK | FLAG_CWR),
            (1052, 0, seq.wrapping_add(1000), FLAG_ACK),
            (
                552,
                1,
                seq.wrapping_add(2000),
                FLAG_ACK | FLAG_PSH | FLAG_FIN
            ),
        ]
    );
    for packet in &out {
        assert!(packet.checksum_partial);
        let ip_header = &packet.data[HEADROOM..HEADROOM + 20];
        assert_eq!(checksum::fold(checksum::add(0, ip_header)), 0xffff);
    }
}

#[test]
fn udp_segments_say_their_own_length() {
    for v6 in [false, true] {
        let spec = Spec {
            v6,
            payload: vec![2; 2100],
            ..Spec::udp()
        };
        let out = spec.split(1000);
        let l4 = if v6 { 40 } else { 20 };
        let lengths: Vec<_> = out
            .iter()
            .map(|p| be16(&p.data[HEADROOM..], l4 + 4))
            .collect();
        assert_eq!(lengths, [1008, 1008, 108]);
        assert!(
            out.iter()
                .all(|p| Plain::parse(&p.data[HEADROOM..], p.data.len() - HEADROOM).is_some())
        );
    }
}

#[test]
fn largest_super_packet_is_split_completely() {
    let spec = Spec {
        payload: vec![3; 65_535 - 52],
        ..Spec::default()
    };
    let out = spec.split(1448);
    let total: usize = out.iter().map(|p| p.data.len() - HEADROOM - 52).sum();
    assert_eq!((out.len(), total), (46, 65_535 - 52));
}

#[test]
fn segments_behind_ip_options_leave_with_complete_checksums() {
    // Four bytes of options: no exit could tell where the checksum stands.
    let spec = Spec {
        payload: vec![4; 1500],
        ..Spec::default()
    };
    let mut packet = spec.build(false);
    packet.splice(20..20, [1, 1, 1, 1]);
    packet[0] = 0x46;
    let total = packet.len();
    crate::headers::set_ip_length(&mut packet, false, total);
    let vnet = VnetHeader {
        checksum_start: 24,
        ..spec.vnet(1000)
    };
    let mut out = Vec::new();
    split(&vnet, &mut packet, &mut Pool::new(1 << 17), &mut out).expect("sound");
    assert_eq!(out.len(), 2);
    for packet in out {
        assert!(!packet.checksum_partial);
        let p = &packet.data[HEADROOM..];
        let sum = checksum::pseudo_header(&p[12..20], 6, p.len() - 24);
        assert_eq!(checksum::fold(checksum::add(sum, &p[24..])), 0xffff);
    }
}

#[test]
fn partial_checksum_of_another_protocol_is_completed_at_the_entry() {
    // An inner checksum at an odd place, as tunnels in the kernel ask for.
    let mut packet = vec![0; 60];
    packet[0] = 0x45;
    packet[3] = 60;
    packet[9] = 47;
    packet[50..52].copy_from_slice(&[0x12, 0x34]);
    let vnet = VnetHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start: 40,
        checksum_offset: 10,
        ..VnetHeader::default()
    };
    let mut out = Vec::new();
    split(&vnet, &mut packet, &mut Pool::new(1 << 17), &mut out).expect("sound");
    assert!(!out[0].checksum_partial);
    assert_eq!(be16(&out[0].data[HEADROOM..], 50), !0x1234);
}

#[test]
fn contradictions_between_virtio_header_and_packet_are_refused() {
    let spec = Spec::default();
    let good = spec.vnet(500);
    let table = [
        VnetHeader {
            gso_size: 0,
            ..good
        },
        VnetHeader { flags: 0, ..good },
        VnetHeader {
            gso_type: GSO_TCP_V6,
            ..good
        },
        VnetHeader {
            gso_type: 3,
            ..good
        },
        VnetHeader {
            checksum_start: 0,
            ..good
        },
        VnetHeader {
            checksum_start: 24,
            ..good
        },
        VnetHeader {
            checksum_start: u16::MAX,
            ..good
        },
        VnetHeader {
            gso_size: u16::MAX,
            ..good
        },
        VnetHeader {
            gso_type: GSO_NONE,
            checksum_start: u16::MAX,
            ..good
        },
    ];
    for vnet in table {
        let mut out = Vec::new();
        let result = split(
            &vnet,
            &mut spec.build(false),
            &mut Pool::new(1 << 17),
            &mut out,
        );
        assert_eq!(result, Err(BadSuperPacket), "{vnet:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn complete_packets_of_one_flow_become_one_super_packet() {
    let packets: Vec<_> = run_of(&Spec::default(), 20)
        .into_iter()
        .map(complete)
        .collect();
    let out = written(&packets, ALL);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].0.gso_size, 1000);
    assert_eq!(out[0].1.len(), 52 + 20_000);
}

#[test]
fn a_wrong_checksum_is_never_made_right() {
    let mut packets: Vec<_> = run_of(&Spec::default(), 3)
        .into_iter()
        .map(complete)
        .collect();
    let mut broken = packets[1].data.to_vec();
    broken[700] ^= 1;
    packets[1].data = broken.clone().into();
    let out = written(&packets, ALL);
    let single = out.iter().find(|(_, packet, _)| *packet == broken);
    assert!(single.is_some_and(|(vnet, ..)| vnet.flags == 0), "{out:?}");
    // The first packet broken: the second must not join it.
    packets.swap(0, 1);
    assert!(
        written(&packets, ALL)
            .iter()
            .any(|(_, packet, _)| *packet == broken)
    );
}

#[test]
fn interleaved_flows_are_coalesced_each() {
    let flows: Vec<Vec<_>> = (0..8)
        .map(|flow| {
            run_of(
                &Spec {
                    port: 5000 + flow,
                    ..Spec::default()
                },
                10,
            )
        })
        .collect();
    let packets: Vec<_> = (0..10)
        .flat_map(|i| flows.iter().map(move |flow| complete(flow[i].clone())))
        .collect();
    assert_eq!(written(&packets, ALL).len(), 8);
}

#[test]
fn more_flows_than_open_groups_lose_nothing() {
    let packets: Vec<_> = (0..3u32)
        .flat_map(|i| {
            (0..40).map(move |flow| {
                let spec = Spec {
                    port: flow,
                    seq: 1 + i * 1000,
                    ..Spec::default()
                };
                partial(spec.build(false))
            })
        })
        .collect();
    let members: usize = written(&packets, ALL).iter().map(|(.., m)| m.len()).sum();
    assert_eq!(members, packets.len());
}

/// Second packets that must not join the first.
#[expect(clippy::too_many_lines, reason = "a table")]
fn strangers() -> Vec<(&'static str, Vec<u8>)> {
    let next = Spec {
        seq: 1001,
        id: 8,
        ..Spec::default()
    };
    let patched = |name, patch: &dyn Fn(&mut Vec<u8>)| {
        let mut p = next.build(false);
        patch(&mut p);
        (name, p)
    };
    vec![
        (
            "gap",
            Spec {
                seq: 1002,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "larger",
            Spec {
                payload: vec![0; 1001],
                ..next.clone()
            }
            .build(false),
        ),
        (
            "no payload",
            Spec {
                payload: vec![],
                ..next.clone()
            }
            .build(false),
        ),
        (
            "SYN",
            Spec {
                flags: FLAG_ACK | 2,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "FIN",
            Spec {
                flags: FLAG_ACK | FLAG_FIN,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "RST",
            Spec {
                flags: FLAG_ACK | 4,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "URG",
            Spec {
                flags: FLAG_ACK | 0x20,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "CWR",
            Spec {
                flags: FLAG_ACK | FLAG_CWR,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "CE",
            Spec {
                class: 3,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "DSCP",
            Spec {
                class: 46 << 2,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "identification",
            Spec {
                id: 99,
                ..next.clone()
            }
            .build(false),
        ),
        (
            "timestamps",
            Spec {
                options: vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 2],
                ..next.clone()
            }
            .build(false),
        ),
        (
            "options",
            Spec {
                options: vec![],
                ..next.clone()
            }
            .build(false),
        ),
        patched("acknowledgement", &|p| p[31] ^= 1),
        patched("window", &|p| p[35] ^= 1),
        patched("TTL", &|p| p[8] = 63),
        patched("DF", &|p| p[6] = 0x40),
        patched("fragment", &|p| p[6] = 0x20),
        patched("trailing byte", &|p| p.push(0)),
    ]
}

#[test]
fn what_segmentation_would_not_give_back_is_not_coalesced() {
    let first = Spec::default().build(false);
    let joined = Spec {
        seq: 1001,
        id: 8,
        ..Spec::default()
    }
    .build(false);
    assert_eq!(
        written(&[partial(first.clone()), partial(joined)], ALL).len(),
        1
    );
    for (name, second) in strangers() {
        let out = written(&[partial(first.clone()), partial(second)], ALL);
        assert_eq!(out.len(), 2, "{name}");
        assert_eq!(out[0].2, [0], "{name}: order");
    }
}

#[test]
fn push_ends_a_super_packet_and_stays_at_its_end() {
    let last = Spec {
        seq: 1001,
        id: 8,
        flags: FLAG_ACK | FLAG_PSH,
        ..Spec::default()
    };
    let after = Spec {
        seq: 2001,
        id: 9,
        ..Spec::default()
    };
    let batch = [Spec::default(), last, after].map(|spec| partial(spec.build(false)));
    let out = written(&batch, ALL);
    assert_eq!(out.iter().map(|o| o.2.len()).collect::<Vec<_>>(), [2, 1]);
    assert_ne!(out[0].1[33] & FLAG_PSH, 0);
}

#[test]
fn udp_without_checksum_and_udp_without_offload_stay_single() {
    let mut packets = run_of(&Spec::udp(), 2);
    let whole: Vec<_> = packets.iter().cloned().map(complete).collect();
    assert_eq!(written(&whole, ALL).len(), 1);
    assert_eq!(
        written(
            &whole,
            Allowed {
                tcp: true,
                udp: false
            }
        )
        .len(),
        2
    );
    for packet in &mut packets {
        put16(packet, 26, 0);
    }
    let packets: Vec<_> = packets.into_iter().map(complete).collect();
    assert_eq!(written(&packets, ALL).len(), 2);
}

#[test]
fn super_packets_stay_within_segments_and_bytes() {
    let small = Spec {
        payload: vec![0; 10],
        ..Spec::default()
    };
    let packets: Vec<_> = run_of(&small, 200).into_iter().map(complete).collect();
    let counts: Vec<_> = written(&packets, ALL).iter().map(|o| o.2.len()).collect();
    assert_eq!(counts, [SEGMENTS_MAX, SEGMENTS_MAX, SEGMENTS_MAX, 8]);
    let large = Spec {
        payload: vec![0; 9000],
        ..Spec::default()
    };
    let packets: Vec<_> = run_of(&large, 20).into_iter().map(complete).collect();
    assert!(
        written(&packets, ALL)
            .iter()
            .all(|(_, packet, _)| packet.len() <= 65_535)
    );
}

#[test]
fn software_checksum_equals_what_the_receiver_expects() {
    for spec in [
        Spec::default(),
        Spec {
            v6: true,
            ..Spec::default()
        },
        Spec::udp(),
    ] {
        let packet = partial(spec.build(false));
        for packet in [apart(&packet), packet] {
            let plain = packet.plain().expect("plain");
            let scratch = emit::completed(&packet, plain, false);
            let mut whole = scratch.bytes(false).to_vec();
            whole.extend_from_slice(packet.payload(plain.header_len));
            assert!(plain.checksum_ok(&complete(whole.clone())));
            assert_eq!(whole, spec.build(true));
        }
    }
}

fn arbitrary_spec() -> impl Strategy<Value = Spec> {
    let options = prop_oneof![Just(0usize), Just(12), Just(40)];
    (
        any::<bool>(),
        any::<bool>(),
        any::<u32>(),
        any::<u16>(),
        any::<u8>(),
        options,
        2usize..60_000,
    )
        .prop_map(|(v6, tcp, seq, id, class, options, length)| Spec {
            v6,
            tcp,
            seq,
            id,
            class,
            flags: if seq % 2 == 0 {
                FLAG_ACK
            } else {
                FLAG_ACK | FLAG_PSH
            },
            options: if tcp { vec![1; options] } else { vec![] },
            payload: (0..length)
                .map(|i| u8::try_from(i % 251).expect("small"))
                .collect(),
            ..Spec::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn coalescing_gives_back_the_super_packet_that_was_split(
        spec in arbitrary_spec(),
        segments in 2usize..SEGMENTS_MAX,
    ) {
        let segment = spec.payload.len().div_ceil(segments);
        let whole = spec.build(false);
        let packets = spec.split(u16::try_from(segment).expect("fits"));
        prop_assume!(packets.len() > 1);
        let out = written(&inner(&packets), ALL);
        prop_assert_eq!(out.len(), 1);
        prop_assert_eq!(usize::from(out[0].0.gso_size), segment);
        prop_assert_eq!(&out[0].1, &whole);
    }

    #[test]
    fn nothing_is_lost_doubled_or_reordered_within_a_flow(
        batch in proptest::collection::vec((0u16..20, 0u8..4, 0u32..3, 1usize..4), 0..200),
    ) {
        let packets: Vec<_> = batch
            .iter()
            .map(|(port, flags, seq, length)| {
                let payload = vec![0; length * 100 - 100];
                let flags = FLAG_ACK | (flags & 1) << 3 | (flags & 2) >> 1;
                partial(Spec { port: *port, flags, seq: seq * 100, payload, ..Spec::default() }.build(false))
            })
            .collect();
        let mut seen = vec![Vec::new(); 20];
        for (.., members) in written(&packets, ALL) {
            for member in members {
                seen[usize::from(batch[member].0)].push(member);
            }
        }
        let mut expected = vec![Vec::new(); 20];
        for (index, (port, ..)) in batch.iter().enumerate() {
            expected[usize::from(*port)].push(index);
        }
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn arbitrary_reads_never_panic(
        header in any::<[u8; VNET_HEADER_LEN]>(),
        packet in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut out = Vec::new();
        let _ = split(&VnetHeader::parse(&header), &mut packet.clone(), &mut Pool::new(1 << 17), &mut out);
    }

    #[test]
    fn damaged_super_packets_never_panic(
        spec in arbitrary_spec(),
        segment in any::<u16>(),
        damage in proptest::collection::vec((0usize..100, any::<u8>()), 1..6),
        cut in 0usize..200,
    ) {
        let mut packet = spec.build(false);
        for (at, value) in damage {
            if let Some(byte) = packet.get_mut(at) {
                *byte = value;
            }
        }
        packet.truncate(packet.len() - cut.min(packet.len()));
        // Tiny segments only cost time here.
        let vnet = spec.vnet(segment.max(40));
        let mut out = Vec::new();
        let _ = split(&vnet, &mut packet, &mut Pool::new(1 << 17), &mut out);
        let _ = written(&inner(&out), ALL);
    }

    #[test]
    fn arbitrary_inner_packets_never_panic(
        batch in proptest::collection::vec(
            (any::<bool>(), 0u8..4, proptest::collection::vec(any::<u8>(), 0..120)), 0..20),
    ) {
        let packets: Vec<_> = batch
            .into_iter()
            .map(|(checksum_partial, kind, mut data)| {
                // Mostly something that looks like IP.
                if let (Some(first), 0..=2) = (data.first_mut(), kind) {
                    *first = [0x45, 0x60, 0x4f][usize::from(kind)];
                }
                InnerPacket::whole(data.into(), checksum_partial)
            })
            .collect();
        let members: usize = written(&packets, ALL).iter().map(|(.., m)| m.len()).sum();
        prop_assert_eq!(members, packets.len());
    }
}
