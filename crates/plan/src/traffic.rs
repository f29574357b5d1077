//! What is sent.

use ropewalk_netem::DirectionPlan;
use ropewalk_types::Duration;
use serde::{Deserialize, Serialize};

/// Which way the data goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Towards the site.
    #[default]
    Down,
    /// From the site.
    Up,
}

/// Congestion control of the sender's host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// RFC 5681 and RFC 6582; `reno` on Linux. Also read as `newreno`, its name in configurations.
    #[serde(alias = "newreno")]
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
    /// Bottleneck bandwidth and round-trip time, version 1.
    Bbr,
}

/// One kind of traffic; several run at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Bulk TCP connections with always something to send.
    Tcp {
        /// Connections, 1 to 1,000.
        #[serde(default = "one")]
        flows: u32,
        /// Congestion control of the sender.
        #[serde(default)]
        congestion: Congestion,
        /// Which way the data goes.
        #[serde(default)]
        direction: Direction,
        /// When it starts, after the start of the plan.
        #[serde(default, with = "crate::duration")]
        start: Duration,
        /// Bytes of data in a segment at most, 100 to 1,448; what the carrier allows unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        segment: Option<u32>,
        /// The receiver's window is at most about so many bytes, 4,096 to 16,000,000; 6 MiB in the
        /// simulator, and the kernel's own choice there, unless given. With a window, pauses are
        /// reported to the millisecond, and the kernel compares the payload byte by byte.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<u32>,
        /// `relay`, `chain` and `tcp-nc` only: hosts without TCP options, that is without selective
        /// acknowledgements, timestamps and window scaling. For `new-reno` only. The simulator has the delayed acknowledgements of ns-3 then.
        #[serde(default, skip_serializing_if = "is_false")]
        plain: bool,
        /// Simulator only: a segment is lost once so many segments beyond have arrived (RFC 6675), 1 to
        /// 100, instead of by time (RFC 8985).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duplicates: Option<u32>,
        /// `relay`, `chain` and `tcp-nc` only: the gateway that the host of the site's side is at. 1 is the
        /// site, 2 the next towards the server.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        enter: u32,
        /// `relay`, `chain` and `tcp-nc` only: the link between that host and its gateway, equal in both
        /// directions. None unless given.
        #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
        access: Box<DirectionPlan>,
        /// Name of a path or link: the connections go from hosts of their own at the site's end of
        /// that link to the server, beside the carrier. Through the carrier unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<String>,
        /// With `beside` and the carrier `tunnel` only: the hosts are behind a site of their own at that
        /// end, whose tunnel goes over that link to the same hub, with the carrier's settings.
        #[serde(default, skip_serializing_if = "is_false")]
        tunnel: bool,
        /// When it stops, after the start of the plan; at the plan's end unless given.
        #[serde(
            default,
            with = "crate::optional_duration",
            skip_serializing_if = "Option::is_none"
        )]
        until: Option<Duration>,
        /// Whether the connections use ECN (RFC 3168).
        #[serde(default, skip_serializing_if = "is_false")]
        ecn: bool,
    },
    /// Bulk QUIC connections, as an HTTP/3 download: a packet counts as lost once a packet this
    /// many numbers later was acknowledged (RFC 9002 §6.1.1).
    Quic {
        /// Connections, 1 to 1,000.
        #[serde(default = "one")]
        flows: u32,
        /// Congestion control of the sender.
        #[serde(default)]
        congestion: Congestion,
        /// Which way the data goes.
        #[serde(default)]
        direction: Direction,
        /// When it starts, after the start of the plan.
        #[serde(default, with = "crate::duration")]
        start: Duration,
        /// kPacketThreshold of the sender.
        #[serde(default = "three")]
        packet_threshold: u32,
    },
    /// Echo requests from the site to the server.
    Ping {
        /// Time between two requests, at least 10 ms.
        #[serde(default = "ping_interval", with = "crate::duration")]
        interval: Duration,
    },
    /// A call: one small packet after the other, both ways.
    Call {
        /// Time between two packets of one direction, at least 1 ms.
        #[serde(default = "call_interval", with = "crate::duration")]
        interval: Duration,
        /// Bytes of each packet's payload, 32 to 1,200.
        #[serde(default = "call_bytes")]
        bytes: u32,
        /// A packet is in time when its one-way delay is at most this.
        #[serde(default = "call_deadline", with = "crate::duration")]
        deadline: Duration,
    },
    /// Page loads one after the other: each fetches objects over a few connections.
    Web {
        /// Users loading pages at the same time, 1 to 100.
        #[serde(default = "one")]
        users: u32,
        /// Mean objects per page; the distribution has a long tail.
        #[serde(default = "web_objects")]
        objects: u32,
        /// Thinking time between two pages.
        #[serde(default = "web_pause", with = "crate::duration")]
        pause: Duration,
    },
}

impl Traffic {
    /// The name of the kind, as in plans.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Quic { .. } => "quic",
            Self::Ping { .. } => "ping",
            Self::Call { .. } => "call",
            Self::Web { .. } => "web",
        }
    }

    /// Checks ranges; on failure the key and what to do.
    pub(crate) fn check(&self, duration: Duration) -> Result<(), (&'static str, String)> {
        match *self {
            Self::Tcp { .. } => self.check_tcp(duration),
            Self::Quic {
                flows,
                start,
                packet_threshold,
                ..
            } => {
                count("flows", flows, FLOWS_MAX)?;
                count("packet_threshold", packet_threshold, 1_000)?;
                check_start(start, duration)
            }
            Self::Ping { interval } => at_least("interval", interval, Duration::from_millis(10)),
            Self::Call {
                interval, bytes, ..
            } => {
                if !(32..=1_200).contains(&bytes) {
                    return Err(("bytes", "use 32 to 1200".into()));
                }
                at_least("interval", interval, Duration::from_millis(1))
            }
            Self::Web { users, objects, .. } => {
                count("users", users, 100)?;
                count("objects", objects, 1_000)
            }
        }
    }

    fn check_tcp(&self, duration: Duration) -> Result<(), (&'static str, String)> {
        let Self::Tcp {
            flows,
            start,
            segment,
            window,
            plain,
            congestion,
            duplicates,
            until,
            ecn,
            ..
        } = *self
        else {
            return Ok(());
        };
        if plain && congestion != Congestion::NewReno {
            return Err(("plain", "is for `congestion = \"new-reno\"` only".into()));
        }
        if plain && ecn {
            return Err((
                "ecn",
                "hosts with `plain` have no options: leave it out".into(),
            ));
        }
        count("flows", flows, FLOWS_MAX)?;
        if let Some(segments) = duplicates {
            count("duplicates", segments, DUPLICATES_MAX)?;
        }
        check_until(start, until, duration)?;
        if window.is_some_and(|bytes| !(WINDOW_MIN..=WINDOW_MAX).contains(&bytes)) {
            return Err(("window", format!("use {WINDOW_MIN} to {WINDOW_MAX}")));
        }
        if segment.is_some_and(|bytes| !(SEGMENT_MIN..=SEGMENT_MAX).contains(&bytes)) {
            return Err(("segment", format!("use {SEGMENT_MIN} to {SEGMENT_MAX}")));
        }
        check_start(start, duration)
    }
}

fn count(key: &'static str, value: u32, max: u32) -> Result<(), (&'static str, String)> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err((key, format!("use 1 to {max}")))
    }
}

fn check_start(start: Duration, end: Duration) -> Result<(), (&'static str, String)> {
    if start < end {
        Ok(())
    } else {
        Err(("start", "must be before the end of the plan".into()))
    }
}

fn check_until(
    start: Duration,
    until: Option<Duration>,
    end: Duration,
) -> Result<(), (&'static str, String)> {
    if until.is_some_and(|until| until <= start || until > end) {
        return Err(("until", "must be after `start` and within the plan".into()));
    }
    Ok(())
}

fn at_least(
    key: &'static str,
    value: Duration,
    least: Duration,
) -> Result<(), (&'static str, String)> {
    if value >= least {
        Ok(())
    } else {
        Err((key, format!("use at least {} ms", least.as_millis())))
    }
}

const FLOWS_MAX: u32 = 1_000;
const SEGMENT_MIN: u32 = 100;
/// Most segments beyond a lost one that its sender may wait for.
const DUPLICATES_MAX: u32 = 100;
/// Receive windows that the kernel can be made to keep to.
const WINDOW_MIN: u32 = 4_096;
const WINDOW_MAX: u32 = 16_000_000;
/// Most data of a TCP segment in a packet of 1,500 bytes, with timestamps.
pub const SEGMENT_MAX: u32 = 1_448;

const fn one() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_one(value: &u32) -> bool {
    *value == 1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_false(value: &bool) -> bool {
    !*value
}

const fn three() -> u32 {
    3
}

const fn ping_interval() -> Duration {
    Duration::from_millis(100)
}

const fn call_interval() -> Duration {
    Duration::from_millis(20)
}

const fn call_bytes() -> u32 {
    160
}

const fn call_deadline() -> Duration {
    Duration::from_millis(150)
}

const fn web_objects() -> u32 {
    42
}

const fn web_pause() -> Duration {
    Duration::from_secs(1)
}
