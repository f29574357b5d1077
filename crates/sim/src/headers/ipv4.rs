//! An IPv4 packet while it is written: headers and checksums, in bytes that are zero at first.

use ropewalk_types::checksum::{add, fold};
use std::net::Ipv4Addr;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const FLAG_FIN: u8 = 0x01;
pub const FLAG_SYN: u8 = 0x02;
pub const FLAG_PUSH: u8 = 0x08;
pub const FLAG_ACK: u8 = 0x10;
/// Flags of RFC 3168.
pub const FLAG_ECE: u8 = 0x40;
pub const FLAG_CWR: u8 = 0x80;
/// Bytes of headers.
pub const IP_HEADER: usize = 20;
pub const TCP_HEADER: usize = 20;
pub const UDP_HEADER: usize = 8;
/// Where, behind the header of IPv4, TCP says how long its own is, and its flags.
pub const TCP_OFFSET: usize = 12;
pub const TCP_FLAGS: usize = 13;
/// Two paddings, then timestamps (RFC 7323 appendix A): all options of most segments.
pub const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];
pub const TIMESTAMP_OPTIONS: usize = 12;
/// Two paddings and the kind of selective acknowledgements (RFC 2018 §3); their length follows.
pub const BLOCKS: [u8; 3] = [1, 1, 5];

const TTL: u8 = 64;
const DO_NOT_FRAGMENT: u8 = 0x40;
const WINDOW: u16 = 65_535;

/// What a TCP header says.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// The sender's clock and the newest one of the other side; plain hosts have none.
    pub stamps: Option<[u32; 2]>,
}

/// The packet.
#[derive(Debug)]
pub struct Ipv4<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Ipv4<'a> {
    /// A packet of `length` bytes, with its header. It may not be fragmented, so its identification
    /// is zero (RFC 6864 §4.1).
    pub fn new(
        bytes: &'a mut [u8],
        length: usize,
        protocol: u8,
        addresses: [Ipv4Addr; 2],
        ecn: u8,
    ) -> Self {
        let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
        let [source, destination] = addresses.map(|address| address.octets());
        let mut header = [0; IP_HEADER];
        header[..4].copy_from_slice(&[0x45, ecn, high, low]);
        header[6] = DO_NOT_FRAGMENT;
        (header[8], header[9]) = (TTL, protocol);
        header[12..16].copy_from_slice(&source);
        header[16..].copy_from_slice(&destination);
        let sum = !fold(add(0, &header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut packet = Self { bytes };
        packet.put(0, &header);
        packet
    }

    /// Writes what there is room for; the first byte behind it.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        let end = (at + bytes.len()).min(self.bytes.len());
        if let Some(slot) = self.bytes.get_mut(at..end) {
            slot.copy_from_slice(&bytes[..end - at]);
        }
        end
    }

    pub fn ports(&mut self, ports: [u16; 2]) {
        for (port, at) in ports.into_iter().zip([IP_HEADER, IP_HEADER + 2]) {
            self.put(at, &port.to_be_bytes());
        }
    }

    /// TCP's header behind the ports; the first byte behind it. Blocks go beside timestamps only.
    pub fn tcp(&mut self, header: &Tcp, blocks: impl ExactSizeIterator<Item = [u32; 2]>) -> usize {
        let mut end = IP_HEADER + TCP_HEADER;
        self.put(24, &header.sequence.to_be_bytes());
        self.put(28, &header.acknowledgement.to_be_bytes());
        self.put(34, &WINDOW.to_be_bytes());
        if let Some([stamp, echo]) = header.stamps {
            self.put(end, &TIMESTAMPS);
            self.put(end + 4, &stamp.to_be_bytes());
            end = self.put(end + 8, &echo.to_be_bytes());
            if blocks.len() > 0 {
                end = self.put(end, &BLOCKS);
                let length = u8::try_from(2 + 8 * blocks.len()).unwrap_or(u8::MAX);
                end = self.put(end, &[length]);
                for edge in blocks.flatten() {
                    end = self.put(end, &edge.to_be_bytes());
                }
            }
        }
        let words = u8::try_from((end - IP_HEADER) / 4).unwrap_or(15).min(15);
        self.put(IP_HEADER + TCP_OFFSET, &[words << 4, header.flags]);
        end
    }

    /// Length of a UDP datagram, which ends the packet.
    pub fn udp(&mut self) {
        let length = self.bytes.len().saturating_sub(IP_HEADER);
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        self.put(24, &length.to_be_bytes());
    }

    /// The checksum above IP; from `end` on all bytes are zero, and add nothing to it.
    pub fn sum(&mut self, end: usize) {
        let protocol = self.bytes[9];
        let (at, pseudo) = match protocol {
            ICMP => (22, 0),
            TCP => (36, self.pseudo_header()),
            _ => (26, self.pseudo_header()),
        };
        let written = &self.bytes[IP_HEADER..end.min(self.bytes.len())];
        let mut sum = !fold(add(pseudo, written));
        // RFC 768: a computed checksum of zero is sent as all ones.
        if protocol == UDP && sum == 0 {
            sum = u16::MAX;
        }
        self.put(at, &sum.to_be_bytes());
    }

    /// Sum of addresses, protocol and length (RFC 9293 §3.1).
    fn pseudo_header(&self) -> u32 {
        let length = self.bytes.len().saturating_sub(IP_HEADER);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        add(
            u32::from(self.bytes[9]) + length,
            &self.bytes[12..IP_HEADER],
        )
    }
}
