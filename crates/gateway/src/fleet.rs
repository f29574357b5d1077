//! What a hub has from its fleet, and what it tells the fleet. Only this module and those below it know the crate
//! `ropewalk-fleet`.
//!
//! [`member`] is the part of a hub that runs, [`desk`] that of commands.
//!
//! Invariant: sites come from the copy on this hub, which etcd is not needed for. Whatever changes the state of the fleet
//! is a write with a bound on its time.

pub mod desk;
pub mod member;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use ipnet::IpNet;
use ropewalk_api::{EtcdStatus, FleetHub, FleetStatus};
use ropewalk_config::{FleetConfig, HubConfig};
use ropewalk_fleet::record::Rest;
use ropewalk_fleet::{Copy, EtcdState, Fleet, Login, Options, Pools, Tls};
use ropewalk_host::files;
use ropewalk_session::WEIGHT_MAX;
use ropewalk_types::PortBlock;

use crate::sites::{Invitation, Joined, RATE_MAX, Site, Sites, Time};

/// So many blocks at the beginning of each pool are for the network and the hubs. More: room for further addresses of
/// hubs, fewer sites in a small pool.
const RESERVED: u32 = 16;

/// How the fleet of this hub is reached. Commands open the hub's copy `read_only`.
///
/// # Errors
/// The file of the password cannot be read, or others may read it.
pub fn options(hub: &HubConfig, fleet: &FleetConfig, read_only: bool) -> anyhow::Result<Options> {
    let login = match &fleet.login {
        Some((user, file)) => {
            let mut password = files::read_secret(file, "the password for etcd")?;
            let length = password.trim_end_matches(['\r', '\n']).len();
            password.truncate(length);
            Some(Login {
                user: user.clone(),
                password,
            })
        }
        None => None,
    };
    Ok(Options {
        fleet: fleet.name.clone(),
        key: fleet.key,
        endpoints: fleet.endpoints.clone(),
        tls: fleet.tls.as_ref().map(|tls| Tls {
            authority: tls.authority.clone(),
            own: tls.own.clone(),
        }),
        login,
        file: copy_file(hub),
        read_only,
    })
}

/// File of the copy of the fleet's state.
#[must_use]
pub fn copy_file(hub: &HubConfig) -> PathBuf {
    hub.common.state_dir.join("fleet.json")
}

/// The pools of a fleet whose first hub this is.
#[must_use]
pub fn pools(hub: &HubConfig) -> Pools {
    let (ipv4, ipv6) = networks(hub);
    let shared = hub.shared.as_ref();
    Pools {
        ipv4,
        ipv4_block: 32,
        ipv6,
        ipv6_block: 128,
        shared: shared
            .map(|shared| shared.addresses.clone())
            .unwrap_or_default(),
        ports: shared.map_or(0, |shared| shared.ports),
        reserved: RESERVED,
        rest: Rest::new(),
    }
}

fn networks(hub: &HubConfig) -> (Option<ipnet::Ipv4Net>, Option<ipnet::Ipv6Net>) {
    let v4 = hub.pool_v4.and_then(|pool| match pool {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    });
    let v6 = hub.pool_v6.and_then(|pool| match pool {
        IpNet::V6(net) => Some(net),
        IpNet::V4(_) => None,
    });
    (v4, v6)
}

/// The sites of a fleet, for this hub.
///
/// # Errors
/// The hub has other pools than the fleet.
pub fn sites(copy: &Copy, hub: &HubConfig) -> anyhow::Result<Sites> {
    check_pools(copy, hub)?;
    Ok(known(copy))
}

/// The same, whatever the pools of the hub. Sites that are not in their places are none.
fn known(copy: &Copy) -> Sites {
    let sites = copy.sites().filter(|site| copy.is_in_place(site));
    Sites::of(sites.map(site).collect())
}

fn check_pools(copy: &Copy, hub: &HubConfig) -> anyhow::Result<()> {
    let Some(meta) = copy.meta() else {
        return Ok(());
    };
    let fleets = (meta.pools.ipv4, meta.pools.ipv6);
    let shared = hub.shared.as_ref();
    let addresses = shared.map_or(&[][..], |shared| &shared.addresses);
    let ports = shared.map_or(0, |shared| shared.ports);
    anyhow::ensure!(
        (addresses, ports) == (&meta.pools.shared[..], meta.pools.ports),
        "the shared addresses in [pool] of this hub are not those of the fleet: write shared = {} and ports = {}, or \
         neither if the fleet has none, and restart the hub",
        quoted(&meta.pools.shared),
        meta.pools.ports,
    );
    let line = |key: &str, net: Option<String>| {
        net.map_or_else(|| format!("no {key}"), |net| format!("{key} = \"{net}\""))
    };
    anyhow::ensure!(
        networks(hub) == fleets,
        "[pool] of this hub is not that of the fleet, so its sites would not be reached: write {} and {}, and restart \
         the hub",
        line("ipv4", fleets.0.map(|net| net.to_string())),
        line("ipv6", fleets.1.map(|net| net.to_string())),
    );
    Ok(())
}

/// A list as configurations have it.
fn quoted(addresses: &[Ipv4Addr]) -> String {
    let texts: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    format!("{texts:?}")
}

/// A site with the notions of a single hub.
fn site(site: &ropewalk_fleet::Site) -> Site {
    let invitation = site.invitation.as_ref().map(|invitation| Invitation {
        key: invitation.key,
        ends: Time::from_unix(invitation.ends),
        joined: invitation.joined.as_ref().map(|joined| Joined {
            at: Time::from_unix(joined.at),
            key: joined.key,
        }),
    });
    Site {
        name: site.name.clone(),
        key: site.key,
        // What nobody has connected with yet means nothing without a key.
        next_key: site.next_key.filter(|_| site.key.is_some()),
        ipv4: site.ipv4.map(|block| block.addr().into()),
        ipv6: site.ipv6.map(|block| block.addr().into()),
        block: site.ports.and_then(|ports| {
            let last = ports.count.checked_sub(1)?.checked_add(ports.first)?;
            PortBlock::new(ports.address, ports.first, last)
        }),
        networks: Vec::new(),
        enabled: site.enabled,
        // Whoever writes to etcd may write anything.
        weight: site.weight.clamp(1, WEIGHT_MAX),
        rate_mbit: site.rate_mbit.map(|rate| rate.clamp(1, RATE_MAX)),
        allow: site.allow.clone(),
        invitation,
    }
}

/// What this hub knows of its fleet.
fn status(fleet: &Fleet, hub: &HubConfig, config: &FleetConfig) -> FleetStatus {
    let known = fleet.status();
    let mut problems = Vec::new();
    problems.extend(
        known
            .lease_problem
            .map(|why| format!("other hubs do not see that this hub runs: {why}")),
    );
    problems.extend(
        known
            .file_problem
            .map(|why| format!("the copy on the disk is old, make room on it: {why}")),
    );
    if known.unreadable > 0 {
        problems.push(format!(
            "{} records in etcd cannot be read, and this hub goes by what they said before: update this hub, or look at \
             them with `etcdctl get --prefix /ropewalk/{}/` and remove what is damaged with `etcdctl del KEY`",
            known.unreadable, config.name
        ));
    }
    if known.panics > 0 {
        problems.push(format!(
            "the thread that follows etcd has failed and begun again {} times since the start: please report what the log \
             says of it",
            known.panics
        ));
    }
    let (sites, hubs, pools, misplaced, other) = fleet.read(|copy| {
        let wrong = check_pools(copy, hub).err();
        let other = other_fleet(copy, &config.name);
        // Hubs of another name are none of this fleet's.
        let hubs = if other.is_none() {
            hubs(copy)
        } else {
            Vec::new()
        };
        (copy.sites().count(), hubs, wrong, misplaced(copy), other)
    });
    problems.extend(other);
    problems.extend(pools.map(|error| error.to_string()));
    problems.extend(misplaced);
    FleetStatus {
        name: config.name.clone(),
        key: config.key.to_string(),
        hub: hub.common.name.clone(),
        etcd: etcd(known.etcd),
        revision: known.revision,
        age_s: known.age.map(|age| age.as_secs_f64()),
        sites,
        claims_waiting: known.claims_waiting,
        writes_waiting: known.writes,
        problems,
        hubs,
    }
}

/// That the copy is one of a fleet with another name, in words.
fn other_fleet(copy: &Copy, name: &str) -> Option<String> {
    let other = copy.name().filter(|other| *other != name)?;
    Some(format!(
        "the copy on this hub is one of fleet {other}, and its hubs are not listed: correct the name in [fleet], which is \
         {name}"
    ))
}

/// Which sites are not served because somebody has given them addresses of others, in words.
fn misplaced(copy: &Copy) -> Option<String> {
    let mut sites = copy.sites().filter(|site| !copy.is_in_place(site));
    let first = sites.next()?;
    let who = match sites.count() {
        0 => format!("site {} is", first.name),
        others => format!("site {} and {others} more are", first.name),
    };
    Some(format!(
        "{who} not served, because etcd has addresses, ports or a key there that are not the site's own: revoke and invite \
         anew, or write a backup back"
    ))
}

fn etcd(state: EtcdState) -> EtcdStatus {
    let not = |state: &str, since, why| EtcdStatus {
        state: state.to_owned(),
        since: Some(since),
        why: Some(why),
    };
    match state {
        EtcdState::There => EtcdStatus {
            state: "there".to_owned(),
            since: None,
            why: None,
        },
        EtcdState::Away { since, why } => not("away", since, why),
        EtcdState::Denied { since, why } => not("denied", since, why),
        EtcdState::Foreign { since, why } => not("foreign", since, why),
        EtcdState::Ended { since, why } => not("ended", since, why),
    }
}

/// Hubs that run, and hubs that are drained.
fn hubs(copy: &Copy) -> Vec<FleetHub> {
    let mut hubs: Vec<_> = copy
        .hubs()
        .map(|hub| FleetHub {
            name: hub.id.clone(),
            runs: true,
            key: hub.key.to_string(),
            endpoints: hub.endpoints.iter().map(ToString::to_string).collect(),
            region: hub.region.clone(),
            version: hub.version.clone(),
            sites: hub.sites,
            drained_since: None,
        })
        .collect();
    for (name, drain) in copy.drains() {
        match hubs.iter_mut().find(|hub| hub.name == name) {
            Some(hub) => hub.drained_since = Some(drain.since),
            None => hubs.push(FleetHub {
                name: name.to_owned(),
                drained_since: Some(drain.since),
                ..FleetHub::default()
            }),
        }
    }
    hubs.sort_by(|a, b| a.name.cmp(&b.name));
    hubs
}

/// In words, what is the matter with etcd, and since when.
#[must_use]
pub fn matter(etcd: &EtcdStatus) -> String {
    let what = match etcd.state.as_str() {
        "there" => "answers",
        "away" => "is away",
        "denied" => "refuses the user of this hub or the role of the user",
        "foreign" => "has no state of this fleet that could be followed",
        "ended" => "is not asked by this hub",
        other => other,
    };
    let since = etcd.since.map(Time::from_unix);
    since.map_or_else(|| what.to_owned(), |since| format!("{what} since {since}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    use ropewalk_fleet::copy::Stored;
    use ropewalk_fleet::{Meta, Record};
    use ropewalk_transport::PublicKey;

    fn hub(pool: &str) -> HubConfig {
        let text = format!("[pool]\nipv4 = \"{pool}\"\n");
        ropewalk_config::hub::parse(Path::new("hub.toml"), &text).unwrap()
    }

    fn copy(pools: Pools, more: Vec<Record>) -> Copy {
        let fleet = PublicKey::from_bytes([1; 32]);
        let meta = Record::Meta(Meta {
            fleet,
            pools,
            restoring: false,
            made: None,
            replaces: None,
            rest: Rest::new(),
        });
        let stored = more.into_iter().chain([meta]).map(|record| {
            let value = record.encode();
            (record.key(), Stored { value, revision: 1 })
        });
        let mut copy = Copy::default();
        copy.fill(&fleet, 1, 1, stored.collect::<BTreeMap<_, _>>())
            .unwrap();
        copy
    }

    #[test]
    fn a_hub_with_other_pools_than_its_fleet_serves_nobody_and_says_what_to_write() {
        let (own, other) = (hub("10.9.0.0/16"), hub("10.8.0.0/16"));
        let copy = copy(pools(&own), Vec::new());
        assert!(sites(&copy, &own).unwrap().all().is_empty());
        let error = sites(&copy, &other).unwrap_err().to_string();
        assert!(
            error.contains("write ipv4 = \"10.9.0.0/16\" and no ipv6"),
            "{error}"
        );
    }

    /// Whoever writes to etcd may write anything.
    #[test]
    fn a_site_with_the_addresses_of_another_one_is_not_served_and_is_named() {
        let own = hub("10.9.0.0/16");
        let pools = pools(&own);
        let mut records = Vec::new();
        for (slot, name) in [(0, "boat"), (1, "van"), (2, "car")] {
            let site = format!(
                "{{\"v\":1,\"key\":\"{}\",\"slot\":{slot},\"ipv4\":\"{}\",\"enabled\":true}}",
                PublicKey::from_bytes([2 + u8::try_from(slot).unwrap(); 32]),
                // The van has the address of the boat, and the car that of its slot.
                pools
                    .blocks(if slot == 1 { 0 } else { slot })
                    .unwrap()
                    .ipv4
                    .unwrap()
            );
            // The slot of the car is the boat's.
            let owner = if name == "car" { "boat" } else { name };
            let owner = format!("{{\"v\":1,\"site\":\"{owner}\"}}");
            for (key, text) in [
                (format!("site/{name}"), site),
                (format!("slot/{slot:08x}"), owner),
            ] {
                records.push(Record::decode(&key, text.as_bytes()).unwrap());
            }
        }
        let copy = copy(pools, records);
        let served = sites(&copy, &own).unwrap();
        let names: Vec<_> = served.all().iter().map(|site| &site.name).collect();
        assert_eq!(names, ["boat"]);
        let words = misplaced(&copy).unwrap();
        assert!(
            words.contains("site car and 1 more are not served"),
            "{words}"
        );
        assert!(copy.fault("site/van").is_some() && copy.fault("site/boat").is_none());
    }

    #[test]
    fn a_copy_of_another_fleet_is_told_and_one_of_this_fleet_is_not() {
        let mut copy = copy(pools(&hub("10.9.0.0/16")), Vec::new());
        assert_eq!(
            other_fleet(&copy, "nord"),
            None,
            "a file of an older program"
        );
        copy.is_of("north");
        assert_eq!(other_fleet(&copy, "north"), None);
        let words = other_fleet(&copy, "nord").unwrap();
        assert!(words.contains("one of fleet north"), "{words}");
    }

    #[test]
    fn a_drained_hub_that_is_gone_is_still_in_the_list() {
        let drain = Record::Drain("b".to_owned(), ropewalk_fleet::Drain { since: 5 });
        let copy = copy(pools(&hub("10.9.0.0/16")), vec![drain]);
        let hubs = hubs(&copy);
        assert_eq!(hubs.len(), 1);
        assert!(!hubs[0].runs && hubs[0].drained_since == Some(5));
    }
}
