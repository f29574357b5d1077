//! What carries packets between site and server: a path itself, a tunnel over several, or several
//! of either in a row.

pub mod direct;
pub mod joint;
pub mod observer;
pub mod parallel;
pub mod row;
pub mod tcp_nc;
pub mod tunnel;

use crate::engine::EventQueue;
use crate::events::Trace;
use crate::packet::Packet;
use ropewalk_netem::{Counters, Side};
use ropewalk_types::Instant;

/// What every part of a run shares.
#[derive(Debug)]
pub struct Core {
    /// The present.
    pub now_ns: u64,
    /// Who is to be looked at next.
    pub queue: EventQueue,
    /// What happened.
    pub trace: Trace,
    /// Number in the queue of the first component of the carrier that is being asked: carriers
    /// number their own from zero.
    pub first: usize,
}

impl Core {
    /// Looks at the carrier's component of this number at `at_ns` or earlier.
    pub fn look_at(&mut self, component: usize, at_ns: u64) {
        self.queue.set(self.first + component, at_ns);
    }

    /// The present as core and links want it.
    #[must_use]
    pub const fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }
}

/// A packet that arrived at the end of this direction.
pub type Arrival = (Side, Packet);

/// Moves packets from host to host.
pub trait Carrier {
    /// Components the carrier is made of; they are numbered from zero.
    fn components(&self) -> usize;

    /// Takes a packet that a host sends in this direction.
    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet);

    /// A component's deadline has come: what arrived is appended.
    fn wake(&mut self, core: &mut Core, component: usize, arrivals: &mut Vec<Arrival>);

    /// The hosts have answered what arrived: sends what waits and sets deadlines.
    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>);

    /// Counters of a path's link as of now, if the carrier uses it.
    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters;

    /// The warm-up is over: reports count from here.
    fn mark_warm(&mut self) {}

    /// The tunnel's report on this direction, if there is one.
    fn tunnel_report(&self, direction: Side) -> Option<ropewalk_plan::TunnelReport>;

    /// Inner packets in the send buffer of the gateway that sends in this direction, if it has one.
    fn waiting(&self, _direction: Side) -> Option<usize> {
        None
    }

    /// [`Self::waiting`] of each hop, in the direction of the data.
    fn waiting_by_hop(&self, direction: Side) -> Vec<usize> {
        self.waiting(direction).into_iter().collect()
    }

    /// Packets that gateways sent.
    fn packets(&self) -> u64;
}
