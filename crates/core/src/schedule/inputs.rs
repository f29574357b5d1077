//! Tests only: what a scheduler is asked.

use super::Head;
use crate::path::{PathConfig, PathView, SLOT_BYTES};
use ropewalk_types::{Duration, PathId, Rate};

/// A full packet of `flow`, nothing else waiting.
pub(super) fn head(flow: u16) -> Head {
    Head {
        flow,
        bytes: SLOT_BYTES,
        flow_backlog: SLOT_BYTES,
        backlog: SLOT_BYTES,
    }
}

/// A path of 8 Mbit/s with a window of 20 packets of which `free_slots` are free.
pub(super) fn view(id: u8, rtt_ms: u64, free_slots: u64) -> PathView {
    let rtt = Duration::from_millis(rtt_ms);
    PathView {
        id: PathId(id),
        config: PathConfig::default(),
        srtt: rtt,
        rttvar: rtt / 10,
        min_rtt: rtt,
        owd_relative: Duration::ZERO,
        cwnd: 20 * SLOT_BYTES,
        in_flight: (20 - free_slots) * SLOT_BYTES,
        queued: 0,
        free: free_slots * SLOT_BYTES,
        next_credit: None,
        rate: Rate::from_bits_per_sec(8_000_000),
        payload_max: 1_400,
        loss: 0.0,
    }
}
