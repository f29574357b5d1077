//! A download and a call through a tunnel whose hub dies, or cannot be reached any more, while a spare waits: real
//! sessions, and hosts with the timers of TCP.

use super::{Largest, Options, Setup};
use crate::carrier::tunnel::{TunnelCarrier, TunnelSettings};
use crate::carrier::{Arrival, Carrier, Core};
use crate::engine::NEVER;
use crate::host::MS;
use crate::packet::Packet;
use ropewalk_netem::{Counters, Side};
use ropewalk_plan::{Plan, Report, TunnelPlan, TunnelReport};
use ropewalk_types::Instant;

/// A tunnel whose hub is lost at one moment.
struct Failing {
    tunnel: TunnelCarrier,
    at_ns: u64,
    /// Whether the hub dies; else it goes on, and nothing reaches it or leaves it.
    dies: bool,
}

impl Carrier for Failing {
    fn components(&self) -> usize {
        2
    }

    fn send(&mut self, core: &mut Core, direction: Side, packet: &Packet) {
        self.tunnel.send(core, direction, packet);
    }

    fn wake(&mut self, core: &mut Core, component: usize, arrivals: &mut Vec<Arrival>) {
        if component == 1 {
            self.at_ns = NEVER;
            self.tunnel.lose_home(core.now(), self.dies);
        }
        self.tunnel.wake(core, 0, arrivals);
    }

    fn settle(&mut self, core: &mut Core, arrivals: &mut Vec<Arrival>) {
        self.tunnel.settle(core, arrivals);
        core.look_at(1, self.at_ns);
    }

    fn counters(&mut self, now: Instant, path: usize, direction: Side) -> Counters {
        self.tunnel.counters(now, path, direction)
    }

    fn tunnel_report(&self, _direction: Side) -> Option<TunnelReport> {
        None
    }

    fn packets(&self) -> u64 {
        self.tunnel.packets()
    }
}

/// Two paths of these round trips in ms, and what came of the hosts when the hub was lost then.
fn run(seed: u64, round_trips: [u64; 2], at_ns: u64, dies: bool) -> Report {
    let path = |ms: u64| {
        let delay = format!(
            "delay = \"{}ms\"\nrate = \"20Mbit\"\nqueue = \"128KiB\"\n",
            ms / 2
        );
        format!("[[path]]\nname = \"p{ms}\"\n[path.up]\n{delay}[path.down]\n{delay}")
    };
    let [first, second] = round_trips.map(path);
    let text = format!(
        "name = \"fleet\"\nduration = \"10s\"\nwarmup = \"1s\"\n[carrier]\nkind = \"tunnel\"\n\
         [[traffic]]\nkind = \"tcp\"\ndirection = \"down\"\n\
         [[traffic]]\nkind = \"call\"\n{first}{second}"
    );
    let plan = Plan::parse(&text).expect("a plan");
    let setup = Setup::new(&plan, seed, &Options::default()).expect("a setup");
    let mut settings = TunnelSettings::parse(&TunnelPlan::default(), "carrier").expect("settings");
    settings.spare = true;
    let tunnel = setup.tunnel(&settings, &[0, 1], 0, (Vec::new(), None));
    let failing = Failing {
        tunnel: tunnel.expect("the tunnel comes up"),
        at_ns,
        dies,
    };
    let largest = Largest::in_tunnel(settings.send.compress_headers);
    setup.run(failing, largest).expect("a report")
}

/// The 95th percentile of the longest times without data.
fn assert_short_stalls(dies: bool) {
    let mut stalls = Vec::new();
    for seed in 0..8 {
        let round_trips = [[20, 30], [40, 20], [60, 40], [60, 50]][seed as usize % 4];
        let report = run(seed, round_trips, 3_000 * MS + seed * 37 * MS, dies);
        let download = &report.traffic[0];
        stalls.push(download.longest_stall_seconds.expect("a bulk flow"));
        let series = &download.series_mbit;
        assert!(
            series.last().is_some_and(|last| *last > 10.0),
            "seed {seed}: the connection crawls: {series:?}"
        );
        let call = &report.traffic[1];
        let lost = call.lost.expect("a call") as f64 / call.sent.expect("a call") as f64;
        assert!(lost < 0.1, "seed {seed}: {lost}");
    }
    stalls.sort_by(f64::total_cmp);
    println!("dies: {dies}, {stalls:?}");
    assert!(stalls[stalls.len() * 95 / 100] <= 1.0, "{stalls:?}");
}

#[test]
fn a_download_goes_on_within_a_second_of_the_death_of_its_hub() {
    assert_short_stalls(true);
}

#[test]
fn a_download_goes_on_within_a_second_after_its_hub_falls_silent() {
    assert_short_stalls(false);
}
