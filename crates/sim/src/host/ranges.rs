//! Sets of numbers as few ascending ranges: what a receiver has beyond the first gap.
//!
//! Invariant: ranges are disjoint, not adjacent, and ascend.

/// Most ranges kept; the lowest gives way, as a receiver with little memory would do it.
const RANGES_MAX: usize = 1_024;

/// A set of `u32` as ranges, ends excluded.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// The ranges in ascending order.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `number`; false if it was there.
    pub fn insert(&mut self, number: u32) -> bool {
        // Mostly the last range grows.
        if let Some(last) = self.0.last_mut()
            && last.1 == number
        {
            last.1 += 1;
            return true;
        }
        let at = self.0.partition_point(|&(start, _)| start <= number);
        if at > 0 && self.0[at - 1].1 > number {
            return false;
        }
        let joins_before = at > 0 && self.0[at - 1].1 == number;
        let joins_after = at < self.0.len() && self.0[at].0 == number + 1;
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 += 1,
            (false, true) => self.0[at].0 = number,
            (false, false) => {
                self.0.insert(at, (number, number + 1));
                if self.0.len() > RANGES_MAX {
                    self.0.remove(0);
                }
            }
        }
        true
    }

    /// The range that holds `number`.
    #[must_use]
    pub fn containing(&self, number: u32) -> Option<(u32, u32)> {
        let at = self.0.partition_point(|&(start, _)| start <= number);
        let range = *self.0.get(at.checked_sub(1)?)?;
        (range.1 > number).then_some(range)
    }

    /// Takes the first range out if it begins at `number`; its end.
    pub fn take_from(&mut self, number: u32) -> Option<u32> {
        let &(start, end) = self.0.first()?;
        (start <= number).then(|| {
            self.0.remove(0);
            end.max(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_a_set_holds() {
        let mut random = ropewalk_types::Random::new(1);
        let (mut ranges, mut set) = (Ranges::default(), std::collections::BTreeSet::new());
        for _ in 0..500 {
            let number = u32::try_from(random.next_u64() % 300).unwrap();
            assert_eq!(ranges.insert(number), set.insert(number));
        }
        let flat: Vec<u32> = ranges.0.iter().flat_map(|&(a, b)| a..b).collect();
        assert!(flat.iter().eq(set.iter()));
        assert!(ranges.0.windows(2).all(|w| w[0].1 < w[1].0));
    }
}
