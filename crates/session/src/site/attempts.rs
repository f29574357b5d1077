//! The site's connection attempts: how a path gets the connection that carries it.
//!
//! The hub moves a path to the connection that introduces itself with the highest generation. An
//! attempt that has sent its `Hello` may still be given up: another was quicker, or the old one
//! spoke again. Then the hub may have moved the path to that attempt. So the connection in charge
//! takes a still higher generation and introduces itself once more.
//!
//! While an attempt over QUIC gets answers from the hub, nothing younger is begun beside that
//! attempt: on a long path a younger one could not be done sooner.

use super::tuning::{
    ANSWER_SLACK, ANSWERS_LATE, ASSUMED_RTT_SLOW, ATTEMPT_INTERVAL, ATTEMPT_INTERVAL_MAX,
    ATTEMPT_JITTER, ATTEMPT_LIFETIME, ATTEMPTS_MAX, ATTEMPTS_QUICK, ATTEMPTS_SLOW_MAX,
    FALLBACK_AFTER, RECONNECT_AFTER, RETURN_INTERVAL,
};
use std::net::SocketAddr;

use ropewalk_core::tunnel::PathState;
use ropewalk_transport::ConnectOptions;
use ropewalk_types::{Duration, Instant, PathId};
use ropewalk_wire::{Control, Hello, emit_control};

use super::fleet::Word;
use super::path::{Attempt, SitePath};
use super::{HELLO_INTERVAL, Site};
use crate::links::{LinkId, Links};
use crate::peer::PeerPath;
use crate::settings::udp_payload_max;

/// Time between an attempt and the next one, of so many in a row; `chance` is 0 to 1.
fn interval(tries: u32, chance: f64) -> Duration {
    let doublings = tries.saturating_sub(ATTEMPTS_QUICK).min(8);
    let usual = (ATTEMPT_INTERVAL * (1 << doublings)).min(ATTEMPT_INTERVAL_MAX);
    usual.mul_f64(1.0 + ATTEMPT_JITTER * (2.0 * chance - 1.0))
}

impl Site {
    /// Looks after one path: starts and ends attempts, repeats `Hello`.
    pub(super) fn tend(&mut self, now: Instant, links: &mut Links, id: PathId) {
        let silent = match self.peer.tunnel.path_state(id) {
            Some(PathState::Suspect(since)) => now.since(since) > RECONNECT_AFTER,
            Some(PathState::Up) => false,
            None => true,
        };
        let carrier = self.peer.paths[id.index()].as_ref().map(|p| p.link);
        let on_tls = matches!(carrier, Some(LinkId::Tls(_)));
        let outdated = carrier.is_some() && self.is_outdated(links, id);
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if !path.enabled || now < path.barred_until {
            return;
        }
        let mut outranked = false;
        path.attempts.retain(|attempt| {
            let wanted = silent || on_tls || outdated;
            let keep = now.since(attempt.counts_from()) < ATTEMPT_LIFETIME && wanted;
            if !keep {
                outranked |= attempt.connected;
                links.close(now, attempt.link, "not needed any more");
            }
            keep
        });
        if outranked {
            self.outrank(now, id);
        }
        // A hub that answers needs no further attempt. One that says nothing may be left soon; one that has ended the
        // connection is there.
        let answered = self.keep_answered(now, links, id)
            || carrier.is_some() && self.is_about_to_move(now, id);
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if silent && !on_tls {
            path.quic_wanted.get_or_insert(now);
        } else if !silent {
            path.quic_wanted = None;
        }
        if !silent {
            path.tries = 0;
        } else if path.tries == 0 {
            path.next_attempt = path.next_attempt.min(now + ATTEMPT_INTERVAL);
        }
        let due = path.next_attempt <= now;
        if (silent || on_tls || outdated) && due && !answered {
            path.next_attempt = now
                + if silent {
                    path.tries = path.tries.saturating_add(1);
                    interval(path.tries, self.random.unit())
                } else {
                    RETURN_INTERVAL
                };
            self.attempt_quic(now, links, id);
        }
        let fallback = self.settings.udp_blocked_fallback;
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let overdue = path
            .quic_wanted
            .is_some_and(|at| now.since(at) > FALLBACK_AFTER);
        let lost_tls = on_tls && (silent || (outdated && due));
        if fallback && ((overdue && !answered) || lost_tls) && !path.attempts.iter().any(|a| a.tls)
        {
            self.attempt_tls(now, links, id);
        }
        self.repeat_hello(now, links, id);
    }

    /// Ends the attempts that are younger than one that the hub is answering; whether there is one.
    fn keep_answered(&mut self, now: Instant, links: &mut Links, id: PathId) -> bool {
        let Some(path) = &mut self.paths[id.index()] else {
            return false;
        };
        // What comes later may be acknowledgements of a Hello that the hub ignores.
        for attempt in path.attempts.iter_mut().filter(|a| !a.tls && !a.connected) {
            attempt.note_received(now, links.outer_counters(attempt.link).received_bytes);
        }
        let mut answered = false;
        path.attempts.retain(|attempt| {
            let keep = attempt.tls || attempt.connected || !answered;
            if !keep {
                links.close(now, attempt.link, "the hub answers an older attempt");
            }
            answered |= !attempt.tls && attempt.is_answered(now);
            keep
        });
        answered
    }

    pub(super) fn hub_address(&self, path: &SitePath) -> Option<SocketAddr> {
        path.reachable(&self.hub().addresses.load(), path.address)
    }

    pub(super) fn attempt_quic(&mut self, now: Instant, links: &mut Links, id: PathId) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let Some(remote) = self.hub_address(path) else {
            self.note_error(
                id,
                "no address of the hub's address family on this uplink".into(),
            );
            return;
        };
        let congestion = path
            .uplink
            .congestion
            .unwrap_or(self.settings.common.congestion);
        let mtu_max = udp_payload_max(path.uplink.mtu, &remote);
        let (key, own) = (self.hub().key, links.identity().public_key());
        let also = self.keys.hub_next;
        let marked_for = self.keys.marked_for(path.tries);
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let quic = || path.attempts.iter().enumerate().filter(|(_, a)| !a.tls);
        let slow = path.tries > ATTEMPTS_QUICK;
        let most = if slow {
            ATTEMPTS_SLOW_MAX
        } else {
            ATTEMPTS_MAX
        };
        if quic().count() >= most {
            // The oldest stays, and so do those that wait for the hub's welcome: on a path with a
            // long round trip nothing younger can be done sooner.
            let replaced = quic().skip(1).find(|(_, a)| !a.connected);
            let Some(replaced) = replaced.map(|(index, _)| index) else {
                return;
            };
            let attempt = path.attempts.remove(replaced);
            links.close(now, attempt.link, "replaced by a newer attempt");
            path.address = path.address.wrapping_add(1);
        }
        let options = ConnectOptions {
            congestion,
            mtu_max: Some(mtu_max),
            socket: path.open_socket(links, &remote),
            also,
            marked_for,
            group: self.keys.group(own),
            assumed_rtt: slow.then_some(ASSUMED_RTT_SLOW),
        };
        let started = links.connect_quic(now, remote, key, options);
        match started {
            Ok(link) => {
                tracing::debug!(uplink = path.uplink.name, %remote, "QUIC connection attempted");
                path.add_attempt(now, link, own, false);
            }
            Err(error) => self.note_error(id, error.to_string()),
        }
    }

    pub(super) fn attempt_tls(&mut self, now: Instant, links: &mut Links, id: PathId) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let Some(remote) = self.hub_address(path) else {
            return;
        };
        let remote = SocketAddr::new(remote.ip(), self.hub().tcp_port);
        let device = Some(path.uplink.name.as_str());
        let keys = (self.hub().key, self.keys.hub_next);
        let own = links.identity().public_key();
        let started = links.connect_tls(now, device, remote, keys);
        match (started, &mut self.paths[id.index()]) {
            (Ok(link), Some(path)) => {
                tracing::debug!(uplink = path.uplink.name, %remote, "TLS connection attempted");
                path.add_attempt(now, link, own, true);
            }
            (Err(error), _) => self.note_error(id, error.to_string()),
            (Ok(link), None) => links.close(now, link, "the path is gone"),
        }
    }

    pub(super) fn note_error(&mut self, id: PathId, error: String) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.last_error.as_ref() != Some(&error) {
            tracing::info!(
                uplink = path.uplink.name,
                error,
                "no connection to the hub yet"
            );
            path.last_error = Some(error);
        }
    }

    pub(super) fn repeat_hello(&mut self, now: Instant, links: &mut Links, id: PathId) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if path.hello_due > now {
            return;
        }
        path.hello_due = now + HELLO_INTERVAL;
        let mut due: Vec<(LinkId, u32)> = path
            .attempts
            .iter()
            .filter(|a| a.connected)
            .map(|a| (a.link, a.generation))
            .collect();
        if path.unanswered
            && let Some(carrier) = &self.peer.paths[id.index()]
        {
            due.push((carrier.link, carrier.generation));
        }
        for (link, generation) in due {
            self.hello(links, id, link, generation);
        }
    }

    pub(super) fn hello(&self, links: &mut Links, id: PathId, link: LinkId, generation: u32) {
        self.hello_with(links, id, link, generation, self.fleet.claim());
    }

    /// Introduces a connection to the hub that `word` names.
    pub(super) fn hello_with(
        &self,
        links: &mut Links,
        id: PathId,
        link: LinkId,
        generation: u32,
        word: Option<Word>,
    ) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let claim = word.map(|word| self.sign(links, id, link, word));
        let hello = Hello {
            versions: self.versions,
            session: self.session,
            path: id.0,
            generation,
            standby: path.uplink.standby,
            metered: path.uplink.metered,
            bottleneck: path.uplink.bottleneck,
            scheduler: self.peer.scheduler_receive.code(),
            weight: path.uplink.weight.unwrap_or(0),
            name: path.uplink.name.clone(),
            claim,
        };
        let mut bytes = Vec::new();
        emit_control(&Control::Hello(hello), &mut bytes);
        links.queue(link, bytes.into());
    }

    /// The attempt that carries `link`, and its path.
    pub(super) fn attempt_of(&mut self, link: LinkId) -> Option<(PathId, usize)> {
        self.ids().into_iter().find_map(|id| {
            let path = self.paths[id.index()].as_ref()?;
            let index = path.attempts.iter().position(|a| a.link == link)?;
            Some((id, index))
        })
    }

    /// The hub has answered on an attempt: it carries the path from now on.
    pub(super) fn promote(&mut self, now: Instant, links: &mut Links, id: PathId, index: usize) {
        let default_congestion = self.settings.common.congestion;
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let attempt = path.attempts.remove(index);
        if let Some(carrier) = &self.peer.paths[id.index()]
            && carrier.generation > attempt.generation
        {
            links.close(now, attempt.link, "a newer connection carries the path");
            return;
        }
        let mut outranked = false;
        path.attempts.retain(|other| {
            // While TLS carries the path, QUIC may still come up.
            let keep = attempt.tls && !other.tls;
            if !keep {
                outranked |= other.connected;
                links.close(now, other.link, "another connection carries the path");
            }
            keep
        });
        path.quic_wanted = None;
        path.last_error = None;
        path.unanswered = true;
        path.key = Some(attempt.key);
        // What made TLS win may be over at once.
        path.next_attempt = now + FALLBACK_AFTER;
        let carrier = PeerPath {
            link: attempt.link,
            generation: attempt.generation,
            name: path.uplink.name.clone(),
            config: path.config(),
            congestion: path.uplink.congestion.unwrap_or(default_congestion),
            peer_sends: Default::default(),
        };
        tracing::info!(
            uplink = carrier.name,
            transport = attempt.link.transport(),
            "path up"
        );
        self.peer.set_path(now, id, carrier);
        self.on_key_works(now, links, attempt.key);
        if outranked {
            self.outrank(now, id);
        }
    }

    /// Claims the path at the hub for the connection in charge, against attempts that were given
    /// up after their `Hello`. Attempts still under way may replace it later.
    pub(super) fn outrank(&mut self, now: Instant, id: PathId) {
        let (Some(path), Some(carrier)) = (
            &mut self.paths[id.index()],
            &mut self.peer.paths[id.index()],
        ) else {
            return;
        };
        carrier.generation = path.next_generation();
        for at in 0..path.attempts.len() {
            path.attempts[at].generation = path.next_generation();
        }
        path.unanswered = true;
        path.hello_due = now;
        self.tick = now;
    }
}

impl Attempt {
    /// The connection is up, and the hub's welcome may take as long as its first answer.
    pub(super) fn note_connected(&mut self, now: Instant) {
        self.connected = true;
        let first = self.answered.map_or(now, |(first, _)| first);
        self.answered = Some((first, now));
    }

    /// Notes how many bytes have come in over it.
    fn note_received(&mut self, now: Instant, bytes: u64) {
        if bytes > self.received {
            self.received = bytes;
            let first = self.answered.map_or(now, |(first, _)| first);
            self.answered = Some((first, now));
        }
    }

    /// Its age counts from here: one that the hub has answered goes on, however old it was then, and so does one that
    /// is connected.
    fn counts_from(&self) -> Instant {
        match self.answered {
            Some((_, last)) if self.connected => last,
            Some((first, _)) => first,
            None => self.started,
        }
    }

    /// Whether the hub has answered, and the next answer is not late yet.
    fn is_answered(&self, now: Instant) -> bool {
        self.answered.is_some_and(|(first, last)| {
            // An attempt may have begun long before the hub was there.
            let usual = (first.since(self.started) + ANSWER_SLACK).min(ATTEMPT_INTERVAL_MAX);
            now.since(last) < usual.mul_f64(ANSWERS_LATE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::StreamId;
    use ropewalk_transport::PublicKey;

    #[test]
    fn an_attempt_counts_as_answered_until_the_next_answer_is_late() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut attempt = Attempt::new(
            LinkId::Tls(StreamId(0)),
            PublicKey::from_bytes([0; 32]),
            1,
            at(0),
            false,
        );
        attempt.note_received(at(100), 0);
        assert!(!attempt.is_answered(at(100)), "nothing has come");
        attempt.note_received(at(600), 1_200);
        assert!(attempt.is_answered(at(600)) && attempt.is_answered(at(1_800)));
        assert!(!attempt.is_answered(at(2_000)), "twice 600 ms and a little");
        attempt.note_received(at(2_100), 1_200);
        assert!(!attempt.is_answered(at(2_100)), "nothing new has come");
        let mut old = attempt.clone();
        (old.received, old.answered) = (0, None);
        old.note_received(at(3_000), 1_200);
        assert!(
            old.is_answered(at(4_900)),
            "it began before the hub was there"
        );
        assert!(!old.is_answered(at(5_100)));
        attempt.note_received(at(2_200), 1_300);
        assert!(attempt.is_answered(at(3_400)), "600 ms stay the measure");
    }

    #[test]
    fn an_attempt_is_as_old_as_the_first_answer_or_the_connection() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let link = LinkId::Tls(StreamId(0));
        let mut attempt = Attempt::new(link, PublicKey::from_bytes([0; 32]), 1, at(100), false);
        assert_eq!(attempt.counts_from(), at(100));
        attempt.note_received(at(3_000), 1_200);
        attempt.note_received(at(4_000), 2_400);
        assert_eq!(
            attempt.counts_from(),
            at(3_000),
            "further answers count for nothing"
        );
        attempt.note_connected(at(5_000));
        assert_eq!(attempt.counts_from(), at(5_000));
    }

    #[test]
    fn attempts_become_rarer_up_to_a_bound_and_differ_by_chance() {
        let middle = |tries| interval(tries, 0.5);
        assert_eq!(middle(1), ATTEMPT_INTERVAL);
        assert_eq!(middle(ATTEMPTS_QUICK), ATTEMPT_INTERVAL);
        assert_eq!(middle(ATTEMPTS_QUICK + 1), ATTEMPT_INTERVAL * 2);
        assert_eq!(middle(u32::MAX), ATTEMPT_INTERVAL_MAX);
        assert!(interval(1, 0.0) < middle(1) && middle(1) < interval(1, 1.0));
    }
}
