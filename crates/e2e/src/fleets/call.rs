//! A call and downloads through a fleet, and for how long the call was silent.

use std::time::Duration;

use anyhow::Result;
use ropewalk_testbed::statistics::{Summary, summarize};
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeLog, ProbeSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use serde::Serialize;

/// Longest time of the traffic of a trial: whoever forgets to end it does not keep a machine busy.
const LONGEST: Duration = Duration::from_secs(4 * 3_600);
/// Downloads beside the call.
const DOWNLOADS: usize = 2;

/// 50 packets a second each way, and downloads of the kernel's TCP.
#[derive(Debug)]
pub struct Traffic {
    down: Probe,
    up: Probe,
    bulk: Bulk,
}

/// A time of a call, by the clocks of both directions.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    down: Duration,
    up: Duration,
}

/// What became of the traffic.
#[derive(Debug)]
pub struct Heard {
    down: ProbeLog,
    up: ProbeLog,
    /// Why connections broke.
    pub broken: Vec<String>,
    /// Of all downloads, Mbit/s.
    pub goodput_mbit: f64,
}

/// Silences of a call, milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Silences {
    /// Figures of the longer direction of each.
    pub gap_ms: Summary,
    /// Every silence towards the site in order.
    pub down_ms: Vec<f64>,
    /// Every silence from the site in order.
    pub up_ms: Vec<f64>,
    /// Longest pause of the senders themselves: the machine's share.
    pub sender_gap_ms: f64,
}

impl Traffic {
    /// Begins, and waits until packets pass both ways.
    ///
    /// # Errors
    /// Nothing passes.
    pub fn start(ends: &Endpoints) -> Result<Self> {
        let call = |direction| ProbeSpec {
            direction,
            ..ProbeSpec::call()
        };
        Ok(Self {
            down: Probe::start(ends, &call(Direction::Download))?,
            up: Probe::start(ends, &call(Direction::Upload))?,
            bulk: Bulk::start(ends, &BulkSpec::download(DOWNLOADS, LONGEST))?,
        })
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment {
            down: self.down.elapsed(),
            up: self.up.elapsed(),
        }
    }

    /// Bytes of the downloads so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.bulk.received()
    }

    /// Ends.
    ///
    /// # Errors
    /// A socket has failed.
    pub fn finish(self) -> Result<Heard> {
        let (down, up) = (self.down.finish()?, self.up.finish()?);
        let report = self.bulk.stop()?;
        let broken = report.flows.iter().filter_map(|flow| flow.broken.clone());
        Ok(Heard {
            down,
            up,
            broken: broken.collect(),
            goodput_mbit: report.goodput_mbit,
        })
    }
}

impl Heard {
    /// The longest silence of the longer direction in this time.
    #[must_use]
    pub fn gap(&self, (from, to): (Moment, Moment)) -> Duration {
        let down = self.down.longest_gap(from.down, to.down);
        down.max(self.up.longest_gap(from.up, to.up))
    }

    /// The longest silence in each of these times.
    #[must_use]
    pub fn silences(&self, times: &[(Moment, Moment)]) -> Silences {
        let of = |log: &ProbeLog, clock: fn(&Moment) -> Duration| -> Vec<f64> {
            let gaps = times.iter();
            gaps.map(|(from, to)| ms(log.longest_gap(clock(from), clock(to))))
                .collect()
        };
        let (down_ms, up_ms) = (
            of(&self.down, |moment| moment.down),
            of(&self.up, |moment| moment.up),
        );
        let longer = down_ms.iter().zip(&up_ms).map(|(down, up)| down.max(*up));
        Silences {
            gap_ms: summarize(longer),
            down_ms,
            up_ms,
            sender_gap_ms: ms(self.down.sender_gap.max(self.up.sender_gap)),
        }
    }
}

/// Milliseconds.
#[must_use]
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
