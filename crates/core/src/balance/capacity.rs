//! What an uplink can carry, from what it did carry.
//!
//! A second's rate is a lower bound of the capacity. While the uplink is full, which shows as round
//! trips far above those without load, it is the capacity. An uplink that was never seen full has
//! only the bound, and perhaps an estimate from probing while it was idle ([`super::train`]).
//! [`assumed`] errs on the high side. An uplink that gets too many flows becomes full and shows its
//! capacity. One that gets too few shows nothing.
//!
//! Source: delivery rate with an application-limited flag, as in BBR, over interface counters.

use core::time::Duration;

use ropewalk_types::{Instant, Rate};

/// Idle seconds in a row that tell the round trip without load anew. More: surer, later to follow a
/// way that has become longer.
const IDLE_SECONDS: u32 = 3;
/// The uplink is full when a round trip exceeds the shortest by at least this. Longer: delay
/// variation is taken for a full uplink less often, shallow queues go unseen.
const QUEUE_MIN: Duration = Duration::from_millis(15);
/// Bits per second. A lower rate says nothing about capacity, long round trips or not. Larger:
/// chatter counts as load less often, slow uplinks are never seen full.
const RATE_MIN: u64 = 200_000;
/// Bits per second. An uplink that carries more is not idle, and is not probed. Larger: more
/// uplinks are probed, traffic makes their rates look lower.
const IDLE_MAX: u64 = 400_000;
/// How long it counts that an uplink was seen full. Longer: fewer trains, later to follow a line
/// that has become faster.
const FULL_VALID: Duration = Duration::from_secs(600);
/// Weight of a lower sample of a full uplink, of 8: several seconds to follow a slight fall. Larger:
/// sooner right, noisier.
const GAIN: u64 = 3;
/// A fall to at most one part in so many counts only when it was seen twice, and then as it stands.
/// Larger: fewer falls are followed at once, and one slow second lowers the estimate by more.
const FALL_TO: u64 = 2;
/// The two sightings of a fall are at most so far apart: samples are of a second, and one of them may
/// say nothing, as when connections wait for their retransmission timeouts (RFC 6298) and no queue is
/// left. Longer: falls are found over more such seconds, two slow ones are sooner taken for a fall.
const FALL_WITHIN: Duration = Duration::from_millis(2_500);

/// What was seen in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes carried, in the direction that carries more.
    pub bytes: u64,
    /// Length of the interval.
    pub time: Duration,
    /// Median round trip of the probes, if any was answered.
    pub rtt: Option<Duration>,
    /// Lower quartile of the probes' round trips.
    pub low_rtt: Option<Duration>,
}

/// The estimate of one uplink.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    rate: u64,
    base: Base,
    full: Option<Instant>,
    /// Round trip when it was full last.
    full_rtt: Option<Duration>,
    last: u64,
    fall: Option<Fall>,
    estimate: Option<u64>,
}

/// A fall that was seen once.
#[derive(Clone, Copy, Debug)]
struct Fall {
    to: u64,
    at: Instant,
}

/// The round trip without load: the shortest, and anew where the way has become longer, as after a
/// handover, which shows while the uplink is idle. Time alone tells nothing: one that is full for an hour
/// has long round trips for an hour.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    least: Option<Duration>,
    /// Shortest of the idle seconds in a row, and how many there were.
    idle: Option<(Duration, u32)>,
}

impl Base {
    /// Whether a round trip means a queue.
    fn is_exceeded_by(&self, rtt: Duration) -> bool {
        // A quarter on top: on a long path the round trip varies by itself.
        self.least
            .is_some_and(|least| rtt > least + QUEUE_MIN.max(least / 4))
    }

    /// Takes the round trip of a second.
    fn handle(&mut self, rtt: Duration, is_idle: bool) {
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        let (shortest, seconds) = self.idle.unwrap_or((rtt, 0));
        self.idle = is_idle.then_some((shortest.min(rtt), seconds + 1));
        if let Some((shortest, IDLE_SECONDS)) = self.idle {
            (self.least, self.idle) = (Some(shortest), None);
        }
    }
}

impl Capacity {
    /// Takes a sample that ends at `now`.
    pub fn handle_sample(&mut self, now: Instant, sample: Sample) {
        self.last = Rate::from_transfer(sample.bytes, sample.time).bits_per_sec();
        let loaded = self.last >= RATE_MIN;
        let queued = sample.rtt.is_some_and(|rtt| self.base.is_exceeded_by(rtt));
        if let Some(rtt) = sample.rtt {
            self.base.handle(rtt, !loaded);
        }
        if queued && loaded {
            self.full_rtt = sample.rtt;
            self.follow(now, self.shown(sample));
            self.full = Some(now);
        } else {
            // Traffic that has ended or carries more shows no fall; less of it says nothing.
            self.fall = self.fall.filter(|_| loaded && self.is_fall(self.last));
            self.rate = self.rate.max(self.last);
            let stale = self.full.is_some_and(|at| now.since(at) > FULL_VALID);
            // It was not full: the way is longer than before.
            let mistaken = self
                .full_rtt
                .is_some_and(|rtt| !self.base.is_exceeded_by(rtt));
            if stale || mistaken {
                self.full = None;
            }
        }
    }

    /// The capacity that a sample of a full uplink shows. A queue at three quarters of the probes: what
    /// was carried. At half of them, as when traffic ends within the second: at most twice as much.
    fn shown(&self, sample: Sample) -> u64 {
        let throughout = sample
            .low_rtt
            .is_some_and(|rtt| self.base.is_exceeded_by(rtt));
        let most = if throughout { 1 } else { 2 } * self.last;
        self.rate.clamp(self.last, most)
    }

    /// Follows what is shown: at once what was carried, slowly what is less, and a lasting fall as it
    /// stands.
    fn follow(&mut self, now: Instant, shown: u64) {
        let former = self.fall.take();
        let former = former.filter(|fall| now.since(fall.at) <= FALL_WITHIN);
        self.rate = match former {
            _ if shown >= self.rate => shown,
            _ if !self.is_fall(self.last) => (self.rate * (8 - GAIN) + shown * GAIN) / 8,
            // Where only some probes met a queue, less was shown than the other time.
            Some(fall) => shown.min(fall.to),
            None => {
                self.fall = Some(Fall { to: shown, at: now });
                self.rate
            }
        };
    }

    const fn is_fall(&self, bits: u64) -> bool {
        bits <= self.rate / FALL_TO
    }

    /// Takes what probing found while the uplink was idle; `None` when it found nothing.
    pub fn set_estimate(&mut self, estimate: Option<Rate>) {
        self.estimate = estimate.map(Rate::bits_per_sec);
    }

    /// Whether there is an estimate of probing, and nothing better.
    #[must_use]
    pub const fn is_estimated(&self) -> bool {
        self.estimate.is_some() && !self.is_known()
    }

    /// The largest rate seen, or the rate while full.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::from_bits_per_sec(self.rate)
    }

    /// Whether the uplink was seen full lately, so that the rate is its capacity.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.full.is_some()
    }

    /// Whether probing disturbs nobody, and could find something new.
    #[must_use]
    pub const fn is_worth_probing(&self) -> bool {
        self.last < IDLE_MAX && !self.is_known()
    }

    /// Rate of the last sample.
    #[must_use]
    pub const fn load(&self) -> Rate {
        Rate::from_bits_per_sec(self.last)
    }
}

/// What each uplink is taken to carry, at least 1 bit/s. Known capacities count as they are, probed
/// ones by raised estimates, the others as the largest of all and at least 200 kbit/s.
#[must_use]
pub fn assumed(uplinks: &[Capacity]) -> Vec<Rate> {
    let raised = raised(uplinks);
    let own: Vec<Option<u64>> = uplinks
        .iter()
        .map(|uplink| match uplink.estimate {
            _ if uplink.is_known() => Some(uplink.rate),
            estimate => estimate.map(|bits| uplink.rate.max((bits as f64 * raised) as u64)),
        })
        .collect();
    let seen = uplinks.iter().map(|uplink| uplink.rate);
    let most = own.iter().flatten().copied().chain(seen).max();
    let unknown = most.unwrap_or(0).max(RATE_MIN);
    let rates = own.iter().map(|own| own.unwrap_or(unknown).max(1));
    rates.map(Rate::from_bits_per_sec).collect()
}

/// How much more than its estimate an uplink may carry, at least 1. Echoes measure the slower direction,
/// which on many lines carries a fraction of the other: as large as on any uplink of which both are known.
fn raised(uplinks: &[Capacity]) -> f64 {
    let ratio = |uplink: &Capacity| {
        let estimate = uplink
            .estimate
            .filter(|&bits| bits > 0 && uplink.is_known())?;
        Some(uplink.rate as f64 / estimate as f64)
    };
    uplinks.iter().filter_map(ratio).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mbit: u64, rtt_ms: u64) -> Sample {
        Sample {
            bytes: mbit * 125_000,
            time: Duration::from_secs(1),
            rtt: Some(Duration::from_millis(rtt_ms)),
            low_rtt: Some(Duration::from_millis(rtt_ms)),
        }
    }

    fn fed(samples: &[(u64, u64)]) -> Capacity {
        let mut capacity = Capacity::default();
        for (second, &(mbit, rtt)) in (1..).zip(samples) {
            capacity.handle_sample(Instant::from_millis(second * 1_000), sample(mbit, rtt));
        }
        capacity
    }

    fn mbit(rate: Rate) -> u64 {
        rate.bits_per_sec() / 1_000_000
    }

    #[test]
    fn a_full_uplink_shows_its_capacity_and_an_idle_one_keeps_it() {
        let light = fed(&[(0, 20), (8, 22), (3, 21)]);
        assert!(!light.is_known());
        assert_eq!(mbit(light.rate()), 8);
        let full = fed(&[(0, 20), (20, 90), (20, 95), (0, 20), (1, 21)]);
        assert!(full.is_known());
        assert_eq!(mbit(full.rate()), 20);
        assert_eq!(mbit(full.load()), 1);
    }

    #[test]
    fn a_full_uplink_that_becomes_slower_is_followed_within_seconds() {
        let mut samples = vec![(0, 20), (40, 120)];
        samples.extend([(10, 120); 6]);
        let slower = fed(&samples);
        assert!((10..13).contains(&mbit(slower.rate())), "{slower:?}");
    }

    #[test]
    fn a_fall_to_a_quarter_is_followed_within_three_seconds_wherever_it_begins() {
        for tenth in 0..10 {
            // The second in which it falls carries a part at either rate; two more make 3 s at most.
            let mixed = 4 * tenth + 10 - tenth;
            let samples = [
                (0, 20),
                (40, 90),
                (40, 90),
                (mixed, 200),
                (10, 300),
                (10, 300),
            ];
            let rate = mbit(fed(&samples).rate());
            assert!((10..12).contains(&rate), "{tenth}: {rate}");
        }
    }

    #[test]
    fn traffic_that_ends_or_pauses_is_no_fall() {
        let mut capacity = fed(&[(0, 20), (40, 90), (40, 90)]);
        for second in 4..12 {
            // A queue at most of the probes only: half of the second, and half of the capacity.
            let partly = Sample {
                low_rtt: Some(Duration::from_millis(20)),
                ..sample(20, 90)
            };
            capacity.handle_sample(Instant::from_millis(second * 1_000), partly);
        }
        assert_eq!(mbit(capacity.rate()), 40);
        let light = fed(&[(0, 20), (40, 90), (5, 20), (5, 21), (0, 20), (1, 20)]);
        assert_eq!(mbit(light.rate()), 40);
    }

    #[test]
    fn a_second_that_says_nothing_neither_hides_a_fall_nor_makes_one() {
        // Connections wait for their timeouts: little is carried, and no queue is left.
        let waiting = (2, 21);
        let before = [(0, 20), (40, 90), (40, 90)];
        let fed_then = |after: &[(u64, u64)]| mbit(fed(&[&before[..], after].concat()).rate());
        assert_eq!(fed_then(&[(10, 90), waiting, (10, 90)]), 10);
        assert_eq!(fed_then(&[(10, 90), waiting, waiting, (10, 90)]), 40);
        assert_eq!(
            fed_then(&[(10, 90), (0, 20), (10, 90)]),
            40,
            "the traffic ended"
        );
        assert_eq!(
            fed_then(&[(10, 90), (30, 21), (10, 90)]),
            40,
            "it is not slow"
        );
    }

    #[test]
    fn a_fall_is_found_whole_though_some_probes_met_no_queue() {
        let partly = Sample {
            low_rtt: Some(Duration::from_millis(20)),
            ..sample(9, 90)
        };
        for samples in [[partly, sample(10, 90)], [sample(10, 90), partly]] {
            let mut capacity = fed(&[(0, 20), (40, 90), (40, 90)]);
            for (second, sample) in (4..).zip(samples) {
                capacity.handle_sample(Instant::from_millis(second * 1_000), sample);
            }
            assert_eq!(mbit(capacity.rate()), 10);
        }
        // Twice at most what such a second carried: 22 is more than half of 40, and yet a fall.
        let mut capacity = fed(&[(0, 20), (40, 90), (10, 90)]);
        let eleven = Sample {
            bytes: 11 * 125_000,
            ..partly
        };
        capacity.handle_sample(Instant::from_millis(4_000), eleven);
        assert_eq!(mbit(capacity.rate()), 10);
    }

    #[test]
    fn single_slow_seconds_lower_nothing() {
        let samples = [(0, 20), (40, 90), (10, 90), (40, 90), (10, 90), (40, 90)];
        assert_eq!(mbit(fed(&samples).rate()), 40);
        let slightly = mbit(fed(&[(0, 20), (40, 90), (30, 90)]).rate());
        assert!((30..40).contains(&slightly), "{slightly}");
    }

    #[test]
    fn a_rise_that_is_carried_is_known_at_once() {
        let risen = fed(&[(0, 20), (10, 90), (10, 90), (38, 20), (36, 20)]);
        assert_eq!(mbit(risen.rate()), 38);
        let full = fed(&[(0, 20), (10, 90), (10, 90), (30, 90), (40, 90)]);
        assert_eq!(mbit(full.rate()), 40);
    }

    #[test]
    fn a_way_that_has_become_longer_is_taken_for_full_only_until_it_is_idle() {
        let mut samples = vec![(0, 10), (1, 40), (1, 40), (1, 41)];
        assert!(fed(&samples).is_known());
        samples.extend([(0, 40); 3]);
        assert!(!fed(&samples).is_known());
        samples.extend([(1, 41); 3]);
        assert!(!fed(&samples).is_known());
        samples.extend([(9, 90); 2]);
        assert!(fed(&samples).is_known());
    }

    #[test]
    fn long_round_trips_without_traffic_are_no_capacity() {
        let idle = fed(&[(0, 20), (0, 300), (0, 400)]);
        assert!(!idle.is_known());
    }

    #[test]
    fn the_unknown_count_as_the_fastest() {
        let known = fed(&[(0, 20), (20, 90)]);
        let light = fed(&[(0, 20), (2, 20)]);
        let rates: Vec<u64> = assumed(&[known, light]).into_iter().map(mbit).collect();
        assert_eq!(rates, [20, 20]);
        let none = assumed(&[Capacity::default(); 2]);
        assert_eq!(none[0], none[1]);
    }

    #[test]
    fn probed_uplinks_count_by_their_estimates_until_they_are_seen_full() {
        let probed = |mbit: u64, samples: &[(u64, u64)]| {
            let mut capacity = fed(samples);
            capacity.set_estimate(Some(Rate::from_bits_per_sec(mbit * 1_000_000)));
            capacity
        };
        let rates = |all: &[Capacity]| assumed(all).into_iter().map(mbit).collect::<Vec<_>>();
        let idle = [probed(20, &[]), probed(5, &[]), Capacity::default()];
        assert!(idle[0].is_estimated() && !idle[2].is_estimated());
        assert_eq!(rates(&idle), [20, 5, 20], "unknown: as the fastest");
        let mut slow = Capacity::default();
        slow.set_estimate(Some(Rate::from_bits_per_sec(90_000)));
        assert_eq!(assumed(&[slow])[0].bits_per_sec(), 90_000);
        let busy = probed(5, &[(0, 20), (8, 20)]);
        assert_eq!(rates(&[busy]), [8], "it did carry more");
        // A line that carries five times as much down as up; the other is taken to do so too.
        let asymmetric = probed(20, &[(0, 20), (100, 90)]);
        assert!(!asymmetric.is_estimated());
        assert_eq!(rates(&[asymmetric, probed(5, &[])]), [100, 25]);
        let full = probed(50, &[(0, 20), (20, 90)]);
        assert_eq!(rates(&[full, probed(5, &[])]), [20, 5], "never lowered");
    }

    #[test]
    fn what_was_seen_long_ago_is_forgotten() {
        let mut capacity = fed(&[(0, 20), (20, 90)]);
        capacity.handle_sample(Instant::from_millis(700_000), sample(1, 20));
        assert!(!capacity.is_known());
    }
}
