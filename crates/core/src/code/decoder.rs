//! The egress's side: what one path delivered lately, and the equations that repair symbols of it make.

use super::Coded;
use super::coefficient::coefficient;
use super::symbol::{self, Check};
use super::tuning::{
    EQUATIONS_MAX, EXPECTED_INTERVALS, IDLE, PATIENCE_INTERVALS, PATIENCE_MAX, PATIENCE_MIN,
    REMEMBERED, ROW_MAX, UNKNOWNS_MAX,
};
use bytes::Bytes;
use ropewalk_gf256::{add_multiple, inverse, multiply, scale};
use ropewalk_types::{Duration, Instant, count_steps};
use ropewalk_wire::DATA_HEADER;

/// Bytes that the processor works through at once.
const SIMD: usize = 16;

/// What is known of one number.
#[derive(Clone, Debug, Default)]
struct Slot {
    number: u16,
    known: bool,
    /// A copy, because the packet is a part of a block in which many were received. Empty for bytes
    /// that are not a packet and count as zero.
    packet: Vec<u8>,
    /// Of the packet, once it was needed: most never are.
    check: Option<Check>,
}

impl Slot {
    fn set(&mut self, number: u16, packet: &[u8], check: Option<Check>) {
        (self.number, self.known, self.check) = (number, true, check);
        self.packet.clear();
        self.packet.extend_from_slice(packet);
    }
}

/// Sum of unknown packets, each with its factor. The factor of the pivot is one, and its packet is in no
/// other equation.
#[derive(Debug)]
struct Equation {
    pivot: u16,
    /// In order of their numbers: rows get long, and each step goes through two of them.
    unknowns: Vec<(u16, u8)>,
    sum: Vec<u8>,
}

/// State of one path.
#[derive(Debug)]
pub struct Decoder {
    slots: Vec<Slot>,
    equations: Vec<Equation>,
    recovered: Vec<(u16, Vec<u8>)>,
    /// Memory for a row that is being made.
    row: Vec<(u16, u8)>,
    last_coded: Instant,
    interval: Duration,
}

impl Decoder {
    /// A path whose first repair symbol has just come.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            slots: vec![Slot::default(); REMEMBERED],
            equations: Vec::new(),
            recovered: Vec::new(),
            row: Vec::new(),
            last_coded: now,
            interval: PATIENCE_MAX,
        }
    }

    /// Whether repair symbols have not come for long.
    #[must_use]
    pub fn is_idle(&self, now: Instant) -> bool {
        now.since(self.last_coded) > IDLE
    }

    /// How many equations there are, and how many unknowns in all of them.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        let unknowns = self.equations.iter().map(|row| row.unknowns.len());
        (self.equations.len(), unknowns.sum())
    }

    /// How long a gap is worth waiting for a repair symbol.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.interval
            .mul_f64(PATIENCE_INTERVALS)
            .clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// Until when a gap is worth that: the peer may have stopped sending repair symbols.
    #[must_use]
    pub fn expected_until(&self) -> Instant {
        self.last_coded + self.interval * EXPECTED_INTERVALS
    }

    /// The path delivered `number`; `packet` when it was one, with its whole header. Afterwards
    /// [`Decoder::poll`].
    pub fn on_datagram(&mut self, number: u16, packet: Option<&Bytes>) {
        let packet = packet.filter(|packet| packet.len() >= DATA_HEADER);
        self.learn(number, packet.map_or(&[], |packet| packet));
    }

    /// A repair symbol came. Afterwards [`Decoder::poll`].
    pub fn on_coded(&mut self, now: Instant, mut coded: Coded) {
        let interval = now.since(self.last_coded).min(PATIENCE_MAX * 4);
        self.interval = (self.interval * 7 + interval) / 8;
        self.last_coded = now;
        let mut equation = Equation {
            pivot: coded.first,
            unknowns: Vec::new(),
            sum: std::mem::take(&mut coded.symbol),
        };
        for number in coded.numbers() {
            let factor = coefficient(coded.seed, number);
            let slot = &mut self.slots[slot_of(number)];
            if slot.known && slot.number == number {
                // A symbol is as long as the longest packet in it. Otherwise a few bytes would cost the work
                // of all these packets.
                if equation.sum.len() < symbol::bytes(&slot.packet) {
                    return;
                }
                let check = *slot
                    .check
                    .get_or_insert_with(|| symbol::check(&slot.packet));
                equation.remove(factor, &slot.packet, check);
            } else if equation.unknowns.len() < UNKNOWNS_MAX {
                equation.unknowns.push((number, factor));
            } else {
                return;
            }
        }
        equation.unknowns.sort_unstable();
        self.insert(equation);
        self.settle();
    }

    /// The next recovered packet with its number.
    pub fn poll(&mut self) -> Option<(u16, Vec<u8>)> {
        self.recovered.pop()
    }

    /// A number is known now: equations that miss it get simpler.
    fn learn(&mut self, number: u16, packet: &[u8]) {
        self.forget_before(number);
        let mut check = None;
        let concerned = |equation: &Equation| equation.find(number).is_some();
        let mut n = 0;
        let mut again = Vec::new();
        while n < self.equations.len() {
            if concerned(&self.equations[n]) {
                again.push(self.equations.swap_remove(n));
            } else {
                n += 1;
            }
        }
        for mut equation in again {
            if let Some(at) = equation.find(number) {
                let (_, factor) = equation.unknowns.remove(at);
                let check = *check.get_or_insert_with(|| symbol::check(packet));
                equation.remove(factor, packet, check);
            }
            self.insert(equation);
        }
        self.slots[slot_of(number)].set(number, packet, check);
        self.settle();
    }

    /// Numbers come again after 2^16 datagrams: an equation must be gone by then.
    fn forget_before(&mut self, number: u16) {
        let near = |unknown: u16| usize::from(number.wrapping_sub(unknown)) < REMEMBERED;
        let ahead = |unknown: u16| usize::from(unknown.wrapping_sub(number)) < REMEMBERED;
        self.equations.retain(|equation| {
            count_steps(equation.unknowns.len());
            let mut unknowns = equation.unknowns.iter();
            unknowns.all(|&(unknown, _)| near(unknown) || ahead(unknown))
        });
    }

    /// Takes an equation in: Gauss-Jordan elimination.
    fn insert(&mut self, mut equation: Equation) {
        for known in &self.equations {
            if let Some(factor) = equation.factor(known.pivot) {
                equation.add(known, factor, &mut self.row);
            }
        }
        let Some(&(pivot, factor)) = equation.unknowns.first() else {
            return; // it says nothing new
        };
        equation.pivot = pivot;
        equation.scale(inverse(factor));
        for other in &mut self.equations {
            if let Some(factor) = other.factor(pivot) {
                other.add(&equation, factor, &mut self.row);
            }
        }
        if self.equations.len() == EQUATIONS_MAX {
            self.equations.remove(0);
        }
        self.equations.push(equation);
        // Longer ones are not solved any more, and each step with them would take long.
        self.equations.retain(|row| row.unknowns.len() <= ROW_MAX);
    }

    /// Takes out what is solved. An answer that is not a packet was an empty number, or nonsense:
    /// some packet was of another connection. It says nothing.
    fn settle(&mut self) {
        while let Some(at) = self.equations.iter().position(|e| e.unknowns.len() <= 1) {
            let equation = self.equations.swap_remove(at);
            let Some(&(number, _)) = equation.unknowns.first() else {
                continue;
            };
            let slot = &mut self.slots[slot_of(number)];
            if equation.sum.iter().all(|&byte| byte == 0) {
                slot.set(number, &[], None);
            } else if let Some((packet, check)) = symbol::datagram(equation.sum, number) {
                slot.set(number, &packet, Some(check));
                self.recovered.push((number, packet));
            }
        }
    }
}

impl Equation {
    /// Takes a packet that is known, or nothing, out.
    fn remove(&mut self, factor: u8, packet: &[u8], check: Check) {
        if !packet.is_empty() {
            count_steps(packet.len() / SIMD);
            symbol::add(&mut self.sum, factor, packet, check);
        }
    }

    /// The place of a number among the unknowns.
    fn find(&self, number: u16) -> Option<usize> {
        self.unknowns.binary_search_by_key(&number, |u| u.0).ok()
    }

    fn factor(&self, number: u16) -> Option<u8> {
        Some(self.unknowns[self.find(number)?].1)
    }

    /// Adds `factor` times `other`. The new row is made in `row`, and the old one left there.
    fn add(&mut self, other: &Self, factor: u8, row: &mut Vec<(u16, u8)>) {
        count_steps(self.unknowns.len() + other.unknowns.len() + other.sum.len() / SIMD);
        row.clear();
        let mut own = self.unknowns.iter().copied().peekable();
        for &(number, coefficient) in &other.unknowns {
            while let Some(before) = own.next_if(|u| u.0 < number) {
                row.push(before);
            }
            let mine = own.next_if(|u| u.0 == number).map_or(0, |u| u.1);
            let sum = mine ^ multiply(coefficient, factor);
            if sum != 0 {
                row.push((number, sum));
            }
        }
        row.extend(own);
        std::mem::swap(&mut self.unknowns, row);
        if self.sum.len() < other.sum.len() {
            self.sum.resize(other.sum.len(), 0);
        }
        add_multiple(&mut self.sum, factor, &other.sum);
    }

    fn scale(&mut self, factor: u8) {
        for (_, coefficient) in &mut self.unknowns {
            *coefficient = multiply(*coefficient, factor);
        }
        scale(&mut self.sum, factor);
    }
}

const fn slot_of(number: u16) -> usize {
    number as usize % REMEMBERED
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
