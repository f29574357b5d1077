//! What `ropewalk balance` is configured with: uplinks, rules, and how flows are shared.
//!
//! Invariant: every rule has a condition and a set of uplinks. Names and networks that go into
//! firewall rules have a form that cannot be mistaken for anything else there.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use ropewalk_core::balance::Mode;
use ropewalk_core::protect::Ports;

use super::BALANCE_CONFIG;
use super::common::{self, Common};
use super::reader::{self, Problems, Section, read};
use super::survey::Table;
use super::uplinks::{PATTERN, Pattern, RULES_MAX, UplinkMark, UplinkRules, read_patterns};
use super::values::patterns::{DSCP, IP, NAME, NET, PORTS, PROTOCOL};
use super::values::{
    is_host_name, parse_dscp, parse_ip, parse_name, parse_net, parse_ports, parse_protocol,
};

/// Role in logs, and the stem of file names.
pub const ROLE: &str = "balance";
/// Most rules.
const BALANCE_RULES_MAX: usize = 32;
/// Entries of a list in a rule.
const LIST_MAX: usize = 64;
/// Most targets of probes.
const TARGETS_MAX: usize = 8;
/// Longest affinity, minutes.
const AFFINITY_MAX: u64 = 24 * 60;
/// Longest path of a control group, bytes.
const CGROUP_MAX: usize = 200;
/// Public resolvers that answer echo requests from everywhere.
pub(super) const TARGETS: [&str; 6] = [
    "1.1.1.1",
    "8.8.8.8",
    "9.9.9.9",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2620:fe::fe",
];

/// The modes by their names.
const MODES: [&str; 4] = {
    let [a, b, c, d] = Mode::ALL;
    [a.1, b.1, c.1, d.1]
};
/// What right texts match, for schemas.
const PORTAL: &str = r"^http://[A-Za-z0-9_.-]+(:\+?[0-9]+)?(/|$)";
const DOMAIN: &str = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$";
const USER: &str = "^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,31}$";
const CGROUP: &str = "^[A-Za-z0-9_.@:-]+(/[A-Za-z0-9_.@:-]+)*$";

/// Configuration of `ropewalk balance`.
#[derive(Clone, Debug, PartialEq)]
pub struct BalanceConfig {
    /// What it has in common with gateways: name, state, API, log.
    pub common: Common,
    /// How flows are shared.
    pub mode: Mode,
    /// How long a client keeps its uplink to a site after its last new flow; zero for not at all.
    pub affinity: Duration,
    /// To which sites clients keep their uplinks, where no rule says something else.
    pub kept: Kept,
    /// Whether to forward for a network behind this machine.
    pub forward: bool,
    /// Bytes that a new flow is expected to carry, for [`Mode::LeastFinish`].
    pub flow_bytes: u64,
    /// How uplinks are probed.
    pub probe: ProbeConfig,
    /// Which interfaces are uplinks, and their marks.
    pub uplinks: UplinkRules,
    /// What only this role knows of uplinks, in the order of the marks in `uplinks`.
    pub extras: Vec<UplinkExtra>,
    /// Rules in the order in which they are tried.
    pub rules: Vec<Rule>,
}

/// How uplinks are probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Addresses that are asked in turn. The uplinks of a family without targets are always usable.
    pub targets: Vec<IpAddr>,
    /// `http` URL that is answered with status 204 unless a captive portal is in between.
    pub portal: Option<PortalUrl>,
    /// How the capacity of idle uplinks is probed; `None` for not at all.
    pub capacity: Option<CapacityProbe>,
}

/// How the capacity of idle uplinks is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityProbe {
    /// Packets back to back.
    #[default]
    Train,
    /// Variable packet sizes.
    Vps,
}

/// Ways to probe the capacity by their names in the configuration.
const CAPACITY_PROBES: [(&str, Option<CapacityProbe>); 3] = [
    ("train", Some(CapacityProbe::Train)),
    ("vps", Some(CapacityProbe::Vps)),
    ("none", None),
];

/// An `http` URL in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalUrl {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path, with its slash.
    pub path: String,
}

/// What a mark says beyond [`UplinkMark`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkExtra {
    /// Next hops in place of those of the default routes, one per family at most.
    pub gateways: Vec<IpAddr>,
    /// Resolvers for queries that go out over this uplink, one per family at most.
    pub dns: Vec<IpAddr>,
}

/// To which sites clients keep their uplinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// To web sites that they open, not to those from which a page takes pictures and scripts; and to
    /// everything that is not a web site.
    #[default]
    Opened,
    /// To all.
    All,
}

/// The choices with their names.
const KEPT: [(Kept, &str); 2] = [(Kept::Opened, "opened"), (Kept::All, "all")];

fn parse_kept(text: &str) -> Result<Kept, String> {
    let found = KEPT.iter().find(|(_, name)| *name == text);
    found
        .map(|(kept, _)| *kept)
        .ok_or_else(|| format!("there is no choice of sites {text:?}"))
}

/// Which new flows go over which uplinks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// For people.
    pub name: String,
    /// Uplinks that flows of this rule may take.
    pub uplinks: Vec<Pattern>,
    /// How they share them; `None` is that of `[balance]`.
    pub mode: Option<Mode>,
    /// Whether flows fail when none of the uplinks is usable, instead of taking another.
    pub strict: bool,
    /// Whether a client keeps its uplink to every site, or to none; `None` is as for other flows.
    pub affinity: Option<bool>,
    /// Source networks; empty is any, as in all following lists.
    pub sources: Vec<IpNet>,
    /// Destination networks.
    pub destinations: Vec<IpNet>,
    /// Names whose addresses are destinations.
    pub domains: Vec<String>,
    /// Transport protocols.
    pub protocols: Vec<u8>,
    /// Destination ports of TCP and UDP.
    pub ports: Vec<Ports>,
    /// Codepoints.
    pub dscp: Vec<u8>,
    /// Users on this machine, by name or number.
    pub users: Vec<String>,
    /// Control group on this machine, below the root of the unified hierarchy.
    pub cgroup: Option<String>,
}

/// Parses `text`, which was read from `path`.
///
/// # Errors
/// Every problem found.
pub fn parse(path: &Path, text: &str) -> Result<BalanceConfig, Problems> {
    read(path, text, |root| read_all(root, path))
}

/// What is asked of such a file.
#[must_use]
pub fn survey() -> Table {
    reader::survey(|root| read_all(root, Path::new(BALANCE_CONFIG)))
}

fn read_all(root: &mut Section<'_>, path: &Path) -> BalanceConfig {
    let common = common::read_without_tunnel(root, path, ROLE);
    let balance = root.section("balance", |section| read_sharing(section, common, true));
    let remedy = "write [balance], which may be empty: it tells what the file is for";
    root.require("balance", None::<()>, remedy);
    let mut uplinks = root.section("uplinks", read_patterns);
    let marks = root.sections("uplink", RULES_MAX, read_mark);
    let (marks, extras) = marks.into_iter().flatten().unzip();
    uplinks.marks = marks;
    BalanceConfig {
        uplinks,
        extras,
        ..read_surroundings(root, balance)
    }
}

/// Reads `[probe]` and `[[rule]]`; the rest is as in `balance`.
pub(super) fn read_surroundings(root: &mut Section<'_>, balance: BalanceConfig) -> BalanceConfig {
    let rules = root.sections("rule", BALANCE_RULES_MAX, read_rule);
    BalanceConfig {
        probe: root.section("probe", read_probe),
        rules: rules.into_iter().flatten().collect(),
        ..balance
    }
}

impl BalanceConfig {
    /// What the first mark that matches `interface` says, if any.
    #[must_use]
    pub fn extra(&self, interface: &str) -> Option<&UplinkExtra> {
        let rank = self.rank(interface)?;
        self.extras.get(rank)
    }

    /// Place of the first mark that matches `interface`.
    #[must_use]
    pub fn rank(&self, interface: &str) -> Option<usize> {
        let marks = &self.uplinks.marks;
        marks
            .iter()
            .position(|mark| mark.pattern.matches(interface))
    }
}

/// Reads how flows are shared, without uplinks and rules yet. `forward` is the default.
pub(super) fn read_sharing(
    section: &mut Section<'_>,
    common: Common,
    forward: bool,
) -> BalanceConfig {
    let modes: Vec<String> = Mode::ALL.iter().map(|(_, n)| format!("{n:?}")).collect();
    let affinity = section.integer("affinity_minutes", 0..=AFFINITY_MAX);
    let flow_kib = section.integer("flow_kib", 1..=(1 << 20));
    BalanceConfig {
        common,
        mode: section
            .choice("mode", &modes.join(", "), MODES, str::parse)
            .unwrap_or_default(),
        affinity: Duration::from_secs(60 * affinity.unwrap_or(AFFINITY_DEFAULT)),
        kept: section
            .choice(
                "affinity_sites",
                "\"opened\" or \"all\"",
                KEPT.map(|(_, name)| name),
                parse_kept,
            )
            .unwrap_or_default(),
        forward: section.boolean("forward").unwrap_or(forward),
        flow_bytes: flow_kib.unwrap_or(FLOW_KIB_DEFAULT) << 10,
        probe: ProbeConfig {
            targets: Vec::new(),
            portal: None,
            capacity: None,
        },
        uplinks: UplinkRules::default(),
        extras: Vec::new(),
        rules: Vec::new(),
    }
}

/// Minutes; sessions of web sites that look at the client's address are seldom idle for longer.
const AFFINITY_DEFAULT: u64 = 10;
/// About the mean of web transfers.
const FLOW_KIB_DEFAULT: u64 = 100;

fn read_probe(section: &mut Section<'_>) -> ProbeConfig {
    let targets = section
        .like(IP)
        .list("targets", "[\"1.1.1.1\"]", TARGETS_MAX, parse_ip);
    let default = || {
        TARGETS
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect()
    };
    ProbeConfig {
        targets: targets.unwrap_or_else(default),
        portal: section.like(PORTAL).text(
            "portal",
            "\"http://example.org/generate_204\"",
            parse_url,
        ),
        capacity: section
            .choice(
                "capacity",
                "\"train\", \"vps\" or \"none\"",
                CAPACITY_PROBES.map(|(name, _)| name),
                parse_capacity,
            )
            .unwrap_or(Some(CapacityProbe::default())),
    }
}

fn parse_capacity(text: &str) -> Result<Option<CapacityProbe>, String> {
    let found = CAPACITY_PROBES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, probe)| *probe)
        .ok_or_else(|| format!("there is no way {text:?} to probe the capacity"))
}

fn read_mark(section: &mut Section<'_>) -> Option<(UplinkMark, UplinkExtra)> {
    let pattern = section.like(PATTERN).text("match", "\"wwan*\"", str::parse);
    let pattern: Option<Pattern> = section.require("match", pattern, "write match = \"wwan*\"");
    let weight = section.integer("weight", 1..=1_000);
    let standby = section.boolean("standby").unwrap_or(false);
    let metered = section.boolean("metered");
    let gateways = one_per_family(section, "gateway", "[\"192.0.2.1\", \"fe80::1\"]");
    let dns = one_per_family(section, "dns", "[\"192.0.2.53\"]");
    let mark = UplinkMark {
        pattern: pattern?,
        standby,
        metered,
        bottleneck: None,
        weight: weight.and_then(|weight| u16::try_from(weight).ok()),
        congestion: None,
        protection_hourly: None,
        quota: None,
    };
    Some((mark, UplinkExtra { gateways, dns }))
}

fn one_per_family(section: &mut Section<'_>, key: &'static str, example: &str) -> Vec<IpAddr> {
    let list = section.like(IP).list(key, example, 2, parse_ip);
    let list = list.unwrap_or_default();
    if let [first, second] = list.as_slice()
        && first.is_ipv4() == second.is_ipv4()
    {
        section.reject(
            key,
            "two addresses of the same family",
            "give at most one IPv4 and one IPv6 address",
        );
    }
    list
}

fn read_rule(section: &mut Section<'_>) -> Option<Rule> {
    let name = section.like(NAME).text("name", "\"backups\"", parse_name);
    let name = section.require("name", name, "write name = \"backups\"");
    let uplinks = section
        .like(PATTERN)
        .list("uplinks", "[\"wwan*\"]", RULES_MAX, str::parse);
    let uplinks = section.require("uplinks", uplinks, "write uplinks = [\"wwan*\"]");
    let networks = "[\"192.0.2.0/24\", \"2001:db8::/32\"]";
    let mut list = |key, example| section.like(NET).list(key, example, LIST_MAX, parse_net);
    let sources = list("source", networks).unwrap_or_default();
    let destinations = list("destination", networks).unwrap_or_default();
    let domains = section
        .like(DOMAIN)
        .list("domain", "[\"example.org\"]", LIST_MAX, parse_domain);
    let protocols =
        section
            .like(PROTOCOL)
            .list("protocol", "[\"tcp\", \"udp\"]", LIST_MAX, parse_protocol);
    let ports =
        section
            .like(PORTS)
            .list("ports", "[\"443\", \"5000-5100\"]", LIST_MAX, parse_ports);
    let dscp = section
        .like(DSCP)
        .list("dscp", "[\"ef\", \"cs1\"]", LIST_MAX, parse_dscp);
    let users = section
        .like(USER)
        .list("user", "[\"backup\"]", LIST_MAX, parse_user);
    let rule = Rule {
        name: name.unwrap_or_default(),
        uplinks: uplinks.unwrap_or_default(),
        mode: section.choice("mode", "\"failover\"", MODES, str::parse),
        strict: section.boolean("strict").unwrap_or(false),
        affinity: section.boolean("affinity"),
        sources,
        destinations,
        domains: domains.unwrap_or_default(),
        protocols: protocols.unwrap_or_default(),
        ports: ports.unwrap_or_default(),
        dscp: dscp.unwrap_or_default(),
        users: users.unwrap_or_default(),
        cgroup: section.like(CGROUP).text(
            "cgroup",
            "\"system.slice/backup.service\"",
            parse_cgroup,
        ),
    };
    // A condition that could not be read is reported already.
    if section.is_sound() && !rule.has_condition() {
        section.reject(
            "name",
            "this rule matches everything",
            "give it a condition such as ports = [\"443\"], or use [uplinks] and [[uplink]]",
        );
    }
    Some(rule)
}

impl Rule {
    fn has_condition(&self) -> bool {
        let lists = [
            self.sources.is_empty() && self.destinations.is_empty(),
            self.domains.is_empty(),
            self.protocols.is_empty() && self.ports.is_empty(),
            self.dscp.is_empty() && self.users.is_empty(),
        ];
        lists.contains(&false) || self.cgroup.is_some()
    }
}

fn parse_domain(text: &str) -> Result<String, String> {
    if is_host_name(text) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!(
        "{text:?} is no domain name; patterns such as *.example.org cannot be looked up"
    ))
}

fn parse_user(text: &str) -> Result<String, String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !text.is_empty() && text.len() <= 32 && text.chars().all(sound) && !text.starts_with('-') {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no user name"))
}

fn parse_cgroup(text: &str) -> Result<String, String> {
    let sound = |c: char| c.is_ascii_alphanumeric() || "_-.@:".contains(c);
    let part = |part: &str| !part.is_empty() && part != ".." && part.chars().all(sound);
    if text.len() <= CGROUP_MAX && text.split('/').all(part) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is no control group: write its path below /sys/fs/cgroup, without a slash at the start"
    ))
}

fn parse_url(text: &str) -> Result<PortalUrl, String> {
    let wrong = || format!("{text:?} is no URL that begins with http:// (https hides portals)");
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
        None => (authority, 80),
    };
    let printable = path.chars().all(|c| c.is_ascii_graphic());
    if !is_host_name(host) || !printable {
        return Err(wrong());
    }
    Ok(PortalUrl {
        host: host.to_owned(),
        port,
        path: format!("/{path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::balance::parse;

    fn problems(text: &str) -> String {
        let path = Path::new("balance.toml");
        let section = if text.contains("[balance]") {
            ""
        } else {
            "\n[balance]\n"
        };
        parse(path, &format!("{text}{section}"))
            .map_or_else(|problems| problems.to_string(), |_| String::new())
    }

    #[test]
    fn an_empty_file_balances_by_capacity_with_affinity() {
        let path = Path::new("balance.toml");
        let missing = parse(path, "").unwrap_err().to_string();
        assert!(missing.contains("balance: missing"), "{missing}");
        let config = parse(path, "[balance]\n").unwrap();
        assert_eq!(config.mode, Mode::Weighted);
        assert_eq!(config.affinity, Duration::from_secs(600));
        assert_eq!(config.kept, Kept::Opened);
        let all = parse(path, "[balance]\naffinity_sites = \"all\"\n").unwrap();
        assert_eq!(all.kept, Kept::All);
        assert!(parse(path, "[balance]\naffinity_sites = \"some\"\n").is_err());
        assert!(config.forward && config.rules.is_empty());
        assert_eq!(config.probe.targets.len(), 6);
        assert_eq!(config.probe.capacity, Some(CapacityProbe::Train));
        let without = parse(path, "[balance]\n[probe]\ncapacity = \"none\"").unwrap();
        assert_eq!(without.probe.capacity, None);
    }

    #[test]
    fn rules_and_marks_are_read_in_order() {
        let text = "[balance]\nmode = \"failover\"\naffinity_minutes = 0\n\
            [[uplink]]\nmatch = \"wwan*\"\nmetered = true\ngateway = [\"192.0.2.1\"]\n\
            [[uplink]]\nmatch = \"eth0\"\nweight = 3\n\
            [[rule]]\nname = \"a\"\nuplinks = [\"eth0\"]\nports = [\"22\", \"80-90\"]\n\
            [[rule]]\nname = \"b\"\nuplinks = [\"wwan*\"]\ndestination = [\"192.0.2.7\"]\n\
            dscp = [\"ef\"]\nuser = [\"www-data\"]\nstrict = true\n";
        let config = parse(Path::new("balance.toml"), text).unwrap();
        assert_eq!(
            (config.rank("eth0"), config.rank("wwan7")),
            (Some(1), Some(0))
        );
        assert_eq!(config.extra("wwan7").unwrap().gateways.len(), 1);
        assert_eq!(config.extra("lan0"), None);
        assert_eq!(config.rules[0].ports, [22..=22, 80..=90]);
        assert_eq!(config.rules[1].destinations[0].to_string(), "192.0.2.7/32");
        assert!(config.rules[1].strict && !config.rules[0].strict);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_remedy() {
        for (text, part) in [
            ("[balance]\nmode = \"fast\"", "least-finish"),
            ("[balance]\nkind = 1", "unknown key"),
            ("[tunnel]\nmtu = 1400", "unknown key"),
            (
                "[[rule]]\nname = \"x\"\nuplinks = [\"a\"]",
                "matches everything",
            ),
            ("[[rule]]\nname = \"x\"\nports = [\"1\"]", "rule[1].uplinks"),
            (
                "[[rule]]\nname = \"x\"\nuplinks = [\"a\"]\ndomain = [\"*.a\"]",
                "*.example.org",
            ),
            (
                "[[rule]]\nname = \"x\"\nuplinks = [\"a\"]\nuser = [\"a b\"]",
                "no user name",
            ),
            (
                "[[rule]]\nname = \"x\"\nuplinks = [\"a\"]\ncgroup = \"/a\"",
                "without a slash",
            ),
            ("[probe]\nportal = \"https://a/\"", "http://"),
            ("[probe]\ncapacity = \"ping\"", "\"vps\""),
            (
                "[[uplink]]\nmatch = \"a\"\ndns = [\"1.1.1.1\", \"2.2.2.2\"]",
                "same family",
            ),
        ] {
            let found = problems(text);
            assert!(found.contains(part), "{text}: {found}");
        }
    }
}
