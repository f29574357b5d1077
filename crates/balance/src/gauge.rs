//! Measures every uplink once a second: bytes, round trips, capacity.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_core::balance::capacity::{self, Capacity, Sample};
use ropewalk_io::counters::{self, Bytes};
use ropewalk_types::{Instant, Rate};

use super::members::{Line, Member};

/// Round trips of an interval that are kept: more than its probes bring. More: memory.
const ROUND_TRIPS_MAX: usize = 32;
/// Arriving bytes between two probes that are more than the chatter of neighbours: 200 kbit/s.
/// More: chatter keeps fewer dead uplinks alive, slow traffic is not seen.
const CHATTER_BYTES: u64 = 4_000;

/// What is measured, by the number of the uplink.
#[derive(Debug, Default)]
pub struct Gauge {
    uplinks: BTreeMap<u8, Uplink>,
}

#[derive(Debug)]
struct Uplink {
    line: Line,
    capacity: Capacity,
    /// At the last look, and at the end of the last interval.
    seen: Bytes,
    counted: Bytes,
    /// Bytes of all intervals, to tell which direction matters.
    carried: Bytes,
    round_trips: Vec<Duration>,
    rtt: Option<Duration>,
}

/// What an uplink is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// What it is taken to carry.
    pub capacity: Rate,
    /// Whether it was seen full, so that this is its capacity.
    pub known: bool,
    /// Whether it was not, but probed.
    pub estimated: bool,
    /// Whether probing it disturbs nobody, and could find something new.
    pub worth_probing: bool,
    /// What it carried in the last interval, in the direction that carries more.
    pub load: Rate,
    /// Median round trip of the probes of the last interval.
    pub rtt: Option<Duration>,
    /// Bytes since the interface was made.
    pub bytes: Bytes,
}

impl Gauge {
    /// Reads the counters; returns the uplinks on which something arrived that is no chatter.
    pub fn look(&mut self, members: &[Member]) -> Vec<u8> {
        let table = counters::interfaces().unwrap_or_default();
        let mut busy = Vec::new();
        for member in members {
            let Some(bytes) = table.get(&member.name) else {
                continue;
            };
            let line = Line::of(member);
            if member.present
                && self
                    .uplinks
                    .get(&member.number)
                    .is_some_and(|u| u.line != line)
            {
                // What another line carried says nothing of this one.
                self.uplinks.remove(&member.number);
            }
            let uplink = self.uplinks.entry(member.number).or_insert_with(|| Uplink {
                capacity: Capacity::default(),
                line,
                seen: Bytes::default(),
                counted: *bytes,
                carried: Bytes::default(),
                round_trips: Vec::new(),
                rtt: None,
            });
            // An interface that was made anew counts from zero.
            let arrived = bytes.received.saturating_sub(uplink.seen.received);
            if uplink.seen.received > 0 && arrived > CHATTER_BYTES {
                busy.push(member.number);
            }
            uplink.seen = *bytes;
        }
        busy
    }

    /// Takes the round trip of a probe.
    pub fn round_trip(&mut self, number: u8, rtt: Duration) {
        if let Some(uplink) = self.uplinks.get_mut(&number)
            && uplink.round_trips.len() < ROUND_TRIPS_MAX
        {
            uplink.round_trips.push(rtt);
        }
    }

    /// Takes what probing found on each uplink.
    pub fn estimates(&mut self, of: impl Fn(u8) -> Option<Rate>) {
        for (number, uplink) in &mut self.uplinks {
            uplink.capacity.set_estimate(of(*number));
        }
    }

    /// Ends an interval of length `time`.
    pub fn end_interval(&mut self, now: Instant, time: Duration) {
        let all = self.uplinks.values();
        let (down, up) = all.fold((0_u64, 0_u64), |sum, uplink| {
            (sum.0 + uplink.carried.received, sum.1 + uplink.carried.sent)
        });
        for uplink in self.uplinks.values_mut() {
            let received = uplink.seen.received.saturating_sub(uplink.counted.received);
            let sent = uplink.seen.sent.saturating_sub(uplink.counted.sent);
            uplink.counted = uplink.seen;
            uplink.carried.received += received;
            uplink.carried.sent += sent;
            uplink.round_trips.sort_unstable();
            uplink.rtt = uplink
                .round_trips
                .get(uplink.round_trips.len() / 2)
                .copied();
            let low_rtt = uplink
                .round_trips
                .get(uplink.round_trips.len() / 4)
                .copied();
            uplink.round_trips.clear();
            uplink.capacity.handle_sample(
                now,
                Sample {
                    // Capacities of one direction are compared: that in which the traffic mostly goes.
                    bytes: if down >= up { received } else { sent },
                    time,
                    rtt: uplink.rtt,
                    low_rtt,
                },
            );
        }
    }

    /// The readings of these uplinks, in their order.
    #[must_use]
    pub fn readings(&self, members: &[Member]) -> Vec<Reading> {
        let of = |member: &Member| self.uplinks.get(&member.number);
        let estimates: Vec<Capacity> = members
            .iter()
            .map(|member| of(member).map(|uplink| uplink.capacity).unwrap_or_default())
            .collect();
        let assumed = capacity::assumed(&estimates);
        let readings = members.iter().zip(estimates).zip(assumed);
        readings
            .map(|((member, estimate), capacity)| Reading {
                capacity,
                known: estimate.is_known(),
                estimated: estimate.is_estimated(),
                worth_probing: estimate.is_worth_probing(),
                load: estimate.load(),
                rtt: of(member).and_then(|uplink| uplink.rtt),
                bytes: of(member).map(|uplink| uplink.seen).unwrap_or_default(),
            })
            .collect()
    }
}
