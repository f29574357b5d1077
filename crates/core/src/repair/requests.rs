//! The egress's side: which numbers of each path are missing, and how long that is worth waiting for.
//!
//! A NACK may be lost on all its paths: each number is named again in the next ones, or in one of
//! its own after a round trip. The peer answers once.
//!
//! Invariant: a number is named at most [`NAMINGS`] times between two outages; every list is bounded by [`GAP_MAX`] per
//! path.

use super::tuning::{ALLOWANCE_HALF_LIFE, ALLOWANCE_MAX, GAP_MAX, NAMINGS};
use crate::estimate::RESTART_AFTER;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, count_steps};
use ropewalk_wire::{NackRun, Stamp, Timestamp};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct Gap {
    seq: u16,
    /// Send time of the packet before the gap: what is missing was sent after it.
    sent_after: Timestamp,
    /// When it was found, or first asked for.
    found: Instant,
    /// NACKs that named it, and when the last one did.
    named: u8,
    named_at: Instant,
}

#[derive(Debug, Default)]
struct PathGaps {
    /// One past the highest number seen.
    next: Option<u16>,
    newest: Timestamp,
    /// Not asked for yet: the path may have disordered them.
    waiting: VecDeque<Gap>,
    /// Asked for, and to be named again.
    repeated: VecDeque<Gap>,
    /// Asked for often enough.
    asked: VecDeque<Gap>,
    allowance: Duration,
    allowance_at: Instant,
    /// How long a repair symbol may take to make up for a loss, and until when that is worth
    /// anything without another one.
    code_wait: (Duration, Instant),
    /// Numbers in a row that were behind and not missing.
    outdated: u8,
    /// The numbers go on from an unknown one, and do not begin at zero.
    goes_on: bool,
}

/// What this egress misses, on all paths.
#[derive(Debug)]
pub struct Requests {
    paths: [PathGaps; PATHS_MAX],
    /// How long after the NACK an answer may come, a lost repair repaired included.
    patience: Duration,
    /// How long after a NACK another one follows by itself.
    repeat: Duration,
    asked: u64,
    /// When a datagram came last, on any path.
    heard: Instant,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            paths: Default::default(),
            patience: Duration::from_millis(100),
            repeat: Duration::from_millis(33),
            asked: 0,
            heard: Instant::ZERO,
        }
    }
}

impl Requests {
    /// Numbers asked for since the start.
    #[must_use]
    pub const fn asked(&self) -> u64 {
        self.asked
    }

    /// How many numbers are missing, asked for lately or not yet.
    #[must_use]
    pub(crate) fn missing(&self) -> usize {
        let missing = |path: &PathGaps| path.waiting.len() + path.repeated.len() + path.asked.len();
        self.paths.iter().map(missing).sum()
    }

    /// Sets how long a packet that was asked for is worth waiting for, and after how long without
    /// an answer it is asked for again.
    pub fn set_patience(&mut self, patience: Duration, repeat: Duration) {
        (self.patience, self.repeat) = (patience, repeat.min(patience / u32::from(NAMINGS)));
    }

    /// A datagram of `path` came in.
    pub fn on_datagram(&mut self, now: Instant, path: PathId, stamp: Stamp) {
        let Some(path) = self.paths.get_mut(path.index()) else {
            return;
        };
        self.heard = now;
        let seq = stamp.path_seq;
        if path.next.is_none() {
            // Numbers begin at zero: the first packets of a path may be lost like others.
            path.newest = stamp.sent_at;
        }
        let first = if path.goes_on { seq } else { 0 };
        let expected = path.next.unwrap_or(first);
        let ahead = seq.wrapping_sub(expected);
        if ahead == 0 {
            path.next = Some(seq.wrapping_add(1));
        } else if ahead < 0x8000 {
            // In a long outage packets were sent first, and then probes, which nobody misses.
            path.found(now, expected, ahead.min(GAP_MAX));
            path.next = Some(seq.wrapping_add(1));
        } else if path.next.is_some() {
            if path.came_after_all(now, seq) {
                return;
            }
            path.outdated += 1;
            if path.outdated < RESTART_AFTER {
                return;
            }
            path.start(seq);
        } else {
            path.start(seq);
        }
        path.outdated = 0;
        path.newest = stamp.sent_at;
    }

    /// The datagram with this number came, and cannot be read: it is asked for like one that is missing.
    pub fn on_unreadable(&mut self, now: Instant, path: PathId, seq: u16) {
        let path = self.paths.get_mut(path.index());
        if let Some(path) = path.filter(|path| path.next.is_some()) {
            path.found(now, seq, 1);
        }
    }

    /// The peer has started anew, and nothing is missed of what was sent before. The numbers of each path go on:
    /// only a path that is added begins at zero.
    pub fn on_peer_started(&mut self) {
        for path in &mut self.paths {
            *path = PathGaps {
                next: path.next,
                newest: path.newest,
                ..PathGaps::default()
            };
        }
    }

    /// A connection has its path back, over which numbers of the peer went on meanwhile: they begin at any number.
    pub fn on_path_taken_back(&mut self, path: PathId) {
        self.on_path_removed(path);
        if let Some(path) = self.paths.get_mut(path.index()) {
            path.goes_on = true;
        }
    }

    /// All paths are silent, the last one since `silence`. What was given up before is forgotten: the peer does not
    /// have it any more, and its number may belong to another packet when the outage is over.
    pub fn on_down(&mut self, silence: Instant) {
        for path in &mut self.paths {
            for list in [&mut path.repeated, &mut path.asked] {
                list.retain(|gap| gap.found + self.patience >= silence);
            }
        }
    }

    /// An outage of all paths is over, and nobody heard what was asked in it: all that is missing is asked for anew.
    pub fn on_back(&mut self, now: Instant) {
        for path in &mut self.paths {
            let lists =
                [&mut path.asked, &mut path.repeated, &mut path.waiting].map(std::mem::take);
            let gaps = lists.into_iter().flatten().map(|gap| Gap {
                found: now,
                named: 0,
                named_at: now,
                ..gap
            });
            path.waiting = gaps.collect();
            while path.waiting.len() > usize::from(GAP_MAX) {
                path.waiting.pop_front();
            }
        }
    }

    /// Forgets a path: its numbers start anew.
    pub fn on_path_removed(&mut self, path: PathId) {
        if let Some(path) = self.paths.get_mut(path.index()) {
            *path = PathGaps::default();
        }
    }

    /// The datagram with this number was recovered from a repair symbol: nobody need ask for it.
    pub fn on_recovered(&mut self, path: PathId, seq: u16) {
        let Some(path) = self.paths.get_mut(path.index()) else {
            return;
        };
        for list in [&mut path.waiting, &mut path.repeated, &mut path.asked] {
            count_steps(list.len());
            list.retain(|gap| gap.seq != seq);
        }
    }

    /// Sets how long a gap on `path` waits for repair symbols before it is asked for, if it is found
    /// before `until`.
    pub fn set_code_wait(&mut self, path: PathId, wait: Duration, until: Instant) {
        if let Some(path) = self.paths.get_mut(path.index()) {
            path.code_wait = (wait, until);
        }
    }

    /// Until when a packet sent before `sent_at` may still come by repair; `None` when it is not
    /// known to be missing on any path. Adds the missing numbers that were looked at to `steps`.
    #[must_use]
    pub fn worth_waiting(&self, sent_at: Timestamp, steps: &mut usize) -> Option<Instant> {
        let mut before = |gap: &&Gap| {
            *steps += 1;
            sent_at.distance(gap.sent_after) >= 0
        };
        self.paths
            .iter()
            .flat_map(|path| {
                let waiting = path.waiting.iter().rev().find(&mut before);
                let asked = path
                    .asked
                    .iter()
                    .chain(&path.repeated)
                    .rev()
                    .find(&mut before);
                let asked = asked.map(|gap| gap.found + self.patience);
                let waiting = waiting.map(|gap| path.due(gap) + self.patience);
                [asked, waiting]
            })
            .flatten()
            .max()
    }

    /// When [`Requests::poll`] has something to ask for, if anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.paths
            .iter()
            .flat_map(|path| {
                let first = path.waiting.front().map(|gap| path.due(gap));
                let again = path.repeated.front().map(|gap| gap.named_at + self.repeat);
                [first, again]
            })
            .flatten()
            .min()
    }

    /// Appends runs of all numbers that are missing, at most `max`, also of those asked for before.
    /// In an outage nobody hears NACKs, so the first that is heard should name them all.
    pub fn outstanding(&self, max: usize, runs: &mut Vec<NackRun>) {
        for (id, path) in (0..).zip(&self.paths) {
            let lists = path.asked.iter().chain(&path.repeated).chain(&path.waiting);
            for gap in lists {
                if !name(id, gap.seq, max, runs) {
                    return;
                }
            }
        }
    }

    /// Appends the runs of numbers to ask for now, at most `max`.
    pub fn poll(&mut self, now: Instant, max: usize, runs: &mut Vec<NackRun>) {
        for (id, path) in (0..).zip(&mut self.paths) {
            // An outage has begun before it is noticed. Nobody heard what was asked then, and `on_down` decides.
            path.forget_old(now.min(self.heard), self.patience);
            count_steps(path.waiting.len() + path.repeated.len());
            while let Some(&gap) = path.waiting.front().filter(|gap| path.due(gap) <= now) {
                if !name(id, gap.seq, max, runs) {
                    return;
                }
                path.waiting.pop_front();
                self.asked += 1;
                path.was_named(now, Gap { found: now, ..gap });
            }
            // What was asked for a while before goes along, though its time has not come yet.
            for _ in 0..path.repeated.len() {
                // The second time at once: a NACK is lost as easily as a packet.
                let ripe = |gap: &&Gap| match gap.named {
                    1 => gap.named_at < now,
                    _ => gap.named_at + self.repeat / 4 <= now,
                };
                let Some(&gap) = path.repeated.front().filter(ripe) else {
                    break;
                };
                if !name(id, gap.seq, max, runs) {
                    return;
                }
                path.repeated.pop_front();
                path.was_named(now, gap);
            }
        }
    }
}

/// Puts a number into the runs, if there is room.
fn name(path: u8, seq: u16, max: usize, runs: &mut Vec<NackRun>) -> bool {
    let full = runs.len() == max;
    let goes_on = runs.last_mut().filter(|run| {
        run.path == path
            && run.count < u8::MAX
            && run.first.wrapping_add(u16::from(run.count)) == seq
    });
    match goes_on {
        Some(run) => run.count += 1,
        None if full => return false,
        None => runs.push(NackRun {
            path,
            first: seq,
            count: 1,
        }),
    }
    true
}

fn bound(gaps: &mut VecDeque<Gap>) {
    if gaps.len() > usize::from(GAP_MAX) {
        gaps.pop_front();
    }
}

impl PathGaps {
    /// How long a gap found at `found` waits before it is asked for.
    fn wait(&self, found: Instant) -> Duration {
        let (code_wait, until) = self.code_wait;
        if found < until {
            self.allowance.max(code_wait)
        } else {
            self.allowance
        }
    }

    /// When a gap is asked for.
    fn due(&self, gap: &Gap) -> Instant {
        gap.found + self.wait(gap.found)
    }

    fn found(&mut self, now: Instant, first: u16, count: u16) {
        count_steps(usize::from(count));
        for n in 0..count {
            self.waiting.push_back(Gap {
                seq: first.wrapping_add(n),
                sent_after: self.newest,
                found: now,
                named: 0,
                named_at: now,
            });
        }
        while self.waiting.len() > usize::from(GAP_MAX) {
            self.waiting.pop_front();
        }
    }

    /// Notes that a NACK names it, and keeps it for the next ones.
    fn was_named(&mut self, now: Instant, gap: Gap) {
        let named = gap.named + 1;
        let list = if named < NAMINGS {
            &mut self.repeated
        } else {
            &mut self.asked
        };
        list.push_back(Gap {
            named,
            named_at: now,
            ..gap
        });
        bound(list);
    }

    fn start(&mut self, seq: u16) {
        self.waiting.clear();
        self.next = Some(seq.wrapping_add(1));
    }

    /// Whether a number below the highest was missing: the path had only disordered it.
    fn came_after_all(&mut self, now: Instant, seq: u16) -> bool {
        let of = |gap: &Gap| {
            count_steps(1);
            gap.seq == seq
        };
        if let Some(at) = self.waiting.iter().position(of) {
            self.waiting.remove(at);
        } else if let Some(gap) = take(&mut self.repeated, of).or_else(|| take(&mut self.asked, of))
        {
            let lateness = self.wait(gap.found) + now.since(gap.found);
            self.allowance = (lateness + lateness / 4).min(ALLOWANCE_MAX);
            self.allowance_at = now;
        } else {
            return false;
        }
        true
    }

    fn forget_old(&mut self, now: Instant, patience: Duration) {
        for list in [&mut self.repeated, &mut self.asked] {
            let old = |gap: &&mut Gap| now.since(gap.found) > patience;
            while list.front_mut().filter(old).is_some() {
                list.pop_front();
            }
        }
        if !self.allowance.is_zero() && now.since(self.allowance_at) > ALLOWANCE_HALF_LIFE {
            self.allowance_at = now;
            self.allowance /= 2;
        }
    }
}

/// Takes the newest gap out that is as wanted.
fn take(gaps: &mut VecDeque<Gap>, wanted: impl Fn(&Gap) -> bool) -> Option<Gap> {
    let at = gaps.iter().rposition(wanted)?;
    gaps.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(seq: u16, sent_ms: u64) -> Stamp {
        Stamp {
            path_seq: seq,
            sent_at: Timestamp::from_instant(Instant::from_millis(sent_ms)),
        }
    }

    fn ask(requests: &mut Requests, now: Instant) -> Vec<(u8, u16, u8)> {
        let mut runs = Vec::new();
        requests.poll(now, 64, &mut runs);
        runs.iter().map(|r| (r.path, r.first, r.count)).collect()
    }

    #[test]
    fn gaps_are_asked_for_at_once_and_again() {
        let mut requests = Requests::default();
        let mut now = Instant::from_millis(50);
        for seq in [65_530, 65_531, 65_535, 0, 3, 4] {
            requests.on_datagram(now, PathId(2), stamp(seq, 10));
        }
        for seq in [7, 9] {
            requests.on_datagram(now, PathId(0), stamp(seq, 10));
        }
        assert_eq!(requests.poll_timeout(), Some(now));
        let expected = [(0, 0, 7), (0, 8, 1), (2, 65_532, 3), (2, 1, 2)];
        assert_eq!(ask(&mut requests, now), expected);
        assert_eq!(ask(&mut requests, now), []);
        assert_eq!(requests.asked(), 13);
        // Again after a while, for the NACK may be lost.
        for _ in 1..NAMINGS {
            let again = requests.poll_timeout().unwrap();
            assert!(again > now);
            now = again;
            assert_eq!(ask(&mut requests, now), expected);
        }
        assert_eq!((requests.asked(), requests.poll_timeout()), (13, None));
    }

    #[test]
    fn what_was_asked_for_in_an_outage_is_asked_for_again_after_it() {
        let mut requests = Requests::default();
        let at = Instant::from_millis;
        for seq in [0, 2] {
            requests.on_datagram(at(0), PathId(0), stamp(seq, 0));
        }
        for _ in 0..NAMINGS {
            let now = requests.poll_timeout().unwrap();
            assert_eq!(ask(&mut requests, now), [(0, 1, 1)]);
        }
        assert_eq!(requests.poll_timeout(), None);
        requests.on_back(at(30_000));
        requests.on_datagram(at(30_000), PathId(0), stamp(4, 30_000));
        assert_eq!(ask(&mut requests, at(30_000)), [(0, 1, 1), (0, 3, 1)]);
    }

    #[test]
    fn what_was_given_up_before_an_outage_is_not_asked_for_after_it() {
        let at = Instant::from_millis;
        // What was found when the silence had just begun, or a little before, nobody may have heard.
        for (found, again) in [(0, false), (9_900, false), (10_050, true), (10_200, true)] {
            let mut requests = Requests::default();
            requests.set_patience(Duration::from_millis(60), Duration::from_millis(15));
            for seq in [0, 2] {
                requests.on_datagram(at(found), PathId(0), stamp(seq, found));
            }
            while let Some(now) = requests.poll_timeout() {
                assert_eq!(ask(&mut requests, now), [(0, 1, 1)]);
            }
            requests.on_down(at(10_100));
            requests.on_back(at(30_000));
            let asked = ask(&mut requests, at(30_000));
            assert_eq!(asked, [(0, 1, 1)][..usize::from(again)], "{found} ms");
        }
    }

    #[test]
    fn what_was_asked_for_in_silence_is_kept_until_it_is_known_to_be_an_outage() {
        let at = Instant::from_millis;
        let mut requests = Requests::default();
        requests.set_patience(Duration::from_millis(1_000), Duration::from_millis(570));
        for seq in [0, 2] {
            requests.on_datagram(at(0), PathId(0), stamp(seq, 0));
        }
        ask(&mut requests, at(0));
        // The path has just been cut, and this was under way.
        requests.on_datagram(at(500), PathId(0), stamp(4, 220));
        while let Some(now) = requests.poll_timeout() {
            ask(&mut requests, now.max(at(1_100)));
        }
        requests.on_down(at(900));
        requests.on_back(at(5_000));
        let asked = ask(&mut requests, at(5_000));
        assert_eq!(asked, [(0, 1, 1), (0, 3, 1)]);
    }

    #[test]
    fn the_numbers_of_a_path_that_is_taken_back_begin_anywhere() {
        let mut requests = Requests::default();
        for seq in 0..500 {
            requests.on_datagram(Instant::ZERO, PathId(0), stamp(seq, 0));
        }
        requests.on_path_taken_back(PathId(0));
        for seq in [503, 505] {
            requests.on_datagram(Instant::ZERO, PathId(0), stamp(seq, 0));
        }
        assert_eq!(ask(&mut requests, Instant::ZERO), [(0, 504, 1)]);
    }

    #[test]
    fn a_path_that_disorders_is_given_time() {
        let mut requests = Requests::default();
        let at = Instant::from_millis;
        requests.on_datagram(at(0), PathId(0), stamp(0, 0));
        requests.on_datagram(at(1), PathId(0), stamp(2, 0));
        assert_eq!(ask(&mut requests, at(1)).len(), 1);
        requests.on_datagram(at(5), PathId(0), stamp(1, 0)); // 4 ms late, asked for in vain
        requests.on_datagram(at(6), PathId(0), stamp(4, 0));
        assert_eq!(ask(&mut requests, at(6)), []);
        assert_eq!(requests.poll_timeout(), Some(at(11)));
        requests.on_datagram(at(9), PathId(0), stamp(3, 0));
        assert_eq!(ask(&mut requests, at(20)), []);
    }

    #[test]
    fn the_first_packets_of_a_path_are_missed_like_others() {
        let mut requests = Requests::default();
        let at = Instant::from_millis;
        requests.on_datagram(at(0), PathId(0), stamp(3, 0));
        assert_eq!(ask(&mut requests, at(0)), [(0, 0, 3)]);
        requests.on_path_removed(PathId(0));
        requests.on_datagram(at(1), PathId(0), stamp(0, 1));
        assert_eq!(ask(&mut requests, at(1)), []);
        // Many of them, too: all that was sent in an outage.
        requests.on_path_removed(PathId(0));
        requests.on_datagram(at(2), PathId(0), stamp(200, 2));
        assert_eq!(ask(&mut requests, at(2)), [(0, 0, 200)]);
    }

    #[test]
    fn the_numbers_of_a_path_go_on_when_the_peer_has_started_anew() {
        let mut requests = Requests::default();
        let at = Instant::from_millis;
        for seq in [0, 1, 5] {
            requests.on_datagram(at(0), PathId(0), stamp(seq, 0));
        }
        requests.on_peer_started();
        assert_eq!(requests.missing(), 0);
        requests.on_datagram(at(1), PathId(0), stamp(7, 0));
        assert_eq!(ask(&mut requests, at(1)), [(0, 6, 1)]);
    }

    #[test]
    fn the_first_numbers_of_a_long_gap_are_asked_for() {
        let mut requests = Requests::default();
        for seq in [0, 20_000, 20_001, 0, 1] {
            requests.on_datagram(Instant::ZERO, PathId(0), stamp(seq, 0));
        }
        let asked = ask(&mut requests, Instant::ZERO);
        let count: u16 = asked.iter().map(|(_, _, count)| u16::from(*count)).sum();
        assert_eq!((asked[0].1, count), (2, GAP_MAX - 1));
    }

    #[test]
    fn numbers_that_start_anew_are_followed_soon() {
        let mut requests = Requests::default();
        for seq in (0..30_005).chain(0..20).chain([21]) {
            requests.on_datagram(Instant::ZERO, PathId(0), stamp(seq, 0));
        }
        assert_eq!(ask(&mut requests, Instant::ZERO), [(0, 20, 1)]);
    }

    #[test]
    fn only_what_was_sent_before_is_waited_for_and_not_for_ever() {
        let mut requests = Requests::default();
        requests.set_patience(Duration::from_millis(60), Duration::from_millis(20));
        let at = Instant::from_millis;
        let time = |ms| Timestamp::from_instant(at(ms));
        requests.on_datagram(at(30), PathId(0), stamp(0, 10));
        requests.on_datagram(at(31), PathId(0), stamp(2, 12));
        ask(&mut requests, at(31));
        assert_eq!(requests.worth_waiting(time(12), &mut 0), Some(at(91)));
        assert_eq!(requests.worth_waiting(time(9), &mut 0), None);
        requests.on_datagram(at(92), PathId(0), stamp(3, 70));
        ask(&mut requests, at(92));
        assert_eq!(requests.worth_waiting(time(12), &mut 0), None);
    }
}
