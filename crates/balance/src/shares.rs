//! Turns what is known of the uplinks into the table of places of each group of flows.

use ropewalk_core::balance::{self, Candidate, Expected, Mode, SLOTS, smooth};

use super::gauge::Reading;
use super::members::{FAMILIES, Member};
use super::ruleset::{self, Group};
use ropewalk_config::BalanceConfig;

/// New flows that are expected until the shares are computed again: those of opening one page.
/// More: shares even out over longer, later to react.
const FLOWS_EXPECTED: usize = 8;
/// Places that may be wrong before the table is replaced: 1 % of a share. More: fewer changes of
/// the firewall, shares are less exact.
const TOLERANCE: usize = 3;

/// The groups of all flows and of each rule. `usable` and `readings` are in the order of `members`.
#[must_use]
pub fn groups(
    config: &BalanceConfig,
    members: &[Member],
    usable: &[[bool; 2]],
    readings: &[Reading],
) -> Vec<Group> {
    let rules = std::iter::once(None).chain(config.rules.iter().map(Some));
    let group = |rule: Option<&ropewalk_config::balance::Rule>| {
        let mode = rule.and_then(|rule| rule.mode).unwrap_or(config.mode);
        let strict = rule.is_some();
        let places = FAMILIES.map(|family| {
            let some: Vec<usize> = (0..members.len())
                .filter(|&index| members[index].way(family).is_some() && members[index].present)
                .filter(|&index| ruleset::allowed(rule, &members[index]))
                // The last resort of all flows, unproven ways, is none for those of a rule.
                .filter(|&index| !strict || usable[index][family as usize])
                .collect();
            let candidates: Vec<Candidate> = some
                .iter()
                .map(|&index| {
                    let usable = usable[index][family as usize];
                    candidate(&members[index], usable, &readings[index])
                })
                .collect();
            places(mode, &candidates, config.flow_bytes)
                .into_iter()
                .map(|at| members[some[at]].number)
                .collect()
        });
        Group { places }
    };
    rules.map(group).collect()
}

fn places(mode: Mode, candidates: &[Candidate], size_bytes: u64) -> Vec<usize> {
    let expected = Expected {
        flows: FLOWS_EXPECTED,
        size_bytes,
    };
    smooth::sequence(&balance::shares(mode, candidates, expected), SLOTS)
}

fn candidate(member: &Member, usable: bool, reading: &Reading) -> Candidate {
    Candidate {
        usable,
        weight: member.weight.map(u32::from),
        capacity: reading.capacity,
        load: reading.load,
        metered: member.metered,
        standby: member.standby,
        rank: member.rank,
    }
}

/// Whether `new` differs from `old` by more than noise of the measurement.
#[must_use]
pub fn differ(old: &[Group], new: &[Group]) -> bool {
    if old.len() != new.len() {
        return true;
    }
    old.iter().zip(new).any(|(old, new)| {
        (0..FAMILIES.len()).any(|family| {
            let counts = |group: &Group| {
                let mut counts = [0_usize; balance::UPLINKS_MAX + 1];
                for &number in &group.places[family] {
                    counts[usize::from(number)] += 1;
                }
                counts
            };
            let pairs = counts(old).into_iter().zip(counts(new));
            pairs
                .into_iter()
                .any(|(a, b)| (a == 0) != (b == 0) || a.abs_diff(b) > TOLERANCE)
        })
    })
}

/// Share of an uplink in new flows of a family, `0..=1`.
#[must_use]
pub fn share(group: &Group, family: super::members::Family, number: u8) -> f64 {
    let places = &group.places[family as usize];
    let own = places.iter().filter(|&&place| place == number).count();
    own as f64 / places.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(counts: &[(u8, usize)]) -> Group {
        let places = counts
            .iter()
            .flat_map(|&(n, count)| vec![n; count])
            .collect();
        Group {
            places: [places, Vec::new()],
        }
    }

    #[test]
    fn only_real_changes_replace_the_table() {
        let old = [group(&[(1, 128), (2, 128)])];
        assert!(!differ(&old, &[group(&[(1, 126), (2, 130)])]));
        assert!(differ(&old, &[group(&[(1, 120), (2, 136)])]));
        assert!(differ(&old, &[group(&[(1, 127), (2, 128), (3, 1)])]));
        assert!(differ(&old, &[]));
        let family = super::super::members::Family::V4;
        assert!((share(&old[0], family, 2) - 0.5).abs() < 1e-9);
    }
}
