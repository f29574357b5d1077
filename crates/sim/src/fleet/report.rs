//! What a fleet has shown.

use ropewalk_types::{Duration, Instant};

use super::Settings;
use super::queue::Queue;

/// How times spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// How many there are.
    pub count: usize,
    /// The median.
    pub median: Duration,
    /// The 90th and the 99th percentile.
    pub p90: Duration,
    /// See above.
    pub p99: Duration,
    /// The longest.
    pub last: Duration,
}

impl Spread {
    /// That of these times.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
            times.get(rank).copied().unwrap_or_default()
        };
        Self {
            count: times.len(),
            median: at(50),
            p90: at(90),
            p99: at(99),
            last: at(100),
        }
    }
}

/// How often something happened, and how fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How often in all.
    pub count: usize,
    /// Most in any second.
    pub peak_second: usize,
    /// Most in any tenth of a second.
    pub peak_tenth: usize,
}

impl Amount {
    /// That of these times.
    #[must_use]
    pub fn of(mut times: Vec<Instant>) -> Self {
        times.sort_unstable();
        let peak = |window: Duration| {
            let (mut from, mut most) = (0, 0);
            for (to, at) in times.iter().enumerate() {
                while times[from] + window <= *at {
                    from += 1;
                }
                most = most.max(to + 1 - from);
            }
            most
        };
        Self {
            count: times.len(),
            peak_second: peak(Duration::from_secs(1)),
            peak_tenth: peak(Duration::from_millis(100)),
        }
    }
}

/// What a fleet has shown. The first hub is the one that died.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The settings.
    pub seed: u64,
    /// Number of sites, of hubs, and of uplinks of each site.
    pub sites: usize,
    /// See above.
    pub hubs: usize,
    /// See above.
    pub uplinks: usize,
    /// By hub: sites whose home it is.
    pub homes: Vec<usize>,
    /// By hub: sites whose spare it is.
    pub spares: Vec<usize>,
    /// Connections at all hubs before the death.
    pub links: usize,
    /// Traffic of an idle site with its home and with its spare, over all its uplinks in both directions, bit/s.
    pub idle_bits: [f64; 2],
    /// By hub: sites that routers send there, before the death and before the return.
    pub served_before: Vec<usize>,
    /// See above.
    pub served_after: Vec<usize>,
    /// From the death to the moment in which another hub serves a site with a call.
    pub again_with_call: Spread,
    /// The same for idle sites.
    pub again_idle: Spread,
    /// Sites of the dead hub that no hub served again before its return.
    pub never: usize,
    /// Sites of other hubs that moved.
    pub others_moved: usize,
    /// The longest time without a packet in calls of sites of the dead hub, and of other hubs.
    pub gaps: Spread,
    /// See above.
    pub gaps_others: Spread,
    /// Claims that hubs would write while sites join, and after the death.
    pub claims_join: Amount,
    /// See above.
    pub claims_takeover: Amount,
    /// By hub: handshakes while sites join, while the hub is dead, and after its return.
    pub handshakes_join: Vec<Amount>,
    /// See above.
    pub handshakes_away: Vec<Amount>,
    /// See above.
    pub handshakes_back: Vec<Amount>,
    /// What the handshakes at the first hub mean for one processor: while sites join, and after its return.
    pub queue_join: [Queue; 2],
    /// See above.
    pub queue_back: [Queue; 2],
    /// Outer packets that gateways sent.
    pub outer_packets: u64,
    /// Time in the world, seconds.
    pub seconds: u64,
}

impl Report {
    /// Nothing has happened yet.
    #[must_use]
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            seed: settings.seed,
            sites: settings.sites,
            hubs: settings.hubs,
            uplinks: settings.uplinks,
            homes: vec![0; settings.hubs],
            spares: vec![0; settings.hubs],
            links: 0,
            idle_bits: [0.0; 2],
            served_before: Vec::new(),
            served_after: Vec::new(),
            again_with_call: Spread::default(),
            again_idle: Spread::default(),
            never: 0,
            others_moved: 0,
            gaps: Spread::default(),
            gaps_others: Spread::default(),
            claims_join: Amount::default(),
            claims_takeover: Amount::default(),
            handshakes_join: Vec::new(),
            handshakes_away: Vec::new(),
            handshakes_back: Vec::new(),
            queue_join: [Queue::default(); 2],
            queue_back: [Queue::default(); 2],
            outer_packets: 0,
            seconds: 0,
        }
    }
}
