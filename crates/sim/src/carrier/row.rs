//! Carriers in a row: what one delivers enters the next. Hosts of the site's side may be at any
//! gateway of the row but the last, each behind a link of its own.
//!
//! Components are numbered hop by hop, then the access links.

use super::direct::Direct;
use super::{Arrival, Carrier, Core};
use crate::packet::Packet;
use ropewalk_netem::{Counters, Side};
use ropewalk_plan::TunnelReport;
use ropewalk_types::Instant;

/// Where a flow's host of the site's side is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The hop that begins at its gateway, from 0.
    pub hop: usize,
    /// Its own link to that gateway, by number.
    pub access: Option<usize>,
}

/// A carrier and the plan's paths it uses.
#[derive(Debug)]
pub struct Hop<C> {
    /// What carries.
    pub carrier: C,
    /// Numbers of its paths.
    pub paths: Vec<usize>,
}

/// Several carriers, from the site to the server.
#[derive(Debug)]
pub struct Row<C> {
    hops: Vec<Hop<C>>,
    access: Vec<Direct>,
    /// By flow.
    places: Vec<Place>,
    /// What left a hop, or came over an access link, and goes on.
    moving: Vec<Arrival>,
}

impl<C: Carrier> Row<C> {
    /// A row of these hops, at least one; `places` are those of all flows.
    pub const fn new(hops: Vec<Hop<C>>, access: Vec<Direct>, places: Vec<Place>) -> Self {
        Self {
            hops,
            access,
            places,
            moving: Vec::new(),
        }
    }

    fn place(&self, packet: &Packet) -> Place {
        let place = self.places.get(usize::from(packet.flow));
        place.copied().unwrap_or_default()
    }

    /// Asks one hop.
    fn at_hop<T>(
        &mut self,
        core: &mut Core,
        hop: usize,
        ask: impl FnOnce(&mut C, &mut Core) -> T,
    ) -> T {
        let before = self.hops[..hop].iter();
        let before: usize = before.map(|hop| hop.carrier.components()).sum();
        let carrier = &mut self.hops[hop].carrier;
        within(core, before, |core| ask(carrier, core))
    }

    /// Asks one access link.
    fn at_access<T>(
        &mut self,
        core: &mut Core,
        access: usize,
        ask: impl FnOnce(&mut Direct, &mut Core) -> T,
    ) -> T {
        let hops = self.hops.iter().map(|hop| hop.carrier.components());
        let before = hops.sum::<usize>() + access;
        let link = &mut self.access[access];
        within(core, before, |core| ask(link, core))
    }

    /// Passes on what left a hop.
    fn pass_on(&mut self, core: &mut Core, from: usize, arrivals: &mut Vec<Arrival>) {
        let mut moving = std::mem::take(&mut self.moving);
        for (direction, packet) in moving.drain(..) {
            let place = self.place(&packet);
            let next = match direction {
                Side::Up => (from + 1 < self.hops.len()).then_some(from + 1),
                Side::Down => (from > place.hop).then(|| from - 1),
            };
            match (next, direction, place.access) {
                (Some(next), ..) => {
                    self.at_hop(core, next, |hop, core| hop.send(core, direction, &packet));
                }
                (None, Side::Down, Some(access)) => {
                    self.at_access(core, access, |link, core| {
                        link.send(core, direction, &packet)
                    });
                }
                (None, ..) => arrivals.push((direction, packet)),
            }
        }
        self.moving = moving;
    }

    /// The hop of this component, or the access link, and its number there.
    fn find(&self, component: usize) -> (Result<usize, usize>, usize) {
        let mut rest = component;
        for (index, hop) in self.hops.iter().enumerate() {
            let count = hop.carrier.components();
            if rest < count {
                return (Ok(index), rest);
            }
            rest -= count;
        }
        (Err(rest), 0)
    }
}

/// Lets a part of a carrier, which has so many components before it, set its own deadlines.
fn within<T>(core: &mut Core, before: usize, ask: impl FnOnce(&mut Core) -> T) -> T {
    core.first += before;
    let answer = ask(core);
    core.first -= before;
    answer
}

impl<C: Carrier> Carrier for Row<C> {
    fn components(&self) -> usize {
        let hops = self.hops.iter().map(|hop| hop.carrier.components());
        hops.sum::<usize>() + self.access.len()
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        let place = self.place(packet);
        match (direction, place.access) {
            (Side::Up, Some(access)) => {
                self.at_access(core, access, |link, core| {
                    link.send(core, direction, packet)
                });
            }
            (Side::Up, None) => {
                self.at_hop(core, place.hop, |hop, core| {
                    hop.send(core, direction, packet)
                });
            }
            (Side::Down, _) => {
                let last = self.hops.len() - 1;
                self.at_hop(core, last, |hop, core| hop.send(core, direction, packet));
            }
        }
    }

    fn wake(&mut self, core: &mut Core, component: usize, arrivals: &mut Vec<Arrival>) {
        let mut moving = std::mem::take(&mut self.moving);
        match self.find(component) {
            (Ok(hop), own) => {
                self.at_hop(core, hop, |hop, core| hop.wake(core, own, &mut moving));
                self.moving = moving;
                self.pass_on(core, hop, arrivals);
            }
            (Err(access), own) => {
                self.at_access(core, access, |link, core| link.wake(core, own, &mut moving));
                for (direction, packet) in moving.drain(..) {
                    let hop = self.place(&packet).hop;
                    match direction {
                        Side::Up => {
                            self.at_hop(core, hop, |hop, core| hop.send(core, direction, &packet));
                        }
                        Side::Down => arrivals.push((direction, packet)),
                    }
                }
                self.moving = moving;
            }
        }
    }

    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>) {
        for hop in 0..self.hops.len() {
            self.at_hop(core, hop, |hop, core| hop.settle(core, arrivals));
        }
        for access in 0..self.access.len() {
            self.at_access(core, access, |link, core| link.settle(core, arrivals));
        }
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        let hop = self.hops.iter_mut().find(|hop| hop.paths.contains(&path));
        hop.map_or_else(Counters::default, |hop| {
            hop.carrier.counters(now, path, direction)
        })
    }

    fn mark_warm(&mut self) {
        for hop in &mut self.hops {
            hop.carrier.mark_warm();
        }
    }

    fn tunnel_report(&self, direction: Side) -> Option<TunnelReport> {
        let reports = self
            .hops
            .iter()
            .filter_map(|hop| hop.carrier.tunnel_report(direction));
        let mut reports: Vec<TunnelReport> = reports.collect();
        if direction == Side::Down {
            reports.reverse();
        }
        TunnelReport::of_hops(&reports)
    }

    fn waiting_by_hop(&self, direction: Side) -> Vec<usize> {
        let hops = self.hops.iter();
        hops.filter_map(|hop| hop.carrier.waiting(direction))
            .collect()
    }

    fn packets(&self) -> u64 {
        self.hops.iter().map(|hop| hop.carrier.packets()).sum()
    }
}
