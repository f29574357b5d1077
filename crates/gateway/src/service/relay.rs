//! The control side of a relay: a hub to its sites and a site of the next hub, in one process.
//!
//! Each side has its own engine and tunnel interface. The kernel forwards between them, counts hops
//! and tells senders which packets are too big. Invariants: packets of a site go on to the next hub
//! or to another site, never out of an interface of this machine. Packets that come in by such an
//! interface go into neither tunnel.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use anyhow::Context;

use super::api::{Api, Reload, Unoffered};
use super::hub::Hub;
use super::memory::{self, Memory};
use super::site::{Relayed, Site};
use super::watchdog::Watchdog;
use super::{
    ANSWER_TIMEOUT, ApiSocket, Commands, Prepared, Signals, keys, network, notify, restarts, rights,
};
use crate::engine::control::Command;
use crate::key_file;
use ropewalk_api::{OnwardStatus, Status};
use ropewalk_config::relay::NEXT_HUB;
use ropewalk_config::{self as config, RelayConfig, SiteConfig};
use ropewalk_history::Kind;

pub(super) async fn run(
    mut prepared: Prepared,
    path: &Path,
    config: RelayConfig,
) -> anyhow::Result<()> {
    // Each side hears every signal.
    let (mut hub_signals, mut site_signals) = (Signals::new()?, Signals::new()?);
    let Prepared {
        identity, changes, ..
    } = &mut prepared;
    let site_identity = key_file::load(&config.site.common.key_file)
        .context("the key of this relay at the next hub is not usable")?;
    let source = (path, load_site as fn(&Path) -> _);
    let site_config = config.site.clone();
    let started = Site::start(
        changes,
        &site_identity,
        source,
        site_config,
        &mut site_signals,
    );
    let Some(mut site) = started.await.context("the side towards the hub")? else {
        return Ok(());
    };
    let mut hub =
        Hub::start(changes, identity, &config.hub).context("the side towards the sites")?;
    let (sites_tun, hub_tun) = (&hub.engine.tun, &site.engine.tun);
    let pool_v6 = config.hub.pool_v6.filter(|_| sites_tun.has_ipv6());
    let pools: Vec<_> = config.hub.pool_v4.into_iter().chain(pool_v6).collect();
    let masquerade = config.hub.masquerade;
    let firewall = masquerade.then(|| Arc::clone(&hub.firewall));
    let onward = network::Onward::new(changes, sites_tun, hub_tun, pools.clone(), firewall)?;
    changes.remove_former_tables();
    site.relay(Relayed {
        onward,
        sites: hub.engine.commands.clone(),
        rules: hub.admission(),
        routed: if config.hub.masquerade {
            Vec::new()
        } else {
            pools
        },
    });
    let api = of_both(&hub, &site, &config);
    api.memory.follow(Arc::clone(&api.commands));
    let api = ApiSocket::open(&config.hub.common, api).await?;
    restarts::ready(path);
    tracing::info!(
        name = config.hub.common.name,
        config = %path.display(),
        public_key = %identity.public_key(),
        interface = hub.engine.tun.name,
        onward = site.engine.tun.name,
        hub = ?site.hub(),
        sites = hub.sites,
        "relay is ready"
    );
    let pulses = hub.engine.pulses().into_iter().chain(site.engine.pulses());
    let watchdog = Watchdog::new(pulses).with_admission(hub.admission());
    let result = tokio::select! {
        never = watchdog.run() => match never {},
        error = rights::lost() => Err(error),
        ended = hub.serve(&mut hub_signals) => ended.context("the side towards the sites"),
        ended = site.serve(&mut site_signals, changes) => ended.context("the side towards the hub"),
    };
    notify::send(notify::Stopping);
    drop(api);
    // Sites first: they must not send into a tunnel that is gone.
    let stopped = hub.stop().await;
    let stopped = stopped.and(site.stop().await);
    // Each of them may have been the one to hear it.
    site_signals.is_restart |= hub_signals.is_restart;
    prepared.changes.end(site_signals.is_restart(path).await);
    tracing::info!("relay has stopped");
    result.and(stopped)
}

/// The API of both sides.
fn of_both(hub: &Hub, site: &Site, config: &RelayConfig) -> Api {
    let pulses = hub.engine.pulses().into_iter().chain(site.engine.pulses());
    Api {
        pulses: pulses.collect(),
        commands: both(hub.engine.commands.clone(), site.engine.commands.clone()).0,
        reload: reload_both(Arc::clone(&hub.reload), Arc::clone(&site.reload)),
        change_key: keys::by_hand(),
        memory: Memory::open(&config.hub.common, Kind::Hub),
        mark: memory::no_marks(),
        unoffered: Unoffered::default(),
        fleet: None,
        is_hub: true,
    }
}

fn load_site(path: &Path) -> anyhow::Result<SiteConfig> {
    Ok(config::load_relay(path)?.site)
}

fn reload_both(hub: Reload, site: Reload) -> Reload {
    Arc::new(move || {
        let (hub, site) = (hub(), Arc::clone(&site));
        Box::pin(async move {
            let sites = hub.await?;
            Ok(format!("{sites}; {}", site().await?))
        })
    })
}

/// Commands for the relay as a whole: each goes to the side it is about, and answers are put
/// together. May wait for both engines.
fn both(hub: Commands, site: Commands) -> Commands {
    Commands(Arc::new(move |command| {
        match command {
            Command::Status(reply) => {
                let (answer_hub, from_hub) = sync_channel(1);
                let (answer_site, from_site) = sync_channel(1);
                (hub.0)(Command::Status(answer_hub))?;
                (site.0)(Command::Status(answer_site))?;
                let sites = from_hub.recv_timeout(ANSWER_TIMEOUT);
                let onward = from_site.recv_timeout(ANSWER_TIMEOUT);
                let sites = sites.context("the side towards the sites does not answer")?;
                let onward = onward.context("the side towards the hub does not answer")?;
                // The caller may not wait any more.
                reply.try_send(merge(sites, onward)).ok();
            }
            Command::SetScheduler {
                direction,
                kind,
                peer,
                reply,
            } => {
                let set = |side: &Commands, peer: Option<String>| -> anyhow::Result<_> {
                    let (answer, from) = sync_channel(1);
                    (side.0)(Command::SetScheduler {
                        direction,
                        kind,
                        peer,
                        reply: answer,
                    })?;
                    Ok(from.recv_timeout(ANSWER_TIMEOUT)?)
                };
                let result = match peer.as_deref() {
                    Some(NEXT_HUB) => set(&site, None)?,
                    Some(_) => set(&hub, peer)?,
                    None => {
                        let (sites, onward) = (set(&hub, None)?, set(&site, None)?);
                        sites.and_then(|count| Ok(count + onward?))
                    }
                };
                reply.try_send(result).ok();
            }
            Command::ReloadSites
            | Command::Enrolled { .. }
            | Command::Claimed(_)
            | Command::Drained(_)
            | Command::MtuFloor(_) => {
                (hub.0)(command)?;
            }
            Command::SetPath { .. } | Command::Uplinks(_) => (site.0)(command)?,
            // Each side is told of its own.
            Command::Key(_) => {}
            Command::Shutdown => {
                (hub.0)(Command::Shutdown)?;
                (site.0)(Command::Shutdown)?;
            }
        }
        Ok(())
    }))
}

/// One state of both sides; the tunnel to the hub comes first.
fn merge(sites: Status, onward: Status) -> Status {
    let mut drops = sites.drops;
    for (reason, count) in onward.drops {
        *drops.entry(reason).or_default() += count;
    }
    let tunnels = onward.tunnels.into_iter().chain(sites.tunnels).collect();
    Status {
        role: "relay".to_owned(),
        onward: Some(OnwardStatus {
            public_key: onward.public_key,
            interface: onward.interface,
            mtu: onward.mtu,
            addresses: onward.addresses,
        }),
        tunnels,
        drops,
        ..sites
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::Direction;
    use ropewalk_api::TunnelStatus;
    use ropewalk_core::schedule::SchedulerKind;

    fn side(peer: &'static str, drops: u64) -> Commands {
        Commands(Arc::new(move |command| {
            match command {
                Command::Status(reply) => reply.try_send(Status {
                    interface: format!("to-{peer}"),
                    tunnels: vec![TunnelStatus {
                        peer: peer.to_owned(),
                        ..TunnelStatus::default()
                    }],
                    drops: [("fragments".to_owned(), drops)].into(),
                    ..Status::default()
                })?,
                Command::SetScheduler {
                    peer: asked, reply, ..
                } => {
                    let known = asked.as_deref().is_none_or(|name| name == peer);
                    reply.try_send(if known {
                        Ok(1)
                    } else {
                        Err(format!("no {asked:?}"))
                    })?;
                }
                Command::Uplinks(_)
                | Command::SetPath { .. }
                | Command::ReloadSites
                | Command::Enrolled { .. }
                | Command::Claimed(_)
                | Command::Drained(_)
                | Command::MtuFloor(_)
                | Command::Key(_)
                | Command::Shutdown => {}
            }
            Ok(())
        }))
    }

    #[test]
    fn status_of_both_sides_is_one() {
        let commands = both(side("boat", 2), side(NEXT_HUB, 3));
        let (reply, answer) = sync_channel(1);
        (commands.0)(Command::Status(reply)).unwrap();
        let status = answer.try_recv().unwrap();
        let peers: Vec<_> = status.tunnels.iter().map(|t| t.peer.as_str()).collect();
        assert_eq!(peers, [NEXT_HUB, "boat"]);
        assert_eq!(
            (status.role.as_str(), status.drops["fragments"]),
            ("relay", 5)
        );
        assert_eq!(status.interface, "to-boat");
        assert_eq!(status.onward.unwrap().interface, "to-hub");
    }

    #[test]
    fn a_scheduler_is_set_on_the_side_of_its_peer() {
        let commands = both(side("boat", 0), side(NEXT_HUB, 0));
        for (peer, expected) in [
            (None, Ok(2)),
            (Some("boat"), Ok(1)),
            (Some(NEXT_HUB), Ok(1)),
            (Some("van"), Err("no Some(\"van\")".to_owned())),
        ] {
            let (reply, answer) = sync_channel(1);
            let command = Command::SetScheduler {
                direction: Direction::Both,
                kind: SchedulerKind::default(),
                peer: peer.map(str::to_owned),
                reply,
            };
            (commands.0)(command).unwrap();
            assert_eq!(answer.try_recv().unwrap(), expected, "{peer:?}");
        }
    }
}
