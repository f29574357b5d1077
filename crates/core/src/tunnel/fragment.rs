//! Puts inner packets together that did not fit a path whole, and takes apart what no longer fits.
//!
//! Bounded in number and time; the oldest gives way. Pieces may come in any order and twice. What lacks is waited
//! for as long as the ingress remembers it, and time in an outage does not count.

use super::tuning::{AHEAD, PARTIAL_BYTES_MAX, PARTIAL_MAX, PIECE_MIN, PIECES_MAX};
use crate::repair;
use bytes::{Bytes, BytesMut};
use core::ops::Range;
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{DataHeader, Datagram, FRAGMENT_HEADER, FragmentHeader};
use std::collections::{BTreeMap, VecDeque};

/// Takes a packet or piece that was sent before apart into datagrams of at most `room` bytes, each
/// with the header of the whole. Appends nothing when it is neither, fits, or the pieces would be
/// too small.
pub(super) fn split(datagram: &Bytes, room: usize) -> Vec<Bytes> {
    if room < FRAGMENT_HEADER + PIECE_MIN || datagram.len() <= room {
        return Vec::new();
    }
    let (header, first, total, at) = match Datagram::parse(datagram) {
        Ok(Datagram::Data { header, at }) => (header, 0, datagram.len() - at, at),
        Ok(Datagram::Fragment {
            header,
            fragment,
            at,
        }) => (
            header,
            usize::from(fragment.offset),
            usize::from(fragment.total),
            at,
        ),
        _ => return Vec::new(),
    };
    let piece_max = room - FRAGMENT_HEADER;
    let pieces = datagram[at..].chunks(piece_max).enumerate();
    let written = pieces.map(|(index, piece)| {
        let fragment = FragmentHeader {
            offset: u16::try_from(first + index * piece_max).unwrap_or(u16::MAX),
            total: u16::try_from(total).unwrap_or(u16::MAX),
        };
        let mut front = [0; FRAGMENT_HEADER];
        header.emit_fragment(&fragment, &mut front);
        let mut datagram = BytesMut::with_capacity(FRAGMENT_HEADER + piece.len());
        datagram.extend_from_slice(&front);
        datagram.extend_from_slice(piece);
        datagram.freeze()
    });
    written.collect()
}

/// Flow bucket and number in it of an inner packet.
type Key = (u16, u16);

/// When a packet is given up, its key and its serial number.
type Begun = (Instant, Key, u64);

/// Bytes of a packet that belong together: where they begin, and what they are.
type Run = (usize, BytesMut);

/// A packet of which pieces have come. Invariant: runs are in order and do not overlap. Memory is taken for what
/// came, and not for what a piece says of the length of the whole: it may be a lie.
#[derive(Debug)]
struct Partial {
    total: usize,
    runs: Vec<Run>,
    /// Bytes of all runs.
    came: usize,
    /// Tells packets with the same key apart.
    serial: u64,
}

impl Partial {
    /// What is there already of the bytes from `start` to `end`.
    fn overlaps(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let first = self
            .runs
            .partition_point(|(at, run)| at + run.len() <= start);
        let runs = self.runs[first..]
            .iter()
            .take_while(move |(at, _)| *at < end);
        runs.map(move |(at, run)| {
            let from = start.max(*at);
            (from, &run[from - at..(end - at).min(run.len())])
        })
    }

    /// The ranges from `start` to `end` that have not come.
    fn missing(&self, start: usize, end: usize) -> Vec<Range<usize>> {
        let mut missing = Vec::new();
        let mut from = start;
        for (at, run) in self.overlaps(start, end) {
            if from < at {
                missing.push(from..at);
            }
            from = at + run.len();
        }
        if from < end {
            missing.push(from..end);
        }
        missing
    }

    /// Takes what is new of a piece in, unless there are too many runs; whether it did. Copies of a packet may
    /// be cut at other places, because each path has its own room.
    fn fill(&mut self, start: usize, piece: &[u8]) -> bool {
        let missing = self.missing(start, start + piece.len());
        // The last piece is taken in however many there are.
        let new: usize = missing.iter().map(ExactSizeIterator::len).sum();
        let completes = self.came + new == self.total;
        if self.runs.len() + missing.len() > PIECES_MAX && !completes {
            return false;
        }
        for range in missing {
            self.add(range.start, &piece[range.start - start..range.end - start]);
        }
        true
    }

    /// Adds bytes that are new.
    fn add(&mut self, start: usize, bytes: &[u8]) {
        self.came += bytes.len();
        let after = self.runs.partition_point(|(at, _)| *at < start);
        let before = after.checked_sub(1).map(|before| &mut self.runs[before]);
        if let Some((at, run)) = before
            && *at + run.len() == start
        {
            run.extend_from_slice(bytes);
            return;
        }
        // Pieces of a packet mostly come in order.
        let next = self.runs.get(after).map_or(self.total, |(at, _)| *at);
        let mut run = BytesMut::with_capacity((next - start).min(AHEAD * bytes.len()));
        run.extend_from_slice(bytes);
        self.runs.insert(after, (start, run));
    }

    fn is_complete(&self) -> bool {
        self.came == self.total
    }

    /// The packet, once it is complete.
    fn join(self) -> Bytes {
        let mut runs = self.runs.into_iter();
        let Some((_, mut whole)) = runs.next() else {
            return Bytes::new();
        };
        for (_, run) in runs {
            whole.extend_from_slice(&run);
        }
        whole.freeze()
    }

    /// Whether a piece cannot be of this packet.
    fn contradicts(&self, total: usize, start: usize, piece: &[u8]) -> bool {
        let differs = |(at, have): (usize, &[u8])| *have != piece[at - start..][..have.len()];
        self.total != total || self.overlaps(start, start + piece.len()).any(differs)
    }
}

/// Incomplete packets. Invariant: `order` begins with the oldest of them. It has at most twice as
/// many entries as there may be packets, because entries of complete packets stay for a while.
#[derive(Debug)]
pub(super) struct Reassembly {
    partial: BTreeMap<Key, Partial>,
    order: VecDeque<Begun>,
    begun: u64,
    /// Of all packets, complete.
    bytes: usize,
    dropped: u64,
    /// How long a packet may stay incomplete.
    lifetime: Duration,
    /// An outage of all paths is under way.
    paused: bool,
}

impl Default for Reassembly {
    fn default() -> Self {
        Self {
            partial: BTreeMap::new(),
            order: VecDeque::new(),
            begun: 0,
            bytes: 0,
            dropped: 0,
            lifetime: repair::age_max(Duration::ZERO),
            paused: false,
        }
    }
}

impl Reassembly {
    /// Takes a piece in; the packet when it is complete. One that contradicts the pieces before it is of a
    /// later packet with the same number, which comes around, and counts instead of them.
    pub fn insert(
        &mut self,
        now: Instant,
        header: &DataHeader,
        fragment: FragmentHeader,
        piece: &[u8],
    ) -> Option<Bytes> {
        let total = usize::from(fragment.total);
        let key = (header.flow, header.flow_seq);
        let start = usize::from(fragment.offset);
        let end = start + piece.len();
        if end > total {
            self.dropped += 1;
            return None;
        }
        let other = self
            .partial
            .get(&key)
            .map(|former| former.contradicts(total, start, piece));
        if other == Some(true) {
            self.dropped += u64::from(self.remove(key).is_some());
            self.tidy();
        }
        if other != Some(false) {
            self.begin(key, total, now + self.lifetime);
        }
        let partial = self.partial.get_mut(&key)?;
        if !partial.fill(start, piece) {
            self.dropped += 1;
            return None;
        }
        if !partial.is_complete() {
            return None;
        }
        let complete = self.remove(key);
        self.tidy();
        complete.map(Partial::join)
    }

    fn begin(&mut self, key: Key, total: usize, deadline: Instant) {
        while self.partial.len() >= PARTIAL_MAX || self.bytes + total > PARTIAL_BYTES_MAX {
            let Some((_, oldest, _)) = self.order.pop_front() else {
                break;
            };
            self.dropped += u64::from(self.remove(oldest).is_some());
            self.tidy();
        }
        if self.order.len() >= 2 * PARTIAL_MAX {
            let partial = &self.partial;
            self.order.retain(|entry| is_live(partial, entry));
        }
        self.bytes += total;
        self.begun += 1;
        self.order.push_back((deadline, key, self.begun));
        let partial = Partial {
            total,
            runs: Vec::new(),
            came: 0,
            serial: self.begun,
        };
        self.partial.insert(key, partial);
    }

    fn remove(&mut self, key: Key) -> Option<Partial> {
        let partial = self.partial.remove(&key)?;
        self.bytes -= partial.total;
        Some(partial)
    }

    /// Lets `order` begin with a packet that is still incomplete.
    fn tidy(&mut self) {
        while let Some(first) = self.order.front()
            && !is_live(&self.partial, first)
        {
            self.order.pop_front();
        }
    }

    /// How many packets are incomplete.
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    /// Repairs take a round trip, which is this now. Packets that begin from now on may stay incomplete for as long
    /// as the ingress remembers their pieces.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.lifetime = repair::age_max(round_trip);
    }

    /// An outage of all paths has begun: what lacks cannot come.
    pub const fn pause(&mut self) {
        self.paused = true;
    }

    /// It is over, and what lacks is asked for anew.
    pub fn resume(&mut self, now: Instant) {
        self.paused = false;
        for (deadline, ..) in &mut self.order {
            *deadline = now + self.lifetime;
        }
    }

    /// Gives up everything, and the memory.
    pub fn clear(&mut self) {
        *self = Self {
            begun: self.begun,
            dropped: self.dropped + self.partial.len() as u64,
            lifetime: self.lifetime,
            paused: self.paused,
            ..Self::default()
        };
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = self.order.front().filter(|_| !self.paused);
        first.map(|&(deadline, ..)| deadline)
    }

    /// Gives up what is too old; returns how many packets or pieces were dropped since the last
    /// call.
    pub fn expire(&mut self, now: Instant) -> u64 {
        while let Some(&(deadline, key, _)) = self.order.front()
            && deadline <= now
            && !self.paused
        {
            self.order.pop_front();
            self.dropped += u64::from(self.remove(key).is_some());
            self.tidy();
        }
        std::mem::take(&mut self.dropped)
    }
}

/// Whether an entry of the order is that of an incomplete packet, and not of an earlier one with the same
/// number.
fn is_live(partial: &BTreeMap<Key, Partial>, &(_, key, serial): &Begun) -> bool {
    partial.get(&key).is_some_and(|p| p.serial == serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_wire::DATA_HEADER;

    #[test]
    fn what_is_split_twice_is_put_together_again() {
        let header = DataHeader {
            checksum_partial: true,
            ordered: true,
            flow: 7,
            flow_seq: 9,
            ..DataHeader::default()
        };
        let inner: Vec<u8> = (0..3_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut whole = vec![0; DATA_HEADER];
        header.emit((&mut whole[..]).try_into().expect("a header"));
        whole.extend_from_slice(&inner);
        let once = split(&whole.into(), 1_400);
        let twice: Vec<Bytes> = once.iter().flat_map(|piece| split(piece, 800)).collect();
        // The last one fits.
        assert_eq!((once.len(), twice.len()), (3, 4));
        assert!(twice.iter().all(|piece| piece.len() <= 800));
        assert!(split(&twice[0], 800).is_empty(), "it fits");
        assert!(split(&once[0], 100).is_empty(), "pieces too small");
        let mut reassembly = Reassembly::default();
        let mut complete = Vec::new();
        for piece in once[2..].iter().chain(twice.iter().rev()) {
            let Ok(Datagram::Fragment {
                header: of_piece,
                fragment,
                at,
            }) = Datagram::parse(piece)
            else {
                panic!("not a piece");
            };
            assert_eq!(of_piece, header);
            let piece = &piece[at..];
            complete.extend(reassembly.insert(Instant::ZERO, &header, fragment, piece));
        }
        assert_eq!(complete, [Bytes::from(inner)]);
    }

    #[test]
    fn copies_that_are_cut_at_other_places_complete_each_other() {
        let inner: Vec<u8> = (0..1_477_u32).map(|n| n.to_le_bytes()[0]).collect();
        // Paths have room for 1,440 and for 1,400 bytes. Of the pieces of each copy one is lost.
        for (one, other) in [(0..1_400, 1_440..1_477), (1_400..1_477, 0..1_440)] {
            let mut reassembly = Reassembly::default();
            let mut insert = |range: &Range<usize>| {
                let fragment = FragmentHeader {
                    offset: u16::try_from(range.start).expect("fits"),
                    total: 1_477,
                };
                let header = DataHeader::default();
                reassembly.insert(Instant::ZERO, &header, fragment, &inner[range.clone()])
            };
            let complete = (insert(&one), insert(&other));
            // What lacks is sent again: the piece that overlaps both.
            let again = if one.start == 0 {
                1_400..1_477
            } else {
                0..1_400
            };
            let complete = complete.1.or_else(|| insert(&again));
            assert_eq!(complete, Some(Bytes::from(inner.clone())), "{one:?}");
        }
    }

    #[test]
    fn packets_that_replace_each_other_within_one_batch_leave_nothing_behind() {
        let mut reassembly = Reassembly::default();
        for batch in 0..200 {
            let now = Instant::from_millis(batch);
            for byte in 0..64 {
                let header = DataHeader {
                    flow_seq: u16::try_from(batch).expect("few"),
                    ..DataHeader::default()
                };
                let fragment = FragmentHeader {
                    offset: 0,
                    total: 1_000,
                };
                let none = reassembly.insert(now, &header, fragment, &[byte % 2; 10]);
                assert_eq!(none, None);
            }
        }
        assert!(reassembly.order.len() <= 2 * PARTIAL_MAX);
        assert_eq!(reassembly.len(), 200);
    }

    #[test]
    fn the_last_piece_is_taken_in_however_many_there_are() {
        let mut reassembly = Reassembly::default();
        let mut insert = |offset: usize, piece: &[u8]| {
            let fragment = FragmentHeader {
                offset: u16::try_from(offset).expect("fits"),
                total: 1_400,
            };
            reassembly.insert(Instant::ZERO, &DataHeader::default(), fragment, piece)
        };
        for number in 0..PIECES_MAX {
            assert_eq!(insert(number * 4, &[7]), None);
        }
        assert_eq!(insert(0, &[7; 1_400]), Some(vec![7; 1_400].into()));
    }

    #[test]
    fn a_later_packet_with_the_number_of_one_that_never_completed_is_not_mixed_with_it() {
        let mut reassembly = Reassembly::default();
        let mut insert = |offset, total, byte: u8| {
            let (header, fragment) = (DataHeader::default(), FragmentHeader { offset, total });
            let piece = [byte; 700];
            reassembly.insert(
                Instant::ZERO,
                &header,
                fragment,
                &piece[..usize::from(total - offset).min(700)],
            )
        };
        assert_eq!(insert(0, 1_400, 1), None);
        assert_eq!(insert(0, 1_400, 2), None);
        assert_eq!(insert(0, 1_400, 2), None, "a copy");
        assert_eq!(insert(700, 1_400, 2), Some(vec![2; 1_400].into()));
        assert_eq!(insert(0, 1_400, 3), None);
        assert_eq!(insert(0, 1_000, 4), None);
        assert_eq!(insert(700, 1_000, 4), Some(vec![4; 1_000].into()));
    }

    fn piece(reassembly: &mut Reassembly, now: Instant, flow_seq: u16, first: bool) -> bool {
        let header = DataHeader {
            flow_seq,
            ..DataHeader::default()
        };
        let fragment = FragmentHeader {
            offset: if first { 0 } else { 700 },
            total: 1_400,
        };
        reassembly
            .insert(now, &header, fragment, &[1; 700])
            .is_some()
    }

    #[test]
    fn many_packets_wait_for_their_other_halves_and_the_oldest_gives_way() {
        let mut reassembly = Reassembly::default();
        let at = Instant::from_millis;
        for number in 0..1_000 {
            assert!(!piece(&mut reassembly, at(1), number, true));
        }
        for number in (0..1_000).rev() {
            assert!(piece(&mut reassembly, at(300), number, false), "{number}");
        }
        assert_eq!((reassembly.len(), reassembly.poll_timeout()), (0, None));
        // One that never completes must not keep what is behind it.
        piece(&mut reassembly, at(400), 0, true);
        for number in 1..10_000 {
            piece(&mut reassembly, at(400), number, true);
            assert!(piece(&mut reassembly, at(400), number, false));
            assert!(reassembly.order.len() <= 2 * PARTIAL_MAX);
        }
        assert_eq!(reassembly.poll_timeout(), Some(at(1_400)));
        assert_eq!((reassembly.expire(at(1_400)), reassembly.len()), (1, 0));
        for number in 0..1_200 {
            piece(&mut reassembly, at(2_000), number, true);
        }
        assert_eq!(reassembly.len(), PARTIAL_MAX);
        assert!(!piece(&mut reassembly, at(2_000), 0, false), "it gave way");
        assert!(piece(&mut reassembly, at(2_000), 1_199, false));
        assert!(reassembly.expire(at(4_000)) >= 1_200 - 1);
        assert_eq!((reassembly.bytes, reassembly.order.len()), (0, 0));
    }
}
