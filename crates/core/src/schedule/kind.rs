//! Names and descriptions of the schedulers, as users write and read them.

use super::SchedulerKind;
use core::fmt;
use core::str::FromStr;

impl SchedulerKind {
    /// Every scheduler, the default first.
    pub const ALL: [Self; 13] = [
        Self::Auto,
        Self::Htmt,
        Self::HtmtAsPublished,
        Self::LowRtt,
        Self::Ecf,
        Self::Blest,
        Self::Otias,
        Self::Afmt,
        Self::RoundRobin,
        Self::WeightedRoundRobin,
        Self::Redundant,
        Self::ActiveBackup,
        Self::CostAware,
    ];

    /// The name in configuration, commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::WeightedRoundRobin => "weighted-round-robin",
            Self::LowRtt => "low-rtt",
            Self::Otias => "otias",
            Self::Afmt => "afmt",
            Self::HtmtAsPublished => "htmt-as-published",
            Self::Htmt => "htmt",
            Self::Blest => "blest",
            Self::Ecf => "ecf",
            Self::Redundant => "redundant",
            Self::ActiveBackup => "active-backup",
            Self::CostAware => "cost-aware",
            Self::Auto => "auto",
        }
    }

    /// One line for a help text.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::RoundRobin => "each path in turn, packet by packet",
            Self::WeightedRoundRobin => "each path in turn, by set weight or measured rate",
            Self::LowRtt => "the path with room and the smallest round-trip time",
            Self::Otias => "earliest delivery by round trips, waiting behind full windows",
            Self::Afmt => "flow-aware, by queue fill, rate and round-trip time",
            Self::HtmtAsPublished => "HTMT as its authors coded it, defects included, to compare",
            Self::Htmt => "no packet overtakes its own flow; then the most free, fastest path",
            Self::Blest => "the fastest path, a slower one only if it will not block it",
            Self::Ecf => "waits for the faster path when that completes earlier",
            Self::Redundant => "a copy on every path that has room",
            Self::ActiveBackup => "one path; the next one when it fails",
            Self::CostAware => "paths that cost nothing first, metered ones when those are full",
            Self::Auto => "predicted arrival, flows kept together, drops paths that do not pay",
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no scheduler's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler {0:?}; one of: {names}", names = SchedulerKind::ALL.map(SchedulerKind::name).join(", "))]
pub struct UnknownScheduler(pub String);

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for kind in SchedulerKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert!(!kind.describe().is_empty());
        }
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> =
            SchedulerKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), SchedulerKind::ALL.len());
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "fastest"
            .parse::<SchedulerKind>()
            .expect_err("no such scheduler");
        let text = error.to_string();
        assert!(text.contains("\"fastest\""), "{text}");
        assert!(
            SchedulerKind::ALL
                .iter()
                .all(|kind| text.contains(kind.name())),
            "{text}"
        );
    }
}
