//! When clients keep to an uplink that they used for a site, and when no longer.
//!
//! Keeping to it saves logins. But a client that met an uplink while it was fast would stay on it
//! after it became slow, for as long as the client goes on opening pages. So an uplink that has
//! lost half of its capacity, and is slower than the mean, lets its clients choose anew, once per
//! such fall.
//!
//! Source: own measurement with pages over uplinks whose rates change (docs/decisions/balance.md).

use core::time::Duration;
use std::collections::BTreeMap;

use ropewalk_types::{Instant, Rate};

/// A connection of the web that a client opens so long after its last one opens a site; sooner ones
/// fetch what a page is put together from. Longer: sites that a busy client opens are not kept.
/// Shorter: what a page fetches late is kept, and pages come later.
pub const PAUSE: Duration = Duration::from_secs(1);
/// Ports of the web, TCP and UDP (RFC 9110 §4.2, RFC 9114 §3).
pub const WEB_PORTS: [u16; 2] = [80, 443];
/// An uplink has become slow when at most one part in so many is left of its capacity. Larger:
/// fewer logins end, clients stay on a slower uplink.
const LEFT_OF: u64 = 2;
/// For how long it must have been slow: a second that began idle looks slow. Longer: fewer logins
/// end in vain, clients leave later.
const SLOW_MIN: Duration = Duration::from_secs(3);

/// What the uplinks carried when their clients chose them.
#[derive(Clone, Debug, Default)]
pub struct Affinity {
    uplinks: BTreeMap<u8, Uplink>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Uplink {
    /// Largest capacity since clients chose anew last, bit/s.
    best: u64,
    /// Since when too little of it is left.
    slow: Option<Instant>,
}

impl Affinity {
    /// Takes the capacities of all uplinks that are in use, by number, as far as they were measured: guesses
    /// rise and fall with one another. Returns those whose clients are to choose anew. Those that are not
    /// named are forgotten.
    pub fn handle_capacities(&mut self, now: Instant, uplinks: &[(u8, Option<Rate>)]) -> Vec<u8> {
        self.uplinks
            .retain(|number, _| uplinks.iter().any(|(other, _)| other == number));
        let known = |(number, rate): &(u8, Option<Rate>)| Some((*number, (*rate)?.bits_per_sec()));
        let measured: Vec<(u8, u64)> = uplinks.iter().filter_map(known).collect();
        let sum: u64 = measured.iter().map(|(_, rate)| rate).sum();
        let mean = sum / measured.len().max(1) as u64;
        let mut leaving = Vec::new();
        for (number, rate) in measured {
            let uplink = self.uplinks.entry(number).or_default();
            uplink.best = uplink.best.max(rate);
            if rate > uplink.best / LEFT_OF || rate >= mean {
                uplink.slow = None;
                continue;
            }
            let since = *uplink.slow.get_or_insert(now);
            if now.since(since) >= SLOW_MIN {
                *uplink = Uplink {
                    best: rate,
                    slow: None,
                };
                leaving.push(number);
            }
        }
        leaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds are the index; capacities in Mbit/s.
    fn run(seconds: &[&[(u8, u64)]]) -> Vec<Vec<u8>> {
        let all = seconds
            .iter()
            .map(|rates| rates.iter().map(|&(n, mbit)| (n, Some(mbit))));
        run_measured(&all.map(Iterator::collect).collect::<Vec<_>>())
    }

    /// The same where some are not measured.
    fn run_measured(seconds: &[Vec<(u8, Option<u64>)>]) -> Vec<Vec<u8>> {
        let mut affinity = Affinity::default();
        let at = |second: usize| Instant::ZERO + Duration::from_secs(second as u64);
        let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
        let second = |(index, rates): (usize, &Vec<(u8, Option<u64>)>)| {
            let rates: Vec<_> = rates
                .iter()
                .map(|(number, mbit)| (*number, mbit.map(rate)))
                .collect();
            affinity.handle_capacities(at(index), &rates)
        };
        seconds.iter().enumerate().map(second).collect()
    }

    #[test]
    fn an_uplink_that_stays_slow_is_left_once() {
        let fast: &[_] = &[(1, 40), (2, 40)];
        let slow: &[_] = &[(1, 10), (2, 40)];
        let left = run(&[fast, slow, slow, slow, slow, slow, slow, slow, slow]);
        assert_eq!(left[4], [1]);
        assert_eq!(left.concat(), [1]);
    }

    #[test]
    fn a_slow_second_and_a_fall_of_all_are_none() {
        let fast: &[_] = &[(1, 40), (2, 40)];
        let slow: &[_] = &[(1, 10), (2, 40)];
        let all: &[_] = &[(1, 10), (2, 10)];
        let shared = run(&[fast, slow, fast, slow, fast, all, all, all, all, all]);
        assert!(shared.concat().is_empty());
    }

    #[test]
    fn what_is_not_measured_neither_falls_nor_counts() {
        let guess = vec![(1, None), (2, Some(100))];
        let slower = vec![(1, Some(20)), (2, Some(100))];
        let steps = [vec![guess.clone(); 5], vec![slower; 5], vec![guess; 5]].concat();
        assert!(run_measured(&steps).concat().is_empty());
    }

    #[test]
    fn one_that_was_always_slower_keeps_its_clients() {
        let rates: &[_] = &[(1, 5), (2, 100)];
        assert!(run(&[rates; 10]).concat().is_empty());
    }

    #[test]
    fn a_further_fall_counts_again_and_one_that_went_away_begins_anew() {
        let other = (2, 100);
        let at = |mbit| vec![(1, mbit), other];
        let gone = vec![other];
        let steps = [
            at(40),
            at(20),
            at(20),
            at(20),
            at(20),
            at(12),
            at(12),
            at(12),
            at(12),
            at(10),
            at(10),
            at(10),
            at(10),
            at(80),
            gone,
            at(10),
            at(10),
            at(10),
            at(10),
        ];
        let steps: Vec<&[(u8, u64)]> = steps.iter().map(Vec::as_slice).collect();
        let left = run(&steps);
        let seconds: Vec<usize> = (0..left.len()).filter(|&i| !left[i].is_empty()).collect();
        assert_eq!(seconds, [4, 12]);
    }
}
