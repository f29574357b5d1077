//! What a gateway remembers: points of the last minutes, the last hour and the last day, what happened, and
//! what the words for each path need to know of its past.
//!
//! Sans-IO: the caller passes the time, the status, and the text of the file. Everything is bounded: three
//! rings of a fixed length, a fixed number of uplinks, of events, and of paths. Nothing here is on the way of
//! a packet: the gateway's control side takes a status once in a while.
//!
//! Times are seconds since 1970, because points outlive the process. A clock that is set back forgets the
//! points that now lie in the future. A clock that is set forward leaves a gap.

#![forbid(unsafe_code)]

mod events;
mod file;
mod recent;
mod ring;
mod spell;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use ropewalk_api::words;
use ropewalk_api::words::Lately;
use ropewalk_api::{Happened, History as Answer, Quota, Status, TunnelStatus};

pub use file::{BYTES_MAX, FileError};

use events::Events;
use recent::Recent;
use ring::{Point, Rate, Ring};
use usage::Usage;

/// Most uplinks whose points are kept: paths of a tunnel, and some that went away. More: memory.
pub const UPLINKS_MAX: usize = 20;

/// How far back points reach, and how far they are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// 300 points: of a site 5 minutes, of a hub 25.
    Minutes,
    /// 360 points 10 s apart.
    Hour,
    /// 288 points 5 min apart.
    Day,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "minutes" => Ok(Self::Minutes),
            "hour" => Ok(Self::Hour),
            "day" => Ok(Self::Day),
            other => Err(format!("there is no range {other:?}: minutes, hour or day")),
        }
    }
}

/// Points of [`Range::Minutes`], `Hour`, `Day`. More: longer ranges, memory: 16 bytes for each point and uplink.
const POINTS: [usize; 3] = [300, 360, 288];
/// Seconds between points of [`Range::Hour`] and `Day`.
const STEPS: [u32; 2] = [10, 300];
/// Samples that may be missing in a row until points are a gap. More: an engine that hangs shows later.
const LATE_STEPS: u64 = 5;
/// What stands for all sites of a hub.
const ALL_SITES: &str = "all sites";

/// What a gateway has uplinks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A site: the paths of its tunnel.
    Site,
    /// A hub or relay: none of its own. All its sites are remembered as one.
    Hub,
    /// `ropewalk balance`: those over which it spreads flows.
    Balance,
}

/// The memory of a gateway.
#[derive(Debug)]
pub struct History {
    kind: Kind,
    rings: [Ring; 3],
    names: Vec<String>,
    events: Events,
    recent: Recent,
    usage: Usage,
    last: Option<Counted>,
}

/// Counters of the last sample.
#[derive(Debug, Default)]
struct Counted {
    at_ms: u64,
    /// Of each tunnel, by its peer: those of a hub come and go.
    inner: BTreeMap<String, Inner>,
    /// Sent and received of each uplink, in the order of `names`.
    outer: Vec<Option<(u64, u64)>>,
}

/// Counters of a tunnel, or what they grew by; bytes and packets inside.
#[derive(Clone, Copy, Debug, Default)]
struct Inner {
    sent: u64,
    received: u64,
    packets: u64,
    waiting: u64,
    drops: u64,
}

impl Inner {
    fn of(tunnel: &TunnelStatus) -> Self {
        Self {
            sent: tunnel.tx_bytes,
            received: tunnel.rx_bytes,
            packets: tunnel.tx_packets,
            waiting: tunnel.queue_bytes + tunnel.hold_bytes,
            drops: tunnel.queue_drops + tunnel.hold_dropped_full,
        }
    }

    /// Adds what a tunnel grew by since `old`.
    fn add(&mut self, old: Option<&Self>, new: &Self) {
        let old = old.copied().unwrap_or_default();
        self.sent += grown(old.sent, new.sent);
        self.received += grown(old.received, new.received);
        self.packets += grown(old.packets, new.packets);
        self.waiting += new.waiting.saturating_sub(old.waiting);
        self.drops += grown(old.drops, new.drops);
    }
}

/// What a counter grew by. One that fell began anew.
fn grown(old: u64, new: u64) -> u64 {
    new.checked_sub(old).unwrap_or(new)
}

impl History {
    /// An empty memory. `step_s` is the time between samples, seconds.
    #[must_use]
    pub fn new(kind: Kind, step_s: u32) -> Self {
        let [hour, day] = STEPS;
        Self {
            kind,
            rings: [
                Ring::new(step_s, POINTS[0]),
                Ring::new(hour, POINTS[1]),
                Ring::new(day, POINTS[2]),
            ],
            names: Vec::new(),
            events: Events::default(),
            recent: Recent::default(),
            usage: Usage::default(),
            last: None,
        }
    }

    /// Takes what is so at `now_ms`, milliseconds since 1970.
    pub fn sample(&mut self, now_ms: u64, status: &Status) {
        let now_s = now_ms / 1_000;
        self.recent.sample(now_ms, status, &mut self.events);
        let counted = self.count(now_ms, status);
        if let Some(last) = self.last.take()
            && now_ms > last.at_ms
        {
            let point = self.point(&last, &counted, status);
            let late_ms = LATE_STEPS * 1_000 * u64::from(self.rings[0].step_s());
            let since_s = if now_ms - last.at_ms <= late_ms {
                last.at_ms / 1_000
            } else {
                now_s
            };
            for ring in &mut self.rings {
                ring.push(since_s, now_s, &point);
            }
        }
        self.last = Some(counted);
    }

    /// Counts what uplinks with a quota carried since the last call. The uplinks that have nothing left.
    pub fn count_quotas(
        &mut self,
        now_ms: u64,
        status: &Status,
        quota: impl Fn(&str) -> Option<Quota> + Copy,
    ) -> BTreeSet<String> {
        self.usage
            .sample(now_ms / 1_000, status, quota, &mut self.events);
        self.usage.used_up()
    }

    /// The uplinks that had nothing left when an earlier run ended.
    pub fn recall_quotas(
        &mut self,
        now_ms: u64,
        quota: impl Fn(&str) -> Option<Quota>,
    ) -> BTreeSet<String> {
        self.usage.recall(now_ms / 1_000, quota);
        self.usage.used_up()
    }

    fn count(&mut self, now_ms: u64, status: &Status) -> Counted {
        let inner = |tunnel: &TunnelStatus| (tunnel.peer.clone(), Inner::of(tunnel));
        let mut counted = Counted {
            at_ms: now_ms,
            inner: status.tunnels.iter().map(inner).collect(),
            outer: vec![None; UPLINKS_MAX],
        };
        if self.kind != Kind::Hub {
            let uplinks = uplinks(status);
            let in_use: Vec<&str> = uplinks.iter().map(|uplink| uplink.name).collect();
            for uplink in &uplinks {
                if let Some(index) = self.index(uplink.name, &in_use) {
                    counted.outer[index] = Some(uplink.bytes);
                }
            }
        }
        counted
    }

    /// The place of an uplink; one that is not in use any more gives its place up.
    fn index(&mut self, name: &str, in_use: &[&str]) -> Option<usize> {
        if let Some(index) = self.names.iter().position(|known| known == name) {
            return Some(index);
        }
        if self.names.len() < UPLINKS_MAX {
            self.names.push(name.to_owned());
            return Some(self.names.len() - 1);
        }
        let unused = |known: &String| !in_use.contains(&known.as_str());
        let index = self.names.iter().position(unused)?;
        name.clone_into(&mut self.names[index]);
        for ring in &mut self.rings {
            ring.forget(index);
        }
        Some(index)
    }

    fn point(&mut self, last: &Counted, now: &Counted, status: &Status) -> Point {
        let seconds = (now.at_ms - last.at_ms) as f64 / 1e3;
        let rate = |bytes: u64| (8.0 * bytes as f64 / seconds) as f32;
        let mut inner = Inner::default();
        for (peer, new) in &now.inner {
            inner.add(last.inner.get(peer), new);
        }
        let packet = inner.sent.checked_div(inner.packets).unwrap_or(1_000);
        let offered = inner.sent + inner.drops * packet + inner.waiting;
        let up = status.tunnels.iter().filter(|tunnel| tunnel.up).count();
        let place = match self.kind {
            Kind::Hub => self.index(ALL_SITES, &[ALL_SITES]),
            Kind::Site | Kind::Balance => None,
        };
        let mut point = Point {
            offered: rate(offered),
            up: up as f32,
            rates: vec![Rate::NONE; self.names.len()],
        };
        if let Some(index) = place {
            point.rates[index] = Rate {
                sent: rate(inner.sent),
                received: rate(inner.received),
                ..Rate::NONE
            };
            return point;
        }
        let uplinks = uplinks(status);
        for (index, name) in self.names.iter().enumerate() {
            let (Some(new), Some(old)) = (now.outer[index], last.outer[index]) else {
                continue;
            };
            let uplink = uplinks.iter().find(|uplink| uplink.name == name);
            let reading = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
            point.rates[index] = Rate {
                sent: rate(grown(old.0, new.0)),
                received: rate(grown(old.1, new.1)),
                rtt_ms: reading(uplink.and_then(|uplink| uplink.rtt_ms)),
                loss: reading(uplink.and_then(|uplink| uplink.loss)),
            };
        }
        point
    }

    /// Adds the words for each path and for the gateway, as they are at `now_ms`.
    pub fn describe(&self, now_ms: u64, status: &mut Status) {
        let of_site = status.tunnels.first().filter(|_| status.role == "site");
        let lately = of_site.map(|tunnel| self.recent.tunnel_lately(now_ms, &tunnel.peer));
        status.words = words::of_gateway(status, now_ms / 1_000, lately.unwrap_or_default());
        for tunnel in &mut status.tunnels {
            for path in &mut tunnel.paths {
                path.quota = self.usage.of(&path.uplink);
            }
            let of_tunnel = self.recent.tunnel_lately(now_ms, &tunnel.peer);
            let all: Vec<_> = tunnel
                .paths
                .iter()
                .map(|path| {
                    let lately = Lately {
                        tunnel: of_tunnel,
                        ..self.recent.lately(now_ms, &tunnel.peer, path)
                    };
                    words::of_path(tunnel, path, &lately)
                })
                .collect();
            for (path, words) in tunnel.paths.iter_mut().zip(all) {
                path.words = words;
                path.rtt_newest_ms = self.recent.newest_ms(&tunnel.peer, path);
            }
        }
    }

    /// The points of a range: the newest `last` of them.
    #[must_use]
    pub fn points(&self, range: Range, last: usize) -> Answer {
        self.rings[range as usize].answer(&self.names, last)
    }

    /// What happened, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Happened> {
        self.events.all()
    }

    /// Notes that something happened which no status tells.
    pub fn happened(&mut self, now_ms: u64, what: impl Into<String>) {
        self.events.push(now_ms / 1_000, None, what.into());
    }
}

/// An uplink as points have it.
struct Uplink<'a> {
    name: &'a str,
    /// Sent and received since some start.
    bytes: (u64, u64),
    rtt_ms: Option<f64>,
    /// `0..=1`.
    loss: Option<f64>,
}

/// The uplinks of a site, or of `ropewalk balance`.
fn uplinks(status: &Status) -> Vec<Uplink<'_>> {
    let of_site = status.paths().map(|path| {
        // The figures of a path in doubt are old.
        let up = matches!(path.state.as_str(), "up" | "leaving");
        Uplink {
            name: &path.uplink,
            bytes: (path.tx_bytes, path.rx_bytes),
            rtt_ms: up.then_some(path.rtt_ms),
            loss: up.then_some(path.worse_loss()),
        }
    });
    let balanced = status.balance.iter().flat_map(|balance| &balance.uplinks);
    let of_balance = balanced.map(|uplink| Uplink {
        name: &uplink.uplink,
        bytes: (uplink.tx_bytes, uplink.rx_bytes),
        rtt_ms: uplink.rtt_ms,
        loss: None,
    });
    of_site.chain(of_balance).collect()
}

#[cfg(test)]
mod tests;
