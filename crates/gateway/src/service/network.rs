//! Sets up this machine around a running engine: addresses and routes of the TUN interface,
//! forwarding, address translation.
//!
//! Invariant: changes that outlive the process are recorded in [`Changes`] first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use ipnet::IpNet;
use ropewalk_io::netlink::{self, Interface, RouteSpec};
use ropewalk_io::nft::{self, Egress, HubNat, Net, NftError, Translation};
use ropewalk_io::sysctl;

use ropewalk_types::PortBlock;

use crate::sites::Sites;
use ropewalk_config::HubConfig;
use ropewalk_config::egress::Allowed;
use ropewalk_host::{Changes, settings};

/// Start of the names of nftables tables; the TUN interface's name follows.
const TABLE_PREFIX: &str = "ropewalk_";

/// Whether two networks have addresses in common.
#[must_use]
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Networks this machine is in; empty when netlink says nothing.
#[must_use]
pub fn local_networks() -> Vec<IpNet> {
    let interfaces = netlink::snapshot().unwrap_or_default();
    networks(&interfaces, |_| false)
        .into_iter()
        .map(|(_, net)| net)
        .collect()
}

/// Refuses pools that overlap with a network this machine is in already, but by an interface that
/// `own` holds for.
///
/// # Errors
/// Names pool, interface and network.
pub fn check_pools(
    interfaces: &[Interface],
    own: impl Fn(&Interface) -> bool,
    pools: &[(&str, IpNet)],
) -> anyhow::Result<()> {
    for (key, pool) in pools {
        let networks = networks(interfaces, &own);
        let taken = networks.iter().find(|(_, net)| overlap(net, pool));
        if let Some((name, net)) = taken {
            bail!(
                "the pool {key} = \"{pool}\" in [pool] overlaps with {net} on {name}; choose \
                 another network, and invite the sites again"
            );
        }
    }
    Ok(())
}

/// Refuses shared addresses that an interface of this machine has: the kernel would answer for the sites.
///
/// # Errors
/// Names address and interface.
pub fn check_shared(interfaces: &[Interface], shared: &[Ipv4Addr]) -> anyhow::Result<()> {
    for interface in interfaces {
        let mut own = interface.addresses.iter();
        if let Some(taken) = own.find(|own| shared.iter().any(|ip| own.ip == IpAddr::V4(*ip))) {
            bail!(
                "the shared address {} in [pool] is an address of this machine, on {}; take it from the \
                 interface, or share another address that is routed to this machine",
                taken.ip,
                interface.name
            );
        }
    }
    Ok(())
}

/// The `pools` of a relay that lie in no network of the hub that gave it `addresses`: the hub does
/// not route them.
pub fn unrouted<'a>(pools: &'a [IpNet], addresses: &'a [IpNet]) -> impl Iterator<Item = &'a IpNet> {
    let of_hub = |pool: &IpNet| addresses.iter().any(|net| net.trunc().contains(pool));
    pools.iter().filter(move |pool| !of_hub(pool))
}

/// The networks of all interfaces but those that `own` holds for, with the names of the interfaces.
pub fn networks(
    interfaces: &[Interface],
    own: impl Fn(&Interface) -> bool,
) -> Vec<(String, IpNet)> {
    let others = interfaces.iter().filter(|interface| !own(interface));
    let addresses = others.flat_map(|interface| {
        let of = move |address: &netlink::Address| {
            let net = IpNet::new(address.ip, address.prefix).ok()?.trunc();
            Some((interface.name.clone(), net))
        };
        interface.addresses.iter().filter_map(of)
    });
    addresses.collect()
}

/// The interface of the engine.
#[derive(Clone, Debug)]
pub struct Tun {
    /// Name.
    pub name: String,
    /// Kernel index.
    pub ifindex: u32,
}

impl Tun {
    /// Name of the nftables table that belongs to this interface.
    #[must_use]
    pub fn table(&self) -> String {
        self.table_of(TABLE_PREFIX)
    }

    /// Name of another table of it, which begins with `prefix`.
    #[must_use]
    pub(super) fn table_of(&self, prefix: &str) -> String {
        let sound = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.name.chars().map(sound).collect();
        format!("{prefix}{name}")
    }

    /// Whether the interface can have IPv6 addresses.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        sysctl::interface_has_ipv6(&self.name)
    }

    /// Gives the interface its addresses and sets it up.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn configure(&self, addresses: &[IpNet]) -> anyhow::Result<()> {
        netlink::set_up(self.ifindex).with_context(|| format!("cannot set {} up", self.name))?;
        for address in addresses {
            netlink::add_address(self.ifindex, address.addr(), address.prefix_len())
                .with_context(|| format!("cannot give {} the address {address}", self.name))?;
        }
        Ok(())
    }

    /// Gives the interface the addresses again that another program has taken, while it is up. Whether any was missing.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn keep(&self, addresses: &[IpNet]) -> anyhow::Result<bool> {
        let interfaces = netlink::addresses().context("cannot list the interfaces")?;
        let own = interfaces.iter().find(|own| own.index == self.ifindex);
        let Some(own) = own.filter(|own| own.up) else {
            return Ok(false);
        };
        let possible = |address: &&IpNet| address.addr().is_ipv4() || self.has_ipv6();
        let there = |address: &IpNet| own.addresses.iter().any(|is| is.ip == address.addr());
        let mut missing = addresses.iter().filter(possible).filter(|a| !there(a));
        let is_missing = missing.clone().next().is_some();
        missing.try_for_each(|address| {
            netlink::add_address(self.ifindex, address.addr(), address.prefix_len())
                .with_context(|| format!("cannot give {} the address {address}", self.name))
        })?;
        Ok(is_missing)
    }

    /// Takes addresses from the interface.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn withdraw<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a IpNet>,
    ) -> anyhow::Result<()> {
        for address in addresses {
            netlink::delete_address(self.ifindex, address.addr(), address.prefix_len())
                .with_context(|| format!("cannot take the address {address} from {}", self.name))?;
        }
        Ok(())
    }

    /// Sends `routes` into the interface; those of families without an address are left out and
    /// returned.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn add_routes(&self, routes: &[IpNet], addresses: &[IpNet]) -> anyhow::Result<Vec<IpNet>> {
        let is_led = |route: &&IpNet| has_family(addresses, route);
        let (led, left_out): (Vec<&IpNet>, Vec<&IpNet>) = routes.iter().partition(is_led);
        self.lead(led)?;
        Ok(left_out.into_iter().copied().collect())
    }

    /// Sets those of these routes again that are gone. Returns them, and the first error: the interface is down, it is
    /// not permitted, or the kernel refuses.
    pub fn keep_routes<'a>(
        &self,
        routes: impl IntoIterator<Item = &'a IpNet>,
    ) -> (Vec<IpNet>, Option<anyhow::Error>) {
        let (mut again, mut failed) = (Vec::new(), None);
        for part in routes.into_iter().flat_map(|route| halves(*route)) {
            let kept = netlink::keep_route(&self.route(part, None))
                .with_context(|| format!("cannot route {part} into {}", self.name));
            match kept {
                Ok(true) => again.push(part),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        (again, failed)
    }

    fn route(&self, to: IpNet, mtu: Option<u32>) -> RouteSpec {
        RouteSpec {
            destination: to.addr(),
            prefix: to.prefix_len(),
            ifindex: self.ifindex,
            gateway: None,
            table: None,
            metric: None,
            mtu,
        }
    }

    /// Sends `routes` into the interface, whether or not it has an address.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn lead<'a>(&self, routes: impl IntoIterator<Item = &'a IpNet>) -> anyhow::Result<()> {
        self.lead_up_to(routes, None)
    }

    /// The same for packets of at most `mtu` bytes, if that is given. The kernel tells senders of larger ones.
    ///
    /// # Errors
    /// As [`Self::lead`].
    pub fn lead_up_to<'a>(
        &self,
        routes: impl IntoIterator<Item = &'a IpNet>,
        mtu: Option<u32>,
    ) -> anyhow::Result<()> {
        for part in routes.into_iter().flat_map(|route| halves(*route)) {
            netlink::add_route(&self.route(part, mtu))
                .with_context(|| format!("cannot route {part} into {}", self.name))?;
        }
        Ok(())
    }
}

/// Whether one of the addresses is of the family of `route`.
pub fn has_family(addresses: &[IpNet], route: &IpNet) -> bool {
    let ipv4 = route.addr().is_ipv4();
    addresses.iter().any(|own| own.addr().is_ipv4() == ipv4)
}

/// Two halves in place of a default route: they win over every other default route without
/// replacing it. Sockets of paths are bound to their interfaces and still find those.
fn halves(route: IpNet) -> Vec<IpNet> {
    if route.prefix_len() > 0 {
        return vec![route];
    }
    route
        .subnets(1)
        .map_or_else(|_| vec![route], Iterator::collect)
}

/// The part of a hub's configuration that this machine can carry out. Without IPv6 the hub serves its
/// sites over IPv4 alone.
///
/// # Errors
/// Nothing is left: the pool has IPv6 only, or every address to listen on is one of IPv6.
pub fn usable(config: &HubConfig) -> anyhow::Result<HubConfig> {
    let mut usable = config.clone();
    if sysctl::has_ipv6() {
        return Ok(usable);
    }
    usable.pool_v6 = None;
    if !settings::kernel_has_ipv6() {
        usable.listen.retain(SocketAddr::is_ipv4);
        usable.tcp_listen.retain(SocketAddr::is_ipv4);
    }
    if usable.pool_v4.is_none() || usable.listen.is_empty() {
        bail!(
            "this machine has no IPv6, and [pool] or [listen] has nothing else; add IPv4 there, or \
             switch IPv6 on (sysctl net.ipv6.conf.all.disable_ipv6=0)"
        );
    }
    if config.pool_v6.is_some() {
        tracing::warn!("this machine has no IPv6: the hub carries IPv4 only");
    }
    Ok(usable)
}

/// Forwarding and address translation of a hub.
///
/// # Errors
/// Not permitted, or `nft` is missing or refuses.
pub fn set_up_hub(changes: &mut Changes, nat: &HubNat, config: &HubConfig) -> anyhow::Result<()> {
    if !config.forward {
        return Ok(());
    }
    changes.table(&nat.table)?;
    nft::apply_hub(nat).context(
        "cannot set up address translation; install nftables, or set forward = false in [network]",
    )?;
    // Last, and so undone first: nothing is forwarded that the rules have not seen.
    if config.pool_v4.is_some() {
        changes.sysctl("net.ipv4.ip_forward", "1")?;
    }
    if config.pool_v6.is_some() {
        settings::forward_ipv6(changes)?;
    }
    Ok(())
}

/// The firewall rules of a hub.
#[must_use]
pub fn hub_nat(tun: &Tun, config: &HubConfig) -> HubNat {
    HubNat {
        table: tun.table(),
        tun: tun.name.clone(),
        pool_v4: config.pool_v4.and_then(|pool| match pool {
            IpNet::V4(pool) => Some((pool.network(), pool.prefix_len())),
            IpNet::V6(_) => None,
        }),
        pool_v6: config.pool_v6.and_then(|pool| match pool {
            IpNet::V6(pool) => Some((pool.network(), pool.prefix_len())),
            IpNet::V4(_) => None,
        }),
        translation: if config.masquerade {
            Translation::Masquerade
        } else {
            Translation::None
        },
        egress: None,
        passed: config.passed().to_vec(),
        onward: config.onward.clone(),
    }
}

/// Lets packets in that another hub has passed on, or that come by way of another hub than the one by which their site
/// sends. The strict check of RFC 3704 §2.2 demands that both ways are the same.
pub fn loosen(changes: &mut Changes, interfaces: &[Interface]) {
    for interface in interfaces.iter().filter(|one| !one.loopback) {
        settings::loosen_reverse_path(changes, &interface.name);
    }
}

/// Networks that sites do not reach through a hub unless they are allowed: those that lead to
/// somebody's own machines (RFC 1918, RFC 6598, RFC 4193), to a link (RFC 3927, RFC 4291 §2.5.6), to
/// this machine, and to the services of a provider for its own machines. Addresses that hold one of IPv4
/// would lead around all of these (RFC 3056, RFC 4291 §2.5.5, RFC 4380, RFC 6052, RFC 8215).
const CLOSED: [&str; 20] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "240.0.0.0/4",
    "2001::/32",
    "2002::/16",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "::/96",
    "::1/128",
    "::ffff:0:0/96",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
];

/// What the sites of a hub may reach, by its configuration, its list of sites and the networks of this
/// machine. A relay closes its own sites to one another, and leaves the rest to the next hub.
#[must_use]
pub fn egress(config: &HubConfig, sites: &Sites, interfaces: &[Interface]) -> Egress {
    let pools = config.pool_v4.into_iter().chain(config.pool_v6);
    let mut closed: Vec<IpNet> = pools.collect();
    // Whoever is behind a shared address is another site.
    let shared = config.shared.iter().flat_map(|shared| &shared.addresses);
    closed.extend(shared.map(|ip| IpNet::from(IpAddr::V4(*ip))));
    if !config.is_relay() {
        closed.extend(CLOSED.iter().filter_map(|net| net.parse::<IpNet>().ok()));
        let own = |interface: &Interface| config.common.owns(&interface.name);
        closed.extend(networks(interfaces, own).into_iter().map(|(_, net)| net));
    }
    let (ipv4, ipv6) = (config.pool_v4.is_some(), config.pool_v6.is_some());
    closed.retain(|net| if net.addr().is_ipv4() { ipv4 } else { ipv6 });
    closed.sort();
    closed.dedup();
    let resolve = |allowed: &Allowed| {
        let found = sites.resolve(allowed);
        if found.is_empty() {
            tracing::warn!(%allowed, "`allow` names a site that this hub does not know");
        }
        found
    };
    let nets = |allowed: &[Allowed]| -> Vec<Net> {
        let found = allowed.iter().flat_map(resolve);
        found.map(|net| (net.addr(), net.prefix_len())).collect()
    };
    let special = sites.all().iter().filter_map(|site| {
        let places = site.places().map(|net| (net.addr(), net.prefix_len()));
        Some((places.collect(), nets(site.allow.as_deref()?)))
    });
    let with_rules = sites.all().iter().filter(|site| site.allow.is_some());
    let exception_ports = with_rules.enumerate().filter_map(|(number, site)| {
        let PortBlock {
            address,
            first,
            last,
        } = site.block?;
        Some(((address, first, last), number))
    });
    let ports = |addresses: &[SocketAddr]| {
        let place = |address: &SocketAddr| {
            let ip = Some(address.ip()).filter(|ip| !ip.is_unspecified());
            (ip, address.port())
        };
        let mut ports: Vec<_> = addresses.iter().map(place).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    Egress {
        own: config.own_addresses().iter().map(IpNet::addr).collect(),
        udp_ports: ports(&config.listen),
        tcp_ports: ports(&config.tcp_listen),
        closed: closed
            .iter()
            .map(|net| (net.addr(), net.prefix_len()))
            .collect(),
        allowed: nets(&config.allow),
        exceptions: special.collect(),
        exception_ports: exception_ports.collect(),
    }
}

/// The firewall rules of a running hub. Whoever changes a part renews all of them, and waits for whoever does that
/// now.
#[derive(Debug)]
pub struct Firewall {
    /// `None` once they are [closed](Self::close).
    nat: Mutex<Option<HubNat>>,
    /// Whether somebody closes them. A mutex gives no turns: who has it may take it again before one that waits.
    closing: AtomicBool,
    /// What [`Self::translate`] has asked for. Held for no longer than a look at the value takes.
    translation: Mutex<Option<Translation>>,
    /// Whether there are rules at all.
    forward: bool,
    apply: Apply,
}

/// Carries rules out.
type Apply = fn(&HubNat) -> Result<(), NftError>;

impl Firewall {
    /// The rules that [`set_up_hub`] has applied.
    #[must_use]
    pub fn new(nat: HubNat, forward: bool) -> Self {
        Self {
            nat: Mutex::new(Some(nat)),
            closing: AtomicBool::new(false),
            translation: Mutex::default(),
            forward,
            apply: nft::apply_hub,
        }
    }

    /// Changes the rules, if that makes a difference.
    ///
    /// # Errors
    /// Not permitted, `nft` refuses, or the hub is stopping. The former rules stay.
    pub fn change(&self, change: impl FnOnce(&mut HubNat)) -> anyhow::Result<()> {
        let mut nat = self.open();
        let nat = nat.as_mut().context("the hub is stopping")?;
        self.renew(nat, change).map(drop)
    }

    /// Sets the rules again if another program has removed them, as `nft flush ruleset` does. Whether that was so.
    /// Carries out what [`Self::translate`] has asked for. Does nothing while the hub stops.
    ///
    /// # Errors
    /// Not permitted, or `nft` refuses.
    pub fn keep(&self) -> anyhow::Result<bool> {
        match self.open().as_mut() {
            Some(nat) => self.renew(nat, |_| {}),
            None => Ok(false),
        }
    }

    /// Has the next look at the rules, or the next change of them, translate the sites to the first of these addresses
    /// of their family. Does not wait for `nft`.
    pub fn translate(&self, to: Vec<IpAddr>) {
        let mut translation = lock(&self.translation);
        *translation = Some(Translation::To(to));
    }

    /// Whether the rules were gone.
    fn renew(&self, nat: &mut HubNat, change: impl FnOnce(&mut HubNat)) -> anyhow::Result<bool> {
        let mut wanted = nat.clone();
        let translation = lock(&self.translation).clone();
        wanted.translation = translation.unwrap_or(wanted.translation);
        change(&mut wanted);
        let differs = wanted != *nat;
        let gone = self.forward && !differs && is_gone(&wanted)?;
        if self.forward && (differs || gone) {
            (self.apply)(&wanted)?;
        }
        *nat = wanted;
        Ok(gone)
    }

    /// Lets nobody change the rules any more, so that what takes them back comes last. Waits for an `nft` that runs,
    /// which is killed when it takes too long: 5 s, and 20 s with very many rules.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        lock(&self.nat).take();
    }

    /// The rules, which whoever closes them waits for; `None` from the begin of [`Self::close`] on.
    fn open(&self) -> MutexGuard<'_, Option<HubNat>> {
        let mut nat = lock(&self.nat);
        if self.closing.load(Ordering::SeqCst) {
            nat.take();
        }
        nat
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_gone(nat: &HubNat) -> anyhow::Result<bool> {
    let table = nft::table_handle(&nat.table).context("cannot look for the firewall rules")?;
    Ok(table.is_none())
}

/// The way of a relay's sites to the next hub. They have a routing table of their own, so that
/// their packets go on through the tunnel and those of the relay itself do not.
#[derive(Clone, Debug)]
pub struct Onward {
    sites: Tun,
    hub: Tun,
    pools: Vec<IpNet>,
    /// The rules to renew when the addresses change to which sites are translated.
    firewall: Option<Arc<Firewall>>,
}

/// Place of a relay's rules: before those of the main table, behind that of local addresses.
const RELAY_PRIORITY: u32 = 5_000;
/// Number of a relay's routing table less the index of its interface towards the sites, which
/// makes it unique on this machine.
const RELAY_TABLE: u32 = 0x5257_0000;

impl Onward {
    /// From the `pools` of the sites behind `sites` to the hub behind `hub`; `firewall` has the rules
    /// of the side towards the sites if it translates them.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn new(
        changes: &mut Changes,
        sites: &Tun,
        hub: &Tun,
        pools: Vec<IpNet>,
        firewall: Option<Arc<Firewall>>,
    ) -> anyhow::Result<Self> {
        let onward = Self {
            sites: sites.clone(),
            hub: hub.clone(),
            pools,
            firewall,
        };
        // Routes first: a rule whose table is empty lets packets fall through to the main one.
        onward.add_routes()?;
        for pool in &onward.pools {
            changes.rule(*pool, RELAY_PRIORITY, onward.table())?;
        }
        Ok(onward)
    }

    /// Takes over the addresses that this relay has at the hub. The sites are translated to them once the side towards
    /// the sites has next looked at its firewall rules.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    pub fn set_addresses(&self, addresses: &[IpNet]) -> anyhow::Result<()> {
        self.add_routes()?;
        if let Some(firewall) = &self.firewall {
            // To an address by its value: the kernel keeps such connections when the relay ends, and
            // the tunnel interface with it. Masquerading until now has dropped what could not leave.
            firewall.translate(addresses.iter().map(IpNet::addr).collect());
        }
        Ok(())
    }

    const fn table(&self) -> u32 {
        RELAY_TABLE + self.sites.ifindex
    }

    /// Sets the routes, again after the addresses of the interface towards the hub have changed:
    /// with its last address the kernel removes them.
    ///
    /// # Errors
    /// Not permitted, or the kernel refuses.
    fn add_routes(&self) -> anyhow::Result<()> {
        for pool in &self.pools {
            // Sites of one relay reach each other without the hub.
            for (tun, destination, prefix) in [
                (&self.sites, pool.network(), pool.prefix_len()),
                (&self.hub, unspecified(pool), 0),
            ] {
                let spec = RouteSpec {
                    destination,
                    prefix,
                    ifindex: tun.ifindex,
                    gateway: None,
                    table: Some(self.table()),
                    metric: None,
                    mtu: None,
                };
                netlink::add_route(&spec).with_context(|| {
                    format!(
                        "cannot route {destination}/{prefix} of the sites into {}",
                        tun.name
                    )
                })?;
            }
        }
        Ok(())
    }
}

/// The address of a default route of the same family.
fn unspecified(net: &IpNet) -> IpAddr {
    match net {
        IpNet::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpNet::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use ropewalk_transport::Identity;

    use super::*;
    use crate::sites::Terms;

    #[test]
    fn default_routes_become_two_halves() {
        let halves = |text: &str| {
            let parts = super::halves(text.parse().unwrap());
            parts.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(halves("0.0.0.0/0"), ["0.0.0.0/1", "128.0.0.0/1"]);
        assert_eq!(halves("::/0"), ["::/1", "8000::/1"]);
        assert_eq!(halves("10.0.0.0/8"), ["10.0.0.0/8"]);
    }

    fn interface(name: &str, ip: &str, prefix: u8) -> Interface {
        Interface {
            default_route_v4: true,
            ..Interface::card(name, 2, &[(ip.parse().unwrap(), prefix)])
        }
    }

    #[test]
    fn sites_of_a_hub_do_not_reach_its_networks_and_those_of_a_relay_only_not_each_other() {
        let path = std::path::Path::new("hub.toml");
        let text =
            "[pool]\nipv4 = \"100.99.0.0/16\"\n[egress]\nallow = [\"10.1.0.0/16\", \"site:x\"]\n";
        let mut config = ropewalk_config::hub::parse(path, text).unwrap();
        let interfaces = [
            interface("eth0", "198.51.100.7", 24),
            interface("ropehub0", "100.99.0.1", 16),
        ];
        let shown = |config: &HubConfig| {
            let egress = egress(config, &Sites::default(), &interfaces);
            assert_eq!(egress.own[0], "100.99.0.1".parse::<IpAddr>().unwrap());
            assert_eq!(
                (egress.udp_ports, egress.tcp_ports),
                (vec![(None, 4_443)], vec![(None, 443)])
            );
            assert_eq!(egress.allowed, [("10.1.0.0".parse().unwrap(), 16)]);
            let text = |(ip, prefix): &Net| format!("{ip}/{prefix}");
            egress.closed.iter().map(text).collect::<Vec<_>>()
        };
        let closed = shown(&config);
        for net in [
            "10.0.0.0/8",
            "100.99.0.0/16",
            "169.254.0.0/16",
            "198.51.100.0/24",
        ] {
            assert!(closed.iter().any(|one| one == net), "{net}: {closed:?}");
        }
        // Without IPv6 the rules have none.
        assert!(!closed.iter().any(|net| net.contains(':')), "{closed:?}");
        config.pool_v6 = Some("fd00:99::/64".parse().unwrap());
        let closed = shown(&config);
        for net in ["2002::/16", "64:ff9b::/96", "64:ff9b:1::/48", "fc00::/7"] {
            assert!(closed.iter().any(|one| one == net), "{net}: {closed:?}");
        }
        config.pool_v6 = None;
        config.onward = Some("ropewalk0".to_owned());
        assert_eq!(shown(&config), ["100.99.0.0/16"]);
    }

    /// Rules whose `nft` is `apply`.
    fn firewall(apply: Apply) -> Arc<Firewall> {
        let path = std::path::Path::new("hub.toml");
        let config = ropewalk_config::hub::parse(path, "[pool]\nipv4 = \"100.99.0.0/16\"\n");
        let tun = Tun {
            name: "rope-none".to_owned(),
            ifindex: 3,
        };
        Arc::new(Firewall {
            apply,
            ..Firewall::new(hub_nat(&tun, &config.unwrap()), true)
        })
    }

    fn to(address: &str) -> Vec<IpAddr> {
        vec![address.parse().unwrap()]
    }

    /// Changes the rules beside the test.
    fn change(firewall: &Arc<Firewall>, address: &str) -> JoinHandle<anyhow::Result<()>> {
        let (firewall, to) = (Arc::clone(firewall), Translation::To(to(address)));
        std::thread::spawn(move || firewall.change(|nat| nat.translation = to))
    }

    /// A stand-in for `nft`: how often it has begun, and whether it may end.
    type Runs = Mutex<(u32, bool)>;

    fn run(runs: &Runs) {
        runs.lock().unwrap().0 += 1;
        while !runs.lock().unwrap().1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_run(runs: &Runs) {
        while runs.lock().unwrap().0 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn rules_that_are_taken_back_are_never_set_again() {
        static RUNS: Runs = Mutex::new((0, false));
        let firewall = firewall(|_| {
            run(&RUNS);
            Ok(())
        });
        let first = change(&firewall, "192.0.2.1");
        wait_for_run(&RUNS);
        let closing = Arc::clone(&firewall);
        let closed = std::thread::spawn(move || closing.close());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!closed.is_finished(), "`nft` still runs");
        RUNS.lock().unwrap().1 = true;
        first.join().unwrap().unwrap();
        closed.join().unwrap();
        // What takes the rules back comes here.
        let late = change(&firewall, "192.0.2.2").join().unwrap();
        firewall.translate(to("192.0.2.3"));
        assert!(!firewall.keep().unwrap(), "no table of the test is kept");
        assert_eq!(RUNS.lock().unwrap().0, 1, "rules were set after the end");
        assert_eq!(late.unwrap_err().to_string(), "the hub is stopping");
    }

    #[test]
    fn whoever_set_rules_while_they_were_closed_sets_none_after_them() {
        static RUNS: Runs = Mutex::new((0, false));
        let firewall = firewall(|_| {
            run(&RUNS);
            Ok(())
        });
        let several = Arc::clone(&firewall);
        let changes = std::thread::spawn(move || {
            let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
            addresses.map(|address| {
                let to = Translation::To(to(address));
                several.change(|nat| nat.translation = to).is_ok()
            })
        });
        wait_for_run(&RUNS);
        let closing = Arc::clone(&firewall);
        let closed = std::thread::spawn(move || closing.close());
        std::thread::sleep(Duration::from_millis(100));
        RUNS.lock().unwrap().1 = true;
        assert_eq!(changes.join().unwrap(), [true, false, false]);
        closed.join().unwrap();
        assert_eq!(RUNS.lock().unwrap().0, 1, "rules were set after the end");
    }

    #[test]
    fn who_says_new_addresses_of_a_relay_does_not_wait_for_nft_and_a_refusal_is_tried_again() {
        static RUNS: Runs = Mutex::new((0, false));
        static SET: Mutex<Vec<Translation>> = Mutex::new(Vec::new());
        let firewall = firewall(|nat| {
            run(&RUNS);
            let mut set = SET.lock().unwrap();
            set.push(nat.translation.clone());
            // The second time it refuses.
            if set.len() == 2 {
                return Err(NftError::Missing);
            }
            Ok(())
        });
        // As a reload that waits for `nft`.
        let reload = change(&firewall, "192.0.2.1");
        wait_for_run(&RUNS);
        let (saying, (said, is_said)) = (Arc::clone(&firewall), channel());
        let say = std::thread::spawn(move || {
            for address in ["192.0.2.2", "192.0.2.3"] {
                saying.translate(to(address));
            }
            said.send(()).unwrap();
        });
        let waited = is_said.recv_timeout(Duration::from_secs(5));
        RUNS.lock().unwrap().1 = true;
        assert!(waited.is_ok(), "whoever says addresses waits for `nft`");
        say.join().unwrap();
        reload.join().unwrap().unwrap();
        firewall.keep().unwrap_err();
        firewall.keep().unwrap();
        let set: Vec<_> = SET.lock().unwrap().drain(..).collect();
        let addresses = ["192.0.2.1", "192.0.2.3", "192.0.2.3"];
        assert_eq!(set, addresses.map(|address| Translation::To(to(address))));
    }

    #[test]
    fn overlapping_pool_is_refused_with_interface_and_network() {
        let interfaces = [interface("eth0", "10.201.16.9", 24)];
        let check =
            |pool: &str| check_pools(&interfaces, |_| false, &[("ipv4", pool.parse().unwrap())]);
        check("10.202.0.0/16").unwrap();
        for pool in ["10.201.16.0/24", "10.0.0.0/8", "10.201.16.128/30"] {
            let error = check(pool).unwrap_err().to_string();
            assert!(error.contains("10.201.16.0/24 on eth0"), "{error}");
        }
        let own = check_pools(
            &interfaces,
            |interface| interface.name == "eth0",
            &[("ipv4", "10.0.0.0/8".parse().unwrap())],
        );
        own.expect("the hub's own interface is no other network");
    }

    #[test]
    fn an_address_of_the_hub_is_not_shared() {
        let interfaces = [interface("eth0", "203.0.113.7", 24)];
        let check = |ip: [u8; 4]| check_shared(&interfaces, &[ip.into()]);
        check([203, 0, 113, 8]).expect("in a network of the hub, and no address of its own");
        let error = check([203, 0, 113, 7]).unwrap_err().to_string();
        assert!(
            error.contains("203.0.113.7") && error.contains("on eth0"),
            "{error}"
        );
    }

    #[test]
    fn rules_of_a_site_count_for_its_ports_of_a_shared_address_too() {
        let path = std::path::Path::new("hub.toml");
        let text = "[pool]\nipv4 = \"100.99.0.0/16\"\nshared = [\"203.0.113.7\"]\n";
        let config = ropewalk_config::hub::parse(path, text).unwrap();
        let mut sites = Sites::default();
        for (number, allow) in [
            (1, None),
            (2, Some(Vec::new())),
            (3, None),
            (4, Some(Vec::new())),
        ] {
            let key = Identity::from_seed([number; 32]).unwrap().public_key();
            let terms = Terms {
                allow,
                ..Terms::default()
            };
            sites
                .add(&config, &format!("site{number}"), key, terms)
                .unwrap();
        }
        let egress = egress(&config, &sites, &[]);
        let shared = Ipv4Addr::new(203, 0, 113, 7);
        let ports = |first| (shared, first, first + 1_007);
        assert_eq!(
            egress.exception_ports,
            [(ports(2_032), 0), (ports(4_048), 1)]
        );
        assert_eq!(egress.exceptions.len(), 2);
        assert!(egress.closed.contains(&(shared.into(), 32)), "other sites");
    }

    #[test]
    fn pools_outside_the_network_of_the_hub_are_found() {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let addresses = nets(&["10.9.0.2/20", "fd00:9::2/64"]);
        let pools = nets(&[
            "10.9.15.192/26",
            "10.9.16.0/26",
            "10.0.0.0/8",
            "fd00:9::ffff:ffff:0:0/96",
            "fd00:8::/96",
        ]);
        let found: Vec<_> = unrouted(&pools, &addresses).copied().collect();
        assert_eq!(found, [pools[1], pools[2], pools[4]]);
        let found = unrouted(&pools[..1], &addresses[1..]).count();
        assert_eq!(found, 1, "a hub without a pool of this family");
    }

    #[test]
    fn table_names_suit_nftables() {
        let tun = Tun {
            name: "rope-0.1".to_owned(),
            ifindex: 3,
        };
        assert_eq!(tun.table(), "ropewalk_rope_0_1");
    }
}
