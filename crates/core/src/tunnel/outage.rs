//! Outages of all paths: when one begins and ends, and what of before it is sent again.
//!
//! Both ends probe silent paths, and every probe says which number came last. So the first probe of
//! the peer is the first sign of life, half a round trip after the return. It also tells what the
//! outage swallowed. Sending begins then, without waiting for an acknowledgement.

use super::paths::{Path, Paths};
use super::tuning::{AWAITED_SILENCE, HEARD_SILENCE, NACK_BYTES};
use super::{Outgoing, Tunnel};
use crate::hold::Turn;
use crate::hold::freeze::Outlook;
use bytes::{Bytes, BytesMut};
use ropewalk_types::{Instant, PacketInfo, PathId};
use ropewalk_wire::{HEADROOM, NACK_RUNS_MAX, emit_nack};

impl Paths {
    /// Whether no path is known to work; none at all is no path that works, either.
    pub fn all_down(&self) -> bool {
        self.iter().all(|(_, path)| path.suspect())
    }

    /// When the last of the silent paths fell silent; `None` while none is.
    pub fn silent_since(&self) -> Option<Instant> {
        let silences = self
            .iter()
            .filter_map(|(_, path)| path.liveness.suspect_since());
        silences.max()
    }

    /// Moves what paths carried before they fell silent to what is doubtful, now that a path can
    /// take it.
    pub fn collect_undelivered(&mut self) {
        for (_, path) in self.map.iter_mut() {
            if let Some(since) = path.liveness.undelivered.take() {
                self.doubtful.extend(path.sent_log.take_since(since));
            }
        }
    }

    /// A datagram of the peer came over a path. When no path works and nothing had come for a
    /// while, that is the first sign that this path is back. The acknowledgement of a probe takes a
    /// whole round trip, the peer's probe half of one.
    ///
    /// While the announced end of the last path is awaited, since then, both ends probe it all the time. Once
    /// their probes have crossed, less silence means that it has ended and begun again; true then.
    pub fn on_heard(&mut self, now: Instant, id: PathId, awaited: Option<Instant>) -> bool {
        let Some(path) = self.map.get_mut(id) else {
            return false;
        };
        let heard_before = std::mem::replace(&mut path.liveness.heard_at, now);
        let silence = now.since(heard_before);
        let crossed = awaited.is_some_and(|since| heard_before >= since + path.snapshot.srtt);
        if crossed && !path.usable() && silence >= AWAITED_SILENCE && !self.all_down() {
            if let Some(path) = self.map.get_mut(id) {
                path.liveness.excuse_peer(now);
            }
            self.state_changed = true;
            return true;
        }
        let Some(path) = self.map.get_mut(id) else {
            return false;
        };
        if !path.suspect() || silence < HEARD_SILENCE || !self.all_down() {
            return false;
        }
        if let Some(path) = self.map.get_mut(id) {
            path.liveness.revive(now);
            self.state_changed = true;
            self.declared_lost = self.declared_lost.with(id);
        }
        false
    }

    /// The peer says which number it got last on a path. Where that path is in doubt, all that was
    /// sent after that one and a round trip ago is lost, and no longer in flight.
    pub fn on_newest(&mut self, now: Instant, id: PathId, newest: u16) {
        let Some(path) = self.map.get_mut(id) else {
            return;
        };
        if path.liveness.undelivered.take().is_none() && !path.in_doubt(now) {
            return;
        }
        let before = now - path.snapshot.srtt - 2 * path.snapshot.rttvar;
        let known = self.doubtful.len();
        self.doubtful
            .extend(path.sent_log.take_after(newest, before));
        if self.doubtful.len() > known {
            self.declared_lost = self.declared_lost.with(id);
        }
    }

    /// A path on which everything in flight is lost; each is named once.
    pub fn poll_declared_lost(&mut self) -> Option<PathId> {
        let id = self.declared_lost.iter().next()?;
        self.declared_lost = self.declared_lost.without(id);
        Some(id)
    }

    /// The end of a path is near, or is not after all.
    pub fn set_leaving(&mut self, id: PathId, leaving: bool) {
        if let Some(path) = self.map.get_mut(id) {
            self.state_changed |= path.liveness.leaving != leaving;
            path.liveness.leaving = leaving;
        }
    }
}

impl Tunnel {
    /// Begins to hold, or ends it. What was under way goes first: it is older.
    pub(super) fn follow_outage(&mut self, now: Instant) {
        let all_down = self.paths.all_down();
        match self.hold.follow(now, all_down) {
            None => {}
            Some(Turn::Down) if self.hold.is_outage() => {
                let silence = self.paths.silent_since().unwrap_or(now);
                self.egress.reorder.requests.on_down(silence);
                self.egress.fragments.pause();
                self.ingress.queue.hold();
                self.freezer.on_down();
            }
            // Before the first path is up nothing is lost that ever worked.
            Some(Turn::Down) => {}
            Some(Turn::Back(since)) => {
                self.rest.postpone(now);
                self.ingress.queue.replay(now);
                self.freezer.on_back(now);
                self.egress.reorder.requests.on_back(now);
                self.egress.fragments.resume(now);
                self.reinject(now);
                for (_, path) in self.paths.iter_mut() {
                    path.sent_log.skip(now.since(since));
                }
            }
        }
    }

    /// Stops senders when the last path is about to end, and lets them go.
    pub(super) fn follow_freeze(&mut self, now: Instant) {
        self.freezer.follow(now, self.outlook(now));
        if self.hold.since().is_none() && self.freezer.asks(now) {
            self.paths.ask_all();
        }
    }

    fn outlook(&self, now: Instant) -> Outlook {
        let usable = |path: &Path| path.usable();
        let certain = |path: &Path| path.usable() && !path.in_doubt(now);
        if self.hold.since().is_some() {
            Outlook::Down
        } else if self.paths.iter().any(|(_, path)| certain(path)) {
            Outlook::Fine
        } else if self.paths.is_empty() || self.paths.iter().any(|(_, path)| usable(path)) {
            Outlook::Unclear
        } else {
            Outlook::Ending
        }
    }

    /// Sends what was acknowledged here and is missed again.
    pub(super) fn resend_promised(&mut self, now: Instant) {
        if self.hold.since().is_some() {
            return;
        }
        let mut again = Vec::new();
        self.freezer.handle_timeout(now, &mut again);
        for (packet, checksum_partial) in again {
            let Some(info) = PacketInfo::parse(&packet) else {
                continue;
            };
            let mut data = BytesMut::zeroed(HEADROOM);
            data.extend_from_slice(&packet);
            self.enqueue(now, data, checksum_partial, &info, true);
        }
    }

    /// The tunnel ends: connections whose senders were acknowledged what is not delivered yet are reset,
    /// others that were stopped may go on. Poll for inner packets afterwards.
    pub fn abandon(&mut self, now: Instant) {
        self.tick(now);
        self.freezer.abandon();
    }

    /// Appends the probes that are due in an outage, and with each the NACK for what is missing:
    /// the first that gets through finds everything out.
    pub(super) fn poll_outage(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let before = out.len();
        self.paths.poll_probes(now, out);
        let probed: Vec<PathId> = out[before..].iter().map(|probe| probe.path).collect();
        if probed.is_empty() {
            return;
        }
        let mut runs = Vec::new();
        let requests = &self.egress.reorder.requests;
        requests.outstanding(NACK_RUNS_MAX, &mut runs);
        for id in probed {
            let Some(path) = self.paths.get_mut(id).filter(|_| !runs.is_empty()) else {
                continue;
            };
            let mut bytes = Vec::new();
            emit_nack(path.stamp(now, NACK_BYTES), &runs, &mut bytes);
            out.push(Outgoing {
                path: id,
                datagram: Bytes::from(bytes),
                dscp: 0,
                urgent: true,
            });
        }
    }

    /// A path on which everything in flight is lost, though its transport may not know yet. The
    /// lost bytes leave the window. Poll before [`Tunnel::poll_transmit`] and report the path again
    /// after it.
    pub fn poll_declared_lost(&mut self) -> Option<PathId> {
        self.paths.poll_declared_lost()
    }

    /// Says how many tunnels of this process are in an outage. These tunnels share their probes.
    pub fn set_outages(&mut self, tunnels: u32) {
        self.paths.outages = tunnels.max(1);
    }

    /// Since when every path is down; `None` while one is up.
    #[must_use]
    pub const fn down_since(&self) -> Option<Instant> {
        self.hold.since()
    }

    /// Bytes of inner packets that are held, or were and still wait for their turn.
    #[must_use]
    pub const fn held_bytes(&self) -> u64 {
        self.ingress.queue.held_bytes()
    }

    /// The end of a path is near. Both ends use it only as the last one, until it has been silent
    /// and come back, or `leaving` is taken back.
    pub fn set_leaving(&mut self, id: PathId, leaving: bool) {
        self.paths.set_leaving(id, leaving);
    }

    /// Whether the end of a path has been announced here.
    #[must_use]
    pub fn is_leaving(&self, id: PathId) -> bool {
        self.paths.get(id).is_some_and(Path::is_leaving)
    }
}
