//! The ready set: the sites that a hub looks at in a turn. These are the sites to which something
//! happened, and those whose timers are due. A turn costs what happens in it, not what the hub
//! could serve.
//!
//! Invariant: a site that is touched is in the list exactly once until it is settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_types::Instant;

/// Sites by their index at the hub.
#[derive(Debug, Default)]
pub(crate) struct ReadySet {
    /// The longest untreated first.
    touched: VecDeque<usize>,
    entries: Vec<Entry>,
    /// The timers of all entries.
    due: BTreeSet<(Instant, usize)>,
    /// How many sites have each size.
    mtus: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    touched: bool,
    /// When its timers want to be looked at.
    due: Option<Instant>,
    /// Largest inner packet its paths take whole, while one is up.
    mtu: Option<usize>,
}

impl ReadySet {
    /// Something happened to a site.
    pub fn touch(&mut self, site: usize) {
        if site >= self.entries.len() {
            self.entries.resize(site + 1, Entry::default());
        }
        let entry = &mut self.entries[site];
        if !entry.touched {
            entry.touched = true;
            self.touched.push_back(site);
        }
    }

    /// Touches every site whose timers are due.
    pub fn touch_due(&mut self, now: Instant) {
        for &(_, site) in self.due.range(..=(now, usize::MAX)) {
            let entry = &mut self.entries[site];
            if !entry.touched {
                entry.touched = true;
                self.touched.push_back(site);
            }
        }
    }

    /// The sites whose timers are due.
    pub fn are_due(&self, now: Instant) -> impl Iterator<Item = usize> {
        let due = self.due.range(..=(now, usize::MAX));
        due.map(|&(_, site)| site)
    }

    /// The sites touched since they were last settled.
    #[must_use]
    pub const fn touched(&self) -> &VecDeque<usize> {
        &self.touched
    }

    /// Takes one touched site off the list, to be looked at and settled.
    pub fn next(&mut self) -> Option<usize> {
        let site = self.touched.pop_front()?;
        self.entries[site].touched = false;
        Some(site)
    }

    /// A site has been looked at: what it wants next.
    pub fn settle(&mut self, site: usize, due: Option<Instant>, mtu: Option<usize>) {
        let Some(entry) = self.entries.get_mut(site) else {
            return;
        };
        if entry.due != due {
            if let Some(old) = entry.due {
                self.due.remove(&(old, site));
            }
            self.due.extend(due.map(|at| (at, site)));
            entry.due = due;
        }
        if entry.mtu != mtu {
            if let Some(old) = entry.mtu
                && let Some(count) = self.mtus.get_mut(&old)
            {
                *count -= 1;
                if *count == 0 {
                    self.mtus.remove(&old);
                }
            }
            if let Some(new) = mtu {
                *self.mtus.entry(new).or_default() += 1;
            }
            entry.mtu = mtu;
        }
    }

    /// When the first site wants its timers looked at.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// The largest inner packet that any site takes whole.
    #[must_use]
    pub fn mtu(&self) -> Option<usize> {
        self.mtus.last_key_value().map(|(&mtu, _)| mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_touched_and_due_sites_are_looked_at_and_each_once() {
        let mut ready = ReadySet::default();
        ready.touch(3);
        ready.touch(3);
        assert_eq!(ready.touched(), &[3]);
        assert_eq!(ready.next(), Some(3));
        ready.settle(3, Some(Instant::from_millis(5)), Some(1_400));
        ready.touch(1);
        assert_eq!(ready.next(), Some(1));
        ready.settle(1, None, Some(1_280));
        assert_eq!(ready.next(), None);
        assert_eq!(ready.due(), Some(Instant::from_millis(5)));
        assert_eq!(ready.mtu(), Some(1_400));
        ready.touch_due(Instant::from_millis(4));
        assert!(ready.touched().is_empty());
        ready.touch_due(Instant::from_millis(5));
        ready.touch(3);
        assert_eq!((ready.next(), ready.next()), (Some(3), None));
        ready.settle(3, None, None);
        assert_eq!((ready.due(), ready.mtu()), (None, Some(1_280)));
    }
}
