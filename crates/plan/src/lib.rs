//! An experiment as people write it, and what came of it: the same for simulator and kernel.
//!
//! ```toml
//! name = "uneven"
//! duration = "20s"
//! warmup = "5s"               # not counted
//! seed = 1
//!
//! [[path]]                    # 1 to 8 of them; "up" leaves the site
//! name = "a"
//! both = { rate = "16Mbit", delay = "25ms", queue = "128KiB" }
//! [[path]]
//! name = "b"
//! both = { rate = "8Mbit", delay = "35ms", queue = "128KiB" }
//! change = [ { at = "10s", both.blackhole = true } ]
//!
//! [carrier]                   # what carries the traffic
//! kind = "tunnel"
//! scheduler = "auto"
//!
//! [[traffic]]
//! kind = "tcp"
//! flows = 5
//! congestion = "cubic"
//! [[traffic]]
//! kind = "ping"
//! ```
//!
//! Unknown keys are refused; every error names the key.

#![forbid(unsafe_code)]

mod ceiling;
mod names;
pub mod page;
mod recording;
mod report;
mod row;
mod shared;
mod syntax;
mod traffic;
mod used;

pub use ceiling::{
    COMPRESSED_HEADERS, COMPRESSED_UDP, INNER_HEADERS, NO_CEILING, OUTER_OVERHEAD, ceiling_mbit,
    describe_ceilings, direct_ceiling, tunnel_ceiling,
};
pub use recording::read_trace;
pub use report::{
    BufferReport, Distribution, FlowReport, PathReport, Pause, Report, TrafficReport, TunnelReport,
    overhead,
};
pub use row::{HOPS_MAX, RelayPlan, TcpNcPlan};
pub use shared::{LINKS_MAX, SharedLink};
pub use traffic::{Congestion, Direction, SEGMENT_MAX, Traffic};
pub use used::MULTIPATH_PEERS;

use std::collections::BTreeSet;

use ropewalk_netem::{ChangePlan, DirectionPlan, LinkPlan, units};
use ropewalk_types::Duration;
use serde::{Deserialize, Serialize};

/// Most paths of a plan.
pub const PATHS_MAX: usize = 8;
/// Largest send buffer of a path, packets.
pub const SEND_BUFFER_MAX: usize = 1_000;
/// Longest plan.
pub const DURATION_MAX: Duration = Duration::from_secs(3_600);

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Names the experiment in results.
    pub name: String,
    /// All randomness follows from it; 1 unless given.
    #[serde(default = "one")]
    pub seed: u64,
    /// How long the traffic runs, the warm-up included.
    #[serde(with = "duration")]
    pub duration: Duration,
    /// How much of the beginning is not counted; none unless given.
    #[serde(default, with = "duration")]
    pub warmup: Duration,
    /// The paths between site and hub.
    pub path: Vec<PathPlan>,
    /// Links that paths pass between themselves and the hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link: Vec<SharedLink>,
    /// What carries the traffic.
    #[serde(default)]
    pub carrier: Carrier,
    /// What is sent.
    #[serde(default)]
    pub traffic: Vec<Traffic>,
}

/// One path: a link with a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathPlan {
    /// Name, unique in the plan.
    pub name: String,
    /// Settings of both directions.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub both: DirectionPlan,
    /// Settings from the site; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub up: DirectionPlan,
    /// Settings towards the site; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub down: DirectionPlan,
    /// New settings at times after the start of the traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<ChangePlan>,
    /// Kernel only: when the site's tunnel is told that the path will end soon.
    #[serde(default, with = "durations", skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<Duration>,
    /// Name of the `[[link]]` that the path goes on over towards the hub, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
}

/// What carries the traffic between site and server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Carrier {
    /// The path itself, without any tunnel: the first one unless named.
    #[default]
    #[serde(rename = "direct", deserialize_with = "no_settings")]
    DirectFirst,
    /// As `direct`, over the path of this name.
    Path {
        /// Name of the path.
        path: String,
    },
    /// A Ropewalk tunnel.
    Tunnel(TunnelPlan),
    /// Tunnels in a row: what one delivers enters the next.
    Relay(RelayPlan),
    /// Paths in a row, without any tunnel.
    Chain {
        /// Names of the paths, from the site to the server.
        hops: Vec<String>,
    },
    /// Sessions of TCP/NC in a row, as far as its authors publish it: what one delivers enters the next.
    TcpNc(TcpNcPlan),
    /// MPTCP over all paths, as Linux has it. Only bulk TCP is carried: all else takes the first
    /// path.
    #[serde(deserialize_with = "no_settings")]
    Mptcp,
    /// `ropewalk balance` over all paths, each connection over one of them; not simulated.
    Balance(BalancePlan),
    /// A firewall rule that gives connections to all paths in turn; not simulated.
    #[serde(deserialize_with = "no_settings")]
    RoundRobin,
    /// Another program, by its name in the lab; not simulated.
    Peer {
        /// Name of the peer, such as `wireguard-go`.
        peer: String,
    },
}

/// Settings of `ropewalk balance`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancePlan {
    /// How connections are shared, by name; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// How long a client keeps its path to a site, minutes, 0 for never; the program's default
    /// unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_minutes: Option<u32>,
    /// To which sites, by name; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_sites: Option<String>,
}

/// Settings of a Ropewalk tunnel, the same at both ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPlan {
    /// Name of the scheduler; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Congestion control of the sub-tunnels; the program's default unless given. `new-reno`, as
    /// traffic has it, is `newreno`.
    #[serde(
        default,
        deserialize_with = "one_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub congestion: Option<String>,
    /// Protection of what the site sends, by name; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protect_up: Option<String>,
    /// The same for the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protect_down: Option<String>,
    /// Names of the paths to use; all unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// `freeze` of the section `[hold]`, kernel only; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<String>,
    /// Whether both ends acknowledge TCP for the receiver, kernel only; the program's default unless
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerate: Option<bool>,
    /// Whether the egress puts packets in order, `on` or `off`; on unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Whether both ends compress inner headers; the program's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress_headers: Option<bool>,
    /// Whether both ends take all paths for paths through one bottleneck; no unless given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub coupled: bool,
    /// Packets that the send buffer of each path holds. Packets are then bound to a path when they
    /// arrive, and a full buffer drops them. Late binding unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<usize>,
}

impl TunnelPlan {
    /// Whether headers are compressed: unless the plan says otherwise.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.compress_headers.unwrap_or(true)
    }

    /// Checks what serde cannot; `section` is where in the plan the settings are.
    fn check(&self, section: &str) -> Result<(), PlanError> {
        if let Some(paths) = &self.paths {
            let key = format!("{section}.paths");
            if paths.is_empty() {
                let problem = "name at least one path, or leave it out for all paths";
                return fail(&key, problem.into());
            }
            refuse_twice(&key, paths.iter().map(String::as_str))?;
        }
        names::check_tunnel(self, section)?;
        match self.send_buffer {
            Some(packets) if !(1..=SEND_BUFFER_MAX).contains(&packets) => fail(
                &format!("{section}.send_buffer"),
                format!("use 1 to {SEND_BUFFER_MAX} packets, or leave it out for late binding"),
            ),
            _ => Ok(()),
        }
    }
}

/// A plan that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, or a key that is unknown or missing.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be read, or keys that do not fit together.
    #[error("{key}: {problem}")]
    Setting {
        /// The key, such as `path[1].name`.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl Plan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// On text that is not TOML, unknown keys, unreadable values and settings that do not fit
    /// together. Link settings are checked when a runner resolves them.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|error| syntax::explain(text, &error))?;
        plan.check()?;
        Ok(plan)
    }

    /// Writes the plan as TOML, readable by [`Self::parse`].
    ///
    /// # Errors
    /// When a number cannot be written as TOML (a seed above `i64::MAX`).
    pub fn to_toml(&self) -> Result<String, PlanError> {
        toml::to_string(self).map_err(|error| PlanError::Syntax(error.to_string()))
    }

    /// Checks what serde cannot: counts, names, times.
    ///
    /// # Errors
    /// With the first key that does not fit.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.path.is_empty() || self.path.len() > PATHS_MAX {
            return fail("path", format!("write 1 to {PATHS_MAX} [[path]] sections"));
        }
        let mut names = BTreeSet::new();
        for (index, path) in self.path.iter().enumerate() {
            if path.name.is_empty() || !names.insert(path.name.as_str()) {
                return fail(
                    &format!("path[{index}].name"),
                    "give every path a name of its own".into(),
                );
            }
        }
        if self.duration.is_zero() || self.duration > DURATION_MAX {
            return fail("duration", "use more than 0 and at most 60min".into());
        }
        if self.warmup >= self.duration {
            return fail("warmup", "must be shorter than `duration`".into());
        }
        self.check_leaving()?;
        let named: Vec<(&str, &str)> = match &self.carrier {
            Carrier::Path { path } => vec![("carrier.path", path)],
            Carrier::Tunnel(tunnel) => {
                let paths = tunnel.paths.iter().flatten();
                paths.map(|path| ("carrier.paths", path.as_str())).collect()
            }
            Carrier::Relay(relay) => {
                let paths = relay.hops.iter().flatten();
                paths.map(|path| (row::HOPS, path.as_str())).collect()
            }
            Carrier::Chain { hops } => hops.iter().map(|path| (row::HOPS, path.as_str())).collect(),
            Carrier::TcpNc(tcp_nc) => {
                let hops = tcp_nc.hops.iter();
                hops.map(|path| (row::HOPS, path.as_str())).collect()
            }
            Carrier::DirectFirst
            | Carrier::Mptcp
            | Carrier::Balance(_)
            | Carrier::RoundRobin
            | Carrier::Peer { .. } => Vec::new(),
        };
        for (key, name) in named {
            if !names.contains(name) {
                let known: Vec<&str> = names.into_iter().collect();
                let known = known.join(", ");
                return fail(key, format!("there is no path `{name}`, only {known}"));
            }
        }
        if let Carrier::Tunnel(tunnel) = &self.carrier {
            tunnel.check("carrier")?;
        }
        if let Carrier::Balance(balance) = &self.carrier {
            names::check_balance(balance)?;
        }
        row::check(self)?;
        shared::check(self)?;
        for (index, traffic) in self.traffic.iter().enumerate() {
            traffic
                .check(self.duration)
                .or_else(|(key, problem)| fail(&format!("traffic[{index}].{key}"), problem))?;
        }
        Ok(())
    }

    /// Somebody can be told that a path will end, and while the plan lasts.
    fn check_leaving(&self) -> Result<(), PlanError> {
        for (index, path) in self.path.iter().enumerate() {
            let key = format!("path[{index}].leaving");
            if !path.leaving.is_empty() && !matches!(self.carrier, Carrier::Tunnel(_)) {
                let problem = "only a single tunnel can be told: use carrier.kind = \"tunnel\"";
                return fail(&key, problem.into());
            }
            if path.leaving.iter().any(|at| *at >= self.duration) {
                return fail(&key, "must be before the end of the plan".into());
            }
        }
        Ok(())
    }
}

impl PathPlan {
    /// The link of this path; its randomness follows from the plan's seed and the path's place.
    #[must_use]
    pub fn link(&self, seed: u64, index: usize) -> LinkPlan {
        LinkPlan {
            seed: Some(seed.wrapping_mul(16).wrapping_add(index as u64 + 1) & SEED_MASK),
            both: self.both.clone(),
            up: self.up.clone(),
            down: self.down.clone(),
            change: self.change.clone(),
        }
    }
}

/// TOML has no integer above `i64::MAX`.
const SEED_MASK: u64 = i64::MAX as u64;

fn fail<T>(key: &str, problem: String) -> Result<T, PlanError> {
    Err(PlanError::Setting {
        key: key.into(),
        problem,
    })
}

/// A path carries one sub-tunnel or one hop.
fn refuse_twice<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Result<(), PlanError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return fail(key, format!("the path `{name}` is named twice"));
        }
    }
    Ok(())
}

const fn one() -> u64 {
    1
}

/// Refuses keys beside `kind`: serde ignores them in variants without fields.
fn no_settings<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NoSettings {}
    NoSettings::deserialize(deserializer).map(|NoSettings {}| ())
}

/// The name of a congestion control as configurations have it.
fn one_name<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.map(|name| {
        if name == "new-reno" {
            "newreno".into()
        } else {
            name
        }
    }))
}

/// Durations as text: `20s`, `150ms`.
mod duration {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(
        value: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&units::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        units::parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

/// A duration as text, if there is one.
mod optional_duration {
    use super::*;

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: serde::Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::duration::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(deserializer).map(Some)
    }
}

/// Lists of durations as text.
mod durations {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(
        values: &[Duration],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| units::format_duration(*value)))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Duration>, D::Error> {
        let parse = |text: String| units::parse_duration(&text).map_err(serde::de::Error::custom);
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.into_iter().map(parse).collect()
    }
}

#[cfg(test)]
mod tests;
