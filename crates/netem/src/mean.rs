//! What a link can carry between two times of its life, without running it.

use ropewalk_types::{Duration, Instant};

use crate::capacity::{Capacity, Serialiser};
use crate::link::{LinkConfig, Side};
use crate::loss::LossModel;

impl LinkConfig {
    /// Mean capacity of one direction between two times after the start of the link, in bits of IP
    /// packets per second. Timed changes count from their time on, a blackhole counts as none.
    ///
    /// `None` when the direction is without limit at any of these times; 0 when `to <= from`.
    #[must_use]
    pub fn mean_capacity(&self, side: Side, from: Duration, to: Duration) -> Option<f64> {
        self.mean(side, from, to, |_| 1.0)
    }

    /// As [`Self::mean_capacity`], less what is lost at random in the long run.
    #[must_use]
    pub fn mean_delivery(&self, side: Side, from: Duration, to: Duration) -> Option<f64> {
        self.mean(side, from, to, |loss| 1.0 - loss.mean())
    }

    /// The mean of a share of the capacity that depends on the loss.
    fn mean(
        &self,
        side: Side,
        from: Duration,
        to: Duration,
        share: impl Fn(&LossModel) -> f64,
    ) -> Option<f64> {
        let direction = match side {
            Side::Up => &self.up,
            Side::Down => &self.down,
        };
        let mut changes: Vec<_> = self.changes.iter().collect();
        changes.sort_by_key(|change| change.at);
        let mut serialiser = Serialiser::new(direction.capacity.clone(), Instant::ZERO);
        let mut unlimited = direction.capacity == Capacity::Unlimited;
        let mut blackhole = direction.blackhole;
        let mut loss = direction.loss;
        let (mut begin, mut bytes) = (Duration::ZERO, 0.0);
        let ends = changes.iter().map(|change| change.at).chain([to]);
        for (index, end) in ends.enumerate() {
            let (first, last) = (begin.max(from), end.min(to));
            if first < last && !blackhole {
                if unlimited {
                    return None;
                }
                let (first, last) = (Instant::ZERO + first, Instant::ZERO + last);
                #[expect(clippy::cast_precision_loss, reason = "byte counts are below 2^53")]
                let sent = serialiser.sent_between(first, last) as f64;
                bytes += sent * share(&loss);
            }
            begin = end;
            let Some(change) = changes.get(index) else {
                break;
            };
            let change = match side {
                Side::Up => &change.up,
                Side::Down => &change.down,
            };
            if let Some(capacity) = &change.capacity {
                unlimited = *capacity == Capacity::Unlimited;
                serialiser = Serialiser::new(capacity.clone(), Instant::ZERO + end);
            }
            blackhole = change.blackhole.unwrap_or(blackhole);
            loss = change.loss.unwrap_or(loss);
        }
        let seconds = to.saturating_sub(from).as_secs_f64();
        let bits = bytes * 8.0;
        Some(if seconds > 0.0 { bits / seconds } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkPlan;

    fn mbit(plan: &str, from_ms: u64, to_ms: u64) -> Option<f64> {
        let trace = "1,1000000\n2,0\n3,500000\n";
        let config = LinkPlan::parse(plan).unwrap().resolve(|_| Ok(trace.into()));
        let (from, to) = (Duration::from_millis(from_ms), Duration::from_millis(to_ms));
        let bits = config.unwrap().mean_capacity(Side::Down, from, to);
        bits.map(|bits| bits / 1e6)
    }

    fn near(found: Option<f64>, wanted: f64) {
        assert!(
            found.is_some_and(|f| (f - wanted).abs() < 1e-3),
            "{found:?}"
        );
    }

    #[test]
    fn changes_and_blackholes_count_from_their_time_on() {
        let plan = "both.rate = \"8Mbit\"\n\
            [[change]]\nat = \"2s\"\ndown.rate = \"4Mbit\"\n\
            [[change]]\nat = \"3s\"\nboth.blackhole = true\n\
            [[change]]\nat = \"5s\"\nboth.blackhole = false\nup.rate = \"1Mbit\"\n";
        near(mbit(plan, 0, 2_000), 8.0);
        near(mbit(plan, 1_000, 3_000), 6.0);
        near(mbit(plan, 2_000, 6_000), 2.0);
        near(mbit(plan, 3_500, 4_000), 0.0);
        near(mbit(plan, 0, 10_000), (16.0 + 4.0 + 20.0) / 10.0);
    }

    #[test]
    fn a_trace_counts_from_when_it_is_set_and_repeats() {
        near(mbit("down.trace = \"t\"", 0, 3_000), 4.0);
        near(mbit("down.trace = \"t\"", 3_500, 4_500), 4.0);
        let later = "down.rate = \"1Mbit\"\n[[change]]\nat = \"1s\"\ndown.trace = \"t\"\n";
        near(mbit(later, 0, 2_000), 4.5);
    }

    #[test]
    fn what_is_lost_is_not_delivered() {
        let plan = "both.rate = \"8Mbit\"\ndown.loss = \"25%\"\n\
            [[change]]\nat = \"2s\"\ndown.gilbert = { p = 0.1, r = 0.1 }\n";
        let config = LinkPlan::parse(plan)
            .unwrap()
            .resolve(|_| Ok(String::new()));
        let config = config.unwrap();
        for (side, wanted) in [(Side::Down, 5e6), (Side::Up, 8e6)] {
            let found = config.mean_delivery(side, Duration::ZERO, Duration::from_secs(4));
            near(found, wanted);
        }
    }

    #[test]
    fn a_direction_without_limit_has_no_mean() {
        assert_eq!(mbit("seed = 1", 0, 1_000), None);
        let later = "[[change]]\nat = \"1s\"\nboth.rate = \"1Mbit\"\n";
        near(mbit(later, 1_000, 2_000), 1.0);
        assert_eq!(mbit(later, 999, 2_000), None);
    }
}
