//! Compression of inner headers, and inner packets: an ingress and an egress in virtual time. Packets, what the
//! ingress makes of them, and nonsense come in any order.

use crate::input::Input;
use bytes::BytesMut;
use ropewalk_headers::{Compressor, Expander, HEADERS_MAX, PacketSizes, limit_segments};
use ropewalk_types::{Duration, Instant, PacketInfo};
use ropewalk_wire::{HeaderNotice, Headers};

/// Longest packet: longer ones show nothing more.
const PACKET_MAX: usize = 200;
/// Room of a datagram for a packet, bytes.
const ROOM: usize = 1_400;
/// Flow buckets that are used: few, so that packets meet.
const FLOWS: u16 = 4;
/// Most steps of an input.
const STEPS_MAX: usize = 200;

/// Takes the input for what hosts send, for what a network makes of it, and for what a hostile ingress sends. What
/// comes out of the egress is what went into the ingress, as long as nothing was invented.
///
/// # Panics
/// When it is not.
pub fn headers(data: &[u8]) {
    let mut input = Input::new(data);
    let mut ends = Ends {
        now: Instant::ZERO,
        compressor: Compressor::default(),
        expander: Expander::default(),
        number: 0,
        hostile: false,
        last: Vec::new(),
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        ends.step(&mut input);
    }
}

struct Ends {
    now: Instant,
    compressor: Compressor,
    expander: Expander,
    number: u16,
    hostile: bool,
    /// The packet before, with which the next one begins: flows arise only so.
    last: Vec<u8>,
}

impl Ends {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0..=2 => self.packet(input),
            3 => self.announce(input.flag()),
            4 => self.now += Duration::from_millis(u64::from(input.u16())),
            5 => self.invent(input),
            6 => {
                self.compressor.on_notice(HeaderNotice {
                    flow: input.u16() % FLOWS,
                    id: input.u8(),
                    known: input.flag(),
                });
                // A notice that the egress did not give.
                self.hostile = true;
            }
            _ => {
                self.compressor.forget(self.now);
                self.expander.forget(self.now);
                if input.flag() {
                    self.compressor.reset();
                }
            }
        }
    }

    /// The next packet of a host goes through both ends, or is lost.
    fn packet(&mut self, input: &mut Input<'_>) {
        let (flow, marks) = (input.u16() % FLOWS, input.u8());
        let packet = self.next(input);
        inner(&packet, marks);
        self.number = self.number.wrapping_add(1);
        let partial = marks & 1 != 0;
        let mut sent = packet.clone();
        let start = self
            .compressor
            .compress(self.now, flow, self.number, partial, &mut sent, ROOM);
        let Some(start) = start else {
            assert_eq!(sent, packet, "not compressed, and changed");
            return;
        };
        let compressed = &sent[start..];
        assert!(compressed.len() <= packet.len());
        if marks & 2 != 0 {
            return;
        }
        let mut out = BytesMut::new();
        let expander = &mut self.expander;
        match expander.expand(self.now, flow, self.number, partial, compressed, &mut out) {
            Ok(payload) => {
                out.extend_from_slice(&compressed[payload..]);
                assert!(
                    self.hostile || out[..] == packet[..],
                    "{out:x?}\n{packet:x?}"
                );
            }
            Err(_) => assert!(out.is_empty()),
        }
        self.notices();
    }

    /// A packet much like the one before, or another.
    fn next(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let changes = usize::from(input.u8());
        if self.last.is_empty() || changes > 8 {
            let length = usize::from(input.u8()) % PACKET_MAX;
            self.last = input.bytes(length).to_vec();
        } else {
            for _ in 0..changes {
                let (at, value) = (usize::from(input.u8()), input.u8());
                if let Some(byte) = self.last.get_mut(at) {
                    *byte = value;
                }
            }
        }
        if changes % 2 == 0 {
            mend(&mut self.last);
        }
        self.last.clone()
    }

    fn announce(&mut self, arrives: bool) {
        let Self {
            compressor,
            expander,
            now,
            hostile,
            ..
        } = self;
        compressor.announce(*now, |headers, bytes| {
            assert!(bytes.len() <= HEADERS_MAX);
            if arrives {
                let learnt = expander.learn(*now, headers, bytes);
                assert!(*hostile || learnt.is_ok());
            }
        });
        self.notices();
    }

    fn notices(&mut self) {
        for notice in self.expander.take_notices() {
            self.compressor.on_notice(notice);
        }
    }

    /// Headers or a packet that no ingress sent.
    fn invent(&mut self, input: &mut Input<'_>) {
        self.hostile = true;
        let (flow, flow_seq) = (input.u16(), input.u16());
        let length = usize::from(input.u8());
        if input.flag() {
            let headers = Headers {
                flow: flow % 4_096,
                flow_seq,
                id: input.u8(),
                rtp_step: input.flag().then(|| input.u32()),
            };
            let _ = self.expander.learn(self.now, &headers, input.bytes(length));
        } else {
            let partial = input.flag();
            let (mut out, bytes) = (BytesMut::new(), input.bytes(length));
            let expanded =
                self.expander
                    .expand(self.now, flow % 4_096, flow_seq, partial, bytes, &mut out);
            match expanded {
                Ok(payload) => assert!(payload <= bytes.len() && out.len() <= HEADERS_MAX),
                Err(_) => assert!(out.is_empty()),
            }
        }
        self.notices();
    }
}

/// Makes length and sum of IPv4 right, without which nothing is compressed.
fn mend(packet: &mut [u8]) {
    let length = packet.len();
    let first = packet.first().copied().unwrap_or(0);
    if first >> 4 == 6 && length >= 40 {
        let payload = u16::try_from(length - 40).unwrap_or(0);
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
    }
    let header = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header < 20 || length < header {
        return;
    }
    let total = u16::try_from(length).unwrap_or(0);
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let mut sum: u32 = 0;
    for pair in packet[..header].chunks_exact(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).unwrap_or(0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// What is read of every inner packet.
fn inner(packet: &[u8], marks: u8) {
    let Some(info) = PacketInfo::parse(packet) else {
        return;
    };
    assert!(info.length <= packet.len());
    assert!(info.transport_offset <= packet.len());
    assert!(info.dscp < 64);
    let _ = (info.destination(), info.tcp_in_order(packet));
    let sizes = PacketSizes {
        whole: 500 + usize::from(marks) * 4,
        most: 1_400,
        compressed: marks & 2 != 0,
    };
    if let Some(limited) = limit_segments(packet, sizes, marks & 1 != 0) {
        assert_eq!(limited.len(), packet.len());
    }
}
