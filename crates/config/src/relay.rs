//! What a relay is configured with: a hub to its sites, and a site of the next hub.
//!
//! Invariant: each half has its own interfaces and keys. Both halves share everything else that a
//! gateway has one of: name, state directory, API and log.

use std::path::Path;

use super::RELAY_CONFIG;
use super::common::{self, Common, RoleDefaults};
use super::egress;
use super::hub::{self, HubConfig};
use super::reader::{self, Problems, Section, read};
use super::site::{self, SiteConfig};
use super::survey::Table;
use super::uplinks::{self, Pattern, UplinkRules};
use super::values::parse_path;
use super::values::patterns::PATH;

/// What a relay calls the hub it leads to; none of its sites may have this name.
pub const NEXT_HUB: &str = "hub";
/// File of a relay's sites in the state directory: a hub on the same machine has its own.
const SITES_FILE: &str = "relay-sites.toml";
/// TUN interface towards the hub unless configured otherwise: that of a site.
const ONWARD_INTERFACE: &str = "ropewalk0";

/// Configuration of a relay.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayConfig {
    /// Towards the sites.
    pub hub: HubConfig,
    /// Towards the next hub. It has no routes: the relay's own traffic stays outside.
    pub site: SiteConfig,
}

/// Parses `text`, which was read from `path`.
///
/// # Errors
/// Every problem found.
pub fn parse(path: &Path, text: &str) -> Result<RelayConfig, Problems> {
    let config = read(path, text, |root| read_all(root, path))?;
    // `read` fails whenever a required key was missing, so this cannot be reached without a value.
    config.ok_or_else(|| Problems(Vec::new()))
}

/// What is asked of such a file.
#[must_use]
pub fn survey() -> Table {
    reader::survey(|root| read_all(root, Path::new(RELAY_CONFIG)))
}

fn read_all(root: &mut Section<'_>, path: &Path) -> Option<RelayConfig> {
    let defaults = RoleDefaults {
        role: "relay",
        interface: "ropehub0",
    };
    let common = common::read(root, path, defaults);
    let next = root.section("hub", |section| {
        let shown = "\"/etc/ropewalk/keys/relay-hub.key\"";
        let key_file = section.like(PATH).text("key_file", shown, parse_path);
        (site::read_hub(section), key_file)
    });
    let onward = root.section("onward", |section| read_onward(section, &common));
    let (listen, tcp_listen, public) = root.section("listen", hub::read_listen);
    let (pool_v4, pool_v6) = root.section("pool", hub::read_pools);
    let masquerade = root.section("network", |network| network.boolean("masquerade"));
    let allow = root.section("egress", egress::read).unwrap_or_default();
    let shown = "\"/var/lib/ropewalk/relay-sites.toml\"";
    let sites_file = root.like(PATH).text("sites_file", shown, parse_path);
    let workers = hub::read_workers(root);
    let memory_mb = root.integer_or_auto("memory_mb", hub::MEMORY_MB);
    let mut uplinks = uplinks::read(root);
    // What comes out of one tunnel must not become the carrier of the other.
    uplinks.exclude.extend(own_pattern(&common));
    refuse_quotas(root, &uplinks);
    let (hub_key, endpoints, tcp_port, tcp_fallback) = next.0?;
    let key_file = next
        .1
        .unwrap_or_else(|| common::key_file(path, "relay-hub.key"));
    let masquerade = masquerade.unwrap_or(false);
    // What is translated must not overlap with the hub's network, what is routed is part of it.
    let partner = |interface: &String| (!masquerade).then(|| interface.clone());
    Some(RelayConfig {
        hub: HubConfig {
            workers,
            memory_mb,
            sites_file: sites_file.unwrap_or_else(|| common.state_dir.join(SITES_FILE)),
            listen,
            tcp_listen,
            public,
            pool_v4,
            pool_v6,
            shared: None,
            forward: true,
            masquerade,
            routes_table: None,
            allow,
            fleet: None,
            onward: Some(onward.interface.clone()),
            common: Common {
                partner: partner(&onward.interface),
                ..common.clone()
            },
        },
        site: SiteConfig {
            hub_key,
            endpoints,
            tcp_port,
            tcp_fallback,
            spares: Vec::new(),
            routes: Vec::new(),
            assigned: None,
            kill_switch: false,
            local: None,
            dns: Vec::new(),
            uplinks,
            direct: None,
            common: Common {
                key_file,
                partner: partner(&common.interface),
                ..onward
            },
        },
    })
}

/// The tunnel to the hub, where it differs from that to the sites.
fn read_onward(section: &mut Section<'_>, common: &Common) -> Common {
    let inherited = Common {
        interface: ONWARD_INTERFACE.to_owned(),
        ..common.clone()
    };
    let onward = common::read_tunnel(section, inherited);
    let default = super::class::read_default(section);
    let classes = super::class::with_default(&common.classes, default);
    if onward.interface == common.interface {
        section.reject(
            "interface",
            &format!(
                "{} is the interface towards the sites already",
                common.interface
            ),
            "give the two tunnels different names, in [tunnel] and [onward]",
        );
    }
    Common { classes, ..onward }
}

fn own_pattern(common: &Common) -> Option<Pattern> {
    common.interface.parse().ok()
}

/// The history of a relay has the paths of its sites, too: nobody counts those of its own uplinks.
fn refuse_quotas(root: &Section<'_>, uplinks: &UplinkRules) {
    if uplinks.marks.iter().any(|mark| mark.quota.is_some()) {
        let remedy = "take quota_gb out, or set the quota at the sites";
        root.reject(
            "uplink",
            "a relay does not count what its uplinks carry",
            remedy,
        );
    }
}
