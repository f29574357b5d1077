//! Chaos: a hub and its sites in virtual time, things that happen to them by chance, and rules that always hold.
//!
//! A seed gives a story. The stage plays it with the real sessions of gateways and hosts with numbered
//! packets and TCP. `docs/chaos.md` says what happens, which rules hold, and where their bounds come from.
//!
//! Invariant: what a seed gives follows from the seed alone.

mod hostile;
mod stage;
mod story;
mod traffic;
mod tuning;

use ropewalk_types::Instant;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use story::{Event, Story, What};

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in the time of the world.
    pub at: Instant,
    /// Name of the rule.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.since(Instant::ZERO).as_secs_f64();
        write!(f, "{}: {} (at {at:.3} s)", self.rule, self.what)
    }
}

/// What a seed gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The first rule that was broken, if any was.
    pub violation: Option<Violation>,
    /// Inner packets that came out.
    pub delivered: u64,
    /// Outer packets that gateways sent.
    pub sent: u64,
    /// Time in the world, seconds.
    pub seconds: u64,
    /// A number for all that came out and when.
    pub digest: u64,
}

/// How a story is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Play {
    /// Tell on standard error what happens.
    pub verbose: bool,
    /// Bytes that this thread has from the allocator, if somebody counts them.
    pub live: Option<fn() -> i64>,
}

/// Plays a story until its end or until a rule is broken.
#[must_use]
pub fn play(story: &Story, how: Play) -> Outcome {
    let played = catch_unwind(AssertUnwindSafe(|| stage::play(story, how)));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome {
            violation: Some(Violation {
                at: Instant::ZERO,
                rule: "panic",
                what: text.unwrap_or_default(),
            }),
            ..Outcome::default()
        }
    })
}

/// Leaves out events of a story that breaks a rule, one by one, as long as the same rule is still broken. The
/// numbers of those that can be left out.
#[must_use]
pub fn shrink(seed: u64, without: &[usize], how: Play) -> Vec<usize> {
    let mut without = without.to_vec();
    let rule = |without: &[usize]| {
        let outcome = play(&Story::new(seed, without), how);
        outcome.violation.map(|violation| violation.rule)
    };
    let broken = rule(&without);
    let numbers: Vec<usize> = Story::new(seed, &without)
        .events
        .iter()
        .map(|e| e.0)
        .collect();
    // The last events first: a story without them is shorter.
    for number in numbers.into_iter().rev() {
        without.push(number);
        if rule(&without) != broken {
            without.pop();
        }
    }
    without.sort_unstable();
    without
}
