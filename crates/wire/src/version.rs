//! The versions of the wire between site and hub: which there are, and which one two ends use.
//!
//! Each end states the range of versions that it speaks, in [`Hello`](crate::Hello) and
//! [`Welcome`](crate::Welcome). Both use the newest common one. The version bounds what an end
//! sends. An end reads everything that it knows, whatever the version, because no kind, number or
//! bit ever gets another meaning.
//!
//! Whoever changes the wire reads "Versions" in `docs/wire.md` first.

use std::fmt;

use thiserror::Error;

/// One version of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number.
    pub number: u8,
    /// The day it came.
    pub since: &'static str,
    /// What it changed.
    pub changes: &'static str,
}

/// Every version that this program speaks, the oldest first: at least the newest two.
pub const VERSIONS: [Version; 2] = [
    Version {
        number: 4,
        since: "2026-11-22",
        changes: "Hello and Welcome state one version, and a peer of another one is served all the same",
    },
    Version {
        number: RANGES,
        since: "2026-11-27",
        changes: "Hello and Welcome state the oldest and the newest version; without a common one both ends refuse",
    },
];

/// From this version on an end states a range, and takes a Welcome without a common version as a
/// refusal.
const RANGES: u8 = 5;

/// A range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    oldest: u8,
    newest: u8,
}

impl Versions {
    /// What this program speaks.
    pub const OURS: Self = Self {
        oldest: VERSIONS[0].number,
        newest: VERSIONS[VERSIONS.len() - 1].number,
    };

    /// The range from `oldest` to `newest`, both included; `None` if it is empty.
    #[must_use]
    pub const fn new(oldest: u8, newest: u8) -> Option<Self> {
        if oldest <= newest {
            Some(Self { oldest, newest })
        } else {
            None
        }
    }

    /// The oldest of them.
    #[must_use]
    pub const fn oldest(self) -> u8 {
        self.oldest
    }

    /// The newest of them.
    #[must_use]
    pub const fn newest(self) -> u8 {
        self.newest
    }

    /// Whether an end that speaks these states its range, and understands a Welcome that refuses.
    #[must_use]
    pub const fn has_ranges(self) -> bool {
        self.newest >= RANGES
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.oldest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

/// Why a hub and a site do not understand each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the hub speaks {hub} of the wire, the site {site}: upgrade the {}", self.older())]
pub struct NoCommonVersion {
    /// What the hub speaks.
    pub hub: Versions,
    /// What the site speaks.
    pub site: Versions,
}

impl NoCommonVersion {
    const fn older(&self) -> &'static str {
        if self.hub.newest < self.site.oldest {
            "hub"
        } else {
            "site"
        }
    }
}

/// The version that a hub and a site use: the newest that both speak.
///
/// # Errors
/// There is none.
pub fn agree(hub: Versions, site: Versions) -> Result<u8, NoCommonVersion> {
    let newest = hub.newest.min(site.newest);
    if newest < hub.oldest.max(site.oldest) {
        return Err(NoCommonVersion { hub, site });
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(oldest: u8, newest: u8) -> Versions {
        Versions::new(oldest, newest).expect("a range")
    }

    #[test]
    fn the_newest_common_version_is_used() {
        for (hub, site, common) in [
            (range(4, 4), range(4, 5), 4),
            (range(4, 5), range(4, 4), 4),
            (range(4, 5), range(4, 5), 5),
            (range(4, 7), range(6, 9), 7),
            (range(0, 255), range(3, 3), 3),
        ] {
            assert_eq!(agree(hub, site), Ok(common), "{hub} and {site}");
        }
    }

    #[test]
    fn without_a_common_version_the_words_name_both_ranges_and_the_older_end() {
        let words = |hub, site| agree(hub, site).expect_err("none in common").to_string();
        assert_eq!(
            words(range(4, 4), range(5, 6)),
            "the hub speaks version 4 of the wire, the site versions 5 to 6: upgrade the hub"
        );
        assert_eq!(
            words(range(6, 7), range(4, 5)),
            "the hub speaks versions 6 to 7 of the wire, the site versions 4 to 5: upgrade the site"
        );
    }

    #[test]
    fn the_newest_two_versions_are_spoken_and_none_is_left_out() {
        let ours = Versions::OURS;
        assert!(ours.newest() > ours.oldest(), "N and N - 1");
        let numbers = VERSIONS.map(|version| version.number);
        assert!((ours.oldest()..=ours.newest()).eq(numbers), "{numbers:?}");
    }

    /// Who changes the table changes the page, and its rules, too.
    #[test]
    fn the_page_of_the_wire_has_the_same_table() {
        let page = include_str!("../../../docs/wire.md");
        for Version {
            number,
            since,
            changes,
        } in VERSIONS
        {
            let row = format!("| {number} | {since} | {changes} |");
            assert!(page.lines().any(|line| line == row), "no line {row}");
        }
    }
}
