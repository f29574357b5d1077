//! The control side of a site: uplinks, the hub's addresses, and the inner network.
//!
//! Invariant: uplinks reach the engine only as the result of `uplinks::select` on the latest
//! state of the interfaces and rules.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_api::{LeftOut, PathUse, Quota};
use ropewalk_io::netlink::{Interface, Watch};
use ropewalk_io::sysctl;
use ropewalk_session::{HubAddresses, SiteHub, SiteSettings};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::PortBlock;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::admission::inbox::Inbox;
use super::api::{Api, Mark, Reload, Unoffered};
use super::direct::Direct;
use super::guard::Guard;
use super::keys::{ChangeKey, KeyThread, SiteKeys};
use super::managers::{self, Managers, News};
use super::memory::{CountQuotas, Memory, Told};
use super::names::NameServers;
use super::ports::{self, Ports};
use super::spare::Spares;
use super::supplicant::{COUNTS, Sign, Supplicants};
use super::watchdog::Watchdog;
use super::{
    ApiSocket, Asked, Commands, Prepared, RunningEngine, Signals, assigned, event_channel,
    host_settings, in_turn, network, notify, reload_and_log, resolve, restarts, rights,
    session_settings,
};
use crate::engine::control::{Command, Uplink};
use crate::engine::settings::{EngineEvent, HostSettings};
use crate::engine::start_site;
use crate::hub_keys::HubKeys;
use ropewalk_balance::Turn;
use ropewalk_config::uplinks::UplinkRules;
use ropewalk_config::values::HostPort;
use ropewalk_config::{self as config, SiteConfig};
use ropewalk_history::Kind;
use ropewalk_host::Changes;
use ropewalk_host::kill_switch::TUNNEL_MARK;
use ropewalk_host::settings;
use ropewalk_host::uplinks::{changes, left_out, select, unmatched};

/// How often the names of the hub are looked up while the tunnel is down. Longer: fewer queries, a
/// hub that moved is found later.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(15);
/// How soon an unsuccessful first look-up is repeated. Longer: fewer queries, later starts.
const RESOLVE_RETRY: Duration = Duration::from_secs(2);
/// What the service manager grants a start that waits for the hub's name, again for each try. Longer: more
/// name servers may be slow, a start that hangs there is ended later.
const START_EXTENSION: Duration = Duration::from_mins(5);

/// A running site, or the side of a relay towards the next hub.
pub(super) struct Site {
    pub(super) engine: RunningEngine,
    pub(super) reload: Reload,
    mark: Mark,
    quotas: Quotas,
    config: SiteConfig,
    hub: Arc<HubAddresses>,
    spares: Spares,
    rules: Arc<Mutex<UplinkRules>>,
    reloads: mpsc::Receiver<()>,
    interfaces: watch::Receiver<Vec<Interface>>,
    _watching: Watch,
    supplicants: Supplicants,
    managers: Managers,
    uplinks: Vec<Uplink>,
    /// Patterns of `include` that were told to match nothing.
    unmatched: Vec<String>,
    /// Interfaces that are left out as tunnels.
    left_out: watch::Sender<Vec<LeftOut>>,
    assigned: Vec<IpNet>,
    ports: Ports,
    names: NameServers,
    onward: Option<Relayed>,
    direct: Option<Direct>,
    guard: Guard,
    keys: KeyThread,
    change_key: ChangeKey,
    up: bool,
}

/// What a site does for the sites behind it when it is part of a relay.
pub(super) struct Relayed {
    /// Their routes to the hub.
    pub(super) onward: network::Onward,
    /// The engine that serves them.
    pub(super) sites: Commands,
    /// The thread that keeps the firewall rules for them.
    pub(super) rules: Inbox,
    /// Their networks as far as the hub must route them here; none if they are translated.
    pub(super) routed: Vec<IpNet>,
}

/// Reads the configuration again.
type Load = fn(&Path) -> anyhow::Result<SiteConfig>;

pub(super) async fn run(
    mut prepared: Prepared,
    path: &Path,
    config: SiteConfig,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let Prepared {
        identity, changes, ..
    } = &mut prepared;
    let load: Load = config::load_site;
    let Some(mut site) = Site::start(changes, identity, (path, load), config, &mut signals).await?
    else {
        return Ok(());
    };
    let common = &site.config.common;
    let memory = Memory::open(common, Kind::Site);
    memory.count_quotas(site.quotas.clone());
    memory.listen(Told {
        said: site.managers.said(),
        left_out: site.left_out.subscribe(),
    });
    let api = Api {
        commands: site.commands().0,
        pulses: site.engine.pulses(),
        reload: Arc::clone(&site.reload),
        change_key: Arc::clone(&site.change_key),
        memory,
        mark: Arc::clone(&site.mark),
        unoffered: Unoffered::default(),
        fleet: None,
        is_hub: false,
    };
    api.memory.follow(Arc::clone(&api.commands));
    let api = ApiSocket::open(common, api).await?;
    restarts::ready(path);
    tracing::info!(
        name = common.name,
        config = %path.display(),
        public_key = %identity.public_key(),
        interface = site.engine.tun.name,
        hub = ?site.hub.load(),
        "site is ready"
    );
    let watchdog = Watchdog::new(site.engine.pulses());
    let result = tokio::select! {
        ended = site.serve(&mut signals, changes) => ended,
        never = watchdog.run() => match never {},
        error = rights::lost() => Err(error),
    };
    notify::send(notify::Stopping);
    drop(api);
    let kill_switch = site.config.kill_switch;
    let shared = site.ports.address();
    let stopped = site.stop().await;
    let is_restart = signals.is_restart(path).await;
    drop(prepared);
    if let Some(address) = shared.filter(|_| !is_restart) {
        ports::forget(address);
    }
    tracing::info!("site has stopped");
    if kill_switch {
        tracing::warn!(
            "the kill switch is left to `ropewalk down`, which lifts it; nothing leaves beside the tunnel until then"
        );
    }
    result.and(stopped)
}

/// The interfaces of this machine, as they change until the first value is dropped.
fn follow_interfaces() -> anyhow::Result<(Watch, watch::Receiver<Vec<Interface>>)> {
    let (notify, interfaces) = watch::channel(Vec::new());
    let watching = Watch::start(Box::new(move |list| {
        notify.send_replace(list);
    }))
    .context("cannot follow the network interfaces")?;
    Ok((watching, interfaces))
}

impl Site {
    /// Starts the engine and sets this machine up around it; `None` when asked to stop before the
    /// hub's name was found. `source` is the file of `config` and what reads it again.
    ///
    /// # Errors
    /// The engine cannot start, or this machine cannot be set up.
    pub(super) async fn start(
        changes: &mut Changes,
        identity: &Identity,
        source: (&Path, Load),
        config: SiteConfig,
        signals: &mut Signals,
    ) -> anyhow::Result<Option<Self>> {
        // Before anything is sent over an uplink.
        let mut guard = Guard::begin(&config)?;
        let Some(addresses) = first_addresses(&config.endpoints, &guard, signals).await else {
            return Ok(None);
        };
        let spares = Spares::find(&config.spares, &guard).await;
        guard.set_hub(&spares.beside(&addresses))?;
        let keys = SiteKeys {
            key_file: config.common.key_file.clone(),
            state_dir: config.common.state_dir.clone(),
            hub: HubKeys::load(&config.common.state_dir, config.hub_key)?,
            others: 0,
        };
        let hub = Arc::new(HubAddresses::new(&addresses));
        let (sink, events) = event_channel();
        let settings = SiteSettings {
            common: session_settings(identity.clone(), &config.common),
            hubs: spares.after(home(&config, keys.hub.key, &hub)),
            udp_blocked_fallback: config.tcp_fallback,
            ipv6: sysctl::has_ipv6(),
        };
        if !settings.ipv6 {
            tracing::warn!("this machine has no IPv6: the tunnel carries IPv4 only");
        }
        let host = HostSettings {
            mark: Some(TUNNEL_MARK),
            ..host_settings(&config.common)
        };
        let handle = start_site(&host, settings, &sink).context("the site cannot start")?;
        let engine = RunningEngine::new(handle, events)?;
        engine.tun.configure(&[])?;
        keys.begin(&engine.commands)?;
        let change_key = keys.change(engine.commands.clone());
        let keys = KeyThread::start(keys, engine.commands.clone())?;
        let direct = Direct::start(&config, &engine.tun, changes).await?;
        let (watching, interfaces) = follow_interfaces()?;
        let rules = Arc::new(Mutex::new(config.uplinks.clone()));
        let (reloaded, reloads) = mpsc::channel(1);
        let names = NameServers::new(&config.dns, &engine.tun.name);
        Ok(Some(Self {
            mark: mark(Arc::clone(&rules), interfaces.clone(), reloaded.clone()),
            quotas: Quotas {
                rules: Arc::clone(&rules),
                done: reloaded.clone(),
            },
            reload: reload(source, Arc::clone(&rules), direct.as_ref(), reloaded),
            engine,
            config,
            hub,
            spares,
            rules,
            reloads,
            interfaces,
            _watching: watching,
            supplicants: Supplicants::new(),
            managers: Managers::new(),
            uplinks: Vec::new(),
            unmatched: Vec::new(),
            left_out: watch::Sender::default(),
            assigned: Vec::new(),
            ports: Ports::new(),
            names,
            onward: None,
            direct,
            guard,
            keys,
            change_key,
            up: false,
        }))
    }

    /// Takes over what comes from the sites of a relay.
    pub(super) fn relay(&mut self, relayed: Relayed) {
        if let Some(mtu) = self.config.common.mtu {
            relayed.sites.send(Command::MtuFloor(mtu));
        }
        self.onward = Some(relayed);
    }

    /// Commands for the engine, and for what goes beside the tunnel.
    pub(super) fn commands(&self) -> Commands {
        let engine = self.guard.commands(self.engine.commands.clone());
        match &self.direct {
            Some(direct) => direct.commands(engine),
            None => engine,
        }
    }

    /// The hub's addresses.
    pub(super) fn hub(&self) -> Arc<[SocketAddr]> {
        self.hub.load()
    }

    /// Stops the engine and waits for it.
    ///
    /// # Errors
    /// What made the engine fail.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.engine.stop().await
    }

    /// Serves until asked to stop.
    ///
    /// # Errors
    /// The engine failed, or this machine cannot be set up.
    pub(super) async fn serve(
        &mut self,
        signals: &mut Signals,
        machine: &mut Changes,
    ) -> anyhow::Result<()> {
        let mut resolve_at = Instant::now() + RESOLVE_INTERVAL;
        loop {
            tokio::select! {
                asked = signals.next() => match asked {
                    Asked::Stop => return Ok(()),
                    Asked::Reload => reload_and_log(&self.reload),
                },
                event = self.engine.events.recv() => match event {
                    Some(EngineEvent::Stopped { error: Some(error) }) => {
                        anyhow::bail!("the engine failed: {error}");
                    }
                    Some(EngineEvent::Stopped { error: None }) | None => return Ok(()),
                    Some(event) => self.handle(event, machine)?,
                },
                changed = self.interfaces.changed() => {
                    changed.context("following the network interfaces ended")?;
                    self.follow_uplinks(machine);
                }
                (uplink, sign) = self.supplicants.next() => {
                    self.on_sign(uplink, (sign == Sign::Ends).then_some(COUNTS));
                }
                news = self.managers.next() => self.on_news(news, machine),
                Some(()) = self.reloads.recv() => self.follow_uplinks(machine),
                turn = next_turn(&mut self.direct) => {
                    if let Some(direct) = &mut self.direct {
                        direct.take(turn?, machine)?;
                    }
                }
                () = self.guard.tick() => self.keep_guard(),
                () = self.spares.changed() => self.follow_hubs(machine)?,
                () = self.ports.tick() => self.ports.keep(),
                () = self.names.tick() => self.names.keep(machine),
                () = sleep_until(resolve_at) => {
                    if !self.up && self.resolve_again().await {
                        self.follow_hubs(machine)?;
                    }
                    resolve_at = Instant::now() + RESOLVE_INTERVAL;
                }
            }
        }
    }

    fn handle(&mut self, event: EngineEvent, machine: &mut Changes) -> anyhow::Result<()> {
        match event {
            EngineEvent::TunnelUp { .. } => {
                self.set_up(true);
                tracing::info!("tunnel is up");
            }
            EngineEvent::TunnelDown { .. } => {
                self.set_up(false);
                tracing::warn!("tunnel is down: no uplink reaches the hub");
            }
            EngineEvent::MtuChanged(mtu) => {
                tracing::debug!(mtu, "inner MTU changed");
                if let Some(relayed) = &self.onward {
                    relayed.sites.send(Command::MtuFloor(mtu));
                }
            }
            EngineEvent::Assigned {
                addresses,
                hub_addresses,
                block,
            } => {
                tracing::info!(?addresses, ?block, hub = ?hub_addresses, "the hub assigned addresses");
                let addresses = self.acceptable(addresses);
                let block = block.filter(|block| self.takes_block(block));
                let tun = &self.engine.tun;
                // Before packets are led into the tunnel.
                self.ports
                    .assign(machine, tun, block, (&addresses, &hub_addresses));
                self.assign(&addresses)?;
                self.names.set(machine);
            }
            EngineEvent::Moved { hub, epoch } => {
                tracing::warn!(hub, epoch, "another hub serves this site now");
            }
            EngineEvent::Key(event) => self.keys.handle(event),
            EngineEvent::Enrol { .. }
            | EngineEvent::Served { .. }
            | EngineEvent::Withdrawn { .. }
            | EngineEvent::Stopped { .. } => {}
        }
        Ok(())
    }

    fn set_up(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.spares.look_again();
        }
        if let Some(direct) = &mut self.direct {
            direct.set_tunnel(up);
        }
    }

    /// The addresses that this site takes out of those that the hub assigns.
    fn acceptable(&self, addresses: Vec<IpNet>) -> Vec<IpNet> {
        let interfaces = self.interfaces.borrow();
        // The tunnel of a next hub is the network that a relay has part of.
        let no_uplink = |interface: &Interface| {
            let mut uplinks = self.uplinks.iter();
            interface.kind.as_deref() == Some("tun")
                || !uplinks.any(|uplink| uplink.ifindex == interface.index)
        };
        let uplinks = network::networks(&interfaces, no_uplink);
        let allowed = self.config.assigned.as_deref();
        let takes = |net: &IpNet| match assigned::refusal(net, allowed, &uplinks) {
            Some(refusal) => {
                tracing::error!("{refusal}; this site does not take the address");
                false
            }
            None => true,
        };
        addresses.into_iter().filter(takes).collect()
    }

    /// Whether this site sends from the ports that the hub assigns.
    fn takes_block(&self, block: &PortBlock) -> bool {
        let refusal = if self.onward.is_some() {
            let what = "but the sites of a relay have addresses of their own";
            Some(format!("the hub assigns the ports {block}, {what}"))
        } else {
            assigned::refusal_of_block(block, &self.interfaces.borrow())
        };
        if let Some(refusal) = &refusal {
            tracing::error!("{refusal}; this site sends from its inner address only");
        }
        refusal.is_none()
    }

    fn assign(&mut self, addresses: &[IpNet]) -> anyhow::Result<()> {
        let ipv6 = self.engine.tun.has_ipv6();
        self.warn_of_overlap(addresses);
        let tun = &self.engine.tun;
        // First, for with the first address of a network its others go as well.
        tun.withdraw(self.assigned.iter().filter(|old| !addresses.contains(old)))?;
        tun.configure(addresses)?;
        if let Some(relayed) = &self.onward {
            relayed.onward.set_addresses(addresses)?;
            relayed.rules.keep_rules();
            for pool in network::unrouted(&relayed.routed, addresses) {
                tracing::warn!(
                    %pool,
                    "the hub does not route this pool here, and nothing comes back to its sites: take \
                     the networks of the token, or set masquerade = true in [network]"
                );
            }
        }
        let left_out = tun.add_routes(&self.config.routes, addresses)?;
        if let Some(direct) = &mut self.direct {
            direct.set_inner(tun, &self.config.routes, addresses)?;
        }
        let missing = left_out.iter().filter(|net| ipv6 || net.addr().is_ipv4());
        for route in missing {
            let fate = if self.config.kill_switch {
                "the kill switch refuses its packets"
            } else {
                "its packets leave beside the tunnel"
            };
            tracing::warn!(
                %route,
                "not carried by the tunnel: the hub has no address pool of this family; {fate}"
            );
        }
        self.guard.set_inner(addresses);
        if !self.assigned.is_empty() && self.assigned != addresses {
            tracing::warn!("the hub changed this site's addresses: open connections will break");
        }
        self.assigned = addresses.to_vec();
        Ok(())
    }

    fn warn_of_overlap(&self, addresses: &[IpNet]) {
        let interfaces = self.interfaces.borrow();
        // A relay's sites have part of the hub's network, unless they are translated. So such a
        // tunnel is the same network.
        let own = |interface: &Interface| {
            self.config.common.owns(&interface.name)
                || interface.kind.as_deref() == Some("tun")
                    && self
                        .uplinks
                        .iter()
                        .any(|uplink| uplink.ifindex == interface.index)
        };
        let pools: Vec<_> = addresses
            .iter()
            .map(|net| ("of the hub", net.trunc()))
            .collect();
        if let Err(error) = network::check_pools(&interfaces, own, &pools) {
            tracing::warn!(%error, "the hub's network overlaps with one of this site");
        }
    }

    /// A hub has other addresses now.
    fn follow_hubs(&mut self, machine: &mut Changes) -> anyhow::Result<()> {
        self.guard.set_hub(&self.spares.beside(&self.hub.load()))?;
        self.follow_uplinks(machine);
        Ok(())
    }

    fn follow_uplinks(&mut self, machine: &mut Changes) {
        let rules = self
            .rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let interfaces = self.interfaces.borrow_and_update().clone();
        let (tun, hub) = (&self.engine.tun.name, self.hub.load());
        let uplinks = select(&interfaces, &rules, tun, &hub);
        let left_out = left_out(&interfaces, &rules, tun, &hub);
        for one in &left_out {
            if !self.left_out.borrow().contains(one) {
                tracing::info!(
                    "{one}: not used; if it is an uplink, name all uplinks in `include`"
                );
            }
        }
        self.left_out.send_replace(left_out);
        let unmatched = unmatched(&interfaces, &rules);
        for pattern in unmatched
            .iter()
            .filter(|pattern| !self.unmatched.contains(*pattern))
        {
            tracing::warn!(
                pattern,
                "no interface matches this pattern of `include` yet"
            );
        }
        self.unmatched = unmatched;
        for change in changes(&self.uplinks, &uplinks) {
            // The engine tells what it makes of it.
            tracing::debug!("{change}");
        }
        if uplinks.is_empty() && !self.uplinks.is_empty() {
            tracing::warn!("no uplink is left");
        }
        for uplink in &uplinks {
            settings::loosen_reverse_path(machine, &uplink.name);
        }
        let names = uplinks.iter().map(|uplink| uplink.name.as_str());
        self.supplicants.follow(rules.supplicant.as_deref(), names);
        self.managers.follow(rules.system_bus.as_deref());
        if uplinks != self.uplinks {
            self.engine.send(Command::Uplinks(uplinks.clone()));
            self.uplinks = uplinks;
        }
    }

    fn keep_guard(&mut self) {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let interfaces = self.interfaces.borrow();
        self.guard.keep(&interfaces, &rules, &self.hub.load());
        drop((rules, interfaces));
        let tun = &self.engine.tun;
        let is_led = |route: &&IpNet| match &self.direct {
            None => network::has_family(&self.assigned, route),
            // Its firewall table decides on the rest.
            Some(_) => tun.has_ipv6() || route.addr().is_ipv4(),
        };
        let kept = tun.keep_routes(self.config.routes.iter().filter(is_led));
        self.guard.tell_routes(kept);
    }

    /// Follows what NetworkManager and ModemManager say.
    fn on_news(&mut self, news: News, machine: &mut Changes) {
        if let Some(metered) = news.metered {
            let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut rules.said_metered, metered.clone());
            drop(rules);
            for Uplink { name, .. } in &self.uplinks {
                let said = metered.get(name);
                if said != before.get(name) {
                    tracing::info!(
                        uplink = name,
                        metered = said,
                        "NetworkManager says whether the uplink costs money by the byte"
                    );
                }
            }
            self.follow_uplinks(machine);
        }
        for (uplink, sign) in news.signs {
            let ends = sign == ropewalk_managers::Sign::Ends;
            if self.uplinks.iter().any(|known| known.name == uplink) {
                let what = if ends {
                    "is about to end"
                } else {
                    "is connected"
                };
                tracing::info!(uplink, "NetworkManager or ModemManager: the uplink {what}");
            }
            self.on_sign(uplink, ends.then_some(managers::COUNTS));
        }
    }

    /// Leaves an uplink that is about to end for as long, or uses it again.
    fn on_sign(&self, uplink: String, ends: Option<Duration>) {
        // What was said before an uplink went away, or by a listener of before.
        if !self.uplinks.iter().any(|known| known.name == uplink) {
            return;
        }
        let wanted = PathUse::Foretold(ends);
        // A path that is not up has nothing to leave: nobody waits for that answer.
        let (reply, _) = sync_channel(1);
        self.engine.send(Command::SetPath {
            uplink,
            wanted,
            reply,
        });
    }

    /// Whether the hub's addresses changed.
    async fn resolve_again(&self) -> bool {
        if self.config.endpoints.iter().all(is_address) {
            return false;
        }
        let (addresses, failures) =
            resolve::resolve(&self.config.endpoints, self.guard.servers()).await;
        if !failures.is_empty() {
            tracing::debug!(?failures, "names of the hub were not found");
        }
        // A resolver that is reached through the tunnel fails now: what was known is better.
        if addresses.is_empty() || addresses[..] == self.hub.load()[..] {
            return false;
        }
        tracing::info!(hub = ?addresses, "the hub has other addresses now");
        self.hub.store(&addresses);
        true
    }
}

/// The hub that serves the site at first.
fn home(config: &SiteConfig, key: PublicKey, addresses: &Arc<HubAddresses>) -> SiteHub {
    SiteHub {
        name: "hub".into(),
        key,
        addresses: Arc::clone(addresses),
        tcp_port: config.tcp_port,
    }
}

/// The hub's addresses, waiting for a resolver if need be; `None` when asked to stop.
async fn first_addresses(
    endpoints: &[HostPort],
    guard: &Guard,
    signals: &mut Signals,
) -> Option<Vec<SocketAddr>> {
    let mut told = false;
    loop {
        let (addresses, failures) = resolve::resolve(endpoints, guard.servers()).await;
        if !addresses.is_empty() {
            return Some(addresses);
        }
        let known = guard.known_hub();
        if !known.is_empty() {
            tracing::warn!(?failures, hub = ?known, "the hub's name is not found; trying where it was");
            return Some(known);
        }
        if !told {
            tracing::warn!(
                ?failures,
                "the hub's name is not found yet; trying until it is"
            );
            told = true;
        }
        notify::extend_start(START_EXTENSION);
        tokio::select! {
            asked = signals.next() => if asked == Asked::Stop { return None },
            () = tokio::time::sleep(RESOLVE_RETRY) => {}
        }
    }
}

fn is_address(endpoint: &HostPort) -> bool {
    endpoint.host.parse::<std::net::IpAddr>().is_ok()
}

/// What is next beside the tunnel; nothing ever when all goes through it.
async fn next_turn(direct: &mut Option<Direct>) -> anyhow::Result<Turn> {
    match direct {
        Some(direct) => direct.next().await,
        None => std::future::pending().await,
    }
}

/// The quotas of the configuration. An uplink with nothing left is kept for when nothing else works.
#[derive(Clone)]
struct Quotas {
    rules: Arc<Mutex<UplinkRules>>,
    done: mpsc::Sender<()>,
}

impl CountQuotas for Quotas {
    fn quota(&self, uplink: &str) -> Option<Quota> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.quota(uplink)
    }

    fn used_up(&self, uplinks: BTreeSet<String>) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if rules.used_up == uplinks {
            return;
        }
        let before = std::mem::take(&mut rules.used_up);
        for uplink in uplinks.difference(&before) {
            tracing::warn!(
                uplink,
                "the quota is used up: kept for when nothing else works"
            );
        }
        for uplink in before.difference(&uplinks) {
            tracing::info!(uplink, "there is quota left: used like the others");
        }
        // A mark from before was not meant for this. One that is set from now on is.
        let news = |uplink: &String| uplinks.contains(uplink) && !before.contains(uplink);
        for (uplink, marks) in &mut rules.by_hand {
            if news(uplink) && marks.standby == Some(false) {
                marks.standby = None;
            }
        }
        rules.used_up = uplinks;
        // A full channel means that the rules are followed anyway.
        let _ = self.done.try_send(());
    }
}

/// Marks uplinks by hand. Marks of names that are no interface are refused, so there are few of them.
fn mark(
    rules: Arc<Mutex<UplinkRules>>,
    interfaces: watch::Receiver<Vec<Interface>>,
    done: mpsc::Sender<()>,
) -> Mark {
    Arc::new(move |uplink, marks| {
        let interfaces = interfaces.borrow();
        if !interfaces.iter().any(|interface| interface.name == uplink) {
            return Err(format!("there is no uplink {uplink}; see `ropewalk path`"));
        }
        let mut rules = rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules
            .by_hand
            .retain(|name, _| interfaces.iter().any(|interface| interface.name == *name));
        let set = rules.by_hand.entry(uplink.to_owned()).or_default();
        set.standby = marks.standby.or(set.standby);
        set.metered = marks.metered.or(set.metered);
        // A full channel means that the rules are followed anyway.
        let _ = done.try_send(());
        Ok(())
    })
}

fn reload(
    (path, load): (&Path, Load),
    rules: Arc<Mutex<UplinkRules>>,
    direct: Option<&Direct>,
    done: mpsc::Sender<()>,
) -> Reload {
    let path = path.to_owned();
    let spread = direct.map(Direct::reload);
    in_turn(move || {
        let config = load(&path)?;
        let count = config.uplinks.marks.len();
        if let Some(spread) = &spread {
            spread(&config)?;
        }
        let mut rules = rules.lock().unwrap_or_else(PoisonError::into_inner);
        let by_hand = std::mem::take(&mut rules.by_hand);
        let used_up = std::mem::take(&mut rules.used_up);
        let said_metered = std::mem::take(&mut rules.said_metered);
        *rules = UplinkRules {
            by_hand,
            used_up,
            said_metered,
            ..config.uplinks
        };
        // A full channel means that a reload is due anyway.
        let _ = done.try_send(());
        Ok(format!(
            "rules for uplinks ({count} marks); other keys need a restart"
        ))
    })
}
