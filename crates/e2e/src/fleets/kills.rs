//! Trial: the hub of a site dies or becomes unreachable again and again, amid a call and downloads.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use ropewalk_testbed::gateway::Gateway;
use serde::Serialize;

use super::call::{Silences, Traffic};
use super::{Cut, Fleet, FleetSpec, NAMES, Row, want};

/// How a site loses its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `kill -9`.
    Killed,
    /// All packets from and to the hub vanish.
    Unreachable,
}

/// How the server reaches the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By its inner address.
    Inner,
    /// By the ports of a shared address only.
    Shared,
}

/// Figures of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Times that the site lost its hub.
    pub losses: usize,
    /// Silences of the call around each loss.
    #[serde(flatten)]
    pub silences: Silences,
    /// Why connections broke.
    pub connections_broken: Vec<String>,
    /// Of the downloads, Mbit/s, the losses included.
    pub goodput_mbit: f64,
}

/// What the sites share.
const SHARED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Most that the 95th percentile of the silences may be, milliseconds.
pub const GAP_P95_MS: f64 = 1_000.0;
/// How long traffic runs before the first loss.
const BEFORE: Duration = Duration::from_secs(2);
/// How long after a loss the call is listened to.
const AFTER: Duration = Duration::from_secs(3);
/// How long a hub that is back is left alone: the site tries a spare every 5 s, and gives up an attempt after 4 s.
const SETTLE: Duration = Duration::from_secs(10);
/// Chance moves each loss by so much: the spare is told every 25 s, etcd every second.
const SHIFT: Duration = Duration::from_millis(137);

/// All four trials.
pub const ALL: [(Loss, Reached); 4] = [
    (Loss::Killed, Reached::Inner),
    (Loss::Killed, Reached::Shared),
    (Loss::Unreachable, Reached::Inner),
    (Loss::Unreachable, Reached::Shared),
];

/// Takes the hub of a site away `losses` times. The site moves to a spare each time.
///
/// # Errors
/// A part does not start, or the site does not move. Bounds that do not hold are no error.
pub fn run(loss: Loss, reached: Reached, losses: usize) -> Result<Row<Figures>> {
    let purpose = "kills";
    let spec = match reached {
        Reached::Inner => FleetSpec::new(purpose),
        Reached::Shared => FleetSpec::sharing(purpose, SHARED),
    };
    let mut fleet = Fleet::new(&spec)?;
    let site = fleet.site(0)?;
    let address = match reached {
        Reached::Inner => {
            let status = site.status()?;
            let inner = status.address(false);
            inner.context("the site has no inner address")?.to_string()
        }
        Reached::Shared => SHARED.to_string(),
    };
    let mut serving = fleet.serving(&site)?;
    fleet.await_route(&address, serving)?;
    std::thread::sleep(BEFORE);
    let traffic = Traffic::start(&fleet.endpoints())?;
    std::thread::sleep(BEFORE);
    let mut times = Vec::new();
    for number in 1..=losses {
        let from = traffic.now();
        lose(&mut fleet, serving, loss)?;
        std::thread::sleep(AFTER);
        times.push((from, traffic.now()));
        let moved = fleet.await_move(&site, serving, 2);
        let next = moved.with_context(|| format!("loss {number}\n{}", fleet.explain()))?;
        fleet.await_route(&address, next)?;
        eprintln!(
            "{}: {number} of {losses}: from hub {} to hub {}",
            title(loss, reached),
            NAMES[serving],
            NAMES[next]
        );
        give_back(&mut fleet, serving, loss)?;
        serving = next;
        if number < losses {
            settle(&fleet, &site, number)?;
        }
    }
    let heard = traffic.finish()?;
    let silences = heard.silences(&times);
    let (mut broken, mut slow) = (Vec::new(), Vec::new());
    want(&mut broken, heard.broken.is_empty(), || {
        format!("{} connections broke", heard.broken.len())
    });
    let p95 = silences.gap_ms.p95;
    want(&mut slow, p95 <= GAP_P95_MS, || {
        format!("95 % of the silences of the call are up to {p95:.0} ms, more than {GAP_P95_MS} ms")
    });
    Ok(Row {
        trial: title(loss, reached),
        figures: Figures {
            losses,
            silences,
            connections_broken: heard.broken,
            goodput_mbit: heard.goodput_mbit,
        },
        broken,
        slow,
    })
}

fn title(loss: Loss, reached: Reached) -> String {
    let loss = match loss {
        Loss::Killed => "killed",
        Loss::Unreachable => "unreachable",
    };
    let reached = match reached {
        Reached::Inner => "inner",
        Reached::Shared => "shared",
    };
    format!("hub {loss}, {reached} address")
}

fn lose(fleet: &mut Fleet, hub: usize, loss: Loss) -> Result<()> {
    match loss {
        Loss::Killed => fleet.hubs[hub].kill(),
        Loss::Unreachable => fleet.cut(hub, Cut::All)?,
    }
    Ok(())
}

fn give_back(fleet: &mut Fleet, hub: usize, loss: Loss) -> Result<()> {
    match loss {
        Loss::Killed => fleet.hubs[hub].start(),
        Loss::Unreachable => fleet.mend(hub),
    }
}

/// Waits until the hub that is back can be the spare.
fn settle(fleet: &Fleet, site: &Gateway, number: usize) -> Result<()> {
    let shift = SHIFT * u32::try_from(number % 16).unwrap_or_default();
    std::thread::sleep(SETTLE + shift);
    fleet.await_all()?;
    site.wait_paths(2, super::LIMIT).map(drop)
}
