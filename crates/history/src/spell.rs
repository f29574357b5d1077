//! How long something has been so, and the smallest of the last minutes.

/// The smallest round trip is that of two such periods at most, milliseconds: a round trip that stays high for so long is
/// the usual one. Longer: a queue that stands for long is told for longer, and so is a way that got longer.
const LEAST_MS: u64 = 300_000;

/// Since when something is so, and when it was so last. Short pauses do not end it.
#[derive(Debug, Default)]
pub struct Spell(Option<(u64, u64)>);

impl Spell {
    /// It is so at `now_ms`, or not. It is over when it has not been so for more than `over_ms`.
    pub fn follow(&mut self, now_ms: u64, is_so: bool, over_ms: u64) {
        self.0 = match self.0 {
            Some((since, _)) if is_so => Some((since, now_ms)),
            None if is_so => Some((now_ms, now_ms)),
            Some((_, last)) if last + over_ms < now_ms => None,
            same => same,
        };
    }

    /// Since when, milliseconds.
    pub fn since(&self) -> Option<u64> {
        self.0.map(|(since, _)| since)
    }
}

/// The smallest of this period and of the one before, and when this one began.
#[derive(Debug, Default)]
pub struct Least(Option<(u64, [f64; 2])>);

impl Least {
    pub fn follow(&mut self, now_ms: u64, value: f64) {
        // Nothing was measured yet.
        if value <= 0.0 {
            return;
        }
        self.0 = Some(match self.0 {
            Some((begun, [new, old])) if now_ms < begun + LEAST_MS => {
                (begun, [new.min(value), old])
            }
            Some((_, [new, _])) => (now_ms, [value, new]),
            None => (now_ms, [value, f64::INFINITY]),
        });
    }

    pub fn get(&self) -> Option<f64> {
        self.0.map(|(_, [new, old])| new.min(old))
    }
}
