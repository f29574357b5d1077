//! Who has which ports of the addresses that sites share.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;

use ropewalk_types::{
    FragmentKey, Instant, PacketInfo, PortBlock, fragment_bytes, fragment_of, port_of_receiver,
};
use rustc_hash::FxHashMap;

use super::tuning::{FRAGMENT_AGE, FRAGMENTS};

/// Whose packets in fragments are that are under way: only the first fragment of a packet has a port. A packet is forgotten
/// when all of it has come, after [`FRAGMENT_AGE`], or when its block has [`FRAGMENTS`] later ones. So fragments that come
/// before the first one, or long after it, are nobody's, and no block takes the room of another one.
#[derive(Debug)]
pub(super) struct Fragments<T> {
    /// Senders choose the keys, so nobody else may know the hash.
    known: HashMap<FragmentKey, (PortBlock, T)>,
    /// The packets of each block, the oldest first.
    under_way: FxHashMap<PortBlock, VecDeque<Packet>>,
}

/// A packet in fragments.
#[derive(Clone, Copy, Debug)]
struct Packet {
    key: FragmentKey,
    since: Instant,
    /// Bytes that it has, once the last fragment has said so, less those that have come. 0 when all have.
    left: i64,
}

impl Packet {
    fn is_old(&self, now: Instant) -> bool {
        now.since(self.since) > FRAGMENT_AGE
    }

    /// Counts a fragment. Whether all of the packet has come.
    fn has_come(&mut self, fragment: &[u8]) -> bool {
        if let Some((bytes, whole)) = fragment_bytes(fragment) {
            self.left += i64::from(whole.unwrap_or(0)) - i64::from(bytes);
        }
        self.left == 0
    }
}

impl<T> Default for Fragments<T> {
    fn default() -> Self {
        Self {
            known: HashMap::default(),
            under_way: FxHashMap::default(),
        }
    }
}

impl<T: Copy> Fragments<T> {
    /// This packet is of `owner`, and goes to or comes from the block. Nothing is kept of a packet that is whole.
    pub(super) fn note(&mut self, now: Instant, packet: &[u8], block: PortBlock, owner: T) {
        let Some((key, false)) = fragment_of(packet) else {
            return;
        };
        self.forget_packet(&key);
        let mut new = Packet {
            key,
            since: now,
            left: 0,
        };
        new.has_come(packet);
        let of_block = self.under_way.entry(block).or_default();
        while let Some(oldest) = of_block.front().copied()
            && (of_block.len() >= FRAGMENTS || oldest.is_old(now))
        {
            of_block.pop_front();
            self.known.remove(&oldest.key);
        }
        of_block.push_back(new);
        self.known.insert(key, (block, owner));
    }

    /// Whose packet this later fragment is of, if that is known.
    pub(super) fn owner(&mut self, now: Instant, packet: &[u8]) -> Option<T> {
        let (key, true) = fragment_of(packet)? else {
            return None;
        };
        let (block, owner) = *self.known.get(&key)?;
        let mut of_block = self.under_way.get_mut(&block)?.iter_mut();
        let known = of_block.find(|known| known.key == key)?;
        let is_old = known.is_old(now);
        if known.has_come(packet) || is_old {
            self.forget_packet(&key);
        }
        (!is_old).then_some(owner)
    }

    fn forget_packet(&mut self, key: &FragmentKey) {
        let known = self.known.remove(key);
        if let Some(of_block) = known.and_then(|(block, _)| self.under_way.get_mut(&block)) {
            of_block.retain(|packet| packet.key != *key);
        }
    }

    fn forget(&mut self, block: PortBlock) {
        for packet in self.under_way.remove(&block).into_iter().flatten() {
            self.known.remove(&packet.key);
        }
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
        self.fragments.forget(block);
    }

    /// Whether anybody has ports of this address.
    #[inline]
    pub(super) fn has(&self, address: Ipv4Addr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Who receives an inner packet to a shared address, of which `info` is the summary.
    #[inline]
    pub(super) fn find(&mut self, now: Instant, packet: &[u8], info: &PacketInfo) -> Option<T> {
        if self.by_address.is_empty() || info.v6 {
            return None;
        }
        let address = Ipv4Addr::from(*info.flow.destination.last_chunk()?);
        let blocks = self.by_address.get(&address)?;
        let Some(port) = port_of_receiver(packet) else {
            return self.fragments.owner(now, packet);
        };
        let (_, (block, owner)) = blocks.range(..=port).next_back()?;
        let owner = block.has(port).then_some(*owner)?;
        self.fragments.note(now, packet, *block, owner);
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(5_000);

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
        receiver_at(blocks, START, packet)
    }

    fn receiver_at(blocks: &mut Blocks<usize>, now: Instant, packet: &[u8]) -> Option<usize> {
        let info = PacketInfo::parse(packet).expect("whole");
        blocks.find(now, packet, &info)
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

    /// Fragments of a packet with `count` fragments of 8 bytes: the first and the later ones.
    fn fragments(identification: u16, port: u16, count: u8) -> Vec<Vec<u8>> {
        let fragment = |number: u8| {
            let mut packet = datagram(7, port);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            if number > 0 {
                // What stands where ports would be says nothing.
                packet[20..24].fill(0);
            }
            let more = if number + 1 < count { 0x20 } else { 0 };
            (packet[6], packet[7]) = (more, number);
            packet
        };
        (0..count).map(fragment).collect()
    }

    fn two_sites() -> Blocks<usize> {
        let mut blocks = Blocks::default();
        blocks.insert(block(7, 2_000, 2_999), 1);
        blocks.insert(block(7, 3_000, 3_999), 2);
        blocks
    }

    #[test]
    fn later_fragments_go_where_the_first_one_went_until_all_have_come() {
        let mut blocks = two_sites();
        let [one, two] = [fragments(1, 2_500, 4), fragments(2, 3_500, 2)];
        assert_eq!(receiver(&mut blocks, &one[1]), None, "before the first");
        assert_eq!(receiver(&mut blocks, &one[0]), Some(1));
        assert_eq!(receiver(&mut blocks, &two[0]), Some(2));
        // The last one may overtake others.
        for number in [3, 1, 2] {
            assert_eq!(receiver(&mut blocks, &one[number]), Some(1), "{number}");
        }
        assert_eq!(receiver(&mut blocks, &one[2]), None, "all have come");
        // The number of the slot may be another site's soon.
        blocks.remove(block(7, 3_000, 3_999), 2);
        assert_eq!(receiver(&mut blocks, &two[1]), None);
        assert!(blocks.fragments.known.is_empty());
    }

    #[test]
    fn packets_whose_rest_does_not_come_are_forgotten_and_no_site_takes_the_room_of_another() {
        let mut blocks = two_sites();
        let other = fragments(1, 3_500, 2);
        assert_eq!(receiver(&mut blocks, &other[0]), Some(2));
        let first = fragments(100, 2_000, 2);
        for number in 100..1_000 {
            let packet = fragments(number, 2_000, 2);
            assert_eq!(receiver(&mut blocks, &packet[0]), Some(1));
        }
        assert_eq!(receiver(&mut blocks, &first[1]), None, "forgotten");
        assert_eq!(blocks.fragments.known.len(), FRAGMENTS + 1);
        let soon = START + FRAGMENT_AGE;
        assert_eq!(receiver_at(&mut blocks, soon, &other[1]), Some(2));
        let last = fragments(999, 2_000, 2);
        let late = soon + ropewalk_types::Duration::from_millis(1);
        assert_eq!(receiver_at(&mut blocks, late, &last[1]), None, "too old");
        let next = fragments(5, 2_000, 2);
        assert_eq!(receiver_at(&mut blocks, late, &next[0]), Some(1));
        assert_eq!(blocks.fragments.known.len(), 1, "the old ones are gone");
    }
}
