//! The paths of a tunnel: one [`Path`] each, and what concerns them all.
//!
//! [`liveness`] judges silence, [`probes`] asks, [`coding`] sizes repair symbols, [`views`] is what
//! schedulers and queues are told, [`whole`] is which packets fit.

mod coding;
mod liveness;
mod probes;
mod views;
mod whole;

pub use liveness::PathState;

use super::tuning::{EXCUSED_FOR, QUEUE_STANDS, QUEUE_STANDS_SHARE, TAIL};
use crate::estimate::{FullRate, LossEstimator, OneWayDelay, PathArrivals};
use crate::path::{PathConfig, PathMap};
use crate::protect::Protection;
use crate::repair::{Sent, SentLog};
use crate::schedule::PathSet;
use bytes::Bytes;
use coding::{Budget, Coding};
use liveness::{PathLiveness, Standing, unacknowledged};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, PathSnapshot, Rate};
use ropewalk_wire::{Stamp, Timestamp};
use whole::Whole;

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

/// One path.
#[derive(Debug)]
pub(super) struct Path {
    pub config: PathConfig,
    pub snapshot: PathSnapshot,
    pub arrivals: PathArrivals,
    pub loss: LossEstimator,
    pub stats: PathStats,
    pub liveness: PathLiveness,
    pub coding: Coding,
    /// Packets that came over this path after they had been given up, since the last report.
    pub late: u16,
    /// What may have to be sent again.
    pub sent_log: SentLog,
    /// What protection may still spend here.
    budget: Budget,
    /// Until when packets of sparse flows take another path as well.
    pub doubt_until: Instant,
    /// When a probe follows the newest packet, so that its loss shows.
    tail_due: Option<Instant>,
    next_seq: u16,
    last_sent: Instant,
    /// When a queue was last seen to stand on it.
    queued_at: Option<Instant>,
    full_rate: FullRate,
    /// A probe is wanted whatever the path has carried.
    asked: bool,
}

impl Path {
    fn new(now: Instant, config: PathConfig, redundancy: Option<f64>) -> Self {
        let mut path = Self {
            config,
            snapshot: PathSnapshot::default(),
            arrivals: PathArrivals::new(),
            loss: LossEstimator::new(),
            stats: PathStats::default(),
            liveness: PathLiveness::new(now),
            coding: Coding::new(redundancy),
            late: 0,
            sent_log: SentLog::default(),
            budget: Budget::new(now),
            doubt_until: Instant::ZERO,
            tail_due: None,
            next_seq: 0,
            last_sent: now,
            queued_at: None,
            full_rate: FullRate::default(),
            asked: false,
        };
        path.protect(now);
        path
    }

    pub fn state(&self) -> PathState {
        self.liveness.state()
    }

    /// Whether this side gets no acknowledgements.
    pub const fn suspect(&self) -> bool {
        self.liveness.suspect()
    }

    pub fn usable(&self) -> bool {
        self.liveness.usable()
    }

    /// How gladly it is used.
    pub const fn standing(&self) -> Standing {
        self.liveness.standing()
    }

    /// Whether its end has been announced.
    pub const fn is_leaving(&self) -> bool {
        self.liveness.leaving
    }

    /// Whether the peer had better not use it.
    pub const fn unwanted(&self) -> bool {
        self.suspect() || self.is_leaving()
    }

    /// Notes whether a queue stands on the path, and what it carries then.
    fn watch_queue(&mut self, now: Instant) {
        let s = &self.snapshot;
        if s.srtt.saturating_sub(s.min_rtt) > QUEUE_STANDS.max(s.min_rtt / QUEUE_STANDS_SHARE) {
            self.queued_at = Some(now);
            // While nothing is acknowledged the window fills, too.
            let answered = !self.liveness.suspect();
            if answered && s.in_flight + s.max_datagram as u64 >= s.cwnd {
                self.full_rate.on_full(now, s.rate);
            }
        }
    }

    /// Whether no queue has stood on the path for as long as a report may be behind.
    pub fn is_calm(&self, now: Instant) -> bool {
        self.queued_at
            .is_none_or(|at| now.since(at) > self.snapshot.srtt)
    }

    /// What it carries when it is full, if it was for `lately`.
    pub fn full_rate(&self, now: Instant, lately: Duration) -> Option<Rate> {
        self.full_rate.get(now, lately)
    }

    /// Whether it has been silent for long enough to be doubted.
    pub fn in_doubt(&self, now: Instant) -> bool {
        self.liveness.in_doubt(now, &self.snapshot)
    }

    /// Judges the silence under way; whether the path has become suspect, or is no longer.
    fn judge(&mut self, now: Instant) -> bool {
        let changed = self.liveness.judge(now, &self.snapshot);
        if changed {
            self.full_rate = FullRate::default();
        }
        self.stats.suspected += u64::from(changed && self.suspect());
        changed
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

    /// Sizes repair symbols by what the path loses.
    pub fn protect(&mut self, now: Instant) {
        self.coding.size(now, &self.loss, &self.snapshot);
    }

    /// Remembers a packet just stamped, in case it is lost: its codepoint, and whether it is TCP's.
    pub fn remember(
        &mut self,
        now: Instant,
        datagram: &Bytes,
        (dscp, tcp): (u8, bool),
        protection: Protection,
    ) {
        if protection == Protection::None {
            return;
        }
        let seq = self.next_seq.wrapping_sub(1);
        match protection {
            Protection::None | Protection::Duplicate => {}
            Protection::Block => self.coding.blocks.on_sent(now, seq, datagram),
            Protection::Code => self.coding.encoder.on_sent(now, seq, datagram, true),
            Protection::Adaptive => self.coding.encoder.on_sent(now, seq, datagram, false),
        }
        self.remember_lost(now, datagram, (dscp, tcp), 0);
    }

    /// The same for one that was lost `losses` times before.
    pub fn remember_lost(
        &mut self,
        now: Instant,
        datagram: &Bytes,
        (dscp, tcp): (u8, bool),
        losses: u8,
    ) {
        let seq = self.next_seq.wrapping_sub(1);
        if !self.sent_log.keeps(now, self.snapshot.rate) {
            return;
        }
        if self.sent_log.wanted(now) || self.coding.encoder.redundancy() > 0.0 {
            self.tail_due = Some(now + TAIL);
        }
        let sent = Sent {
            datagram: datagram.clone(),
            dscp,
            tcp,
            at: now,
            losses,
            copy: None,
        };
        self.sent_log.set_round_trip(self.snapshot.srtt);
        self.sent_log.keep(seq, sent);
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
    whole: Whole,
    probe_interval: Option<Duration>,
    /// Tunnels of the process whose paths are all silent.
    pub outages: u32,
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
            whole: Whole::default(),
            probe_interval,
            outages: 1,
            redundancy,
        }
    }

    pub fn add(&mut self, now: Instant, id: PathId, config: PathConfig) {
        debug_assert!(id.index() < PATHS_MAX, "no such path: {id}");
        let path = Path::new(now, config, self.redundancy);
        self.map.insert(id, Box::new(path));
    }

    /// Takes a path away; what may not have arrived is doubtful.
    pub fn remove(&mut self, now: Instant, id: PathId) -> bool {
        self.owd.on_path_removed(id);
        let Some(mut path) = self.map.remove(id) else {
            return false;
        };
        let silent = path.snapshot.silent_since.unwrap_or(now);
        let unacknowledged = unacknowledged(silent, &path.snapshot);
        let undelivered = path.liveness.undelivered.unwrap_or(now);
        self.doubtful
            .extend(path.sent_log.take_since(unacknowledged.min(undelivered)));
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
            let silent = path.snapshot.silent_since;
            let since = silent.map(|silence| unacknowledged(silence, &path.snapshot));
            path.sent_log.set_unacknowledged(since);
            path.watch_queue(now);
            self.state_changed |= path.judge(now);
            self.follow_sizes(now);
        }
    }

    /// Whether protection may spend so many bytes on this path; they count as spent then.
    pub fn afford(&mut self, now: Instant, id: PathId, bytes: usize) -> bool {
        self.get_mut(id).is_some_and(|path| path.afford(now, bytes))
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
        if !path.suspect() && now.since(path.liveness.excused_at) > EXCUSED_FOR {
            path.sent_log.forget_old(now);
        }
        Some(path)
    }

    /// The peer gets no acknowledgements on this path, or gets them again.
    pub fn peer_says(&mut self, now: Instant, id: PathId, suspect: bool) {
        if let Some(path) = self.get_mut(id) {
            path.liveness.peer_says(now, &path.snapshot, suspect);
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        for (_, path) in self.map.iter_mut() {
            self.state_changed |= path.judge(now);
            path.liveness.expire(now);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.none_certain(None).then(|| self.sharers());
        let due = |path: &Path| {
            let liveness = path.liveness.poll_timeout(&path.snapshot);
            let doubt = path.liveness.doubt_due(&path.snapshot, alone);
            [liveness, doubt, path.tail_due].into_iter().flatten().min()
        };
        let paths = self.iter().filter_map(|(_, path)| due(path));
        paths.chain(self.idle_probe().map(|(at, _)| at)).min()
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

    /// The path a report should take. A report about a single path takes that path: a probe is
    /// answered where it came from, and other paths stay idle. Other reports take the quickest path
    /// that is up.
    pub fn for_report(&self) -> Option<PathId> {
        let mut heard = self.iter().filter(|(_, path)| path.arrivals.any());
        if let (Some((id, path)), None) = (heard.next(), heard.next())
            && path.usable()
        {
            return Some(id);
        }
        let rank = |(id, p): &(PathId, &Path)| (p.standing(), p.snapshot.srtt, *id);
        self.iter().min_by_key(rank).map(|(id, _)| id)
    }
}
