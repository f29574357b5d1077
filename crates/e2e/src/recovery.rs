//! How soon traffic goes on after an event, on the kernel and in the simulator. Events, link,
//! streams and measure are the same in both.

use std::time::Duration;

use anyhow::Result;
use ropewalk_netem::{Selector, Side};
use ropewalk_testbed::LinkSpec;
use ropewalk_testbed::topology::{Cut, Topology};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testkit::{Spec, World};
use serde::Serialize;

use crate::Lab;

/// What happens to a tunnel over one link of 10 ms each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The hub is killed, and starts again after [`AWAY`].
    HubRestart,
    /// UDP is blocked from now on: traffic has to go on over TLS.
    UdpBlocked,
    /// The hub hears nothing for [`AWAY`].
    HubDeaf,
    /// The site hears nothing for [`AWAY`].
    SiteDeaf,
    /// The interface goes and comes back after [`AWAY`].
    InterfaceBack,
}

/// How long what goes is away.
pub const AWAY: Duration = Duration::from_secs(2);
/// How long is watched for traffic afterwards.
const WATCH: Duration = Duration::from_secs(6);
/// Time between packets of the stream in each direction.
const INTERVAL: Duration = Duration::from_millis(10);
/// What is under way when the event happens arrives within this time.
const UNDER_WAY: Duration = Duration::from_millis(30);

impl Event {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::HubRestart,
        Self::UdpBlocked,
        Self::HubDeaf,
        Self::SiteDeaf,
        Self::InterfaceBack,
    ];

    /// Name for tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HubRestart => "hub restarted",
            Self::UdpBlocked => "UDP blocked",
            Self::HubDeaf => "hub was deaf",
            Self::SiteDeaf => "site was deaf",
            Self::InterfaceBack => "interface back",
        }
    }

    const fn cut(self) -> Option<Cut> {
        match self {
            Self::HubRestart | Self::UdpBlocked => None,
            Self::HubDeaf => Some(Cut::HubDeaf),
            Self::SiteDeaf => Some(Cut::SiteDeaf),
            Self::InterfaceBack => Some(Cut::InterfaceDown),
        }
    }

    /// From the end of the event to the first packet that arrives, in the direction in which that
    /// takes longer, on the kernel. The event begins `after` the stream.
    ///
    /// # Errors
    /// If a part does not start, or nothing arrives.
    pub fn on_kernel(self, after: Duration) -> Result<Duration> {
        let links = vec![LinkSpec::steady(20.0, Duration::from_millis(10))];
        let mut lab = Lab::new("recovery", links)?;
        let ends = lab.topology.endpoints();
        let streams = [Direction::Upload, Direction::Download]
            .map(|direction| Probe::start(&ends, &ProbeSpec::fine(direction)));
        let [up, down] = streams;
        let streams = [up?, down?];
        std::thread::sleep(after);
        let begun = |topology: &Topology| self.cut().map_or(Ok(()), |cut| topology.cut(0, cut));
        let ended = |topology: &Topology| self.cut().map_or(Ok(()), |cut| topology.restore(0, cut));
        if self == Self::HubRestart {
            lab.hub.kill();
        }
        begun(&lab.topology)?;
        if self != Self::UdpBlocked {
            std::thread::sleep(AWAY);
        }
        let times = [streams[0].elapsed(), streams[1].elapsed()];
        match self {
            Self::HubRestart => lab.hub.start()?,
            Self::UdpBlocked => lab.topology.block_udp(true)?,
            Self::HubDeaf | Self::SiteDeaf | Self::InterfaceBack => ended(&lab.topology)?,
        }
        std::thread::sleep(WATCH);
        let mut longest = Duration::ZERO;
        for (stream, time) in streams.into_iter().zip(times) {
            let arrivals = stream.finish()?.arrivals;
            let arrivals = arrivals.iter().map(|arrival| arrival.arrived);
            longest = longest.max(self.silence(arrivals, time));
        }
        Ok(longest)
    }

    /// The same in the simulator.
    #[must_use]
    pub fn in_simulator(self, after: Duration, seed: u64) -> Duration {
        let mut world = World::new(&Spec {
            seed,
            uplinks: 1,
            ..Spec::default()
        });
        world.run_until(WATCH, |w| w.transports_up(0).len() == 1);
        let mut number = 0;
        let mut talk = |world: &mut World, duration: Duration| {
            let end = world.now() + duration;
            while world.now() < end {
                world.send_up(0, number, 1);
                world.send_down(0, number, 1);
                world.run(INTERVAL);
                number += 1;
            }
        };
        talk(&mut world, after);
        let sides = |side| Selector::One(side);
        match self {
            Self::HubRestart => world.kill_hub(),
            Self::UdpBlocked => {}
            Self::HubDeaf => world.set_dead(0, 0, sides(Side::Up), true),
            Self::SiteDeaf => world.set_dead(0, 0, sides(Side::Down), true),
            Self::InterfaceBack => world.set_present(0, 0, false),
        }
        if self != Self::UdpBlocked {
            talk(&mut world, AWAY);
        }
        let time = world.now();
        match self {
            Self::HubRestart => world.start_hub(),
            Self::UdpBlocked => world.block_udp(0, 0, true),
            Self::HubDeaf => world.set_dead(0, 0, sides(Side::Up), false),
            Self::SiteDeaf => world.set_dead(0, 0, sides(Side::Down), false),
            Self::InterfaceBack => world.set_present(0, 0, true),
        }
        talk(&mut world, WATCH);
        let since = |(at, _, _): &(ropewalk_types::Instant, std::net::IpAddr, u64)| at.since(time);
        let later = |delivered: &[(ropewalk_types::Instant, std::net::IpAddr, u64)]| {
            let later = delivered.iter().filter(|d| d.0 >= time).map(since);
            self.silence(later.collect::<Vec<_>>().into_iter(), Duration::ZERO)
        };
        later(&world.hub().delivered).max(later(&world.site(0).delivered))
    }

    /// How long nothing arrives from `time` on.
    fn silence(self, arrivals: impl Iterator<Item = Duration>, time: Duration) -> Duration {
        let from = if self == Self::UdpBlocked {
            time + UNDER_WAY
        } else {
            time
        };
        let mut later = arrivals.filter(|at| *at >= from);
        later.next().map_or(WATCH, |first| first - time)
    }
}
