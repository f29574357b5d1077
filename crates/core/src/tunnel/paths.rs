//! The paths of a tunnel: their state, their sequence numbers, what is known of each.
//!
//! A path is suspect while data has been under way on it for clearly longer than two round trips,
//! a probe in between included, and nothing was acknowledged, or while the peer says so of its own direction. Suspicion is
//! cheap and reversible: the scheduler merely looks elsewhere. Declaring a path dead, and
//! building a new connection, is the gateway's part.

use super::Outgoing;
use crate::code::{BlockEncoder, Encoder, block_combinations, redundancy};
use crate::estimate::{LossEstimator, OneWayDelay, PathArrivals};
use crate::hold::Probing;
use crate::path::{PathConfig, PathMap, PathView};
use crate::protect::Protection;
use crate::repair::{Sent, SentLog};
use crate::schedule::PathSet;
use bytes::Bytes;
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, PathSnapshot, Rate};
use ropewalk_wire::{DATA_HEADER, Stamp, Timestamp, emit_probe};

/// Shortest silence that makes a path suspect.
const SUSPECT_MIN: Duration = Duration::from_millis(80);
/// Allowance for the peer's delayed acknowledgements and a busy machine.
const SUSPECT_MARGIN: Duration = Duration::from_millis(60);
/// The same for the probe that asks before.
const DOUBT_MARGIN: Duration = Duration::from_millis(30);
/// So long after its return a path still has what it carried before.
const EXCUSED_FOR: Duration = Duration::from_secs(1);
/// How long a peer's word that a path is suspect holds without being repeated.
const PEER_SUSPECT: Duration = Duration::from_millis(600);

/// While a whole tunnel is idle, one of its paths is probed so many times per probe interval.
const IDLE_TURNS: u32 = 4;

/// State of a path as the scheduler treats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Works as far as known.
    Up,
    /// Silent, in one direction or both, since the instant; used only when no other path is up.
    Suspect(Instant),
}

/// Counters and estimates of a path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathStats {
    /// Datagrams and their bytes bound to the path.
    pub tx_datagrams: u64,
    /// Bytes bound to the path.
    pub tx_bytes: u64,
    /// Datagrams received.
    pub rx_datagrams: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Times it became suspect.
    pub suspected: u64,
    /// One-way delay towards the peer relative to the fastest path.
    pub owd_relative: Duration,
    /// Share of datagrams lost towards the peer lately.
    pub loss: f64,
    /// Mean length of a run of losses.
    pub loss_burst: f64,
    /// The transport's last report.
    pub snapshot: PathSnapshot,
}

#[derive(Debug)]
pub(super) struct Path {
    pub config: PathConfig,
    pub snapshot: PathSnapshot,
    pub arrivals: PathArrivals,
    pub loss: LossEstimator,
    pub stats: PathStats,
    /// Packets that came over this path after they had been given up, since the last report.
    pub late: u16,
    /// What may have to be sent again.
    pub sent_log: SentLog,
    /// What repair symbols are made of.
    pub encoder: Encoder,
    /// The same for packets that are combined in blocks.
    pub blocks: BlockEncoder,
    /// Repair symbols per packet instead of as many as the loss asks for.
    fixed_redundancy: Option<f64>,
    /// Until when redundancy stays as it is.
    sized_until: Instant,
    /// What protection may still spend here.
    budget: Budget,
    /// Until when packets of sparse flows take another path as well.
    pub doubt_until: Instant,
    /// When a probe follows the newest packet, so that its loss shows.
    tail_due: Option<Instant>,
    pub suspect_since: Option<Instant>,
    pub peer_suspect: Option<PeerSuspect>,
    /// When the last datagram of the peer came.
    pub heard_at: Instant,
    /// The silence under way counts from here: the path has shown life since it began.
    pub excused_at: Instant,
    /// What it carried since then may not have arrived, and has not been sent again.
    pub undelivered: Option<Instant>,
    /// Its end has been announced: used only while there is nothing else.
    pub leaving: bool,
    next_seq: u16,
    last_sent: Instant,
    /// When silence was last answered with a probe.
    probed_at: Instant,
    /// A probe is wanted whatever the path has carried.
    asked: bool,
}

/// The peer's word that it gets no acknowledgements on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSuspect {
    since: Instant,
    until: Instant,
}

impl Path {
    /// A path that works one way only is suspect as well.
    pub fn state(&self) -> PathState {
        let peers = self.peer_suspect.map(|word| word.since);
        let since = self.suspect_since.into_iter().chain(peers).min();
        since.map_or(PathState::Up, PathState::Suspect)
    }

    /// Whether this side gets no acknowledgements.
    pub const fn suspect(&self) -> bool {
        self.suspect_since.is_some()
    }

    pub const fn usable(&self) -> bool {
        self.suspect_since.is_none() && self.peer_suspect.is_none() && !self.leaving
    }

    /// Whether its end has been announced.
    pub const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether the peer had better not use it.
    pub const fn unwanted(&self) -> bool {
        self.suspect() || self.leaving
    }

    /// The silence under way, less what a sign of life excuses.
    fn silent_since(&self) -> Option<Instant> {
        let since = self.snapshot.silent_since?;
        Some(since.max(self.excused_at))
    }

    /// Silence after which a probe asks for a sign of life: the last packet may have been lost,
    /// or nothing more be under way that the peer would answer (compare RFC 9002 §6.2).
    fn doubt(&self) -> Duration {
        let s = &self.snapshot;
        s.srtt + 2 * s.rttvar + DOUBT_MARGIN
    }

    /// Silence after which the path is suspect: the probe, too, should have been answered.
    fn patience(&self) -> Duration {
        let s = &self.snapshot;
        (2 * s.srtt + 4 * s.rttvar + SUSPECT_MARGIN).max(SUSPECT_MIN)
    }

    /// When the silence under way first calls for a probe: an acknowledgement is overdue, and none
    /// of another packet has come, either.
    fn doubted_at(&self) -> Option<Instant> {
        let since = self.snapshot.silent_since?;
        let oldest = self.snapshot.oldest_sent.unwrap_or(since);
        let quiet = 2 * self.snapshot.rttvar + DOUBT_MARGIN;
        Some((oldest + self.doubt()).max(since + quiet))
    }

    /// When the silence under way calls for a probe: once, and again and again while there is
    /// no other path to look to.
    fn doubt_due(&self, alone: bool) -> Option<Instant> {
        let since = self.snapshot.silent_since?;
        if self.probed_at < since || self.probed_at == Instant::ZERO {
            return self.doubted_at();
        }
        alone.then(|| self.probed_at + Probing::interval(self.probed_at.since(since)))
    }

    /// Whether it has been silent for long enough to be doubted.
    pub fn in_doubt(&self, now: Instant) -> bool {
        self.suspect() || self.doubted_at().is_some_and(|at| at <= now)
    }

    /// Judges the silence under way; whether the path has become suspect, or is no longer. What
    /// it carried since then is `doubtful`.
    fn judge(&mut self, now: Instant) -> bool {
        let silent = self.silent_since();
        let suspect = silent.filter(|&since| now.since(since) > self.patience());
        if suspect.is_some() == self.suspect() {
            return false;
        }
        self.suspect_since = suspect;
        if let Some(since) = suspect {
            self.stats.suspected += 1;
            // What was acknowledged last had been sent a round trip before.
            let since = since - self.snapshot.srtt - self.snapshot.rttvar;
            self.undelivered = Some(since);
        } else {
            self.leaving = false;
        }
        true
    }

    /// Stamps the next datagram of this path.
    pub fn stamp(&mut self, now: Instant, bytes: usize) -> Stamp {
        let path_seq = self.next_seq;
        self.next_seq = self.next_seq.wrapping_add(1);
        self.last_sent = now;
        self.tail_due = None;
        self.stats.tx_datagrams += 1;
        self.stats.tx_bytes += bytes as u64;
        Stamp {
            path_seq,
            sent_at: Timestamp::from_instant(now),
        }
    }
}

impl Path {
    /// Whether protection may spend so many bytes here; they count as spent then.
    pub fn afford(&mut self, now: Instant, bytes: usize) -> bool {
        let hourly = self.config.protection_hourly();
        hourly.is_none_or(|hourly| self.budget.spend(now, hourly, bytes))
    }

    /// Follows what the path loses, with as many repair symbols as make up for it within a round
    /// trip. While that is not known yet a slow path gets some anyway: what is lost at the start of
    /// a transfer costs it most.
    pub fn protect(&mut self, now: Instant) {
        // Reports of one path may come in any number; what follows from them takes its time.
        if now < self.sized_until {
            return;
        }
        self.sized_until = now + SIZED_FOR;
        let steady = self.loss.loss_steady(now);
        let gilbert = self.loss.gilbert_with(steady.unwrap_or(0.0));
        let wanted = match (self.fixed_redundancy, steady) {
            (Some(fixed), _) => fixed,
            (None, Some(_)) => redundancy(gilbert, self.packets_per_round_trip()),
            (None, None) if self.snapshot.rate < UNKNOWN_RATE_MAX => UNKNOWN_REDUNDANCY,
            (None, None) => 0.0,
        };
        self.encoder.set_redundancy(wanted);
        if self.blocks.is_used() {
            self.blocks.set_repair_symbols(block_combinations(gilbert));
        }
    }

    /// Packets sent in the shortest round trip, by their pace or else by the path's.
    fn packets_per_round_trip(&self) -> f64 {
        let interval = match self.encoder.interval() {
            Duration::ZERO => self.snapshot.rate.time_for(USUAL_BYTES),
            interval => interval,
        };
        self.snapshot.min_rtt.as_secs_f64() / interval.as_secs_f64().max(1e-9)
    }

    /// Remembers a packet just stamped, in case it is lost.
    pub fn remember(&mut self, now: Instant, datagram: &Bytes, dscp: u8, protection: Protection) {
        if protection == Protection::None {
            return;
        }
        let seq = self.next_seq.wrapping_sub(1);
        match protection {
            Protection::None | Protection::Duplicate => {}
            Protection::Block => self.blocks.on_sent(now, seq, datagram),
            Protection::Code => self.encoder.on_sent(now, seq, datagram, true),
            Protection::Adaptive => self.encoder.on_sent(now, seq, datagram, false),
        }
        self.remember_lost(now, datagram, dscp, 0);
    }

    /// The same for one that was lost `losses` times before.
    pub fn remember_lost(&mut self, now: Instant, datagram: &Bytes, dscp: u8, losses: u8) {
        let seq = self.next_seq.wrapping_sub(1);
        if !self.sent_log.keeps(now, self.snapshot.rate) {
            return;
        }
        if self.sent_log.wanted(now) || self.encoder.redundancy() > 0.0 {
            self.tail_due = Some(now + TAIL);
        }
        let sent = Sent {
            datagram: datagram.clone(),
            dscp,
            at: now,
            losses,
            copy: None,
        };
        self.sent_log.keep(seq, sent);
    }
}

/// What protection may spend on a path that costs money: a bucket that holds what ten minutes bring.
#[derive(Clone, Copy, Debug)]
struct Budget {
    bytes: f64,
    at: Instant,
}

impl Budget {
    const fn new(now: Instant) -> Self {
        let bytes = f64::INFINITY; // full, whatever that is
        Self { bytes, at: now }
    }

    fn spend(&mut self, now: Instant, hourly: u64, bytes: usize) -> bool {
        let hourly = hourly as f64;
        let earned = hourly * now.since(self.at).as_secs_f64() / 3_600.0;
        self.bytes = (self.bytes + earned).min(hourly / 6.0);
        self.at = now;
        let enough = self.bytes >= bytes as f64;
        if enough {
            self.bytes -= bytes as f64;
        }
        enough
    }
}

/// All paths of a tunnel.
#[derive(Debug)]
pub(super) struct Paths {
    /// Boxed: each is large, and looking for one must not touch the others.
    pub map: PathMap<Box<Path>>,
    pub owd: OneWayDelay,
    /// A path has just become suspect, or is no longer: the peer should know at once.
    pub state_changed: bool,
    /// What went over paths that are gone or back and may not have arrived, or did not.
    pub doubtful: Vec<Sent>,
    /// Paths on which everything in flight is lost.
    pub declared_lost: PathSet,
    probe_interval: Option<Duration>,
    redundancy: Option<f64>,
}

impl Paths {
    pub fn new(probe_interval: Option<Duration>, redundancy: Option<f64>) -> Self {
        Self {
            map: PathMap::default(),
            owd: OneWayDelay::new(),
            state_changed: false,
            doubtful: Vec::new(),
            declared_lost: PathSet::default(),
            probe_interval,
            redundancy,
        }
    }

    pub fn add(&mut self, now: Instant, id: PathId, config: PathConfig) {
        debug_assert!(id.index() < PATHS_MAX, "no such path: {id}");
        let mut path = Path {
            config,
            snapshot: PathSnapshot::default(),
            arrivals: PathArrivals::new(),
            loss: LossEstimator::new(),
            stats: PathStats::default(),
            late: 0,
            sent_log: SentLog::default(),
            encoder: Encoder::default(),
            fixed_redundancy: self.redundancy,
            blocks: BlockEncoder::default(),
            sized_until: Instant::ZERO,
            budget: Budget::new(now),
            doubt_until: Instant::ZERO,
            tail_due: None,
            suspect_since: None,
            peer_suspect: None,
            heard_at: now,
            excused_at: Instant::ZERO,
            undelivered: None,
            leaving: false,
            next_seq: 0,
            last_sent: now,
            probed_at: Instant::ZERO,
            asked: false,
        };
        path.protect(now);
        self.map.insert(id, Box::new(path));
    }

    /// Takes a path away; what may not have arrived is doubtful.
    pub fn remove(&mut self, now: Instant, id: PathId) -> bool {
        self.owd.on_path_removed(id);
        let Some(mut path) = self.map.remove(id) else {
            return false;
        };
        let unacknowledged = now - path.snapshot.srtt - path.snapshot.rttvar;
        self.doubtful
            .extend(path.sent_log.take_since(unacknowledged));
        true
    }

    pub fn get(&self, id: PathId) -> Option<&Path> {
        self.map.get(id).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.map.get_mut(id).map(Box::as_mut)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PathId, &Path)> {
        self.map.iter().map(|(id, path)| (id, &**path))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PathId, &mut Path)> {
        self.map.iter_mut().map(|(id, path)| (id, &mut **path))
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn update(&mut self, now: Instant, id: PathId, snapshot: PathSnapshot) {
        if let Some(path) = self.map.get_mut(id) {
            path.snapshot = snapshot;
            self.state_changed |= path.judge(now);
        }
    }

    /// The path with the shortest round trip, and the next one; usable ones first.
    pub fn quickest_two(&self) -> [Option<PathId>; 2] {
        let mut best = [None; 2];
        for (id, path) in self.iter() {
            let rank = Some((!path.usable(), path.snapshot.srtt, id));
            if best[0].is_none() || rank < best[0] {
                best = [rank, best[0]];
            } else if best[1].is_none() || rank < best[1] {
                best[1] = rank;
            }
        }
        best.map(|rank| rank.map(|(_, _, id)| id))
    }

    /// Shortest smoothed round trip of the usable paths.
    pub fn quickest_srtt(&self) -> Option<Duration> {
        let usable = self.iter().filter(|(_, path)| path.usable());
        usable.map(|(_, path)| path.snapshot.srtt).min()
    }

    /// Whether protection may spend so many bytes on this path; they count as spent then.
    pub fn afford(&mut self, now: Instant, id: PathId, bytes: usize) -> bool {
        self.get_mut(id).is_some_and(|path| path.afford(now, bytes))
    }

    /// Shortest round trip that a usable path has shown.
    pub fn quickest_min_rtt(&self) -> Option<Duration> {
        let usable = self.iter().filter(|(_, path)| path.usable());
        usable.map(|(_, path)| path.snapshot.min_rtt).min()
    }

    /// Of the packet that carries the number `last` on its path there is one copy more. The copies of a
    /// packet form a ring, each with the place of the next.
    pub fn link_copy(&mut self, last: (PathId, u16), new: (PathId, u16)) {
        let Some(path) = self
            .get_mut(last.0)
            .filter(|path| path.sent_log.has(last.1))
        else {
            return;
        };
        let first = path.sent_log.copy(last.1).unwrap_or(last);
        path.sent_log.set_copy(last.1, Some(new));
        if let Some(path) = self.get_mut(new.0) {
            path.sent_log.set_copy(new.1, Some(first));
        }
    }

    /// The copy at `lost` is missed, and has been taken out; `next` follows it in the ring. Whether that
    /// one may still arrive.
    pub fn unlink_copy(&mut self, lost: (PathId, u16), next: (PathId, u16)) -> bool {
        let arrives = |path: &&mut Path| path.usable() && path.sent_log.has(next.1);
        let Some(path) = self.get_mut(next.0).filter(arrives) else {
            return false;
        };
        match path.sent_log.copy(next.1) {
            Some(before) if before != lost => {
                if let Some(path) = self.get_mut(before.0) {
                    path.sent_log.set_copy(before.1, Some(next));
                }
            }
            _ => path.sent_log.set_copy(next.1, None),
        }
        true
    }

    /// The peer asked for a repair on this path.
    pub fn wants_repair(&mut self, now: Instant, id: PathId) -> Option<&mut Path> {
        let path = self.get_mut(id)?;
        path.sent_log.want(now);
        // A NACK may come long after: what a probe of an idle path shows to be missing. After
        // an outage that is not too late.
        if !path.suspect() && now.since(path.excused_at) > EXCUSED_FOR {
            path.sent_log.forget_old(now);
        }
        Some(path)
    }

    /// The peer gets no acknowledgements on this path, or gets them again.
    pub fn peer_says(&mut self, now: Instant, id: PathId, suspect: bool) {
        if let Some(path) = self.get_mut(id) {
            // What the peer says now it may have said before it heard of the return.
            let stale = suspect && now.since(path.excused_at) < path.patience();
            if stale && path.excused_at > Instant::ZERO {
                return;
            }
            let since = path.peer_suspect.map_or(now, |word| word.since);
            path.peer_suspect = suspect.then(|| PeerSuspect {
                since,
                until: now + PEER_SUSPECT,
            });
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        for (_, path) in self.map.iter_mut() {
            self.state_changed |= path.judge(now);
            path.peer_suspect = path.peer_suspect.filter(|word| word.until > now);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.none_certain(None);
        let due = |path: &Path| {
            let silence = path.silent_since().filter(|_| !path.suspect());
            let suspect = silence.map(|since| since + path.patience() + ROUNDING);
            [
                suspect,
                path.peer_suspect.map(|word| word.until),
                path.doubt_due(alone),
                path.tail_due,
            ]
            .into_iter()
            .flatten()
            .min()
        };
        let paths = self.iter().filter_map(|(_, path)| due(path));
        paths.chain(self.idle_probe().map(|(at, _)| at)).min()
    }

    /// When an idle path is probed next, and which: one that has carried nothing for the interval;
    /// while the whole tunnel is idle the paths take turns, so that a peer that has gone is
    /// noticed sooner than any one path would notice.
    fn idle_probe(&self) -> Option<(Instant, PathId)> {
        let interval = self.probe_interval?;
        let (id, oldest) = self.iter().min_by_key(|(_, path)| path.last_sent)?;
        let newest = self.iter().map(|(_, path)| path.last_sent).max()?;
        let due = (oldest.last_sent + interval).min(newest + interval / IDLE_TURNS);
        Some((due, id))
    }

    /// Asks every path for a sign of life at the next opportunity.
    pub fn ask_all(&mut self) {
        for (_, path) in self.iter_mut() {
            path.asked = true;
        }
    }

    /// Appends a probe for a path that has carried nothing for long, and for those whose silence
    /// raises doubt.
    pub fn poll_probes(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        let due = self.idle_probe().filter(|(at, _)| *at <= now);
        let alone = self.none_certain(Some(now));
        for (id, path) in self.iter_mut() {
            let asked = std::mem::take(&mut path.asked);
            let idle = asked || due.is_some_and(|(_, path)| path == id);
            let doubt = path.doubt_due(alone).is_some_and(|at| at <= now);
            if doubt {
                path.probed_at = now;
            }
            let tail = path.tail_due.is_some_and(|at| at <= now);
            if tail {
                path.encoder.on_pause();
                path.blocks.on_pause();
            }
            if idle && path.undelivered.is_none() {
                path.sent_log.forget_old(now);
            }
            if idle || doubt || tail {
                let mut bytes = Vec::with_capacity(PROBE_BYTES);
                let newest = path.arrivals.newest();
                emit_probe(path.stamp(now, PROBE_BYTES), newest, &mut bytes);
                out.push(Outgoing {
                    path: id,
                    datagram: Bytes::from(bytes),
                    dscp: 0,
                    urgent: doubt,
                });
            }
        }
    }

    /// Whether every path has fallen silent, by `now` or else by when it was last probed: there is
    /// none to look to.
    fn none_certain(&self, now: Option<Instant>) -> bool {
        self.iter().all(|(_, path)| {
            let probed = path
                .snapshot
                .silent_since
                .is_some_and(|since| path.probed_at >= since);
            probed || now.is_some_and(|now| path.in_doubt(now))
        })
    }

    /// The views the scheduler may choose from: paths that are up; when none is, all; standby
    /// paths only when nothing else is left.
    pub fn views(&mut self, now: Instant, views: &mut Vec<PathView>) {
        views.clear();
        let any_up = self.iter().any(|(_, p)| p.usable());
        let eligible = |p: &Path| p.usable() || !any_up;
        let any_active = self.iter().any(|(_, p)| eligible(p) && !p.config.standby);
        let chosen = self
            .iter()
            .filter(|(_, p)| eligible(p) && (!p.config.standby || !any_active));
        for (id, path) in chosen {
            let s = &path.snapshot;
            views.push(PathView {
                id,
                config: path.config.clone(),
                srtt: s.srtt,
                rttvar: s.rttvar,
                min_rtt: s.min_rtt,
                owd_relative: Duration::ZERO,
                cwnd: s.cwnd,
                in_flight: s.in_flight,
                queued: s.queued,
                free: s.free,
                next_credit: s.next_credit,
                rate: rate_floor(s),
                payload_max: s.max_datagram.saturating_sub(DATA_HEADER),
                loss: path.loss.loss_lately(now),
            });
        }
        self.owd.fill(now, views);
    }

    /// Sum of the rates of usable paths.
    pub fn rate(&self) -> Rate {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable.fold(Rate::ZERO, |sum, (_, p)| {
            let s = &p.snapshot;
            let rate = if s.rate > Rate::ZERO {
                s.rate
            } else {
                Rate::from_transfer(s.cwnd, s.srtt)
            };
            sum.saturating_add(rate)
        })
    }

    /// Longest of the usable paths' smallest round trips.
    pub fn rtt_max(&self) -> Duration {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable
            .map(|(_, p)| p.snapshot.min_rtt)
            .max()
            .unwrap_or_default()
    }

    /// Longest time that repairs add to what crosses a usable path: a round trip where there is
    /// nearly always something missing.
    pub fn repair_max(&self, now: Instant) -> Duration {
        let usable = self.iter().filter(|(_, p)| p.usable());
        let repair = |path: &Path| {
            let loss = path.loss.loss_steady(now).unwrap_or(0.0);
            let missing = (loss * path.packets_per_round_trip()).min(1.0);
            path.snapshot.min_rtt.mul_f64(missing)
        };
        usable
            .map(|(_, path)| repair(path))
            .max()
            .unwrap_or_default()
    }

    /// Largest variation of the usable paths' round trips.
    pub fn rttvar_max(&self) -> Duration {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable
            .map(|(_, p)| p.snapshot.rttvar)
            .max()
            .unwrap_or_default()
    }

    pub fn payload_max(&self) -> Option<usize> {
        let usable = self.iter().filter(|(_, p)| p.usable());
        usable
            .map(|(_, p)| p.snapshot.max_datagram.saturating_sub(DATA_HEADER))
            .min()
    }

    pub fn stats(&self, now: Instant, id: PathId) -> Option<PathStats> {
        let path = self.get(id)?;
        let mut stats = path.stats.clone();
        stats.owd_relative = self.owd.relative(now, id);
        stats.loss = path.loss.loss();
        stats.loss_burst = path.loss.mean_burst();
        stats.snapshot = path.snapshot.clone();
        Some(stats)
    }

    /// The path a report should take: the one it is about if that is a single one, so that a probe
    /// is answered where it came from and other paths stay idle; else the quickest that is up.
    pub fn for_report(&self) -> Option<PathId> {
        let mut heard = self.iter().filter(|(_, path)| path.arrivals.any());
        if let (Some((id, path)), None) = (heard.next(), heard.next())
            && path.usable()
        {
            return Some(id);
        }
        let rank = |(id, p): &(PathId, &Path)| (!p.usable(), p.snapshot.srtt, *id);
        self.iter().min_by_key(rank).map(|(id, _)| id)
    }
}

/// The measured rate, or what a small window per round trip would give: a path that carried a
/// little for a while must not look too sparse to be given work again.
fn rate_floor(snapshot: &PathSnapshot) -> Rate {
    if snapshot.rate == Rate::ZERO {
        return Rate::ZERO;
    }
    let window = snapshot.cwnd.min(SMALL_WINDOW);
    snapshot
        .rate
        .max(Rate::from_transfer(window, snapshot.srtt))
}

/// A path that loses packets and has carried nothing more for this long is probed, so that the
/// egress sees whether the newest packet was lost.
const TAIL: Duration = Duration::from_millis(5);
/// Bytes of a window that any path may be tried with.
const SMALL_WINDOW: u64 = 16_000;
/// Repair symbols per packet of a path whose loss is not known yet, and the rate up to which it gets
/// them.
const UNKNOWN_REDUNDANCY: f64 = 0.05;
const UNKNOWN_RATE_MAX: Rate = Rate::from_bits_per_sec(200_000_000);
/// The judgement is "longer than": the timer goes off just after.
const ROUNDING: Duration = Duration::from_micros(10);
/// How long redundancy stays as it is, a little less than the interval of reports.
const SIZED_FOR: Duration = Duration::from_millis(80);
/// Bytes of a datagram of the usual size.
const USUAL_BYTES: u64 = 1_400;
/// Bytes of a probe datagram.
const PROBE_BYTES: usize = 8;
