//! `iperf3`: the reference for throughput, and what loads a machine fully.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Direction, Endpoints};

/// What to run.
#[derive(Clone, Debug)]
pub struct IperfSpec {
    /// TCP or UDP.
    pub load: Load,
    /// Which way.
    pub direction: Direction,
    /// Whole seconds.
    pub seconds: u32,
}

/// The kind of load.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// TCP as fast as it goes.
    Tcp {
        /// Parallel connections.
        streams: u32,
        /// Congestion control as the kernel names it.
        congestion: String,
    },
    /// UDP at a fixed rate.
    Udp {
        /// Offered rate of payload, Mbit/s.
        rate_mbit: f64,
        /// Payload bytes per packet.
        size: usize,
    },
}

/// What came out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IperfReport {
    /// Payload received, Mbit/s.
    pub goodput_mbit: f64,
    /// Payload received, bytes.
    pub bytes: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// UDP packets per second received.
    pub packets_per_second: f64,
    /// Share of UDP packets lost, `0.0..=1.0`.
    pub loss: f64,
    /// CPU seconds of both iperf3 programs.
    pub cpu_seconds: f64,
}

impl IperfSpec {
    /// CUBIC over TCP towards the client.
    #[must_use]
    pub fn tcp(streams: u32, seconds: u32) -> Self {
        let load = Load::Tcp {
            streams,
            congestion: "cubic".into(),
        };
        Self {
            load,
            direction: Direction::Download,
            seconds,
        }
    }
}

/// Runs server and client to the end.
///
/// # Errors
/// If iperf3 is missing, cannot connect, or its answer cannot be read.
pub fn run(ends: &Endpoints, spec: &IperfSpec) -> Result<IperfReport> {
    let directory = tempfile::tempdir()?;
    let mut server = ends
        .server
        .program("iperf3")
        .args(["-s", "-1", "-p", PORT, "-i", "0"]);
    server = server.args(["-B", &ends.server_address.to_string()]);
    let mut server = server.start(directory.path(), "iperf3-server")?;
    await_listener(ends, PORT_NUMBER)?;
    let limit = Duration::from_secs(u64::from(spec.seconds) + 30);
    let finished = client(ends, spec).run(limit)?;
    let answer: Value = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("iperf3 gave no JSON: {}", finished.stderr))?;
    if let Some(error) = answer["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let _ = server.wait(Duration::from_secs(2));
    Ok(read(&answer, &spec.load))
}

fn client(ends: &Endpoints, spec: &IperfSpec) -> crate::process::Program {
    let seconds = spec.seconds.to_string();
    let mut program = ends
        .client
        .program("iperf3")
        .args(["-J", "-p", PORT, "-t", &seconds]);
    program = program.args(["-i", "0", "-c", &ends.server_address.to_string()]);
    if let Some(device) = &ends.device {
        program = program.args(["--bind-dev", device]);
    }
    if spec.direction == Direction::Download {
        program = program.arg("-R");
    }
    match &spec.load {
        Load::Tcp {
            streams,
            congestion,
        } => program.args(["-P", &streams.to_string(), "-C", congestion]),
        Load::Udp { rate_mbit, size } => program
            .args(["-u", "-w", UDP_BUFFER, "-l", &size.to_string()])
            .args(["-b", &format!("{:.0}", rate_mbit * 1e6)]),
    }
}

/// Waits until the server listens, without a connection that it would take for the client's.
pub(crate) fn await_listener(ends: &Endpoints, port: u16) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let tables = ends.server.enter(|| {
            ["tcp", "tcp6"].map(|table| {
                std::fs::read_to_string(Path::new("/proc/thread-self/net").join(table))
                    .unwrap_or_default()
            })
        })?;
        if tables.iter().any(|table| has_listener(table, port)) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("nothing listened on TCP port {port} within 5 s");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether `/proc/net/tcp` shows a listening socket (state 0A) on the port.
fn has_listener(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "packet sizes and byte counts are below 2^53"
)]
fn read(answer: &Value, load: &Load) -> IperfReport {
    let end = &answer["end"];
    let received = &end["sum_received"];
    let seconds = received["seconds"].as_f64().unwrap_or(0.0);
    let bytes = received["bytes"].as_u64().unwrap_or(0);
    let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let cpu = &end["cpu_utilization_percent"];
    let percent = |key: &str| cpu[key].as_f64().unwrap_or(0.0) / 100.0;
    let (packets_per_second, loss) = match load {
        Load::Tcp { .. } => (0.0, 0.0),
        Load::Udp { size, .. } => {
            let lost = received["lost_percent"].as_f64().unwrap_or(100.0) / 100.0;
            (rate(bytes as f64 / *size as f64), lost)
        }
    };
    IperfReport {
        goodput_mbit: rate(bytes as f64 * 8.0 / 1e6),
        bytes,
        retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
        packets_per_second,
        loss,
        cpu_seconds: (percent("host_total") + percent("remote_total")) * seconds,
    }
}

const PORT_NUMBER: u16 = 5_201;
const PORT: &str = "5201";
/// Larger than the default, which would be the limit instead of what is measured.
const UDP_BUFFER: &str = "4M";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_port_and_state() {
        let table = "  sl local rem st\n 0: 00000000:1451 00000000:0000 0A x\n";
        assert!(has_listener(table, 5_201));
        assert!(!has_listener(table, 5_202));
        assert!(!has_listener(&table.replace("0A", "01"), 5_201));
    }

    #[test]
    fn a_tcp_answer_is_read() {
        let answer = serde_json::json!({"end": {
            "sum_sent": {"retransmits": 7},
            "sum_received": {"seconds": 2.0, "bytes": 250_000},
            "cpu_utilization_percent": {"host_total": 50.0, "remote_total": 25.0},
        }});
        let report = read(&answer, &IperfSpec::tcp(1, 2).load);
        assert!((report.goodput_mbit - 1.0).abs() < 1e-9);
        assert_eq!((report.bytes, report.retransmits), (250_000, 7));
        assert!((report.cpu_seconds - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_udp_answer_counts_what_arrived() {
        let answer = serde_json::json!({"end": {
            "sum_received": {"seconds": 2.0, "bytes": 240_000, "lost_percent": 50.0},
        }});
        let report = read(
            &answer,
            &Load::Udp {
                rate_mbit: 2.0,
                size: 1_200,
            },
        );
        assert!((report.packets_per_second - 100.0).abs() < 1e-9);
        assert!((report.loss - 0.5).abs() < 1e-9);
    }
}
