//! `[hold]`: what a gateway keeps for its peer while no path is up.
//!
//! Invariant: one flow may not be allowed more than all together.

use ropewalk_core::hold::Limits;
use ropewalk_types::Duration;

use super::reader::Section;

/// Most that may be held for one peer, MiB.
const MIB_MAX: u64 = 1_024;
/// Longest that anything may be held, seconds.
const SECONDS_MAX: u64 = 600;

/// Reads the section; what it does not say is the default.
pub(super) fn read(hold: &mut Section<'_>) -> Limits {
    let default = Limits::default();
    let bytes = hold.integer("mib_max", 0..=MIB_MAX).map(|mib| mib << 20);
    let flow = hold
        .integer("flow_mib_max", 0..=MIB_MAX)
        .map(|mib| mib << 20);
    let tcp = hold.integer("tcp_seconds_max", 0..=SECONDS_MAX);
    let other = hold.integer("other_seconds_max", 0..=SECONDS_MAX);
    let freeze = hold.choice(
        "freeze",
        "\"planned\"",
        ["off", "planned", "custody"],
        str::parse,
    );
    let bytes_max = bytes.unwrap_or(default.bytes_max);
    if flow.is_some_and(|flow| flow > bytes_max) {
        hold.reject(
            "flow_mib_max",
            "one flow would be allowed more than all together",
            "write at most the value of mib_max, which is 19 unless given",
        );
    }
    Limits {
        bytes_max,
        flow_bytes_max: flow.unwrap_or(default.flow_bytes_max).min(bytes_max),
        tcp_age_max: tcp.map_or(default.tcp_age_max, Duration::from_secs),
        other_age_max: other.map_or(default.other_age_max, Duration::from_secs),
        freeze: freeze.unwrap_or(default.freeze),
        ..default
    }
}
