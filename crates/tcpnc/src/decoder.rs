//! The sink's layer of network coding: combinations in, packets in order and the oldest unseen
//! packet out.
//!
//! A packet is *seen* when some sum of what arrived begins with it (Sundararajan et al., "Network
//! coding meets TCP", §III). Every combination that tells anything new makes one packet seen, long
//! before the packet itself is known. Combinations are of the first packets of a coding window, so
//! the seen packets of a window are its first ones. By chance about one of 255 combinations skips a
//! packet, which the next one fills in.

use crate::tuning::{PACKET_MAX, WINDOW_MAX};
use crate::wire::{Combination, LENGTH_BYTES, coefficient};
use ropewalk_gf256::{add_multiple, inverse, scale};
use std::collections::{BTreeMap, VecDeque};

/// Coefficients and sum; the first coefficient that is not zero is one.
#[derive(Clone, Debug)]
struct Row {
    coefficients: Vec<u8>,
    sum: Vec<u8>,
}

impl Row {
    fn pivot(&self) -> Option<usize> {
        self.coefficients.iter().position(|&factor| factor != 0)
    }

    /// Adds `factor` times `other`.
    fn add(&mut self, other: &Self, factor: u8) {
        grow(&mut self.coefficients, other.coefficients.len());
        grow(&mut self.sum, other.sum.len());
        add_multiple(&mut self.coefficients, factor, &other.coefficients);
        add_multiple(&mut self.sum, factor, &other.sum);
    }
}

fn grow(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

/// One coding window, in reduced row echelon form.
#[derive(Clone, Debug, Default)]
struct Window {
    /// By pivot.
    rows: BTreeMap<usize, Row>,
    /// Packets delivered.
    delivered: usize,
    /// Packets that one of its combinations has, at most.
    count: u8,
}

impl Window {
    /// Packets seen before the first unseen one.
    fn seen(&self) -> u32 {
        let first_ones = self.rows.keys().zip(0..);
        first_ones
            .take_while(|(pivot, n)| *pivot == n)
            .map(|_| 1)
            .sum()
    }

    /// Takes a combination in; whether it told anything new.
    fn insert(&mut self, mut row: Row) -> bool {
        for (&pivot, known) in &self.rows {
            let factor = row.coefficients.get(pivot).copied().unwrap_or(0);
            if factor != 0 {
                row.add(known, factor);
            }
        }
        let Some(pivot) = row.pivot() else {
            return false;
        };
        let factor = inverse(row.coefficients[pivot]);
        scale(&mut row.coefficients, factor);
        scale(&mut row.sum, factor);
        for known in self.rows.values_mut() {
            let factor = known.coefficients.get(pivot).copied().unwrap_or(0);
            if factor != 0 {
                known.add(&row, factor);
            }
        }
        self.rows.insert(pivot, row);
        true
    }

    /// Takes the next packet out, once it is known alone.
    fn next(&mut self) -> Option<Vec<u8>> {
        let row = self.rows.get(&self.delivered)?;
        let alone = row
            .coefficients
            .iter()
            .filter(|&&factor| factor != 0)
            .count()
            == 1;
        if !alone {
            return None;
        }
        self.delivered += 1;
        let length = usize::from(u16::from_be_bytes([*row.sum.first()?, *row.sum.get(1)?]));
        // A peer that contradicts itself gives nonsense; it must not give a panic.
        row.sum
            .get(LENGTH_BYTES..LENGTH_BYTES + length)
            .map(<[u8]>::to_vec)
    }
}

/// State of the sink.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// First packet of the oldest window that is not done.
    first: u32,
    /// By number of the first packet.
    windows: BTreeMap<u32, Window>,
    ready: VecDeque<Vec<u8>>,
}

impl Decoder {
    /// The oldest packet not yet seen.
    #[must_use]
    pub fn unseen(&self) -> u32 {
        let mut unseen = self.first;
        for (&base, window) in &self.windows {
            if base > unseen {
                break;
            }
            unseen = base + window.seen();
        }
        unseen
    }

    /// Takes a combination in; whether it told anything new. Afterwards [`Self::poll`].
    pub fn on_combination(&mut self, combination: Combination) -> bool {
        let Combination {
            base,
            count,
            seed,
            symbol,
            ..
        } = combination;
        // The sender's window reaches no further than this.
        let furthest = self.unseen().saturating_add(WINDOW_MAX);
        if base < self.first
            || base > furthest.min(u32::MAX - 256)
            || symbol.len() > PACKET_MAX + LENGTH_BYTES
        {
            return false;
        }
        // Windows of an honest sender do not overlap. Those of another could be without number.
        let before = self.windows.range(..base).next_back();
        let behind = self.windows.range(base + 1..).next();
        if before.is_some_and(|(first, window)| first + u32::from(window.count) > base)
            || behind.is_some_and(|(next, _)| base + u32::from(count) > *next)
        {
            return false;
        }
        let coefficients = (0..count).map(|place| coefficient(seed, place)).collect();
        let sum = symbol;
        let window = self.windows.entry(base).or_default();
        window.count = window.count.max(count);
        let new = window.insert(Row { coefficients, sum });
        if new {
            self.deliver();
        }
        new
    }

    /// Delivers in order, and forgets windows behind which another one has begun.
    fn deliver(&mut self) {
        while let Some(window) = self.windows.get_mut(&self.first) {
            while let Some(packet) = window.next() {
                self.ready.push_back(packet);
            }
            let end = self.first + u32::try_from(window.delivered).unwrap_or(u32::MAX);
            if end == self.first || !self.windows.contains_key(&end) {
                return;
            }
            self.windows.remove(&self.first);
            self.first = end;
        }
    }

    /// The next packet in order.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }
}
