//! Stories of fixed seeds, in which every rule holds: `docs/chaos.md`.

use ropewalk_sim::chaos::{Outcome, Play, Story, play, shrink};
use ropewalk_tally::tally;

#[global_allocator]
static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;

/// Seeds of each run: a run takes less than a minute.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=30;
/// Stories that broke a rule once. A site stands still for longer than idle flows are remembered (209). A path loses
/// its first packets, and many of them (421). A long outage ends in one direction first (432). The questions for a
/// packet are lost in an outage (736). TCP below a path acknowledges nothing for seconds after an outage (1100, 1230).
/// A connection that was given up is still ending when links are counted (1105). Two outages of a site meet, and last
/// longer than TCP segments are held (1635). Seed 5 has a gap of more numbers than are asked for at a time.
const FAILED_ONCE: [u64; 8] = [209, 421, 432, 736, 1100, 1105, 1230, 1635];

fn played(seed: u64) -> Outcome {
    let live = || tally().live;
    let how = Play {
        live: Some(live),
        ..Play::default()
    };
    play(&Story::new(seed, &[]), how)
}

#[test]
fn every_rule_holds_whatever_happens() {
    let seeds: Vec<u64> = SEEDS.chain(FAILED_ONCE).collect();
    let (mut delivered, mut failed) = (0, Vec::new());
    std::thread::scope(|scope| {
        // Each thread has an allocator's counts of its own.
        let halves = seeds.chunks(seeds.len().div_ceil(2));
        let threads: Vec<_> = halves
            .map(|half| {
                scope.spawn(move || half.iter().map(|&s| (s, played(s))).collect::<Vec<_>>())
            })
            .collect();
        for (seed, outcome) in threads
            .into_iter()
            .flat_map(|t| t.join().expect("no panic"))
        {
            delivered += outcome.delivered;
            failed.extend(outcome.violation.map(|broken| {
                let without = shrink(seed, &[], Play::default());
                let without: Vec<String> = without.iter().map(ToString::to_string).collect();
                let without = without.join(",");
                format!("{broken}\n  ropewalk-sim chaos --seed {seed} --without={without}")
            }));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(delivered > 500_000, "{delivered} packets came");
}

#[test]
fn some_of_the_stories_have_little_memory_and_large_packets() {
    let stories = SEEDS.map(|seed| Story::new(seed, &[]));
    let (scarce, usual): (Vec<_>, Vec<_>) = stories.partition(|story| story.hub_memory < 1_000_000);
    assert!(scarce.len() >= 3 && usual.len() > scarce.len());
    let large = |story: &Story| story.numbered_bytes > 1_000;
    assert!(scarce.iter().all(large) && !usual.iter().any(large));
    assert!(
        scarce
            .iter()
            .any(|story| story.gentle && story.sites.len() > 3)
    );
}

#[test]
fn some_of_the_stories_have_a_second_hub_and_those_that_failed_once_are_as_they_were() {
    let stories: Vec<Story> = SEEDS.map(|seed| Story::new(seed, &[])).collect();
    let (spare, alone): (Vec<_>, Vec<_>) = stories.into_iter().partition(|story| story.spare);
    assert!(spare.len() >= 5 && alone.len() > spare.len());
    assert!(spare.iter().any(|story| story.told && story.gentle));
    assert!(spare.iter().any(|story| !story.told));
    assert!(!alone.iter().any(|story| story.told));
    let failed = FAILED_ONCE.map(|seed| Story::new(seed, &[]).spare);
    assert_eq!(failed, [false; FAILED_ONCE.len()]);
}

#[test]
fn a_seed_gives_the_same_story_and_the_same_outcome_again() {
    // The first one has two hubs.
    for seed in [3, 4] {
        let (first, second) = (played(seed), played(seed));
        assert_eq!(first, second);
        assert_ne!(first.digest, played(seed + 10).digest);
    }
}

#[test]
fn what_is_left_out_of_a_story_changes_nothing_else_in_it() {
    let (whole, part) = (Story::new(5, &[]), Story::new(5, &[0, 2]));
    let text = |story: &Story| {
        let events = story.events.iter();
        events
            .map(|(number, event)| (*number, event.to_string()))
            .collect::<Vec<_>>()
    };
    let kept: Vec<_> = text(&whole)
        .into_iter()
        .filter(|(n, _)| ![0, 2].contains(n))
        .collect();
    assert_eq!(text(&part), kept);
}
