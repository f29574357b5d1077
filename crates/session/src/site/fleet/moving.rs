//! The move to the spare: claimed, taken back, made.

use ropewalk_types::{Instant, PATHS_MAX, PathId};
use ropewalk_wire::Welcome;

use super::doubled;
use crate::links::Links;
use crate::peer::PeerPath;
use crate::session::Event;
use crate::site::Site;
use crate::site::path::SitePath;
use crate::site::tuning::{HELLO_INTERVAL, WARM_RETRY};

impl Site {
    /// Says hello to the spare, for the first time.
    pub(in crate::site) fn begin_claim(&mut self, now: Instant, links: &mut Links) {
        (self.fleet.again, self.fleet.repeats) = (now, 0);
        self.fleet.claimed = now;
        self.repeat_claim(now, links);
    }

    /// Says hello to the spare on every connection that has just come up, and on all of them now and then.
    pub(in crate::site) fn repeat_claim(&mut self, now: Instant, links: &mut Links) {
        let Some(claim) = self.fleet.claiming else {
            return;
        };
        let again = self.fleet.again <= now;
        if again {
            // A hub that is drained tells few sites at a time.
            let alone = self.silent_since(now).is_none();
            let longer = if alone {
                1
            } else {
                doubled(self.fleet.repeats)
            };
            self.fleet.again = now + HELLO_INTERVAL * longer;
            self.fleet.repeats += 1;
        }
        self.fleet.due = Some(self.fleet.again);
        for id in self.ids() {
            let Some(warm) = &self.fleet.warm[id.index()] else {
                continue;
            };
            if !warm.connected || !again && warm.generation.is_some() {
                continue;
            }
            let (link, known) = (warm.link, warm.generation);
            let generation = known.or_else(|| {
                let path = self.paths[id.index()].as_mut();
                path.map(SitePath::next_generation)
            });
            if let Some(warm) = &mut self.fleet.warm[id.index()] {
                warm.generation = generation;
            }
            if let Some(generation) = generation {
                self.hello_with(links, id, link, generation, Some(claim));
            }
        }
    }

    /// The serving hub goes on, and the spare is told. Either the hub speaks again before the spare has answered the claim,
    /// or the spare does not answer a claim of a site that shall leave.
    pub(super) fn stay(&mut self, now: Instant, links: &mut Links) {
        tracing::info!(hub = self.hub().name, "the hub goes on: staying");
        self.unclaim(now, links, "the former hub serves");
    }

    /// The spare is claimed no more. What this site signs now for its hub is newer.
    pub(super) fn unclaim(&mut self, now: Instant, links: &mut Links, why: &str) {
        (self.fleet.claiming, self.fleet.asked) = (None, None);
        if let Some(epoch) = self.newer_epoch(0, 0) {
            self.claim_anew(epoch);
        }
        for id in self.ids() {
            // The spare takes it for a connection of the tunnel.
            if self.fleet.warm[id.index()]
                .as_ref()
                .is_some_and(|warm| warm.generation.is_some())
            {
                self.close_warm(now, links, id, why);
                self.fleet.next[id.index()] = None;
            }
            self.outrank(now, id);
        }
    }

    /// Nothing of the former hub counts any more, but the paths of the tunnel.
    pub(super) fn serve_by(&mut self, now: Instant, links: &mut Links, hub: usize) {
        self.serving = hub;
        self.fleet.asked = None;
        self.fleet.outage = None;
        self.fleet.spares.serves(hub);
        self.keys.on_moved();
        self.fleet.group = None;
        self.peer.key = self.settings.hubs[hub].key;
        for path in self.paths.iter_mut().flatten() {
            for attempt in path.attempts.drain(..) {
                links.close(now, attempt.link, "another hub serves this site");
            }
            (path.next_attempt, path.tries, path.address) = (now, 0, 0);
            (path.barred_until, path.quic_wanted) = (now, None);
        }
        // Another hub is the spare, once it answers.
        self.fleet.next = [None; PATHS_MAX];
        self.fleet.warm_hub = None;
        self.tick = now;
    }

    /// The spare has taken the site over: all paths that have a connection there switch to it.
    pub(super) fn move_over(
        &mut self,
        now: Instant,
        links: &mut Links,
        first: PathId,
        welcome: &Welcome,
    ) {
        let (Some(spare), Some(claim)) = (self.spare(), self.fleet.claiming.take()) else {
            return;
        };
        let planned = self.fleet.asked.is_some() && self.peer.tunnel.any_up();
        let former = self.serving;
        self.serve_by(now, links, spare);
        self.fleet.claim = Some(claim);
        self.hub_session = Some(welcome.hub_session);
        // The spare counts its packets from zero. What still comes from the former hub has other numbers.
        self.end_former(now, links, "another hub serves this site");
        if planned {
            self.keep_former(now, former);
        } else {
            self.peer.tunnel.reset_exit();
        }
        let congestion = self.settings.common.congestion;
        for id in self.ids() {
            let warm = self.fleet.warm[id.index()].take();
            let Some(path) = &mut self.paths[id.index()] else {
                continue;
            };
            let said = warm.and_then(|warm| Some((warm.link, warm.key, warm.generation?)));
            let Some((link, key, generation)) = said else {
                let why = "another hub serves this site";
                self.peer.remove_path(now, links, id, why);
                continue;
            };
            path.key = Some(key);
            path.last_error = None;
            path.unanswered = id != first;
            path.hello_due = now + HELLO_INTERVAL;
            let carrier = PeerPath {
                link,
                generation,
                name: path.uplink.name.clone(),
                config: path.config(),
                congestion: path.uplink.congestion.unwrap_or(congestion),
                peer_sends: Default::default(),
            };
            self.peer.set_path(now, id, carrier);
        }
        self.peer
            .cut_replaced(now, links, "another hub serves this site");
        if !planned {
            // It was silent a moment ago. A thousand sites that try it at once take the time of those that still move. It is
            // tried first even so: a hub that was merely unreachable may hear of the move from this site alone.
            self.fleet.spares.note_left(former);
            self.wait_at(now, links, former);
            for id in self.ids() {
                self.put_off_warm(now, id, WARM_RETRY);
            }
        }
        self.tell_former(links);
        self.note_moved();
    }

    pub(super) fn note_moved(&mut self) {
        tracing::info!(hub = self.hub().name, "another hub serves this site");
        self.events.push_back(Event::Moved {
            hub: self.hub().name.clone(),
            epoch: self.fleet.signed,
        });
    }
}
