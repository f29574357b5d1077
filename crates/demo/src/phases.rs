//! The phases of the demo: each builds its own links, measures for the same time, and tears down.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ropewalk_testbed::gateway::{self, Gateway, GatewaySpec};
use ropewalk_testbed::statistics::mbit_per_second;
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::Endpoints;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkReport, BulkSpec};
use ropewalk_testbed::traffic::ping::{Ping, PingReport, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeLog, ProbeSpec};
use ropewalk_testbed::{LinkSpec, Topology, TopologySpec};

use super::{DemoArgs, SAMPLE, START_ALLOWANCE};

/// What every phase has in common.
pub(super) struct Stage {
    uplinks: [LinkSpec; 2],
    pub(super) flows: usize,
    keep: bool,
    /// Time measured in each phase.
    pub(super) length: Duration,
    /// What each uplink can carry in that time, Mbit/s.
    pub(super) capacity_mbit: [f64; 2],
}

/// What one phase measured.
pub(super) struct Outcome {
    /// The download.
    pub(super) bulk: BulkReport,
    /// Pings beside it; MPTCP carries none.
    pub(super) ping: Option<PingReport>,
    /// The call beside it; MPTCP carries none.
    pub(super) call: Option<ProbeLog>,
    /// Bytes that arrived per uplink and [`SAMPLE`], as Mbit/s.
    pub(super) per_uplink_mbit: [Vec<f64>; 2],
}

impl Outcome {
    /// One line of progress.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:.1} Mbit/s", self.bulk.goodput_mbit);
        if let Some(ping) = &self.ping {
            line += &format!(", ping {:.0} ms", ping.rtt_ms.mean);
        }
        if let Some(call) = &self.call {
            line += &format!(
                ", call {:.1} % in time",
                call.report().in_time_ratio * 100.0
            );
        }
        if self.bulk.broken() > 0 {
            line += &format!(", {} connections broke", self.bulk.broken());
        }
        line
    }
}

/// A tunnel over both uplinks.
pub(super) struct Tunnel {
    pub(super) site: Gateway,
    _hub: Gateway,
    pub(super) topology: Topology,
}

impl Stage {
    /// Prepares the links; `scratch` holds the traces.
    pub(super) fn new(args: &DemoArgs, scratch: &Path) -> Result<Self> {
        let traces = match args.traces.as_deref() {
            Some([a, b]) => [a.clone(), b.clone()],
            _ => [
                write(scratch, "wifi.csv", WIFI)?,
                write(scratch, "lte.csv", LTE)?,
            ],
        };
        let [a, b] = traces;
        let uplinks = [
            LinkSpec::wifi_like(absolute(&a)?),
            LinkSpec::lte_like(absolute(&b)?),
        ];
        let length = Duration::from_secs(args.seconds);
        let capacity =
            |link: &LinkSpec| link.capacity_mbit(START_ALLOWANCE, START_ALLOWANCE + length);
        let capacity_mbit = [capacity(&uplinks[0])?, capacity(&uplinks[1])?];
        let flows = usize::try_from(args.flows)?;
        Ok(Self {
            uplinks,
            flows,
            keep: args.keep,
            length,
            capacity_mbit,
        })
    }

    /// Each uplink alone, both at the same time: they share nothing.
    pub(super) fn alone(&self) -> Result<(Outcome, Outcome)> {
        let topology = self.build("demo")?;
        let ends = topology.endpoints();
        let ends = [ends.through("up0"), ends.through("up1")];
        wait_for_age(&topology, START_ALLOWANCE);
        let sampler = Sampler::start(&topology);
        let runs = [
            Run::start(&topology, &ends[0], self.spec(), "ping-a")?,
            Run::start(&topology, &ends[1], self.spec(), "ping-b")?,
        ];
        let samples = sampler.collect(&topology, self.length, |_| Ok(()))?;
        let [a, b] = runs;
        Ok((a.finish(samples.clone())?, b.finish(samples)?))
    }

    /// Both uplinks with MPTCP; `None` if the kernel lacks MPTCP.
    pub(super) fn mptcp(&self) -> Result<Option<Outcome>> {
        let topology = self.build("demo")?;
        if !topology.enable_mptcp()? {
            return Ok(None);
        }
        wait_for_age(&topology, START_ALLOWANCE);
        let sampler = Sampler::start(&topology);
        let bulk = Bulk::start(&topology.endpoints(), &self.spec().over_mptcp())?;
        let per_uplink_mbit = sampler.collect(&topology, self.length, |_| Ok(()))?;
        Ok(Some(Outcome {
            bulk: bulk.finish()?,
            ping: None,
            call: None,
            per_uplink_mbit,
        }))
    }

    /// Both uplinks with Ropewalk; between the two times, if any, uplink A is a black hole.
    pub(super) fn ropewalk(&self, cut: Option<(Duration, Duration)>) -> Result<Outcome> {
        let mut topology = self.build("demo")?;
        let (mut hub, mut site) = self.connect(&topology)?;
        let ends = topology.endpoints();
        wait_for_age(&topology, START_ALLOWANCE);
        let sampler = Sampler::start(&topology);
        let run = Run::start(&topology, &ends, self.spec(), "ping")?;
        let mut events: Vec<(Duration, bool)> = cut
            .map(|(from, to)| vec![(to, false), (from, true)])
            .unwrap_or_default();
        let samples = sampler.collect(&topology, self.length, |elapsed| {
            if let Some((_, on)) = events.pop_if(|(at, _)| elapsed >= *at) {
                topology.uplinks()[0].link.set_blackhole(on)?;
            }
            Ok(())
        })?;
        let outcome = run.finish(samples)?;
        site.stop();
        hub.stop();
        if self.keep {
            topology.keep_directory();
            eprintln!("     logs: {}", topology.directory().display());
        }
        Ok(outcome)
    }

    /// Both uplinks with Ropewalk, and nothing else yet. The gateways live as long as what is given back.
    pub(super) fn tunnel(&self) -> Result<Tunnel> {
        let topology = self.build("demo")?;
        let (hub, site) = self.connect(&topology)?;
        Ok(Tunnel {
            site,
            _hub: hub,
            topology,
        })
    }

    fn build(&self, purpose: &str) -> Result<Topology> {
        Topology::build(&TopologySpec::new(purpose, self.uplinks.to_vec()))
    }

    fn connect(&self, topology: &Topology) -> Result<(Gateway, Gateway)> {
        let spec = GatewaySpec::default();
        gateway::connect(topology, &spec, &spec).context("the tunnel did not come up")
    }

    fn spec(&self) -> BulkSpec {
        BulkSpec {
            sample: SAMPLE,
            ..BulkSpec::download(self.flows, self.length)
        }
    }
}

/// A download with pings and a call beside it.
struct Run {
    ping: Ping,
    call: Probe,
    bulk: Bulk,
}

impl Run {
    fn start(topology: &Topology, ends: &Endpoints, spec: BulkSpec, name: &str) -> Result<Self> {
        let ping = PingSpec {
            device: ends.device.clone(),
            ..PingSpec::new(SERVER.into())
        };
        let ping = PingSpec {
            interval: Duration::from_millis(200),
            ..ping
        };
        let call = Probe::start(ends, &ProbeSpec::call()).context("the call did not start")?;
        let ping = Ping::start(&ends.client, &ping, topology.directory(), name)?;
        let bulk = Bulk::start(ends, &spec)?;
        Ok(Self { ping, call, bulk })
    }

    fn finish(self, per_uplink_mbit: [Vec<f64>; 2]) -> Result<Outcome> {
        let bulk = self.bulk.finish()?;
        let (ping, call) = (self.ping.finish()?, self.call.finish()?);
        Ok(Outcome {
            bulk,
            ping: Some(ping),
            call: Some(call),
            per_uplink_mbit,
        })
    }
}

/// Watches how much arrives on each uplink.
struct Sampler {
    begin: Instant,
    before: [u64; 2],
}

impl Sampler {
    fn start(topology: &Topology) -> Self {
        Self {
            begin: Instant::now(),
            before: arrived(topology),
        }
    }

    /// Samples for `length`; `each` is called with the time passed.
    fn collect(
        mut self,
        topology: &Topology,
        length: Duration,
        mut each: impl FnMut(Duration) -> Result<()>,
    ) -> Result<[Vec<f64>; 2]> {
        let mut samples = [Vec::new(), Vec::new()];
        let mut next = self.begin + SAMPLE;
        while next <= self.begin + length {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let now = arrived(topology);
            for ((list, now), before) in samples.iter_mut().zip(now).zip(self.before) {
                list.push(mbit_per_second(now.saturating_sub(before), SAMPLE));
            }
            self.before = now;
            next += SAMPLE;
            each(self.begin.elapsed())?;
        }
        Ok(samples)
    }
}

fn arrived(topology: &Topology) -> [u64; 2] {
    ["up0", "up1"].map(|name| {
        topology
            .site()
            .interface_bytes(name)
            .map_or(0, |(rx, _)| rx)
    })
}

/// Waits until the younger link has this age, so that all phases see the same of the traces.
fn wait_for_age(topology: &Topology, age: Duration) {
    let young = topology
        .uplinks()
        .iter()
        .map(|uplink| uplink.link.age())
        .min();
    std::thread::sleep(age.saturating_sub(young.unwrap_or_default()));
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot read the trace {}", path.display()))
}

/// Capacity of Wi-Fi on a walk; see the generator beside it.
const WIFI: &str = include_str!("wifi.csv");
/// Capacity of LTE on the same walk.
const LTE: &str = include_str!("lte.csv");
