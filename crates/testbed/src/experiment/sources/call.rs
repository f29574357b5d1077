//! A call: small packets at a steady pace, both ways, with one-way delays on the common clock.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use ropewalk_plan::{Distribution, TrafficReport};

use super::{Outcome, Source, Stage, sleep_until};
use crate::traffic::Direction;
use crate::traffic::probe::{Probe, ProbeLog, ProbeSpec};

use super::super::Window;

/// One `[[traffic]]` section of kind `call`.
#[derive(Debug)]
pub(super) struct Call {
    stage: Stage,
    interval: Duration,
    bytes: usize,
    deadline: Duration,
}

impl Call {
    pub(super) fn prepare(
        stage: &Stage,
        interval: Duration,
        bytes: u32,
        deadline: Duration,
    ) -> Self {
        Self {
            stage: stage.clone(),
            interval,
            bytes: bytes as usize,
            deadline,
        }
    }

    /// One direction from the beginning to the end of the plan.
    fn stream(&self, direction: Direction, begin: Instant) -> Result<ProbeLog> {
        let spec = ProbeSpec {
            direction,
            interval: self.interval,
            size: self.bytes,
        };
        let probe = Probe::start(&self.stage.ends, &spec)?;
        sleep_until(begin, self.stage.window.to);
        probe.finish()
    }
}

impl Source for Call {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let logs = std::thread::scope(|scope| {
            let threads = [Direction::Download, Direction::Upload].map(|direction| {
                let call = &self;
                scope.spawn(move || call.stream(direction, begin))
            });
            threads.map(|thread| {
                let joined = thread.join();
                joined.unwrap_or_else(|_| Err(anyhow!("a stream panicked")))
            })
        });
        let [down, up] = logs;
        let mut tally = Tally::default();
        for log in [down?, up?] {
            tally.add(&log, begin, self.interval, self.deadline, self.stage.window);
        }
        Ok(Outcome {
            report: tally.report(),
            notes: Vec::new(),
        })
    }
}

/// What both directions saw in the counted time.
#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    in_time: u64,
    delays_ms: Vec<f64>,
}

impl Tally {
    /// Packet `n` (from 0) was due `n` intervals after the first; the first was sent when the
    /// stream was open, which the first arrival tells best.
    fn add(
        &mut self,
        log: &ProbeLog,
        begin: Instant,
        interval: Duration,
        deadline: Duration,
        window: Window,
    ) {
        let Some(opened) = log.begin else { return };
        let opened = opened.saturating_duration_since(begin);
        let Some(first) = log.arrivals.first() else {
            return;
        };
        let number = |sequence: u64| u32::try_from(sequence).unwrap_or(u32::MAX);
        let zero =
            (opened + first.sent).saturating_sub(interval.saturating_mul(number(first.sequence)));
        let counted = |sequence| window.contains(zero + interval.saturating_mul(number(sequence)));
        self.sent += (0..log.sent).filter(|&sequence| counted(sequence)).count() as u64;
        let mut seen = vec![false; usize::try_from(log.sent).unwrap_or(0)];
        for arrival in &log.arrivals {
            let index = usize::try_from(arrival.sequence).unwrap_or(usize::MAX);
            let Some(slot) = seen.get_mut(index) else {
                continue;
            };
            if std::mem::replace(slot, true) || !counted(arrival.sequence) {
                continue;
            }
            let delay = arrival.arrived.saturating_sub(arrival.sent);
            self.in_time += u64::from(delay <= deadline);
            self.delays_ms.push(delay.as_secs_f64() * 1e3);
        }
    }

    fn report(&self) -> TrafficReport {
        #[expect(
            clippy::cast_precision_loss,
            reason = "packets of a run are below 2^53"
        )]
        let share = self.in_time as f64 / self.sent.max(1) as f64;
        TrafficReport {
            kind: "call".into(),
            delay_ms: Some(Distribution::of(&self.delays_ms)),
            sent: Some(self.sent),
            lost: Some(self.sent.saturating_sub(self.delays_ms.len() as u64)),
            in_time: Some(share),
            ..TrafficReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::probe::Arrival;

    #[test]
    fn only_packets_sent_in_the_window_count_and_copies_do_not() {
        let ms = Duration::from_millis;
        let arrival = |sequence, delay| Arrival {
            sequence,
            sent: ms(100 + 20 * sequence),
            arrived: ms(100 + 20 * sequence + delay),
        };
        let begin = Instant::now();
        let log = ProbeLog {
            begin: Some(begin + ms(400)),
            sent: 60,
            arrivals: vec![
                arrival(1, 10),
                arrival(30, 10),
                arrival(30, 90),
                arrival(32, 200),
            ],
            ..ProbeLog::default()
        };
        let mut tally = Tally::default();
        let window = Window {
            from: ms(1_000),
            to: ms(1_400),
        };
        tally.add(&log, begin, ms(20), ms(150), window);
        // Packet 0 left at 500 ms, packets 25 to 44 in the window.
        let report = tally.report();
        assert_eq!((report.sent, report.lost), (Some(20), Some(18)));
        assert_eq!(report.delay_ms.map(|d| d.count), Some(2));
        assert_eq!(report.in_time, Some(0.05));
    }
}
