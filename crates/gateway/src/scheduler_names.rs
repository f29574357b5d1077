//! Names and one-line descriptions of the schedulers, for people.
//!
//! Invariant: every scheduler is listed once; a test holds the list against the names the core
//! uses in reports.

use ropewalk_core::schedule::SchedulerKind;

use crate::config::reader::closest;

/// Every scheduler with its name and what it does.
pub const ALL: [(SchedulerKind, &str, &str); 13] = [
    (
        SchedulerKind::Auto,
        "auto",
        "predicts arrival, keeps flows in order, drops paths that do not pay (default)",
    ),
    (
        SchedulerKind::Htmt,
        "htmt",
        "flow-aware: one path per flow until that would make it wait",
    ),
    (
        SchedulerKind::HtmtAsPublished,
        "htmt-as-published",
        "HTMT exactly as its authors published it, for comparison",
    ),
    (
        SchedulerKind::LowRtt,
        "low-rtt",
        "the free path with the smallest round-trip time",
    ),
    (
        SchedulerKind::RoundRobin,
        "round-robin",
        "each path in turn",
    ),
    (
        SchedulerKind::WeightedRoundRobin,
        "weighted-round-robin",
        "each path in turn, by weight or measured rate",
    ),
    (
        SchedulerKind::Otias,
        "otias",
        "the path that delivers first, even when its window is full",
    ),
    (
        SchedulerKind::Afmt,
        "afmt",
        "flow-aware, by queue fill, rate and round-trip time",
    ),
    (
        SchedulerKind::Blest,
        "blest",
        "avoids paths that would block the others",
    ),
    (
        SchedulerKind::Ecf,
        "ecf",
        "earliest completion first: waits for the fast path when that is sooner",
    ),
    (
        SchedulerKind::Redundant,
        "redundant",
        "a copy on every path that has room: least delay and loss, little more than the capacity of one path",
    ),
    (
        SchedulerKind::ActiveBackup,
        "active-backup",
        "one path, the next one when it fails",
    ),
    (
        SchedulerKind::CostAware,
        "cost-aware",
        "unmetered paths first, metered ones when those are full",
    ),
];

/// The name of a scheduler.
#[must_use]
pub fn name(kind: SchedulerKind) -> &'static str {
    ALL.iter()
        .find(|(known, _, _)| *known == kind)
        .map_or("unknown", |(_, name, _)| name)
}

/// The scheduler of this name.
///
/// # Errors
/// Says which names there are, or which one was probably meant.
pub fn parse(text: &str) -> Result<SchedulerKind, String> {
    if let Some((kind, _, _)) = ALL.iter().find(|(_, name, _)| *name == text) {
        return Ok(*kind);
    }
    let names: Vec<&str> = ALL.iter().map(|(_, name, _)| *name).collect();
    Err(match closest(text, &names) {
        Some(name) => format!("unknown scheduler {text:?}, did you mean {name}?"),
        None => format!("unknown scheduler {text:?}; there are {}", names.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_reports() {
        for (kind, name, _) in ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            assert_eq!(parse(name), Ok(kind));
        }
    }

    #[test]
    fn misspelt_name_is_corrected() {
        let error = parse("rundrobin").unwrap_err();
        assert!(error.contains("did you mean round-robin"), "{error}");
    }
}
