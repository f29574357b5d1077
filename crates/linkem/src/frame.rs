//! An Ethernet frame as queues look at it: the flow and the ECN field of the IP packet in it.

use ropewalk_io::tap::ETHERNET_HEADER_LEN;
use ropewalk_netem::Carried;
use ropewalk_types::{Ecn, PacketInfo, mark_ce};

/// A whole frame.
#[derive(Debug)]
pub(crate) struct Frame(pub(crate) Vec<u8>);

/// Types of Ethernet payload (IEEE 802).
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN: [u8; 2] = [0x81, 0x00];
/// Where the type stands, and the length of a VLAN tag in front of it, bytes.
const TYPE: usize = 12;
const TAG_BYTES: usize = 4;

impl Frame {
    /// Where its IP packet begins, if it has one; one VLAN tag may be in front.
    fn ip_at(&self) -> Option<usize> {
        let kind = |at: usize| self.0.get(at..at + 2);
        let at = if kind(TYPE)? == VLAN {
            ETHERNET_HEADER_LEN + TAG_BYTES
        } else {
            ETHERNET_HEADER_LEN
        };
        let kind = kind(at - 2)?;
        (kind == IPV4 || kind == IPV6).then_some(at)
    }

    fn ip(&self) -> Option<&[u8]> {
        self.0.get(self.ip_at()?..)
    }
}

impl Carried for Frame {
    fn flow(&self) -> u64 {
        let info = self.ip().and_then(PacketInfo::parse);
        info.map_or(0, |info| info.flow.hash(0))
    }

    fn ecn(&self) -> Ecn {
        self.ip().and_then(Ecn::of).unwrap_or_default()
    }

    fn mark_ce(&mut self) {
        if let Some(at) = self.ip_at() {
            mark_ce(&mut self.0[at..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::checksum;

    fn frame(tag: &[u8], port: u8, traffic_class: u8) -> Frame {
        let mut frame = vec![0; TYPE];
        frame.extend_from_slice(tag);
        frame.extend_from_slice(&IPV4);
        let mut ip = vec![0x45, traffic_class, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        ip.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !checksum::fold(checksum::add(0, &ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend_from_slice(&[0, port, 0, 80, 0, 8, 0, 0]);
        frame.extend_from_slice(&ip);
        Frame(frame)
    }

    #[test]
    fn frames_are_marked_behind_a_tag_too_and_keep_their_checksum() {
        for tag in [&[][..], &[0x81, 0x00, 0, 7]] {
            let mut frame = frame(tag, 9, 0x02);
            assert_eq!(frame.ecn(), Ecn::Ect0);
            frame.mark_ce();
            assert_eq!(frame.ecn(), Ecn::Ce);
            let ip = frame.ip().unwrap();
            assert_eq!(checksum::fold(checksum::add(0, &ip[..20])), 0xffff);
        }
    }

    #[test]
    fn flows_are_told_apart_by_ports_and_other_frames_are_one_flow() {
        assert_eq!(frame(&[], 9, 0).flow(), frame(&[], 9, 2).flow());
        assert_ne!(frame(&[], 9, 0).flow(), frame(&[], 8, 0).flow());
        let mut arp = Frame(vec![0; 42]);
        arp.0[TYPE..TYPE + 2].copy_from_slice(&[0x08, 0x06]);
        arp.mark_ce();
        assert_eq!((arp.flow(), arp.ecn()), (0, Ecn::NotEct));
        assert!(arp.0[14..].iter().all(|byte| *byte == 0));
        assert_eq!(Frame(vec![0; 13]).flow(), 0);
    }
}
