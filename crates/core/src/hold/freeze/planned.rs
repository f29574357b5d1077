//! Stopping senders before an announced outage: windows of zero in genuine acknowledgements.
//!
//! Only the window is changed, so an end still knows exactly what the other has got. The window
//! comes as the receiver scaled it and goes back as it was: its scale need not be known.

use super::segment::{ACK, Bare, FIN, RST, SYN, Segment, Template, before, write};
use crate::hold::tuning::PLANNED_FLOWS_MAX;
use crate::reorder::Inner;
use bytes::{Bytes, BytesMut};
use ropewalk_types::FlowKey;
use std::collections::BTreeMap;

/// The connections whose senders were told to stop, by the flow of the acknowledgements.
#[derive(Debug, Default)]
pub(super) struct Planned {
    stopped: BTreeMap<FlowKey, LastAck>,
}

/// The newest acknowledgement of a connection, as the receiver meant it.
#[derive(Debug)]
struct LastAck {
    template: Template,
    bare: Bare,
}

impl Planned {
    /// Connections that are stopped now.
    pub fn len(&self) -> usize {
        self.stopped.len()
    }

    /// Changes a packet for this side's hosts if it is an acknowledgement; whether its connection has
    /// been stopped by it.
    pub fn on_egress(&mut self, inner: &mut Inner) -> bool {
        let Some(segment) = Segment::parse(&inner.data) else {
            return false;
        };
        if segment.has(SYN | FIN | RST) || !segment.has(ACK) {
            self.stopped.remove(&segment.flow);
            return false;
        }
        let known = self.stopped.get(&segment.flow);
        if known.is_none() && self.stopped.len() >= PLANNED_FLOWS_MAX {
            return false;
        }
        let new = known.is_none();
        // One that comes late says nothing of the window any more.
        if known.is_none_or(|last| !before(segment.ack, last.bare.ack)) {
            let last = LastAck {
                template: segment.template(&inner.data),
                bare: Bare {
                    seq: segment.seq_end(),
                    ack: segment.ack,
                    window: segment.window,
                    flags: 0,
                    timestamps: segment.timestamps(&inner.data),
                },
            };
            self.stopped.insert(segment.flow, last);
        }
        let mut changed = BytesMut::from(&inner.data[..]);
        segment.set_window(&mut changed, 0, inner.checksum_partial);
        inner.data = changed.freeze();
        new
    }

    /// Appends what lets the senders go on: their receivers' newest acknowledgements, unchanged.
    pub fn thaw(&mut self, out: &mut impl Extend<Bytes>) {
        let stopped = std::mem::take(&mut self.stopped);
        let updates = stopped.values().filter(|last| last.bare.window > 0);
        out.extend(updates.map(|last| Bytes::from(write(&last.template, last.bare))));
    }
}
