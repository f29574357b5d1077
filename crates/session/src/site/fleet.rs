//! The site's hubs: which one serves it, and how it moves to another one.
//!
//! The site keeps a connection per path to a hub that does not serve it, the spare. It says there which hub serves
//! it, and nothing else. When no path to the serving hub works, the site asks the spare. If the spare answers, and the
//! serving hub stays silent for a round trip more, the site signs the next epoch for the spare, and says `Hello`
//! there. The spare's `Welcome` moves the tunnel: to the tunnel the spare is a hub that has started anew. What was
//! held or unacknowledged is sent again.
//!
//! Invariants:
//! - While any path to the serving hub works, or the spare does not answer, nothing is claimed.
//! - The site never signs two hubs for one epoch since its start. What it signed before its start, hubs tell it: it
//!   then follows the newest statement, or signs a newer one.
//! - A site with one hub claims nothing, unless a hub says that another one served it before.

use ropewalk_transport::{ConnectOptions, PublicKey};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId};
use ropewalk_wire::{Claim, Control, Datagram, Welcome, is_control};

use super::Site;
use super::tuning::{
    ASK_INTERVAL, ATTEMPT_INTERVAL, ATTEMPT_JITTER, ATTEMPT_LIFETIME, CLAIM_GRACE, FIRST_PATIENCE,
    HELLO_INTERVAL, WARM_INTERVAL, WARM_PATIENCE, WARM_RETRY,
};
use crate::claim::Statement;
use crate::links::{LinkEvent, LinkId, Links, Received};
use crate::peer::PeerPath;
use crate::session::Event;
use crate::settings::udp_payload_max;

/// A connection to the spare over the path of one uplink.
#[derive(Debug)]
struct Warm {
    link: LinkId,
    started: Instant,
    connected: bool,
    /// When the spare is asked next.
    due: Instant,
    /// Since when it has owed an answer.
    unanswered: Option<Instant>,
    /// When it answered last.
    answered: Option<Instant>,
    /// The generation of its `Hello`, while the spare is claimed.
    generation: Option<u32>,
}

/// What a site knows of its hubs besides their addresses.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// That the serving hub serves.
    claim: Option<Claim>,
    /// The highest epoch that this site is known to have signed.
    signed: u64,
    /// By the number of the path.
    warm: [Option<Warm>; PATHS_MAX],
    /// When the next connection to the spare is tried over each path.
    next: [Option<Instant>; PATHS_MAX],
    /// Attempts in a row, for the address to try.
    tries: [usize; PATHS_MAX],
    /// As which group the spare serves a key of this site, if it has said so.
    group: Option<(PublicKey, u8)>,
    /// What the spare is told in its `Hello`, while it is claimed.
    claiming: Option<Claim>,
    /// When this is to be looked at before the next regular time.
    pub(super) due: Option<Instant>,
}

impl Fleet {
    /// What the serving hub is told in a `Hello`.
    pub(super) const fn claim(&self) -> Option<Claim> {
        self.claim
    }
}

impl Site {
    /// At the start: the home serves. Hubs say so if the site has signed anything else before.
    pub(super) fn begin_fleet(&mut self) {
        if self.settings.hubs.len() > 1 {
            self.claim_anew(1);
        }
    }

    /// The serving hub serves in a new epoch.
    fn claim_anew(&mut self, epoch: u64) {
        self.fleet.signed = self.fleet.signed.max(epoch);
        self.fleet.claim = Some(self.sign(self.serving));
    }

    /// Signs the newest epoch for a hub.
    fn sign(&self, hub: usize) -> Claim {
        let hub = &self.settings.hubs[hub].key;
        Statement::sign(&self.settings.common.identity, self.fleet.signed, hub).claim()
    }

    /// The first of the hubs that does not serve.
    fn spare(&self) -> Option<usize> {
        (0..self.settings.hubs.len()).find(|&hub| hub != self.serving)
    }

    /// Since when no path to the serving hub has worked, if one did, or one should by now.
    fn silent_since(&self, now: Instant) -> Option<Instant> {
        let since = self.peer.tunnel.down_since()?;
        let patience = if self.hub_session.is_some() {
            Duration::ZERO
        } else {
            FIRST_PATIENCE
        };
        (now >= since + patience).then_some(since)
    }

    /// Whether something of this is to be looked at soon.
    pub(super) fn is_fleet_busy(&self, now: Instant) -> bool {
        self.fleet.claiming.is_some() || self.spare().is_some() && self.silent_since(now).is_some()
    }

    /// Whether the tunnel has just gone down, and the spare is to be asked at once.
    pub(super) fn is_spare_wanted(&self, now: Instant) -> bool {
        let unasked = |warm: &Warm| warm.connected && warm.unanswered.is_none();
        self.silent_since(now).is_some_and(|since| {
            let answered = |warm: &Warm| warm.answered.is_some_and(|at| at >= since);
            let waiting = self.fleet.warm.iter().flatten();
            self.fleet.claiming.is_none() && waiting.into_iter().any(|w| unasked(w) && !answered(w))
        })
    }

    /// Looks after the connections to the spare, and moves there if the serving hub is gone.
    pub(super) fn tend_fleet(&mut self, now: Instant, links: &mut Links) {
        let Some(spare) = self.spare() else { return };
        let silent = self.silent_since(now);
        for id in self.ids() {
            self.tend_warm(now, links, id, spare, silent);
        }
        let Some(since) = silent else {
            if self.peer.tunnel.any_up() && self.fleet.claiming.is_some() {
                self.stay(now, links);
            }
            return;
        };
        if self.fleet.claiming.is_some() {
            self.repeat_claim(now, links);
            return;
        }
        let answers = self.fleet.warm.iter().flatten();
        let first = answers.filter_map(|warm| warm.answered.filter(|at| *at >= since));
        let Some(first) = first.min() else { return };
        let due = first + self.grace();
        if due > now {
            self.fleet.due = Some(due);
            return;
        }
        self.fleet.signed = self.fleet.signed.saturating_add(1);
        self.fleet.claiming = Some(self.sign(spare));
        tracing::warn!(
            from = self.hub().name,
            to = self.settings.hubs[spare].name,
            epoch = self.fleet.signed,
            silent_ms = now.since(since).as_secs_f64() * 1e3,
            "no path to the hub works, and the spare answers: moving"
        );
        self.repeat_claim(now, links);
    }

    /// How long the serving hub may still answer once the spare has.
    fn grace(&self) -> Duration {
        let rtt = |id: PathId| self.peer.tunnel.path_stats(id).map(|s| s.snapshot.srtt);
        let rtt = self.ids().into_iter().filter_map(rtt).min();
        CLAIM_GRACE + rtt.unwrap_or_default()
    }

    /// Opens, asks and gives up the connection to the spare over one path.
    fn tend_warm(
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
        let thrifty = path.uplink.standby || path.uplink.metered;
        let wanted = path.enabled && (!thrifty || silent.is_some());
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
        let asks = silent.is_some_and(|since| warm.answered.is_none_or(|at| at < since));
        if !warm.connected || (warm.due > now && !(asks && warm.unanswered.is_none())) {
            return;
        }
        warm.unanswered.get_or_insert(now);
        warm.due = now + ASK_INTERVAL;
        if let Some(claim) = claim {
            links.queue_control(warm.link, &Control::Claim(claim));
        }
    }

    fn connect_warm(
        &mut self,
        now: Instant,
        links: &mut Links,
        id: PathId,
        spare: usize,
        hurry: bool,
    ) {
        let interval = if hurry { ATTEMPT_INTERVAL } else { WARM_RETRY };
        let by_chance = 1.0 + ATTEMPT_JITTER * (2.0 * self.random.unit() - 1.0);
        self.fleet.next[id.index()] = Some(now + interval.mul_f64(by_chance));
        let hub = &self.settings.hubs[spare];
        let (key, own) = (hub.key, links.identity().public_key());
        let tries = self.fleet.tries[id.index()];
        self.fleet.tries[id.index()] = tries.wrapping_add(1);
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
        };
        match links.connect_quic(now, remote, key, options) {
            Ok(link) => {
                self.fleet.warm[id.index()] = Some(Warm {
                    link,
                    started: now,
                    connected: false,
                    due: now,
                    unanswered: None,
                    answered: None,
                    generation: None,
                });
            }
            Err(error) => tracing::debug!(%error, "no connection to the spare"),
        }
    }

    /// Ends the connection to the spare over a path, if there is one.
    pub(super) fn close_warm(&mut self, now: Instant, links: &mut Links, id: PathId, why: &str) {
        if let Some(warm) = self.fleet.warm[id.index()].take() {
            links.close(now, warm.link, why);
        }
    }

    fn warm_of(&self, link: LinkId) -> Option<PathId> {
        let mut ids = self.ids().into_iter();
        ids.find(|id| {
            let warm = self.fleet.warm[id.index()].as_ref();
            warm.is_some_and(|warm| warm.link == link)
        })
    }

    /// Something happened to a link; whether it leads to the spare.
    pub(super) fn on_warm_link(&mut self, now: Instant, link: LinkId, event: &LinkEvent) -> bool {
        let Some(id) = self.warm_of(link) else {
            return false;
        };
        match event {
            LinkEvent::Connected { .. } => {
                if let Some(warm) = &mut self.fleet.warm[id.index()] {
                    (warm.connected, warm.due) = (true, now);
                }
                self.fleet.tries[id.index()] = 0;
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

    /// A datagram came in; whether it was for this.
    pub(super) fn on_fleet_datagram(
        &mut self,
        now: Instant,
        links: &mut Links,
        received: &Received,
    ) -> bool {
        let warm = self.warm_of(received.link);
        let control = is_control(&received.data)
            .then(|| Datagram::parse(&received.data).ok())
            .flatten();
        match (control, warm) {
            (Some(Datagram::Control(Control::Claim(claim))), warm) => {
                if let Some(id) = warm
                    && let Some(warm) = &mut self.fleet.warm[id.index()]
                {
                    (warm.answered, warm.unanswered) = (Some(now), None);
                    warm.due = now + WARM_INTERVAL;
                }
                self.on_told(now, links, &claim);
                self.tick = self.tick.min(now);
                true
            }
            (Some(Datagram::Control(Control::Welcome(welcome))), Some(id)) => {
                if welcome.session == self.session && self.fleet.claiming.is_some() {
                    self.move_over(now, links, id, &welcome);
                    return false;
                }
                true
            }
            (_, warm) => warm.is_some(),
        }
    }

    /// A hub says what it knows to be the newest claim of this site.
    fn on_told(&mut self, now: Instant, links: &mut Links, told: &Claim) {
        let Some(mine) = self.fleet.claiming.or(self.fleet.claim) else {
            // A site with one hub had more before.
            self.overrule(now, told);
            return;
        };
        let same = told.epoch == mine.epoch && told.hub == mine.hub;
        if told.epoch < mine.epoch || same {
            return;
        }
        let key = self.settings.common.identity.public_key();
        if !Statement::of(key, told).is_genuine() {
            return;
        }
        let mut hubs = self.settings.hubs.iter();
        let hub = hubs.position(|hub| *hub.key.as_bytes() == told.hub);
        match hub {
            Some(hub) if told.epoch > mine.epoch && self.fleet.claiming.is_none() => {
                self.follow(now, links, hub, told);
            }
            Some(_) | None => self.overrule(now, told),
        }
    }

    /// What this site says now is to hold: it signs a newer epoch, and says hello again.
    fn overrule(&mut self, now: Instant, told: &Claim) {
        let epoch = told.epoch.max(self.fleet.signed).saturating_add(1);
        self.fleet.signed = epoch;
        if self.fleet.claiming.is_some()
            && let Some(spare) = self.spare()
        {
            self.fleet.claiming = Some(self.sign(spare));
        } else {
            self.claim_anew(epoch);
        }
        self.repeat_hellos(now);
    }

    /// This site said so before it started: that hub serves.
    fn follow(&mut self, now: Instant, links: &mut Links, hub: usize, told: &Claim) {
        self.fleet.signed = told.epoch;
        self.fleet.claim = Some(*told);
        if hub == self.serving {
            self.repeat_hellos(now);
            return;
        }
        tracing::info!(
            hub = self.settings.hubs[hub].name,
            epoch = told.epoch,
            "another hub serves this site since before the start"
        );
        let why = "another hub serves this site";
        self.serve_by(now, links, hub);
        for id in self.ids() {
            self.peer.remove_path(now, links, id, why);
            self.close_warm(now, links, id, why);
        }
        self.peer.cut_replaced(now, links, why);
        self.peer.tunnel.reset_exit();
        self.hub_session = None;
        self.note_moved();
    }

    fn repeat_hellos(&mut self, now: Instant) {
        for (path, carrier) in self.paths.iter_mut().zip(&self.peer.paths) {
            if let Some(path) = path {
                path.unanswered |= carrier.is_some();
                path.hello_due = now;
            }
        }
        for warm in self.fleet.warm.iter_mut().flatten() {
            warm.due = now;
        }
        self.tick = now;
    }

    /// Says hello to the spare on every connection that it has answered on, or that has just come up.
    fn repeat_claim(&mut self, now: Instant, links: &mut Links) {
        let Some(claim) = self.fleet.claiming else {
            return;
        };
        self.fleet.due = Some(now + HELLO_INTERVAL);
        for id in self.ids() {
            let Some(warm) = &self.fleet.warm[id.index()] else {
                continue;
            };
            if !warm.connected {
                continue;
            }
            let (link, known) = (warm.link, warm.generation);
            let generation = known.or_else(|| {
                let path = self.paths[id.index()].as_mut();
                path.map(super::path::SitePath::next_generation)
            });
            if let Some(warm) = &mut self.fleet.warm[id.index()] {
                warm.generation = generation;
            }
            if let Some(generation) = generation {
                self.hello_with(links, id, link, generation, Some(claim));
            }
        }
    }

    /// The serving hub speaks again before the spare has answered the claim: it goes on, and the spare is told.
    fn stay(&mut self, now: Instant, links: &mut Links) {
        tracing::info!(hub = self.hub().name, "the hub speaks again: staying");
        self.fleet.claiming = None;
        self.claim_anew(self.fleet.signed.saturating_add(1));
        for id in self.ids() {
            // The spare takes it for a connection of the tunnel.
            if self.fleet.warm[id.index()]
                .as_ref()
                .is_some_and(|warm| warm.generation.is_some())
            {
                self.close_warm(now, links, id, "the former hub serves");
                self.fleet.next[id.index()] = None;
            }
            self.outrank(now, id);
        }
    }

    /// Nothing of the former hub counts any more, but the paths of the tunnel.
    fn serve_by(&mut self, now: Instant, links: &mut Links, hub: usize) {
        self.serving = hub;
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
        // The former hub is the spare once it answers.
        self.fleet.next = [None; PATHS_MAX];
        self.fleet.tries = [0; PATHS_MAX];
        self.tick = now;
    }

    /// The spare has taken the site over: all paths that have a connection there switch to it.
    fn move_over(&mut self, now: Instant, links: &mut Links, first: PathId, welcome: &Welcome) {
        let (Some(spare), Some(claim)) = (self.spare(), self.fleet.claiming.take()) else {
            return;
        };
        self.serve_by(now, links, spare);
        self.fleet.claim = Some(claim);
        self.hub_session = Some(welcome.hub_session);
        // The spare counts its packets from zero. What still comes from the former hub has other numbers.
        self.peer.tunnel.reset_exit();
        let own = links.identity().public_key();
        let congestion = self.settings.common.congestion;
        for id in self.ids() {
            let warm = self.fleet.warm[id.index()].take();
            let Some(path) = &mut self.paths[id.index()] else {
                continue;
            };
            let said = warm.and_then(|warm| Some((warm.link, warm.generation?)));
            let Some((link, generation)) = said else {
                let why = "another hub serves this site";
                self.peer.remove_path(now, links, id, why);
                continue;
            };
            path.key = Some(own);
            path.last_error = None;
            path.unanswered = id != first;
            path.hello_due = now + HELLO_INTERVAL;
            let carrier = PeerPath {
                link,
                generation,
                name: path.uplink.name.clone(),
                config: path.config(),
                congestion: path.uplink.congestion.unwrap_or(congestion),
            };
            self.peer.set_path(now, id, carrier);
        }
        self.peer
            .cut_replaced(now, links, "another hub serves this site");
        self.note_moved();
    }

    fn note_moved(&mut self) {
        tracing::info!(hub = self.hub().name, "another hub serves this site");
        self.events.push_back(Event::Moved {
            hub: self.hub().name.clone(),
            epoch: self.fleet.signed,
        });
    }
}
