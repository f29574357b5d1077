//! Inner packets that can be told apart, and the list of those sent.

use bytes::BytesMut;
use ropewalk_core::queue::mark_ce;
use ropewalk_netem::Side;
use ropewalk_types::Random;
use ropewalk_wire::HEADROOM;

/// Bytes of the headers, number included: no inner packet is shorter.
pub const LENGTH_MIN: u16 = 44;
/// Where a packet carries its number.
const NUMBER: core::ops::Range<usize> = 40..44;
/// Flows: odd ones are TCP, even ones UDP; each has a codepoint of its own.
pub const FLOWS: u8 = 6;

/// An inner packet as it entered.
#[derive(Debug)]
struct Sent {
    end: Side,
    packet: Vec<u8>,
    delivered: bool,
}

/// Every inner packet of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    sent: Vec<Sent>,
}

impl Ledger {
    /// The next packet that enters at `end`, with room for headers in front: `length` bytes, at
    /// least [`LENGTH_MIN`], of which those behind the headers follow from its number.
    pub fn enter(&mut self, end: Side, flow: u8, length: u16) -> BytesMut {
        let number = u32::try_from(self.sent.len()).expect("few packets");
        let packet = packet(number, flow, length.max(LENGTH_MIN));
        let mut data = BytesMut::zeroed(HEADROOM);
        data.extend_from_slice(&packet);
        self.sent.push(Sent {
            end,
            packet,
            delivered: false,
        });
        data
    }

    /// A packet came out at `end`. It must have entered at the other end, unchanged but for a
    /// congestion mark where it can carry one, and it must come out for the first time.
    pub fn leave(&mut self, end: Side, packet: &[u8]) {
        assert!(
            packet.len() >= usize::from(LENGTH_MIN),
            "invented: {packet:x?}"
        );
        let number = u32::from_be_bytes(packet[NUMBER].try_into().expect("four bytes"));
        let sent = self.sent.get_mut(number as usize);
        let sent = sent.unwrap_or_else(|| panic!("invented: number {number}"));
        assert_ne!(sent.end, end, "number {number} came out where it entered");
        if packet != sent.packet {
            assert!(
                matches!(sent.packet[1] & 3, 1 | 2),
                "number {number} altered"
            );
            mark_ce(&mut sent.packet);
            assert!(packet == sent.packet, "number {number} altered");
        }
        assert!(!sent.delivered, "number {number} delivered twice");
        sent.delivered = true;
    }

    /// How many packets have entered.
    pub fn entered(&self) -> usize {
        self.sent.len()
    }

    /// How many of those from `number` on have come out.
    pub fn left_since(&self, number: usize) -> usize {
        self.sent[number..]
            .iter()
            .filter(|sent| sent.delivered)
            .count()
    }
}

fn packet(number: u32, flow: u8, length: u16) -> Vec<u8> {
    let mut random = Random::new(u64::from(number));
    let mut packet: Vec<u8> = (0..length.div_ceil(8))
        .flat_map(|_| random.next_u64().to_be_bytes())
        .collect();
    packet.truncate(usize::from(length));
    let tcp = flow % 2 == 1;
    packet[..20].copy_from_slice(&[
        0x45,
        (flow << 2) | (flow % 3),
        0,
        0,
        0,
        0,
        0,
        0,
        64,
        if tcp { 6 } else { 17 },
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ]);
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x10, flow, 0x20, 0]);
    if tcp {
        packet[32..34].copy_from_slice(&[0x50, 0x10]); // 20 bytes of header, an acknowledgement
    }
    packet[NUMBER].copy_from_slice(&number.to_be_bytes());
    packet
}
