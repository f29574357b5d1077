//! What arrivals mean for a processor: work that each costs a fixed time, done one after the other in their order.
//!
//! Invariant: waiting times are exact for these arrivals. They say nothing of hubs that refuse work.

use ropewalk_types::{Duration, Instant};

/// Least and most processor time of a handshake at a hub. Measured: `docs/decisions/hub.md`.
pub const HANDSHAKE: [Duration; 2] = [Duration::from_micros(300), Duration::from_micros(500)];

/// What came of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Processor time of one piece of work.
    pub each: Duration,
    /// The longest time from an arrival to the begin of its work.
    pub wait_max: Duration,
    /// From the first arrival to the end of the last work.
    pub time: Duration,
    /// The longest time for which the processor had no rest.
    pub busy_max: Duration,
}

impl Queue {
    /// The queue of handshakes with the least and with the most time for each.
    #[must_use]
    pub fn both(arrivals: &[Instant]) -> [Self; 2] {
        HANDSHAKE.map(|each| serve(arrivals, each))
    }
}

/// One processor does work that arrives at these times, in order, and that takes `each` time.
#[must_use]
pub fn serve(arrivals: &[Instant], each: Duration) -> Queue {
    let mut queue = Queue {
        each,
        ..Queue::default()
    };
    let (mut free, mut busy_since) = (Instant::ZERO, Instant::ZERO);
    for &at in arrivals {
        if at >= free {
            (free, busy_since) = (at, at);
        }
        queue.wait_max = queue.wait_max.max(free.since(at));
        free += each;
        queue.busy_max = queue.busy_max.max(free.since(busy_since));
    }
    if let Some(first) = arrivals.first() {
        queue.time = free.since(*first);
    }
    queue
}
