//! HTMT as its paper writes it: for comparison.
//!
//! Source: Sailer and Hähner, "HTMT: High-throughput multipath tunnelling for asymmetric paths",
//! section IV and algorithm 1. A flow's entry holds the path and the time of its newest packet.
//! `δ` is the time since then. A path with a free slot is applicable when `srtt + δ > srtt_last`.
//! The applicable path with the largest `ln(free) / srtt` carries the packet. Without an applicable
//! path the packet waits until a path becomes applicable. A flow without an entry may take any path
//! with a free slot.
//!
//! `δ` and `srtt` have the same unit here. `htmt_prototype` mixes milliseconds and microseconds, as
//! the authors' program does. The test is strict, as in the paper: two packets of a flow at the
//! same instant never share a path. `ln(1) = 0` is a maximum like any other, so one free slot is
//! enough.
//!
//! Left open by the paper, and decided here: ties go to the first path, other flows do not wait for
//! a flow that waits, an entry never expires, and a wait lasts at least 100 µs (`WAIT_MIN`).

use super::{Decision, FLOW_BUCKETS, Head, Policy, has_room, send, wake_at};
use crate::path::{PathView, SLOT_BYTES};
use ropewalk_types::{Duration, Instant, PathId};

/// Flow table: path and time of the newest packet.
#[derive(Debug)]
pub(super) struct HtmtPaper {
    flows: Box<[Option<(PathId, Instant)>]>,
}

impl Default for HtmtPaper {
    fn default() -> Self {
        Self {
            flows: vec![None; FLOW_BUCKETS].into_boxed_slice(),
        }
    }
}

impl HtmtPaper {
    /// The time after which a path of round-trip time `srtt` is applicable; `None`: at any time.
    fn after(&self, flow: u16, srtt: Duration, paths: &[PathView]) -> Option<Instant> {
        let (last, at) = (*self.flows.get(usize::from(flow))?)?;
        let last = paths.iter().find(|path| path.id == last)?;
        Some(at + last.srtt.saturating_sub(srtt)).filter(|_| last.srtt >= srtt)
    }
}

impl Policy for HtmtPaper {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let (mut best, mut wake) = (None::<(&PathView, f64)>, None::<Instant>);
        for path in paths {
            if slots(path) == 0 || !has_room(path, head) {
                continue;
            }
            match self.after(head.flow, path.srtt, paths) {
                Some(at) if at >= now => {
                    wake = Some(wake.map_or(at, |wake| wake.min(at)));
                }
                _ => {
                    let weight = weighted_slots(path);
                    if best.is_none_or(|(_, other)| weight > other) {
                        best = Some((path, weight));
                    }
                }
            }
        }
        match (best, wake) {
            (Some((path, _)), _) => send(path),
            (None, Some(at)) => Decision::WaitFlow(Some(wake_at(now, at))),
            (None, None) => Decision::WaitAll,
        }
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if let Some(entry) = self.flows.get_mut(usize::from(head.flow)) {
            *entry = Some((path.id, now));
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        for entry in &mut self.flows {
            *entry = entry.filter(|(last, _)| *last != path);
        }
    }

    fn reason(&self) -> String {
        "largest ln(free slots)/RTT among the paths that the paper's test lets pass".into()
    }
}

/// `s_free`: `cwnd − inflight` in packets; what is queued counts as in flight.
fn slots(path: &PathView) -> u64 {
    path.cwnd.saturating_sub(path.in_flight + path.queued) / SLOT_BYTES
}

/// Line 2 of algorithm 1.
#[expect(clippy::cast_precision_loss, reason = "slots are far below 2^53")]
fn weighted_slots(path: &PathView) -> f64 {
    (slots(path) as f64).ln() / path.srtt.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    fn waits_until(decision: Decision) -> Instant {
        let Decision::WaitFlow(Some(at)) = decision else {
            panic!("{decision:?}")
        };
        at
    }

    #[test]
    fn a_new_flow_takes_the_largest_weight() {
        let mut htmt = HtmtPaper::default();
        // ln 2 / 50 ms = 13.9, ln 9 / 70 ms = 31.4
        let paths = [view(0, 50, 2), view(1, 70, 9)];
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
    }

    #[test]
    fn twenty_milliseconds_pass_for_twenty_milliseconds() {
        let mut htmt = HtmtPaper::default();
        let paths = [view(0, 50, 9), view(1, 70, 0)];
        htmt.on_sent(Instant::ZERO, &head(0), &paths[1]);
        let at = waits_until(htmt.pick(Instant::from_millis(1), &head(0), &paths));
        assert!(at >= Instant::from_millis(20), "{at:?}");
        let equal = Instant::from_millis(20);
        assert!(waits_until(htmt.pick(equal, &head(0), &paths)) > equal);
        let later = equal + Duration::from_nanos(1);
        assert_eq!(htmt.pick(later, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn the_slower_path_is_always_applicable_and_the_same_one_after_any_time() {
        let mut htmt = HtmtPaper::default();
        let paths = [view(0, 50, 9), view(1, 70, 9)];
        htmt.on_sent(Instant::ZERO, &head(0), &paths[0]);
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
        let fast_only = &paths[..1];
        waits_until(htmt.pick(Instant::ZERO, &head(0), fast_only));
        let later = Instant::from_nanos(1);
        assert_eq!(htmt.pick(later, &head(0), fast_only), send(&paths[0]));
    }

    #[test]
    fn one_free_slot_each_blocks_nothing() {
        let mut htmt = HtmtPaper::default();
        let paths = [view(0, 50, 1), view(1, 70, 1)];
        assert_eq!(htmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn a_flow_that_waits_holds_back_no_other() {
        let mut htmt = HtmtPaper::default();
        let paths = [view(0, 50, 9), view(1, 70, 0)];
        htmt.on_sent(Instant::ZERO, &head(0), &paths[1]);
        waits_until(htmt.pick(Instant::ZERO, &head(0), &paths));
        assert_eq!(htmt.pick(Instant::ZERO, &head(1), &paths), send(&paths[0]));
    }
}
