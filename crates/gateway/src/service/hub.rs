//! The control side of a hub.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ropewalk_io::netlink;
use tokio::sync::mpsc;

use super::api::Reload;
use super::{
    ApiSocket, Asked, Engine, Prepared, Signals, engine_settings, event_channel, network, notify,
    reload_and_log,
};
use crate::config::HubConfig;
use crate::engine::control::Command;
use crate::engine::settings::{EngineEvent, HubSettings, SiteDirectory};
use crate::engine::start_hub;
use crate::sites::Sites;

pub(super) async fn run(
    mut prepared: Prepared,
    path: &Path,
    config: HubConfig,
) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    check_pools(&config)?;
    let sites = Sites::load(&config).context("the sites file is not usable")?;
    let directory = Arc::new(SiteDirectory::new(sites.entries()));
    let (sink, mut events) = event_channel();
    let public_key = prepared.identity.public_key();
    let handle = start_hub(HubSettings {
        common: engine_settings(prepared.identity.clone(), &config.common),
        listen: config.listen.clone(),
        tcp_listen: config.tcp_listen.clone(),
        addresses: config.own_addresses(),
        sites: Arc::clone(&directory),
        events: sink,
    })
    .context("the hub cannot start")?;
    let engine = Engine::new(handle);
    engine.tun.configure(&config.own_addresses())?;
    network::set_up_hub(&mut prepared.changes, &engine.tun, &config)?;
    let reload = reload(&engine, config.clone(), directory);
    let api = ApiSocket::open(&config.common, &engine, Arc::clone(&reload), true).await?;
    notify::send("READY=1");
    tracing::info!(
        name = config.common.name,
        config = %path.display(),
        %public_key,
        interface = engine.tun.name,
        sites = sites.all().len(),
        "hub is ready"
    );
    let result = serve(&mut signals, &mut events, &reload).await;
    notify::send("STOPPING=1");
    drop(api);
    let stopped = engine.stop().await;
    drop(prepared);
    tracing::info!("hub has stopped");
    result.and(stopped)
}

async fn serve(
    signals: &mut Signals,
    events: &mut mpsc::Receiver<EngineEvent>,
    reload: &Reload,
) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => return Ok(()),
                Asked::Reload => reload_and_log(reload),
            },
            event = events.recv() => match event {
                Some(EngineEvent::TunnelUp { peer }) => tracing::info!(site = peer, "tunnel is up"),
                Some(EngineEvent::TunnelDown { peer }) => {
                    tracing::info!(site = peer, "tunnel is down");
                }
                Some(EngineEvent::MtuChanged(mtu)) => tracing::debug!(mtu, "inner MTU changed"),
                Some(EngineEvent::Assigned { .. }) => {}
                Some(EngineEvent::Stopped { error: Some(error) }) => {
                    anyhow::bail!("the engine failed: {error}");
                }
                Some(EngineEvent::Stopped { error: None }) | None => return Ok(()),
            },
        }
    }
}

fn reload(engine: &Engine, config: HubConfig, directory: Arc<SiteDirectory>) -> Reload {
    let commands = engine.commands.clone();
    Arc::new(move || {
        let sites = Sites::load(&config)?;
        directory.replace(sites.entries());
        (commands.0)(Command::ReloadSites)?;
        Ok(format!("{} sites", sites.all().len()))
    })
}

fn check_pools(config: &HubConfig) -> anyhow::Result<()> {
    let pools = [("ipv4", config.pool_v4), ("ipv6", config.pool_v6)];
    let pools: Vec<_> = pools
        .into_iter()
        .filter_map(|(key, pool)| Some((key, pool?)))
        .collect();
    match netlink::snapshot() {
        Ok(interfaces) => network::check_pools(&interfaces, &config.common.interface, &pools),
        Err(error) => {
            tracing::warn!(%error, "pools are not checked against the networks of this machine");
            Ok(())
        }
    }
}
