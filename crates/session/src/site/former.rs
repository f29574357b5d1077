//! The hub that this site has left on its word, while packets still come from there.
//!
//! Routers take a moment to hear of a move, and packets that were sent before it are under way in both directions. So
//! the tunnel to the former hub stays, with its own numbers, beside the new one: it takes in what the former hub
//! delivers, and repairs what it has sent. Nothing new is sent over it.
//!
//! Invariant: there is one such hub at most, for a bounded time, and it never is the serving one.

use std::mem::replace;

use ropewalk_transport::PublicKey;
use ropewalk_types::{Instant, PATHS_MAX, Pace};

use super::Site;
use super::fleet::told;
use super::tuning::{FORMER_LIFETIME, FORMER_TOLD, HELLO_INTERVAL};
use crate::links::{LinkEvent, LinkId, Links, Received};
use crate::peer::Peer;

/// A hub that the site has left.
#[derive(Debug)]
pub(super) struct Former {
    /// Its number among the hubs of the site.
    pub(super) hub: usize,
    pub(super) peer: Peer,
    until: Instant,
    /// The keys of this site with which the connections of the paths were made.
    keys: [Option<PublicKey>; PATHS_MAX],
    /// How often the former hub is told who serves when it has not heard.
    told: Pace,
}

impl Former {
    /// When something is to be done.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.peer
            .poll_timeout()
            .into_iter()
            .chain([self.until])
            .min()
    }

    fn carries(&self, link: LinkId) -> bool {
        self.peer.path_of(link).is_some()
    }
}

impl Site {
    /// The tunnel so far is that of a former hub from now on. A new one takes its place.
    pub(super) fn keep_former(&mut self, now: Instant, hub: usize) {
        let tunnel = &self.peer.tunnel;
        let (key, kind, seed) = (self.hub().key, tunnel.scheduler(), self.random.next_u64());
        let mut peer = Self::peer_of(&self.settings.common, key, kind, seed);
        peer.follow(now, &mut self.peer);
        let mut keys = [None; PATHS_MAX];
        for id in self.ids() {
            let link = self.peer.paths[id.index()].as_ref().map(|path| path.link);
            let path = self.paths[id.index()].as_ref().zip(link);
            keys[id.index()] = path.and_then(|(path, link)| path.key_of(link));
        }
        self.former = Some(Former {
            hub,
            peer: replace(&mut self.peer, peer),
            until: now + FORMER_LIFETIME,
            keys,
            told: Pace::default(),
        });
    }

    /// Tells the former hub that another one serves this site now.
    pub(super) fn tell_former(&self, links: &mut Links) {
        let (Some(former), Some(word)) = (&self.former, self.fleet.claim()) else {
            return;
        };
        for id in self.ids() {
            if let Some(path) = &former.peer.paths[id.index()] {
                let claim = self.sign_as(links, former.keys[id.index()], word);
                links.queue_control(path.link, &told(claim));
            }
        }
    }

    /// The same over the one connection on which it has just said that it has not heard. At a pace: each answer may come
    /// back as another question.
    pub(super) fn tell_former_again(&mut self, now: Instant, links: &mut Links, link: LinkId) {
        let Some((former, word)) = self.former.as_mut().zip(self.fleet.claim()) else {
            return;
        };
        let Some((id, _)) = former.peer.path_of(link) else {
            return;
        };
        if former.told.allows(now, HELLO_INTERVAL, FORMER_TOLD) {
            let key = former.keys[id.index()];
            let claim = self.sign_as(links, key, word);
            links.queue_control(link, &told(claim));
        }
    }

    /// Whether a link leads to the former hub.
    pub(super) fn is_of_former(&self, link: LinkId) -> bool {
        (self.former.as_ref()).is_some_and(|former| former.carries(link))
    }

    /// Something happened to a link; whether it leads to the former hub.
    pub(super) fn on_former_link(&mut self, now: Instant, link: LinkId, event: &LinkEvent) -> bool {
        let Some(former) = self.former.as_mut().filter(|former| former.carries(link)) else {
            return false;
        };
        if let LinkEvent::Closed { reason, .. } = event {
            tracing::debug!(reason, "a connection to the former hub is over");
            former.peer.on_link_closed(now, link);
        }
        true
    }

    /// Takes a datagram in that came from the former hub. One of another hub comes back.
    pub(super) fn on_former_datagram(
        &mut self,
        now: Instant,
        received: Received,
    ) -> Option<Received> {
        let Some(former) = &mut self.former else {
            return Some(received);
        };
        let Some((id, current)) = former.peer.path_of(received.link) else {
            return Some(received);
        };
        let tunnel = &mut former.peer.tunnel;
        // What it says besides is of a tunnel that is over.
        let _control = if current {
            tunnel.handle_datagram(now, id, received.ecn, received.data)
        } else {
            tunnel.handle_straggler(now, id, received.ecn, received.data)
        };
        None
    }

    /// Timers of the former hub, and its end.
    pub(super) fn tend_former(&mut self, now: Instant, links: &mut Links) {
        let Some(former) = &mut self.former else {
            return;
        };
        former.peer.tunnel.handle_timeout(now);
        former.peer.close_drained(now, links);
        let closed = former.peer.paths.iter().all(Option::is_none);
        // What has just come in is released before the tunnel ends.
        if former.until <= now || closed && former.peer.tunnel.poll_timeout().is_none() {
            self.end_former(now, links, "another hub serves this site");
        }
    }

    /// Nothing of the former hub counts any more.
    pub(super) fn end_former(&mut self, now: Instant, links: &mut Links, why: &str) {
        if let Some(mut former) = self.former.take() {
            former.peer.close_all(now, links, why);
        }
    }
}
