//! Counters of links and gateways at the beginning and the end of the counted time.

use std::time::Instant;

use anyhow::Result;
use ropewalk_netem::{Counters, Side};
use ropewalk_plan::{PathReport, Report, TunnelReport};

use super::Window;
use super::carrier::Carried;
use crate::gateway::{Gateway, TunnelStatus};
use crate::link::LinkCounters;
use crate::topology::Topology;

/// All counters at one time.
#[derive(Debug, Default)]
struct Snapshot {
    links: Vec<LinkCounters>,
    /// Of the hub and of the site.
    tunnel: Option<[TunnelStatus; 2]>,
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
        topology: &Topology,
        begin: Instant,
        window: Window,
    ) -> Result<Self> {
        let at = |time| {
            std::thread::sleep((begin + time).saturating_duration_since(Instant::now()));
            Snapshot::take(carried, topology)
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
        if let (Some(first), Some(last)) = (&self.first.tunnel, &self.last.tunnel) {
            report.tunnel = Some(tunnel(first, last, side));
        }
    }
}

impl Snapshot {
    fn take(carried: &Carried, topology: &Topology) -> Result<Self> {
        let links = topology.uplinks().iter().map(|u| u.link.counters());
        let status = |gateway: &Gateway| -> Result<TunnelStatus> {
            let tunnels = gateway.status()?.tunnels;
            Ok(tunnels.into_iter().next().unwrap_or_default())
        };
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            tunnel: match carried.gateways() {
                Some((hub, site)) => Some([status(hub)?, status(site)?]),
                None => None,
            },
        })
    }
}

fn path(first: &Counters, last: &Counters) -> PathReport {
    PathReport {
        bytes: last.sent_bytes - first.sent_bytes,
        dropped: last.dropped_queue - first.dropped_queue,
        lost: last.dropped_loss - first.dropped_loss,
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
    TunnelReport {
        delivered: received(|t| t.rx_packets),
        reordered: received(|t| t.reordered),
        held: received(|t| t.held),
        hold_timeouts: received(|t| t.hold_timeouts),
        late: received(|t| t.late),
        duplicates: received(|t| t.duplicates),
        entry_drops: difference(sender, |t| t.queue_drops + t.queue_marks),
        reason: sender.1.reason.clone(),
    }
}
