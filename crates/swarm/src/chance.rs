//! Moments that follow from the seed.

use ropewalk_types::{Duration, Random};

/// A time until the next of some events that come independently of each other, one after this time
/// on average (exponentially distributed).
pub(crate) fn around(average: Duration, random: &mut Random) -> Duration {
    average.mul_f64(-(1.0 - random.unit()).ln())
}

/// A time between these, all alike.
pub(crate) fn between(least: Duration, most: Duration, random: &mut Random) -> Duration {
    least + (most - least).mul_f64(random.unit())
}

/// One of so many.
pub(crate) fn one_of(count: usize, random: &mut Random) -> usize {
    ((random.unit() * count as f64) as usize).min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_as_often_as_asked_and_follow_from_the_seed() {
        let (mut one, mut other) = (Random::new(5), Random::new(5));
        let mut sum = Duration::ZERO;
        for _ in 0..10_000 {
            let wait = around(Duration::from_secs(3), &mut one);
            assert_eq!(wait, around(Duration::from_secs(3), &mut other));
            sum += wait;
        }
        let average = sum.as_secs_f64() / 10_000.0;
        assert!((average - 3.0).abs() < 0.1, "{average}");
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(4));
        let mut seen = [false; 3];
        for _ in 0..100 {
            let wait = between(least, most, &mut one);
            assert!(wait >= least && wait < most);
            seen[one_of(3, &mut one)] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
