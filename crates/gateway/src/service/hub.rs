//! The control side of a hub.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_io::{conntrack, netlink};
use ropewalk_session::{HubSettings, KeyEvent, KeyStep, MTU_DEFAULT, SiteDirectory, Statement};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::{Pace, PortBlock, WRAP_BYTES};

use super::admission::Admission;
use super::admission::inbox::{AdmissionThread, Inbox};
use super::api::{Api, Reload, Unoffered};
use super::memory::{self, Memory};
use super::network::Firewall;
use super::site_routes::SiteRoutes;
use super::watchdog::Watchdog;
use super::{
    ApiSocket, Asked, Prepared, RunningEngine, STOP_TIMEOUT, Signals, event_channel, host_settings,
    keys, network, notify, reload_and_log, restarts, rights, session_settings,
};
use crate::engine::control::Command;
use crate::engine::settings::EngineEvent;
use crate::engine::{GROUPS, start_hub};
use crate::fleet::member::Member;
use crate::key_file;
use crate::sites::Sites;
use ropewalk_config::HubConfig;
use ropewalk_history::Kind;
use ropewalk_host::Changes;
use ropewalk_host::memory as machine_memory;

/// From this many processors on a hub has a worker for each. With fewer a worker would take them from the
/// kernel's share of the work, which is about as large. Not measured.
const MANY_PROCESSORS: usize = 4;
/// How often a hub says to its fleet how many sites it serves. Longer: fewer writes to etcd, older numbers.
const LEASE_INTERVAL: Duration = Duration::from_secs(5);
/// Part of the memory that packets of sites may take, one in so many, unless configured. Fewer: more memory for
/// outages of many sites, less for all else on the machine. Not measured.
const MEMORY_PART: u64 = 4;
/// How often a hub looks whether its firewall rules are still there. Longer: fewer questions to the kernel, sites
/// reach closed networks for longer when another program has removed the rules. Not measured.
const RULES_INTERVAL: Duration = Duration::from_secs(1);
/// Another program that removes what a hub needs, again and again, causes a line in the log once in this time. Longer: a
/// shorter log.
const AGAIN_INTERVAL: Duration = Duration::from_mins(1);
/// And this often in a row.
const AGAIN_LINES: u32 = 5;

/// Names a site whose packets make the hub panic. For tests: release builds do not read it.
#[cfg(debug_assertions)]
const FAULT: &str = "ROPEWALK_TEST_FAULT";

/// A running hub, or the side of a relay towards its sites.
pub(super) struct Hub {
    pub(super) engine: RunningEngine,
    pub(super) reload: Reload,
    /// Lets invited sites join, and keeps the rules.
    admission: AdmissionThread,
    /// The firewall rules.
    pub(super) firewall: Arc<Firewall>,
    /// Sites known at the start.
    pub(super) sites: usize,
    /// Routes to the sites that are served.
    routes: SiteRoutes,
    /// The fleet of this hub, if it has one.
    pub(super) fleet: Option<Arc<Member>>,
    /// Names of the sites that are served.
    served: BTreeSet<String>,
}

pub(super) async fn run(
    mut prepared: Prepared,
    path: &Path,
    config: HubConfig,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let public_key = prepared.identity.public_key();
    let mut hub = Hub::start(&mut prepared.changes, &prepared.identity, &config)?;
    prepared.changes.remove_former_tables();
    let reload = Arc::clone(&hub.reload);
    let key_file = config.common.key_file.clone();
    if let Some(next) = key_file::load_next(&key_file)? {
        tracing::info!(key = %next.public_key(), "the next key of this hub is announced to its sites");
        hub.engine.send(Command::Key(KeyStep::Next(next)));
    }
    let commands = &hub.engine.commands;
    let fleet = hub.fleet.clone();
    let inviting = config.clone();
    let uninvite = move || {
        Sites::uninvite(&inviting).unwrap_or_else(|error| {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "unused tokens still look open, and are of no use any more"
            );
            Vec::new()
        })
    };
    let change_key = keys::of_hub(key_file, commands.clone(), uninvite, move |key| {
        if let Some(fleet) = &fleet {
            fleet.has_key(key);
        }
    });
    let api = Api {
        commands: Arc::clone(&commands.0),
        pulses: hub.engine.pulses(),
        reload,
        change_key,
        memory: Memory::open(&config.common, Kind::Hub),
        mark: memory::no_marks(),
        unoffered: Unoffered::default(),
        fleet: hub.fleet.clone(),
        is_hub: true,
    };
    api.memory.follow(Arc::clone(&api.commands));
    let api = ApiSocket::open(&config.common, api).await?;
    restarts::ready(path);
    tracing::info!(
        name = config.common.name,
        config = %path.display(),
        %public_key,
        interface = hub.engine.tun.name,
        sites = hub.sites,
        "hub is ready"
    );
    let watchdog = Watchdog::new(hub.engine.pulses()).with_admission(hub.admission());
    let result = tokio::select! {
        ended = hub.serve(&mut signals) => ended,
        never = watchdog.run() => match never {},
        error = rights::lost() => Err(error),
    };
    notify::send(notify::Stopping);
    drop(api);
    let stopped = hub.stop().await;
    prepared.changes.end(signals.is_restart(path).await);
    tracing::info!("hub has stopped");
    result.and(stopped)
}

impl Hub {
    /// Starts the engine and sets this machine up around it.
    ///
    /// # Errors
    /// A pool is taken, an address cannot be listened on, or this machine cannot be set up.
    pub(super) fn start(
        changes: &mut Changes,
        identity: &Identity,
        config: &HubConfig,
    ) -> anyhow::Result<Self> {
        #[cfg(debug_assertions)]
        if let Ok(site) = std::env::var(FAULT) {
            ropewalk_session::plant_fault(site);
        }
        check_pools(config)?;
        let inbox = Inbox::default();
        let (fleet, sites) = known_sites(config, identity.public_key(), &inbox)?;
        let configured = config;
        let config = &network::usable(config)?;
        let ipv6 = config.pool_v6.is_some();
        let directory = Arc::new(SiteDirectory::new(sites.entries(ipv6)));
        directory.set_invitations(sites.invitations());
        directory.set_next_keys(sites.next_keys());
        let workers = worker_count(config.workers);
        let (sink, events) = event_channel();
        let settings = HubSettings {
            common: session_settings(identity.clone(), &config.common),
            listen: config.listen.clone(),
            tcp_listen: config.tcp_listen.clone(),
            addresses: config.own_addresses(),
            sites: Arc::clone(&directory),
            memory: memory_of_each(config.memory_mb, workers),
            passes_on: config.passes_on(),
        };
        let handles = start_hub(&host_settings(&config.common), settings, &sink, workers)
            .context("the hub cannot start")?;
        let engine = RunningEngine::new(handles, events)?;
        // Before the interface is up: on a machine that forwards already, what sites send at once
        // would leave untranslated, and open connections of theirs be reset.
        let mut nat = network::hub_nat(&engine.tun, config);
        let interfaces = netlink::snapshot().context("cannot list the networks of this machine")?;
        nat.egress = Some(network::egress(config, &sites, &interfaces));
        network::set_up_hub(changes, &nat, config)?;
        let firewall = Arc::new(Firewall::new(nat, config.forward));
        engine.tun.configure(&config.own_addresses())?;
        if config.passes_on() {
            network::loosen(changes, &interfaces);
        }
        engine.tun.lead_up_to(&shared(config), shared_mtu(config))?;
        let admission = admission(
            &engine,
            identity.public_key(),
            configured,
            config,
            Arc::clone(&firewall),
            directory,
        );
        let admission = Admission {
            fleet: fleet.clone(),
            ..admission
        };
        let admission = AdmissionThread::start(inbox.clone(), move |work| admission.work(work))?;
        // What came meanwhile, and the claims that the copy has had all along.
        inbox.follow();
        Ok(Self {
            admission,
            reload: Arc::new(move || Box::pin(inbox.reload())),
            firewall,
            sites: sites.all().len(),
            routes: SiteRoutes::new(engine.tun.clone(), config.routes_table),
            fleet,
            served: BTreeSet::new(),
            engine,
        })
    }

    /// What waits for the thread that lets sites in and keeps the rules.
    pub(super) fn admission(&self) -> Inbox {
        self.admission.inbox.clone()
    }

    /// Serves until asked to stop.
    ///
    /// # Errors
    /// The engine failed.
    pub(super) async fn serve(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(RULES_INTERVAL);
        let mut lease = tokio::time::interval(LEASE_INTERVAL);
        loop {
            tokio::select! {
                _ = lease.tick() => if let Some(fleet) = &self.fleet {
                    fleet.keep_lease(self.served.len());
                },
                _ = look.tick() => self.admission.inbox.keep_rules(),
                asked = signals.next() => match asked {
                    Asked::Stop => return Ok(()),
                    Asked::Reload => reload_and_log(&self.reload),
                },
                event = self.engine.events.recv() => match event {
                    Some(EngineEvent::MtuChanged(mtu)) => {
                        tracing::debug!(mtu, "inner MTU changed");
                    }
                    Some(EngineEvent::Enrol { invitation, key, proved }) => {
                        self.admission.inbox.enrol(invitation, key, proved);
                    }
                    Some(EngineEvent::Key(KeyEvent::Used(key))) => {
                        self.admission.inbox.confirm(key);
                    }
                    Some(EngineEvent::Served { site, addresses, statement }) => {
                        self.serves(site, &addresses, statement.as_ref());
                    }
                    Some(EngineEvent::Withdrawn { site, addresses }) => {
                        self.routes.withdraw(&site, &addresses);
                        self.served.remove(&site);
                    }
                    // The engine writes tunnels down at a bounded pace for each site.
                    Some(
                        EngineEvent::TunnelUp { .. }
                        | EngineEvent::TunnelDown { .. }
                        | EngineEvent::Assigned { .. }
                        | EngineEvent::Moved { .. }
                        | EngineEvent::Key(_),
                    ) => {}
                    Some(EngineEvent::Stopped { error: Some(error) }) => {
                        anyhow::bail!("the engine failed: {error}");
                    }
                    Some(EngineEvent::Stopped { error: None }) | None => return Ok(()),
                },
            }
        }
    }

    /// This hub serves a site from now on, or by a newer statement.
    fn serves(&mut self, site: String, addresses: &[IpNet], statement: Option<&Statement>) {
        let epoch = statement.map_or(0, |statement| statement.epoch);
        self.routes.serve(&site, addresses, epoch);
        if let (Some(fleet), Some(statement)) = (&self.fleet, statement) {
            fleet.serves(&site, statement);
        }
        self.served.insert(site);
    }

    /// Stops what serves sites, and waits for it.
    ///
    /// # Errors
    /// What made the engine fail.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if let Some(fleet) = &self.fleet {
            fleet.leave();
        }
        // Nothing sets rules after the rules have been taken back, not even a thread that is abandoned.
        let firewall = Arc::clone(&self.firewall);
        let closed = tokio::task::spawn_blocking(move || firewall.close());
        // The sites hear the goodbye meanwhile. An `nft` that hangs keeps no stop waiting: what takes the rules back comes
        // after it, as both go through the helper's slow lane.
        let closed = tokio::time::timeout(STOP_TIMEOUT, closed);
        let (stopped, ..) = tokio::join!(self.engine.stop(), self.admission.stop(), closed);
        stopped
    }
}

/// Lines about what another program takes away and a hub sets again, each time it looks. Some in a row, and one an
/// interval after that.
#[derive(Debug, Default)]
struct AgainLines {
    pace: Pace,
    left_out: u64,
}

impl AgainLines {
    /// How often it has happened since the last line, if there may be another one now.
    fn next(&mut self, now: ropewalk_types::Instant) -> Option<u64> {
        self.left_out += 1;
        let allowed = self.pace.allows(now, AGAIN_INTERVAL, AGAIN_LINES);
        allowed.then(|| std::mem::take(&mut self.left_out))
    }

    /// Tells what became of a look at `what`.
    fn tell(&mut self, now: ropewalk_types::Instant, what: &str, set: anyhow::Result<bool>) {
        if matches!(set, Ok(false)) {
            return;
        }
        let Some(count) = self.next(now) else { return };
        match set {
            Ok(_) => tracing::warn!(
                count,
                "another program has removed {what} of this hub, and the hub has set them again"
            ),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(%error, count, "cannot set {what} of this hub; it tries again each second");
            }
        }
    }
}

/// How many threads move packets: one for each processor, or one where there are few of them.
fn worker_count(wanted: Option<usize>) -> usize {
    let most = usize::from(GROUPS);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let usual = if processors < MANY_PROCESSORS {
        1
    } else {
        // With more of them some would have two groups of sites and others one.
        processors.min(most / 2)
    };
    wanted.unwrap_or(usual).clamp(1, most)
}

/// Memory for packets of each worker, bytes.
fn memory_of_each(wanted_mb: Option<u64>, workers: usize) -> u64 {
    let usual = machine_memory::of_process() / MEMORY_PART;
    wanted_mb.map_or(usual, |mb| mb * 1_000_000) / workers as u64
}

/// The sites of a hub, and its fleet if it has one. `inbox` is told when the fleet's state changes.
fn known_sites(
    config: &HubConfig,
    key: PublicKey,
    inbox: &Inbox,
) -> anyhow::Result<(Option<Arc<Member>>, Sites)> {
    let waker = inbox.clone();
    let Some(fleet) = Member::begin(config, key, move || waker.follow())? else {
        let sites = Sites::load(config).context("the sites file is not usable")?;
        return Ok((None, sites));
    };
    let sites = fleet.sites().unwrap_or_else(|error| {
        // The copy may be of a time before the pools were enlarged. The fleet's thread is about to read it anew.
        let error = format!("{error:#}");
        tracing::error!(error, "no site is let in until that is right");
        fleet.put_sites_back();
        Sites::default()
    });
    if sites.all().is_empty() {
        tracing::info!("no copy of the fleet's sites here yet; they come from etcd");
    }
    Ok((Some(Arc::new(fleet)), sites))
}

/// `usable` is what this machine can carry out of `config`.
fn admission(
    engine: &RunningEngine,
    hub: PublicKey,
    config: &HubConfig,
    usable: &HubConfig,
    firewall: Arc<Firewall>,
    directory: Arc<SiteDirectory>,
) -> Admission {
    let usable = usable.clone();
    let kept = Arc::clone(&firewall);
    let (tun, addresses) = (engine.tun.clone(), usable.own_addresses());
    let (routes, mtu) = (shared(&usable), shared_mtu(&usable));
    let start = std::time::Instant::now();
    let lines = <RefCell<(AgainLines, AgainLines)>>::default();
    Admission {
        config: config.clone(),
        fleet: None,
        ipv6: usable.pool_v6.is_some(),
        hub,
        renew: Box::new(move |sites| {
            let interfaces =
                netlink::snapshot().context("cannot list the networks of this machine")?;
            let egress = network::egress(&usable, sites, &interfaces);
            firewall.change(|nat| nat.egress = Some(egress))
        }),
        keep_rules: Box::new(move || {
            let now = ropewalk_types::Instant::ZERO + start.elapsed();
            let (of_rules, of_addresses) = &mut *lines.borrow_mut();
            of_rules.tell(now, "the firewall rules", kept.keep());
            let kept = tun.keep(&addresses);
            // With its last address, or when it is set down, an interface loses its routes.
            of_addresses.tell(
                now,
                "inner addresses",
                kept.and_then(|missing| {
                    tun.lead_up_to(&routes, mtu)?;
                    Ok(missing)
                }),
            );
        }),
        forget: Box::new(forget),
        directory,
        commands: engine.commands.clone(),
        failures: Cell::default(),
    }
}

/// Routes of the addresses that sites share. The kernel of the hub passes packets to them on into the tunnel.
fn shared(config: &HubConfig) -> Vec<IpNet> {
    let addresses = config.shared.iter().flat_map(|shared| &shared.addresses);
    addresses.map(|ip| IpAddr::V4(*ip).into()).collect()
}

/// Bytes of the largest packet to a shared address, where packets are passed on. One that another hub wraps fits into the
/// tunnel interface there, whose MTU is never smaller than this one's at its start if both hubs have the same `mtu`.
fn shared_mtu(config: &HubConfig) -> Option<u32> {
    let whole = config.common.mtu.unwrap_or(MTU_DEFAULT);
    let mtu = u32::try_from(whole.saturating_sub(WRAP_BYTES)).ok();
    mtu.filter(|_| config.passes_on())
}

/// Ends what the kernel remembers of connections of sites that are gone.
fn forget(gone: &[IpAddr], blocks: &[PortBlock]) {
    let ports: Vec<_> = blocks
        .iter()
        .map(|block| (block.address, block.first, block.last))
        .collect();
    if let Err(error) = conntrack::forget(gone, &ports) {
        tracing::debug!(%error, "connections of sites that are gone stay in the kernel's table");
    }
}

fn check_pools(config: &HubConfig) -> anyhow::Result<()> {
    let pools = [("ipv4", config.pool_v4), ("ipv6", config.pool_v6)];
    let pools: Vec<_> = pools
        .into_iter()
        .filter_map(|(key, pool)| Some((key, pool?)))
        .collect();
    match netlink::snapshot() {
        Ok(interfaces) => {
            if let Some(shared) = &config.shared {
                network::check_shared(&interfaces, &shared.addresses)?;
            }
            network::check_pools(&interfaces, |i| config.common.owns(&i.name), &pools)
        }
        Err(error) => {
            tracing::warn!(%error, "pools are not checked against the networks of this machine");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_an_address_each_second_for_an_hour_causes_a_line_a_minute() {
        let mut lines = AgainLines::default();
        let at = |second: u64| ropewalk_types::Instant::from_millis(1_000 * second);
        let told: Vec<_> = (100..3_700)
            .filter_map(|second| Some((second, lines.next(at(second))?)))
            .collect();
        assert_eq!(told[..5], [100, 101, 102, 103, 104].map(|at| (at, 1)));
        // The burst is spent, and comes back by one a minute.
        assert_eq!(told[5..7], [(160, 56), (220, 60)]);
        assert_eq!(told.len(), 5 + 59);
        // After a day without any, the next one is told at once, with those of the last minute.
        assert_eq!(lines.next(at(90_000)), Some(60));
        lines.tell(at(90_001), "inner addresses", Ok(false));
        assert_eq!(lines.left_out, 0, "nothing was missing");
    }
}
