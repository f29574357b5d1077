//! What a hub makes of a site's `Hello`: which tunnel and path the connection belongs to, and the
//! `Welcome` that answers.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use ropewalk_core::path::PathConfig;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_types::{Instant, Lines, Pace, PathId};
use ropewalk_wire::{Control, Hello, NoCommonVersion, Welcome, agree};

use super::blocks::Fragments;
use super::tuning::{MOVE_INTERVAL, MOVES, RESTART_INTERVAL, RESTARTS, SITES_MAX};
use super::{Hub, HubSite};
use crate::links::{LinkId, Links};
use crate::peer::{Peer, PeerPath};
use crate::settings::SiteEntry;

impl Hub {
    pub(super) fn on_hello(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        hello: &Hello,
    ) {
        let Some(pending) = self.pending.get(&link) else {
            return;
        };
        let key = pending.key;
        // A site whose key has just changed goes on over its old connections for a while.
        let of_site = |index: usize| Some(Arc::clone(&self.sites.get(index)?.entry));
        let entry = pending.site.and_then(of_site);
        let entry = entry.or_else(|| self.settings.sites.find(&key));
        let Some(entry) = entry.filter(|entry| entry.enabled) else {
            links.close(now, link, "this site is not enabled at the hub");
            return;
        };
        let version = match agree(self.versions, hello.versions) {
            Ok(version) => version,
            Err(problem) => {
                self.refuse_version(now, links, link, &entry, hello, &problem);
                return;
            }
        };
        let of = (&key, &entry);
        if !self.serves(now, links, link, of, hello.claim.as_ref()) {
            return;
        }
        if let Some(index) = self.sites.find(&entry.key)
            && self.has_come_back(index, link)
        {
            // Before the old tunnel was gone.
            let why = "the site has come back from another hub";
            self.drop_site(now, links, index, why);
            if !self.pending.contains_key(&link) {
                return;
            }
        }
        let Some(index) = self.site_for(now, &entry, hello.session) else {
            links.close(now, link, "the hub serves as many sites as it can");
            return;
        };
        self.ready.touch(index);
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        if site.session != hello.session && !site.restarts.allows(now, RESTART_INTERVAL, RESTARTS) {
            // The site says it again if it means it.
            return;
        }
        if let Some(pending) = self.pending.get_mut(&link)
            && pending.site.is_none()
        {
            pending.waits = false;
            pending.site = Some(index);
            site.links.push(link);
        }
        if site.session != hello.session {
            self.start_anew(now, links, index, hello.session);
        }
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        site.peer.wire_version = version;
        let wish = SchedulerKind::from_code(hello.scheduler);
        if let Some(kind) = wish
            && !site.fixed_scheduler
            && site.may_schedule(now, kind)
        {
            site.peer.tunnel.set_scheduler(kind);
        }
        let congestion = self.settings.common.congestion;
        if Self::place(now, links, site, link, hello, congestion) {
            self.welcome(links, index, link, hello);
            self.announce_served(index);
            self.announce_key(links, index, link);
        }
        self.on_key_used(now, index, key);
    }

    /// A site has started anew: its tunnel begins afresh.
    fn start_anew(&mut self, now: Instant, links: &mut Links, index: usize, session: u64) {
        let Some(site) = self.sites.get_mut(index) else {
            return;
        };
        let entry = Arc::clone(&site.entry);
        if site.session != 0 && site.peer.tunnel.any_up() && site.lines.allow(now) {
            tracing::warn!(
                site = entry.name,
                "site started anew while connected; if this repeats, two machines use its key"
            );
        }
        if site.lines.allow(now) {
            tracing::info!(site = entry.name, "site connected");
        }
        self.starts += 1;
        self.keys.forget(&entry.name);
        site.peer.close_all(now, links, "the site has started anew");
        let scheduler = site.peer.tunnel.scheduler();
        let (name, seed) = (entry.name.clone(), self.random.next_u64());
        let common = &self.settings.common;
        site.peer = Peer::new(name, entry.key, scheduler, common, None, seed);
        site.peer.set_rate(entry.rate);
        site.session = session;
    }

    /// Tells a site that there is no common version. A site that states a range takes the Welcome for a
    /// refusal, and closes the connection. An older one would take it for a tunnel.
    fn refuse_version(
        &mut self,
        now: Instant,
        links: &mut Links,
        link: LinkId,
        entry: &SiteEntry,
        hello: &Hello,
        problem: &NoCommonVersion,
    ) {
        let pending = self.pending.get_mut(&link);
        let again = pending.is_some_and(|pending| std::mem::replace(&mut pending.refused, true));
        if !again {
            self.versions_refused += 1;
            if self.version_lines.allow(now) {
                tracing::warn!(site = entry.name, %problem, "a site is refused");
            }
        }
        if hello.versions.has_ranges() {
            let refusal = Control::Welcome(Welcome {
                versions: self.versions,
                session: hello.session,
                hub_session: self.session,
                path: hello.path,
                generation: hello.generation,
                scheduler: SchedulerKind::ANY_CODE,
                addresses: Vec::new(),
                hub_addresses: Vec::new(),
                block: None,
            });
            links.queue_control(link, &refusal);
        } else if matches!(link, LinkId::Quic(_)) {
            links.close(now, link, &problem.to_string());
            self.forget_link(link);
        }
        // The end of a TLS connection has no words, and the site would try again at once. Without an answer it
        // waits.
    }

    /// Puts the connection in charge of its path, unless a newer one is, or it carries another
    /// path already. Whether it is in charge now.
    fn place(
        now: Instant,
        links: &mut Links,
        site: &mut HubSite,
        link: LinkId,
        hello: &Hello,
        congestion: ropewalk_transport::CongestionControl,
    ) -> bool {
        let id = PathId(hello.path);
        if site
            .peer
            .path_of(link)
            .is_some_and(|(carried, _)| carried != id)
        {
            links.close(now, link, "one connection carries one path");
            return false;
        }
        let config = PathConfig {
            standby: hello.standby,
            metered: hello.metered,
            bottleneck: hello.bottleneck,
            weight: (hello.weight > 0).then_some(hello.weight),
            protection_hourly: None,
        };
        match &mut site.peer.paths[id.index()] {
            Some(path) if path.link == link => {
                path.generation = path.generation.max(hello.generation);
                path.name.clone_from(&hello.name);
                path.config = config.clone();
                site.peer.tunnel.set_path_config(id, config);
            }
            // A newer connection carries the path. The site may have had this one's welcome
            // meanwhile and given the newer one up: then it says so, a round trip later.
            Some(path) if path.generation >= hello.generation => return false,
            // The site says it again if it means it.
            _ if !site.moves.allows(now, MOVE_INTERVAL, MOVES) => return false,
            _ => {
                let name = hello.name.clone();
                if site.lines.allow(now) {
                    tracing::info!(
                        site = site.entry.name,
                        path = name,
                        transport = link.transport(),
                        "path up"
                    );
                }
                let generation = hello.generation;
                site.peer.set_path(
                    now,
                    id,
                    PeerPath {
                        link,
                        generation,
                        name,
                        config,
                        congestion,
                        peer_sends: Default::default(),
                    },
                );
            }
        }
        true
    }

    fn welcome(&self, links: &mut Links, index: usize, link: LinkId, hello: &Hello) {
        let Some(site) = self.sites.get(index) else {
            return;
        };
        let prefix = |ip: &IpAddr| {
            let net = self.settings.addresses.iter().find(|net| net.contains(ip));
            net.map_or(if ip.is_ipv4() { 32 } else { 128 }, IpNet::prefix_len)
        };
        let welcome = Control::Welcome(Welcome {
            versions: self.versions,
            session: site.session,
            hub_session: site.hub_session,
            path: hello.path,
            generation: hello.generation,
            scheduler: site.peer.tunnel.scheduler().code(),
            addresses: site
                .entry
                .addresses
                .iter()
                .map(|ip| (*ip, prefix(ip)))
                .collect(),
            hub_addresses: self.settings.addresses.iter().map(IpNet::addr).collect(),
            block: site.entry.block,
        });
        links.queue_control(link, &welcome);
    }

    /// The slot of a site, made on its first visit.
    fn site_for(&mut self, now: Instant, entry: &Arc<SiteEntry>, session: u64) -> Option<usize> {
        if let Some(index) = self.sites.find(&entry.key) {
            return Some(index);
        }
        if self.sites.count() >= SITES_MAX {
            return None;
        }
        let scheduler = self.settings.common.scheduler_send;
        let (name, seed) = (entry.name.clone(), self.random.next_u64());
        let common = &self.settings.common;
        let mut peer = Peer::new(name, entry.key, scheduler, common, None, seed);
        peer.set_rate(entry.rate);
        self.admissions += 1;
        let mut lines: Lines = self
            .lines_of_dropped
            .remove(&entry.name)
            .unwrap_or_default();
        if lines.allow(now) {
            tracing::info!(site = entry.name, "site connected");
        }
        Some(self.sites.insert(HubSite {
            peer,
            entry: Arc::clone(entry),
            session,
            hub_session: self.session.wrapping_add(self.admissions),
            restarts: Pace::default(),
            schedulers: Pace::default(),
            lines,
            moves: Pace::default(),
            fixed_scheduler: false,
            spoofed: 0,
            fragments: Fragments::default(),
            memory: 0,
            out: false,
            next_key: None,
            withdrawn: false,
            withdrawn_until: Instant::ZERO,
            told: false,
            leaving: None,
            served: None,
            links: Vec::new(),
        }))
    }
}
