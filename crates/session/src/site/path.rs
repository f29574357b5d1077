//! A path of the site: its uplink, its socket, and the attempts to connect it.

use std::net::SocketAddr;

use ropewalk_core::path::PathConfig;
use ropewalk_transport::{PublicKey, SocketId};
use ropewalk_types::Instant;

use super::leaving::Leaving;
use crate::command::Uplink;
use crate::links::{LinkId, Links, any_address};

/// A connection on its way to carrying a path.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) link: LinkId,
    /// The key of this site with which it was made.
    pub(super) key: PublicKey,
    pub(super) generation: u32,
    pub(super) started: Instant,
    pub(super) connected: bool,
    pub(super) tls: bool,
    /// Bytes that came in.
    pub(super) received: u64,
    /// When the first and the last of them came before the connection was up, as far as somebody looked. Once the connection
    /// is up the last one is that moment.
    pub(super) answered: Option<(Instant, Instant)>,
}

impl Attempt {
    pub(super) const fn new(
        link: LinkId,
        key: PublicKey,
        generation: u32,
        started: Instant,
        tls: bool,
    ) -> Self {
        Self {
            link,
            key,
            generation,
            started,
            connected: false,
            tls,
            received: 0,
            answered: None,
        }
    }
}

/// One path, connected or not.
#[derive(Debug)]
pub(super) struct SitePath {
    pub(super) uplink: Uplink,
    pub(super) enabled: bool,
    /// By address family, IPv4 first: trying the hub's other address must not end what is there.
    pub(super) sockets: [Option<SocketId>; 2],
    pub(super) attempts: Vec<Attempt>,
    pub(super) generation: u32,
    /// The key of this site with which the link in use was made, if there is or was one.
    pub(super) key: Option<PublicKey>,
    /// Link in use whose `Hello` is unanswered, if any.
    pub(super) unanswered: bool,
    pub(super) hello_due: Instant,
    pub(super) next_attempt: Instant,
    /// When the uplink changed last.
    pub(super) changed: Instant,
    /// Until when nothing is tried: the hub speaks no version of this site.
    pub(super) barred_until: Instant,
    /// Attempts in a row since the path fell silent.
    pub(super) tries: u32,
    /// What was said of its end.
    pub(super) leaving: Leaving,
    /// Since when QUIC has been wanted and not had.
    pub(super) quic_wanted: Option<Instant>,
    /// Which of the hub's addresses to try.
    pub(super) address: usize,
    pub(super) last_error: Option<String>,
    pub(super) failures: u64,
}

impl SitePath {
    /// `generation` is the last one of the path with this number before: the hub may still know that path.
    pub(super) fn new(now: Instant, uplink: Uplink, enabled: bool, generation: u32) -> Self {
        Self {
            uplink,
            enabled,
            sockets: [None; 2],
            attempts: Vec::new(),
            generation,
            key: None,
            unanswered: false,
            hello_due: now,
            next_attempt: now,
            changed: now,
            barred_until: now,
            tries: 0,
            leaving: Leaving::default(),
            quic_wanted: None,
            address: 0,
            last_error: None,
            failures: 0,
        }
    }

    /// The key of this site with which a connection of the path was made.
    pub(super) fn key_of(&self, link: LinkId) -> Option<PublicKey> {
        let attempt = self.attempts.iter().find(|attempt| attempt.link == link);
        attempt.map(|attempt| attempt.key).or(self.key)
    }

    /// Whether it is used as little as possible.
    pub(super) const fn is_thrifty(&self) -> bool {
        self.uplink.standby || self.uplink.metered
    }

    pub(super) fn config(&self) -> PathConfig {
        PathConfig {
            standby: self.uplink.standby,
            metered: self.uplink.metered,
            bottleneck: self.uplink.bottleneck,
            weight: self.uplink.weight,
            protection_hourly: self.uplink.protection_hourly,
        }
    }

    /// The one of these addresses to use in this try, of those whose address family the uplink has.
    pub(super) fn reachable(&self, addresses: &[SocketAddr], tries: usize) -> Option<SocketAddr> {
        let families = &self.uplink.addresses;
        let fits = |hub: &&SocketAddr| families.iter().any(|a| a.is_ipv4() == hub.is_ipv4());
        let usable: Vec<_> = addresses.iter().filter(fits).collect();
        (!usable.is_empty()).then(|| *usable[tries % usable.len()])
    }

    /// The path's UDP socket for the family of `remote`, asked for if there is none.
    pub(super) fn open_socket(&mut self, links: &mut Links, remote: &SocketAddr) -> SocketId {
        let device = Some(self.uplink.name.as_str());
        *self.sockets[usize::from(remote.is_ipv6())]
            .get_or_insert_with(|| links.open_udp(any_address(remote), device))
    }

    pub(super) fn add_attempt(&mut self, now: Instant, link: LinkId, key: PublicKey, tls: bool) {
        let generation = self.next_generation();
        let attempt = Attempt::new(link, key, generation, now, tls);
        self.attempts.push(attempt);
    }

    /// Generations rise with every connection and every claim of the path.
    pub(super) const fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}
