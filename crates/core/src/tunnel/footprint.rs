//! What a tunnel keeps at present, in numbers of things, and the most it may keep.
//!
//! Invariant: whatever the peer sends and however the network treats it, [`Footprint::excess`] is
//! `None`. Packets that are ready for [`Tunnel::poll_inner`](super::Tunnel::poll_inner) are not
//! counted: the caller takes them after every batch.

use super::{Tunnel, tuning};
use crate::hold::freeze;
use crate::rescue::{Rescuer, Rhythms};
use crate::{code as coding, queue, reorder, repair as repairs};

/// Numbers of things that a tunnel keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Paths.
    pub paths: usize,
    /// Inner packets that wait at the ingress.
    pub queued: usize,
    /// Datagrams that wait for being sent again, and repair symbols.
    pub retransmit: usize,
    /// Datagrams remembered in case they are lost, places of those taken out included.
    pub remembered: usize,
    /// Datagrams remembered for repair symbols.
    pub combined: usize,
    /// Packets held for order, and places of those passed on that others wait behind.
    pub held: usize,
    /// Places there is memory for, held or missing.
    pub places: usize,
    /// Numbers that paths miss, asked for or not yet.
    pub missing: usize,
    /// Inner packets of which pieces have come.
    pub partial: usize,
    /// Fronts of repair symbols whose rest has not come.
    pub halves: usize,
    /// Equations between packets that paths lost.
    pub equations: usize,
    /// Unknowns in all of these together.
    pub unknowns: usize,
    /// Flows whose rhythm is followed.
    pub rhythms: usize,
    /// Packets of such flows that are awaited.
    pub awaited: usize,
    /// Packets kept for rescue.
    pub rescuable: usize,
    /// Packets being rescued.
    pub rescues: usize,
    /// Connections followed for freezing their senders.
    pub frozen: usize,
}

impl Footprint {
    /// The most that a tunnel with so many paths keeps.
    #[must_use]
    pub const fn limit(paths: usize) -> Self {
        Self {
            paths,
            queued: queue::LIMIT_PACKETS,
            retransmit: tuning::RETRANSMIT_MAX,
            remembered: paths * repairs::PACKETS_MAX,
            combined: paths * (coding::WINDOW_PACKETS + coding::BLOCK_PACKETS),
            held: reorder::HELD_MAX,
            places: reorder::PLACES_MAX,
            missing: paths * 3 * repairs::GAP_MAX as usize,
            partial: tuning::PARTIAL_MAX,
            halves: tuning::HALVES_MAX,
            equations: paths * coding::EQUATIONS_MAX,
            unknowns: paths * coding::EQUATIONS_MAX * coding::ROW_MAX,
            rhythms: Rhythms::limit().0,
            awaited: Rhythms::limit().1,
            rescuable: Rescuer::limit().0,
            rescues: Rescuer::limit().1,
            frozen: freeze::FLOWS_MAX,
        }
    }

    /// The first of the numbers that is beyond its limit, by name; `None` as long as all is well.
    #[must_use]
    pub fn excess(&self) -> Option<&'static str> {
        let limit = Self::limit(self.paths);
        let numbers = [
            ("queued", self.queued, limit.queued),
            ("retransmit", self.retransmit, limit.retransmit),
            ("remembered", self.remembered, limit.remembered),
            ("combined", self.combined, limit.combined),
            ("held", self.held, limit.held),
            ("places", self.places, limit.places),
            ("missing", self.missing, limit.missing),
            ("partial", self.partial, limit.partial),
            ("halves", self.halves, limit.halves),
            ("equations", self.equations, limit.equations),
            ("unknowns", self.unknowns, limit.unknowns),
            ("rhythms", self.rhythms, limit.rhythms),
            ("awaited", self.awaited, limit.awaited),
            ("rescuable", self.rescuable, limit.rescuable),
            ("rescues", self.rescues, limit.rescues),
            ("frozen", self.frozen, limit.frozen),
        ];
        let beyond = numbers.into_iter().find(|(_, is, most)| is > most);
        beyond.map(|(name, _, _)| name)
    }
}

impl Tunnel {
    /// What this side keeps at present. Walks over all of it that is kept per path: for tests,
    /// fuzzers and people, not for every packet.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let (held, places) = self.egress.reorder.kept();
        let (halves, equations, unknowns) = self.egress.decoding.kept();
        let (rhythms, awaited) = self.egress.rhythms.kept();
        let (rescuable, rescues) = self.ingress.rescuer.kept();
        let mut footprint = Footprint {
            queued: self.ingress.queue.packets(),
            retransmit: self.ingress.retransmit.len(),
            held,
            places,
            missing: self.egress.reorder.requests.missing(),
            partial: self.egress.fragments.len(),
            halves,
            equations,
            unknowns,
            rhythms,
            awaited,
            rescuable,
            rescues,
            frozen: self.freezer.flows(),
            ..Footprint::default()
        };
        for (_, path) in self.paths.iter() {
            footprint.paths += 1;
            footprint.remembered += path.sent_log.len();
            footprint.combined += path.coding.encoder.len() + path.coding.blocks.len();
        }
        footprint
    }
}
