//! Hold: what a tunnel keeps while none of its paths is up, and when it looks for one.
//!
//! An outage begins when every path is suspect by this side's own judgement, and ends with the
//! first sign of life of any of them. In between nothing is bound to a path. Inner packets wait in
//! the ingress queue within [`Limits`]. Packets that were under way stay in the paths' logs. Every
//! path is probed at `Probing`'s pace. A TCP sender stops by itself after one window, which bounds
//! what is held, however long the outage lasts. Retransmissions are held like any other packet:
//! only both copies tell the sender afterwards that its timeout was spurious (RFC 3522, RFC 5682).
//! Invariant: held bytes and packets never exceed the limits.

pub(crate) mod freeze;
mod limits;
mod tuning;

pub use limits::{Freeze, Limits, Victim};

use ropewalk_types::{Duration, Instant};
use tuning::{SHARE, SLOWEST, STEPS, SWEEP};

/// What a tunnel did in outages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldStats {
    /// Times that every path was down.
    pub outages: u64,
    /// Time that no path was up, outages under way included.
    pub down: Duration,
    /// Inner packets that arrived or waited in an outage and left after it.
    pub replayed: u64,
    /// Inner packets dropped in an outage because too much was held.
    pub dropped_full: u64,
    /// Inner packets dropped because they had become too old.
    pub dropped_old: u64,
    /// Times that the sender of a TCP connection was told to stop.
    pub stopped: u64,
    /// Bytes of packets kept in TCP proxy acknowledgement now.
    pub proxy_ack_bytes: u64,
    /// TCP connections reset because what was acknowledged for their receivers was not delivered in
    /// time.
    pub resets: u64,
    /// TCP connections whose senders were acknowledged here while a path was up.
    pub accelerated: u64,
    /// Segments sent again of what was acknowledged here.
    pub resent: u64,
}

/// Whether the tunnel is in an outage, and since when.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    since: Option<Instant>,
    /// A path has been up: what was before was no outage but the start.
    began: bool,
    /// When what has become too old is dropped next.
    sweep: Instant,
    outages: u64,
    down: Duration,
}

/// What has just changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The last path went down.
    Down,
    /// A path is back; all had been down since then.
    Back(Instant),
}

impl Hold {
    /// Takes in whether every path is down.
    pub fn follow(&mut self, now: Instant, all_down: bool) -> Option<Turn> {
        match (self.since, all_down) {
            (None, true) => {
                self.since = Some(now);
                self.sweep = now + SWEEP;
                self.outages += u64::from(self.began);
                Some(Turn::Down)
            }
            (Some(since), false) => {
                self.since = None;
                if self.began {
                    self.down += now.since(since);
                }
                self.began = true;
                Some(Turn::Back(since))
            }
            (None, false) => {
                self.began = true;
                None
            }
            (Some(_), true) => None,
        }
    }

    /// Since when every path is down.
    pub const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether it is an outage and not the start.
    pub const fn is_outage(&self) -> bool {
        self.since.is_some() && self.began
    }

    /// When [`Self::sweeps`] is wanted.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.is_outage().then_some(self.sweep)
    }

    /// Whether it is time to drop what has become too old.
    pub fn sweeps(&mut self, now: Instant) -> bool {
        let due = self.is_outage() && self.sweep <= now;
        if due {
            self.sweep = now + SWEEP;
        }
        due
    }

    /// Fills in what this counts.
    pub fn count(&self, now: Instant, stats: &mut HoldStats) {
        let lasting = self.since.filter(|_| self.began);
        stats.outages = self.outages;
        stats.down = self.down + lasting.map_or(Duration::ZERO, |since| now.since(since));
    }
}

/// How often a silent path is probed while no other is up. The end of a blackhole is silent, so
/// every flow waits as long as the next probe does. A probe is some 70 bytes on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probing;

impl Probing {
    /// Time between two probes of a path that has been silent for `silence`, in a process with so many tunnels whose paths
    /// are all silent.
    pub fn interval(silence: Duration, tunnels: u32) -> Duration {
        let steps = STEPS.iter().find(|(until, _)| silence < *until);
        let alone = steps.map_or(SLOWEST, |(_, interval)| *interval);
        alone.max((SHARE * tunnels).min(SLOWEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn the_start_is_no_outage_and_what_follows_is_counted() {
        let mut hold = Hold::default();
        assert_eq!(hold.follow(at(0), true), Some(Turn::Down));
        assert_eq!(hold.follow(at(500), false), Some(Turn::Back(at(0))));
        assert_eq!(hold.follow(at(600), false), None);
        assert_eq!(hold.follow(at(1_000), true), Some(Turn::Down));
        assert_eq!(hold.since(), Some(at(1_000)));
        let mut stats = HoldStats::default();
        hold.count(at(1_250), &mut stats);
        assert_eq!((stats.outages, stats.down), (1, Duration::from_millis(250)));
        let back = Some(Turn::Back(at(1_000)));
        assert_eq!(hold.follow(at(3_000), false), back);
        hold.count(at(9_000), &mut stats);
        assert_eq!((stats.outages, stats.down), (1, Duration::from_secs(2)));
    }

    #[test]
    fn probes_are_frequent_for_a_minute_and_cheap_for_ever() {
        let per_second = |silence: u64| {
            let interval = Probing::interval(Duration::from_secs(silence), 1);
            1.0 / interval.as_secs_f64()
        };
        assert!(per_second(30) >= 60.0, "found within 16 ms");
        assert!(per_second(61) <= 4.0);
        assert!(per_second(100_000) <= 1.0);
    }

    #[test]
    fn many_tunnels_in_an_outage_share_what_they_probe() {
        let per_second = |silence, tunnels: u32| {
            let interval = Probing::interval(silence, tunnels);
            2.0 * f64::from(tunnels) / interval.as_secs_f64()
        };
        for tunnels in [1, 10, 100, 1_000] {
            let most = per_second(Duration::ZERO, tunnels);
            assert!(most <= 2_001.0, "{tunnels}: {most}");
        }
        assert_eq!(
            Probing::interval(Duration::ZERO, 15),
            Probing::interval(Duration::ZERO, 1),
            "few tunnels are as quick as one"
        );
    }
}
