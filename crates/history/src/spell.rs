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
    /// Takes a value; 0 where nothing was measured.
    pub fn follow(&mut self, now_ms: u64, value: f64) {
        let value = if value > 0.0 { value } else { f64::INFINITY };
        self.0 = match self.0 {
            Some((begun, [new, old])) if now_ms < begun + LEAST_MS => {
                Some((begun, [new.min(value), old]))
            }
            Some((_, [new, _])) => Some((now_ms, [value, new])),
            None => value
                .is_finite()
                .then_some((now_ms, [value, f64::INFINITY])),
        };
    }

    pub fn get(&self) -> Option<f64> {
        let least = self.0.map(|(_, [new, old])| new.min(old));
        least.filter(|least| least.is_finite())
    }
}

/// The largest of this period and of the one before.
#[derive(Debug, Default)]
pub struct Most(Least);

impl Most {
    /// Takes a value; `None` where nothing was measured.
    pub fn follow(&mut self, now_ms: u64, value: Option<f64>) {
        // The largest has the smallest inverse.
        let value = value.filter(|value| *value > 0.0);
        self.0.follow(now_ms, value.map_or(0.0, f64::recip));
    }

    pub fn get(&self) -> Option<f64> {
        self.0.get().map(f64::recip)
    }
}
