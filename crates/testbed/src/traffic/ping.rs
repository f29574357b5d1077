//! A series of pings with `ping`: round-trip times and loss.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::namespace::Namespace;
use crate::process::Process;
use crate::statistics::{Summary, summarize};

/// A running series.
#[derive(Debug)]
pub struct Ping {
    process: Process,
}

/// What to send.
#[derive(Clone, Debug)]
pub struct PingSpec {
    /// Whom to ask.
    pub target: IpAddr,
    /// Time between requests, 2 ms or more.
    pub interval: Duration,
    /// Payload bytes.
    pub size: usize,
    /// Interface to send through, if not left to routing.
    pub device: Option<String>,
    /// Largest number of requests.
    pub count: u32,
}

/// What came back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Answers beyond the first.
    pub duplicates: u64,
    /// Round-trip times, milliseconds.
    pub rtt_ms: Summary,
    /// First answers in the order they came.
    #[serde(skip)]
    pub replies: Vec<Reply>,
}

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reply {
    /// Number of the request, from 1.
    pub sequence: u64,
    /// Round-trip time, milliseconds.
    pub rtt_ms: f64,
}

impl PingSpec {
    /// 56 bytes every 100 ms until stopped.
    #[must_use]
    pub fn new(target: IpAddr) -> Self {
        let interval = Duration::from_millis(100);
        Self {
            target,
            interval,
            size: 56,
            device: None,
            count: 100_000,
        }
    }
}

impl PingReport {
    /// Share of requests without an answer, `0.0..=1.0`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
    pub fn loss(&self) -> f64 {
        if self.sent == 0 {
            1.0
        } else {
            1.0 - self.received as f64 / self.sent as f64
        }
    }
}

impl Ping {
    /// Starts a series; `directory` holds its output.
    ///
    /// # Errors
    /// If `ping` cannot be started.
    pub fn start(from: &Namespace, spec: &PingSpec, directory: &Path, name: &str) -> Result<Self> {
        let interval = format!("{:.3}", spec.interval.as_secs_f64());
        let mut program = from
            .program("ping")
            .args(["-n", "-W", "2", "-i", &interval]);
        program = program.args(["-c", &spec.count.to_string(), "-s", &spec.size.to_string()]);
        if let Some(device) = &spec.device {
            program = program.args(["-I", device]);
        }
        let program = program.arg(spec.target.to_string());
        Ok(Self {
            process: program.start(directory, name)?,
        })
    }

    /// Ends the series and reads it.
    ///
    /// # Errors
    /// If `ping` printed no summary.
    pub fn finish(mut self) -> Result<PingReport> {
        self.process.stop();
        parse(&self.process.output())
            .with_context(|| format!("ping said no summary: {}", self.process.log_tail()))
    }

    /// Waits `limit` for answers still to come, ends the series and reads it.
    ///
    /// # Errors
    /// If `ping` printed no summary.
    pub fn finish_within(mut self, limit: Duration) -> Result<PingReport> {
        self.process.wait(limit)?;
        self.finish()
    }

    /// Waits until all requests are answered or given up, and reads the series.
    ///
    /// # Errors
    /// If it takes longer than `limit`, or `ping` printed no summary.
    pub fn wait(mut self, limit: Duration) -> Result<PingReport> {
        self.process
            .wait(limit)?
            .context("ping did not end in time")?;
        self.finish()
    }
}

/// Sends `count` pings and waits for them.
///
/// # Errors
/// If `ping` cannot be run.
pub fn run(from: &Namespace, spec: &PingSpec) -> Result<PingReport> {
    let directory = tempfile::tempdir()?;
    let limit = spec.interval * spec.count + Duration::from_secs(15);
    Ping::start(from, spec, directory.path(), "ping")?.wait(limit)
}

/// Whether one request is answered within [`ANSWER_LIMIT`].
///
/// # Errors
/// If `ping` cannot be run.
pub fn answers(from: &Namespace, spec: &PingSpec) -> Result<bool> {
    let seconds = ANSWER_LIMIT.as_secs_f64().to_string();
    let program = from.program("ping").args(["-n", "-c", "1", "-W", &seconds]);
    let program = program.arg(spec.target.to_string());
    Ok(program.run(ANSWER_LIMIT * 10)?.status.success())
}

/// How long [`answers`] waits.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Reads the output of `ping`; `None` without a summary line.
fn parse(text: &str) -> Option<PingReport> {
    let summary = text
        .lines()
        .find(|line| line.contains("packets transmitted"))?;
    let number_before = |what: &str| {
        let words: Vec<&str> = summary.split_whitespace().collect();
        let at = words
            .iter()
            .position(|word| word.trim_end_matches(',') == what)?;
        words[..at]
            .iter()
            .rev()
            .find_map(|word| word.parse::<u64>().ok())
    };
    let replies = replies(text);
    Some(PingReport {
        sent: number_before("transmitted")?,
        received: number_before("received")?,
        duplicates: text.lines().filter(|line| line.contains("(DUP!)")).count() as u64,
        rtt_ms: summarize(replies.iter().map(|reply| reply.rtt_ms)),
        replies,
    })
}

/// First answers. `ping` prints the low 16 bits of the number.
fn replies(text: &str) -> Vec<Reply> {
    let mut highest = 0;
    let lines = text.lines().filter(|line| !line.contains("(DUP!)"));
    let replies = lines.filter_map(|line| {
        let field = |key: &str| line.split_once(key)?.1.split_whitespace().next();
        let low: u64 = field("icmp_seq=")?.parse().ok()?;
        let rtt_ms = field("time=")?.parse().ok()?;
        let mut sequence = (highest & !LOW_BITS) + low;
        if sequence + LOW_BITS / 2 < highest {
            sequence += LOW_BITS + 1;
        }
        highest = highest.max(sequence);
        Some(Reply { sequence, rtt_ms })
    });
    replies.collect()
}

const LOW_BITS: u64 = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_ping_is_read() {
        let text = "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n\
            64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=10.0 ms\n\
            64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=99.0 ms (DUP!)\n\
            64 bytes from 10.0.0.1: icmp_seq=3 ttl=64 time=30.0 ms\n\n\
            --- 10.0.0.1 ping statistics ---\n\
            3 packets transmitted, 2 received, +1 duplicates, 33% packet loss, time 400ms\n\
            rtt min/avg/max/mdev = 10.0/20.0/30.0/0.2 ms\n";
        let report = parse(text).unwrap();
        assert_eq!((report.sent, report.received, report.duplicates), (3, 2, 1));
        assert_eq!((report.rtt_ms.mean, report.rtt_ms.max), (20.0, 30.0));
        assert!((report.loss() - 1.0 / 3.0).abs() < 1e-9);
        assert!(parse("ping: connect: Network is unreachable").is_none());
    }
}
