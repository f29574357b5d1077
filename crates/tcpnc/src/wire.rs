//! The datagram: what TCP and the layer of network coding say, without IP and UDP.
//!
//! In an IP packet with UDP, a datagram is as long as a segment with IPv4 (20 bytes), TCP without options
//! (20) and network coding (8). The paper does not give the last number: 8 is assumed.
//! It contains the length of the packet. Fields of TCP's header that one session needs not are zero.

use thiserror::Error;

/// IPv4 and UDP, which the runner adds.
pub const IP_UDP: usize = 28;
/// From an inner packet to the outer one: IPv4, TCP and network coding.
pub const OUTER_HEADERS: usize = 46;
/// Length of the inner packet, within the coded bytes.
pub const LENGTH_BYTES: usize = 2;
/// Before the coded bytes.
const HEADER: usize = OUTER_HEADERS - IP_UDP;
/// An acknowledgement: it has the same headers and no packet.
const ACK_BYTES: usize = HEADER + LENGTH_BYTES;

/// A combination of the first packets of a coding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Counts everything that its sender transmits.
    pub transmission: u32,
    /// Number of the first packet of the coding window.
    pub base: u32,
    /// How many packets from there on are combined, 1 to 255.
    pub count: u8,
    /// Gives the coefficients, see [`coefficient`].
    pub seed: u16,
    /// The sum.
    pub symbol: Vec<u8>,
}

/// An acknowledgement: one for every combination that arrives (the tunnel paper, §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The oldest packet not yet seen.
    pub next: u32,
    /// The combination that arrived.
    pub transmission: u32,
    /// Whether that combination told anything new.
    pub innovative: bool,
}

/// Either of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// Data.
    Combination(Combination),
    /// An acknowledgement.
    Ack(Ack),
}

/// A datagram that no peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a TCP/NC datagram")]
pub struct Malformed;

impl Datagram {
    /// The bytes.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Combination(combination) => {
                let mut bytes = vec![0; HEADER];
                bytes[0] = COMBINATION;
                bytes[1] = combination.count;
                bytes[2..4].copy_from_slice(&combination.seed.to_be_bytes());
                bytes[4..8].copy_from_slice(&combination.transmission.to_be_bytes());
                bytes[8..12].copy_from_slice(&combination.base.to_be_bytes());
                bytes.extend_from_slice(&combination.symbol);
                bytes
            }
            Self::Ack(ack) => {
                let mut bytes = vec![0; ACK_BYTES];
                bytes[0] = ACK;
                bytes[1] = u8::from(ack.innovative);
                bytes[4..8].copy_from_slice(&ack.transmission.to_be_bytes());
                bytes[8..12].copy_from_slice(&ack.next.to_be_bytes());
                bytes
            }
        }
    }

    /// Reads what [`Self::write`] wrote.
    ///
    /// # Errors
    /// On anything else.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let header = bytes.get(..HEADER).ok_or(Malformed)?;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (transmission, number) = (word(4), word(8));
        match (header[0], header[1]) {
            (COMBINATION, count @ 1..) if bytes.len() > ACK_BYTES => {
                Ok(Self::Combination(Combination {
                    transmission,
                    base: number,
                    count,
                    seed: u16::from_be_bytes([header[2], header[3]]),
                    symbol: bytes[HEADER..].to_vec(),
                }))
            }
            (ACK, innovative @ 0..=1) if bytes.len() == ACK_BYTES => Ok(Self::Ack(Ack {
                next: number,
                transmission,
                innovative: innovative == 1,
            })),
            _ => Err(Malformed),
        }
    }
}

/// The coefficient of the packet at `place` in its coding window: never zero.
#[must_use]
pub fn coefficient(seed: u16, place: u8) -> u8 {
    let mixed = (u32::from(place) + 1)
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add((u32::from(seed) + 1).wrapping_mul(0x85eb_ca6b));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
    1 + ((mixed ^ (mixed >> 12)) % 255).to_le_bytes()[0]
}

const COMBINATION: u8 = 1;
const ACK: u8 = 2;
