//! How single values are written: names, paths, addresses, networks, codepoints, protocols, ports.
//!
//! Invariant: what is wrong with a text is said in full, so that the caller only adds the key.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use ropewalk_core::protect::Ports;

/// Longest name of a gateway, characters.
pub const NAME_MAX: usize = 63;
/// Longest interface name, bytes (`IFNAMSIZ` less the terminating zero, `linux/if.h`).
pub const INTERFACE_NAME_MAX: usize = 15;
/// Longest DNS name in text form (RFC 1035 §2.3.4).
const HOST_MAX: usize = 253;

/// Checks a gateway's name: what a DNS label may be, which also suits file names and labels.
///
/// # Errors
/// What is wrong with it.
pub fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_MAX {
        return Err(format!(
            "a name has 1 to {NAME_MAX} characters, this has {}",
            text.len()
        ));
    }
    if !text.chars().all(allowed) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!(
            "{text:?} is no name: use letters, digits, '-', '_' and '.', starting with a letter or digit"
        ));
    }
    Ok(text.to_owned())
}

/// Checks an interface name.
///
/// # Errors
/// What is wrong with it.
pub fn parse_interface(text: &str) -> Result<String, String> {
    let forbidden = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace();
    if text.is_empty() || text.len() > INTERFACE_NAME_MAX {
        return Err(format!(
            "an interface name has 1 to {INTERFACE_NAME_MAX} bytes, this has {}",
            text.len()
        ));
    }
    if text.contains(forbidden) || text == "." || text == ".." || text.contains(char::is_control) {
        return Err(format!("{text:?} cannot be the name of an interface"));
    }
    Ok(text.to_owned())
}

/// Checks that a path is absolute.
///
/// # Errors
/// What is wrong with it.
pub fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("{text:?} is not an absolute path"))
    }
}

/// The name of a group of users.
///
/// # Errors
/// What is wrong with it.
pub fn parse_word(text: &str) -> Result<String, String> {
    parse_name(text).map_err(|_| format!("{text:?} is no group name"))
}

/// The words for a text that cannot be read as an address with a port.
#[must_use]
pub fn not_an_address(text: &str) -> String {
    format!("{text:?} is not an IP address with a port")
}

/// Where a hub is reached: a name or an address, and a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// DNS name or IP address without brackets.
    pub host: String,
    /// UDP port, never 0.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a host with a port");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if port == 0 {
            return Err(format!("{text:?} has port 0"));
        }
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let sound = match bracketed {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_host_name(host),
        };
        if !sound {
            return Err(wrong());
        }
        let host = bracketed.unwrap_or(host);
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// Whether `host` has the form of a host name.
#[must_use]
pub fn is_host_name(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !host.is_empty()
        && host.len() <= HOST_MAX
        && host.chars().all(allowed)
        && host.split('.').all(|label| !label.is_empty())
}

/// An IP address.
///
/// # Errors
/// What is wrong with it.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no IP address"))
}

/// A network, or an address as the network of it alone.
pub fn parse_net(text: &str) -> Result<IpNet, String> {
    let net = text.parse::<IpNet>();
    net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(|net| net.trunc())
        .map_err(|_| format!("{text:?} is neither a network nor an address"))
}

/// A codepoint by number, or by the names of RFC 2474, RFC 2597, RFC 3246 and RFC 8622.
pub fn parse_dscp(text: &str) -> Result<u8, String> {
    let wrong =
        || format!("{text:?} is no codepoint: use 0 to 63, or a name such as \"ef\" or \"af41\"");
    let digit = |at: usize, least: u8, most: u8| {
        let digit = text.as_bytes().get(at).map(|byte| byte.wrapping_sub(b'0'));
        digit.filter(|digit| (least..=most).contains(digit))
    };
    let named = match (text.get(..2), text.len()) {
        (Some("ef"), 2) => Some(46),
        (Some("le"), 2) => Some(1),
        (Some("cs"), 3) => digit(2, 0, 7).map(|class| class * 8),
        (Some("af"), 4) => digit(2, 1, 4)
            .zip(digit(3, 1, 3))
            .map(|(c, drop)| c * 8 + drop * 2),
        _ => text.parse().ok().filter(|number| *number < 64),
    };
    named.ok_or_else(wrong)
}

/// The number of an upper-layer protocol, from its name or number.
///
/// # Errors
/// Names that can be written.
pub fn parse_protocol(text: &str) -> Result<u8, String> {
    match text {
        "icmp" => Ok(1),
        "tcp" => Ok(6),
        "udp" => Ok(17),
        "gre" => Ok(47),
        "esp" => Ok(50),
        "icmpv6" => Ok(58),
        "sctp" => Ok(132),
        number => number.parse().map_err(|_| {
            format!("{text:?} is no protocol: use \"tcp\", \"udp\", \"icmp\", \"icmpv6\", \"esp\", \"gre\", \"sctp\" or a number")
        }),
    }
}

/// A port, or a range of ports.
///
/// # Errors
/// What is wrong with it.
pub fn parse_ports(text: &str) -> Result<Ports, String> {
    let wrong = || format!("{text:?} is neither a port nor a range such as \"16384-32767\"");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(wrong());
    }
    Ok(first..=last)
}

/// What right texts match, for schemas: every text that the function of the same name takes, and some
/// that only the function refuses. Regular expressions as in ECMA-262.
pub mod patterns {
    /// [`super::parse_name`] and [`super::parse_word`].
    pub const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$";
    /// [`super::parse_interface`].
    pub const INTERFACE: &str = "^[^/:% ]{1,15}$";
    /// [`super::parse_path`].
    pub const PATH: &str = "^/";
    /// [`super::HostPort`].
    pub const HOST_PORT: &str = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):\+?0*[1-9][0-9]*$";
    /// An address with a port that is not 0.
    pub const ADDRESS_PORT: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):0*[1-9][0-9]*$";
    /// A loopback address with a port.
    pub const LOOPBACK_PORT: &str = r"^(127\.[0-9.]+|\[[0:]*1(%[0-9]+)?\]):[0-9]+$";
    /// [`super::parse_ip`].
    pub const IP: &str = "^[0-9A-Fa-f:.]+$";
    /// A network with its prefix.
    pub const NETWORK: &str = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";
    /// [`super::parse_net`].
    pub const NET: &str = "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$";
    /// [`super::parse_dscp`].
    pub const DSCP: &str = r"^(ef|le|cs[0-7]|af[1-4][1-3]|\+?0*([0-9]|[1-5][0-9]|6[0-3]))$";
    /// [`super::parse_protocol`].
    pub const PROTOCOL: &str = r"^(icmp|tcp|udp|gre|esp|icmpv6|sctp|\+?[0-9]+)$";
    /// [`super::parse_ports`].
    pub const PORTS: &str = r"^\s*\+?[0-9]+\s*(-\s*\+?[0-9]+\s*)?$";
}
