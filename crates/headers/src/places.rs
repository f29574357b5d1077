//! Which flow bucket has which place in a bounded table.

use crate::tuning::{FLOWS_MAX, PLACES_TRIED};
use ropewalk_types::{Duration, Instant};

/// Places by flow bucket. Nothing is allocated before the first flow.
///
/// Invariant: `of_bucket[places[i].0] == i + 1` for each place `i`.
#[derive(Debug)]
pub(crate) struct Places<T> {
    /// Place of a bucket plus one; 0 is none.
    of_bucket: Vec<u16>,
    places: Vec<(u16, T)>,
    /// Where the search for a place to free goes on.
    next: usize,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self {
            of_bucket: Vec::new(),
            places: Vec::new(),
            next: 0,
        }
    }
}

impl<T> Places<T> {
    pub fn get_mut(&mut self, bucket: u16) -> Option<&mut T> {
        let place = usize::from(*self.of_bucket.get(usize::from(bucket))?).checked_sub(1)?;
        self.places.get_mut(place).map(|(_, value)| value)
    }

    pub fn get(&self, bucket: u16) -> Option<&T> {
        let place = usize::from(*self.of_bucket.get(usize::from(bucket))?).checked_sub(1)?;
        self.places.get(place).map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        self.places
            .iter_mut()
            .map(|(bucket, value)| (*bucket, value))
    }

    /// Frees the places of buckets that were used last, as `used` says, more than `idle` ago, and
    /// gives their memory back.
    pub fn forget(&mut self, now: Instant, idle: Duration, used: impl Fn(&T) -> Instant) {
        let before = self.places.len();
        self.places
            .retain(|(_, value)| now.since(used(value)) <= idle);
        if self.places.len() == before {
            return;
        }
        self.places.shrink_to_fit();
        self.of_bucket.fill(0);
        for (place, (bucket, _)) in (1..).zip(&self.places) {
            self.of_bucket[usize::from(*bucket)] = place;
        }
        if self.places.is_empty() {
            self.of_bucket = Vec::new();
        }
        self.next = 0;
    }

    /// Gives `value` the place of `bucket`, which has none, if one is free or its owner was used
    /// last, as `used` says, more than `idle` ago.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "FLOWS_MAX is far below 2^16"
    )]
    pub fn insert(
        &mut self,
        now: Instant,
        bucket: u16,
        value: T,
        idle: Duration,
        used: impl Fn(&T) -> Instant,
    ) -> bool {
        if self.of_bucket.len() <= usize::from(bucket) {
            self.of_bucket
                .resize((usize::from(bucket) + 1).next_power_of_two(), 0);
        }
        if self.places.len() < FLOWS_MAX {
            self.places.push((bucket, value));
            self.of_bucket[usize::from(bucket)] = self.places.len() as u16;
            return true;
        }
        for _ in 0..PLACES_TRIED {
            self.next = (self.next + 1) % self.places.len();
            let (owner, old) = &mut self.places[self.next];
            if now.since(used(old)) > idle {
                self.of_bucket[usize::from(*owner)] = 0;
                (*owner, *old) = (bucket, value);
                self.of_bucket[usize::from(bucket)] = self.next as u16 + 1;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_buckets_leave_the_others_where_they_are_found() {
        let at = Instant::from_millis;
        let idle = Duration::from_millis(10);
        let mut places = Places::default();
        for bucket in 0..20u16 {
            let used = at(u64::from(bucket % 2) * 15);
            assert!(places.insert(at(0), bucket * 7, used, idle, |used| *used));
        }
        places.forget(at(20), idle, |used| *used);
        for bucket in 0..20u16 {
            let found = places.get(bucket * 7).copied();
            assert_eq!(found, (bucket % 2 == 1).then_some(at(15)));
        }
        assert!(places.insert(at(21), 0, at(21), idle, |used| *used));
        assert_eq!(places.get(0), Some(&at(21)));
        places.forget(at(99), idle, |used| *used);
        assert!(places.get(7).is_none() && places.of_bucket.capacity() == 0);
    }
}
