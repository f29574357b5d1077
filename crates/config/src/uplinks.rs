//! `[uplinks]` and `[[uplink]]`: which interfaces become uplinks, and how they are marked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ropewalk_api::{Marks, Quota};
use ropewalk_core::path::BOTTLENECK_MAX;
use ropewalk_transport::CongestionControl;

use super::common;
use super::reader::Section;
use super::values::{self, INTERFACE_NAME_MAX};

/// Most uplink rules, patterns and routes.
pub(super) const RULES_MAX: usize = 64;

/// Where wpa_supplicant has its control sockets, unless told otherwise.
const SUPPLICANT: &str = "/run/wpa_supplicant";
/// Where the system bus of D-Bus listens, unless told otherwise.
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// Longest address of a socket, bytes (`sun_path`).
const SOCKET_MAX: usize = 107;
/// Longest path of a directory whose sockets' addresses fit, with `/` and the name of an interface.
const SUPPLICANT_MAX: usize = SOCKET_MAX - 1 - INTERFACE_NAME_MAX;

/// What every [`Pattern`] matches, for schemas.
pub(super) const PATTERN: &str = r"^[\s\S]{1,30}$";

/// Which interfaces become uplinks, and how they are marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkRules {
    /// Patterns of interfaces to use; empty means every interface with a way to the hub.
    pub include: Vec<Pattern>,
    /// Patterns of interfaces never to use; stronger than `include`.
    pub exclude: Vec<Pattern>,
    /// Marks; the first rule that matches counts.
    pub marks: Vec<UplinkMark>,
    /// Marks that somebody set while the site runs, by name; stronger than `marks`. None come from a file.
    pub by_hand: BTreeMap<String, Marks>,
    /// Uplinks with nothing left of their quota. None come from a file.
    pub used_up: BTreeSet<String>,
    /// Uplinks that NetworkManager says cost money by the byte, or do not; weaker than `marks`. None come from a
    /// file.
    pub said_metered: BTreeMap<String, bool>,
    /// Directory of wpa_supplicant's control sockets; `None` to listen to none.
    pub supplicant: Option<PathBuf>,
    /// Socket of the system bus, where NetworkManager and ModemManager are listened to; `None` for no bus.
    pub system_bus: Option<PathBuf>,
}

/// Marks of the uplinks whose name matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkMark {
    /// Pattern of interface names.
    pub pattern: Pattern,
    /// Used only while no other path works.
    pub standby: bool,
    /// Costs money by the byte, or does not; `None` is what NetworkManager says.
    pub metered: Option<bool>,
    /// Number of the bottleneck that these uplinks share with others of the same number.
    pub bottleneck: Option<u8>,
    /// Fixed share under weighted round robin.
    pub weight: Option<u16>,
    /// Congestion control.
    pub congestion: Option<CongestionControl>,
    /// Bytes per hour that protection may cost.
    pub protection_hourly: Option<u64>,
    /// What the uplink may carry in a month. With nothing left it is used only while no other path works.
    pub quota: Option<Quota>,
}

impl UplinkRules {
    /// What an uplink may carry in a month.
    #[must_use]
    pub fn quota(&self, uplink: &str) -> Option<Quota> {
        let mark = self.marks.iter().find(|mark| mark.pattern.matches(uplink));
        mark.and_then(|mark| mark.quota)
    }

    /// Whether an uplink costs money by the byte: what somebody set by hand, what is configured, what
    /// NetworkManager says, in this order.
    #[must_use]
    pub fn is_metered(&self, uplink: &str) -> bool {
        let by_hand = self.by_hand.get(uplink).and_then(|marks| marks.metered);
        let mark = self.marks.iter().find(|mark| mark.pattern.matches(uplink));
        by_hand
            .or_else(|| mark?.metered)
            .or_else(|| self.said_metered.get(uplink).copied())
            .unwrap_or(false)
    }
}

/// A pattern of interface names: `*` stands for any text, `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Whether `name` matches. Time is the product of both lengths, which are bounded.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        // One row of the table "the first p bytes of the pattern match the first n of the name".
        let mut row = vec![false; name.len() + 1];
        row[0] = true;
        for pattern in self.0.bytes() {
            let mut diagonal = row[0];
            row[0] = row[0] && pattern == b'*';
            for (index, byte) in name.bytes().enumerate() {
                let above = row[index + 1];
                row[index + 1] = match pattern {
                    b'*' => above || row[index],
                    b'?' => diagonal,
                    literal => diagonal && literal == byte,
                };
                diagonal = above;
            }
        }
        row[name.len()]
    }
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 2 * INTERFACE_NAME_MAX {
            return Err(format!("{text:?} is no pattern of interface names"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The rules for uplinks: `[uplinks]` and every `[[uplink]]`.
pub(super) fn read(root: &mut Section<'_>) -> UplinkRules {
    let uplinks = root.section("uplinks", |uplinks| UplinkRules {
        supplicant: read_socket(uplinks, "wpa_supplicant", SUPPLICANT, SUPPLICANT_MAX),
        system_bus: read_socket(uplinks, "system_bus", SYSTEM_BUS, SOCKET_MAX),
        ..read_patterns(uplinks)
    });
    let marks = root.sections("uplink", RULES_MAX, read_mark);
    UplinkRules {
        marks: marks.into_iter().flatten().collect(),
        ..uplinks
    }
}

pub(super) fn read_patterns(uplinks: &mut Section<'_>) -> UplinkRules {
    let include =
        uplinks
            .like(PATTERN)
            .list("include", "[\"eth*\", \"wlan0\"]", RULES_MAX, str::parse);
    let exclude = uplinks
        .like(PATTERN)
        .list("exclude", "[\"docker*\"]", RULES_MAX, str::parse);
    UplinkRules {
        include: include.unwrap_or_default(),
        exclude: exclude.unwrap_or_default(),
        ..UplinkRules::default()
    }
}

/// A path of a socket, or of the directory of sockets; empty for none.
fn read_socket(
    uplinks: &mut Section<'_>,
    key: &'static str,
    default: &str,
    longest: usize,
) -> Option<PathBuf> {
    let parse = |text: &str| match text {
        "" => Ok(None),
        _ if text.len() > longest => {
            Err(format!("{text:?} is too long for the address of a socket"))
        }
        _ => values::parse_path(text).map(Some),
    };
    uplinks
        .like("^(/|$)")
        .text(key, &format!("{default:?}"), parse)
        .unwrap_or_else(|| Some(PathBuf::from(default)))
}

/// Most that may be configured, MiB per hour.
const PROTECT_MIB_MAX: u64 = 1 << 30;

/// What may be a quota, thousandths of a GB of 10^9 bytes.
const QUOTA_MB: RangeInclusive<u64> = 1..=1_000_000_000;
/// Last day of a month on which a quota may begin anew: every month has that day.
const QUOTA_DAY_MAX: u64 = 28;

fn read_quota(uplink: &mut Section<'_>) -> Option<Quota> {
    let gigabytes = uplink.decimal("quota_gb", QUOTA_MB);
    let day = uplink.integer("quota_day", 1..=QUOTA_DAY_MAX);
    if gigabytes.is_none() && day.is_some() {
        let remedy = "write quota_gb = 10, or take quota_day out";
        uplink.reject(
            "quota_day",
            "there is no quota that could begin anew",
            remedy,
        );
    }
    Some(Quota {
        bytes: (gigabytes? * 1e9).round() as u64,
        day: day.and_then(|day| u8::try_from(day).ok()).unwrap_or(1),
    })
}

fn read_mark(uplink: &mut Section<'_>) -> Option<UplinkMark> {
    let pattern = uplink.like(PATTERN).text("match", "\"wwan*\"", str::parse);
    let pattern = uplink.require("match", pattern, "write match = \"wwan*\"");
    let weight = uplink.integer("weight", 1..=1_000);
    let bottleneck = uplink.integer("bottleneck", 1..=u64::from(BOTTLENECK_MAX));
    let mark = UplinkMark {
        pattern: pattern.clone().unwrap_or_else(|| Pattern("*".to_owned())),
        standby: uplink.boolean("standby").unwrap_or(false),
        metered: uplink.boolean("metered"),
        bottleneck: bottleneck.and_then(|number| u8::try_from(number).ok()),
        weight: weight.and_then(|weight| u16::try_from(weight).ok()),
        congestion: common::read_congestion(uplink),
        protection_hourly: uplink
            .integer("protect_mib_per_hour", 0..=PROTECT_MIB_MAX)
            .map(|mib| mib << 20),
        quota: read_quota(uplink),
    };
    pattern.map(|_| mark)
}
