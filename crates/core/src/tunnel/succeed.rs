//! A tunnel that takes the place of another one, whose peer goes on for a while.
//!
//! The peer of the new tunnel knows nothing of the former one, so all numbers begin anew. What was sent to the former
//! peer stays with the former tunnel, which repairs it and takes in what that peer still delivers. What has not been
//! sent goes to the new peer. Send buffers, which experiments use, stay: their packets are bound already. Invariant: a
//! packet is sent by one of the two tunnels only.

use super::Tunnel;
use crate::reorder::Inner;
use core::mem::swap;
use ropewalk_types::{Instant, PathId};

impl Tunnel {
    /// Takes over from `former` what waits for a path, what is known of hosts, and counters. `self` is new, and has
    /// been made with the same configuration. `former` gets no more inner packets: its caller goes on with datagrams,
    /// timeouts and [`Self::poll_transmit`], and takes what it delivers from [`Self::poll_inner_of`].
    pub fn take_over(&mut self, now: Instant, former: &mut Self) {
        self.tick(now);
        former.tick(now);
        // Packets that wait are sorted by it.
        self.flow_secret = former.flow_secret;
        swap(&mut self.ingress.queue, &mut former.ingress.queue);
        swap(&mut self.ingress.scheduler, &mut former.ingress.scheduler);
        let paths: Vec<PathId> = former.paths.iter().map(|(id, _)| id).collect();
        for id in paths {
            self.ingress.on_path_removed(id);
        }
        // Senders that are acknowledged or stopped here are so whichever peer serves them.
        swap(&mut self.freezer, &mut former.freezer);
        swap(&mut self.too_big, &mut former.too_big);
        swap(&mut self.hold, &mut former.hold);
        swap(&mut self.observed, &mut former.observed);
        self.stats = former.stats;
        self.rest.busy(now);
    }

    /// The next inner packet of the tunnel that this one has taken over from, in the order of that tunnel.
    pub fn poll_inner_of(&mut self, former: &mut Self) -> Option<Inner> {
        loop {
            let inner = former.egress.reorder.poll()?;
            if let Some(inner) = self.pass(inner) {
                return Some(inner);
            }
        }
    }
}
