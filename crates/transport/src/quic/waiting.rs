//! Handshakes that wait to be begun, so that strangers do not keep a busy machine from its connections.
//!
//! A first packet costs its sender almost nothing and this side a handshake. So each handshake takes an interval. The
//! interval shrinks with the part of the work that is done for sites: right after a restart there is none to protect. And
//! time in which the machine rested counts many times: a machine that has time begins as many handshakes as it
//! can, and a busy one only a few. Which comes first is fair: that of a socket with the fewest others waiting when
//! it came, then that of a source with the fewest, then that of a network with the fewest, then the oldest. A flood
//! from one socket waits behind all others, also behind those that share its address; one from many sockets of an
//! address waits behind other addresses, and one from many addresses of a network behind other networks. Nothing here
//! helps against a flood from many networks, whose addresses were proved.
//!
//! Invariants: the counts are those of `waiting`. At most [`WAITING_MAX`] wait, and `by_age` has at most twice as many.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use ropewalk_types::{Duration, Instant};
use rustc_hash::FxHashMap;

use super::handshakes::{LEVELS, Source};
use super::tuning::{
    BUSY_HANDSHAKE_INTERVAL, FIRST_PACKET_WORK, HANDSHAKE_INTERVAL_MIN, HANDSHAKES_IN_A_ROW,
    REST_MIN, REST_WORTH, WAITING_MAX, WAITING_OF_SOCKET_MAX, WAITING_TIME_MAX, WORK_REMEMBERED,
};

/// How many of the same socket, and of the same networks, waited before, and the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    of_socket: u32,
    /// The smallest network first, which is the source.
    of_networks: [u32; LEVELS],
    number: u64,
}

#[derive(Debug)]
struct One<T> {
    from: SocketAddr,
    what: T,
}

/// Handshakes that wait. `T` is what is needed to begin one.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    waiting: BTreeMap<Rank, One<T>>,
    by_age: VecDeque<(Instant, Rank)>,
    of_socket: FxHashMap<SocketAddr, u32>,
    /// By the place of its size in [`Source::networks`], and the network.
    of_network: FxHashMap<(usize, IpAddr), u32>,
    next: u64,
    /// When the next one may be begun if the machine does not rest meanwhile. Nobody waits while nobody says when
    /// the machine rests.
    turn: Option<Instant>,
    /// Datagrams of sites lately, and work for strangers in the same unit.
    for_sites: u32,
    for_others: u32,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            by_age: VecDeque::new(),
            of_socket: FxHashMap::default(),
            of_network: FxHashMap::default(),
            next: 0,
            turn: None,
            for_sites: 0,
            for_others: 0,
        }
    }
}

impl<T> Waiting<T> {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The machine had nothing to do for this time.
    pub fn rested(&mut self, rest: Duration) {
        let turn = self.turn.get_or_insert(Instant::ZERO);
        *turn = *turn - rest.saturating_mul(REST_WORTH);
    }

    /// So many datagrams came from sites or went to them.
    #[inline]
    pub const fn worked_for_sites(&mut self, datagrams: u32) {
        self.for_sites = self.for_sites.saturating_add(datagrams);
        if self.for_sites > WORK_REMEMBERED {
            self.forget_half();
        }
    }

    /// A first packet came that was looked into.
    pub const fn worked_for_first_packet(&mut self) {
        self.for_others = self.for_others.saturating_add(FIRST_PACKET_WORK);
        if self.for_others > WORK_REMEMBERED {
            self.forget_half();
        }
    }

    const fn forget_half(&mut self) {
        self.for_sites /= 2;
        self.for_others /= 2;
    }

    /// How long a handshake takes of the time of a machine that does not rest.
    fn interval(&self) -> Duration {
        if self.for_sites == 0 {
            return HANDSHAKE_INTERVAL_MIN;
        }
        let share = f64::from(self.for_sites) / f64::from(self.for_sites + self.for_others);
        BUSY_HANDSHAKE_INTERVAL
            .mul_f64(share)
            .max(HANDSHAKE_INTERVAL_MIN)
    }

    /// Whether one may be begun now.
    pub fn has_turn(&self, now: Instant) -> bool {
        self.turn.is_none_or(|turn| turn <= now)
    }

    /// One is begun.
    pub fn begun(&mut self, now: Instant) {
        let interval = self.interval();
        if let Some(turn) = &mut self.turn {
            let earliest = now - interval * (HANDSHAKES_IN_A_ROW - 1);
            *turn = (*turn).max(earliest) + interval;
        }
        self.forget_half();
    }

    /// When the next one may be begun if the machine rests from now on; `None` if none waits.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let turn = self.turn.filter(|_| !self.is_empty())?;
        if turn <= now {
            return Some(now);
        }
        Some(now + (turn.since(now) / REST_WORTH).max(REST_MIN))
    }

    /// Whether so many of this socket wait that another one would only cost work.
    pub fn has_enough_of(&self, from: &SocketAddr) -> bool {
        let waiting = self.of_socket.get(from);
        waiting.is_some_and(|count| *count >= WAITING_OF_SOCKET_MAX)
    }

    /// Whether one of this socket would wait, or would give way only because it came later than others like it. Those may be
    /// gone when it is back with a token.
    pub fn has_room_for(&self, from: SocketAddr) -> bool {
        if self.waiting.len() < WAITING_MAX {
            return true;
        }
        let rank = Rank {
            of_socket: self.of_socket.get(&from).copied().unwrap_or(0),
            of_networks: networks(from)
                .map(|network| self.of_network.get(&network).copied().unwrap_or(0)),
            number: 0,
        };
        let last = self.waiting.last_key_value();
        last.is_none_or(|(last, _)| rank <= *last)
    }

    /// Lets one wait. Gives the one back that would be the last to be begun, if too many wait.
    pub fn push(&mut self, now: Instant, from: SocketAddr, what: T) -> Option<T> {
        let of_socket = self.of_socket.entry(from).or_default();
        let rank = Rank {
            of_socket: *of_socket,
            of_networks: networks(from).map(|network| {
                let count = self.of_network.entry(network).or_default();
                *count += 1;
                *count - 1
            }),
            number: self.next,
        };
        self.next += 1;
        *of_socket += 1;
        self.waiting.insert(rank, One { from, what });
        self.by_age.push_back((now, rank));
        // Those behind an old one that goes on waiting stay when they are gone.
        if self.by_age.len() > 2 * WAITING_MAX {
            let waiting = &self.waiting;
            self.by_age.retain(|(_, rank)| waiting.contains_key(rank));
        }
        if self.waiting.len() <= WAITING_MAX {
            return None;
        }
        let (&last, _) = self.waiting.last_key_value()?;
        self.remove(last)
    }

    /// Takes the next one out.
    pub fn pop(&mut self) -> Option<T> {
        let (&first, _) = self.waiting.first_key_value()?;
        self.remove(first)
    }

    /// Takes one out that has waited for too long.
    pub fn take_overdue(&mut self, now: Instant) -> Option<T> {
        while let Some(&(since, rank)) = self.by_age.front() {
            let gone = !self.waiting.contains_key(&rank);
            if !gone && now.since(since) < WAITING_TIME_MAX {
                return None;
            }
            self.by_age.pop_front();
            if !gone {
                return self.remove(rank);
            }
        }
        None
    }

    fn remove(&mut self, rank: Rank) -> Option<T> {
        let one = self.waiting.remove(&rank)?;
        take_one(&mut self.of_socket, one.from);
        for network in networks(one.from) {
            take_one(&mut self.of_network, network);
        }
        if self.waiting.is_empty() {
            self.by_age.clear();
        }
        Some(one.what)
    }
}

/// The networks of a socket, the smallest first.
fn networks(from: SocketAddr) -> [(usize, IpAddr); LEVELS] {
    let networks = Source::of(from.ip()).networks();
    std::array::from_fn(|place| (LEVELS - 1 - place, networks[LEVELS - 1 - place]))
}

/// Lowers a count; that of nobody is not kept.
fn take_one<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use ropewalk_types::Duration;

    const NOW: Instant = Instant::from_millis(1_000);

    fn at(host: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, host], port).into()
    }

    #[test]
    fn a_flood_waits_behind_other_hosts_and_behind_other_sockets_of_its_address() {
        let mut waiting = Waiting::default();
        for number in 0..80 {
            assert_eq!(waiting.push(NOW, at(1, 5_000), number), None);
        }
        waiting.push(NOW, at(1, 6_000), 1_000);
        waiting.push(NOW, at(2, 5_000), 2_000);
        waiting.push(NOW, at(2, 5_000), 2_001);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).take(5).collect();
        assert_eq!(order, [0, 2_000, 1_000, 1, 2_001]);
    }

    #[test]
    fn a_flood_from_many_addresses_waits_behind_other_networks() {
        let mut waiting = Waiting::default();
        let v6 = |network: u64| {
            SocketAddr::new(Ipv6Addr::from_bits(u128::from(network) << 64).into(), 1)
        };
        // One proved address in each of 80 networks of 64 bits, which one subscriber has.
        for n in 0..80 {
            waiting.push(NOW, v6(0x2001_0db8_0001_0000 + n), n);
        }
        // The same from a network of 48 bits, another one in each of its networks of 56 bits.
        for n in 0..10 {
            waiting.push(NOW, v6(0x2001_0db8_0002_0000 + n * 256), 100 + n);
        }
        waiting.push(NOW, v6(0x2001_0db8_0003_0000), 1_000);
        waiting.push(NOW, at(2, 1), 2_000);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).take(5).collect();
        assert_eq!(order, [0, 100, 1_000, 2_000, 101]);
    }

    #[test]
    fn too_many_cost_the_flood_its_own() {
        let mut waiting = Waiting::default();
        waiting.push(NOW, at(2, 1), u16::MAX);
        for number in 0..4_000 {
            // From many sockets of one address.
            let out = waiting.push(NOW, at(1, number), number);
            assert_ne!(out, Some(u16::MAX));
            assert_eq!(out.is_some(), usize::from(number) + 1 >= WAITING_MAX);
            assert!(waiting.by_age.len() <= 2 * WAITING_MAX);
        }
        assert_eq!(waiting.waiting.len(), WAITING_MAX);
        waiting.push(NOW, at(3, 1), u16::MAX - 1);
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order[..3], [u16::MAX, 0, u16::MAX - 1]);
        assert_eq!(order.len(), WAITING_MAX);
        assert!(waiting.of_socket.is_empty() && waiting.of_network.is_empty());
        assert!(waiting.by_age.is_empty());
    }

    #[test]
    fn those_that_are_gone_leave_nothing_behind_one_that_waits_on() {
        let mut waiting = Waiting::default();
        waiting.push(NOW, at(1, 1), 0);
        waiting.push(NOW, at(1, 1), 1);
        assert_eq!(waiting.pop(), Some(0));
        for number in 2..10_000 {
            waiting.push(NOW, at(2, number), number);
            assert_eq!(
                waiting.pop(),
                Some(number),
                "the second of a socket waits on"
            );
            assert!(waiting.by_age.len() <= 2 * WAITING_MAX, "{number}");
        }
        let late = NOW + WAITING_TIME_MAX;
        assert_eq!(waiting.take_overdue(late), Some(1));
        assert!(waiting.by_age.is_empty());
    }

    #[test]
    fn who_got_a_place_in_a_flood_from_one_address_has_its_turn_in_time() {
        let mut waiting = Waiting::default();
        waiting.rested(Duration::ZERO);
        let (mut begun, mut overdue, mut refused) = (0, 0, 0);
        for step in 0..20_000_u32 {
            // 2,000 in a second, each from another port.
            waiting.worked_for_sites(75);
            let now = NOW + Duration::from_micros(500) * step;
            while waiting.take_overdue(now).is_some() {
                overdue += 1;
            }
            while waiting.has_turn(now) && waiting.pop().is_some() {
                waiting.begun(now);
                begun += 1;
            }
            let from = at(1, (step % 60_000) as u16);
            refused += u32::from(waiting.push(now, from, step).is_some());
        }
        println!("{begun} begun, {overdue} overdue, {refused} refused");
        // 50 in each of ten seconds.
        assert!((490..=510).contains(&begun), "{begun}");
        assert_eq!(overdue, 0, "of {begun} places");
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut waiting = Waiting::default();
        for number in 0..10 {
            waiting.push(NOW + Duration::from_millis(number), at(1, 1), number);
        }
        assert_eq!(waiting.pop(), Some(0));
        let late = NOW + WAITING_TIME_MAX + Duration::from_millis(3);
        let overdue: Vec<_> = std::iter::from_fn(|| waiting.take_overdue(late)).collect();
        assert_eq!(overdue, [1, 2, 3]);
        assert_eq!(waiting.pop(), Some(4));
    }

    #[test]
    fn a_busy_machine_begins_one_in_a_while_and_one_that_rests_many() {
        for (rests, most) in [(0, 58), (10, 108), (500, 2_558)] {
            let mut waiting = Waiting::<()>::default();
            assert!(waiting.has_turn(NOW) && waiting.turn.is_none());
            waiting.rested(Duration::ZERO);
            let mut begun = 0;
            // Looks each 50 µs, and rests for so many thousandths of a second.
            for step in 0..20_000 {
                let now = NOW + Duration::from_micros(50) * step;
                waiting.worked_for_sites(8);
                waiting.rested(Duration::from_nanos(rests * 50));
                if waiting.has_turn(now) {
                    begun += 1;
                    waiting.begun(now);
                }
            }
            assert!((most - 10..=most).contains(&begun), "{begun} of {most}");
        }
    }

    #[test]
    fn the_less_sites_have_to_say_the_more_handshakes_are_begun() {
        // Datagrams of sites and packets of strangers for each handshake, and how many are begun in a second.
        for (of_sites, of_strangers, least, most) in [
            (3_000, 0, 50, 58),
            (3_000, 60, 50, 66),
            (300, 75, 95, 110),
            (1, 20, 1_900, 2_010),
        ] {
            let mut waiting = Waiting::<()>::default();
            waiting.rested(Duration::ZERO);
            // Busy before.
            waiting.worked_for_sites(50_000);
            let mut begun = 0;
            for step in 0..40_000 {
                let now = NOW + Duration::from_micros(50) * step;
                if waiting.has_turn(now) {
                    waiting.worked_for_sites(of_sites);
                    (0..of_strangers).for_each(|_| waiting.worked_for_first_packet());
                    waiting.begun(now);
                    // The first second is for what was before.
                    begun += u32::from(step >= 20_000);
                }
            }
            assert!(
                (least..=most).contains(&begun),
                "{of_sites}, {of_strangers}: {begun}"
            );
        }
    }

    #[test]
    fn there_is_room_for_all_that_would_stay() {
        let mut waiting = Waiting::default();
        let from = |number: u16| match number % 7 {
            0..4 => at(1, number % 50),
            4 => at(2, number % 3),
            5 => SocketAddr::new(Ipv6Addr::from_bits(u128::from(number) << 80).into(), 1),
            _ => at((number % 200) as u8, 5),
        };
        let (mut kept, mut gone, mut refused) = (0, 0, 0);
        for number in 0..3_000 {
            let from = from(number);
            let room = waiting.has_room_for(from);
            let stays = waiting.push(NOW, from, number) != Some(number);
            assert!(room || !stays, "{number}");
            refused += u32::from(!room);
            (kept, gone) = (kept + u32::from(stays), gone + u32::from(!stays));
            if number % 5 == 0 {
                waiting.pop();
            }
        }
        assert!(kept > 500 && gone > 500, "{kept}, {gone}");
        assert!(refused * 2 > gone, "{refused} of {gone}");
    }

    #[test]
    fn there_is_room_for_those_who_would_give_way_to_older_ones_alone() {
        let mut waiting = Waiting::default();
        let v4 =
            |number: u32| SocketAddr::new(std::net::Ipv4Addr::from_bits(number << 16).into(), 1);
        // Each from a network of its own.
        for number in 0..=WAITING_MAX as u32 {
            assert!(waiting.has_room_for(v4(number)), "{number}");
            waiting.push(NOW, v4(number), number);
        }
        assert!(waiting.has_room_for(v4(1_000)));
        assert!(!waiting.has_room_for(v4(1)), "a second one from there");
    }

    #[test]
    fn a_machine_without_other_work_is_asked_to_rest_for_a_part_of_the_interval() {
        let mut waiting = Waiting::default();
        waiting.worked_for_sites(WORK_REMEMBERED);
        waiting.rested(Duration::ZERO);
        assert_eq!(waiting.due(NOW), None);
        waiting.push(NOW, at(1, 1), ());
        assert_eq!(waiting.due(NOW), Some(NOW));
        for _ in 0..HANDSHAKES_IN_A_ROW {
            assert!(waiting.has_turn(NOW));
            waiting.begun(NOW);
        }
        let rest = BUSY_HANDSHAKE_INTERVAL / REST_WORTH;
        assert!(!waiting.has_turn(NOW));
        assert_eq!(waiting.due(NOW), Some(NOW + rest));
        waiting.rested(rest);
        assert!(waiting.has_turn(NOW + rest));
    }
}
