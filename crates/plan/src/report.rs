//! What came of a plan: one schema for simulator and kernel, written as JSON.

use serde::{Deserialize, Serialize};

/// Result of one run of one plan with one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the plan.
    pub plan: String,
    /// `sim` or `kernel`.
    pub runner: String,
    /// Seed of this run.
    pub seed: u64,
    /// Seconds that were counted: the duration less the warm-up.
    pub seconds: f64,
    /// What the paths in use allow full-sized inner TCP streams, Mbit/s: capacity less what is
    /// lost and less headers, summed over paths and over the directions of the bulk traffic. 0
    /// where a path in use has no limit.
    pub ceiling_mbit: f64,
    /// One per `[[traffic]]`, in order.
    pub traffic: Vec<TrafficReport>,
    /// One per `[[path]]`, in order.
    pub paths: Vec<PathReport>,
    /// One per `[[link]]`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PathReport>,
    /// The report of the tunnel, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelReport>,
    /// Simulator, gateways in a row: how full the buffers were in the direction of the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<BufferReport>,
    /// Simulator: hash over every event, 16 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_hash: Option<String>,
    /// Simulator: packets that hosts and gateways sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Wall-clock seconds the run took. Not in the JSON: equal runs give equal reports.
    #[serde(skip)]
    pub wall_seconds: f64,
    /// Anything the reader should know, such as a connection that broke.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A buffer over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferReport {
    /// `link` and the name of the path, or `send` and that of the path that it sends over.
    pub name: String,
    /// Packets in it every half second from the start of the plan.
    pub packets: Vec<u32>,
}

/// Result of one `[[traffic]]` section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// `tcp`, `quic`, `ping`, `call` or `web`.
    pub kind: String,
    /// Bulk: application bytes delivered per second in the counted time, Mbit/s, all flows.
    #[serde(default)]
    pub goodput_mbit: f64,
    /// Bulk: the same for each whole second of the plan, the warm-up included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series_mbit: Vec<f64>,
    /// Bulk: the part of [`Report::ceiling_mbit`] that is in the direction of this traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_mbit: Option<f64>,
    /// Bulk: longest time in the counted part in which no flow delivered anything, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_stall_seconds: Option<f64>,
    /// Bulk: one per connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowReport>,
    /// Round-trip times of a ping, one-way delays of a call, page load times of the web, and of
    /// bulk traffic the one-way delays of all its data packets (simulator only). Milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Distribution>,
    /// Ping, call: packets sent in the counted time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Ping, call: packets that never arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Call: share of packets that arrived before their deadline, `0.0..=1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_time: Option<f64>,
}

/// One bulk connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// Application bytes delivered per second in the counted time, Mbit/s.
    pub goodput_mbit: f64,
    /// Segments or packets sent again.
    pub retransmits: u64,
    /// One-way delays of its data packets, from host to host, each retransmission by itself, ms:
    /// mean, least and largest are exact, the others to half a percent. Simulator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<Distribution>,
    /// The same as a histogram, where asked for: upper ends of bins in ms, and numbers of packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delay_histogram_ms: Vec<(f64, u64)>,
    /// Whether the connection broke.
    #[serde(default)]
    pub broken: bool,
    /// Pauses of 20 ms and more between two arrivals of new data, the warm-up included: seconds
    /// after the start of the plan. Known only where the plan sets a `window`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<Pause>,
}

/// A time in which a connection delivered nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// When the last data before it came, seconds after the start of the plan.
    pub begin: f64,
    /// When the first data after it came.
    pub end: f64,
}

/// A distribution; all values in the unit its field says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// One path or shared link, in the direction of the first bulk traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// Name in the plan.
    pub name: String,
    /// IP bytes offered to the link in the counted time, those that it dropped or lost included.
    pub bytes: u64,
    /// IP bytes that left the link at its other end in the counted time.
    #[serde(default)]
    pub delivered_bytes: u64,
    /// Packets dropped by the full queue.
    pub dropped: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Mean capacity over the counted time, Mbit/s of IP packets; 0 without a limit.
    pub capacity_mbit: f64,
    /// Packets dropped by the queue's management.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_aqm: u64,
    /// Packets that the queue marked "congestion experienced".
    #[serde(default, skip_serializing_if = "is_zero")]
    pub marked: u64,
}

impl PathReport {
    /// What the queue's management did, to follow other figures in a line; empty if it did nothing.
    #[must_use]
    pub fn management(&self) -> String {
        let dropped = (self.dropped_aqm, "dropped by the queue's management");
        let did = [dropped, (self.marked, "marked")].into_iter();
        let did = did.filter(|(count, _)| *count > 0);
        did.map(|(count, what)| format!(", {count} {what}"))
            .collect()
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// The receiving gateway of the first bulk traffic, unless said otherwise; of tunnels in a row, see
/// [`TunnelReport::of_hops`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TunnelReport {
    /// Inner packets delivered.
    pub delivered: u64,
    /// Delivered packets that were not next in their flow's sequence when they came.
    pub reordered: u64,
    /// Delivered packets that were held for order.
    pub held: u64,
    /// Holds ended by time.
    pub hold_timeouts: u64,
    /// Delivered after they had been given up.
    pub late: u64,
    /// Copies removed.
    pub duplicates: u64,
    /// Packets dropped or marked by the ingress queue of the sending gateway.
    #[serde(rename = "entry_drops")]
    pub ingress_drops: u64,
    /// Packets that a full send buffer of the sending gateway dropped.
    #[serde(default)]
    pub buffer_drops: u64,
    /// Packets recovered from combinations.
    #[serde(default)]
    pub recovered: u64,
    /// Packets and combinations that the sending gateway sent again.
    #[serde(default)]
    pub repairs: u64,
    /// Repair symbols that the sending gateway sent ahead of losses.
    #[serde(default, rename = "combinations")]
    pub repair_symbols: u64,
    /// What protection added at the sending gateway, copies included, by the bytes of the datagrams
    /// that carried each packet for the first time.
    #[serde(default)]
    pub overhead: f64,
    /// Why the sending gateway's scheduler did what it did, at the end.
    pub reason: String,
}

impl TunnelReport {
    /// Reports tunnels in a row, in the direction of the data. The report has what the last tunnel
    /// delivered, the greatest overhead of any, and the sum of everything else. `None` of nothing.
    #[must_use]
    pub fn of_hops(hops: &[Self]) -> Option<Self> {
        let last = hops.last()?;
        let sum = |field: fn(&Self) -> u64| hops.iter().map(field).sum();
        let reasons = hops.iter().zip(1..);
        let reasons = reasons.map(|(hop, number)| format!("hop {number}: {}", hop.reason));
        Some(Self {
            delivered: last.delivered,
            reordered: sum(|hop| hop.reordered),
            held: sum(|hop| hop.held),
            hold_timeouts: sum(|hop| hop.hold_timeouts),
            late: sum(|hop| hop.late),
            duplicates: sum(|hop| hop.duplicates),
            ingress_drops: sum(|hop| hop.ingress_drops),
            buffer_drops: sum(|hop| hop.buffer_drops),
            recovered: sum(|hop| hop.recovered),
            repairs: sum(|hop| hop.repairs),
            repair_symbols: sum(|hop| hop.repair_symbols),
            overhead: hops.iter().map(|hop| hop.overhead).fold(0.0, f64::max),
            reason: reasons.collect::<Vec<_>>().join("; "),
        })
    }
}

/// Bytes that protection added by the bytes it protects; 0 where nothing was sent.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "byte counts are far below 2^53")]
pub fn overhead(protection_bytes: u64, data_bytes: u64) -> f64 {
    protection_bytes as f64 / data_bytes.max(1) as f64
}

impl Distribution {
    /// The distribution of these values; all zero without values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        // Nearest rank: the smallest value with at least this share at or below it.
        let rank = |percent: usize| {
            let index = (sorted.len() * percent).div_ceil(100).max(1) - 1;
            sorted.get(index).copied().unwrap_or(max)
        };
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Self {
            count: sorted.len() as u64,
            mean,
            min,
            p50: rank(50),
            p95: rank(95),
            p99: rank(99),
            max,
        }
    }
}
