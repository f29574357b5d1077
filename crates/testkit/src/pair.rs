//! Two machines joined by emulated links, in virtual time: the world of tests below a session.
//!
//! Invariant: time only moves forward, to the next arrival or timer.

use ropewalk_netem::{Carried, Change, Counters, Link, LinkConfig, Selector, Side};
use ropewalk_types::{Duration, Instant};

/// Turns within one instant after which a machine counts as one that always wants another.
const TURNS_MAX: usize = 1_000;

/// A sans-IO machine that speaks over links.
pub trait Machine {
    /// What it sends.
    type Packet: Carried;

    /// A packet has arrived over the link of this number.
    fn receive(&mut self, now: Instant, link: usize, packet: Self::Packet);

    /// All that is due happens; what leaves now is appended to `out`.
    fn turn(&mut self, now: Instant, out: &mut Vec<Outbound<Self::Packet>>);

    /// When [`Self::turn`] is wanted, if nothing arrives before.
    fn poll_timeout(&mut self) -> Option<Instant>;
}

/// A packet that leaves a machine.
#[derive(Clone, Debug)]
pub struct Outbound<P> {
    /// Number of the link that carries it.
    pub link: usize,
    /// Its length on the link, IP header included.
    pub bytes: usize,
    /// The packet.
    pub packet: P,
}

/// Two machines, and the links between them.
pub struct Pair<M: Machine> {
    now: Instant,
    /// The end that [`Side::Up`] leaves.
    pub site: M,
    /// The end that [`Side::Down`] leaves.
    pub hub: M,
    links: Vec<Link<M::Packet>>,
    out: Vec<Outbound<M::Packet>>,
    /// Turns of both machines together.
    pub turns: u64,
}

impl<M: Machine> Pair<M> {
    /// Both machines at rest.
    pub fn new(now: Instant, site: M, hub: M, links: impl IntoIterator<Item = LinkConfig>) -> Self {
        Self {
            now,
            site,
            hub,
            links: links.into_iter().map(Link::new).collect(),
            out: Vec::new(),
            turns: 0,
        }
    }

    /// Time in this world.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The machine that sends in this direction.
    pub const fn sender(&mut self, side: Side) -> &mut M {
        match side {
            Side::Up => &mut self.site,
            Side::Down => &mut self.hub,
        }
    }

    /// Number of links.
    #[must_use]
    pub const fn links(&self) -> usize {
        self.links.len()
    }

    /// Counters of a link in one direction, as of now.
    pub fn counters(&mut self, link: usize, side: Side) -> Counters {
        self.links[link].advance(self.now);
        self.links[link].counters(side)
    }

    /// Changes a link from now on.
    pub fn change(&mut self, link: usize, sides: Selector, change: &Change) {
        self.links[link].apply(self.now, sides, change);
    }

    /// Lets everything vanish on a link, or nothing any more.
    pub fn set_dead(&mut self, link: usize, sides: Selector, dead: bool) {
        let blackhole = Some(dead);
        let change = Change {
            blackhole,
            ..Change::default()
        };
        self.change(link, sides, &change);
    }

    /// Loses what is on a link. Its counters start anew.
    pub fn lose_all(&mut self, link: usize) {
        let link = &mut self.links[link];
        *link = Link::new(LinkConfig {
            up: link.config(Side::Up).clone(),
            down: link.config(Side::Down).clone(),
            ..LinkConfig::default()
        });
    }

    /// Lets time pass.
    ///
    /// # Panics
    /// When a machine always wants another turn.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(at) = self.next_due().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Everything that is due now happens.
    ///
    /// # Panics
    /// When a machine always wants another turn.
    pub fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "always due at {:?}", self.now);
            self.deliver();
            for side in Side::ALL {
                self.turn(side);
            }
            if self.next_due().is_none_or(|at| at > self.now) {
                return;
            }
        }
    }

    fn next_due(&mut self) -> Option<Instant> {
        let links = self.links.iter().filter_map(Link::poll_timeout);
        let machines = [self.site.poll_timeout(), self.hub.poll_timeout()];
        links.chain(machines.into_iter().flatten()).min()
    }

    fn deliver(&mut self) {
        let now = self.now;
        for (number, link) in self.links.iter_mut().enumerate() {
            while let Some(packet) = link.poll(now, Side::Up) {
                self.hub.receive(now, number, packet);
            }
            while let Some(packet) = link.poll(now, Side::Down) {
                self.site.receive(now, number, packet);
            }
        }
    }

    fn turn(&mut self, side: Side) {
        let (now, mut out) = (self.now, std::mem::take(&mut self.out));
        self.sender(side).turn(now, &mut out);
        self.turns += 1;
        for Outbound {
            link,
            bytes,
            packet,
        } in out.drain(..)
        {
            // A packet that the link refuses is lost, and counted there.
            drop(self.links[link].enqueue(now, side, bytes, packet));
        }
        self.out = out;
    }
}
