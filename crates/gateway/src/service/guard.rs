//! The kill switch of a running site: set before anything else, kept up to date, told in the status.
//!
//! Invariant: dropping this leaves the rules in place. Only `ropewalk down` and a start with
//! `kill_switch = false` lift them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_api::{KillSwitchStatus, Status};
use ropewalk_config::SiteConfig;
use ropewalk_config::site::tunnels_everything;
use ropewalk_config::uplinks::UplinkRules;
use ropewalk_host::kill_switch::{self, KillSwitch, Local, Plan};
use ropewalk_io::netlink::Interface;
use ropewalk_io::sysctl;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::{ANSWER_TIMEOUT, Commands, resolve};
use crate::engine::control::Command;

/// How often the rules are looked after. Longer: less work, more time without rules where another
/// program has taken them away.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long an interface must have had no default route before its network counts as local. Longer: an
/// uplink that gets its route late is surer not to count, a new local network waits longer.
const LOCAL_AFTER: Duration = Duration::from_secs(10);

/// What to do where the rules cannot be set.
const REMEDY: &str = "the kill switch cannot be set, so the site does not start: run as root with \
                      nftables installed, or set kill_switch = false in [network]";

/// The kill switch of a site, on or off.
#[derive(Debug)]
pub(super) struct Guard {
    switch: Option<KillSwitch>,
    /// Networks without a default route, and since when; `None` where the configuration names them.
    local: Option<BTreeMap<Local, Instant>>,
    /// Name servers of the uplinks, from before this machine got others.
    servers: Vec<IpAddr>,
    /// Networks of the tunnel, of an earlier run until the hub assigns some.
    inner: Vec<IpNet>,
    tick: Interval,
    told: Option<Arc<Told>>,
    /// Whether a route into the tunnel could not be set again the last time.
    routes_lost: bool,
}

/// What the API shares.
#[derive(Debug)]
struct Told {
    tun: String,
    on: bool,
    /// Whether this machine had IPv6 at the start, after which the site takes no notice of it.
    ipv6: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    families: Vec<String>,
    local: Vec<String>,
}

impl Guard {
    /// Sets the rules, or lifts those of a former configuration.
    ///
    /// # Errors
    /// The rules cannot be set.
    pub(super) fn begin(config: &SiteConfig) -> anyhow::Result<Self> {
        let path = kill_switch::path(&config.common.state_dir);
        let switch = if config.kill_switch {
            Some(Self::set(path, config).context(REMEDY)?)
        } else {
            // The side of a relay may share directory and interface name with a site that was killed.
            if config.common.role == "site" {
                lift(&path, config);
            }
            None
        };
        let mut tick = interval(KEEP_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let whole = tunnels_everything(&config.routes);
        let told = (switch.is_some() || whole).then(|| {
            Arc::new(Told {
                tun: config.common.interface.clone(),
                on: switch.is_some(),
                ipv6: sysctl::has_ipv6(),
                inner: Mutex::default(),
            })
        });
        let this = Self {
            local: config.local.is_none().then(BTreeMap::new),
            servers: if switch.is_some() {
                resolve::name_servers()
            } else {
                Vec::new()
            },
            inner: switch
                .as_ref()
                .map(|switch| switch.plan().inner.clone())
                .unwrap_or_default(),
            switch,
            tick,
            told,
            routes_lost: false,
        };
        this.publish();
        Ok(this)
    }

    fn set(path: PathBuf, config: &SiteConfig) -> anyhow::Result<KillSwitch> {
        let mut plan = Plan::new(config);
        // A file that cannot be read costs what was known, and is written anew.
        if let Ok(Some(former)) = kill_switch::read(&path) {
            if plan.names {
                plan.hub.extend(former.hub);
                plan.hub.sort();
                plan.hub.dedup();
            }
            plan.inner = former.inner;
            if config.local.is_none() {
                // Until the interfaces are known: those of before are those of now, as a rule.
                let automatic = former.local.into_iter().filter(|l| l.interface.is_some());
                plan.local.extend(automatic);
            }
        }
        let switch = KillSwitch::set(&path, plan)?;
        tracing::info!(
            table = switch.plan().table(),
            "kill switch is on: only the tunnel leaves this machine, until `ropewalk down`"
        );
        Ok(switch)
    }

    /// Addresses of the hub from an earlier run, for names that are not found.
    pub(super) fn known_hub(&self) -> Vec<SocketAddr> {
        let plan = self.switch.as_ref().map(KillSwitch::plan);
        plan.map(|plan| plan.hub.clone()).unwrap_or_default()
    }

    /// The name servers to ask for the hub past the rules; none while the kill switch is off.
    pub(super) fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// The hub's addresses are these now.
    ///
    /// # Errors
    /// The rules cannot be set.
    pub(super) fn set_hub(&mut self, hub: &[SocketAddr]) -> anyhow::Result<()> {
        match &mut self.switch {
            Some(switch) => switch.update(|plan| plan.hub = hub.to_vec()),
            None => Ok(()),
        }
    }

    /// The hub assigned these addresses.
    pub(super) fn set_inner(&mut self, inner: &[IpNet]) {
        self.inner = inner.to_vec();
        let Some(told) = &self.told else { return };
        let families = [(true, "ipv4"), (false, "ipv6")].into_iter();
        let carried = families.filter(|(ipv4, _)| {
            let mut own = inner.iter().map(|net| net.addr().is_ipv4());
            own.any(|own| own == *ipv4)
        });
        told.lock().families = carried.map(|(_, name)| name.to_owned()).collect();
    }

    /// Waits until the rules are to be looked after.
    pub(super) async fn tick(&mut self) {
        self.tick.tick().await;
    }

    /// Makes good what other programs took away, and follows the local networks.
    pub(super) fn keep(
        &mut self,
        interfaces: &[Interface],
        rules: &UplinkRules,
        hub: &[SocketAddr],
    ) {
        let Some(switch) = &mut self.switch else {
            return;
        };
        let kept = switch.keep().and_then(|again| {
            if again {
                tracing::warn!("another program removed the kill switch; set again");
            }
            let Some(since) = &mut self.local else {
                return Ok(());
            };
            let now = Instant::now();
            let tun = switch.plan().tun.clone();
            let present = kill_switch::local_networks(interfaces, rules, &tun, hub, &self.inner);
            since.retain(|local, _| present.contains(local));
            let former = switch.plan().local.clone();
            for local in present {
                // Those of an earlier run count at once.
                let begin = if former.contains(&local) {
                    now.checked_sub(LOCAL_AFTER).unwrap_or(now)
                } else {
                    now
                };
                since.entry(local).or_insert(begin);
            }
            let settled = since
                .iter()
                .filter(|(_, begin)| now.duration_since(**begin) >= LOCAL_AFTER)
                .map(|(local, _)| local.clone());
            let settled: Vec<Local> = settled.collect();
            switch.update(|plan| {
                plan.local = settled;
                plan.inner.clone_from(&self.inner);
            })
        });
        if let Err(error) = kept {
            tracing::error!(
                error = format!("{error:#}"),
                "the kill switch cannot be kept: traffic may leave beside the tunnel"
            );
        }
        self.publish();
    }

    /// Says which routes into the tunnel were gone and are set again, or that one cannot be set.
    pub(super) fn tell_routes(&mut self, (again, failed): (Vec<IpNet>, Option<anyhow::Error>)) {
        for route in again {
            tracing::warn!(%route, "another program removed a route into the tunnel; set again");
        }
        let was_lost = std::mem::replace(&mut self.routes_lost, failed.is_some());
        if let Some(error) = failed.filter(|_| !was_lost) {
            let error = format!("{error:#}");
            tracing::error!(
                error,
                "a route into the tunnel is gone and cannot be set again yet"
            );
        }
    }

    /// Commands whose status tells of the kill switch. May wait for the engine.
    pub(super) fn commands(&self, engine: Commands) -> Commands {
        let Some(told) = self.told.clone() else {
            return engine;
        };
        Commands(Arc::new(move |command| {
            let Command::Status(reply) = command else {
                return (engine.0)(command);
            };
            let (answer, answered) = sync_channel(1);
            (engine.0)(Command::Status(answer))?;
            let site = answered.recv_timeout(ANSWER_TIMEOUT);
            let site = site.context("the engine does not answer")?;
            let kill_switch = Some(told.status());
            // The caller may not wait any more.
            reply
                .try_send(Status {
                    kill_switch,
                    ..site
                })
                .ok();
            Ok(())
        }))
    }

    fn publish(&self) {
        if let (Some(told), Some(switch)) = (&self.told, &self.switch) {
            let local = switch.plan().local.iter();
            told.lock().local = local.map(Local::to_string).collect();
        }
    }
}

impl Told {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> KillSwitchStatus {
        let state = match kill_switch::state(&self.tun) {
            Ok(state) => state,
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "the rules cannot be read");
                None
            }
        };
        let inner = self.lock();
        KillSwitchStatus {
            on: self.on,
            is_set: state.is_some(),
            refused: state.as_ref().map_or(0, |state| state.refused),
            portal_s: state
                .and_then(|state| state.portal)
                .map(|time| time.as_secs()),
            families: inner.families.clone(),
            no_ipv6: !self.ipv6,
            local: inner.local.clone(),
        }
    }
}

/// Lifts what a former configuration set, and says that nothing is refused.
fn lift(path: &std::path::Path, config: &SiteConfig) {
    let tun = &config.common.interface;
    let lifted = kill_switch::lift(path, tun);
    match lifted.and_then(|lifted| kill_switch::close_portal(tun).map(|()| lifted)) {
        Ok(true) => tracing::warn!("kill switch is lifted: the configuration has it off"),
        Ok(false) => {}
        // Without nftables there is none to lift.
        Err(error) => tracing::debug!(error = format!("{error:#}"), "no kill switch to lift"),
    }
    if tunnels_everything(&config.routes) {
        tracing::warn!(
            "kill switch is off: traffic leaves beside the tunnel before the tunnel is up, after \
             this program has ended, and by routes of the uplinks' networks; set kill_switch = true \
             in [network] to refuse it"
        );
    }
}
