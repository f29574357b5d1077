//! Three trials of `bench-fleet`, each as short as it can be. The others need processors of their own: `bench-fleet --quick`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use ropewalk_e2e::fleets::kills::{Loss, Reached};
use ropewalk_e2e::fleets::random::RandomSpec;
use ropewalk_e2e::fleets::{self, Cut, Row, kills, partitions, random};
use serde::Serialize;

/// Far more than any of these times is on a quiet machine, milliseconds.
const GAP_MS: f64 = 1_500.0;

fn ready() -> bool {
    fleets::ready()
        .map_err(|error| eprintln!("skipped: {error}"))
        .is_ok()
}

fn assert_sound<F: Serialize>(row: &Row<F>) {
    let text = serde_json::to_string_pretty(row).unwrap();
    eprintln!("{text}");
    assert!(row.broken.is_empty(), "{text}");
}

#[test]
fn connections_from_a_shared_address_outlive_a_hub_that_nothing_reaches() {
    if !ready() {
        return;
    }
    let row = kills::run(Loss::Unreachable, Reached::Shared, 1).unwrap();
    assert_sound(&row);
    assert!(row.figures.silences.gap_ms.max < GAP_MS);
}

#[test]
fn commands_at_all_hubs_while_things_break_give_nothing_twice_and_lose_nothing() {
    if !ready() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let spec = RandomSpec {
        time: Duration::from_secs(10),
        seed: 7,
        sites: 12,
        history: directory.path().join("history"),
    };
    let row = random::run(&spec).unwrap();
    assert_sound(&row);
    let read = random::read(&spec.history).unwrap();
    assert_eq!(read.len(), row.figures.events);
}

#[test]
fn two_hubs_deliver_to_one_site_for_a_moment_at_most_when_one_is_cut_off() {
    if !ready() {
        return;
    }
    for row in partitions::run(&[Cut::SitesAndEtcd]).unwrap() {
        assert_sound(&row);
        assert!(row.figures.both_deliver_ms <= partitions::TWO_PLACES_MS);
        assert!(row.figures.gap_ms < GAP_MS);
    }
}
