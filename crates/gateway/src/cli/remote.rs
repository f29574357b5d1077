//! Whether a site that starts would cut the SSH connection that it is started over.
//!
//! Such a connection ends for one of two reasons: the kill switch refuses its packets, or the routes lead
//! them into the tunnel. The connection of this very session counts, and no other: sshd(8) tells its
//! children of it (`SSH_CONNECTION`), and sudo(8) hides it from this program, but not from the shell above.

use std::fs;
use std::net::IpAddr;

use ipnet::IpNet;
use ropewalk_config::{SiteConfig, WrongUsage};
use ropewalk_host::kill_switch::{self, Plan};
use ropewalk_io::netlink::{self, Interface};
use ropewalk_io::nft;

/// Variable that sshd(8) sets: address and port of the other end, then of this one.
const VARIABLE: &str = "SSH_CONNECTION";
/// How many processes above this one are looked at. More: deeper shells in shells, more work.
const ANCESTORS_MAX: usize = 32;

/// Why the connection from the client would end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The client is in a network of this machine that the kill switch refuses.
    Refused(IpNet),
    /// Answers would go into the tunnel.
    Routed,
}

/// Refuses to start a site that would cut off whoever starts it.
///
/// # Errors
/// It would, and `yes` was not said.
pub(super) fn refuse(config: &SiteConfig, yes: bool) -> anyhow::Result<()> {
    match warning(config) {
        Some(warning) if !yes => Err(WrongUsage(format!(
            "{warning}; or say --yes, and be ready to reach this machine in another way"
        ))
        .into()),
        Some(_) | None => Ok(()),
    }
}

/// What a start would do to the SSH connection of this session, and what to do about it.
pub(super) fn warning(config: &SiteConfig) -> Option<String> {
    let client = ssh_client()?;
    // A connection that lives under these rules goes on.
    if nft::table_handle(&kill_switch::table(&config.common.interface)).is_ok_and(|t| t.is_some()) {
        return None;
    }
    let interfaces = netlink::snapshot().ok()?;
    let remedy = match cut(client, config, &interfaces)? {
        Cut::Refused(network) => format!(
            "the kill switch refuses its packets; set local = [\"{network}\"] in [network] first"
        ),
        Cut::Routed => {
            "answers go into the tunnel; connect to this site through its hub instead, or \
                        from a network of this machine that is in `local`"
                .to_owned()
        }
    };
    Some(format!(
        "a start of this site cuts the SSH connection from {client} that this command comes over: {remedy}"
    ))
}

fn cut(client: IpAddr, config: &SiteConfig, interfaces: &[Interface]) -> Option<Cut> {
    if client.is_loopback() {
        return None;
    }
    let near = interfaces.iter().flat_map(|interface| {
        let networks = interface.addresses.iter();
        networks.filter_map(|own| Some(IpNet::new(own.ip, own.prefix).ok()?.trunc()))
    });
    let near = near
        .filter(|network| network.contains(&client))
        .max_by_key(IpNet::prefix_len);
    let Some(network) = near else {
        let routed = config.routes.iter().any(|route| route.contains(&client));
        return routed.then_some(Cut::Routed);
    };
    let plan = Plan::new(config);
    let automatic = config.local.is_none().then(|| {
        let rules = &config.uplinks;
        kill_switch::local_networks(interfaces, rules, &plan.tun, &plan.hub, &plan.inner)
    });
    let mut local = plan.local.iter().chain(automatic.iter().flatten());
    let reached = !config.kill_switch || local.any(|local| local.network.contains(&client));
    (!reached).then_some(Cut::Refused(network))
}

/// The other end of the SSH connection of this session.
fn ssh_client() -> Option<IpAddr> {
    let of_text = |text: &str| address(text.split_whitespace().next()?);
    if let Ok(text) = std::env::var(VARIABLE) {
        return of_text(&text);
    }
    let mut pid = parent("self")?;
    for _ in 0..ANCESTORS_MAX {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let start = format!("{VARIABLE}=");
        let mut variables = environment.split(|byte| *byte == 0);
        let found = variables.find_map(|text| text.strip_prefix(start.as_bytes()));
        if let Some(text) = found {
            return of_text(&String::from_utf8_lossy(text));
        }
        pid = parent(&pid)?;
    }
    None
}

/// An address, of IPv4 also where it is written as one of IPv6; without its zone.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.split('%').next()?;
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Number of the process that started a process; `None` for the first ones.
fn parent(pid: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Some(line.trim().to_owned()).filter(|pid| pid != "0")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ropewalk_config::site;

    use super::*;

    fn config(network: &str) -> SiteConfig {
        let key = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
        let text = format!(
            "name = \"boat\"\n[hub]\nkey = \"{key}\"\nendpoints = [\"203.0.113.1:4443\"]\n\
             [network]\n{network}\n"
        );
        site::parse(Path::new("/site.toml"), &text).unwrap()
    }

    fn interface(name: &str, ip: &str, prefix: u8, default_route_v4: bool) -> Interface {
        Interface {
            default_route_v4,
            ..Interface::card(name, 2, &[(ip.parse().unwrap(), prefix)])
        }
    }

    #[test]
    fn only_a_connection_that_a_start_would_end_is_told() {
        let machine = [
            interface("eth0", "192.168.7.2", 24, true),
            interface("lan0", "10.0.0.1", 8, false),
        ];
        let of =
            |client: &str, network: &str| cut(client.parse().unwrap(), &config(network), &machine);
        let uplink = Some(Cut::Refused("192.168.7.0/24".parse().unwrap()));
        let on = "kill_switch = true";
        assert_eq!(of("192.168.7.9", on), uplink);
        assert_eq!(of("198.51.100.7", on), Some(Cut::Routed));
        assert_eq!(
            of("198.51.100.7", ""),
            Some(Cut::Routed),
            "by the routes alone"
        );
        // Behind the site, in a network that is listed, without the switch, and over loopback.
        assert_eq!(of("10.2.3.4", on), None);
        let listed = format!("{on}\nlocal = [\"192.168.7.0/24\"]");
        assert_eq!(of("192.168.7.9", &listed), None);
        assert_eq!(
            of("10.2.3.4", &listed),
            Some(Cut::Refused("10.0.0.0/8".parse().unwrap()))
        );
        assert_eq!(of("192.168.7.9", ""), None);
        assert_eq!(of("127.0.0.1", on), None);
        let split = "routes = [\"203.0.113.128/25\"]";
        assert_eq!(of("198.51.100.7", split), None);
    }

    #[test]
    fn addresses_of_sshd_are_read_in_all_their_forms() {
        for (text, wanted) in [
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("fe80::1%eth0", "fe80::1"),
            ("2001:db8::7", "2001:db8::7"),
        ] {
            assert_eq!(address(text), Some(wanted.parse().unwrap()));
        }
        assert_eq!(address("UNKNOWN"), None);
    }
}
