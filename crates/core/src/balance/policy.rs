//! The modes: how new flows are shared among the uplinks there are.

use core::fmt;
use core::str::FromStr;

use ropewalk_types::Rate;

use super::finish::{self, Load};

/// A set weight counts as this many bits per second beside uplinks that follow their capacity.
/// Larger: uplinks with a weight get more of the flows.
const BITS_PER_WEIGHT: u64 = 1_000_000;

/// How new flows are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In proportion to set weights or capacities.
    #[default]
    Weighted,
    /// Each where it is expected to be done first.
    LeastFinish,
    /// Over uplinks that cost nothing by the byte while there is one, by weight among them.
    Cheapest,
    /// Over the first that is usable.
    Failover,
}

impl Mode {
    /// All modes with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Weighted, "weighted"),
        (Self::LeastFinish, "least-finish"),
        (Self::Cheapest, "cheapest"),
        (Self::Failover, "failover"),
    ];

    /// Name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weighted => "weighted",
            Self::LeastFinish => "least-finish",
            Self::Cheapest => "cheapest",
            Self::Failover => "failover",
        }
    }
}

/// No mode has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no mode {:?}", self.0)
    }
}

impl core::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(mode, _)| *mode)
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// An uplink that could carry new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whether it leads anywhere.
    pub usable: bool,
    /// Set share, at least 1; `None` follows the capacity.
    pub weight: Option<u32>,
    /// What it is taken to carry.
    pub capacity: Rate,
    /// What it carried in the last second.
    pub load: Rate,
    /// Costs by the byte.
    pub metered: bool,
    /// Carries flows only while nothing else is usable.
    pub standby: bool,
    /// Place in the order of preference for [`Mode::Failover`]; lower comes first.
    pub rank: u32,
}

/// What new flows are expected to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Flows until the shares are computed again, at least 1.
    pub flows: usize,
    /// Bytes of each.
    pub size_bytes: u64,
}

/// The share of each candidate in the next new flows, in any unit; 0 for those that get none. When
/// nothing is usable every candidate is taken to be: a probe may err, and there is nothing to lose.
#[must_use]
pub fn shares(mode: Mode, candidates: &[Candidate], expected: Expected) -> Vec<u64> {
    let any_usable = candidates.iter().any(|candidate| candidate.usable);
    let usable = |candidate: &Candidate| candidate.usable || !any_usable;
    let open: Vec<&Candidate> = candidates.iter().filter(|c| usable(c)).collect();
    let awake = open.iter().any(|candidate| !candidate.standby);
    let free = open
        .iter()
        .any(|candidate| !candidate.metered && candidate.standby != awake);
    let chosen = |candidate: &Candidate| {
        usable(candidate)
            && candidate.standby != awake
            && !(mode == Mode::Cheapest && free && candidate.metered)
    };
    match mode {
        Mode::Weighted | Mode::Cheapest => by(candidates, |c| u64::from(chosen(c)) * weight(c)),
        Mode::LeastFinish => least_finish(candidates, chosen, expected),
        Mode::Failover => {
            let all = candidates.iter().enumerate();
            let first = all
                .filter(|(_, candidate)| chosen(candidate))
                .min_by_key(|(index, candidate)| (candidate.rank, *index))
                .map(|(index, _)| index);
            (0..candidates.len())
                .map(|index| u64::from(Some(index) == first))
                .collect()
        }
    }
}

fn by(candidates: &[Candidate], share: impl Fn(&Candidate) -> u64) -> Vec<u64> {
    candidates.iter().map(share).collect()
}

fn weight(candidate: &Candidate) -> u64 {
    match candidate.weight {
        Some(weight) => u64::from(weight.max(1)) * BITS_PER_WEIGHT,
        None => candidate.capacity.bits_per_sec().max(1),
    }
}

/// The backlog of an uplink is what its present flows want still, which nobody knows: as much again
/// as they took in the last second.
fn least_finish(
    candidates: &[Candidate],
    chosen: impl Fn(&Candidate) -> bool,
    expected: Expected,
) -> Vec<u64> {
    let load = |candidate: &Candidate| Load {
        backlog_bytes: candidate.load.bits_per_sec() / 8,
        capacity: Rate::from_bits_per_sec(u64::from(chosen(candidate)) * weight(candidate)),
    };
    let loads: Vec<Load> = candidates.iter().map(load).collect();
    finish::place(&loads, expected.size_bytes, expected.flows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXPECTED: Expected = Expected {
        flows: 40,
        size_bytes: 100_000,
    };

    fn candidate(mbit: u64, rank: u32) -> Candidate {
        Candidate {
            usable: true,
            weight: None,
            capacity: Rate::from_bits_per_sec(mbit * 1_000_000),
            load: Rate::from_bits_per_sec(0),
            metered: false,
            standby: false,
            rank,
        }
    }

    #[test]
    fn weights_are_capacities_unless_set() {
        let set = Candidate {
            weight: Some(5),
            ..candidate(100, 1)
        };
        let two = [candidate(20, 0), set];
        assert_eq!(
            shares(Mode::Weighted, &two, EXPECTED),
            [20_000_000, 5_000_000]
        );
    }

    #[test]
    fn least_finish_spares_the_busy_one() {
        let busy = Candidate {
            load: Rate::from_bits_per_sec(20_000_000),
            ..candidate(20, 0)
        };
        let got = shares(Mode::LeastFinish, &[busy, candidate(20, 1)], EXPECTED);
        assert_eq!(got.iter().sum::<u64>(), 40);
        assert!(got[1] > 2 * got[0], "{got:?}");
    }

    #[test]
    fn cheapest_pays_only_when_it_must() {
        let metered = Candidate {
            metered: true,
            ..candidate(100, 0)
        };
        let mut both = [metered, candidate(5, 1)];
        assert_eq!(shares(Mode::Cheapest, &both, EXPECTED)[0], 0);
        both[1].usable = false;
        assert!(shares(Mode::Cheapest, &both, EXPECTED)[0] > 0);
    }

    #[test]
    fn failover_takes_the_first_by_rank_and_standby_comes_last() {
        let standby = Candidate {
            standby: true,
            ..candidate(100, 0)
        };
        let mut three = [candidate(1, 2), standby, candidate(1, 1)];
        assert_eq!(shares(Mode::Failover, &three, EXPECTED), [0, 0, 1]);
        three[2].usable = false;
        assert_eq!(shares(Mode::Failover, &three, EXPECTED), [1, 0, 0]);
        three[0].usable = false;
        assert_eq!(shares(Mode::Failover, &three, EXPECTED), [0, 1, 0]);
        assert_eq!(shares(Mode::Weighted, &three, EXPECTED)[0], 0);
    }

    #[test]
    fn every_mode_is_found_by_its_name() {
        for (mode, name) in Mode::ALL {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.name(), name);
        }
        assert!("fastest".parse::<Mode>().is_err());
    }

    proptest! {
        #[test]
        fn flows_go_to_usable_uplinks_if_there_are_any(
            parts in prop::collection::vec(
                (any::<bool>(), prop::option::of(1_u32..1_000), 0_u64..2_000, 0_u64..2_000,
                 any::<bool>(), any::<bool>(), 0_u32..20), 1..15),
            mode in 0_usize..4,
            flows in 0_usize..500,
        ) {
            let candidates: Vec<Candidate> = parts.into_iter()
                .map(|(usable, weight, mbit, load, metered, standby, rank)| Candidate {
                    usable, weight, metered, standby, rank,
                    capacity: Rate::from_bits_per_sec(mbit * 1_000_000),
                    load: Rate::from_bits_per_sec(load * 1_000_000),
                })
                .collect();
            let expected = Expected { flows, size_bytes: 50_000 };
            let shares = shares(Mode::ALL[mode].0, &candidates, expected);
            prop_assert_eq!(shares.len(), candidates.len());
            prop_assert!(shares.iter().sum::<u64>() > 0);
            let any_usable = candidates.iter().any(|c| c.usable);
            for (candidate, share) in candidates.iter().zip(shares) {
                prop_assert!(share == 0 || candidate.usable || !any_usable);
            }
        }
    }
}
