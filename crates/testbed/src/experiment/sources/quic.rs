//! Bulk QUIC by `ropewalk-bulk`: the receiving end says every tenth of a second what came.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ropewalk_plan::{Congestion, Direction, FlowReport};
use rustix::process::Signal;
use serde::Deserialize;

use super::{Outcome, Source, Stage, sleep_until};
use crate::process::{Process, Program};
use crate::programs;

use super::super::Window;
use super::super::series::{AllSeries, Series};

/// One `[[traffic]]` section of kind `quic`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) flows: u32,
    pub(super) congestion: Congestion,
    pub(super) direction: Direction,
    pub(super) start: Duration,
    pub(super) packet_threshold: u32,
}

/// A server that listens, and a client that will connect to it.
#[derive(Debug)]
pub(super) struct Bulk {
    stage: Stage,
    load: Load,
    name: String,
    server: Process,
    client: Program,
}

/// What the client says at the end.
#[derive(Debug, Default, Deserialize)]
struct ClientReport {
    begin_unix: f64,
    step_ms: u64,
    flows: Vec<ClientFlow>,
}

#[derive(Debug, Default, Deserialize)]
struct ClientFlow {
    received: Vec<u64>,
    lost_packets: u64,
    broken: Option<String>,
}

/// What the server says of a connection.
#[derive(Debug, Default, Deserialize)]
struct ServerFlow {
    flow: usize,
    begin_unix: f64,
    step_ms: u64,
    received: Vec<u64>,
    lost_packets: u64,
}

impl Bulk {
    /// Starts the server.
    pub(super) fn prepare(stage: &Stage, index: usize, load: Load) -> Result<Self> {
        let (ends, name) = (&stage.ends, format!("quic-{index}"));
        let program = programs::own("ropewalk-bulk")?;
        let port = FIRST_PORT + u16::try_from(index)?;
        let listen = std::net::SocketAddr::new(ends.server_address, port).to_string();
        let sender = [
            "--congestion".to_owned(),
            name_of(load.congestion).to_owned(),
            "--packet-threshold".to_owned(),
            load.packet_threshold.to_string(),
        ];
        let mut server = ends
            .server
            .program(&program)
            .args(["serve", "--listen", &listen])
            .args(&sender)
            .start(&stage.directory, &format!("{name}-server"))?;
        let line = server.first_line(READY_LIMIT)?;
        let (_, pin) = line
            .rsplit_once(' ')
            .context("ropewalk-bulk printed no fingerprint")?;
        let time = stage.window.to.saturating_sub(load.start);
        let mut client = ends
            .client
            .program(&program)
            .args(["get", &listen, "--pin", pin, "--json"])
            .args(["--flows", &load.flows.to_string()])
            .args(["--seconds", &time.as_secs_f64().to_string()])
            .args(&sender);
        if load.direction == Direction::Up {
            client = client.arg("--up");
        }
        if let Some(device) = &ends.device {
            client = client.args(["--device", device]);
        }
        Ok(Self {
            stage: stage.clone(),
            load,
            name,
            server,
            client,
        })
    }
}

impl Source for Bulk {
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome> {
        let Self {
            stage,
            load,
            name,
            mut server,
            client,
        } = *self;
        sleep_until(begin, load.start);
        let begin_unix = unix_now() - begin.elapsed().as_secs_f64();
        let mut client = client.start(&stage.directory, &format!("{name}-client"))?;
        let end = begin + stage.window.to + END_GRACE;
        let ended = client.wait(end.saturating_duration_since(Instant::now()))?;
        let status = ended.context("ropewalk-bulk get did not end")?;
        anyhow::ensure!(status.success(), "ropewalk-bulk get: {}", client.log_tail());
        // The farewell may have been lost: then the server is told by hand.
        server.signal(Signal::INT);
        server.wait(END_GRACE)?;
        let report: ClientReport = serde_json::from_str(client.output().trim())
            .context("cannot read what ropewalk-bulk get said")?;
        let mut served: Vec<Option<ServerFlow>> = Vec::new();
        served.resize_with(report.flows.len(), || None);
        for line in server.output().lines().skip(1) {
            let flow: ServerFlow =
                serde_json::from_str(line).context("cannot read what ropewalk-bulk serve said")?;
            let number = flow.flow;
            if let Some(slot) = served.get_mut(number) {
                *slot = Some(flow);
            }
        }
        Ok(outcome(&stage, load, begin_unix, &report, &served))
    }
}

fn outcome(
    stage: &Stage,
    load: Load,
    begin_unix: f64,
    report: &ClientReport,
    served: &[Option<ServerFlow>],
) -> Outcome {
    let series = |begin: f64, step_ms, bytes: &[u64]| Series {
        begin: Duration::try_from_secs_f64(begin - begin_unix).unwrap_or_default(),
        step: Duration::from_millis(step_ms),
        bytes: bytes.to_vec(),
    };
    let (mut all, mut flows, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (client, server)) in report.flows.iter().zip(served).enumerate() {
        let (one, lost) = match (load.direction, server) {
            (Direction::Down, server) => (
                series(report.begin_unix, report.step_ms, &client.received),
                server.as_ref().map_or(0, |server| server.lost_packets),
            ),
            (Direction::Up, Some(server)) => (
                series(server.begin_unix, server.step_ms, &server.received),
                client.lost_packets,
            ),
            (Direction::Up, None) => (Series::default(), client.lost_packets),
        };
        all.push(one);
        flows.push(FlowReport {
            retransmits: lost,
            broken: client.broken.is_some(),
            ..FlowReport::default()
        });
        if let Some(reason) = &client.broken {
            notes.push(format!("quic: connection {index}: {reason}"));
        }
    }
    let lost: u64 = flows.iter().map(|flow| flow.retransmits).sum();
    notes.push(format!(
        "quic: {}, packet threshold {}, {lost} packets lost or taken for lost",
        name_of(load.congestion),
        load.packet_threshold
    ));
    let active = Window {
        from: load.start,
        to: stage.window.to,
    };
    let report = AllSeries(all).report("quic", active, stage.window, flows);
    Outcome { report, notes }
}

fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

const fn name_of(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::NewReno => "newreno",
        Congestion::Cubic => "cubic",
        Congestion::Bbr => "bbr",
    }
}

const FIRST_PORT: u16 = 4_433;
const READY_LIMIT: Duration = Duration::from_secs(5);
/// How long either end may take to end.
const END_GRACE: Duration = Duration::from_secs(2);
