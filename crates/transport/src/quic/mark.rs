//! The first byte of connection identifiers, and the mark in the first one that a site sends.
//!
//! A hub with several workers has a socket for each of them at one address. The kernel decides by
//! the first byte of the destination identifier which of them gets a packet: its lower six bits,
//! modulo the number of workers. Identifiers that a worker gives out name the worker. The first
//! identifier of a connection is the site's choice, so it names the site's group, which follows from the
//! keys of both sides. Hence all paths of a site meet at one worker, whatever address they come from.
//!
//! The first identifier also has a mark: a code over its other bytes under the hub's public key, like mac1 of
//! WireGuard. Somebody without that key cannot make the mark. While a hub is busy with handshakes, a first
//! packet without the mark gets no answer: strangers that flood are told apart before TLS begins. At other
//! times such a packet gets an answer, so that a site with a wrong key of the hub learns of that. Somebody
//! who sees a first packet can repeat its mark.

use quinn_proto::ConnectionId;
use ropewalk_crypto::constant_time::verify_slices_are_equal;
use ropewalk_crypto::{digest, hmac};

use super::tuning::CONNECTION_ID_BYTES;
use crate::PublicKey;

/// Groups of sites. A byte has room for two random bits besides.
pub const GROUPS: u8 = 64;
/// Bytes of the first identifier: the group, random bytes, the mark.
const FIRST_BYTES: usize = 16;
/// Bytes of these before the mark.
const MARKED_BYTES: usize = 8;
/// The version of QUIC that sites speak (RFC 9000 §15).
const VERSION: u32 = 1;
/// Bit of the first byte of packets that belong to a handshake (RFC 9000 §17.2).
pub(super) const LONG_HEADER: u8 = 0x80;
/// Bits of the first byte that tell the type of a packet, and those of an Initial packet (RFC 9000 §17.2.2).
const PACKET_TYPE: u8 = 0xf0;
const INITIAL: u8 = 0xc0;

/// The sites that one worker of a hub serves: those of the groups that are `index` modulo `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    index: u8,
    count: u8,
}

impl Slice {
    /// All sites.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The slice of a worker; `None` unless `index < count` and `1 <= count <=` [`GROUPS`].
    #[must_use]
    pub const fn new(index: u8, count: u8) -> Option<Self> {
        if index < count && count <= GROUPS {
            Some(Self { index, count })
        } else {
            None
        }
    }

    /// Which of the workers serves it.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// How many workers there are.
    #[must_use]
    pub const fn count(self) -> usize {
        self.count as usize
    }

    /// The worker that serves a group, if there are as many as here.
    #[must_use]
    pub const fn worker_of(self, group: u8) -> usize {
        (group % GROUPS % self.count) as usize
    }

    /// Whether this worker serves a group.
    #[must_use]
    pub const fn serves(self, group: u8) -> bool {
        self.worker_of(group) == self.index as usize
    }

    /// The first byte of an identifier that this worker gives out: as random as possible.
    pub(super) const fn tag(self, random: u8) -> u8 {
        let low = random % GROUPS;
        let mut named = low - low % self.count + self.index;
        if named >= GROUPS {
            named -= self.count;
        }
        tag(named, random)
    }
}

const fn tag(group: u8, random: u8) -> u8 {
    random / GROUPS * GROUPS + group % GROUPS
}

/// The group of a site at a hub, below [`GROUPS`].
#[must_use]
pub fn group_of(hub: &PublicKey, site: &PublicKey) -> u8 {
    let mut input = b"ropewalk group".to_vec();
    input.extend_from_slice(hub.as_bytes());
    input.extend_from_slice(site.as_bytes());
    digest::digest(&digest::SHA256, &input).as_ref()[0] % GROUPS
}

/// What the bytes of a packet of a handshake say that no key protects (RFC 9000 §17.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clear<'a> {
    first: u8,
    version: u32,
    destination: &'a [u8],
    /// What follows the identifiers: in an Initial packet the length of the token comes first.
    rest: &'a [u8],
}

impl<'a> Clear<'a> {
    /// `None` for packets without a long header, and for those that end too early.
    pub(super) fn of(data: &'a [u8]) -> Option<Self> {
        let (&first, rest) = data
            .split_first()
            .filter(|(first, _)| **first & LONG_HEADER != 0)?;
        let (version, rest) = rest.split_first_chunk()?;
        let (destination, rest) = identifier(rest)?;
        let (_, rest) = identifier(rest)?;
        Some(Self {
            first,
            version: u32::from_be_bytes(*version),
            destination,
            rest,
        })
    }

    /// Whether it begins a connection or repeats that, or would be answered with a list of versions.
    pub(super) const fn may_be_first(&self) -> bool {
        self.version != VERSION || self.first & PACKET_TYPE == INITIAL
    }

    /// Whether it begins a connection, or repeats that, and no Retry was answered by it.
    fn is_first(&self) -> bool {
        self.version == VERSION
            && self.first & PACKET_TYPE == INITIAL
            && self.destination.len() != CONNECTION_ID_BYTES
    }

    /// Whether it can come from a site of the hub with these marks: it has a mark, or it may answer a Retry.
    pub(super) fn may_know(&self, marks: &[Marks]) -> bool {
        self.version == VERSION
            && (self.may_answer_retry()
                || marks.iter().any(|marks| marks.has_mark(self.destination)))
    }

    /// Whether it has a token for an identifier as long as those that a hub gives out in a Retry. The token is not
    /// checked here.
    pub(super) fn may_answer_retry(&self) -> bool {
        let token = self.rest.first().is_some_and(|length| *length != 0);
        token && self.destination.len() == CONNECTION_ID_BYTES
    }
}

/// Whether a UDP datagram is the first one of a connection to a hub, or repeats that: one whose sender has heard nothing
/// of the hub yet.
#[must_use]
pub fn begins_connection(datagram: &[u8]) -> bool {
    Clear::of(datagram).is_some_and(|clear| clear.is_first())
}

/// An identifier behind its length, and what follows.
fn identifier(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = data.split_first()?;
    rest.split_at_checked(length.into())
}

/// Makes and checks first identifiers for one hub.
pub(super) struct Marks(hmac::Key);

impl Marks {
    pub(super) fn new(hub: &PublicKey) -> Self {
        let mut input = b"ropewalk mark".to_vec();
        input.extend_from_slice(hub.as_bytes());
        let key = digest::digest(&digest::SHA256, &input);
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()))
    }

    /// A first identifier of a site of this group.
    pub(super) fn first_id(&self, group: u8, random: [u8; MARKED_BYTES]) -> ConnectionId {
        let mut bytes = [0; FIRST_BYTES];
        bytes[..MARKED_BYTES].copy_from_slice(&random);
        bytes[0] = tag(group, random[0]);
        let mark = hmac::sign(&self.0, &bytes[..MARKED_BYTES]);
        bytes[MARKED_BYTES..].copy_from_slice(&mark.as_ref()[..FIRST_BYTES - MARKED_BYTES]);
        ConnectionId::new(&bytes)
    }

    /// Whether whoever chose this identifier knows the hub's key.
    pub(super) fn has_mark(&self, id: &[u8]) -> bool {
        let Some((marked, mark)) = id.split_at_checked(MARKED_BYTES) else {
            return false;
        };
        let right = hmac::sign(&self.0, marked);
        verify_slices_are_equal(mark, &right.as_ref()[..FIRST_BYTES - MARKED_BYTES]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::from_bytes([byte; 32])
    }

    #[test]
    fn who_knows_the_key_makes_the_mark_and_nobody_else() {
        let hub = Marks::new(&key(1));
        for random in [[0; 8], [0xff; 8], *b"anything"] {
            let id = hub.first_id(17, random);
            assert_eq!(id[0] % GROUPS, 17);
            assert!(hub.has_mark(&id));
            assert!(!Marks::new(&key(2)).has_mark(&id), "another hub");
            for at in 0..FIRST_BYTES {
                let mut bytes = id.to_vec();
                bytes[at] ^= 1;
                assert!(!hub.has_mark(&ConnectionId::new(&bytes)), "byte {at}");
            }
            for length in 0..FIRST_BYTES {
                assert!(!hub.has_mark(&ConnectionId::new(&id[..length])));
            }
        }
    }

    #[test]
    fn only_whole_long_headers_say_something_in_the_clear() {
        let hub = [Marks::new(&key(1))];
        let packet = |first: u8, version: u32, id: &[u8], token: u8| {
            let mut packet = vec![first];
            packet.extend_from_slice(&version.to_be_bytes());
            packet.push(u8::try_from(id.len()).expect("short"));
            packet.extend_from_slice(id);
            packet.extend_from_slice(&[2, 7, 7, token]);
            packet
        };
        let good = hub[0].first_id(3, [9; 8]);
        for (name, packet, first, knows) in [
            ("a mark", packet(0xc3, 1, &good, 0), true, true),
            ("none", packet(0xc3, 1, &[5; 16], 0), true, false),
            ("a token", packet(0xc3, 1, &[5; 6], 9), true, true),
            (
                "a token for another's",
                packet(0xc3, 1, &[5; 8], 9),
                true,
                false,
            ),
            (
                "a handshake packet",
                packet(0xe3, 1, &[5; 6], 0),
                false,
                false,
            ),
            ("another version", packet(0xe3, 7, &good, 0), true, false),
        ] {
            let clear = Clear::of(&packet).expect(name);
            assert_eq!(
                (clear.may_be_first(), clear.may_know(&hub)),
                (first, knows),
                "{name}"
            );
            for length in 0..packet.len() - 1 {
                assert_eq!(Clear::of(&packet[..length]), None, "{name}, {length} bytes");
            }
        }
        assert_eq!(Clear::of(&[0x40; 40]), None);
    }

    #[test]
    fn groups_spread_sites_over_workers_and_differ_between_hubs() {
        let slices: Vec<_> = (0..3).filter_map(|i| Slice::new(i, 3)).collect();
        let mut served = [0; 3];
        let mut differ = 0;
        for site in 0..240 {
            let group = group_of(&key(255), &key(site));
            assert!(group < GROUPS);
            differ += u32::from(group != group_of(&key(254), &key(site)));
            for slice in &slices {
                served[slice.index()] += u32::from(slice.serves(group));
            }
        }
        assert_eq!(served.iter().sum::<u32>(), 240, "one worker for each");
        assert!(served.iter().all(|&sites| sites > 40), "{served:?}");
        assert!(differ > 200);
    }

    #[test]
    fn a_worker_finds_its_own_identifiers() {
        for count in 1..=GROUPS {
            for index in 0..count {
                let slice = Slice::new(index, count).expect("in range");
                for random in [0, 63, 64, 200, 255] {
                    assert!(slice.serves(slice.tag(random)));
                }
            }
        }
        assert_eq!(Slice::new(1, 1), None);
        assert_eq!(Slice::new(0, 0), None);
        assert_eq!(Slice::new(0, GROUPS + 1), None);
    }
}
