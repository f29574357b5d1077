//! Echo requests by `ping`, from the site to the server.

use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_plan::{Distribution, TrafficReport};

use super::{Outcome, Source, Stage, sleep_until};
use crate::traffic::ping::{Ping, PingSpec, Reply};

use super::super::Window;

/// A series to be sent.
#[derive(Debug)]
pub(super) struct Pings {
    stage: Stage,
    interval: Duration,
    name: String,
}

impl Pings {
    pub(super) fn prepare(stage: &Stage, index: usize, interval: Duration) -> Self {
        Self {
            stage: stage.clone(),
            interval,
            name: format!("ping-{index}"),
        }
    }
}

impl Source for Pings {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let (stage, interval) = (&self.stage, self.interval);
        let count = stage.window.to.as_nanos().div_ceil(interval.as_nanos());
        let spec = PingSpec {
            interval,
            count: u32::try_from(count)?,
            device: stage.ends.device.clone(),
            ..PingSpec::new(stage.ends.server_address)
        };
        let ping = Ping::start(&stage.ends.client, &spec, &stage.directory, &self.name)?;
        sleep_until(begin, stage.window.to);
        let report = ping.finish_within(DRAIN)?;
        Ok(Outcome {
            report: report_of(&report.replies, report.sent, interval, stage.window),
            notes: Vec::new(),
        })
    }
}

/// Request `n` (from 1) leaves `n - 1` intervals after the beginning.
fn report_of(replies: &[Reply], sent: u64, interval: Duration, window: Window) -> TrafficReport {
    let counted = |sequence: u64| {
        let number = u32::try_from(sequence.saturating_sub(1)).unwrap_or(u32::MAX);
        window.contains(interval.saturating_mul(number))
    };
    let times: Vec<f64> = replies
        .iter()
        .filter(|reply| counted(reply.sequence))
        .map(|reply| reply.rtt_ms)
        .collect();
    let sent = (1..=sent).filter(|&sequence| counted(sequence)).count() as u64;
    TrafficReport {
        kind: "ping".into(),
        delay_ms: Some(Distribution::of(&times)),
        sent: Some(sent),
        lost: Some(sent.saturating_sub(times.len() as u64)),
        ..TrafficReport::default()
    }
}

/// How long answers may still come after the end.
const DRAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_sent_in_the_window_count() {
        let reply = |sequence, rtt_ms| Reply { sequence, rtt_ms };
        let replies = [reply(1, 900.0), reply(11, 10.0), reply(13, 30.0)];
        let window = Window {
            from: Duration::from_secs(1),
            to: Duration::from_secs(2),
        };
        let report = report_of(&replies, 20, Duration::from_millis(100), window);
        assert_eq!((report.sent, report.lost), (Some(10), Some(8)));
        assert_eq!(report.delay_ms.map(|d| (d.count, d.mean)), Some((2, 20.0)));
    }
}
