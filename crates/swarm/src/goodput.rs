//! Goodput: how much traffic came back, in total and per site.

use std::fmt;

use ropewalk_types::Duration;
use serde::Serialize;

use crate::seen::Loaded;

/// Traffic of all sites in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Goodput {
    /// The time, seconds.
    pub(crate) seconds: f64,
    /// Packets of all sites.
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Mbit/s in each direction, of inner packets with their IP headers: of all sites, of the site that
    /// had least, and of the middle one.
    pub(crate) mbit: f64,
    pub(crate) site_least_mbit: f64,
    pub(crate) site_median_mbit: f64,
    /// Jain's index of the sites' goodput: 1 if all have the same, one by their number if one has all.
    pub(crate) jain: f64,
}

impl Goodput {
    /// Of these sites; `None` without sites or time.
    pub(crate) fn of(loads: &[Loaded], time: Duration) -> Option<Self> {
        let seconds = time.as_secs_f64();
        if loads.is_empty() || seconds <= 0.0 {
            return None;
        }
        let rate = |load: &Loaded| load.answered_bytes as f64 * 8.0 / 1e6 / seconds;
        let mut rates: Vec<f64> = loads.iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let jain = sum * sum / (squares * rates.len() as f64);
        Some(Self {
            seconds,
            sent: loads.iter().map(|load| load.sent).sum(),
            answered: loads.iter().map(|load| load.answered).sum(),
            mbit: sum,
            site_least_mbit: rates[0],
            site_median_mbit: rates[rates.len() / 2],
            jain: if squares > 0.0 { jain } else { 0.0 },
        })
    }
}

impl fmt::Display for Goodput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} Mbit/s each way, {} of {} packets answered; per site: least {:.2}, median {:.2} Mbit/s, \
             Jain's index {:.3}",
            self.mbit,
            self.answered,
            self.sent,
            self.site_least_mbit,
            self.site_median_mbit,
            self.jain
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(bytes: &[u64]) -> Vec<Loaded> {
        let load = |&answered_bytes| Loaded {
            sent: 3,
            answered: 2,
            answered_bytes,
        };
        bytes.iter().map(load).collect()
    }

    #[test]
    fn goodput_is_what_came_back_by_time() {
        let second = Duration::from_secs(1);
        let fair = Goodput::of(&loads(&[125_000; 4]), second).expect("some");
        assert!((fair.mbit - 4.0).abs() < 1e-9 && (fair.jain - 1.0).abs() < 1e-9);
        assert_eq!((fair.sent, fair.answered), (12, 8));
        let unfair = Goodput::of(&loads(&[0, 0, 0, 500_000]), second * 2).expect("some");
        assert!((unfair.mbit - 2.0).abs() < 1e-9 && (unfair.jain - 0.25).abs() < 1e-9);
        assert_eq!(
            (unfair.site_least_mbit, unfair.site_median_mbit),
            (0.0, 0.0)
        );
        let nothing = Goodput::of(&loads(&[0, 0]), second).expect("a time");
        assert_eq!((nothing.mbit, nothing.jain), (0.0, 0.0));
        assert_eq!(Goodput::of(&[], second), None);
        assert_eq!(Goodput::of(&loads(&[1]), Duration::ZERO), None);
    }
}
