//! Groups the inner packets of one batch into super packets for a TUN interface.
//!
//! Invariants: packets of one flow leave in the order they came. Cutting a super packet as Linux
//! does (tcp_gso_segment, udp_gso segmentation) gives back the packets it was made of. The order
//! holds because a flow has at most one open group. A packet of the flow that cannot join closes
//! the group, and groups leave in the order they were opened.

use crate::InnerPacket;
use crate::headers::{FLAG_ACK, FLAG_ECE, FLAG_PSH, Plain, be16, be32};

/// Open groups looked at for every packet; more flows than this in one batch coalesce less.
const OPEN_MAX: usize = 16;

/// Packets in one super packet: what `UDP_SEGMENT` allows on every kernel that has it.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// Largest super packet: what the length field of IPv4 can say.
const SUPER_BYTES_MAX: usize = 65_535;

/// Which protocols may be coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) tcp: bool,
    pub(crate) udp: bool,
}

/// Packets that leave together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// Index of the first packet in the batch; [`Coalescer::after`] gives the others.
    pub(crate) first: usize,
    /// Number of packets, 1..=[`SEGMENTS_MAX`].
    pub(crate) count: usize,
    /// Bytes of the super packet.
    pub(crate) total: usize,
    /// The last packet has PSH set.
    pub(crate) push: bool,
    /// Headers of the first packet; `None` when it is not plain.
    pub(crate) plain: Option<Plain>,
    last: usize,
    /// The checksum of the first packet is partial, or was verified.
    trusted: bool,
}

/// Plans which packets of a batch leave together. Keeps its memory between batches.
#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    groups: Vec<Group>,
    /// For every packet, the next one of its group.
    next: Vec<usize>,
    /// Groups that still take packets, as indices into `groups`; the oldest leaves first.
    open: [usize; OPEN_MAX],
    open_len: usize,
}

impl Coalescer {
    /// Groups `packets`; the result holds until the next call.
    pub(crate) fn plan(&mut self, packets: &[InnerPacket], allowed: Allowed) {
        self.groups.clear();
        self.next.clear();
        self.next.resize(packets.len(), usize::MAX);
        self.open_len = 0;
        for index in 0..packets.len() {
            self.place(packets, index, allowed);
        }
    }

    /// Groups in the order they leave.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The packet after `index` in its group; meaningless for the last one.
    pub(crate) fn after(&self, index: usize) -> usize {
        self.next[index]
    }

    fn place(&mut self, packets: &[InnerPacket], index: usize, allowed: Allowed) {
        let packet = &packets[index];
        let plain = packet.plain();
        let Some(headers) = plain else {
            // A fragment or an oddity may belong to any flow.
            self.open_len = 0;
            self.start(packets, index, None);
            return;
        };
        let found = self.find(packets, packet.front(), headers);
        let coalescible = can_coalesce(packet, headers, allowed);
        if let Some(slot) = found {
            let group = self.open[slot];
            if coalescible && self.join(packets, group, index, headers) {
                if self.closed_by(packets, group, packet, headers) {
                    self.close(slot);
                }
                return;
            }
            self.close(slot);
        }
        self.start(packets, index, plain);
        // A packet with PSH is the last of its super packet.
        if coalescible && !pushes(packet.front(), headers) {
            if self.open_len == OPEN_MAX {
                self.close(0);
            }
            self.open[self.open_len] = self.groups.len() - 1;
            self.open_len += 1;
        }
    }

    fn start(&mut self, packets: &[InnerPacket], index: usize, plain: Option<Plain>) {
        self.groups.push(Group {
            first: index,
            count: 1,
            total: packets[index].len(),
            push: false,
            plain,
            last: index,
            trusted: packets[index].checksum_partial,
        });
    }

    fn close(&mut self, slot: usize) {
        self.open.copy_within(slot + 1..self.open_len, slot);
        self.open_len -= 1;
    }

    /// Slot of the open group of the packet's flow.
    fn find(&self, packets: &[InnerPacket], packet: &[u8], headers: Plain) -> Option<usize> {
        let flow = headers.flow(packet);
        self.open[..self.open_len].iter().position(|&group| {
            let group = &self.groups[group];
            group.plain.is_some_and(|first| {
                first.v6 == headers.v6
                    && first.tcp == headers.tcp
                    && first.flow(packets[group.first].front()) == flow
            })
        })
    }

    /// Appends the packet to its flow's group if cutting the super packet would give it back.
    fn join(
        &mut self,
        packets: &[InnerPacket],
        group: usize,
        index: usize,
        headers: Plain,
    ) -> bool {
        let group = &mut self.groups[group];
        let (first, packet) = (&packets[group.first], &packets[index]);
        let payload = packet.len() - headers.header_len;
        let segment = first.len() - headers.header_len.min(first.len());
        let fits = group.plain == Some(headers)
            && group.count < SEGMENTS_MAX
            && payload <= segment
            && group.total + payload <= SUPER_BYTES_MAX
            && same_ip(first.front(), packet.front(), headers, group.count)
            && (!headers.tcp
                || same_tcp(
                    first.front(),
                    packet.front(),
                    headers,
                    group.count * segment,
                ));
        if !fits || !packet.checksum_partial && !headers.checksum_ok(packet) {
            return false;
        }
        // The first packet is looked at only now: most packets never meet a second one.
        if !group.trusted && !headers.checksum_ok(first) {
            return false;
        }
        group.trusted = true;
        self.next[group.last] = index;
        group.last = index;
        group.count += 1;
        group.total += payload;
        group.push = pushes(packet.front(), headers);
        true
    }

    /// Whether `packet`, just joined, must be the last of its group.
    fn closed_by(
        &self,
        packets: &[InnerPacket],
        group: usize,
        packet: &InnerPacket,
        headers: Plain,
    ) -> bool {
        let group = &self.groups[group];
        group.push
            || group.count == SEGMENTS_MAX
            || packet.len() < packets[group.first].len()
            || packet.len() < headers.header_len
    }
}

fn pushes(packet: &[u8], headers: Plain) -> bool {
    headers.tcp && packet[headers.l4 + 13] & FLAG_PSH != 0
}

/// Whether the packet may be part of a super packet at all.
fn can_coalesce(packet: &InnerPacket, headers: Plain, allowed: Allowed) -> bool {
    if packet.len() == headers.header_len {
        return false;
    }
    if !headers.tcp {
        return allowed.udp;
    }
    // CWR belongs to the first segment only; SYN, FIN, RST and URG are not worth the trouble.
    let flags = packet.front()[headers.l4 + 13];
    allowed.tcp && flags & FLAG_ACK != 0 && flags & !(FLAG_ACK | FLAG_PSH | FLAG_ECE) == 0
}

/// Whether all of the IP headers agree that segmentation does not set, and the identification
/// of IPv4 is what segmentation sets. With DF it has no meaning (RFC 6864 §4.1).
fn same_ip(first: &[u8], packet: &[u8], headers: Plain, position: usize) -> bool {
    if headers.v6 {
        // Class and flow label; next header and hop limit. The flow is known to be the same.
        return first[..4] == packet[..4] && first[6..8] == packet[6..8];
    }
    let position = u16::try_from(position).unwrap_or(0);
    let dont_fragment = packet[6] & 0x40 != 0;
    first[1] == packet[1]
        && first[6..10] == packet[6..10]
        && (dont_fragment || be16(packet, 4) == be16(first, 4).wrapping_add(position))
}

/// Whether the TCP header is what segmentation would make of the first one.
fn same_tcp(first: &[u8], packet: &[u8], headers: Plain, offset: usize) -> bool {
    let l4 = headers.l4;
    let offset = u32::try_from(offset).unwrap_or(0);
    let flags = |p: &[u8]| p[l4 + 13] & !FLAG_PSH;
    be32(packet, l4 + 4) == be32(first, l4 + 4).wrapping_add(offset)
        // Acknowledgement number, data offset with the AE bit, window, urgent pointer, options.
        && first[l4 + 8..l4 + 13] == packet[l4 + 8..l4 + 13]
        && flags(first) == flags(packet)
        && first[l4 + 14..l4 + 16] == packet[l4 + 14..l4 + 16]
        && first[l4 + 18..headers.header_len] == packet[l4 + 18..headers.header_len]
}
