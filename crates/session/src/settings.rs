//! What a session is given when it starts.
//!
//! Settings are checked before they get here: a session relies on the ranges that each field
//! documents. The tables [`SiteDirectory`] and [`HubAddresses`] are shared with the control side;
//! a session reads them once per handshake or connection attempt, never per packet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use ipnet::IpNet;
use ropewalk_core::hold::Limits;
use ropewalk_core::protect::Classes;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{INNER_MTU_USUAL, SendOptions};
use ropewalk_transport::{CongestionControl, Identity, PublicKey, Slice};
use ropewalk_types::{PortBlock, Quote, port_of_sender, source_of};

/// Smallest inner MTU that may be configured: IPv6 needs 1,280 bytes (RFC 8200 §5).
pub const MTU_MIN: usize = 1_280;
/// Inner MTU unless another one is configured or paths take more, bytes.
pub const MTU_DEFAULT: usize = INNER_MTU_USUAL;
/// Largest inner MTU that may be configured, bytes.
pub const MTU_MAX: usize = 9_000;
/// Smallest UDP payload that every path must take, bytes (RFC 9000 §14).
pub const UDP_PAYLOAD_MIN: u16 = 1_200;
/// Largest UDP payload that path MTU discovery tries, bytes.
pub const UDP_PAYLOAD_MAX: u16 = 8_972;

/// Largest UDP payload that leaves an interface of this MTU (bytes) whole towards `remote`, within
/// what path MTU discovery tries.
#[must_use]
pub fn udp_payload_max(mtu: u32, remote: &SocketAddr) -> u16 {
    let headers = if remote.is_ipv4() { 28 } else { 48 };
    let payload = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    payload.clamp(UDP_PAYLOAD_MIN, UDP_PAYLOAD_MAX)
}

/// What the driver of a session knows or chooses, beside the settings of the user. A simulator
/// passes random numbers that follow from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// The system's instant that is [`ropewalk_types::Instant::ZERO`] to the session.
    pub base: std::time::Instant,
    /// Whether several datagrams may leave in one segmented send.
    pub segmentation: bool,
    /// Largest UDP payload that path MTU discovery tries on accepted connections, bytes,
    /// [`UDP_PAYLOAD_MIN`]`..=`[`UDP_PAYLOAD_MAX`].
    pub udp_payload_max: u16,
    /// Random, not 0: tells this start of the gateway from others.
    pub session: u64,
    /// Random: seed of the tunnels, which decides how flows are hashed.
    pub tunnels: u64,
    /// Seed of connection identifiers; `None` lets the cryptographic library choose them.
    pub transport: Option<[u8; 32]>,
    /// Which of a hub's sites this session serves: other workers serve the others.
    pub slice: Slice,
}

/// What both roles have in common.
#[derive(Clone, Debug)]
pub struct CommonSettings {
    /// Key pair of this gateway.
    pub identity: Identity,
    /// Scheduler from here to the peer.
    pub scheduler_send: SchedulerKind,
    /// Scheduler this gateway asks its peer to use towards it.
    pub scheduler_receive: SchedulerKind,
    /// What this gateway protects against loss when sending, and how.
    pub classes: Arc<Classes>,
    /// What this gateway keeps for its peer while no path is up.
    pub hold: Limits,
    /// What published systems do otherwise when sending.
    pub send: SendOptions,
    /// Congestion control of paths that name none.
    pub congestion: CongestionControl,
    /// Inner MTU, [`MTU_MIN`]`..=`[`MTU_MAX`] bytes; `None` is [`MTU_DEFAULT`], or more where the paths take
    /// more.
    pub mtu: Option<usize>,
}

/// What a site is given.
#[derive(Clone, Debug)]
pub struct SiteSettings {
    /// What both roles have in common.
    pub common: CommonSettings,
    /// The hubs that may serve the site, the home first, then the spares; never empty. One spare is connected at a time.
    pub hubs: Vec<SiteHub>,
    /// Whether a path may fall back to TLS over TCP.
    pub udp_blocked_fallback: bool,
    /// Whether this machine can have IPv6 addresses; those that the hub assigns are left out
    /// otherwise.
    pub ipv6: bool,
}

/// A hub as a site knows it.
#[derive(Clone, Debug)]
pub struct SiteHub {
    /// Name, for people.
    pub name: String,
    /// The hub's public key: the only one accepted at its addresses.
    pub key: PublicKey,
    /// Where the hub's UDP port is reached. May change while running. Those of a spare may be unknown for a while.
    pub addresses: Arc<HubAddresses>,
    /// TCP port at the same addresses for TLS, where UDP is blocked.
    pub tcp_port: u16,
}

/// What a hub is given.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// What both roles have in common. The schedulers are those of every site at start.
    pub common: CommonSettings,
    /// UDP addresses to listen on; never empty.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses to listen on for TLS; may be empty.
    pub tcp_listen: Vec<SocketAddr>,
    /// The hub's own inner addresses with the prefix of the pool they are from.
    pub addresses: Vec<IpNet>,
    /// The sites that may connect.
    pub sites: Arc<SiteDirectory>,
    /// Memory for packets that wait for sites, bytes. Each site may take as much as is left, times its weight.
    pub memory: u64,
    /// Whether packets for ports of shared addresses, whose site is not served here, are passed on to the hub that serves
    /// the site.
    pub passes_on: bool,
}

/// What a machine is given that is to become a site.
#[derive(Clone, Debug)]
pub struct JoinSettings {
    /// Key pair that follows from the secret of the invitation.
    pub invitation: Identity,
    /// The hub's public key: the only one accepted.
    pub hub_key: PublicKey,
    /// Key that the site has made. Without it nothing is asked: the hub is only found.
    pub identity: Option<Identity>,
    /// Where the hub's UDP port is reached; never empty.
    pub hub_addresses: Vec<SocketAddr>,
    /// TCP port at the same addresses for TLS, where UDP is blocked.
    pub tcp_port: u16,
    /// Interfaces to try, each for all addresses; `None` leaves the choice to the routing table.
    pub devices: Vec<Option<String>>,
}

/// A site the hub knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteEntry {
    /// Name, unique within the hub.
    pub name: String,
    /// Its public key, unique within the hub.
    pub key: PublicKey,
    /// Its inner addresses, one per family at most, unique within the hub.
    pub addresses: Vec<IpAddr>,
    /// Networks behind it, for the sites of a relay; they overlap with nothing else of the hub.
    pub networks: Vec<IpNet>,
    /// Ports of a shared IPv4 address that it sends from and receives at; they overlap with nobody's.
    pub block: Option<PortBlock>,
    /// A disabled site keeps its addresses but may not connect.
    pub enabled: bool,
    /// Turns at a busy hub beside those of other sites, 1..=[`WEIGHT_MAX`].
    pub weight: u32,
    /// Most bits per second in each direction, in datagrams of the tunnel; `None` is without bound.
    pub rate: Option<u64>,
}

/// Largest weight of a site.
pub const WEIGHT_MAX: u32 = 100;

impl SiteEntry {
    /// Whether `other` is the same site at the same place, whatever its share and its key.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self {
            name,
            key: _,
            addresses,
            networks,
            block,
            enabled,
            weight: _,
            rate: _,
        } = self;
        (name, addresses, networks, block, enabled)
            == (
                &other.name,
                &other.addresses,
                &other.networks,
                &other.block,
                &other.enabled,
            )
    }

    /// Whether the site may have sent the inner packet that begins like this, with all of its headers: its source is
    /// of the site, and an ICMP error is about a packet to the site. `false` for later fragments from its block, which
    /// have no ports.
    #[must_use]
    pub fn sends(&self, front: &[u8]) -> bool {
        let is_own = source_of(front).is_some_and(|ip| self.owns(&ip))
            || self.block.is_some_and(|block| block.sends(front));
        is_own && self.may_quote(front)
    }

    /// Whether a packet is no ICMP error, or one about a packet to the site. Firewalls let errors pass for the sake of
    /// the connection that they quote.
    fn may_quote(&self, front: &[u8]) -> bool {
        match Quote::of(front) {
            Quote::Nothing => true,
            Quote::PacketTo(ip) if self.owns(&ip) => true,
            Quote::PacketTo(ip) => self.block.is_some_and(|block| {
                ip == IpAddr::V4(block.address)
                    && port_of_sender(front).is_some_and(|port| block.has(port))
            }),
            Quote::Unknown => false,
        }
    }

    /// Its inner IPv4 address, if it has one.
    #[must_use]
    pub fn inner_v4(&self) -> Option<Ipv4Addr> {
        let mut addresses = self.addresses.iter();
        addresses.find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        })
    }

    /// Whether all packets to and from `ip` are this site's.
    #[must_use]
    pub fn owns(&self, ip: &IpAddr) -> bool {
        self.addresses.contains(ip) || self.networks.iter().any(|net| net.contains(ip))
    }

    /// Addresses and networks, as people read them.
    #[must_use]
    pub fn places(&self) -> Vec<String> {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let networks = self.networks.iter().map(ToString::to_string);
        let block = self.block.iter().map(ToString::to_string);
        addresses.chain(networks).chain(block).collect()
    }
}

/// The sites a hub knows, replaced as a whole when the sites file changes. Keeps the last changes, so that a session
/// looks at what has changed only.
#[derive(Debug, Default)]
pub struct SiteDirectory {
    list: RwLock<SiteList>,
    /// Held while the list is changed.
    changing: Mutex<()>,
    invitations: RwLock<HashSet<PublicKey>>,
    /// Keys that sites will have, and those that they have now.
    next: RwLock<HashMap<PublicKey, PublicKey>>,
}

/// Sites by key.
pub(crate) type SiteMap = HashMap<PublicKey, Arc<SiteEntry>>;

#[derive(Debug, Default)]
struct SiteList {
    by_key: Arc<SiteMap>,
    /// How many changes there have been.
    version: u64,
    /// The last of them, oldest first.
    changes: VecDeque<SiteChange>,
}

/// The entry of one key is another one, has come, or has gone.
#[derive(Clone, Debug)]
pub(crate) struct SiteChange {
    /// The key.
    pub key: PublicKey,
    /// Before.
    pub old: Option<Arc<SiteEntry>>,
    /// Now.
    pub new: Option<Arc<SiteEntry>>,
}

/// How a list of sites differs from an earlier one.
#[derive(Debug)]
pub(crate) enum SitesSince {
    /// In this, each key once.
    Changes(Vec<SiteChange>),
    /// In more than the directory remembers: all there is now.
    All(Arc<SiteMap>),
}

/// What changes are together, each key once.
fn together<'a>(changes: impl Iterator<Item = &'a SiteChange>) -> Vec<SiteChange> {
    let mut all = Vec::<SiteChange>::new();
    let mut places = HashMap::<PublicKey, usize>::new();
    for change in changes {
        match places.get(&change.key).copied() {
            Some(place) => all[place].new.clone_from(&change.new),
            None => {
                places.insert(change.key, all.len());
                all.push(change.clone());
            }
        }
    }
    all
}

/// Changes that a directory remembers at most. More: larger changes of a list cost a session only what has changed,
/// more memory.
const CHANGES_MAX: usize = 1_024;

impl SiteDirectory {
    /// A directory of `sites`; of entries with the same key the last one counts.
    #[must_use]
    pub fn new(sites: Vec<SiteEntry>) -> Self {
        let directory = Self::default();
        directory.replace(sites);
        directory
    }

    fn list(&self) -> RwLockReadGuard<'_, SiteList> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sites there are.
    pub(crate) fn count(&self) -> usize {
        self.list().by_key.len()
    }

    /// What has changed after so many changes, and how many there are now.
    pub(crate) fn since(&self, seen: u64) -> (SitesSince, u64) {
        let list = self.list();
        let news = usize::try_from(list.version.saturating_sub(seen)).unwrap_or(usize::MAX);
        let since = match list.changes.len().checked_sub(news) {
            Some(known) => SitesSince::Changes(together(list.changes.range(known..))),
            None => SitesSince::All(Arc::clone(&list.by_key)),
        };
        (since, list.version)
    }

    /// Puts `next` in place of the list `known`, which is the present one.
    fn put(&self, known: &SiteMap, next: SiteMap) {
        let same =
            |a: &Arc<SiteEntry>, b: Option<&Arc<SiteEntry>>| b.is_some_and(|b| Arc::ptr_eq(a, b));
        let gone = known
            .iter()
            .filter(|(key, site)| !same(site, next.get(key)));
        let come = next.iter().filter(|(key, _)| !known.contains_key(key));
        let mut keys: Vec<PublicKey> = gone.chain(come).map(|(key, _)| *key).collect();
        // The order of a map by hash differs from run to run.
        keys.sort_unstable_by_key(|key| *key.as_bytes());
        let changes = keys.iter().map(|key| SiteChange {
            key: *key,
            old: known.get(key).cloned(),
            new: next.get(key).cloned(),
        });
        let changes: Vec<_> = changes.collect();
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.by_key = Arc::new(next);
        list.version += changes.len() as u64;
        list.changes.extend(changes);
        let beyond = list.changes.len().saturating_sub(CHANGES_MAX);
        list.changes.drain(..beyond);
    }

    /// The site with this key, or that will have it, enabled or not.
    #[must_use]
    pub fn find(&self, key: &PublicKey) -> Option<Arc<SiteEntry>> {
        let now = self.now_of(key).unwrap_or(*key);
        let by_key = &self.list().by_key;
        by_key.get(key).or_else(|| by_key.get(&now)).cloned()
    }

    /// Whether a site will have this key, and may connect with it already.
    #[must_use]
    pub fn is_next(&self, key: &PublicKey) -> bool {
        self.now_of(key).is_some()
    }

    /// The key that a site has now which will have this one.
    pub(crate) fn now_of(&self, key: &PublicKey) -> Option<PublicKey> {
        let next = self.next.read().unwrap_or_else(PoisonError::into_inner);
        next.get(key).copied()
    }

    /// Puts these keys that sites will have, each with the key that the site has now, in place of those that
    /// were known. Call after [`Self::replace`].
    pub fn set_next_keys(&self, keys: impl IntoIterator<Item = (PublicKey, PublicKey)>) {
        let keys = keys.into_iter().collect();
        *self.next.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Every site, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<SiteEntry>> {
        let map = Arc::clone(&self.list().by_key);
        let mut sites: Vec<_> = map.values().cloned().collect();
        sites.sort_by(|a, b| a.name.cmp(&b.name));
        sites
    }

    /// Puts `sites` in place of what was known. The session learns of it by
    /// [`Command::ReloadSites`](crate::Command::ReloadSites).
    pub fn replace(&self, sites: Vec<SiteEntry>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::clone(&self.list().by_key);
        let entry = |site: SiteEntry| match known.get(&site.key) {
            Some(known) if **known == site => Arc::clone(known),
            _ => Arc::new(site),
        };
        let next = sites.into_iter().map(|site| (site.key, entry(site)));
        self.put(&known, next.collect());
    }

    /// Takes those out that `sites` does not have, or not under the same name, at the same place and as
    /// enabled as before; whether there were any. None comes in. The session learns of it by
    /// [`Command::ReloadSites`](crate::Command::ReloadSites).
    pub fn shut_out(&self, sites: &[SiteEntry]) -> bool {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: HashMap<_, _> = sites.iter().map(|site| (site.key, site)).collect();
        let known = Arc::clone(&self.list().by_key);
        let next = self.next.read().unwrap_or_else(PoisonError::into_inner);
        let next: HashMap<_, _> = next.iter().map(|(next, now)| (*now, *next)).collect();
        let stays = |key: &PublicKey, site: &SiteEntry| {
            let key = next
                .get(key)
                .filter(|next| wanted.contains_key(next))
                .unwrap_or(key);
            wanted.get(key).is_some_and(|wanted| wanted.is_same(site))
        };
        let staying = known.iter().filter(|(key, site)| stays(key, site));
        let staying: SiteMap = staying
            .map(|(key, site)| (*key, Arc::clone(site)))
            .collect();
        let any = staying.len() < known.len();
        self.put(&known, staying);
        any
    }

    /// Puts these keys of invitations in place of those that were known. Who holds one may enrol, and
    /// do nothing else.
    pub fn set_invitations(&self, keys: impl IntoIterator<Item = PublicKey>) {
        let keys = keys.into_iter().collect();
        *self
            .invitations
            .write()
            .unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Whether this is the key of an invitation: open, used or ended.
    #[must_use]
    pub fn is_invitation(&self, key: &PublicKey) -> bool {
        self.invitations
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(key)
    }
}

/// The hub's UDP addresses as last resolved. A site loads them at every connection attempt,
/// so that a hub whose name points elsewhere is found again.
#[derive(Debug)]
pub struct HubAddresses {
    current: RwLock<Arc<[SocketAddr]>>,
}

impl HubAddresses {
    /// The addresses to begin with, preferred first.
    #[must_use]
    pub fn new(addresses: &[SocketAddr]) -> Self {
        Self {
            current: RwLock::new(addresses.into()),
        }
    }

    /// The addresses, preferred first.
    #[must_use]
    pub fn load(&self) -> Arc<[SocketAddr]> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `addresses` in place of what was known.
    pub fn store(&self, addresses: &[SocketAddr]) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = addresses.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: [u8; 4] = [203, 0, 113, 7];
    const INNER: [u8; 4] = [10, 9, 0, 2];
    const BEHIND: [u8; 4] = [10, 9, 5, 6];
    const OTHER: [u8; 4] = [192, 0, 2, 9];

    /// An IPv4 packet of this protocol with these bytes.
    fn ip(protocol: u8, from: [u8; 4], to: [u8; 4], contents: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[3] = u8::try_from(20 + contents.len()).expect("short");
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&from);
        packet[16..20].copy_from_slice(&to);
        packet.extend_from_slice(contents);
        packet
    }

    /// An ICMP error about a packet of UDP to this address and port.
    fn error(from: [u8; 4], to: [u8; 4], port: u16) -> Vec<u8> {
        let mut udp = [0; 8];
        udp[2..4].copy_from_slice(&port.to_be_bytes());
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(ip(17, OTHER, to, &udp));
        ip(1, from, OTHER, &message)
    }

    #[test]
    fn an_icmp_error_is_about_a_packet_to_the_site_by_whichever_address_it_comes() {
        let site = SiteEntry {
            name: "site".to_owned(),
            key: PublicKey::from_bytes([1; 32]),
            addresses: vec![INNER.into()],
            networks: vec!["10.9.5.0/24".parse().expect("a network")],
            block: PortBlock::new(SHARED.into(), 1_024, 2_031),
            enabled: true,
            weight: 1,
            rate: None,
        };
        for from in [INNER, BEHIND, SHARED] {
            // From the shared address the port of the quote must be one of the site.
            let own_port = 1_500;
            for (to, port, own) in [
                (SHARED, own_port, true),
                (SHARED, 2_032, false),
                (INNER, own_port, true),
                (BEHIND, own_port, true),
                (OTHER, own_port, false),
            ] {
                let packet = error(from, to, port);
                assert_eq!(site.sends(&packet), own, "{from:?} about {to:?}:{port}");
            }
        }
        assert!(!site.sends(&error(OTHER, INNER, 1_500)));
    }
}
