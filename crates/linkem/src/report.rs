//! What the program prints: one JSON object a line.

use std::path::Path;

use ropewalk_netem::{Counters, Side};
use ropewalk_types::Instant;
use serde::Serialize;

use crate::end::EndReport;
use crate::engine::Engine;

/// Printed when both interfaces are up.
#[derive(Debug, Serialize)]
pub(crate) struct Ready<'a> {
    pub(crate) ready: bool,
    pub(crate) pid: u32,
    pub(crate) a: EndReport<'a>,
    pub(crate) b: EndReport<'a>,
    pub(crate) mtu: u32,
    pub(crate) seed: u64,
    pub(crate) control: Option<&'a Path>,
}

/// Counters so far; printed at the end.
#[derive(Debug, Serialize)]
pub(crate) struct Stats<'a> {
    /// Seconds since the start of the link.
    uptime_s: f64,
    /// Processor time this program used, in seconds; delivering a frame includes what the
    /// receiving side's network stack does with it.
    cpu_s: f64,
    /// How often it slept.
    wake_ups: u64,
    a: EndReport<'a>,
    b: EndReport<'a>,
    /// From A to B.
    up: Counters,
    /// From B to A.
    down: Counters,
}

impl<'a> Stats<'a> {
    /// Counters at the time `now`.
    pub(crate) fn collect(engine: &'a mut Engine, now: Instant) -> Self {
        engine.link_mut().advance(now);
        let engine = &*engine;
        Self {
            uptime_s: now.since(Instant::ZERO).as_secs_f64(),
            cpu_s: cpu_seconds(),
            wake_ups: engine.wake_ups(),
            a: engine.ends()[0].report(),
            b: engine.ends()[1].report(),
            up: engine.link().counters(Side::Up),
            down: engine.link().counters(Side::Down),
        }
    }
}

/// Processor time of the calling thread, which carries the link.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    #[expect(
        clippy::cast_precision_loss,
        reason = "processor seconds stay far below 2^53"
    )]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    seconds
}
