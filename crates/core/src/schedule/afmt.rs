//! AFMT: of the paths on which a packet overtakes none of its flow, the one with the smallest
//! product of buffer fill and round-trip time.
//!
//! Source: Sailer and Hähner, "An adaptive flow-aware packet scheduling algorithm for multipath
//! tunnelling" (LCN 2019), in the form of its authors' public prototype. Applicable are the path of
//! the flow's last packet and every path with `srtt + δ ≥ srtt_last`, where `δ` is the time since
//! that packet. The applicable path with the smallest `((fill² + packet) / rate) · srtt` wins.
//! `fill` is what the send buffer of the sub-tunnel holds, unacknowledged bytes included.
//!
//! In a tunnel with send buffers the rule is that of the authors' HTMT experiments: `fill` is what is
//! not sent yet, and `rate` is the congestion window. A DCCP socket does not tell more.
//!
//! Deviation where packets are bound late: the published form lacks a window gate, and packets are lost where a send buffer
//! overflows. Here a packet waits at the ingress for a full path, at most one round trip of that
//! path. So the schedulers of the tunnel never drop packets.

use super::{Decision, FLOW_BUCKETS, Head, Policy, has_room, send};
use crate::path::PathView;
use ropewalk_types::{Duration, Instant, PathId};

#[derive(Clone, Copy, Debug)]
struct Last {
    path: PathId,
    at: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct AfmtFlow {
    last: Option<Last>,
    waiting_since: Option<Instant>,
}

/// Last path and time per flow.
#[derive(Debug)]
pub(super) struct Afmt {
    flows: Box<[AfmtFlow]>,
    /// The tunnel has send buffers.
    buffered: bool,
}

impl Default for Afmt {
    fn default() -> Self {
        Self {
            flows: vec![AfmtFlow::default(); FLOW_BUCKETS].into_boxed_slice(),
            buffered: false,
        }
    }
}

impl Policy for Afmt {
    fn pick(&mut self, now: Instant, head: &Head, paths: &[PathView]) -> Decision {
        let buffered = self.buffered;
        let Some(flow) = self.flows.get_mut(usize::from(head.flow)) else {
            return Decision::WaitAll;
        };
        let last = flow.last.and_then(|last| {
            let srtt = paths.iter().find(|path| path.id == last.path)?.srtt;
            Some((last, srtt))
        });
        let applicable = |path: &&PathView| {
            last.is_none_or(|(last, srtt)| {
                path.id == last.path || path.srtt + now.since(last.at) >= srtt
            })
        };
        let by_cost = |a: &&PathView, b: &&PathView| {
            cost(a, head, buffered)
                .total_cmp(&cost(b, head, buffered))
                .then(a.id.cmp(&b.id))
        };
        let Some(best) = paths.iter().filter(applicable).min_by(by_cost) else {
            return Decision::WaitAll;
        };
        if has_room(best, head) {
            return send(best);
        }
        let since = *flow.waiting_since.get_or_insert(now);
        if now.since(since) < best.srtt {
            return Decision::WaitFlow(Some(since + best.srtt));
        }
        let room = paths.iter().filter(|path| has_room(path, head));
        room.min_by(by_cost).map_or(Decision::WaitAll, send)
    }

    fn fills_buffers(&self) -> bool {
        true
    }

    fn on_send_buffers(&mut self) {
        self.buffered = true;
    }

    fn on_sent(&mut self, now: Instant, head: &Head, path: &PathView) {
        if let Some(flow) = self.flows.get_mut(usize::from(head.flow)) {
            flow.last = Some(Last {
                path: path.id,
                at: now,
            });
            flow.waiting_since = None;
        }
    }

    fn on_flow_idle(&mut self, flow: u16) {
        if let Some(flow) = self.flows.get_mut(usize::from(flow)) {
            flow.waiting_since = None;
        }
    }

    fn on_path_removed(&mut self, path: PathId) {
        for flow in &mut self.flows {
            flow.last = flow.last.filter(|last| last.path != path);
        }
    }

    fn reason(&self) -> String {
        "smallest buffer fill times round-trip time where the flow overtakes nothing".into()
    }
}

/// What the rule minimises; the unit is of no meaning.
#[expect(
    clippy::cast_precision_loss,
    reason = "byte counts and rates are far below 2^53"
)]
fn cost(path: &PathView, head: &Head, buffered: bool) -> f64 {
    let (fill, rate) = if buffered {
        (path.queued, path.cwnd)
    } else {
        let rate = path.rate_or_window().bits_per_sec();
        (path.in_flight + path.queued, rate)
    };
    let (fill, rate) = (fill as f64, rate.max(1) as f64);
    let srtt = path.srtt.max(Duration::from_micros(1)).as_secs_f64();
    (fill * fill + head.bytes as f64) / rate * srtt
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{head, view};
    use super::*;

    #[test]
    fn the_emptier_path_wins() {
        let mut afmt = Afmt::default();
        let mut paths = [view(0, 50, 9), view(1, 70, 9)];
        paths[0].in_flight = 9_000;
        paths[1].in_flight = 0;
        assert_eq!(afmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
    }

    #[test]
    fn a_flow_does_not_leave_a_slow_path_before_the_difference_has_passed() {
        let mut afmt = Afmt::default();
        let mut paths = [view(0, 50, 9), view(1, 70, 9)];
        paths[0].in_flight = 0;
        paths[1].in_flight = 9_000;
        afmt.on_sent(Instant::ZERO, &head(0), &paths[1]);
        let early = Instant::from_millis(19);
        assert_eq!(afmt.pick(early, &head(0), &paths), send(&paths[1]));
        let late = Instant::from_millis(20);
        assert_eq!(afmt.pick(late, &head(0), &paths), send(&paths[0]));
    }

    #[test]
    fn the_wait_for_a_full_path_is_bounded() {
        let mut afmt = Afmt::default();
        let mut paths = [view(0, 50, 0), view(1, 70, 9)];
        paths[0].in_flight = 0;
        paths[1].in_flight = 9_000;
        let first = afmt.pick(Instant::ZERO, &head(0), &paths);
        assert_eq!(first, Decision::WaitFlow(Some(Instant::from_millis(50))));
        let later = Instant::from_millis(50);
        assert_eq!(afmt.pick(later, &head(0), &paths), send(&paths[1]));
    }

    #[test]
    fn with_send_buffers_only_what_is_not_sent_fills_them() {
        let mut afmt = Afmt::default();
        let mut paths = [view(0, 50, 0), view(1, 70, 9)];
        afmt.on_send_buffers();
        for path in &mut paths {
            path.free = u64::MAX;
        }
        assert_eq!(afmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[0]));
        paths[0].queued = 1_400;
        assert_eq!(afmt.pick(Instant::ZERO, &head(0), &paths), send(&paths[1]));
    }
}
