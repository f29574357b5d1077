//! Handshakes that others have begun and that are not over: whose they are, and which of them gives
//! way when there are too many.
//!
//! Strangers may begin handshakes, and may leave them unfinished. So the number is bounded, and the
//! places are shared by where handshakes come from. While all places are taken, a handshake from a
//! network with few takes the place of the oldest one from the network with most. So does one from a
//! network that has none: a handshake that goes on lasts a few round trips, so the oldest one hangs
//! most likely. Networks of one owner count as one network first, then as the subscribers in them:
//! whoever has many addresses takes places from himself. [`Source`] has the sizes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ropewalk_types::Instant;

use super::ConnectionId;
use super::tuning::{ACCEPT_TIME_MAX, HANDSHAKES_MAX};

/// Bits of the networks that count as one, of IPv4 and of IPv6, the widest first. Providers give a subscriber one IPv4
/// address, and an IPv6 network of 48 to 64 bits (RFC 6177). Who owns an IPv4 network of 16 bits is rarely alone in it.
const NETWORK_BITS: [(u32, u32); LEVELS] = [(16, 48), (24, 56), (32, 64)];
/// Sizes of networks.
pub(super) const LEVELS: usize = 3;

/// Where handshakes come from: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// The source of a host with this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(network(address.to_canonical(), LEVELS - 1))
    }

    /// The networks it is in, the widest first. The last one is the source itself.
    pub(super) fn networks(self) -> [IpAddr; LEVELS] {
        std::array::from_fn(|level| network(self.0, level))
    }
}

/// The network of a size that an address is in.
fn network(address: IpAddr, level: usize) -> IpAddr {
    let (v4, v6) = NETWORK_BITS[level];
    match address {
        IpAddr::V4(address) => {
            let host = u32::BITS - v4;
            Ipv4Addr::from_bits(address.to_bits() >> host << host).into()
        }
        IpAddr::V6(address) => {
            let host = u128::BITS - v6;
            Ipv6Addr::from_bits(address.to_bits() >> host << host).into()
        }
    }
}

/// Which handshake gives way to one from `newcomer` while all places are taken; `None` if the newcomer has to. `open`
/// are those that are not over, the oldest first. Work: a few passes over them.
#[must_use]
pub fn gives_way<K: Copy>(newcomer: Source, open: impl Iterator<Item = (K, Source)>) -> Option<K> {
    let wanted = newcomer.networks();
    let mut left: Vec<_> = open.map(|(key, from)| (key, from.networks())).collect();
    let mut contested = true;
    for level in 0..LEVELS {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for (_, networks) in &left {
            *counts.entry(networks[level]).or_default() += 1;
        }
        // Of equal ones the first.
        let (&heaviest, &most) = counts.iter().rev().max_by_key(|(_, count)| **count)?;
        let mine = counts.get(&wanted[level]).copied().unwrap_or(0);
        contested &= mine > 0 && mine + 1 >= most;
        let from = if contested { wanted[level] } else { heaviest };
        left.retain(|(_, networks)| networks[level] == from);
    }
    let (oldest, _) = left.first()?;
    (!contested).then_some(*oldest)
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

/// All handshakes of the accepting side.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    /// The oldest first.
    open: BTreeMap<Ticket, Open>,
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
        let open = self.open.values().map(|open| (open.id, open.source));
        gives_way(source, open).map_or(Admission::Refused, Admission::Instead)
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
    fn whoever_has_a_large_network_takes_places_from_nobody_else() {
        let (mut handshakes, now) = (Handshakes::default(), Instant::from_millis(1));
        let honest = [source("2001:db8:ffff::1"), source("198.51.100.7")];
        for (slot, from) in honest.into_iter().enumerate() {
            handshakes.begin(now, id(u32::try_from(slot).unwrap()), from, true);
        }
        // Networks of 64 bits in one of 56, and then in one of 48; addresses in one of 16.
        let flood = (0..4_096_u128).map(|n| match n % 3 {
            0 => Ipv6Addr::from_bits((0x2001_0db8_0001_0000 + n % 256) << 64).into(),
            1 => Ipv6Addr::from_bits((0x2001_0db8_0002_0000 + n) << 64).into(),
            _ => IpAddr::from((0x0a01_0000 | n as u32).to_be_bytes()),
        });
        for (slot, from) in (2..).zip(flood) {
            match handshakes.admit(Source::of(from)) {
                Admission::Room => {}
                Admission::Refused => continue,
                Admission::Instead(out) => {
                    assert!(out.slot >= 2, "{from}: an honest handshake had to give way");
                    let tickets = handshakes.open.iter();
                    let ticket = tickets.filter(|(_, open)| open.id == out).map(|(t, _)| *t);
                    let ticket = ticket.min().unwrap();
                    handshakes.end(ticket);
                }
            }
            handshakes.begin(now, id(slot), Source::of(from), true);
        }
        assert_eq!(handshakes.len(), HANDSHAKES_MAX);
        // A neighbour of the flood finds a place, too.
        let neighbour = source("2001:db8:1:1ff::1");
        assert!(matches!(handshakes.admit(neighbour), Admission::Instead(out) if out.slot >= 2));
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
