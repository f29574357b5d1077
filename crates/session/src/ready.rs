//! The ready set: the sites that a hub looks at in a turn. These are the sites to which something
//! happened, and those whose timers are due. A turn costs what happens in it, not what the hub
//! could serve, nor how many sites wait for their turn to send.
//!
//! Invariant: a site that is touched is in each of the two lists exactly once until it is taken off. The list
//! `inbound` is empty after every turn; `outbound` keeps the sites for which a turn had no room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_types::{Instant, count_steps};

/// Sites by their index at the hub.
#[derive(Debug, Default)]
pub(crate) struct ReadySet {
    /// Sites that may have inner packets for this machine.
    inbound: VecDeque<usize>,
    /// Sites that may have something to send, the longest untreated first.
    outbound: VecDeque<usize>,
    entries: Vec<Entry>,
    /// The timers of all entries.
    due: BTreeSet<(Instant, usize)>,
    /// How many sites have each size.
    mtus: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    inbound: bool,
    outbound: bool,
    /// When its timers want to be looked at.
    due: Option<Instant>,
    /// Largest inner packet its paths take whole, while one is up.
    mtu: Option<usize>,
}

impl ReadySet {
    fn entry(&mut self, site: usize) -> &mut Entry {
        if site >= self.entries.len() {
            self.entries.resize(site + 1, Entry::default());
        }
        &mut self.entries[site]
    }

    /// Something happened to a site.
    pub fn touch(&mut self, site: usize) {
        if !std::mem::replace(&mut self.entry(site).inbound, true) {
            self.inbound.push_back(site);
        }
        self.touch_outbound(site);
    }

    /// A site may have more to send, and nothing else happened to it.
    pub fn touch_outbound(&mut self, site: usize) {
        if !std::mem::replace(&mut self.entry(site).outbound, true) {
            self.outbound.push_back(site);
        }
    }

    /// Touches one site whose timers are due, and takes the timers off the list until [`Self::set_due`].
    pub fn next_due(&mut self, now: Instant) -> Option<usize> {
        let &(_, site) = self.due.first().filter(|(at, _)| *at <= now)?;
        count_steps(1);
        self.set_due(site, None);
        self.touch(site);
        Some(site)
    }

    /// The sites that may have inner packets since [`Self::next_inbound`] was last empty.
    pub fn inbound(&self) -> impl Iterator<Item = usize> {
        self.inbound.iter().copied().inspect(|_| count_steps(1))
    }

    /// The first of them.
    pub fn first_inbound(&self) -> Option<usize> {
        self.inbound.front().copied()
    }

    /// The first of them has no more.
    pub fn end_inbound(&mut self) {
        count_steps(1);
        if let Some(site) = self.inbound.pop_front() {
            self.entries[site].inbound = false;
        }
    }

    /// Takes one site off the list that may have something to send, to be looked at and settled.
    pub fn next_outbound(&mut self) -> Option<usize> {
        count_steps(1);
        let site = self.outbound.pop_front()?;
        self.entries[site].outbound = false;
        Some(site)
    }

    /// Whether any site may have something to send.
    #[must_use]
    pub fn has_outbound(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// When the timers of a site want to be looked at.
    pub fn set_due(&mut self, site: usize, due: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(site) else {
            return;
        };
        let old = std::mem::replace(&mut entry.due, due);
        if old != due {
            if let Some(old) = old {
                self.due.remove(&(old, site));
            }
            self.due.extend(due.map(|at| (at, site)));
        }
    }

    /// A site has been looked at: what it wants next.
    pub fn settle(&mut self, site: usize, due: Option<Instant>, mtu: Option<usize>) {
        self.set_due(site, due);
        let Some(entry) = self.entries.get_mut(site) else {
            return;
        };
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
        assert_eq!(ready.inbound().collect::<Vec<_>>(), [3]);
        ready.end_inbound();
        assert_eq!(ready.next_outbound(), Some(3));
        ready.settle(3, Some(Instant::from_millis(5)), Some(1_400));
        ready.touch(1);
        assert_eq!(ready.next_outbound(), Some(1));
        ready.settle(1, None, Some(1_280));
        assert_eq!(ready.next_outbound(), None);
        assert_eq!(ready.first_inbound(), Some(1));
        ready.end_inbound();
        assert!(!ready.has_outbound());
        assert_eq!(ready.due(), Some(Instant::from_millis(5)));
        assert_eq!(ready.mtu(), Some(1_400));
        assert_eq!(ready.next_due(Instant::from_millis(4)), None);
        assert_eq!(ready.next_due(Instant::from_millis(5)), Some(3));
        assert_eq!(ready.next_due(Instant::from_millis(5)), None, "only once");
        ready.touch(3);
        assert_eq!(ready.next_outbound(), Some(3));
        assert_eq!(ready.next_outbound(), None);
        ready.settle(3, None, None);
        assert_eq!((ready.due(), ready.mtu()), (None, Some(1_280)));
    }

    #[test]
    fn a_site_that_has_more_to_send_is_not_asked_for_inner_packets() {
        let mut ready = ReadySet::default();
        ready.touch_outbound(2);
        assert!(ready.has_outbound());
        assert_eq!(ready.first_inbound(), None);
        ready.touch(2);
        assert_eq!(ready.first_inbound(), Some(2));
        assert_eq!(ready.next_outbound(), Some(2));
        assert_eq!(ready.next_outbound(), None);
    }
}
