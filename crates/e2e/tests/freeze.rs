//! Senders are stopped with windows of zero while the only path is away, and no byte is lost by it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ropewalk_e2e::{Ground, Lab, ready, whole};
use ropewalk_testbed::LinkSpec;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::{Cut, TopologySpec};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};

/// Enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// A sender that was told nothing, and for which nothing was kept, would wait longer after 4 s.
const SOON: Duration = Duration::from_secs(1);
/// After 8 s the timer of such a sender has doubled so often that it would wait seven more. Nothing
/// is replayed then: what is waited for is a timer of half a second, or of one if its packet dies, too.
const BY_TIMER: Duration = Duration::from_secs(3);

fn lab(purpose: &str, freeze: &str) -> Result<Lab> {
    let spec = GatewaySpec {
        more: format!("[hold]\nfreeze = \"{freeze}\"\n"),
        ..GatewaySpec::default()
    };
    connected(purpose, &spec)
}

fn connected(purpose: &str, spec: &GatewaySpec) -> Result<Lab> {
    let link = LinkSpec::steady(20.0, Duration::from_millis(20));
    let ground = Ground::new(&TopologySpec::new(purpose, vec![link]))?;
    ground.connect(spec, spec)
}

/// Two connections through an outage of 3 s: they go on soon after it, whole, and were stopped in it.
fn through_an_outage(lab: &Lab, direction: Direction, announced: bool) -> Result<()> {
    let spec = BulkSpec {
        amount: Amount::Time(Duration::from_secs(8)),
        direction,
        ..BulkSpec::download(2, PATIENCE)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec)?;
    std::thread::sleep(Duration::from_millis(1_500));
    if announced {
        let told = lab.site.run(&["path", "leaving", "up0"])?;
        assert!(told.status.success(), "{told:?}");
        std::thread::sleep(Duration::from_millis(400));
    }
    lab.topology.cut(0, Cut::Blackhole)?;
    std::thread::sleep(Duration::from_secs(3));
    let back = Instant::now();
    lab.topology.restore(0, Cut::Blackhole)?;
    let report = whole(bulk.finish()?)?;
    let back = back - report.begin.context("it began")?;
    for flow in &report.flows {
        let across = |(from, to): &&(Duration, Duration)| *from < back && *to > back;
        let (_, to) = flow.pauses.iter().find(across).context("no pause")?;
        let idle = *to - back;
        assert!(idle < SOON, "{direction:?}: {idle:?}; {}", lab.explain());
    }
    let sending = match direction {
        Direction::Download => &lab.hub,
        Direction::Upload => &lab.site,
    };
    let status = sending.status()?;
    let tunnel = &status.tunnels[0];
    assert!(tunnel.freeze_stopped >= 2, "{}", lab.explain());
    assert_eq!(tunnel.freeze_resets, 0, "{}", lab.explain());
    Ok(())
}

#[test]
fn an_announced_outage_stops_senders_at_both_ends_and_lets_them_go_after_it() {
    if !ready() {
        return;
    }
    for direction in [Direction::Download, Direction::Upload] {
        through_an_outage(&lab("planned", "planned").unwrap(), direction, true).unwrap();
    }
}

#[test]
fn custody_loses_no_byte_either_way() {
    if !ready() {
        return;
    }
    for direction in [Direction::Download, Direction::Upload] {
        through_an_outage(&lab("custody", "custody").unwrap(), direction, false).unwrap();
    }
}

#[test]
fn accelerated_senders_lose_no_byte_either_way() {
    if !ready() {
        return;
    }
    for direction in [Direction::Download, Direction::Upload] {
        let spec = GatewaySpec {
            tunnel: "accelerate = true\n".into(),
            ..GatewaySpec::default()
        };
        let lab = connected("accelerate", &spec).unwrap();
        through_an_outage(&lab, direction, false).unwrap();
        let sending = match direction {
            Direction::Download => &lab.hub,
            Direction::Upload => &lab.site,
        };
        let accelerated = sending.status().unwrap().tunnels[0].accelerated;
        assert!(accelerated >= 2, "{}", lab.explain());
    }
}

/// A connection filled from both its ends through an outage, after which nothing that was held is young
/// enough to be replayed. The server's bytes go one small window at a time.
fn both_ways_through_an_outage(lab: &Lab) -> Result<()> {
    let ends = lab.topology.endpoints();
    let small = "4096 40000 80000";
    ends.client.sysctl("net/ipv4/tcp_rmem", small)?;
    let spec = BulkSpec::download(1, Duration::from_secs(18)).upload();
    let bulk = Bulk::start(&ends, &spec.both_ways())?;
    std::thread::sleep(Duration::from_secs(3));
    lab.topology.cut(0, Cut::Blackhole)?;
    std::thread::sleep(Duration::from_secs(8));
    let back = Instant::now();
    lab.topology.restore(0, Cut::Blackhole)?;
    let report = bulk.finish()?;
    for gateway in [&lab.hub, &lab.site] {
        let resets = gateway.status()?.tunnels[0].freeze_resets;
        assert_eq!(resets, 0, "{}", lab.explain());
    }
    let report = whole(report)?;
    let back = back - report.begin.context("it began")?;
    for (from, to) in report.flows.iter().flat_map(|flow| &flow.pauses) {
        let idle = to.saturating_sub((*from).max(back));
        assert!(idle < BY_TIMER, "{idle:?}; {}", lab.explain());
    }
    Ok(())
}

/// Kept copies must acknowledge what the host has got by now, not only what it had got when they
/// were made. Otherwise the other end takes them for an attack (RFC 5961 section 5.2).
#[test]
fn custody_at_both_ends_of_a_connection_outlives_what_is_held() {
    if !ready() {
        return;
    }
    let spec = GatewaySpec {
        more: "[hold]\nfreeze = \"custody\"\ntcp_seconds_max = 5\n".into(),
        ..GatewaySpec::default()
    };
    let link = LinkSpec::steady(40.0, Duration::from_millis(80));
    let ground = Ground::new(&TopologySpec::new("both", vec![link])).unwrap();
    let lab = ground.connect(&spec, &spec).unwrap();
    both_ways_through_an_outage(&lab).unwrap();
}
