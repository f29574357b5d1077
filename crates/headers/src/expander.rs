//! The egress's side: what is known of flows, and packets with full headers again.

use crate::ExpandError;
use crate::places::Places;
use crate::reference::{IDS, Reference, id_of};
use crate::tuning::{GIVE_BACK, IDLE_AT_EXPANDER, REFERENCES};
use bytes::BytesMut;
use ropewalk_types::Instant;
use ropewalk_wire::{HEADER_NOTICES_MAX, HeaderNotice, Headers};

#[derive(Debug)]
struct Known {
    references: [Option<(u8, Box<Reference>)>; REFERENCES],
    used: Instant,
}

/// The expander of one tunnel.
#[derive(Debug, Default)]
pub struct Expander {
    flows: Places<Known>,
    notices: Vec<HeaderNotice>,
}

impl Expander {
    /// Gives the memory of flows back that have been silent for long.
    pub fn forget(&mut self, now: Instant) {
        self.flows.forget(now, GIVE_BACK, |known| known.used);
    }

    /// Learns headers that the peer announces. Answers with a [`HeaderNotice`], unless there is no room.
    ///
    /// # Errors
    /// [`ExpandError::Invalid`] when the headers are none that can be a reference.
    pub fn learn(
        &mut self,
        now: Instant,
        headers: &Headers,
        bytes: &[u8],
    ) -> Result<(), ExpandError> {
        let Headers {
            flow,
            flow_seq,
            id,
            rtp_step,
        } = *headers;
        let reference = Reference::new(bytes, flow_seq, rtp_step).ok_or(ExpandError::Invalid)?;
        if id >= IDS {
            return Err(ExpandError::Invalid);
        }
        if self.flows.get(flow).is_none() {
            let known = Known {
                references: Default::default(),
                used: now,
            };
            if !self
                .flows
                .insert(now, flow, known, IDLE_AT_EXPANDER, |known| known.used)
            {
                return Ok(());
            }
        }
        if let Some(known) = self.flows.get_mut(flow) {
            known.used = now;
            let place = &mut known.references[usize::from(id) % REFERENCES];
            match place {
                Some((have, known)) if *have == id && **known == reference => {}
                // Also with the same number: a flow that lost its place at the compressor and comes
                // back counts from 0 again.
                _ => *place = Some((id, Box::new(reference))),
            }
            self.notify(HeaderNotice {
                flow,
                id,
                known: true,
            });
        }
        Ok(())
    }

    /// Appends the headers of the packet that `compressed` stands for to `out`. `flow`, `flow_seq` and
    /// `partial` are as the datagram's header says. Returns where in `compressed` the payload begins.
    ///
    /// # Errors
    /// [`ExpandError::Unknown`] when the reference is not known: a [`HeaderNotice`] says so.
    /// [`ExpandError::Invalid`] when it is malformed. Nothing is appended then.
    pub fn expand(
        &mut self,
        now: Instant,
        flow: u16,
        flow_seq: u16,
        partial: bool,
        compressed: &[u8],
        out: &mut BytesMut,
    ) -> Result<usize, ExpandError> {
        let id = id_of(compressed).ok_or(ExpandError::Invalid)?;
        let known = self.flows.get_mut(flow).and_then(|known| {
            known.used = now;
            known.references[usize::from(id) % REFERENCES].as_ref()
        });
        match known {
            Some((have, reference)) if *have == id => {
                reference.decode(compressed, flow_seq, partial, out)
            }
            _ => {
                self.notify(HeaderNotice {
                    flow,
                    id,
                    known: false,
                });
                Err(ExpandError::Unknown)
            }
        }
    }

    fn notify(&mut self, notice: HeaderNotice) {
        if self.notices.len() < HEADER_NOTICES_MAX && !self.notices.contains(&notice) {
            self.notices.push(notice);
        }
    }

    /// Whether something is to be told.
    #[must_use]
    pub const fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Takes what is to be told.
    pub fn take_notices(&mut self) -> Vec<HeaderNotice> {
        std::mem::take(&mut self.notices)
    }
}
