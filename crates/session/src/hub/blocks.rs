//! Who has which ports of the addresses that sites share.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ropewalk_types::{PacketInfo, PortBlock, port_of_receiver};
use rustc_hash::FxHashMap;

/// Owners of blocks of ports: slots of sites, or workers.
#[derive(Debug, Default)]
pub(super) struct Blocks<T> {
    /// By the first port of the block.
    by_address: FxHashMap<Ipv4Addr, BTreeMap<u16, (PortBlock, T)>>,
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
    }

    /// Who receives an inner packet to a shared address, of which `info` is the summary.
    #[inline]
    pub(super) fn find(&self, packet: &[u8], info: &PacketInfo) -> Option<T> {
        if self.by_address.is_empty() || info.v6 {
            return None;
        }
        let address = Ipv4Addr::from(*info.flow.destination.last_chunk()?);
        let blocks = self.by_address.get(&address)?;
        let port = port_of_receiver(packet, info)?;
        let (_, (block, owner)) = blocks.range(..=port).next_back()?;
        block.has(port).then_some(*owner)
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

    fn found(blocks: &Blocks<usize>, last_octet: u8, port: u16) -> Option<usize> {
        let mut packet = vec![0; 28];
        (packet[0], packet[3], packet[9]) = (0x45, 28, 17);
        packet[16..20].copy_from_slice(&[203, 0, 113, last_octet]);
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        let info = PacketInfo::parse(&packet).expect("whole");
        blocks.find(&packet, &info)
    }

    #[test]
    fn each_port_has_the_owner_of_its_block_and_no_other() {
        let mut blocks = Blocks::default();
        blocks.insert(block(7, 2_000, 2_999), 1);
        blocks.insert(block(7, 3_000, 3_999), 2);
        blocks.insert(block(8, 2_000, 65_535), 3);
        let of =
            |blocks: &_| [1_999, 2_000, 2_999, 3_000, 3_999, 4_000].map(|p| found(blocks, 7, p));
        let both = [None, Some(1), Some(1), Some(2), Some(2), None];
        assert_eq!(of(&blocks), both);
        assert_eq!(found(&blocks, 8, 65_535), Some(3));
        assert_eq!(found(&blocks, 9, 2_000), None);
        // The block has changed its owner before the former one is gone.
        blocks.insert(block(7, 2_000, 2_999), 4);
        blocks.remove(block(7, 2_000, 2_999), 1);
        assert_eq!(found(&blocks, 7, 2_000), Some(4));
        blocks.remove(block(7, 2_000, 2_999), 4);
        assert_eq!(found(&blocks, 7, 2_000), None);
        assert_eq!(found(&blocks, 7, 3_000), Some(2));
    }
}
