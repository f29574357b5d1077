//! Who has which ports of the addresses that sites share.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use ropewalk_types::{FragmentKey, PacketInfo, PortBlock, fragment_of, port_of_receiver};
use rustc_hash::FxHashMap;

use super::tuning::FRAGMENTS;

/// Whose the last packets in fragments were: only the first fragment of a packet has a port. The oldest is forgotten
/// for a new one, so fragments that come before the first one, or long after it, are nobody's.
#[derive(Debug)]
pub(super) struct Fragments<T>(VecDeque<(FragmentKey, T)>);

impl<T> Default for Fragments<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy + PartialEq> Fragments<T> {
    /// This packet is of `owner`. Nothing is kept of a packet that is whole.
    pub(super) fn note(&mut self, packet: &[u8], owner: T) {
        let Some((key, false)) = fragment_of(packet) else {
            return;
        };
        self.0.retain(|(known, _)| *known != key);
        if self.0.len() >= FRAGMENTS {
            self.0.pop_front();
        }
        self.0.push_back((key, owner));
    }

    /// Whose packet this later fragment is of, if that is known.
    pub(super) fn owner(&self, packet: &[u8]) -> Option<T> {
        let (key, true) = fragment_of(packet)? else {
            return None;
        };
        let mut known = self.0.iter();
        known.find(|(known, _)| *known == key).map(|(_, one)| *one)
    }

    fn forget(&mut self, owner: T) {
        self.0.retain(|(_, one)| *one != owner);
    }
}

/// Owners of blocks of ports: slots of sites, or workers.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    /// By the first port of the block.
    by_address: FxHashMap<Ipv4Addr, BTreeMap<u16, (PortBlock, T)>>,
    fragments: Fragments<T>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self {
            by_address: FxHashMap::default(),
            fragments: Fragments::default(),
        }
    }
}

impl<T: Copy + PartialEq> Blocks<T> {
    /// `owner` has the block. Blocks of others do not overlap it.
    pub(super) fn insert(&mut self, block: PortBlock, owner: T) {
        let blocks = self.by_address.entry(block.address).or_default();
        blocks.insert(block.first, (block, owner));
    }

    /// `owner` does not have the block any more. Nothing changes if somebody else has got it meanwhile.
    pub(super) fn remove(&mut self, block: PortBlock, owner: T) {
        let Some(blocks) = self.by_address.get_mut(&block.address) else {
            return;
        };
        if blocks.get(&block.first) == Some(&(block, owner)) {
            blocks.remove(&block.first);
        }
        if blocks.is_empty() {
            self.by_address.remove(&block.address);
        }
        self.fragments.forget(owner);
    }

    /// Who receives an inner packet to a shared address, of which `info` is the summary.
    #[inline]
    pub(super) fn find(&mut self, packet: &[u8], info: &PacketInfo) -> Option<T> {
        if self.by_address.is_empty() || info.v6 {
            return None;
        }
        let address = Ipv4Addr::from(*info.flow.destination.last_chunk()?);
        let blocks = self.by_address.get(&address)?;
        let Some(port) = port_of_receiver(packet) else {
            return self.fragments.owner(packet);
        };
        let (_, (block, owner)) = blocks.range(..=port).next_back()?;
        let owner = block.has(port).then_some(*owner)?;
        self.fragments.note(packet, owner);
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(last_octet: u8, first: u16, last: u16) -> PortBlock {
        PortBlock {
            address: Ipv4Addr::new(203, 0, 113, last_octet),
            first,
            last,
        }
    }

    /// A datagram of UDP.
    fn datagram(last_octet: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![0; 28];
        (packet[0], packet[3], packet[9]) = (0x45, 28, 17);
        packet[16..20].copy_from_slice(&[203, 0, 113, last_octet]);
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet
    }

    fn found(blocks: &mut Blocks<usize>, last_octet: u8, port: u16) -> Option<usize> {
        receiver(blocks, &datagram(last_octet, port))
    }

    fn receiver(blocks: &mut Blocks<usize>, packet: &[u8]) -> Option<usize> {
        let info = PacketInfo::parse(packet).expect("whole");
        blocks.find(packet, &info)
    }

    #[test]
    fn each_port_has_the_owner_of_its_block_and_no_other() {
        let mut blocks = Blocks::default();
        blocks.insert(block(7, 2_000, 2_999), 1);
        blocks.insert(block(7, 3_000, 3_999), 2);
        blocks.insert(block(8, 2_000, 65_535), 3);
        let of = |blocks: &mut _| {
            [1_999, 2_000, 2_999, 3_000, 3_999, 4_000].map(|p| found(blocks, 7, p))
        };
        let both = [None, Some(1), Some(1), Some(2), Some(2), None];
        assert_eq!(of(&mut blocks), both);
        assert_eq!(found(&mut blocks, 8, 65_535), Some(3));
        assert_eq!(found(&mut blocks, 9, 2_000), None);
        // The block has changed its owner before the former one is gone.
        blocks.insert(block(7, 2_000, 2_999), 4);
        blocks.remove(block(7, 2_000, 2_999), 1);
        assert_eq!(found(&mut blocks, 7, 2_000), Some(4));
        blocks.remove(block(7, 2_000, 2_999), 4);
        assert_eq!(found(&mut blocks, 7, 2_000), None);
        assert_eq!(found(&mut blocks, 7, 3_000), Some(2));
    }
    #[test]
    fn later_fragments_go_where_the_first_one_went_and_the_table_is_bounded() {
        let mut blocks = Blocks::default();
        blocks.insert(block(7, 2_000, 2_999), 1);
        blocks.insert(block(7, 3_000, 3_999), 2);
        let pair = |identification: u8, port| {
            let mut first = datagram(7, port);
            (first[5], first[6]) = (identification, 0x20);
            let mut later = first.clone();
            // What stands where ports would be says nothing.
            later[20..24].fill(0);
            (later[6], later[7]) = (0, 1);
            (first, later)
        };
        let [one, two] = [pair(1, 2_500), pair(2, 3_500)];
        assert_eq!(receiver(&mut blocks, &one.1), None, "before the first");
        assert_eq!(receiver(&mut blocks, &one.0), Some(1));
        assert_eq!(receiver(&mut blocks, &two.0), Some(2));
        assert_eq!(receiver(&mut blocks, &one.1), Some(1));
        assert_eq!(receiver(&mut blocks, &two.1), Some(2));
        // The number of the slot may be another site's soon.
        blocks.remove(block(7, 3_000, 3_999), 2);
        assert_eq!(receiver(&mut blocks, &two.1), None);
        for number in 0..FRAGMENTS {
            let number = u8::try_from(100 + number).expect("few");
            assert_eq!(receiver(&mut blocks, &pair(number, 2_000).0), Some(1));
        }
        assert_eq!(receiver(&mut blocks, &one.1), None, "forgotten");
        assert_eq!(blocks.fragments.0.len(), FRAGMENTS);
    }
}
