//! Outages in which one end hears nothing, or both: how soon streams go on after them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::{LinkSpec, Serial, TopologySpec};
use serde::Serialize;

use crate::Ground;

/// An outage over two links of 20 and 30 ms.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// Who hears nothing.
    pub cut: Cut,
    /// On how many of the two links, 1 or 2.
    pub links: usize,
    /// Where the streams go.
    pub direction: Direction,
    /// How long it lasts.
    pub lasts: Duration,
    /// Parallel TCP connections.
    pub flows: usize,
    /// Capacity of each link, Mbit/s.
    pub mbps: f64,
}

/// What streams did after an outage.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// From the return to the next byte, milliseconds. `None`: not within [`PATIENCE`].
    pub byte_ms: Option<f64>,
    /// From the return to a megabit, milliseconds. `None`: not within [`PATIENCE`].
    pub megabit_ms: Option<f64>,
    /// Longest time without a byte in [`WATCH`] after the return, milliseconds.
    pub pause_ms: f64,
}

impl Outage {
    /// Every cut on one link and on both, with streams either way.
    pub fn kinds(lasts: Duration, flows: usize, mbps: f64) -> impl Iterator<Item = Self> {
        [Cut::HubDeaf, Cut::SiteDeaf, Cut::Blackhole]
            .into_iter()
            .flat_map(|cut| [1, 2].map(move |links| (cut, links)))
            .flat_map(move |(cut, links)| {
                [Direction::Upload, Direction::Download].map(|direction| Self {
                    cut,
                    links,
                    direction,
                    lasts,
                    flows,
                    mbps,
                })
            })
    }

    /// Starts streams, lets the outage happen under them, and watches them afterwards.
    ///
    /// # Errors
    /// If a part does not start, or a cut cannot be made or taken back.
    pub fn run(&self, serial: Arc<Serial>) -> Result<Recovery> {
        let links = vec![
            LinkSpec::steady(self.mbps, Duration::from_millis(20)),
            LinkSpec::steady(self.mbps, Duration::from_millis(30)).with_seed(2),
        ];
        let spec = GatewaySpec::default();
        let ground = Ground::beside(serial, &TopologySpec::new("outage", links))?;
        let lab = ground.connect(&spec, &spec)?;
        let transfer = BulkSpec {
            direction: self.direction,
            ..BulkSpec::download(self.flows, BEFORE + self.lasts + 2 * PATIENCE)
        };
        let bulk = Bulk::start(&lab.topology.endpoints(), &transfer)?;
        std::thread::sleep(BEFORE);
        for link in 0..self.links {
            lab.topology.cut(link, self.cut)?;
        }
        std::thread::sleep(self.lasts);
        let before = bulk.received();
        for link in 0..self.links {
            lab.topology.restore(link, self.cut)?;
        }
        let recovery = watch(&bulk, before);
        bulk.stop()?;
        Ok(recovery)
    }
}

fn watch(bulk: &Bulk, before: u64) -> Recovery {
    let back = Instant::now();
    let (mut byte_ms, mut megabit_ms) = (None, None);
    let (mut last, mut last_at, mut pause) = (before, back, Duration::ZERO);
    while back.elapsed() < WATCH || (megabit_ms.is_none() && back.elapsed() < PATIENCE) {
        let (received, elapsed_ms) = (bulk.received(), back.elapsed().as_secs_f64() * 1e3);
        if received > last {
            (last, last_at) = (received, Instant::now());
        }
        if back.elapsed() < WATCH {
            pause = pause.max(last_at.elapsed());
        }
        if received > before {
            byte_ms.get_or_insert(elapsed_ms);
        }
        if received >= before + MEGABIT {
            megabit_ms.get_or_insert(elapsed_ms);
        }
        std::thread::sleep(LOOK);
    }
    Recovery {
        byte_ms,
        megabit_ms,
        pause_ms: pause.as_secs_f64() * 1e3,
    }
}

/// How long streams run before the outage.
const BEFORE: Duration = Duration::from_secs(3);
/// How long they are watched after it.
pub const WATCH: Duration = Duration::from_secs(4);
/// How long the megabit is waited for.
pub const PATIENCE: Duration = Duration::from_secs(70);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of a megabit.
const MEGABIT: u64 = 125_000;
