//! What hosts say that no header has a place for, as the first bytes of the payload.

use crate::packet::{Ack, Body};

/// Longest content: an acknowledgement of QUIC with four blocks.
pub const CONTENT_MAX: usize = 1 + 4 + 4 + 8 * crate::packet::BLOCKS_MAX;

/// Which body it is, in the low three bits of the first byte.
const DATA: u8 = 0;
const ACK: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const VOICE: u8 = 4;
const REQUEST: u8 = 5;
/// An acknowledgement names a duplicate; the number of its blocks is in the high four bits.
const DUPLICATE: u8 = 8;

/// Content that is being written.
#[derive(Debug)]
pub struct Content {
    bytes: [u8; CONTENT_MAX],
    length: usize,
}

impl Content {
    /// All that a body says.
    pub fn of(body: &Body) -> Self {
        let mut to = Self {
            bytes: [0; CONTENT_MAX],
            length: 0,
        };
        match *body {
            Body::Data {
                segment,
                stamp,
                sent_ns,
                ..
            } => {
                to.put(&[DATA]);
                to.put(&segment.to_be_bytes());
                to.put(&stamp.to_be_bytes());
                to.put(&sent_ns.to_be_bytes());
            }
            Body::Ack(ack) => {
                let duplicate = if ack.duplicate { DUPLICATE } else { 0 };
                to.put(&[ACK | duplicate | ack.count << 4]);
                to.put(&ack.next.to_be_bytes());
                to.put(&ack.echo.to_be_bytes());
                for &(start, end) in ack.blocks() {
                    to.put(&start.to_be_bytes());
                    to.put(&end.to_be_bytes());
                }
            }
            Body::Ping(number) => to.tagged(PING, number),
            Body::Pong(number) => to.tagged(PONG, number),
            Body::Voice { number, sent_ns } => {
                to.put(&[VOICE]);
                to.put(&number.to_be_bytes());
                to.put(&sent_ns.to_be_bytes());
            }
            Body::Request(segments) => to.tagged(REQUEST, segments),
        }
        to
    }

    /// The bytes of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    fn tagged(&mut self, tag: u8, value: u32) {
        self.put(&[tag]);
        self.put(&value.to_be_bytes());
    }
}

/// The body that [`Content::of`] wrote; `None` if there is none.
pub fn read(bytes: &[u8]) -> Option<Body> {
    let (&tag, rest) = bytes.split_first()?;
    let mut from = Reader(rest);
    let body = match tag & 7 {
        DATA => Body::Data {
            segment: from.word()?,
            stamp: from.word()?,
            echo: 0,
            sent_ns: from.double()?,
        },
        ACK => {
            let mut ack = Ack {
                next: from.word()?,
                echo: from.word()?,
                duplicate: tag & DUPLICATE != 0,
                ..Ack::default()
            };
            for _ in 0..tag >> 4 {
                ack.push((from.word()?, from.word()?));
            }
            Body::Ack(ack)
        }
        PING => Body::Ping(from.word()?),
        PONG => Body::Pong(from.word()?),
        VOICE => Body::Voice {
            number: from.short()?,
            sent_ns: from.double()?,
        },
        REQUEST => Body::Request(from.word()?),
        _ => return None,
    };
    Some(body)
}

/// The bytes that have not been read yet.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    pub fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub fn double(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}
