//! Downloads and a call through a tunnel whose hub dies, cannot be reached any more or is drained, while a spare waits: real
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

/// What happens to a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It ends, and nobody is told.
    Dies,
    /// It goes on, and nothing reaches it or leaves it.
    Cut,
    /// It is drained, and routers follow moves 1 s later.
    Drained,
    /// Nothing happens to it.
    Never,
}

/// A tunnel whose hub is lost at one moment.
struct Failing {
    tunnel: TunnelCarrier,
    at_ns: u64,
    loss: Loss,
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
            self.tunnel.lose_home(core.now(), self.loss);
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
fn run(seed: u64, round_trips: [u64; 2], at_ns: u64, loss: Loss, traffic: &str) -> Report {
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
         {traffic}[[traffic]]\nkind = \"call\"\n{first}{second}"
    );
    let plan = Plan::parse(&text).expect("a plan");
    let setup = Setup::new(&plan, seed, &Options::default()).expect("a setup");
    let mut settings = TunnelSettings::parse(&TunnelPlan::default(), "carrier").expect("settings");
    settings.spare = true;
    let tunnel = setup.tunnel(&settings, &[0, 1], 0, (Vec::new(), None));
    let failing = Failing {
        tunnel: tunnel.expect("the tunnel comes up"),
        at_ns,
        loss,
    };
    let largest = Largest::in_tunnel(settings.send.compress_headers);
    setup.run(failing, largest).expect("a report")
}

const DOWN: &str = "[[traffic]]\nkind = \"tcp\"\ndirection = \"down\"\n";
const UP: &str = "[[traffic]]\nkind = \"tcp\"\ndirection = \"up\"\n";

/// The 95th percentile of the longest times without data.
fn assert_short_stalls(loss: Loss) {
    let mut stalls = Vec::new();
    for seed in 0..8 {
        let round_trips = [[20, 30], [40, 20], [60, 40], [60, 50]][seed as usize % 4];
        let report = run(seed, round_trips, 3_000 * MS + seed * 37 * MS, loss, DOWN);
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
    println!("{loss:?}, {stalls:?}");
    assert!(stalls[stalls.len() * 95 / 100] <= 1.0, "{stalls:?}");
}

#[test]
fn a_download_goes_on_within_a_second_of_the_death_of_its_hub() {
    assert_short_stalls(Loss::Dies);
}

#[test]
fn a_download_goes_on_within_a_second_after_its_hub_falls_silent() {
    assert_short_stalls(Loss::Cut);
}

/// Runs a drain, or nothing, with this traffic, from this seed to that one: stalls of TCP, seconds, and the largest delays
/// of calls beyond their least, ms.
fn drains(traffic: &str, loss: Loss, seeds: std::ops::Range<u64>) -> [Vec<f64>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for seed in seeds {
        let round_trips = [[20, 30], [40, 20], [60, 40], [60, 50]][seed as usize % 4];
        let at_ns = 3_000 * MS + seed * 37 * MS;
        let report = run(seed, round_trips, at_ns, loss, traffic);
        for of in &report.traffic {
            found[0].extend(of.longest_stall_seconds);
            if let Some(delay) = &of.delay_ms
                && of.kind == "call"
            {
                found[1].push(delay.max - delay.min);
                assert_eq!(of.lost, Some(0), "seed {seed}: packets of the call");
            }
            let crawls = of.longest_stall_seconds.is_some()
                && of.series_mbit.last().is_some_and(|last| *last < 10.0);
            assert!(!crawls, "seed {seed}: {:?}", of.series_mbit);
        }
    }
    found
        .iter_mut()
        .for_each(|found| found.sort_by(f64::total_cmp));
    found
}

/// Longest stall of TCP while its hub is drained, and without that, seconds; longest delay of a call, ms.
fn assert_drain_is_smooth(traffic: &str) {
    let [stalls, delays] = drains(traffic, Loss::Drained, 0..2);
    let [usual, _] = drains(traffic, Loss::Never, 0..2);
    println!("stalls {stalls:?} s, without a drain {usual:?} s, delays {delays:?} ms");
    let most = |of: &[f64]| of.last().copied().unwrap_or_default();
    assert!(most(&stalls) <= most(&usual) + 0.1, "{stalls:?}");
    assert!(delays.iter().all(|delay| *delay <= 80.0), "{delays:?}");
}

#[test]
fn a_download_and_a_call_go_on_while_their_hub_is_drained() {
    assert_drain_is_smooth(DOWN);
}

#[test]
fn an_upload_and_a_call_go_on_while_their_hub_is_drained() {
    assert_drain_is_smooth(UP);
}
