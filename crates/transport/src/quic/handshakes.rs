//! Handshakes that others have begun and that are not over: whose they are, and which of them gives
//! way when there are too many.
//!
//! Strangers may begin handshakes, and may leave them unfinished. So the number is bounded, and the
//! places are shared by where handshakes come from. While all places are taken, a handshake from a
//! source with few takes the place of the oldest one from the source with most. So does one from a
//! source that has none: a handshake that goes on lasts a few round trips, so the oldest one hangs
//! most likely. A source is an IPv4 address or an IPv6 network of 64 bits.
//!
//! Invariant: the counts of `by_source` are those of `open`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ropewalk_types::Instant;
use rustc_hash::FxHashMap;

use super::ConnectionId;
use super::tuning::{ACCEPT_TIME_MAX, HANDSHAKES_MAX};

/// Where handshakes come from: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// The source of a host with this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.into()),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(network).into())
            }
        }
    }
}

/// Names a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Clone, Copy, Debug)]
struct Open {
    id: ConnectionId,
    source: Source,
    /// The address was proved by a Retry token.
    proved: bool,
    deadline: Instant,
}

/// Whether another handshake may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// There is room.
    Room,
    /// In the place of this one, which has to end.
    Instead(ConnectionId),
    /// Others have fewer.
    Refused,
}

/// Whether a source with `mine` handshakes may take a place of one with `most`.
#[must_use]
pub const fn may_take(mine: usize, most: usize) -> bool {
    mine == 0 || mine + 1 < most
}

/// All handshakes of the accepting side.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    /// The oldest first.
    open: BTreeMap<Ticket, Open>,
    by_source: FxHashMap<Source, usize>,
    unproved: usize,
    next: u64,
}

impl Handshakes {
    /// Number of handshakes.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Number of those from addresses that were not proved.
    pub const fn unproved(&self) -> usize {
        self.unproved
    }

    /// Whether a handshake from `source` may begin. Looks at every handshake only while all places are
    /// taken.
    pub fn admit(&self, source: Source) -> Admission {
        if self.open.len() < HANDSHAKES_MAX {
            return Admission::Room;
        }
        let mine = self.by_source.get(&source).copied().unwrap_or(0);
        let most = self.by_source.values().copied().max().unwrap_or(0);
        if !may_take(mine, most) {
            return Admission::Refused;
        }
        let heavy = |open: &&Open| self.by_source.get(&open.source) == Some(&most);
        let oldest = self.open.values().find(heavy);
        oldest.map_or(Admission::Refused, |open| Admission::Instead(open.id))
    }

    /// A handshake has begun.
    pub fn begin(
        &mut self,
        now: Instant,
        id: ConnectionId,
        source: Source,
        proved: bool,
    ) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let deadline = now + ACCEPT_TIME_MAX;
        let open = Open {
            id,
            source,
            proved,
            deadline,
        };
        self.open.insert(ticket, open);
        *self.by_source.entry(source).or_default() += 1;
        self.unproved += usize::from(!proved);
        ticket
    }

    /// Whether the address of a handshake that is not over was proved.
    pub fn is_proved(&self, ticket: Ticket) -> bool {
        self.open.get(&ticket).is_some_and(|open| open.proved)
    }

    /// A handshake is over, well or not. Once for each.
    pub fn end(&mut self, ticket: Ticket) {
        let Some(open) = self.open.remove(&ticket) else {
            return;
        };
        self.unproved -= usize::from(!open.proved);
        if let Some(count) = self.by_source.get_mut(&open.source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&open.source);
            }
        }
    }

    /// When the oldest one has taken too long.
    pub fn deadline(&self) -> Option<Instant> {
        self.open.first_key_value().map(|(_, open)| open.deadline)
    }

    /// Takes out a handshake that has taken too long, if there is one.
    pub fn take_overdue(&mut self, now: Instant) -> Option<ConnectionId> {
        let (&ticket, open) = self.open.first_key_value()?;
        let id = (open.deadline <= now).then_some(open.id)?;
        self.end(ticket);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnectionId {
        ConnectionId {
            slot,
            generation: 1,
        }
    }

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn a_subscriber_is_one_source_whatever_its_address() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }

    #[test]
    fn a_flood_from_one_source_gives_way_to_others_and_not_to_itself() {
        let mut handshakes = Handshakes::default();
        let now = Instant::from_millis(1);
        let flood = source("192.0.2.1");
        let mut tickets = Vec::new();
        for slot in 0..u32::try_from(HANDSHAKES_MAX).unwrap() {
            assert_eq!(handshakes.admit(flood), Admission::Room);
            tickets.push(handshakes.begin(now, id(slot), flood, true));
        }
        assert_eq!(handshakes.admit(flood), Admission::Refused);
        let other = source("192.0.2.2");
        assert_eq!(handshakes.admit(other), Admission::Instead(id(0)));
        handshakes.end(tickets[0]);
        handshakes.end(tickets[0]);
        let theirs = handshakes.begin(now, id(9_999), other, false);
        assert_eq!(handshakes.unproved(), 1);
        assert_eq!(handshakes.admit(flood), Admission::Refused);
        assert_eq!(handshakes.admit(other), Admission::Instead(id(1)));
        handshakes.end(theirs);
        assert_eq!(
            (handshakes.unproved(), handshakes.len()),
            (0, HANDSHAKES_MAX - 1)
        );
        assert_eq!(handshakes.admit(flood), Admission::Room);
    }

    #[test]
    fn many_sources_with_one_handshake_each_keep_no_newcomer_out() {
        let mut handshakes = Handshakes::default();
        let now = Instant::from_millis(1);
        for n in 0..u32::try_from(HANDSHAKES_MAX).unwrap() {
            let from = Source::of(IpAddr::from([10, 0, (n / 256) as u8, (n % 256) as u8]));
            handshakes.begin(now, id(n), from, true);
        }
        assert_eq!(
            handshakes.admit(source("192.0.2.1")),
            Admission::Instead(id(0))
        );
        assert_eq!(handshakes.admit(source("10.0.0.7")), Admission::Refused);
    }

    #[test]
    fn the_oldest_is_overdue_first() {
        let mut handshakes = Handshakes::default();
        let from = source("192.0.2.1");
        let at = Instant::from_millis;
        let first = handshakes.begin(at(0), id(1), from, true);
        handshakes.begin(at(10), id(2), from, true);
        let deadline = handshakes.deadline().unwrap();
        assert_eq!(deadline, at(0) + ACCEPT_TIME_MAX);
        assert_eq!(handshakes.take_overdue(at(0)), None);
        assert_eq!(handshakes.take_overdue(deadline), Some(id(1)));
        assert_eq!(handshakes.take_overdue(deadline), None);
        handshakes.end(first);
        assert_eq!(handshakes.len(), 1, "the first one is out already");
    }
}
