//! What a session tells of itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::Tunnel;
use ropewalk_transport::CongestionControl;
use serde::{Deserialize, Serialize};

/// State of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionStatus {
    /// `site` or `hub`.
    pub role: &'static str,
    /// Inner addresses of this gateway with prefix length.
    pub addresses: Vec<String>,
    /// One entry per peer: the hub of a site, the known sites of a hub.
    pub tunnels: Vec<TunnelStatus>,
    /// Counted drops and refusals by reason, over all tunnels and links.
    pub drops: BTreeMap<String, u64>,
}

impl SessionStatus {
    /// Adds a tunnel's counted drops.
    pub(crate) fn add_tunnel_drops(&mut self, tunnel: &Tunnel) {
        let stats = tunnel.stats();
        let counts = [
            ("queue_codel", stats.queue.dropped_codel),
            ("queue_full", stats.queue.dropped_full),
            ("malformed_datagrams", stats.malformed),
            ("invalid_inner", stats.invalid_inner),
            ("fragments", stats.fragments_dropped),
            ("duplicates", stats.reorder.duplicates),
        ];
        for (name, count) in counts {
            *self.drops.entry(name.to_owned()).or_default() += count;
        }
    }
}

/// State of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// Name of the peer.
    pub peer: String,
    /// Public key of the peer, base64.
    pub peer_key: String,
    /// Whether any path works.
    pub up: bool,
    /// Inner addresses of the peer.
    pub peer_addresses: Vec<String>,
    /// Scheduler used when sending.
    pub scheduler_send: SchedulerKind,
    /// Scheduler the peer uses towards this machine.
    pub scheduler_receive: SchedulerKind,
    /// Why the scheduler does what it does, in words, if it says.
    pub reason: String,
    /// Inner packets and bytes sent to and received from the peer.
    pub tx_packets: u64,
    /// Inner bytes sent.
    pub tx_bytes: u64,
    /// Inner packets received.
    pub rx_packets: u64,
    /// Inner bytes received.
    pub rx_bytes: u64,
    /// Bytes waiting at the entry.
    pub queue_bytes: u64,
    /// Packets dropped at the entry by FQ-CoDel or its limit.
    pub queue_drops: u64,
    /// Packets marked CE at the entry.
    pub queue_marks: u64,
    /// Packets that arrived out of order at the exit.
    pub reordered: u64,
    /// Packets the exit held until their predecessors came.
    pub held: u64,
    /// Holds that ended by time.
    pub hold_timeouts: u64,
    /// Copies removed at the exit.
    pub duplicates: u64,
    /// Packets that came after the exit had given them up and were passed on late.
    pub late: u64,
    /// Datagrams that were lost on the way here and that the peer was asked for.
    pub repairs_asked: u64,
    /// Datagrams that were sent again because the peer missed them or their path fell silent.
    pub repairs_sent: u64,
    /// Datagrams that should have been sent again and were not.
    #[serde(default)]
    pub repairs_dropped: u64,
    /// Combinations sent ahead of losses.
    #[serde(default)]
    pub coded_sent: u64,
    /// Datagrams that were lost on the way here and recovered from combinations.
    #[serde(default)]
    pub recovered: u64,
    /// Packets of flows with a rhythm that were overdue here and that the peer was asked for.
    #[serde(default)]
    pub rescues_asked: u64,
    /// Packets that were sent again at once because the peer awaited them.
    #[serde(default)]
    pub rescued: u64,
    /// Bytes of datagrams that carried inner packets for the first time.
    #[serde(default)]
    pub data_bytes: u64,
    /// Bytes that protection added: copies, combinations, repairs.
    #[serde(default)]
    pub protection_bytes: u64,
    /// Seconds for which every path has been down; absent while one is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_s: Option<f64>,
    /// Times that every path was down.
    #[serde(default)]
    pub outages: u64,
    /// Seconds that every path was down, all outages together.
    #[serde(default)]
    pub outage_s: f64,
    /// Bytes of inner packets held in an outage, or left by one and waiting.
    #[serde(default)]
    pub hold_bytes: u64,
    /// Packets held in outages that left after them.
    #[serde(default)]
    pub replayed: u64,
    /// Packets dropped in outages because too much was held.
    #[serde(default)]
    pub hold_dropped_full: u64,
    /// Packets dropped after outages because they were too old.
    #[serde(default)]
    pub hold_dropped_old: u64,
    /// Times that the sender of a TCP connection was told to stop.
    #[serde(default)]
    pub freeze_stopped: u64,
    /// Bytes that were acknowledged for receivers, or may be, and that they have not got yet.
    #[serde(default)]
    pub freeze_bytes: u64,
    /// TCP connections reset because such bytes were not delivered in time.
    #[serde(default)]
    pub freeze_resets: u64,
    /// The paths.
    pub paths: Vec<PathStatus>,
}

/// State of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Identifier within the tunnel.
    pub id: u8,
    /// Uplink name; on a hub the name the site gave it.
    pub uplink: String,
    /// `up`, `leaving`, `suspect`, `connecting`, `down` or `disabled`.
    pub state: String,
    /// `quic` or `tls`.
    pub transport: String,
    /// Local address.
    pub local: Option<SocketAddr>,
    /// Address of the peer.
    pub remote: Option<SocketAddr>,
    /// Marked standby.
    pub standby: bool,
    /// Marked metered.
    pub metered: bool,
    /// Congestion control in use.
    pub congestion: CongestionControl,
    /// Smoothed RTT, milliseconds.
    pub rtt_ms: f64,
    /// Smallest RTT, milliseconds.
    pub rtt_min_ms: f64,
    /// One-way delay towards the peer relative to the fastest path, milliseconds.
    pub owd_relative_ms: f64,
    /// Estimated delivery rate towards the peer, Mbit/s.
    pub rate_mbit: f64,
    /// Share of packets lost towards the peer lately, `0..=1`, as the peer's exit counted.
    pub loss: f64,
    /// Mean length of a run of losses, packets.
    pub loss_burst: f64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Largest UDP payload (path MTU less IP and UDP headers).
    pub mtu: usize,
    /// Outer bytes sent.
    pub tx_bytes: u64,
    /// Outer bytes received.
    pub rx_bytes: u64,
    /// Times this path went from up to suspect or down.
    pub failures: u64,
    /// The last error, if any.
    pub last_error: Option<String>,
}
