//! Packets that were sent and are neither acknowledged nor lost, by number.
//!
//! Not part of the published library. Numbers are handed out in order and packets leave the table in about the
//! same order, so places in a queue cost less than nodes of a tree.

use std::{collections::VecDeque, ops::Range};

use super::spaces::SentPacket;

/// Places that may be empty before the others move together. More: less moving, more empty places to pass.
const EMPTY_MIN: usize = 64;

/// Invariant: numbers grow from place to place; the first and the last place are occupied; at most half of the
/// places and [`EMPTY_MIN`] are empty.
#[derive(Debug, Default)]
pub(super) struct SentPackets {
    places: VecDeque<(u64, Option<SentPacket>)>,
    empty: usize,
}

impl SentPackets {
    /// Remembers a packet.
    ///
    /// # Panics
    /// When its number is not larger than that of each packet here.
    pub(super) fn insert(&mut self, number: u64, packet: SentPacket) {
        assert!(self.places.back().is_none_or(|last| last.0 < number));
        self.places.push_back((number, Some(packet)));
    }

    /// The first place whose number is at least this one.
    fn place(&self, number: u64) -> usize {
        let Some(&(first, _)) = self.places.front() else {
            return 0;
        };
        // Where no number was skipped.
        let guess = number.saturating_sub(first).min(self.places.len() as u64) as usize;
        if self
            .places
            .get(guess)
            .is_some_and(|place| place.0 == number)
        {
            return guess;
        }
        self.places.partition_point(|place| place.0 < number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&SentPacket> {
        let (found, packet) = self.places.get(self.place(number))?;
        packet.as_ref().filter(|_| *found == number)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<SentPacket> {
        let place = self.place(number);
        let (found, packet) = self.places.get_mut(place)?;
        if *found != number {
            return None;
        }
        let packet = packet.take()?;
        self.empty += 1;
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
            self.empty -= 1;
        }
        while let Some((_, None)) = self.places.back() {
            self.places.pop_back();
            self.empty -= 1;
        }
        if self.empty > EMPTY_MIN + self.places.len() / 2 {
            self.places.retain(|place| place.1.is_some());
            self.empty = 0;
        }
        Some(packet)
    }

    /// The packets with these numbers, in order.
    pub(super) fn range(&self, numbers: Range<u64>) -> impl Iterator<Item = (u64, &SentPacket)> {
        let start = self.place(numbers.start);
        let end = self.place(numbers.end).max(start);
        let places = self.places.range(start..end);
        places.filter_map(|(number, packet)| Some((*number, packet.as_ref()?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &SentPacket> {
        self.places.iter().filter_map(|place| place.1.as_ref())
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> {
        self.places.iter_mut().filter_map(|place| place.1.as_mut())
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = SentPacket> {
        self.places.into_iter().filter_map(|place| place.1)
    }
}
