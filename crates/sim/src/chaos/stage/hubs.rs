//! Stories with two hubs: what hubs and sites say of who serves whom, and the rules for it.
//!
//! Invariant: nothing here happens in a story with one hub.

use ropewalk_core::tunnel::Tunnel;
use ropewalk_session::{Event, Statement};
use ropewalk_testkit::{HOME, SPARE};
use ropewalk_transport::Identity;
use ropewalk_types::{Duration, Instant};

use super::super::story::What;
use super::super::tuning::{COPIES_MAX, LOOK, TOLD_AFTER, WITHDRAWALS_MAX, WITHDRAWN_TIME};
use super::{Held, Stage, bound, name};

/// What is known of a site and its hubs.
#[derive(Debug)]
struct Ties {
    /// The hub that serves the site in its own view.
    serving: usize,
    /// The epoch of its last move since it started.
    epoch: u64,
    /// The newest epoch that any hub knew when it started.
    before: u64,
    /// When the tunnel was up last.
    up_at: Instant,
    /// By hub: when it was last cut off from the site, or one of both began anew.
    troubled_at: [Instant; 2],
    /// By hub: since when it has been within reach of the site, and nothing has happened to the two.
    near_since: [Option<Instant>; 2],
    /// How many of the site's events were looked at.
    seen: usize,
    /// What it has signed, as hubs said, the oldest first.
    signed: Vec<Statement>,
    /// Packets that came twice, and how often that was excused.
    copies: u32,
    excuses: u32,
}

/// What is known of a hub.
#[derive(Debug, Default)]
struct Knowledge {
    /// How many of its events were looked at.
    seen: usize,
    /// By site: the epoch that it knows.
    epochs: Vec<u64>,
    /// By site: since when it has had a tunnel although another hub serves.
    withdrawn: Vec<Option<Instant>>,
}

/// What stories with two hubs remember.
#[derive(Debug)]
pub(super) struct Fleet {
    sites: Vec<Ties>,
    hubs: [Knowledge; 2],
    /// When a hub is told what another one has learned.
    tales: Vec<(Instant, usize, Statement)>,
    /// The story is over, and gateways stop for good.
    over: bool,
}

impl Fleet {
    pub fn new(sites: usize) -> Self {
        let ties = |_| Ties {
            serving: HOME,
            epoch: 0,
            before: 0,
            up_at: Instant::ZERO,
            troubled_at: [Instant::ZERO; 2],
            near_since: [Some(Instant::ZERO); 2],
            seen: 0,
            signed: Vec::new(),
            copies: 0,
            excuses: 0,
        };
        let knowledge = || Knowledge {
            seen: 0,
            epochs: vec![0; sites],
            withdrawn: vec![None; sites],
        };
        Self {
            sites: (0..sites).map(ties).collect(),
            hubs: [knowledge(), knowledge()],
            tales: Vec::new(),
            over: false,
        }
    }

    /// A packet of this site came twice, and may have.
    pub fn note_copy(&mut self, site: usize) {
        self.sites[site].copies += 1;
    }

    /// An end began anew, or the site moved: packets of the site may come twice.
    pub fn note_excuse(&mut self, site: usize) {
        self.sites[site].excuses += 1;
    }

    /// The site remembers nothing any more.
    pub fn forget_site(&mut self, site: usize) {
        let ties = &mut self.sites[site];
        let newest = ties.signed.iter().map(|said| said.epoch).max();
        (ties.serving, ties.epoch, ties.seen) = (HOME, 0, 0);
        ties.before = newest.unwrap_or(0);
    }

    /// The hub remembers nothing any more.
    pub fn forget_hub(&mut self, hub: usize) {
        let knowledge = &mut self.hubs[hub];
        knowledge.seen = 0;
        knowledge.epochs.fill(0);
        knowledge.withdrawn.fill(None);
    }
}

impl Stage<'_> {
    /// Whether a hub has a tunnel for a site, and whether it serves the site.
    pub(super) fn serves(&self, hub: usize, site: usize) -> Option<bool> {
        let host = self.world.hub_at(hub)?;
        host.session.role().serves_site(&name(site))
    }

    // Events.

    /// Something happened to a site or a hub, or is over.
    pub(super) fn note_event(&mut self, what: &What) {
        let now = self.world.now();
        let (site, hub) = match *what {
            What::Cut(site, ..)
            | What::Outage(site)
            | What::Rebind(site, _)
            | What::Readdress(site, _)
            | What::Unplug(site, _)
            | What::BlockUdp(site, _)
            | What::RestartSite { site, .. }
            | What::Revoke(site)
            | What::Disable(site, _)
            | What::Leaving(site, _)
            | What::Suspend(Some(site)) => (Some(site), None),
            What::Suspend(None) => (None, Some(HOME)),
            What::RestartHub { hub, .. } | What::HubCut(hub) | What::HubAsleep(hub) => {
                (None, Some(hub))
            }
            What::Apart(site, hub) => (Some(site), Some(hub)),
            What::OutageOfAll => (None, None),
            What::Share(..)
            | What::Scheduler(..)
            | What::Behind
            | What::Forged(..)
            | What::Stale(_) => return,
        };
        for (index, ties) in self.fleet.sites.iter_mut().enumerate() {
            if site.is_none_or(|site| site == index) {
                let hubs = ties.near_since.iter_mut().enumerate();
                let meant = hubs.filter(|(index, _)| hub.is_none_or(|hub| hub == *index));
                meant.for_each(|(_, since)| *since = since.map(|_| now));
            }
        }
        self.note_reach();
    }

    /// Somebody says to a hub that a hub serves the site, and the site has not signed that.
    pub(super) fn tell_forged(&mut self, site: usize, hub: usize) -> Held {
        if !self.story.spare {
            return Ok(());
        }
        let stranger = Identity::from_seed([7; 32]).expect("every seed is a key");
        let (key, other) = (
            self.world.identity(site).public_key(),
            self.world.hub_key(1 - hub),
        );
        let mut forged = Statement::sign(&stranger, 1_000, &other);
        forged.site = key;
        let said = self.fleet.sites[site].signed.last();
        // What the site has signed, in another epoch.
        let raised = said.map(|said| Statement {
            epoch: said.epoch + 1,
            ..*said
        });
        for statement in [Some(forged), raised].into_iter().flatten() {
            if self.world.hub_at(hub).is_some() && self.world.tell_claim(hub, statement) == Ok(1) {
                let what = format!("hub {hub} takes a statement that site {site} has not signed");
                return self.broken("claims", what);
            }
        }
        Ok(())
    }

    /// Both hubs are told again what the site has signed first.
    pub(super) fn tell_stale(&mut self, site: usize) {
        let Some(said) = self.fleet.sites[site].signed.first().copied() else {
            return;
        };
        for hub in [HOME, SPARE] {
            let _old = self.world.tell_claim(hub, said);
        }
    }

    /// A hub that starts is told what all sites have signed, if hubs learn from each other.
    pub(super) fn tell_all(&mut self, hub: usize) {
        if !self.story.spare || !self.story.told {
            return;
        }
        for site in 0..self.fleet.sites.len() {
            let signed = self.fleet.sites[site].signed.iter();
            if let Some(newest) = signed.max_by_key(|said| said.epoch).copied() {
                let _news = self.world.tell_claim(hub, newest);
            }
        }
    }

    /// Tells hubs what others have learned, once that has had its time. A hub that stands still or is cut off is told
    /// later.
    fn tell_tales(&mut self) {
        let now = self.world.now();
        let tales = std::mem::take(&mut self.fleet.tales);
        for (at, hub, said) in tales {
            let hears = self.world.hub_at(hub).is_some()
                && self.hub_cut[hub] == 0
                && self.hub_asleep_until[hub] <= now;
            if at <= now && hears {
                let _news = self.world.tell_claim(hub, said);
            } else {
                self.fleet.tales.push((at, hub, said));
            }
        }
    }

    /// Reads what hubs and sites have told the control side since the last call.
    pub(super) fn follow_hubs(&mut self) -> Held {
        if !self.story.spare {
            return Ok(());
        }
        for hub in [HOME, SPARE] {
            let Some(host) = self.world.hub_at(hub) else {
                continue;
            };
            let events: Vec<Event> = host.events[self.fleet.hubs[hub].seen..]
                .iter()
                .map(|(_, event)| event.clone())
                .collect();
            self.fleet.hubs[hub].seen += events.len();
            for event in events {
                self.follow_hub(hub, &event)?;
            }
        }
        for site in 0..self.fleet.sites.len() {
            if !self.world.site_runs(site) {
                continue;
            }
            let events = &self.world.site(site).events[self.fleet.sites[site].seen..];
            let moves: Vec<(String, u64)> = events
                .iter()
                .filter_map(|(_, event)| {
                    let Event::Moved { hub, epoch } = event else {
                        return None;
                    };
                    Some((hub.clone(), *epoch))
                })
                .collect();
            self.fleet.sites[site].seen += events.len();
            for (to, epoch) in moves {
                self.follow_move(site, usize::from(to == "spare"), epoch)?;
            }
        }
        Ok(())
    }

    fn follow_hub(&mut self, hub: usize, event: &Event) -> Held {
        let Event::Served {
            site: of,
            statement: Some(said),
            ..
        } = event
        else {
            return Ok(());
        };
        let Some(site) = (0..self.fleet.sites.len()).find(|site| name(*site) == *of) else {
            // The hostile one.
            return Ok(());
        };
        if said.hub != self.world.hub_key(hub) {
            let what = format!("hub {hub} serves site {site} by a statement for another hub");
            return self.broken("served", what);
        }
        let ties = &mut self.fleet.sites[site];
        if !ties.signed.contains(said) {
            ties.signed.push(*said);
            if self.story.told {
                let at = self.world.now() + TOLD_AFTER;
                self.fleet.tales.push((at, 1 - hub, *said));
            }
        }
        self.tell(&format!(
            "hub {hub} serves site {site} in epoch {}",
            said.epoch
        ));
        Ok(())
    }

    /// The site says that it has moved.
    fn follow_move(&mut self, site: usize, to: usize, epoch: u64) -> Held {
        self.tell(&format!("site {site} moves to hub {to} in epoch {epoch}"));
        self.excuse(site);
        let ties = &mut self.fleet.sites[site];
        let (from, before) = (ties.serving, ties.epoch);
        (ties.serving, ties.epoch) = (to, epoch);
        let (up_at, troubled_at) = (ties.up_at, ties.troubled_at[from]);
        // Hubs know from before its start where it is.
        let follows = epoch <= ties.before;
        if epoch <= before {
            let what = format!("site {site} moves in epoch {epoch} after {before}");
            return self.broken("claims", what);
        }
        let late = bound(self.story, site);
        if self.story.gentle && from != to && !follows && troubled_at + late < up_at {
            let what = format!("site {site} leaves hub {from}, to which nothing has happened");
            return self.broken("moves", what);
        }
        Ok(())
    }

    // Rules.

    /// Whether packets pass between a site and a hub, and both work.
    fn is_near(&self, site: usize, hub: usize) -> bool {
        let now = self.world.now();
        let wanted = &self.wanted[site];
        let hub_works =
            self.hub_stopped[hub] + self.hub_cut[hub] == 0 && self.hub_asleep_until[hub] <= now;
        let site_works = wanted.stopped + wanted.revoked == 0 && wanted.asleep_until <= now;
        let mut uplinks = 0..self.story.sites[site].len();
        let passes = uplinks.any(|uplink| {
            wanted.cut[uplink] == [0; 2]
                && wanted.unplugged[uplink] == 0
                && wanted.blocked[uplink] == 0
                && wanted.disabled[uplink] == 0
                && wanted.leaving[uplink] == 0
        });
        hub_works && site_works && passes && wanted.apart[hub] == 0
    }

    /// Notes which hubs are within reach, and which tunnels are up.
    fn note_reach(&mut self) {
        let now = self.world.now();
        for site in 0..self.fleet.sites.len() {
            for hub in [HOME, SPARE] {
                let near = self.is_near(site, hub);
                let stopped = self.wanted[site].stopped + self.wanted[site].revoked > 0;
                let in_trouble = stopped
                    || self.wanted[site].asleep_until > now
                    || self.hub_stopped[hub] + self.hub_cut[hub] > 0
                    || self.hub_asleep_until[hub] > now
                    || self.wanted[site].apart[hub] > 0;
                let ties = &mut self.fleet.sites[site];
                ties.near_since[hub] = near.then(|| ties.near_since[hub].unwrap_or(now));
                if in_trouble {
                    ties.troubled_at[hub] = now;
                }
            }
            if self.is_tunnel_up(site) {
                self.fleet.sites[site].up_at = now;
            }
        }
    }

    /// Whether the site and the hub that it thinks serves it both have a path that works.
    fn is_tunnel_up(&self, site: usize) -> bool {
        let hub = self.fleet.sites[site].serving;
        let up = |tunnel: Option<&Tunnel>| tunnel.is_some_and(Tunnel::any_up);
        self.serves(hub, site) == Some(true)
            && up(self.world.tunnels(site)[0])
            && up(self.world.tunnel_at(hub, site))
    }

    /// What holds at any time of two hubs.
    pub(super) fn look_at_hubs(&mut self) -> Held {
        if !self.story.spare || self.fleet.over {
            return Ok(());
        }
        self.follow_hubs()?;
        self.tell_tales();
        self.note_reach();
        for hub in [HOME, SPARE] {
            self.look_at_hub(hub)?;
        }
        let now = self.world.now();
        for site in 0..self.fleet.sites.len() {
            let ties = &self.fleet.sites[site];
            let since = ties.near_since.iter().flatten().min();
            let time = bound(self.story, site);
            let due = since.is_some_and(|since| *since + time <= now) && ties.up_at + time <= now;
            if due {
                let what = format!(
                    "site {site} has had no tunnel for {time:?}, and a hub is within reach"
                );
                return self.broken("return", what);
            }
            if ties.copies > COPIES_MAX * ties.excuses {
                let (copies, times) = (ties.copies, ties.excuses);
                let what = format!("site {site}: {copies} copies after {times} new beginnings");
                return self.broken("twice", what);
            }
        }
        Ok(())
    }

    fn look_at_hub(&mut self, hub: usize) -> Held {
        let now = self.world.now();
        let Some(host) = self.world.hub_at(hub) else {
            return Ok(());
        };
        let role = host.session.role();
        let sites = self.fleet.sites.len();
        let known: Vec<_> = (0..sites)
            .map(|site| role.statement_of(&name(site)))
            .collect();
        let serves: Vec<_> = (0..sites)
            .map(|site| role.serves_site(&name(site)))
            .collect();
        let kept = role.claims_kept();
        let all = sites + usize::from(self.story.hostile);
        if kept[0] > all || kept[1] > all * WITHDRAWALS_MAX {
            return self.broken(
                "memory",
                format!("hub {hub} keeps {kept:?} claims, {all} sites"),
            );
        }
        let late = self.hub_asleep_until[hub] + LOOK > now;
        for (site, (known, serves)) in known.into_iter().zip(serves).enumerate() {
            let epoch = known.map_or(0, |known| known.epoch);
            let before = std::mem::replace(&mut self.fleet.hubs[hub].epochs[site], epoch);
            if epoch < before {
                let what = format!("hub {hub}: the epoch of site {site} falls to {epoch}");
                return self.broken("claims", what);
            }
            let key = self.world.identity(site).public_key();
            if known.is_some_and(|known| known.site != key || !known.is_genuine()) {
                let what = format!("hub {hub} believes what site {site} has not signed");
                return self.broken("claims", what);
            }
            let ours = known.is_none_or(|known| known.hub == self.world.hub_key(hub));
            if serves == Some(true) && !ours {
                let what = format!("hub {hub} serves site {site}, and knows that another does");
                return self.broken("served", what);
            }
            let withdrawn = &mut self.fleet.hubs[hub].withdrawn[site];
            let since = (serves == Some(false)).then(|| withdrawn.unwrap_or(now));
            *withdrawn = if late { since.map(|_| now) } else { since };
            if withdrawn.is_some_and(|since| since + WITHDRAWN_TIME < now) {
                let what = format!("hub {hub} keeps the tunnel of site {site}, which has moved");
                return self.broken("served", what);
            }
        }
        Ok(())
    }

    /// At the end both hubs know the same of each site, and one serves the site.
    pub(super) fn hubs_agree(&mut self) -> Held {
        self.fleet.over = true;
        if !self.story.spare {
            return Ok(());
        }
        for site in 0..self.fleet.sites.len() {
            let said = [HOME, SPARE].map(|hub| {
                let host = self.world.hub_at(hub)?;
                host.session.role().statement_of(&name(site))
            });
            let serves = [HOME, SPARE].map(|hub| self.serves(hub, site));
            let serving = self.fleet.sites[site].serving;
            let mut expected = [None; 2];
            expected[serving] = Some(true);
            if said[HOME] != said[SPARE] || serves != expected {
                let epochs = said.map(|said| said.map(|said| said.epoch));
                let what = format!(
                    "site {site}, served by hub {serving}: hubs know epochs {epochs:?}, serve {serves:?}"
                );
                return self.broken("served", what);
            }
        }
        Ok(())
    }
}

/// The longest that a look may lie back.
const _: () = assert!(LOOK.as_millis() * 2 <= Duration::from_millis(200).as_millis());
