//! A fault for tests of whole programs: a panic in the work for one site. Release builds do not contain it.

use std::sync::OnceLock;

static SITE: OnceLock<String> = OnceLock::new();

/// From now on each inner packet of the site with this name makes its hub panic.
pub fn plant_fault(site: String) {
    // The first one counts.
    let _ = SITE.set(site);
}

/// Panics where a fault was planted.
pub(super) fn meet(site: &str) {
    assert!(
        SITE.get().is_none_or(|planted| planted != site),
        "a fault that was planted for a test"
    );
}
