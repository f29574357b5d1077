//! The connections to the spare, one over each uplink: made, asked, given up.

use ropewalk_transport::{ConnectOptions, PublicKey};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};
use ropewalk_wire::NoCommonVersion;

use super::doubled;
use super::told;
use crate::links::{LinkEvent, LinkId, Links};
use crate::settings::udp_payload_max;
use crate::site::Site;
use crate::site::path::SitePath;
use crate::site::tuning::{
    ASK_INTERVAL, ATTEMPT_INTERVAL, ATTEMPT_JITTER, ATTEMPT_LIFETIME, VERSION_RETRY, WARM_PATIENCE,
    WARM_RETRY,
};

/// A connection to the spare over the path of one uplink.
#[derive(Debug)]
pub(in crate::site) struct Warm {
    pub(super) link: LinkId,
    /// The key of this site with which it was made.
    pub(super) key: PublicKey,
    pub(super) started: Instant,
    pub(in crate::site) connected: bool,
    /// When the spare is asked next.
    pub(super) due: Instant,
    /// Since when it has owed an answer, and how often it was asked since.
    pub(super) unanswered: Option<Instant>,
    pub(super) asks: u32,
    /// Since when the tunnel had been down, or the site asked to leave, when it was asked last.
    pub(super) asked_for: Option<Instant>,
    /// When it answered last.
    pub(in crate::site) answered: Option<Instant>,
    /// The generation of its `Hello`, while the spare is claimed.
    pub(super) generation: Option<u32>,
}

impl Site {
    /// This site has given up its former key: what waits at the spare is connected with the present one.
    pub(in crate::site) fn renew_warm(&mut self, now: Instant, links: &mut Links, key: PublicKey) {
        for id in self.ids() {
            let warm = self.fleet.warm[id.index()].as_ref();
            if warm.is_some_and(|warm| warm.key != key && warm.generation.is_none()) {
                self.close_warm(now, links, id, "the site has another key now");
                self.fleet.next[id.index()] = None;
            }
        }
    }

    /// Connections to another hub than this one are no connections to the spare any more.
    pub(super) fn wait_at(&mut self, now: Instant, links: &mut Links, spare: usize) {
        if self.fleet.warm_hub == Some(spare) {
            return;
        }
        for id in self.ids() {
            self.close_warm(now, links, id, "another hub is the spare");
        }
        self.fleet.warm_hub = Some(spare);
        self.fleet.next = [None; PATHS_MAX];
        self.fleet.group = None;
        self.fleet.spares.begin();
        if self.fleet.spares.was_silent(spare) && self.silent_since(now).is_none() {
            for id in self.ids() {
                self.put_off_warm(now, id, WARM_RETRY);
            }
        }
    }

    /// Whether a connection to the spare owes nothing.
    pub(super) fn has_healthy_spare(&self) -> bool {
        let mut waiting = self.fleet.warm.iter().flatten();
        waiting.any(|warm| warm.answered.is_some() && warm.unanswered.is_none())
    }

    /// Whether there is to be a connection to the spare over a path, while the hub is silent or not.
    pub(super) fn wants_spare(&self, path: &SitePath, silent: Option<Instant>) -> bool {
        path.enabled && (!path.is_thrifty() || silent.is_some() || self.leaves_by_all())
    }

    /// Opens, asks and gives up the connection to the spare over one path.
    pub(super) fn tend_warm(
        &mut self,
        now: Instant,
        links: &mut Links,
        id: PathId,
        spare: usize,
        silent: Option<Instant>,
    ) {
        let Some(path) = &self.paths[id.index()] else {
            return;
        };
        let wanted = self.wants_spare(path, silent);
        let claim = self.fleet.claim;
        let Some(warm) = &mut self.fleet.warm[id.index()] else {
            let due = self.fleet.next[id.index()].is_none_or(|at| at <= now);
            if wanted && due {
                self.connect_warm(now, links, id, spare, silent.is_some());
            }
            return;
        };
        let late = !warm.connected && now.since(warm.started) > ATTEMPT_LIFETIME;
        let mute = warm
            .unanswered
            .is_some_and(|since| now.since(since) > WARM_PATIENCE);
        if !wanted || late || mute {
            self.close_warm(now, links, id, "not needed any more");
            return;
        }
        let asked = self.fleet.asked.map(|asked| asked.since);
        let news = silent.or(asked);
        let asks = news.is_some_and(|since| warm.answered.is_none_or(|at| at < since));
        let is_news = asks && warm.asked_for != news;
        if !warm.connected || (warm.due > now && !is_news) {
            return;
        }
        if is_news {
            warm.asks = 0;
        }
        warm.asked_for = news;
        warm.unanswered.get_or_insert(now);
        self.fleet.spares.note_asked(now);
        warm.due = now + ASK_INTERVAL * doubled(warm.asks);
        warm.asks += 1;
        let link = warm.link;
        if let Some(claim) = claim {
            let claim = self.sign(links, id, link, claim);
            links.queue_control(link, &told(claim));
        }
    }

    /// The next connection to the spare over a path is tried after this time, a little longer or shorter by chance.
    pub(super) fn put_off_warm(&mut self, now: Instant, id: PathId, interval: Duration) {
        let by_chance = 1.0 + ATTEMPT_JITTER * (2.0 * self.random.unit() - 1.0);
        self.fleet.next[id.index()] = Some(now + interval.mul_f64(by_chance));
    }

    fn connect_warm(
        &mut self,
        now: Instant,
        links: &mut Links,
        id: PathId,
        spare: usize,
        hurry: bool,
    ) {
        if self.fleet.spares.is_barred(spare) {
            return;
        }
        let interval = if hurry { ATTEMPT_INTERVAL } else { WARM_RETRY };
        self.put_off_warm(now, id, interval);
        // A hub that cannot be reached from here is silent, too.
        self.fleet.spares.note_asked(now);
        let hub = &self.settings.hubs[spare];
        let (key, own) = (hub.key, links.identity().public_key());
        let tries = self.fleet.spares.next_try(spare, id);
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        let Some(remote) = path.reachable(&hub.addresses.load(), tries) else {
            return;
        };
        let group = self.fleet.group.filter(|(key, _)| *key == own);
        let options = ConnectOptions {
            congestion: path
                .uplink
                .congestion
                .unwrap_or(self.settings.common.congestion),
            mtu_max: Some(udp_payload_max(path.uplink.mtu, &remote)),
            socket: path.open_socket(links, &remote),
            also: None,
            marked_for: None,
            group: group.map(|(_, group)| group),
            assumed_rtt: None,
        };
        match links.connect_quic(now, remote, key, options) {
            Ok(link) => {
                self.fleet.warm[id.index()] = Some(Warm {
                    link,
                    key: own,
                    started: now,
                    connected: false,
                    due: now,
                    unanswered: None,
                    asks: 0,
                    asked_for: None,
                    answered: None,
                    generation: None,
                });
            }
            Err(error) => tracing::debug!(%error, "no connection to the spare"),
        }
    }

    /// Ends the connection to the spare over a path, if there is one.
    pub(in crate::site) fn close_warm(
        &mut self,
        now: Instant,
        links: &mut Links,
        id: PathId,
        why: &str,
    ) {
        if let Some(warm) = self.fleet.warm[id.index()].take() {
            links.close(now, warm.link, why);
        }
    }

    /// The spare speaks no version of this site: it is left alone for a while.
    pub(in crate::site) fn bar_spare(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        problem: &NoCommonVersion,
    ) {
        if self.warm_of(link).is_none() {
            return;
        }
        let words = format!("the spare: {problem}");
        tracing::error!(retry_s = VERSION_RETRY.as_secs_f64(), "{words}");
        self.fleet.claiming = None;
        for id in self.ids() {
            self.close_warm(now, links, id, &words);
            self.note_error(id, words.clone());
        }
        if let Some(hub) = self.fleet.warm_hub {
            self.fleet.spares.bar(now, hub);
        }
    }

    pub(in crate::site) fn warm_of(&self, link: LinkId) -> Option<PathId> {
        let mut ids = self.ids().into_iter();
        ids.find(|id| {
            let warm = self.fleet.warm[id.index()].as_ref();
            warm.is_some_and(|warm| warm.link == link)
        })
    }

    /// Something happened to a link; whether it leads to the spare.
    pub(in crate::site) fn on_warm_link(
        &mut self,
        now: Instant,
        link: LinkId,
        event: &LinkEvent,
    ) -> bool {
        let Some(id) = self.warm_of(link) else {
            return false;
        };
        match event {
            LinkEvent::Connected { .. } => {
                if let Some(warm) = &mut self.fleet.warm[id.index()] {
                    (warm.connected, warm.due) = (true, now);
                }
                if let Some(hub) = self.fleet.warm_hub {
                    self.fleet.spares.reached(hub, id);
                }
            }
            LinkEvent::Closed { reason, group, .. } => {
                self.fleet.warm[id.index()] = None;
                tracing::debug!(reason, "a connection to the spare is over");
                if let Some(group) = *group {
                    let own = self.settings.common.identity.public_key();
                    let news = self.fleet.group.replace((own, group)) != Some((own, group));
                    if news {
                        self.fleet.next[id.index()] = None;
                    }
                }
            }
        }
        self.tick = self.tick.min(now);
        true
    }
}
