//! Every scheduler and every congestion control, once: its number in messages, its name and what
//! it does. Configuration, commands, reports and messages between gateways all read these tables.
//!
//! Invariant: codes and names are unique, and none is ever given to another algorithm. A peer of
//! an older version reads the codes, and configurations hold the names.

use serde::{Deserialize, Serialize};

use crate::names::UnknownName;

/// Declares a closed set of algorithms from rows of variant, code, name and description.
macro_rules! registry {
    (
        $(#[$about:meta])* $kind:ident, $noun:literal:
        $($(#[$mark:meta])* $variant:ident = $code:literal, $name:literal, $does:literal;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $kind {
            $(#[doc = $does] $(#[$mark])* #[serde(rename = $name)] $variant = $code,)+
        }

        impl $kind {
            /// All of them, in the order of their codes.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$variant),+];

            /// The number in messages between gateways.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one with this number, if there is one.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The name in configuration, commands and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// One line for a help text.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$variant => $does,)+
                }
            }
        }

        impl core::fmt::Display for $kind {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl core::str::FromStr for $kind {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
                known.ok_or_else(|| UnknownName::new($noun, name, &Self::ALL.map(Self::name)))
            }
        }
    };
}

registry! {
    /// The scheduler of one direction of a tunnel: which path carries the next packet.
    SchedulerKind, "scheduler":
    #[default]
    Auto = 0, "auto", "predicts arrival, keeps flows in order, drops paths that do not pay (default)";
    Htmt = 1, "htmt", "our redesign of HTMT: one path per flow until that would make it wait";
    HtmtPrototype = 2, "htmt-prototype", "HTMT as its authors' prototype codes it, with its mixed units, for comparison";
    LowRtt = 3, "low-rtt", "the free path with the smallest round-trip time";
    Ecf = 4, "ecf", "earliest completion first: waits for the fast path when that is sooner";
    Blest = 5, "blest", "avoids paths that would block the others";
    Otias = 6, "otias", "the path that delivers first, even when its window is full";
    Afmt = 7, "afmt", "flow-aware, by queue fill, rate and round-trip time";
    RoundRobin = 8, "round-robin", "each path in turn";
    WeightedRoundRobin = 9, "weighted-round-robin", "each path in turn, by weight or measured rate";
    Redundant = 10, "redundant", "a copy on every path that has room: least delay and loss, little more than the capacity of one path";
    ActiveBackup = 11, "active-backup", "one path, the next one when it fails";
    CostAware = 12, "cost-aware", "unmetered paths first, metered ones when those are full";
    Priority = 13, "priority", "the first path, the next ones when it is full";
    HtmtPaper = 14, "htmt-paper", "HTMT as its paper writes it, for comparison";
}

impl SchedulerKind {
    /// In place of a code: whatever the peer prefers. No scheduler has this code.
    pub const ANY_CODE: u8 = 0xff;
}

registry! {
    /// The congestion control of one path in one direction.
    CongestionControl, "congestion control":
    NewReno = 0, "newreno", "RFC 9002 section 7, what CCID 2 is";
    Cubic = 1, "cubic", "RFC 9438";
    Bbr = 2, "bbr", "BBR version 1";
    #[default]
    Bdp = 3, "bdp", "window from measured rate and delay, unmoved by random loss; CUBIC, once for each flow, where others fill the queue (default)";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_and_every_code_leads_back_to_its_scheduler() {
        for kind in SchedulerKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(SchedulerKind::from_code(kind.code()), Some(kind));
            assert!(!kind.describe().is_empty());
        }
        assert_eq!(SchedulerKind::from_code(SchedulerKind::ANY_CODE), None);
    }

    #[test]
    fn every_name_leads_back_to_its_congestion_control() {
        for kind in CongestionControl::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(CongestionControl::default(), CongestionControl::Bdp);
    }

    #[test]
    fn names_are_unique() {
        let schedulers = SchedulerKind::ALL.map(SchedulerKind::name);
        assert_eq!(BTreeSet::from(schedulers).len(), schedulers.len());
        let controls = CongestionControl::ALL.map(CongestionControl::name);
        assert_eq!(BTreeSet::from(controls).len(), controls.len());
    }

    /// Peers of other versions read these numbers.
    #[test]
    fn codes_are_those_that_released_versions_send() {
        let codes = SchedulerKind::ALL.map(|kind| (kind.code(), kind.name()));
        let expected = [
            (0, "auto"),
            (1, "htmt"),
            (2, "htmt-prototype"),
            (3, "low-rtt"),
            (4, "ecf"),
            (5, "blest"),
            (6, "otias"),
            (7, "afmt"),
            (8, "round-robin"),
            (9, "weighted-round-robin"),
            (10, "redundant"),
            (11, "active-backup"),
            (12, "cost-aware"),
            (13, "priority"),
            (14, "htmt-paper"),
        ];
        assert!(codes.starts_with(&expected), "{codes:?}");
    }

    #[test]
    fn a_misspelt_name_is_corrected_and_a_strange_one_gets_the_list() {
        let error = "rundrobin".parse::<SchedulerKind>().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("did you mean round-robin"), "{text}");
        let text = "wire".parse::<CongestionControl>().unwrap_err().to_string();
        let list = "unknown congestion control \"wire\"; there are newreno, cubic, bbr, bdp";
        assert_eq!(text, list);
    }
}
