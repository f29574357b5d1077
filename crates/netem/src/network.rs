//! Links in rows that share some of them: a tree whose root is the far end.
//!
//! A route enters at one link and follows that link's `through` to the far end. What leaves a link
//! enters the next one at the time of the call, so call [`Network::poll`] when
//! [`Network::poll_timeout`] says. Every item that entered comes out in an event once.

use std::collections::VecDeque;

use ropewalk_types::{Ecn, Instant};

use crate::direction::{Counters, DropReason, Refused};
use crate::link::{Link, LinkConfig, Side};
use crate::queue::Carried;

/// What became of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<T> {
    /// It came out at the end of its route.
    Arrived(T),
    /// A link refused it.
    Refused(DropReason, T),
    /// A link lost it on the way.
    Lost(T),
}

/// An item that has left the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<T> {
    /// Number of its route.
    pub route: usize,
    /// The link that it left or was lost at.
    pub link: usize,
    /// Which way it went.
    pub side: Side,
    /// How.
    pub fate: Fate<T>,
}

/// Links and the routes over them.
#[derive(Debug)]
pub struct Network<T> {
    links: Vec<Link<Routed<T>>>,
    /// The links of each route, from the near end to the far end.
    routes: Vec<Vec<usize>>,
    /// All links, those farthest from the far end first.
    order: Vec<usize>,
    events: VecDeque<Event<T>>,
}

/// An item on its way.
#[derive(Debug)]
struct Routed<T> {
    route: usize,
    bytes: usize,
    item: T,
}

impl<T: Carried> Carried for Routed<T> {
    fn flow(&self) -> u64 {
        self.item.flow()
    }

    fn ecn(&self) -> Ecn {
        self.item.ecn()
    }

    fn mark_ce(&mut self) {
        self.item.mark_ce();
    }
}

impl<T: Carried> Network<T> {
    /// A network at rest, at [`Instant::ZERO`]. `through` has for each link the next one towards
    /// the far end, without circles; `entries` has the first link of each route.
    #[must_use]
    pub fn new(links: Vec<LinkConfig>, through: &[Option<usize>], entries: &[usize]) -> Self {
        debug_assert_eq!(links.len(), through.len(), "one entry for each link");
        let most = links.len();
        let way = |entry: usize| -> Vec<usize> {
            let links = std::iter::successors(Some(entry), |link| through[*link]);
            links.take(most).collect()
        };
        let mut order: Vec<usize> = (0..most).collect();
        order.sort_by_key(|link| std::cmp::Reverse(way(*link).len()));
        Self {
            links: links.into_iter().map(Link::new).collect(),
            routes: entries.iter().map(|entry| way(*entry)).collect(),
            order,
            events: VecDeque::new(),
        }
    }

    /// Takes in an item of `bytes` (its IP length): at the near end for [`Side::Up`], at the far
    /// end for [`Side::Down`].
    pub fn send(&mut self, now: Instant, route: usize, side: Side, bytes: usize, item: T) {
        let way = &self.routes[route];
        let first = match side {
            Side::Up => way.first(),
            Side::Down => way.last(),
        };
        if let Some(&link) = first {
            self.enqueue(now, link, side, Routed { route, bytes, item });
        }
    }

    /// The next item that has left by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Event<T>> {
        if self.events.is_empty() {
            self.carry(now);
        }
        self.events.pop_front()
    }

    /// When [`Self::poll`] may next have something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.events.is_empty() {
            return Some(Instant::ZERO);
        }
        self.links.iter().filter_map(Link::poll_timeout).min()
    }

    /// What happened on a link until `now`.
    pub fn counters(&mut self, now: Instant, link: usize, side: Side) -> Counters {
        self.links[link].advance(now);
        self.links[link].counters(side)
    }

    fn carry(&mut self, now: Instant) {
        for place in 0..self.order.len() {
            let last = self.order.len() - 1 - place;
            self.empty(now, self.order[place], Side::Up);
            self.empty(now, self.order[last], Side::Down);
        }
    }

    /// Passes on what has come through a link.
    fn empty(&mut self, now: Instant, link: usize, side: Side) {
        while let Some(routed) = self.links[link].poll(now, side) {
            match self.next(routed.route, link, side) {
                Some(next) => self.enqueue(now, next, side, routed),
                None => self.note((link, side), routed.route, Fate::Arrived(routed.item)),
            }
        }
        while let Some(routed) = self.links[link].poll_lost(side) {
            self.note((link, side), routed.route, Fate::Lost(routed.item));
        }
    }

    fn next(&self, route: usize, link: usize, side: Side) -> Option<usize> {
        let way = &self.routes[route];
        let place = way.iter().position(|known| *known == link)?;
        match side {
            Side::Up => way.get(place + 1).copied(),
            Side::Down => place.checked_sub(1).map(|place| way[place]),
        }
    }

    fn enqueue(&mut self, now: Instant, link: usize, side: Side, routed: Routed<T>) {
        let sent = self.links[link].enqueue(now, side, routed.bytes, routed);
        if let Err(Refused { reason, item }) = sent {
            self.note((link, side), item.route, Fate::Refused(reason, item.item));
        }
    }

    fn note(&mut self, (link, side): (usize, Side), route: usize, fate: Fate<T>) {
        self.events.push_back(Event {
            route,
            link,
            side,
            fate,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkPlan;

    /// Two links of 5 and 7 ms through one of 10 ms and 12 Mbit/s; the last route enters there.
    fn network() -> Network<u64> {
        let delays = [
            "both.delay = \"5ms\"",
            "both.delay = \"7ms\"",
            "both = { delay = \"10ms\", rate = \"12Mbit\", queue_packets = 2 }",
        ];
        let links = delays.map(|plan| {
            let plan = LinkPlan::parse(plan).unwrap();
            plan.resolve(|_| Err(String::new())).unwrap()
        });
        Network::new(links.into(), &[Some(2), Some(2), None], &[0, 1, 2])
    }

    /// Everything that leaves, with its time in milliseconds.
    fn drain(network: &mut Network<u64>) -> Vec<(u64, Event<u64>)> {
        let mut events = Vec::new();
        while let Some(at) = network.poll_timeout() {
            while let Some(event) = network.poll(at) {
                events.push((at.as_nanos() / 1_000_000, event));
            }
        }
        events
    }

    #[test]
    fn routes_share_what_they_pass_and_add_up_their_delays() {
        for (side, ends) in [(Side::Up, [2, 2, 2]), (Side::Down, [0, 1, 2])] {
            let mut network = network();
            for route in 0..3 {
                network.send(Instant::ZERO, route, side, 1_500, route as u64);
            }
            let mut found = drain(&mut network);
            found.sort_by_key(|(_, event)| event.route);
            // Up they come to the shared link after 5, 7 and 0 ms; down they queue there first.
            let times = match side {
                Side::Up => [16, 18, 11],
                Side::Down => [16, 19, 13],
            };
            for (route, (at, event)) in found.into_iter().enumerate() {
                let fate = Fate::Arrived(route as u64);
                let (link, wanted) = (ends[route], times[route]);
                assert_eq!(
                    (at, event),
                    (
                        wanted,
                        Event {
                            route,
                            link,
                            side,
                            fate
                        }
                    )
                );
            }
        }
    }

    #[test]
    fn what_a_link_drops_is_told_with_its_route_and_link() {
        let mut network = network();
        for number in 0..4 {
            network.send(Instant::ZERO, 0, Side::Down, 1_500, number);
        }
        let first = network.poll(Instant::ZERO).unwrap();
        let fate = Fate::Refused(DropReason::Queue, 3);
        assert_eq!(
            first,
            Event {
                route: 0,
                link: 2,
                side: Side::Down,
                fate
            }
        );
        assert_eq!(drain(&mut network).len(), 3);
        let counters = network.counters(Instant::from_millis(99), 0, Side::Down);
        assert_eq!(counters.delivered_packets, 3);
    }
}
