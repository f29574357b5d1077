//! Service classes: which packets are protected against loss, and how.
//!
//! Each packet belongs to the first class whose rule it matches, or to the default. The ingress decides
//! for what it sends; a class that both ends name protects both directions.
//!
//! Invariant: class numbers fit the four bits they have in the datagram header.

mod rule;

pub use rule::{Network, Ports, Rule};

use core::fmt;
use core::str::FromStr;
use ropewalk_types::PacketInfo;
use serde::{Deserialize, Serialize};

/// Most classes, the default included: their numbers have four bits.
pub const CLASSES_MAX: usize = 16;

/// How packets are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Not at all: what is lost is not sent again.
    None,
    /// A copy over another path, and repairs.
    Duplicate,
    /// Repair symbols of the last packets ahead of losses in proportion to them, and repairs.
    Code,
    /// Repair symbols of disjoint blocks of packets, and repairs: for comparison with tunnels that code so.
    Block,
    /// Repairs; repair symbols where they pay; what is awaited by the clock, at once and over two paths.
    #[default]
    Adaptive,
}

impl Protection {
    /// Every protection, the default first.
    pub const ALL: [Self; 5] = [
        Self::Adaptive,
        Self::None,
        Self::Duplicate,
        Self::Code,
        Self::Block,
    ];

    /// The name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Duplicate => "duplicate",
            Self::Code => "code",
            Self::Block => "block",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no protection's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown protection \"{0}\", there are adaptive, none, duplicate, code and block")]
pub struct UnknownProtection(String);

impl FromStr for Protection {
    type Err = UnknownProtection;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|p| p.name() == text);
        named.ok_or_else(|| UnknownProtection(text.to_owned()))
    }
}

/// What is done for the packets of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name, for people.
    pub name: String,
    /// Which packets belong to it; ignored for the default class.
    pub rule: Rule,
    /// How they are protected.
    pub protection: Protection,
    /// Paths that carry each packet when it is duplicated, `2..=16`.
    pub copies: usize,
    /// Loss of the packet's path from which it is duplicated, `0.0..=1.0`; 0 always.
    pub loss_above: f64,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            rule: Rule::default(),
            protection: Protection::default(),
            copies: 2,
            loss_above: 0.0,
        }
    }
}

/// All classes of one end; the first is the default.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    classes: Vec<Class>,
    /// Repair symbols per packet, instead of as many as measured loss asks for; at most
    /// [`REDUNDANCY_MAX`](crate::code::REDUNDANCY_MAX).
    pub redundancy: Option<f64>,
}

impl Default for Classes {
    fn default() -> Self {
        Self::new(Class::default(), [])
    }
}

impl Classes {
    /// The default class and those with rules, in the order in which they are tried; what is beyond
    /// [`CLASSES_MAX`] is left out.
    #[must_use]
    pub fn new(default: Class, rules: impl IntoIterator<Item = Class>) -> Self {
        let classes = core::iter::once(default).chain(rules);
        Self {
            classes: classes.take(CLASSES_MAX).collect(),
            redundancy: None,
        }
    }

    /// One protection for everything.
    #[must_use]
    pub fn all(protection: Protection) -> Self {
        let default = Class {
            protection,
            ..Class::default()
        };
        Self::new(default, [])
    }

    /// Number of the class of an inner packet of so many bytes.
    #[must_use]
    pub fn of(&self, info: &PacketInfo, bytes: usize) -> u8 {
        let rules = (0..).zip(&self.classes).skip(1);
        let mut matching = rules.filter(|(_, class)| class.rule.matches(info, bytes));
        matching.next().map_or(0, |(number, _)| number)
    }

    /// The class with this number; the default for one that does not exist.
    #[must_use]
    pub fn get(&self, number: u8) -> &Class {
        let found = self.classes.get(usize::from(number));
        found.unwrap_or(&self.classes[0])
    }

    /// Every class, the default first.
    pub fn iter(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter()
    }
}

#[cfg(test)]
mod tests;
