//! Keeps a panic in the work of one connection from ending all others.
//!
//! A guard is around one turn of a connection: an arriving datagram, a timer, a batch to send, a
//! close. After a panic nothing of the connection is used again. What it shares with others are the
//! tables of the endpoint: each of its entries there belongs to one connection, and goes with it.
//! Calls that queue, take out of a queue or only read have no guard of their own.

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use quinn_proto::{ConnectionHandle, EndpointEvent};

use super::{ConnectionId, Endpoint};
use crate::CloseReason;

/// What the endpoint works on while it takes a datagram in, and what is to go when that panics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum AtWork {
    /// On its own tables only: the datagram is dropped.
    #[default]
    Tables,
    /// On a connection that nobody knows yet. `quinn-proto` knows it if it has more connections now
    /// than `open`.
    New {
        handle: ConnectionHandle,
        open: usize,
    },
    /// On a connection.
    Known(ConnectionId),
}

/// The result of `work`; `None` when it panicked.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl Endpoint {
    /// Does the work of a connection; `None` when it panicked and the connection is gone.
    pub(super) fn guarded<T>(
        &mut self,
        id: ConnectionId,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        let result = caught(|| work(self));
        if result.is_none() {
            self.give_up(AtWork::Known(id));
        }
        result
    }

    /// The work on a connection that is about to be accepted.
    pub(super) fn at_new(&self) -> AtWork {
        AtWork::New {
            handle: self.inner.next_handle(),
            open: self.inner.open_connections(),
        }
    }

    /// Lets go of what panicked, and counts it.
    #[cold]
    pub(super) fn give_up(&mut self, at_work: AtWork) {
        self.stats.internal_errors += 1;
        match at_work {
            AtWork::Tables => {}
            AtWork::New { handle, open } => {
                if self.inner.open_connections() > open {
                    self.forget(handle);
                }
            }
            AtWork::Known(id) => {
                self.closed(id, CloseReason::Internal);
                if self.slot(id).is_some() {
                    self.forget(ConnectionHandle(id.slot as usize));
                    // What the connection has may be half changed: dropping it can panic as well.
                    caught(|| self.remove(id));
                }
            }
        }
    }

    /// The tables of `quinn-proto` lose a connection.
    fn forget(&mut self, handle: ConnectionHandle) {
        caught(|| self.inner.handle_event(handle, EndpointEvent::drained()));
    }
}
