//! How large web pages are, the same for simulator and kernel: long-tailed in the number of
//! objects and in their sizes.

use ropewalk_types::Random;

/// Connections of a page, as browsers open them for HTTP/1.1.
pub const CONNECTIONS: u16 = 6;
/// Spread of the number of objects (lognormal sigma).
const OBJECTS_SIGMA: f64 = 0.7;
const OBJECTS_MAX: f64 = 1_000.0;
/// Median size of an object in bytes, its spread, and its bound: a mean of about 32 kB.
const SIZE_MEDIAN: f64 = 9_000.0;
const SIZE_SIGMA: f64 = 1.6;
const SIZE_MAX: f64 = 10_000_000.0;

/// Sizes in bytes, `1..=10_000_000`, of the `1..=1_000` objects of a page that has `objects` on
/// average; the last is the document, which names the others.
pub fn sizes(objects: u32, random: &mut Random) -> Vec<u32> {
    let median = (f64::from(objects).ln() - OBJECTS_SIGMA * OBJECTS_SIGMA / 2.0).exp();
    let count = lognormal(random, median, OBJECTS_SIGMA).clamp(1.0, OBJECTS_MAX);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded"
    )]
    (0..count.round() as u32)
        .map(|_| {
            let size = lognormal(random, SIZE_MEDIAN, SIZE_SIGMA);
            size.clamp(1.0, SIZE_MAX).ceil() as u32
        })
        .collect()
}

fn lognormal(random: &mut Random, median: f64, sigma: f64) -> f64 {
    median * (sigma * random.normal()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_as_many_objects_as_asked_for_on_average_and_a_long_tail() {
        let mut random = Random::new(1);
        let pages: Vec<Vec<u32>> = (0..4_000).map(|_| sizes(40, &mut random)).collect();
        let objects: usize = pages.iter().map(Vec::len).sum();
        let mean = objects as f64 / pages.len() as f64;
        assert!((36.0..44.0).contains(&mean), "{mean}");
        let bytes: f64 = pages.iter().flatten().map(|size| f64::from(*size)).sum();
        let mean = bytes / objects as f64;
        assert!((28e3..36e3).contains(&mean), "{mean}");
        assert!(pages.iter().any(|page| page.len() > 200));
        assert!(pages.iter().flatten().all(|size| *size >= 1));
    }
}
