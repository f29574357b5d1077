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
//!   then follows the newest statement, or signs a newer one. The site does not follow what a former key of the site
//!   signed. It then signs a newer epoch for its present hub.
//! - Nothing but a signature of the site raises an epoch.
//! - Epochs end. A site that has used the last epoch stays where it is.
//! - A claim is signed with the site's key of the connection that carries the claim. The hub knows only that key.
//! - A site with one hub claims nothing, unless a hub says that another one served it before.

use std::cell::Cell;

use ropewalk_core::tunnel::PathState;
use ropewalk_transport::PublicKey;
use ropewalk_types::{Duration, Instant, PATHS_MAX, Pace, PathId};
use ropewalk_wire::{Control, Datagram, is_control};

use super::Site;
use super::move_out::Asked;
use super::spares::Spares;
use super::tuning::{
    CLAIM_GRACE, CLAIM_PATIENCE, FIRST_PATIENCE, REPEATS_DOUBLED, SPARE_PATIENCE, WARM_INTERVAL,
    WARM_PATIENCE, WELCOME_PATIENCE,
};
use crate::claim::Statement;
use crate::links::{Links, Received};
use crate::status::SessionStatus;

mod claims;
mod moving;
mod warm;

pub(super) use claims::{Word, told};
use warm::Warm;

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

/// By which an interval is longer after so many repetitions: what is slow is not made slower.
fn doubled(repetitions: u32) -> u32 {
    1 << repetitions.min(REPEATS_DOUBLED)
}

impl Site {
    /// At the start: the home serves. Hubs say so if the site has signed anything else before.
    pub(super) fn begin_fleet(&mut self) {
        if self.settings.hubs.len() > 1 {
            self.claim_anew(1);
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
            let none = self.fleet.spares.none_since();
            let now = self.peer.tunnel.now();
            tunnel.no_spare_s = none.map(|since| now.since(since).as_secs_f64());
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
        let none = silent.is_none() && !self.has_healthy_spare() && self.reaches_a_spare();
        self.fleet.spares.note_none(now, none);
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

    /// Whether a path works over which a spare is to answer.
    fn reaches_a_spare(&self) -> bool {
        self.ids().into_iter().any(|id| {
            let path = self.paths[id.index()].as_ref();
            path.is_some_and(|path| self.wants_spare(path, None))
                && self.peer.tunnel.path_state(id) == Some(PathState::Up)
        })
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

    /// How long the serving hub may still answer once the spare has.
    fn grace(&self) -> Duration {
        let rtt = |id: PathId| self.peer.tunnel.path_stats(id).map(|s| s.snapshot.srtt);
        let rtt = self.ids().into_iter().filter_map(rtt).min();
        CLAIM_GRACE + rtt.unwrap_or_default()
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
}

#[cfg(test)]
mod tests;
