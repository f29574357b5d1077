//! What the sites of a hub may reach beside the internet: keys `allow`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Serialize, Serializer};

use crate::reader::Section;
use crate::values::parse_name;

/// Most entries of one `allow`.
pub const ALLOW_MAX: usize = 64;
/// What an entry for a site begins with.
const SITE: &str = "site:";

/// What every right entry matches, for schemas.
const ALLOWED: &str = "^(site:[A-Za-z0-9][A-Za-z0-9_.-]{0,62}|[0-9A-Fa-f:.]+(/[0-9]{1,3})?)$";

/// Something that sites may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Addresses, whoever has them: hosts beyond the hub, the hub itself, other sites.
    Net(IpNet),
    /// The site of this name, and the sites behind it if it is a relay.
    Site(String),
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix(SITE) {
            return Ok(Self::Site(parse_name(name)?));
        }
        let net = match text.parse::<IpAddr>() {
            Ok(ip) => IpNet::from(ip),
            Err(_) => text
                .parse::<IpNet>()
                .map_err(|_| format!("{text:?} is no network, no address and no site:NAME"))?,
        };
        if net.trunc() != net {
            return Err(format!(
                "{net} has bits beyond its prefix, the network is {}",
                net.trunc()
            ));
        }
        Ok(Self::Net(net))
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(f),
            Self::Site(name) => write!(f, "{SITE}{name}"),
        }
    }
}

impl Serialize for Allowed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads `allow`; `None` when the section has no such key.
pub fn read(section: &mut Section<'_>) -> Option<Vec<Allowed>> {
    section.like(ALLOWED).list(
        "allow",
        "[\"10.1.0.0/16\", \"site:farm\"]",
        ALLOW_MAX,
        str::parse,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_networks_addresses_and_sites() {
        for (text, shown) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.0.7", "10.1.0.7/32"),
            ("fd00::/8", "fd00::/8"),
            ("::/0", "::/0"),
            ("site:farm", "site:farm"),
        ] {
            let allowed: Allowed = text.parse().unwrap();
            assert_eq!(allowed.to_string(), shown);
        }
        for wrong in [
            "10.1.0.1/16",
            "site:",
            "site:a/b",
            "farm",
            "10.1.0.0/33",
            "",
        ] {
            assert!(wrong.parse::<Allowed>().is_err(), "{wrong}");
        }
    }
}
