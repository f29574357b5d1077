//! Where sites reach this hub.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, bail};
use ropewalk_config::HubConfig;
use ropewalk_config::hub::ENDPOINTS_MAX;
use ropewalk_config::values::HostPort;
use ropewalk_io::netlink::{self, Interface};

/// What to do where no endpoint is found that others reach.
pub const REMEDY: &str = "say how it is reached with --endpoint HOST:PORT, or once and for all with \
                          `public` in [listen] of the configuration";

/// Endpoints of a hub, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Preferred first, at most [`ENDPOINTS_MAX`].
    pub endpoints: Vec<HostPort>,
    /// Whether sites elsewhere cannot reach them, as far as the addresses say.
    pub are_private: bool,
}

/// What the configuration says, else the addresses of the interface with the default route.
///
/// # Errors
/// There is no such interface, or the interfaces cannot be listed.
pub fn of(hub: &HubConfig) -> anyhow::Result<Found> {
    if !hub.public.is_empty() {
        return Ok(Found {
            endpoints: hub.public.clone(),
            are_private: false,
        });
    }
    let interfaces = netlink::snapshot().context("cannot look for this hub's address")?;
    let found = detect(&interfaces, hub.udp_port());
    if found.is_empty() {
        bail!("no interface with a default route has a usable address; {REMEDY}");
    }
    // Private ones help only when there is nothing better.
    let any_public = found.iter().any(|(_, public)| *public);
    let usable = found
        .into_iter()
        .filter(|(_, public)| *public == any_public);
    Ok(Found {
        endpoints: usable
            .map(|(endpoint, _)| endpoint)
            .take(ENDPOINTS_MAX)
            .collect(),
        are_private: !any_public,
    })
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
            permanent: true,
        };
        Interface {
            addresses: ips.iter().map(address).collect(),
            default_route_v4: default,
            default_route_v6: default,
            ..Interface::card(name, 2, &[])
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
