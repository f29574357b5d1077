//! The ingress's side: which flows are announced, and packets as differences from what is known.

use crate::ExpandError;
use crate::layout::{Layout, RTP_HEADER, Upper, be16, be32};
use crate::places::Places;
use crate::reference::{Encoded, IDS, Reference, id_of, is_rtp};
use crate::tuning::{
    COMPRESSED_TCP, FORGET, GIVE_BACK, IDLE, MISSES_MAX, PACKETS_BEFORE, QUIET, REFERENCES,
    RENEW_MIN, RENEW_MIN_FAST, REPEAT_FIRST, RETRY, TAKEOVER, TRIES_MAX, UNANSWERED_MAX,
};
use bytes::BytesMut;
use ropewalk_types::Instant;
use ropewalk_wire::{HeaderNotice, Headers};

/// A reference that was announced and is not confirmed yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u8,
    due: Instant,
    tries: u32,
}

#[derive(Debug)]
struct Known {
    id: u8,
    confirmed: bool,
    reference: Box<Reference>,
}

#[derive(Debug)]
struct Flow {
    references: [Option<Known>; REFERENCES],
    /// The number of the next reference.
    next: u8,
    /// The reference in use.
    current: Option<u8>,
    pending: Option<Pending>,
    /// No reference is made before.
    renew_at: Instant,
    used: Instant,
    packets: u32,
    missed: u32,
    /// Headers of a packet of the flow that has the place.
    owner: Box<Reference>,
    rtp: Rtp,
}

/// What is known of a flow of UDP that may be RTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rtp {
    Unknown,
    /// The last packet looked like it: source, number and time.
    Maybe(u32, u16, u32),
    /// The last two packets were consecutive, and their times lay this far apart.
    Step(u32),
    /// Differences from a reference with RTP did not pay.
    No,
}

impl Flow {
    fn new(now: Instant, owner: Reference) -> Self {
        Self {
            references: Default::default(),
            next: 0,
            current: None,
            pending: None,
            renew_at: now,
            used: now,
            packets: 1,
            missed: 0,
            owner: Box::new(owner),
            rtp: Rtp::Unknown,
        }
    }

    fn known(&self, id: u8) -> Option<&Known> {
        let known = self.references[usize::from(id) % REFERENCES].as_ref();
        known.filter(|known| known.id == id)
    }

    fn current(&self) -> Option<&Known> {
        self.current.and_then(|id| self.known(id))
    }

    /// Another flow takes the place. References stay for packets that are under way.
    fn take_over(&mut self, now: Instant, owner: Reference) {
        let references = std::mem::take(&mut self.references);
        *self = Self {
            references,
            next: self.next,
            renew_at: self.renew_at,
            ..Self::new(now, owner)
        };
    }

    fn watch_rtp(&mut self, layout: &Layout, packet: &[u8]) {
        let payload = &packet[layout.len..];
        if layout.upper != Upper::Udp || matches!(self.rtp, Rtp::Step(_) | Rtp::No) {
            return;
        }
        self.rtp = if is_rtp(payload) {
            let (seq, time, source) = (be16(payload, 2), be32(payload, 4), be32(payload, 8));
            match self.rtp {
                Rtp::Maybe(other, last, before)
                    if other == source && seq == last.wrapping_add(1) =>
                {
                    Rtp::Step(time.wrapping_sub(before))
                }
                Rtp::Unknown | Rtp::Maybe(..) | Rtp::Step(_) | Rtp::No => {
                    Rtp::Maybe(source, seq, time)
                }
            }
        } else {
            Rtp::No
        };
    }

    /// Makes this packet's headers the next reference.
    fn renew(&mut self, now: Instant, layout: &Layout, packet: &[u8], flow_seq: u16) -> bool {
        let is_first = self.current.is_none() && self.packets >= PACKETS_BEFORE;
        let is_old = self
            .current()
            .is_some_and(|known| known.reference.is_old(layout, packet, flow_seq));
        let has_missed = self.missed >= MISSES_MAX;
        let is_worn = self.current.is_some() && (has_missed || is_old);
        // Against a reference with selective acknowledgements, timestamps are written out.
        let had_timestamps = self
            .current()
            .is_some_and(|k| k.reference.layout.timestamps);
        let is_odd = had_timestamps && !layout.timestamps;
        if self.pending.is_some() || now < self.renew_at || is_odd || !(is_first || is_worn) {
            return false;
        }
        if has_missed
            && matches!(self.current(), Some(known) if known.reference.rtp_step().is_some())
        {
            self.rtp = Rtp::No;
        }
        let (len, step) = match self.rtp {
            Rtp::Step(step) if is_rtp(&packet[layout.len..]) => {
                (layout.len + RTP_HEADER, Some(step))
            }
            Rtp::Unknown | Rtp::Maybe(..) | Rtp::Step(_) | Rtp::No => (layout.len, None),
        };
        let Some(reference) = Reference::new(&packet[..len], flow_seq, step) else {
            return false;
        };
        let id = self.next;
        self.next = (id + 1) % IDS;
        // The place of the oldest reference. Of the one in use, only if nothing was confirmed since.
        let place = usize::from(id) % REFERENCES;
        if self.references[place].as_ref().map(|old| old.id) == self.current {
            self.current = None;
        }
        self.references[place] = Some(Known {
            id,
            confirmed: false,
            reference: Box::new(reference),
        });
        self.renew_at = now + if is_old { RENEW_MIN_FAST } else { RENEW_MIN };
        self.pending = Some(Pending {
            id,
            due: now,
            tries: 0,
        });
        true
    }
}

/// The compressor of one tunnel.
#[derive(Debug, Default)]
pub struct Compressor {
    flows: Places<Flow>,
    /// Buckets with something to announce, each once.
    pending: Vec<u16>,
    /// Announcements since the last answer.
    unanswered: u32,
    /// Nothing is announced before: the peer seems to know nothing of announcements.
    quiet_until: Option<Instant>,
}

impl Compressor {
    /// Gives the memory of flows back that have been silent for long.
    pub fn forget(&mut self, now: Instant) {
        self.flows.forget(now, GIVE_BACK, |flow| flow.used);
        let flows = &self.flows;
        self.pending.retain(|&flow| flows.get(flow).is_some());
    }

    /// Compresses the headers of a packet in place, if the egress can read the result and the result has at most
    /// `room` bytes. Returns how many bytes at the front of `packet` are no longer part of the result.
    ///
    /// `flow`, `flow_seq` and `partial` are what the datagram's header says.
    pub fn compress(
        &mut self,
        now: Instant,
        flow: u16,
        flow_seq: u16,
        partial: bool,
        packet: &mut [u8],
        room: usize,
    ) -> Option<usize> {
        let layout = Layout::of(packet)?;
        let Some(place) = self.flows.get_mut(flow) else {
            let owner = Reference::new(packet.get(..layout.len)?, flow_seq, None)?;
            let owner = Flow::new(now, owner);
            self.flows.insert(now, flow, owner, IDLE, |flow| flow.used);
            return None;
        };
        let silent = now.since(place.used);
        if silent > FORGET {
            place.current = None;
        }
        let current = place.current();
        let matches = current.is_some_and(|known| known.reference.matches(packet, &layout));
        if !matches && !place.owner.matches(packet, &layout) {
            if silent > TAKEOVER {
                let owner = Reference::new(&packet[..layout.len], flow_seq, None)?;
                place.take_over(now, owner);
            }
            return None;
        }
        let encoded = current.filter(|_| matches).map(|known| {
            let reference = &known.reference;
            reference.encode(known.id, packet, &layout, flow_seq, partial)
        });
        place.used = now;
        place.packets = place.packets.saturating_add(1);
        let is_long = |encoded: &Encoded| {
            let segment = layout.upper == Upper::Tcp && packet.len() > layout.len;
            encoded.missed || segment && encoded.bytes().len() > COMPRESSED_TCP
        };
        if place.current.is_some() && encoded.as_ref().is_none_or(is_long) {
            place.missed += 1;
        }
        place.watch_rtp(&layout, packet);
        let is_quiet = self.quiet_until.is_some_and(|until| now < until);
        // A bucket that was confirmed stays in the list until the next announcement.
        if !is_quiet && place.renew(now, &layout, packet, flow_seq) && !self.pending.contains(&flow)
        {
            self.pending.push(flow);
        }
        let encoded = encoded?;
        let start = encoded.headers.checked_sub(encoded.bytes().len())?;
        if start == 0 || packet.len() - start > room {
            return None;
        }
        packet[start..encoded.headers].copy_from_slice(encoded.bytes());
        Some(start)
    }

    /// Hands the headers that the egress should know by now to `send`.
    pub fn announce(&mut self, now: Instant, mut send: impl FnMut(&Headers, &[u8])) {
        let Self {
            flows,
            pending,
            unanswered,
            quiet_until,
        } = self;
        pending.retain(|&bucket| {
            let Some(flow) = flows.get_mut(bucket) else {
                return false;
            };
            let Some(waiting) = &mut flow.pending else {
                return false;
            };
            if waiting.due > now {
                return true;
            }
            if waiting.tries == TRIES_MAX || *unanswered >= UNANSWERED_MAX {
                flow.pending = None;
                flow.renew_at = now + RETRY;
                return false;
            }
            waiting.due = now + REPEAT_FIRST * (1 << waiting.tries);
            waiting.tries += 1;
            *unanswered += 1;
            let id = waiting.id;
            if let Some(known) = flow.known(id) {
                let headers = Headers {
                    flow: bucket,
                    flow_seq: known.reference.flow_seq(),
                    id,
                    rtp_step: known.reference.rtp_step(),
                };
                send(&headers, known.reference.headers());
            }
            true
        });
        if *unanswered >= UNANSWERED_MAX && pending.is_empty() {
            // One flow asks again after that.
            *unanswered = UNANSWERED_MAX - TRIES_MAX;
            *quiet_until = Some(now + QUIET);
        }
    }

    /// When an announcement is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |bucket: &u16| self.flows.get(*bucket)?.pending.map(|waiting| waiting.due);
        self.pending.iter().filter_map(due).min()
    }

    /// Buckets that are looked at for announcements.
    #[cfg(test)]
    pub(crate) const fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Takes in what the egress of the peer says of a reference.
    pub fn on_notice(&mut self, notice: HeaderNotice) {
        let Some(flow) = self.flows.get_mut(notice.flow) else {
            return;
        };
        let Some(known) = &mut flow.references[usize::from(notice.id) % REFERENCES] else {
            return;
        };
        if known.id != notice.id {
            return;
        }
        known.confirmed = notice.known;
        if notice.known {
            self.unanswered = 0;
            self.quiet_until = None;
            if flow.pending.is_some_and(|waiting| waiting.id == notice.id) {
                flow.pending = None;
                flow.current = Some(notice.id);
                flow.missed = 0;
            }
        } else if flow.current == Some(notice.id) {
            flow.current = None;
        }
    }

    /// The peer has started anew and knows nothing.
    pub fn reset(&mut self) {
        for (_, flow) in self.flows.values_mut() {
            flow.current = None;
            flow.pending = None;
            for known in flow.references.iter_mut().flatten() {
                known.confirmed = false;
            }
        }
        self.pending.clear();
        self.unanswered = 0;
        self.quiet_until = None;
    }

    /// Whether the egress can read this packet, which was compressed here.
    #[must_use]
    pub fn is_readable(&self, flow: u16, compressed: &[u8]) -> bool {
        self.known(flow, compressed)
            .is_some_and(|known| known.confirmed)
    }

    fn known(&self, flow: u16, compressed: &[u8]) -> Option<&Known> {
        self.flows.get(flow)?.known(id_of(compressed)?)
    }

    /// Appends the packet with full headers that this one, which was compressed here, stands for.
    ///
    /// # Errors
    /// [`ExpandError::Unknown`] when its reference has been forgotten since.
    pub fn expand(
        &self,
        flow: u16,
        flow_seq: u16,
        partial: bool,
        compressed: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), ExpandError> {
        let known = self.known(flow, compressed).ok_or(ExpandError::Unknown)?;
        let payload = known.reference.decode(compressed, flow_seq, partial, out)?;
        out.extend_from_slice(&compressed[payload..]);
        Ok(())
    }
}
