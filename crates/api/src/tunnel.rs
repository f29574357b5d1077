//! State of a tunnel and of its paths.

use std::net::SocketAddr;

use ropewalk_types::{CongestionControl, SchedulerKind};

use crate::QuotaStatus;
use crate::metric::status;
use crate::words::Words;

status! {
    /// State of a tunnel.
    TunnelStatus {
        /// Name of the peer.
        peer: String;
        /// Public key of the peer, base64.
        peer_key: String;
        up: bool => "up", "Whether any path works.";
        /// Inner addresses of the peer.
        peer_addresses: Vec<String>;
        /// While a hub changes its key: whether this site has said that it knows the next one since the hub started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        knows_next_key: Option<bool>;
        /// Which hub serves this site: `hub`, `spare` or `second spare`. Only a site with a spare knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        serving_hub: Option<String>;
        /// Where that hub is reached over UDP, preferred first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        serving_hub_addresses: Vec<String>;
        /// Only a site with a spare knows. Absent while a spare answers, in an outage, and while each uplink that works
        /// is metered or on standby.
        #[serde(skip_serializing_if = "Option::is_none")]
        no_spare_s: Option<f64> => "no_spare_seconds", "Seconds for which no spare hub has answered.";
        /// Scheduler used when sending.
        #[schemars(schema_with = "crate::schema::scheduler")]
        scheduler_send: SchedulerKind;
        /// Scheduler the peer uses towards this machine.
        #[schemars(schema_with = "crate::schema::scheduler")]
        scheduler_receive: SchedulerKind;
        wire_version: u8 => "wire_version", "Version of the wire in use with the peer, 0 before both ends stated theirs.";
        /// Why the scheduler does what it does, in words, if it says.
        reason: String;
        tx_packets: u64 => "transmit_packets_total", "Inner packets sent.";
        tx_bytes: u64 => "transmit_bytes_total", "Inner bytes sent.";
        rx_packets: u64 => "receive_packets_total", "Inner packets received.";
        rx_bytes: u64 => "receive_bytes_total", "Inner bytes received.";
        queue_bytes: u64 => "queue_bytes", "Bytes waiting at the ingress.";
        queue_drops: u64 => "queue_drops_total", "Packets dropped at the ingress by FQ-CoDel or its limit.";
        queue_marks: u64 => "queue_marks_total", "Packets marked CE at the ingress.";
        buffer_drops: u64 => "send_buffer_drops_total", "Packets that a full send buffer of a path dropped; only with send_buffer_packets.";
        reordered: u64 => "reordered_packets_total", "Packets that reached the egress out of order.";
        held: u64 => "held_packets_total", "Packets the egress held until their predecessors came.";
        hold_timeouts: u64 => "hold_timeouts_total", "Holds that ended by time.";
        duplicates: u64 => "duplicate_packets_total", "Copies removed at the egress.";
        late: u64 => "late_packets_total", "Packets that came after the egress had given them up and were passed on late.";
        repairs_asked: u64 => "repairs_asked_total", "Datagrams that were lost on the way here and that the peer was asked for.";
        repairs_sent: u64 => "repairs_sent_total", "Datagrams sent again because they were or may have been lost.";
        repairs_dropped: u64 => "repairs_dropped_total", "Datagrams that should have been sent again and were not.";
        coded_sent: u64 => "coded_sent_total", "Repair symbols sent ahead of losses.";
        recovered: u64 => "recovered_total", "Datagrams that were lost on the way here and recovered from repair symbols, without asking.";
        rescues_asked: u64 => "rescues_asked_total", "Packets of periodic flows that were overdue here and that the peer was asked for.";
        rescued: u64 => "rescued_packets_total", "Packets sent again at once because the peer sent a deadline NACK.";
        data_bytes: u64 => "data_bytes_total", "Bytes of datagrams that carried inner packets for the first time.";
        protection_bytes: u64 => "protection_bytes_total", "Bytes that protection added: copies, repair symbols, retransmissions.";
        /// Seconds for which every path has been down; absent while one is up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        down_s: Option<f64>;
        outages: u64 => "outages_total", "Times that every path was down.";
        outage_s: f64 => "outage_seconds_total", "Seconds that every path was down, all outages together.";
        hold_bytes: u64 => "hold_bytes", "Bytes of inner packets held in an outage, or left by one and waiting.";
        replayed: u64 => "hold_replayed_packets_total", "Packets held in outages that left after them.";
        hold_dropped_full: u64 => "hold_dropped_full_total", "Packets dropped in outages because too much was held.";
        hold_dropped_old: u64 => "hold_dropped_old_total", "Packets dropped after outages because they were too old.";
        freeze_stopped: u64 => "freeze_stopped_total", "Times that the sender of a TCP connection was told to stop.";
        freeze_bytes: u64 => "freeze_bytes", "Bytes kept that were acknowledged for receivers, or may be, and not delivered yet.";
        freeze_resets: u64 => "freeze_resets_total", "TCP connections reset because acknowledged bytes were not delivered in time.";
        accelerated: u64 => "accelerated_total", "TCP connections whose senders were acknowledged here while a path was up.";
        freeze_resent: u64 => "freeze_resent_total", "TCP segments sent again of what was acknowledged here.";
        /// The paths.
        paths: Vec<PathStatus>;
    }
    computed {
        "paths", "Paths of the tunnel.", |tunnel| tunnel.paths.len() as f64;
        "paths_up", "Paths that work.", |tunnel| tunnel.paths.iter().filter(|path| path.is_up()).count() as f64;
    }
}

status! {
    /// State of a path.
    PathStatus {
        /// Identifier within the tunnel.
        id: u8;
        /// Uplink name; on a hub the name the site gave it.
        uplink: String;
        /// `up`, `leaving`, `suspect`, `connecting`, `down` or `disabled`.
        state: String;
        /// `quic` or `tls`.
        transport: String;
        /// Local address.
        #[schemars(with = "Option<String>")]
        local: Option<SocketAddr>;
        /// Address of the peer.
        #[schemars(with = "Option<String>")]
        remote: Option<SocketAddr>;
        /// Marked standby.
        standby: bool;
        /// Costs money by the byte: as marked by hand, as configured, or as NetworkManager says.
        metered: bool;
        /// Whether NetworkManager says that the uplink is metered. Only a site knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said_metered: Option<bool>;
        /// Technology of the radio, such as `Wi-Fi`, `LTE` or `5G`, as NetworkManager or ModemManager says. Only a
        /// site knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        technology: Option<String>;
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<f64> => "signal_ratio", "Strength of the radio signal, as NetworkManager or ModemManager says.";
        /// Congestion control in use.
        #[schemars(schema_with = "crate::schema::congestion")]
        congestion: CongestionControl;
        /// Milliseconds.
        rtt_ms: f64 => "rtt_seconds", "Smoothed round-trip time.", |ms| ms / 1e3;
        /// Milliseconds.
        rtt_min_ms: f64 => "rtt_min_seconds", "Smallest round-trip time.", |ms| ms / 1e3;
        /// The smallest of the last 10 s, milliseconds, of a QUIC path that carries little: its smoothed round trip is old.
        /// Such a path is probed every 2.5 s, and each answer changes the smoothed one by an eighth.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rtt_newest_ms: Option<f64>;
        /// Towards the peer, milliseconds.
        owd_relative_ms: f64 => "owd_relative_seconds", "One-way delay beyond the fastest path.", |ms| ms / 1e3;
        /// Towards the peer, Mbit/s.
        rate_mbit: f64 => "delivery_rate_bytes_per_second", "Estimated delivery rate.", |mbit| mbit * 1e6 / 8.0;
        /// What the path carries towards the peer when it is full, Mbit/s; absent if it was not within the last minute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        full_mbit: Option<f64>;
        /// What the path carries from the peer when it is full, Mbit/s, as the peer says; absent if the peer said
        /// nothing within the last minute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_full_mbit: Option<f64>;
        /// Share of packets lost from the peer, `0..=1`, as the peer says; absent if the peer said nothing within the last
        /// 6 s.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_loss: Option<f64>;
        /// Largest UDP payload that the peer sends, bytes, as the peer said last; 0 over TCP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_mtu: Option<usize>;
        /// Towards the peer, `0..=1`, as the peer's egress counted.
        loss: f64 => "loss_ratio", "Share of packets lost lately.";
        loss_burst: f64 => "loss_burst_packets", "Mean length of a run of losses.";
        /// Bytes.
        cwnd: u64 => "congestion_window_bytes", "Congestion window.";
        in_flight: u64 => "in_flight_bytes", "Bytes in flight.";
        /// Path MTU less IP and UDP headers.
        mtu: usize => "mtu_bytes", "Largest UDP payload.";
        tx_bytes: u64 => "transmit_bytes_total", "Outer bytes sent.";
        rx_bytes: u64 => "receive_bytes_total", "Outer bytes received.";
        sent_packets: u64 => "transmit_packets_total", "Outer packets sent over the present connection.";
        lost_packets: u64 => "lost_packets_total", "Outer packets of the present connection that the transport declared lost or TCP sent again.";
        failures: u64 => "failures_total", "Times the path stopped working.";
        /// The last error, if any.
        last_error: Option<String>;
        /// What the uplink may carry this month and has carried, if it has a quota. Only a site knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quota: Option<QuotaStatus>;
        /// The state in words, what matters most first. Only the gateway knows the past that they need.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        words: Vec<Words>;
    }
    computed {
        "up", "Whether the path works.", |path| f64::from(u8::from(path.is_up()));
    }
}

impl PathStatus {
    /// The round trip to be shown, milliseconds.
    #[must_use]
    pub fn rtt_shown_ms(&self) -> f64 {
        self.rtt_newest_ms.unwrap_or(self.rtt_ms)
    }

    /// Whether the path works and nobody announced its end.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == "up"
    }

    /// Share of packets lost in the worse direction, `0..=1`.
    #[must_use]
    pub fn worse_loss(&self) -> f64 {
        self.peer_loss.unwrap_or(0.0).max(self.loss)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Keys that programs of users read. New ones need no place here.
    const TUNNEL_KEYS: &str = "peer peer_key up peer_addresses scheduler_send scheduler_receive reason \
        tx_packets tx_bytes rx_packets rx_bytes queue_bytes queue_drops queue_marks \
        reordered held hold_timeouts duplicates late repairs_asked repairs_sent \
        repairs_dropped coded_sent recovered rescues_asked rescued data_bytes \
        protection_bytes down_s outages outage_s hold_bytes replayed hold_dropped_full \
        hold_dropped_old freeze_stopped freeze_bytes freeze_resets accelerated freeze_resent paths";
    const PATH_KEYS: &str = "id uplink state transport local remote standby metered congestion rtt_ms \
        rtt_min_ms owd_relative_ms rate_mbit loss loss_burst cwnd in_flight mtu \
        tx_bytes rx_bytes failures last_error";
    /// Metrics that dashboards of users read, without `ropewalk_tunnel_` and `ropewalk_path_`.
    const TUNNEL_METRICS: &str = "up transmit_packets_total transmit_bytes_total receive_packets_total \
        receive_bytes_total queue_bytes queue_drops_total queue_marks_total \
        reordered_packets_total held_packets_total hold_timeouts_total \
        duplicate_packets_total late_packets_total rescues_asked_total \
        rescued_packets_total data_bytes_total protection_bytes_total \
        repairs_asked_total repairs_sent_total repairs_dropped_total coded_sent_total \
        recovered_total outages_total outage_seconds_total hold_bytes \
        hold_replayed_packets_total hold_dropped_full_total hold_dropped_old_total \
        freeze_stopped_total freeze_bytes freeze_resets_total accelerated_total \
        freeze_resent_total paths paths_up";
    const PATH_METRICS: &str = "up rtt_seconds rtt_min_seconds owd_relative_seconds \
        delivery_rate_bytes_per_second loss_ratio loss_burst_packets \
        congestion_window_bytes in_flight_bytes mtu_bytes transmit_bytes_total \
        receive_bytes_total failures_total";

    fn words(text: &str) -> BTreeSet<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn keys_that_users_read_are_kept() {
        let tunnel = TunnelStatus {
            down_s: Some(1.0),
            ..TunnelStatus::default()
        };
        let tunnel = serde_json::to_value(tunnel).unwrap();
        let path = serde_json::to_value(PathStatus::default()).unwrap();
        for (value, keys) in [(tunnel, TUNNEL_KEYS), (path, PATH_KEYS)] {
            let keys = words(keys);
            assert!(keys.iter().all(|key| value.get(key).is_some()), "{value}");
        }
    }

    #[test]
    fn metrics_that_users_read_are_kept() {
        let tunnel: BTreeSet<_> = TunnelStatus::METRICS.iter().map(|m| m.name).collect();
        let path: BTreeSet<_> = PathStatus::METRICS.iter().map(|m| m.name).collect();
        assert!(tunnel.is_superset(&words(TUNNEL_METRICS)), "{tunnel:?}");
        assert!(path.is_superset(&words(PATH_METRICS)), "{path:?}");
        assert_eq!(tunnel.len(), TunnelStatus::METRICS.len(), "each name once");
        assert_eq!(path.len(), PathStatus::METRICS.len(), "each name once");
    }

    #[test]
    fn a_counter_that_an_older_gateway_does_not_know_is_zero() {
        let mut old = serde_json::to_value(TunnelStatus::default()).unwrap();
        old.as_object_mut().unwrap().remove("rescued");
        let read: TunnelStatus = serde_json::from_value(old).unwrap();
        assert_eq!(read, TunnelStatus::default());
    }

    #[test]
    fn metrics_are_in_base_units() {
        let path = PathStatus {
            rtt_ms: 25.0,
            rate_mbit: 8.0,
            ..PathStatus::default()
        };
        let value = |name: &str| {
            let metric = PathStatus::METRICS.iter().find(|m| m.name == name).unwrap();
            (metric.value)(&path)
        };
        assert_eq!(value("rtt_seconds"), Some(0.025));
        assert_eq!(value("delivery_rate_bytes_per_second"), Some(1e6));
        assert_eq!(value("up"), Some(0.0));
    }
}
