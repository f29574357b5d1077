//! `ropewalk invite`: makes, lists and revokes the sites of a hub.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, bail};
use clap::Args;
use ropewalk_api::Reloaded;
use ropewalk_io::netlink::{self, Interface};
use ropewalk_session::WEIGHT_MAX;
use ropewalk_transport::{Identity, PublicKey};

use super::output::{self, Colour, Style, Table};
use super::{Global, status};
use crate::client::Client;
use crate::key_file;
use crate::sites::{RATE_MAX, Site, Sites, Terms};
use crate::token::Token;
use ropewalk_config::WrongUsage;
use ropewalk_config::hub::ENDPOINTS_MAX;
use ropewalk_config::values::{HostPort, parse_name};
use ropewalk_config::{self as config, HubConfig};

const EXAMPLES: &str = "Examples:
  ropewalk invite boat                          new site, token on standard output
  ropewalk invite boat --endpoint vpn.example.org:4443
  ropewalk invite boat --replace                new key for a site; the old one stops working
  ropewalk invite boat --public-key KEY         the site made its key with `ropewalk key generate`
  ropewalk invite harbour --relay               a relay: other sites reach this hub through it
  ropewalk invite farm --rate 20                at most 20 Mbit/s to the site and 20 from it
  ropewalk invite --list
  ropewalk invite --revoke boat

The token holds the site's private key: whoever has it can connect as that site. Hand it over
as you would a password, use it once, and revoke it if it got lost. With --public-key the token
holds no secret. A running hub takes the change over at once.";

/// Options that only make sense with a name.
const INVITING: [&str; 7] = [
    "name",
    "endpoint",
    "relay",
    "replace",
    "public_key",
    "rate",
    "weight",
];

/// Invite a site: print the token that `ropewalk join` takes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Invite {
    /// Name for the site: letters, digits, '-', '_' and '.'
    #[arg(required_unless_present_any = ["list", "revoke", "reload"], value_parser = parse_name)]
    name: Option<String>,
    /// Where this hub is reached, instead of `public` in `[listen]`; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Vec<HostPort>,
    /// It is a relay: it also gets networks of the pools for sites of its own
    #[arg(long)]
    relay: bool,
    /// Give an existing site a new key; it keeps its addresses
    #[arg(long)]
    replace: bool,
    /// Public key that the site made itself
    #[arg(long, value_name = "KEY")]
    public_key: Option<PublicKey>,
    /// Most that the site may send and receive, Mbit/s each, 1 to 100,000
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: Option<u32>,
    /// Turns of the site while the hub has too much to do, beside 1 of each other site, 1 to 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))]
    weight: Option<u32>,
    /// List the sites
    #[arg(long, conflicts_with_all = INVITING)]
    list: bool,
    /// Remove a site; it is disconnected at once
    #[arg(long, value_name = "NAME", conflicts_with_all = INVITING, conflicts_with = "list")]
    revoke: Option<String>,
    /// Let the running hub read the sites file after an edit by hand
    #[arg(long, conflicts_with_all = INVITING, conflicts_with_all = ["list", "revoke"])]
    reload: bool,
}

impl Invite {
    /// Changes the sites file and tells the running hub.
    ///
    /// # Errors
    /// The name is taken or unknown, no endpoint is known, or a file cannot be written.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| config::inviting_path());
        if !path.exists() {
            bail!(
                "{} is missing: this machine is no hub yet; run `ropewalk hub --init` first, or \
                 `ropewalk relay --join TOKEN` for a relay",
                path.display()
            );
        }
        let hub = config::load_inviting(path).context("the configuration is not usable")?;
        if self.list {
            return list(&hub);
        }
        if let Some(name) = &self.revoke {
            Sites::edit(&hub, |sites| sites.revoke(name))?;
            output::note(&format!("site {name} is revoked"));
            return tell_running_hub(global, &hub);
        }
        if self.reload {
            Sites::load(&hub)?;
            return tell_running_hub(global, &hub);
        }
        self.invite(global, &hub)
    }

    fn invite(self, global: &Global, hub: &HubConfig) -> anyhow::Result<()> {
        let name = self
            .name
            .ok_or_else(|| WrongUsage("give the site a name".to_owned()))?;
        let hub_key = key_file::load(&hub.common.key_file)?.public_key();
        let endpoints = endpoints(hub, self.endpoint)?;
        let identity = match self.public_key {
            Some(_) => None,
            None => Some(Identity::generate()?),
        };
        let key = self
            .public_key
            .or(identity.as_ref().map(Identity::public_key));
        let key = key.context("no key was made")?;
        if hub.is_relay() && name == config::relay::NEXT_HUB {
            bail!("{name} is what a relay calls its next hub; choose another name for the site");
        }
        if key == hub_key {
            bail!("this is the hub's own key; make one on the site with `ropewalk key generate`");
        }
        let terms = Terms {
            replace: self.replace,
            relay: self.relay,
            weight: self.weight,
            rate_mbit: self.rate,
        };
        let site = Sites::edit(hub, |sites| sites.add(hub, &name, key, terms))?;
        let addresses: Vec<_> = site.addresses().map(|ip| ip.to_string()).collect();
        output::note(&format!(
            "site {name} has {} behind this {}",
            addresses.join(" and "),
            hub.common.role
        ));
        let networks: Vec<_> = site.networks.iter().map(ToString::to_string).collect();
        if !networks.is_empty() {
            let networks = networks.join(" and ");
            output::note(&format!("its own sites get addresses of {networks}"));
        }
        let (joining, join) = if networks.is_empty() {
            ("site", "ropewalk join TOKEN")
        } else {
            ("relay", "ropewalk relay --join TOKEN")
        };
        for endpoint in &endpoints {
            output::note(&format!(
                "it will look for this {} at {endpoint}",
                hub.common.role
            ));
        }
        tell_running_hub(global, hub)?;
        if identity.is_some() {
            output::note(&format!(
                "the next line is a secret, shown only now; on the {joining} run: {join}"
            ));
        } else {
            output::note(&format!(
                "this token holds no secret; on the {joining} run: {join}"
            ));
        }
        let token = Token {
            hub_key,
            identity,
            tcp_port: hub.tcp_port(),
            name,
            endpoints,
            networks: site.networks,
        };
        output::print(&format!("{}\n", token.encode()))?;
        Ok(())
    }
}

fn list(hub: &HubConfig) -> anyhow::Result<()> {
    let sites = Sites::load(hub)?;
    if sites.all().is_empty() {
        output::note("no sites yet; `ropewalk invite NAME` makes one");
        return Ok(());
    }
    let mut table = Table::new(&[
        "SITE",
        "IPV4",
        "IPV6",
        "NETWORKS",
        "WEIGHT",
        "MBIT/S",
        "ENABLED",
        "PUBLIC KEY",
    ]);
    for site in sites.all() {
        let address = |ip: Option<IpAddr>| ip.map_or_else(|| "-".to_owned(), |ip| ip.to_string());
        let enabled = if site.enabled {
            ("yes", Colour::Green)
        } else {
            ("no", Colour::Yellow)
        };
        table.row(vec![
            (site.name.clone(), Some(Colour::Bold)),
            (address(site.ipv4), None),
            (address(site.ipv6), None),
            (networks(site), None),
            (site.weight.to_string(), None),
            (
                site.rate_mbit.map_or("-".to_owned(), |r| r.to_string()),
                None,
            ),
            (enabled.0.to_owned(), Some(enabled.1)),
            (site.key.to_string(), None),
        ]);
    }
    output::print(&table.render(Style::of_stdout(), ""))?;
    Ok(())
}

/// The networks of a relay.
fn networks(site: &Site) -> String {
    if site.networks.is_empty() {
        return "-".to_owned();
    }
    let list: Vec<_> = site.networks.iter().map(ToString::to_string).collect();
    list.join(" ")
}

/// A hub that does not run reads the file when it starts.
fn tell_running_hub(global: &Global, hub: &HubConfig) -> anyhow::Result<()> {
    let socket = global.socket.as_deref().unwrap_or(&hub.common.socket);
    let reloaded = Client::new(socket).post::<Reloaded>("/v1/sites/reload", &serde_json::json!({}));
    match reloaded {
        Ok(_) => output::note(&format!("the running {} knows", hub.common.role)),
        Err(error) if status::is_not_running(&error) => {
            let role = hub.common.role;
            output::note(&format!(
                "the {role} is not running; it will know when it starts"
            ));
        }
        Err(error) => {
            return Err(error.context(
                "the sites file is written, but the running hub did not take it over; restart it",
            ));
        }
    }
    Ok(())
}

/// What the token says of where the hub is: the command line, else the configuration, else the
/// interface with the default route.
fn endpoints(hub: &HubConfig, given: Vec<HostPort>) -> anyhow::Result<Vec<HostPort>> {
    if given.len() > ENDPOINTS_MAX {
        return Err(WrongUsage(format!("a token holds {ENDPOINTS_MAX} endpoints at most")).into());
    }
    if !given.is_empty() {
        return Ok(given);
    }
    if !hub.public.is_empty() {
        return Ok(hub.public.clone());
    }
    let interfaces = netlink::snapshot().context("cannot look for this hub's address")?;
    let found = detect(&interfaces, hub.udp_port());
    let remedy = "say how it is reached with --endpoint HOST:PORT, or once and for all with \
                  `public` in [listen] of the configuration";
    if found.is_empty() {
        bail!("no interface with a default route has a usable address; {remedy}");
    }
    if !found.iter().any(|(_, public)| *public) {
        output::note(&format!(
            "warning: the address found is private: sites elsewhere cannot reach it; {remedy}"
        ));
    }
    // Private ones help only when there is nothing better.
    let any_public = found.iter().any(|(_, public)| *public);
    let usable = found
        .into_iter()
        .filter(|(_, public)| *public == any_public);
    Ok(usable
        .map(|(endpoint, _)| endpoint)
        .take(ENDPOINTS_MAX)
        .collect())
}

/// Addresses of interfaces with a default route, IPv4 first, and whether each is public.
fn detect(interfaces: &[Interface], port: u16) -> Vec<(HostPort, bool)> {
    let usable = interfaces
        .iter()
        .filter(|interface| interface.up && !interface.loopback);
    let mut found: Vec<_> = usable
        .flat_map(|interface| {
            interface
                .addresses
                .iter()
                .filter(move |address| match address.ip {
                    IpAddr::V4(ip) => interface.default_route_v4 && !ip.is_link_local(),
                    IpAddr::V6(ip) => {
                        // Addresses that change would outlive the token only briefly.
                        interface.default_route_v6
                            && !ip.is_unicast_link_local()
                            && !address.temporary
                            && !address.deprecated
                    }
                })
        })
        .map(|address| {
            let endpoint = HostPort {
                host: address.ip.to_string(),
                port,
            };
            (endpoint, is_public(address.ip))
        })
        .collect();
    found.sort_by_key(|(endpoint, _)| endpoint.host.contains(':'));
    found
}

/// Not private, shared (RFC 6598) or unique local (RFC 4193).
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let shared = u32::from(ip) & 0xffc0_0000 == u32::from(Ipv4Addr::new(100, 64, 0, 0));
            !ip.is_private() && !shared && !ip.is_link_local()
        }
        IpAddr::V6(ip) => !ip.is_unique_local() && !ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_io::netlink::Address;

    fn interface(name: &str, ips: &[&str], default: bool) -> Interface {
        let address = |ip: &&str| Address {
            ip: ip.parse().unwrap(),
            prefix: 24,
            temporary: ip.ends_with("::7e"),
            deprecated: false,
            tentative: false,
        };
        Interface {
            name: name.to_owned(),
            index: 2,
            mtu: 1_500,
            up: true,
            carrier: true,
            loopback: false,
            kind: None,
            addresses: ips.iter().map(address).collect(),
            default_route_v4: default,
            default_route_v6: default,
            default_routes: Vec::new(),
        }
    }

    #[test]
    fn endpoint_is_the_lasting_address_of_the_default_route() {
        let interfaces = [
            interface("docker0", &["172.17.0.1"], false),
            interface(
                "eth0",
                &["fe80::1", "2001:db8::7e", "2001:db8::1", "198.51.100.7"],
                true,
            ),
        ];
        let found: Vec<_> = detect(&interfaces, 4_443)
            .into_iter()
            .map(|(endpoint, public)| (endpoint.to_string(), public))
            .collect();
        let expected = [
            ("198.51.100.7:4443".to_owned(), true),
            ("[2001:db8::1]:4443".to_owned(), true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn private_addresses_are_known_as_such() {
        for (ip, public) in [
            ("10.0.0.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("fd00::1", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(is_public(ip.parse().unwrap()), public, "{ip}");
        }
    }
}
