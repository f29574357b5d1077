//! What a site sends beside its tunnel: the classes whose flows go over one uplink each, always or
//! while the hub is not reached.
//!
//! The firewall table and the spreading are those of `ropewalk balance`. This module adds the
//! tunnel: its interface, its addresses, and when flows fall back (`core::balance::fallback`).
//!
//! Invariant: the routes into the tunnel are there before the table is, and stay until the site
//! stops. So packets that are to go through the tunnel wait for it or are refused.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_api::{DirectStatus, Status, WayStatus};
use ropewalk_core::balance::Fallback;
use ropewalk_io::netlink;
use tokio::sync::mpsc;

use super::network::Tun;
use super::{ANSWER_TIMEOUT, Commands, take_lock, take_spreading};
use crate::engine::control::Command;
use ropewalk_balance::status;
use ropewalk_balance::{self as balance, Balance, Family, Plan, Shared, Split, Turn};
use ropewalk_config::class::Via;
use ropewalk_config::{self as config, BalanceConfig, SiteConfig};
use ropewalk_host::Changes;
use ropewalk_host::files;

/// What of a site goes beside its tunnel.
pub(super) struct Direct {
    balance: Balance,
    fallback: Fallback,
    tunnel_up: bool,
    told: Told,
    reloaded: mpsc::Sender<()>,
    _locks: [files::Lock; 2],
}

/// What the API and a reload share with it.
#[derive(Clone, Debug)]
struct Told {
    /// All but how flows are spread.
    status: Arc<Mutex<DirectStatus>>,
    spread: Arc<Mutex<Shared>>,
}

impl Direct {
    /// Begins to send beside the tunnel; `None` when nothing is to go there. The routes into the
    /// tunnel are set first.
    ///
    /// # Errors
    /// `ropewalk balance` runs on this machine, or this machine cannot be set up.
    pub(super) async fn start(
        config: &SiteConfig,
        tun: &Tun,
        changes: &mut Changes,
    ) -> anyhow::Result<Option<Self>> {
        let Some(direct) = &config.direct else {
            return Ok(None);
        };
        let lock = take_lock(&config.common.state_dir, config::balance::ROLE)?;
        let locks = [lock, take_spreading()?];
        netlink::set_group(tun.ifindex, balance::TUNNEL_GROUP)?;
        lead(tun, &config.routes)?;
        let spread = Arc::new(Mutex::new(Shared::new(&direct.spread)));
        let (reloaded, reloads) = mpsc::channel(1);
        let balance = Balance::start(
            direct.spread.clone(),
            split(config),
            Arc::clone(&spread),
            changes,
            reloads,
        )
        .await
        .context("cannot send anything beside the tunnel")?;
        let this = Self {
            balance,
            fallback: Fallback::default(),
            tunnel_up: false,
            told: Told {
                status: Arc::default(),
                spread,
            },
            reloaded,
            _locks: locks,
        };
        this.publish();
        Ok(Some(this))
    }

    /// Waits for what is next. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// See [`Balance::next`].
    pub(super) async fn next(&mut self) -> anyhow::Result<Turn> {
        self.balance.next().await
    }

    /// Does what [`Direct::next`] brought, and falls back or returns when it is time.
    ///
    /// # Errors
    /// This machine cannot be set up.
    pub(super) fn take(&mut self, turn: Turn, changes: &mut Changes) -> anyhow::Result<()> {
        let is_moved = matches!(turn, Turn::Interfaces);
        self.balance.take(turn, changes)?;
        if is_moved {
            self.publish();
        }
        // Where no target ever answers, the silence of the hub is all there is to go by.
        let blind = self.balance.is_blind();
        let (now, usable) = (self.balance.now(), blind || self.balance.is_any_usable());
        if !self.fallback.handle(now, self.tunnel_up, usable) {
            return Ok(());
        }
        let fallen_back = self.fallback.is_fallen_back();
        if fallen_back && blind {
            tracing::warn!(
                "no target of [probe] has ever answered, so whether an uplink works is not known; \
                 set targets that answer echo requests"
            );
        }
        if fallen_back {
            tracing::warn!(
                "the hub is not reached though uplinks work: new flows with via = \"auto\" go direct"
            );
        } else {
            tracing::info!(
                "the hub is reached again: new flows with via = \"auto\" go through the tunnel"
            );
        }
        self.balance.fall_back(fallen_back)?;
        self.publish();
        Ok(())
    }

    /// The tunnel came up or went down.
    pub(super) const fn set_tunnel(&mut self, up: bool) {
        self.tunnel_up = up;
    }

    /// The hub gave this end of the tunnel its addresses, with which the kernel may have taken the
    /// routes away.
    ///
    /// # Errors
    /// This machine cannot be set up.
    pub(super) fn set_inner(
        &mut self,
        tun: &Tun,
        routes: &[IpNet],
        inner: &[IpNet],
    ) -> anyhow::Result<()> {
        lead(tun, routes)?;
        self.balance.set_inner(inner)?;
        self.publish();
        Ok(())
    }

    /// Commands for a site that also sends beside its tunnel: its state has both. May wait for the
    /// engine.
    pub(super) fn commands(&self, engine: Commands) -> Commands {
        let told = self.told.clone();
        Commands(Arc::new(move |command| {
            let Command::Status(reply) = command else {
                return (engine.0)(command);
            };
            let (answer, answered) = sync_channel(1);
            (engine.0)(Command::Status(answer))?;
            let site = answered.recv_timeout(ANSWER_TIMEOUT);
            let site = site.context("the engine does not answer")?;
            let direct = Some(told.status());
            // The caller may not wait any more.
            reply.try_send(Status { direct, ..site }).ok();
            Ok(())
        }))
    }

    /// What takes over another configuration, as far as a running site can: how flows are spread.
    /// What it returns fails when the firewall refuses the rules.
    pub(super) fn reload(
        &self,
    ) -> impl Fn(&SiteConfig) -> anyhow::Result<()> + Send + Sync + use<> {
        let (spread, reloaded) = (Arc::clone(&self.told.spread), self.reloaded.clone());
        move |config| {
            let Some(direct) = &config.direct else {
                return Ok(());
            };
            let version = balance::check(&direct.spread, split(config).as_ref())?;
            balance::lock(&spread).reloaded = Some((version, direct.spread.clone()));
            // A full channel means that a reload is due anyway.
            let _ = reloaded.try_send(());
            Ok(())
        }
    }

    fn publish(&self) {
        let Some(split) = self.balance.split() else {
            return;
        };
        let mut status = self.told.lock();
        status.fallbacks += u64::from(split.fallen_back && !status.fallen_back);
        status.fallen_back = split.fallen_back;
        status.classes = ways(split, |family| self.balance.has_way(family));
    }
}

impl Told {
    fn lock(&self) -> std::sync::MutexGuard<'_, DirectStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> DirectStatus {
        let mut spread = balance::lock(&self.spread).status.clone();
        status::count_flows(&mut spread);
        DirectStatus {
            spread,
            ..self.lock().clone()
        }
    }
}

/// What starting the site now would change for what goes beside the tunnel; `None` when nothing
/// does.
///
/// # Errors
/// The interfaces cannot be read.
pub fn plan(config: &SiteConfig) -> anyhow::Result<Option<Plan>> {
    let planned = |direct: &config::direct::Direct| {
        let spread: &BalanceConfig = &direct.spread;
        balance::plan(spread, split(config).as_ref())
    };
    config.direct.as_deref().map(planned).transpose()
}

pub(super) fn split(config: &SiteConfig) -> Option<Split> {
    Some(Split {
        tun: config.common.interface.clone(),
        inner: Vec::new(),
        direct: config.direct.clone()?,
        fallen_back: false,
    })
}

/// Leads all routes into the tunnel, also those of a family without a tunnel address: the firewall
/// table decides on their packets.
fn lead(tun: &Tun, routes: &[IpNet]) -> anyhow::Result<()> {
    let ipv6 = tun.has_ipv6();
    tun.lead(routes.iter().filter(|route| ipv6 || route.addr().is_ipv4()))
}

/// Where new flows of each class go; `has_uplink` says whether an uplink has a way out in a family.
fn ways(split: &Split, has_uplink: impl Fn(Family) -> bool) -> Vec<WayStatus> {
    let now = |via, family| {
        let is_direct = match via {
            Via::Tunnel => false,
            Via::Direct => true,
            Via::Auto => split.auto_is_direct(family),
        };
        // For want of an uplink the main routing table leads flows into the tunnel.
        match (is_direct, has_uplink(family), split.has_address(family)) {
            (true, true, _) => Via::Direct.name(),
            (true, false, false) => NOWHERE,
            _ => Via::Tunnel.name(),
        }
    };
    let way = |class: &str, via: Via| WayStatus {
        class: class.to_owned(),
        via: via.name().to_owned(),
        now_ipv4: now(via, Family::V4).to_owned(),
        now_ipv6: now(via, Family::V6).to_owned(),
    };
    let classes = split.direct.classes.iter();
    let classes = classes.map(|class| way(&class.name, class.via));
    classes
        .chain([way("others", split.direct.others)])
        .collect()
}

/// The way of flows in a family for which there is neither an uplink nor a tunnel.
const NOWHERE: &str = "none";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use ropewalk_config::site;

    #[test]
    fn status_says_direct_only_in_a_family_that_an_uplink_has() {
        let text = "[hub]\nkey = \"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"\n\
            endpoints = [\"h:1\"]\n[[class]]\nname = \"video\"\nvia = \"direct\"\n\
            ports = [\"443\"]\n[direct]\nvia = \"auto\"\n";
        let config = site::parse(Path::new("site.toml"), text).unwrap();
        let mut split = split(&config).unwrap();
        let ipv4_only = |family| family == Family::V4;
        let now = |split: &Split| {
            let ways = ways(split, ipv4_only);
            ways.into_iter()
                .map(|way| (way.now_ipv4, way.now_ipv6))
                .collect::<Vec<_>>()
        };
        let pair = |ipv4: &str, ipv6: &str| (ipv4.to_owned(), ipv6.to_owned());
        assert_eq!(
            now(&split),
            [pair("direct", "none"), pair("direct", "none")]
        );
        split.inner = vec!["10.9.0.7/20".parse().unwrap()];
        assert_eq!(
            now(&split),
            [pair("direct", "none"), pair("tunnel", "none")]
        );
        split.inner.push("fd00::7/64".parse().unwrap());
        assert_eq!(
            now(&split),
            [pair("direct", "tunnel"), pair("tunnel", "tunnel")]
        );
    }
}
