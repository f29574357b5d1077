//! The ingress's side: what a path carried lately, by number.

use super::tuning::{
    AGE_MAX, AGE_MIN, AGE_ROUND_TRIPS, AGE_UNACKNOWLEDGED_MAX, CLEAN_RATE_MAX, PACKETS_MAX,
    WANTED_FOR,
};
use bytes::Bytes;
use ropewalk_types::{Duration, Instant, PathId, Rate};
use std::collections::VecDeque;

/// How long a datagram that may be acknowledged is remembered, on a path with this round-trip time.
#[must_use]
pub(crate) fn age_max(round_trip: Duration) -> Duration {
    (round_trip * AGE_ROUND_TRIPS).clamp(AGE_MIN, AGE_MAX)
}

/// One datagram that may be sent again.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The datagram, its header with number and time of the first sending.
    pub datagram: Bytes,
    /// Differentiated services codepoint.
    pub dscp: u8,
    /// Whether it is a TCP segment or a piece of one. Only the first piece has the headers that say so.
    pub tcp: bool,
    /// When it was sent.
    pub at: Instant,
    /// How often it had been lost before.
    pub losses: u8,
    /// The next copy of it: the path and its number there. While that one is not missed, either,
    /// nothing needs to be sent again.
    pub copy: Option<(PathId, u16)>,
}

/// What one path carried lately. Invariant: ingress `i` has the number `first + i`.
#[derive(Debug, Default)]
pub struct SentLog {
    first: u16,
    packets: VecDeque<Option<Sent>>,
    wanted_until: Instant,
    /// Round-trip time of the path.
    round_trip: Duration,
    /// What was sent since then is not acknowledged, if anything is.
    unacknowledged: Option<Instant>,
}

impl SentLog {
    /// Whether the path needed a repair lately.
    #[must_use]
    pub fn wanted(&self, now: Instant) -> bool {
        now < self.wanted_until
    }

    /// Whether datagrams of this path, now carrying `rate`, are worth remembering.
    #[must_use]
    pub fn keeps(&self, now: Instant, rate: Rate) -> bool {
        rate < CLEAN_RATE_MAX || self.wanted(now)
    }

    /// The peer asked for a repair on this path.
    pub fn want(&mut self, now: Instant) {
        self.wanted_until = now + WANTED_FOR;
    }

    /// How long what was sent is remembered depends on the path's round-trip time, which is this now.
    pub const fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// What was sent since then is not acknowledged, and is remembered for as long as that takes, within bounds: TCP
    /// may wait for seconds after an outage before it sends anything again. `None` says that all is acknowledged.
    pub const fn set_unacknowledged(&mut self, since: Option<Instant>) {
        self.unacknowledged = since;
    }

    /// Remembers what is sent now with the number `seq`; numbers must not go back.
    pub fn keep(&mut self, seq: u16, sent: Sent) {
        self.forget_old(sent.at);
        let next = self
            .first
            .wrapping_add(u16::try_from(self.len()).unwrap_or(u16::MAX));
        let skipped = usize::from(seq.wrapping_sub(next));
        if self.packets.is_empty() || skipped >= PACKETS_MAX {
            self.packets.clear();
            self.first = seq;
        } else {
            for _ in 0..skipped {
                self.packets.push_back(None);
            }
        }
        self.packets.push_back(Some(sent));
        while self.packets.len() > PACKETS_MAX {
            self.forget_first();
        }
    }

    /// Those of `count` numbers from `first` on that there is a place for. A question may name many more
    /// than were sent.
    pub fn among(&self, first: u16, count: u16) -> impl Iterator<Item = u16> + use<> {
        let places = u16::try_from(self.packets.len()).unwrap_or(u16::MAX);
        let ahead = first.wrapping_sub(self.first);
        let before = self.first.wrapping_sub(first);
        let (from, count) = if ahead < places {
            (first, count.min(places - ahead))
        } else if before < count {
            (self.first, (count - before).min(places))
        } else {
            (first, 0)
        };
        (0..count).map(move |n| from.wrapping_add(n))
    }

    /// Whether the datagram with the number `seq` is remembered: it has not been asked for.
    #[must_use]
    pub fn has(&self, seq: u16) -> bool {
        let index = usize::from(seq.wrapping_sub(self.first));
        self.packets.get(index).is_some_and(Option::is_some)
    }

    /// Notes where the datagram with the number `seq` has a copy.
    pub fn set_copy(&mut self, seq: u16, copy: Option<(PathId, u16)>) {
        let index = usize::from(seq.wrapping_sub(self.first));
        if let Some(Some(sent)) = self.packets.get_mut(index) {
            sent.copy = copy;
        }
    }

    /// Where the datagram with the number `seq` has a copy, if both are known.
    #[must_use]
    pub fn copy(&self, seq: u16) -> Option<(PathId, u16)> {
        let index = usize::from(seq.wrapping_sub(self.first));
        self.packets.get(index)?.as_ref()?.copy
    }

    /// Takes out the datagram with the number `seq`, if it is still there.
    pub fn take(&mut self, seq: u16) -> Option<Sent> {
        let index = usize::from(seq.wrapping_sub(self.first));
        self.packets.get_mut(index)?.take()
    }

    /// Takes out everything sent at `since` or later, oldest first.
    pub fn take_since(&mut self, since: Instant) -> impl Iterator<Item = Sent> {
        self.packets
            .iter_mut()
            .filter_map(move |sent| sent.take_if(|sent| sent.at >= since))
    }

    /// Takes out everything with a number after `newest` that was sent before `before`, oldest
    /// first.
    pub fn take_after(&mut self, newest: u16, before: Instant) -> impl Iterator<Item = Sent> {
        let past = newest.wrapping_add(1).wrapping_sub(self.first);
        // A number from before the log: all of it came later.
        let past = if past >= 0x8000 { 0 } else { usize::from(past) };
        self.packets
            .iter_mut()
            .skip(past)
            .filter_map(move |sent| sent.take_if(|sent| sent.at < before))
    }

    /// Lets `pause` not count for the age of what is remembered: in an outage nobody could ask.
    pub fn skip(&mut self, pause: Duration) {
        for sent in self.packets.iter_mut().flatten() {
            sent.at += pause;
        }
    }

    /// Forgets what is too old.
    pub fn forget_old(&mut self, now: Instant) {
        let age = age_max(self.round_trip);
        let unacknowledged = self.unacknowledged.unwrap_or(Instant::FAR_FUTURE);
        let keeps = |sent: &Sent| {
            let most = if sent.at >= unacknowledged {
                AGE_UNACKNOWLEDGED_MAX
            } else {
                age
            };
            now.since(sent.at) <= most
        };
        while let Some(first) = self.packets.front() {
            if first.as_ref().is_some_and(keeps) {
                break;
            }
            self.forget_first();
        }
    }

    /// Forgets what is too old, and gives the memory back if nothing is left.
    pub fn give_back(&mut self, now: Instant) {
        self.forget_old(now);
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
    }

    fn forget_first(&mut self) {
        self.packets.pop_front();
        self.first = self.first.wrapping_add(1);
    }

    /// Numbers there is a place for.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(at: Instant, n: u16) -> Sent {
        Sent {
            datagram: datagram(n),
            dscp: 7,
            tcp: true,
            at,
            losses: 0,
            copy: None,
        }
    }

    fn datagram(n: u16) -> Bytes {
        Bytes::copy_from_slice(&n.to_be_bytes())
    }

    #[test]
    fn a_path_with_a_long_round_trip_remembers_for_longer() {
        let at = Instant::from_millis;
        for (round_trip, until) in [(0, 1_000), (40, 1_000), (300, 2_400), (600, 3_000)] {
            let mut log = SentLog::default();
            log.set_round_trip(Duration::from_millis(round_trip));
            log.keep(5, sent(at(100), 5));
            log.forget_old(at(100 + until));
            assert!(log.has(5), "{round_trip} ms");
            log.forget_old(at(101 + until));
            assert!(!log.has(5), "{round_trip} ms");
        }
    }

    #[test]
    fn what_is_not_acknowledged_is_remembered_for_longer() {
        let at = Instant::from_millis;
        let mut log = SentLog::default();
        log.keep(5, sent(at(100), 5));
        log.keep(6, sent(at(200), 6));
        log.set_unacknowledged(Some(at(200)));
        log.keep(7, sent(at(9_000), 7));
        assert_eq!([5, 6, 7].map(|seq| log.has(seq)), [false, true, true]);
        log.set_unacknowledged(None);
        log.forget_old(at(9_000));
        assert_eq!([5, 6, 7].map(|seq| log.has(seq)), [false, false, true]);
    }

    #[test]
    fn what_is_never_acknowledged_is_bounded_in_number_and_time() {
        let mut log = SentLog::default();
        log.set_unacknowledged(Some(Instant::ZERO));
        for n in 0..9_000u16 {
            log.keep(n, sent(Instant::from_millis(u64::from(n)), n));
        }
        assert_eq!(log.len(), PACKETS_MAX);
        // Packet 8,999 is 0.5 s short of the limit then, and packet 7,000 is 1.5 s beyond it.
        log.give_back(Instant::from_millis(8_499) + AGE_UNACKNOWLEDGED_MAX);
        assert!(!log.has(7_000) && log.has(8_999));
        log.give_back(Instant::from_millis(9_000) + AGE_UNACKNOWLEDGED_MAX);
        assert_eq!((log.len(), log.packets.capacity()), (0, 0));
    }

    #[test]
    fn a_question_is_looked_up_only_where_there_is_something() {
        let mut log = SentLog::default();
        for n in [65_533u16, 65_534, 65_535, 0, 1, 2] {
            log.keep(n, sent(Instant::ZERO, n));
        }
        for first in [0u16, 1, 2, 3, 900, 40_000, 65_400, 65_532, 65_533, 65_535] {
            for count in [1u16, 2, 3, 10, 255] {
                let all = (0..count).map(|n| first.wrapping_add(n));
                let expected: Vec<u16> = all.filter(|n| log.has(*n)).collect();
                let among: Vec<u16> = log.among(first, count).collect();
                assert_eq!(among, expected, "{count} from {first}");
            }
        }
        assert_eq!(SentLog::default().among(0, 255).count(), 0);
    }

    #[test]
    fn a_datagram_is_found_by_its_number_once_across_the_wrap_and_skipped_numbers() {
        let mut log = SentLog::default();
        for n in [65_533u16, 65_534, 65_535, 2, 3] {
            log.keep(n, sent(Instant::ZERO, n));
        }
        assert_eq!(log.take(2).unwrap().datagram, datagram(2));
        assert!(log.take(2).is_none(), "only once");
        assert!(log.take(0).is_none(), "a number that was not kept");
        assert!(log.take(65_532).is_none() && log.take(4).is_none());
        assert_eq!(log.take(65_533).unwrap().dscp, 7);
    }

    #[test]
    fn old_and_too_many_datagrams_are_forgotten() {
        let mut log = SentLog::default();
        for n in 0..=9_000u16 {
            log.keep(n, sent(Instant::from_millis(u64::from(n) / 20), n));
        }
        assert!(log.packets.len() <= PACKETS_MAX);
        assert!(log.take(100).is_none() && log.take(8_999).is_some());
        log.forget_old(Instant::from_millis(5_000));
        assert!(log.packets.is_empty());
    }

    #[test]
    fn what_was_sent_since_an_instant_is_taken_in_order() {
        let mut log = SentLog::default();
        for n in 0..10u16 {
            log.keep(n, sent(Instant::from_millis(u64::from(n)), n));
        }
        log.take(7);
        let since: Vec<Bytes> = log
            .take_since(Instant::from_millis(6))
            .map(|sent| sent.datagram)
            .collect();
        assert_eq!(since, [datagram(6), datagram(8), datagram(9)]);
        assert!(log.take(6).is_none() && log.take(5).is_some());
    }

    #[test]
    fn what_was_sent_after_a_number_and_before_an_instant_is_taken_in_order() {
        let mut log = SentLog::default();
        for n in 0..10u16 {
            log.keep(
                n.wrapping_sub(5),
                sent(Instant::from_millis(u64::from(n)), n),
            );
        }
        // The number 0xffff is the fifth; the last two were sent too lately.
        let taken = log.take_after(0xffff, Instant::from_millis(8));
        let taken: Vec<Bytes> = taken.map(|sent| sent.datagram).collect();
        assert_eq!(taken, [datagram(5), datagram(6), datagram(7)]);
        let all = log.take_after(0x9000, Instant::from_millis(3));
        assert_eq!(all.count(), 3, "a number from long ago");
    }

    #[test]
    fn a_fast_clean_path_keeps_nothing_until_it_needs_to() {
        let mut log = SentLog::default();
        let now = Instant::from_millis(5);
        let fast = Rate::from_bits_per_sec(1_000_000_000);
        assert!(!log.keeps(now, fast) && log.keeps(now, Rate::ZERO));
        log.want(now);
        assert!(log.keeps(now, fast));
        assert!(!log.keeps(now + Duration::from_secs(61), fast));
    }
}
