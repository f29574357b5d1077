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
            Some((begun, [new, _])) => {
                let is_before = now_ms < begun + 2 * LEAST_MS;
                let before = if is_before { new } else { f64::INFINITY };
                Some((now_ms, [value, before]))
            }
            None => value
                .is_finite()
                .then_some((now_ms, [value, f64::INFINITY])),
        };
    }

    /// The smallest of the last 5 to 10 minutes.
    pub fn get(&self, now_ms: u64) -> Option<f64> {
        let (begun, [new, old]) = self.0?;
        let least = match now_ms.saturating_sub(begun) {
            age if age < LEAST_MS => new.min(old),
            age if age < 2 * LEAST_MS => new,
            _ => f64::INFINITY,
        };
        least.is_finite().then_some(least)
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

    /// The largest of the last 5 to 10 minutes.
    pub fn get(&self, now_ms: u64) -> Option<f64> {
        self.0.get(now_ms).map(f64::recip)
    }
}
