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
//!   then follows the newest statement, or signs a newer one. What a former key of the site signed it does not
//!   follow: it signs a newer epoch for its present hub.
//! - Nothing but a signature of the site raises an epoch.
//! - Epochs end. A site that has used the last epoch stays where it is.
//! - A claim is signed with the site's key of the connection that carries the claim. The hub knows only that key.
//! - A site with one hub claims nothing, unless a hub says that another one served it before.

use std::cell::Cell;

use ropewalk_transport::{ConnectOptions, PublicKey};
use ropewalk_types::{Duration, Instant, PATHS_MAX, Pace, PathId};
use ropewalk_wire::{Claim, Control, Datagram, NoCommonVersion, Welcome, is_control};

use super::Site;
use super::move_out::Asked;
use super::path::SitePath;
use super::spares::Spares;
use super::tuning::{
    ASK_INTERVAL, ATTEMPT_INTERVAL, ATTEMPT_JITTER, ATTEMPT_LIFETIME, CLAIM_GRACE, CLAIM_PATIENCE,
    FIRST_PATIENCE, HELLO_INTERVAL, REPEATS_DOUBLED, SPARE_PATIENCE, TOLD, TOLD_INTERVAL,
    VERSION_RETRY, WARM_INTERVAL, WARM_PATIENCE, WARM_RETRY, WELCOME_PATIENCE,
};
use crate::claim::Statement;
use crate::links::{LinkEvent, LinkId, Links, Received};
use crate::peer::PeerPath;
use crate::session::Event;
use crate::settings::udp_payload_max;
use crate::status::SessionStatus;

/// A connection to the spare over the path of one uplink.
#[derive(Debug)]
pub(super) struct Warm {
    link: LinkId,
    /// The key of this site with which it was made.
    key: PublicKey,
    started: Instant,
    pub(super) connected: bool,
    /// When the spare is asked next.
    due: Instant,
    /// Since when it has owed an answer, and how often it was asked since.
    unanswered: Option<Instant>,
    asks: u32,
    /// Since when the tunnel had been down, or the site asked to leave, when it was asked last.
    asked_for: Option<Instant>,
    /// When it answered last.
    pub(super) answered: Option<Instant>,
    /// The generation of its `Hello`, while the spare is claimed.
    generation: Option<u32>,
}

/// That a hub serves in an epoch, before it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    epoch: u64,
    hub: PublicKey,
}

/// Which key of this site has signed a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signer {
    /// The one with which connections are made.
    Present,
    /// One that it had, or tries beside.
    Other,
}

/// By which an interval is longer after so many repetitions: what is slow is not made slower.
fn doubled(repetitions: u32) -> u32 {
    1 << repetitions.min(REPEATS_DOUBLED)
}

/// A claim to be told.
pub(super) const fn told(claim: Claim) -> Control {
    Control::Claim {
        claim,
        drained: false,
    }
}

/// What a site knows of its hubs besides their addresses.
#[derive(Debug)]
pub(super) struct Fleet {
    /// That the serving hub serves.
    claim: Option<Word>,
    /// The highest epoch that this site is known to have signed.
    pub(super) signed: u64,
    /// By the number of the path.
    pub(super) warm: [Option<Warm>; PATHS_MAX],
    /// The hub to which these lead.
    pub(super) warm_hub: Option<usize>,
    /// When the next connection to the spare is tried over each path.
    next: [Option<Instant>; PATHS_MAX],
    /// As which group the spare serves a key of this site, if it has said so.
    group: Option<(PublicKey, u8)>,
    /// What the spare is told in its `Hello`, while it is claimed.
    pub(super) claiming: Option<Word>,
    /// When the spare is told again, and how often it was.
    again: Instant,
    repeats: u32,
    /// What was signed last: it is said over several connections, and again and again.
    said: Cell<Option<Statement>>,
    /// That the serving hub wants this site to move to the spare.
    pub(super) asked: Option<Asked>,
    /// When the spare was claimed.
    claimed: Instant,
    /// Since when the hub has been silent, as this was seen last.
    outage: Option<Instant>,
    /// What is known of the hubs as spares.
    pub(super) spares: Spares,
    /// How often what hubs say of claims is checked.
    told: Pace,
    /// Claims from hubs with a wrong signature, and those that nobody looked at because there were too many.
    forged: u64,
    unchecked: u64,
    /// How often there was no newer epoch to sign.
    exhausted: u64,
    /// When this is to be looked at before the next regular time.
    pub(super) due: Option<Instant>,
}

impl Word {
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Fleet {
    /// Nothing is known of so many hubs.
    pub(super) fn new(hubs: usize) -> Self {
        Self {
            claim: None,
            signed: 0,
            warm: Default::default(),
            warm_hub: None,
            next: [None; PATHS_MAX],
            group: None,
            claiming: None,
            again: Instant::ZERO,
            repeats: 0,
            said: Cell::default(),
            asked: None,
            claimed: Instant::ZERO,
            outage: None,
            spares: Spares::new(hubs),
            told: Pace::default(),
            forged: 0,
            unchecked: 0,
            exhausted: 0,
            due: None,
        }
    }

    /// What the serving hub is told in a `Hello`.
    pub(super) const fn claim(&self) -> Option<Word> {
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
        self.fleet.claim = Some(self.word(self.serving));
    }

    /// The newest epoch is for this hub.
    pub(super) fn word(&self, hub: usize) -> Word {
        Word {
            epoch: self.fleet.signed,
            hub: self.settings.hubs[hub].key,
        }
    }

    /// What this site says over the connection of a path.
    pub(super) fn sign(&self, links: &Links, id: PathId, link: LinkId, word: Word) -> Claim {
        let warm = self.fleet.warm[id.index()].as_ref();
        let warm = warm.filter(|warm| warm.link == link).map(|warm| warm.key);
        let path = self.paths[id.index()].as_ref();
        self.sign_as(links, warm.or_else(|| path?.key_of(link)), word)
    }

    /// The same over a connection that was made with this key.
    pub(super) fn sign_as(&self, links: &Links, key: Option<PublicKey>, word: Word) -> Claim {
        // A key that has been given up signs nothing more. Its connections say what the hub knows already.
        let identity = key.and_then(|key| self.keys.identity(&key));
        let identity = identity.unwrap_or_else(|| links.identity());
        let known = self.fleet.said.get().filter(|said| {
            (said.site, said.epoch, said.hub) == (identity.public_key(), word.epoch, word.hub)
        });
        let said = known.unwrap_or_else(|| Statement::sign(identity, word.epoch, &word.hub));
        self.fleet.said.set(Some(said));
        said.claim()
    }

    /// The epoch after all that this site has signed and `told`, if there is one, and `beyond` more after that.
    pub(super) fn newer_epoch(&mut self, told: u64, beyond: u64) -> Option<u64> {
        let epoch = told.max(self.fleet.signed).checked_add(1);
        let epoch = epoch.filter(|epoch| epoch.checked_add(beyond).is_some());
        if epoch.is_none() {
            if self.fleet.exhausted == 0 {
                tracing::error!(
                    hub = self.hub().name,
                    "there is no newer epoch to sign: this site stays with its hub until it is enrolled anew"
                );
            }
            self.fleet.exhausted += 1;
        }
        epoch
    }

    /// The serving hub has proved another key: what was said of the former one is said of this one.
    pub(super) fn claim_for_new_key(&mut self, now: Instant) {
        if self.fleet.claim.is_none() {
            return;
        }
        if let Some(epoch) = self.newer_epoch(0, 0) {
            self.claim_anew(epoch);
            self.repeat_hellos(now);
        }
    }

    /// This site has given up its former key: what waits at the spare is connected with the present one.
    pub(super) fn renew_warm(&mut self, now: Instant, links: &mut Links, key: PublicKey) {
        for id in self.ids() {
            let warm = self.fleet.warm[id.index()].as_ref();
            if warm.is_some_and(|warm| warm.key != key && warm.generation.is_none()) {
                self.close_warm(now, links, id, "the site has another key now");
                self.fleet.next[id.index()] = None;
            }
        }
    }

    /// Which hub serves, if there are several, and what was counted.
    pub(super) fn fleet_status(&self, status: &mut SessionStatus) {
        if self.settings.hubs.len() > 1
            && let Some(tunnel) = status.tunnels.first_mut()
        {
            let addresses = self.hub().addresses.load();
            tunnel.serving_hub = Some(self.hub().name.clone());
            tunnel.serving_hub_addresses = addresses.iter().map(ToString::to_string).collect();
        }
        let counts = [
            ("claims_forged", self.fleet.forged),
            ("claims_unchecked", self.fleet.unchecked),
            ("epochs_exhausted", self.fleet.exhausted),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count));
        status.drops.extend(counts);
    }

    /// The hub that is claimed, or else the one at which this site waits or is to wait.
    pub(super) fn spare(&self) -> Option<usize> {
        if let Some(word) = self.fleet.claiming {
            return self
                .settings
                .hubs
                .iter()
                .position(|hub| hub.key == word.hub);
        }
        self.fleet.spares.choose(self.serving, self.fleet.warm_hub)
    }

    /// Since when no path to the serving hub has worked, if one did, or one should by now.
    pub(super) fn silent_since(&self, now: Instant) -> Option<Instant> {
        let since = self.peer.tunnel.down_since()?;
        let patience = if self.hub_session.is_some() {
            Duration::ZERO
        } else {
            FIRST_PATIENCE
        };
        (now >= since + patience).then_some(since)
    }

    /// Whether the spare may soon serve this site: it is asked in this outage, or has answered, and has
    /// [`WELCOME_PATIENCE`] for each. Until then no new connection to the serving hub is tried over a path, unless its uplink
    /// has changed meanwhile. A thousand sites that lose their hub would else spend more on those than on their moves.
    pub(super) fn is_about_to_move(&self, now: Instant, id: PathId) -> bool {
        let path = self.paths[id.index()].as_ref();
        let since = self.silent_since(now);
        let since = since.filter(|since| path.is_some_and(|path| path.changed <= *since));
        since.is_some_and(|since| {
            let waiting = self.fleet.warm.iter().flatten();
            let connected = waiting.filter(|warm| warm.connected);
            let until = connected.map(|warm| {
                let news = warm.answered.filter(|at| *at >= since);
                news.unwrap_or(since) + WELCOME_PATIENCE
            });
            // A spare that answers again and again, and takes nobody, holds nothing up for long.
            let most = since + WELCOME_PATIENCE * 2;
            until
                .max()
                .is_some_and(|at| now < (at + self.grace()).min(most))
        })
    }

    /// Whether something of this is to be looked at soon.
    pub(super) fn is_fleet_busy(&self, now: Instant) -> bool {
        let moves = self.silent_since(now).is_some() || self.fleet.asked.is_some();
        self.fleet.claiming.is_some() || self.spare().is_some() && moves
    }

    /// Whether the tunnel has just gone down, and the spare is to be asked at once.
    pub(super) fn is_spare_wanted(&self, now: Instant) -> bool {
        self.silent_since(now).is_some_and(|since| {
            // It may still owe an answer from an earlier outage.
            let unasked = |warm: &Warm| warm.connected && warm.asked_for != Some(since);
            let answered = |warm: &Warm| warm.answered.is_some_and(|at| at >= since);
            let waiting = self.fleet.warm.iter().flatten();
            self.fleet.claiming.is_none() && waiting.into_iter().any(|w| unasked(w) && !answered(w))
        })
    }

    /// Looks after the connections to the spare, and moves there if the serving hub is gone.
    pub(super) fn tend_fleet(&mut self, now: Instant, links: &mut Links) {
        self.forget_words(now);
        let Some(spare) = self.spare() else { return };
        self.wait_at(now, links, spare);
        let silent = self.silent_since(now);
        self.look_for_an_end(links, now, silent);
        for id in self.ids() {
            self.tend_warm(now, links, id, spare, silent);
        }
        self.look_for_silence(now, spare, silent);
        let Some(since) = silent else {
            if self.fleet.claiming.is_none() {
                self.leave_if_asked(now, links, spare);
            } else if self.is_asked_to_move(now) {
                self.repeat_claim(now, links);
            } else if self.peer.tunnel.any_up() {
                let asked = self.fleet.asked.is_some_and(|asked| asked.is_claimed());
                self.stay(now, links);
                if asked && self.fleet.spares.has_other(self.serving, spare) {
                    self.fleet.spares.note_silent(now, spare);
                }
            }
            return;
        };
        if self.fleet.claiming.is_some() {
            let late = now.since(self.fleet.claimed) > CLAIM_PATIENCE;
            if late && self.fleet.spares.has_other(self.serving, spare) {
                tracing::warn!(
                    hub = self.settings.hubs[spare].name,
                    "the spare does not take this site: trying another one"
                );
                self.unclaim(now, links, "this site tries another hub");
                self.fleet.spares.note_silent(now, spare);
            } else {
                self.repeat_claim(now, links);
            }
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
        // One more is for the hub that turns out to be there.
        let Some(epoch) = self.newer_epoch(0, 1) else {
            return;
        };
        self.fleet.signed = epoch;
        self.fleet.claiming = Some(self.word(spare));
        tracing::warn!(
            from = self.hub().name,
            to = self.settings.hubs[spare].name,
            epoch = self.fleet.signed,
            silent_ms = now.since(since).as_secs_f64() * 1e3,
            "no path to the hub works, and the spare answers: moving"
        );
        self.begin_claim(now, links);
    }

    /// Connections to another hub than this one are no connections to the spare any more.
    fn wait_at(&mut self, now: Instant, links: &mut Links, spare: usize) {
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
    fn has_healthy_spare(&self) -> bool {
        let mut waiting = self.fleet.warm.iter().flatten();
        waiting.any(|warm| warm.answered.is_some() && warm.unanswered.is_none())
    }

    /// A spare that answers over no path is silent, and another one has its turn if there is one.
    fn look_for_silence(&mut self, now: Instant, spare: usize, silent: Option<Instant>) {
        let none = self.fleet.warm.iter().all(Option::is_none);
        let mut paths = self.paths.iter().flatten();
        let wanted = paths.any(|path| self.wants_spare(path, silent));
        let spares = &self.fleet.spares;
        let patience = if silent.is_some() || spares.is_doubted(spare) {
            WARM_PATIENCE
        } else {
            SPARE_PATIENCE
        };
        // A spare that is to be tried later only is of no use in an outage of the hub.
        let rests = silent.is_some() && none && !spares.is_owing();
        let rests = rests && spares.has_better(self.serving, spare);
        let overdue = spares.is_overdue(now, patience) || rests;
        if !wanted && none {
            self.fleet.spares.begin();
        } else if self.has_healthy_spare() {
            self.fleet.spares.note_healthy();
        } else if self.fleet.claiming.is_none()
            && overdue
            && self.fleet.spares.has_other(self.serving, spare)
        {
            // Once until it answers.
            if !self.fleet.spares.is_doubted(spare) {
                let hub = &self.settings.hubs[spare].name;
                tracing::warn!(
                    hub,
                    "this hub does not answer as a spare: trying another one"
                );
            }
            self.fleet.spares.note_silent(now, spare);
        }
    }

    /// When the hub speaks again without a move, the uplinks were the cause, and not the hubs that were silent meanwhile.
    fn look_for_an_end(&mut self, links: &mut Links, now: Instant, silent: Option<Instant>) {
        if let (Some(began), None) = (self.fleet.outage, silent) {
            self.fleet.spares.pardon(began);
            let first = self.fleet.spares.choose(self.serving, None);
            let waits = self.fleet.claiming.is_none() && !self.has_healthy_spare();
            if waits && first != self.fleet.warm_hub {
                for id in self.ids() {
                    self.close_warm(now, links, id, "the first spare is tried again");
                }
                self.fleet.warm_hub = None;
            }
        }
        self.fleet.outage = silent;
    }

    /// Whether there is to be a connection to the spare over a path, while the hub is silent or not.
    fn wants_spare(&self, path: &SitePath, silent: Option<Instant>) -> bool {
        path.enabled && (!path.is_thrifty() || silent.is_some() || self.leaves_by_all())
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
    fn put_off_warm(&mut self, now: Instant, id: PathId, interval: Duration) {
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
    pub(super) fn close_warm(&mut self, now: Instant, links: &mut Links, id: PathId, why: &str) {
        if let Some(warm) = self.fleet.warm[id.index()].take() {
            links.close(now, warm.link, why);
        }
    }

    /// The spare speaks no version of this site: it is left alone for a while.
    pub(super) fn bar_spare(
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

    pub(super) fn warm_of(&self, link: LinkId) -> Option<PathId> {
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
            (Some(Datagram::Control(Control::Claim { claim, drained })), warm) => {
                self.on_word(now, links, received.link, drained, &claim);
                if let Some(id) = warm
                    && let Some(warm) = &mut self.fleet.warm[id.index()]
                {
                    (warm.answered, warm.unanswered, warm.asks) = (Some(now), None, 0);
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
        let mine = self.fleet.claiming.or(self.fleet.claim);
        let hub = PublicKey::from_bytes(told.hub);
        if mine.is_some_and(|mine| {
            told.epoch < mine.epoch || (told.epoch, hub) == (mine.epoch, mine.hub)
        }) {
            return;
        }
        let Some(signer) = self.signer(now, links, told) else {
            return;
        };
        let known = self.settings.hubs.iter().position(|known| known.key == hub);
        let newer = mine.is_some_and(|mine| told.epoch > mine.epoch);
        match known {
            Some(hub) if newer && self.fleet.claiming.is_none() && signer == Signer::Present => {
                self.follow(now, links, hub, told);
            }
            Some(_) | None => self.overrule(now, told),
        }
    }

    /// Whether this site has signed a claim, and with which key.
    fn signer(&mut self, now: Instant, links: &Links, told: &Claim) -> Option<Signer> {
        if !self.fleet.told.allows(now, TOLD_INTERVAL, TOLD) {
            self.fleet.unchecked += 1;
            return None;
        }
        let present = links.identity().public_key();
        if Statement::of(present, told).is_genuine() {
            return Some(Signer::Present);
        }
        let mut others = self.keys.others(present);
        if others.any(|key| Statement::of(key, told).is_genuine()) {
            return Some(Signer::Other);
        }
        drop(others);
        self.fleet.forged += 1;
        None
    }

    /// What this site says now is to hold: it signs a newer epoch, and says hello again.
    fn overrule(&mut self, now: Instant, told: &Claim) {
        let Some(epoch) = self.newer_epoch(told.epoch, 0) else {
            return;
        };
        self.fleet.signed = epoch;
        if self.fleet.claiming.is_some()
            && let Some(spare) = self.spare()
        {
            self.fleet.claiming = Some(self.word(spare));
            (self.fleet.again, self.fleet.repeats) = (now, 0);
        } else {
            self.claim_anew(epoch);
        }
        self.repeat_hellos(now);
    }

    /// This site said so before it started: that hub serves.
    fn follow(&mut self, now: Instant, links: &mut Links, hub: usize, told: &Claim) {
        self.fleet.signed = told.epoch;
        self.fleet.claim = Some(Word {
            epoch: told.epoch,
            hub: PublicKey::from_bytes(told.hub),
        });
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
        self.end_former(now, links, why);
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

    /// Says hello to the spare, for the first time.
    pub(super) fn begin_claim(&mut self, now: Instant, links: &mut Links) {
        (self.fleet.again, self.fleet.repeats) = (now, 0);
        self.fleet.claimed = now;
        self.repeat_claim(now, links);
    }

    /// Says hello to the spare on every connection that has just come up, and on all of them now and then.
    pub(super) fn repeat_claim(&mut self, now: Instant, links: &mut Links) {
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

    /// The serving hub speaks again before the spare has answered the claim, or the spare does not answer a claim of a
    /// site that shall leave: the serving hub goes on, and the spare is told.
    fn stay(&mut self, now: Instant, links: &mut Links) {
        tracing::info!(hub = self.hub().name, "the hub goes on: staying");
        self.unclaim(now, links, "the former hub serves");
    }

    /// The spare is claimed no more. What this site signs now for its hub is newer.
    fn unclaim(&mut self, now: Instant, links: &mut Links, why: &str) {
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
    fn serve_by(&mut self, now: Instant, links: &mut Links, hub: usize) {
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
    fn move_over(&mut self, now: Instant, links: &mut Links, first: PathId, welcome: &Welcome) {
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

    fn note_moved(&mut self) {
        tracing::info!(hub = self.hub().name, "another hub serves this site");
        self.events.push_back(Event::Moved {
            hub: self.hub().name.clone(),
            epoch: self.fleet.signed,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{CommonSettings, Environment, HubAddresses, SiteHub, SiteSettings};
    use ropewalk_core::schedule::SchedulerKind;
    use ropewalk_transport::{CongestionControl, Identity, Slice};
    use std::sync::Arc;

    fn identity(seed: u8) -> Identity {
        Identity::from_seed([seed; 32]).expect("every seed is a key")
    }

    /// A site whose hubs have the keys of seeds 1 and on.
    fn site(hubs: u8) -> (Site, Links) {
        let environment = Environment {
            base: std::time::Instant::now(),
            segmentation: false,
            udp_payload_max: 1_472,
            session: 1,
            tunnels: 1,
            transport: Some([1; 32]),
            slice: Slice::WHOLE,
        };
        let common = CommonSettings {
            identity: identity(7),
            scheduler_send: SchedulerKind::default(),
            scheduler_receive: SchedulerKind::default(),
            classes: Arc::default(),
            hold: Default::default(),
            send: Default::default(),
            congestion: CongestionControl::default(),
            mtu: None,
        };
        let links = Links::new(identity(7), None, common.congestion, &environment);
        let hubs = (1..=hubs).map(|seed| SiteHub {
            name: format!("hub{seed}"),
            key: identity(seed).public_key(),
            addresses: Arc::new(HubAddresses::new(&[])),
            tcp_port: 443,
        });
        let settings = SiteSettings {
            common,
            hubs: hubs.collect(),
            udp_blocked_fallback: false,
            ipv6: false,
        };
        (
            Site::new(settings, &environment),
            links.expect("a valid key"),
        )
    }

    fn claim(signer: &Identity, epoch: u64, hub: u8) -> Claim {
        Statement::sign(signer, epoch, &identity(hub).public_key()).claim()
    }

    fn epoch(site: &Site) -> Option<u64> {
        site.fleet.claim.map(|word| word.epoch)
    }

    #[test]
    fn nothing_but_its_own_signature_raises_the_epoch_of_a_site() {
        for (hubs, first) in [(1, None), (2, Some(1))] {
            let (mut site, mut links) = site(hubs);
            let now = Instant::ZERO;
            for forged in [
                claim(&identity(8), u64::MAX, 2),
                claim(&identity(8), 1, 2),
                Claim {
                    epoch: u64::MAX,
                    ..claim(&identity(7), 2, 2)
                },
            ] {
                site.on_told(now, &mut links, &forged);
                assert_eq!(epoch(&site), first, "{hubs} hubs");
            }
            assert_eq!(site.fleet.forged, 3);
            // A hub that this site does not know, of before its start.
            site.on_told(now, &mut links, &claim(&identity(7), 5, 9));
            assert_eq!(epoch(&site), Some(6), "{hubs} hubs");
            for _ in 0..100 {
                site.on_told(now, &mut links, &claim(&identity(8), 99, 2));
            }
            let (forged, unchecked) = (site.fleet.forged, site.fleet.unchecked);
            assert_eq!(forged + unchecked, 103);
            assert_eq!(forged, 3 + u64::from(TOLD) - 4, "the others cost nothing");
        }
    }

    #[test]
    fn a_site_signs_a_newer_claim_than_one_of_its_former_key() {
        let (mut site, mut links) = site(2);
        let (now, next) = (Instant::ZERO, identity(10));
        site.on_key_step(now, &mut links, crate::KeyStep::Next(next.clone()));
        site.on_key_answer(now, &mut links, String::new());
        assert_eq!(*links.identity(), next);
        for confirmed in [false, true] {
            if confirmed {
                site.on_key_works(now, &mut links, next.public_key());
            }
            let told = claim(&identity(7), 10 * (1 + u64::from(confirmed)), 2);
            site.on_told(now, &mut links, &told);
            assert_eq!(epoch(&site), Some(told.epoch + 1));
            assert_eq!(
                site.serving, 0,
                "what a former key has said is not followed"
            );
        }
        // What its present key has said is.
        site.on_told(now, &mut links, &claim(&next, 30, 2));
        assert_eq!((epoch(&site), site.serving), (Some(30), 1));
    }

    #[test]
    fn a_claim_is_signed_once_and_anew_when_it_says_something_else() {
        let (mut site, mut links) = site(2);
        let word = |epoch, hub| Word {
            epoch,
            hub: identity(hub).public_key(),
        };
        let own = identity(7).public_key();
        let first = Statement::of(own, &site.sign_as(&links, Some(own), word(1, 1)));
        assert!(first.is_genuine());
        // Whoever signs again does not come to this signature.
        let kept = Statement {
            signature: [5; 64],
            ..first
        };
        site.fleet.said.set(Some(kept));
        for key in [Some(own), None] {
            assert_eq!(site.sign_as(&links, key, word(1, 1)), kept.claim());
        }
        for other in [word(2, 1), word(1, 2)] {
            site.fleet.said.set(Some(kept));
            let said = site.sign_as(&links, Some(own), other);
            assert!(Statement::of(own, &said).is_genuine(), "{other:?}");
        }
        // The site tries another key beside.
        let next = identity(10);
        site.on_key_step(
            Instant::ZERO,
            &mut links,
            crate::KeyStep::Next(next.clone()),
        );
        site.on_key_answer(Instant::ZERO, &mut links, String::new());
        for key in [next.public_key(), own] {
            // Of the other one.
            let signer = if key == own { next.public_key() } else { own };
            site.fleet.said.set(Some(Statement {
                site: signer,
                ..kept
            }));
            let said = site.sign_as(&links, Some(key), word(1, 1));
            assert!(Statement::of(key, &said).is_genuine(), "{key}");
        }
    }

    #[test]
    fn at_the_last_epoch_a_site_stays_where_it_is() {
        let (mut site, mut links) = site(2);
        let now = Instant::ZERO;
        site.on_told(now, &mut links, &claim(&identity(7), u64::MAX, 9));
        assert_eq!(epoch(&site), Some(1));
        assert_eq!(site.fleet.exhausted, 1);
        site.on_told(now, &mut links, &claim(&identity(7), u64::MAX - 1, 9));
        assert_eq!((epoch(&site), site.serving), (Some(u64::MAX), 0));
        site.on_told(now, &mut links, &claim(&identity(7), u64::MAX, 9));
        assert_eq!(site.fleet.exhausted, 2);
        assert_eq!((epoch(&site), site.serving), (Some(u64::MAX), 0));
    }
}
