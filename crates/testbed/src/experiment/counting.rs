//! Counters of links and gateways at the beginning and the end of the counted time.

use std::time::Instant;

use anyhow::Result;
use ropewalk_api::TunnelStatus;
use ropewalk_netem::{Counters, Side};
use ropewalk_plan::{PathReport, Report, TunnelReport};

use super::Window;
use super::carrier::Carried;
use super::ground::Ground;
use crate::gateway::Gateway;
use crate::link::{Link, LinkCounters};
use crate::processor::ProcessorTime;

/// All counters at one time.
#[derive(Debug, Default)]
struct Snapshot {
    links: Vec<LinkCounters>,
    shared: Vec<LinkCounters>,
    /// The tunnel of each hop, at the hub's end and at the site's.
    tunnels: Vec<[TunnelStatus; 2]>,
    /// Processor time of the whole machine.
    processor: ProcessorTime,
}

/// All counters at the beginning and at the end.
#[derive(Debug)]
pub(super) struct Counts {
    first: Snapshot,
    last: Snapshot,
}

impl Counts {
    /// Sleeps until the counted time begins and until it ends, and reads the counters.
    pub(super) fn collect(
        carried: &Carried,
        ground: &Ground,
        begin: Instant,
        window: Window,
    ) -> Result<Self> {
        let at = |time| {
            std::thread::sleep((begin + time).saturating_duration_since(Instant::now()));
            Snapshot::take(carried, ground)
        };
        Ok(Self {
            first: at(window.from)?,
            last: at(window.to)?,
        })
    }

    /// Writes paths and tunnel into the report.
    pub(super) fn describe(&self, report: &mut Report, side: Side) {
        let pick = |counters: &LinkCounters| match side {
            Side::Up => counters.up,
            Side::Down => counters.down,
        };
        let pairs = self.first.links.iter().zip(&self.last.links);
        report.paths = pairs.map(|(a, b)| path(&pick(a), &pick(b))).collect();
        let pairs = self.first.shared.iter().zip(&self.last.shared);
        report.links = pairs.map(|(a, b)| path(&pick(a), &pick(b))).collect();
        let hops = self.first.tunnels.iter().zip(&self.last.tunnels);
        let mut hops: Vec<_> = hops
            .map(|(first, last)| tunnel(first, last, side))
            .collect();
        if side == Side::Down {
            hops.reverse();
        }
        report.tunnel = match hops.len() {
            0 | 1 => hops.pop(),
            _ => TunnelReport::of_hops(&hops),
        };
        let processor = self.last.processor.since(self.first.processor);
        report.notes.push(processor.note());
    }
}

impl Snapshot {
    fn take(carried: &Carried, ground: &Ground) -> Result<Self> {
        let links = ground.links().into_iter().map(Link::counters);
        let shared = ground.shared_links().into_iter().map(Link::counters);
        let status = |gateway: &Gateway| Ok(gateway.status()?.tunnels);
        let gateways = carried.gateways().iter().map(status);
        let gateways = gateways.collect::<Result<Vec<_>>>()?;
        // A relay's tunnel towards the hub comes first, that of its site last.
        let hop = |pair: &[Vec<TunnelStatus>]| {
            let hub = pair[1].last().cloned().unwrap_or_default();
            [hub, pair[0].first().cloned().unwrap_or_default()]
        };
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            shared: shared.collect::<Result<_>>()?,
            tunnels: gateways.windows(2).map(hop).collect(),
            processor: ProcessorTime::now(),
        })
    }
}

/// What a link carried between two readings.
pub(super) fn path(first: &Counters, last: &Counters) -> PathReport {
    PathReport {
        bytes: last.sent_bytes - first.sent_bytes,
        delivered_bytes: last.delivered_bytes - first.delivered_bytes,
        dropped: last.dropped_queue - first.dropped_queue,
        lost: last.dropped_loss - first.dropped_loss,
        dropped_aqm: last.dropped_aqm - first.dropped_aqm,
        marked: last.marked - first.marked,
        ..PathReport::default()
    }
}

fn tunnel(first: &[TunnelStatus; 2], last: &[TunnelStatus; 2], side: Side) -> TunnelReport {
    let ([hub_first, site_first], [hub_last, site_last]) = (first, last);
    let (hub, site) = ((hub_first, hub_last), (site_first, site_last));
    let (sender, receiver) = match side {
        Side::Down => (hub, site),
        Side::Up => (site, hub),
    };
    let difference = |(first, last): (&TunnelStatus, &TunnelStatus),
                      field: fn(&TunnelStatus) -> u64| {
        field(last).saturating_sub(field(first))
    };
    let received = |field| difference(receiver, field);
    let sent = |field| difference(sender, field);
    TunnelReport {
        delivered: received(|t| t.rx_packets),
        reordered: received(|t| t.reordered),
        held: received(|t| t.held),
        hold_timeouts: received(|t| t.hold_timeouts),
        late: received(|t| t.late),
        duplicates: received(|t| t.duplicates),
        ingress_drops: sent(|t| t.queue_drops + t.queue_marks),
        buffer_drops: sent(|t| t.buffer_drops),
        recovered: received(|t| t.recovered),
        repairs: sent(|t| t.repairs_sent),
        repair_symbols: sent(|t| t.coded_sent),
        overhead: ropewalk_plan::overhead(sent(|t| t.protection_bytes), sent(|t| t.data_bytes)),
        reason: sender.1.reason.clone(),
    }
}
