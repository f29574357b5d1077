//! A path without any tunnel whose links others share, or that has hosts beside it.

use super::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::events::Item;
use crate::packet::Packet;
use ropewalk_netem::{Counters, Event, Fate, LinkConfig, Network, Side};
use ropewalk_types::Instant;
use std::ops::Range;

/// The links of a plan, numbered as the plan numbers them, and who enters where.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// All links, paths first.
    pub links: Vec<LinkConfig>,
    /// For each the next one towards the server.
    pub through: Vec<Option<usize>>,
    /// For each flow the link that it enters beside the carrier, if it does.
    pub beside: Vec<Option<usize>>,
}

/// A site beside the carrier, whose tunnel has one uplink.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Number of the link that the uplink enters.
    pub entry: usize,
    /// That link, with the delays of those that it goes on over.
    pub link: LinkConfig,
    /// The flows of its hosts.
    pub flows: Range<u16>,
}

/// The links at work.
#[derive(Debug)]
pub struct Joint {
    network: Network<Packet>,
    /// For each flow its route: one for each link.
    routes: Vec<usize>,
    links: usize,
}

impl Joint {
    /// Carries everything over the plan's path of this number, and what is beside it elsewhere.
    #[must_use]
    pub fn new(links: Links, path: usize) -> Self {
        let count = links.links.len();
        let entries: Vec<usize> = (0..count).collect();
        let beside = links.beside.into_iter();
        Self {
            network: Network::new(links.links, &links.through, &entries),
            routes: beside.map(|beside| beside.unwrap_or(path)).collect(),
            links: count,
        }
    }
}

impl Carrier for Joint {
    fn components(&self) -> usize {
        1
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let Some(&route) = self.routes.get(usize::from(packet.flow)) else {
            return;
        };
        let bytes = packet.bytes as usize;
        self.network
            .send(core.now(), route, direction, bytes, *packet);
    }

    fn wake(&mut self, core: &mut Core, _component: usize, arrivals: &mut Vec<Arrival>) {
        while let Some(event) = self.network.poll(core.now()) {
            let Event {
                link, side, fate, ..
            } = event;
            let (now_ns, place) = (core.now_ns, (link, side));
            match fate {
                Fate::Arrived(packet) => {
                    core.trace.delivered(now_ns, place, Item::Host(&packet));
                    arrivals.push((side, packet));
                }
                Fate::Refused(reason, packet) => {
                    core.trace
                        .dropped(now_ns, place, reason, Item::Host(&packet));
                }
                Fate::Lost(packet) => core.trace.lost(now_ns, place, Item::Host(&packet)),
            }
        }
    }

    fn settle(&mut self, core: &mut Core, _arrivals: &mut Vec<Arrival>) {
        let due_ns = self.network.poll_timeout().map_or(NEVER, Instant::as_nanos);
        core.look_at(0, due_ns.max(core.now_ns));
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        if path >= self.links {
            return Counters::default();
        }
        self.network.counters(now, path, direction)
    }

    fn tunnel_report(&self, _direction: Side) -> Option<ropewalk_plan::TunnelReport> {
        None
    }

    fn packets(&self) -> u64 {
        0
    }
}
