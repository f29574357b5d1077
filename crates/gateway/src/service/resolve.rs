//! Turns the hub's endpoints into addresses.
//!
//! Invariants: the order of the endpoints is kept, and each address comes once. Endpoints that are
//! addresses do not need the resolver.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ropewalk_config::values::HostPort;

/// Longest time one name may take. Longer: slow resolvers are heard, later starts with a dead one.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most addresses of a hub. More: a hub with many addresses is reached by any of them, dead ones
/// cost attempts.
const ADDRESSES_MAX: usize = 16;

/// The addresses of `endpoints`, and what went wrong with the others.
pub async fn resolve(endpoints: &[HostPort]) -> (Vec<SocketAddr>, Vec<String>) {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut failures = Vec::new();
    for endpoint in endpoints {
        let found: Vec<SocketAddr> = match endpoint.host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, endpoint.port)],
            Err(_) => {
                let lookup = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
                match tokio::time::timeout(TIMEOUT, lookup).await {
                    Ok(Ok(found)) => found.collect(),
                    Ok(Err(error)) => {
                        failures.push(format!("{}: {error}", endpoint.host));
                        continue;
                    }
                    Err(_) => {
                        failures.push(format!("{}: no answer from the resolver", endpoint.host));
                        continue;
                    }
                }
            }
        };
        for address in found {
            if !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
                addresses.push(address);
            }
        }
    }
    (addresses, failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_resolver_and_come_once() {
        let endpoint = |text: &str| text.parse::<HostPort>().unwrap();
        let endpoints = ["[2001:db8::1]:1", "192.0.2.1:2", "192.0.2.1:2"].map(endpoint);
        let (addresses, failures) = resolve(&endpoints).await;
        let text: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["[2001:db8::1]:1", "192.0.2.1:2"]);
        assert!(failures.is_empty());
    }

    #[tokio::test]
    async fn names_that_do_not_exist_are_told() {
        let (addresses, failures) = resolve(&["no-such-host.invalid:1".parse().unwrap()]).await;
        assert!(addresses.is_empty());
        assert!(
            failures[0].starts_with("no-such-host.invalid: "),
            "{failures:?}"
        );
    }
}
