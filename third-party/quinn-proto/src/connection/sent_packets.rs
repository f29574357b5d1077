//! Packets that were sent and are neither acknowledged nor lost, by number.
//!
//! Not part of the published library. Numbers are handed out in order and packets leave the table in about the
//! same order, so places in a queue cost less than nodes of a tree.

use std::{collections::VecDeque, ops::Range};

use super::spaces::SentPacket;

/// Invariant: place `i` has the packet with the number `first + i`; the first and the last place are occupied.
#[derive(Debug, Default)]
pub(super) struct SentPackets {
    first: u64,
    places: VecDeque<Option<SentPacket>>,
}

impl SentPackets {
    /// Remembers a packet. Its number must be larger than that of each packet so far.
    pub(super) fn insert(&mut self, number: u64, packet: SentPacket) {
        if self.places.is_empty() {
            self.first = number;
        }
        let place = (number - self.first) as usize;
        debug_assert!(place >= self.places.len());
        // A number is skipped now and then, to find peers that acknowledge what they have not got.
        while self.places.len() < place {
            self.places.push_back(None);
        }
        self.places.push_back(Some(packet));
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    pub(super) fn get(&self, number: u64) -> Option<&SentPacket> {
        self.places.get(self.place(number)?)?.as_ref()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<SentPacket> {
        let place = self.place(number)?;
        let packet = self.places.get_mut(place)?.take()?;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        while let Some(None) = self.places.back() {
            self.places.pop_back();
        }
        Some(packet)
    }

    /// The packets with these numbers, in order.
    pub(super) fn range(&self, numbers: Range<u64>) -> impl Iterator<Item = (u64, &SentPacket)> {
        let end = self.first + self.places.len() as u64;
        let start = numbers.start.clamp(self.first, end);
        let end = numbers.end.clamp(start, end);
        let places = (start - self.first) as usize..(end - self.first) as usize;
        let packets = self.places.range(places);
        (start..)
            .zip(packets)
            .filter_map(|(number, packet)| Some((number, packet.as_ref()?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &SentPacket> {
        self.places.iter().flatten()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> {
        self.places.iter_mut().flatten()
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = SentPacket> {
        self.places.into_iter().flatten()
    }
}
