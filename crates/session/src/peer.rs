//! One peer: its tunnel, the links that carry its paths, and the pump between them.

use ropewalk_api::{PathStatus, TunnelStatus};
use ropewalk_core::path::PathConfig;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Outgoing, PathState, SendOptions, Tunnel, TunnelConfig};
use ropewalk_transport::{CongestionControl, FLOW_PARTS, PublicKey};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, Rate};
use ropewalk_wire::{Control, PathSends, emit_control};
use std::sync::Arc;

use crate::io::Sockets;
use crate::links::{LinkId, Links};
use crate::rate::Bucket;
use crate::session::Event;
use crate::settings::CommonSettings;
use crate::tuning::{
    DRAIN, FULL_FOR, LOST_FOR, RATE_BURST, ROUND_PACKETS, SENDS_DATAGRAMS, SENDS_INTERVAL,
};

/// A path of a peer, with the link that carries it.
#[derive(Debug)]
pub(crate) struct PeerPath {
    /// The link.
    pub link: LinkId,
    /// The site's count of connections of this path.
    pub generation: u32,
    /// Uplink name.
    pub name: String,
    /// The user's marks.
    pub config: PathConfig,
    /// Congestion control in use.
    pub congestion: CongestionControl,
    /// What the peer says of its sending.
    pub peer_sends: PeerSends,
}

/// What the peer said last of its sending on a path, and when; and what it was told of ours.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerSends {
    full: Option<(Rate, Instant)>,
    last: Option<(PathSends, Instant)>,
    /// Datagrams bound to the path when the peer was told last, and the largest payload then.
    told: (u64, usize),
}

/// One peer.
#[derive(Debug)]
pub struct Peer {
    /// Its name.
    pub(crate) name: String,
    /// Its key.
    pub(crate) key: PublicKey,
    /// The tunnel.
    pub(crate) tunnel: Tunnel,
    /// The paths that carry traffic.
    pub(crate) paths: [Option<PeerPath>; PATHS_MAX],
    /// Links whose path has moved to a newer one, and until when they are read.
    draining: Vec<(LinkId, PathId, Instant)>,
    /// Scheduler the peer says it uses towards us.
    pub(crate) scheduler_receive: SchedulerKind,
    /// Version of the wire in use with it, 0 before both ends have stated theirs. What a newer version
    /// brought is not sent.
    pub(crate) wire_version: u8,
    out: Vec<Outgoing>,
    was_up: bool,
    /// Most bits per second towards the peer.
    rate: Option<u64>,
    bucket: Bucket,
    /// When the peer is told next how paths fare.
    sends_due: Instant,
}

impl Peer {
    /// A peer without paths.
    #[must_use]
    pub(crate) fn new(
        name: String,
        key: PublicKey,
        scheduler: SchedulerKind,
        common: &CommonSettings,
        probe_interval: Option<Duration>,
        seed: u64,
    ) -> Self {
        let config = TunnelConfig {
            scheduler,
            probe_interval,
            classes: Arc::clone(&common.classes),
            hold: common.hold,
            send: SendOptions {
                inner_mtu: common.mtu,
                ..common.send
            },
        };
        Self {
            name,
            key,
            tunnel: Tunnel::new(config, seed),
            paths: Default::default(),
            draining: Vec::new(),
            scheduler_receive: scheduler,
            wire_version: 0,
            out: Vec::new(),
            was_up: false,
            rate: None,
            bucket: Bucket::default(),
            sends_due: Instant::ZERO,
        }
    }

    /// Takes the place of another peer, which gets no more inner packets.
    pub(crate) fn follow(&mut self, now: Instant, former: &mut Self) {
        self.tunnel.take_over(now, &mut former.tunnel);
        self.scheduler_receive = former.scheduler_receive;
        (self.was_up, self.wire_version) = (former.was_up, former.wire_version);
    }

    /// Largest inner packet that its paths take whole, bytes; `None` while none is up.
    #[must_use]
    pub(crate) fn whole_max(&self) -> Option<usize> {
        self.tunnel.any_up().then(|| self.tunnel.whole_max())
    }

    /// Its name: of a site the one the hub has for it, of a hub `hub`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tunnel to it.
    #[must_use]
    pub const fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// Bounds what goes to the peer, bits per second.
    pub(crate) const fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate;
    }

    /// Puts a path on a link. The link it was on before is read a little longer, then closed.
    pub(crate) fn set_path(&mut self, now: Instant, id: PathId, path: PeerPath) {
        let before = self.draining.len();
        self.draining.retain(|d| d.0 != path.link);
        let config = path.config.clone();
        if self.draining.len() < before {
            self.tunnel.take_path_back(now, id, config);
        } else {
            self.tunnel.add_path(now, id, config);
        }
        if let Some(old) = self.paths[id.index()].replace(path) {
            self.draining.push((old.link, id, now + DRAIN));
        }
    }

    /// Takes a path out of use and closes its link.
    pub(crate) fn remove_path(
        &mut self,
        now: Instant,
        links: &mut Links,
        id: PathId,
        reason: &str,
    ) {
        self.tunnel.remove_path(now, id);
        if let Some(path) = self.paths[id.index()].take() {
            links.close(now, path.link, reason);
        }
    }

    /// The path a link carries, and true; or the one it carried until lately, and false.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    pub(crate) fn path_of(&self, link: LinkId) -> Option<(PathId, bool)> {
        let current = self
            .paths
            .iter()
            .position(|p| p.as_ref().is_some_and(|p| p.link == link));
        current
            .map(|index| (PathId(index as u8), true))
            .or_else(|| {
                let drained = self.draining.iter().find(|d| d.0 == link);
                drained.map(|d| (d.1, false))
            })
    }

    /// Forgets a link that closed; true when it carried a path.
    pub(crate) fn on_link_closed(&mut self, now: Instant, link: LinkId) -> Option<PathId> {
        self.draining.retain(|d| d.0 != link);
        let index = self
            .paths
            .iter()
            .position(|p| p.as_ref().is_some_and(|p| p.link == link))?;
        self.paths[index] = None;
        #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
        let id = PathId(index as u8);
        self.tunnel.remove_path(now, id);
        Some(id)
    }

    /// Closes links that were replaced long enough ago.
    pub(crate) fn close_drained(&mut self, now: Instant, links: &mut Links) {
        self.draining.retain(|&(link, _, until)| {
            let keep = until > now;
            if !keep {
                links.close(now, link, "replaced by a newer connection");
            }
            keep
        });
    }

    /// Closes links that were replaced, at once: what comes over them belongs to another count.
    pub(crate) fn cut_replaced(&mut self, now: Instant, links: &mut Links, reason: &str) {
        for (link, _, _) in self.draining.drain(..) {
            links.close(now, link, reason);
        }
    }

    /// Closes every link.
    pub(crate) fn close_all(&mut self, now: Instant, links: &mut Links, reason: &str) {
        for index in 0..PATHS_MAX {
            #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
            self.remove_path(now, links, PathId(index as u8), reason);
        }
        for (link, _, _) in self.draining.drain(..) {
            links.close(now, link, reason);
        }
    }

    /// Moves packets from the ingress queue to the links, for so many rounds and while the links take any. The
    /// number of packets, and whether more could go.
    pub(crate) fn pump(
        &mut self,
        now: Instant,
        links: &mut Links,
        sockets: &mut impl Sockets,
        rounds: usize,
    ) -> (usize, bool) {
        let (mut sent, mut more) = (0, false);
        for _ in 0..rounds {
            while let Some(id) = self.tunnel.poll_declared_lost() {
                if let Some(path) = &self.paths[id.index()] {
                    links.declare_lost(path.link);
                    // What waited behind the window leaves first and makes room for more.
                    links.flush(now, path.link, sockets);
                }
            }
            self.refresh(now, links, sockets);
            let max = self.round_packets(now);
            let bound = self.tunnel.poll_transmit(now, &mut self.out, max);
            for outgoing in self.out.drain(..) {
                let Some(path) = &self.paths[outgoing.path.index()] else {
                    continue;
                };
                let (link, datagram) = (path.link, outgoing.datagram);
                self.bucket.charge(now, datagram.len());
                if outgoing.urgent {
                    links.queue_urgent(link, datagram);
                } else {
                    links.send(now, link, datagram, outgoing.dscp, sockets);
                }
            }
            for path in self.paths.iter().flatten() {
                links.flush(now, path.link, sockets);
            }
            sent += bound;
            more = bound > 0;
            if !more {
                break;
            }
        }
        self.refresh(now, links, sockets);
        if sent > 0 && now >= self.sends_due {
            self.sends_due = now + SENDS_INTERVAL;
            self.tell_sends(links);
        }
        (sent, more)
    }

    /// Tells the peer how each path fares that has carried traffic since the last time, or takes other
    /// sizes, over that path.
    #[expect(clippy::cast_possible_truncation, reason = "bounded before")]
    fn tell_sends(&mut self, links: &mut Links) {
        for (index, path) in self.paths.iter_mut().enumerate() {
            let Some(path) = path else { continue };
            let id = PathId(index as u8);
            let Some(stats) = self.tunnel.path_stats(id) else {
                continue;
            };
            let mtu = links.outer_counters(path.link).mtu;
            let (datagrams, told) = path.peer_sends.told;
            let since = stats.tx_datagrams.wrapping_sub(datagrams);
            path.peer_sends.told = (stats.tx_datagrams, mtu);
            if since < SENDS_DATAGRAMS && mtu == told {
                continue;
            }
            let full = self.tunnel.full_rate(id, SENDS_INTERVAL);
            let kbit = full.map_or(0, |rate| rate.bits_per_sec() / 1_000);
            let control = Control::PathSends(PathSends {
                full_kbit: u32::try_from(kbit).unwrap_or(u32::MAX),
                mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
                lost: (stats.loss.clamp(0.0, 1.0) * f64::from(u16::MAX)) as u16,
            });
            links.queue_control(path.link, &control);
        }
    }

    /// The peer says how it fares on the path of this link.
    pub(crate) fn on_sends(&mut self, now: Instant, link: LinkId, sends: PathSends) {
        let mut paths = self.paths.iter_mut().flatten();
        let Some(path) = paths.find(|path| path.link == link) else {
            return;
        };
        path.peer_sends.last = Some((sends, now));
        if sends.full_kbit > 0 {
            let rate = Rate::from_bits_per_sec(u64::from(sends.full_kbit) * 1_000);
            path.peer_sends.full = Some((rate, now));
        }
    }

    /// How many packets may be bound now: as many as its rate lets through in one burst.
    fn round_packets(&mut self, now: Instant) -> usize {
        let Some(rate) = self.rate else {
            return ROUND_PACKETS;
        };
        self.bucket.set_rate(now, rate);
        if self.bucket.due(now, RATE_BURST).is_some() {
            return 0;
        }
        let bytes = rate as f64 / 8.0 * RATE_BURST.as_secs_f64();
        ((bytes / 1_500.0) as usize + 1).min(ROUND_PACKETS)
    }

    /// How many paths pass this bottleneck, this one included. Together they stand for each flow once.
    fn sharing(&self, bottleneck: Option<u8>) -> u8 {
        let Some(bottleneck) = bottleneck else {
            return 1;
        };
        let same = |path: &&PeerPath| path.config.bottleneck == Some(bottleneck);
        let count = self.paths.iter().flatten().filter(same).count();
        u8::try_from(count).unwrap_or(u8::MAX).max(1)
    }

    fn refresh(&mut self, now: Instant, links: &mut Links, sockets: &mut impl Sockets) {
        let flows = self.tunnel.waiting_flows();
        for (index, path) in self.paths.iter().enumerate() {
            let Some(path) = path else { continue };
            let sharing = self.sharing(path.config.bottleneck);
            let parts = flows.max(1).saturating_mul(FLOW_PARTS) / sharing;
            links.set_waiting_flows(path.link, parts);
            if let Some(snapshot) = links.snapshot(now, path.link, sockets) {
                #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
                self.tunnel.update_path(now, PathId(index as u8), snapshot);
            }
        }
    }

    /// Sends a control message over every path that has a link; they are idempotent.
    pub(crate) fn send_control(&self, links: &mut Links, control: &Control) {
        let mut bytes = Vec::new();
        emit_control(control, &mut bytes);
        let bytes = bytes::Bytes::from(bytes);
        for path in self.paths.iter().flatten() {
            links.queue(path.link, bytes.clone());
        }
    }

    /// The event of a tunnel that went up or down since the last call.
    pub(crate) fn up_or_down(&mut self) -> Option<Event> {
        let up = self.tunnel.any_up();
        (up != self.was_up).then(|| {
            self.was_up = up;
            let peer = self.name.clone();
            if up {
                Event::TunnelUp { peer }
            } else {
                Event::TunnelDown { peer }
            }
        })
    }

    /// Whether it has paths, and all of them are silent.
    pub(crate) fn is_out(&self) -> bool {
        self.tunnel.down_since().is_some() && self.paths.iter().any(Option::is_some)
    }

    /// Whether any path has gone silent.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    pub(crate) fn any_suspect(&self) -> bool {
        let state = |index| self.tunnel.path_state(PathId(index as u8));
        (0..PATHS_MAX).any(|index| matches!(state(index), Some(PathState::Suspect(_))))
    }

    /// When the tunnel wants its timeout handled.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let drained = self.draining.iter().map(|d| d.2).min();
        let waits = self.rate.is_some() && self.tunnel.queue_bytes() > 0;
        let paced = waits
            .then(|| self.bucket.due(self.tunnel.now(), RATE_BURST))
            .flatten();
        [self.tunnel.poll_timeout(), drained, paced]
            .into_iter()
            .flatten()
            .min()
    }

    /// State for people and programs.
    #[must_use]
    pub(crate) fn status(&self, links: &Links) -> TunnelStatus {
        let stats = self.tunnel.stats();
        TunnelStatus {
            peer: self.name.clone(),
            peer_key: self.key.to_string(),
            up: self.tunnel.any_up(),
            peer_addresses: Vec::new(),
            knows_next_key: None,
            serving_hub: None,
            serving_hub_addresses: Vec::new(),
            no_spare_s: None,
            scheduler_send: self.tunnel.scheduler(),
            scheduler_receive: self.scheduler_receive,
            wire_version: self.wire_version,
            reason: self.with_names(&self.tunnel.scheduler_reason()),
            tx_packets: stats.tx_packets,
            tx_bytes: stats.tx_bytes,
            rx_packets: stats.rx_packets,
            rx_bytes: stats.rx_bytes,
            queue_bytes: self.tunnel.queue_bytes(),
            queue_drops: stats.queue.dropped_codel + stats.queue.dropped_full,
            queue_marks: stats.queue.marked,
            buffer_drops: stats.buffer_drops,
            reordered: stats.reorder.reordered,
            held: stats.reorder.held,
            hold_timeouts: stats.reorder.hold_timeouts,
            duplicates: stats.reorder.duplicates,
            late: stats.reorder.late,
            repairs_asked: stats.repairs_asked,
            repairs_sent: stats.repairs_sent,
            repairs_dropped: stats.repairs_dropped,
            coded_sent: stats.coded_sent,
            recovered: stats.recovered,
            rescues_asked: stats.rescues_asked,
            rescued: stats.rescued,
            data_bytes: stats.data_bytes,
            protection_bytes: stats.protection_bytes,
            down_s: self
                .tunnel
                .down_since()
                .filter(|_| stats.hold.outages > 0)
                .map(|since| self.tunnel.now().since(since).as_secs_f64()),
            outages: stats.hold.outages,
            outage_s: stats.hold.down.as_secs_f64(),
            hold_bytes: self.tunnel.held_bytes(),
            replayed: stats.hold.replayed,
            hold_dropped_full: stats.hold.dropped_full,
            hold_dropped_old: stats.hold.dropped_old,
            freeze_stopped: stats.hold.stopped,
            freeze_bytes: stats.hold.proxy_ack_bytes,
            freeze_resets: stats.hold.resets,
            accelerated: stats.hold.accelerated,
            freeze_resent: stats.hold.resent,
            paths: self.path_statuses(links),
        }
    }

    /// What a scheduler says, with the names of uplinks in place of `path 3`.
    fn with_names(&self, reason: &str) -> String {
        let mut parts = reason.split("path ");
        let mut named = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            let path = number.parse().ok().and_then(|n: usize| self.paths.get(n));
            match path {
                Some(Some(path)) => named.extend([path.name.as_str(), rest]),
                _ => named.extend(["path ", part]),
            }
        }
        named
    }

    #[expect(clippy::cast_possible_truncation, reason = "PATHS_MAX is 16")]
    fn path_statuses(&self, links: &Links) -> Vec<PathStatus> {
        let paths = self.paths.iter().enumerate();
        let paths = paths.filter_map(|(i, p)| p.as_ref().map(|p| (PathId(i as u8), p)));
        paths
            .map(|(id, path)| self.path_status(links, id, path))
            .collect()
    }

    fn path_status(&self, links: &Links, id: PathId, path: &PeerPath) -> PathStatus {
        let stats = self.tunnel.path_stats(id).unwrap_or_default();
        let outer = links.outer_counters(path.link);
        let now = self.tunnel.now();
        let since = |at: Instant| now.since(at);
        let full = path.peer_sends.full;
        let full = full.filter(|(_, at)| since(*at) < FULL_FOR);
        let said = path.peer_sends.last;
        let lost = said.filter(|(_, at)| since(*at) < LOST_FOR);
        let state = match self.tunnel.path_state(id) {
            Some(PathState::Up) if self.tunnel.is_leaving(id) => "leaving",
            Some(PathState::Up) => "up",
            Some(PathState::Suspect(_)) => "suspect",
            None => "down",
        };
        PathStatus {
            id: id.0,
            uplink: path.name.clone(),
            state: state.into(),
            transport: path.link.transport().into(),
            local: links.local(path.link),
            remote: links.remote(path.link),
            standby: path.config.standby,
            metered: path.config.metered,
            congestion: path.congestion,
            rtt_ms: millis(stats.snapshot.srtt),
            rtt_min_ms: millis(stats.snapshot.min_rtt),
            rtt_newest_ms: None,
            owd_relative_ms: millis(stats.owd_relative),
            rate_mbit: mbit(stats.snapshot.rate),
            full_mbit: self.tunnel.full_rate(id, FULL_FOR).map(mbit),
            peer_full_mbit: full.map(|(rate, _)| mbit(rate)),
            peer_mtu: said.map(|(sends, _)| usize::from(sends.mtu)),
            peer_loss: lost.map(|(sends, _)| f64::from(sends.lost) / f64::from(u16::MAX)),
            loss: stats.loss,
            loss_burst: stats.loss_burst,
            cwnd: stats.snapshot.cwnd,
            in_flight: stats.snapshot.in_flight,
            mtu: outer.mtu,
            tx_bytes: outer.sent_bytes,
            rx_bytes: outer.received_bytes,
            sent_packets: stats.snapshot.sent_packets,
            lost_packets: stats.snapshot.lost_packets,
            failures: stats.suspected,
            last_error: None,
            said_metered: None,
            technology: None,
            signal: None,
            quota: None,
            words: Vec::new(),
        }
    }
}

fn mbit(rate: Rate) -> f64 {
    rate.bits_per_sec() as f64 / 1e6
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::StreamId;
    use ropewalk_transport::Identity;
    use ropewalk_types::{Ecn, PathSnapshot};
    use ropewalk_wire::{Stamp, emit_probe};

    fn peer() -> Peer {
        let identity = Identity::from_seed([1; 32]).expect("a key");
        let key = identity.public_key();
        let common = CommonSettings {
            identity,
            scheduler_send: Default::default(),
            scheduler_receive: Default::default(),
            classes: Arc::default(),
            hold: Default::default(),
            send: Default::default(),
            congestion: CongestionControl::default(),
            mtu: None,
        };
        Peer::new("site".into(), key, Default::default(), &common, None, 1)
    }

    #[test]
    fn reasons_have_the_names_of_uplinks() {
        let mut peer = peer();
        for (id, name) in [(1, "wlan0"), (11, "path 1")] {
            let path = PeerPath {
                link: LinkId::Tls(StreamId(id)),
                generation: 1,
                name: name.into(),
                config: PathConfig::default(),
                congestion: CongestionControl::default(),
                peer_sends: PeerSends::default(),
            };
            #[expect(clippy::cast_possible_truncation, reason = "two numbers")]
            peer.set_path(Instant::ZERO, PathId(id as u8), path);
        }
        let reason = "2 on path 1, 1 on path 11; path 3 not used: 90 ms later; the path that is first, path 999";
        let expected = "2 on wlan0, 1 on path 1; path 3 not used: 90 ms later; the path that is first, path 999";
        assert_eq!(peer.with_names(reason), expected);
    }

    #[test]
    fn only_a_new_connection_begins_its_numbers_at_zero() {
        let (now, id) = (Instant::from_millis(1_000), PathId(0));
        for (carriers, asked) in [([1, 2, 1], 0), ([1, 2, 3], 500)] {
            let mut peer = peer();
            let probe = |peer: &mut Peer, path_seq| {
                let stamp = Stamp {
                    path_seq,
                    ..Stamp::default()
                };
                let mut bytes = Vec::new();
                emit_probe(stamp, None, &mut bytes);
                let tunnel = &mut peer.tunnel;
                tunnel.handle_datagram(now, id, Ecn::NotEct, bytes.into());
            };
            for (generation, link) in (1..).zip(carriers) {
                let carrier = PeerPath {
                    link: LinkId::Tls(StreamId(link)),
                    generation,
                    name: "up0".into(),
                    config: PathConfig::default(),
                    congestion: CongestionControl::default(),
                    peer_sends: PeerSends::default(),
                };
                peer.set_path(now, id, carrier);
                if generation == 1 {
                    (0..500).for_each(|number| probe(&mut peer, number));
                }
            }
            probe(&mut peer, 500);
            let tunnel = &mut peer.tunnel;
            tunnel.update_path(now, id, PathSnapshot::default());
            tunnel.poll_transmit(now, &mut Vec::new(), 1);
            assert_eq!(tunnel.stats().repairs_asked, asked, "{carriers:?}");
        }
    }
}
