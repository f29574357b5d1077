//! Checks of what a hub or a site is configured to do.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::panic::resume_unwind;

use ropewalk_io::netlink::{self, Interface};
use ropewalk_io::nft;
use ropewalk_io::sysctl;
use serde_json::Value;

use super::{Check, probe};
use crate::client::Client;
use crate::engine::control::Uplink;
use crate::fleet;
use crate::service::spare::SPARES;
use crate::service::{direct, has_net_admin, network, resolve};
use crate::sites::Sites;
use ropewalk_api::FleetStatus;
use ropewalk_config::egress::Allowed;
use ropewalk_config::site::tunnels_everything;
use ropewalk_config::{BalanceConfig, HubConfig, SiteConfig};
use ropewalk_host::{files, kill_switch, uplinks};
use ropewalk_transport::PublicKey;

/// Outer MTU below which inner packets of 1,280 bytes need fragments.
const UPLINK_MTU_MIN: u32 = 1_400;
/// IP and UDP header, bytes, by family.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;

/// Checks of a hub. `running` is `None` for a user who may not look at its state.
pub fn hub(config: &HubConfig, running: Option<bool>) -> Vec<Check> {
    let mut checks = Vec::new();
    if running.is_some() {
        let (known, reach) = sites(config);
        checks.push(known);
        checks.extend(reach);
    }
    checks.extend([pools(config), endpoint(config)]);
    if config.fleet.is_some() {
        checks.extend(in_fleet(config, running));
    }
    if running == Some(false) {
        checks.push(ports(config));
    }
    if config.forward {
        checks.extend(running.map(forwarding));
    }
    checks
}

/// Checks of the list of sites, and of what they reach where there are any.
fn sites(config: &HubConfig) -> (Check, Option<Check>) {
    let (sites, remedy) = if config.fleet.is_some() {
        let remedy = "look at `ropewalk fleet status`";
        (fleet::desk::sites_on_disk(config), remedy)
    } else {
        (Sites::load(config), "correct the file")
    };
    match sites {
        Ok(sites) if sites.all().is_empty() => {
            let check = Check::warn("sites", "none yet", "run `ropewalk invite NAME`");
            (check, None)
        }
        Ok(sites) => {
            let known = allowed(config, &sites)
                .unwrap_or_else(|| Check::ok("sites", format!("{} known", sites.all().len())));
            (known, Some(Check::ok("sites reach", reach(config, &sites))))
        }
        Err(error) => {
            let remedy = if files::is_denied(&error) {
                files::AS_ROOT
            } else {
                remedy
            };
            (Check::fail("sites", format!("{error:#}"), remedy), None)
        }
    }
}

/// Checks of a hub of a fleet: what the hub that runs knows of the fleet, and what becomes of connections.
fn in_fleet(config: &HubConfig, running: Option<bool>) -> Vec<Check> {
    let asked = (running == Some(true)).then(|| Client::new(&config.common.socket).status());
    let known = asked.and_then(Result::ok).map(|status| {
        status.fleet.as_ref().map_or_else(
            || {
                let found = "the hub that runs has no fleet";
                Check::fail("fleet", found, "restart the hub, so that it reads [fleet]")
            },
            fleet_known,
        )
    });
    known.into_iter().chain(moves(config)).collect()
}

/// What the hub that runs says of its fleet.
fn fleet_known(known: &FleetStatus) -> Check {
    let name = "fleet";
    let etcd = fleet::matter(&known.etcd);
    let runs = known.hubs.iter().filter(|hub| hub.runs).count();
    let mut found = format!(
        "{}: etcd {etcd}; hubs that run, as far as this one knows: {runs}",
        known.name
    );
    if let Some(why) = &known.etcd.why {
        found += &format!("; {why}");
    }
    for problem in &known.problems {
        found += &format!("; {problem}");
    }
    let look = "the lines say what to do; `ropewalk fleet status` has more";
    match (known.etcd.state.as_str(), known.problems.is_empty()) {
        ("there", true) => Check::ok(name, found),
        // While etcd is away other hubs do not see this one, which is a problem of its own.
        ("away", _) => Check::warn(
            name,
            found,
            "look at etcd; known sites join, move and run meanwhile, nobody can be invited or revoked",
        ),
        _ => Check::fail(name, found, look),
    }
}

/// A warning where connections of sites break when they move to another hub.
fn moves(config: &HubConfig) -> Option<Check> {
    let leaves = config.forward && config.onward.is_none() && config.shared.is_none();
    if !leaves || !config.masquerade {
        return None;
    }
    Some(Check::warn(
        "connections",
        "`masquerade` is on: when a site moves to another hub, its address outside changes and its connections break",
        "set masquerade = false and routes_table in [network], or let sites share public addresses with `shared` in [pool]",
    ))
}

/// Most sites with an `allow` of their own that are shown. `ropewalk invite --list` has all sites.
const OWN_SHOWN_MAX: usize = 20;

/// What sites reach, a line for all and one for each that has an `allow` of its own.
fn reach(config: &HubConfig, sites: &Sites) -> String {
    if config.onward.is_some() {
        return "what the next hub lets this relay reach, but neither this relay nor each other"
            .to_owned();
    }
    if !config.forward {
        return "every address of this hub: `forward = false` sets no rules".to_owned();
    }
    let words = |allow: &[Allowed]| {
        let list: Vec<_> = allow.iter().map(ToString::to_string).collect();
        let also = if list.is_empty() {
            "nothing else".to_owned()
        } else {
            list.join(", ")
        };
        format!("the internet, this hub's inner addresses, and {also}")
    };
    let mut text = words(&config.allow);
    let own: Vec<_> = sites
        .all()
        .iter()
        .filter_map(|site| Some((&site.name, site.allow.as_ref()?)))
        .collect();
    for (name, allow) in own.iter().take(OWN_SHOWN_MAX) {
        text += &format!("\n{name}: {}", words(allow));
    }
    if own.len() > OWN_SHOWN_MAX {
        let more = own.len() - OWN_SHOWN_MAX;
        text += &format!("\n{more} more have an `allow` of their own");
    }
    text
}

/// Most unknown names in `allow` that are shown.
const UNKNOWN_SHOWN_MAX: usize = 20;

/// A warning of `site:NAME` in an `allow` that no site has as its name; nobody can be reached by it.
fn allowed(config: &HubConfig, sites: &Sites) -> Option<Check> {
    let names: HashSet<&str> = sites.all().iter().map(|site| site.name.as_str()).collect();
    let of_sites = sites
        .all()
        .iter()
        .flat_map(|site| site.allow.iter().flatten());
    let unknown: BTreeSet<&str> = config
        .allow
        .iter()
        .chain(of_sites)
        .filter_map(|allowed| match allowed {
            Allowed::Site(name) => Some(name.as_str()),
            Allowed::Net(_) => None,
        })
        .filter(|name| !names.contains(name))
        .collect();
    if unknown.is_empty() {
        return None;
    }
    let shown = unknown.iter().take(UNKNOWN_SHOWN_MAX);
    let shown: Vec<_> = shown.map(|name| format!("site:{name}")).collect();
    let more = match unknown.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(Check::warn(
        "sites",
        format!(
            "{} known; `allow` names {}{more}, which this hub does not know",
            sites.all().len(),
            shown.join(", ")
        ),
        "correct the name in `allow` (`ropewalk invite --list` has all), or invite the site",
    ))
}

fn pools(config: &HubConfig) -> Check {
    let pools = [("ipv4", config.pool_v4), ("ipv6", config.pool_v6)];
    let pools: Vec<_> = pools
        .into_iter()
        .filter_map(|(key, pool)| Some((key, pool?)))
        .collect();
    let interfaces = netlink::snapshot().unwrap_or_default();
    match network::check_pools(&interfaces, |i| config.common.owns(&i.name), &pools) {
        Ok(()) => Check::ok("address pools", "overlap with no network of this machine"),
        Err(error) => Check::fail("address pools", error.to_string(), "change [pool]"),
    }
}

fn endpoint(config: &HubConfig) -> Check {
    let name = "public endpoint";
    if config.public.is_empty() {
        return Check::warn(
            name,
            "not configured: tokens carry the address of the interface with the default route",
            "set `public` in [listen] to how sites reach this hub",
        );
    }
    let list: Vec<_> = config.public.iter().map(ToString::to_string).collect();
    Check::ok(name, list.join(", "))
}

fn ports(config: &HubConfig) -> Check {
    let name = "ports";
    let udp = config
        .listen
        .iter()
        .map(|address| ("UDP", socket2::Type::DGRAM, *address));
    let tcp = config
        .tcp_listen
        .iter()
        .map(|address| ("TCP", socket2::Type::STREAM, *address));
    let taken: Vec<_> = udp
        .chain(tcp)
        .filter_map(|(word, kind, address)| {
            let error = try_bind(address, kind).err()?;
            Some(format!("{word} {address}: {error}"))
        })
        .collect();
    if taken.is_empty() {
        return Check::ok(
            name,
            "free to listen on; open them in the provider's firewall as well",
        );
    }
    let remedy = "stop what uses them (`ss -lunp`, `ss -ltnp`), or change [listen]";
    Check::fail(name, taken.join("; "), remedy)
}

/// IPv6 sockets take IPv6 only, so that both families can have the same port.
fn try_bind(address: SocketAddr, kind: socket2::Type) -> std::io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == socket2::Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())
}

fn forwarding(running: bool) -> Check {
    let name = "forwarding";
    if let Some(chain) = dropping_chain() {
        return Check::warn(
            name,
            format!(
                "the firewall chain {chain} drops forwarded packets unless a rule accepts them"
            ),
            "accept packets from and to the hub's interface there (Docker: in DOCKER-USER)",
        );
    }
    let on = sysctl::read("net.ipv4.ip_forward").is_ok_and(|value| value == "1");
    if running && !on {
        return Check::fail(
            name,
            "net.ipv4.ip_forward is 0 although the hub runs",
            "somebody switched it off: restart the hub",
        );
    }
    Check::ok(
        name,
        if on {
            "on"
        } else {
            "will be switched on while the hub runs"
        },
    )
}

/// A firewall chain of somebody else that drops what it forwards by default.
fn dropping_chain() -> Option<String> {
    let value: Value = serde_json::from_str(&nft::list_chains().ok()?).ok()?;
    let chains = value["nftables"]
        .as_array()?
        .iter()
        .filter_map(|item| item.get("chain"));
    chains
        .into_iter()
        .find(|chain| chain["hook"] == "forward" && chain["policy"] == "drop")
        .map(|chain| {
            let part = |key: &str| chain[key].as_str().unwrap_or("?").to_owned();
            format!("{} {} {}", part("family"), part("table"), part("name"))
        })
}

/// Checks of a site. `running` is `None` for a user who may not look at its state.
pub fn site(config: &SiteConfig, running: Option<bool>) -> Vec<Check> {
    let kill_switch = running.and_then(|running| kill_switch(config, running));
    let mut checks: Vec<Check> = kill_switch.into_iter().collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let servers = if config.kill_switch && has_net_admin() {
        resolve::name_servers()
    } else {
        Vec::new()
    };
    let resolved =
        runtime.map(|runtime| runtime.block_on(resolve::resolve(&config.endpoints, &servers)));
    let (hub, failures) = resolved.unwrap_or_default();
    if hub.is_empty() {
        let remedy = "check DNS on this machine, or `endpoints` in [hub]";
        checks.push(Check::fail("hub address", failures.join("; "), remedy));
        return checks;
    }
    let list: Vec<_> = hub.iter().map(ToString::to_string).collect();
    checks.push(Check::ok("hub address", list.join(", ")));
    // The ways to the hub that serves matter. After a move that is a spare.
    let spare = (running == Some(true)).then(|| serving_spare(config));
    // A spare is reached over UDP only.
    let (hub, tcp_port) = match spare.flatten() {
        Some((name, addresses)) => {
            let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let found = format!("the {name} at {}: this site has moved", list.join(", "));
            checks.push(Check::ok("hub that serves", found));
            (addresses, None)
        }
        None => (hub, config.tcp_fallback.then_some(config.tcp_port)),
    };
    let interfaces = match netlink::snapshot() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            checks.push(Check::fail("uplinks", error.to_string(), "run as root"));
            return checks;
        }
    };
    let found = uplinks::select(&interfaces, &config.uplinks, &config.common.interface, &hub);
    checks.push(uplinks_found(&found, &interfaces, config, &hub));
    checks.extend(of_all_uplinks(&found, &hub, config.hub_key, tcp_port));
    checks.extend(beside_tunnel(config));
    checks
}

/// The name of the spare that serves the site that runs, if one does, and where it is reached.
fn serving_spare(config: &SiteConfig) -> Option<(&'static str, Vec<SocketAddr>)> {
    if config.spares.is_empty() {
        return None;
    }
    let status = Client::new(&config.common.socket).status().ok()?;
    let tunnel = status.tunnels.into_iter().find(|tunnel| tunnel.up)?;
    let name = SPARES
        .into_iter()
        .find(|name| tunnel.serving_hub.as_deref() == Some(*name))?;
    let addresses = tunnel.serving_hub_addresses.iter();
    let addresses: Vec<SocketAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
    (!addresses.is_empty()).then_some((name, addresses))
}

/// Check of what is refused beside the tunnel, where everything is to go through it.
fn kill_switch(config: &SiteConfig, running: bool) -> Option<Check> {
    if !config.kill_switch && !tunnels_everything(&config.routes) {
        return None;
    }
    let name = "kill switch";
    let state = match kill_switch::state(&config.common.interface) {
        Ok(state) => state,
        Err(error) => {
            let remedy = "run as root with nftables installed";
            return Some(Check::warn(name, format!("{error:#}"), remedy));
        }
    };
    Some(match (config.kill_switch, state) {
        (_, Some(state)) if !running => Check::fail(
            name,
            format!(
                "on, and no gateway runs: nothing leaves this machine; {} packets refused",
                state.refused
            ),
            "start the site with `ropewalk up`, or lift the kill switch with `ropewalk down`",
        ),
        (true, Some(state)) => Check::ok(
            name,
            format!(
                "on: {} packets refused; `ropewalk down` lifts it",
                state.refused
            ),
        ),
        (true, None) => Check::warn(
            name,
            "configured, but not set: traffic leaves beside the tunnel until the site starts",
            "start the site with `ropewalk up`",
        ),
        (false, Some(_)) => Check::warn(
            name,
            "on, though the configuration has it off: only the tunnel leaves this machine",
            "run `ropewalk down`, or start the site, which lifts it",
        ),
        (false, None) => Check::warn(
            name,
            "off: traffic leaves beside the tunnel before the tunnel is up, after the site has ended, \
             and by routes of the uplinks' networks",
            "set kill_switch = true in [network], if nothing may",
        ),
    })
}

/// Check of what goes beside the tunnel, if anything does.
fn beside_tunnel(config: &SiteConfig) -> Option<Check> {
    let name = "beside the tunnel";
    Some(match direct::plan(config).transpose()? {
        Err(error) => Check::fail(name, format!("{error:#}"), "run as root"),
        Ok(plan) if plan.uplinks.is_empty() => Check::warn(
            name,
            "no interface has an address and a default route: all goes through the tunnel",
            "connect one; `ip route` must show a default route through it",
        ),
        Ok(plan) => Check::ok(name, format!("over {}", plan.uplinks.join(", "))),
    })
}

/// Check of what spreads flows without a hub.
pub fn balance(config: &BalanceConfig) -> Vec<Check> {
    let name = "uplinks";
    let plan = match ropewalk_balance::plan(config, None) {
        Ok(plan) => plan,
        Err(error) => return vec![Check::fail(name, format!("{error:#}"), "run as root")],
    };
    let doubts = plan.doubts.iter();
    let doubts = doubts.map(|doubt| Check::warn("configuration", &doubt.found, &doubt.remedy));
    let found = match &plan {
        plan if plan.uplinks.is_empty() => Check::fail(
            name,
            "no interface has a carrier, an address and a default route",
            "connect one; `ip route` must show a default route through it. See [uplinks]",
        ),
        plan if plan.uplinks.len() == 1 => Check::warn(
            name,
            format!("only {}", plan.uplinks.join(", ")),
            "connect another one: there is nothing to spread over yet",
        ),
        plan => Check::ok(name, plan.uplinks.join(", ")),
    };
    std::iter::once(found).chain(doubts).collect()
}

fn uplinks_found(
    found: &[Uplink],
    interfaces: &[Interface],
    config: &SiteConfig,
    hub: &[SocketAddr],
) -> Check {
    let name = "uplinks";
    let (rules, tun) = (&config.uplinks, &config.common.interface);
    let unmatched = uplinks::unmatched(interfaces, rules);
    let left_out = uplinks::left_out(interfaces, rules, tun, hub);
    let left_out: Vec<_> = left_out.iter().map(ToString::to_string).collect();
    let names: Vec<_> = found.iter().map(|uplink| uplink.name.as_str()).collect();
    let text = match names.as_slice() {
        [] => "no interface has a carrier, an address and a way to the hub".to_owned(),
        [one] => format!("only {one}"),
        several => several.join(", "),
    };
    let (text, remedy) = if !unmatched.is_empty() {
        let text = format!("{text}; no interface matches {}", unmatched.join(", "));
        (text, "check `include` in [uplinks] for misspelt names")
    } else if !left_out.is_empty() {
        let text = format!("{text}; left out: {}", left_out.join(", "));
        let remedy = "if they are uplinks, name all uplinks in `include` of [uplinks]";
        (text, remedy)
    } else if found.is_empty() {
        let remedy = "connect one; `ip route` must show a default route through it. See [uplinks]";
        (text, remedy)
    } else {
        (text, "connect another one: there is nothing to join yet")
    };
    match found {
        [] => Check::fail(name, text, remedy),
        [_, _, ..] if unmatched.is_empty() => Check::ok(name, text),
        _ => Check::warn(name, text, remedy),
    }
}

/// Checks of all uplinks at once: those on which nothing answers take seconds.
fn of_all_uplinks(
    found: &[Uplink],
    hub: &[SocketAddr],
    key: PublicKey,
    tcp_port: Option<u16>,
) -> Vec<Check> {
    std::thread::scope(|scope| {
        let begun: Vec<_> = found
            .iter()
            .map(|uplink| {
                let check = move || uplink_checks(uplink, hub, key, tcp_port);
                let thread = std::thread::Builder::new().spawn_scoped(scope, check);
                // Where no more threads can be had, one after the other does as well.
                thread.map_err(|_| uplink_checks(uplink, hub, key, tcp_port))
            })
            .collect();
        let ended = begun.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|why| resume_unwind(why)),
            Err(checks) => checks,
        });
        ended.flatten().collect()
    })
}

fn uplink_checks(
    uplink: &Uplink,
    hub: &[SocketAddr],
    key: PublicKey,
    tcp_port: Option<u16>,
) -> Vec<Check> {
    let mut checks = vec![mtu(uplink)];
    let mut udp_works = false;
    for address in hub {
        let source = uplink
            .addresses
            .iter()
            .find(|ip| ip.is_ipv4() == address.is_ipv4());
        let Some(source) = source.copied() else {
            continue;
        };
        let name = format!("UDP {} to {address}", uplink.name);
        let device = Some(uplink.name.as_str());
        let headers = if address.is_ipv4() {
            HEADERS_V4
        } else {
            HEADERS_V6
        };
        checks.push(
            match probe::udp(device, Some(source), *address, probe::PAYLOAD_MIN) {
                Ok(Some(time)) => {
                    udp_works = true;
                    let full = (uplink.mtu as usize).saturating_sub(headers);
                    let largest = probe::udp(device, Some(source), *address, full);
                    let found = format!("the hub answers after {:.1} ms", time.as_secs_f64() * 1e3);
                    if full <= probe::PAYLOAD_MIN || matches!(largest, Ok(Some(_))) {
                        Check::ok(&name, found)
                    } else {
                        let found = format!("{found}, but not to packets of {} bytes", uplink.mtu);
                        Check::ok(
                            &name,
                            format!("{found}: the path MTU is smaller and will be found"),
                        )
                    }
                }
                Ok(None) => Check::warn(
                    &name,
                    "no answer",
                    "check that the hub runs, its address, and that its firewall and this network \
                 let UDP through; meanwhile TLS over TCP is tried",
                ),
                Err(error) => {
                    Check::warn(&name, error.to_string(), "check the routes of this uplink")
                }
            },
        );
    }
    if let Some(port) = tcp_port {
        checks.extend(tcp_check(uplink, (hub, key, port), udp_works));
    }
    checks
}

fn mtu(uplink: &Uplink) -> Check {
    let name = format!("MTU {}", uplink.name);
    if uplink.mtu < UPLINK_MTU_MIN {
        let found = format!(
            "{} bytes: full inner packets travel in two parts",
            uplink.mtu
        );
        return Check::warn(
            &name,
            found,
            "raise the MTU of the interface if its network takes it",
        );
    }
    Check::ok(&name, format!("{} bytes", uplink.mtu))
}

fn tcp_check(
    uplink: &Uplink,
    (hub, key, port): (&[SocketAddr], PublicKey, u16),
    udp_works: bool,
) -> Option<Check> {
    let of_family = |address: &&SocketAddr| {
        uplink
            .addresses
            .iter()
            .any(|ip| ip.is_ipv4() == address.is_ipv4())
    };
    let address = SocketAddr::new(hub.iter().find(of_family)?.ip(), port);
    let name = format!("TCP {} to {address}", uplink.name);
    Some(match probe::tcp(Some(&uplink.name), address, key) {
        Ok(found) => {
            let text = format!("connects after {:.1} ms", found.after.as_secs_f64() * 1e3);
            match found.stranger {
                None => Check::ok(&name, text),
                Some(stranger) => Check::fail(
                    &name,
                    format!("{text}, but somebody else answers in place of the hub: {stranger}"),
                    "a network with a login page does this: log in there with `ropewalk portal 5m --uplink NAME`. Elsewhere check \
                     the address of the hub",
                ),
            }
        }
        Err(error) if udp_works => Check::warn(
            &name,
            error.to_string(),
            "UDP works, so this only matters where UDP is blocked: open the port on the hub",
        ),
        Err(error) => Check::fail(
            &name,
            error.to_string(),
            "neither UDP nor TCP reaches the hub over this uplink: check the hub and its firewall",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::sites::Terms;
    use ropewalk_api::{EtcdStatus, FleetHub};

    #[test]
    fn a_fleet_without_etcd_or_with_problems_is_told() {
        let known = |state: &str, problems: &[&str]| FleetStatus {
            name: "north".to_owned(),
            etcd: EtcdStatus {
                state: state.to_owned(),
                since: (state != "there").then_some(60),
                why: (state != "there").then(|| "no answer".to_owned()),
            },
            problems: problems.iter().map(|text| (*text).to_owned()).collect(),
            hubs: vec![FleetHub {
                runs: true,
                ..FleetHub::default()
            }],
            ..FleetStatus::default()
        };
        let good = fleet_known(&known("there", &[]));
        assert_eq!(good.state, State::Ok);
        assert_eq!(
            good.found,
            "north: etcd answers; hubs that run, as far as this one knows: 1"
        );
        let unseen = "other hubs do not see that this hub runs";
        assert_eq!(fleet_known(&known("away", &[unseen])).state, State::Warn);
        let away = fleet_known(&known("away", &[]));
        assert_eq!(away.state, State::Warn);
        assert!(
            away.found.ends_with(
                "1970-01-01 00:01:00 UTC; hubs that run, as far as this one knows: 1; no answer"
            ),
            "{away:?}"
        );
        for bad in [known("foreign", &[]), known("there", &["a name twice"])] {
            assert_eq!(fleet_known(&bad).state, State::Fail);
        }
    }

    #[test]
    fn a_fleet_whose_connections_break_at_a_move_is_warned_of() {
        let hub = |more: &str| {
            let text = format!("[pool]\nipv4 = \"10.9.0.0/16\"\n{more}");
            ropewalk_config::hub::parse(std::path::Path::new("hub.toml"), &text).unwrap()
        };
        let usual = moves(&hub("")).unwrap();
        assert_eq!(usual.state, State::Warn);
        assert!(usual.remedy.unwrap().contains("masquerade = false"));
        for kept in [
            "[network]\nmasquerade = false\n",
            "shared = [\"192.0.2.8\"]\n",
            "[network]\nforward = false\n",
        ] {
            assert_eq!(moves(&hub(kept)), None, "{kept}");
        }
    }

    #[test]
    fn a_name_in_allow_that_no_site_has_is_warned_of() {
        let text =
            "[pool]\nipv4 = \"10.9.0.0/16\"\n[egress]\nallow = [\"10.1.0.0/16\", \"site:farm\"]\n";
        let hub = ropewalk_config::hub::parse(std::path::Path::new("hub.toml"), text).unwrap();
        let key = |seed| {
            let identity = ropewalk_transport::Identity::from_seed([seed; 32]);
            identity.unwrap().public_key()
        };
        let mut sites = Sites::default();
        let check = allowed(&hub, &sites).unwrap();
        assert_eq!(check.state, super::super::State::Warn);
        assert!(check.found.contains("site:farm"), "{check:?}");
        sites.add(&hub, "farm", key(1), Terms::default()).unwrap();
        assert_eq!(allowed(&hub, &sites), None);
        let terms = Terms {
            allow: Some(vec!["site:office".parse().unwrap()]),
            ..Terms::default()
        };
        sites.add(&hub, "boat", key(2), terms).unwrap();
        let found = allowed(&hub, &sites).unwrap().found;
        assert!(
            found.contains("site:office") && !found.contains("farm"),
            "{found}"
        );
        assert!(!found.contains("more"), "{found}");
        let many = (0..500).map(|number| format!("site:x{number}").parse().unwrap());
        let terms = Terms {
            allow: Some(many.collect()),
            ..Terms::default()
        };
        sites.add(&hub, "van", key(3), terms).unwrap();
        let found = allowed(&hub, &sites).unwrap().found;
        assert_eq!(found.matches("site:").count(), UNKNOWN_SHOWN_MAX, "{found}");
        assert!(found.contains(" and 481 more, which"), "{found}");
    }

    #[test]
    fn what_sites_reach_is_told_for_all_and_for_those_that_differ() {
        let hub = |more: &str| {
            let text = format!("[pool]\nipv4 = \"10.9.0.0/16\"\n{more}");
            ropewalk_config::hub::parse(std::path::Path::new("hub.toml"), &text).unwrap()
        };
        let open = hub("[egress]\nallow = [\"10.1.0.0/16\"]\n");
        let usual = "the internet, this hub's inner addresses, and";
        let mut sites = Sites::default();
        assert_eq!(reach(&hub(""), &sites), format!("{usual} nothing else"));
        for (seed, name, allow) in [(1, "boat", vec![]), (2, "farm", vec!["site:boat"])] {
            let terms = Terms {
                allow: Some(allow.iter().map(|text| text.parse().unwrap()).collect()),
                ..Terms::default()
            };
            let key = ropewalk_transport::Identity::from_seed([seed; 32]).unwrap();
            sites.add(&open, name, key.public_key(), terms).unwrap();
        }
        assert_eq!(
            reach(&open, &sites),
            format!("{usual} 10.1.0.0/16\nboat: {usual} nothing else\nfarm: {usual} site:boat")
        );
        let closed = hub("[network]\nforward = false\n");
        assert!(reach(&closed, &sites).starts_with("every address of this hub"));
    }

    #[test]
    fn an_interface_that_is_left_out_as_a_tunnel_is_named() {
        let card = |name: &str, index: u32| Interface {
            default_route_v4: true,
            ..Interface::card(name, index, &[("192.0.2.5".parse().unwrap(), 24)])
        };
        let tap = |name: &str, index: u32| Interface {
            kind: Some("tun".to_owned()),
            ..card(name, index)
        };
        let key = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
        let text = format!("[hub]\nkey = \"{key}\"\nendpoints = [\"198.51.100.1:4443\"]\n");
        let path = std::path::Path::new("site.toml");
        let config = ropewalk_config::site::parse(path, &text).unwrap();
        let hub: [SocketAddr; 1] = ["198.51.100.1:4443".parse().unwrap()];
        let check = |interfaces: &[Interface]| {
            let found = uplinks::select(interfaces, &config.uplinks, "ropewalk0", &hub);
            uplinks_found(&found, interfaces, &config, &hub)
        };
        let one = check(&[card("eth0", 2), tap("wlan0", 3)]);
        assert_eq!(one.state, super::super::State::Warn);
        assert_eq!(
            one.found,
            "only eth0; left out: wlan0 looks like another VPN (tun)"
        );
        assert!(one.remedy.unwrap().contains("`include`"));
        let none = check(&[tap("wlan0", 3)]);
        assert_eq!(none.state, super::super::State::Fail);
        assert!(none.remedy.unwrap().contains("`include`"));
        let two = check(&[card("eth0", 2), card("eth1", 3), tap("wg0", 4)]);
        assert_eq!(two.state, super::super::State::Ok);
        assert!(
            two.found.starts_with("eth0, eth1; left out: wg0"),
            "{two:?}"
        );
        let alone = check(&[card("eth0", 2)]);
        assert!(alone.remedy.unwrap().contains("nothing to join yet"));
    }

    #[test]
    fn taken_ports_are_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let text = format!(
            "[pool]\nipv4 = \"10.9.0.0/16\"\n[listen]\nudp = [\"{}\"]\ntcp = []\n",
            socket.local_addr().unwrap()
        );
        let path = std::path::Path::new("hub.toml");
        let config = ropewalk_config::hub::parse(path, &text).unwrap();
        assert_eq!(ports(&config).state, super::super::State::Fail);
        drop(socket);
        assert_eq!(ports(&config).state, super::super::State::Ok);
    }
}
