//! Which of the hubs that do not serve a site is its spare.
//!
//! A site waits at one spare at a time. It stays there while that hub answers, and tries the next one when it does not.
//!
//! Invariant: of two hubs the one that does not serve is the spare, whatever is known of it.

use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};

use super::tuning::{DRAINED_LIFETIME, SILENT_LIFETIME, VERSION_RETRY};

/// What a site knows of its hubs as spares.
#[derive(Debug)]
pub(super) struct Spares {
    /// By the number of the hub.
    hubs: Vec<Known>,
    /// Since when the spare has been asked, or tried, without an answer over any path.
    owed: Option<Instant>,
    /// Since when none has answered, whichever was asked; `None` while none is to.
    none_since: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// Until when it counts that sites shall leave this hub.
    drained: Option<Instant>,
    /// When the hub was found silent, while that counts.
    silent: Option<Instant>,
    /// Whether the hub was silent when it was asked last, or when this site left it.
    doubted: bool,
    /// Until when no connection is tried, because the hub speaks no version of this site.
    barred: Option<Instant>,
    /// The next attempt over each path, for the address to try.
    tries: [usize; PATHS_MAX],
}

impl Spares {
    /// Nothing is known of so many hubs.
    pub(super) fn new(hubs: usize) -> Self {
        Self {
            hubs: vec![Known::default(); hubs],
            owed: None,
            none_since: None,
        }
    }

    /// Since when no spare has answered, while one is to.
    pub(super) const fn none_since(&self) -> Option<Instant> {
        self.none_since
    }

    /// Whether a spare is to answer, and none does.
    pub(super) fn note_none(&mut self, now: Instant, none: bool) {
        self.none_since = none.then(|| self.none_since.unwrap_or(now));
    }

    /// The spare while `serving` serves and connections lead to `present`: the first hub that speaks a version of this
    /// site, was not found silent, and that sites shall not leave. A hub that is drained comes before one that was silent.
    /// Of silent ones the one that fell silent first has its turn. Of several that are equal `present` stays.
    pub(super) fn choose(&self, serving: usize, present: Option<usize>) -> Option<usize> {
        let others = (0..self.hubs.len()).filter(|&hub| hub != serving);
        others.min_by_key(|&hub| {
            let known = &self.hubs[hub];
            (
                known.barred.is_some(),
                known.silent,
                known.drained.is_some(),
                Some(hub) != present,
            )
        })
    }

    /// Whether another hub than `spare` may be the spare while `serving` serves.
    pub(super) fn has_other(&self, serving: usize, spare: usize) -> bool {
        let mut hubs = self.hubs.iter().enumerate();
        hubs.any(|(hub, known)| hub != serving && hub != spare && known.barred.is_none())
    }

    /// Whether one of these was not found silent.
    pub(super) fn has_better(&self, serving: usize, spare: usize) -> bool {
        let mut hubs = self.hubs.iter().enumerate();
        hubs.any(|(hub, known)| {
            hub != serving && hub != spare && known.barred.is_none() && known.silent.is_none()
        })
    }

    /// Connections lead to another spare, or to none: nothing is owed.
    pub(super) const fn begin(&mut self) {
        self.owed = None;
    }

    /// The spare is asked, or a connection is tried.
    pub(super) const fn note_asked(&mut self, now: Instant) {
        if self.owed.is_none() {
            self.owed = Some(now);
        }
    }

    /// The spare has answered, and says whether sites shall leave it.
    pub(super) fn note_answer(&mut self, now: Instant, hub: usize, drained: bool) {
        self.owed = None;
        (self.hubs[hub].silent, self.hubs[hub].doubted) = (None, false);
        self.note_drained(now, hub, drained);
    }

    /// A connection to the spare owes nothing.
    pub(super) const fn note_healthy(&mut self) {
        self.owed = None;
    }

    /// Whether the spare has owed an answer for longer than this.
    pub(super) fn is_overdue(&self, now: Instant, patience: Duration) -> bool {
        self.owed.is_some_and(|since| now.since(since) > patience)
    }

    /// Whether the spare has been asked or tried in vain so far.
    pub(super) const fn is_owing(&self) -> bool {
        self.owed.is_some()
    }

    pub(super) fn note_silent(&mut self, now: Instant, hub: usize) {
        self.owed = None;
        (self.hubs[hub].silent, self.hubs[hub].doubted) = (Some(now), true);
    }

    /// This site has left a hub that was silent.
    pub(super) fn note_left(&mut self, hub: usize) {
        self.hubs[hub].doubted = true;
    }

    pub(super) fn is_doubted(&self, hub: usize) -> bool {
        self.hubs[hub].doubted
    }

    pub(super) fn was_silent(&self, hub: usize) -> bool {
        self.hubs[hub].silent.is_some()
    }

    /// All uplinks failed from `since` on: what was silent meanwhile says nothing of a hub.
    pub(super) fn pardon(&mut self, since: Instant) {
        for hub in &mut self.hubs {
            hub.silent.take_if(|at| *at >= since);
        }
    }

    /// This hub serves now.
    pub(super) fn serves(&mut self, hub: usize) {
        self.owed = None;
        (self.hubs[hub].silent, self.hubs[hub].doubted) = (None, false);
    }

    /// A hub says whether sites shall leave it.
    pub(super) fn note_drained(&mut self, now: Instant, hub: usize, drained: bool) {
        self.hubs[hub].drained = drained.then(|| now + DRAINED_LIFETIME);
    }

    pub(super) fn is_drained(&self, hub: usize) -> bool {
        self.hubs[hub].drained.is_some()
    }

    /// The hub speaks no version of this site.
    pub(super) fn bar(&mut self, now: Instant, hub: usize) {
        self.hubs[hub].barred = Some(now + VERSION_RETRY);
    }

    pub(super) fn is_barred(&self, hub: usize) -> bool {
        self.hubs[hub].barred.is_some()
    }

    /// What counts for a while is forgotten after it.
    pub(super) fn forget(&mut self, now: Instant) {
        for hub in &mut self.hubs {
            hub.drained.take_if(|until| *until <= now);
            hub.barred.take_if(|until| *until <= now);
            hub.silent.take_if(|at| *at + SILENT_LIFETIME <= now);
        }
    }

    /// The number of this attempt to reach a hub over a path.
    pub(super) fn next_try(&mut self, hub: usize, path: PathId) -> usize {
        let tries = &mut self.hubs[hub].tries[path.index()];
        let this = *tries;
        *tries = this.wrapping_add(1);
        this
    }

    /// A hub was reached over a path: the next attempt is at the same address.
    pub(super) fn reached(&mut self, hub: usize, path: PathId) {
        let tries = &mut self.hubs[hub].tries[path.index()];
        *tries = tries.wrapping_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1_000);
    const PATIENCE: Duration = Duration::from_secs(4);

    #[test]
    fn the_other_of_two_hubs_is_the_spare_whatever_is_known_of_it() {
        let mut spares = Spares::new(2);
        spares.note_silent(NOW, 1);
        spares.note_drained(NOW, 1, true);
        spares.bar(NOW, 1);
        assert_eq!(spares.choose(0, Some(1)), Some(1));
        assert_eq!(Spares::new(1).choose(0, None), None);
    }

    #[test]
    fn a_hub_that_answers_comes_before_a_drained_one_that_before_silent_ones_and_all_before_one_of_another_version()
     {
        let mut spares = Spares::new(4);
        assert_eq!(spares.choose(0, None), Some(1));
        spares.note_drained(NOW, 1, true);
        assert_eq!(spares.choose(0, Some(1)), Some(2));
        spares.note_silent(NOW, 2);
        spares.note_silent(NOW + PATIENCE, 3);
        assert_eq!(spares.choose(0, Some(2)), Some(1));
        spares.bar(NOW, 1);
        assert_eq!(spares.choose(0, Some(1)), Some(2), "it fell silent first");
        spares.note_silent(NOW + PATIENCE * 2, 2);
        assert_eq!(spares.choose(0, Some(2)), Some(3), "in turn");
        spares.note_answer(NOW, 3, false);
        assert_eq!(spares.choose(0, Some(3)), Some(3));
        // A spare that answers stays when the marks of the others end.
        spares.forget(NOW + PATIENCE * 2 + DRAINED_LIFETIME.max(SILENT_LIFETIME));
        assert!(!spares.was_silent(2) && !spares.is_drained(1) && !spares.is_barred(1));
        assert_eq!(spares.choose(0, Some(3)), Some(3));
        assert_eq!(spares.choose(0, None), Some(1));
    }

    #[test]
    fn silence_in_an_outage_of_all_uplinks_is_forgotten_and_earlier_silence_is_not() {
        let mut spares = Spares::new(3);
        spares.note_silent(NOW, 1);
        spares.note_silent(NOW + PATIENCE, 2);
        spares.pardon(NOW + PATIENCE);
        assert!(spares.was_silent(1) && !spares.was_silent(2));
        assert!(spares.has_other(0, 1));
        spares.bar(NOW, 2);
        assert!(!spares.has_other(0, 1), "it speaks no common version");
    }

    #[test]
    fn a_spare_is_overdue_when_no_path_has_brought_an_answer_for_a_while() {
        let mut spares = Spares::new(3);
        spares.note_asked(NOW);
        let soon = NOW + PATIENCE;
        // Attempts over other paths do not begin the time anew.
        spares.note_asked(soon);
        assert!(!spares.is_overdue(soon, PATIENCE));
        let late = soon + PATIENCE / 8;
        assert!(spares.is_overdue(late, PATIENCE));
        spares.note_answer(late, 1, false);
        assert!(!spares.is_overdue(late, PATIENCE));
        // Each address of a hub has its turn, also if another hub is tried meanwhile.
        let path = PathId(0);
        assert_eq!([1, 2, 1].map(|hub| spares.next_try(hub, path)), [0, 0, 1]);
        spares.reached(1, path);
        assert_eq!(spares.next_try(1, path), 1, "the one that worked");
    }
}
