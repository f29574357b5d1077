//! What goes in comes out, whatever is lost.

use crate::layout::{Layout, ipv4_checksum, put16, put32};
use crate::reference::id_of;
use crate::tuning::{COMPRESSED_TCP, FORGET, QUIET, RETRY, TRIES_MAX, UNANSWERED_MAX};
use crate::{Compressor, ExpandError, Expander};
use bytes::BytesMut;
use proptest::prelude::*;
use ropewalk_types::{Duration, Instant, Random};
use ropewalk_wire::{HeaderNotice, Headers};

const FLOW: u16 = 77;
const ROOM: usize = 9_000;

/// What a host sends in one flow.
#[derive(Clone, Debug)]
struct Host {
    v6: bool,
    kind: Kind,
    id: u16,
    /// Whether the number of IPv4 counts packets.
    counts: bool,
    seq: u32,
    ack: u32,
    window: u16,
    time: u32,
    echoed: u32,
    flags: u8,
    class: u8,
    options: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
    Rtp,
    Echo,
}

impl Host {
    fn new(v6: bool, kind: Kind, random: &mut Random) -> Self {
        let mut any = || random.next_u64().to_le_bytes();
        let word = |b: [u8; 8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Self {
            v6,
            kind,
            id: word(any()) as u16,
            counts: true,
            seq: word(any()),
            ack: word(any()),
            window: word(any()) as u16,
            time: word(any()),
            echoed: word(any()),
            flags: 16,
            class: 0,
            options: vec![1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// TCP, UDP or echo, without payload and checksum.
    fn above(&self) -> Vec<u8> {
        match self.kind {
            Kind::Tcp => {
                let mut tcp = vec![0; 20];
                put16(&mut tcp, 0, 443);
                put16(&mut tcp, 2, 50_000);
                put32(&mut tcp, 4, self.seq);
                put32(&mut tcp, 8, self.ack);
                tcp[12] = (((20 + self.options.len()) / 4) << 4) as u8;
                tcp[13] = self.flags;
                put16(&mut tcp, 14, self.window);
                tcp.extend_from_slice(&self.options);
                if self.options.starts_with(&[1, 1, 8, 10]) {
                    put32(&mut tcp, 24, self.time);
                    put32(&mut tcp, 28, self.echoed);
                }
                tcp
            }
            Kind::Udp | Kind::Rtp => {
                let mut udp = vec![0; 8];
                put16(&mut udp, 0, 4_000);
                put16(&mut udp, 2, 5_000);
                udp
            }
            Kind::Echo => {
                let mut echo = vec![0; 8];
                echo[0] = if self.v6 { 128 } else { 8 };
                put16(&mut echo, 4, 1_234);
                put16(&mut echo, 6, self.seq as u16);
                echo
            }
        }
    }

    /// IP in front of so many bytes.
    fn ip(&self, above: usize) -> Vec<u8> {
        let protocol = match (self.kind, self.v6) {
            (Kind::Tcp, _) => 6,
            (Kind::Udp | Kind::Rtp, _) => 17,
            (Kind::Echo, false) => 1,
            (Kind::Echo, true) => 58,
        };
        if self.v6 {
            let mut ip = vec![0; 40];
            ip[0] = 0x60 | self.class >> 4;
            ip[1] = self.class << 4;
            put16(&mut ip, 4, above as u16);
            (ip[6], ip[7]) = (protocol, 64);
            ip[23] = 1;
            ip[39] = 2;
            ip
        } else {
            let mut ip = vec![0; 20];
            (ip[0], ip[1]) = (0x45, self.class);
            put16(&mut ip, 2, (20 + above) as u16);
            put16(&mut ip, 4, self.id);
            (ip[6], ip[8], ip[9]) = (0x40, 64, protocol);
            ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = ipv4_checksum(&ip);
            put16(&mut ip, 10, sum);
            ip
        }
    }

    fn packet(&self, payload: &[u8], partial: bool) -> Vec<u8> {
        let mut above = self.above();
        if self.kind == Kind::Rtp {
            let mut rtp = vec![0; 12];
            rtp[0] = 0x80;
            rtp[1] = 8 | (self.flags & 0x80);
            put16(&mut rtp, 2, self.seq as u16);
            put32(&mut rtp, 4, self.time);
            put32(&mut rtp, 8, 0x1234_5678);
            above.extend_from_slice(&rtp);
        }
        above.extend_from_slice(payload);
        let mut packet = self.ip(above.len());
        let start = packet.len();
        packet.extend_from_slice(&above);
        if matches!(self.kind, Kind::Udp | Kind::Rtp) {
            let length = (packet.len() - start) as u16;
            put16(&mut packet, start + 4, length);
        }
        let layout = Layout::of_headers(&packet).expect("a packet that can be compressed");
        let (headers, payload) = packet.split_at(layout.len);
        let sum = layout.checksum(headers, [payload, &[]], partial);
        put16(&mut packet, layout.checksum_at(), sum);
        packet
    }

    /// The next packet is of another moment.
    fn go_on(&mut self, payload: usize) {
        self.id = self.id.wrapping_add(u16::from(self.counts));
        match self.kind {
            Kind::Tcp => self.seq = self.seq.wrapping_add(payload as u32),
            Kind::Udp | Kind::Rtp | Kind::Echo => self.seq = self.seq.wrapping_add(1),
        }
        let step = if self.kind == Kind::Rtp { 160 } else { 3 };
        self.time = self.time.wrapping_add(step);
        self.echoed = self.echoed.wrapping_add(step);
    }
}

/// Both ends, with time that passes.
#[derive(Default)]
struct Ends {
    compressor: Compressor,
    expander: Expander,
    flow_seq: u16,
    now: Instant,
}

impl Ends {
    /// What travels for this packet, and whether it is compressed.
    fn compress(&mut self, packet: &[u8], partial: bool) -> (Vec<u8>, bool) {
        self.now += Duration::from_millis(1);
        let mut sent = packet.to_vec();
        let removed =
            self.compressor
                .compress(self.now, FLOW, self.flow_seq, partial, &mut sent, ROOM);
        (sent.split_off(removed.unwrap_or(0)), removed.is_some())
    }

    fn expand(
        &mut self,
        flow_seq: u16,
        sent: &[u8],
        partial: bool,
    ) -> Result<Vec<u8>, ExpandError> {
        let mut out = BytesMut::new();
        let expander = &mut self.expander;
        let payload = expander.expand(self.now, FLOW, flow_seq, partial, sent, &mut out)?;
        out.extend_from_slice(&sent[payload..]);
        Ok(out.to_vec())
    }

    /// Carries announcements there and notices back; each is lost with this chance.
    fn tell(&mut self, loss: f64, random: &mut Random) {
        let (now, expander) = (self.now, &mut self.expander);
        // As a tunnel does: only when something is due.
        if self.compressor.poll_timeout().is_some_and(|at| at <= now) {
            self.compressor.announce(now, |headers, bytes| {
                if !random.chance(loss) {
                    let learned = expander.learn(now, headers, bytes);
                    learned.expect("what is announced can be learned");
                }
            });
        }
        for notice in self.expander.take_notices() {
            if !random.chance(loss) {
                self.compressor.on_notice(notice);
            }
        }
    }

    /// Sends packets until one travels compressed; returns the last.
    fn settle(&mut self, host: &mut Host, payload: &[u8]) -> Vec<u8> {
        for _ in 0..1_000 {
            let packet = host.packet(payload, false);
            let (sent, compressed) = self.compress(&packet, false);
            self.tell(0.0, &mut Random::new(1));
            if compressed {
                assert_eq!(self.expand(self.flow_seq, &sent, false).unwrap(), packet);
            }
            self.flow_seq = self.flow_seq.wrapping_add(1);
            host.go_on(payload.len());
            if compressed {
                return sent;
            }
        }
        panic!("nothing was compressed");
    }
}

/// Bytes that stand for the headers of a settled flow's packet.
fn encoded(kind: Kind, v6: bool, payload: usize) -> usize {
    encoded_of(Host::new(v6, kind, &mut Random::new(3)), payload)
}

fn encoded_of(mut host: Host, payload: usize) -> usize {
    let mut ends = Ends::default();
    let payload = vec![5; payload];
    for _ in 0..5 {
        ends.settle(&mut host, &payload);
    }
    ends.settle(&mut host, &payload).len() - payload.len()
}

#[test]
fn headers_shrink_to_a_few_bytes() {
    // Number of the reference, masks, time, what is echoed, checksum. The sequence number is as expected.
    assert_eq!(encoded(Kind::Tcp, false, 1_400), 1 + 2 + 1 + 1 + 2);
    assert_eq!(encoded(Kind::Tcp, true, 1_400), 1 + 2 + 1 + 1 + 2);
    // A bare acknowledgement's checksum is computed at both ends.
    assert_eq!(encoded(Kind::Tcp, false, 0), 1 + 2 + 1 + 1);
    assert_eq!(encoded(Kind::Udp, false, 1_200), 1 + 1 + 2);
    // A call with 20 bytes of voice: 60 bytes become 21. All is as expected, so no mask follows.
    assert_eq!(encoded(Kind::Rtp, false, 20), 1);
    assert_eq!(encoded(Kind::Echo, true, 56), 1);
    // Hosts that forbid fragments may leave the number of IPv4 at 0.
    let mut host = Host::new(false, Kind::Rtp, &mut Random::new(3));
    (host.id, host.counts) = (0, false);
    assert_eq!(encoded_of(host, 20), 1);
}

#[test]
fn a_fast_transfer_keeps_short_headers_beyond_all_numbers() {
    for v6 in [false, true] {
        let mut host = Host::new(v6, Kind::Tcp, &mut Random::new(6));
        let mut ends = Ends::default();
        let payload = [5; 1_400];
        ends.settle(&mut host, &payload);
        // 70,000 packets a second, that is 0.8 Gbit/s, and answers after up to 50 ms.
        for number in 0..200_000_u32 {
            ends.now += Duration::from_micros(14);
            let mut sent = host.packet(&payload, false);
            let packet = sent.clone();
            let flow_seq = ends.flow_seq;
            let compressor = &mut ends.compressor;
            let removed = compressor.compress(ends.now, FLOW, flow_seq, false, &mut sent, ROOM);
            let sent = sent.split_off(removed.expect("compressed"));
            assert!(sent.len() - 1_400 <= COMPRESSED_TCP, "packet {number}");
            if number % 64 == 0 {
                assert_eq!(ends.expand(flow_seq, &sent, false).unwrap(), packet);
            }
            if number % 3_500 == 0 {
                ends.tell(0.0, &mut Random::new(1));
            }
            ends.flow_seq = flow_seq.wrapping_add(1);
            // The clocks of the hosts count milliseconds.
            if number % 70 == 0 {
                host.go_on(1_400);
            } else {
                let clocks = (host.time, host.echoed);
                host.go_on(1_400);
                (host.time, host.echoed) = clocks;
            }
        }
    }
}

#[test]
fn a_call_stays_compressed_beyond_all_numbers() {
    let mut host = Host::new(false, Kind::Rtp, &mut Random::new(8));
    let mut ends = Ends::default();
    for _ in 0..70_000 {
        let sent = ends.settle(&mut host, &[5; 20]);
        assert!(sent.len() <= 22, "{} bytes for 20", sent.len());
    }
}

#[test]
fn packets_numbered_before_the_reference_are_near_it_and_need_no_newer_one() {
    let mut host = Host::new(false, Kind::Tcp, &mut Random::new(9));
    let mut ends = Ends::default();
    for _ in 0..5 {
        ends.settle(&mut host, &[5; 1_400]);
    }
    let first = ends.settle(&mut host, &[5; 1_400]);
    ends.now += Duration::from_secs(1);
    ends.flow_seq = ends.flow_seq.wrapping_sub(40);
    host.seq = host.seq.wrapping_sub(40 * 1_400);
    host.id = host.id.wrapping_sub(40);
    for _ in 0..30 {
        // `settle` tells at once: an announcement would have been answered, and the reference be another.
        let sent = ends.settle(&mut host, &[5; 1_400]);
        assert!(sent.len() - 1_400 <= 9, "as expected");
        assert_eq!(id_of(&sent), id_of(&first));
        assert!(ends.compressor.poll_timeout().is_none(), "no announcement");
    }
}

#[test]
fn a_segment_sent_again_and_one_behind_a_gap_have_short_headers() {
    for ahead in [-700, -1, 1, 700_i32] {
        let mut host = Host::new(false, Kind::Tcp, &mut Random::new(7));
        let mut ends = Ends::default();
        for _ in 0..5 {
            ends.settle(&mut host, &[5; 1_400]);
        }
        host.seq = host.seq.wrapping_add_signed(ahead * 1_400);
        let sent = ends.settle(&mut host, &[5; 1_400]);
        let distance = if ahead.abs() == 1 { 2 } else { 3 };
        assert_eq!(sent.len() - 1_400, 1 + 2 + distance + 1 + 1 + 2);
    }
}

#[test]
fn tcp_without_masks_and_numbers_out_of_range_are_refused() {
    let mut host = Host::new(false, Kind::Tcp, &mut Random::new(4));
    let mut ends = Ends::default();
    let mut sent = ends.settle(&mut host, &[5; 100]);
    sent[0] |= 128;
    let mut out = BytesMut::new();
    let now = ends.now;
    let expanded = ends.expander.expand(now, FLOW, 0, false, &sent, &mut out);
    assert_eq!((expanded, out.len()), (Err(ExpandError::Invalid), 0));
    let packet = host.packet(&[], false);
    let headers = Headers {
        flow: FLOW,
        flow_seq: 0,
        id: 128,
        rtp_step: None,
    };
    let learned = ends.expander.learn(now, &headers, &packet);
    assert_eq!(learned, Err(ExpandError::Invalid));
}

#[test]
fn nothing_is_compressed_for_a_peer_that_does_not_answer() {
    let mut host = Host::new(false, Kind::Udp, &mut Random::new(5));
    let mut ends = Ends::default();
    let mut said = 0;
    let end = Instant::ZERO + QUIET;
    while ends.now < end {
        let packet = host.packet(&[0; 500], false);
        let (sent, compressed) = ends.compress(&packet, false);
        assert!(!compressed && sent == packet);
        ends.now += RETRY / 20;
        ends.compressor.announce(ends.now, |_, _| said += 1);
        host.go_on(500);
    }
    assert!(
        said > TRIES_MAX && said <= UNANSWERED_MAX,
        "{said} announcements"
    );
    // Later it is asked again.
    ends.now += QUIET + RETRY;
    ends.settle(&mut host, &[0; 500]);
}

#[test]
fn a_peer_that_started_anew_is_told_again_and_the_sender_reads_its_own() {
    let mut host = Host::new(false, Kind::Tcp, &mut Random::new(7));
    let mut ends = Ends::default();
    let sent = ends.settle(&mut host, &[1; 700]);
    let flow_seq = ends.flow_seq.wrapping_sub(1);
    assert!(ends.compressor.is_readable(FLOW, &sent));
    ends.expander = Expander::default();
    assert_eq!(
        ends.expand(flow_seq, &sent, false),
        Err(ExpandError::Unknown)
    );
    assert_eq!(
        ends.expander.take_notices(),
        [HeaderNotice {
            flow: FLOW,
            id: sent[0],
            known: false
        }]
    );
    ends.compressor.reset();
    assert!(!ends.compressor.is_readable(FLOW, &sent));
    let mut whole = BytesMut::new();
    ends.compressor
        .expand(FLOW, flow_seq, false, &sent, &mut whole)
        .unwrap();
    assert_eq!(whole.len(), 52 + 700);
    let packet = host.packet(&[1; 700], false);
    assert!(!ends.compress(&packet, false).1, "nothing is known there");
    ends.settle(&mut host, &[1; 700]);
}

#[test]
fn a_notice_that_a_reference_is_unknown_ends_its_use() {
    let mut host = Host::new(true, Kind::Udp, &mut Random::new(7));
    let mut ends = Ends::default();
    let sent = ends.settle(&mut host, &[1; 700]);
    ends.compressor.on_notice(HeaderNotice {
        flow: FLOW,
        id: sent[0],
        known: false,
    });
    assert!(!ends.compress(&host.packet(&[1; 700], false), false).1);
    ends.settle(&mut host, &[1; 700]);
}

#[test]
fn a_number_that_is_given_again_means_the_newest_headers() {
    let mut random = Random::new(9);
    let mut ends = Ends::default();
    ends.settle(&mut Host::new(false, Kind::Udp, &mut random), &[1; 300]);
    // The ingress has lost the place of the bucket, and another flow begins there.
    ends.compressor = Compressor::default();
    let mut other = Host::new(false, Kind::Tcp, &mut random);
    ends.settle(&mut other, &[2; 300]);
}

#[test]
fn references_that_wear_out_do_not_pile_up() {
    let mut host = Host::new(false, Kind::Tcp, &mut Random::new(9));
    let mut ends = Ends::default();
    for round in 0..50 {
        ends.settle(&mut host, &[1; 300]);
        // Too far for any distance: a newer reference is wanted.
        host.seq = host.seq.wrapping_add(1 << 30);
        ends.now += Duration::from_secs(1);
        for _ in 0..40 {
            ends.settle(&mut host, &[1; 300]);
        }
        assert!(ends.compressor.waiting() <= 1, "round {round}");
    }
}

#[test]
fn two_flows_of_one_bucket_do_not_mix_and_silence_gives_the_place_up() {
    let mut random = Random::new(9);
    let (mut one, mut other) = (
        Host::new(false, Kind::Udp, &mut random),
        Host::new(false, Kind::Tcp, &mut random),
    );
    let mut ends = Ends::default();
    ends.settle(&mut one, &[1; 300]);
    for _ in 0..50 {
        let (_, compressed) = ends.compress(&other.packet(&[2; 300], false), false);
        assert!(!compressed);
        other.go_on(300);
        ends.settle(&mut one, &[1; 300]);
    }
    ends.now += FORGET;
    ends.settle(&mut other, &[2; 300]);
}

#[test]
fn what_does_not_agree_with_itself_travels_as_it_is() {
    let mut host = Host::new(false, Kind::Tcp, &mut Random::new(7));
    let mut ends = Ends::default();
    ends.settle(&mut host, &[1; 700]);
    let good = host.packet(&[1; 700], false);
    let changed = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet[at] ^= byte;
        packet
    };
    let mut longer = good.clone();
    longer.push(0);
    let cases = [
        changed(11, 1),
        changed(3, 1),
        changed(6, 0x20),
        changed(33, 2),
        changed(39, 1),
        longer,
    ];
    for (case, packet) in cases.iter().enumerate() {
        let (sent, compressed) = ends.compress(packet, false);
        assert!(!compressed && sent == *packet, "case {case}");
    }
    // A wrong checksum of TCP travels, and arrives.
    let wrong = changed(36, 1);
    let (sent, compressed) = ends.compress(&wrong, false);
    assert!(compressed);
    assert_eq!(ends.expand(ends.flow_seq, &sent, false).unwrap(), wrong);
}

/// Number in the bucket, whether its checksum is partial and it is compressed, what travels and what it
/// stands for.
type Flying = (u16, bool, bool, Vec<u8>, Vec<u8>);

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Tcp),
        Just(Kind::Udp),
        Just(Kind::Rtp),
        Just(Kind::Echo)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_goes_in_comes_out_byte_for_byte_whatever_is_lost_and_reordered(
        v6 in any::<bool>(),
        kind in kinds(),
        seed in any::<u64>(),
        loss in 0.0_f64..0.7,
    ) {
        let mut random = Random::new(seed);
        let mut host = Host::new(v6, kind, &mut random);
        // Sequence numbers of the bucket, and now and then those of TCP, begin anew within the flow.
        let mut ends = Ends {
            flow_seq: (random.next_u64() % 900) as u16 + 64_600,
            ..Ends::default()
        };
        if random.chance(0.3) {
            host.seq = 0_u32.wrapping_sub(100_000);
        }
        let mut flying: Vec<Flying> = Vec::new();
        let mut compressed_count = 0;
        for _ in 0..600 {
            let below = |random: &mut Random, n: u64| random.next_u64() % n;
            let length = match below(&mut random, 4) {
                0 => below(&mut random, 1_300) as usize,
                1 => [0, 1_200][below(&mut random, 2) as usize],
                // As in a transfer.
                _ => 1_200,
            };
            let payload = vec![seed as u8; length];
            match below(&mut random, 40) {
                0 => host.seq = host.seq.wrapping_sub(5_000),
                1 => host.seq = host.seq.wrapping_add(20 << 20),
                2 => host.ack = host.ack.wrapping_add(70_000),
                3 => host.window = random.next_u64() as u16,
                4 => host.id = random.next_u64() as u16,
                5 => host.time = host.time.wrapping_add(100_000),
                6 => host.echoed = host.echoed.wrapping_sub(500),
                7 => host.flags ^= 8,
                8 => host.flags = if kind == Kind::Rtp { host.flags ^ 0x80 } else { 0x18 | 0x40 },
                9 => host.class = random.next_u64() as u8,
                10 => host.options = vec![1, 1, 5, 10, 9, 9, 9, 9, 8, 8, 8, 8],
                11 => host.options = Vec::new(),
                12 => host.options = vec![1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0],
                _ => {}
            }
            let partial = kind != Kind::Echo && below(&mut random, 2) == 0;
            let mut packet = host.packet(&payload, partial);
            if below(&mut random, 30) == 0 {
                // A checksum that is wrong stays wrong.
                let at = Layout::of_headers(&packet).unwrap().checksum_at();
                packet[at] ^= 0x55;
            }
            let (sent, compressed) = ends.compress(&packet, partial);
            prop_assert!(compressed || sent == packet);
            compressed_count += u32::from(compressed);
            flying.push((ends.flow_seq, partial, compressed, sent, packet));
            ends.flow_seq = ends.flow_seq.wrapping_add(1);
            host.go_on(payload.len());
            ends.tell(loss, &mut random);
            // Up to 60 packets overtake each other, and some arrive twice or never.
            while flying.len() > 60 {
                let at = below(&mut random, flying.len() as u64) as usize;
                let (flow_seq, partial, compressed, sent, packet) = flying.swap_remove(at);
                if random.chance(loss) || !compressed {
                    continue;
                }
                for _ in 0..2 {
                    let found = ends.expand(flow_seq, &sent, partial);
                    prop_assert_eq!(found.as_ref(), Ok(&packet));
                }
            }
        }
        // With losses an announcement may be lost three times.
        prop_assert!(loss > 0.01 || compressed_count > 100, "{compressed_count} of 600");
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        headers in proptest::collection::vec(any::<u8>(), 0..110),
        first in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        protocol in prop_oneof![Just(6_u8), Just(17), Just(1), Just(58), any::<u8>()],
        encodings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 1..20),
        step in any::<Option<u32>>(),
    ) {
        let mut headers = headers;
        for (at, byte) in [(0, first), (6, if first == 0x45 { 0x40 } else { protocol }), (9, protocol)] {
            if let Some(place) = headers.get_mut(at) {
                *place = byte;
            }
        }
        let mut expander = Expander::default();
        let _ = expander.learn(
            Instant::ZERO,
            &Headers {
                flow: FLOW,
                flow_seq: 0,
                id: 0,
                rtp_step: step,
            },
            &headers,
        );
        for mut encoding in encodings {
            if let Some(id) = encoding.first_mut() {
                *id = 0;
            }
            let mut out = BytesMut::new();
            let found = expander.expand(Instant::ZERO, FLOW, 1, false, &encoding, &mut out);
            prop_assert!(found.is_ok() || out.is_empty());
        }
    }
}
